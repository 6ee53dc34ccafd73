//! Messages of a connection that go in frames.

use crate::transport::requester::Requester;

/// State of a connection while its messages go in frames.
#[derive(Debug)]
pub(crate) struct Away {
    pub requester: Requester,
    /// More requests are posted than may be taken.
    pub full: bool,
    /// Identifies the timer that is set, and when that is due.
    pub timer: u64,
    pub due: u64,
}

impl Away {
    pub const fn new(requester: Requester) -> Self {
        Self {
            requester,
            full: false,
            timer: 0,
            due: 0,
        }
    }
}
