//! From nodes and cables to the graph that routing works on.

pub(crate) mod shape;

use std::collections::HashMap;

use fabric::{NodeId, Topology};
use subnet_manager::{Endpoint, Graph, Trunk, Vertex};
use wire::attribute::NodeType;
use wire::{Guid, Lid};

/// More ports than there are LIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} ports need a LID each; a subnet has 49151")]
pub struct TooManyLids(pub usize);

/// A topology without aggregation nodes, and the number of these: they are channel adapters, and no hosts.
#[must_use]
pub fn without_aggregation_nodes(topology: &Topology) -> (Topology, usize) {
    let nodes = topology.nodes();
    let mut kept = Topology::new();
    let places: Vec<Option<NodeId>> = nodes
        .iter()
        .map(|node| (!node.is_aggregation_node()).then(|| kept.add(node.clone())))
        .collect();
    for &(a, b, rate) in topology.links() {
        if let (Some(near), Some(far)) = (places[a.node.index()], places[b.node.index()]) {
            kept.link((near, a.port), (far, b.port), rate);
        }
    }
    let left_out = nodes.len() - kept.nodes().len();
    (kept, left_out)
}

/// The graph of a topology with every cable whole, as a subnet manager finds it: LIDs from 1, by
/// rising GUID.
///
/// # Errors
/// [`TooManyLids`].
pub fn graph(topology: &Topology) -> Result<Graph, TooManyLids> {
    let nodes = topology.nodes();
    let is_switch = |node: usize| nodes[node].kind == NodeType::Switch;
    let mut order: Vec<usize> = (0..nodes.len()).filter(|&node| is_switch(node)).collect();
    order.sort_by_key(|&node| nodes[node].guid);
    let mut index = vec![usize::MAX; nodes.len()];
    for (at, &node) in order.iter().enumerate() {
        index[node] = at;
    }
    let mut switches: Vec<Vertex> = order
        .iter()
        .map(|&node| Vertex {
            guid: nodes[node].guid,
            ports: nodes[node].ports,
            trunks: Vec::new(),
        })
        .collect();
    // Ports that have LIDs: GUID, switch, port.
    let mut ports: Vec<(Guid, usize, u8)> = order
        .iter()
        .enumerate()
        .map(|(at, &node)| (nodes[node].guid, at, 0))
        .collect();
    let mut uplinks: HashMap<(NodeId, u8), (usize, u8)> = HashMap::new();
    for &(a, b, _) in topology.links() {
        for (near, far) in [(a, b), (b, a)] {
            let (from, to) = (near.node.index(), far.node.index());
            match (is_switch(from), is_switch(to)) {
                (true, true) => switches[index[from]].trunks.push(Trunk {
                    port: near.port,
                    to: index[to],
                    to_port: far.port,
                }),
                (true, false) => {
                    uplinks.insert((far.node, far.port), (index[from], near.port));
                }
                (false, _) => {}
            }
        }
    }
    for ((node, port), (switch, at)) in uplinks {
        let guids = &nodes[node.index()].port_guids;
        if let Some(&guid) = guids.get(usize::from(port).wrapping_sub(1)) {
            ports.push((guid, switch, at));
        }
    }
    if ports.len() > usize::from(Lid::UNICAST_LAST.value()) {
        return Err(TooManyLids(ports.len()));
    }
    ports.sort_unstable();
    for vertex in &mut switches {
        vertex.trunks.sort_by_key(|trunk| trunk.port);
    }
    let endpoints = (1u16..)
        .zip(ports)
        .map(|(lid, (guid, switch, port))| Endpoint {
            lid: Lid::new(lid),
            guid,
            switch,
            port,
        });
    Ok(Graph {
        endpoints: endpoints.collect(),
        switches,
        ..Graph::default()
    })
}

/// The same with a hypervisor in place of each of the first `hosts` adapters, and no others: a
/// vSwitch, which shares the hypervisor's LID and has none here, and `functions` virtual functions
/// with a LID each, "prepopulated". LIDs are from 1, the functions' first.
///
/// # Errors
/// [`TooManyLids`].
pub fn with_hypervisors(graph: &Graph, hosts: usize, functions: u8) -> Result<Graph, TooManyLids> {
    let mut switches = graph.switches.clone();
    let mut ports = Vec::new();
    let adapters = graph.endpoints.iter().filter(|endpoint| endpoint.port != 0);
    for (number, adapter) in (1..).zip(adapters.take(hosts)) {
        let vswitch = switches.len();
        switches.push(Vertex {
            guid: Guid::new(HYPERVISORS | number << 8),
            ports: functions.saturating_add(1),
            trunks: vec![Trunk {
                port: 1,
                to: adapter.switch,
                to_port: adapter.port,
            }],
        });
        switches[adapter.switch].trunks.push(Trunk {
            port: adapter.port,
            to: vswitch,
            to_port: 1,
        });
        ports.extend((0..functions).map(|function| (vswitch, function.saturating_add(2))));
    }
    for vertex in &mut switches {
        vertex.trunks.sort_by_key(|trunk| trunk.port);
    }
    ports.extend((0..graph.switches.len()).map(|switch| (switch, 0)));
    if ports.len() > usize::from(Lid::UNICAST_LAST.value()) {
        return Err(TooManyLids(ports.len()));
    }
    let endpoints = (1u16..).zip(ports).map(|(lid, (switch, port))| Endpoint {
        lid: Lid::new(lid),
        guid: Guid::new(lid.into()),
        switch,
        port,
    });
    Ok(Graph {
        endpoints: endpoints.collect(),
        switches,
        ..Graph::default()
    })
}

/// GUIDs of vSwitches, above those of all generated switches.
const HYPERVISORS: u64 = 0x0002_c904_0000_0000;

#[cfg(test)]
mod tests {
    use subnet_manager::RoutingEngine;
    use subnet_manager::routing::{VSwitchFatTree, Verdict};
    use topologies::{FatTree, Hosts};

    use super::*;

    #[test]
    fn lids_by_guid() {
        let tree: FatTree = "XGFT(2;2,2;2,1)".parse().unwrap();
        let graph = graph(&tree.topology(Hosts::Adapters)).unwrap();
        assert_eq!(graph.switches.len(), 4);
        assert_eq!(graph.endpoints.len(), 8);
        // Hosts first, since their GUIDs are lower; then the switches from the roots down.
        let first = graph.endpoints[0];
        assert_eq!((first.lid, first.switch, first.port), (Lid::new(1), 2, 1));
        let last = graph.endpoints[7];
        assert_eq!((last.lid, last.switch, last.port), (Lid::new(8), 3, 0));
    }

    #[test]
    fn aggregation_nodes_are_no_hosts() {
        let text = "Switch 4 \"s\"\n[1] \"h\"[1]\n[2] \"a\"[1]\n[3] \"i\"[1]\n\n\
                    Ca 1 \"h\" # \"host\"\n[1] \"s\"[1]\n\n\
                    Ca 1 \"a\" # \"Mellanox Technologies Aggregation Node\"\n[1] \"s\"[2]\n\n\
                    Ca 1 \"i\" # \"host 2\"\n[1] \"s\"[3]\n";
        let all = Topology::from_netlist(text).unwrap();
        let (hosts, left_out) = without_aggregation_nodes(&all);
        assert_eq!(left_out, 1);
        let graph = graph(&hosts).unwrap();
        let ports: Vec<u8> = graph.endpoints.iter().map(|end| end.port).collect();
        assert_eq!(ports.iter().filter(|&&port| port != 0).count(), 2);
        assert!(!ports.contains(&2), "{ports:?}");
    }

    #[test]
    fn hypervisors() {
        let tree: FatTree = "XGFT(2;3,3;3,1)".parse().unwrap();
        let adapters = graph(&tree.topology(Hosts::Adapters)).unwrap();
        let graph = with_hypervisors(&adapters, 7, 4).unwrap();
        assert_eq!(graph.switches.len(), 6 + 7);
        assert_eq!(graph.endpoints.len(), 6 + 7 * 4);
        let routing = VSwitchFatTree.route(&graph).unwrap();
        assert!(Verdict::new(&graph, &routing).is_connected());
    }

    #[test]
    fn too_many() {
        let tree: FatTree = "XGFT(3;8,18,18;18,18,1)".parse().unwrap();
        let topology = tree.topology(Hosts::Adapters);
        let graph = graph(&topology).unwrap();
        let error = with_hypervisors(&graph, usize::MAX, 20).unwrap_err();
        assert_eq!(
            error.to_string(),
            "52452 ports need a LID each; a subnet has 49151"
        );
    }
}
