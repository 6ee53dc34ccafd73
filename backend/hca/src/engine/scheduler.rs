//! The order of turns: functions with work, and functions with something due.

mod timers;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::budget::{Budget, SHARED_TURN, TURN};
use crate::engine::polling::Polling;
use crate::objects::Objects;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::vf::run_queue::RunQueue;
use crate::queue_format::QueueFormat;

/// Turns in a row after which a function counts as the only one with work: short ones, so that a
/// neighbour that sends a message every millisecond is still considered.
const ALONE_AFTER: u32 = 1024;

/// Longest time of a turn beyond its first request while others have work, in nanoseconds.
const LONGEST_SHARED: u64 = 2000;
/// Time in nanoseconds after which a turn that was used up counts as slow, and below which it does not.
const SLOW_TURN_NS: u64 = 3000;
const FAST_TURN_NS: u64 = 1000;
/// Largest number of times that a shared turn is halved.
const MAX_SLOWNESS: u32 = 3;
/// Requests between two looks at the clock.
const REQUESTS_PER_LOOK: u32 = 8;

/// A source of time in nanoseconds that only moves forward.
pub trait Clock: std::fmt::Debug + Send + Sync {
    /// Now.
    fn now(&self) -> u64;
}

/// The order of functions' turns. The work of a function's turn is in its [`RunQueue`].
#[derive(Debug)]
pub(crate) struct Scheduler<F: QueueFormat> {
    pub clock: Arc<dyn Clock>,
    pub polling: Polling<F>,
    /// Functions with work, in the order of their turns.
    round: VecDeque<VfId>,
    /// When which function has something to do without anybody asking.
    alarms: BTreeSet<(u64, VfId)>,
    /// Number of the last timer that was set.
    timers: u64,
    /// The function that had the last turn, and how many it has until it counts as the only one.
    last: Option<VfId>,
    not_alone: u32,
    /// When the turn in hand began, if it is measured.
    begun: Option<u64>,
    /// Requests that the turn in hand has executed, and when it is to end, on the clock.
    requests: u32,
    until: u64,
}

impl<F: QueueFormat> Scheduler<F> {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            polling: Polling::new(),
            round: VecDeque::new(),
            alarms: BTreeSet::new(),
            timers: 0,
            last: None,
            not_alone: 0,
            begun: None,
            requests: 0,
            until: 0,
        }
    }

    /// Whether no function has work.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.round.is_empty()
    }

    /// Number of functions with work.
    pub fn len(&self) -> usize {
        self.round.len()
    }

    /// Whether nothing is due at any time.
    #[inline]
    pub fn has_alarms(&self) -> bool {
        !self.alarms.is_empty()
    }

    /// When the first function has something due, in the clock's nanoseconds.
    pub fn deadline(&self) -> Option<u64> {
        self.alarms.first().map(|&(at, _)| at)
    }

    /// Whether functions besides the one with this run queue have work, or had some lately: who had some
    /// is likely to be back before a long turn ends, and may wait for it outside.
    #[inline]
    pub fn has_others(&self, run_queue: &RunQueue) -> bool {
        self.round.len() > usize::from(run_queue.queued) || self.had_others()
    }

    /// Whether several functions had turns lately.
    #[inline]
    pub const fn had_others(&self) -> bool {
        self.not_alone > 0
    }

    /// Whether the turn in hand, which has executed one more request, has taken so long that others
    /// have waited enough. Costs are what requests take as a rule: memory that nobody has touched, and
    /// lists that are in no cache, take many times as long.
    #[inline]
    pub fn takes_long(&mut self) -> bool {
        self.requests += 1;
        if self.requests == 1 {
            self.until = self.clock.now() + LONGEST_SHARED;
            return false;
        }
        self.requests.is_multiple_of(REQUESTS_PER_LOOK) && self.clock.now() > self.until
    }

    /// A function has a turn.
    #[inline]
    pub fn begin(&mut self, objects: &Objects<F>, vf: VfId) {
        let run_queue = &objects.vfs[usize::from(vf.0)].run_queue;
        self.requests = 0;
        if self.last == Some(vf) {
            self.not_alone = self.not_alone.saturating_sub(1);
        } else {
            let first = self.last.replace(vf).is_none();
            self.not_alone = if first { 0 } else { ALONE_AFTER };
        }
        // Two looks at the clock take a twentieth of the time of 64 KiB, and nobody waits for one that is alone.
        let is_measured = run_queue.used_up && self.had_others();
        self.begun = is_measured.then(|| self.clock.now());
    }

    /// The function's turn ends. A budget is charged with the time that work takes as a rule: a function with memory that
    /// nobody has touched, or with lists that are in no cache, gets shorter turns.
    #[inline]
    pub fn end(&mut self, objects: &mut Objects<F>, vf: VfId, used_up: bool) {
        let run_queue = &mut objects.vfs[usize::from(vf.0)].run_queue;
        run_queue.used_up = used_up;
        if let Some(begun) = self.begun.take() {
            let slowness = &mut run_queue.slowness;
            match self.clock.now().saturating_sub(begun) {
                SLOW_TURN_NS.. => *slowness = (*slowness + 1).min(MAX_SLOWNESS),
                ..FAST_TURN_NS => *slowness = slowness.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// A number for a timer; no two timers have the same.
    #[inline]
    pub const fn timer(&mut self) -> u64 {
        self.timers += 1;
        self.timers
    }

    /// A function is to have a turn.
    #[inline]
    pub fn queue(&mut self, objects: &mut Objects<F>, vf: VfId) {
        self.push(vf, &mut objects.vf_mut(vf).run_queue);
    }

    #[inline]
    fn push(&mut self, vf: VfId, run_queue: &mut RunQueue) {
        if !run_queue.queued {
            run_queue.queued = true;
            self.round.push_back(vf);
        }
    }

    /// The function whose turn it is. It is out of the list then: say so to its run queue.
    #[inline]
    pub fn next(&mut self) -> Option<VfId> {
        self.round.pop_front()
    }

    /// A function has had its turn out of order: it needs no other one, if it is the last in the list.
    pub fn withdraw(&mut self, vf: VfId, run_queue: &mut RunQueue) {
        if self.round.back() == Some(&vf) {
            self.round.pop_back();
            run_queue.queued = false;
        }
    }

    /// A function that rests has no turns: it counts as one whose turn comes, and is in no list.
    pub fn quiesce(&mut self, vf: VfId, run_queue: &mut RunQueue) {
        self.round.retain(|&it| it != vf);
        self.forget_alarm(vf, run_queue);
        run_queue.queued = true;
        run_queue.rests = true;
    }

    /// The function may have turns again.
    pub fn resume(&mut self, vf: VfId, run_queue: &mut RunQueue) {
        run_queue.queued = false;
        run_queue.rests = false;
        if run_queue.is_pending() {
            self.push(vf, run_queue);
        }
        self.set(vf, run_queue);
    }

    /// Takes note of when a function's next timer is due.
    pub fn set_alarm(&mut self, objects: &mut Objects<F>, vf: VfId) {
        self.set(vf, &mut objects.vf_mut(vf).run_queue);
    }

    fn set(&mut self, vf: VfId, run_queue: &mut RunQueue) {
        let due = run_queue.due();
        if run_queue.rests || run_queue.rang || due == run_queue.alarm {
            return;
        }
        self.forget_alarm(vf, run_queue);
        run_queue.alarm = due;
        if due != u64::MAX {
            self.alarms.insert((due, vf));
        }
    }

    /// A function has nothing due.
    pub fn forget_alarm(&mut self, vf: VfId, run_queue: &mut RunQueue) {
        let alarm = std::mem::replace(&mut run_queue.alarm, u64::MAX);
        self.alarms.remove(&(alarm, vf));
    }

    /// A function that has something due now, no more than once for each time.
    pub fn ring(&mut self, now: u64) -> Option<VfId> {
        let first = self.alarms.first().filter(|&&(at, _)| at <= now);
        let (_, vf) = first.copied()?;
        self.alarms.pop_first();
        Some(vf)
    }

    /// A queue pair is to have a turn.
    #[inline]
    pub fn make_ready(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        if let Some(qp) = objects.qps.get_mut(index.0)
            && !qp.req.queued
        {
            qp.req.queued = true;
            let vf = qp.core.vf;
            let run_queue = &mut objects.vfs[usize::from(vf.0)].run_queue;
            run_queue.ready.push_back(index);
            self.push(vf, run_queue);
        }
    }

    /// Time of the turn that `vf` may have now, which has so many hot queue pairs.
    #[inline]
    pub fn allowance(&self, objects: &Objects<F>, vf: VfId, hot: usize) -> Budget {
        let run_queue = &objects.vf(vf).run_queue;
        if self.has_others(run_queue) || self.polling.is_hot_beside(hot) {
            SHARED_TURN.halved(run_queue.slowness)
        } else {
            TURN
        }
    }
}
