//! The list of quiesced functions.

use std::collections::BTreeSet;
use std::task::Waker;

use crate::objects::ids::VfId;

/// Quiesced functions, and queue pairs that wait for them.
#[derive(Debug, Default)]
pub(crate) struct QuiescedFunctions {
    /// Queue pairs that wait for the function at the other end, with their own functions.
    pub waiting: BTreeSet<(VfId, u32)>,
    /// Queue pairs that are to look again.
    pub(super) called: BTreeSet<(VfId, u32)>,
    /// Functions that go on when they have got what waits.
    pub(super) returning: Vec<VfId>,
    /// Functions that rest, and until when others wait for them.
    pub(super) patience: Vec<(u64, VfId)>,
    /// Somebody waits for what is on its way.
    pub waiter: Option<Waker>,
}

impl QuiescedFunctions {
    /// When there is something to do, in the clock's nanoseconds.
    pub fn deadline(&self) -> Option<u64> {
        if self.called.is_empty() && self.returning.is_empty() {
            self.patience.iter().map(|&(until, _)| until).min()
        } else {
            Some(0)
        }
    }

    /// All that wait are to look again.
    pub(super) fn call(&mut self) {
        if self.called.is_empty() {
            std::mem::swap(&mut self.called, &mut self.waiting);
        } else {
            self.called.append(&mut self.waiting);
        }
    }

    /// Nobody waits for a function any more.
    pub(super) fn forget(&mut self, vf: VfId) {
        self.patience.retain(|&(_, it)| it != vf);
        self.returning.retain(|&it| it != vf);
        self.call();
    }
}
