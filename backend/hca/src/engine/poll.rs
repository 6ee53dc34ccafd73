//! A turn of an engine that looks for work by itself.

use crate::engine::cost::TURN;
use crate::engine::executor::Executor;
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
        for _ in 0..self.requests.completions.scheduler.polling.active.len() {
            if self.requests.completions.scheduler.polling.cursor
                >= self.requests.completions.scheduler.polling.active.len()
            {
                self.requests.completions.scheduler.polling.cursor = 0;
            }
            let Some(&vf) = self
                .requests
                .completions
                .scheduler
                .polling
                .active
                .get(self.requests.completions.scheduler.polling.cursor)
            else {
                break;
            };
            busy |= self.poll_hot(vf, &mut left);
            let polled = &self.objects.vfs[usize::from(vf.0)].polled;
            if polled.sweep_left > 0 || polled.patrol_left > 0 {
                busy |= self
                    .requests
                    .completions
                    .scheduler
                    .polling
                    .look_at_cold(&mut self.objects, vf);
                self.requests.completions.scheduler.polling.cursor += 1;
            } else if !polled.hot.is_empty() {
                self.requests.completions.scheduler.polling.cursor += 1;
            } else {
                self.objects.vfs[usize::from(vf.0)].polled.active = false;
                self.requests
                    .completions
                    .scheduler
                    .polling
                    .active
                    .swap_remove(self.requests.completions.scheduler.polling.cursor);
            }
            if left <= 0 {
                break;
            }
        }
        self.requests.completions.scheduler.polling.turn = self
            .requests
            .completions
            .scheduler
            .polling
            .turn
            .wrapping_add(1);
        if self
            .requests
            .completions
            .scheduler
            .polling
            .turn
            .is_multiple_of(WATCH_EVERY)
            && let Some((cq, nanoseconds)) = self
                .requests
                .completions
                .scheduler
                .polling
                .recheck_one(&mut self.objects)
        {
            self.requests
                .completions
                .hold_event(&mut self.objects, cq, nanoseconds);
        }
        if self
            .requests
            .completions
            .scheduler
            .polling
            .turn
            .is_multiple_of(CLOCK_EVERY)
            || self.network.exits.have_arrivals()
        {
            busy |= self.network.exits.have_arrivals();
            self.look_at_clock();
        }
        if !self.requests.completions.scheduler.is_empty() {
            busy = true;
            // Others' records are looked at between two turns.
            let most = if self.requests.completions.scheduler.had_others() {
                1
            } else {
                usize::MAX
            };
            self.run_round(most);
        }
        busy
    }

    /// Looks at hot records of a function, and gives turns to queue pairs with
    /// work as long as the function's own turn lasts.
    #[inline]
    pub fn poll_hot(&mut self, vf: VfId, left: &mut i64) -> bool {
        // Turns leave the list alone.
        let polled = &mut self.objects.vfs[usize::from(vf.0)].polled;
        let mut hot = std::mem::take(&mut polled.hot);
        let mut at = polled.hot_cursor;
        let (mut allowance, mut budget) = (0, 0);
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
                    self.requests.completions.scheduler.begin(&self.objects, vf);
                    allowance = self
                        .requests
                        .completions
                        .scheduler
                        .allowance(&self.objects, vf, hot.len())
                        .min(*left);
                    budget = allowance;
                }
                self.turn(index, &mut budget);
                if budget <= 0 {
                    break;
                }
            } else if idle >= COOL_AFTER {
                hot.swap_remove(at);
                self.requests
                    .completions
                    .scheduler
                    .polling
                    .cooled(&mut self.objects, index);
            } else {
                hot[at].1 = idle + 1;
                at += 1;
            }
        }
        if busy {
            self.requests
                .completions
                .scheduler
                .end(&mut self.objects, vf, budget <= 0);
        }
        *left -= allowance - budget;
        let polled = &mut self.objects.vfs[usize::from(vf.0)].polled;
        polled.hot = hot;
        polled.hot_cursor = at;
        busy
    }
}
