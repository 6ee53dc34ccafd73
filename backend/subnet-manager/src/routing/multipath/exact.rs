//! The fewest configurations.

use fixedbitset::FixedBitSet;

use super::assignment::Assignment;
use super::coloring::{Undecided, color};
use super::conflict::SplitGraph;

/// LIDs a destination is charged for `configurations`: the next power of two.
#[must_use]
pub fn charged(configurations: usize) -> usize {
    configurations.max(1).next_power_of_two()
}

/// Dead ends after which the search gives up: for a destination with hundreds of paths about a second.
const MAX_DEAD_ENDS: u64 = 20_000;

/// The fewest configurations by search alone, from `known` downwards until fewer are proved impossible.
///
/// # Errors
/// [`Undecided`] after many dead ends; the caller still has `known`.
pub fn fewest(graph: &SplitGraph, known: &Assignment) -> Result<Assignment, Undecided> {
    let solve = |core: &SplitGraph, fewer| color(core, fewer, |spent| spent < MAX_DEAD_ENDS);
    descend(graph, known, |configurations| configurations - 1, solve)
}

/// Part of a split graph that decides whether `configurations` suffice, with a way to put the rest back.
///
/// A path that parts from fewer others than there are configurations always finds one free; a path
/// that parts from no other path than another one does, with which it may share, can follow that.
struct Kernel {
    core: Vec<usize>,
    /// Paths taken away, in that order, with the one each follows.
    removed: Vec<(usize, Option<usize>)>,
}

impl Kernel {
    fn new(graph: &SplitGraph, configurations: usize) -> Self {
        let mut left = FixedBitSet::with_capacity(graph.len());
        left.insert_range(..);
        let mut removed = Vec::new();
        loop {
            let within = |path: usize| {
                let mut neighbours = graph.neighbours(path).clone();
                neighbours.intersect_with(&left);
                neighbours
            };
            let next = left.ones().find_map(|path| {
                let neighbours = within(path);
                if neighbours.count_ones(..) < configurations {
                    return Some((path, None));
                }
                let follows = |&other: &usize| {
                    other != path
                        && !graph.splits(path, other)
                        && neighbours.is_subset(graph.neighbours(other))
                };
                left.ones().find(follows).map(|other| (path, Some(other)))
            });
            let Some(taken) = next else {
                let core = left.ones().collect();
                return Self { core, removed };
            };
            left.set(taken.0, false);
            removed.push(taken);
        }
    }

    fn restore(&self, graph: &SplitGraph, core: &[usize]) -> Assignment {
        let mut labels: Vec<Option<usize>> = vec![None; graph.len()];
        for (&path, &label) in self.core.iter().zip(core) {
            labels[path] = Some(label);
        }
        for &(path, follows) in self.removed.iter().rev() {
            let label = follows.and_then(|other| labels[other]).unwrap_or_else(|| {
                let taken: Vec<usize> = graph
                    .neighbours(path)
                    .ones()
                    .filter_map(|other| labels[other])
                    .collect();
                let free = (0..).find(|label| !taken.contains(label));
                free.expect("there are more numbers than paths")
            });
            labels[path] = Some(label);
        }
        Assignment::compact(labels.into_iter().flatten().collect())
    }
}

/// Fewer and fewer configurations, beginning with those of `known`: as many as `next` makes of the number before.
/// `solve` says how so many do for the part of the graph that decides it, if they do.
///
/// # Errors
/// Those of `solve`.
pub fn descend<E>(
    graph: &SplitGraph,
    known: &Assignment,
    next: impl Fn(usize) -> usize,
    solve: impl Fn(&SplitGraph, usize) -> Result<Option<Vec<usize>>, E>,
) -> Result<Assignment, E> {
    let least = graph.clique().len();
    let mut best = known.clone();
    while best.configurations() > least {
        let fewer = next(best.configurations());
        if fewer < least {
            break;
        }
        let kernel = Kernel::new(graph, fewer);
        match solve(&graph.restrict(&kernel.core), fewer)? {
            Some(labels) => best = kernel.restore(graph, &labels),
            None => break,
        }
    }
    Ok(best)
}
