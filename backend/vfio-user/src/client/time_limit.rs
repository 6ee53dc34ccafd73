//! Time limit of a server.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// A time that begins anew with each command.
#[derive(Debug)]
pub(super) struct TimeLimit {
    time: Duration,
    timer: TimerFd,
}

impl TimeLimit {
    /// So long.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn new(time: Duration) -> Result<Self, Errno> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        Ok(Self { time, timer })
    }

    /// From now on.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn begin(&self) -> Result<(), Errno> {
        let time = Expiration::OneShot(TimeSpec::from_duration(self.time));
        self.timer.set(time, TimerSetTimeFlags::empty())
    }

    /// Returns the descriptor that is readable when the time is up.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
