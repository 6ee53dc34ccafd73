//! Waiting for what another thread or process does.

use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything takes. The limit serves only to fail instead of hanging.
const LIMIT: Duration = Duration::from_secs(120);

/// Waits for the state of another thread or process that signals nothing. Looks less often the longer it takes: a test that
/// looks all the time takes a processor from those for which it waits.
///
/// # Panics
/// After two minutes.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        let waited = begun.elapsed();
        assert!(waited < LIMIT, "in vain: {what}");
        thread::sleep((waited / 16).clamp(Duration::from_millis(1), Duration::from_millis(50)));
    }
}
