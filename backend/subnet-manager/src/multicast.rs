//! The trees that multicast packets take.

use std::collections::{BTreeMap, BTreeSet};

use wire::attribute::MulticastBlock;
use wire::{Guid, Lid};

use crate::routing::{Endpoint, Graph};

/// The way from a switch towards the root of the spanning tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Up {
    switch: usize,
    /// The port here.
    port: u8,
    /// The port of the other switch.
    back: u8,
}

/// A tree for every group, all cut from one spanning tree of the switches.
#[derive(Debug, Default)]
pub(crate) struct Trees {
    /// The switches' links, by which a new graph is told from a known one.
    graph: Graph,
    /// By switch; `None` at the root and where there is no way to it.
    up: Vec<Option<Up>>,
    depth: Vec<Option<u32>>,
    /// Planned content of tables, by switch.
    wanted: Vec<BTreeMap<(u16, u8), MulticastBlock>>,
    /// The switches and ports of each group's tree.
    grown: BTreeMap<Lid, Vec<(usize, u8)>>,
    /// The highest block that any switch has been given.
    top: u16,
}

impl Trees {
    /// Whether the trees are those of this graph.
    pub(crate) fn are_of(&self, graph: &Graph) -> bool {
        self.graph == *graph
    }

    /// A LID is elsewhere.
    pub(crate) fn moved(&mut self, endpoint: Endpoint) {
        let endpoints = &mut self.graph.endpoints;
        if let Ok(at) = endpoints.binary_search_by_key(&endpoint.lid, |other| other.lid) {
            endpoints[at] = endpoint;
        }
    }

    /// Makes the spanning tree of a graph; false when it is the one that there is.
    pub(crate) fn span(&mut self, graph: &Graph) -> bool {
        if self.are_of(graph) {
            return false;
        }
        self.graph = graph.clone();
        let switches = graph.switches.len();
        self.up = vec![None; switches];
        self.wanted = vec![BTreeMap::new(); switches];
        self.grown.clear();
        self.depth = vec![None; switches];
        // Parts of a subnet that are cut off from each other have a root each.
        for switch in 0..switches {
            if self.depth[switch].is_none() {
                self.span_part(graph, switch);
            }
        }
        true
    }

    fn span_part(&mut self, graph: &Graph, any: usize) {
        let depth = graph.distances(middle(graph, any));
        for (switch, vertex) in graph.switches.iter().enumerate() {
            let Some(own) = depth[switch] else {
                continue;
            };
            self.depth[switch] = Some(own);
            let nearer = |to: usize| depth[to].is_some_and(|other| other + 1 == own);
            let trunk = vertex.trunks.iter().find(|trunk| nearer(trunk.to));
            self.up[switch] = trunk.map(|trunk| Up {
                switch: trunk.to,
                port: trunk.port,
                back: trunk.to_port,
            });
        }
    }

    /// Makes the tree of a multicast LID anew: the least of the spanning tree that joins `ends`.
    pub(crate) fn grow<'a>(&mut self, mlid: Lid, ends: impl Iterator<Item = &'a Endpoint>) {
        for (switch, port) in self.grown.remove(&mlid).unwrap_or_default() {
            self.write(mlid, switch, port, false);
        }
        let mut tree: BTreeSet<(usize, u8)> = BTreeSet::new();
        // Switches by depth, the deepest first: each passes its part on to the one above.
        let mut open: BTreeSet<(u32, usize)> = BTreeSet::new();
        for end in ends {
            let Some(depth) = self.depth.get(end.switch).copied().flatten() else {
                continue;
            };
            tree.insert((end.switch, end.port));
            open.insert((depth, end.switch));
        }
        while open.len() > 1 {
            let Some((depth, switch)) = open.pop_last() else {
                break;
            };
            let Some(up) = self.up[switch] else {
                // The root of a part that is cut off.
                continue;
            };
            tree.insert((switch, up.port));
            tree.insert((up.switch, up.back));
            open.insert((depth - 1, up.switch));
        }
        for &(switch, port) in &tree {
            self.write(mlid, switch, port, true);
        }
        if !tree.is_empty() {
            self.grown.insert(mlid, tree.into_iter().collect());
        }
    }

    fn write(&mut self, mlid: Lid, switch: usize, port: u8, on: bool) {
        let offset = mlid.value().saturating_sub(Lid::MULTICAST_FIRST.value());
        let (block, entry) = (
            offset / MulticastBlock::LIDS,
            usize::from(offset % MulticastBlock::LIDS),
        );
        let at = (block, port / MulticastBlock::PORTS);
        self.top = self.top.max(block);
        let Some(wanted) = self.wanted.get_mut(switch) else {
            return;
        };
        let mask = 1 << (port % MulticastBlock::PORTS);
        let ports = &mut wanted.entry(at).or_default().0[entry];
        *ports = if on { *ports | mask } else { *ports & !mask };
    }

    /// Planned blocks of a switch's table that are not empty.
    pub(crate) fn of(&self, switch: Guid) -> impl Iterator<Item = (&(u16, u8), &MulticastBlock)> {
        let at = self
            .graph
            .switches
            .binary_search_by_key(&switch, |vertex| vertex.guid);
        let wanted = at.ok().and_then(|at| self.wanted.get(at));
        wanted.into_iter().flatten()
    }

    /// Planned content of the switches' tables, empty blocks included.
    pub(crate) fn blocks(&self, graph: &Graph) -> Vec<BTreeMap<(u16, u8), MulticastBlock>> {
        let switches = graph.switches.iter().zip(&self.wanted);
        switches
            .map(|(vertex, wanted)| {
                let mut blocks = wanted.clone();
                for block in 0..=self.top {
                    for position in 0..=vertex.ports / MulticastBlock::PORTS {
                        blocks.entry((block, position)).or_default();
                    }
                }
                blocks
            })
            .collect()
    }
}

/// A switch in the middle of the part of the graph that `any` is in: of those on the way between
/// two that are far apart the one that is nearest to both.
fn middle(graph: &Graph, any: usize) -> usize {
    let farthest = |distances: &[Option<u32>]| {
        let reached = distances.iter().enumerate();
        let reached = reached.filter_map(|(switch, distance)| Some((switch, (*distance)?)));
        reached
            .max_by_key(|&(switch, distance)| (distance, std::cmp::Reverse(switch)))
            .map_or(any, |(switch, _)| switch)
    };
    let one = farthest(&graph.distances(any));
    let from_one = graph.distances(one);
    let from_other = graph.distances(farthest(&from_one));
    let both = from_one.iter().zip(&from_other).enumerate();
    both.filter_map(|(switch, (a, b))| Some((switch, (*a)?, (*b)?)))
        .min_by_key(|&(switch, a, b)| (a.max(b), a + b, switch))
        .map_or(any, |(switch, _, _)| switch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::tests::fat_tree;

    const MLID: Lid = Lid::MULTICAST_FIRST;

    /// Switches that a packet reaches from an endpoint, and the endpoints' ports; panics when it
    /// comes to a switch twice.
    fn flood(trees: &Trees, graph: &Graph, from: &Endpoint) -> BTreeSet<(usize, u8)> {
        let mut reached = BTreeSet::new();
        let mut visited = BTreeSet::new();
        let mut open = vec![(from.switch, from.port)];
        while let Some((switch, came_by)) = open.pop() {
            assert!(visited.insert(switch), "twice at switch {switch}");
            for &(_, port) in trees.grown[&MLID].iter().filter(|(at, _)| *at == switch) {
                if port == came_by {
                    continue;
                }
                let trunks = &graph.switches[switch].trunks;
                match trunks.iter().find(|trunk| trunk.port == port) {
                    Some(trunk) => open.push((trunk.to, trunk.to_port)),
                    None => {
                        reached.insert((switch, port));
                    }
                }
            }
        }
        reached
    }

    #[test]
    fn a_tree_joins_its_ends_and_nobody_else() {
        let graph = fat_tree();
        let mut trees = Trees::default();
        assert!(trees.span(&graph));
        assert!(!trees.span(&graph), "the same again");
        let all: Vec<&Endpoint> = graph.endpoints.iter().filter(|end| end.port != 0).collect();
        assert!(all.len() >= 4);
        for some in [
            &all[..],
            &all[..2],
            &[all[0], all[all.len() - 1]],
            &all[..1],
        ] {
            trees.grow(MLID, some.iter().copied());
            for from in some {
                let others: BTreeSet<_> = some
                    .iter()
                    .filter(|end| end.lid != from.lid)
                    .map(|end| (end.switch, end.port))
                    .collect();
                assert_eq!(flood(&trees, &graph, from), others);
            }
        }
        trees.grow(MLID, [].into_iter());
        let empty = trees.blocks(&graph);
        assert!(
            empty
                .iter()
                .flatten()
                .all(|(_, block)| *block == MulticastBlock::default())
        );
        assert!(!empty[0].is_empty(), "old entries are cleared");
    }

    #[test]
    fn ends_at_one_switch_need_no_other() {
        let graph = fat_tree();
        let mut trees = Trees::default();
        trees.span(&graph);
        let first = graph.endpoints.iter().find(|end| end.port != 0).unwrap();
        let same = |end: &&Endpoint| end.switch == first.switch && end.port != 0;
        trees.grow(MLID, graph.endpoints.iter().filter(same));
        let switches: BTreeSet<usize> = trees.grown[&MLID]
            .iter()
            .map(|&(switch, _)| switch)
            .collect();
        assert_eq!(switches, BTreeSet::from([first.switch]));
    }
}
