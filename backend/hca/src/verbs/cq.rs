//! Completion queues.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::engine::{CqIndex, Engine, VfId};
use crate::face::Face;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq<F: Face> {
    pub vf: VfId,
    pub cqn: u32,
    pub ring: F::Completion,
    /// Queue pairs and XRC shared receive queues that complete here.
    pub users: u32,
    /// Overran or lost its memory; takes no more entries.
    pub failed: bool,
    /// The engine looks at its arming.
    pub watched: bool,
    /// When its event, which waits for more entries, waits no longer, in the
    /// clock's nanoseconds.
    pub held_until: u64,
    /// Number of the timer that is set for it, or zero.
    pub timer: u64,
}

/// Timers of completion queues whose events wait: when, which, and the timer's
/// number. A queue has one at a time, those of queues that are gone apart.
pub(crate) type HeldEvents = BinaryHeap<Reverse<(u64, u32, u64)>>;

/// How much later the event of a function that is quiet is looked at again, in nanoseconds.
const QUIET_RECHECK: u64 = 1_000_000;

/// Events that are raised for their time before others get a turn.
const EXPIRED_AT_ONCE: usize = 64;

impl<F: Face> Engine<F> {
    /// The event of a completion queue waits for more entries, no longer than
    /// these nanoseconds (completion queue moderation).
    #[cold]
    pub(crate) fn hold_event(&mut self, cq: CqIndex, nanoseconds: u32) {
        let Some(state) = self.cqs.get_mut(cq.0) else {
            return;
        };
        state.held_until = self.clock.now() + u64::from(nanoseconds);
        // A timer that is set already fires sooner and is then set anew.
        if state.timer == 0 {
            self.next_timer += 1;
            state.timer = self.next_timer;
            self.held_events
                .push(Reverse((state.held_until, cq.0, state.timer)));
        }
    }

    /// The same for a queue that its owner armed.
    pub fn hold_armed(&mut self, vf: VfId, cqn: u32, nanoseconds: u32) {
        if let Ok(cq) = self.cq_index(vf, cqn) {
            self.hold_event(cq, nanoseconds);
        }
    }

    /// Raises the events that have waited long enough.
    pub(crate) fn expire_events(&mut self, now: u64) {
        for _ in 0..EXPIRED_AT_ONCE {
            match self.held_events.peek() {
                Some(&Reverse((at, ..))) if at <= now => {}
                _ => return,
            }
            let Some(Reverse((_, cq, timer))) = self.held_events.pop() else {
                return;
            };
            let Some(state) = self.cqs.get_mut(cq) else {
                continue;
            };
            if state.timer != timer {
                continue;
            }
            if state.held_until > now {
                self.held_events
                    .push(Reverse((state.held_until, cq, timer)));
                continue;
            }
            if self.vfs[usize::from(state.vf.0)].quiet.is_some() {
                let later = now + QUIET_RECHECK;
                self.held_events.push(Reverse((later, cq, timer)));
                continue;
            }
            state.timer = 0;
            let vf = &mut self.vfs[usize::from(state.vf.0)];
            F::expire(&vf.dma, &mut vf.face, &mut state.ring);
        }
    }
}

impl<F: Face> Cq<F> {
    pub const fn new(vf: VfId, cqn: u32, ring: F::Completion) -> Self {
        Self {
            vf,
            cqn,
            ring,
            users: 0,
            failed: false,
            watched: false,
            held_until: 0,
            timer: 0,
        }
    }
}
