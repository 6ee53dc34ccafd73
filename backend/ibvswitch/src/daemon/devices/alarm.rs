//! Events that wake the thread of a device: a descriptor that other threads make readable, and a time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// One descriptor that is readable for either of two reasons.
#[derive(Debug)]
pub struct Alarm {
    either: Epoll,
    timer: TimerFd,
}

impl Alarm {
    /// One that is not set. `other` has to be open for as long as this is asked.
    ///
    /// # Errors
    /// Where the system has no descriptors left.
    pub fn new(other: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for fd in [other, timer.as_fd()] {
            either.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(Self { either, timer })
    }

    /// Readable for either reason.
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.either.0.as_fd()
    }

    /// Sets the time after which it is due once, in place of the time before; `None`: never.
    pub fn set(&self, time: Option<Duration>) {
        // Zero would stop it.
        let time = time.map(|time| time.max(Duration::from_nanos(1)));
        let set = match time {
            Some(time) => {
                let once = Expiration::OneShot(TimeSpec::from_duration(time));
                self.timer.set(once, TimerSetTimeFlags::empty())
            }
            None => self.timer.unset(),
        };
        set.expect("a time that there is");
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::eventfd::EventFd;

    use super::*;

    #[test]
    fn both_reasons_wake() {
        let other = EventFd::new().expect("a descriptor");
        let alarm = Alarm::new(other.as_fd()).expect("descriptors");
        let is_readable = |within: PollTimeout| {
            let mut polled = [PollFd::new(alarm.ready(), PollFlags::POLLIN)];
            poll(&mut polled, within).expect("is polled") == 1
        };
        assert!(!is_readable(PollTimeout::ZERO));
        alarm.set(Some(Duration::ZERO));
        assert!(is_readable(PollTimeout::NONE));
        alarm.set(None);
        assert!(!is_readable(PollTimeout::ZERO));
        other.write(1).expect("is written");
        assert!(is_readable(PollTimeout::ZERO));
    }
}
