//! Paths that part from the same others.

use std::collections::{BTreeSet, HashMap};

use super::conflict::{SplitGraph, branches};
use super::heuristic::Assignment;
use super::network::{LinkId, Network, Path};

/// The paths to one destination with those as one that leave the nodes at which any of them part by
/// the same links. Such twins have the same neighbours in the split graph and none of them is a
/// neighbour of another, so one LID does for all of them, and every heuristic gives them one: what
/// the machines of one switch send the same way is one vertex instead of many.
#[derive(Debug, Clone)]
pub struct Twins {
    paths: Vec<Path>,
    counts: Vec<usize>,
    of: Vec<usize>,
}

impl Twins {
    /// The twins among paths, in the order in which the first of each comes.
    #[must_use]
    pub fn new(network: &Network, paths: &[Path]) -> Self {
        let parting: BTreeSet<_> = branches(network, paths)
            .into_iter()
            .filter(|(_, by_link)| by_link.len() > 1)
            .map(|(node, _)| node)
            .collect();
        let mut known: HashMap<Vec<LinkId>, usize> = HashMap::new();
        let mut twins = Self {
            paths: Vec::new(),
            counts: Vec::new(),
            of: Vec::with_capacity(paths.len()),
        };
        for path in paths {
            let mut links: Vec<LinkId> = path
                .links()
                .iter()
                .copied()
                .filter(|&link| parting.contains(&network.link(link).from))
                .collect();
            links.sort_unstable();
            let twin = *known.entry(links).or_insert_with(|| {
                twins.paths.push(path.clone());
                twins.counts.push(0);
                twins.counts.len() - 1
            });
            twins.counts[twin] += 1;
            twins.of.push(twin);
        }
        twins
    }

    /// One path of each.
    #[must_use]
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// The split graph of [`Twins::paths`], in which each counts as many times as it has twins.
    #[must_use]
    pub fn graph(&self, network: &Network) -> SplitGraph {
        SplitGraph::weighted(network, &self.paths, self.counts.clone())
    }

    /// The assignment of all paths from one of [`Twins::paths`].
    #[must_use]
    pub fn spread(&self, assignment: &Assignment) -> Assignment {
        let label = |&twin: &usize| assignment.configuration(twin).unwrap_or_default();
        Assignment::new(self.of.iter().map(label).collect())
    }
}
