//! Clients that go, and those that come after them; stopping.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use ibvswitch_vfio_user::client::Client;
use ibvswitch_vfio_user::testing::{BAR, Dummy, Events};
use ibvswitch_vfio_user::{Device, DmaTable, End, Interrupts, Protection, Server, Stop};

use crate::harness::{Served, dma, eventfd, memory, message, references, signals};

/// A dummy device on a path.
struct Running {
    path: PathBuf,
    dma: Arc<parking_lot::Mutex<DmaTable>>,
    events: Arc<Events>,
    interrupts: Interrupts,
    stop: Stop,
    server: JoinHandle<std::io::Result<()>>,
    _directory: tempfile::TempDir,
}

impl Running {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vf.sock");
        let mut device = Dummy::new().unwrap();
        let (dma, events, interrupts) = (device.dma(), device.events(), device.interrupts());
        let stop = Stop::new().unwrap();
        let mut server = Server::bind(&path).unwrap();
        let server = std::thread::spawn({
            let stop = stop.clone();
            move || server.run(&mut device, &stop)
        });
        Self {
            path,
            dma,
            events,
            interrupts,
            stop,
            server,
            _directory: directory,
        }
    }

    fn stop(self) {
        self.stop.signal();
        self.server.join().unwrap().unwrap();
        assert!(!self.path.exists());
        assert!(self.dma.lock().is_empty());
    }
}

#[test]
fn the_next_client_finds_the_device_but_not_the_last_ones_memory() {
    let running = Running::start();
    let memory = memory(0x1000, 0);
    let before = references(&memory);
    let interrupt = eventfd();
    for round in 0..20u8 {
        let mut client = Client::connect(&running.path).unwrap();
        assert!(running.dma.lock().is_empty());
        running.interrupts.trigger(0);
        assert_eq!(signals(&interrupt), 0);
        let mut state = [0; 1];
        client.region_read(BAR, 0x100, &mut state).unwrap();
        assert_eq!(state, [round]);

        client
            .dma_map(
                Some(memory.fd().as_fd()),
                0,
                0,
                0x1000,
                Protection::READ_WRITE,
            )
            .unwrap();
        client.set_irqs(2, 0, &[interrupt.as_fd()]).unwrap();
        client.region_write(BAR, 0x100, &[round + 1]).unwrap();
        running.interrupts.trigger(0);
        assert_eq!(signals(&interrupt), 1);
        if round % 2 == 1 {
            // In the middle of a message.
            client
                .stream()
                .write_all(&message(0, 10, 0, &[0; 64])[..40])
                .unwrap();
        }
    }
    // A client that never negotiated does not count.
    drop(UnixStream::connect(&running.path).unwrap());
    let client = Client::connect(&running.path).unwrap();
    assert_eq!(running.events.disconnects.load(Ordering::Relaxed), 20);
    assert_eq!(references(&memory), before);
    drop(client);
    running.stop();
}

#[test]
fn a_second_client_waits_for_the_first_to_go() {
    let running = Running::start();
    let first = Client::connect(&running.path).unwrap();
    let path = running.path.clone();
    let second =
        std::thread::spawn(move || Client::connect(path).map(|mut client| client.device_info()));
    // The second's connection is made, and whatever it sends waits.
    drop(first);
    second.join().unwrap().unwrap().unwrap();
    running.stop();
}

#[test]
fn many_connections_at_once_are_served_one_by_one() {
    let running = Running::start();
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let path = running.path.clone();
            std::thread::spawn(move || {
                Client::connect(path)
                    .unwrap()
                    .device_info()
                    .unwrap()
                    .regions
            })
        })
        .collect();
    for client in clients {
        assert_eq!(client.join().unwrap(), 9);
    }
    running.stop();
}

#[test]
fn it_stops_without_a_client() {
    Running::start().stop();
}

#[test]
fn it_stops_with_an_idle_client() {
    let running = Running::start();
    let mut client = Client::connect(&running.path).unwrap();
    client
        .dma_map(None, 0, 0, 0x1000, Protection::READ)
        .unwrap();
    running.stop();
    assert!(client.device_info().is_err());
}

#[test]
fn it_stops_in_the_middle_of_a_message() {
    let running = Running::start();
    let client = Client::connect(&running.path).unwrap();
    client
        .stream()
        .write_all(&message(0, 10, 0, &[0; 64])[..40])
        .unwrap();
    running.stop();
}

#[test]
fn it_stops_with_a_client_that_takes_no_replies() {
    let running = Running::start();
    let client = Client::connect(&running.path).unwrap();
    let mut read = 0u64.to_le_bytes().to_vec();
    read.extend_from_slice(&crate::harness::words(&[0, 1 << 20]));
    for id in 0..4 {
        client
            .stream()
            .write_all(&message(id, 9, 0, &read))
            .unwrap();
    }
    running.stop();
}

#[test]
fn what_was_sent_before_hanging_up_is_done() {
    let mut served = Served::negotiated();
    let map = message(1, 2, 0, &dma(32, 3, &[0, 0, 0x1000]));
    let reset = message(2, 13, 0x10, &[]);
    served.send(&[map, reset].concat(), &[]);
    let (table, events) = (Arc::clone(&served.dma), Arc::clone(&served.events));
    assert_eq!(served.end(), End::Closed);
    assert_eq!(events.resets.load(Ordering::Relaxed), 1);
    assert_eq!(events.disconnects.load(Ordering::Relaxed), 1);
    assert!(table.lock().is_empty());
}
