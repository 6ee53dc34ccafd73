//! Questions to the subnet administration: their numbers, and when they are asked again.

use super::SECOND;

/// Numbers of questions. Answers bring them back.
#[derive(Debug, Default)]
pub struct Requests {
    last: u32,
}

impl Requests {
    /// The next number, never 0.
    pub fn next(&mut self) -> u64 {
        self.last = self.last.checked_add(1).unwrap_or(1);
        self.last.into()
    }
}

/// How often a question is asked.
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

    /// It is asked under this number.
    pub const fn ask(&mut self, transaction: u64, now: u64) {
        self.transaction = transaction;
        // Twice as long each time, up to eight seconds.
        let patience = if self.tries < 4 { self.tries } else { 4 };
        self.due = now + ((SECOND / 2) << patience);
        self.tries = self.tries.saturating_add(1);
    }

    /// Whether it has been asked often enough.
    pub const fn is_hopeless(&self) -> bool {
        self.tries >= TRIES
    }
}
