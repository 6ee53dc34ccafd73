//! Waiting by spinning, and what is typical of many times.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use crate::{BenchError, Result};

/// Spins until `done`. After a while it lets others run now and then, for
/// machines where the other side has no processor of its own.
///
/// # Errors
/// [`BenchError::Timeout`], after longer than anything takes.
#[inline]
pub(crate) fn until(what: &'static str, mut done: impl FnMut() -> bool) -> Result<()> {
    for _ in 0..10_000 {
        if done() {
            return Ok(());
        }
    }
    until_long(what, done)
}

#[cold]
fn until_long(what: &'static str, mut done: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        for _ in 0..10_000 {
            if done() {
                return Ok(());
            }
        }
        thread::yield_now();
    }
    Err(BenchError::Timeout(what))
}

/// The median, or zero where there is none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        len if len.is_multiple_of(2) => f64::midpoint(values[len / 2 - 1], values[len / 2]),
        len => values[len / 2],
    }
}

/// Runs a batch and returns its time in nanoseconds.
///
/// # Errors
/// Those of the batch.
#[inline]
pub(crate) fn timed(batch: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    black_box(batch())?;
    Ok(start.elapsed().as_nanos() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_values_lie_on_each_side_of_the_median() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 1000.0]), 3.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 1000.0]), 3.0);
    }
}
