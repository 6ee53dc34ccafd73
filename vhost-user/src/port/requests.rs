//! Questions to the subnet administration: their numbers, how many there may be, and when they are asked
//! again.

use super::SECOND;

/// Questions that may be asked at once.
const BURST: u64 = 64;
/// Nanoseconds for each further one.
const PACE: u64 = SECOND / 250;

/// Numbers of questions, which answers bring back, and how many may be asked: a guest that joins and leaves
/// groups without end is no flood to the subnet administration.
#[derive(Debug, Default)]
pub struct Requests {
    last: u32,
    /// When as many as there may be could be asked at once.
    rested: u64,
}

impl Requests {
    /// The number of a question that may be asked now, never 0.
    ///
    /// # Errors
    /// When one may be asked.
    pub fn next(&mut self, now: u64) -> Result<u64, u64> {
        let rested = self.rested.max(now) + PACE;
        if let Some(wait) = rested.checked_sub(now + BURST * PACE).filter(|it| *it > 0) {
            return Err(now + wait);
        }
        self.rested = rested;
        self.last = self.last.checked_add(1).unwrap_or(1);
        Ok(self.last.into())
    }

    /// The same; `alarm` rings when one may be asked.
    pub fn next_or_later(&mut self, now: u64, alarm: &mut Alarm) -> Option<u64> {
        self.next(now).map_err(|later| alarm.set(later)).ok()
    }
}

/// Number of times that a request is sent.
const TRIES: u32 = 4;

/// A question that waits for its answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Question {
    /// Its number; 0 before it has been asked.
    pub transaction: u64,
    /// When it is asked next.
    pub due: u64,
    tries: u32,
}

impl Question {
    /// One that is to be asked now.
    pub const fn new(now: u64) -> Self {
        Self {
            transaction: 0,
            due: now,
            tries: 0,
        }
    }

    /// Asks it if it is due and one may be asked: under which number. `alarm` rings when to look again.
    pub fn poll(&mut self, now: u64, requests: &mut Requests, alarm: &mut Alarm) -> Option<u64> {
        if self.due > now {
            alarm.set(self.due);
            return None;
        }
        let transaction = requests.next_or_later(now, alarm)?;
        self.ask(transaction, now);
        alarm.set(self.due);
        Some(transaction)
    }

    const fn ask(&mut self, transaction: u64, now: u64) {
        self.transaction = transaction;
        // Twice as long each time, up to eight seconds.
        let patience = if self.tries < 4 { self.tries } else { 4 };
        self.due = now + ((SECOND / 2) << patience);
        self.tries = self.tries.saturating_add(1);
    }

    /// Whether it is due once more, and has been asked often enough.
    pub const fn is_hopeless(&self, now: u64) -> bool {
        self.due <= now && self.tries >= TRIES
    }
}

/// When somebody has to look again, so that nobody looks at all questions each time.
#[derive(Debug, Default)]
pub struct Alarm(Option<u64>);

impl Alarm {
    /// At this time at the latest.
    pub fn set(&mut self, due: u64) {
        self.0 = Some(self.0.map_or(due, |before| before.min(due)));
    }

    /// Whether it is time, after which there is none.
    pub fn rings(&mut self, now: u64) -> bool {
        self.0.take_if(|due| *due <= now).is_some()
    }

    /// When it is.
    pub const fn due(&self) -> Option<u64> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_paced() {
        let mut requests = Requests::default();
        let now = 5 * SECOND;
        for number in 1..=BURST {
            assert_eq!(requests.next(now), Ok(number));
        }
        assert_eq!(requests.next(now), Err(now + PACE));
        assert_eq!(requests.next(now + PACE - 1), Err(now + PACE));
        assert_eq!(requests.next(now + PACE), Ok(BURST + 1));
        assert!(requests.next(now + PACE).is_err());
        // After a rest it is as in the beginning.
        let later = now + SECOND;
        assert_eq!(
            (0..1000).filter(|_| requests.next(later).is_ok()).count(),
            BURST as usize
        );
    }
}
