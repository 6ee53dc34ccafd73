//! However much one function asks for, the others have their turn: what one call of the engine does is
//! bounded, and functions follow one another.
//!
//! Function 0 asks for much, of function 1; function 2 is the neighbour. Nothing here is timed: work is
//! counted, and the order of completions is looked at.

use hca::mr::{Access, Klm, KlmList, MemoryKey, Translation};
use hca::signature::digest::Algorithm;
use hca::signature::format::{Escape, Format, Signature, Tags};
use hca::signature::key::Signed;
use hca::work::{KeyUpdate, Operation, SendWr, Sge, Status};
use hca::{Event, QpChange, QpState, Quota, RecvSide, Transport};

use crate::lab::{
    ALIAS, Cq, Lab, Qp, VARIANT, Way, base, datagram, everything, physical, received, remote,
    request, sent,
};

/// Queue pairs of the one that asks for much.
const MANY: usize = 2000;
/// Calls of the engine within which a neighbour's request is done: its own turn, and what was
/// begun before.
const CALLS: usize = 3;

/// Connected queue pairs of function 0 with one completion queue, each to one of function 1.
fn many(lab: &mut Lab, count: usize, polled: bool) -> (Vec<Qp>, Cq) {
    let (cqn, cq) = lab.cq(0, 1 << 20);
    let far = lab.cq(1, 1 << 20);
    let mut all = Vec::new();
    for _ in 0..count {
        let near = lab.qp_on(0, Transport::Rc, (cqn, cq.clone()), |desc| {
            desc.polled = polled
        });
        let peer = lab.qp_on(1, Transport::Rc, far.clone(), |_| {});
        lab.connect_with(&near, &peer, |_| {});
        all.push(near);
    }
    lab.settle();
    (all, cq)
}

/// A connection between functions 2 and 1.
fn neighbour(lab: &mut Lab, polled: bool) -> Qp {
    let near = lab.qp_with(2, Transport::Rc, |desc| desc.polled = polled);
    let peer = lab.qp(1, Transport::Rc);
    lab.connect_with(&near, &peer, |_| {});
    lab.settle();
    near
}

fn small_write(lab: &Lab) -> SendWr {
    let sge = lab.sge(2, 0, 8);
    let to = base(1) + (1 << 20);
    remote(Operation::Write, 1, &[sge], to, lab.nodes[1].key)
}

fn large_write(lab: &Lab, len: u32) -> SendWr {
    let sge = Sge {
        addr: ALIAS,
        ..lab.sge(0, 0, len)
    };
    remote(Operation::Write, 1, &[sge], ALIAS, lab.nodes[1].key)
}

/// Windows and bytes that function 0's memory gives out during `act`.
fn given(lab: &mut Lab, act: impl FnOnce(&mut Lab)) -> [u64; 2] {
    given_by(lab, 0, act)
}

/// The same of another function's.
fn given_by(lab: &mut Lab, node: usize, act: impl FnOnce(&mut Lab)) -> [u64; 2] {
    let before = lab.memory(node).given();
    act(lab);
    let after = lab.memory(node).given();
    [0, 1].map(|at| after[at] - before[at])
}

/// The neighbour posts one request, which is done within a few calls.
fn neighbour_is_served(lab: &mut Lab, near: &Qp) {
    let wr = small_write(lab);
    lab.post(near, wr);
    for _ in 0..CALLS {
        lab.engine.run();
    }
    assert_eq!(sent(&near.cq.poll()), [(1, Status::Success)]);
}

#[test]
fn many_queue_pairs_have_no_more_turns_than_one() {
    let mut lab = Lab::new(3);
    let near = neighbour(&mut lab, false);
    let (all, cq) = many(&mut lab, MANY, false);
    for qp in &all {
        let wr = large_write(&lab, 1 << 20);
        lab.post(qp, wr);
    }
    for _ in 0..20 {
        neighbour_is_served(&mut lab, &near);
    }
    assert!(cq.poll().len() < MANY / 2, "nothing is left to wait for");
    // Small requests by the thousand are as much.
    lab.settle();
    cq.poll();
    for qp in &all {
        for _ in 0..50 {
            lab.post(qp, request(Operation::Nop, 1, &[]));
        }
    }
    for _ in 0..20 {
        neighbour_is_served(&mut lab, &near);
    }
    assert!(lab.engine.run(), "nothing is left to wait for");
    lab.settle();
    assert_eq!(cq.poll().len(), MANY * 50);
}

#[test]
fn a_turn_of_polling_is_bounded_whatever_is_posted() {
    let mut lab = Lab::new(3);
    let near = neighbour(&mut lab, true);
    let (all, cq) = many(&mut lab, 200, true);
    for qp in all.iter().chain([&near]) {
        lab.engine.hint(qp.vf, qp.qpn);
    }
    while lab.engine.poll() {}
    for qp in &all {
        for _ in 0..4 {
            qp.send.push(Ok(large_write(&lab, 1 << 20)));
        }
    }
    let mut ended = 0;
    while ended < 8 {
        near.send.push(Ok(small_write(&lab)));
        let [_, bytes] = given(&mut lab, |lab| {
            for _ in 0..CALLS {
                lab.engine.poll();
            }
        });
        assert!(bytes <= 4 << 20, "{bytes} bytes in {CALLS} turns");
        assert_eq!(sent(&near.cq.poll()), [(1, Status::Success)]);
        ended += cq.poll().len();
    }
}

#[test]
fn queue_pairs_in_error_are_looked_at_in_parts() {
    let mut lab = Lab::new(3);
    let near = neighbour(&mut lab, false);
    let (all, cq) = many(&mut lab, MANY, false);
    for qp in &all {
        lab.modify(qp, QpState::Error, &QpChange::default());
    }
    lab.settle();
    cq.poll();
    for round in 0..3 {
        for qp in &all {
            lab.receive(qp, 7, &[]);
        }
        // All are due by now.
        lab.clock_forward(200_000_000);
        lab.engine.run();
        let mut flushed = cq.poll().len();
        assert!(flushed < MANY / 2, "{flushed} at once in round {round}");
        neighbour_is_served(&mut lab, &near);
        // None is forgotten.
        let mut looks = 0;
        while flushed < MANY {
            lab.advance(1_000_000);
            flushed += received(&cq.poll()).len();
            looks += 1;
            assert!(looks < 10_000, "{flushed} flushed");
        }
        assert_eq!(flushed, MANY);
    }
}

#[test]
fn one_queue_pair_in_error_among_many_is_flushed() {
    let mut lab = Lab::new(3);
    let (all, cq) = many(&mut lab, MANY, false);
    for qp in &all {
        lab.modify(qp, QpState::Error, &QpChange::default());
    }
    // Some leave the list in between, from its middle and from its ends.
    for qp in [&all[0], &all[MANY / 2], &all[MANY - 1]] {
        lab.modify(qp, QpState::Reset, &QpChange::default());
    }
    lab.engine.verbs(all[1].vf).destroy_qp(all[1].qpn).unwrap();
    lab.settle();
    cq.poll();
    for qp in &all[2..MANY / 2] {
        lab.receive(qp, 1, &[]);
        for _ in 0..10_000 {
            lab.advance(1_000_000);
            if received(&cq.poll()).len() == 1 {
                break;
            }
        }
        assert_eq!(qp.recv.len(), 0);
        if qp.qpn == all[20].qpn {
            break;
        }
    }
}

#[test]
fn timers_that_are_due_together_are_one_functions_work() {
    let mut lab = Lab::new(3);
    let near = neighbour(&mut lab, false);
    let (all, cq) = many(&mut lab, MANY, false);
    for qp in &all {
        lab.post(qp, request(Operation::Send, 1, &[]));
    }
    // Nobody has posted a receive request: all wait for the same time.
    lab.settle();
    for _ in 0..5 {
        lab.clock_forward(1_000_000_000);
        neighbour_is_served(&mut lab, &near);
    }
    assert!(cq.poll().is_empty());
}

#[test]
fn users_of_a_failed_completion_queue_fail_a_few_at_a_time() {
    let mut lab = Lab::new(3);
    let near = neighbour(&mut lab, false);
    let (cqn, cq) = lab.cq(0, 1);
    let far = lab.cq(1, 1 << 20);
    let mut all = Vec::new();
    for _ in 0..MANY {
        let qp = lab.qp_on(0, Transport::Rc, (cqn, cq.clone()), |_| {});
        let peer = lab.qp_on(1, Transport::Rc, far.clone(), |_| {});
        lab.connect_with(&qp, &peer, |_| {});
        all.push(qp);
    }
    let bystander = lab.qp(0, Transport::Rc);
    let peer = lab.qp(1, Transport::Rc);
    lab.connect_with(&bystander, &peer, |_| {});
    lab.settle();
    let catastrophes = |lab: &Lab| {
        let failed = |event: &Event| matches!(event, Event::QpCatastrophic(_));
        lab.events(0).iter().filter(|event| failed(event)).count()
    };
    for _ in 0..2 {
        lab.post(&all[0], request(Operation::Nop, 1, &[]));
    }
    lab.engine.run();
    let mut failed = catastrophes(&lab);
    assert!(failed < MANY / 2, "{failed} at once");
    neighbour_is_served(&mut lab, &near);
    lab.settle();
    failed += catastrophes(&lab);
    assert_eq!(failed, MANY);
    assert!(all.iter().all(|qp| lab.state(qp) == QpState::Error));
    assert_eq!(lab.state(&bystander), QpState::ReadyToSend);
}

/// Memory may take longer than its bytes say, as pages that nobody has touched do.
#[test]
fn memory_that_takes_long_is_copied_in_short_turns() {
    for (time, longest) in [(0, 17 << 10), (1, 4 << 10), (10, 2 << 10)] {
        let mut lab = Lab::new(3);
        let near = neighbour(&mut lab, false);
        lab.memory(0).is_slow(&lab.clock.clone(), time);
        let (a, _b) = lab.pair(Transport::Rc);
        let wr = large_write(&lab, 16 << 20);
        lab.post(&a, wr);
        for _ in 0..20 {
            lab.engine.run();
            neighbour_is_served(&mut lab, &near);
        }
        let [_, bytes] = given(&mut lab, |lab| {
            lab.engine.run();
        });
        assert!(
            bytes <= longest,
            "{bytes} bytes in one call, {time} ns each"
        );
        neighbour_is_served(&mut lab, &near);
        lab.settle();
        assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    }
}

/// A key that leads through four levels of stretches of one byte each to `len` bytes of its
/// function's memory.
pub fn chain(lab: &mut Lab, node: usize, len: u32) -> u32 {
    let (vf, pd) = (lab.nodes[node].vf, lab.nodes[node].pd);
    let mut key = lab.nodes[node].key;
    let mut addr = base(node);
    for _ in 0..4 {
        let klms = (0..u64::from(len))
            .map(|at| Klm {
                len: 1,
                key,
                addr: addr + at,
            })
            .collect();
        let region = MemoryKey {
            start: 0,
            len: u64::from(len),
            translation: Translation::Indirect(KlmList::new(klms)),
            ..physical(pd)
        };
        let index = lab.engine.verbs(vf).create_key(region).unwrap();
        (key, addr) = (index << 8 | u32::from(VARIANT), 0);
    }
    key
}

#[test]
fn keys_of_tiny_pieces_take_many_turns() {
    const LEN: u32 = 4096;
    let mut lab = Lab::new(3);
    let near = neighbour(&mut lab, false);
    let (a, b) = lab.pair(Transport::Rc);
    let key = chain(&mut lab, 0, LEN);
    let far = chain(&mut lab, 1, LEN);
    let bytes = crate::lab::pattern(3, LEN as usize);
    lab.memory(0).write(base(0), &bytes);
    let sge = Sge {
        addr: 0,
        lkey: key,
        len: LEN,
    };
    for (index, operation) in [Operation::Write, Operation::Send, Operation::Read]
        .into_iter()
        .enumerate()
    {
        let target = Sge { lkey: far, ..sge };
        lab.receive(&b, 1, &[target]);
        for _ in 0..3 {
            lab.post(&a, remote(operation, index as u16, &[sge], 0, far));
            lab.receive(&b, 1, &[target]);
        }
        for _ in 0..10 {
            let [windows, _] = given(&mut lab, |lab| {
                lab.engine.run();
            });
            assert!(
                windows < 500,
                "{windows} windows in one call, {operation:?}"
            );
            neighbour_is_served(&mut lab, &near);
        }
        lab.settle();
        assert_eq!(sent(&a.cq.poll()), vec![(index as u16, Status::Success); 3]);
        assert!(lab.memory(1).read(base(1), LEN as usize) == bytes);
        b.cq.poll();
    }
}

/// Runs the engine until its work is done; no call gives more windows of a node's memory than a few pieces need.
fn settle_in_short_calls(lab: &mut Lab, near: &Qp, node: usize, what: &str) {
    for _ in 0..1_000_000 {
        let mut more = false;
        let [windows, _] = given_by(lab, node, |lab| more = lab.engine.run());
        assert!(windows < 12, "{windows} windows in one call, {what}");
        if !more {
            return;
        }
    }
    neighbour_is_served(lab, near);
    panic!("it does not end, {what}");
}

#[test]
fn keys_of_tiny_pieces_take_many_turns_in_frames() {
    const LEN: u32 = 16 << 10;
    let mut lab = Lab::new(3);
    lab.go(Way::Frames);
    let near = neighbour(&mut lab, false);
    // No retry is used up by it.
    let (a, b) = lab.pair_with(Transport::Rc, |change| change.retry_count = Some(0));
    let (c, d) = lab.pair(Transport::Uc);
    let keys = [chain(&mut lab, 0, LEN), chain(&mut lab, 1, LEN)];
    let whole = [lab.nodes[0].key, lab.nodes[1].key];
    let bytes = crate::lab::pattern(4, LEN as usize);
    let reliable = [Operation::Write, Operation::Send, Operation::Read].map(|it| (it, &a, &b));
    let unreliable = [Operation::Write, Operation::Send].map(|it| (it, &c, &d));
    let all = reliable.into_iter().chain(unreliable);
    // Tiny pieces at one end are enough.
    for ((operation, near_end, far_end), tiny) in all.flat_map(|it| [(it, 0), (it, 1)]) {
        let ends: [Sge; 2] = std::array::from_fn(|node| Sge {
            addr: if node == tiny { 0 } else { base(node) },
            lkey: if node == tiny {
                keys[node]
            } else {
                whole[node]
            },
            len: LEN,
        });
        let (from, to) = match operation {
            Operation::Read => (1, 0),
            _ => (0, 1),
        };
        lab.memory(from).write(base(from), &bytes);
        lab.memory(to).write(base(to), &vec![0; LEN as usize]);
        lab.receive(far_end, 1, &ends[1..]);
        let [own, far] = ends;
        lab.post(near_end, remote(operation, 7, &[own], far.addr, far.lkey));
        lab.engine.run();
        neighbour_is_served(&mut lab, &near);
        let what = format!("{operation:?}, {tiny}");
        settle_in_short_calls(&mut lab, &near, tiny, &what);
        assert_eq!(sent(&near_end.cq.poll()), [(7, Status::Success)], "{what}");
        let got = lab.memory(to).read(base(to), LEN as usize);
        assert!(got == bytes, "{what}");
        far_end.cq.poll();
    }
}

#[test]
fn datagrams_in_too_many_pieces_are_refused() {
    let mut lab = Lab::new(3);
    let key = chain(&mut lab, 0, 2048);
    let near = neighbour(&mut lab, false);
    let change = QpChange {
        qkey: Some(crate::lab::QKEY),
        ..QpChange::default()
    };
    let (a, b) = (lab.qp(0, Transport::Ud), lab.qp(2, Transport::Ud));
    for qp in [&a, &b] {
        lab.bring_up(qp, &lab.attributes(qp));
        lab.modify(qp, QpState::ReadyToSend, &change);
    }
    let sge = |len: u32| Sge {
        addr: 0,
        lkey: key,
        len,
    };
    // A few pieces are no more than a list may have anyway.
    lab.receive(&b, 1, &[lab.sge(2, 0, 4096)]);
    let wr = datagram(&lab, &b, 1, &[sge(16)]);
    lab.execute(&a, wr);
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    assert_eq!(received(&b.cq.poll()).len(), 1);
    let [windows, _] = given(&mut lab, |lab| {
        let wr = datagram(lab, &b, 2, &[sge(2048)]);
        lab.execute(&a, wr);
    });
    assert!(windows < 500, "{windows} windows for one datagram");
    assert_eq!(sent(&a.cq.poll()), [(2, Status::LocalProtection)]);
    // A receiver's pieces are the receiver's fault.
    let c = lab.qp(0, Transport::Ud);
    lab.bring_up(&c, &lab.attributes(&c));
    lab.receive(&c, 3, &[sge(2048)]);
    let [windows, _] = given(&mut lab, |lab| {
        let wr = datagram(lab, &c, 3, &[lab.sge(2, 0, 1500)]);
        lab.execute(&b, wr);
    });
    assert!(windows < 500, "{windows} windows for one datagram");
    assert_eq!(sent(&b.cq.poll()), [(3, Status::Success)]);
    assert_eq!(received(&c.cq.poll())[0].1, Status::LocalProtection);
    assert_eq!(lab.state(&c), QpState::Error);
    neighbour_is_served(&mut lab, &near);
}

#[test]
fn a_key_update_of_a_million_bytes_takes_many_turns() {
    const ENTRIES: usize = 1 << 16;
    let mut lab = Lab::new(3);
    let near = neighbour(&mut lab, false);
    let (vf, pd) = (lab.nodes[0].vf, lab.nodes[0].pd);
    let key = lab
        .engine
        .verbs(vf)
        .create_key(MemoryKey {
            updatable: true,
            access: everything() | Access::NONE,
            capacity: ENTRIES,
            translation: Translation::Indirect(KlmList::default()),
            ..physical(pd)
        })
        .unwrap();
    let qp = lab.qp(0, Transport::KeyUpdate);
    let change = lab.attributes(&qp);
    lab.bring_up(&qp, &change);
    let len = ENTRIES as u32 * 16;
    let mut wr = request(Operation::UpdateKey, 1, &[lab.sge(0, 0, len)]);
    wr.key_update = Some(Box::new(KeyUpdate {
        mkey: key << 8 | u32::from(VARIANT),
        translation_octwords: ENTRIES as u32,
        ..KeyUpdate::default()
    }));
    lab.post(&qp, wr);
    let [_, bytes] = given(&mut lab, |lab| {
        lab.engine.run();
    });
    assert!(bytes < u64::from(len) / 2, "{bytes} bytes at once");
    neighbour_is_served(&mut lab, &near);
    lab.settle();
    assert_eq!(sent(&qp.cq.poll()), [(1, Status::Success)]);
    let entries = lab
        .engine
        .vf(vf)
        .keys()
        .get(key)
        .unwrap()
        .translation
        .entries();
    assert_eq!(entries, ENTRIES);
}

#[test]
fn what_was_before_a_reset_is_taken_away_in_parts() {
    let quota = Quota {
        log_qps: 12,
        ..Quota::default()
    };
    let mut lab = Lab::with_quota(3, quota);
    let near = neighbour(&mut lab, false);
    let (all, _) = many(&mut lab, MANY, false);
    for qp in &all {
        let wr = large_write(&lab, 1 << 20);
        lab.post(qp, wr);
    }
    lab.engine.run();
    lab.engine.reset_vf(all[0].vf);
    // Gone as far as anybody can tell, and the function can be used at once.
    let counts = lab.engine.vf(all[0].vf).object_counts();
    assert!(counts.iter().all(|(_, count)| *count == 0), "{counts:?}");
    assert!(lab.engine.query_qp(all[0].vf, all[0].qpn).is_err());
    assert!(!lab.engine.run(), "nothing is left to do");
    lab.nodes[0].pd = lab.engine.vf_mut(all[0].vf).alloc_pd().unwrap();
    let key = lab
        .engine
        .verbs(all[0].vf)
        .create_key(physical(lab.nodes[0].pd));
    lab.nodes[0].key = key.unwrap() << 8 | u32::from(VARIANT);
    let again = lab.qp(0, Transport::Rc);
    let peer = lab.qp(1, Transport::Rc);
    lab.connect_with(&again, &peer, |_| {});
    let mut parts = 0;
    loop {
        let more = lab.engine.clear_away(all[0].vf);
        drop(lab.engine.take_discarded());
        parts += 1;
        neighbour_is_served(&mut lab, &near);
        if !more {
            break;
        }
    }
    assert!(parts > 10, "{parts} parts");
    // The new ones are not among them.
    lab.execute(&again, request(Operation::Nop, 5, &[]));
    assert_eq!(sent(&again.cq.poll()), [(5, Status::Success)]);
    let described = lab.qp_with(0, Transport::Rc, |desc| desc.recv = RecvSide::None);
    assert_eq!(lab.state(&described), QpState::Reset);
}

#[test]
fn what_one_changes_nobody_else_looks_up_again() {
    let mut lab = Lab::new(4);
    let near = neighbour(&mut lab, false);
    let (a, b) = lab.pair(Transport::Rc);
    let go = |lab: &mut Lab, qp: &Qp, node: usize| {
        let before = lab.engine.peer_lookups();
        let sge = lab.sge(node, 0, 8);
        let key = lab.nodes[1].key;
        lab.execute(qp, remote(Operation::Write, 1, &[sge], base(1), key));
        let ends = sent(&qp.cq.poll());
        (lab.engine.peer_lookups() - before, ends)
    };
    let well = vec![(1, Status::Success)];
    assert_eq!(go(&mut lab, &near, 2), (1, well.clone()));
    assert_eq!(go(&mut lab, &a, 0), (1, well.clone()));
    // Queue pairs of the neighbour's peer's function and of others come, change, fail and go; a
    // function is reset, and another one's port changes.
    for _ in 0..10 {
        let (c, d) = lab.pair(Transport::Rc);
        lab.modify(&c, QpState::Error, &QpChange::default());
        lab.modify(&d, QpState::Reset, &QpChange::default());
        lab.engine.verbs(d.vf).destroy_qp(d.qpn).unwrap();
    }
    lab.modify(&b, QpState::ReadyToSend, &QpChange::default());
    let vf = lab.nodes[3].vf;
    let port = lab.engine.vf(vf).port().clone();
    lab.engine.vf_mut(vf).set_port(port);
    lab.engine.reset_vf(lab.nodes[0].vf);
    assert_eq!(go(&mut lab, &near, 2), (0, well.clone()));
    // Their own ends they do look up again.
    let mut lab = Lab::new(3);
    let near = neighbour(&mut lab, false);
    let (a, b) = lab.pair(Transport::Rc);
    assert_eq!(go(&mut lab, &a, 0), (1, well.clone()));
    assert_eq!(go(&mut lab, &near, 2), (1, well.clone()));
    lab.modify(&b, QpState::ReadyToSend, &QpChange::default());
    assert_eq!(go(&mut lab, &a, 0), (1, well.clone()));
    for node in [0, 1] {
        let vf = lab.nodes[node].vf;
        let port = lab.engine.vf(vf).port().clone();
        lab.engine.vf_mut(vf).set_port(port);
        assert_eq!(go(&mut lab, &a, 0), (1, well.clone()));
    }
    assert_eq!(
        go(&mut lab, &near, 2),
        (1, well.clone()),
        "ports of its peer"
    );
    // A peer that is reset, and one whose place another queue pair has taken, are not there any more.
    lab.engine.reset_vf(lab.nodes[1].vf);
    while lab.engine.clear_away(lab.nodes[1].vf) {}
    let _other = lab.engine.vf_mut(lab.nodes[1].vf).alloc_pd().unwrap();
    assert_eq!(go(&mut lab, &near, 2), (1, vec![]));
    let (lookups, ends) = go(&mut lab, &a, 0);
    assert_eq!((lookups, ends), (1, vec![]));
}

/// Has as many turns for one queue pair as it takes until nobody else counts.
fn alone(lab: &mut Lab, qp: &Qp) {
    for _ in 0..2000 {
        lab.post(qp, request(Operation::Nop, 1, &[]));
        lab.engine.run();
    }
    assert_eq!(qp.cq.poll().len(), 2000);
}

/// Whoever waits outside for the engine waits for a call of it, not for a turn.
#[test]
fn who_was_there_lately_finds_short_calls() {
    let mut lab = Lab::new(3);
    let near = neighbour(&mut lab, false);
    let (all, _cq) = many(&mut lab, 1, false);
    alone(&mut lab, &all[0]);
    let wr = large_write(&lab, 1 << 30);
    lab.post(&all[0], wr);
    let call = |lab: &mut Lab| {
        let [_, bytes] = given(lab, |lab| {
            lab.engine.run();
        });
        bytes
    };
    // Nobody is there: as much as is cheapest.
    assert!(call(&mut lab) >= 128 << 10);
    neighbour_is_served(&mut lab, &near);
    for _ in 0..1000 {
        assert!(call(&mut lab) <= 16 << 10);
    }
    for _ in 0..100 {
        call(&mut lab);
    }
    assert!(call(&mut lab) >= 128 << 10);
}

#[test]
fn a_turn_ends_with_a_whole_message_where_little_of_it_is_left() {
    let mut lab = Lab::new(2);
    let (near, _far) = lab.pair(Transport::Rc);
    lab.settle();
    alone(&mut lab, &near);
    for len in [16, 32, 64, 128].map(|kib| kib << 10) {
        for index in 0..32 {
            let wr = SendWr {
                index,
                ..large_write(&lab, len)
            };
            lab.post(&near, wr);
        }
        // A request costs 1 KiB beside its bytes, a turn is 128 KiB.
        let each = (128_usize << 10).div_ceil(len as usize + 1024);
        let mut left = 32;
        while left > 0 {
            lab.engine.run();
            let done = near.cq.poll().len();
            assert!(
                done > 0 && done.is_multiple_of(each.min(left)),
                "{len}: {done} of {each}"
            );
            left -= done;
        }
    }
}

/// A key with T10-DIF behind each block, over `len` bytes of another key.
fn signed(lab: &mut Lab, qp: &Qp, of: u32, len: u32) -> u32 {
    let (vf, pd) = (lab.nodes[qp.node].vf, lab.nodes[qp.node].pd);
    let stretch = Klm {
        len,
        key: of,
        addr: 0,
    };
    let key = MemoryKey {
        updatable: true,
        len: 0,
        translation: Translation::Signed(Box::new(Signed {
            list: KlmList::new(vec![stretch]),
            ..Signed::default()
        })),
        capacity: 4,
        ..physical(pd)
    };
    let key = lab.engine.verbs(vf).create_key(key).unwrap() << 8 | u32::from(VARIANT);
    let tags = Tags {
        application: 0,
        application_mask: 0xffff,
        reference: 0,
        increments: true,
        escape: Escape::Never,
    };
    let memory = Signature {
        algorithm: Algorithm::T10Dif,
        ones: false,
        tags: Some(tags),
        block: 512,
    };
    let format = Format {
        memory: Some(memory),
        wire: None,
        check: 0xff,
        copy: None,
    };
    let mut wr = request(Operation::UpdateKey, 77, &[]);
    wr.is_inline = true;
    wr.key_update = Some(Box::new(KeyUpdate {
        mkey: key,
        len: Some(len.into()),
        signatures: Some(Some(format)),
        ..KeyUpdate::default()
    }));
    lab.execute(qp, wr);
    assert_eq!(sent(&qp.cq.poll()), [(77, Status::Success)]);
    key
}

/// Signatures are computed from blocks, however many pieces these are in: so blocks in too many pieces count as
/// absent, and a copy to many small ones takes many turns.
#[test]
fn blocks_in_tiny_pieces_hold_nobody_up() {
    const BLOCKS: u32 = 8;
    let mut lab = Lab::new(3);
    let near = neighbour(&mut lab, false);
    let (_, b) = lab.pair(Transport::Rc);
    let all = BLOCKS * 520;
    let far = chain(&mut lab, 1, all);
    let tiny = signed(&mut lab, &b, far, all);
    for operation in [Operation::Write, Operation::Send, Operation::Read] {
        let (a, b) = lab.pair(Transport::Rc);
        let sge = lab.sge(0, 0, BLOCKS * 512);
        let target = Sge {
            addr: 0,
            lkey: tiny,
            len: BLOCKS * 512,
        };
        for _ in 0..3 {
            lab.receive(&b, 1, &[target]);
            lab.post(&a, remote(operation, 1, &[sge], 0, tiny));
        }
        let mut calls = 0;
        loop {
            let before = lab.memory(1).given();
            let more = lab.engine.run();
            let windows = lab.memory(1).given()[0] - before[0];
            assert!(
                windows < 100,
                "{windows} windows in one call, {operation:?}"
            );
            neighbour_is_served(&mut lab, &near);
            calls += 1;
            if !more || calls == 1000 {
                break;
            }
        }
        let done = sent(&a.cq.poll());
        assert_ne!(done[0].1, Status::Success, "{operation:?}");
    }
}
