//! Operations over connections that work.

use hca::work::{AtomicOperands, Operation, RecvKind, SendWr, Side, Status};
use hca::{Event, MAX_MESSAGE, QpDesc, QpState, RecvSide, Transport};

use crate::lab::{
    ALIAS, ALIAS_PERIOD, Lab, Plain, Way, base, pattern, physical, received, remote, request, sent,
};

const DATA: u64 = 0x1000;
const TARGET: u64 = 0x20_0000;

#[test]
fn send_with_its_variants() {
    for (operation, kind, immediate) in [
        (Operation::Send, RecvKind::Send, 0),
        (Operation::SendImm, RecvKind::SendImm, 0xdead_beef),
    ] {
        for transport in [Transport::Rc, Transport::Uc] {
            let mut lab = Lab::new(2);
            let (a, b) = lab.pair(transport);
            let data = pattern(1, 10_000);
            lab.memory(0).write(base(0) + DATA, &data);
            lab.receive(&b, 7, &[lab.sge(1, TARGET, 20_000)]);
            let sge = lab.sge(0, DATA, 10_000);
            lab.execute(
                &a,
                SendWr {
                    immediate,
                    solicited: true,
                    fence: true,
                    ..request(operation, 3, &[sge])
                },
            );
            assert_eq!(lab.memory(1).read(base(1) + TARGET, 10_000), data);
            assert_eq!(sent(&a.cq.poll()), [(3, Status::Success)]);
            let entries = b.cq.poll();
            assert!(entries[0].solicited);
            assert_eq!(entries[0].qpn, b.qpn);
            assert_eq!(
                received(&entries),
                [(7, Status::Success, 10_000, kind, immediate)]
            );
        }
    }
}

#[test]
fn write_and_its_variant_with_immediate() {
    for transport in [Transport::Rc, Transport::Uc] {
        let mut lab = Lab::new(2);
        let (a, b) = lab.pair(transport);
        let data = pattern(2, 300_000);
        lab.memory(0).write(base(0) + DATA, &data);
        let (sge, key) = (lab.sge(0, DATA, 300_000), lab.nodes[1].key);
        lab.execute(
            &a,
            remote(Operation::Write, 1, &[sge], base(1) + TARGET, key),
        );
        assert_eq!(lab.memory(1).read(base(1) + TARGET, 300_000), data);
        assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
        assert!(b.cq.poll().is_empty());

        lab.receive(&b, 9, &[]);
        let wr = remote(Operation::WriteImm, 2, &[sge], base(1) + TARGET + 1, key);
        lab.execute(
            &a,
            SendWr {
                immediate: 77,
                ..wr
            },
        );
        assert_eq!(lab.memory(1).read(base(1) + TARGET + 1, 300_000), data);
        assert_eq!(
            received(&b.cq.poll()),
            [(9, Status::Success, 300_000, RecvKind::WriteImm, 77)]
        );
    }
}

#[test]
fn read_fills_a_scatter_list() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    let data = pattern(3, 5000);
    lab.memory(1).write(base(1) + TARGET, &data);
    let list = [
        lab.sge(0, DATA, 1),
        lab.sge(0, 0x8000, 0),
        lab.sge(0, 0x9001, 4000),
        lab.sge(0, 0x3000, 999),
    ];
    let key = lab.nodes[1].key;
    lab.execute(&a, remote(Operation::Read, 1, &list, base(1) + TARGET, key));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    let memory = lab.memory(0);
    let mut got = memory.read(base(0) + DATA, 1);
    got.extend(memory.read(base(0) + 0x9001, 4000));
    got.extend(memory.read(base(0) + 0x3000, 999));
    assert_eq!(got, data);
}

#[test]
fn inline_data_and_lists_of_many_elements() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let key = lab.nodes[1].key;
    let mut wr = remote(Operation::Write, 1, &[], base(1) + TARGET, key);
    wr.is_inline = true;
    wr.inline = pattern(4, 900);
    lab.execute(&a, wr);
    assert_eq!(lab.memory(1).read(base(1) + TARGET, 900), pattern(4, 900));
    // Scattered at one end, gathered at the other, with borders that differ.
    let data = pattern(5, 64 * 37);
    lab.memory(0).write(base(0), &data);
    let gather: Vec<_> = (0..64).map(|i| lab.sge(0, i * 37, 37)).collect();
    let scatter: Vec<_> = (0..48).map(|i| lab.sge(1, i * 100, 50)).collect();
    lab.receive(&b, 1, &scatter);
    lab.execute(&a, request(Operation::Send, 2, &gather));
    let got: Vec<u8> = (0..48)
        .flat_map(|i| lab.memory(1).read(base(1) + i * 100, 50))
        .collect();
    assert_eq!(got[..data.len()], data);
    assert!(got[data.len()..].iter().all(|&byte| byte == 0));
    assert_eq!(
        received(&b.cq.poll()),
        [(1, Status::Success, 64 * 37, RecvKind::Send, 0)]
    );
}

#[test]
fn messages_of_no_bytes() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    for index in 0..3 {
        lab.receive(&b, index, &[]);
    }
    lab.execute(&a, request(Operation::Send, 0, &[]));
    lab.execute(&a, request(Operation::SendImm, 1, &[]));
    // Neither key nor address of a transfer of nothing is looked at.
    lab.execute(&a, remote(Operation::WriteImm, 2, &[], 0, 0xffff_ffff));
    lab.execute(&a, remote(Operation::Write, 3, &[], 0, 0xffff_ffff));
    lab.execute(&a, remote(Operation::Read, 4, &[], 0, 0xffff_ffff));
    let nothing = lab.sge(0, 0, 0);
    lab.execute(&a, remote(Operation::Write, 5, &[nothing], 0, 0xffff_ffff));
    lab.execute(&a, request(Operation::Nop, 6, &[]));
    let expected: Vec<_> = (0..7).map(|index| (index, Status::Success)).collect();
    assert_eq!(sent(&a.cq.poll()), expected);
    let kinds: Vec<_> = received(&b.cq.poll())
        .into_iter()
        .map(|(_, status, len, kind, _)| {
            assert_eq!((status, len), (Status::Success, 0));
            kind
        })
        .collect();
    assert_eq!(
        kinds,
        [RecvKind::Send, RecvKind::SendImm, RecvKind::WriteImm]
    );
}

#[test]
fn atomics_return_the_original_and_change_the_target() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    let (sge, key) = (lab.sge(0, DATA, 8), lab.nodes[1].key);
    let cases = [
        (Operation::CompareSwap, 5, 5, 0, 0, 9, 9_u64),
        (Operation::CompareSwap, 6, 5, 0, 0, 9, 6),
        (Operation::FetchAdd, u64::MAX, 0, 0, 0, 2, 1),
        (
            Operation::MaskedCompareSwap,
            0x1234_5618,
            0x10,
            0xff,
            0xf0,
            0xaa,
            0x1234_56aa,
        ),
        (
            Operation::MaskedFetchAdd,
            0x0000_0001_ffff_ffff,
            0,
            1 << 31 | 1 << 63,
            0,
            0x0000_0001_0000_0001,
            0x0000_0002_0000_0000,
        ),
    ];
    for (operation, before, compare, swap_mask, compare_mask, swap_add, after) in cases {
        let (before, target): (u64, u64) = (before, base(1) + TARGET);
        lab.memory(1).write(target, &before.to_le_bytes());
        let mut wr = remote(operation, 1, &[sge], target, key);
        wr.atomic = AtomicOperands {
            swap_add,
            compare,
            swap_mask,
            compare_mask,
            half: false,
        };
        lab.execute(&a, wr);
        assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)], "{operation:?}");
        assert_eq!(
            lab.memory(1).read(target, 8),
            after.to_le_bytes(),
            "{operation:?}"
        );
        assert_eq!(lab.memory(0).read(base(0) + DATA, 8), before.to_le_bytes());
    }
}

#[test]
fn atomics_of_four_bytes_are_of_four_bytes() {
    for way in [Way::Copied, Way::Frames, Way::Engines(0, 0)] {
        let mut lab = Lab::new(2);
        lab.go(way);
        let (a, _b) = lab.pair(Transport::Rc);
        let (sge, key) = (lab.sge(0, DATA, 4), lab.nodes[1].key);
        let operands = AtomicOperands {
            swap_add: 1,
            compare: u64::from(u32::MAX),
            swap_mask: u64::from(u32::MAX),
            compare_mask: u64::from(u32::MAX),
            half: true,
        };
        let add = AtomicOperands {
            swap_mask: 0,
            ..operands
        };
        // Of two neighbours in eight bytes the other one stays, wherever the first is.
        for at in [TARGET, TARGET + 4] {
            for (operation, operands, before, after) in [
                (Operation::MaskedFetchAdd, add, u32::MAX, 0_u32),
                (Operation::MaskedFetchAdd, add, 0x0102_0304, 0x0102_0305),
                (Operation::MaskedCompareSwap, operands, u32::MAX, 1),
                (Operation::MaskedCompareSwap, operands, 7, 7),
            ] {
                let target = base(1) + at;
                lab.memory(1).write(base(1) + TARGET, &[0xee; 8]);
                lab.memory(1).write(target, &before.to_le_bytes());
                lab.memory(0).write(base(0) + DATA, &[0x11; 8]);
                let mut wr = remote(operation, 1, &[sge], target, key);
                wr.atomic = operands;
                lab.execute(&a, wr);
                assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)], "{operation:?}");
                let mut expected = [0xee; 8];
                expected[(at - TARGET) as usize..][..4].copy_from_slice(&after.to_le_bytes());
                assert_eq!(lab.memory(1).read(base(1) + TARGET, 8), expected);
                // The answer is big endian.
                let mut answer = [0x11; 8];
                answer[..4].copy_from_slice(&before.to_be_bytes());
                assert_eq!(lab.memory(0).read(base(0) + DATA, 8), answer);
            }
        }
        // Not at any address, and into four bytes.
        let mut wr = remote(Operation::MaskedFetchAdd, 2, &[sge], base(1) + 2, key);
        wr.atomic = add;
        lab.execute(&a, wr);
        assert_eq!(
            sent(&a.cq.poll()),
            [(2, Status::RemoteInvalidRequest)],
            "{way:?}"
        );
        let (a, _b) = lab.pair(Transport::Rc);
        let long = lab.sge(0, DATA, 8);
        let mut wr = remote(Operation::MaskedFetchAdd, 3, &[long], base(1), key);
        wr.atomic = add;
        lab.execute(&a, wr);
        assert_eq!(sent(&a.cq.poll()), [(3, Status::LocalLength)], "{way:?}");
    }
}

#[test]
fn atomics_of_several_queue_pairs_and_of_a_processor_lose_nothing() {
    use std::sync::atomic::{AtomicU64, Ordering};
    use vm_memory::VolatileMemory;

    let mut lab = Lab::new(3);
    let (a, _b) = lab.pair(Transport::Rc);
    let (c, d) = (lab.qp(2, Transport::Rc), lab.qp(1, Transport::Rc));
    lab.connect_with(&c, &d, |_| {});
    let (target, key) = (base(1) + TARGET, lab.nodes[1].key);
    let memory = lab.memory(1).clone();
    let guest = std::thread::spawn(move || {
        let window = hca::Dma::write_window(&memory, target, 8).unwrap();
        let cell = window.get_atomic_ref::<AtomicU64>(0).unwrap();
        for _ in 0..20_000 {
            cell.fetch_add(1, Ordering::Relaxed);
        }
    });
    for round in 0..2_000_u32 {
        for (qp, node) in [(&a, 0), (&c, 2)] {
            let sge = lab.sge(node, DATA, 8);
            let mut wr = remote(Operation::FetchAdd, round as u16, &[sge], target, key);
            wr.signaled = false;
            wr.atomic.swap_add = 1;
            lab.post(qp, wr);
        }
        if round % 100 == 0 {
            lab.settle();
        }
    }
    lab.settle();
    guest.join().unwrap();
    let total = u64::from_le_bytes(lab.memory(1).read(target, 8).try_into().unwrap());
    assert_eq!(total, 20_000 + 2 * 2_000);
}

#[test]
fn requests_complete_in_order_and_only_when_asked() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    let key = lab.nodes[1].key;
    for index in 0..500_u16 {
        let sge = lab.sge(0, u64::from(index), 1 + u32::from(index));
        let mut wr = remote(Operation::Write, index, &[sge], base(1) + TARGET, key);
        wr.signaled = index % 3 == 0;
        lab.post(&a, wr);
    }
    lab.settle();
    let expected: Vec<_> = (0..500)
        .step_by(3)
        .map(|index| (index, Status::Success))
        .collect();
    assert_eq!(sent(&a.cq.poll()), expected);
}

#[test]
fn the_longest_message_and_one_byte_more() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let data = pattern(6, ALIAS_PERIOD as usize);
    lab.memory(0).write(ALIAS, &data);
    let key = lab.nodes[1].key;
    let mut sge = lab.sge(0, 0, MAX_MESSAGE as u32);
    sge.addr = ALIAS;
    lab.execute(&a, remote(Operation::Write, 1, &[sge], ALIAS, key));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    assert_eq!(lab.memory(1).read(ALIAS, ALIAS_PERIOD as usize), data);
    let view = lab.engine.query_qp(b.vf, b.qpn).unwrap();
    assert_eq!(view.attr.rq_psn.value(), 0x123 + (1 << 30) / 4096);
    assert_eq!(view.msn, 1);

    sge.len += 1;
    lab.execute(&a, remote(Operation::Write, 2, &[sge], ALIAS, key));
    assert_eq!(sent(&a.cq.poll()), [(2, Status::LocalLength)]);
    assert_eq!(lab.state(&a), QpState::Error);
    assert_eq!(lab.state(&b), QpState::ReadyToSend);
}

#[test]
fn short_windows_make_no_difference() {
    let mut lab = Lab::new(2);
    for node in 0..2 {
        lab.engine.vf_mut(lab.nodes[node].vf).dma_mut().longest = 13 + node * 4;
    }
    let (a, _b) = lab.pair(Transport::Rc);
    let data = pattern(7, 5000);
    lab.memory(0).write(base(0) + DATA, &data);
    let (sge, key) = (lab.sge(0, DATA, 5000), lab.nodes[1].key);
    lab.execute(
        &a,
        remote(Operation::Write, 1, &[sge], base(1) + TARGET, key),
    );
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    assert_eq!(lab.memory(1).read(base(1) + TARGET, 5000), data);
}

#[test]
fn a_queue_pair_connected_to_itself() {
    let mut lab = Lab::new(1);
    let qp = lab.qp(0, Transport::Rc);
    let change = lab.attributes(&qp);
    lab.bring_up(&qp, &change);
    let data = pattern(8, 300_000);
    lab.memory(0).write(base(0) + DATA, &data);
    lab.receive(&qp, 1, &[lab.sge(0, TARGET, 300_000)]);
    let sge = lab.sge(0, DATA, 300_000);
    lab.execute(&qp, request(Operation::Send, 2, &[sge]));
    let entries = qp.cq.poll();
    assert_eq!(
        received(&entries),
        [(1, Status::Success, 300_000, RecvKind::Send, 0)]
    );
    assert_eq!(sent(&entries), [(2, Status::Success)]);
    assert_eq!(lab.memory(0).read(base(0) + TARGET, 300_000), data);

    // Its failure is reported before what follows is flushed.
    lab.post(&qp, remote(Operation::Write, 3, &[sge], 0, 0xdead_0000));
    lab.post(&qp, request(Operation::Nop, 4, &[]));
    lab.receive(&qp, 5, &[]);
    lab.settle();
    let entries = qp.cq.poll();
    assert_eq!(
        sent(&entries),
        [(3, Status::RemoteAccess), (4, Status::Flushed)]
    );
    assert_eq!(
        received(&entries),
        [(5, Status::Flushed, 0, RecvKind::Send, 0)]
    );
}

#[test]
fn two_queue_pairs_of_one_function() {
    let mut lab = Lab::new(1);
    let (a, b) = (lab.qp(0, Transport::Rc), lab.qp(0, Transport::Rc));
    lab.connect_with(&a, &b, |_| {});
    lab.memory(0).write(base(0), b"to a neighbour");
    lab.receive(&b, 1, &[lab.sge(0, TARGET, 64)]);
    let sge = lab.sge(0, 0, 14);
    lab.execute(&a, request(Operation::Send, 1, &[sge]));
    assert_eq!(lab.memory(0).read(base(0) + TARGET, 14), b"to a neighbour");
}

#[test]
fn extended_connections_name_the_shared_queue() {
    let mut lab = Lab::new(2);
    let xrcd = lab.engine.vf_mut(lab.nodes[1].vf).alloc_xrcd().unwrap();
    let foreign = lab.engine.vf_mut(lab.nodes[1].vf).alloc_xrcd().unwrap();
    let a = lab.qp_with(0, Transport::Xrc, |desc| {
        desc.recv = RecvSide::None;
        desc.recv_cqn = None;
    });
    let b = lab.qp_with(1, Transport::Xrc, |desc: &mut QpDesc<Plain>| {
        desc.send = None;
        desc.recv = RecvSide::Xrc(xrcd);
        desc.recv_cqn = None;
    });
    lab.connect_with(&a, &b, |_| {});
    let queues: Vec<_> = [xrcd, xrcd, foreign]
        .into_iter()
        .map(|domain| {
            let (cqn, cq) = lab.cq(1, 100);
            let ring = b.recv.clone();
            // Each shared queue has a ring of its own.
            let shared = lab.qp(1, Transport::Ud).recv;
            drop(ring);
            let (vf, pd) = (lab.nodes[1].vf, lab.nodes[1].pd);
            let srqn = lab
                .engine
                .verbs(vf)
                .create_srq(pd, Some((domain, cqn)), shared.clone())
                .unwrap();
            (srqn, shared, cq)
        })
        .collect();
    for (at, (srqn, ring, cq)) in queues.iter().take(2).enumerate() {
        let scatter = lab.sge(1, 0x1000 * at as u64, 100);
        ring.push(Ok(hca::work::RecvWr {
            index: 40 + at as u16,
            sges: vec![scatter],
            ..hca::work::RecvWr::default()
        }));
        let sge = lab.sge(0, 0, 50);
        let mut wr = request(Operation::Send, at as u16, &[sge]);
        wr.xrc_srqn = *srqn;
        lab.execute(&a, wr);
        let entries = cq.poll();
        assert!(matches!(
            entries[0].side,
            Side::Recv { srqn: Some(number), .. } if number == *srqn
        ));
        assert_eq!(entries[0].index, 40 + at as u16);
        assert_eq!(entries[0].qpn, b.qpn);
    }
    assert_eq!(sent(&a.cq.poll()).len(), 2);
    // Keys are those of the named queue's protection domain, which need not be
    // the target's.
    let (vf, other_pd) = (
        lab.nodes[1].vf,
        lab.engine.vf_mut(lab.nodes[1].vf).alloc_pd().unwrap(),
    );
    let key = lab.engine.verbs(vf).create_key(physical(other_pd)).unwrap() << 8 | 0x5a;
    let (cqn, _cq) = lab.cq(1, 10);
    let ring = lab.qp(1, Transport::Ud).recv;
    let srqn = lab
        .engine
        .verbs(vf)
        .create_srq(other_pd, Some((xrcd, cqn)), ring)
        .unwrap();
    lab.memory(0).write(base(0), b"to its owner");
    let sge = lab.sge(0, 0, 12);
    let mut wr = request(Operation::Write, 5, &[sge]);
    (wr.remote_addr, wr.rkey, wr.xrc_srqn) = (base(1) + TARGET, key, srqn);
    lab.execute(&a, wr);
    assert_eq!(sent(&a.cq.poll()), [(5, Status::Success)]);
    assert_eq!(lab.memory(1).read(base(1) + TARGET, 12), b"to its owner");
    // A queue of another domain is out of reach.
    queues[2].1.push(Ok(hca::work::RecvWr::default()));
    let mut wr = request(Operation::Send, 9, &[]);
    wr.xrc_srqn = queues[2].0;
    lab.execute(&a, wr);
    assert_eq!(sent(&a.cq.poll()), [(9, Status::RemoteInvalidRequest)]);
    assert_eq!(lab.events(1), [Event::QpInvalidRequest(b.qpn)]);
    assert_eq!(queues[2].1.len(), 1);
}

#[test]
fn shared_receive_queues_serve_all_and_tell_when_low() {
    let mut lab = Lab::new(2);
    let shared = lab.qp(1, Transport::Ud).recv;
    let (vf, other_pd) = (
        lab.nodes[1].vf,
        lab.engine.vf_mut(lab.nodes[1].vf).alloc_pd().unwrap(),
    );
    // The queue's own protection domain counts for its buffers.
    let key = lab.engine.verbs(vf).create_key(physical(other_pd)).unwrap() << 8 | 0x5a;
    let srqn = lab
        .engine
        .verbs(vf)
        .create_srq(other_pd, None, shared.clone())
        .unwrap();
    let mut pairs = Vec::new();
    for _ in 0..2 {
        let a = lab.qp(0, Transport::Rc);
        let b = lab.qp_with(1, Transport::Rc, |desc| desc.recv = RecvSide::Shared(srqn));
        lab.connect_with(&a, &b, |_| {});
        pairs.push((a, b));
    }
    for index in 0..6_u16 {
        let mut sge = lab.sge(1, u64::from(index) * 64, 64);
        sge.lkey = key;
        shared.push(Ok(hca::work::RecvWr {
            index,
            sges: vec![sge],
            ..hca::work::RecvWr::default()
        }));
    }
    lab.engine.verbs(vf).arm_srq(srqn, 4).unwrap();
    assert_eq!(lab.events(1), []);
    for index in 0..4_u16 {
        let (a, b) = &pairs[usize::from(index % 2)];
        let sge = lab.sge(0, 0, 10);
        lab.execute(a, request(Operation::Send, index, &[sge]));
        assert_eq!(
            received(&b.cq.poll()),
            [(index, Status::Success, 10, RecvKind::Send, 0)]
        );
        // Six posted: after the third fewer than four remain, once.
        let expected: &[Event] = if index == 2 {
            &[Event::SrqLimit(srqn)]
        } else {
            &[]
        };
        assert_eq!(lab.events(1), expected);
    }
    // Arming above what is there fires at once.
    lab.engine.verbs(vf).arm_srq(srqn, 3).unwrap();
    assert_eq!(lab.events(1), [Event::SrqLimit(srqn)]);
    // The last of a failing user: no more completions for it.
    let (_, b) = &pairs[0];
    lab.modify(b, QpState::Error, &hca::QpChange::default());
    assert_eq!(lab.events(1), [Event::LastWqeReached(b.qpn)]);
    assert_eq!(shared.len(), 2);
}

#[test]
fn communication_is_established_by_the_first_message() {
    let mut lab = Lab::new(2);
    let (a, b) = (lab.qp(0, Transport::Rc), lab.qp(1, Transport::Rc));
    let (to_b, to_a) = (lab.attributes(&b), lab.attributes(&a));
    lab.bring_up(&a, &to_b);
    for next in [QpState::Init, QpState::ReadyToReceive] {
        lab.modify(&b, next, &to_a);
    }
    for index in 0..2 {
        lab.receive(&b, index, &[]);
        lab.execute(&a, request(Operation::Send, index, &[]));
    }
    assert_eq!(lab.events(1), [Event::CommunicationEstablished(b.qpn)]);
}

#[test]
fn port_counters_count_both_directions() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    let (sge, key) = (lab.sge(0, 0, 10_000), lab.nodes[1].key);
    lab.execute(&a, remote(Operation::Read, 1, &[sge], base(1), key));
    let passed = |lab: &Lab, node: usize| lab.engine.vf(lab.nodes[node].vf).counters().passed();
    let (mine, theirs) = (passed(&lab, 0), passed(&lab, 1));
    // One packet asks, three answer.
    assert_eq!(mine.xmit_packets, 1);
    assert_eq!(mine.rcv_packets, 3);
    assert_eq!(theirs.xmit_packets, 3);
    assert!(theirs.xmit_words >= 2500);
    assert_eq!(mine.rcv_words, theirs.xmit_words);
    lab.execute(&a, remote(Operation::Write, 2, &[sge], base(1), key));
    assert_eq!(passed(&lab, 0).xmit_packets, 4);
}
