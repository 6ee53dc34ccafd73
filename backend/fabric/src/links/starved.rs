//! Packets of a port that gets no credits.

use std::collections::VecDeque;
use std::time::Duration;

use wire::MadPacket;

/// A port that gets no credits.
#[derive(Debug, Default)]
pub(crate) struct Starved {
    pub(super) waiting: VecDeque<Waiting>,
    /// Start and earliest end of the current wait. Earlier waits are in `PortRecord::waited` already.
    pub(super) busy: Option<(Duration, Duration)>,
    /// When the watchdog runs out.
    pub(super) watchdog: Duration,
}

/// A packet that waits to leave.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) until: Duration,
    pub(super) hops: u8,
    pub(super) packet: Box<MadPacket>,
}

impl Starved {
    pub(super) fn busy_time(&self, now: Duration) -> Duration {
        let (since, until) = self.busy.unwrap_or_default();
        until.min(now).saturating_sub(since)
    }
}
