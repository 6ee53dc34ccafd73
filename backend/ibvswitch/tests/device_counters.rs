//! Counters of a function's queue pairs, which `rdma statistic` shows.

mod daemon;

use daemon::{Daemon, HALF, Peer, connected_by, peers};
use driver::{
    AddressVector, Atomic, Data, Opcode, SendOpcode, SendRequest, Status, Syndrome, Transport,
    request,
};

const ALLOC: Opcode = Opcode::Other(0x771);
const DEALLOC: Opcode = Opcode::Other(0x772);
const QUERY: Opcode = Opcode::Other(0x773);
const QKEY: u32 = 0x77;

/// A request of 32 bytes for set `set`, whose number stands at `at`.
fn of_set(opcode: Opcode, at: usize, set: u8) -> Vec<u8> {
    let mut input = request(opcode, 0, 32);
    input[at] = set;
    input
}

fn allocate(peer: &Peer) -> u8 {
    let out = peer.device.command(&request(ALLOC, 0, 16), 16);
    out.expect("a set of counters")[0x0b]
}

/// WRITEs, READs, atomic operations, and messages without a receive request, that arrived; answers
/// of receivers that were not ready.
fn query(peer: &Peer, set: u8, clear: bool) -> [u32; 5] {
    let mut input = of_set(QUERY, 0x1f, set);
    input[0x18] = u8::from(clear) << 7;
    let out = peer.device.command(&input, 256).expect("counters");
    [0x10, 0x18, 0x20, 0x30, 0x48]
        .map(|at| u32::from_be_bytes(out[at..at + 4].try_into().expect("four bytes")))
}

#[test]
fn a_set_of_counters_counts_what_peers_ask_for() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let [of_a, of_b] = [&a, &b].map(allocate);
    assert_ne!(of_b, 0, "0 is no set");
    let config = [&a, &b].map(|peer| peer.config(Transport::Rc));
    let (mut qa, qb) = connected_by(&config[0], &config[1], &a, &b, |connection| {
        connection.rnr_retry = 2;
        connection.min_rnr_nak = 1;
    });
    let local = [a.sge(0, 8)];
    for _ in 0..5 {
        a.execute(
            &mut qa,
            &SendRequest::write(b.remote(HALF), Data::Memory(&local)),
        );
    }
    for _ in 0..3 {
        a.execute(&mut qa, &SendRequest::read(b.remote(HALF), &local));
    }
    let add = Atomic {
        swap_add: 1,
        ..Atomic::default()
    };
    a.execute(
        &mut qa,
        &SendRequest::atomic(SendOpcode::FetchAdd, b.remote(HALF), add, &local),
    );
    assert_eq!(query(&b, of_b, false), [5, 3, 1, 0, 0]);
    assert_eq!(query(&a, of_a, false), [0; 5]);
    // Once, and twice again.
    qa.post_send(&SendRequest::send(Data::Inline(b"nobody listens")))
        .unwrap();
    assert_eq!(a.sent(&mut qa).syndrome(), Syndrome::RnrRetryExceeded);
    assert_eq!(query(&b, of_b, true), [5, 3, 1, 3, 0]);
    assert_eq!(query(&a, of_a, false), [0, 0, 0, 0, 3]);
    drop(qb);

    // Datagrams are dropped.
    let (mut from, to) = (a.qp(Transport::Ud), b.qp(Transport::Ud));
    from.activate(0, QKEY).unwrap();
    to.activate(0, QKEY).unwrap();
    let address = AddressVector {
        lid: b.port.lid,
        qpn: to.number(),
        qkey: QKEY,
        ..AddressVector::default()
    };
    a.execute(
        &mut from,
        &SendRequest::send(Data::Inline(b"hello")).to(&address),
    );
    // What has been sent may be on its way to another engine yet.
    while query(&b, of_b, false) == [0; 5] {
        std::thread::yield_now();
    }
    assert_eq!(query(&b, of_b, false), [0, 0, 0, 1, 0]);
}

#[test]
fn there_is_one_set_and_no_other() {
    let daemon = Daemon::start("trap");
    let peer = Peer::open(&daemon, "vm1");
    let refused = |input: &[u8]| {
        let refused = peer.device.command(input, 256);
        refused.expect_err("there is no such set").status()
    };
    for set in 0..=255 {
        assert_eq!(
            refused(&of_set(QUERY, 0x1f, set)),
            Some(Status::BadResource)
        );
        assert_eq!(
            refused(&of_set(DEALLOC, 0x0b, set)),
            Some(Status::BadResource)
        );
    }
    for _ in 0..3 {
        let set = allocate(&peer);
        // For one queue pair alone nothing is counted, so such a set is not given either.
        assert_eq!(refused(&request(ALLOC, 0, 16)), Some(Status::NoResources));
        assert_eq!(
            refused(&of_set(QUERY, 0x1f, set + 1)),
            Some(Status::BadResource)
        );
        let mut other = of_set(QUERY, 0x1f, set);
        other[8] = 0x80;
        assert_eq!(refused(&other), Some(Status::BadParam));
        assert_eq!(query(&peer, set, false), [0; 5]);
        let free = of_set(DEALLOC, 0x0b, set);
        peer.device.command(&free, 16).expect("is freed");
    }
}
