//! Dynamic connections between VFs, checked byte by byte.

use crate::daemon::{Daemon, HALF, Peer, peers};
use test_driver::bits::dctc;
use test_driver::{
    Access, AddressVector, Atomic, Config, Connection, Cqe, Data, DynamicTarget, EventType,
    QueuePair, SendOpcode, SendRequest, SharedReceiveQueue, Syndrome, TargetConfig, Transport,
};

with_both_doorbells!(
    initiators_carry_every_operation_to_every_target,
    a_target_hears_several_initiators,
    wrong_keys_are_refused_and_told,
    targets_drain_before_they_go,
    requests_that_no_driver_makes,
);

const KEY: u64 = 0x0102_0304_0506_0708;

fn initiator(peer: &Peer) -> QueuePair {
    let nobody = Connection::to(0, 0);
    initiator_with(peer, &nobody)
}

/// An initiator that soon gives up, for targets that do not answer. A busy machine stops an engine for longer.
fn hasty_initiator(peer: &Peer) -> QueuePair {
    let nobody = Connection {
        ack_timeout: 10,
        retry_count: 3,
        ..Connection::to(0, 0)
    };
    initiator_with(peer, &nobody)
}

fn initiator_with(peer: &Peer, nobody: &Connection) -> QueuePair {
    let config: Config<'_> = peer.config(Transport::DynamicInitiator);
    let qp = QueuePair::new(&config).unwrap();
    qp.connect(Access::ALL, nobody).unwrap();
    qp
}

struct Target {
    queue: SharedReceiveQueue,
    dct: DynamicTarget,
    to: AddressVector,
    key: u64,
}

fn target(peer: &Peer, key: u64) -> Target {
    let queue = SharedReceiveQueue::new(&peer.pd, 5, 1, None).unwrap();
    let dct = DynamicTarget::new(&TargetConfig {
        pd: &peer.pd,
        queue: &queue,
        cq: &peer.cq,
        access: Access::ALL,
        key,
        mtu: 5,
        min_rnr_nak: 12,
    })
    .unwrap();
    let to = AddressVector {
        lid: peer.port.lid,
        qpn: dct.number(),
        ..AddressVector::default()
    };
    Target {
        queue,
        dct,
        to,
        key,
    }
}

impl Target {
    fn of<'a>(&'a self, request: SendRequest<'a>) -> SendRequest<'a> {
        request.to_target(&self.to, self.key)
    }
}

fn initiators_carry_every_operation_to_every_target(daemon: &Daemon) {
    let [mut a, mut b, mut c] = ["vm1", "vm2", "vm3"].map(|name| Peer::open(daemon, name));
    let mut qp = initiator(&a);
    let mut targets = [target(&b, KEY), target(&c, !KEY), target(&b, 0)];
    for round in 0..4_u64 {
        for (at, target) in targets.iter_mut().enumerate() {
            let peer = if at == 1 { &mut c } else { &mut b };
            let (seed, len) = (
                round * 3 + at as u64 + 1,
                1 + 3000 * at + 20_000 * round as usize,
            );
            let from = [a.sge(0, len)];
            a.fill(0, len, seed);
            let write = SendRequest::write(peer.remote(HALF), Data::Memory(&from));
            a.execute(&mut qp, &target.of(write));
            peer.verify(HALF, len, seed);

            peer.fill(0, len, !seed);
            let into = [a.sge(HALF, len)];
            a.execute(
                &mut qp,
                &target.of(SendRequest::read(peer.remote(0), &into)),
            );
            a.verify(HALF, len, !seed);

            let index = target.queue.post(&[peer.sge(HALF, HALF)]).unwrap();
            let send = SendRequest::send_imm(Data::Memory(&from), seed as u32);
            a.execute(&mut qp, &target.of(send));
            let entry: Cqe = peer.cq.wait().unwrap();
            assert!(entry.is_ok());
            assert_eq!(
                (entry.qpn(), entry.wqe_counter()),
                (target.dct.number(), index)
            );
            assert_eq!(
                (entry.immediate(), entry.byte_count()),
                (seed as u32, len as u32)
            );
            assert_eq!(entry.srqn(), target.queue.number());
            target.queue.complete(&entry);
            peer.verify(HALF, len, seed);

            peer.buffer.write(0, &40_u64.to_le_bytes());
            let eight = [a.sge(64, 8)];
            let operands = Atomic {
                swap_add: 2,
                ..Atomic::default()
            };
            let add = SendRequest::atomic(SendOpcode::FetchAdd, peer.remote(0), operands, &eight);
            a.execute(&mut qp, &target.of(add));
            let mut value = [0; 8];
            a.buffer.read(64, &mut value);
            assert_eq!(u64::from_le_bytes(value), 40);
            peer.buffer.read(0, &mut value);
            assert_eq!(u64::from_le_bytes(value), 42);
        }
    }
}

fn a_target_hears_several_initiators(daemon: &Daemon) {
    let [mut a, mut b, mut c] = ["vm1", "vm2", "vm3"].map(|name| Peer::open(daemon, name));
    let mut target = target(&b, KEY);
    let (mut qa, mut qc) = (initiator(&a), initiator(&c));
    // One at home as well.
    let mut qb = initiator(&b);
    for round in 0..30_u64 {
        for who in 0..3_u32 {
            let len = 100 + 311 * round as usize;
            target.queue.post(&[b.sge(HALF, HALF)]).unwrap();
            let mut data = vec![0; len.min(200)];
            test_driver::pattern::bytes(round, 0, &mut data);
            let send = SendRequest::send_imm(Data::Inline(&data), who);
            let send = target.of(send);
            match who {
                0 => drop(a.execute(&mut qa, &send)),
                1 => drop(c.execute(&mut qc, &send)),
                _ => drop(qb.post_send(&send).unwrap()),
            }
            // Of the one at home both are here, in either order.
            let mut left = if who == 2 { 2 } else { 1 };
            while left > 0 {
                let entry = b.cq.wait().unwrap();
                assert!(entry.is_ok());
                if entry.qpn() == qb.number() {
                    qb.complete(&entry);
                } else {
                    assert_eq!((entry.qpn(), entry.immediate()), (target.dct.number(), who));
                    target.queue.complete(&entry);
                }
                left -= 1;
            }
            b.verify(HALF, data.len(), round);
        }
    }
}

fn wrong_keys_are_refused_and_told(daemon: &Daemon) {
    let (mut a, b) = peers(daemon);
    let target = target(&b, KEY);
    let violations =
        |target: &Target| dctc::DC_ACCESS_KEY_VIOLATION_COUNT.get(&target.dct.query().unwrap());
    target.dct.arm().unwrap();
    let mut good = initiator(&a);
    for round in 1..=2 {
        let mut bad = initiator(&a);
        let from = [a.sge(0, 5000)];
        b.fill(HALF, 5000, 9);
        let write = SendRequest::write(b.remote(HALF), Data::Memory(&from));
        bad.post_send(&write.to_target(&target.to, KEY + 1))
            .unwrap();
        let entry = a.cq.wait().unwrap();
        assert_eq!(entry.syndrome(), Syndrome::RemoteAccess);
        bad.complete(&entry);
        assert_eq!(bad.state().unwrap(), 6);
        b.verify(HALF, 5000, 9);
        assert_eq!(violations(&target), round);
        if round == 1 {
            let event = b.event(EventType::DctKeyViolation);
            assert_eq!(event.queue_number(), target.dct.number());
        }
        a.fill(0, 5000, u64::from(round));
        a.execute(&mut good, &target.of(write));
        b.verify(HALF, 5000, u64::from(round));
    }
    // A key of memory that is none: the target lives.
    let mut bad = initiator(&a);
    let from = [a.sge(0, 8)];
    let mut nowhere = b.remote(HALF);
    nowhere.key ^= 0xff00;
    let write = SendRequest::write(nowhere, Data::Memory(&from));
    bad.post_send(&target.of(write)).unwrap();
    let entry = a.cq.wait().unwrap();
    assert_eq!(entry.syndrome(), Syndrome::RemoteAccess);
    let event = b.event(EventType::AccessViolation);
    assert_eq!(event.queue_number(), target.dct.number());
    assert_eq!(event.queue_type(), 6);
    a.fill(0, 8, 77);
    let write = SendRequest::write(b.remote(HALF), Data::Memory(&from));
    a.execute(&mut good, &target.of(write));
    b.verify(HALF, 8, 77);
}

fn targets_drain_before_they_go(daemon: &Daemon) {
    let (mut a, b) = peers(daemon);
    let (target, other) = (target(&b, KEY), target(&b, KEY));
    let mut qp = initiator(&a);
    let from = [a.sge(0, 100)];
    let write = SendRequest::write(b.remote(HALF), Data::Memory(&from));
    a.execute(&mut qp, &target.of(write));
    assert_eq!(dctc::STATE.get(&target.dct.query().unwrap()), 0);
    target.dct.drain().unwrap();
    let event = b.event(EventType::DctDrained);
    assert_eq!(event.queue_number(), target.dct.number());
    assert_eq!(dctc::STATE.get(&target.dct.query().unwrap()), 2);
    a.execute(&mut qp, &other.of(write));
    let mut hasty = hasty_initiator(&a);
    hasty.post_send(&target.of(write)).unwrap();
    let entry = a.cq.wait().unwrap();
    assert_eq!(entry.syndrome(), Syndrome::RetryExceeded);
    let (to, key) = (target.to, target.key);
    drop(target);
    let mut qp = hasty_initiator(&a);
    qp.post_send(&write.to_target(&to, key)).unwrap();
    let entry = a.cq.wait().unwrap();
    assert_eq!(entry.syndrome(), Syndrome::RetryExceeded);
}

fn requests_that_no_driver_makes(daemon: &Daemon) {
    let (mut a, b) = peers(daemon);
    let target = target(&b, KEY);
    let from = [a.sge(0, 8)];
    let write = SendRequest::write(b.remote(HALF), Data::Memory(&from));
    // To a group.
    let group = AddressVector {
        lid: 0xc001,
        ..target.to
    };
    let mut qp = initiator(&a);
    qp.post_send(&write.to_target(&group, KEY)).unwrap();
    let entry = a.cq.wait().unwrap();
    assert_eq!(entry.syndrome(), Syndrome::LocalQpOperation);
    // A queue pair is no target, and a target is no queue pair.
    let qp = initiator(&a);
    let plain = AddressVector {
        lid: a.port.lid,
        qpn: qp.number(),
        ..AddressVector::default()
    };
    let mut lost = hasty_initiator(&a);
    lost.post_send(&write.to_target(&plain, KEY)).unwrap();
    let entry = a.cq.wait().unwrap();
    assert_eq!(entry.syndrome(), Syndrome::RetryExceeded);
}
