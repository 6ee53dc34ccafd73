//! Notices of a port to its subnet manager.

use std::time::Duration;

use wire::smp::DATA;

/// A trap that a port has sent, or is to send.
#[derive(Debug)]
pub(crate) struct SentTrap {
    pub(crate) number: u16,
    /// The notice that nobody has acknowledged yet.
    pub(crate) notice: Option<[u8; DATA]>,
    pub(crate) transaction: u64,
    /// When the next one of this number may be sent.
    pub(crate) next: Duration,
    pub(crate) scheduled: bool,
}
