//! Retries and their timers, paths that come and go, fairness, draining.

use std::collections::HashSet;

use proptest::prelude::*;

use hca::work::{Operation, RecvKind, Status};
use hca::{Event, QpChange, QpState, Transport, VfId};
use wire::Lid;

use crate::lab::{ALIAS, Lab, QKEY, TIMEOUT_NS, base, datagram, received, remote, request, sent};

/// RNR timer code 12 is 0.64 ms (specification table 45).
const RNR_NS: u64 = 640_000;

#[test]
fn a_receiver_that_is_not_ready_is_asked_again() {
    for retries in [0, 1, 3, 6] {
        let mut lab = Lab::new(2);
        let (a, b) = lab.pair_with(Transport::Rc, |change| change.rnr_retry = Some(retries));
        lab.execute(&a, request(Operation::Send, 1, &[]));
        for _ in 0..retries {
            assert!(a.cq.poll().is_empty());
            assert_eq!(lab.engine.next_deadline(), Some(lab_now(&lab) + RNR_NS));
            lab.advance(RNR_NS - 1);
            assert!(a.cq.poll().is_empty());
            lab.advance(1);
        }
        assert_eq!(
            sent(&a.cq.poll()),
            [(1, Status::RnrRetryExceeded)],
            "{retries}"
        );
        assert_eq!(lab.state(&a), QpState::Error);
        assert_eq!(lab.state(&b), QpState::ReadyToSend);
        assert_eq!(lab.events(1), []);
    }
}

#[test]
fn seven_receiver_retries_are_for_ever() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let (sge, key) = (lab.sge(0, 0, 16), lab.nodes[1].key);
    lab.memory(0).write(base(0), b"0123456789abcdef");
    let wr = remote(Operation::WriteImm, 1, &[sge], base(1), key);
    lab.execute(&a, wr);
    for _ in 0..1000 {
        lab.advance(RNR_NS);
    }
    assert!(a.cq.poll().is_empty());
    lab.receive(&b, 5, &[]);
    lab.advance(RNR_NS);
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    assert_eq!(
        received(&b.cq.poll()),
        [(5, Status::Success, 16, RecvKind::WriteImm, 0)]
    );
    assert_eq!(lab.memory(1).read(base(1), 16), b"0123456789abcdef");
    // With work done the counter begins anew, and order is kept.
    for index in 0..3 {
        lab.post(&a, request(Operation::Send, index, &[]));
    }
    lab.settle();
    for index in 0..3 {
        lab.receive(&b, index, &[]);
    }
    lab.advance(RNR_NS);
    let done: Vec<_> = (0..3).map(|index| (index, Status::Success)).collect();
    assert_eq!(sent(&a.cq.poll()), done);
    // An unreliable connection asks nobody.
    let (a, _b) = lab.pair(Transport::Uc);
    lab.execute(&a, request(Operation::Send, 1, &[]));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
}

fn lab_now(lab: &Lab) -> u64 {
    use hca::Clock;
    lab.clock.now()
}

#[test]
fn a_path_that_is_gone_exceeds_the_retries() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    lab.net.cut(a.vf, b.vf);
    lab.receive(&b, 1, &[]);
    lab.post(&a, request(Operation::Send, 1, &[]));
    lab.post(&a, request(Operation::Send, 2, &[]));
    lab.settle();
    // The first attempt and three retries.
    for _ in 0..4 {
        assert!(a.cq.poll().is_empty());
        lab.advance(TIMEOUT_NS);
    }
    assert_eq!(
        sent(&a.cq.poll()),
        [(1, Status::RetryExceeded), (2, Status::Flushed)]
    );
    assert_eq!(lab.state(&a), QpState::Error);
    assert_eq!((lab.state(&b), b.recv.len()), (QpState::ReadyToSend, 1));
    assert_eq!(lab.events(0), []);
    assert_eq!(lab.events(1), []);
}

#[test]
fn a_path_that_returns_in_time_does_no_harm() {
    for operation in [Operation::Write, Operation::Send, Operation::Read] {
        let mut lab = Lab::new(2);
        let (a, b) = lab.pair(Transport::Rc);
        let mut sge = lab.sge(0, 0, 64 << 20);
        sge.addr = ALIAS;
        let mut target = lab.sge(1, 0, 64 << 20);
        target.addr = ALIAS;
        lab.receive(&b, 1, &[target]);
        let wr = remote(operation, 1, &[sge], ALIAS, lab.nodes[1].key);
        lab.post(&a, wr);
        // Lost with the message under way, three times over.
        for _ in 0..3 {
            assert!(lab.engine.run());
            lab.net.cut(a.vf, b.vf);
            lab.settle();
            lab.advance(TIMEOUT_NS);
            lab.advance(TIMEOUT_NS);
            assert!(a.cq.poll().is_empty());
            lab.net.restore();
            lab.clock_forward(TIMEOUT_NS);
        }
        lab.settle();
        assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)], "{operation:?}");
    }
}

#[test]
fn without_a_timeout_it_waits_for_ever() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair_with(Transport::Rc, |change| change.timeout = Some(0));
    lab.net.cut(a.vf, b.vf);
    lab.receive(&b, 1, &[]);
    lab.execute(&a, request(Operation::Send, 1, &[]));
    for _ in 0..100 {
        lab.advance(1_000_000_000);
    }
    assert!(a.cq.poll().is_empty());
    lab.net.restore();
    lab.advance(1_000_000_000);
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
}

#[test]
fn a_responder_that_lost_the_beginning_does_not_take_the_rest() {
    for operation in [Operation::Write, Operation::Send] {
        let mut lab = Lab::new(2);
        let (a, b) = lab.pair(Transport::Rc);
        let mut sge = lab.sge(0, 0, 64 << 20);
        sge.addr = ALIAS;
        let mut target = lab.sge(1, 0, 64 << 20);
        target.addr = ALIAS;
        lab.receive(&b, 1, &[target]);
        let wr = remote(operation, 1, &[sge], ALIAS, lab.nodes[1].key);
        lab.post(&a, wr);
        assert!(lab.engine.run());
        lab.modify(&b, QpState::Reset, &QpChange::default());
        let change = lab.attributes(&a);
        lab.bring_up(&b, &change);
        lab.receive(&b, 2, &[target]);
        lab.settle();
        for _ in 0..4 {
            lab.advance(TIMEOUT_NS);
        }
        assert_eq!(sent(&a.cq.poll()), [(1, Status::RetryExceeded)]);
        assert_eq!(b.recv.len(), 1);
        assert!(b.cq.poll().is_empty());
    }
}

#[test]
fn a_changed_subnet_is_asked_again_and_an_unchanged_one_is_not() {
    let mut lab = Lab::new(3);
    let (a, b) = lab.pair(Transport::Rc);
    let key = lab.nodes[1].key;
    let write = |lab: &mut Lab| {
        let sge = lab.sge(0, 0, 8);
        lab.execute(&a, remote(Operation::Write, 1, &[sge], base(1), key));
        sent(&a.cq.poll())
    };
    for _ in 0..10 {
        assert_eq!(write(&mut lab), [(1, Status::Success)]);
    }
    // The way there, and the way back that responses to reads take.
    assert_eq!(lab.net.look().resolved, 2);
    // Others' comings and goings are no reason to ask.
    let other = lab.qp(2, Transport::Rc);
    lab.engine.verbs(other.vf).destroy_qp(other.qpn).unwrap();
    assert_eq!(write(&mut lab), [(1, Status::Success)]);
    assert_eq!(lab.net.look().resolved, 2);
    lab.net.change(|_| {});
    assert_eq!(write(&mut lab), [(1, Status::Success)]);
    assert_eq!(lab.net.look().resolved, 4);
    // The peer's LID moves to another function: nobody there knows us.
    let (lid, far) = (lab.nodes[1].lid, lab.nodes[2].vf);
    lab.net.change(|net| {
        net.lids.insert(lid, far);
    });
    assert_eq!(write(&mut lab), []);
    lab.net.change(|net| {
        net.lids.insert(lid, b.vf);
    });
    lab.advance(TIMEOUT_NS);
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The cached way is always the one that the subnet would name now.
    #[test]
    fn the_next_message_uses_the_new_answer(
        changes in prop::collection::vec((0..3_usize, any::<bool>(), any::<bool>()), 1..40)
    ) {
        let mut lab = Lab::new(4);
        // Functions 1 to 3 each have a datagram queue pair of the same number
        // as seen from function 0; the LID in question moves among them.
        let lid = Lid::new(0x77);
        let change = QpChange { qkey: Some(QKEY), ..QpChange::default() };
        let sender = lab.qp(0, Transport::Ud);
        lab.bring_up(&sender, &change);
        let (rc, mut homes) = (lab.qp(0, Transport::Rc), Vec::new());
        for node in 1..4 {
            let qp = lab.qp(node, Transport::Ud);
            lab.bring_up(&qp, &change);
            homes.push(qp);
        }
        let far = lab.qp(1, Transport::Rc);
        lab.connect_with(&rc, &far, |change| change.timeout = Some(0));
        for (home, cut, peer_cut) in changes {
            let to = homes[home].vf;
            lab.net.change(|net| {
                net.lids.insert(lid, to);
                net.cut.clear();
                if cut {
                    net.cut.insert((sender.vf, to));
                }
                if peer_cut {
                    net.cut.insert((sender.vf, far.vf));
                }
            });
            let reached = !net_cut(&lab, sender.vf, to);
            for _ in 0..2 {
                lab.receive(&homes[home], 1, &[lab.sge(home + 1, 0, 100)]);
                let mut wr = datagram(&lab, &homes[home], 1, &[lab.sge(0, 0, 8)]);
                if let Some(address) = &mut wr.address {
                    address.dlid = lid;
                }
                lab.execute(&sender, wr);
                prop_assert_eq!(received(&homes[home].cq.poll()).len() == 1, reached);
            }
            lab.advance(1_000_000_000);
            rc.cq.poll();
            lab.receive(&far, 1, &[]);
            lab.execute(&rc, request(Operation::Send, 1, &[]));
            let arrives = !net_cut(&lab, sender.vf, far.vf);
            prop_assert_eq!(!rc.cq.poll().is_empty(), arrives);
            if !arrives {
                // It goes through as soon as there is a way again.
                lab.net.restore();
                lab.advance(1_000_000_000);
                prop_assert_eq!(rc.cq.poll().len(), 1);
            }
        }
    }
}

fn net_cut(lab: &Lab, from: VfId, to: VfId) -> bool {
    lab.net.look().cut.contains(&(from, to))
}

#[test]
fn a_huge_message_starves_nobody() {
    let mut lab = Lab::new(3);
    let (a, _b) = lab.pair(Transport::Rc);
    let (c, d) = (lab.qp(2, Transport::Rc), lab.qp(1, Transport::Rc));
    lab.connect_with(&c, &d, |_| {});
    let key = lab.nodes[1].key;
    let mut huge = lab.sge(0, 0, 1 << 30);
    huge.addr = ALIAS;
    lab.post(&a, remote(Operation::Write, 1, &[huge], ALIAS, key));
    assert!(lab.engine.run());
    for index in 0..20 {
        let sge = lab.sge(2, 0, 8);
        lab.post(&c, remote(Operation::Write, index, &[sge], base(1), key));
        assert!(lab.engine.run(), "the huge one is not done");
        assert_eq!(sent(&c.cq.poll()), [(index, Status::Success)]);
        assert!(a.cq.poll().is_empty());
    }
    // Nor do many small ones of one queue pair.
    for index in 0..10_000_u16 {
        let sge = lab.sge(2, 0, 1);
        lab.post(&c, remote(Operation::Write, index, &[sge], base(1), key));
    }
    assert!(lab.engine.run());
    assert!(c.send.len() > 5000);
}

#[test]
fn draining_ends_with_what_was_begun() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    // Idle: drained at once.
    lab.modify(&a, QpState::SendQueueDrain, &QpChange::default());
    assert_eq!(lab.events(0), [Event::SendQueueDrained(a.qpn)]);
    lab.execute(&a, request(Operation::Nop, 1, &[]));
    assert!(a.cq.poll().is_empty());
    lab.modify(&a, QpState::ReadyToSend, &QpChange::default());
    lab.settle();
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    // Busy: when the message is through.
    let mut sge = lab.sge(0, 0, 64 << 20);
    sge.addr = ALIAS;
    let wr = remote(Operation::Write, 2, &[sge], ALIAS, lab.nodes[1].key);
    lab.post(&a, wr);
    lab.post(&a, request(Operation::Nop, 3, &[]));
    assert!(lab.engine.run());
    lab.modify(&a, QpState::SendQueueDrain, &QpChange::default());
    assert_eq!(lab.events(0), []);
    lab.settle();
    assert_eq!(lab.events(0), [Event::SendQueueDrained(a.qpn)]);
    assert_eq!(sent(&a.cq.poll()), [(2, Status::Success)]);
    lab.modify(&a, QpState::ReadyToSend, &QpChange::default());
    lab.settle();
    assert_eq!(sent(&a.cq.poll()), [(3, Status::Success)]);
}

#[test]
fn queue_pairs_in_error_are_looked_at_less_and_less() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    lab.modify(&b, QpState::Error, &QpChange::default());
    lab.settle();
    let mut looks = 0;
    while lab_now(&lab) < 10_000_000_000 {
        let due = lab.engine.next_deadline().unwrap();
        let wait = due - lab_now(&lab);
        assert!(wait <= 100_000_000);
        lab.advance(wait);
        looks += 1;
    }
    assert!(looks < 120, "{looks} looks in ten seconds");
    // Found at the next look, and soon looked at again.
    lab.receive(&b, 1, &[]);
    let due = lab.engine.next_deadline().unwrap();
    lab.advance(due - lab_now(&lab));
    assert_eq!(received(&b.cq.poll())[0].1, Status::Flushed);
    let due = lab.engine.next_deadline().unwrap();
    assert_eq!(due - lab_now(&lab), 1_000_000);
    // Gone with the state.
    lab.modify(&b, QpState::Reset, &QpChange::default());
    assert_eq!(lab.engine.next_deadline(), None);
    assert_eq!(lab.state(&a), QpState::ReadyToSend);
}

#[test]
fn waits_that_are_cut_short_do_not_pile_up() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    for _ in 0..5000 {
        lab.execute(&a, request(Operation::Send, 1, &[]));
        lab.modify(&a, QpState::Reset, &QpChange::default());
        let change = lab.attributes(&b);
        lab.bring_up(&a, &change);
    }
    let shown = format!("{:?}", lab.engine);
    let timers = shown.split("timers: {").nth(1).unwrap();
    let timers = timers[..timers.find('}').unwrap()].matches('(').count();
    assert!(timers < 1000, "{timers} timers");
}

#[test]
fn polling_finds_work_whose_doorbell_nobody_announced() {
    let mut lab = Lab::new(2);
    let mut pairs = Vec::new();
    for _ in 0..20 {
        let a = lab.qp_with(0, Transport::Rc, |desc| desc.polled = true);
        let b = lab.qp(1, Transport::Rc);
        lab.connect_with(&a, &b, |_| {});
        pairs.push(a);
    }
    assert!(lab.engine.polls());
    while lab.engine.poll() {}
    // The page shows the last ring alone; the records show all.
    for a in &pairs {
        a.send.push(Ok(request(Operation::Nop, 1, &[])));
    }
    let last = &pairs[19];
    lab.engine.hint(last.vf, last.qpn);
    let mut done = HashSet::new();
    for _ in 0..1000 {
        lab.engine.poll();
        for a in &pairs {
            if !a.cq.poll().is_empty() {
                done.insert(a.qpn);
            }
        }
    }
    assert_eq!(done.len(), 20);
    // One that waits for a timer is nothing to be busy with.
    lab.net.cut(lab.nodes[0].vf, lab.nodes[1].vf);
    for _ in 0..2 {
        pairs[0].send.push(Ok(request(Operation::Send, 1, &[])));
    }
    let mut turns = 0;
    while lab.engine.poll() {
        turns += 1;
        assert!(turns < 100);
    }
    for a in &pairs {
        lab.engine.verbs(a.vf).destroy_qp(a.qpn).unwrap();
    }
    assert!(!lab.engine.polls());
    assert!(!lab.engine.poll());
}
