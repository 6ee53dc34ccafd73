//! The tree that multicast packets take.

use std::collections::{BTreeMap, BTreeSet};

use wire::attribute::MulticastBlock;

use crate::routing::Graph;

/// For every switch the ports of a tree that spans all switches and all adapters.
///
/// Its root is the switch with the least sum of distances to the others. Switches that the root
/// cannot reach have no ports in it.
pub(crate) fn spanning_tree(graph: &Graph) -> Vec<BTreeSet<u8>> {
    let mut ports = vec![BTreeSet::new(); graph.switches.len()];
    let reach = |switch: usize| {
        let distances = graph.distances(switch);
        let unreached = distances
            .iter()
            .filter(|distance| distance.is_none())
            .count();
        let sum: u64 = distances.into_iter().flatten().map(u64::from).sum();
        (unreached, sum)
    };
    let Some(root) = (0..graph.switches.len()).min_by_key(|&switch| reach(switch)) else {
        return ports;
    };
    let distances = graph.distances(root);
    for (switch, vertex) in graph.switches.iter().enumerate() {
        let Some(distance) = distances[switch] else {
            continue;
        };
        let up = vertex
            .trunks
            .iter()
            .find(|trunk| distances[trunk.to].is_some_and(|other| other + 1 == distance));
        if let Some(up) = up {
            ports[switch].insert(up.port);
            ports[up.to].insert(up.to_port);
        }
    }
    for endpoint in &graph.endpoints {
        if endpoint.port != 0 && distances[endpoint.switch].is_some() {
            ports[endpoint.switch].insert(endpoint.port);
        }
    }
    ports
}

/// The masks of these ports, by position of a multicast forwarding table with external ports up to
/// `last`.
pub(crate) fn masks(ports: &BTreeSet<u8>, last: u8) -> BTreeMap<u8, u16> {
    let mut masks: BTreeMap<u8, u16> = (0..=last / MulticastBlock::PORTS)
        .map(|position| (position, 0))
        .collect();
    for port in ports {
        *masks.entry(port / MulticastBlock::PORTS).or_default() |=
            1 << (port % MulticastBlock::PORTS);
    }
    masks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::tests::fat_tree;

    #[test]
    fn a_tree_has_no_circle() {
        let graph = fat_tree();
        let ports = spanning_tree(&graph);
        let trunk_ends: usize = graph
            .switches
            .iter()
            .zip(&ports)
            .map(|(vertex, ports)| {
                let trunks = vertex.trunks.iter();
                trunks.filter(|trunk| ports.contains(&trunk.port)).count()
            })
            .sum();
        assert_eq!(trunk_ends, 2 * (graph.switches.len() - 1));
        assert!(ports[0].contains(&1) && ports[0].contains(&2));
    }

    #[test]
    fn sixteen_ports_each() {
        let masks = masks(&BTreeSet::from([1, 15, 16, 36]), 36);
        assert_eq!(masks, BTreeMap::from([(0, 0x8002), (1, 1), (2, 0x10)]));
    }
}
