//! Errors: the completion of each end, the events, and that nobody else notices.

use hca::work::{Operation, RecvKind, RecvWr, SendWr, Status, WqeError};
use hca::{CqError, Event, PortView, QpChange, QpState, RecvSide, Transport};
use wire::{Mtu, PKey, Psn};

use crate::lab::{
    ALIAS, Lab, Qp, TIMEOUT_NS, base, pattern, physical, received, remote, request, sent,
};

const TARGET: u64 = 0x20_0000;

/// Posts `wr` and a request behind it; expects `requester`, the flush of the
/// second, and `event` at the responder (or none: the responder lives on).
fn fails(lab: &mut Lab, (a, b): (&Qp, &Qp), wr: SendWr, requester: Status, event: Option<Event>) {
    lab.receive(b, 100, &[]);
    let operation = wr.operation;
    lab.post(a, wr);
    lab.post(a, request(Operation::Nop, 99, &[]));
    lab.settle();
    let entries = a.cq.poll();
    assert_eq!(
        sent(&entries),
        [(1, requester), (99, Status::Flushed)],
        "{operation:?}"
    );
    assert_eq!(lab.state(a), QpState::Error);
    assert_eq!(lab.events(0), []);
    match event {
        Some(event) => {
            assert_eq!(lab.events(1), [event]);
            assert_eq!(lab.state(b), QpState::Error);
            assert_eq!(
                received(&b.cq.poll()),
                [(100, Status::Flushed, 0, RecvKind::Send, 0)]
            );
        }
        None => {
            assert_eq!(lab.events(1), []);
            assert_eq!(lab.state(b), QpState::ReadyToSend);
            assert_eq!(b.recv.len(), 1);
        }
    }
}

#[test]
fn remote_keys_guard_remote_memory() {
    type Spoil = fn(&mut SendWr, u32);
    let spoils: [Spoil; 3] = [
        |wr, _| wr.rkey ^= 1,                                               // variant
        |wr, _| wr.rkey ^= 1 << 20,                                         // index
        |wr, narrow| (wr.rkey, wr.remote_addr) = (narrow, base(1) + 0xff8), // bounds: 8 of 16 bytes
    ];
    for operation in [Operation::Write, Operation::WriteImm, Operation::Read] {
        for spoil in spoils {
            let mut lab = Lab::new(2);
            let (a, b) = lab.pair(Transport::Rc);
            let mut narrow = physical(lab.nodes[1].pd);
            (narrow.start, narrow.len) = (base(1), 0x1000);
            let narrow = lab.engine.verbs(b.vf).create_key(narrow).unwrap() << 8 | 0x5a;
            let before = lab.memory(1).snapshot();
            lab.memory(0).write(base(0), &pattern(1, 64));
            let mut wr = remote(
                operation,
                1,
                &[lab.sge(0, 0, 16)],
                base(1) + TARGET,
                lab.nodes[1].key,
            );
            spoil(&mut wr, narrow);
            fails(
                &mut lab,
                (&a, &b),
                wr,
                Status::RemoteAccess,
                Some(Event::QpAccess(b.qpn)),
            );
            assert_eq!(lab.memory(1).snapshot(), before);
        }
    }
}

#[test]
fn keys_without_the_right_of_another_domain_or_revoked() {
    use hca::mr::Access;
    let mut lab = Lab::new(2);
    let foreign = lab.engine.vf_mut(lab.nodes[1].vf).alloc_pd().unwrap();
    let own = lab.nodes[1].pd;
    let all = physical(own).access;
    let make: Vec<(Operation, u32, Access, bool)> = vec![
        (
            Operation::Write,
            own,
            all.with(Access::REMOTE_WRITE, false),
            false,
        ),
        (
            Operation::Read,
            own,
            all.with(Access::REMOTE_READ, false),
            false,
        ),
        (
            Operation::FetchAdd,
            own,
            all.with(Access::ATOMIC, false),
            false,
        ),
        (Operation::Write, foreign, all, false),
        (Operation::Read, own, all, true),
    ];
    for (operation, pd, access, free) in make {
        let (a, b) = lab.pair(Transport::Rc);
        let mut key = physical(pd);
        (key.access, key.free) = (access, free);
        let rkey = lab.engine.verbs(b.vf).create_key(key).unwrap() << 8 | 0x5a;
        let wr = remote(operation, 1, &[lab.sge(0, 0, 8)], base(1), rkey);
        fails(
            &mut lab,
            (&a, &b),
            wr,
            Status::RemoteAccess,
            Some(Event::QpAccess(b.qpn)),
        );
    }
    // A key for one queue pair alone.
    let (a, b) = lab.pair(Transport::Rc);
    let mut key = physical(own);
    key.qpn = Some(a.qpn);
    let rkey = lab.engine.verbs(b.vf).create_key(key).unwrap() << 8 | 0x5a;
    let wr = remote(Operation::Write, 1, &[lab.sge(0, 0, 8)], base(1), rkey);
    fails(
        &mut lab,
        (&a, &b),
        wr,
        Status::RemoteAccess,
        Some(Event::QpAccess(b.qpn)),
    );
}

#[test]
fn operations_that_the_responder_does_not_do() {
    for operation in [
        Operation::Write,
        Operation::WriteImm,
        Operation::Read,
        Operation::CompareSwap,
    ] {
        let mut lab = Lab::new(2);
        let (a, b) = lab.pair_with(Transport::Rc, |change| {
            (change.read, change.write, change.atomic) = (None, None, None);
        });
        let wr = remote(operation, 1, &[lab.sge(0, 0, 8)], base(1), lab.nodes[1].key);
        fails(
            &mut lab,
            (&a, &b),
            wr,
            Status::RemoteInvalidRequest,
            Some(Event::QpInvalidRequest(b.qpn)),
        );
    }
    // An atomic off its alignment.
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let wr = remote(
        Operation::FetchAdd,
        1,
        &[lab.sge(0, 0, 8)],
        base(1) + 4,
        lab.nodes[1].key,
    );
    fails(
        &mut lab,
        (&a, &b),
        wr,
        Status::RemoteInvalidRequest,
        Some(Event::QpInvalidRequest(b.qpn)),
    );
}

#[test]
fn local_faults_stay_local() {
    for operation in [
        Operation::Send,
        Operation::Write,
        Operation::Read,
        Operation::FetchAdd,
    ] {
        let mut lab = Lab::new(2);
        let (a, b) = lab.pair(Transport::Rc);
        let mut bad = lab.sge(0, 0x100, 4);
        bad.lkey ^= 1;
        let list = [lab.sge(0, 0, 4), bad];
        lab.memory(0).write(base(0), &[7; 8]);
        let before = lab.memory(1).snapshot();
        let wr = remote(operation, 1, &list, base(1), lab.nodes[1].key);
        fails(&mut lab, (&a, &b), wr, Status::LocalProtection, None);
        assert_eq!(lab.memory(1).snapshot(), before, "{operation:?}");
    }
    // Also when the other end is at fault, or gone.
    for gone in [false, true] {
        let mut lab = Lab::new(2);
        let (a, b) = lab.pair(Transport::Rc);
        if gone {
            lab.net.cut(a.vf, b.vf);
        }
        let mut bad = lab.sge(0, 0, 8);
        bad.lkey ^= 1;
        let wr = remote(Operation::Write, 1, &[bad], base(1), 0xdead_0000);
        fails(&mut lab, (&a, &b), wr, Status::LocalProtection, None);
    }
}

#[test]
fn requests_that_make_no_sense() {
    let mut lab = Lab::new(2);
    let inline_read = |lab: &Lab| {
        let mut wr = remote(Operation::Read, 1, &[], base(1), lab.nodes[1].key);
        wr.is_inline = true;
        wr.inline = vec![0; 8];
        wr
    };
    let long_atomic = |lab: &Lab| {
        remote(
            Operation::FetchAdd,
            1,
            &[lab.sge(0, 0, 16)],
            base(1),
            lab.nodes[1].key,
        )
    };
    let (a, b) = lab.pair(Transport::Rc);
    let wr = inline_read(&lab);
    fails(&mut lab, (&a, &b), wr, Status::LocalQpOperation, None);
    let (a, b) = lab.pair(Transport::Rc);
    let wr = long_atomic(&lab);
    fails(&mut lab, (&a, &b), wr, Status::LocalLength, None);
    // Of an unreliable connection the send queue alone fails.
    for operation in [
        Operation::Read,
        Operation::FetchAdd,
        Operation::SendInvalidate,
    ] {
        let (a, b) = lab.pair(Transport::Uc);
        let wr = remote(operation, 1, &[lab.sge(0, 0, 8)], base(1), lab.nodes[1].key);
        lab.post(&a, wr);
        lab.post(&a, request(Operation::Send, 2, &[]));
        lab.settle();
        assert_eq!(
            sent(&a.cq.poll()),
            [(1, Status::LocalQpOperation), (2, Status::Flushed)]
        );
        assert_eq!(lab.state(&a), QpState::SendQueueError);
        assert_eq!(lab.state(&b), QpState::ReadyToSend);
        // What is posted later is flushed too, until the queue is revived.
        lab.execute(&a, request(Operation::Send, 3, &[]));
        assert_eq!(sent(&a.cq.poll()), [(3, Status::Flushed)]);
        lab.receive(&a, 1, &[]);
        lab.execute(&b, request(Operation::Send, 1, &[]));
        assert_eq!(received(&a.cq.poll()).len(), 1);
        lab.modify(&a, QpState::ReadyToSend, &QpChange::default());
        lab.execute(&a, request(Operation::Nop, 4, &[]));
        assert_eq!(sent(&a.cq.poll()), [(4, Status::Success)]);
    }
}

#[test]
fn malformed_and_unreadable_work_queues() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    a.send.push(Err(WqeError::Malformed {
        index: 5,
        opcode: 0xee,
        reason: hca::Reason::Segments,
    }));
    lab.execute(&a, request(Operation::Nop, 6, &[]));
    assert_eq!(
        sent(&a.cq.poll()),
        [(5, Status::LocalQpOperation), (6, Status::Flushed)]
    );
    assert_eq!(lab.state(&b), QpState::ReadyToSend);

    let (a, b) = lab.pair(Transport::Rc);
    a.send.push(Err(WqeError::Unmapped));
    lab.engine.ring_send(a.vf, a.qpn, 0);
    lab.settle();
    assert_eq!(lab.events(0), [Event::QpCatastrophic(a.qpn)]);
    assert_eq!(lab.state(&a), QpState::Error);
    assert_eq!(lab.state(&b), QpState::ReadyToSend);

    let (a, b) = lab.pair(Transport::Rc);
    b.recv.push(Err(WqeError::Unmapped));
    lab.execute(&a, request(Operation::Send, 1, &[]));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::RemoteOperation)]);
    assert_eq!(lab.events(1), [Event::QpCatastrophic(b.qpn)]);

    let (a, b) = lab.pair(Transport::Rc);
    b.recv.push(Err(WqeError::Malformed {
        index: 9,
        opcode: 0,
        reason: hca::Reason::Segments,
    }));
    lab.execute(&a, request(Operation::Send, 1, &[]));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::RemoteOperation)]);
    assert_eq!(received(&b.cq.poll())[0].0, 9);
}

#[test]
fn receive_buffers_at_fault() {
    // Too short: the responder's completion says so, and no event does.
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    lab.receive(&b, 1, &[lab.sge(1, 0, 99)]);
    lab.receive(&b, 2, &[]);
    let sge = lab.sge(0, 0, 100);
    lab.execute(&a, request(Operation::Send, 1, &[sge]));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(
        received(&b.cq.poll()),
        [
            (1, Status::LocalLength, 0, RecvKind::Send, 0),
            (2, Status::Flushed, 0, RecvKind::Send, 0)
        ]
    );
    assert_eq!(lab.events(1), []);
    assert_eq!(lab.state(&b), QpState::Error);
    // With a key that does not hold.
    let (a, b) = lab.pair(Transport::Rc);
    let mut bad = lab.sge(1, 0, 200);
    bad.lkey ^= 0xff;
    lab.receive(&b, 1, &[bad]);
    lab.execute(&a, request(Operation::Send, 1, &[sge]));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::RemoteOperation)]);
    assert_eq!(received(&b.cq.poll())[0].1, Status::LocalProtection);
    // An unreliable connection loses the message and keeps the buffer.
    let (a, b) = lab.pair(Transport::Uc);
    lab.receive(&b, 1, &[lab.sge(1, 0, 99)]);
    lab.execute(&a, request(Operation::Send, 1, &[sge]));
    let sge = lab.sge(0, 0, 99);
    lab.execute(&a, request(Operation::Send, 2, &[sge]));
    assert_eq!(
        sent(&a.cq.poll()),
        [(1, Status::Success), (2, Status::Success)]
    );
    assert_eq!(
        received(&b.cq.poll()),
        [(1, Status::Success, 99, RecvKind::Send, 0)]
    );
    assert_eq!(lab.state(&b), QpState::ReadyToSend);
}

#[test]
fn an_error_flushes_everything_and_what_is_posted_later() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    for index in 0..300 {
        lab.receive(&b, index, &[]);
        b.send.push(Ok(SendWr {
            signaled: false,
            ..request(Operation::Nop, index, &[])
        }));
    }
    lab.modify(&b, QpState::Error, &QpChange::default());
    lab.settle();
    let entries = b.cq.poll();
    let all: Vec<_> = (0..300).map(|index| (index, Status::Flushed)).collect();
    assert_eq!(sent(&entries), all);
    let recvs: Vec<_> = received(&entries).iter().map(|e| (e.0, e.1)).collect();
    assert_eq!(recvs, all);
    // Receive requests come without a doorbell.
    lab.receive(&b, 400, &[]);
    let due = lab.engine.next_deadline().unwrap();
    lab.advance(due);
    assert_eq!(received(&b.cq.poll()).len(), 1);
    lab.execute(&b, request(Operation::Nop, 401, &[]));
    assert_eq!(sent(&b.cq.poll()), [(401, Status::Flushed)]);
    assert_eq!(lab.state(&a), QpState::ReadyToSend);
    // A message to it is not answered.
    lab.execute(&a, request(Operation::Send, 1, &[]));
    for _ in 0..4 {
        lab.advance(TIMEOUT_NS);
    }
    assert_eq!(sent(&a.cq.poll()), [(1, Status::RetryExceeded)]);
    // Back from Reset it works again.
    for (qp, peer) in [(&a, &b), (&b, &a)] {
        lab.modify(qp, QpState::Reset, &QpChange::default());
        let change = lab.attributes(peer);
        lab.bring_up(qp, &change);
    }
    lab.receive(&b, 1, &[]);
    lab.execute(&a, request(Operation::Send, 1, &[]));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
}

#[test]
fn memory_that_goes_away_fails_the_one_who_used_it() {
    let mut lab = Lab::new(3);
    let (a, b) = lab.pair(Transport::Rc);
    let (c, d) = (lab.qp(0, Transport::Rc), lab.qp(1, Transport::Rc));
    lab.connect_with(&c, &d, |_| {});
    let key = lab.nodes[1].key;
    let mut sge = lab.sge(0, 0, 64 << 20);
    sge.addr = ALIAS;
    lab.post(&a, remote(Operation::Write, 1, &[sge], ALIAS, key));
    // A first slice, then the target's end goes.
    assert!(lab.engine.run());
    lab.memory(1).unmap(ALIAS + (48 << 20), 0x1000);
    lab.settle();
    assert_eq!(sent(&a.cq.poll()), [(1, Status::RemoteAccess)]);
    assert_eq!(lab.events(1), [Event::QpAccess(b.qpn)]);
    let small = lab.sge(0, 0, 8);
    lab.execute(&c, remote(Operation::Write, 1, &[small], base(1), key));
    assert_eq!(sent(&c.cq.poll()), [(1, Status::Success)]);
    assert_eq!(lab.state(&d), QpState::ReadyToSend);
    // The requester's own memory.
    lab.memory(0).unmap(base(0) + 0x1000, 0x1000);
    let sge = lab.sge(0, 0xff0, 0x20);
    lab.execute(&c, remote(Operation::Write, 2, &[sge], base(1), key));
    assert_eq!(sent(&c.cq.poll()), [(2, Status::LocalProtection)]);
    assert_eq!(lab.state(&d), QpState::ReadyToSend);
}

#[test]
fn a_completion_queue_that_overruns_takes_its_users_with_it() {
    let mut lab = Lab::new(2);
    let (cqn, cq) = lab.cq(0, 3);
    let users: Vec<_> = (0..2)
        .map(|_| {
            let a = lab.qp_on(0, Transport::Rc, (cqn, cq.clone()), |_| {});
            let b = lab.qp(1, Transport::Rc);
            lab.connect_with(&a, &b, |_| {});
            a
        })
        .collect();
    let other = lab.qp(0, Transport::Rc);
    for index in 0..3 {
        lab.execute(&users[0], request(Operation::Nop, index, &[]));
    }
    assert_eq!(lab.events(0), []);
    lab.execute(&users[0], request(Operation::Nop, 3, &[]));
    let mut events = lab.events(0);
    assert_eq!(
        events.remove(0),
        Event::CqError {
            cqn,
            error: CqError::Overrun
        }
    );
    for user in &users {
        assert_eq!(lab.state(user), QpState::Error);
        assert!(events.contains(&Event::QpCatastrophic(user.qpn)));
    }
    assert_eq!(events.len(), 2);
    assert_eq!(cq.poll().len(), 3);
    assert_eq!(lab.state(&other), QpState::Reset);
    // It stays unusable, silently.
    lab.execute(&users[1], request(Operation::Nop, 9, &[]));
    assert!(cq.poll().is_empty());
    assert_eq!(lab.events(0), []);

    // Likewise when its memory is gone.
    let (a, _b) = lab.pair(Transport::Rc);
    a.cq.unmap();
    lab.execute(&a, request(Operation::Nop, 1, &[]));
    assert_eq!(
        lab.events(0),
        [
            Event::CqError {
                cqn: a.cqn,
                error: CqError::Unmapped
            },
            Event::QpCatastrophic(a.qpn)
        ]
    );
}

#[test]
fn partitions_separate_connections() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let keys = |lab: &mut Lab, node: usize, pkey: u16| {
        let vf = lab.nodes[node].vf;
        let port = PortView {
            pkeys: vec![PKey::new(pkey)],
            ..lab.engine.vf(vf).port().clone()
        };
        lab.engine.vf_mut(vf).set_port(port);
    };
    for (mine, theirs, passes) in [
        (0x8001, 0x8001, true),
        (0x0001, 0x8001, true),
        (0x0001, 0x0001, false),
        (0x8001, 0x8002, false),
        (0x8000, 0x8000, false),
    ] {
        keys(&mut lab, 0, mine);
        keys(&mut lab, 1, theirs);
        lab.receive(&b, 1, &[]);
        lab.execute(&a, request(Operation::Send, 1, &[]));
        let done = a.cq.poll().len() == 1;
        assert_eq!(done, passes, "{mine:#x} to {theirs:#x}");
        if !done {
            // Membership given in time lets it through.
            keys(&mut lab, 0, 0xffff);
            keys(&mut lab, 1, 0xffff);
            lab.advance(TIMEOUT_NS);
            assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
        }
        b.cq.poll();
    }
}

#[test]
fn sequence_numbers_ahead_and_behind() {
    // Ahead: a predecessor is missing; sent again until the retries run out,
    // whether there is a timeout or not.
    for timeout in [0, 10] {
        let mut lab = Lab::new(2);
        let (a, b) = lab.pair(Transport::Rc);
        let change = QpChange {
            timeout: Some(timeout),
            sq_psn: Some(Psn::new(0x125)),
            retry_count: Some(2),
            ..lab.attributes(&b)
        };
        lab.modify(&a, QpState::Reset, &QpChange::default());
        lab.bring_up(&a, &change);
        lab.receive(&b, 1, &[]);
        lab.execute(&a, request(Operation::Send, 1, &[]));
        for _ in 0..3 {
            assert!(a.cq.poll().is_empty());
            let due = lab.engine.next_deadline().unwrap();
            lab.advance(due - hca::Clock::now(&*lab.clock));
        }
        assert_eq!(sent(&a.cq.poll()), [(1, Status::RetryExceeded)]);
        assert_eq!(b.recv.len(), 1);
    }
    // Behind: acknowledged, not executed again; reads are.
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let change = QpChange {
        sq_psn: Some(Psn::new(0x121)),
        ..lab.attributes(&b)
    };
    lab.modify(&a, QpState::Reset, &QpChange::default());
    lab.bring_up(&a, &change);
    lab.receive(&b, 7, &[]);
    lab.memory(1).write(base(1), b"again");
    let (sge, key) = (lab.sge(0, 0, 5), lab.nodes[1].key);
    lab.execute(&a, request(Operation::Send, 1, &[]));
    lab.execute(&a, remote(Operation::Read, 2, &[sge], base(1), key));
    assert_eq!(
        sent(&a.cq.poll()),
        [(1, Status::Success), (2, Status::Success)]
    );
    assert_eq!(lab.memory(0).read(base(0), 5), b"again");
    assert_eq!(b.recv.len(), 1);
    let view = lab.engine.query_qp(b.vf, b.qpn).unwrap();
    assert_eq!((view.attr.rq_psn, view.msn), (Psn::new(0x123), 0));
    // The third is the expected one.
    lab.execute(&a, request(Operation::Send, 3, &[]));
    assert_eq!(received(&b.cq.poll())[0].0, 7);
    // An unreliable connection takes what comes.
    let (a, b) = lab.pair(Transport::Uc);
    let change = QpChange {
        sq_psn: Some(Psn::new(0x777)),
        ..lab.attributes(&b)
    };
    lab.modify(&a, QpState::Reset, &QpChange::default());
    lab.bring_up(&a, &change);
    lab.receive(&b, 8, &[]);
    lab.execute(&a, request(Operation::Send, 4, &[]));
    assert_eq!(received(&b.cq.poll())[0].0, 8);
}

#[test]
fn packets_that_a_link_is_too_narrow_for_get_lost() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    lab.net.change(|net| net.mtu = Some(Mtu::B2048));
    let (sge, key) = (lab.sge(0, 0, 2048), lab.nodes[1].key);
    lab.execute(&a, remote(Operation::Write, 1, &[sge], base(1), key));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    let sge = lab.sge(0, 0, 2049);
    lab.execute(&a, remote(Operation::Write, 2, &[sge], base(1), key));
    for _ in 0..4 {
        lab.advance(TIMEOUT_NS);
    }
    assert_eq!(sent(&a.cq.poll()), [(2, Status::RetryExceeded)]);
    assert_eq!(lab.state(&b), QpState::ReadyToSend);
}

#[test]
fn a_shared_queue_that_cannot_be_read() {
    let mut lab = Lab::new(2);
    let shared = lab.qp(1, Transport::Ud).recv;
    let (vf, pd) = (lab.nodes[1].vf, lab.nodes[1].pd);
    let srqn = lab
        .engine
        .verbs(vf)
        .create_srq(pd, None, shared.clone())
        .unwrap();
    let a = lab.qp(0, Transport::Rc);
    let b = lab.qp_with(1, Transport::Rc, |desc| desc.recv = RecvSide::Shared(srqn));
    lab.connect_with(&a, &b, |_| {});
    shared.push(Err(WqeError::Unmapped));
    shared.push(Ok(RecvWr::default()));
    lab.execute(&a, request(Operation::Send, 1, &[]));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::RemoteOperation)]);
    assert_eq!(
        lab.events(1),
        [
            Event::LastWqeReached(b.qpn),
            Event::QpCatastrophic(b.qpn),
            Event::SrqCatastrophic(srqn)
        ]
    );
}

#[test]
fn strangers_are_not_listened_to() {
    let mut lab = Lab::new(3);
    let (_a, b) = lab.pair(Transport::Rc);
    // Another queue pair of the peer's port, one of another port that bears
    // the peer's number, and one of another transport.
    let neighbour = lab.qp(0, Transport::Rc);
    let far = lab.qp(2, Transport::Rc);
    let unreliable = lab.qp(0, Transport::Uc);
    for stranger in [&neighbour, &far, &unreliable] {
        let change = lab.attributes(&b);
        lab.bring_up(stranger, &change);
    }
    let to_far = QpChange {
        dest_qp: Some(far.qpn),
        ..QpChange::default()
    };
    let before = lab.memory(1).snapshot();
    let rounds = [
        (QpChange::default(), vec![&neighbour, &unreliable]),
        (to_far, vec![&far]),
    ];
    for (dest, strangers) in rounds {
        lab.modify(&b, QpState::ReadyToSend, &dest);
        for stranger in strangers {
            lab.memory(stranger.node)
                .write(base(stranger.node), &[9; 8]);
            let sge = lab.sge(stranger.node, 0, 8);
            let wr = remote(Operation::Write, 1, &[sge], base(1), lab.nodes[1].key);
            lab.execute(stranger, wr);
        }
        for _ in 0..4 {
            lab.advance(TIMEOUT_NS);
        }
    }
    assert_eq!(lab.memory(1).snapshot(), before);
    assert_eq!(sent(&neighbour.cq.poll()), [(1, Status::RetryExceeded)]);
    assert_eq!(sent(&far.cq.poll()), [(1, Status::RetryExceeded)]);
}
