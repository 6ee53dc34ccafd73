//! Tests of answers to a client, and of the messages that are repeated to the next server.

use std::os::fd::AsRawFd;

use nix::sys::memfd::{MFdFlags, memfd_create};
use vfio_bindings::bindings::vfio::VFIO_IRQ_SET_DATA_BOOL;

use super::*;

fn client() -> (Client, Socket) {
    let (near, far) = UnixStream::pair().expect("a pair");
    far.set_nonblocking(true).expect("is possible");
    let mut client = Client::new(near.into());
    client.note(message(Command::Version, &[0; 4]), Vec::new());
    (client, Socket::new(far))
}

fn memfd() -> OwnedFd {
    memfd_create("memory", MFdFlags::MFD_CLOEXEC).expect("memory")
}

fn map(addr: u64, size: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    let map = DmaMap {
        flags: 3,
        offset: addr,
        addr,
        size,
    };
    map.emit(&mut payload);
    message(Command::DmaMap, &payload)
}

fn unmap(addr: u64, size: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    let unmap = DmaUnmap {
        argsz: DmaUnmap::LEN,
        flags: 0,
        addr,
        size,
    };
    unmap.emit(&mut payload);
    message(Command::DmaUnmap, &payload)
}

fn irqs(flags: u32, start: u32, count: u32) -> Vec<u8> {
    let mut payload = Vec::new();
    let set = IrqSet {
        flags: flags | VFIO_IRQ_SET_ACTION_TRIGGER,
        index: 2,
        start,
        count,
    };
    set.emit(&[], &mut payload);
    message(Command::DeviceSetIrqs, &payload)
}

fn addresses(client: &Client) -> Vec<u64> {
    let maps = client.memory.iter();
    maps.map(|(message, _)| DmaMap::parse(&message[HEADER_LEN..]).expect("a map").addr)
        .collect()
}

#[test]
fn memory_that_holds_is_said_again() {
    let (mut client, _far) = client();
    for addr in [0, 0x1000, 0x3000, 0x8000] {
        client.note(map(addr, 0x1000), vec![memfd()]);
    }
    client.note(unmap(0x1000, 0x3000), Vec::new());
    assert_eq!(addresses(&client), [0, 0x8000]);
    // A range that is not there, and one that would cut a mapping.
    client.note(unmap(0x10_0000, u64::MAX), Vec::new());
    client.note(unmap(0x8800, 0x1000), Vec::new());
    assert_eq!(addresses(&client), [0, 0x8000]);
    client.note(map(0x8000, 0x1000), vec![memfd()]);
    client.refuse();
    assert_eq!(addresses(&client), [0, 0x8000]);
    let commands: Vec<u16> = client
        .messages()
        .map(|(message, _)| u16::from_ne_bytes([message[2], message[3]]))
        .collect();
    assert_eq!(commands, [1, 2, 2]);
    client.note(unmap(0, 0), Vec::new());
    assert_eq!(addresses(&client), [] as [u64; 0]);
}

#[test]
fn a_file_is_kept_once_and_not_without_end() {
    let (mut client, _far) = client();
    let file = memfd();
    for page in 0..1000 {
        let fd = file.try_clone().expect("another descriptor");
        client.note(map(page * 4096, 4096), vec![fd]);
    }
    let kept = |client: &Client| {
        let files = client.memory.iter().filter_map(|(_, file)| file.as_ref());
        let mut files: Vec<_> = files.map(|file| file.as_raw_fd()).collect();
        files.dedup();
        files.len()
    };
    assert_eq!((client.memory.len(), kept(&client)), (1000, 1));
    for page in 1000..1000 + MAX_FILES as u64 {
        assert!(client.is_known());
        client.note(map(page * 4096, 4096), vec![memfd()]);
    }
    assert!(!client.is_known());
    assert_eq!(client.messages().count(), 0);
}

#[test]
fn vectors_keep_the_eventfd_of_the_last_word() {
    let (mut client, _far) = client();
    let vectors = |client: &Client| -> Vec<u32> {
        client.eventfds.keys().map(|(_, vector)| *vector).collect()
    };
    client.note(
        irqs(VFIO_IRQ_SET_DATA_EVENTFD, 0, 3),
        vec![memfd(), memfd(), memfd()],
    );
    client.note(irqs(VFIO_IRQ_SET_DATA_EVENTFD, 1, 1), Vec::new());
    assert_eq!(vectors(&client), [0, 2]);
    // To raise them changes nothing.
    client.note(irqs(VFIO_IRQ_SET_DATA_BOOL, 0, 3), Vec::new());
    client.note(irqs(VFIO_IRQ_SET_DATA_NONE, 0, 3), Vec::new());
    assert_eq!(vectors(&client), [0, 2]);
    client.note(irqs(VFIO_IRQ_SET_DATA_EVENTFD, 7, 1), vec![memfd()]);
    assert_eq!(client.messages().count(), 4);
    client.note(irqs(VFIO_IRQ_SET_DATA_NONE, 0, 0), Vec::new());
    assert_eq!(vectors(&client), [] as [u32; 0]);
}

fn at_work(at_work: bool) -> StandIn {
    StandIn {
        at_work,
        ..StandIn::default()
    }
}

#[test]
fn a_driver_that_has_recovered_is_left_alone_for_a_while() {
    let (mut client, _far) = client();
    let begin = Instant::now();
    let after = |seconds| begin + Duration::from_secs(seconds);
    client.show(at_work(true), begin);
    // It was loaded.
    assert_eq!(client.hold(begin), None);
    client.show(at_work(false), after(100));
    client.show(at_work(true), after(101));
    client.show(at_work(true), after(110));
    assert_eq!(client.hold(after(102)), Some(after(146)));
    assert_eq!(client.hold(after(146)), None);
    // A machine that is reset forgets.
    client.note(message(Command::DeviceReset, &[]), Vec::new());
    assert_eq!(client.hold(after(102)), None);
    client.show(at_work(true), after(120));
    assert_eq!(client.hold(after(121)), None);
}

fn region(command: Command, region: u32, offset: u64, data: &[u8], count: u32) -> Vec<u8> {
    let mut payload = Vec::new();
    let access = RegionAccess {
        offset,
        region,
        count,
    };
    access.emit(&mut payload);
    payload.extend_from_slice(data);
    message(command, &payload)
}

/// Reads the client's next answer: the header's error, and the payload.
fn reply(far: &Socket) -> (u32, Vec<u8>) {
    let mut header = [0; HEADER_LEN];
    let mut fds = ReceivedFds::default();
    far.receive(&mut header, &mut fds, None).expect("a reply");
    let header = Header::parse(&header);
    let mut payload = vec![0; header.size as usize - HEADER_LEN];
    far.receive(&mut payload, &mut fds, None)
        .expect("all of it");
    (header.error, payload)
}

#[test]
fn accesses_meet_what_is_shown() {
    let (mut client, far) = client();
    let part = |region, bytes: &[u8], writable: &[u8]| Part {
        region,
        offset: 4,
        bytes: bytes.into(),
        writable: writable.into(),
    };
    let stand_in = StandIn {
        at_work: true,
        shown: vec![part(0, &[1, 2], &[]), part(7, &[0x10, 0x20], &[0x0f, 0xff])],
        failed: vec![part(0, &[9], &[])],
        counter: Some((0, 16)),
    };
    client.show(stand_in, Instant::now());
    let mut ask = |message: &[u8], failed| {
        far.send(message, &[], &[], None).expect("there is room");
        client.serve(failed).expect("an answer");
        reply(&far)
    };
    let read = |at| region(Command::RegionRead, 0, at, &[], 4);
    assert_eq!(ask(&read(3), false).1[16..], [0, 1, 2, 0]);
    assert_eq!(ask(&read(3), true).1[16..], [0, 9, 2, 0]);
    let counts = [ask(&read(16), true), ask(&read(16), true)];
    assert_ne!(counts[0], counts[1]);
    assert_eq!(counts[0].1[16], 0);
    for index in [0, 7] {
        let write = region(Command::RegionWrite, index, 4, &[0xff, 0xff], 2);
        assert_eq!(ask(&write, true).1, write[HEADER_LEN..HEADER_LEN + 16]);
    }
    assert_eq!(ask(&read(4), false).1[16..], [1, 2, 0, 0]);
    let config = region(Command::RegionRead, 7, 4, &[], 2);
    assert_eq!(ask(&config, true).1[16..], [0x1f, 0xff]);
    // What is not for anybody but the device.
    assert_eq!(
        ask(&message(Command::DeviceGetInfo, &[0; 16]), true),
        (Errno::EOPNOTSUPP as u32, vec![])
    );
    // Neither is this a message.
    far.send(&[0xff; 64], &[], &[], None)
        .expect("there is room");
    assert_eq!(client.serve(true), Err(Lost::Closed));
}

#[test]
fn what_a_dead_daemon_had_in_hand_is_answered_once() {
    let (mut client, far) = client();
    let read = region(Command::RegionRead, 0, 0, &[], 4);
    // It had been taken.
    client
        .take_over(Left::InHand(read.clone()), true)
        .expect("an answer");
    assert_eq!(reply(&far).1.len(), 20);
    // It is there yet.
    far.send(&read, &[], &[], None).expect("there is room");
    client
        .take_over(Left::InHand(read.clone()), true)
        .expect("no answer");
    client.serve(true).expect("an answer");
    assert_eq!(reply(&far).1.len(), 20);
    // Nobody knows.
    client
        .take_over(Left::Answering(read), true)
        .expect("an answer");
    assert_eq!(reply(&far), (Errno::EIO as u32, vec![]));
    // A mapping that is noted, and one that is lost with its descriptor.
    client.note(map(0, 4096), vec![memfd()]);
    client
        .take_over(Left::InHand(map(0, 4096)), true)
        .expect("an answer");
    assert_eq!(reply(&far), (0, vec![]));
    let mut lost = map(0x1000, 4096);
    lost[0] = 1;
    client
        .take_over(Left::InHand(lost), true)
        .expect("an answer");
    assert_eq!(reply(&far).0, Errno::EIO as u32);
    assert_eq!(addresses(&client), [0]);
    // What was noted goes on with the message behind it.
    let unmap = unmap(0, 4096);
    let noted = [&unmap[..], &map(0, 4096)[..8]].concat();
    client
        .take_over(Left::InHand(noted), true)
        .expect("an answer");
    assert_eq!(reply(&far), (0, unmap[HEADER_LEN..].to_vec()));
    assert_eq!(addresses(&client), [] as [u64; 0]);
}
