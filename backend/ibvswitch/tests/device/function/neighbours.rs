//! A guest that asks for much at once, and a neighbour that asks for little: the neighbour is served
//! in between. The order is looked at, not the time.

use crate::daemon::{Daemon, HALF, Peer, connected};
use test_driver::bits::put_dword;
use test_driver::bits::put_qword;
use test_driver::{BAR0, Data, Mailboxes, Opcode, PAGE, SendRequest, Transport, initialization};

/// Entries of the command queue.
const ENTRIES: usize = 32;
/// Bytes of an entry.
const ENTRY: usize = 64;
/// Where an entry says whose it is.
const OWNER: usize = 0x3f;
/// The longest request that the device takes.
const LONGEST: usize = 8 << 20;
/// Mailboxes for that.
const MAILBOXES: usize = LONGEST / 512;

with_both_doorbells!(a_neighbour_is_served_between_long_commands);

fn a_neighbour_is_served_between_long_commands(daemon: &Daemon) {
    let attacker = daemon.open("vm1");
    let (mut a, b) = (Peer::open(daemon, "vm3"), Peer::open(daemon, "vm4"));
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let to = b.remote(HALF);
    a.execute(&mut qa, &SendRequest::write(to, Data::Inline(b"first")));

    // A command queue of its own, each entry with all that a request may be.
    let boxes = Mailboxes::new(attacker.memory(), MAILBOXES + 1).unwrap();
    boxes.link(LONGEST, 0);
    let queue = attacker.allocate_pages(PAGE).unwrap();
    let mut entry = [0; ENTRY];
    entry[0] = 7;
    put_dword(&mut entry, 0x04, LONGEST as u32);
    put_qword(&mut entry, 0x08, boxes.buffer().iova());
    entry[0x10..0x12].copy_from_slice(&Opcode::QueryAdapter.code().to_be_bytes());
    put_dword(&mut entry, 0x38, 16);
    entry[OWNER] = 1;
    for slot in 0..ENTRIES {
        queue.write(slot * ENTRY, &entry);
    }
    let is_done = |slot: usize| {
        let mut owner = [0];
        queue.read(slot * ENTRY + OWNER, &mut owner);
        owner[0] & 1 == 0
    };
    let registers = [
        (initialization::CMDQ_ADDR_H, (queue.iova() >> 32) as u32),
        (initialization::CMDQ_ADDR_L_SZ, queue.iova() as u32),
    ];
    for (offset, value) in registers {
        attacker.write_bar(offset, &value.to_be_bytes()).unwrap();
    }
    std::thread::scope(|scope| {
        let ring = scope.spawn(|| {
            let mut client = attacker.client();
            client
                .region_write(BAR0, initialization::CMD_DBELL, &u32::MAX.to_be_bytes())
                .unwrap();
        });
        while !is_done(0) {
            std::thread::yield_now();
        }
        a.execute(&mut qa, &SendRequest::write(to, Data::Inline(b"second")));
        assert!(
            !is_done(ENTRIES - 1),
            "the neighbour waited for all of them"
        );
        ring.join().unwrap();
    });
    assert!((0..ENTRIES).all(is_done));
}
