//! Quality of a routing under traffic.

pub mod placement;
mod ways;

use rand::RngExt;
use rayon::prelude::*;
use serde::Serialize;
use subnet_manager::{ForwardingTable, Graph};
use wire::Lid;

use self::ways::{Links, Ways, places};
use crate::random::generator;

/// Pattern of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// A random half of the LIDs each to one of the other half: the *bisect* pattern of the ORCS
    /// simulator, as many times as there are draws.
    Bisection,
    /// Every LID to the one that comes k places after it, in turn for every k.
    Shift,
    /// Every LID to all others at once.
    AllToAll,
    /// Every LID to the next one, the last to the first.
    Ring,
}

/// Share of traffic in the bandwidth that it would have alone, from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Bandwidth {
    /// The mean over all pairs that send, and all draws.
    pub mean: f64,
    /// The standard deviation between draws, or turns.
    pub deviation: f64,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QualityError {
    /// A LID that is nowhere.
    #[error("LID {0} is not in the subnet; name only LIDs that ports have")]
    UnknownLid(Lid),
    /// Nobody to send to.
    #[error("{0} LIDs cannot send to each other; name at least 2")]
    TooFewLids(usize),
    /// Nothing to take the mean of.
    #[error("0 draws have no mean; ask for at least 1")]
    NoDraws,
    /// Tables of another subnet.
    #[error("forwarding tables of {tables} switches for a subnet of {switches}; route this subnet")]
    Tables {
        /// Tables given.
        tables: usize,
        /// Switches there are.
        switches: usize,
    },
}

/// The effective bandwidth of `lids` under some traffic, by each of several routings, which get the
/// same draws.
///
/// Everybody sends at once; a pair gets a share of the link that most on its way share, and the
/// result is the mean over all pairs, as in "Efficient Routing and Reconfiguration in Virtualized HPC
/// Environments with vSwitch-enabled Lossless Networks" (section 7). Links to adapters are not looked
/// at: there each pair is alone, or, from all to all, gets its part of it. A pair that does not reach
/// each other sends nothing and gets nothing. `draws` counts for [`Traffic::Bisection`] alone.
///
/// # Errors
/// [`QualityError`].
pub fn effective_bandwidth(
    graph: &Graph,
    routings: &[&[ForwardingTable]],
    lids: &[Lid],
    traffic: Traffic,
    draws: usize,
    seed: u64,
) -> Result<Vec<Bandwidth>, QualityError> {
    if lids.len() < 2 {
        return Err(QualityError::TooFewLids(lids.len()));
    }
    let switches = graph.switches.len();
    let mut sizes = routings.iter().map(|tables| tables.len());
    if let Some(tables) = sizes.find(|&tables| tables != switches) {
        return Err(QualityError::Tables { tables, switches });
    }
    let count = lids.len();
    let (turns, pairs) = match traffic {
        Traffic::Bisection => (draws, count / 2),
        Traffic::Shift => (count - 1, count),
        Traffic::AllToAll => (1, count * (count - 1)),
        Traffic::Ring => (1, count),
    };
    if turns == 0 {
        return Err(QualityError::NoDraws);
    }
    let places = places(graph, lids)?;
    let links = Links::new(graph);
    let ways: Vec<Ways> = routings
        .iter()
        .map(|tables| Ways::new(graph, &links, tables, &places))
        .collect();
    // Each turn by itself, and summed in order: the same on any number of threads.
    let mut shares = vec![0.0; turns * ways.len()];
    shares
        .par_chunks_mut(ways.len().max(1))
        .enumerate()
        .for_each_init(
            || (Matching::default(), ways.first().map(Ways::counters)),
            |(matching, loads), (turn, shares)| {
                let loads = loads.get_or_insert_default();
                if traffic == Traffic::Bisection {
                    matching.draw(count, seed, turn as u64);
                }
                for (ways, share) in ways.iter().zip(shares) {
                    let ring = |distance| (0..count).map(move |at| (at, (at + distance) % count));
                    let sum = match traffic {
                        Traffic::Bisection => ways.shares(matching.pairs(), 1, loads),
                        Traffic::Shift => ways.shares(ring(turn + 1), 1, loads),
                        Traffic::Ring => ways.shares(ring(1), 1, loads),
                        Traffic::AllToAll => {
                            let others = (1..count).flat_map(ring);
                            ways.shares(others, count as u32 - 1, loads)
                        }
                    };
                    *share = sum / pairs as f64;
                }
            },
        );
    Ok((0..ways.len())
        .map(|routing| {
            let shares = shares.iter().skip(routing).step_by(ways.len());
            let mean = shares.clone().sum::<f64>() / turns as f64;
            let squares = shares.map(|share| (share - mean).powi(2));
            Bandwidth {
                mean,
                deviation: (squares.sum::<f64>() / turns as f64).sqrt(),
            }
        })
        .collect())
}

/// A random half of some numbers, each with one of the other half.
#[derive(Default)]
struct Matching {
    left: Vec<u16>,
    pairs: Vec<(u16, u16)>,
}

impl Matching {
    /// Pairs the numbers below `count`, all but one if that is odd.
    fn draw(&mut self, count: usize, seed: u64, draw: u64) {
        let Self { left, pairs } = self;
        let mut random = generator(seed, draw);
        left.clear();
        left.extend(0..count as u16);
        pairs.clear();
        if count % 2 == 1 {
            left.swap_remove(random.random_range(0..count as u32) as usize);
        }
        // Whoever is last gets one of all others, and is the sender or not.
        while let Some(one) = left.pop()
            && !left.is_empty()
        {
            let drawn = random.random_range(0..2 * left.len() as u32);
            let other = left.swap_remove(drawn as usize / 2);
            pairs.push(match drawn % 2 {
                0 => (one, other),
                _ => (other, one),
            });
        }
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + Clone {
        let pairs = self.pairs.iter();
        pairs.map(|&(from, to)| (from.into(), to.into()))
    }
}

#[cfg(test)]
mod tests {
    use subnet_manager::routing::{FatTree as FatTreeRouting, MinHop};
    use subnet_manager::{Graph, RoutingEngine};
    use topologies::{FatTree, Hosts};

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

    fn bisection(
        graph: &Graph,
        tables: &[ForwardingTable],
        lids: &[Lid],
        draws: usize,
    ) -> Bandwidth {
        effective_bandwidth(graph, &[tables], lids, Traffic::Bisection, draws, 1).unwrap()[0]
    }

    #[test]
    fn one_switch_blocks_nobody() {
        let graph = tree("XGFT(1;8;1)");
        let tables = FatTreeRouting.route(&graph).unwrap().tables;
        let lids = adapters(&graph);
        for traffic in [
            Traffic::Bisection,
            Traffic::Shift,
            Traffic::AllToAll,
            Traffic::Ring,
        ] {
            let found = effective_bandwidth(&graph, &[&tables], &lids, traffic, 50, 1).unwrap();
            assert_eq!((found[0].mean, found[0].deviation), (1.0, 0.0));
        }
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
        let found = bisection(&graph, &tables, &lids, 20_000);
        assert!((found.mean - expected).abs() < 0.01, "{found:?} {expected}");
        // Half of a draw in a third of them, all of it in the others.
        let deviation = (1.0f64 / 3.0 * 2.0 / 3.0).sqrt() / 2.0;
        assert!((found.deviation - deviation).abs() < 0.01, "{found:?}");
        assert_eq!(found, bisection(&graph, &tables, &lids, 20_000), "again");
        // With the cable broken only pairs within leaves get anything.
        let mut broken = tables.clone();
        for lid in &lids {
            broken[0].set(*lid, 255);
        }
        let found = bisection(&graph, &broken, &lids, 20_000);
        assert!((found.mean - 1.0 / 3.0).abs() < 0.01, "{found:?}");
        // Both tables under the same draws.
        let both = [&tables[..], &broken];
        let both = effective_bandwidth(&graph, &both, &lids, Traffic::Bisection, 20_000, 1);
        assert_eq!(both.unwrap()[1], found);

        let ask = |graph: &Graph, tables: &[ForwardingTable], lids: &[Lid], draws| {
            let asked = effective_bandwidth(graph, &[tables], lids, Traffic::Bisection, draws, 1);
            asked.unwrap_err().to_string()
        };
        assert_eq!(
            ask(&graph, &tables, &lids[..1], 5),
            "1 LIDs cannot send to each other; name at least 2"
        );
        assert_eq!(
            ask(&graph, &tables, &lids, 0),
            "0 draws have no mean; ask for at least 1"
        );
        assert_eq!(
            ask(&graph, &tables[1..], &lids, 5),
            "forwarding tables of 2 switches for a subnet of 3; route this subnet"
        );
        graph.endpoints.remove(2);
        assert_eq!(
            ask(&graph, &tables, &lids, 5),
            "LID 3 is not in the subnet; name only LIDs that ports have"
        );
    }

    /// The same by stepping from switch to switch with every packet.
    fn stepping(graph: &Graph, tables: &[ForwardingTable], lids: &[Lid], distance: usize) -> f64 {
        let place = |lid: Lid| {
            let mut endpoints = graph.endpoints.iter();
            *endpoints.find(|endpoint| endpoint.lid == lid).unwrap()
        };
        let way = |from: Lid, to: Lid| -> Option<Vec<(usize, u8)>> {
            let (mut at, to) = (place(from).switch, place(to));
            let mut way = Vec::new();
            while at != to.switch {
                if way.len() == tables.len() {
                    return None;
                }
                let out = tables[at].port(to.lid);
                let mut trunks = graph.switches[at].trunks.iter();
                way.push((at, out));
                at = trunks.find(|trunk| trunk.port == out)?.to;
            }
            (tables[at].port(to.lid) == to.port).then_some(way)
        };
        let receivers = lids.iter().cycle().skip(distance);
        let ways = lids.iter().zip(receivers);
        let ways: Vec<_> = ways.filter_map(|(&from, &to)| way(from, to)).collect();
        let mut loads = std::collections::HashMap::new();
        for link in ways.iter().flatten() {
            *loads.entry(*link).or_insert(0u32) += 1;
        }
        let share = |way: &Vec<_>| 1.0 / f64::from(way.iter().map(|l| loads[l]).max().unwrap_or(1));
        ways.iter().map(share).sum::<f64>() / lids.len() as f64
    }

    #[test]
    fn as_by_stepping() {
        let irregular = topologies::Irregular::new(12, 3, 30, 5).unwrap();
        let topologies = [
            irregular.topology(Hosts::Adapters),
            irregular.topology(Hosts::Hypervisors { functions: 3 }),
            "XGFT(3;4,2,2;2,2,1)"
                .parse::<FatTree>()
                .unwrap()
                .topology(Hosts::Hypervisors { functions: 2 }),
        ];
        for topology in topologies {
            let graph = graph(&topology).unwrap();
            let lids = adapters(&graph);
            let tables = MinHop.route(&graph).unwrap().tables;
            let mut broken = tables.clone();
            // One leaf forgets, and a vSwitch, where there is one, keeps what is not its own.
            for table in broken.iter_mut().rev().take(2) {
                table.set(lids[0], 1);
                table.set(lids[5], 255);
            }
            for tables in [&tables, &broken] {
                let ring =
                    effective_bandwidth(&graph, &[tables], &lids, Traffic::Ring, 0, 0).unwrap();
                assert!((ring[0].mean - stepping(&graph, tables, &lids, 1)).abs() < 1e-12);
                let shift =
                    effective_bandwidth(&graph, &[tables], &lids, Traffic::Shift, 0, 0).unwrap();
                let turns = 1..lids.len();
                let sum: f64 = turns
                    .map(|distance| stepping(&graph, tables, &lids, distance))
                    .sum();
                let mean = sum / (lids.len() - 1) as f64;
                assert!((shift[0].mean - mean).abs() < 1e-12, "{shift:?} {mean}");
            }
        }
    }

    /// From all to all over one cable: each of four hosts has a third of its adapter for each other,
    /// and four flows share each direction of the cable.
    #[test]
    fn all_to_all() {
        let graph = tree("XGFT(2;2,2;1,1)");
        let tables = FatTreeRouting.route(&graph).unwrap().tables;
        let lids = adapters(&graph);
        let found = effective_bandwidth(&graph, &[&tables], &lids, Traffic::AllToAll, 0, 0);
        let expected = (4.0 + 8.0 * 3.0 / 4.0) / 12.0;
        assert!((found.unwrap()[0].mean - expected).abs() < 1e-12);
    }

    /// OpenSM's and our min-hop uses few roots of a tree of three levels; fat-tree routing all.
    #[test]
    fn fat_tree_routing_serves_fat_trees_better() {
        let graph = tree("XGFT(3;8,4,4;4,4,1)");
        let lids = adapters(&graph);
        let bandwidth = |engine: &dyn RoutingEngine| {
            let tables = engine.route(&graph).unwrap().tables;
            bisection(&graph, &tables, &lids, 300).mean
        };
        let (fat, plain) = (bandwidth(&FatTreeRouting), bandwidth(&MinHop));
        assert!(fat > plain, "{fat} {plain}");
    }
}
