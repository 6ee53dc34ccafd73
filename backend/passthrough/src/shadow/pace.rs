//! When to look at queues that nobody rings for.

use std::time::{Duration, Instant};

/// Maximum time of one look, in which it repeats while requests are posted, and for `LINGER` after the last
/// one.
const MAX_LOOK: Duration = Duration::from_micros(200);
const LINGER: Duration = Duration::from_micros(20);
/// From one look to the next: right after something was posted, and when nothing was for a while.
const SOONEST: Duration = Duration::from_micros(20);
/// The same where nobody rings.
pub(crate) const LATEST: Duration = Duration::from_millis(1);

/// Pace of looks at queues: continuous while requests are posted, then less and less often.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// To the next look; `None` before the first.
    period: Option<Duration>,
}

impl Pace {
    /// Something was posted.
    pub const fn quicken(&mut self) {
        self.period = Some(SOONEST);
    }

    /// Whether the last wait was longer than this.
    pub fn is_slower_than(&self, latest: Duration) -> bool {
        self.period.is_some_and(|period| period > latest)
    }

    /// Returns the time until the next look, after one that found nothing, and at most.
    pub fn next(&mut self, latest: Duration) -> Duration {
        let now = self.period.unwrap_or(SOONEST).min(latest);
        self.period = Some((now * 2).min(latest));
        now
    }
}

/// One look, which begins now.
#[derive(Debug)]
pub(crate) struct Look {
    began: Instant,
    found: Option<Instant>,
}

impl Look {
    /// It begins.
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            found: None,
        }
    }

    /// Whether to look once more, after something was found or not.
    pub fn goes_on(&mut self, found: bool) -> bool {
        let now = Instant::now();
        if found {
            self.found = Some(now);
        }
        let lingers = self.found.is_some_and(|found| now - found < LINGER);
        lingers && now - self.began < MAX_LOOK
    }
}
