//! Messages that completions hold in place of memory.

use hca::work::{AtomicOperands, Operation, SendWr, Status};
use hca::{InCompletion, QpState, Transport, VfId};

use crate::lab::{Lab, Qp, base, pattern, received, remote, request, sent};

/// Where messages go or come from in the memory of either end.
const PLACE: u64 = 0x2000;

/// A connection whose two ends have this much in completions; with a link that takes its time, it goes in frames.
fn pair(transport: Transport, held: InCompletion, frames: bool) -> (Lab, Qp, Qp) {
    let mut lab = Lab::new(2);
    let ends = [0, 1].map(|node| lab.qp_with(node, transport, |desc| desc.in_completion = held));
    let [a, b] = ends;
    lab.connect_with(&a, &b, |_| {});
    if frames {
        lab.net.change(|net| {
            net.delays.insert((VfId(0), VfId(1)), 1000);
        });
    }
    (lab, a, b)
}

const fn held(received: u8, answered: u8) -> InCompletion {
    InCompletion { received, answered }
}

/// Both ways that a message takes.
const WAYS: [bool; 2] = [false, true];

fn execute(lab: &mut Lab, qp: &Qp, wr: SendWr) {
    lab.execute(qp, wr);
    lab.advance(1_000_000);
}

/// Data in the completions of a queue pair, and in the memory where they would have gone.
fn found(lab: &Lab, node: usize, qp: &Qp, len: usize) -> (Vec<Vec<u8>>, Vec<u8>) {
    (qp.cq.held(), lab.memory(node).read(base(node) + PLACE, len))
}

#[test]
fn a_message_is_in_its_completion_or_in_memory() {
    for (transport, frames) in [Transport::Rc, Transport::Uc]
        .into_iter()
        .flat_map(|transport| WAYS.map(|way| (transport, way)))
    {
        for limit in [0, 32, 64] {
            for len in [0, 1, 8, 32, 33, 64, 65, 300] {
                let (mut lab, a, b) = pair(transport, held(limit, 0), frames);
                // Of stretches that begin and end anywhere, with inline data among them.
                let data = pattern(len, len as usize);
                lab.memory(0).write(base(0) + PLACE, &data);
                let half = len as u32 / 2;
                let parts = [(0, half), (half, len as u32 - half)];
                let gather = parts.map(|(at, len)| lab.sge(0, PLACE + u64::from(at), len));
                let scatter = [lab.sge(1, PLACE, 5), lab.sge(1, PLACE + 5, 400)];
                let is_held = len > 0 && len <= u64::from(limit);
                let mut inline = request(Operation::SendImm, 2, &[]);
                inline.push_inline(&data).unwrap();
                for wr in [request(Operation::Send, 1, &gather), inline] {
                    lab.memory(1).write(base(1) + PLACE, &[0xee; 400]);
                    lab.receive(&b, 7, &scatter);
                    execute(&mut lab, &a, wr);
                    let what = format!("{transport:?} {frames} {limit} {len}");
                    let entries = b.cq.poll();
                    assert_eq!(received(&entries).len(), 1, "{what}");
                    assert_eq!(received(&entries)[0].1, Status::Success, "{what}");
                    assert_eq!(u64::from(entries[0].byte_len), len, "{what}");
                    let (holds, memory) = found(&lab, 1, &b, data.len());
                    if is_held {
                        assert_eq!(
                            (holds, memory),
                            (vec![data.clone()], vec![0xee; data.len()]),
                            "{what}"
                        );
                    } else {
                        assert_eq!((holds, memory), (vec![], data.clone()), "{what}");
                    }
                    // Who sends has nothing of it.
                    assert_eq!(sent(&a.cq.poll()).len(), 1, "{what}");
                    assert!(a.cq.held().is_empty(), "{what}");
                }
            }
        }
    }
}

#[test]
fn answers_are_in_completions_of_signaled_requests() {
    for frames in WAYS {
        for (limit, len, signaled) in [
            (0, 8, true),
            (32, 32, true),
            (32, 33, true),
            (64, 64, true),
            (64, 8, false),
        ] {
            let (mut lab, a, _b) = pair(Transport::Rc, held(0, limit), frames);
            let what = format!("{frames} {limit} {len} {signaled}");
            let data = pattern(9, len);
            lab.memory(1).write(base(1) + PLACE, &data);
            let key = lab.nodes[1].key;
            let list = [lab.sge(0, PLACE, 3), lab.sge(0, PLACE + 3, len as u32 - 3)];
            let wr = remote(Operation::Read, 1, &list, base(1) + PLACE, key);
            execute(&mut lab, &a, SendWr { signaled, ..wr });
            let (holds, memory) = found(&lab, 0, &a, len);
            if len <= usize::from(limit) && signaled {
                assert_eq!((holds, memory), (vec![data], vec![0; len]), "{what}");
            } else {
                assert_eq!((holds, memory), (vec![], data), "{what}");
            }
            // What is in a list of its own afterwards is a later request's.
            let wr = remote(
                Operation::FetchAdd,
                2,
                &[lab.sge(0, 0x3000, 8)],
                base(1),
                key,
            );
            let atomic = AtomicOperands {
                swap_add: 5,
                ..AtomicOperands::default()
            };
            lab.memory(1).write(base(1), &77_u64.to_le_bytes());
            execute(
                &mut lab,
                &a,
                SendWr {
                    signaled,
                    atomic,
                    ..wr
                },
            );
            let (holds, memory) = (a.cq.held(), lab.memory(0).read(base(0) + 0x3000, 8));
            if limit > 0 && signaled {
                // As adapters have it: there, values are big endian.
                let before = 77_u64.to_be_bytes().to_vec();
                assert_eq!((holds, memory), (vec![before], vec![0; 8]), "{what}");
            } else {
                let before = 77_u64.to_le_bytes().to_vec();
                assert_eq!((holds, memory), (vec![], before), "{what}");
            }
            assert_eq!(lab.memory(1).read(base(1), 8), 82_u64.to_le_bytes());
            let statuses = sent(&a.cq.poll());
            assert!(
                statuses
                    .iter()
                    .all(|(_, status)| *status == Status::Success)
            );
        }
    }
}

/// The memory that a message would go to is looked at no less for its not going there.
#[test]
fn errors_are_as_they_are_without() {
    for frames in WAYS {
        let outcomes = [held(0, 0), held(64, 64)].map(|held| {
            let mut seen = Vec::new();
            for case in 0..6 {
                let (mut lab, a, b) = pair(Transport::Rc, held, frames);
                let mut bad = lab.sge(1, PLACE, 40);
                bad.lkey ^= 1;
                let mut own = lab.sge(0, PLACE, 16);
                let key = lab.nodes[1].key;
                let send = request(Operation::Send, 1, &[own]);
                let (list, wr) = match case {
                    // Too short a list; a key that is none, and one that no byte comes to.
                    0 => (vec![lab.sge(1, PLACE, 15)], send),
                    1 => (vec![bad], send),
                    2 => (vec![lab.sge(1, PLACE, 16), bad], send),
                    // The far end's and the own key of an answer.
                    3 => (vec![], remote(Operation::Read, 1, &[own], base(1), key ^ 1)),
                    4 => {
                        own.lkey ^= 1;
                        (vec![], remote(Operation::Read, 1, &[own], base(1), key))
                    }
                    // A key that cannot be invalidated, when the message has come.
                    _ => {
                        let wr = request(Operation::SendInvalidate, 1, &[own]);
                        (
                            vec![lab.sge(1, PLACE, 16)],
                            SendWr {
                                immediate: key,
                                ..wr
                            },
                        )
                    }
                };
                lab.receive(&b, 7, &list);
                execute(&mut lab, &a, wr);
                let ends = [&a, &b].map(|qp| {
                    let failed = qp.cq.poll();
                    (
                        sent(&failed),
                        received(&failed),
                        lab.state(qp) == QpState::Error,
                    )
                });
                if case != 2 {
                    assert!(a.cq.held().is_empty() && b.cq.held().is_empty(), "{case}");
                }
                seen.push(ends);
            }
            seen
        });
        assert_eq!(outcomes[0], outcomes[1], "{frames}");
    }
}

/// A request that a lost message has begun to fill is filled by the next one, and its completion holds that.
#[test]
fn what_was_held_and_dropped_is_not_told() {
    let (mut lab, a, b) = pair(Transport::Uc, held(64, 0), true);
    lab.receive(&b, 7, &[lab.sge(1, PLACE, 100)]);
    lab.memory(0).write(base(0) + PLACE, &pattern(3, 100));
    // Its key is not there when it comes.
    let long = request(Operation::Send, 1, &[lab.sge(0, PLACE, 101)]);
    execute(&mut lab, &a, long);
    assert!(b.cq.poll().is_empty());
    let short = request(Operation::Send, 2, &[lab.sge(0, PLACE, 90)]);
    execute(&mut lab, &a, short);
    assert_eq!(received(&b.cq.poll()).len(), 1);
    assert!(b.cq.held().is_empty());
    assert_eq!(
        lab.memory(1).read(base(1) + PLACE, 90),
        pattern(3, 100)[..90]
    );
}

#[test]
fn who_moves_goes_on_with_it() {
    let (mut lab, a, b) = pair(Transport::Rc, held(32, 64), false);
    lab.save_and_restore(1, true);
    lab.memory(0).write(base(0) + PLACE, b"short");
    lab.receive(&b, 7, &[lab.sge(1, PLACE, 100)]);
    let short = request(Operation::Send, 1, &[lab.sge(0, PLACE, 5)]);
    execute(&mut lab, &a, short);
    assert_eq!(b.cq.held(), [b"short"]);
    lab.save_and_restore(0, false);
    let key = lab.nodes[1].key;
    let read = remote(Operation::Read, 2, &[lab.sge(0, 0, 7)], base(1), key);
    execute(&mut lab, &a, read);
    assert_eq!(
        sent(&a.cq.poll()),
        [(1, Status::Success), (2, Status::Success)]
    );
    assert_eq!(a.cq.held(), [[0; 7]]);
}
