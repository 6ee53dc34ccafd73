//! Whether there is room for what is to be sent.

use std::sync::atomic::Ordering;

use crate::objects::vf::Vf;
use crate::queue_format::QueueFormat;

/// When there is room for a frame on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// Now.
    Now,
    /// At this time.
    Then(u64),
    /// Later.
    Unknown,
}

/// Requests of connections that a function may have taken and not completed, and, apart from these, what
/// it may have on its way. Each holds memory of the host's. A queue pair that has nothing on its way may
/// always send one.
pub(super) const MAX_OUTSTANDING: u32 = 4096;
/// Largest part of it that one of them takes, in bytes: a datagram of a whole packet.
pub(crate) const BYTES_PER_SLOT: usize = 4096 + 512;

impl<F: QueueFormat> Vf<F> {
    /// Whether it may have one thing more.
    pub(crate) fn has_slots(&self) -> bool {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        self.taken.max(in_flight) < MAX_OUTSTANDING && self.memory.left() >= BYTES_PER_SLOT
    }

    /// Whether it has as much on its way as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) >= MAX_OUTSTANDING
    }

    /// So many requests are not under way any more.
    pub(crate) fn release_slots(&mut self, requests: usize) {
        self.taken = self.taken.saturating_sub(requests as u32);
        (0..requests).for_each(|_| self.memory.give(BYTES_PER_SLOT));
    }
}
