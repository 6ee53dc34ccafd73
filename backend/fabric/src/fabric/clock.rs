//! The fabric's clock.

use std::time::Duration;

use crate::fabric::Fabric;
use crate::timers::Timer;

impl Fabric {
    /// Tells the fabric what time it is as [`Fabric::advance`] does, but lets nothing happen yet:
    /// for counts of what has passed until now.
    pub fn set_clock(&mut self, now: Duration) {
        self.timers.now = self.timers.now.max(now);
    }

    /// Tells the fabric what time it is, as the time since any fixed moment: slow links deliver,
    /// traps that nobody acknowledged are sent again, leases and the patience of ports without
    /// credits run out, samples of counters begin and end. The time never runs backwards.
    ///
    /// Returns [`Fabric::deadline`].
    pub fn advance(&mut self, now: Duration) -> Option<Duration> {
        self.set_clock(now);
        while let Some(timer) = self.timers.pop() {
            match timer {
                Timer::Trap { port, number } => self.trap_due(port, number),
                Timer::Lease { port } => self.lease_due(port),
                Timer::Packet(transit) => self.transit.push_back(transit),
                Timer::HeadOfQueue { port } => self.head_of_queue_due(port),
                Timer::Watchdog { port } => self.watchdog_due(port),
                Timer::Sample(node) => self.performance().sample_due(node),
            }
        }
        self.deadline()
    }

    /// When [`Fabric::advance`] has something to do; `None` for not until something happens. [`Fabric::run`] may
    /// bring it nearer.
    pub fn deadline(&self) -> Option<Duration> {
        self.timers.next()
    }

    /// Whether packets are on a link that delays them.
    pub fn is_delaying(&self) -> bool {
        self.timers.packets() > 0
    }
}
