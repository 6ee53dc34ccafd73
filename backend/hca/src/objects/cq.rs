//! Completion queues.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::objects::ids::{CqIndex, VfId};
use crate::queue_format::QueueFormat;
use crate::storage::slab::Slab;

/// All completion queues, by index.
pub(crate) type CompletionQueues<F> = Slab<Cq<F>>;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq<F: QueueFormat> {
    pub vf: VfId,
    pub cqn: u32,
    pub ring: F::Completion,
    /// Queue pairs and XRC shared receive queues that complete here.
    pub users: u32,
    /// Overran or lost its memory; takes no more entries.
    pub failed: bool,
    /// The engine looks at its arming.
    pub watched: bool,
    /// Entries wait to be written at the end of this turn.
    pub unwritten: bool,
    /// When its event, which waits for more entries, waits no longer, in the
    /// clock's nanoseconds.
    pub held_until: u64,
    /// Number of the timer that is set for it, or zero.
    pub timer: u64,
}

/// Events of completion queues that wait for more entries.
#[derive(Debug, Default)]
pub(crate) struct HeldEvents {
    /// Timers: when, which queue's, and the timer's number. A queue has one at a time, besides those of
    /// queues that are gone.
    timers: BinaryHeap<Reverse<(u64, u32, u64)>>,
    /// Number of the last timer.
    last: u64,
}

impl HeldEvents {
    /// Whether no event waits.
    pub fn is_empty(&self) -> bool {
        self.timers.is_empty()
    }

    /// When the first one has waited long enough, in the clock's nanoseconds.
    pub fn deadline(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse((at, ..))| *at)
    }

    /// Has the event of a completion queue wait until then.
    pub fn hold<F: QueueFormat>(&mut self, index: CqIndex, cq: &mut Cq<F>, until: u64) {
        cq.held_until = until;
        // A timer that is set already fires sooner and is then set anew.
        if cq.timer == 0 {
            self.last += 1;
            cq.timer = self.last;
            self.set(until, index, cq.timer);
        }
    }

    pub fn set(&mut self, until: u64, index: CqIndex, timer: u64) {
        self.timers.push(Reverse((until, index.0, timer)));
    }

    /// A timer that has fired: the queue and the timer's number.
    pub fn fired(&mut self, now: u64) -> Option<(CqIndex, u64)> {
        self.deadline().filter(|&at| at <= now)?;
        let Reverse((_, index, timer)) = self.timers.pop()?;
        Some((CqIndex(index), timer))
    }
}

impl<F: QueueFormat> Cq<F> {
    pub const fn new(vf: VfId, cqn: u32, ring: F::Completion) -> Self {
        Self {
            vf,
            cqn,
            ring,
            users: 0,
            failed: false,
            watched: false,
            unwritten: false,
            held_until: 0,
            timer: 0,
        }
    }
}
