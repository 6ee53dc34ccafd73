//! Paths that part from the same others.

use std::collections::{BTreeSet, HashMap};

use super::assignment::Assignment;
use super::conflict::{SplitGraph, branches};
use super::network::{LinkId, Network, Path};

/// The paths to one destination in classes. Two paths are equivalent when they leave the nodes at which any paths
/// part by the same links. Equivalent paths have the same neighbours in the split graph, and none of them is a
/// neighbour of another: one LID does for all of them, and every heuristic gives them one. Paths of one switch's
/// machines that go the same way are then one vertex instead of many.
#[derive(Debug, Clone)]
pub struct EquivalentPaths {
    /// The first path of each class.
    paths: Vec<Path>,
    /// The number of paths in each class.
    counts: Vec<usize>,
    /// The class of each path.
    class: Vec<usize>,
}

impl EquivalentPaths {
    /// The classes of paths, in the order in which the first path of each comes.
    #[must_use]
    pub fn new(network: &Network, paths: &[Path]) -> Self {
        let parting: BTreeSet<_> = branches(network, paths)
            .into_iter()
            .filter(|(_, by_link)| by_link.len() > 1)
            .map(|(node, _)| node)
            .collect();
        let mut known: HashMap<Vec<LinkId>, usize> = HashMap::new();
        let mut classes = Self {
            paths: Vec::new(),
            counts: Vec::new(),
            class: Vec::with_capacity(paths.len()),
        };
        for path in paths {
            let mut links: Vec<LinkId> = path
                .links()
                .iter()
                .copied()
                .filter(|&link| parting.contains(&network.link(link).from))
                .collect();
            links.sort_unstable();
            let class = *known.entry(links).or_insert_with(|| {
                classes.paths.push(path.clone());
                classes.counts.push(0);
                classes.counts.len() - 1
            });
            classes.counts[class] += 1;
            classes.class.push(class);
        }
        classes
    }

    /// One path of each class.
    #[must_use]
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// The split graph of [`EquivalentPaths::paths`], in which each counts as many times as its
    /// class has paths.
    #[must_use]
    pub fn graph(&self, network: &Network) -> SplitGraph {
        SplitGraph::weighted(network, &self.paths, self.counts.clone())
    }

    /// The assignment of all paths from one of [`EquivalentPaths::paths`].
    #[must_use]
    pub fn spread(&self, assignment: &Assignment) -> Assignment {
        let label = |&class: &usize| assignment.configuration(class).unwrap_or_default();
        Assignment::new(self.class.iter().map(label).collect())
    }
}
