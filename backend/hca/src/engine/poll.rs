//! A turn of an engine that looks for work by itself.

use crate::budget::{Budget, TURN};
use crate::engine::executor::Executor;
use crate::engine::polling::Polling;
use crate::objects::ids::VfId;
use crate::queue_format::QueueFormat;

/// Hot records of a function looked at per turn.
const HOT_LOOKS: usize = 64;
/// Turns between two reads of the clock.
const CLOCK_EVERY: u32 = 64;
/// Turns without work after which a queue pair is no longer hot.
const COOL_AFTER: u32 = 20_000;
/// Turns between two looks at the arming of a completion queue. It lies beside
/// the index that the guest's processor writes at each completion it takes, and
/// each look takes that line from it.
const WATCH_EVERY: u32 = 16;

impl<F: QueueFormat> Executor<F> {
    /// See [`Engine::poll`](crate::Engine::poll).
    pub fn poll(&mut self) -> bool {
        let mut busy = false;
        let mut left = TURN;
        for _ in 0..self.polling().active.len() {
            let polling = self.polling();
            if polling.cursor >= polling.active.len() {
                polling.cursor = 0;
            }
            let Some(&vf) = polling.active.get(polling.cursor) else {
                break;
            };
            busy |= self.poll_hot(vf, &mut left);
            let polling = &mut self.requests.completions.scheduler.polling;
            let polled = &mut self.objects.vf_mut(vf).polled;
            if polled.sweep_left > 0 || polled.patrol_left > 0 {
                busy |= polling.look_at_cold(&mut self.objects, vf);
                polling.cursor += 1;
            } else if !polled.hot.is_empty() {
                polling.cursor += 1;
            } else {
                polled.active = false;
                polling.active.swap_remove(polling.cursor);
            }
            if !left.is_left() {
                break;
            }
        }
        let completions = &mut self.requests.completions;
        let polling = &mut completions.scheduler.polling;
        polling.turn = polling.turn.wrapping_add(1);
        let (watches, looks) = (
            polling.turn.is_multiple_of(WATCH_EVERY),
            polling.turn.is_multiple_of(CLOCK_EVERY),
        );
        if watches && let Some((cq, nanoseconds)) = polling.recheck_one(&mut self.objects) {
            completions.hold_event(&mut self.objects, cq, nanoseconds);
        }
        if looks || self.network.exits.have_arrivals() {
            busy |= self.network.exits.have_arrivals();
            self.look_at_clock();
        }
        let scheduler = &self.requests.completions.scheduler;
        if !scheduler.is_empty() {
            busy = true;
            // Others' records are looked at between two turns.
            let others = scheduler.had_others();
            self.run_round(if others { 1 } else { usize::MAX });
        }
        busy
    }

    #[inline]
    const fn polling(&mut self) -> &mut Polling<F> {
        &mut self.requests.completions.scheduler.polling
    }

    /// Looks at hot records of a function, and gives turns to queue pairs with
    /// work as long as the function's own turn lasts.
    #[inline]
    pub fn poll_hot(&mut self, vf: VfId, left: &mut Budget) -> bool {
        // Turns leave the list alone.
        let polled = &mut self.objects.vfs[usize::from(vf.0)].polled;
        let mut hot = std::mem::take(&mut polled.hot);
        let mut at = polled.hot_cursor;
        let (mut allowance, mut budget) = (Budget::NONE, Budget::NONE);
        let mut busy = false;
        for _ in 0..hot.len().min(HOT_LOOKS) {
            if at >= hot.len() {
                at = 0;
            }
            let (index, idle) = hot[at];
            if self.objects.has_work(index) {
                hot[at].1 = 0;
                at += 1;
                if !busy {
                    busy = true;
                    let scheduler = &mut self.requests.completions.scheduler;
                    scheduler.begin(&self.objects, vf);
                    allowance = scheduler.allowance(&self.objects, vf, hot.len()).min(*left);
                    budget = allowance;
                }
                self.turn(index, &mut budget);
                if !budget.is_left() {
                    break;
                }
            } else if idle >= COOL_AFTER {
                hot.swap_remove(at);
                let polling = &mut self.requests.completions.scheduler.polling;
                polling.cooled(&mut self.objects, index);
            } else {
                hot[at].1 = idle + 1;
                at += 1;
            }
        }
        if busy {
            let scheduler = &mut self.requests.completions.scheduler;
            scheduler.end(&mut self.objects, vf, !budget.is_left());
        }
        left.charge(allowance, budget);
        let polled = &mut self.objects.vfs[usize::from(vf.0)].polled;
        polled.hot = hot;
        polled.hot_cursor = at;
        busy
    }
}
