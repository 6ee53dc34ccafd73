//! Finding work without being told: queue pairs whose doorbell pages the guest
//! writes without leaving the guest.
//!
//! The doorbell *record* of each queue pair is reliable, the doorbell page only
//! a hint (queue pairs of one process overwrite each other there). Looking at
//! every record on every turn would make each turn as long as there are queue
//! pairs, so the engine looks at those that were busy lately (`hot`) on every
//! turn, and at the others a few at a time, when a hint says that something
//! was rung.

use crate::engine::{CqIndex, Engine, QpIndex, VfId};
use crate::face::{Attention, Face};
use crate::qp::{QpState, Wait};
use wire::Qpn;

/// Turns without work after which a queue pair is no longer hot.
const COOL_AFTER: u32 = 20_000;
/// Cold records looked at per turn while a sweep is on.
const SWEEP_STEP: usize = 2;
/// Turns, at most, between two cold records that are looked at for queue pairs
/// whose doorbells were overwritten by those of busy ones. The fewer there are,
/// the more of them stay in the cache, and the less a look costs.
const PATROL_EVERY: u32 = 256;
/// Turns between two reads of the clock.
const CLOCK_EVERY: u32 = 64;
/// Turns between two looks at the arming of a completion queue. It lies beside
/// the index that the guest's processor writes at each completion it takes, and
/// each look takes that line from it.
const WATCH_EVERY: u32 = 16;

#[derive(Debug, Default)]
pub(crate) struct PollState {
    /// All polled queue pairs.
    all: Vec<QpIndex>,
    /// Those busy lately, with the turns they were idle.
    hot: Vec<(QpIndex, u32)>,
    cursor: usize,
    /// Records still to look at in this sweep.
    sweep_left: usize,
    /// Records to look at now and then, when the sweep is over.
    patrol_left: usize,
    /// Turns until the next of these.
    patrol_pause: u32,
    /// Completion queues whose arming the guest does not announce.
    watched: Vec<CqIndex>,
    watch_cursor: usize,
    turn: u32,
}

impl PollState {
    pub fn add(&mut self, qp: QpIndex) {
        self.all.push(qp);
    }

    pub fn forget_qps(&mut self, gone: impl Fn(QpIndex) -> bool) {
        self.all.retain(|&qp| !gone(qp));
        self.hot.retain(|&(qp, _)| !gone(qp));
    }

    pub fn forget_cqs(&mut self, gone: impl Fn(CqIndex) -> bool) {
        self.watched.retain(|&cq| !gone(cq));
    }

    /// Keeps no room for what has gone.
    pub fn shrink(&mut self) {
        self.all.shrink_to(2 * self.all.len());
        self.hot.shrink_to(2 * self.hot.len());
        self.watched.shrink_to(2 * self.watched.len());
    }

    pub fn watch(&mut self, cq: CqIndex) {
        self.watched.push(cq);
    }
}

impl<F: Face> Engine<F> {
    /// A doorbell page of `vf` says that `qpn` was rung. Others may have been
    /// rung before it and overwritten.
    pub fn hint(&mut self, vf: VfId, qpn: Qpn) {
        let known = self.qp_index(vf, qpn).ok();
        if known.is_some_and(|index| self.heat(index)) {
            // One that rested was rung: others are likely to follow, or were.
            self.sweep();
        } else {
            // Busy ones ring all the time. A cold record costs several cache
            // misses, which those must not pay for on every turn.
            self.poll.patrol_left = self.poll.all.len();
        }
    }

    /// Starts looking at every polled queue pair's record, a few per turn.
    pub fn sweep(&mut self) {
        self.poll.sweep_left = self.poll.all.len();
    }

    /// Whether any queue pair needs polling.
    #[must_use]
    pub fn polls(&self) -> bool {
        !self.poll.all.is_empty()
    }

    /// Whether any queue pair was busy lately, and is looked at on every turn.
    #[inline]
    #[must_use]
    pub fn is_hot(&self) -> bool {
        !self.poll.hot.is_empty()
    }

    /// One turn: looks for posted work and does some of it. Returns whether
    /// there was any.
    pub fn poll(&mut self) -> bool {
        let mut busy = false;
        let mut at = 0;
        while at < self.poll.hot.len() {
            let (index, idle) = self.poll.hot[at];
            if self.has_work(index) {
                busy = true;
                self.poll.hot[at].1 = 0;
                self.turn(index);
                at += 1;
            } else if idle >= COOL_AFTER {
                self.poll.hot.swap_remove(at);
                if let Some(qp) = self.qps.get_mut(index.0) {
                    qp.core.hot = false;
                }
            } else {
                self.poll.hot[at].1 = idle + 1;
                at += 1;
            }
        }
        for _ in 0..self.cold_looks() {
            self.poll.cursor += 1;
            if self.poll.cursor >= self.poll.all.len() {
                self.poll.cursor = 0;
            }
            let Some(&index) = self.poll.all.get(self.poll.cursor) else {
                continue;
            };
            if self.has_work(index) {
                self.heat(index);
                busy = true;
            }
        }
        self.poll.turn = self.poll.turn.wrapping_add(1);
        if self.poll.turn.is_multiple_of(WATCH_EVERY) {
            self.recheck_one();
        }
        let clock_due = self.poll.turn.is_multiple_of(CLOCK_EVERY);
        if !self.ready.is_empty() || clock_due {
            busy |= self.run_ready(clock_due);
        }
        busy
    }

    /// Whether a turn of this queue pair would find something to do. One that
    /// waits for a timer has nothing, whatever is posted.
    #[inline]
    fn has_work(&self, index: QpIndex) -> bool {
        self.qps.get(index.0).is_some_and(|qp| {
            let executes = match qp.core.state {
                QpState::ReadyToSend => qp.req.wait == Wait::None,
                QpState::Error | QpState::SendQueueError => true,
                _ => false,
            };
            executes
                && qp.req.flight.as_ref().is_none_or(|flight| !flight.full)
                && qp
                    .req
                    .queue
                    .as_ref()
                    .is_some_and(|queue| F::send_posted(&self.vf(qp.core.vf).dma, queue))
        })
    }

    /// How many cold records to look at in this turn.
    #[inline]
    fn cold_looks(&mut self) -> usize {
        let poll = &mut self.poll;
        if poll.sweep_left > 0 {
            let looks = SWEEP_STEP.min(poll.sweep_left);
            poll.sweep_left -= looks;
            looks
        } else if poll.patrol_left > 0 && poll.patrol_pause == 0 {
            poll.patrol_left -= 1;
            poll.patrol_pause = PATROL_EVERY.min(poll.all.len() as u32 / 4);
            1
        } else {
            poll.patrol_pause = poll.patrol_pause.saturating_sub(1);
            0
        }
    }

    /// Looks at a queue pair's record on every turn from now on. Whether it did
    /// not before.
    fn heat(&mut self, index: QpIndex) -> bool {
        if let Some(qp) = self.qps.get_mut(index.0)
            && qp.core.polled
            && !qp.core.hot
        {
            qp.core.hot = true;
            self.poll.hot.push((index, 0));
            true
        } else {
            false
        }
    }

    /// Looks at the arming of one watched completion queue.
    fn recheck_one(&mut self) {
        if self.poll.watched.is_empty() {
            return;
        }
        self.poll.watch_cursor += 1;
        if self.poll.watch_cursor >= self.poll.watched.len() {
            self.poll.watch_cursor = 0;
        }
        let at = self.poll.watch_cursor;
        let index = self.poll.watched[at];
        let attention = match self.cqs.get_mut(index.0) {
            Some(cq) => {
                let vf = &mut self.vfs[usize::from(cq.vf.0)];
                let attention = F::recheck(&vf.dma, &mut vf.face, &mut cq.ring);
                cq.watched = attention.watch;
                attention
            }
            None => Attention::default(),
        };
        if !attention.watch {
            self.poll.watched.swap_remove(at);
        }
        if attention.hold > 0 {
            self.hold_event(index, attention.hold);
        }
    }
}
