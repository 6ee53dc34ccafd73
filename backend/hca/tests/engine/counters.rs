//! Sets of counters of queue pairs: what goes wrong is counted where it does, once, and nowhere else.

use std::sync::atomic::Ordering;

use hca::work::{Operation, SendWr, WqeError};
use hca::{MAX_COUNTER_SETS, QpChange, QpState, Quota, Transport, VerbError};
use wire::Psn;

use crate::lab::net::Loss;
use crate::lab::{Lab, Qp, TIMEOUT_NS, Way, base, datagram, physical, remote, request};

/// The counters of a set that are not zero, by name. Images say all of them.
fn counts(lab: &Lab, node: usize, set: u8) -> Vec<(String, u64)> {
    let vf = lab.nodes[node].vf;
    let image = serde_json::to_value(lab.look_home(vf).save(vf)).unwrap();
    let sets = image["v1"]["counter_sets"].as_array().unwrap();
    let found = sets.iter().find(|it| it["number"] == set).expect("the set");
    let counts = found["counts"].as_object().unwrap();
    let named = counts
        .iter()
        .map(|(name, count)| (name.clone(), count.as_u64().unwrap()));
    named.filter(|(_, count)| *count > 0).collect()
}

fn assert_counts(lab: &Lab, node: usize, set: u8, expected: &[(&str, u64)], what: &str) {
    let mut expected: Vec<_> = expected
        .iter()
        .map(|(name, count)| ((*name).into(), *count))
        .collect();
    expected.sort();
    assert_eq!(counts(lab, node, set), expected, "{what}, at {node}");
}

/// Two connected queue pairs that count in sets, beside two that must not be counted there.
struct Pair {
    lab: Lab,
    a: Qp,
    b: Qp,
    sets: [u8; 2],
}

impl Pair {
    fn of(transport: Transport, way: Way, adjust: impl Fn(&mut QpChange)) -> Self {
        let mut lab = Lab::new(2);
        lab.go(way);
        let sets = [0, 1].map(|node| {
            let vf = lab.nodes[node].vf;
            // The first set is another's.
            lab.home(vf).vf_mut(vf).alloc_counters().unwrap();
            lab.home(vf).vf_mut(vf).alloc_counters().unwrap()
        });
        let [a, b] =
            [0, 1].map(|node| lab.qp_with(node, transport, |desc| desc.counter_set = sets[node]));
        lab.connect_with(&a, &b, |change| {
            change.rnr_retry = Some(2);
            adjust(change);
        });
        Self { lab, a, b, sets }
    }

    fn remote(&self, operation: Operation) -> SendWr {
        let list = [self.lab.sge(0, 0, 8)];
        remote(operation, 1, &list, base(1), self.lab.nodes[1].key)
    }

    /// Posts and waits for as long as retries may take.
    fn execute(&mut self, wr: SendWr) {
        self.lab.execute(&self.a, wr);
        self.lab.advance(10 * TIMEOUT_NS);
    }

    fn expect(&self, requester: &[(&str, u64)], responder: &[(&str, u64)], what: &str) {
        for (node, expected) in [(0, requester), (1, responder)] {
            assert_counts(&self.lab, node, self.sets[node], expected, what);
            assert_counts(&self.lab, node, 1, &[], what);
        }
    }
}

/// A fault of a request: its setup, and the counters of requester and responder.
type Mishap = (
    &'static str,
    fn(&mut Pair) -> SendWr,
    &'static [(&'static str, u64)],
    &'static [(&'static str, u64)],
);

const MISHAPS: &[Mishap] = &[
    (
        "a wrong remote key",
        |pair| SendWr {
            rkey: pair.lab.nodes[1].key ^ 1,
            ..pair.remote(Operation::Write)
        },
        &[("req_remote_access_errors", 1), ("req_cqe_error", 1)],
        &[("resp_remote_access_errors", 1)],
    ),
    (
        "a wrong local key",
        |pair| {
            let mut wr = pair.remote(Operation::Write);
            wr.sges[0].lkey ^= 1;
            wr
        },
        &[("req_local_protection", 1), ("req_cqe_error", 1)],
        &[],
    ),
    (
        "an atomic that is not aligned",
        |pair| SendWr {
            remote_addr: base(1) + 4,
            ..pair.remote(Operation::FetchAdd)
        },
        &[("req_remote_invalid_request", 1), ("req_cqe_error", 1)],
        &[("resp_remote_invalid_request", 1)],
    ),
    (
        "an answer to a list of another length",
        |pair| {
            let list = [pair.lab.sge(0, 0, 4)];
            remote(
                Operation::FetchAdd,
                1,
                &list,
                base(1),
                pair.lab.nodes[1].key,
            )
        },
        &[("req_local_length_error", 1), ("req_cqe_error", 1)],
        &[],
    ),
    (
        "a message that is longer than its receive request",
        |pair| {
            let short = [pair.lab.sge(1, 0, 7)];
            pair.lab.receive(&pair.b, 5, &short);
            pair.remote(Operation::Send)
        },
        &[("req_remote_invalid_request", 1), ("req_cqe_error", 1)],
        &[("resp_local_length_error", 1), ("resp_cqe_error", 1)],
    ),
    (
        "a receive request with a wrong key, and two more, which are flushed",
        |pair| {
            let mut list = [pair.lab.sge(1, 0, 8)];
            list[0].lkey ^= 1;
            for index in 0..3 {
                pair.lab.receive(&pair.b, index, &list);
            }
            pair.remote(Operation::Send)
        },
        &[("req_remote_operation_errors", 1), ("req_cqe_error", 1)],
        &[
            ("resp_local_protection", 1),
            ("resp_cqe_flush_error", 2),
            ("resp_cqe_error", 3),
        ],
    ),
    (
        "a receiver that is not ready, once and twice again",
        |pair| pair.remote(Operation::Send),
        &[
            ("rnr_nak_retry_err", 3),
            ("req_rnr_retries_exceeded", 1),
            ("req_cqe_error", 1),
        ],
        &[("out_of_buffer", 3)],
    ),
    (
        "a request that makes no sense, and two behind it, which are flushed",
        |pair| {
            let malformed = WqeError::Malformed {
                index: 9,
                opcode: 0,
                reason: hca::Reason::Opcode,
            };
            pair.a.send.push(Err(malformed));
            pair.a.send.push(Ok(pair.remote(Operation::Write)));
            pair.remote(Operation::Write)
        },
        &[
            ("local_operation_error", 1),
            ("req_cqe_flush_error", 2),
            ("req_cqe_error", 3),
        ],
        &[],
    ),
    (
        "nothing",
        |pair| {
            for operation in [Operation::Write, Operation::Read, Operation::CompareSwap] {
                pair.lab.execute(&pair.a.clone(), pair.remote(operation));
            }
            pair.remote(Operation::Write)
        },
        &[],
        &[
            ("rx_write_requests", 2),
            ("rx_read_requests", 1),
            ("rx_atomic_requests", 1),
        ],
    ),
];

#[test]
fn what_goes_wrong_is_counted_where_it_does() {
    for way in [Way::Copied, Way::Frames, Way::Engines(0, 0)] {
        for (what, make, requester, responder) in MISHAPS {
            let mut pair = Pair::of(Transport::Rc, way, |_| {});
            let wr = make(&mut pair);
            pair.execute(wr);
            pair.expect(requester, responder, &format!("{what}, {way:?}"));
        }
    }
}

/// A responder that has gone on without its requester, or has lost its place.
#[test]
fn numbers_that_are_not_expected() {
    for way in [Way::Copied, Way::Frames] {
        // The responder is behind: the request, and three times again, is out of sequence. It says so with a
        // number that is none of the requester's.
        let ahead = |change: &mut QpChange| change.sq_psn = Some(Psn::new(0x125));
        let mut pair = Pair::of(Transport::Rc, way, ahead);
        let wr = pair.remote(Operation::Write);
        pair.execute(wr);
        let requester = [
            ("local_ack_timeout_err", 3),
            ("req_transport_retries_exceeded", 1),
            ("req_cqe_error", 1),
        ];
        pair.expect(&requester, &[("out_of_sequence", 4)], &format!("{way:?}"));
        // It is ahead: two requests have been carried out before.
        let behind = |change: &mut QpChange| change.rq_psn = Some(Psn::new(0x125));
        let mut pair = Pair::of(Transport::Rc, way, behind);
        for operation in [Operation::Write, Operation::Read, Operation::Write] {
            let wr = pair.remote(operation);
            pair.execute(wr);
        }
        let counts = counts(&pair.lab, 1, pair.sets[1]);
        let duplicates = counts.iter().find(|(name, _)| name == "duplicate_request");
        assert_eq!(duplicates.map(|it| it.1), Some(2), "{way:?}: {counts:?}");
        assert_counts(&pair.lab, 0, pair.sets[0], &[], "the requester is content");
    }
}

/// A timeout is counted when the request is sent again after it, and at the end that there was no answer at all.
#[test]
fn timeouts_are_counted_as_far_as_they_are_retried() {
    let requester = [
        ("local_ack_timeout_err", 3),
        ("req_transport_retries_exceeded", 1),
        ("req_cqe_error", 1),
    ];
    let mut pair = Pair::of(Transport::Rc, Way::Copied, |_| {});
    pair.lab.net.cut(pair.a.vf, pair.b.vf);
    let wr = pair.remote(Operation::Write);
    pair.execute(wr);
    pair.expect(&requester, &[], "no way");

    let mut pair = Pair::of(Transport::Rc, Way::Copied, |_| {});
    let way = (pair.a.vf, pair.b.vf);
    pair.lab.net.change(|net| {
        net.losses.insert(way, Loss::of("xxxx"));
    });
    let wr = pair.remote(Operation::Write);
    pair.execute(wr);
    pair.expect(&requester, &[], "all is lost");
    // The second packet of four, and all before the answer says so.
    let mut pair = Pair::of(Transport::Rc, Way::Copied, |_| {});
    pair.lab.net.change(|net| {
        net.losses.insert(way, Loss::of(".x......"));
    });
    let list = [pair.lab.sge(0, 0, 4 * 4096)];
    let wr = remote(Operation::Write, 1, &list, base(1), pair.lab.nodes[1].key);
    pair.execute(wr);
    let responder = [("out_of_sequence", 2), ("rx_write_requests", 1)];
    pair.expect(&[("packet_seq_err", 1)], &responder, "a gap");
    // And what is lost of an answer: a READ of four packets.
    let mut pair = Pair::of(Transport::Rc, Way::Copied, |_| {});
    let back = (pair.b.vf, pair.a.vf);
    pair.lab.net.change(|net| {
        net.losses.insert(back, Loss::of(".x......."));
    });
    let list = [pair.lab.sge(0, 0, 4 * 4096)];
    let wr = remote(Operation::Read, 1, &list, base(1), pair.lab.nodes[1].key);
    pair.execute(wr);
    let counts = counts(&pair.lab, 0, pair.sets[0]);
    assert_eq!(counts, [("implied_nak_seq_err".to_owned(), 1)]);
}

#[test]
fn unreliable_transports_count_what_they_drop() {
    for way in [Way::Copied, Way::Frames] {
        let mut pair = Pair::of(Transport::Uc, way, |_| {});
        let what = format!("{way:?}");
        let wr = pair.remote(Operation::Send);
        pair.execute(wr);
        pair.expect(&[], &[("out_of_buffer", 1)], &what);
        let wr = SendWr {
            rkey: 7 << 8,
            ..pair.remote(Operation::Write)
        };
        pair.execute(wr);
        let responder = [("out_of_buffer", 1), ("resp_remote_access_errors", 1)];
        pair.expect(&[], &responder, &what);
    }
    // A datagram without a receive request, and one with a short one.
    let mut lab = Lab::new(2);
    let vf = lab.nodes[1].vf;
    let set = lab.engine.vf_mut(vf).alloc_counters().unwrap();
    let a = lab.qp(0, Transport::Ud);
    let b = lab.qp_with(1, Transport::Ud, |desc| desc.counter_set = set);
    for qp in [&a, &b] {
        let change = lab.attributes(qp);
        lab.bring_up(
            qp,
            &QpChange {
                path: None,
                ..change
            },
        );
    }
    let send = |lab: &mut Lab| {
        let list = [lab.sge(0, 0, 8)];
        let wr = datagram(lab, &b, 1, &list);
        lab.execute(&a, wr);
    };
    send(&mut lab);
    assert_counts(&lab, 1, set, &[("out_of_buffer", 1)], "nobody listens");
    let short = [lab.sge(1, 0, 47)];
    lab.receive(&b, 1, &short);
    send(&mut lab);
    let expected = [
        ("out_of_buffer", 1),
        ("resp_local_length_error", 1),
        ("resp_cqe_error", 1),
    ];
    assert_counts(&lab, 1, set, &expected, "too short");
}

#[test]
fn completions_that_find_no_room() {
    let mut lab = Lab::new(2);
    let vf = lab.nodes[0].vf;
    let set = lab.engine.vf_mut(vf).alloc_counters().unwrap();
    let cq = lab.cq(0, 2);
    let a = lab.qp_on(0, Transport::Rc, cq, |desc| desc.counter_set = set);
    let b = lab.qp(1, Transport::Rc);
    lab.connect_with(&a, &b, |_| {});
    for index in 0..3 {
        lab.post(&a, request(Operation::Nop, index, &[]));
    }
    lab.settle();
    assert_counts(&lab, 0, set, &[("cq_overflow", 1)], "three in two");
}

/// A queue pair goes from one set to another while it is in use, and out of all when it is reset.
#[test]
fn a_queue_pair_changes_its_set() {
    let mut pair = Pair::of(Transport::Rc, Way::Copied, |_| {});
    let vf = pair.b.vf;
    let third = pair.lab.engine.vf_mut(vf).alloc_counters().unwrap();
    let change = |pair: &mut Pair, set: u8| {
        let change = QpChange {
            counter_set: Some(set),
            ..QpChange::default()
        };
        let (engine, qpn) = (&mut pair.lab.engine, pair.b.qpn);
        engine
            .verbs(vf)
            .modify_qp(qpn, QpState::ReadyToSend, &change)
    };
    let write = |pair: &mut Pair| {
        let wr = pair.remote(Operation::Write);
        pair.execute(wr);
    };
    write(&mut pair);
    change(&mut pair, third).unwrap();
    write(&mut pair);
    write(&mut pair);
    for (set, writes) in [(pair.sets[1], 1), (third, 2)] {
        assert_counts(&pair.lab, 1, set, &[("rx_write_requests", writes)], "");
    }
    // A set that there is not changes nothing, and none is no set.
    assert_eq!(change(&mut pair, 77), Err(VerbError::NotFound));
    write(&mut pair);
    change(&mut pair, 0).unwrap();
    write(&mut pair);
    assert_counts(&pair.lab, 1, third, &[("rx_write_requests", 3)], "");
    change(&mut pair, third).unwrap();
    pair.lab
        .modify(&pair.b.clone(), QpState::Reset, &QpChange::default());
    let again = pair.lab.attributes(&pair.a);
    pair.lab.bring_up(&pair.b.clone(), &again);
    pair.lab
        .modify(&pair.a.clone(), QpState::Reset, &QpChange::default());
    let again = pair.lab.attributes(&pair.b);
    pair.lab.bring_up(&pair.a.clone(), &again);
    write(&mut pair);
    assert_counts(
        &pair.lab,
        1,
        third,
        &[("rx_write_requests", 3)],
        "after a reset",
    );
}

/// A set that is freed under a queue pair is nobody's, and its number another's.
#[test]
fn a_set_is_freed_in_use() {
    let mut pair = Pair::of(Transport::Rc, Way::Copied, |_| {});
    let (vf, set) = (pair.b.vf, pair.sets[1]);
    let taken = |pair: &Pair| pair.lab.engine.vf(vf).memory_taken();
    let before = taken(&pair);
    pair.lab.engine.vf_mut(vf).dealloc_counters(set).unwrap();
    let again = pair.lab.engine.vf_mut(vf).dealloc_counters(set);
    assert_eq!(again, Err(VerbError::NotFound));
    assert!(pair.lab.engine.vf(vf).qp_counters(set).is_err());
    assert_eq!(pair.lab.engine.vf_mut(vf).alloc_counters(), Ok(set));
    assert!(
        taken(&pair) > before,
        "the queue pair has the former one yet"
    );
    let wr = pair.remote(Operation::Write);
    pair.execute(wr);
    assert_counts(
        &pair.lab,
        1,
        set,
        &[],
        "the queue pair's set is another one",
    );
    // Where it comes to be it is in none.
    let image = pair.lab.engine.save(vf);
    pair.lab.engine.reset_vf(vf);
    while pair.lab.engine.clear_away(vf) {}
    pair.lab.engine.restore(vf, image).unwrap();
    let wr = pair.remote(Operation::Write);
    pair.execute(wr);
    assert_counts(&pair.lab, 1, set, &[], "nor is it after a move");
}

/// A guest that frees the set of each of its queue pairs takes no more memory than it is charged for.
#[test]
fn sets_that_nobody_sees_are_charged() {
    let quota = Quota {
        memory: 256 << 10,
        ..Quota::default()
    };
    let mut lab = Lab::with_quota(1, quota);
    let (vf, pd) = (lab.nodes[0].vf, lab.nodes[0].pd);
    let _ = physical(pd);
    let qp = lab.qp(0, Transport::Rc);
    let bind = |lab: &mut Lab, qp: &Qp, set| {
        let change = QpChange {
            counter_set: Some(set),
            ..QpChange::default()
        };
        lab.modify(qp, QpState::Init, &change);
    };
    let before = lab.engine.vf(vf).memory_taken();
    for _ in 0..10_000 {
        let set = lab.engine.vf_mut(vf).alloc_counters().unwrap();
        bind(&mut lab, &qp, set);
        lab.engine.vf_mut(vf).dealloc_counters(set).unwrap();
    }
    // The one that it has, and at most the one that it had.
    assert!(lab.engine.vf(vf).memory_taken() - before < 1024);
    // As many as there may be, and not one more.
    for _ in 0..MAX_COUNTER_SETS {
        lab.engine.vf_mut(vf).alloc_counters().unwrap();
    }
    assert_eq!(
        lab.engine.vf_mut(vf).alloc_counters(),
        Err(VerbError::Exhausted)
    );
    assert_eq!(
        lab.engine.vf_mut(vf).dealloc_counters(0),
        Err(VerbError::NotFound)
    );
    assert!(lab.engine.vf(vf).qp_counters(0).is_err());
    lab.engine.reset_vf(vf);
    assert_eq!(lab.engine.vf_mut(vf).alloc_counters(), Ok(1));
    let counters = lab.engine.vf(vf).qp_counters(1).unwrap();
    assert_eq!(
        counters.requests.rx_write_requests.load(Ordering::Relaxed),
        0
    );
}
