//! Timers.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::nodes::topology::{NodeId, PortRef};
use crate::packet::Transit;

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

/// Timers by their time. Those due at the same time fire in the order in which they were set.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    pub(crate) now: Duration,
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

    pub(crate) fn next(&self) -> Option<Duration> {
        Some(self.due.first_key_value()?.0.0)
    }

    pub(crate) fn pop(&mut self) -> Option<Timer> {
        if self.next()? > self.now {
            return None;
        }
        let (_, timer) = self.due.pop_first()?;
        self.packets -= usize::from(matches!(timer, Timer::Packet(_)));
        Some(timer)
    }
}
