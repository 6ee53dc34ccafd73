//! Clients that come, go, and are gone; resets under load.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::daemon::{Bystanders, Daemon, HALF, Peer, connected, connected_by, peers};
use test_driver::{Data, Device, Options, SendRequest, Syndrome, Transport};

fn impatient(connection: &mut test_driver::Connection) {
    // 67 ms: a peer that is there has answered by then, in whatever engine.
    connection.ack_timeout = 14;
    connection.retry_count = 2;
}

/// Writes until that fails; returns why.
fn write_until_error(
    a: &mut Peer,
    qa: &mut test_driver::QueuePair,
    to: test_driver::Remote,
) -> Syndrome {
    let from = [a.sge(0, 100_000)];
    loop {
        let write = SendRequest::write(to, Data::Memory(&from));
        qa.post_send(&write).unwrap();
        let entry = a.sent(qa);
        if !entry.is_ok() {
            return entry.syndrome();
        }
    }
}

fn lose_peer(daemon: &Daemon, lose: impl FnOnce(Device) + Send) {
    let bystanders = Bystanders::start(daemon);
    let (mut a, b) = peers(daemon);
    let (mut qa, qb) = connected_by(
        &a.config(Transport::Rc),
        &b.config(Transport::Rc),
        &a,
        &b,
        impatient,
    );
    let to = b.remote(HALF);
    let started = AtomicBool::new(false);
    let syndrome = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            a.execute(&mut qa, &SendRequest::write(to, Data::Inline(b"first")));
            started.store(true, Ordering::Release);
            write_until_error(&mut a, &mut qa, to)
        });
        while !started.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        lose(b.device.clone());
        drop(qb);
        drop(b);
        writer.join().unwrap()
    });
    assert_eq!(syndrome, Syndrome::RetryExceeded);
    // The next client finds the device as new.
    let b = Peer::open(daemon, "vm2");
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    let mut b = b;
    a.fill(0, 50_000, 8);
    qb.post_receive(&[b.sge(HALF, 50_000)]).unwrap();
    let from = [a.sge(0, 50_000)];
    a.execute(&mut qa, &SendRequest::send(Data::Memory(&from)));
    assert!(b.cq.wait().unwrap().is_ok());
    b.verify(HALF, 50_000, 8);
    bystanders.stop();
}

with_both_doorbells!(
    a_client_that_vanishes_under_load_is_missed_by_its_peer_alone,
    a_reset_under_load_is_noticed_by_the_peer_alone,
    memory_that_is_unmapped_under_load_fails_its_user_alone,
);

fn a_client_that_vanishes_under_load_is_missed_by_its_peer_alone(daemon: &Daemon) {
    lose_peer(daemon, |device| {
        let client = device.client();
        client.stream().shutdown(std::net::Shutdown::Both).unwrap();
    });
}

fn a_reset_under_load_is_noticed_by_the_peer_alone(daemon: &Daemon) {
    lose_peer(daemon, |device| device.reset().unwrap());
}

fn memory_that_is_unmapped_under_load_fails_its_user_alone(daemon: &Daemon) {
    let bystanders = Bystanders::start(daemon);
    let (mut a, b) = peers(daemon);
    let (mut qa, _qb) = connected_by(
        &a.config(Transport::Rc),
        &b.config(Transport::Rc),
        &a,
        &b,
        impatient,
    );
    let extra = b.device.add_memory(4 << 20, 12).unwrap();
    let buffer = extra.allocate(4 << 20, 4096).unwrap();
    let region = test_driver::MemoryRegion::new(&b.pd, &buffer, test_driver::Access::ALL).unwrap();
    let to = test_driver::Remote {
        addr: region.start(),
        key: region.key(),
    };
    let started = AtomicBool::new(false);
    let syndrome = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            a.execute(&mut qa, &SendRequest::write(to, Data::Inline(b"first")));
            started.store(true, Ordering::Release);
            write_until_error(&mut a, &mut qa, to)
        });
        while !started.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        b.device
            .client()
            .dma_unmap(extra.iova(), extra.len() as u64)
            .unwrap();
        writer.join().unwrap()
    });
    assert!(
        matches!(syndrome, Syndrome::RemoteOperation | Syndrome::RemoteAccess),
        "{syndrome:?}"
    );
    bystanders.stop();
}

#[test]
fn a_device_that_was_reset_can_be_initialized_again() {
    let daemon = Daemon::start("trap");
    let peer = Peer::open(&daemon, "vm1");
    let port = peer.port;
    peer.device.reset().unwrap();
    drop(peer);
    let device = Device::open(daemon.socket("vm1")).unwrap();
    assert_eq!(device.wait_active().unwrap().lid, port.lid);
}

#[test]
fn a_client_is_lost_at_every_step_of_its_start() {
    let daemon = Daemon::start("trap");
    drop(driver_client(&daemon));
    for _ in 0..50 {
        drop(Device::attach(daemon.socket("vm1"), Options::default()).unwrap());
        let peer = Peer::open(&daemon, "vm1");
        // Without any of the commands that would take the objects down.
        let client = peer.device.client();
        client.stream().shutdown(std::net::Shutdown::Both).unwrap();
        drop(client);
        drop(peer);
    }
    Peer::open(&daemon, "vm1");
}

fn driver_client(daemon: &Daemon) -> vfio_user::client::Client {
    vfio_user::client::Client::connect(daemon.socket("vm1")).unwrap()
}
