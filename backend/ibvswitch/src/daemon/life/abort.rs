//! A way for each thread to end the daemon.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Ends the daemon, from any of its threads.
#[derive(Debug, Clone)]
pub struct Abort(Arc<AbortState>);

#[derive(Debug)]
struct AbortState {
    raised: EventFd,
    reason: Mutex<Option<String>>,
}

impl Abort {
    /// One that has not been raised.
    ///
    /// # Errors
    /// Where the process has no file descriptors left.
    pub fn new() -> io::Result<Self> {
        let raised = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self(Arc::new(AbortState {
            raised,
            reason: Mutex::new(None),
        })))
    }

    /// Ends the daemon. The first reason is the one that is told.
    pub fn raise(&self, reason: impl Into<String>) {
        let mut first = self.0.reason.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| reason.into());
        // Fails where the counter is full: then it has been raised.
        let _ = self.0.raised.write(1);
    }

    /// Why, if it has been raised.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0
            .reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl AsFd for Abort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.raised.as_fd()
    }
}
