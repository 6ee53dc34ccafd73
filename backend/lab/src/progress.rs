//! One line per step, with the seconds since the program started, on standard error.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Instant;

static START: OnceLock<Instant> = OnceLock::new();

/// Begins to count the time, if that has not begun.
pub fn start() -> Instant {
    *START.get_or_init(Instant::now)
}

/// Prints one step.
pub fn step(what: impl Display) {
    // The lab goes on where nobody reads this any more.
    let _ = writeln!(
        io::stderr(),
        "[{:6.1} s] {what}",
        start().elapsed().as_secs_f64()
    );
}
