//! Work of a function that is due.

use std::collections::{BTreeSet, VecDeque};

use crate::objects::ids::{CqIndex, QpIndex, SrqIndex};
use crate::objects::qp::QpNumbers;
use crate::storage::numbers::Numbers;

/// A queue pair in error, and when to look again for requests posted to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Errored {
    pub qp: QpIndex,
    /// In the clock's nanoseconds.
    pub due: u64,
    /// Nanoseconds to the look after that, if there is nothing.
    pub pause: u64,
}

/// Work of a function that is due.
#[derive(Debug)]
pub(crate) struct RunQueue {
    /// Queue pairs with a turn due. One that was destroyed may still be named.
    pub ready: VecDeque<QpIndex>,
    /// When which queue pair's timer of which number is due.
    pub timers: BTreeSet<(u64, u32, u64)>,
    /// Queue pairs in error: requests posted to them must be flushed, and receive requests come
    /// without a doorbell.
    pub errored: ErroredList,
    /// Slots of the function's queue pairs and shared receive queues that are yet to be searched for
    /// users of failed completion queues, and the next of them.
    pub search_left: usize,
    pub search_at: usize,
    /// Objects from before a reset, which nobody can name any more.
    pub remains: Vec<Remains>,
    /// Among the functions whose turn comes.
    pub queued: bool,
    /// The function has no turns.
    pub rests: bool,
    /// A timer is due.
    pub rang: bool,
    /// The last turn was used up: the next one is measured.
    pub used_up: bool,
    /// Number of times that the budget of a shared turn is halved: turns have taken longer than their budget says.
    pub slowness: u32,
    /// When it is due, where [`Scheduler`](crate::engine::scheduler::Scheduler) knows; [`u64::MAX`] for never.
    pub alarm: u64,
}

/// Queue pairs in error, looked at in passes, of which a turn does a part.
#[derive(Debug)]
pub(crate) struct ErroredList {
    pub list: Vec<Errored>,
    /// The next one to look at.
    pub at: usize,
    /// Number of those left of this pass.
    pub left: usize,
    /// When the first of those that the pass has seen is due again.
    pub next: u64,
    /// When to go on, in the clock's nanoseconds.
    pub due: u64,
}

/// Objects of a function that was reset.
#[derive(Debug)]
pub(crate) struct Remains {
    pub qps: QpNumbers,
    pub cqs: Numbers<CqIndex>,
    pub srqs: Numbers<SrqIndex>,
}

impl Default for ErroredList {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            at: 0,
            left: 0,
            next: u64::MAX,
            due: u64::MAX,
        }
    }
}

impl Default for RunQueue {
    fn default() -> Self {
        Self {
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            errored: ErroredList::default(),
            search_left: 0,
            search_at: 0,
            remains: Vec::new(),
            queued: false,
            rests: false,
            rang: false,
            used_up: false,
            slowness: 0,
            alarm: u64::MAX,
        }
    }
}

impl RunQueue {
    /// Whether there is something to do now.
    pub fn is_pending(&self) -> bool {
        self.rang || !self.ready.is_empty() || self.search_left > 0
    }

    /// When there is something to do without anybody asking.
    pub fn due(&self) -> u64 {
        let timer = self.timers.first().map_or(u64::MAX, |&(at, _, _)| at);
        timer.min(self.errored.due)
    }
}
