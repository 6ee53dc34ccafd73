//! Destination renaming: forwarding tables by input port, made into tables by LID alone.

use super::load::LinkLoads;
use super::shortest::lightest;
use super::up_down::{Legality, NotConnected, UpDown};
use crate::routing::multipath::{Assignment, LinkId, Network, NodeIndex, Path};

/// The baseline of "LID Assignment in InfiniBand Networks" (section VI), which takes it from
/// "Deadlock-Free Routing in InfiniBand through Destination Renaming" (Lopez, Flich, Duato): shortest
/// paths under up*/down*, and LIDs that are assigned while paths are computed.
///
/// Pairs come one after the other, and the links of their paths grow heavier, as with
/// [`ShortestWidest`](super::ShortestWidest). A path is entered under the first LID of the destination
/// that one of the lightest paths can be entered under, and it is that path. Where the entries of all
/// LIDs contradict all lightest paths, the destination is renamed: it gets another LID.
#[derive(Debug, Clone, Copy)]
pub struct DestinationRenaming<'a> {
    /// The order of the network.
    pub order: &'a UpDown,
}

/// The paths to one machine, and their LIDs.
#[derive(Debug, Clone)]
pub struct Renamed {
    /// Paths by rising source, the order in which they are chosen.
    pub paths: Vec<Path>,
    /// LID of the machine for each path.
    pub lids: Assignment,
}

/// State of a destination while its paths are chosen.
#[derive(Default)]
struct Destination {
    /// By LID and node, the link on which packets leave.
    tables: Vec<Vec<Option<LinkId>>>,
    paths: Vec<Path>,
    labels: Vec<usize>,
}

impl Destination {
    /// Enters a path under a LID, or under a new one.
    fn enter(&mut self, network: &Network, links: Vec<LinkId>, label: usize) {
        if label == self.tables.len() {
            self.tables.push(vec![None; network.nodes().len()]);
        }
        for &link in &links {
            self.tables[label][network.link(link).from.at()] = Some(link);
        }
        self.labels.push(label);
        let path = network.path_of_links(links);
        self.paths
            .push(path.expect("a shortest path between machines meets no node twice"));
    }
}

impl DestinationRenaming<'_> {
    /// The paths to each machine from all others, by rising destination.
    ///
    /// # Errors
    /// [`NotConnected`] names a pair without a legal path.
    pub fn route(&self, network: &Network) -> Result<Vec<Renamed>, NotConnected> {
        let legality = Legality::UpDown(self.order);
        let machines: Vec<NodeIndex> = network.machines().collect();
        let mut destinations: Vec<_> = machines
            .iter()
            .map(|&to| (legality.distances(network, to), Destination::default()))
            .collect();
        let mut loads = LinkLoads::new(network);
        for &from in &machines {
            for (&to, (distances, destination)) in machines.iter().zip(&mut destinations) {
                if from == to {
                    continue;
                }
                let lightest =
                    |entries| lightest(network, legality, from, distances, &loads, entries);
                let any = lightest(None).ok_or(NotConnected { from, to })?;
                let weight = loads.sum(&any);
                let tables = destination.tables.iter().enumerate();
                let fits =
                    tables.filter_map(|(label, table)| Some((label, lightest(Some(table))?)));
                let fit = fits
                    .into_iter()
                    .find(|(_, links)| loads.sum(links) == weight);
                let (label, links) = fit.unwrap_or((destination.tables.len(), any));
                loads.add(&links);
                destination.enter(network, links, label);
            }
        }
        let renamed = |(_, destination): (_, Destination)| Renamed {
            paths: destination.paths,
            lids: Assignment::new(destination.labels),
        };
        Ok(destinations.into_iter().map(renamed).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::routing::multipath::paths::ShortestWidest;
    use crate::routing::multipath::{Heuristic, SplitGraph};

    /// Switches in a ring with chords, and a machine at each of them.
    fn network(switches: usize, chords: &[(usize, usize)]) -> (Network, UpDown) {
        let mut network = Network::default();
        let machines: Vec<NodeIndex> = (0..switches).map(|_| network.add_machine()).collect();
        let nodes: Vec<NodeIndex> = (0..switches).map(|_| network.add_switch()).collect();
        for at in 0..switches {
            network.cable(machines[at], nodes[at]);
            network.cable(nodes[at], nodes[(at + 1) % switches]);
        }
        for &(a, b) in chords {
            if a % switches != b % switches {
                network.cable(nodes[a % switches], nodes[b % switches]);
            }
        }
        let order = UpDown::new(&network, nodes[0]).unwrap();
        (network, order)
    }

    proptest! {
        /// Paths as long and legal as those of shortest-widest, and LIDs that tables realise.
        #[test]
        fn paths_are_shortest_and_lids_realise_them(
            switches in 3usize..12,
            chords in prop::collection::vec((0usize..12, 0usize..12), 0..12),
        ) {
            let (network, order) = network(switches, &chords);
            let legality = Legality::UpDown(&order);
            let renamed = DestinationRenaming { order: &order }.route(&network).unwrap();
            let lengths = |paths: &[Path]| -> usize {
                paths.iter().map(|path| path.links().len()).sum()
            };
            let all: Vec<Path> = renamed.iter().flat_map(|to| to.paths.clone()).collect();
            let widest = ShortestWidest { legality }.paths(&network).unwrap();
            prop_assert_eq!(all.len(), widest.len());
            prop_assert_eq!(lengths(&all), lengths(&widest));
            for to in &renamed {
                prop_assert!(to.paths.iter().all(|path| legality.allows(&network, path.links())));
                let graph = SplitGraph::new(&network, &to.paths);
                prop_assert_eq!(graph.check(&to.lids), Ok(()));
                prop_assert_eq!(&Heuristic::Greedy.assign(&network, &to.paths), &to.lids);
            }
        }
    }
}
