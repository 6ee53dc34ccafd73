//! Attacks of a guest of a VF that is passed through on the daemon's memory at the VF behind, by the addresses and
//! keys that it names.

use crate::daemon::{Daemon, HALF, Peer, connected};
use test_driver::{
    Access, CompletionQueue, Data, Device, Klm, MemoryRegion, Remote, SendRequest, Sge,
    SharedReceiveQueue, Status, Transport,
};

/// The DMA address of the daemon's memory. It begins with the command queue.
const WINDOW: u64 = (1 << 38) - (128 << 20);
/// In the first byte of an entry of the command queue.
const COMMAND: u8 = 7;

/// Two daemons with one VF behind another, a driver, and a driver of another VF.
fn guests(isolation: &str) -> (Daemon, Daemon, Peer, Peer) {
    let inner = Daemon::start("trap");
    let outer = inner.before(&["vm1"], isolation);
    let (guest, other) = (Peer::open(&outer, "vm1"), Peer::open(&inner, "vm2"));
    (inner, outer, guest, other)
}

/// Reads the daemon's memory through a key, as far as the key lets its guest.
fn read_window(guest: &mut Peer, other: &Peer, key: u32) -> Option<[u8; 64]> {
    let (mut qp, _far) = connected(Transport::Rc, guest, other);
    let from = [Sge {
        addr: WINDOW,
        len: 64,
        key,
    }];
    let write = SendRequest::write(other.remote(HALF), Data::Memory(&from));
    qp.post_send(&write).expect("is posted");
    let entry = guest.sent(&mut qp);
    let mut read = [0; 64];
    other.buffer.read(HALF, &mut read);
    entry.is_ok().then_some(read)
}

/// Whether the daemon's memory can be written by this key: by the guest itself, and by another one.
fn write_window(guest: &mut Peer, other: &mut Peer, key: u32) -> [bool; 2] {
    // Where nobody looks for anything.
    let addr = WINDOW + (1 << 20) - 4096;
    let (mut qp, _far) = connected(Transport::Rc, guest, other);
    let to = [Sge { addr, len: 64, key }];
    let read = SendRequest::read(other.remote(HALF), &to);
    qp.post_send(&read).expect("is posted");
    let own = guest.sent(&mut qp).is_ok();
    let (mut qp, _far) = connected(Transport::Rc, other, guest);
    let from = [other.sge(0, 64)];
    let write = SendRequest::write(Remote { addr, key }, Data::Memory(&from));
    qp.post_send(&write).expect("is posted");
    [own, other.sent(&mut qp).is_ok()]
}

/// The status of what was refused.
fn refused<T>(outcome: Result<T, test_driver::Error>) -> Option<Status> {
    match outcome {
        Ok(_) => None,
        Err(test_driver::Error::Refused { status, .. }) => Some(status),
        Err(error) => panic!("{error}"),
    }
}

/// The attacks that the other test shows to be impossible are possible without isolation.
#[test]
fn without_isolation_a_guest_reads_and_writes_the_daemons_memory() {
    let (_inner, _outer, mut guest, mut other) = guests("sriov");
    let all = MemoryRegion::physical(&guest.pd, Access::ALL).expect("a key");
    let read = read_window(&mut guest, &other, all.key());
    assert_eq!(read.map(|bytes| bytes[0]), Some(COMMAND));
    assert_eq!(write_window(&mut guest, &mut other, all.key()), [true; 2]);
    MemoryRegion::free(&guest.pd, 8).expect("a key for work requests to fill");
}

#[test]
fn a_key_over_all_memory_is_over_the_guests() {
    let (_inner, _outer, mut guest, mut other) = guests("strict");
    let all = MemoryRegion::physical(&guest.pd, Access::ALL).expect("a key");
    assert_eq!(read_window(&mut guest, &other, all.key()), None);
    assert_eq!(write_window(&mut guest, &mut other, all.key()), [false; 2]);
    // Another way to the same key: in pieces.
    let piece = Klm {
        len: 4096,
        key: all.key(),
        addr: WINDOW,
    };
    let pieces = MemoryRegion::indirect(&guest.pd, &[piece], Access::ALL, WINDOW).expect("a key");
    assert_eq!(read_window(&mut guest, &other, pieces.key()), None);
    assert_eq!(
        write_window(&mut guest, &mut other, pieces.key()),
        [false; 2]
    );
    // The guest's own memory is where it is.
    const LEN: usize = 70_000;
    guest.fill(0, LEN, 5);
    let (mut qp, _far) = connected(Transport::Rc, &guest, &other);
    let from = [Sge {
        key: all.key(),
        ..guest.sge(0, LEN)
    }];
    guest.execute(
        &mut qp,
        &SendRequest::write(other.remote(HALF), Data::Memory(&from)),
    );
    other.verify(HALF, LEN, 5);
}

#[test]
fn work_requests_change_no_keys() {
    let (_inner, _outer, guest, _other) = guests("strict");
    let filled = MemoryRegion::free(&guest.pd, 8);
    assert_eq!(refused(filled), Some(Status::BadParam));
    // Bits 24, 23 and 22 of the dword at 0x40: what work requests cannot change.
    let word = |device: &Device| {
        let capabilities = device.capabilities();
        u32::from_be_bytes(capabilities[0x40..0x44].try_into().expect("four bytes"))
    };
    let disabled = 0b111 << 22;
    assert_eq!(word(&guest.device) & disabled, disabled);
}

/// A request with its opcode, a number, and dwords at offsets.
fn request(opcode: u16, len: usize, dwords: &[(usize, u32)]) -> Vec<u8> {
    let mut request = vec![0; len];
    request[..2].copy_from_slice(&opcode.to_be_bytes());
    for (offset, dword) in dwords {
        request[*offset..offset + 4].copy_from_slice(&dword.to_be_bytes());
    }
    request
}

const UPPER: u32 = (WINDOW >> 32) as u32;
const LOWER: u32 = WINDOW as u32;

/// Every place of a command where an address can stand: with the daemon's memory there it is refused, and
/// with the guest's it is not.
fn addresses_in_commands(isolation: &str) {
    let (_inner, _outer, guest, _other) = guests(isolation);
    let device = &guest.device;
    let memory = device.allocate_pages(4096).expect("memory").iova();
    let (upper, lower) = ((memory >> 32) as u32, memory as u32);
    let (pd, uar, cqn) = (guest.pd.number(), guest.uar.number(), guest.cq.number());
    // The event queue of a completion queue.
    let cqc = guest.cq.query().expect("its context");
    let eqn = u32::from_be_bytes(cqc[0x14..0x18].try_into().expect("four bytes"));
    // Commands that are in order, and where they have addresses.
    let key_of_pages = request(
        0x200,
        0x120,
        &[
            (0x10, 1 << 8 | 0xf << 10),
            (0x14, 0xff_ffff << 8),
            (0x1c, pd),
            (0x2c, 4096),
            (0x44, 1),
            (0x48, 12),
            (0x60, 1),
            (0x110, upper),
            (0x114, lower),
        ],
    );
    let cq = request(
        0x400,
        0x118,
        &[
            (0x1c, 5 << 24 | uar),
            (0x24, eqn),
            (0x48, upper),
            (0x4c, lower),
            (0x110, upper),
            (0x114, lower),
        ],
    );
    let eq = request(
        0x301,
        0x118,
        &[
            (0x1c, 5 << 24 | uar),
            (0x24, 1),
            (0x110, upper),
            (0x114, lower),
        ],
    );
    let srq = request(
        0x700,
        0x118,
        &[
            (0x10, 4 << 24),
            (0x14, 1 << 24),
            (0x28, pd),
            (0x38, upper),
            (0x3c, lower),
            (0x110, upper),
            (0x114, lower),
        ],
    );
    // A reliable connection of 16 blocks and 16 receive requests.
    let qp = request(
        0x500,
        0x118,
        &[
            (0x1c, pd),
            (0x20, 4 << 19 | 4 << 11),
            (0x24, uar),
            (0x94, cqn),
            (0xb4, cqn),
            (0xb8, upper),
            (0xbc, lower),
            (0x110, upper),
            (0x114, lower),
        ],
    );
    for (name, right, places) in [
        ("CREATE_MKEY", &key_of_pages, &[0x110][..]),
        ("CREATE_CQ", &cq, &[0x48, 0x110]),
        ("CREATE_EQ", &eq, &[0x110]),
        ("CREATE_SRQ", &srq, &[0x38, 0x110]),
        ("CREATE_QP", &qp, &[0xb8, 0x110]),
    ] {
        for place in places {
            for addr in [WINDOW, WINDOW + (128 << 20) - 4096] {
                let mut wrong = right.clone();
                wrong[*place..place + 8].copy_from_slice(&addr.to_be_bytes());
                let answer = refused(device.command(&wrong, 16));
                assert_eq!(answer, Some(Status::BadParam), "{name} at {place:#x}");
            }
        }
        assert_eq!(refused(device.command(right, 16)), None, "{name}");
    }
    // Changes of what there is: the record and the pages of a completion queue, the record of a queue pair.
    for place in [(0x48, 0x4c), (0x110, 0x114)] {
        let places = [(place.0, UPPER), (place.1, LOWER), (8, cqn)];
        let resize = request(0x403, 0x118, &places);
        assert_eq!(refused(device.command(&resize, 16)), Some(Status::BadParam));
    }
    let made = guest.qp(Transport::Rc);
    let places = [(8, made.number()), (0xb8, UPPER), (0xbc, LOWER)];
    let to_init = request(0x502, 0x110, &places);
    assert_eq!(
        refused(device.command(&to_init, 16)),
        Some(Status::BadParam)
    );
    // Pages so large that the guest's memory and the daemon's are on one.
    let mut large = key_of_pages.clone();
    large[0x110..0x118].fill(0);
    large[0x48..0x4c].copy_from_slice(&40_u32.to_be_bytes());
    assert_eq!(refused(device.command(&large, 16)), Some(Status::BadParam));
}

#[test]
fn addresses_in_commands_are_the_guests() {
    addresses_in_commands("strict");
}

#[test]
fn addresses_in_commands_are_the_guests_without_isolation() {
    addresses_in_commands("sriov");
}

/// Keys that have the daemon's memory in them some other way.
#[test]
fn keys_of_other_kinds() {
    let (_inner, _outer, guest, _other) = guests("strict");
    let device = &guest.device;
    let pd = guest.pd.number();
    let own = guest.region.key();
    let key = |mode: u32, dwords: &[(usize, u32)]| {
        let mut places = vec![
            (0x10, (mode & 3) << 8 | mode >> 2 << 26 | 0xf << 10),
            (0x14, 0xff_ffff << 8),
            (0x1c, pd),
        ];
        places.extend(dwords);
        refused(device.command(&request(0x200, 0x120, &places), 16))
    };
    const ALL: u32 = 1 << 31;
    let bad = Some(Status::BadParam);
    // Physical addresses, of a part of memory.
    let part = |upper, lower| [(0x20, upper), (0x24, lower), (0x2c, 4096)];
    assert_eq!(key(0, &part(UPPER, LOWER)), bad);
    assert_eq!(key(0, &part(UPPER, LOWER - 1)), bad);
    // All of it, from somewhere on.
    assert_eq!(
        key(0, &[(0x1c, ALL | pd), (0x20, UPPER), (0x24, LOWER)]),
        bad
    );
    // All of it, by a list that is shorter.
    for mode in [1, 2, 3] {
        assert_eq!(key(mode, &[(0x1c, ALL | pd)]), bad, "{mode}");
    }
    // Memory of the device, and kinds that there are not.
    for mode in 4..32 {
        assert_eq!(key(mode, &[(0x2c, 4096)]), bad, "{mode}");
    }
    // Lists with more room than entries, of which nobody knows what lies there.
    for mode in [1, 2] {
        let room = [(0x2c, 4096), (0x44, 8), (0x48, 12), (0x60, 1), (0x114, own)];
        assert_eq!(key(mode, &room), bad, "{mode}");
    }
    // Pieces of keys that are not the guest's: none, the one that devices reserve, and others.
    for foreign in [0, 0x100, 0xffff_ff00, own ^ 0x100_0000] {
        let piece = [
            (0x2c, 4096),
            (0x44, 1),
            (0x60, 1),
            (0x110, 4096),
            (0x114, foreign),
        ];
        assert_eq!(key(2, &piece), Some(Status::BadResource), "{foreign:#x}");
    }
}

/// Objects of the guest are as without isolation, where they name nothing but the guest's.
#[test]
fn what_is_the_guests_works() {
    let (_inner, _outer, mut guest, mut other) = guests("strict");
    guest.write_to(&other);
    other.write_to(&guest);
    let mut cq = CompletionQueue::new(&guest.device, &guest.uar, 5, 0).expect("a CQ");
    cq.resize(7).expect("is resized");
    SharedReceiveQueue::new(&guest.pd, 4, 2, None).expect("an SRQ");
    let pieces = [0_u64, 8192].map(|offset| Klm {
        len: 4096,
        key: guest.region.key(),
        addr: guest.region.start() + offset,
    });
    MemoryRegion::indirect(&guest.pd, &pieces, Access::ALL, 0).expect("a key");
}
