//! Wakes the thread that serves a guest: vector 0 of the VF, and two timers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// One descriptor that is readable for any of three reasons.
#[derive(Debug)]
pub(crate) struct Wake {
    any: Epoll,
    event: EventFd,
    timer: TimerFd,
    look: TimerFd,
}

/// Events since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Woken {
    /// The VF has signalled.
    pub signalled: bool,
    /// The timer that goes off again and again.
    pub expired: bool,
    /// It is time to look at queues.
    pub looks: bool,
}

impl Wake {
    /// One that nothing has happened to, with the timers off.
    ///
    /// # Errors
    /// Where the system has no memory or descriptors left.
    pub fn new() -> io::Result<Self> {
        let event =
            EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let look = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let any = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for fd in [event.as_fd(), timer.as_fd(), look.as_fd()] {
            any.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(Self {
            any,
            event,
            timer,
            look,
        })
    }

    /// Returns the eventfd that the VF signals.
    pub const fn event(&self) -> &EventFd {
        &self.event
    }

    /// As if the VF had signalled.
    pub fn signal(&self) {
        // A counter that is full is readable as well.
        let _ = self.event.write(1);
    }

    /// Takes the events since the last call.
    pub fn take(&self) -> Woken {
        // None blocks.
        Woken {
            signalled: self.event.read().is_ok(),
            expired: self.timer.wait().is_ok(),
            looks: self.look.wait().is_ok(),
        }
    }

    /// Says when it is time to look at queues, once.
    pub fn look_in(&self, time: Duration) {
        let time = Expiration::OneShot(TimeSpec::from_duration(time));
        let set = self.look.set(time, TimerSetTimeFlags::empty());
        set.expect("a time that there is");
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
        self.any.0.as_fd()
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
    fn all_reasons_wake_until_they_are_taken() {
        let wake = Wake::new().expect("descriptors");
        let nothing = Woken::default();
        assert!(!is_readable(&wake, PollTimeout::ZERO));
        assert_eq!(wake.take(), nothing);
        wake.signal();
        assert!(is_readable(&wake, PollTimeout::ZERO));
        let signalled = Woken {
            signalled: true,
            ..nothing
        };
        assert_eq!(wake.take(), signalled);
        wake.look_in(Duration::from_micros(20));
        assert!(is_readable(&wake, PollTimeout::NONE));
        let looks = Woken {
            looks: true,
            ..nothing
        };
        assert_eq!(wake.take(), looks);
        assert!(!is_readable(&wake, PollTimeout::ZERO));
        wake.every(Some(Duration::from_millis(1)));
        for _ in 0..2 {
            assert!(is_readable(&wake, PollTimeout::NONE));
            let expired = Woken {
                expired: true,
                ..nothing
            };
            assert_eq!(wake.take(), expired);
        }
        wake.every(None);
        wake.take();
        assert!(!is_readable(&wake, PollTimeout::ZERO));
        assert_eq!(wake.take(), nothing);
    }
}
