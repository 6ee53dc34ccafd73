//! A bare cache line that travels between two processors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crate::daemons::pace::{timed, until};
use crate::{Pinned, Result};

/// Passes of a batch, each there and back.
const PASSES: u64 = 32;
/// Ends the other side.
const STOP: u64 = u64::MAX;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// One line, written in turn by this thread and by another on the other
/// processor.
#[derive(Debug)]
pub struct CacheLine {
    line: Arc<Line>,
    value: u64,
    other: Option<JoinHandle<()>>,
}

impl CacheLine {
    /// Starts the other side on processor `cpu`.
    ///
    /// # Errors
    /// [`crate::BenchError::System`].
    pub fn start(cpu: usize) -> Result<Self> {
        let line = Arc::new(Line::default());
        let theirs = Arc::clone(&line);
        let other = thread::spawn(move || {
            let Ok(_pinned) = Pinned::to(cpu) else { return };
            let mut next = 1;
            let mut seen = 0;
            while until("the line", || {
                seen = theirs.0.load(Ordering::Acquire);
                seen == next || seen == STOP
            })
            .is_ok()
                && seen != STOP
            {
                theirs.0.store(next + 1, Ordering::Release);
                next += 2;
            }
        });
        Ok(Self {
            line,
            value: 0,
            other: Some(other),
        })
    }

    /// Nanoseconds that the line takes one way, over one batch.
    ///
    /// # Errors
    /// [`crate::BenchError::Timeout`].
    pub fn one_way(&mut self) -> Result<f64> {
        let time = timed(|| {
            for _ in 0..PASSES {
                self.line.0.store(self.value + 1, Ordering::Release);
                self.value += 2;
                until("the line", || {
                    self.line.0.load(Ordering::Acquire) == self.value
                })?;
            }
            Ok(())
        })?;
        Ok(time / (2 * PASSES) as f64)
    }
}

impl Drop for CacheLine {
    fn drop(&mut self) {
        self.line.0.store(STOP, Ordering::Release);
        if let Some(other) = self.other.take() {
            let _ = other.join();
        }
    }
}
