//! Dynamic connections: initiators whose far end changes, and targets that many of them use.

use hca::work::{AddressVector, AtomicOperands, Operation, RecvKind, RecvWr, SendWr, Side, Status};
use hca::{
    DctDesc, Event, InCompletion, MAX_CONTEXTS, QpAttr, QpChange, QpState, RecvSide, RemoteRights,
    RouteMarks, Transport,
};
use wire::{Mtu, QKey, Qpn, Sl};

use crate::lab::{
    Cq, Lab, Qp, Ring, TIMEOUT_NS, Way, base, pattern, received, remote, request, sent,
};

/// A target of the laboratory.
#[derive(Debug, Clone)]
pub struct Dct {
    pub node: usize,
    pub dctn: Qpn,
    pub recv: Ring<RecvWr>,
    pub cq: Cq,
    pub key: u64,
}

const KEY: u64 = 0x0123_4567_89ab_cdef;

impl Lab {
    pub fn dct(&mut self, node: usize, key: u64) -> Dct {
        let on = self.cq(node, 4096);
        self.dct_on(node, key, on)
    }

    pub fn dct_on(&mut self, node: usize, key: u64, (cqn, cq): (u32, Cq)) -> Dct {
        let recv = self.shared_ring();
        let (vf, pd) = (self.nodes[node].vf, self.nodes[node].pd);
        let home = self.home(vf);
        let srqn = home.verbs(vf).create_srq(pd, None, recv.clone()).unwrap();
        let rights = RemoteRights {
            read: true,
            write: true,
            atomic: true,
        };
        let desc = DctDesc {
            pd,
            srqn,
            cqn,
            key,
            attr: QpAttr {
                rights,
                mtu: Mtu::B4096,
                min_rnr_timer: 26,
                ..QpAttr::default()
            },
            route: RouteMarks::default(),
            counter_set: 0,
            user_index: None,
            in_completion: InCompletion::default(),
        };
        let dctn = home.verbs(vf).create_dct(&desc).unwrap();
        Dct {
            node,
            dctn,
            recv,
            cq,
            key,
        }
    }

    pub fn dci(&mut self, node: usize) -> Qp {
        let on = self.cq(node, 4096);
        self.dci_on(node, on, |_| {})
    }

    pub fn dci_on(&mut self, node: usize, on: (u32, Cq), adjust: impl Fn(&mut QpChange)) -> Qp {
        let qp = self.qp_on(node, Transport::Dci, on, |desc| {
            desc.recv = RecvSide::None;
            desc.recv_cqn = None;
        });
        let mut change = QpChange {
            path: None,
            dest_qp: None,
            ..self.attributes(&qp)
        };
        adjust(&mut change);
        self.bring_up(&qp, &change);
        qp
    }

    /// The same request to a target.
    pub fn to(&self, dct: &Dct, wr: SendWr) -> SendWr {
        SendWr {
            address: Some(AddressVector {
                dlid: self.nodes[dct.node].lid,
                sl: Sl::default(),
                src_path_bits: 0,
                dest_qp: dct.dctn,
                qkey: QKey::new((dct.key >> 32) as u32),
                global: None,
            }),
            access_key: dct.key,
            ..wr
        }
    }

    fn contexts(&self, dct: &Dct) -> usize {
        let vf = self.nodes[dct.node].vf;
        let view = self.look_home(vf).query_dct(vf, dct.dctn).unwrap();
        view.contexts
    }

    fn wait(&mut self) {
        for _ in 0..12 {
            self.advance(100_000_000);
        }
    }
}

/// Writes `len` bytes of a pattern from a node to a target's node; whether they arrive.
fn write(lab: &mut Lab, dci: &Qp, dct: &Dct, index: u16, len: usize) -> bool {
    let data = pattern(u64::from(index) + 77, len);
    let at = u64::from(index) * 0x100;
    lab.memory(dci.node).write(base(dci.node) + 0x10000, &data);
    let list = [lab.sge(dci.node, 0x10000, len as u32)];
    let key = lab.nodes[dct.node].key;
    let wr = remote(Operation::Write, index, &list, base(dct.node) + at, key);
    let wr = lab.to(dct, wr);
    lab.execute(dci, wr);
    lab.wait();
    lab.memory(dct.node).read(base(dct.node) + at, len) == data
}

fn ways() -> [Way; 6] {
    [
        Way::Copied,
        Way::Frames,
        Way::Packets(0, 1),
        Way::Packets(8, 12345),
        Way::Engines(0, 0),
        Way::Engines(8, 777),
    ]
}

#[test]
fn every_operation_reaches_every_target() {
    for way in ways() {
        let mut lab = Lab::new(3);
        lab.go(way);
        let dci = lab.dci_on_forever(0);
        let targets = [lab.dct(1, KEY), lab.dct(2, KEY + 1), lab.dct(1, KEY + 2)];
        let mut index = 0;
        let mut expected = Vec::new();
        // There and back again, so that every far end is one several times.
        for round in 0..3_u64 {
            for dct in &targets {
                let (here, there) = (base(0), base(dct.node));
                let key = lab.nodes[dct.node].key;
                let len = if round == 1 { 20_000 } else { 100 };
                let data = pattern(round + 5, len);
                lab.memory(0).write(here + 0x8000, &data);
                lab.memory(dct.node)
                    .write(there + 0x4000, &7_u64.to_le_bytes());
                let list = [lab.sge(0, 0x8000, len as u32)];
                let back = [lab.sge(0, 0x20000, len as u32)];
                let eight = [lab.sge(0, 0x30000, 8)];
                dct.recv.push(Ok(RecvWr {
                    index: 9,
                    sges: vec![lab.sge(dct.node, 0x10000, 30_000)],
                    ..RecvWr::default()
                }));
                let add = SendWr {
                    atomic: AtomicOperands {
                        swap_add: 5,
                        swap_mask: u64::MAX,
                        compare_mask: u64::MAX,
                        ..AtomicOperands::default()
                    },
                    ..remote(Operation::FetchAdd, index + 3, &eight, there + 0x4000, key)
                };
                let requests = [
                    SendWr {
                        immediate: 42,
                        ..request(Operation::SendImm, index, &list)
                    },
                    remote(Operation::Write, index + 1, &list, there + 0x18000, key),
                    SendWr {
                        fence: true,
                        ..remote(Operation::Read, index + 2, &back, there + 0x18000, key)
                    },
                    add,
                ];
                for wr in requests {
                    expected.push((wr.index, Status::Success));
                    let wr = lab.to(dct, wr);
                    lab.post(&dci, wr);
                }
                index += 4;
                lab.settle();
                lab.wait();
                assert_eq!(
                    lab.memory(dct.node).read(there + 0x10000, len),
                    data,
                    "{way:?}"
                );
                assert_eq!(lab.memory(dct.node).read(there + 0x18000, len), data);
                assert_eq!(lab.memory(0).read(here + 0x20000, len), data);
                assert_eq!(lab.memory(0).read(here + 0x30000, 8), 7_u64.to_le_bytes());
                let now = lab.memory(dct.node).read(there + 0x4000, 8);
                assert_eq!(now, 12_u64.to_le_bytes(), "carried out once: {way:?}");
                let entries = dct.cq.poll();
                let kind = RecvKind::SendImm;
                let arrived = received(&entries);
                assert_eq!(arrived, [(9, Status::Success, len as u32, kind, 42)]);
                assert_eq!(entries[0].qpn, dct.dctn);
                // UCX answers to where the entry says that a message comes from.
                let Side::Recv { source, .. } = entries[0].side else {
                    panic!("{entries:?}")
                };
                let source = source.map(|it| (it.slid, it.src_qp));
                assert_eq!(source, Some((lab.nodes[0].lid, dci.qpn)), "{way:?}");
                assert_eq!(lab.contexts(dct), 1);
            }
        }
        assert_eq!(sent(&dci.cq.poll()), expected, "{way:?}");
    }
}

impl Lab {
    /// An initiator whose retries never run out.
    fn dci_on_forever(&mut self, node: usize) -> Qp {
        let on = self.cq(node, 4096);
        self.dci_on(node, on, |change| change.timeout = Some(0))
    }
}

#[test]
fn requests_to_several_targets_in_one_post() {
    for way in ways() {
        let mut lab = Lab::new(3);
        lab.go(way);
        let dci = lab.dci_on_forever(0);
        let targets = [lab.dct(1, KEY), lab.dct(2, KEY), lab.dct(0, KEY)];
        let mut expected = Vec::new();
        for index in 0..60_u16 {
            // Now the same as before, now another one.
            let dct = &targets[usize::from(index / 2 % 3)];
            let at = u64::from(index) * 8192;
            lab.memory(0)
                .write(base(0) + 0x100000 + at, &pattern(u64::from(index), 5000));
            let list = [lab.sge(0, 0x100000 + at, 5000)];
            let key = lab.nodes[dct.node].key;
            let wr = remote(
                Operation::Write,
                index,
                &list,
                base(dct.node) + 0x200000 + at,
                key,
            );
            let wr = lab.to(dct, wr);
            lab.post(&dci, wr);
            expected.push((index, Status::Success));
        }
        lab.settle();
        for _ in 0..8 {
            lab.wait();
        }
        assert_eq!(sent(&dci.cq.poll()), expected, "{way:?}");
        for index in 0..60_u16 {
            let node = targets[usize::from(index / 2 % 3)].node;
            let at = base(node) + 0x200000 + u64::from(index) * 8192;
            assert_eq!(
                lab.memory(node).read(at, 5000),
                pattern(u64::from(index), 5000)
            );
        }
    }
}

#[test]
fn a_target_hears_many_initiators_at_once() {
    for way in ways() {
        let mut lab = Lab::new(3);
        lab.go(way);
        let dct = lab.dct(1, KEY);
        let initiators = [0, 2, 0, 1].map(|node| lab.dci_on_forever(node));
        for index in 0..40 {
            dct.recv.push(Ok(RecvWr {
                index,
                sges: vec![lab.sge(1, 0x100000 + u64::from(index) * 8192, 8192)],
                ..RecvWr::default()
            }));
        }
        for round in 0..10_u64 {
            for (number, dci) in initiators.iter().enumerate() {
                let at = 0x40000 + number as u64 * 0x10000;
                let data = pattern(number as u64, 6000);
                lab.memory(dci.node).write(base(dci.node) + at, &data);
                let wr = SendWr {
                    immediate: number as u32,
                    ..request(
                        Operation::SendImm,
                        round as u16,
                        &[lab.sge(dci.node, at, 6000)],
                    )
                };
                let wr = lab.to(&dct, wr);
                lab.post(dci, wr);
            }
            lab.settle();
        }
        for _ in 0..4 {
            lab.wait();
        }
        let mut counts = [0; 4];
        for (index, status, len, _, number) in received(&dct.cq.poll()) {
            assert_eq!((status, len), (Status::Success, 6000), "{way:?}");
            let at = base(1) + 0x100000 + u64::from(index) * 8192;
            assert_eq!(
                lab.memory(1).read(at, 6000),
                pattern(u64::from(number), 6000)
            );
            counts[number as usize] += 1;
        }
        assert_eq!(counts, [10; 4], "{way:?}");
        assert_eq!(lab.contexts(&dct), 4);
    }
}

#[test]
fn a_wrong_key_hits_who_used_it() {
    for way in [Way::Copied, Way::Frames, Way::Engines(0, 0)] {
        let mut lab = Lab::new(3);
        lab.go(way);
        let dct = lab.dct(1, KEY);
        let good = lab.dci(2);
        assert!(write(&mut lab, &good, &dct, 1, 500));
        let guesses = Dct {
            key: KEY ^ 1,
            ..dct.clone()
        };
        for (round, armed) in [false, true, false].into_iter().enumerate() {
            let bad = lab.dci(0);
            let vf = lab.nodes[1].vf;
            if armed {
                lab.home(vf).verbs(vf).arm_dct(dct.dctn).unwrap();
            }
            lab.events(1);
            assert!(!write(&mut lab, &bad, &guesses, 2, 500), "{way:?}");
            let after = request(Operation::Nop, 3, &[]);
            lab.execute(&bad, after);
            let entries = sent(&bad.cq.poll());
            assert_eq!(entries, [(2, Status::RemoteAccess), (3, Status::Flushed)]);
            assert_eq!(lab.state(&bad), QpState::Error);
            let told = lab.events(1).contains(&Event::DctKeyViolation(dct.dctn));
            assert_eq!(told, armed, "an event for each arming");
            let view = lab.look_home(vf).query_dct(vf, dct.dctn).unwrap();
            assert_eq!(view.violations, round as u32 + 1);
            assert_eq!(view.contexts, 1, "who has no key takes no place");
        }
        assert!(write(&mut lab, &good, &dct, 4, 500));
        assert_eq!(sent(&good.cq.poll()).len(), 2);
    }
}

#[test]
fn an_access_that_is_not_allowed_hits_one_initiator() {
    for way in [Way::Copied, Way::Frames, Way::Engines(0, 0)] {
        let mut lab = Lab::new(3);
        lab.go(way);
        let dct = lab.dct(1, KEY);
        let (bad, good) = (lab.dci(0), lab.dci(2));
        assert!(write(&mut lab, &good, &dct, 1, 500));
        assert!(write(&mut lab, &bad, &dct, 2, 500));
        lab.events(1);
        let list = [lab.sge(0, 0, 8)];
        let wr = lab.to(&dct, remote(Operation::Write, 3, &list, base(1), 0xdead));
        lab.execute(&bad, wr);
        assert_eq!(
            sent(&bad.cq.poll()),
            [(2, Status::Success), (3, Status::RemoteAccess)]
        );
        assert_eq!(lab.events(1), [Event::DctAccess(dct.dctn)]);
        assert!(write(&mut lab, &good, &dct, 4, 500));
        // The initiator is reset, and has another connection.
        lab.modify(&bad, QpState::Reset, &QpChange::default());
        let change = QpChange {
            path: None,
            ..lab.attributes(&bad)
        };
        lab.bring_up(&bad, &change);
        assert!(write(&mut lab, &bad, &dct, 5, 500), "{way:?}");
        // A message that does not fit takes its receive request with it.
        dct.recv.push(Ok(RecvWr {
            index: 70,
            sges: vec![lab.sge(1, 0, 4)],
            ..RecvWr::default()
        }));
        dct.recv.push(Ok(RecvWr {
            index: 71,
            sges: vec![lab.sge(1, 0, 64)],
            ..RecvWr::default()
        }));
        let wr = lab.to(&dct, request(Operation::Send, 6, &list));
        lab.execute(&bad, wr.clone());
        lab.wait();
        assert_eq!(
            sent(&bad.cq.poll()),
            [(5, Status::Success), (6, Status::RemoteInvalidRequest)]
        );
        let wr = lab.to(&dct, request(Operation::Send, 7, &[lab.sge(2, 0, 8)]));
        lab.execute(&good, wr);
        lab.wait();
        let arrived = received(&dct.cq.poll());
        let arrived: Vec<_> = arrived.iter().map(|it| (it.0, it.1)).collect();
        assert_eq!(arrived, [(70, Status::LocalLength), (71, Status::Success)]);
    }
}

#[test]
fn a_target_goes_while_it_is_used() {
    for way in [Way::Copied, Way::Frames, Way::Engines(0, 0)] {
        let mut lab = Lab::new(3);
        lab.go(way);
        let (dct, other) = (lab.dct(1, KEY), lab.dct(1, KEY));
        let dci = lab.dci(0);
        assert!(write(&mut lab, &dci, &dct, 1, 500));
        let vf = lab.nodes[1].vf;
        let before = lab.home(vf).vf(vf).memory_taken();
        lab.events(1);
        lab.home(vf).verbs(vf).drain_dct(dct.dctn).unwrap();
        assert_eq!(lab.events(1), [Event::DctDrained(dct.dctn)]);
        assert_eq!(lab.contexts(&dct), 0);
        assert!(lab.home(vf).vf(vf).memory_taken() <= before);
        assert!(write(&mut lab, &dci, &other, 2, 500));
        assert!(!write(&mut lab, &dci, &dct, 3, 500));
        lab.advance(20 * TIMEOUT_NS);
        assert_eq!(
            sent(&dci.cq.poll()),
            [
                (1, Status::Success),
                (2, Status::Success),
                (3, Status::RetryExceeded)
            ],
            "{way:?}"
        );
        lab.home(vf).verbs(vf).destroy_dct(dct.dctn).unwrap();
        assert!(lab.home(vf).verbs(vf).destroy_dct(dct.dctn).is_err());
        assert!(lab.home(vf).query_dct(vf, dct.dctn).is_err());
        // With contexts.
        lab.home(vf).verbs(vf).destroy_dct(other.dctn).unwrap();
        assert!(lab.home(vf).verbs(vf).destroy_qp(other.dctn).is_err());
    }
}

#[test]
fn targets_are_no_queue_pairs_for_their_guest() {
    let mut lab = Lab::new(1);
    let dct = lab.dct(0, KEY);
    let vf = lab.nodes[0].vf;
    let change = QpChange::default();
    let modified = lab
        .engine
        .verbs(vf)
        .modify_qp(dct.dctn, QpState::Reset, &change);
    assert!(modified.is_err());
    assert!(lab.engine.query_qp(vf, dct.dctn).is_err());
    assert!(lab.engine.verbs(vf).destroy_qp(dct.dctn).is_err());
    let dci = lab.dci(0);
    assert!(lab.engine.verbs(vf).destroy_dct(dci.qpn).is_err());
    assert!(lab.engine.verbs(vf).arm_dct(dci.qpn).is_err());
}

#[test]
fn the_one_that_was_idle_for_longest_gives_way() {
    let mut lab = Lab::new(2);
    let dct = lab.dct(1, KEY);
    let on = lab.cq(0, 4096);
    let initiators: Vec<Qp> = (0..MAX_CONTEXTS + 64)
        .map(|_| lab.dci_on(0, on.clone(), |_| {}))
        .collect();
    let taken = lab.engine.vf(lab.nodes[1].vf).memory_taken();
    for (index, dci) in initiators.iter().enumerate() {
        let list = [lab.sge(0, 0, 8)];
        let key = lab.nodes[1].key;
        let wr = remote(Operation::Write, index as u16, &list, base(1), key);
        let wr = lab.to(&dct, wr);
        lab.post(dci, wr);
    }
    lab.settle();
    assert_eq!(lab.contexts(&dct), MAX_CONTEXTS);
    assert_eq!(sent(&on.1.poll()).len(), MAX_CONTEXTS);
    // The others try again, and those before them are idle by then.
    lab.advance(4 * TIMEOUT_NS);
    let entries = sent(&on.1.poll());
    assert_eq!(entries.len(), 64);
    assert!(entries.iter().all(|it| it.1 == Status::Success));
    assert_eq!(lab.contexts(&dct), MAX_CONTEXTS);
    // Who has given way is let in again.
    for (index, dci) in initiators.iter().enumerate().take(64) {
        let list = [lab.sge(0, 0, 8)];
        let key = lab.nodes[1].key;
        let wr = remote(Operation::Write, index as u16, &list, base(1), key);
        let wr = lab.to(&dct, wr);
        lab.post(dci, wr);
    }
    lab.advance(8 * TIMEOUT_NS);
    let entries = sent(&on.1.poll());
    assert!(entries.len() == 64 && entries.iter().all(|it| it.1 == Status::Success));
    let vf = lab.nodes[1].vf;
    assert!(lab.engine.vf(vf).memory_taken() > taken);
    lab.engine.verbs(vf).drain_dct(dct.dctn).unwrap();
    assert_eq!(lab.contexts(&dct), 0);
    lab.engine.reset_vf(vf);
    while lab.engine.clear_away(vf) {}
}

#[test]
fn a_reset_takes_contexts_along() {
    let mut lab = Lab::new(2);
    let dct = lab.dct(1, KEY);
    let dci = lab.dci(0);
    assert!(write(&mut lab, &dci, &dct, 1, 64));
    let vf = lab.nodes[1].vf;
    lab.engine.reset_vf(vf);
    assert!(!write(&mut lab, &dci, &dct, 2, 64));
    while lab.engine.clear_away(vf) {}
    drop(lab.engine.take_discarded());
    lab.advance(20 * TIMEOUT_NS);
    assert_eq!(sent(&dci.cq.poll())[1], (2, Status::RetryExceeded));
}
