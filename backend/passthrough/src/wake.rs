//! What wakes the thread that serves a guest: vector 0 of the VF, and a timer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// One descriptor that is readable for either of two reasons.
#[derive(Debug)]
pub(crate) struct Wake {
    either: Epoll,
    event: EventFd,
    timer: TimerFd,
}

impl Wake {
    /// One that nothing has happened to, with the timer off.
    ///
    /// # Errors
    /// Where the system has no memory or descriptors left.
    pub fn new() -> io::Result<Self> {
        let event =
            EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for fd in [event.as_fd(), timer.as_fd()] {
            either.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(Self {
            either,
            event,
            timer,
        })
    }

    /// What the VF signals.
    pub const fn event(&self) -> &EventFd {
        &self.event
    }

    /// As if the VF had signalled.
    pub fn signal(&self) {
        // A counter that is full is readable as well.
        let _ = self.event.write(1);
    }

    /// What has happened since the last time: whether the VF has signalled, and whether the timer has
    /// expired.
    pub fn take(&self) -> (bool, bool) {
        // Neither blocks.
        (self.event.read().is_ok(), self.timer.wait().is_ok())
    }

    /// Has the timer expire again and again, this far apart, or stops it.
    pub fn every(&self, period: Option<Duration>) {
        let set = match period {
            Some(period) => self.timer.set(
                Expiration::Interval(TimeSpec::from_duration(period)),
                TimerSetTimeFlags::empty(),
            ),
            None => self.timer.unset(),
        };
        set.expect("a time that there is");
    }

    /// Readable when something has happened.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn is_readable(wake: &Wake, within: PollTimeout) -> bool {
        let mut polled = [PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, within).expect("is polled") == 1
    }

    #[test]
    fn both_reasons_wake_until_they_are_taken() {
        let wake = Wake::new().expect("descriptors");
        assert!(!is_readable(&wake, PollTimeout::ZERO));
        assert_eq!(wake.take(), (false, false));
        wake.signal();
        assert!(is_readable(&wake, PollTimeout::ZERO));
        assert_eq!(wake.take(), (true, false));
        assert!(!is_readable(&wake, PollTimeout::ZERO));
        wake.every(Some(Duration::from_millis(1)));
        for _ in 0..2 {
            assert!(is_readable(&wake, PollTimeout::NONE));
            assert_eq!(wake.take(), (false, true));
        }
        wake.every(None);
        wake.take();
        assert!(!is_readable(&wake, PollTimeout::ZERO));
        assert_eq!(wake.take(), (false, false));
    }
}
