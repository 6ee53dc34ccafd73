//! Work of functions in their turns. Each function has a queue of work, and functions have their turns one after
//! the other. So a function that asks for much waits long itself, and others do not.

use crate::engine::Engine;
use crate::engine::cost::{LOOK_COST, REMOVAL_COST, SHARED_TURN, TIMER_COST, TURN};
use crate::objects::dynamic::Role;
use crate::objects::ids::{QpIndex, VfId};
use crate::queue_format::QueueFormat;
use crate::storage::discarded::Discarded;

/// Alarms of functions that ring at a time; the others follow.
const ALARMS: usize = 64;

impl<F: QueueFormat> Engine<F> {
    /// Executes posted work until none is left or a bounded amount is done.
    /// Returns whether some is left.
    pub fn run(&mut self) -> bool {
        self.look_at_clock();
        // Others may wait for the engine outside, with their doorbells in hand.
        self.run_round(if self.requests.completions.scheduler.had_others() {
            self.requests.completions.scheduler.len()
        } else {
            usize::MAX
        })
    }

    /// So many turns of functions at most, as far as the cost of one long turn goes.
    pub(crate) fn run_round(&mut self, most: usize) -> bool {
        let mut left = TURN;
        let mut turns = 0;
        while left > 0
            && turns < most
            && let Some(vf) = self.requests.completions.scheduler.next()
        {
            turns += 1;
            self.objects.vf_mut(vf).run_queue.queued = false;
            left -= self.visit(vf).max(LOOK_COST);
            if self.objects.vf(vf).run_queue.is_pending() {
                self.requests
                    .completions
                    .scheduler
                    .queue(&mut self.objects, vf);
            }
        }
        !self.requests.completions.scheduler.is_empty() || self.network.exits.have_arrivals()
    }

    /// A turn of one function, out of order, for a caller who brings it work and would have to wait
    /// for another thread to do it.
    pub fn run_vf(&mut self, vf: VfId) {
        if self.is_quiet(vf) {
            return;
        }
        self.visit(vf);
        if self.objects.vf(vf).run_queue.is_pending() {
            self.requests
                .completions
                .scheduler
                .queue(&mut self.objects, vf);
        } else {
            let run_queue = &mut self.objects.vfs[usize::from(vf.0)].run_queue;
            self.requests.completions.scheduler.withdraw(vf, run_queue);
        }
    }

    /// Whether a function has work that waits for its turn.
    #[must_use]
    pub fn is_pending(&self, vf: VfId) -> bool {
        self.objects.vf(vf).run_queue.is_pending()
    }

    /// Whether [`Engine::clear_away`] has something to do.
    #[must_use]
    pub fn has_remains(&self, vf: VfId) -> bool {
        !self.objects.vf(vf).run_queue.remains.is_empty()
    }

    /// When [`Engine::run`] must be called again although nothing rings, in
    /// the clock's nanoseconds; a time in the past when there is work now.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        if !self.requests.completions.scheduler.is_empty() {
            return Some(0);
        }
        let (alarm, held) = (
            self.requests.completions.scheduler.deadline(),
            self.requests.completions.held_events.deadline(),
        );
        [alarm, self.network.exits.deadline(), held]
            .into_iter()
            .flatten()
            .min()
    }
}

impl<F: QueueFormat> Engine<F> {
    /// A turn of one function; returns what it has cost.
    fn visit(&mut self, vf: VfId) -> i64 {
        let allowance = self.requests.completions.scheduler.allowance(
            &self.objects,
            vf,
            self.objects.vf(vf).polled.hot(),
        );
        let mut left = allowance;
        self.requests.completions.scheduler.begin(&self.objects, vf);
        let run_queue = &mut self.objects.vf_mut(vf).run_queue;
        if std::mem::take(&mut run_queue.rang) {
            let now = self.requests.completions.scheduler.clock.now();
            self.timers_due(vf, now, &mut left);
            if self.objects.vf(vf).run_queue.errored.due <= now {
                self.requests
                    .look_at_errored(&mut self.objects, vf, now, &mut left);
            }
            self.requests
                .completions
                .scheduler
                .set_alarm(&mut self.objects, vf);
        }
        self.requests.search_users(&mut self.objects, vf, &mut left);
        while left > 0
            && let Some(index) = self.objects.vf_mut(vf).run_queue.ready.pop_front()
        {
            // Another one may have its place by now, which has its turn early then.
            match self.objects.qps.get_mut(index.0) {
                Some(qp) if qp.req.queued && qp.core.vf == vf => {
                    qp.req.queued = false;
                    while left > 0
                        && let Some(qp) = self.objects.qps.get_mut(index.0)
                        && !qp.req.line.is_empty()
                        && let Some(arrived) = qp.next_arrived()
                    {
                        self.carry_out(index, arrived, &mut left);
                    }
                    self.turn(index, &mut left);
                }
                _ => left -= LOOK_COST,
            }
        }
        // An owner that is told of a completion queue that failed in this turn finds its users failed, if they are
        // few.
        self.requests.search_users(&mut self.objects, vf, &mut left);
        self.requests
            .completions
            .scheduler
            .end(&mut self.objects, vf, left <= 0);
        allowance - left
    }

    /// Queues functions that have something due.
    pub(crate) fn look_at_clock(&mut self) {
        let nothing = !self.requests.completions.scheduler.has_alarms()
            && self.network.exits.deadline().is_none();
        if nothing && self.requests.completions.held_events.is_empty() {
            return;
        }
        let now = self.requests.completions.scheduler.clock.now();
        for _ in 0..ALARMS {
            let Some(vf) = self.requests.completions.scheduler.ring(now) else {
                break;
            };
            let run_queue = &mut self.objects.vf_mut(vf).run_queue;
            run_queue.alarm = u64::MAX;
            run_queue.rang = true;
            self.requests
                .completions
                .scheduler
                .queue(&mut self.objects, vf);
        }
        if self.network.exits.deadline().is_some_and(|at| at <= now) {
            self.arrivals(now);
        }
        self.requests
            .completions
            .expire_events(&mut self.objects, now);
    }

    fn timers_due(&mut self, vf: VfId, now: u64, left: &mut i64) {
        while *left > 0
            && let Some(&(at, index, id)) = self.objects.vf(vf).run_queue.timers.first()
            && at <= now
        {
            self.objects.vf_mut(vf).run_queue.timers.pop_first();
            *left -= TIMER_COST;
            self.timer_fired(QpIndex(index), id);
        }
    }
}

impl<F: QueueFormat> Engine<F> {
    /// Takes away objects that a function had before it was reset, a bounded number of them; returns whether some
    /// are left. The objects are discarded.
    pub fn clear_away(&mut self, vf: VfId) -> bool {
        let mut left = SHARED_TURN;
        while left > 0
            && let Some(remains) = self.objects.vf_mut(vf).run_queue.remains.last_mut()
        {
            left -= REMOVAL_COST;
            if let Some(slot) = remains.qps.pop() {
                if let Some(qp) = slot.and_then(|index| self.objects.qps.remove(index.0)) {
                    if let Role::Target(target) = &qp.resp.role {
                        for context in target.contexts() {
                            left -= REMOVAL_COST;
                            if let Some(context) = self.objects.qps.remove(context.0) {
                                self.requests.discarded.keep(context);
                            }
                        }
                    }
                    self.requests.discarded.keep(qp);
                }
            } else if let Some(slot) = remains.cqs.pop() {
                if let Some(cq) = slot.and_then(|index| self.objects.cqs.remove(index.0)) {
                    self.requests.discarded.keep(cq);
                }
            } else if let Some(slot) = remains.srqs.pop() {
                if let Some(srq) = slot.and_then(|index| self.objects.srqs.remove(index.0)) {
                    self.requests.discarded.keep(srq);
                }
            } else {
                self.objects.vf_mut(vf).run_queue.remains.pop();
            }
        }
        !self.objects.vf(vf).run_queue.remains.is_empty()
    }
}

impl<F: QueueFormat> Engine<F> {
    /// Whether [`Engine::take_discarded`] has something.
    #[inline]
    #[must_use]
    pub fn has_discarded(&self) -> bool {
        !self.requests.discarded.is_empty()
    }

    /// Takes the objects that are of no use any more. The caller drops them where nobody waits.
    pub fn take_discarded(&mut self) -> Discarded {
        std::mem::take(&mut self.requests.discarded)
    }
}
