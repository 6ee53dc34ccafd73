//! Counters and records of nodes that change while packets pass. No path depends on it, so that a packet that
//! passes changes nothing in [`Nodes`].

use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;
use std::time::Duration;

use crate::links::fault::Draws;
use crate::links::marks::SwitchMarks;
use crate::links::starved::Starved;
use crate::nodes::Nodes;
use crate::nodes::base_lines::BaseLines;
use crate::nodes::congestion::HeldBack;
use crate::nodes::counters::{Counter, SmpCounts, Totals};
use crate::nodes::node::Port;
use crate::nodes::sampler::Sampler;
use crate::nodes::topology::{NodeId, PortRef};
use crate::nodes::trap::SentTrap;

/// Counters and records of one node.
#[derive(Debug, Default)]
pub(crate) struct NodeLedger {
    pub(crate) smps: SmpCounts,
    pub(crate) sampler: Sampler,
    /// At a switch: packets that it has marked since its log was read.
    pub(crate) marks: SwitchMarks,
    /// The number of the first port.
    first: u8,
    ports: Vec<PortLedger>,
}

impl NodeLedger {
    pub(crate) fn port_mut(&mut self, number: u8) -> Option<&mut PortLedger> {
        let index = usize::from(number.checked_sub(self.first)?);
        self.ports.get_mut(index)
    }
}

/// Counters of management packets of one port, and a [`PortRecord`] once something is written into it: that may never be.
#[derive(Debug, Default)]
pub(crate) struct PortLedger {
    /// The first quantities of [`Counter`].
    pub(crate) passed: [u64; PASSED],
    record: Option<Box<PortRecord>>,
}

/// Quantities that every packet adds to.
const PASSED: usize = Counter::UnicastRcv as usize + 1;

/// Counters and records that a port rarely has.
#[derive(Debug, Default)]
pub(crate) struct PortRecord {
    /// Quantities, but for what has [`PortLedger::passed`].
    pub(crate) management: Totals,
    /// Where counters began, once somebody has written them.
    pub(crate) base_lines: Option<Box<BaseLines>>,
    /// Traps that the port has sent, or is to send.
    pub(crate) told: Vec<SentTrap>,
    /// When the lease of the management key ends, once it has begun.
    pub(crate) lease: Option<Duration>,
    /// Random draws of a faulty link, on the way out.
    pub(crate) draws: Draws,
    /// Damaged packets received that sound ones have not made up for.
    pub(crate) physical_errors: u8,
    /// Packets in a row that found its buffers full.
    pub(crate) overruns: u8,
    /// Where it gets no credits: what waits for them.
    pub(crate) starved: Option<Box<Starved>>,
    /// At a channel adapter: events of holding back since its log was read.
    pub(crate) held_back: HeldBack,
    /// Time in which it had something to send and no credits, before now.
    pub(crate) waited: Duration,
}

static UNWRITTEN: LazyLock<PortRecord> = LazyLock::new(PortRecord::default);

impl Deref for PortLedger {
    type Target = PortRecord;

    fn deref(&self) -> &PortRecord {
        self.record.as_deref().unwrap_or(&UNWRITTEN)
    }
}

/// Makes the record: not for those who only look.
impl DerefMut for PortLedger {
    fn deref_mut(&mut self) -> &mut PortRecord {
        self.record.get_or_insert_default()
    }
}

impl PortLedger {
    /// The record, if there is one.
    pub(crate) fn record_mut(&mut self) -> Option<&mut PortRecord> {
        self.record.as_deref_mut()
    }

    fn add(&mut self, counter: Counter, value: u64) {
        match self.passed.get_mut(counter as usize) {
            Some(passed) => *passed = passed.wrapping_add(value),
            None => self.management.add(counter, value),
        }
    }

    /// Where counters began, to be looked at (`unset` is for a port whose counters nobody has written) or written.
    pub(crate) fn base_lines<'a>(
        &'a mut self,
        writes: bool,
        unset: &'a mut BaseLines,
    ) -> &'a mut BaseLines {
        if !writes && self.base_lines.is_none() {
            return unset;
        }
        self.base_lines.get_or_insert_default()
    }

    /// Traffic through this port until `now`.
    pub(crate) fn totals(&self, port: &Port, now: Duration) -> Totals {
        let mut totals = port.counters.totals().plus(&self.management);
        totals.add_first(&self.passed);
        totals.add(Counter::XmitWait, self.ticks_waited(now));
        totals
    }
}

/// The ledgers of all nodes.
#[derive(Debug)]
pub(crate) struct Ledgers(Vec<NodeLedger>);

impl Ledgers {
    /// Nothing has happened yet.
    pub(crate) fn new(nodes: &Nodes) -> Self {
        let ledger = |node| {
            let node = nodes.node(node)?;
            let (first, last) = (node.first_port(), node.last_port());
            Some(NodeLedger {
                first,
                ports: (first..=last).map(|_| PortLedger::default()).collect(),
                ..NodeLedger::default()
            })
        };
        let mut all: Vec<NodeLedger> = nodes.nodes().filter_map(ledger).collect();
        all.shrink_to_fit();
        Self(all)
    }

    pub(crate) fn node(&self, node: NodeId) -> Option<&NodeLedger> {
        self.0.get(node.index())
    }

    pub(crate) fn node_mut(&mut self, node: NodeId) -> Option<&mut NodeLedger> {
        self.0.get_mut(node.index())
    }

    pub(crate) fn port(&self, port: PortRef) -> Option<&PortLedger> {
        let node = self.node(port.node)?;
        node.ports
            .get(usize::from(port.port.checked_sub(node.first)?))
    }

    pub(crate) fn port_mut(&mut self, port: PortRef) -> Option<&mut PortLedger> {
        self.node_mut(port.node)?.port_mut(port.port)
    }

    pub(crate) fn count(&mut self, port: PortRef, counter: Counter, value: u64) {
        if let Some(port) = self.port_mut(port) {
            port.add(counter, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_only_passes_packets_has_no_record() {
        let mut ledger = PortLedger::default();
        ledger.add(Counter::XmitData, 64);
        ledger.add(Counter::UnicastXmit, 1);
        ledger.receive_sound();
        ledger.base_lines(false, &mut BaseLines::default());
        assert!(ledger.record_mut().is_none());
        ledger.add(Counter::SymbolErrors, 3);
        assert!(ledger.record_mut().is_some());
        let port = PortLedger::default();
        assert_eq!(port.management.get(Counter::SymbolErrors), 0);
        assert_eq!(ledger.management.get(Counter::SymbolErrors), 3);
        assert_eq!(ledger.passed, [64, 0, 1, 0]);
    }
}
