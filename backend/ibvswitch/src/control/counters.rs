//! What nodes and ports have counted, as the control socket tells it.

use std::collections::BTreeMap;

use fabric::{Fabric, PortRef};
use serde::{Deserialize, Serialize};
use vswitch::Plan;
use wire::Lid;

/// What each node of the subnet has counted since the daemon began to serve.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountersReport {
    /// The nodes, in the order of the topology.
    pub nodes: Vec<NodeCounters>,
}

/// What a node has counted.
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

/// What a port has counted: names as in PortCounters and PortCountersExtended, with data in bytes.
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
    /// Errors by name, those that are not zero.
    pub errors: BTreeMap<String, u64>,
}

impl CountersReport {
    /// What the nodes of `plan` have counted in `fabric`.
    pub fn new(plan: &Plan, fabric: &Fabric) -> Self {
        let names: BTreeMap<_, _> = plan
            .host_ports()
            .map(|(name, port)| (port.node, name))
            .collect();
        let nodes = plan.host_ports().map(|(name, own)| {
            let info = fabric.node_info(own).unwrap_or_default();
            let lid = fabric.port_info(own).unwrap_or_default().lid;
            let ports = (1..=info.num_ports).filter_map(|port| {
                let port = PortRef { port, ..own };
                let peer = fabric.peer(port)?;
                let name = names.get(&peer.node).map_or("", String::as_str);
                port_counts(fabric, port, format!("{name}:{}", peer.port))
            });
            NodeCounters {
                name,
                guid: info.node_guid.to_string(),
                lid: (lid != Lid::NONE).then(|| lid.value()),
                forwarding: fabric
                    .forwarding_summary(own.node)
                    .map(|tables| Forwarding {
                        top: tables.top.value(),
                        lids: tables.lids,
                        blocks: tables.blocks,
                    }),
                smps: smps(fabric, own),
                ports: ports.collect(),
            }
        });
        Self {
            nodes: nodes.collect(),
        }
    }
}

fn smps(fabric: &Fabric, own: PortRef) -> Smps {
    let Some(counts) = fabric.smp_counts(own.node) else {
        return Smps::default();
    };
    Smps {
        answered: counts
            .answered()
            .map(|(method, attribute, count)| (format!("{method}({attribute})"), count))
            .collect(),
        forwarded: counts.forwarded(),
        dropped: counts.dropped(),
    }
}

fn port_counts(fabric: &Fabric, port: PortRef, peer: String) -> Option<PortCounts> {
    let totals = fabric.port_totals(port)?;
    let info = fabric.port_info(port)?;
    let errors = [
        ("symbol_errors", totals.symbol_errors),
        ("link_downed", totals.link_downed),
        ("rcv_errors", totals.rcv_errors),
        ("rcv_switch_relay_errors", totals.rcv_switch_relay_errors),
        ("xmit_discards", totals.xmit_discards),
        ("xmit_constraint_errors", totals.xmit_constraint_errors),
        ("rcv_constraint_errors", totals.rcv_constraint_errors),
        (
            "local_link_integrity_errors",
            totals.local_link_integrity_errors,
        ),
        (
            "excessive_buffer_overrun_errors",
            totals.excessive_buffer_overrun_errors,
        ),
        ("vl15_dropped", totals.vl15_dropped),
        ("xmit_wait", totals.xmit_wait),
    ];
    Some(PortCounts {
        port: port.port,
        state: info.port_state.to_string(),
        peer,
        xmit_bytes: totals.xmit_words * 4,
        rcv_bytes: totals.rcv_words * 4,
        xmit_packets: totals.xmit_packets,
        rcv_packets: totals.rcv_packets,
        multicast_xmit_packets: totals.multicast_xmit_packets,
        multicast_rcv_packets: totals.multicast_rcv_packets,
        errors: errors
            .into_iter()
            .filter(|&(_, count)| count > 0)
            .map(|(name, count)| (name.to_owned(), count))
            .collect(),
    })
}
