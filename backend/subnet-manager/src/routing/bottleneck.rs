//! The link that most paths share.

use std::collections::HashMap;

use wire::Lid;
use wire::attribute::LinearBlock;

use super::{ForwardingTable, Graph};

/// Number of paths from each of these LIDs to each other that cross the link that most of them share, a direction
/// counting by itself. Uplinks of vSwitches, which leave no choice, are not looked at.
pub(crate) fn bottleneck(graph: &Graph, tables: &[ForwardingTable], lids: &[Lid]) -> u64 {
    let switches = graph.switches.len();
    let places: HashMap<Lid, usize> = graph
        .endpoints
        .iter()
        .map(|endpoint| (endpoint.lid, endpoint.switch))
        .collect();
    let mut senders = vec![0u64; switches];
    for place in lids.iter().filter_map(|lid| places.get(lid)) {
        senders[*place] += 1;
    }
    let single = |at: usize| graph.switches[at].trunks.len() == 1;
    // By switch and port: the switch there, and whether the link counts.
    let mut ends = vec![[None; 256]; switches];
    for (at, vertex) in graph.switches.iter().enumerate() {
        for trunk in &vertex.trunks {
            let counts = !single(at) && !single(trunk.to);
            ends[at][usize::from(trunk.port)] = Some((trunk.to, counts));
        }
    }
    let mut loads = vec![[0u64; 256]; switches];
    let mut ways = vec![None; switches];
    let mut behind = vec![0u32; switches];
    let mut ready = Vec::new();
    for &lid in lids {
        let Some(&target) = places.get(&lid) else {
            continue;
        };
        behind.fill(0);
        for (at, way) in ways.iter_mut().enumerate() {
            let port = tables
                .get(at)
                .map_or(LinearBlock::DROP, |table| table.port(lid));
            let end = ends[at][usize::from(port)].filter(|_| at != target);
            *way = end.map(|(to, counts)| (usize::from(port), to, counts));
            if let Some((_, to, _)) = *way {
                behind[to] += 1;
            }
        }
        let mut flow = senders.clone();
        flow[target] -= 1;
        ready.extend((0..switches).filter(|&at| behind[at] == 0));
        while let Some(at) = ready.pop() {
            let Some((port, to, counts)) = ways[at] else {
                continue;
            };
            if counts {
                loads[at][port] += flow[at];
            }
            flow[to] += flow[at];
            behind[to] -= 1;
            if behind[to] == 0 {
                ready.push(to);
            }
        }
    }
    loads.as_flattened().iter().copied().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::fat_tree;
    use super::super::{MinHop, RoutingEngine};
    use super::*;

    #[test]
    fn two_leaves() {
        let graph = fat_tree();
        let lids: Vec<Lid> = (5..=8).map(Lid::new).collect();
        let mut tables = MinHop.route(&graph).unwrap().tables;
        // Two hosts of a leaf send to each of the other's two by its own spine.
        assert_eq!(bottleneck(&graph, &tables, &lids), 2);
        assert_eq!(bottleneck(&graph, &tables, &lids[..3]), 2);
        assert_eq!(bottleneck(&graph, &tables, &lids[..2]), 0, "within a leaf");
        let both = tables[0].port(Lid::new(7));
        tables[0].set(Lid::new(8), both);
        assert_eq!(bottleneck(&graph, &tables, &lids), 4);
        assert_eq!(bottleneck(&graph, &tables, &[Lid::new(99)]), 0);
    }
}
