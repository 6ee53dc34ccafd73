//! One line per step, with the seconds since the program started, on standard error.

use std::{fmt::Display, sync::OnceLock, time::Instant};

static START: OnceLock<Instant> = OnceLock::new();

/// Begins to count the time, if that has not begun.
pub fn start() -> Instant {
    *START.get_or_init(Instant::now)
}

/// Prints one step.
pub fn step(what: impl Display) {
    eprintln!("[{:6.1} s] {what}", start().elapsed().as_secs_f64());
}
