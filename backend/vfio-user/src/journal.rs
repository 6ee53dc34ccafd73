//! Log lines that a client can cause: bounded, and those left out are counted.

use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use crate::end::End;
use crate::message::version::Version;

/// Events that are told of at once.
const BURST: u32 = 16;
/// After these, one in this time.
const INTERVAL: Duration = Duration::from_secs(10);

/// Bounds how often something is told of.
#[derive(Debug)]
struct Limiter {
    left: u32,
    refilled: Instant,
    untold: u64,
}

impl Limiter {
    fn new(now: Instant) -> Self {
        Self {
            left: BURST,
            refilled: now,
            untold: 0,
        }
    }

    /// Whether to tell of an event; then, how many before it were not told of.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let passed = now.saturating_duration_since(self.refilled);
        let earned = (passed.as_secs() / INTERVAL.as_secs()).min(u64::from(BURST)) as u32;
        if earned > 0 {
            self.left = (self.left + earned).min(BURST);
            self.refilled = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Some(std::mem::take(&mut self.untold))
            }
            None => {
                self.untold += 1;
                None
            }
        }
    }
}

/// Log lines that the clients of one socket can cause. It outlives each of them, so that to connect anew gains
/// a client nothing.
#[derive(Debug)]
pub(crate) struct Journal {
    clients: Limiter,
    failures: Limiter,
    /// Whether the log tells of the present client.
    told: bool,
}

impl Default for Journal {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            clients: Limiter::new(now),
            failures: Limiter::new(now),
            told: true,
        }
    }
}

/// As a field of a log line: nothing where it is 0.
fn some(count: u64) -> Option<u64> {
    (count > 0).then_some(count)
}

impl Journal {
    /// A client has negotiated a version.
    pub(crate) fn connected(&mut self, version: &Version) {
        let (minor, capabilities) = (version.minor, version.capabilities);
        let admitted = self.clients.admit(Instant::now());
        self.told = admitted.is_some();
        match admitted {
            Some(untold) => {
                info!(
                    minor,
                    ?capabilities,
                    untold = some(untold),
                    "client connected"
                );
            }
            None => debug!(minor, ?capabilities, "client connected"),
        }
    }

    /// The client is gone.
    pub(crate) fn gone(&mut self, end: End) {
        if self.told {
            let untold_failures = some(std::mem::take(&mut self.failures.untold));
            match end {
                End::Closed | End::Stopped => info!(untold_failures, "client gone"),
                end => warn!(untold_failures, "client gone: {end}"),
            }
        } else {
            debug!("client gone: {end}");
        }
        self.told = true;
    }

    /// Something went wrong that a client can make go wrong again and again.
    pub(crate) fn failure(&mut self, what: std::fmt::Arguments<'_>) {
        match self.failures.admit(Instant::now()) {
            Some(untold) => warn!(untold = some(untold), "{what}"),
            None => debug!("{what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_of_now_and_then_and_counted() {
        let begin = Instant::now();
        let mut limiter = Limiter::new(begin);
        // A thousand a second, for 100 s.
        let told: Vec<u64> = (0..100_000)
            .filter_map(|event| limiter.admit(begin + Duration::from_millis(event)))
            .collect();
        assert_eq!(told.len(), 16 + 9);
        assert!(told[..16].iter().all(|&untold| untold == 0));
        assert_eq!(
            told[16..],
            [9984, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999]
        );
        // What happens now and then is told each time.
        let later = begin + Duration::from_secs(1000);
        assert_eq!(limiter.admit(later), Some(9999));
        let told = (1..100).map(|event| limiter.admit(later + INTERVAL * event));
        assert!(told.into_iter().all(|told| told == Some(0)));
    }
}
