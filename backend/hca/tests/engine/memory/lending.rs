//! Memory that frames between engines lend: each byte is copied once, and none is read any more when its
//! owner has been told so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use hca::work::{Operation, Status};
use hca::{QpChange, QpState, Transport, VfId};
use proptest::prelude::*;

use crate::lab::{Lab, Qp, VARIANT, base, pattern, physical, received, remote, request, sent};

const LEN: u32 = 1 << 16;

fn two() -> Lab {
    let mut lab = Lab::new(2);
    lab.split(&[0, 1]);
    lab
}

/// A key of a function to all its memory, besides its own one.
fn another_key(lab: &mut Lab, node: usize) -> u32 {
    let (vf, pd) = (lab.nodes[node].vf, lab.nodes[node].pd);
    let index = lab.home(vf).verbs(vf).create_key(physical(pd)).unwrap();
    index << 8 | u32::from(VARIANT)
}

fn retries(lab: &Lab) -> u64 {
    let of = |vf| {
        let retries = &lab.look_home(vf).vf(vf).counters().retries;
        let counters = [
            &retries.local_ack_timeout_err,
            &retries.packet_seq_err,
            &retries.implied_nak_seq_err,
        ];
        counters
            .map(|it| it.load(Ordering::Relaxed))
            .iter()
            .sum::<u64>()
    };
    of(VfId(0)) + of(VfId(1))
}

/// A request of one of three kinds that carries memory of function 0 to function 1: from the one, from the
/// one with a receive request, or fetched by the other.
fn carry(lab: &mut Lab, (a, b): (&Qp, &Qp), kind: usize, key: u32, index: u16) {
    let near = |lab: &Lab| hca::work::Sge {
        lkey: key,
        ..lab.sge(0, 0, LEN)
    };
    let wr = match kind {
        0 => remote(
            Operation::Write,
            index,
            &[near(lab)],
            base(1),
            lab.nodes[1].key,
        ),
        1 => {
            lab.receive(b, index, &[lab.sge(1, 0, LEN)]);
            request(Operation::Send, index, &[near(lab)])
        }
        _ => {
            let list = [lab.sge(1, 0, LEN)];
            let wr = remote(Operation::Read, index, &list, base(0), key);
            return lab.post(b, wr);
        }
    };
    lab.post(a, wr);
}

/// Both engines read guests' memory once for each byte: who sends does not.
#[test]
fn the_receiver_copies() {
    for kind in 0..3 {
        let mut lab = two();
        let (a, b) = lab.pair(Transport::Rc);
        let key = lab.nodes[0].key;
        // A connection's first frame finds its way.
        for round in 0..2 {
            let bytes = pattern(round + 7, LEN as usize);
            lab.memory(0).write(base(0), &bytes);
            carry(&mut lab, (&a, &b), kind, key, 1);
            lab.settle();
            assert!(lab.memory(1).read(base(1), LEN as usize) == bytes);
        }
        assert_eq!(retries(&lab), 0);
        // What is written after the request has been posted gets there: nobody else has a copy.
        carry(&mut lab, (&a, &b), kind, key, 2);
        lab.run_one(kind / 2);
        if kind == 2 {
            lab.run_one(0);
        }
        let late = pattern(99, LEN as usize);
        lab.memory(0).write(base(0), &late);
        lab.settle();
        assert!(
            lab.memory(1).read(base(1), LEN as usize) == late,
            "kind {kind}"
        );
    }
}

/// The way in which a guest takes back memory that it has lent.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    DestroyQp,
    ResetQp,
    FailQp,
    DestroyKey,
    Unmap,
    ResetFunction,
}

const ENDS: [End; 6] = [
    End::DestroyQp,
    End::ResetQp,
    End::FailQp,
    End::DestroyKey,
    End::Unmap,
    End::ResetFunction,
];

fn end(lab: &mut Lab, qp: &Qp, key: u32, end: End) {
    let vf = qp.vf;
    let memory = lab.memory(0).clone();
    let engine = lab.home(vf);
    match end {
        End::DestroyQp => engine.verbs(vf).destroy_qp(qp.qpn).unwrap(),
        End::ResetQp => engine
            .verbs(vf)
            .modify_qp(qp.qpn, QpState::Reset, &QpChange::default())
            .unwrap(),
        End::FailQp => engine
            .verbs(vf)
            .modify_qp(qp.qpn, QpState::Error, &QpChange::default())
            .unwrap(),
        End::DestroyKey => drop(engine.vf_mut(vf).destroy_key(key >> 8).unwrap()),
        // Another view of the same memory, as after something else was unmapped.
        End::Unmap => *engine.vf_mut(vf).dma_mut() = memory,
        End::ResetFunction => engine.reset_vf(vf),
    }
}

/// A guest posts, and takes back at once, while the other engine is slow: of what it writes to its memory
/// from then on, nothing arrives; but where the request lives on, which is carried out then.
#[test]
fn nothing_is_read_after_it_has_ended() {
    for kind in 0..3 {
        for ending in ENDS {
            let mut lab = two();
            let (a, b) = lab.pair(Transport::Rc);
            let key = another_key(&mut lab, 0);
            let before = pattern(3, LEN as usize);
            lab.memory(0).write(base(0), &before);
            // The way is known from then on.
            carry(&mut lab, (&a, &b), kind, key, 1);
            lab.settle();
            a.cq.poll();
            b.cq.poll();
            carry(&mut lab, (&a, &b), kind, key, 2);
            lab.run_one(kind / 2);
            if kind == 2 {
                lab.run_one(0);
            }
            end(&mut lab, &a, key, ending);
            lab.memory(0).write(base(0), &pattern(4, LEN as usize));
            lab.run_one(1);
            let there = lab.memory(1).read(base(1), LEN as usize);
            assert!(there == before, "kind {kind}, {ending:?}");
            if ending == End::Unmap {
                // Sent again at once: time stands still.
                lab.settle();
                let entries = if kind == 2 { b.cq.poll() } else { a.cq.poll() };
                assert_eq!(sent(&entries), [(2, Status::Success)], "kind {kind}");
                let there = lab.memory(1).read(base(1), LEN as usize);
                assert!(there == pattern(4, LEN as usize), "kind {kind}");
                assert_eq!(retries(&lab), 0);
                if kind == 1 {
                    assert_eq!(received(&b.cq.poll()).len(), 1);
                }
            }
            if ending == End::DestroyKey {
                lab.settle();
                let (entries, status) = match kind {
                    2 => (b.cq.poll(), Status::RemoteAccess),
                    _ => (a.cq.poll(), Status::LocalProtection),
                };
                assert_eq!(sent(&entries), [(2, status)], "kind {kind}");
            }
        }
    }
}

/// Tells the other thread, whatever happens to this one.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The same over and over while both engines work on threads of their own: the byte that a guest writes
/// everywhere after it has been told of the end never shows at the other one.
#[test]
fn nothing_is_read_after_it_has_ended_while_the_other_engine_reads() {
    const ROUNDS: u64 = 60;
    const FORBIDDEN: u8 = 0xff;
    for ending in [End::DestroyQp, End::FailQp, End::DestroyKey, End::Unmap] {
        let mut lab = two();
        let rounds: Vec<_> = (0..ROUNDS)
            .map(|_| (lab.pair(Transport::Rc), another_key(&mut lab, 0)))
            .collect();
        let (near, far) = (lab.memory(0).clone(), lab.memory(1).clone());
        let far_key = lab.nodes[1].key;
        let own = lab.nodes[0].memory.clone();
        let done = AtomicBool::new(false);
        let mut engines: Vec<_> = lab.engines().collect();
        let [one, other] = engines.get_disjoint_mut([0, 1]).unwrap();
        thread::scope(|scope| {
            let _ends = Ends(&done);
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    other.wake();
                    other.run();
                }
            });
            for (round, ((a, _), key)) in rounds.iter().enumerate() {
                let mut bytes = pattern(round as u64, LEN as usize);
                bytes.iter_mut().for_each(|byte| *byte &= 0x7f);
                near.write(base(0), &bytes);
                let sge = hca::work::Sge {
                    addr: base(0),
                    lkey: *key,
                    len: LEN,
                };
                for index in 0..8 {
                    // Each to a place of its own.
                    let to = base(1) + (u64::from(index) << 16);
                    let wr = remote(Operation::Write, index, &[sge], to, far_key);
                    a.send.push(Ok(wr));
                }
                one.ring_send(a.vf, a.qpn, 0);
                for _ in 0..1 + round % 3 {
                    one.wake();
                    one.run();
                }
                (0..round % 50 * 20).for_each(|_| std::hint::spin_loop());
                match ending {
                    End::DestroyQp => one.verbs(a.vf).destroy_qp(a.qpn).unwrap(),
                    End::FailQp => {
                        let change = QpChange::default();
                        one.verbs(a.vf)
                            .modify_qp(a.qpn, QpState::Error, &change)
                            .unwrap();
                    }
                    End::DestroyKey => drop(one.vf_mut(a.vf).destroy_key(key >> 8).unwrap()),
                    _ => *one.vf_mut(a.vf).dma_mut() = own.clone(),
                }
                if ending == End::Unmap {
                    // What goes on is to go on; it is ended here.
                    one.verbs(a.vf).destroy_qp(a.qpn).unwrap();
                }
                near.write(base(0), &vec![FORBIDDEN; LEN as usize]);
                for _ in 0..3 {
                    one.wake();
                    one.run();
                    thread::yield_now();
                }
                let there = far.read(base(1), 8 << 16);
                assert!(!there.contains(&FORBIDDEN), "round {round}, {ending:?}");
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// Requests of three kinds, of which some are taken back in the middle, engines that have turns as they
    /// come, and functions that move: who is told of success has got the bytes of that time, in order, and
    /// what goes on needs no time.
    #[test]
    fn what_is_taken_back_is_sent_again(
        steps in prop::collection::vec((0_u8..6, 0_usize..3, 0_u64..24), 1..60),
    ) {
        const LEN: u32 = 3 << 12;
        let mut lab = two();
        let (a, b) = lab.pair(Transport::Rc);
        let key = lab.nodes[0].key;
        lab.memory(0).write(base(0), &pattern(5, 24 * LEN as usize));
        let (mut posted, mut sums) = ([0_u16; 2], Vec::new());
        for (step, kind, at) in steps {
            match step {
                0 | 1 => {
                    // From a place of its own to a place of its own.
                    let from = at * u64::from(LEN);
                    let to = (sums.len() as u64 % 60) * u64::from(LEN);
                    sums.push((from, to));
                    let (far, far_key) = (base(1) + to, lab.nodes[1].key);
                    let index = posted[kind / 2];
                    posted[kind / 2] += 1;
                    match kind {
                        0 => {
                            let list = [lab.sge(0, from, LEN)];
                            lab.post(&a, remote(Operation::Write, index, &list, far, far_key));
                        }
                        1 => {
                            lab.receive(&b, index, &[lab.sge(1, to, LEN)]);
                            let list = [lab.sge(0, from, LEN)];
                            lab.post(&a, request(Operation::Send, index, &list));
                        }
                        _ => {
                            let list = [lab.sge(1, to, LEN)];
                            lab.post(&b, remote(Operation::Read, index, &list, base(0) + from, key));
                        }
                    }
                }
                2 => lab.run_one(0),
                3 => lab.run_one(1),
                4 => {
                    let memory = lab.memory(0).clone();
                    *lab.home(VfId(0)).vf_mut(VfId(0)).dma_mut() = memory;
                }
                _ => lab.relocate(kind % 2),
            }
        }
        lab.settle();
        let (near, far) = (sent(&a.cq.poll()), sent(&b.cq.poll()));
        let expected = |count: u16| (0..count).map(|index| (index, Status::Success));
        prop_assert!(near.into_iter().eq(expected(posted[0])));
        prop_assert!(far.into_iter().eq(expected(posted[1])));
        prop_assert_eq!(retries(&lab), 0);
        // A place that two requests went to has the bytes of one of them.
        for &(_, to) in &sums {
            let there = lab.memory(1).read(base(1) + to, LEN as usize);
            let any = sums.iter().filter(|(_, other)| *other == to);
            let mut any = any.map(|&(from, _)| lab.memory(0).read(base(0) + from, LEN as usize));
            prop_assert!(any.any(|bytes| bytes == there));
        }
    }
}
