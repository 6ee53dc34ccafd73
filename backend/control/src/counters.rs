//! Counters of nodes and ports, on the control socket.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Names of the errors that ports count.
pub const PORT_ERRORS: [&str; 11] = [
    "symbol_errors",
    "link_downed",
    "rcv_errors",
    "rcv_switch_relay_errors",
    "xmit_discards",
    "xmit_constraint_errors",
    "rcv_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "vl15_dropped",
    "xmit_wait",
];

/// Counters of each node of the subnet since the daemon began to serve.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountersReport {
    /// The nodes, in the order of the topology.
    pub nodes: Vec<NodeCounters>,
}

/// Counters of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCounters {
    /// Its name.
    pub name: String,
    /// Node GUID.
    pub guid: String,
    /// LID, `None` while there is none.
    pub lid: Option<u16>,
    /// A switch's linear forwarding table.
    pub forwarding: Option<Forwarding>,
    /// Subnet management packets that it saw.
    pub smps: Smps,
    /// Its ports that have a cable.
    pub ports: Vec<PortCounts>,
}

/// A linear forwarding table at a glance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forwarding {
    /// The highest LID that the table is used for.
    pub top: u16,
    /// LIDs that have a port in it.
    pub lids: u32,
    /// Blocks of 64 LIDs up to the highest one.
    pub blocks: u32,
}

/// Subnet management packets that a node saw.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Smps {
    /// Requests that its own agent answered, such as `Get(NodeInfo)`.
    pub answered: BTreeMap<String, u64>,
    /// Packets passed on to a neighbour.
    pub forwarded: u64,
    /// Packets dropped: no link, no route, against the rules, or refused.
    pub dropped: u64,
}

/// Counters of a port: names as in PortCounters and PortCountersExtended, with data in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(
    missing_docs,
    reason = "the names are those of the performance attributes"
)]
pub struct PortCounts {
    /// The port.
    pub port: u8,
    /// State of its link.
    pub state: String,
    /// Node and port at the other end of its cable, as in `hv1:1`.
    pub peer: String,
    pub xmit_bytes: u64,
    pub rcv_bytes: u64,
    pub xmit_packets: u64,
    pub rcv_packets: u64,
    pub multicast_xmit_packets: u64,
    pub multicast_rcv_packets: u64,
    /// Errors by their names in [`PORT_ERRORS`], those that are not zero.
    pub errors: BTreeMap<String, u64>,
}
