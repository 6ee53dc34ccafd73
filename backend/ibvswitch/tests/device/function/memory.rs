//! Memory of the device: processors and peers reach it, nobody else finds what was there, and it goes along with a
//! VM.

use crate::daemon::{Daemon, HALF, Peer, connected, peers};
use test_driver::{
    Access, Atomic, Data, DeviceMemory, MemoryRegion, Options, Remote, SendOpcode, SendRequest,
    Sge, Status, Transport,
};

/// Runs the tests where doorbells are memory: elsewhere the device's is not offered.
macro_rules! polled {
    ($($name:ident),* $(,)?) => {
        mod polled {
            $(#[test] fn $name() { super::$name(&crate::daemon::Daemon::start("poll")); })*
        }
    };
}
polled!(
    processors_and_peers_reach_it,
    who_comes_next_finds_zeros,
    it_stays_under_another_program,
);

const LEN: u32 = 64 << 10;

fn region(of: &Peer, memory: &DeviceMemory) -> MemoryRegion {
    MemoryRegion::of_device(&of.pd, memory, (0, memory.len().into()), Access::ALL).unwrap()
}

fn bytes(of: &Peer, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    of.buffer.read(0, &mut bytes);
    bytes
}

/// Writes, reads, atomics and messages, with the memory at either end.
fn processors_and_peers_reach_it(daemon: &Daemon) {
    let (mut a, mut b) = peers(daemon);
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    let memory = DeviceMemory::new(&b.device, LEN).unwrap();
    let theirs = region(&b, &memory);
    let remote = |at| Remote {
        addr: at,
        key: theirs.key(),
    };
    a.fill(0, 40_000, 7);
    let data = [a.sge(0, 40_000)];
    let write = SendRequest::write(remote(64), Data::Memory(&data));
    assert!(a.execute(&mut qa, &write).is_ok());
    let mut found = vec![0; 40_000];
    memory.read(64, &mut found).unwrap();
    assert!(found == bytes(&a, 40_000));
    // What a processor writes, a peer reads.
    memory.write(128, b"by a processor!!").unwrap();
    let data = [a.sge(0, 16)];
    let read = SendRequest::read(remote(128), &data);
    assert!(a.execute(&mut qa, &read).is_ok());
    assert_eq!(bytes(&a, 16), b"by a processor!!");
    memory.write(256, &41_u64.to_le_bytes()).unwrap();
    let data = [a.sge(0, 8)];
    let one = Atomic {
        swap_add: 1,
        ..Atomic::default()
    };
    let add = SendRequest::atomic(SendOpcode::FetchAdd, remote(256), one, &data);
    assert!(a.execute(&mut qa, &add).is_ok());
    let mut sum = [0; 8];
    memory.read(256, &mut sum).unwrap();
    assert_eq!((u64::from_le_bytes(sum), a.word(0)), (42, 41));
    // It is gathered from, and received to.
    let own = |at, len| Sge {
        addr: at,
        key: theirs.key(),
        len,
    };
    qb.post_receive(&[own(1024, 4096)]).unwrap();
    a.fill(0, 4096, 8);
    let data = [a.sge(0, 4096)];
    assert!(
        a.execute(&mut qa, &SendRequest::send(Data::Memory(&data)))
            .is_ok()
    );
    let entry = b.cq.wait().unwrap();
    assert!(entry.is_ok(), "{entry:?}");
    qb.complete(&entry);
    let data = [own(1024, 4096)];
    let write = SendRequest::write(a.remote(HALF), Data::Memory(&data));
    assert!(b.execute(&mut qb, &write).is_ok());
    a.verify(HALF, 4096, 8);
    // There is no more of it than the piece.
    let data = [a.sge(0, 2)];
    let beyond = SendRequest::write(remote(u64::from(LEN) - 1), Data::Memory(&data));
    qa.post_send(&beyond).unwrap();
    assert!(!a.cq.wait().unwrap().is_ok());
}

/// Each guest of a VF has what it may have, and nothing of the one before.
fn who_comes_next_finds_zeros(daemon: &Daemon) {
    let a = Peer::open(daemon, "vm1");
    let memory = DeviceMemory::new(&a.device, LEN).unwrap();
    let other = DeviceMemory::new(&a.device, LEN).unwrap();
    assert_ne!(memory.offset(), other.offset());
    let refused = DeviceMemory::new(&a.device, 64).unwrap_err();
    assert_eq!(refused.status(), Some(Status::NoResources));
    let offset = memory.offset();
    memory.write(0, b"secret").unwrap();
    // Of the same guest.
    drop((memory, other));
    let memory = DeviceMemory::new(&a.device, LEN).unwrap();
    let mut found = [1; 6];
    memory.read(0, &mut found).unwrap();
    assert_eq!((memory.offset(), found), (offset, [0; 6]));
    // After a reset, and after its end.
    memory.write(0, b"secret").unwrap();
    a.device.reset().unwrap();
    let device = a.device.reopen(Options::default()).unwrap();
    device.read_bar(offset, &mut found).unwrap();
    assert_eq!(found, [0; 6]);
    device.write_bar(offset, b"secret").unwrap();
    device.read_bar(offset, &mut found).unwrap();
    assert_eq!(&found, b"secret");
    drop((a, memory, device));
    let b = daemon.open("vm1");
    b.read_bar(offset, &mut found).unwrap();
    assert_eq!(found, [0; 6]);
}

/// The memory has the guest's last writes, also those after the request for the other program.
fn it_stays_under_another_program(daemon: &Daemon) {
    let (mut a, b) = peers(daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let memory = DeviceMemory::new(&b.device, LEN).unwrap();
    let theirs = region(&b, &memory);
    memory.write(70, b"taken along").unwrap();
    let report = daemon.ask(&["upgrade", "--within", "60"]);
    assert_eq!(report["failed"], 0, "{report}");
    let mut read = |a: &mut Peer, addr| {
        let data = [a.sge(0, 11)];
        let remote = Remote {
            addr,
            key: theirs.key(),
        };
        let read = SendRequest::read(remote, &data);
        assert!(a.execute(&mut qa, &read).is_ok());
        bytes(a, 11)
    };
    assert_eq!(read(&mut a, 70), b"taken along");
    // The mapping is still the device's.
    memory.write(4096, b"written now").unwrap();
    assert_eq!(read(&mut a, 4096), b"written now");
}

#[test]
fn none_is_offered_where_doorbells_trap() {
    let daemon = Daemon::start("trap");
    let vm = Peer::open(&daemon, "vm1");
    assert!(DeviceMemory::new(&vm.device, 64).is_err());
}

/// With what was written there, and its keys.
#[test]
fn it_goes_along_with_a_vm() {
    let (here, there) = (Daemon::start("poll"), Daemon::start("poll"));
    let b = Peer::open(&here, "vm2");
    let memory = DeviceMemory::new(&b.device, LEN).unwrap();
    let theirs = region(&b, &memory);
    memory.write(70, b"taken along").unwrap();
    let mut paused = b.device.pause().unwrap();
    let image = paused.image().unwrap();
    paused.go_on_at(there.socket("vm2"), &image).unwrap();
    drop(paused);
    let mut found = [0; 11];
    b.device.read_bar(memory.offset() + 70, &mut found).unwrap();
    assert_eq!(&found, b"taken along");
    let mut a = Peer::open(&there, "vm1");
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let data = [a.sge(0, 11)];
    let remote = Remote {
        addr: 70,
        key: theirs.key(),
    };
    assert!(
        a.execute(&mut qa, &SendRequest::read(remote, &data))
            .is_ok()
    );
    assert_eq!(bytes(&a, 11), b"taken along");
}
