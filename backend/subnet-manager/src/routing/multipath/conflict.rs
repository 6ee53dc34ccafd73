//! Conflicts between paths that part, and so cannot share a LID.

use std::collections::HashMap;

use fixedbitset::FixedBitSet;

use super::assignment::Assignment;
use super::network::{LinkId, Network, NodeIndex, Path};

/// The split graph of paths to one destination: a vertex per path, an edge where two paths leave a
/// node that both visit by different links (definition 1). Colouring it is assigning LIDs
/// (section V).
#[derive(Debug, Clone)]
pub struct SplitGraph {
    edges: Vec<FixedBitSet>,
    weights: Vec<usize>,
}

/// Violation by an assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Two paths of a configuration part.
    #[error("paths {0} and {1} part and have the same LID")]
    Splits(usize, usize),
    /// Two configurations could be one.
    #[error("the paths of configurations {0} and {1} never part: one LID would do for both")]
    NotMinimal(usize, usize),
}

/// The paths that leave each node, by the link they leave it by.
pub(super) fn branches(
    network: &Network,
    paths: &[Path],
) -> HashMap<NodeIndex, HashMap<LinkId, Vec<usize>>> {
    let mut at: HashMap<NodeIndex, HashMap<LinkId, Vec<usize>>> = HashMap::new();
    for (number, path) in paths.iter().enumerate() {
        for &link in path.links() {
            let from = network.link(link).from;
            let branch = at.entry(from).or_default().entry(link).or_default();
            branch.push(number);
        }
    }
    at
}

impl SplitGraph {
    /// The split graph of `paths`, which end at one destination.
    #[must_use]
    pub fn new(network: &Network, paths: &[Path]) -> Self {
        Self::weighted(network, paths, vec![1; paths.len()])
    }

    /// A graph of so many paths of which these pairs part. Every graph is the split graph of some paths (section III).
    ///
    /// # Panics
    /// When a pair names another path.
    #[must_use]
    pub fn of_pairs(paths: usize, pairs: &[(usize, usize)]) -> Self {
        let mut edges = vec![FixedBitSet::with_capacity(paths); paths];
        for &(a, b) in pairs {
            edges[a].insert(b);
            edges[b].insert(a);
        }
        let weights = vec![1; paths];
        Self { edges, weights }
    }

    /// The same where a path stands for several.
    pub(super) fn weighted(network: &Network, paths: &[Path], weights: Vec<usize>) -> Self {
        let empty = || FixedBitSet::with_capacity(paths.len());
        let mut edges: Vec<FixedBitSet> = paths.iter().map(|_| empty()).collect();
        for by_link in branches(network, paths).into_values() {
            if by_link.len() < 2 {
                continue;
            }
            let groups: Vec<(Vec<usize>, FixedBitSet)> = by_link
                .into_values()
                .map(|members| {
                    let mut set = empty();
                    set.extend(members.iter().copied());
                    (members, set)
                })
                .collect();
            let mut all = empty();
            groups.iter().for_each(|(_, set)| all.union_with(set));
            for (members, set) in groups {
                let mut others = all.clone();
                others.difference_with(&set);
                for member in members {
                    edges[member].union_with(&others);
                }
            }
        }
        Self { edges, weights }
    }

    /// Paths.
    #[must_use]
    pub fn len(&self) -> usize {
        self.edges.len()
    }

    /// Whether there is no path.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }

    /// Whether two paths part.
    #[must_use]
    pub fn splits(&self, a: usize, b: usize) -> bool {
        self.edges[a].contains(b)
    }

    /// The paths that part from this one.
    #[must_use]
    pub fn neighbours(&self, path: usize) -> &FixedBitSet {
        &self.edges[path]
    }

    /// Returns the number of paths that one stands for.
    pub(super) fn weight(&self, path: usize) -> usize {
        self.weights[path]
    }

    /// The number of paths that part from this one.
    pub(super) fn degree(&self, path: usize) -> usize {
        let neighbours = self.neighbours(path).ones();
        neighbours.map(|other| self.weight(other)).sum()
    }

    /// The split graph of some of the paths.
    pub(super) fn restrict(&self, paths: &[usize]) -> Self {
        let edges = paths.iter().map(|&path| {
            let kept = paths.iter().enumerate();
            let mut edges = FixedBitSet::with_capacity(paths.len());
            edges.extend(
                kept.filter(|&(_, &other)| self.splits(path, other))
                    .map(|(at, _)| at),
            );
            edges
        });
        Self {
            edges: edges.collect(),
            weights: paths.iter().map(|&path| self.weights[path]).collect(),
        }
    }

    /// A set of paths of which every two part, found greedily: as many LIDs are needed at least.
    #[must_use]
    pub fn clique(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by_key(|&path| std::cmp::Reverse(self.edges[path].count_ones(..)));
        let mut best = Vec::new();
        // A few starts: the vertices with the most edges.
        for &start in order.iter().take(8) {
            let mut clique = vec![start];
            let mut candidates = self.edges[start].clone();
            while let Some(next) = candidates.ones().max_by_key(|&path| {
                (
                    self.edges[path].intersection_count(&candidates),
                    self.len() - path,
                )
            }) {
                clique.push(next);
                candidates.intersect_with(&self.edges[next]);
            }
            if clique.len() > best.len() {
                best = clique;
            }
        }
        best
    }

    /// Whether `assignment` is a minimal configuration set (definition 4): no two paths with the same
    /// LID part, and no two configurations could be merged.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn check(&self, assignment: &Assignment) -> Result<(), Violation> {
        let configurations = assignment.members();
        for members in &configurations {
            for (at, &a) in members.iter().enumerate() {
                if let Some(&b) = members[..at].iter().find(|&&b| self.splits(a, b)) {
                    return Err(Violation::Splits(b, a));
                }
            }
        }
        for (at, members) in configurations.iter().enumerate() {
            for (other, others) in configurations.iter().enumerate().take(at) {
                let part = |&a: &usize| others.iter().any(|&b| self.splits(a, b));
                if !members.iter().any(part) {
                    return Err(Violation::NotMinimal(other, at));
                }
            }
        }
        Ok(())
    }
}
