//! Runs an attack beside a measurement.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use test_driver::Error;

use super::lab::Lab;
use super::neighbour::Latencies;
use crate::{BenchError, Result};

/// Time for which threads spin before they check for the end.
const SPINNING: Duration = Duration::from_millis(20);
/// Time limit for an attacker to end.
const GRACE: Duration = Duration::from_secs(3);

/// Somebody who does harm, over and over.
pub(super) trait Attacker: Send {
    /// Does so once. It may take as long as the daemon makes it.
    ///
    /// # Errors
    /// [`crate::BenchError`].
    fn strike(&mut self) -> Result<()>;

    /// Strikes that there must have been for a measurement.
    fn enough(&self) -> usize {
        1
    }
}

/// Two threads that merely spin: as many as an attacker and who serves it keep
/// busy.
struct Spinners;

impl Attacker for Spinners {
    fn strike(&mut self) -> Result<()> {
        thread::scope(|scope| {
            scope.spawn(spin);
            spin();
        });
        Ok(())
    }
}

fn spin() {
    let start = Instant::now();
    while start.elapsed() < SPINNING {
        std::hint::spin_loop();
    }
}

/// Attacks nobody, and needs processors.
pub(super) fn spinners() -> Box<dyn Attacker> {
    Box::new(Spinners)
}

/// Progress of an attack.
#[derive(Debug)]
pub(super) struct Progress {
    strikes: AtomicUsize,
    enough: usize,
    /// It goes on no longer.
    over: AtomicBool,
}

impl Progress {
    /// Whether it has done all that it does, at least once.
    pub(super) fn is_enough(&self) -> bool {
        self.strikes.load(Ordering::Relaxed) >= self.enough || self.over.load(Ordering::Relaxed)
    }
}

/// Measures beside an attacker, who is gone afterwards.
pub(super) fn beside(
    lab: &Lab,
    mut attacker: Box<dyn Attacker + '_>,
    measure: impl FnOnce(&Progress) -> Result<Latencies>,
) -> Result<Latencies> {
    let progress = Progress {
        strikes: AtomicUsize::new(0),
        enough: attacker.enough(),
        over: AtomicBool::new(false),
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (progress, stop) = (&progress, &stop);
        let attacking = scope.spawn(move || {
            let mut attack = || -> Result<()> {
                let _others = lab.others()?;
                while !stop.load(Ordering::Relaxed) {
                    match attacker.strike() {
                        // That the daemon keeps an attacker waiting is no failure.
                        Err(BenchError::Timeout(_) | BenchError::Driver(Error::Timeout(_))) => {
                            break;
                        }
                        done => done?,
                    }
                    progress.strikes.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            };
            let done = attack();
            progress.over.store(true, Ordering::Relaxed);
            done
        });
        let measured = measure(progress);
        stop.store(true, Ordering::Relaxed);
        let end = Instant::now() + GRACE;
        while !attacking.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        // It may wait for the daemon for long.
        let stuck = !attacking.is_finished();
        if stuck {
            lab.kill();
        }
        let done = attacking.join();
        let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut measured = measured?;
        measured.stuck |= stuck;
        // The attacker, too, misses a daemon that was ended.
        if !measured.stuck {
            done?;
        }
        Ok(measured)
    })
}
