//! Objects from creation to destruction: use counts, quotas, numbers, resets.

use std::collections::HashSet;

use hca::work::{Operation, Status};
use hca::{
    Event, InCompletion, PortView, QpChange, QpDesc, QpState, Quota, RecvSide, Transport, VerbError,
};
use wire::{Gid, Psn, Qpn};

use crate::lab::{ALIAS, Lab, Plain, TIMEOUT_NS, base, physical, remote, request, sent};

#[test]
fn what_is_in_use_stays() {
    let mut lab = Lab::new(1);
    let vf = lab.nodes[0].vf;
    let pd = lab.engine.vf_mut(vf).alloc_pd().unwrap();
    let xrcd = lab.engine.vf_mut(vf).alloc_xrcd().unwrap();
    let shared = lab.qp(0, Transport::Ud).recv;
    let (cqn, _cq) = lab.cq(0, 10);
    let key = lab.engine.verbs(vf).create_key(physical(pd)).unwrap();
    assert_eq!(lab.engine.vf_mut(vf).dealloc_pd(pd), Err(VerbError::InUse));
    lab.engine.vf_mut(vf).destroy_key(key).unwrap();
    let basic = lab
        .engine
        .verbs(vf)
        .create_srq(pd, None, shared.clone())
        .unwrap();
    let extended = lab
        .engine
        .verbs(vf)
        .create_srq(pd, Some((xrcd, cqn)), shared.clone())
        .unwrap();
    assert_eq!(
        lab.engine.vf_mut(vf).dealloc_xrcd(xrcd),
        Err(VerbError::InUse)
    );
    assert!(matches!(
        lab.engine.verbs(vf).destroy_cq(cqn),
        Err(VerbError::InUse)
    ));
    let qp = lab.qp_with(0, Transport::Rc, |desc| {
        desc.pd = pd;
        desc.recv = RecvSide::Shared(basic);
    });
    let target = lab.qp_with(0, Transport::Xrc, |desc| {
        desc.pd = pd;
        desc.recv = RecvSide::Xrc(xrcd);
        desc.recv_cqn = None;
    });
    assert_eq!(
        lab.engine.verbs(vf).destroy_srq(basic),
        Err(VerbError::InUse)
    );
    assert!(matches!(
        lab.engine.verbs(vf).destroy_cq(qp.cqn),
        Err(VerbError::InUse)
    ));
    lab.engine.verbs(vf).destroy_qp(qp.qpn).unwrap();
    assert_eq!(lab.engine.verbs(vf).destroy_srq(basic), Ok(()));
    assert!(lab.engine.verbs(vf).destroy_cq(qp.cqn).is_ok());
    assert_eq!(lab.engine.verbs(vf).destroy_srq(extended), Ok(()));
    assert!(lab.engine.verbs(vf).destroy_cq(cqn).is_ok());
    assert_eq!(
        lab.engine.vf_mut(vf).dealloc_xrcd(xrcd),
        Err(VerbError::InUse)
    );
    assert_eq!(lab.engine.vf_mut(vf).dealloc_pd(pd), Err(VerbError::InUse));
    lab.engine.verbs(vf).destroy_qp(target.qpn).unwrap();
    assert_eq!(lab.engine.vf_mut(vf).dealloc_xrcd(xrcd), Ok(()));
    assert_eq!(lab.engine.vf_mut(vf).dealloc_pd(pd), Ok(()));
    // Twice is not found.
    assert_eq!(
        lab.engine.vf_mut(vf).dealloc_pd(pd),
        Err(VerbError::NotFound)
    );
    assert_eq!(
        lab.engine.verbs(vf).destroy_qp(qp.qpn),
        Err(VerbError::NotFound)
    );
    assert!(matches!(
        lab.engine.verbs(vf).destroy_cq(cqn),
        Err(VerbError::NotFound)
    ));
}

#[test]
fn what_does_not_exist_is_not_used() {
    let mut lab = Lab::new(1);
    let (vf, pd) = (lab.nodes[0].vf, lab.nodes[0].pd);
    let (cqn, _cq) = lab.cq(0, 10);
    let rings = lab.qp(0, Transport::Rc);
    let desc = || QpDesc::<Plain> {
        counter_set: 0,
        user_index: None,
        in_completion: InCompletion::default(),
        transport: Transport::Rc,
        pd,
        send: Some((rings.send.clone(), cqn)),
        recv: RecvSide::Own(rings.recv.clone()),
        recv_cqn: Some(cqn),
        source_qpn: None,
        block_multicast_loopback: false,
        offloads: false,
        polled: false,
    };
    type Spoil = fn(&mut QpDesc<Plain>);
    let spoils: [(Spoil, VerbError); 6] = [
        (|desc| desc.pd += 1 << 20, VerbError::NotFound),
        (|desc| desc.recv_cqn = Some(0xff_ffff), VerbError::NotFound),
        (|desc| desc.recv_cqn = None, VerbError::Invalid),
        (
            |desc| desc.recv = RecvSide::Shared(0x77_7777),
            VerbError::NotFound,
        ),
        (
            |desc| desc.recv = RecvSide::Xrc(0x77_7777),
            VerbError::NotFound,
        ),
        (
            |desc| {
                if let Some(send) = &mut desc.send {
                    send.1 = 0xff_ffff;
                }
            },
            VerbError::NotFound,
        ),
    ];
    let before = lab.engine.vf(vf).object_counts();
    for (spoil, error) in spoils {
        let mut desc = desc();
        spoil(&mut desc);
        assert_eq!(lab.engine.verbs(vf).create_qp(desc), Err(error));
    }
    assert_eq!(
        lab.engine.verbs(vf).create_key(physical(pd + 1)),
        Err(VerbError::NotFound)
    );
    assert_eq!(lab.engine.vf(vf).object_counts(), before);
    // The completion queue is not held by what was never made.
    assert!(lab.engine.verbs(vf).destroy_cq(cqn).is_ok());
    // One queue pair 0 and one queue pair 1 per function.
    let smi = lab.qp(0, Transport::Smi);
    let cq = (smi.cqn, smi.cq.clone());
    let mut second = desc();
    second.transport = Transport::Smi;
    second.send = Some((rings.send.clone(), cq.0));
    second.recv_cqn = Some(cq.0);
    assert_eq!(
        lab.engine.verbs(vf).create_qp(second),
        Err(VerbError::InUse)
    );
    lab.engine.verbs(vf).destroy_qp(smi.qpn).unwrap();
    lab.qp(0, Transport::Smi);
}

#[test]
fn quotas_hold_per_function() {
    let quota = Quota {
        log_qps: 5,
        log_cqs: 3,
        log_srqs: 2,
        log_keys: 3,
        log_pds: 2,
        log_multicast: 1,
        ..Quota::default()
    };
    let mut lab = Lab::with_quota(2, quota);
    let (vf, pd) = (lab.nodes[0].vf, lab.nodes[0].pd);
    type Make = Box<dyn FnMut(&mut Lab) -> Option<VerbError>>;
    let fill = |lab: &mut Lab, mut make: Make| loop {
        if let Some(error) = make(lab) {
            return assert_eq!(error, VerbError::Exhausted);
        }
    };
    let cq = lab.cq(0, 10);
    let ring = lab.qp_on(0, Transport::Ud, cq.clone(), |_| {});
    fill(
        &mut lab,
        Box::new(move |lab| lab.engine.vf_mut(vf).alloc_pd().err()),
    );
    fill(
        &mut lab,
        Box::new(move |lab| lab.engine.verbs(vf).create_key(physical(pd)).err()),
    );
    let shared = ring.recv.clone();
    fill(
        &mut lab,
        Box::new(move |lab| {
            lab.engine
                .verbs(vf)
                .create_srq(pd, None, shared.clone())
                .err()
        }),
    );
    let on = cq.1.clone();
    fill(
        &mut lab,
        Box::new(move |lab| lab.engine.verbs(vf).create_cq(|_| on.clone()).err()),
    );
    for group in 0..3_u128 {
        let gid = Gid::from_bits(0xff << 120 | group);
        let result = lab.engine.verbs(vf).attach_multicast(ring.qpn, gid);
        assert_eq!(result.is_ok(), group < 2);
    }
    let (send, recv, cqn) = (ring.send.clone(), ring.recv.clone(), cq.0);
    fill(
        &mut lab,
        Box::new(move |lab| {
            let desc = QpDesc::<Plain> {
                counter_set: 0,
                user_index: None,
                in_completion: InCompletion::default(),
                transport: Transport::Rc,
                pd,
                send: Some((send.clone(), cqn)),
                recv: RecvSide::Own(recv.clone()),
                recv_cqn: Some(cqn),
                source_qpn: None,
                block_multicast_loopback: false,
                offloads: false,
                polled: false,
            };
            lab.engine.verbs(vf).create_qp(desc).err()
        }),
    );
    for (kind, count) in lab.engine.vf(vf).object_counts() {
        assert!(count <= 32, "{kind}: {count}");
    }
    // The neighbour has all of its own.
    lab.qp(1, Transport::Rc);
    // And after a reset, so has this one.
    lab.engine.reset_vf(vf);
    let pd = lab.engine.vf_mut(vf).alloc_pd().unwrap();
    assert!(lab.engine.verbs(vf).create_key(physical(pd)).is_ok());
}

#[test]
fn numbers_do_not_come_back_soon() {
    let mut lab = Lab::new(1);
    let vf = lab.nodes[0].vf;
    let mut seen = HashSet::new();
    for _ in 0..50 {
        let qp = lab.qp(0, Transport::Rc);
        assert!(u32::from(qp.qpn) >= 2);
        assert!(seen.insert(qp.qpn));
        lab.engine.verbs(vf).destroy_qp(qp.qpn).unwrap();
        assert_eq!(lab.engine.query_qp(vf, qp.qpn), Err(VerbError::NotFound));
    }
}

#[test]
fn a_reset_leaves_nothing_and_disturbs_nobody() {
    let mut lab = Lab::new(3);
    let (a, b) = lab.pair(Transport::Rc);
    let (c, d) = (lab.qp(2, Transport::Rc), lab.qp(1, Transport::Rc));
    lab.connect_with(&c, &d, |_| {});
    let polled = lab.qp_with(0, Transport::Rc, |desc| desc.polled = true);
    let failed = lab.qp(0, Transport::Rc);
    lab.modify(&failed, QpState::Error, &QpChange::default());
    let waiting = lab.qp(0, Transport::Rc);
    let change = lab.attributes(&b);
    lab.bring_up(&waiting, &change);
    lab.execute(&waiting, request(Operation::Send, 1, &[]));
    let ud = lab.qp(0, Transport::Ud);
    lab.engine
        .verbs(ud.vf)
        .attach_multicast(ud.qpn, Gid::from_bits(0xff << 120))
        .unwrap();
    lab.qp(0, Transport::Smi);
    // In the middle of a message of its own, and of one to it.
    let mut sge = lab.sge(0, 0, 1 << 29);
    sge.addr = ALIAS;
    let key = lab.nodes[1].key;
    lab.post(&a, remote(Operation::Write, 1, &[sge], ALIAS, key));
    let mut back = lab.sge(1, 0, 1 << 29);
    back.addr = ALIAS;
    let key = lab.nodes[0].key;
    lab.post(&b, remote(Operation::Write, 2, &[back], ALIAS, key));
    assert!(lab.engine.run());

    lab.engine.reset_vf(a.vf);
    assert!(
        lab.engine
            .vf(a.vf)
            .object_counts()
            .iter()
            .all(|&(_, n)| n == 0)
    );
    assert!(!lab.engine.polls());
    for qp in [&a, &polled, &failed, &waiting, &ud] {
        assert_eq!(lab.engine.query_qp(qp.vf, qp.qpn), Err(VerbError::NotFound));
        lab.engine.ring_send(qp.vf, qp.qpn, 0);
    }
    for _ in 0..4 {
        lab.settle();
        lab.advance(TIMEOUT_NS);
    }
    assert!(a.cq.poll().is_empty());
    assert_eq!(sent(&b.cq.poll()), [(2, Status::RetryExceeded)]);
    let sge = lab.sge(2, 0, 8);
    let wr = remote(Operation::Write, 3, &[sge], base(1), lab.nodes[1].key);
    lab.execute(&c, wr);
    assert_eq!(sent(&c.cq.poll()), [(3, Status::Success)]);
    // Used again by another guest: the old numbers are not.
    let pd = lab.engine.vf_mut(a.vf).alloc_pd().unwrap();
    lab.nodes[0].pd = pd;
    lab.nodes[0].key = lab.engine.verbs(a.vf).create_key(physical(pd)).unwrap() << 8 | 0x5a;
    let (a, b) = lab.pair(Transport::Rc);
    lab.receive(&b, 1, &[]);
    lab.execute(&a, request(Operation::Send, 1, &[]));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
}

#[test]
fn destroyed_under_way() {
    let mut lab = Lab::new(2);
    for victim in 0..2 {
        let (a, b) = lab.pair(Transport::Rc);
        let mut sge = lab.sge(0, 0, 1 << 29);
        sge.addr = ALIAS;
        let mut target = lab.sge(1, 0, 1 << 29);
        target.addr = ALIAS;
        lab.receive(&b, 1, &[target]);
        lab.post(&a, request(Operation::Send, 1, &[sge]));
        assert!(lab.engine.run());
        let gone = if victim == 0 { &a } else { &b };
        lab.engine.verbs(gone.vf).destroy_qp(gone.qpn).unwrap();
        assert!(lab.engine.verbs(gone.vf).destroy_cq(gone.cqn).is_ok());
        for _ in 0..4 {
            lab.settle();
            lab.advance(TIMEOUT_NS);
        }
        let expected: &[(u16, Status)] = if victim == 0 {
            &[]
        } else {
            &[(1, Status::RetryExceeded)]
        };
        assert_eq!(sent(&a.cq.poll()), expected);
        assert!(b.cq.poll().is_empty());
    }
    // An extended connection's queue and its completion queue go while a
    // message is being scattered: the completion goes to nobody else.
    let xrcd = lab.engine.vf_mut(lab.nodes[1].vf).alloc_xrcd().unwrap();
    let shared = lab.qp(1, Transport::Ud).recv;
    let (cqn, _) = lab.cq(1, 10);
    let (vf, pd) = (lab.nodes[1].vf, lab.nodes[1].pd);
    let srqn = lab
        .engine
        .verbs(vf)
        .create_srq(pd, Some((xrcd, cqn)), shared.clone())
        .unwrap();
    let a = lab.qp(0, Transport::Xrc);
    let b = lab.qp_with(1, Transport::Xrc, |desc| {
        desc.recv = RecvSide::Xrc(xrcd);
        desc.recv_cqn = None;
    });
    lab.connect_with(&a, &b, |_| {});
    let mut target = lab.sge(1, 0, 1 << 29);
    target.addr = ALIAS;
    shared.push(Ok(hca::work::RecvWr {
        index: 1,
        sges: vec![target],
        ..hca::work::RecvWr::default()
    }));
    let mut sge = lab.sge(0, 0, 1 << 29);
    sge.addr = ALIAS;
    let mut wr = request(Operation::Send, 1, &[sge]);
    wr.xrc_srqn = srqn;
    lab.post(&a, wr);
    assert!(lab.engine.run());
    lab.engine.verbs(vf).destroy_srq(srqn).unwrap();
    lab.engine.verbs(vf).destroy_cq(cqn).unwrap();
    let (_, stranger) = lab.cq(0, 10);
    lab.settle();
    assert!(stranger.poll().is_empty());
}

#[test]
fn transitions_are_those_of_the_specification() {
    use QpState::{
        Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError,
    };
    let all = [
        Reset,
        Init,
        ReadyToReceive,
        ReadyToSend,
        SendQueueDrain,
        SendQueueError,
        Error,
    ];
    let allowed = [
        (Reset, Init),
        (Init, Init),
        (Init, ReadyToReceive),
        (ReadyToReceive, ReadyToSend),
        (ReadyToSend, ReadyToSend),
        (ReadyToSend, SendQueueDrain),
        (SendQueueDrain, SendQueueDrain),
        (SendQueueDrain, ReadyToSend),
        (SendQueueError, ReadyToSend),
    ];
    for from in all {
        for to in all {
            let expected = matches!(to, Reset | Error) || allowed.contains(&(from, to));
            assert_eq!(from.may_become(to), expected, "{from:?} to {to:?}");
        }
    }
    let mut lab = Lab::new(1);
    let qp = lab.qp(0, Transport::Rc);
    assert_eq!(
        lab.engine
            .verbs(qp.vf)
            .modify_qp(qp.qpn, ReadyToSend, &QpChange::default()),
        Err(VerbError::BadState)
    );
    assert_eq!(
        lab.engine
            .verbs(qp.vf)
            .modify_qp(Qpn::new(9), Init, &QpChange::default()),
        Err(VerbError::NotFound)
    );
}

#[test]
fn queries_tell_the_truth() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let sge = lab.sge(0, 0, 10_000);
    let wr = remote(Operation::Write, 1, &[sge], base(1), lab.nodes[1].key);
    lab.execute(&a, wr);
    let (mine, theirs) = (
        lab.engine.query_qp(a.vf, a.qpn).unwrap(),
        lab.engine.query_qp(b.vf, b.qpn).unwrap(),
    );
    assert_eq!(mine.state, QpState::ReadyToSend);
    assert_eq!(mine.attr.sq_psn, Psn::new(0x126));
    assert_eq!(theirs.attr.rq_psn, Psn::new(0x126));
    assert_eq!((mine.msn, theirs.msn), (0, 1));
    assert_eq!(mine.attr.dest_qp, b.qpn);
    assert_eq!(mine.attr.retry_count, 3);
    lab.modify(&a, QpState::Reset, &QpChange::default());
    let reset = lab.engine.query_qp(a.vf, a.qpn).unwrap();
    assert_eq!(reset.attr, hca::QpAttr::default());
    assert_eq!(reset.state, QpState::Reset);
}

#[test]
fn posts_before_ready_to_send_wait() {
    let mut lab = Lab::new(2);
    let (a, b) = (lab.qp(0, Transport::Rc), lab.qp(1, Transport::Rc));
    let (to_b, to_a) = (lab.attributes(&b), lab.attributes(&a));
    lab.bring_up(&b, &to_a);
    lab.receive(&b, 1, &[]);
    for next in [QpState::Init, QpState::ReadyToReceive] {
        lab.modify(&a, next, &to_b);
    }
    lab.execute(&a, request(Operation::Send, 1, &[]));
    assert!(a.cq.poll().is_empty());
    lab.modify(&a, QpState::ReadyToSend, &to_b);
    lab.settle();
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    // A port that is down is a path that is gone.
    let port = PortView {
        active: false,
        ..lab.engine.vf(a.vf).port().clone()
    };
    lab.engine.vf_mut(a.vf).set_port(port);
    lab.execute(&a, request(Operation::Send, 2, &[]));
    for _ in 0..4 {
        lab.advance(TIMEOUT_NS);
    }
    assert_eq!(sent(&a.cq.poll()), [(2, Status::RetryExceeded)]);
    assert_eq!(lab.events(0), [] as [Event; 0]);
}

#[test]
fn the_failure_of_a_completion_queue_is_not_its_successors() {
    for reset in [true, false] {
        let mut lab = Lab::new(2);
        let (cqn, cq) = lab.cq(0, 1);
        let qp = lab.qp_on(0, Transport::Rc, (cqn, cq), |_| {});
        lab.receive(&qp, 1, &[]);
        lab.receive(&qp, 2, &[]);
        // Overrun by the flush; the users would be told on the next turn.
        lab.modify(&qp, QpState::Error, &QpChange::default());
        if reset {
            lab.engine.reset_vf(qp.vf);
        } else {
            lab.engine.verbs(qp.vf).destroy_qp(qp.qpn).unwrap();
            lab.engine.verbs(qp.vf).destroy_cq(cqn).unwrap();
        }
        // In the engine's own tables these take the places of those.
        let others: Vec<_> = (0..4).map(|_| lab.qp(1, Transport::Ud)).collect();
        for other in &others {
            let change = lab.attributes(other);
            lab.bring_up(other, &change);
        }
        lab.settle();
        for other in &others {
            assert_eq!(lab.state(other), QpState::ReadyToSend);
        }
        assert_eq!(lab.events(1), []);
    }
}
