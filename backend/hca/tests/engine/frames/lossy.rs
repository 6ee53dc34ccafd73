//! Links that lose packets: what is missing is sent again, sooner or later.

use std::sync::atomic::Ordering;

use proptest::prelude::*;

use hca::work::{AtomicOperands, Operation, RecvKind, SendWr, Status};
use hca::{Transport, VfId};
use wire::{Gid, Lid, Qpn};

use crate::frames::slow::{outcome, programs};
use crate::lab::net::Loss;
use crate::lab::{Lab, Qp, TIMEOUT_NS, Way, base, received, remote, request, sent};

/// Bytes of four packets.
const FOUR: u32 = 4 * 4096;
const THERE: (VfId, VfId) = (VfId(0), VfId(1));
const BACK: (VfId, VfId) = (VfId(1), VfId(0));

fn lossy(lab: &Lab, way: (VfId, VfId), loss: Loss) {
    lab.net.change(|net| {
        net.losses.insert(way, loss);
    });
}

fn write(lab: &Lab, index: u16, len: u32) -> SendWr {
    let key = lab.nodes[1].key;
    lab.memory(0).write(base(0), &[index as u8; FOUR as usize]);
    remote(Operation::Write, index, &[lab.sge(0, 0, len)], base(1), key)
}

/// Counters of a function: timeouts, sequence errors, implied ones, out of sequence, duplicates.
fn counts(lab: &Lab, node: usize) -> [u64; 5] {
    let counters = lab.engine.vf(lab.nodes[node].vf).counters();
    let retries = &counters.retries;
    [
        &retries.local_ack_timeout_err,
        &retries.packet_seq_err,
        &retries.implied_nak_seq_err,
        &retries.out_of_sequence,
        &retries.duplicate_request,
    ]
    .map(|counter| counter.load(Ordering::Relaxed))
}

fn well(lab: &Lab, qp: &Qp, index: u16) {
    let now = hca::Clock::now(&*lab.clock);
    assert_eq!(sent(&qp.cq.poll()), [(index, Status::Success)], "at {now}");
}

#[test]
fn a_gap_is_noticed_at_once() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    // The second of four, and once more when it is sent again with those behind it.
    lossy(&lab, THERE, Loss::of(".x..x....."));
    let wr = write(&lab, 1, FOUR);
    lab.execute(&a, wr);
    well(&lab, &a, 1);
    assert_eq!(lab.memory(1).read(base(1), 5), [1; 5]);
    assert_eq!(counts(&lab, 0), [0, 2, 0, 0, 0]);
    assert_eq!(counts(&lab, 1), [0, 0, 0, 4, 0]);
    // The packets that were sent: four, and three, and three more.
    let counters = lab.engine.vf(VfId(0)).counters();
    assert_eq!(counters.passed().xmit_packets, 10);
    let counters = lab.engine.vf(VfId(1)).counters();
    assert_eq!(counters.passed().rcv_packets, 8);
}

#[test]
fn what_nothing_follows_is_missed_after_the_timeout() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    // Nothing says that the first three are there, so they come again, too.
    lossy(&lab, THERE, Loss::of("...x...x"));
    let last = base(1) + u64::from(FOUR) - 5;
    let wr = write(&lab, 1, FOUR);
    lab.execute(&a, wr);
    assert_eq!(lab.engine.next_deadline(), Some(TIMEOUT_NS));
    assert_eq!(lab.memory(1).read(last - 4096, 5), [1; 5]);
    lab.advance(TIMEOUT_NS);
    assert_eq!(lab.memory(1).read(last, 5), [0; 5]);
    lab.advance(TIMEOUT_NS - 1);
    assert!(a.cq.poll().is_empty());
    lab.advance(1);
    well(&lab, &a, 1);
    assert_eq!(lab.memory(1).read(last, 5), [1; 5]);
    assert_eq!(counts(&lab, 0), [2, 0, 0, 0, 0]);
    assert_eq!(counts(&lab, 1), [0, 0, 0, 0, 6]);
    assert_eq!(lab.engine.next_deadline(), None);
}

#[test]
fn a_request_that_follows_tells_at_once() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    lossy(&lab, THERE, Loss::of("x"));
    let (first, second) = (write(&lab, 1, 1), write(&lab, 2, 1));
    lab.post(&a, first);
    lab.execute(&a, second);
    let both = [(1, Status::Success), (2, Status::Success)];
    assert_eq!(sent(&a.cq.poll()), both);
    assert_eq!(counts(&lab, 0), [0, 1, 0, 0, 0]);
    assert_eq!(counts(&lab, 1), [0, 0, 0, 1, 0]);
}

#[test]
fn a_lost_acknowledgement_makes_a_duplicate() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    lossy(&lab, BACK, Loss::of("xx"));
    for index in 1..=2 {
        lab.receive(&b, index, &[lab.sge(1, 0, FOUR)]);
    }
    let sge = lab.sge(0, 0, FOUR);
    lab.execute(&a, request(Operation::Send, 5, &[sge]));
    // It is there, but only the receiver knows.
    let one = [(1, Status::Success, FOUR, RecvKind::Send, 0)];
    assert_eq!(received(&b.cq.poll()), one);
    assert!(a.cq.poll().is_empty());
    // Of the four packets three arrive again.
    lossy(&lab, THERE, Loss::of("x"));
    lab.advance(TIMEOUT_NS);
    assert!(a.cq.poll().is_empty());
    lab.advance(TIMEOUT_NS);
    well(&lab, &a, 5);
    assert!(b.cq.poll().is_empty(), "it is not received twice");
    assert_eq!(counts(&lab, 0), [2, 0, 0, 0, 0]);
    assert_eq!(counts(&lab, 1), [0, 0, 0, 0, 7]);
    lab.execute(&a, request(Operation::Send, 6, &[sge]));
    well(&lab, &a, 6);
    assert_eq!(received(&b.cq.poll()).len(), 1);
}

#[test]
fn a_gap_in_a_response() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    lossy(&lab, BACK, Loss::of("..x.x"));
    lab.memory(1).write(base(1), &[7; FOUR as usize]);
    let key = lab.nodes[1].key;
    let sge = lab.sge(0, 0, FOUR);
    lab.execute(&a, remote(Operation::Read, 1, &[sge], base(1), key));
    well(&lab, &a, 1);
    assert_eq!(
        lab.memory(0).read(base(0), FOUR as usize),
        [7; FOUR as usize]
    );
    assert_eq!(counts(&lab, 0), [0, 0, 2, 0, 0]);
    assert_eq!(counts(&lab, 1), [0, 0, 0, 0, 2]);
}

/// A READ whose answer is lost looks at memory again (9.7.5.1.2), with the key as it is by then.
#[test]
fn a_read_is_carried_out_again() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let key = lab.nodes[1].key;
    let sge = lab.sge(0, 0, 5);
    for (index, last) in [(1, false), (2, true)] {
        lossy(&lab, BACK, Loss::of("x"));
        lab.memory(1).write(base(1), b"first");
        lab.execute(&a, remote(Operation::Read, index, &[sge], base(1), key));
        assert!(a.cq.poll().is_empty());
        lab.memory(1).write(base(1), b"later");
        if last {
            lab.engine.vf_mut(b.vf).destroy_key(key >> 8).unwrap();
        }
        lab.advance(TIMEOUT_NS);
        if last {
            assert_eq!(sent(&a.cq.poll()), [(index, Status::RemoteAccess)]);
        } else {
            well(&lab, &a, index);
            assert_eq!(lab.memory(0).read(base(0), 5), b"later");
        }
        assert_eq!(counts(&lab, 1), [0, 0, 0, 0, index.into()]);
    }
}

#[test]
fn an_atomic_is_carried_out_once() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    // The first time the request gets lost, the second time the answer.
    lossy(&lab, THERE, Loss::of("x"));
    lossy(&lab, BACK, Loss::of("x"));
    let key = lab.nodes[1].key;
    let add = SendWr {
        atomic: AtomicOperands {
            swap_add: 3,
            ..AtomicOperands::default()
        },
        ..remote(
            Operation::FetchAdd,
            1,
            &[lab.sge(0, 0, 8)],
            base(1) + 64,
            key,
        )
    };
    lab.execute(&a, add);
    lab.advance(TIMEOUT_NS);
    assert!(a.cq.poll().is_empty());
    lab.advance(TIMEOUT_NS);
    well(&lab, &a, 1);
    assert_eq!(
        lab.memory(1).read(base(1) + 64, 8),
        3_u64.to_le_bytes(),
        "once"
    );
    assert_eq!(counts(&lab, 0), [2, 0, 0, 0, 0]);
    assert_eq!(counts(&lab, 1), [0, 0, 0, 0, 1]);
}

#[test]
fn retries_come_to_an_end() {
    for (way, arrives) in [(THERE, false), (BACK, true)] {
        let mut lab = Lab::new(2);
        let (a, _b) = lab.pair(Transport::Rc);
        lossy(&lab, way, Loss::percent(100, 1));
        let wr = write(&lab, 1, FOUR);
        lab.execute(&a, wr);
        // One try and three more.
        for _ in 0..3 {
            lab.advance(TIMEOUT_NS);
            assert!(a.cq.poll().is_empty());
        }
        lab.advance(TIMEOUT_NS);
        assert_eq!(sent(&a.cq.poll()), [(1, Status::RetryExceeded)]);
        assert_eq!(lab.memory(1).read(base(1), 1), [u8::from(arrives)]);
        // Those after which it was sent again.
        assert_eq!(counts(&lab, 0)[0], 3);
    }
}

#[test]
fn progress_begins_the_retries_anew() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    // Each packet but the last gets lost three times, which three retries make up for. What is behind
    // it is sent again with it.
    let each = ["x...x...x...", ".x..x..x..", ".x.x.x.", ".."].concat();
    lossy(&lab, THERE, Loss::of(&each));
    let wr = write(&lab, 1, FOUR);
    lab.execute(&a, wr);
    well(&lab, &a, 1);
    assert_eq!(counts(&lab, 0), [0, 9, 0, 0, 0]);
    lossy(&lab, THERE, Loss::of("x...x...x...x..."));
    let wr = write(&lab, 2, FOUR);
    lab.execute(&a, wr);
    assert_eq!(sent(&a.cq.poll()), [(2, Status::RetryExceeded)]);
}

#[test]
fn on_a_slow_link_it_takes_a_round_trip() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    lab.net.change(|net| {
        net.delays.insert(THERE, 1000);
        net.delays.insert(BACK, 500);
    });
    lossy(&lab, THERE, Loss::of(".x.."));
    let wr = write(&lab, 1, FOUR);
    lab.execute(&a, wr);
    lab.advance(1000);
    let second = base(1) + 4096;
    assert_eq!(lab.memory(1).read(base(1), 1), [1]);
    assert_eq!(lab.memory(1).read(second, 1), [0]);
    assert_eq!(lab.engine.next_deadline(), Some(1500));
    lab.advance(1499);
    assert_eq!(lab.memory(1).read(second, 1), [0]);
    lab.advance(1);
    assert_eq!(lab.memory(1).read(second, 1), [1]);
    assert!(a.cq.poll().is_empty());
    lab.advance(500);
    well(&lab, &a, 1);
}

#[test]
fn an_unreliable_message_is_lost_with_any_of_its_packets() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Uc);
    lossy(&lab, THERE, Loss::of("...x"));
    for (index, value) in [(1, 0), (2, 2)] {
        let wr = write(&lab, index, FOUR);
        lab.execute(&a, wr);
        well(&lab, &a, index);
        let last = base(1) + u64::from(FOUR) - 1;
        assert_eq!(lab.memory(1).read(last, 1), [value]);
    }
    assert_eq!(counts(&lab, 0), [0; 5]);
    assert_eq!(counts(&lab, 1), [0; 5]);
    // A message is received as a whole or not at all.
    lossy(&lab, THERE, Loss::of(".x.."));
    for index in 1..=2 {
        lab.receive(&b, index, &[lab.sge(1, 0, FOUR)]);
    }
    for index in 3..=4 {
        let sge = lab.sge(0, 0, FOUR);
        lab.execute(&a, request(Operation::Send, index, &[sge]));
        well(&lab, &a, index);
    }
    let one = [(1, Status::Success, FOUR, RecvKind::Send, 0)];
    assert_eq!(received(&b.cq.poll()), one);
}

#[test]
fn each_receiver_of_a_group_loses_for_itself() {
    const MLID: Lid = Lid::new(0xc001);
    let group = Gid::from_bits(0xff12 << 112 | 1);
    let mut lab = Lab::new(3);
    let qps: Vec<Qp> = (0..3).map(|node| lab.qp(node, Transport::Ud)).collect();
    for qp in &qps {
        let change = lab.attributes(qp);
        lab.bring_up(qp, &change);
        lab.engine
            .verbs(qp.vf)
            .attach_multicast(qp.qpn, group)
            .unwrap();
    }
    lab.net.change(|net| {
        net.groups
            .insert(MLID, qps.iter().map(|qp| qp.vf).collect());
    });
    lossy(&lab, THERE, Loss::of("x.x"));
    lossy(&lab, (VfId(0), VfId(2)), Loss::of("..x"));
    for index in 0..4 {
        for (node, qp) in qps.iter().enumerate() {
            lab.receive(qp, index, &[lab.sge(node, 256, 64)]);
        }
        let mut wr = crate::lab::datagram(&lab, &qps[0], index, &[]);
        let address = wr.address.as_mut().expect("has one");
        (address.dlid, address.dest_qp) = (MLID, Qpn::MULTICAST);
        address.global = Some(hca::work::GlobalRoute {
            dgid: group,
            sgid_index: 0,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 1,
        });
        lab.execute(&qps[0], wr);
    }
    let arrived = [0, 1, 2].map(|at| received(&qps[at].cq.poll()).len());
    // The sender's own port is served without a link.
    assert_eq!(arrived, [4, 2, 3]);
}

/// Traffic of the link, and its ends.
#[derive(Debug, Clone, Copy)]
enum Wires {
    Frames,
    Packets,
    /// Frames, between two engines.
    Engines,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(144))]

    /// A link that loses packets changes when things happen, and nothing else, unless retries run out.
    #[test]
    fn loss_changes_nothing_but_time(
        program in programs(),
        percent in prop::array::uniform2(0..20_u64),
        seed in 1..u64::MAX,
        delay in prop_oneof![Just(0), 0..100_000_u64],
        receives in 0..40_usize,
        way in prop::sample::select(vec![Wires::Frames, Wires::Packets, Wires::Engines]),
    ) {
        let shape = |lab: &mut Lab| {
            match way {
                Wires::Frames => {}
                Wires::Packets => lab.go(Way::Packets(0, 1)),
                Wires::Engines => lab.split(&[0, 1]),
            }
            for (way, percent, state) in [(THERE, percent[0], seed), (BACK, percent[1], !seed)] {
                lossy(lab, way, Loss::percent(percent, state));
                lab.net.change(|net| {
                    net.delays.insert(way, delay);
                });
            }
        };
        let sound = outcome(&program, |_| {}, receives, Transport::Rc);
        let lossy = outcome(&program, shape, receives, Transport::Rc);
        let exceeded = |(_, status): &(u16, Status)| *status == Status::RetryExceeded;
        prop_assume!(!lossy.0.iter().any(exceeded));
        prop_assert_eq!(&sound.0, &lossy.0);
        prop_assert_eq!(&sound.1, &lossy.1);
        prop_assert!(sound.2 == lossy.2, "memory differs");
    }
}
