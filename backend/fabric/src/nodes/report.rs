//! Reports for the owner of a fabric, without asking its agents.

use wire::Lid;
use wire::attribute::LinearBlock;

use crate::fabric::Fabric;
use crate::nodes::Nodes;
use crate::nodes::counters::Counter;
use crate::nodes::topology::{NodeId, PortRef};

/// Traffic of a port since the fabric exists, data and management: the answer of its performance agent if nobody
/// had reset it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the names are those of the performance attributes"
)]
pub struct PortTotals {
    /// In units of 4 bytes.
    pub xmit_words: u64,
    /// In units of 4 bytes.
    pub rcv_words: u64,
    pub xmit_packets: u64,
    pub rcv_packets: u64,
    pub multicast_xmit_packets: u64,
    pub multicast_rcv_packets: u64,
    pub symbol_errors: u64,
    pub link_downed: u64,
    pub rcv_errors: u64,
    pub rcv_switch_relay_errors: u64,
    pub xmit_discards: u64,
    pub xmit_constraint_errors: u64,
    pub rcv_constraint_errors: u64,
    pub local_link_integrity_errors: u64,
    pub excessive_buffer_overrun_errors: u64,
    pub vl15_dropped: u64,
    /// Microseconds.
    pub xmit_wait: u64,
}

/// A switch's forwarding tables at a glance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForwardingSummary {
    /// The highest LID that the linear table is used for.
    pub top: Lid,
    /// LIDs that have a port there.
    pub lids: u32,
    /// Blocks of 64 LIDs up to the highest one.
    pub blocks: u32,
}

impl Nodes {
    /// A switch's forwarding tables.
    pub fn forwarding_summary(&self, node: NodeId) -> Option<ForwardingSummary> {
        let switch = self.switch(node)?;
        let top = switch.info.linear_fdb_top;
        let lids = (1..=top.min(Lid::UNICAST_LAST.into()))
            .filter(|&lid| switch.linear.port(Lid::from(lid)) != LinearBlock::DROP);
        Some(ForwardingSummary {
            top: Lid::from(top),
            lids: lids.count() as u32,
            blocks: match top {
                0 => 0,
                top => u32::from(top / LinearBlock::LIDS) + 1,
            },
        })
    }
}

impl Fabric {
    /// Traffic of a port.
    pub fn port_totals(&self, port: PortRef) -> Option<PortTotals> {
        let ledger = self.ledgers.port(port)?;
        let totals = ledger.totals(self.port(port)?, self.timers.now());
        Some(PortTotals {
            xmit_words: totals.get(Counter::XmitData),
            rcv_words: totals.get(Counter::RcvData),
            xmit_packets: totals.xmit_packets(),
            rcv_packets: totals.rcv_packets(),
            multicast_xmit_packets: totals.get(Counter::MulticastXmit),
            multicast_rcv_packets: totals.get(Counter::MulticastRcv),
            symbol_errors: totals.get(Counter::SymbolErrors),
            link_downed: totals.get(Counter::LinkDowned),
            rcv_errors: totals.rcv_errors(),
            rcv_switch_relay_errors: totals.rcv_switch_relay_errors(),
            xmit_discards: totals.xmit_discards(),
            xmit_constraint_errors: totals.get(Counter::XmitConstraintErrors),
            rcv_constraint_errors: totals.get(Counter::RcvConstraintErrors),
            local_link_integrity_errors: totals.get(Counter::LocalLinkIntegrityErrors),
            excessive_buffer_overrun_errors: totals.get(Counter::ExcessiveBufferOverrunErrors),
            vl15_dropped: totals.get(Counter::Vl15Dropped),
            xmit_wait: totals.get(Counter::XmitWait),
        })
    }
}
