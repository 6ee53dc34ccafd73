//! Times of an engine's calls: nobody else has the engine during a call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Ranges of times within a power of two.
const STEPS: u64 = 8;
/// Number of ranges. Each time below [`STEPS`] nanoseconds has a range of its own.
const RANGES: usize = 62 * STEPS as usize;
/// Number of calls of which the longest is left out. The host of a virtual machine takes its processor away for
/// milliseconds, and the clock of the thread runs on.
const CALLS_PER_EXCEPTION: u64 = 10_000;

/// Times of an engine's calls, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Calls {
    /// The time that one call in ten thousand exceeds.
    pub long: u64,
    /// The longest.
    pub longest: u64,
}

/// Counts of calls by time. Nothing is timed before the first question.
#[derive(Debug)]
pub(super) struct CallTimes {
    timed: AtomicBool,
    longest: AtomicU64,
    counts: Box<[AtomicU64]>,
}

impl Default for CallTimes {
    fn default() -> Self {
        Self {
            timed: AtomicBool::default(),
            longest: AtomicU64::default(),
            counts: (0..RANGES).map(|_| AtomicU64::default()).collect(),
        }
    }
}

impl CallTimes {
    /// Makes a call, and times it if somebody has asked.
    #[inline]
    pub fn time<R>(&self, call: impl FnOnce() -> R) -> R {
        if !self.timed.load(Ordering::Relaxed) {
            return call();
        }
        let begun = processor_ns();
        let result = call();
        let taken = processor_ns().saturating_sub(begun);
        self.longest.fetch_max(taken, Ordering::Relaxed);
        self.counts[range(taken)].fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Returns the times of calls since the last question.
    pub fn ask(&self) -> Calls {
        self.timed.store(true, Ordering::Relaxed);
        let counts = self.counts.iter();
        let counts: Vec<u64> = counts.map(|it| it.swap(0, Ordering::Relaxed)).collect();
        let longest = self.longest.swap(0, Ordering::Relaxed);
        let exceptions = counts.iter().sum::<u64>() / CALLS_PER_EXCEPTION;
        let mut longer = 0;
        let range = counts.iter().rposition(|count| {
            longer += count;
            longer > exceptions
        });
        Calls {
            long: range.map_or(0, end).min(longest),
            longest,
        }
    }
}

/// The range of a time.
fn range(nanoseconds: u64) -> usize {
    let shift = (nanoseconds / STEPS)
        .checked_ilog2()
        .map_or(0, |log| log + 1);
    let shift = shift.saturating_sub(1);
    (u64::from(shift) * STEPS + (nanoseconds >> shift)) as usize
}

/// The end of a range, which is in it.
fn end(range: usize) -> u64 {
    let range = range as u64;
    let shift = (range / STEPS).saturating_sub(1);
    // The end of the last one is the largest number.
    ((range - shift * STEPS + 1) << shift).wrapping_sub(1)
}

/// Time that this thread has had a processor, in nanoseconds.
fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_its_range() {
        for time in (0..10_000).chain([1 << 40, u64::MAX >> 1, u64::MAX]) {
            let range = range(time);
            assert!(range < RANGES, "{time}");
            assert!(time <= end(range), "{time}");
            assert!(range == 0 || end(range - 1) < time, "{time}");
        }
    }

    #[test]
    fn one_exception_in_ten_thousand_does_not_count() {
        let times = CallTimes::default();
        times.ask();
        times.longest.store(3_000_000, Ordering::Relaxed);
        times.counts[range(3_000_000)].store(1, Ordering::Relaxed);
        times.counts[range(1000)].store(9_999, Ordering::Relaxed);
        let calls = times.ask();
        assert!(calls.long >= 1000 && calls.long < 1200, "{calls:?}");
        assert_eq!(calls.longest, 3_000_000);
        assert_eq!(times.ask().longest, 0);
    }
}
