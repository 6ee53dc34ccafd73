//! Whether so many configurations suffice, by search.

use super::conflict::SplitGraph;

/// The search was not to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the search was ended before it found an assignment with so few LIDs, or a proof that all need more"
)]
pub struct Undecided;

/// Dead ends until the search begins anew for the first time; for each next time half as many more.
const FIRST: u64 = 256;

/// An assignment with at most so many configurations, or that there is none: by putting the path that
/// has the fewest of them left into each of those, one after the other, and likewise on ("New Methods
/// to Color the Vertices of a Graph", Brélaz).
///
/// An assignment is most often impossible because of a few paths among many. So a path for which nothing was left
/// weighs more from then on, and the search begins anew now and then, with the weightiest ("Boosting Systematic
/// Search by Weighting Constraints", Boussemart, Hemery, Lecoutre, Sais).
///
/// The proof takes no time for one graph and for ever for another: `goes_on` is asked now and then, with the dead
/// ends so far.
///
/// # Errors
/// [`Undecided`], when it says no.
pub fn color(
    graph: &SplitGraph,
    configurations: usize,
    goes_on: impl Fn(u64) -> bool,
) -> Result<Option<Vec<usize>>, Undecided> {
    let clique = graph.clique();
    if clique.len() > configurations {
        return Ok(None);
    }
    let mut search = Search {
        graph,
        configurations,
        label: vec![None; graph.len()],
        taken: vec![vec![0; configurations]; graph.len()],
        saturation: vec![0; graph.len()],
        degree: (0..graph.len())
            .map(|path| graph.neighbours(path).count_ones(..))
            .collect(),
        weight: vec![1; graph.len()],
    };
    // Paths of which every two part: whatever the solution, its labels can be named after them.
    for (label, &path) in clique.iter().enumerate() {
        search.put(path, label);
    }
    let (mut patience, mut spent) = (FIRST, 0);
    loop {
        match search.run(clique.len(), patience) {
            Outcome::Found(labels) => return Ok(Some(labels)),
            Outcome::Impossible => return Ok(None),
            Outcome::Open => spent += patience,
        }
        if !goes_on(spent) {
            return Err(Undecided);
        }
        patience += patience / 2;
    }
}

struct Search<'a> {
    graph: &'a SplitGraph,
    configurations: usize,
    label: Vec<Option<usize>>,
    /// By path and label: paths with the label that part from it.
    taken: Vec<Vec<u32>>,
    /// By path: labels of those that part from it.
    saturation: Vec<usize>,
    /// By path: those that part from it and have no label.
    degree: Vec<usize>,
    /// By path: one more than how often no label was left for it.
    weight: Vec<u64>,
}

/// Result of a search.
enum Outcome {
    Found(Vec<usize>),
    Impossible,
    /// Nothing, in so many dead ends.
    Open,
}

/// A path with a label that is being tried.
struct Trial {
    path: usize,
    label: usize,
    /// Labels in use before.
    used: usize,
}

impl Search<'_> {
    fn put(&mut self, path: usize, label: usize) {
        self.label[path] = Some(label);
        for other in self.graph.neighbours(path).ones() {
            let taken = &mut self.taken[other][label];
            self.saturation[other] += usize::from(*taken == 0);
            *taken += 1;
            self.degree[other] -= 1;
        }
    }

    fn take_back(&mut self, path: usize, label: usize) {
        self.label[path] = None;
        for other in self.graph.neighbours(path).ones() {
            let taken = &mut self.taken[other][label];
            *taken -= 1;
            self.saturation[other] -= usize::from(*taken == 0);
            self.degree[other] += 1;
        }
    }

    /// The path without a label that has the fewest left for its weight, or parts from the most others.
    fn tightest(&self) -> Option<usize> {
        let left = |path: usize| (self.configurations - self.saturation[path]) as u64;
        let open = (0..self.graph.len()).filter(|&path| self.label[path].is_none());
        open.min_by(|&a, &b| {
            let by_weight = (left(a) * self.weight[b]).cmp(&(left(b) * self.weight[a]));
            by_weight.then(self.degree[b].cmp(&self.degree[a]))
        })
    }

    /// The first label from `from` that a path may have. Labels beyond those in use are all alike.
    fn free(&self, path: usize, from: usize, used: usize) -> Option<usize> {
        let end = self.configurations.min(used + 1);
        (from..end).find(|&label| self.taken[path][label] == 0)
    }

    /// Searches until there have been so many dead ends, and puts back what it tried.
    fn run(&mut self, mut used: usize, dead_ends: u64) -> Outcome {
        let mut trials: Vec<Trial> = Vec::new();
        let mut left = dead_ends;
        let outcome = loop {
            let Some(path) = self.tightest() else {
                break Outcome::Found(self.label.iter().flatten().copied().collect());
            };
            let mut next = self.free(path, 0, used).map(|label| (path, label, used));
            if next.is_none() {
                self.weight[path] += 1;
                left -= 1;
            }
            while next.is_none()
                && let Some(Trial { path, label, used }) = trials.pop()
            {
                self.take_back(path, label);
                let free = self.free(path, label + 1, used);
                next = free.map(|label| (path, label, used));
            }
            let Some((path, label, before)) = next else {
                break Outcome::Impossible;
            };
            if left == 0 {
                break Outcome::Open;
            }
            self.put(path, label);
            used = before.max(label + 1);
            trials.push(Trial {
                path,
                label,
                used: before,
            });
        };
        for Trial { path, label, .. } in trials.into_iter().rev() {
            self.take_back(path, label);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colors(vertices: usize, edges: &[(usize, usize)]) -> usize {
        let graph = SplitGraph::of_pairs(vertices, edges);
        let fewest = (1..).find_map(|colors| {
            let labels = color(&graph, colors, |_| true).unwrap()?;
            assert!(labels.iter().all(|&label| label < colors));
            assert!(edges.iter().all(|&(a, b)| labels[a] != labels[b]));
            Some(colors)
        });
        fewest.unwrap()
    }

    /// Graphs with more colours than their largest cliques have vertices: of Mycielski, who adds to a
    /// graph twins of its vertices and one vertex beside these.
    fn mycielski(vertices: usize, edges: &[(usize, usize)]) -> (usize, Vec<(usize, usize)>) {
        let mut more = edges.to_vec();
        for &(a, b) in edges {
            more.extend([(a, b + vertices), (b, a + vertices)]);
        }
        more.extend((0..vertices).map(|vertex| (vertex + vertices, 2 * vertices)));
        (2 * vertices + 1, more)
    }

    #[test]
    fn graphs_of_which_the_colours_are_known() {
        let ring = |size: usize| -> Vec<(usize, usize)> {
            (0..size).map(|at| (at, (at + 1) % size)).collect()
        };
        assert_eq!(colors(1, &[]), 1);
        assert_eq!(colors(8, &ring(8)), 2);
        assert_eq!(colors(9, &ring(9)), 3);
        let mut graph = (2, vec![(0, 1)]);
        for expected in 2..=5 {
            assert_eq!(colors(graph.0, &graph.1), expected);
            graph = mycielski(graph.0, &graph.1);
        }
    }

    #[test]
    fn a_search_that_is_ended() {
        let mut graph = (2, vec![(0, 1)]);
        for _ in 0..5 {
            graph = mycielski(graph.0, &graph.1);
        }
        let graph = SplitGraph::of_pairs(graph.0, &graph.1);
        assert_eq!(color(&graph, 6, |spent| spent < 500), Err(Undecided));
        assert!(color(&graph, 7, |_| false).unwrap().is_some());
    }
}
