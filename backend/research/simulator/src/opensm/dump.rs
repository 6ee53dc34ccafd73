//! The forwarding tables that OpenSM wrote into the switches.

use std::collections::HashMap;

use fabric::Topology;
use subnet_manager::{ForwardingTable, Graph, Routing};
use wire::attribute::NodeType;
use wire::{Guid, Lid};

use super::OpenSmError;

/// An entry: index of the switch, LID, port.
type Entry = (usize, Lid, u8);

/// The GUID after `key`.
fn guid_after(line: &str, key: &str) -> Option<u64> {
    let (_, rest) = line.split_once(key)?;
    let guid: Guid = rest.split([' ', ':', ',']).next()?.parse().ok()?;
    Some(guid.value())
}

/// The forwarding tables of an `opensm-lfts.dump`.
pub(super) fn read(topology: &Topology, dump: &str) -> Result<(Graph, Routing), OpenSmError> {
    let mut graph = crate::graph(topology)?;
    let switches = graph.switches.iter().enumerate();
    let switches: HashMap<u64, usize> = switches
        .map(|(index, vertex)| (vertex.guid.value(), index))
        .collect();
    let mut lids: HashMap<u64, Lid> = HashMap::new();
    let mut entries: Vec<Entry> = Vec::new();
    let mut switch = 0;
    for (number, line) in dump.lines().enumerate() {
        let bad = || OpenSmError::Dump {
            line: number + 1,
            text: line.to_owned(),
        };
        if line.starts_with("Unicast lids") {
            let guid = guid_after(line, " guid ").ok_or_else(bad)?;
            switch = *switches.get(&guid).ok_or_else(bad)?;
        } else if line.starts_with("0x") {
            let (lid, guid, port) = entry(line).ok_or_else(bad)?;
            lids.insert(guid, lid);
            entries.extend(port.map(|port| (switch, lid, port)));
        }
    }
    // LIDs of ours are by rising GUID.
    let guids = guids(topology);
    for endpoint in &mut graph.endpoints {
        let guid = guids.get(usize::from(endpoint.lid.value()).wrapping_sub(1));
        let lid = guid.and_then(|(_, guid)| lids.get(guid));
        endpoint.lid = *lid.ok_or_else(|| OpenSmError::Dump {
            line: dump.lines().count(),
            text: format!("the end, without a LID of {guid:x?}"),
        })?;
    }
    graph.endpoints.sort_by_key(|endpoint| endpoint.lid);
    let mut tables = vec![ForwardingTable::new(graph.top()); graph.switches.len()];
    for (switch, lid, port) in entries {
        tables[switch].set(lid, port);
    }
    Ok((graph, tables.into()))
}

/// The GUIDs of the ports that have LIDs, by rising GUID, with what ibsim makes of them: the GUID of an
/// adapter's port is its node's plus the port's number.
fn guids(topology: &Topology) -> Vec<(u64, u64)> {
    let nodes = topology.nodes();
    let cables = topology.links().iter().flat_map(|&(a, b, _)| [a, b]);
    let adapters = cables.filter_map(|at| {
        let node = &nodes[at.node.index()];
        let index = usize::from(at.port).checked_sub(1)?;
        let guid = node.port_guids.get(index)?.value();
        let is_switch = node.kind == NodeType::Switch;
        (!is_switch).then(|| (guid, node.guid.value().wrapping_add(at.port.into())))
    });
    let switches = nodes.iter().filter(|node| node.kind == NodeType::Switch);
    let switches = switches.map(|node| (node.guid.value(), node.guid.value()));
    let mut guids: Vec<_> = adapters.chain(switches).collect();
    guids.sort_unstable();
    guids
}

/// GUIDs of ports as ibsim has them.
pub(super) fn translate<'a>(
    topology: &Topology,
    ports: impl IntoIterator<Item = &'a Guid>,
) -> Vec<Guid> {
    let guids: HashMap<u64, u64> = guids(topology).into_iter().collect();
    let ports = ports.into_iter();
    let known = ports.filter_map(|port| guids.get(&port.value()));
    known.map(|&guid| Guid::new(guid)).collect()
}

/// LID, GUID of the port and port to send by, if there is one, of a line like
/// `0x0001 007 : (Channel Adapter portguid 0x0002c90300000001: 'H2c90300000000')`.
fn entry(line: &str) -> Option<(Lid, u64, Option<u8>)> {
    let mut words = line.split_whitespace();
    let lid = words.next()?.parse().ok()?;
    let port = words.next()?.parse().ok();
    Some((lid, guid_after(line, "portguid ")?, port))
}
