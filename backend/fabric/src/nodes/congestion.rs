//! Settings of congestion control agents (IBA annex A10): when switches mark packets, and how channel adapters hold
//! back what meets congestion.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wire::congestion::{
    ADAPTER_EVENTS, AdapterCongestionEvent, CaCongestionEntry, CongestionKeyInfo, ENTRIES,
    InjectionDelay, SwitchCongestionSetting, SwitchPortCongestionElement,
};

use crate::links::marks::Marking;
use crate::nodes::Nodes;
use crate::nodes::topology::PortRef;

/// Blocks of 64 entries that a channel adapter's table has.
pub(crate) const BLOCKS: usize = 2;
/// Service levels.
pub(crate) const LEVELS: usize = 16;

/// Settings of the agent at a port: a channel adapter's port, or port 0 of a switch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Congestion {
    /// The key, and how it protects.
    pub(crate) key: CongestionKeyInfo,
    /// When a datagram with a wrong key came for the first time since one with the right key did.
    pub(crate) violated: Option<Duration>,
    /// Settings of a switch.
    pub(crate) switch: SwitchCongestion,
    /// Settings of a channel adapter.
    pub(crate) adapter: Arc<AdapterCongestion>,
}

/// When a switch marks packets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SwitchCongestion {
    pub(crate) all: SwitchCongestionSetting,
    /// Values of ports that have their own.
    pub(crate) ports: BTreeMap<u8, SwitchPortCongestionElement>,
}

/// Rules by which a channel adapter holds back its port's packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterCongestion {
    /// All of a service level is held back together, and not queue pairs one by one.
    pub by_level: bool,
    /// By service level.
    pub levels: [CaCongestionEntry; LEVELS],
    /// The highest index into the delays.
    pub limit: u16,
    /// By index.
    pub delays: [InjectionDelay; BLOCKS * ENTRIES],
}

impl Default for AdapterCongestion {
    fn default() -> Self {
        Self {
            by_level: false,
            levels: [CaCongestionEntry::default(); LEVELS],
            limit: 0,
            delays: [InjectionDelay::default(); BLOCKS * ENTRIES],
        }
    }
}

/// Events of a channel adapter's holding back: indexes that have reached their threshold.
#[derive(Debug, Default)]
pub(crate) struct HeldBack {
    /// Number of events.
    pub(crate) count: u64,
    /// Service levels of them, a bit each.
    pub(crate) levels: u16,
    /// The last ones, the latest one last.
    pub(crate) last: VecDeque<AdapterCongestionEvent>,
}

impl HeldBack {
    /// One more.
    pub(crate) fn add(&mut self, event: AdapterCongestionEvent) {
        self.count += 1;
        self.levels |= 1 << event.sl.value();
        if self.last.len() == ADAPTER_EVENTS {
            self.last.pop_front();
        }
        self.last.push_back(event);
    }
}

impl Nodes {
    /// Rules by which a channel adapter's port holds back packets; `None` until its agent is configured.
    pub fn adapter_congestion(&self, port: PortRef) -> Option<&Arc<AdapterCongestion>> {
        Some(&self.port(port)?.congestion.as_ref()?.adapter)
    }

    /// When a port of a switch marks packets; `None`: it does not.
    pub(crate) fn marking(&self, port: PortRef) -> Option<Marking> {
        let switch = self.node(port.node).filter(|node| node.switch.is_some())?;
        let SwitchCongestion { all, ports } = &switch.port(0)?.congestion.as_ref()?.switch;
        match ports.get(&port.port) {
            Some(own) => Marking::new(own.threshold, own.packet_size, own.parameter),
            None => Marking::new(all.threshold, all.packet_size, all.marking_rate),
        }
    }
}
