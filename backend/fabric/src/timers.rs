//! The fabric's clock: what is to happen later.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fabric::Fabric;
use crate::nodes::topology::{NodeId, PortRef};
use crate::transit::Transit;

/// Something that is due at a time.
#[derive(Debug)]
pub(crate) enum Timer {
    /// A port may send this trap again.
    Trap { port: PortRef, number: u16 },
    /// The lease of a port's management key runs out.
    Lease { port: PortRef },
    /// A slow link delivers a packet.
    Packet(Transit),
    /// A packet has waited for credits for as long as it may.
    HeadOfQueue { port: PortRef },
    /// The watchdog of a port's flow control runs out.
    Watchdog { port: PortRef },
    /// A sample of a node's counters begins or ends.
    Sample(NodeId),
}

/// What is due when. What is due at the same time happens in the order it was scheduled.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    now: Duration,
    serial: u64,
    due: BTreeMap<(Duration, u64), Timer>,
    packets: usize,
}

impl Timers {
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// Packets that a slow link has not delivered yet.
    pub(crate) fn packets(&self) -> usize {
        self.packets
    }

    pub(crate) fn schedule(&mut self, at: Duration, timer: Timer) {
        self.packets += usize::from(matches!(timer, Timer::Packet(_)));
        self.due.insert((at, self.serial), timer);
        self.serial += 1;
    }

    fn next(&self) -> Option<Duration> {
        Some(self.due.first_key_value()?.0.0)
    }

    fn pop(&mut self) -> Option<Timer> {
        if self.next()? > self.now {
            return None;
        }
        let (_, timer) = self.due.pop_first()?;
        self.packets -= usize::from(matches!(timer, Timer::Packet(_)));
        Some(timer)
    }
}

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

    /// When [`Fabric::advance`] has something to do; `None` for not until something happens. What
    /// [`Fabric::run`] does may bring it nearer.
    pub fn deadline(&self) -> Option<Duration> {
        self.timers.next()
    }

    /// Whether packets are on a link that delays them.
    pub fn is_delaying(&self) -> bool {
        self.timers.packets() > 0
    }
}
