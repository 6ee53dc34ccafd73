//! How well a routing serves traffic.

use rand::seq::SliceRandom;
use rayon::prelude::*;
use subnet::{ForwardingTable, Graph};
use wire::Lid;

use crate::random::generator;

/// The effective bisection bandwidth, from 0 to 1: the LIDs are split at random into two halves, each
/// of one sends to one of the other, and gets a share of the link that most on its way share; the
/// mean over all pairs and `draws` splits.
///
/// The *bisect* pattern of the ORCS simulator, as in "Efficient Routing and Reconfiguration in
/// Virtualized HPC Environments with vSwitch-enabled Lossless Networks" (section 7). Links to adapters
/// are not looked at: each has one pair. A pair that does not reach each other gets nothing.
pub fn bisection_bandwidth(
    graph: &Graph,
    tables: &[ForwardingTable],
    lids: &[Lid],
    draws: u64,
    seed: u64,
) -> f64 {
    let network = Network::new(graph, tables, lids);
    let pairs = lids.len() / 2;
    if pairs == 0 || draws == 0 {
        return 0.0;
    }
    // Each draw by itself and summed in order: the same on any number of threads.
    let shares: Vec<f64> = (0..draws)
        .into_par_iter()
        .map_init(
            || Scratch::new(&network),
            |scratch, draw| scratch.draw(&network, seed, draw),
        )
        .collect();
    shares.iter().sum::<f64>() / (draws as f64 * pairs as f64)
}

/// Graph and tables, made for walking.
struct Network<'a> {
    tables: &'a [ForwardingTable],
    /// By switch and port: the link that begins there and the switch that it leads to.
    links: Vec<[(u32, u32); 256]>,
    count: usize,
    /// Each LID, the switch that it is at and that one's port.
    ends: Vec<(Lid, u32, u8)>,
}

const NO_LINK: (u32, u32) = (u32::MAX, u32::MAX);

impl<'a> Network<'a> {
    fn new(graph: &Graph, tables: &'a [ForwardingTable], lids: &[Lid]) -> Self {
        let mut count = 0;
        let mut links = vec![[NO_LINK; 256]; graph.switches.len()];
        for (links, vertex) in links.iter_mut().zip(&graph.switches) {
            for trunk in &vertex.trunks {
                links[usize::from(trunk.port)] = (count, trunk.to as u32);
                count += 1;
            }
        }
        let places = graph.endpoints.iter();
        let places: std::collections::HashMap<Lid, (u32, u8)> = places
            .map(|endpoint| (endpoint.lid, (endpoint.switch as u32, endpoint.port)))
            .collect();
        let ends = lids.iter().filter_map(|&lid| {
            let &(switch, port) = places.get(&lid)?;
            Some((lid, switch, port))
        });
        Self {
            tables,
            links,
            count: count as usize,
            ends: ends.collect(),
        }
    }

    /// The links on the way from a switch to a LID; false if it does not arrive.
    fn path(&self, from: u32, (lid, to, port): (Lid, u32, u8), path: &mut Vec<u32>) -> bool {
        path.clear();
        let mut at = from;
        // No subnet has longer paths.
        while path.len() < 64 {
            let Some(table) = self.tables.get(at as usize) else {
                return false;
            };
            let out = table.port(lid);
            if at == to {
                return out == port;
            }
            let (link, next) = self.links[at as usize][usize::from(out)];
            if link == u32::MAX {
                return false;
            }
            path.push(link);
            at = next;
        }
        false
    }
}

/// What a draw needs, for re-use.
struct Scratch {
    order: Vec<usize>,
    load: Vec<u32>,
    paths: Vec<Vec<u32>>,
    arrived: Vec<bool>,
}

impl Scratch {
    fn new(network: &Network<'_>) -> Self {
        let pairs = network.ends.len() / 2;
        Self {
            order: Vec::new(),
            load: vec![0; network.count],
            paths: vec![Vec::new(); pairs],
            arrived: vec![false; pairs],
        }
    }

    /// The sum of the shares of all pairs.
    fn draw(&mut self, network: &Network<'_>, seed: u64, draw: u64) -> f64 {
        self.order.clear();
        self.order.extend(0..network.ends.len());
        self.order.shuffle(&mut generator(seed, draw));
        self.load.fill(0);
        let (senders, receivers) = self.order.split_at(self.order.len() / 2);
        let pairs = senders.iter().zip(receivers);
        for ((&from, &to), (path, arrived)) in
            pairs.zip(self.paths.iter_mut().zip(&mut self.arrived))
        {
            *arrived = network.path(network.ends[from].1, network.ends[to], path);
            for &link in path.iter() {
                self.load[link as usize] += 1;
            }
        }
        let paths = self.paths.iter().zip(&self.arrived);
        paths
            .filter(|(_, arrived)| **arrived)
            .map(|(path, _)| {
                let loads = path.iter().map(|&link| self.load[link as usize]);
                1.0 / f64::from(loads.max().unwrap_or(1))
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use fabric::{FatTree, Hosts};
    use subnet::routing::{FatTree as FatTreeRouting, MinHop};
    use subnet::{Graph, RoutingEngine};

    use super::*;
    use crate::graph;

    fn tree(text: &str) -> Graph {
        let tree: FatTree = text.parse().unwrap();
        graph(&tree.topology(Hosts::Adapters)).unwrap()
    }

    fn adapters(graph: &Graph) -> Vec<Lid> {
        let adapters = graph.endpoints.iter().filter(|endpoint| endpoint.port != 0);
        adapters.map(|endpoint| endpoint.lid).collect()
    }

    #[test]
    fn one_switch_blocks_nobody() {
        let graph = tree("XGFT(1;8;1)");
        let tables = FatTreeRouting.route(&graph).unwrap().tables;
        let lids = adapters(&graph);
        assert_eq!(bisection_bandwidth(&graph, &tables, &lids, 50, 1), 1.0);
    }

    /// Two leaves of two hosts, one cable between them. Of the 24 orders of four, each equally likely,
    /// a third pairs within the leaves (1 each); in the rest two pairs cross, in the same direction in
    /// half of the cases (1/2 each), in opposite ones in the other half (1 each).
    #[test]
    fn by_hand() {
        let mut graph = tree("XGFT(2;2,2;1,1)");
        // The root is a cable of two parts here.
        let tables = FatTreeRouting.route(&graph).unwrap().tables;
        let lids = adapters(&graph);
        let expected = 1.0 / 3.0 + 2.0 / 3.0 * (0.5 * 0.5 + 0.5);
        let found = bisection_bandwidth(&graph, &tables, &lids, 20_000, 1);
        assert!((found - expected).abs() < 0.01, "{found} {expected}");
        assert_eq!(
            found,
            bisection_bandwidth(&graph, &tables, &lids, 20_000, 1),
            "the same again"
        );
        // With the cable broken only pairs within leaves get anything.
        let mut broken = tables.clone();
        for lid in &lids {
            broken[0].set(*lid, 255);
        }
        let found = bisection_bandwidth(&graph, &broken, &lids, 20_000, 1);
        assert!((found - 1.0 / 3.0).abs() < 0.01, "{found}");
        graph.endpoints.clear();
        assert_eq!(bisection_bandwidth(&graph, &tables, &lids, 5, 1), 0.0);
    }

    /// OpenSM's and our min-hop uses few roots of a tree of three levels; fat-tree routing all.
    #[test]
    fn fat_tree_routing_serves_fat_trees_better() {
        let graph = tree("XGFT(3;8,4,4;4,4,1)");
        let lids = adapters(&graph);
        let bandwidth = |engine: &dyn RoutingEngine| {
            let tables = engine.route(&graph).unwrap().tables;
            bisection_bandwidth(&graph, &tables, &lids, 300, 1)
        };
        let (fat, plain) = (bandwidth(&FatTreeRouting), bandwidth(&MinHop));
        assert!(fat > plain, "{fat} {plain}");
    }
}
