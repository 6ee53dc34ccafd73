//! Functions that are saved and restored between any two steps of what they do, beside others that do the
//! same and stay: nobody can tell them apart, by what arrives, in which order, by events or by counters.

use proptest::collection::vec;
use proptest::prelude::*;

use hca::work::{CompletionEntry, Operation, RecvWr};
use hca::{Event, QpChange, QpState, RecvSide, Transport};
use serde_json::Value;

use crate::lab::{Lab, QKEY, Qp, Ring, datagram, request};

/// A step of two functions: function 0 sends, function 1 receives.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Over a reliable connection, whose receiver takes from the shared queue; others, likewise.
    Reliable,
    Unreliable,
    Datagram,
    Extended,
    /// A receive request for each of them.
    Receive,
    /// The shared queue's limit is armed.
    Arm(u32),
    /// A receiver fails.
    Fail,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Reliable),
        4 => Just(Step::Unreliable),
        4 => Just(Step::Datagram),
        4 => Just(Step::Extended),
        6 => Just(Step::Receive),
        3 => (1_u32..4).prop_map(Step::Arm),
        1 => Just(Step::Fail),
    ]
}

/// Observable result of a run.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    completions: Vec<Vec<CompletionEntry>>,
    events: Vec<Vec<Event>>,
    memory: Vec<Vec<u8>>,
    counters: Vec<Value>,
}

struct Bench {
    lab: Lab,
    /// Sender and receiver of each kind.
    pairs: Vec<(Qp, Qp)>,
    shared: Ring<RecvWr>,
    extended: Ring<RecvWr>,
    srqn: u32,
    xrc_srqn: u32,
    posted: u16,
    seen: Seen,
}

impl Bench {
    fn new() -> Self {
        let mut lab = Lab::new(2);
        let (vf, pd) = (lab.nodes[1].vf, lab.nodes[1].pd);
        let (shared, extended) = (lab.shared_ring(), lab.shared_ring());
        let srqn = lab
            .engine
            .verbs(vf)
            .create_srq(pd, None, shared.clone())
            .unwrap();
        let xrcd = lab.engine.vf_mut(vf).alloc_xrcd().unwrap();
        let (cqn, cq) = lab.cq(1, 4096);
        let xrc = Some((xrcd, cqn));
        let xrc_srqn = lab
            .engine
            .verbs(vf)
            .create_srq(pd, xrc, extended.clone())
            .unwrap();
        let reliable = (
            lab.qp(0, Transport::Rc),
            lab.qp_with(1, Transport::Rc, |desc| desc.recv = RecvSide::Shared(srqn)),
        );
        let unreliable = (lab.qp(0, Transport::Uc), lab.qp(1, Transport::Uc));
        let datagrams = (lab.qp(0, Transport::Ud), lab.qp(1, Transport::Ud));
        let sender = lab.qp_with(0, Transport::Xrc, |desc| {
            desc.recv = RecvSide::None;
            desc.recv_cqn = None;
        });
        let target = lab.qp_on(1, Transport::Xrc, (cqn, cq), |desc| {
            desc.send = None;
            desc.recv = RecvSide::Xrc(xrcd);
            desc.recv_cqn = None;
        });
        let pairs = vec![reliable, unreliable, datagrams, (sender, target)];
        for (at, (from, to)) in pairs.iter().enumerate() {
            if at == 2 {
                let qkey = Some(QKEY);
                for qp in [from, to] {
                    lab.bring_up(
                        qp,
                        &QpChange {
                            qkey,
                            ..QpChange::default()
                        },
                    );
                }
            } else {
                lab.connect_with(from, to, |_| {});
            }
        }
        for at in 0..64_u64 {
            lab.memory(0).write(crate::lab::base(0) + at, &[at as u8]);
        }
        Self {
            lab,
            pairs,
            shared,
            extended,
            srqn,
            xrc_srqn,
            posted: 0,
            seen: Seen::default(),
        }
    }

    fn send(&mut self, kind: usize) {
        let len = 1 + u32::from(self.posted % 60);
        let list = [self.lab.sge(0, 0, len)];
        let (from, to) = &self.pairs[kind];
        let mut wr = match kind {
            2 => datagram(&self.lab, to, self.posted, &list),
            _ => request(Operation::Send, self.posted, &list),
        };
        if kind == 3 {
            wr.xrc_srqn = self.xrc_srqn;
        }
        self.lab.execute(from, wr);
    }

    fn take(&mut self, step: Step) {
        self.posted += 1;
        match step {
            Step::Reliable => self.send(0),
            Step::Unreliable => self.send(1),
            Step::Datagram => self.send(2),
            Step::Extended => self.send(3),
            Step::Receive => {
                let at = u64::from(self.posted) * 256;
                let list = vec![self.lab.sge(1, at % 0x8000, 200)];
                let wr = || RecvWr {
                    index: self.posted,
                    sges: list.clone(),
                    ..RecvWr::default()
                };
                self.shared.push(Ok(wr()));
                self.extended.push(Ok(wr()));
                for kind in [1, 2] {
                    self.pairs[kind].1.recv.push(Ok(wr()));
                }
            }
            Step::Arm(limit) => {
                let vf = self.lab.nodes[1].vf;
                self.lab.engine.verbs(vf).arm_srq(self.srqn, limit).unwrap();
            }
            Step::Fail => {
                let (_, to) = &self.pairs[0];
                self.lab.modify(to, QpState::Error, &QpChange::default());
            }
        }
    }

    /// A function becomes another one.
    fn move_on(&mut self, node: usize) {
        self.lab.save_and_restore(node, true);
        let qps = self.pairs.iter_mut().flat_map(|(from, to)| [from, to]);
        for qp in qps.filter(|qp| qp.node == node) {
            qp.vf = self.lab.nodes[node].vf;
        }
    }

    fn look(&mut self) {
        let qps = self.pairs.iter().flat_map(|(from, to)| [from, to]);
        self.seen.completions.extend(qps.map(|qp| qp.cq.poll()));
        for node in 0..2 {
            self.seen.events.push(self.lab.events(node));
        }
    }

    /// Whoever waits gives up, or not; and what can be seen at last.
    fn end(mut self) -> Seen {
        for _ in 0..8 {
            self.lab.advance(1_000_000_000);
            self.look();
        }
        for node in 0..2 {
            let image = self.lab.engine.save(self.lab.nodes[node].vf);
            let image = serde_json::to_value(image).unwrap();
            self.seen.counters.push(image["v1"]["counters"].clone());
            self.seen.memory.push(self.lab.memory(node).snapshot());
        }
        self.seen
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn who_moves_is_as_who_stays(
        steps in vec((step(), any::<[bool; 2]>()), 1..32),
    ) {
        let (mut moves, mut stays) = (Bench::new(), Bench::new());
        for (step, moved) in steps {
            for bench in [&mut moves, &mut stays] {
                bench.take(step);
            }
            for (node, moved) in moved.into_iter().enumerate() {
                if moved {
                    moves.move_on(node);
                }
            }
            moves.look();
            stays.look();
        }
        prop_assert_eq!(moves.end(), stays.end());
    }
}
