//! Completion queues.

use crate::engine::Engine;
use crate::objects::ids::{CqIndex, VfId};
use crate::queue_format::QueueFormat;

/// Time until the event of a quiesced function is looked at again, in nanoseconds.
const QUIET_RECHECK: u64 = 1_000_000;

/// Events that are raised for their time before others get a turn.
const EXPIRY_BATCH: usize = 64;

impl<F: QueueFormat> Engine<F> {
    /// The event of a completion queue waits for more entries, no longer than
    /// these nanoseconds (completion queue moderation).
    #[cold]
    pub(crate) fn hold_event(&mut self, cq: CqIndex, nanoseconds: u32) {
        if let Some(state) = self.objects.cqs.get_mut(cq.0) {
            let until = self.clock.now() + u64::from(nanoseconds);
            self.held_events.hold(cq, state, until);
        }
    }

    /// The same for a queue that its owner armed.
    pub fn hold_armed(&mut self, vf: VfId, cqn: u32, nanoseconds: u32) {
        if let Ok(cq) = self.objects.cq_index(vf, cqn) {
            self.hold_event(cq, nanoseconds);
        }
    }

    /// Raises the events that have waited long enough.
    pub(crate) fn expire_events(&mut self, now: u64) {
        for _ in 0..EXPIRY_BATCH {
            let Some((cq, timer)) = self.held_events.fired(now) else {
                return;
            };
            let Some(state) = self.objects.cqs.get_mut(cq.0) else {
                continue;
            };
            if state.timer != timer {
                continue;
            }
            if state.held_until > now {
                self.held_events.set(state.held_until, cq, timer);
                continue;
            }
            if self.objects.vfs[usize::from(state.vf.0)].quiesced.is_some() {
                self.held_events.set(now + QUIET_RECHECK, cq, timer);
                continue;
            }
            state.timer = 0;
            let vf = &mut self.objects.vfs[usize::from(state.vf.0)];
            F::expire(&vf.dma, &mut vf.face, &mut state.ring);
        }
    }
}
