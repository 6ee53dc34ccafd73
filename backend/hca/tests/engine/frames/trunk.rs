//! Two engines, joined by a link that carries frames: each side of a connection is alone with itself.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use hca::transport::{Endpoint, Frame, Outside, Transmit};
use hca::work::{Operation, RecvKind, Status};
use hca::{QpState, Transport, VfId};
use wire::Lid;

use crate::frames::slow::{outcome, programs, task};
use crate::lab::{Lab, Qp, base, datagram, pattern, received, request, sent};

type Queue = Arc<Mutex<VecDeque<Frame>>>;

/// One end of a link, for one function.
#[derive(Debug)]
struct Trunk {
    vf: VfId,
    there: Queue,
    back: Queue,
}

impl Endpoint for Trunk {
    fn transmit(&mut self, frame: Transmit, _: &mut Outside<'_>) {
        self.there.lock().unwrap().push_back(frame.frame);
    }

    fn receive(&mut self, _: u64) -> Option<Transmit> {
        let frame = self.back.lock().unwrap().pop_front()?;
        Some(Transmit::arrival(self.vf, frame))
    }

    fn deadline(&self) -> Option<u64> {
        let any = !self.back.lock().unwrap().is_empty();
        any.then_some(0)
    }

    fn carries(&self, _: VfId, to: VfId) -> bool {
        to == self.vf && self.deadline().is_some()
    }
}

/// Two laboratories: function 0 of the first and function 1 of the second know each other by their
/// LIDs.
struct Two([Lab; 2]);

impl Two {
    fn new() -> Self {
        let mut labs = [Lab::new(2), Lab::new(2)];
        let queues: [Queue; 2] = Default::default();
        for (here, lab) in labs.iter_mut().enumerate() {
            let trunk = Trunk {
                vf: VfId(here as u16),
                there: Arc::clone(&queues[1 - here]),
                back: Arc::clone(&queues[here]),
            };
            let link = lab.engine.add_link(Box::new(trunk));
            let other = Lid::new(2 - here as u16);
            lab.net.change(|net| {
                net.lids.remove(&other);
                net.beyond.insert(other, link);
            });
        }
        Self(labs)
    }

    fn pair(&mut self, transport: Transport) -> (Qp, Qp) {
        let (a, b) = (self.0[0].qp(0, transport), self.0[1].qp(1, transport));
        for (lab, qp, peer) in [(0, &a, &b), (1, &b, &a)] {
            let mut change = self.0[lab].attributes(peer);
            (change.rnr_retry, change.retry_count) = (Some(3), Some(7));
            self.0[lab].bring_up(qp, &change);
        }
        (a, b)
    }

    fn settle(&mut self) {
        let mut turns = 0;
        while self.0.iter_mut().any(|lab| {
            lab.engine.wake();
            lab.engine.run()
        }) {
            turns += 1;
            assert!(turns < 1_000_000, "they do not come to rest");
        }
    }

    /// Lets time pass.
    fn advance(&mut self, nanoseconds: u64) {
        for lab in &self.0 {
            lab.clock_forward(nanoseconds);
        }
        self.settle();
    }
}

#[test]
fn datagrams_cross_the_link() {
    let mut two = Two::new();
    let (a, b) = two.pair(Transport::Ud);
    let [near, far] = &two.0;
    far.receive(&b, 7, &[far.sge(1, 0, 64)]);
    near.memory(0).write(base(0), b"over there");
    let wr = datagram(near, &b, 1, &[near.sge(0, 0, 10)]);
    two.0[0].post(&a, wr);
    two.settle();
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    let expected = [(7, Status::Success, 50, RecvKind::Send, 0)];
    assert_eq!(received(&b.cq.poll()), expected);
    assert_eq!(two.0[1].memory(1).read(base(1) + 40, 10), b"over there");
}

#[test]
fn nobody_is_there() {
    let mut two = Two::new();
    let (a, b) = two.pair(Transport::Rc);
    two.0[1].engine.verbs(b.vf).destroy_qp(b.qpn).unwrap();
    two.0[0].post(&a, request(Operation::Send, 1, &[]));
    two.settle();
    for _ in 0..16 {
        two.advance(crate::lab::TIMEOUT_NS);
    }
    assert_eq!(sent(&a.cq.poll()), [(1, Status::RetryExceeded)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whether the other side is of the same engine makes no difference.
    #[test]
    fn two_engines_do_what_one_does(
        program in programs(),
        receives in 0..40_usize,
        reliable in any::<bool>(),
    ) {
        let transport = if reliable { Transport::Rc } else { Transport::Uc };
        let one = outcome(&program, |_| {}, receives, transport);
        let mut two = Two::new();
        let (a, b) = two.pair(transport);
        two.0[0].memory(0).write(base(0), &pattern(1, 20_000));
        two.0[1].memory(1).write(base(1), &pattern(2, 20_000));
        for index in 0..receives {
            let lab = &two.0[1];
            lab.receive(&b, index as u16, &[lab.sge(1, 30_000, 10_000)]);
        }
        for (at, &(kind, place, len, now)) in program.iter().enumerate() {
            let lab = &mut two.0[0];
            let wr = task(lab, at as u16, (kind, place, len));
            lab.post(&a, wr);
            if now {
                two.settle();
            }
        }
        two.settle();
        for _ in 0..100 {
            two.advance(1_000_000);
        }
        let (sends, receives) = (sent(&a.cq.poll()), received(&b.cq.poll()));
        prop_assert_eq!(&one.0, &sends);
        prop_assert_eq!(&one.1, &receives);
        let memory = [0, 1].map(|node| two.0[node].memory(node).read(base(node), 50_000));
        prop_assert!(one.2 == memory, "memory differs");
        let failed = sends.iter().any(|(_, status)| *status == Status::Flushed);
        let state = two.0[0].state(&a);
        prop_assert!(!failed || state != QpState::ReadyToSend);
    }
}
