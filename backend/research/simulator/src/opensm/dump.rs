//! The forwarding tables that OpenSM wrote into the switches.

use std::collections::HashMap;

use fabric::Topology;
use subnet_manager::routing::TableDump;
use subnet_manager::{Graph, Routing};
use wire::Guid;
use wire::attribute::NodeType;

use super::OpenSmError;

/// The forwarding tables of an `opensm-lfts.dump`.
pub(super) fn read(topology: &Topology, dump: &str) -> Result<(Graph, Routing), OpenSmError> {
    let mut graph = crate::graph(topology)?;
    let dump = TableDump::parse(dump).map_err(OpenSmError::Dump)?;
    let lids = dump.owners();
    let guids: HashMap<u64, u64> = guids(topology).into_iter().collect();
    let theirs = |guid: Guid| {
        guids
            .get(&guid.value())
            .map_or(guid, |&guid| Guid::new(guid))
    };
    for endpoint in &mut graph.endpoints {
        let guid = theirs(endpoint.guid);
        endpoint.lid = *lids.get(&guid).ok_or(OpenSmError::NoLid(guid))?;
    }
    graph.endpoints.sort_by_key(|endpoint| endpoint.lid);
    let mut renamed = graph.clone();
    for endpoint in &mut renamed.endpoints {
        endpoint.guid = theirs(endpoint.guid);
    }
    Ok((graph, dump.tables(&renamed).into()))
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
