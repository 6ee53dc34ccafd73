//! Errors of the transport, their side, and the events that they raise.

use crate::daemon::{Daemon, HALF, Peer, connected, connected_by, peers};
use test_driver::{
    Access, Atomic, Connection, CqeKind, Data, EventType, MemoryRegion, QueuePair, Remote,
    SendOpcode, SendRequest, Sge, Syndrome, Transport,
};

const READY_TO_SEND: u32 = 3;
const ERROR: u32 = 6;

/// Posts a request that fails; returns why.
#[track_caller]
fn fails(peer: &mut Peer, qp: &mut QueuePair, request: &SendRequest<'_>) -> Syndrome {
    qp.post_send(request).unwrap();
    let entry = peer.sent(qp);
    assert_eq!(entry.kind(), CqeKind::RequesterError);
    assert_eq!(qp.state().unwrap(), ERROR);
    entry.syndrome()
}

fn read_only(peer: &Peer) -> MemoryRegion {
    MemoryRegion::new(&peer.pd, &peer.buffer, Access::LOCAL_READ).unwrap()
}

#[test]
fn remote_keys_protect() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let protected = read_only(&b);
    let into = [a.sge(HALF, 8)];
    let data = Data::Inline(b"must not");
    let remote = |addr, key| Remote { addr, key };
    let start = b.region.start();
    let end = start + b.buffer.len() as u64;
    let key = b.region.key();
    b.fill(0, 2 * HALF, 3);
    let add = |remote| {
        let one = Atomic {
            swap_add: 1,
            ..Atomic::default()
        };
        SendRequest::atomic(SendOpcode::FetchAdd, remote, one, &into)
    };
    let requests = [
        SendRequest::write(remote(start, protected.key()), data),
        SendRequest::read(remote(start, protected.key()), &into),
        add(remote(start, protected.key())),
        // Past either end, or around the end of all addresses.
        SendRequest::write(remote(end - 7, key), data),
        SendRequest::write(remote(start.wrapping_sub(1), key), data),
        SendRequest::write(remote(u64::MAX - 3, key), data),
        SendRequest::read(remote(end - 7, key), &into),
        // Another variant, another index, nothing.
        SendRequest::write(remote(start, key ^ 1), data),
        SendRequest::write(remote(start, key ^ 0x100), data),
        SendRequest::write(remote(start, 0), data),
        // A key of the sender's own function.
        SendRequest::write(remote(a.region.start(), a.region.key()), data),
    ];
    for (number, request) in requests.iter().enumerate() {
        let (mut qa, qb) = connected(Transport::Rc, &a, &b);
        let syndrome = fails(&mut a, &mut qa, request);
        assert_eq!(syndrome, Syndrome::RemoteAccess, "request {number}");
        assert_eq!(qb.state().unwrap(), ERROR, "request {number}");
        let event = b.event(EventType::AccessViolation);
        assert_eq!(event.queue_number(), qb.number());
    }
    b.verify(0, 2 * HALF, 3);
    // An address that is not a multiple of 8 is no address of an atomic.
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let syndrome = fails(&mut a, &mut qa, &add(remote(start + 4, key)));
    assert_eq!(syndrome, Syndrome::RemoteInvalidRequest);
}

#[test]
fn a_queue_pair_grants_no_more_than_it_was_told() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let into = [a.sge(HALF, 8)];
    let requests = [
        SendRequest::write(b.remote(0), Data::Inline(b"no")),
        SendRequest::read(b.remote(0), &into),
        SendRequest::atomic(
            SendOpcode::CompareSwap,
            b.remote(0),
            Atomic::default(),
            &into,
        ),
    ];
    for request in &requests {
        let (mut qa, qb) = (a.qp(Transport::Rc), b.qp(Transport::Rc));
        let to_b = Connection::to(b.port.lid, qb.number());
        qa.connect(Access::ALL, &to_b).unwrap();
        let to_a = Connection::to(a.port.lid, qa.number());
        qb.connect(Access::LOCAL_READ, &to_a).unwrap();
        let syndrome = fails(&mut a, &mut qa, request);
        assert!(
            matches!(
                syndrome,
                Syndrome::RemoteInvalidRequest | Syndrome::RemoteAccess
            ),
            "{syndrome:?}"
        );
    }
}

#[test]
fn local_keys_protect() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let protected = read_only(&a);
    let start = a.region.start();
    let end = start + a.buffer.len() as u64;
    let sge = |addr, len, key| [Sge { addr, len, key }];
    let key = a.region.key();
    for list in [
        sge(start, 8, key ^ 1),
        sge(start, 8, key ^ 0x100),
        sge(end - 7, 8, key),
        sge(u64::MAX - 3, 8, key),
        sge(start, u32::MAX >> 1, key),
        sge(start, 8, b.region.key()),
    ] {
        let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
        let write = SendRequest::write(b.remote(0), Data::Memory(&list));
        let syndrome = fails(&mut a, &mut qa, &write);
        assert!(
            matches!(syndrome, Syndrome::LocalProtection | Syndrome::LocalLength),
            "{list:?}: {syndrome:?}"
        );
    }
    // What only may be read cannot be read into.
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let into = sge(start, 8, protected.key());
    let syndrome = fails(&mut a, &mut qa, &SendRequest::read(b.remote(0), &into));
    assert_eq!(syndrome, Syndrome::LocalProtection);
}

#[test]
fn a_receive_buffer_too_short_or_not_ours_fails_both_sides() {
    let daemon = Daemon::start("trap");
    let (mut a, mut b) = peers(&daemon);
    a.fill(0, 100, 1);
    let from = [a.sge(0, 100)];
    let send = SendRequest::send(Data::Memory(&from));

    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    qb.post_receive(&[b.sge(HALF, 99)]).unwrap();
    let syndrome = fails(&mut a, &mut qa, &send);
    assert_eq!(syndrome, Syndrome::RemoteInvalidRequest);
    let entry = b.cq.wait().unwrap();
    assert_eq!(entry.kind(), CqeKind::ResponderError);
    assert_eq!(entry.syndrome(), Syndrome::LocalLength);
    assert_eq!(qb.state().unwrap(), ERROR);

    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    let mut bad = b.sge(HALF, 100);
    bad.key ^= 1;
    qb.post_receive(&[bad]).unwrap();
    let syndrome = fails(&mut a, &mut qa, &send);
    assert_eq!(syndrome, Syndrome::RemoteOperation);
    let entry = b.cq.wait().unwrap();
    assert_eq!(entry.kind(), CqeKind::ResponderError);
    assert_eq!(entry.syndrome(), Syndrome::LocalProtection);
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    let daemon = Daemon::start("trap");
    let (mut a, mut b) = peers(&daemon);
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    // With retries without end, it arrives when there is a buffer.
    qa.post_send(&SendRequest::send(Data::Inline(b"patience")))
        .unwrap();
    assert_eq!(qa.state().unwrap(), READY_TO_SEND);
    assert!(a.cq.poll().is_none());
    qb.post_receive(&[b.sge(HALF, 64)]).unwrap();
    assert!(a.sent(&mut qa).is_ok());
    assert_eq!(b.cq.wait().unwrap().byte_count(), 8);

    let (mut qa, qb) = connected_by(
        &a.config(Transport::Rc),
        &b.config(Transport::Rc),
        &a,
        &b,
        |connection| {
            connection.rnr_retry = 2;
            connection.min_rnr_nak = 1;
        },
    );
    let send = SendRequest::send(Data::Inline(b"in vain"));
    let syndrome = fails(&mut a, &mut qa, &send);
    assert_eq!(syndrome, Syndrome::RnrRetryExceeded);
    // The responder has done nothing wrong.
    assert_eq!(qb.state().unwrap(), READY_TO_SEND);
}

#[test]
fn a_peer_that_is_not_there_exhausts_the_retries() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let reset = b.qp(Transport::Rc);
    let lid = b.port.lid;
    for (lid, qpn) in [
        (lid, reset.number()),
        (lid, 0x00ab_cdef),
        (lid, 0),
        (0xb000, reset.number()),
    ] {
        let mut qa = a.qp(Transport::Rc);
        let to = Connection {
            ack_timeout: 1,
            retry_count: 2,
            ..Connection::to(lid, qpn)
        };
        qa.connect(Access::ALL, &to).unwrap();
        let write = SendRequest::write(b.remote(0), Data::Inline(b"anyone?"));
        let syndrome = fails(&mut a, &mut qa, &write);
        assert_eq!(syndrome, Syndrome::RetryExceeded, "LID {lid}, QP {qpn:#x}");
    }
}

#[test]
fn requests_after_an_error_are_flushed() {
    let daemon = Daemon::start("trap");
    let (mut a, mut b) = peers(&daemon);
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    for _ in 0..5 {
        qb.post_receive(&[b.sge(HALF, 64)]).unwrap();
    }
    let bad = Remote {
        addr: 0,
        key: 0x1234,
    };
    qa.post(&SendRequest::write(bad, Data::Inline(b"bad")))
        .unwrap();
    for _ in 0..5 {
        qa.post(&SendRequest::send(Data::Inline(b"after"))).unwrap();
    }
    qa.ring().unwrap();
    assert_eq!(a.sent(&mut qa).syndrome(), Syndrome::RemoteAccess);
    for _ in 0..5 {
        assert_eq!(a.sent(&mut qa).syndrome(), Syndrome::Flushed);
    }
    for _ in 0..5 {
        assert_eq!(b.cq.wait().unwrap().syndrome(), Syndrome::Flushed);
    }
    // Also those that come later, on both sides.
    qa.post_send(&SendRequest::nop()).unwrap();
    assert_eq!(a.sent(&mut qa).syndrome(), Syndrome::Flushed);
    qb.post_receive(&[b.sge(HALF, 64)]).unwrap();
    assert_eq!(b.cq.wait().unwrap().syndrome(), Syndrome::Flushed);

    // Reset makes both as new.
    qa.to_reset().unwrap();
    qb.to_reset().unwrap();
    let (to_b, to_a) = (
        Connection::to(b.port.lid, qb.number()),
        Connection::to(a.port.lid, qa.number()),
    );
    qa.connect(Access::ALL, &to_b).unwrap();
    qb.connect(Access::ALL, &to_a).unwrap();
    a.execute(
        &mut qa,
        &SendRequest::write(b.remote(8), Data::Inline(b"new life")),
    );
    let mut found = [0; 8];
    b.buffer.read(8, &mut found);
    assert_eq!(&found, b"new life");
}

#[test]
fn a_queue_pair_set_to_error_flushes_what_it_has() {
    let daemon = Daemon::start("trap");
    let (a, mut b) = peers(&daemon);
    let (_qa, mut qb) = connected(Transport::Rc, &a, &b);
    let mut numbers = Vec::new();
    for _ in 0..10 {
        numbers.push(qb.post_receive(&[b.sge(HALF, 64)]).unwrap());
    }
    qb.to_error().unwrap();
    for number in numbers {
        let entry = b.cq.wait().unwrap();
        assert_eq!(entry.kind(), CqeKind::ResponderError);
        assert_eq!(entry.syndrome(), Syndrome::Flushed);
        assert_eq!(entry.wqe_counter(), number);
    }
}

#[test]
fn query_qp_tells_the_truth() {
    use test_driver::bits::{ads, qpc};
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let qa = a.qp(Transport::Rc);
    assert_eq!(qa.state().unwrap(), 0);
    let to = Connection {
        mtu: 3,
        rnr_retry: 5,
        retry_count: 6,
        min_rnr_nak: 17,
        ack_timeout: 15,
        send_psn: 0x12_3456,
        receive_psn: 0x65_4321,
        ..Connection::to(b.port.lid, 0x00ab_cdef)
    };
    let access = Access {
        remote_read: true,
        remote_atomic: true,
        ..Access::LOCAL_READ
    };
    qa.to_init(0, access, 0).unwrap();
    let context = qa.query().unwrap();
    assert_eq!(qpc::STATE.get(&context), 1);
    assert_eq!(
        [qpc::RRE, qpc::RWE, qpc::RAE].map(|right| right.get(&context)),
        [1, 0, 1]
    );
    qa.to_ready_to_receive(&to).unwrap();
    let context = qa.query().unwrap();
    assert_eq!(qpc::STATE.get(&context), 2);
    assert_eq!(qpc::MTU.get(&context), 3);
    assert_eq!(qpc::REMOTE_QPN.get(&context), 0x00ab_cdef);
    assert_eq!(qpc::NEXT_RCV_PSN.get(&context), 0x65_4321);
    assert_eq!(qpc::MIN_RNR_NAK.get(&context), 17);
    let path = &context[qpc::PRIMARY_PATH..];
    assert_eq!(ads::RLID.get(path), u32::from(b.port.lid));
    assert_eq!(ads::PORT.get(path), 1);
    qa.to_ready_to_send(&to).unwrap();
    let context = qa.query().unwrap();
    assert_eq!(qpc::STATE.get(&context), 3);
    assert_eq!(qpc::NEXT_SEND_PSN.get(&context), 0x12_3456);
    assert_eq!(qpc::RETRY_COUNT.get(&context), 6);
    assert_eq!(qpc::RNR_RETRY.get(&context), 5);
    assert_eq!(qpc::CQN_SND.get(&context), a.cq.number());
    // And after traffic: the PSN has moved, by one for a packet.
    let (mut qc, qd) = connected(Transport::Rc, &a, &b);
    let before = qpc::NEXT_SEND_PSN.get(&qc.query().unwrap());
    let write = SendRequest::write(b.remote(0), Data::Inline(b"one"));
    a.execute(&mut qc, &write);
    a.execute(&mut qc, &write);
    let after = qpc::NEXT_SEND_PSN.get(&qc.query().unwrap());
    assert_eq!(after, (before + 2) & 0x00ff_ffff);
    assert_eq!(qpc::NEXT_RCV_PSN.get(&qd.query().unwrap()), after);
}

#[test]
fn transitions_out_of_order_are_refused() {
    let daemon = Daemon::start("trap");
    let a = Peer::open(&daemon, "vm1");
    let mut qa = a.qp(Transport::Rc);
    let to = Connection::to(a.port.lid, qa.number());
    qa.to_ready_to_receive(&to).unwrap_err();
    qa.to_ready_to_send(&to).unwrap_err();
    qa.to_init(0, Access::ALL, 0).unwrap();
    qa.to_ready_to_send(&to).unwrap_err();
    qa.to_ready_to_receive(&to).unwrap();
    qa.to_init(0, Access::ALL, 0).unwrap_err();
    assert_eq!(qa.state().unwrap(), 2);
    qa.to_error().unwrap();
    qa.to_ready_to_send(&to).unwrap_err();
    qa.to_reset().unwrap();
    qa.connect(Access::ALL, &to).unwrap();
}
