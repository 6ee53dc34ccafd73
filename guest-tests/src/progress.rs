//! One line per step, with the seconds since the program started, on standard error.

use std::{fmt::Display, sync::OnceLock, time::Instant};

static START: OnceLock<Instant> = OnceLock::new();

/// Prints one step.
pub fn step(what: impl Display) {
    let start = START.get_or_init(Instant::now);
    eprintln!("[{:6.1} s] {what}", start.elapsed().as_secs_f64());
}
