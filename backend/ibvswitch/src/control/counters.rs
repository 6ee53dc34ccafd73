//! Counters of a fabric, as the control socket tells them.

use std::collections::BTreeMap;

use fabric::{Fabric, NodeId, PortRef};
use vswitch::Plan;
use wire::Lid;

use super::{CountersReport, Forwarding, NodeCounters, PORT_ERRORS, PortCounts, Smps};

/// Returns the counters in `fabric` of the nodes of `plan`, or of one of them.
pub(crate) fn counters_report(
    plan: &Plan,
    fabric: &Fabric,
    only: Option<NodeId>,
) -> CountersReport {
    let names: BTreeMap<_, _> = plan
        .host_ports()
        .map(|(name, port)| (port.node, name))
        .collect();
    let wanted = plan
        .host_ports()
        .filter(|(_, own)| only.is_none_or(|only| only == own.node));
    let nodes = wanted.map(|(name, own)| {
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
    CountersReport {
        nodes: nodes.collect(),
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
        totals.symbol_errors,
        totals.link_downed,
        totals.rcv_errors,
        totals.rcv_switch_relay_errors,
        totals.xmit_discards,
        totals.xmit_constraint_errors,
        totals.rcv_constraint_errors,
        totals.local_link_integrity_errors,
        totals.excessive_buffer_overrun_errors,
        totals.vl15_dropped,
        totals.xmit_wait,
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
        errors: { PORT_ERRORS.into_iter() }
            .zip(errors)
            .filter(|&(_, count)| count > 0)
            .map(|(name, count)| (name.to_owned(), count))
            .collect(),
    })
}
