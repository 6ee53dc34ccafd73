//! Heuristics that put paths into few configurations.

use std::collections::HashMap;

use fixedbitset::FixedBitSet;

use super::assignment::Assignment;
use super::conflict::{SplitGraph, branches};
use super::equivalent_paths::EquivalentPaths;
use super::network::{Network, NodeIndex, Path};

/// Where split-merge puts the paths that do not visit the node it splits at, which the paper leaves
/// open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Elsewhere {
    /// By themselves. With this split-merge compares to greedy as in the paper's tables I and II.
    #[default]
    Apart,
    /// With the first of the others.
    WithFirst,
}

/// A way to put paths into few configurations (section V). None looks at how the paths came about;
/// several paths of one source, and the same path twice, are welcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heuristic {
    /// Each path into the first configuration that takes it (figure 6).
    Greedy,
    /// Splits at nodes until no item parts within, at those that fewest paths use first, then merges
    /// items greedily (figure 7).
    SplitMergeSmallest(Elsewhere),
    /// The same, at the nodes that most paths use first.
    SplitMergeLargest(Elsewhere),
    /// Colours the split graph, the path that parts from most others in the working graph first
    /// (figure 9): the best in all cases of the paper.
    ColorLargest,
    /// The path that parts from fewest others in the working graph first.
    ColorSmallest,
    /// The path that parts from most others in the whole split graph first, which is not in the paper:
    /// the working graph loses vertices, and the order of the rest stays.
    ColorLargestWhole,
    /// The path that parts from fewest others in the whole split graph first.
    ColorSmallestWhole,
}

impl Heuristic {
    /// All of them, first the paper's in the order of its tables.
    pub const ALL: [Self; 7] = [
        Self::Greedy,
        Self::SplitMergeSmallest(Elsewhere::Apart),
        Self::SplitMergeLargest(Elsewhere::Apart),
        Self::ColorSmallest,
        Self::ColorLargest,
        Self::ColorSmallestWhole,
        Self::ColorLargestWhole,
    ];

    /// The paper's name, if it has one.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::SplitMergeSmallest(_) => "split-merge/S",
            Self::SplitMergeLargest(_) => "split-merge/L",
            Self::ColorLargest => "color/L",
            Self::ColorSmallest => "color/S",
            Self::ColorLargestWhole => "color/L whole",
            Self::ColorSmallestWhole => "color/S whole",
        }
    }

    /// Puts the paths to one destination into configurations.
    #[must_use]
    pub fn assign(self, network: &Network, paths: &[Path]) -> Assignment {
        let classes = EquivalentPaths::new(network, paths);
        let graph = classes.graph(network);
        classes.spread(&self.assign_graph(network, classes.paths(), &graph))
    }

    /// As [`Heuristic::assign`], for whom has the split graph of the paths already.
    #[must_use]
    pub fn assign_graph(self, network: &Network, paths: &[Path], graph: &SplitGraph) -> Assignment {
        match self {
            Self::Greedy => {
                let items = (0..paths.len()).map(|path| vec![path]).collect();
                merge(graph, items)
            }
            Self::SplitMergeSmallest(elsewhere) => merge(
                graph,
                split(network, paths, graph, elsewhere, |users| users as isize),
            ),
            Self::SplitMergeLargest(elsewhere) => merge(
                graph,
                split(network, paths, graph, elsewhere, |users| -(users as isize)),
            ),
            Self::ColorLargest => color(graph, |degree| -(degree as isize)),
            Self::ColorSmallest => color(graph, |degree| degree as isize),
            Self::ColorLargestWhole => color_whole(graph, |degree| -(degree as isize)),
            Self::ColorSmallestWhole => color_whole(graph, |degree| degree as isize),
        }
    }
}

/// Items each of which is a configuration: `rank` orders nodes by the number of paths that use them.
fn split(
    network: &Network,
    paths: &[Path],
    graph: &SplitGraph,
    elsewhere: Elsewhere,
    rank: impl Fn(usize) -> isize,
) -> Vec<Vec<usize>> {
    let at = branches(network, paths);
    let users = |node: &NodeIndex| {
        let paths = at[node].values().flatten();
        paths.map(|&path| graph.weight(path)).sum::<usize>()
    };
    let mut order: Vec<NodeIndex> = at.keys().copied().collect();
    order.sort_by_key(|node| (rank(users(node)), *node));
    // Nodes that all paths leave by the same link split nothing.
    order.retain(|node| at[node].len() > 1);
    let mut items = vec![(0..paths.len()).collect::<Vec<_>>()];
    items.retain(|item| !item.is_empty());
    for node in order {
        let branch: HashMap<usize, u32> = at[&node]
            .iter()
            .flat_map(|(link, members)| members.iter().map(|&path| (path, link.0)))
            .collect();
        let mut next = Vec::with_capacity(items.len());
        for item in items {
            // In the order of their first paths: which items are merged first decides how many
            // configurations there are, and the paper does not say.
            let mut parts: Vec<(Option<u32>, Vec<usize>)> = Vec::new();
            for path in item {
                let key = branch.get(&path).copied();
                match parts.iter_mut().find(|(other, _)| *other == key) {
                    Some((_, part)) => part.push(path),
                    None => parts.push((key, vec![path])),
                }
            }
            let apart = parts.iter().position(|(link, _)| link.is_none());
            if let Some(apart) = apart.filter(|_| elsewhere == Elsewhere::WithFirst) {
                let (_, others) = parts.remove(apart);
                match parts.first_mut() {
                    Some((_, first)) => first.extend(others),
                    None => parts.push((None, others)),
                }
            }
            next.extend(parts.into_iter().map(|(_, paths)| paths));
        }
        items = next;
    }
    items
}

/// Each item into the first configuration that none of its paths parts from.
fn merge(graph: &SplitGraph, items: Vec<Vec<usize>>) -> Assignment {
    let mut labels = vec![0; graph.len()];
    // Of each configuration, the paths that part from one of its own.
    let mut barred: Vec<FixedBitSet> = Vec::new();
    for item in items {
        let free = barred
            .iter()
            .position(|barred| !item.iter().any(|&path| barred.contains(path)));
        let label = free.unwrap_or_else(|| {
            barred.push(FixedBitSet::with_capacity(graph.len()));
            barred.len() - 1
        });
        for path in item {
            labels[path] = label;
            barred[label].union_with(graph.neighbours(path));
        }
    }
    Assignment::new(labels)
}

/// Figure 9. One configuration after the other: the path of the best rank in the working graph, which
/// then loses this path and those that part from it, until it is empty. The next configuration begins
/// with the paths that have none. Of equals, the path with the lowest index.
fn color(graph: &SplitGraph, rank: impl Fn(usize) -> isize) -> Assignment {
    let mut degrees: Vec<usize> = (0..graph.len()).map(|path| graph.degree(path)).collect();
    let mut left = FixedBitSet::with_capacity(graph.len());
    left.insert_range(..);
    let mut labels = vec![0; graph.len()];
    let mut label = 0;
    while !left.is_clear() {
        let mut working = left.clone();
        let mut degree = degrees.clone();
        let next = |working: &FixedBitSet, degree: &[usize]| {
            working
                .ones()
                .min_by_key(|&path| (rank(degree[path]), path))
        };
        while let Some(path) = next(&working, &degree) {
            labels[path] = label;
            left.remove(path);
            let mut leaving = graph.neighbours(path).clone();
            leaving.intersect_with(&working);
            leaving.insert(path);
            working.difference_with(&leaving);
            for gone in leaving.ones() {
                for other in graph.neighbours(gone).intersection(&working) {
                    degree[other] -= graph.weight(gone);
                }
            }
            for other in graph.neighbours(path).intersection(&left) {
                degrees[other] -= graph.weight(path);
            }
        }
        label += 1;
    }
    Assignment::new(labels)
}

/// The same with the degrees of the whole split graph, which do not change.
fn color_whole(graph: &SplitGraph, rank: impl Fn(usize) -> isize) -> Assignment {
    let mut order: Vec<usize> = (0..graph.len()).collect();
    order.sort_by_cached_key(|&path| (rank(graph.degree(path)), path));
    let mut labels = vec![0; graph.len()];
    let mut label = 0;
    while !order.is_empty() {
        let mut barred = FixedBitSet::with_capacity(graph.len());
        order.retain(|&path| {
            let joins = !barred.contains(path);
            if joins {
                labels[path] = label;
                barred.union_with(graph.neighbours(path));
            }
            !joins
        });
        label += 1;
    }
    Assignment::new(labels)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::super::conflict::Violation;
    use super::*;

    const APART: Elsewhere = Elsewhere::Apart;

    /// Machines first, then switches; cables by index; paths by index.
    fn build(
        machines: usize,
        switches: usize,
        cables: &[(usize, usize)],
        paths: &[&[usize]],
    ) -> (Network, Vec<Path>) {
        let mut network = Network::default();
        let mut nodes: Vec<NodeIndex> = (0..machines).map(|_| network.add_machine()).collect();
        nodes.extend((0..switches).map(|_| network.add_switch()));
        for &(a, b) in cables {
            network.cable(nodes[a], nodes[b]);
        }
        let path = |path: &&[usize]| {
            let along: Vec<NodeIndex> = path.iter().map(|&node| nodes[node]).collect();
            network.path(&along, &[]).unwrap()
        };
        let paths = paths.iter().map(path).collect();
        (network, paths)
    }

    /// Figure 5: machines m0 to m4 are nodes 0 to 4, switches s0 to s5 are 5 to 10.
    pub(in super::super) fn figure_5() -> (Network, Vec<Path>) {
        let cables = [
            (0, 5),
            (1, 9),
            (2, 9),
            (3, 10),
            (4, 10),
            (5, 6),
            (5, 7),
            (6, 8),
            (6, 9),
            (7, 8),
            (7, 10),
            (8, 9),
            (8, 10),
        ];
        build(
            5,
            6,
            &cables,
            &[
                &[1, 9, 6, 5, 0],
                &[2, 9, 8, 7, 5, 0],
                &[4, 10, 7, 5, 0],
                &[3, 10, 8, 6, 5, 0],
            ],
        )
    }

    #[test]
    fn paths_that_part_and_paths_that_do_not() {
        let (network, paths) = figure_5();
        let graph = SplitGraph::new(&network, &paths);
        let edges: Vec<(usize, usize)> = (0..4)
            .flat_map(|a| (a + 1..4).map(move |b| (a, b)))
            .filter(|&(a, b)| graph.splits(a, b))
            .collect();
        assert_eq!(
            edges,
            [(0, 1), (1, 3), (2, 3)],
            "the chain p1-p2-p4-p3 of figure 8"
        );
    }

    #[test]
    fn sharing_is_not_transitive() {
        // p1 shares with p2 and with p3, yet p2 and p3 part at s0 (section III).
        let (network, paths) = build(
            4,
            3,
            &[(0, 4), (1, 4), (2, 5), (3, 6), (4, 5), (5, 6), (4, 6)],
            &[&[2, 5, 6, 3], &[0, 4, 5, 6, 3], &[1, 4, 6, 3]],
        );
        let graph = SplitGraph::new(&network, &paths);
        assert!(!graph.splits(0, 1) && !graph.splits(0, 2) && graph.splits(1, 2));
    }

    #[test]
    fn parallel_cables_are_different_ways() {
        let mut network = Network::default();
        let [a, b, c] = [(); 3].map(|()| network.add_machine());
        let [s, t] = [(); 2].map(|()| network.add_switch());
        for (x, y) in [(a, s), (b, s), (s, t), (s, t), (t, c)] {
            network.cable(x, y);
        }
        let paths = [
            network.path(&[a, s, t, c], &[0, 0]).unwrap(),
            network.path(&[b, s, t, c], &[0, 1]).unwrap(),
            network.path(&[b, s, t, c], &[0, 0]).unwrap(),
        ];
        let graph = SplitGraph::new(&network, &paths);
        assert!(graph.splits(0, 1) && graph.splits(1, 2) && !graph.splits(0, 2));
    }

    #[test]
    fn the_papers_example() {
        let (network, paths) = figure_5();
        let needs = |heuristic: Heuristic| heuristic.assign(&network, &paths).members();
        assert_eq!(needs(Heuristic::Greedy), [vec![0, 2], vec![1], vec![3]]);
        assert_eq!(needs(Heuristic::ColorLargest), [vec![1, 2], vec![0, 3]]);
        assert_eq!(needs(Heuristic::ColorSmallest).len(), 3);
        assert_eq!(
            needs(Heuristic::ColorLargestWhole),
            [vec![1, 2], vec![0, 3]]
        );
        // No better than greedy, of which the paper says as much.
        assert_eq!(needs(Heuristic::SplitMergeSmallest(APART)).len(), 3);
        assert_eq!(needs(Heuristic::SplitMergeLargest(APART)).len(), 3);
    }

    #[test]
    fn greedy_depends_on_the_order() {
        let (network, paths) = figure_5();
        let mut needs = [0; 4];
        for code in 0..256 {
            let order = [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6];
            if (0..4).all(|path| order.contains(&path)) {
                let paths = order.map(|path| paths[path].clone());
                needs[Heuristic::Greedy.assign(&network, &paths).configurations()] += 1;
            }
        }
        assert_eq!(needs, [0, 0, 18, 6], "of the 24 orders");
    }

    /// The reduction from graph colouring (section III): the split graph of the paths is the graph.
    pub(in super::super) fn reduction(
        vertices: usize,
        edges: &[(usize, usize)],
    ) -> (Network, Vec<Path>) {
        let mut network = Network::default();
        let destination = network.add_machine();
        let between: Vec<NodeIndex> = edges.iter().map(|_| network.add_switch()).collect();
        let mut paths = Vec::new();
        for vertex in 0..vertices {
            let (first, last) = (network.add_machine(), network.add_switch());
            let mut along = vec![first];
            along.extend(
                edges
                    .iter()
                    .zip(&between)
                    .filter(|((a, b), _)| *a == vertex || *b == vertex)
                    .map(|(_, &node)| node),
            );
            along.extend([last, destination]);
            let links = along
                .windows(2)
                .map(|hop| network.cable(hop[0], hop[1]))
                .collect();
            paths.push(network.path_of_links(links).unwrap());
        }
        (network, paths)
    }

    #[test]
    fn figure_4() {
        let edges = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)];
        let (network, paths) = reduction(4, &edges);
        for heuristic in Heuristic::ALL {
            assert_eq!(
                heuristic.assign(&network, &paths).configurations(),
                3,
                "{heuristic:?}"
            );
        }
        assert_eq!(SplitGraph::new(&network, &paths).clique().len(), 3);
    }

    /// 0 parts from 1 to 5 and goes first. With these gone, 6 parts from one path of the four, and 7 still
    /// from three.
    #[test]
    fn the_degree_is_that_of_the_working_graph() {
        let around_0 = (1..=5).map(|other| (0, other));
        let around_6 = [1, 2, 3, 7].map(|other| (other.min(6), other.max(6)));
        let edges: Vec<_> = around_0.chain(around_6).chain([(7, 8), (7, 9)]).collect();
        let (network, paths) = reduction(10, &edges);
        let first = |heuristic: Heuristic| heuristic.assign(&network, &paths).members().remove(0);
        assert_eq!(first(Heuristic::ColorLargest), [0, 7]);
        assert_eq!(first(Heuristic::ColorLargestWhole), [0, 6, 8, 9]);
    }

    #[test]
    fn a_wrong_assignment_is_found() {
        let (network, paths) = figure_5();
        let graph = SplitGraph::new(&network, &paths);
        let check = |labels: [usize; 4]| graph.check(&Assignment::new(labels.to_vec()));
        assert_eq!(check([0, 1, 1, 0]), Ok(()));
        assert_eq!(check([0, 0, 1, 1]), Err(Violation::Splits(0, 1)));
        assert_eq!(check([0, 1, 2, 0]), Err(Violation::NotMinimal(1, 2)));
    }

    #[test]
    fn nothing_needs_nothing() {
        for heuristic in Heuristic::ALL {
            assert_eq!(
                heuristic.assign(&Network::default(), &[]).configurations(),
                0
            );
        }
    }

    proptest! {
        #[test]
        fn heuristics_make_minimal_configuration_sets(
            vertices in 1usize..14,
            density in 0u32..100,
            seed in any::<u64>(),
        ) {
            let mut random = testing::Random::new(seed);
            let mut edges = Vec::new();
            for a in 0..vertices {
                for b in a + 1..vertices {
                    if random.number() % 100 < u64::from(density) {
                        edges.push((a, b));
                    }
                }
            }
            let (network, mut paths) = reduction(vertices, &edges);
            // The same path twice is no reason for another LID.
            paths.push(paths[0].clone());
            let graph = SplitGraph::new(&network, &paths);
            prop_assert!(EquivalentPaths::new(&network, &paths).paths().len() <= vertices);
            for a in 0..vertices {
                for b in 0..vertices {
                    let edge = edges.contains(&(a.min(b), a.max(b)));
                    prop_assert_eq!(graph.splits(a, b), edge);
                }
            }
            let kinds = [Elsewhere::Apart, Elsewhere::WithFirst];
            let more = kinds.map(Heuristic::SplitMergeLargest);
            for heuristic in Heuristic::ALL.into_iter().chain(more) {
                let assignment = heuristic.assign(&network, &paths);
                prop_assert_eq!(graph.check(&assignment), Ok(()), "{:?}", heuristic);
                // Equivalent paths as one is quicker and no different.
                let alone = heuristic.assign_graph(&network, &paths, &graph);
                prop_assert_eq!(&assignment, &alone, "{:?}", heuristic);
                prop_assert!(assignment.configurations() >= graph.clique().len());
            }
        }
    }
}
