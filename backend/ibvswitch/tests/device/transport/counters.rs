//! Counters of a function's queue pairs, which `rdma statistic` shows.

use crate::daemon::{Daemon, HALF, Peer, connected_by, peers};
use test_driver::{
    Access, AddressVector, Atomic, Data, Opcode, SendOpcode, SendRequest, Status, Syndrome,
    Transport, request,
};
use testing::wait_until;

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
    for (qp, set) in [(&qa, of_a), (&qb, of_b)] {
        qp.count_in(set.into()).expect("counts in the set");
    }
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
    to.count_in(of_b.into()).unwrap();
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
    wait_until("counters of b", || query(&b, of_b, false) != [0; 5]);
    assert_eq!(query(&b, of_b, false), [0, 0, 0, 1, 0]);
}

/// Where the counters of errors stand in a reply, by the interface's description.
const NAMED: [(&str, usize); 29] = [
    ("rx_write_requests", 0x10),
    ("rx_read_requests", 0x18),
    ("rx_atomic_requests", 0x20),
    ("out_of_buffer", 0x30),
    ("out_of_sequence", 0x38),
    ("duplicate_request", 0x40),
    ("rnr_nak_retry_err", 0x48),
    ("packet_seq_err", 0x50),
    ("implied_nak_seq_err", 0x58),
    ("local_ack_timeout_err", 0x60),
    ("req_rnr_retries_exceeded", 0x70),
    ("resp_local_length_error", 0x78),
    ("req_local_length_error", 0x7c),
    ("resp_local_qp_error", 0x80),
    ("local_operation_error", 0x84),
    ("resp_local_protection", 0x88),
    ("req_local_protection", 0x8c),
    ("resp_cqe_error", 0x90),
    ("req_cqe_error", 0x94),
    ("req_bad_response", 0x9c),
    ("req_remote_invalid_request", 0xa0),
    ("resp_remote_invalid_request", 0xa4),
    ("req_remote_access_errors", 0xa8),
    ("resp_remote_access_errors", 0xac),
    ("req_remote_operation_errors", 0xb0),
    ("req_transport_retries_exceeded", 0xb4),
    ("cq_overflow", 0xb8),
    ("resp_cqe_flush_error", 0xbc),
    ("req_cqe_flush_error", 0xc0),
];

/// The counters of a set that are not zero.
fn named(peer: &Peer, set: u8) -> Vec<(&'static str, u32)> {
    let input = of_set(QUERY, 0x1f, set);
    let out = peer.device.command(&input, 256).expect("counters");
    let at = |at: usize| u32::from_be_bytes(out[at..at + 4].try_into().expect("four bytes"));
    let counts = NAMED.map(|(name, offset)| (name, at(offset)));
    counts.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// Errors between two queue pairs are counted in their sets, and in no other one.
#[test]
fn errors_are_counted_in_the_set_of_their_queue_pair() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    // Of others.
    let [first_a, first_b] = [&a, &b].map(allocate);
    let mut send = |wrong: &str, expected: [&[(&str, u32)]; 2]| {
        let sets = [&a, &b].map(allocate);
        let config = [&a, &b].map(|peer| peer.config(Transport::Rc));
        let (mut qa, mut qb) = connected_by(&config[0], &config[1], &a, &b, |connection| {
            connection.rnr_retry = 0;
            connection.retry_count = 2;
            // An answer of another engine takes its time.
            connection.ack_timeout = if wrong == "peer" { 1 } else { 20 };
        });
        for (qp, set) in [(&qa, sets[0]), (&qb, sets[1])] {
            qp.count_in(set.into()).expect("counts in another set");
        }
        let mut remote = b.remote(HALF);
        let local = [a.sge(0, 8)];
        let request = match wrong {
            "key" => {
                remote.key ^= 1;
                SendRequest::write(remote, Data::Memory(&local))
            }
            "address" => {
                remote.addr += 4;
                let add = Atomic::default();
                SendRequest::atomic(SendOpcode::FetchAdd, remote, add, &local)
            }
            "length" => {
                qb.post_receive(&[b.sge(0, 4)]).expect("is posted");
                SendRequest::send(Data::Memory(&local))
            }
            "receiver" => SendRequest::send(Data::Memory(&local)),
            _ => {
                drop(qb.to_error());
                SendRequest::write(remote, Data::Memory(&local))
            }
        };
        qa.post_send(&request).expect("is posted");
        assert_ne!(a.sent(&mut qa).syndrome(), Syndrome::Flushed, "{wrong}");
        // One more is flushed.
        qa.post_send(&request).expect("is posted");
        assert_eq!(a.sent(&mut qa).syndrome(), Syndrome::Flushed, "{wrong}");
        for (peer, (set, expected)) in [&a, &b].into_iter().zip(sets.into_iter().zip(expected)) {
            // Where they are two engines' the other end may be told later.
            while named(peer, set).len() < expected.len() {
                std::thread::yield_now();
            }
            let mut expected = expected.to_vec();
            let place = |name: &str| NAMED.iter().position(|(known, _)| *known == name);
            expected.sort_by_key(|(name, _)| place(name));
            assert_eq!(named(peer, set), expected, "{wrong}");
            // With the queue pair bound.
            peer.device
                .command(&of_set(DEALLOC, 0x0b, set), 16)
                .expect("is freed");
        }
        drop(qb);
        assert_eq!(named(&a, first_a), []);
        assert_eq!(named(&b, first_b), []);
    };
    const FLUSHED: (&str, u32) = ("req_cqe_flush_error", 1);
    const ENDED: (&str, u32) = ("req_cqe_error", 2);
    send(
        "key",
        [
            &[("req_remote_access_errors", 1), ENDED, FLUSHED],
            &[("resp_remote_access_errors", 1)],
        ],
    );
    send(
        "address",
        [
            &[("req_remote_invalid_request", 1), ENDED, FLUSHED],
            &[("resp_remote_invalid_request", 1)],
        ],
    );
    send(
        "length",
        [
            &[("req_remote_invalid_request", 1), ENDED, FLUSHED],
            &[("resp_local_length_error", 1), ("resp_cqe_error", 1)],
        ],
    );
    send(
        "receiver",
        [
            &[
                ("rnr_nak_retry_err", 1),
                ("req_rnr_retries_exceeded", 1),
                ENDED,
                FLUSHED,
            ],
            &[("out_of_buffer", 1)],
        ],
    );
    send(
        "peer",
        [
            &[
                ("local_ack_timeout_err", 2),
                ("req_transport_retries_exceeded", 1),
                ENDED,
                FLUSHED,
            ],
            &[],
        ],
    );
}

#[test]
fn sets_that_there_are_and_no_others() {
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
        let sets: Vec<u8> = (0..127).map(|_| allocate(&peer)).collect();
        assert_eq!(refused(&request(ALLOC, 0, 16)), Some(Status::NoResources));
        for set in sets {
            for (at, bit) in [(8, 0x80), (0x18, 0x40)] {
                let mut other = of_set(QUERY, 0x1f, set);
                other[at] = bit;
                assert_eq!(refused(&other), Some(Status::BadParam));
            }
            assert_eq!(query(&peer, set, false), [0; 5]);
            let free = of_set(DEALLOC, 0x0b, set);
            peer.device.command(&free, 16).expect("is freed");
            assert_eq!(
                refused(&of_set(QUERY, 0x1f, set)),
                Some(Status::BadResource)
            );
        }
    }
    let qp = peer.qp(Transport::Rc);
    qp.to_init(0, Access::ALL, 0).expect("becomes ready");
    let refused = qp.count_in(5).expect_err("there is no such set").status();
    assert!(matches!(
        refused,
        Some(Status::BadResource | Status::BadQpState)
    ));
}
