//! From nodes and cables to the graph that routing works on.

use std::collections::HashMap;

use fabric::{NodeId, Topology};
use subnet::{Endpoint, Graph, Trunk, Vertex};
use wire::attribute::NodeType;
use wire::{Guid, Lid};

/// More ports than there are LIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} ports need a LID each; a subnet has 49151")]
pub struct TooManyLids(pub usize);

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
        .map(|(lid, (_, switch, port))| Endpoint {
            lid: Lid::new(lid),
            switch,
            port,
        });
    Ok(Graph {
        endpoints: endpoints.collect(),
        switches,
    })
}
