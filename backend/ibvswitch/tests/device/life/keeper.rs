//! The daemon is killed, and its clients stay with the keeper until it is there again.

use std::os::fd::AsFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::daemon::{Daemon, Peer};
use nix::sys::stat::fstat;
use test_driver::{BAR0, CONFIG, initialization};
use testing::{Configuration, wait_until};
use vfio_user::client::Client;
use vfio_user::message::{FLAG_COMMAND, HEADER_LEN, RegionAccess};
use vfio_user::{Command, Header};

fn configuration() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", [])
        .vf("vm1")
        .key("doorbells", "trap")
        .hypervisor("hv2", [])
        .vf("vm2")
        .key("doorbells", "poll")
}

/// Longer than any answer takes.
const LIMIT: Duration = Duration::from_secs(30);

fn kept() -> Daemon {
    Daemon::kept(configuration())
}

/// Both VFs, with clients that fail where they would wait in vain.
fn peers(daemon: &Daemon) -> (Peer, Peer) {
    let (a, b) = crate::daemon::peers(daemon);
    for peer in [&a, &b] {
        peer.device.client().set_time_limit(LIMIT).unwrap();
    }
    (a, b)
}

/// The inode of the memory that doorbell pages are.
fn pages(peer: &Peer) -> u64 {
    let info = peer.device.client().region_info(BAR0).unwrap();
    fstat(info.fd.expect("doorbells are polled").as_fd())
        .unwrap()
        .st_ino
}

#[test]
fn drivers_recover_with_what_they_have_shared() {
    let daemon = kept();
    let (mut a, mut b) = peers(&daemon);
    a.write_to(&b);
    b.write_to(&a);
    let (mapped, mut before) = (pages(&b), [0; 256]);
    a.device
        .client()
        .region_read(CONFIG, 0, &mut before)
        .unwrap();
    daemon.kill_served();
    let [mut a, mut b] = [a, b].map(|peer| Peer::new(peer.device.recover().unwrap()));
    a.write_to(&b);
    b.write_to(&a);
    assert_eq!(pages(&b), mapped);
    // The client has written none of it again.
    let mut after = [0; 256];
    a.device
        .client()
        .region_read(CONFIG, 0, &mut after)
        .unwrap();
    assert_eq!(after, before);
    assert_eq!(after[4] & 0x6, 0x6);
}

/// While there is no daemon, and none can be started, the device is there, alive, and has failed; what the client
/// says is remembered.
#[test]
fn a_device_without_a_daemon_has_failed() {
    let daemon = kept();
    let (mut a, b) = peers(&daemon);
    a.write_to(&b);
    std::fs::write(daemon.config(), "wrong").unwrap();
    daemon.kill_served();
    daemon.await_log("it is started again");
    for peer in [&a, &b] {
        let read = |offset| peer.device.read_dword(offset).unwrap();
        // Nobody has taken over before the first answer.
        assert_eq!(read(initialization::CMDIF_REV) >> 16, 5);
        assert_eq!(read(initialization::INITIALIZING), 1 << 31);
        assert_eq!(read(initialization::CMDQ_ADDR_L_SZ) >> 8 & 7, 1);
        let counted = read(initialization::HEALTH_COUNTER);
        assert_ne!(read(initialization::HEALTH_COUNTER), counted);
        let mut client = peer.device.client();
        // The driver says where its queue is, and is not heard.
        client
            .region_write(BAR0, 0x14, &0x1000_u32.to_be_bytes())
            .unwrap();
        // As firmware does: sizes of BARs, and the command register.
        client.region_write(CONFIG, 0x10, &[0xff; 4]).unwrap();
        let mut bar = [0; 4];
        client.region_read(CONFIG, 0x10, &mut bar).unwrap();
        assert_eq!(u32::from_le_bytes(bar), 0xff80_000c);
        client.region_write(CONFIG, 0x10, &[0, 0, 0, 0xe0]).unwrap();
        drop(client);
        assert_eq!(read(initialization::CMDQ_ADDR_L_SZ) >> 8 & 7, 1);
    }
    // More memory, which is in use afterwards.
    let memory = b.device.add_memory(1 << 20, 12).unwrap();
    std::fs::write(daemon.config(), configuration().to_string()).unwrap();
    let [mut a, mut b] = [a, b].map(|peer| Peer::new(peer.device.recover().unwrap()));
    let mut bar = [0; 4];
    b.device
        .client()
        .region_read(CONFIG, 0x10, &mut bar)
        .unwrap();
    assert_eq!(u32::from_le_bytes(bar), 0xe000_000c);
    drop(memory);
    a.write_to(&b);
    b.write_to(&a);
}

/// Reads `offset` of BAR 0; what it says, or that nobody knows whether it had been answered.
fn read(client: &mut Client, id: u16, offset: u64) -> Option<u32> {
    let access = RegionAccess {
        offset,
        region: BAR0,
        count: 4,
    };
    let mut payload = Vec::new();
    access.emit(&mut payload);
    let header = Header {
        id,
        command: Command::RegionRead as u16,
        size: (HEADER_LEN + payload.len()) as u32,
        flags: FLAG_COMMAND,
        error: 0,
    };
    client.send(header, &payload, &[]).unwrap();
    loop {
        let reply = client.receive().unwrap();
        if reply.header.id != id {
            // A second answer to the one before, since nobody knew of the first.
            let again = reply.header.id == id.wrapping_sub(1) && reply.error().is_some();
            assert!(again, "{reply:?} to {id}");
            continue;
        }
        let data = reply.payload.last_chunk().copied().map(u32::from_be_bytes);
        assert_eq!(data.is_none(), reply.error().is_some());
        return data;
    }
}

/// Ends the threads of a test also where it fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Requests come one after the other while daemons are killed: each is answered, and the stream is in step.
#[test]
fn requests_in_hand_are_answered() {
    let daemon = kept();
    let (done, connected) = (AtomicBool::new(false), Barrier::new(3));
    std::thread::scope(|scope| {
        let clients = ["vm1", "vm2"].map(|name| {
            let (daemon, done, connected) = (&daemon, &done, &connected);
            scope.spawn(move || {
                let mut client = Client::connect_within(daemon.socket(name), LIMIT).unwrap();
                connected.wait();
                // The last command, VERSION, was number 0.
                let (mut id, mut unsure) = (0_u16, 0);
                while !done.load(Ordering::Relaxed) {
                    id = id.wrapping_add(1);
                    match read(&mut client, id, initialization::CMDIF_REV) {
                        Some(revision) => assert_eq!(revision >> 16, 5),
                        None => unsure += 1,
                    }
                    // Nobody answers these: they are taken whole, or left whole.
                    for uar in 4..8 {
                        client
                            .region_post(BAR0, uar * 4096 + 0x800, &[0; 8])
                            .unwrap();
                    }
                }
                unsure
            })
        });
        connected.wait();
        let end = SetOnDrop(&done);
        for life in 1..=10 {
            let lives = |text: &str| daemon.log().matches(text).count();
            let taken_over = || lives("goes on with the client") >= 2 * (life - 1);
            wait_until("clients are taken over", taken_over);
            daemon.kill_served();
            wait_until("it is seen dead", || lives("was killed") >= life);
        }
        drop(end);
        for client in clients {
            // One for each kill at most.
            assert!(client.join().unwrap() <= 10);
        }
    });
}

/// A client that goes while there is no daemon is forgotten, and a new client is served as ever.
#[test]
fn a_client_that_goes_makes_room() {
    let daemon = kept();
    let device = daemon.open("vm1");
    std::fs::write(daemon.config(), "wrong").unwrap();
    daemon.kill_served();
    daemon.await_log("it is started again");
    drop(device);
    std::fs::write(daemon.config(), configuration().to_string()).unwrap();
    let (mut a, mut b) = peers(&daemon);
    a.write_to(&b);
    b.write_to(&a);
}

/// A file of a process in /proc; nothing where the process has just died.
fn of(pid: u32, what: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default()
}

/// The supervisor and its children, as what they were started to do and how many descriptors they have.
fn processes(daemon: &Daemon) -> Vec<(String, u32, usize)> {
    let pid = daemon.pid();
    let children = of(pid, &format!("task/{pid}/children"));
    let children = children.split_whitespace().map(|it| it.parse().unwrap());
    let describe = |pid| {
        let arguments = of(pid, "cmdline");
        let last = arguments.trim_end_matches('\0').rsplit('\0').next();
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"));
        let descriptors = descriptors.map_or(0, Iterator::count);
        (last.unwrap_or_default().to_owned(), pid, descriptors)
    };
    [pid].into_iter().chain(children).map(describe).collect()
}

#[test]
fn the_keeper_is_in_a_sandbox() {
    let daemon = kept();
    let processes = processes(&daemon);
    let keeper = processes.iter().find(|(name, ..)| name == "keeper");
    let &(_, pid, _) = keeper.expect("it is there");
    let status = of(pid, "status");
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{status}");
    }
}

#[test]
fn twenty_dead_daemons_leave_nothing() {
    let daemon = kept();
    let devices = ["vm1", "vm2"].map(|name| daemon.open(name));
    let mut first = None;
    for life in 1..=20 {
        daemon.kill_served();
        let said = |text: &str| daemon.log().matches(text).count();
        wait_until("clients are taken over", || {
            said("goes on with the client") == 2 * life && said("run: serving") == life + 1
        });
        for device in &devices {
            device.client().set_time_limit(LIMIT).unwrap();
            let revision = device.read_dword(initialization::CMDIF_REV).unwrap();
            assert_eq!(revision >> 16, 5);
        }
        let now = || -> Vec<_> {
            let processes = processes(&daemon).into_iter();
            processes.map(|(name, _, count)| (name, count)).collect()
        };
        let first = first.get_or_insert_with(now);
        let names: Vec<_> = first.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["--keeper", "keeper", "--kept"]);
        wait_until("no more descriptors", || now() == *first);
    }
}
