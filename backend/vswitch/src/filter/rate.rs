//! A token bucket: so many in the long run, so many at once.

use std::time::Duration;

use crate::model::MadRate;

/// Millionths of a token, so that no rate is rounded away between two packets.
const MILLIONTHS_PER_TOKEN: u64 = 1_000_000;

/// A token bucket. Time is passed in and may stand still, but not go back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket {
    rate: MadRate,
    /// In [`MILLIONTHS_PER_TOKEN`]ths.
    tokens: u64,
    filled: Duration,
}

impl Bucket {
    /// A full bucket.
    pub(super) fn new(rate: MadRate) -> Self {
        Self {
            rate,
            tokens: u64::from(rate.burst) * MILLIONTHS_PER_TOKEN,
            filled: Duration::ZERO,
        }
    }

    /// Its content, in millionths of a token.
    pub(super) fn tokens(mut self, now: Duration) -> u64 {
        self.fill(now);
        self.tokens
    }

    /// Has no more in it than that.
    pub(super) fn keep(&mut self, now: Duration, tokens: u64) {
        self.fill(now);
        self.tokens = self.tokens.min(tokens);
    }

    /// Takes a token if there is one.
    pub(super) fn take(&mut self, now: Duration) -> bool {
        self.fill(now);
        let enough = self.tokens >= MILLIONTHS_PER_TOKEN;
        if enough {
            self.tokens -= MILLIONTHS_PER_TOKEN;
        }
        enough
    }

    fn fill(&mut self, now: Duration) {
        let since = now.saturating_sub(self.filled);
        self.filled = self.filled.max(now);
        let micros = since.as_micros().min(u128::from(u32::MAX)) as u64;
        // Tokens per second are millionths of a token per microsecond.
        let new = micros * u64::from(self.rate.per_second);
        // The rest of a microsecond is not lost.
        self.filled -= Duration::from_nanos(u64::from(since.subsec_nanos() % 1000));
        let max = u64::from(self.rate.burst) * MILLIONTHS_PER_TOKEN;
        self.tokens = self.tokens.saturating_add(new).min(max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bucket: &mut Bucket, now: Duration, tries: u32) -> u32 {
        (0..tries).filter(|_| bucket.take(now)).count() as u32
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let rate = MadRate {
            per_second: 100,
            burst: 7,
        };
        let mut bucket = Bucket::new(rate);
        assert_eq!(taken(&mut bucket, Duration::ZERO, 50), 7);
        assert_eq!(taken(&mut bucket, Duration::from_millis(9), 50), 0);
        assert_eq!(taken(&mut bucket, Duration::from_millis(10), 50), 1);
        assert_eq!(taken(&mut bucket, Duration::from_millis(45), 50), 3);
        // No more than a burst, however long the rest.
        assert_eq!(taken(&mut bucket, Duration::from_secs(1 << 40), 50), 7);
        // Time that goes back brings nothing.
        assert_eq!(taken(&mut bucket, Duration::ZERO, 50), 0);
    }

    #[test]
    fn asking_often_loses_nothing() {
        let rate = MadRate {
            per_second: 1000,
            burst: 1,
        };
        let mut bucket = Bucket::new(rate);
        assert!(bucket.take(Duration::ZERO));
        let got = (1..=100_000_u64)
            .filter(|step| bucket.take(Duration::from_nanos(step * 777)))
            .count();
        // 77.7 ms at one a millisecond.
        assert_eq!(got, 77);
    }
}
