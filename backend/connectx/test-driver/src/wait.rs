//! Waiting for the device, not without end.

use std::time::{Duration, Instant};

/// Longer than anything takes but on a machine that is overloaded; the limit
/// serves only to fail instead of hanging.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Spins a little, then lets others run.
#[derive(Debug)]
pub(crate) struct Patience {
    turns: u32,
    started: Option<Instant>,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self {
            turns: 0,
            started: None,
        }
    }

    pub(crate) fn pause(&mut self) {
        self.turns = self.turns.saturating_add(1);
        if self.turns < 64 {
            std::hint::spin_loop();
        } else {
            self.started.get_or_insert_with(Instant::now);
            std::thread::yield_now();
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.started.is_some_and(|start| start.elapsed() > LIMIT)
    }
}
