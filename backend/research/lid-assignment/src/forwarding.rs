//! Forwarding tables that realise an assignment.

use std::collections::BTreeMap;

use wire::Lid;
use wire::attribute::LinearBlock;

use super::assignment::Assignment;
use super::network::{Kind, Link, Network, NodeIndex, Path};
use super::range::LidRanges;

/// Why there are no tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForwardingError {
    /// Forwarding tables have 8 bits for a port, and 255 means "drop".
    #[error("switch {} has a cable at port {port}; a forwarding table reaches ports up to 254", switch.0)]
    Port {
        /// The switch.
        switch: NodeIndex,
        /// The port.
        port: u16,
    },
    /// Two paths with the same LID part: the assignment is none.
    #[error("at switch {} two paths with LID {lid} part: they cannot have the same LID", switch.0)]
    Splits {
        /// Where.
        switch: NodeIndex,
        /// The LID.
        lid: Lid,
    },
}

/// The paths to one destination and how they share its LIDs.
#[derive(Debug, Clone)]
pub struct Destination {
    /// Paths that end there.
    pub paths: Vec<Path>,
    /// Their configurations.
    pub assignment: Assignment,
}

/// Tables of switches and senders.
#[derive(Debug, Clone)]
pub struct Forwarding {
    /// For each switch, the ports of the LIDs that it forwards. It drops all others.
    pub tables: BTreeMap<NodeIndex, BTreeMap<Lid, u8>>,
    /// For each destination, the LID by which each of its paths is taken.
    pub lids: Vec<Vec<Lid>>,
}

impl Forwarding {
    /// The tables for destinations that own these ranges, in the same order.
    ///
    /// # Errors
    /// [`ForwardingError`].
    ///
    /// # Panics
    /// When `ranges` is not for these destinations.
    pub fn new(
        network: &Network,
        destinations: &[Destination],
        ranges: &LidRanges,
    ) -> Result<Self, ForwardingError> {
        let lid_of = |number: usize, destination: &Destination, path: usize| {
            let configuration = destination.assignment.configuration(path);
            let lid = configuration.and_then(|configuration| ranges.lid(number, configuration));
            lid.expect("a range holds all configurations of its destination")
        };
        let lids: Vec<Vec<Lid>> = destinations
            .iter()
            .enumerate()
            .map(|(number, destination)| {
                let paths = 0..destination.paths.len();
                paths
                    .map(|path| lid_of(number, destination, path))
                    .collect()
            })
            .collect();
        let mut tables: BTreeMap<NodeIndex, BTreeMap<Lid, u8>> = network
            .switches()
            .map(|switch| (switch, BTreeMap::new()))
            .collect();
        for (destination, lids) in destinations.iter().zip(&lids) {
            for (path, &lid) in destination.paths.iter().zip(lids) {
                for &link in path.links() {
                    let Link { from, port, .. } = network.link(link);
                    if network.kind(from) == Kind::Machine {
                        continue;
                    }
                    let narrow = u8::try_from(port)
                        .ok()
                        .filter(|&port| port != LinearBlock::DROP);
                    let narrow = narrow.ok_or(ForwardingError::Port { switch: from, port })?;
                    let table = tables.get_mut(&from).expect("every switch has a table");
                    if *table.entry(lid).or_insert(narrow) != narrow {
                        return Err(ForwardingError::Splits { switch: from, lid });
                    }
                }
            }
        }
        Ok(Self { tables, lids })
    }

    /// Where a packet with this LID goes from a machine's port, link by link, until it reaches a
    /// machine or a table drops it.
    #[must_use]
    pub fn walk(&self, network: &Network, first: NodeIndex, lid: Lid) -> Vec<NodeIndex> {
        let mut at = first;
        let mut met = vec![at];
        while let Some(table) = self.tables.get(&at) {
            let port = table.get(&lid).map_or(0, |&port| usize::from(port));
            let Some(&link) = network.outgoing(at).get(port.wrapping_sub(1)) else {
                break;
            };
            at = network.link(link).to;
            met.push(at);
            if met.len() > self.tables.len() + 2 {
                break;
            }
        }
        met
    }
}

#[cfg(test)]
mod tests {
    use super::super::heuristic::tests::figure_5;
    use super::super::{Heuristic, LidRanges};
    use super::*;

    #[test]
    fn figure_2() {
        // s0 and s1 are joined by two cables; m4 owns two LIDs.
        let mut network = Network::default();
        let [m0, m1, m4] = [(); 3].map(|()| network.add_machine());
        let [s0, s1, s2] = [(); 3].map(|()| network.add_switch());
        let cables = [
            (s0, m0),
            (s0, s1),
            (s0, s1),
            (s0, m1),
            (s0, s2),
            (s1, s2),
            (s2, m4),
        ];
        for (a, b) in cables {
            network.cable(a, b);
        }
        let paths = vec![
            network.path(&[m0, s0, s1, s2, m4], &[0, 1]).unwrap(),
            network.path(&[m1, s0, s2, m4], &[]).unwrap(),
        ];
        let assignment = Heuristic::Greedy.assign(&network, &paths);
        let ranges = LidRanges::place(&[assignment.configurations()]).unwrap();
        let destination = Destination { paths, assignment };
        let forwarding = Forwarding::new(&network, &[destination], &ranges).unwrap();
        let [first, second] = forwarding.lids[0][..] else {
            panic!("two paths");
        };
        assert_eq!((first, second), (Lid::new(2), Lid::new(3)));
        let entries =
            |lid| [s0, s1, s2].map(|switch| forwarding.tables[&switch].get(&lid).copied());
        assert_eq!(
            entries(first),
            [Some(3), Some(3), Some(3)],
            "the second cable, then s2, then m4"
        );
        assert_eq!(entries(second), [Some(5), None, Some(3)]);
    }

    #[test]
    fn every_path_is_walked() {
        let (network, paths) = figure_5();
        for heuristic in Heuristic::ALL {
            let assignment = heuristic.assign(&network, &paths);
            let ranges = LidRanges::place(&[assignment.configurations()]).unwrap();
            let paths = paths.clone();
            let destinations = [Destination { paths, assignment }];
            let forwarding = Forwarding::new(&network, &destinations, &ranges).unwrap();
            for (path, &lid) in destinations[0].paths.iter().zip(&forwarding.lids[0]) {
                let first = network.link(path.links()[0]).to;
                let expected: Vec<NodeIndex> = path
                    .links()
                    .iter()
                    .map(|&link| network.link(link).to)
                    .collect();
                assert_eq!(forwarding.walk(&network, first, lid), expected);
            }
        }
    }

    #[test]
    fn what_cannot_be_forwarded() {
        let (network, paths) = figure_5();
        let together = Assignment::compact(vec![0; 4]);
        let ranges = LidRanges::place(&[1]).unwrap();
        let destination = Destination {
            paths: paths.clone(),
            assignment: together,
        };
        let error = Forwarding::new(&network, &[destination], &ranges).unwrap_err();
        assert!(matches!(error, ForwardingError::Splits { .. }));

        let mut wide = Network::default();
        let (switch, [a, b]) = (wide.add_switch(), [(); 2].map(|()| wide.add_machine()));
        wide.cable(a, switch);
        for _ in 0..260 {
            wide.cable(b, switch);
        }
        let paths = vec![wide.path(&[a, switch, b], &[0, 255]).unwrap()];
        let assignment = Heuristic::Greedy.assign(&wide, &paths);
        let error = Forwarding::new(&wide, &[Destination { paths, assignment }], &ranges);
        assert_eq!(
            error.unwrap_err(),
            ForwardingError::Port { switch, port: 257 }
        );
    }
}
