//! Daemons that do not what they should.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use nix::sys::memfd::{MFdFlags, memfd_create};
use vfio_user::Command;
use vfio_user::message::{DmaMap, HEADER_LEN, RegionAccess};

use super::*;
use crate::client::message;

fn open(slot: &mut Slot, now: Instant) -> Channel {
    let (near, daemon) = Channel::pair().expect("a pair");
    slot.open(Channel::new(near), now);
    daemon
}

/// A device with a client that has a version, and both its daemon and the client's end.
fn served(now: Instant) -> (Slot, Channel, UnixStream) {
    let mut slot = Slot::new("vm".to_owned());
    let daemon = open(&mut slot, now);
    let (near, client) = UnixStream::pair().expect("a pair");
    let version = message(Command::Version, &[0; 4]);
    let said = daemon.send(Kind::Client, &[], &[near.as_fd()]);
    let said = said.and_then(|()| daemon.send(Kind::Message, &version, &[]));
    said.expect("the keeper is there");
    assert!(!slot.hear_some(now));
    (slot, daemon, client)
}

#[test]
fn a_daemon_that_takes_nothing_is_given_up_and_the_client_is_answered() {
    let now = Instant::now();
    let (mut slot, daemon, mut client) = served(now);
    let memory = memfd_create("memory", MFdFlags::MFD_CLOEXEC).expect("memory");
    for addr in (0..4096).map(|page| page * 4096) {
        let (flags, offset, size) = (3, addr, 4096);
        let (map, mut payload) = (
            DmaMap {
                flags,
                offset,
                addr,
                size,
            },
            Vec::new(),
        );
        map.emit(&mut payload);
        let map = message(Command::DmaMap, &payload);
        let said = daemon.send(Kind::Message, &map, &[memory.as_fd()]);
        said.expect("the keeper is there");
        slot.hear_some(now);
    }
    drop(daemon);
    slot.hear_some(now);
    let idle = open(&mut slot, now);
    let said = idle.send(Kind::Resume, &[], &[]);
    said.expect("the keeper is there");
    slot.hear_some(now);
    slot.answer(now);
    assert!(!slot.is_open());
    let (access, mut payload) = (
        RegionAccess {
            offset: 0,
            region: 0,
            count: 4,
        },
        Vec::new(),
    );
    access.emit(&mut payload);
    let read = message(Command::RegionRead, &payload);
    client.write_all(&read).expect("the keeper listens");
    slot.answer(now);
    let mut reply = [0; HEADER_LEN + 20];
    client.read_exact(&mut reply).expect("a reply");
}

#[test]
fn a_daemon_that_talks_without_end_leaves_others_their_turn() {
    let now = Instant::now();
    let (mut slot, daemon, _client) = served(now);
    for _ in 0..=A_TURN {
        let said = daemon.send(Kind::Refused, &[], &[]);
        said.expect("the keeper is there");
    }
    assert!(slot.hear_some(now));
    assert!(!slot.hear_some(now));
}

#[test]
fn a_client_of_which_descriptors_are_lost_is_not_kept() {
    let now = Instant::now();
    let (mut slot, daemon, mut client) = served(now);
    let cut = Packet {
        kind: Kind::Message,
        body: message(Command::DmaMap, &[0; 32]),
        fds: Vec::new(),
        whole: false,
    };
    slot.handle(cut, now);
    drop(daemon);
    slot.hear_some(now);
    assert_eq!(client.read(&mut [0]).expect("its end"), 0);
}
