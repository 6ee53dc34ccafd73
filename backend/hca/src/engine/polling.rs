//! Finding work without being told: queue pairs whose doorbell pages the guest
//! writes without leaving the guest.
//!
//! The doorbell *record* of each queue pair is reliable, the doorbell page only
//! a hint (queue pairs of one process overwrite each other there). Looking at
//! every record on every turn would make each turn as long as there are queue
//! pairs, so the engine looks at those that were busy lately (`hot`) on every
//! turn, and at the others a few at a time, when a hint says that something
//! was rung. All of this is done for each function by itself, and a turn is
//! bounded, so that nobody waits for what others have rung.

use std::marker::PhantomData;

use wire::Qpn;

use crate::objects::Objects;
use crate::objects::ids::{CqIndex, QpIndex, VfId};
use crate::objects::qp::Qp;
use crate::objects::vf::polled::Polled;
use crate::queue_format::{Attention, QueueFormat};

/// Doorbell records of all functions that the engine looks at.
#[derive(Debug)]
pub(crate) struct Polling<F: QueueFormat> {
    /// Number of polled queue pairs.
    pub(super) all: usize,
    /// Number of those that were busy lately.
    pub(super) hot: usize,
    /// Functions with records to look at on every turn, and the next of them.
    pub(super) active: Vec<VfId>,
    pub(super) cursor: usize,
    /// Functions with completion queues that are looked at for being armed.
    pub(super) watching: Vec<VfId>,
    pub(super) watch_cursor: usize,
    pub(super) turn: u32,
    format: PhantomData<F>,
}

impl<F: QueueFormat> Polling<F> {
    pub const fn new() -> Self {
        Self {
            all: 0,
            hot: 0,
            active: Vec::new(),
            cursor: 0,
            watching: Vec::new(),
            watch_cursor: 0,
            turn: 0,
            format: PhantomData,
        }
    }

    /// Whether queue pairs were busy lately besides so many.
    #[inline]
    pub const fn is_hot_beside(&self, own: usize) -> bool {
        self.hot > own
    }

    /// Whether any queue pair is polled.
    pub const fn is_needed(&self) -> bool {
        self.all > 0
    }

    /// A doorbell page of `vf` says that `qpn` was rung.
    pub fn hint(&mut self, objects: &mut Objects<F>, vf: VfId, qpn: Qpn) {
        let known = objects.qp_index(vf, qpn).ok();
        let rested = known.is_some_and(|index| self.heat(objects, index));
        let polled = &mut objects.vf_mut(vf).polled;
        if rested {
            // One that rested was rung: others are likely to follow, or were.
            polled.sweep_left = polled.all.len();
        } else {
            // Busy ones ring all the time. A cold record costs several cache
            // misses, which those must not pay for on every turn.
            polled.patrol_left = polled.all.len();
        }
        self.activate(objects, vf);
    }

    /// Starts looking at every record.
    pub fn sweep(&mut self, objects: &mut Objects<F>) {
        for vf in 0..objects.vfs.len() {
            let polled = &mut objects.vfs[vf].polled;
            polled.sweep_left = polled.all.len();
            self.activate(objects, VfId(vf as u16));
        }
    }

    /// Looks at some of a function's cold records.
    #[inline]
    pub fn look_at_cold(&mut self, objects: &mut Objects<F>, vf: VfId) -> bool {
        let mut busy = false;
        for _ in 0..objects.vfs[usize::from(vf.0)].polled.cold_looks() {
            let polled = &mut objects.vfs[usize::from(vf.0)].polled;
            polled.cursor += 1;
            if polled.cursor >= polled.all.len() {
                polled.cursor = 0;
            }
            let Some(&index) = polled.all.get(polled.cursor) else {
                continue;
            };
            if objects.has_work(index) {
                self.heat(objects, index);
                busy = true;
            }
        }
        busy
    }

    /// Looks at a queue pair's record on every turn from now on. Whether it did
    /// not before.
    pub fn heat(&mut self, objects: &mut Objects<F>, index: QpIndex) -> bool {
        if let Some(qp) = objects.qps.get_mut(index.0)
            && qp.core.polled
            && !qp.core.hot
        {
            qp.core.hot = true;
            let vf = qp.core.vf;
            objects.vf_mut(vf).polled.hot.push((index, 0));
            self.hot += 1;
            self.activate(objects, vf);
            true
        } else {
            false
        }
    }

    /// A record is no longer looked at on every turn.
    #[cold]
    pub fn cooled(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        self.hot -= 1;
        if let Some(qp) = objects.qps.get_mut(index.0) {
            qp.core.hot = false;
        }
    }

    #[inline]
    pub fn activate(&mut self, objects: &mut Objects<F>, vf: VfId) {
        let polled = &mut objects.vfs[usize::from(vf.0)].polled;
        if !polled.active {
            polled.active = true;
            self.active.push(vf);
        }
    }

    /// Looks at nothing of a function that is quiet: it counts as one that is looked at, and is in no
    /// list.
    pub fn quiesce(&mut self, objects: &mut Objects<F>, vf: VfId) {
        objects.vf_mut(vf).polled.active = true;
        self.active.retain(|&it| it != vf);
        self.watching.retain(|&it| it != vf);
    }

    /// Looks at the records of a function again, and at all of them first.
    pub fn resume(&mut self, objects: &mut Objects<F>, vf: VfId) {
        let polled = &mut objects.vf_mut(vf).polled;
        polled.active = false;
        if !polled.watched.is_empty() {
            self.watching.push(vf);
        }
        self.sweep_vf(objects, vf);
    }

    /// Looks at every polled queue pair's record of a function.
    pub fn sweep_vf(&mut self, objects: &mut Objects<F>, vf: VfId) {
        let polled = &mut objects.vf_mut(vf).polled;
        polled.sweep_left = polled.all.len();
        self.activate(objects, vf);
    }

    /// Begins to look at a new queue pair's record.
    pub fn watch_record(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        let Objects { qps, vfs, .. } = objects;
        if let Some(Qp { core, .. }) = qps.get_mut(index.0) {
            let polled = &mut vfs[usize::from(core.vf.0)].polled;
            core.polled_at = polled.all.len();
            polled.all.push(index);
            self.all += 1;
        }
    }

    /// No longer looks at the record of a queue pair that is about to go.
    pub fn forget_record(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        let Objects { qps, vfs, .. } = objects;
        let Some(Qp { core, .. }) = qps.get(index.0).filter(|qp| qp.core.polled) else {
            return;
        };
        let (at, hot) = (core.polled_at, core.hot);
        let polled = &mut vfs[usize::from(core.vf.0)].polled;
        if hot && let Some(at) = polled.hot.iter().position(|&(it, _)| it == index) {
            polled.hot.swap_remove(at);
            self.hot -= 1;
        }
        polled.all.swap_remove(at);
        self.all -= 1;
        if let Some(moved) = polled.all.get(at)
            && let Some(Qp { core, .. }) = qps.get_mut(moved.0)
        {
            core.polled_at = at;
        }
    }

    /// Looks at the arming of a completion queue from time to time.
    pub fn watch_arming(&mut self, objects: &mut Objects<F>, cq: CqIndex) {
        let Some(vf) = objects.cqs.get(cq.0).map(|cq| cq.vf) else {
            return;
        };
        let watched = &mut objects.vfs[usize::from(vf.0)].polled.watched;
        let begins = watched.is_empty();
        watched.push(cq);
        if begins && objects.vf(vf).quiesced.is_none() {
            self.watching.push(vf);
        }
    }

    /// No longer looks at the arming of a completion queue that is about to go.
    pub fn forget_watched(&mut self, objects: &mut Objects<F>, cq: CqIndex) {
        let Some(cq_state) = objects.cqs.get(cq.0).filter(|cq| cq.watched) else {
            return;
        };
        let vf = cq_state.vf;
        let watched = &mut objects.vfs[usize::from(vf.0)].polled.watched;
        if let Some(at) = watched.iter().position(|&it| it == cq) {
            watched.swap_remove(at);
        }
        if watched.is_empty() {
            self.watching.retain(|&it| it != vf);
        }
    }

    /// No longer looks at anything of a function that is being reset. Returns its state, to be dropped.
    pub fn forget(&mut self, objects: &mut Objects<F>, vf: VfId) -> Polled {
        let state = objects.vf_mut(vf);
        self.all -= state.polled.all.len();
        self.hot -= state.polled.hot.len();
        self.active.retain(|&it| it != vf);
        self.watching.retain(|&it| it != vf);
        let quiet = Polled {
            // Quiet it stays.
            active: state.quiesced.is_some(),
            ..Polled::default()
        };
        std::mem::replace(&mut state.polled, quiet)
    }

    /// Looks at the arming of one watched completion queue, of each function in turn. The queue, and
    /// for how many nanoseconds its event waits, if it begins to.
    pub fn recheck_one(&mut self, objects: &mut Objects<F>) -> Option<(CqIndex, u32)> {
        if self.watching.is_empty() {
            return None;
        }
        self.watch_cursor += 1;
        if self.watch_cursor >= self.watching.len() {
            self.watch_cursor = 0;
        }
        let vf = self.watching[self.watch_cursor];
        let state = &mut objects.vfs[usize::from(vf.0)];
        let polled = &mut state.polled;
        polled.watch_cursor += 1;
        if polled.watch_cursor >= polled.watched.len() {
            polled.watch_cursor = 0;
        }
        let at = polled.watch_cursor;
        let &index = polled.watched.get(at)?;
        let attention = match objects.cqs.get_mut(index.0) {
            Some(cq) => {
                let attention = F::recheck(&state.dma, &mut state.face, &mut cq.ring);
                cq.watched = attention.watch;
                attention
            }
            None => Attention::default(),
        };
        if !attention.watch {
            polled.watched.swap_remove(at);
        }
        if polled.watched.is_empty() {
            self.watching.swap_remove(self.watch_cursor);
        }
        (attention.hold > 0).then_some((index, attention.hold))
    }
}
