//! Links that frames cross, as an endpoint sees them.

use std::fmt::Debug;

use wire::{Lid, Sl};

/// The packets of a frame, as links see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// The way, see [`Shares::way`](crate::Shares::way).
    pub way: u32,
    /// The endpoint's token of the frame.
    pub token: u64,
    /// Number of packets.
    pub packets: u32,
    /// Length of all but the last one in bytes, headers and check sums included.
    pub full: u32,
    /// Length of the last one.
    pub last: u32,
    /// Source and destination LID, and service level.
    pub header: (Lid, Lid, Sl),
}

impl Load {
    /// Length of all packets.
    pub(crate) fn bytes(&self) -> u32 {
        (self.packets - 1) * self.full + self.last
    }
}

/// A frame has passed its way's last link, or one of its last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// The endpoint's token of the frame.
    pub token: u64,
    /// Link of the way, see [`Shares::end`](crate::Shares::end).
    pub end: u16,
    /// When, in the clock's nanoseconds.
    pub at: u64,
    /// It was the last one.
    pub done: bool,
    /// A switch has marked one of its packets.
    pub marked: bool,
}

/// The links of a subnet, which share their bandwidth among lanes. Other engines' frames cross them, too.
pub trait Links: Debug + Send {
    /// Packets leave their sender's port.
    fn enter(&mut self, now: u64, load: Load);

    /// The next frame of this endpoint's that has passed a last link.
    fn leave(&mut self, now: u64) -> Option<Passed>;

    /// When to look for the next one.
    fn deadline(&self) -> Option<u64>;
}
