//! Messages, in QEMU's order and in none.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use etherparse::ArpOperation;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use vhost::vhost_user::VhostUserFrontend;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use vhost_user_driver::{BASE, Driver, FEATURES, RECEIVE, TRAINS, TRANSMIT};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_INDIRECT_DESC;

use crate::exchange::{arp, meet};
use crate::harness::Lab;

fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let header = [request, 1 | flags, payload.len() as u32];
    let header = header.map(u32::to_le_bytes).concat();
    [&header[..], payload].concat()
}

fn send(stream: &UnixStream, message: &[u8], fds: &[i32]) {
    let parts = [std::io::IoSlice::new(message)];
    let rights = [ControlMessage::ScmRights(fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
    let sent = sendmsg::<()>(
        stream.as_raw_fd(),
        &parts,
        rights,
        MsgFlags::MSG_NOSIGNAL,
        None,
    );
    assert_eq!(sent, Ok(message.len()));
}

fn answer(mut stream: &UnixStream) -> (u32, Vec<u8>) {
    let mut header = [0; 12];
    stream.read_exact(&mut header).unwrap();
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    assert_eq!(word(4), 5, "version 1, an answer");
    let mut payload = vec![0; word(8) as usize];
    stream.read_exact(&mut payload).unwrap();
    (word(0), payload)
}

/// QEMU enables rings before it has said which features it uses.
#[test]
fn rings_are_enabled_before_features_are_set() {
    let lab = Lab::new(1);
    let driver = Driver::connect(lab.socket(0), FEATURES).unwrap();
    let stream = driver.stream();
    for ring in 0..2_u32 {
        let state = [ring, 1].map(u32::to_le_bytes).concat();
        send(stream, &message(18, 8, &state), &[]);
        assert_eq!(answer(stream), (18, vec![0; 8]));
    }
    send(stream, &message(2, 8, &FEATURES.to_le_bytes()), &[]);
    assert_eq!(answer(stream), (2, vec![0; 8]));
}

#[test]
fn what_is_offered() {
    let lab = Lab::new(1);
    let mut driver = Driver::connect(lab.socket(0), FEATURES).unwrap();
    let features = driver.frontend.get_features().unwrap();
    // VIRTIO_NET_F_MTU, VIRTIO_NET_F_GUEST_ANNOUNCE and VHOST_F_LOG_ALL as well.
    assert_eq!(features, FEATURES | TRAINS | 1 << 3 | 1 << 21 | 1 << 26);
    let protocol = driver.frontend.get_protocol_features().unwrap();
    // LOG_SHMFD, REPLY_ACK, NET_MTU.
    assert_eq!(protocol.bits(), 1 << 1 | 1 << 3 | 1 << 4);
}

#[test]
fn an_mtu_that_is_too_long_is_refused() {
    let lab = Lab::new(1);
    let driver = Driver::connect(lab.socket(0), FEATURES).unwrap();
    for (mtu, refused) in [(1500_u64, 0_u64), (2044, 0), (2045, 1), (u64::MAX, 1)] {
        send(driver.stream(), &message(20, 8, &mtu.to_le_bytes()), &[]);
        let expected = refused.to_le_bytes().to_vec();
        assert_eq!(answer(driver.stream()), (20, expected), "{mtu}");
    }
}

#[test]
fn a_ring_that_stops_says_where() {
    let lab = Lab::new(1);
    let mut driver = lab.guest(0);
    let frame = [0xff; 60];
    for _ in 0..5 {
        driver.send(&frame).unwrap();
    }
    while driver.queues[TRANSMIT].take().is_none() {
        std::thread::yield_now();
    }
    while driver.queues[TRANSMIT].take().is_some() {}
    let base = driver.stop_ring(TRANSMIT).unwrap();
    assert!((1..=5).contains(&base), "{base}");
    // The port may have asked for groups.
    let asked = driver.stop_ring(RECEIVE).unwrap();
    assert!(asked <= 2, "{asked}");
    // What starts again goes on there.
    driver.start_ring(TRANSMIT, base as u16).unwrap();
    driver.start_ring(RECEIVE, asked as u16).unwrap();
    for _ in base..5 {
        driver.kick(TRANSMIT).unwrap();
    }
    assert!(driver.stop_ring(TRANSMIT).unwrap() <= 5);
}

/// Whether the port ends a connection after a message.
fn ends(lab: &Lab, message: &[u8], fds: &[i32]) {
    let driver = Driver::connect(lab.socket(0), FEATURES).unwrap();
    send(driver.stream(), message, fds);
    driver.await_end().unwrap();
}

#[test]
fn messages_that_make_no_sense_end_the_connection() {
    let lab = Lab::new(1);
    let ring = |ring: u32, number: u32| [ring, number].map(u32::to_le_bytes).concat();
    let table = |count: u32, regions: usize| {
        let mut payload = [count, 0].map(u32::to_le_bytes).concat();
        payload.resize(8 + 32 * regions, 0);
        payload
    };
    let wrong: &[(&str, Vec<u8>)] = &[
        ("an answer to nothing", message(1, 4, &[])),
        ("an unknown request", message(99, 0, &[])),
        ("one that was not offered", message(19, 0, &[0; 8])),
        ("a payload that is short", message(2, 0, &[0; 7])),
        ("a payload where none is", message(1, 0, &[0; 1])),
        (
            "features that are not there",
            message(2, 0, &u64::MAX.to_le_bytes()),
        ),
        (
            "protocol features that are not there",
            message(16, 0, &u64::MAX.to_le_bytes()),
        ),
        ("a ring that is not there", message(8, 0, &ring(2, 256))),
        ("a ring that is far away", message(9, 0, &[0xff; 40])),
        ("a ring of no size", message(8, 0, &ring(0, 0))),
        (
            "a ring of a size that is none",
            message(8, 0, &ring(0, 255)),
        ),
        ("a ring that is too large", message(8, 0, &ring(0, 2048))),
        (
            "a base that is too large",
            message(10, 0, &ring(0, 0x1_0000)),
        ),
        (
            "a kick without a descriptor",
            message(12, 0, &0_u64.to_le_bytes()),
        ),
        (
            "a kick of a ring that has no place",
            message(12, 0, &0x100_u64.to_le_bytes()),
        ),
        (
            "a kick of ring 255",
            message(12, 0, &0x1ff_u64.to_le_bytes()),
        ),
        ("a table without regions", message(5, 0, &table(0, 0))),
        ("a table that counts wrong", message(5, 0, &table(2, 1))),
        ("a table without descriptors", message(5, 0, &table(1, 1))),
        ("a log without a descriptor", message(6, 0, &[0; 16])),
    ];
    for (what, message) in wrong {
        println!("{what}");
        ends(&lab, message, &[]);
    }
    let mut long = message(5, 0, &[]);
    long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    ends(&lab, &long, &[]);
    let mut version = message(1, 0, &[]);
    version[4] = 2;
    ends(&lab, &version, &[]);
    // And the port is there for the next one.
    lab.guest(0);
}

#[test]
fn descriptors_that_nobody_expects_end_the_connection() {
    let lab = Lab::new(1);
    let null = std::fs::File::open("/dev/null").unwrap();
    let fd = null.as_raw_fd();
    ends(&lab, &message(1, 0, &[]), &[fd]);
    ends(&lab, &message(2, 0, &[0; 8]), &[fd]);
    ends(&lab, &message(13, 0, &0_u64.to_le_bytes()), &[fd, fd]);
    ends(&lab, &message(13, 0, &0x100_u64.to_le_bytes()), &[fd]);
    ends(&lab, &message(3, 0, &[]), &[fd; 100]);
    // They are closed: who floods the port with them does not use up its descriptors.
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for _ in 0..50 {
        ends(&lab, &message(3, 0, &[]), &[fd; 200]);
    }
    assert!(open() < before + 50);
    lab.guest(0);
}

#[test]
fn memory_that_cannot_be_ends_the_connection() {
    let lab = Lab::new(1);
    let region = |guest: u64, size: u64, user: u64, offset: u64| {
        [guest, size, user, offset].map(u64::to_le_bytes).concat()
    };
    let table = |regions: &[Vec<u8>]| {
        let count = [regions.len() as u32, 0].map(u32::to_le_bytes).concat();
        message(5, 8, &[count, regions.concat()].concat())
    };
    let size = vhost_user_driver::MEMORY as u64;
    let wrong = [
        vec![region(0, 0, 0, 0)],
        vec![region(0, size + 1, 0, 0)],
        vec![region(0, size, 0, 1)],
        vec![region(u64::MAX, size, 0, 0)],
        vec![region(0, size, u64::MAX, 0)],
        vec![region(0, size, 0, u64::MAX)],
        vec![region(0, size, 0, 0), region(size - 1, 4096, 1 << 40, 0)],
    ];
    for regions in wrong {
        let driver = Driver::connect(lab.socket(0), FEATURES).unwrap();
        let fds = vec![driver.memory_fd(); regions.len()];
        send(driver.stream(), &table(&regions), &fds);
        driver.await_end().unwrap();
    }
    // Nor what is no memory.
    let (reads, _writes) = nix::unistd::pipe().unwrap();
    let driver = Driver::connect(lab.socket(0), FEATURES).unwrap();
    let message = table(&[region(0, 4096, 0, 0)]);
    send(driver.stream(), &message, &[reads.as_raw_fd()]);
    driver.await_end().unwrap();
    // A ring that is not in memory does not start.
    let mut driver = Driver::connect(lab.socket(0), FEATURES).unwrap();
    assert!(driver.start_ring(RECEIVE, 0).is_err());
    driver.await_end().unwrap();
    lab.guest(0);
}

#[test]
fn the_memory_may_change_under_rings_at_work_but_not_away() {
    let lab = Lab::new(1);
    let driver = lab.guest(0);
    driver.share_memory().unwrap();
    driver.place_ring(RECEIVE).unwrap();
    let mut elsewhere = driver.regions().unwrap();
    elsewhere[0].userspace_addr += 1 << 30;
    assert!(driver.frontend.set_mem_table(&elsewhere).is_err());
    driver.await_end().unwrap();
}

/// The guest's memory in two parts, with nothing between them.
#[test]
fn buffers_in_a_hole_of_the_memory_end_the_connection() {
    const MIB: u64 = 1 << 20;
    let lab = Lab::new(1);
    // In it, into it, out of it, and over all of it.
    for (from, len) in [(4, 64), (4, MIB as u32), (5, MIB as u32 + 1), (3, 4 << 20)] {
        let mut driver = Driver::connect(lab.socket(0), FEATURES).unwrap();
        let whole = driver.regions().unwrap().remove(0);
        let part = |from: u64, to: u64| VhostUserMemoryRegionInfo {
            guest_phys_addr: whole.guest_phys_addr + from * MIB,
            userspace_addr: whole.userspace_addr + from * MIB,
            mmap_offset: whole.mmap_offset + from * MIB,
            memory_size: (to - from) * MIB,
            ..whole
        };
        let table = [part(0, 4), part(6, 8)];
        driver.frontend.set_mem_table(&table).unwrap();
        (0..2).for_each(|ring| driver.start_ring(ring, 0).unwrap());
        let queue = &mut driver.queues[TRANSMIT];
        let at = BASE + from * MIB - u64::from(from == 3);
        queue.describe(0, at, len, 0, 0);
        queue.offer(0);
        driver.kick(TRANSMIT).unwrap();
        driver.await_end().unwrap();
    }
    lab.guest(0);
}

/// Features that a client negotiates while its rings are at work hold from then on, and frames pass all the
/// while.
#[test]
fn features_may_change_under_rings_at_work() {
    let lab = Lab::new(2);
    let [mut a, mut b] = [lab.guest(0), lab.guest_with_trains(1)];
    meet(&lab, &mut a, &mut b, [0, 1]);
    let indirect = 1 << VIRTIO_RING_F_INDIRECT_DESC;
    for features in [FEATURES, FEATURES & !indirect | TRAINS, FEATURES | TRAINS] {
        b.frontend.set_features(features).unwrap();
        let takes_trains = features & TRAINS != 0;
        while lab.net.lock().trains.contains(&3) != takes_trains {
            std::thread::yield_now();
        }
        a.frontend.set_features(features).unwrap();
        for _ in 0..100 {
            let frame = arp(ArpOperation::REQUEST, 0, 1, [0; 6]);
            a.send(&frame).unwrap();
            assert_eq!(b.receive().unwrap(), frame);
        }
    }
    // What was not offered ends it.
    let _ = b.frontend.set_features(FEATURES | 1 << 63);
    b.await_end().unwrap();
    lab.guest(1);
}

#[test]
fn half_a_message_keeps_nobody_from_stopping() {
    let lab = Lab::new(1);
    let driver = Driver::connect(lab.socket(0), FEATURES).unwrap();
    let mut stream = driver.stream();
    stream.write_all(&message(1, 0, &[])[..7]).unwrap();
    drop(lab);
    driver.await_end().unwrap();
}
