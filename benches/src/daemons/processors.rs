//! The two processors to measure on.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::{BenchError, Result};

/// Assignment of threads to processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processors {
    /// The driver's thread.
    pub driver: usize,
    /// The engine's thread.
    pub engine: usize,
}

impl Processors {
    /// The last two processors that this process may run on: interrupts and
    /// other programs tend to use the first.
    ///
    /// # Errors
    /// [`BenchError::Processors`] where there is one only.
    pub fn choose() -> Result<Self> {
        let allowed = allowed()?;
        match *allowed.as_slice() {
            [.., driver, engine] => Ok(Self { driver, engine }),
            _ => Err(BenchError::Processors(
                "two processors are needed, one for the driver and one for the engine, and this \
                 process may run on one: see taskset -p"
                    .to_owned(),
            )),
        }
    }

    /// All processors that this process may run on.
    ///
    /// # Errors
    /// Where the system does not say.
    pub fn allowed() -> Result<Vec<usize>> {
        allowed()
    }

    /// Checks that this process may run on both.
    ///
    /// # Errors
    /// [`BenchError::Processors`] where it may not, or both are one.
    pub fn checked(self) -> Result<Self> {
        let allowed = allowed()?;
        for cpu in [self.driver, self.engine] {
            if !allowed.contains(&cpu) {
                return Err(BenchError::Processors(format!(
                    "this process may not run on processor {cpu}, only on {allowed:?}"
                )));
            }
        }
        if self.driver == self.engine {
            return Err(BenchError::Processors(format!(
                "driver and engine need a processor each, not both {}",
                self.driver
            )));
        }
        Ok(self)
    }
}

fn affinity() -> Result<CpuSet> {
    sched_getaffinity(Pid::from_raw(0)).map_err(BenchError::system("read the processor affinity"))
}

fn allowed() -> Result<Vec<usize>> {
    let set = affinity()?;
    Ok((0..CpuSet::count())
        .filter(|&cpu| set.is_set(cpu).unwrap_or(false))
        .collect())
}

/// Keeps the calling thread on one processor as long as it lives.
#[derive(Debug)]
pub struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Moves the calling thread to `cpu`. Threads that it starts from now on
    /// begin there too.
    ///
    /// # Errors
    /// Where the system does not allow it.
    pub fn to(cpu: usize) -> Result<Self> {
        let pin = BenchError::system("pin a thread to a processor");
        let before = affinity()?;
        let mut set = CpuSet::new();
        set.set(cpu)
            .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
            .map_err(pin)?;
        Ok(Self { before })
    }
}

impl Pinned {
    /// Keeps the calling thread, and threads and processes that it starts from
    /// now on, off `cpu`.
    ///
    /// # Errors
    /// Where the system does not allow it, as where there is no other.
    pub fn away_from(cpu: usize) -> Result<Self> {
        let pin = BenchError::system("keep a thread off a processor");
        let before = affinity()?;
        let mut set = before;
        set.unset(cpu)
            .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
            .map_err(pin)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = sched_setaffinity(Pid::from_raw(0), &self.before);
    }
}
