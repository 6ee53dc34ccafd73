//! The longest calls of an engine: nobody else has the engine during a call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Kind of a call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Call {
    /// Turns of queue pairs, by the engine's thread.
    Turn,
    /// A command, a doorbell that is trapped, or another request for the engine.
    Request,
}

/// The longest call of each kind. Nothing is timed before the first question.
#[derive(Debug, Default)]
pub(super) struct CallTimes {
    timed: AtomicBool,
    /// Nanoseconds by kind.
    longest_ns: [AtomicU64; 2],
}

impl CallTimes {
    /// Makes a call, and times it if somebody has asked.
    #[inline]
    pub fn time<R>(&self, kind: Call, call: impl FnOnce() -> R) -> R {
        if !self.timed.load(Ordering::Relaxed) {
            return call();
        }
        let begun = processor_ns();
        let result = call();
        let taken = processor_ns().saturating_sub(begun);
        self.longest_ns[kind as usize].fetch_max(taken, Ordering::Relaxed);
        result
    }

    /// Returns the longest turn and the longest request since the last question, in nanoseconds.
    pub fn ask(&self) -> [u64; 2] {
        self.timed.store(true, Ordering::Relaxed);
        [Call::Turn, Call::Request]
            .map(|kind| self.longest_ns[kind as usize].swap(0, Ordering::Relaxed))
    }
}

/// Time that this thread has had a processor, in nanoseconds. Time in which others had it does not count.
fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map_or(0, |time| Duration::from(time).as_nanos() as u64)
}
