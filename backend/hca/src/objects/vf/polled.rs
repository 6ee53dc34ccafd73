//! Doorbell records of a function that the engine looks at.

use crate::objects::ids::{CqIndex, QpIndex};

/// Cold records looked at per turn while a sweep is on.
const SWEEP_STEP: usize = 2;

/// Turns, at most, between two cold records that are looked at for queue pairs
/// whose doorbells were overwritten by those of busy ones. The fewer there are,
/// the more of them stay in the cache, and the less a look costs.
const PATROL_EVERY: u32 = 256;

/// Doorbell records of a function that the engine looks at.
#[derive(Debug, Default)]
pub(crate) struct Polled {
    /// All polled queue pairs.
    pub all: Vec<QpIndex>,
    /// Queue pairs that were busy lately, with the turns that they were idle.
    pub hot: Vec<(QpIndex, u32)>,
    pub hot_cursor: usize,
    pub cursor: usize,
    /// Records still to look at in this sweep.
    pub sweep_left: usize,
    /// Records to look at now and then, when the sweep is over.
    pub patrol_left: usize,
    /// Turns until the next of these.
    pub patrol_pause: u32,
    /// Completion queues that the guest arms without a doorbell.
    pub watched: Vec<CqIndex>,
    pub watch_cursor: usize,
    /// Among the functions that are looked at on every turn.
    pub active: bool,
}

impl Polled {
    /// Number of queue pairs that were busy lately.
    #[inline]
    pub fn hot(&self) -> usize {
        self.hot.len()
    }

    /// Number of cold records to look at in this turn.
    #[inline]
    pub fn cold_looks(&mut self) -> usize {
        if self.sweep_left > 0 {
            let looks = SWEEP_STEP.min(self.sweep_left);
            self.sweep_left -= looks;
            looks
        } else if self.patrol_left > 0 && self.patrol_pause == 0 {
            self.patrol_left -= 1;
            self.patrol_pause = PATROL_EVERY.min(self.all.len() as u32 / 4);
            1
        } else {
            self.patrol_pause = self.patrol_pause.saturating_sub(1);
            0
        }
    }
}
