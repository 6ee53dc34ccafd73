//! Path selection: many candidates, of which the links with most of them lose first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::load::LinkLoads;
use super::up_down::{CLIMBING, Legality, NotConnected, Phase};
use crate::assignment::{Link, LinkId, Network, NodeIndex, Path};

/// Candidates of a pair in the paper.
pub const CANDIDATES: usize = 16;

/// For each pair its shortest legal paths, up to a number; then, while a pair has several, the most
/// loaded link loses one: of the paths over it that have alternatives the one whose pair has most of
/// them, and of these the longest.
///
/// The paper leaves the rule by which paths are dropped to its reference (Koibuchi, Jouraku, Amano,
/// "Path selection algorithm: the strategy for designing deterministic routing from alternative
/// paths"); of the rules tried, this one comes nearest to its results.
#[derive(Debug, Clone, Copy)]
pub struct PathSelection<'a> {
    /// Which paths may be taken.
    pub legality: Legality<'a>,
    /// Candidates of a pair at most.
    pub candidates: usize,
}

/// A candidate while it may still be dropped.
struct Candidate {
    pair: u32,
    links: Box<[LinkId]>,
    dropped: bool,
}

impl PathSelection<'_> {
    /// The paths of all pairs, by rising source and then rising destination.
    ///
    /// # Errors
    /// [`NotConnected`] names a pair without a legal path.
    pub fn paths(&self, network: &Network) -> Result<Vec<Path>, NotConnected> {
        let machines: Vec<NodeIndex> = network.machines().collect();
        let mut candidates = Vec::new();
        let mut alternatives: Vec<u32> = Vec::new();
        let distances: Vec<_> = machines
            .iter()
            .map(|&to| self.legality.distances(network, to))
            .collect();
        for &from in &machines {
            for (&to, distances) in machines.iter().zip(&distances) {
                if from == to {
                    continue;
                }
                let pair = alternatives.len() as u32;
                let found = self.shortest(network, from, to, distances);
                if found.is_empty() {
                    return Err(NotConnected { from, to });
                }
                alternatives.push(found.len() as u32);
                candidates.extend(found.into_iter().map(|links| Candidate {
                    pair,
                    links,
                    dropped: false,
                }));
            }
        }
        drop_most_loaded(network, &mut candidates, &mut alternatives);
        let kept = candidates
            .into_iter()
            .filter(|candidate| !candidate.dropped);
        let path = |candidate: Candidate| network.path_of_links(candidate.links.into());
        Ok(kept
            .map(path)
            .collect::<Result<_, _>>()
            .expect("candidates are paths"))
    }

    /// The shortest legal paths of a pair, shortest first: a best-first search over partial paths.
    fn shortest(
        &self,
        network: &Network,
        from: NodeIndex,
        to: NodeIndex,
        distances: &[[u32; 2]],
    ) -> Vec<Box<[LinkId]>> {
        /// A partial path: where it is, and how it came there.
        struct Partial {
            node: NodeIndex,
            phase: Phase,
            by: Option<(LinkId, usize)>,
            length: u32,
        }
        let mut partials = vec![Partial {
            node: from,
            phase: CLIMBING,
            by: None,
            length: 0,
        }];
        let mut queue = BinaryHeap::new();
        if distances[from.at()][CLIMBING] != u32::MAX {
            queue.push(Reverse((distances[from.at()][CLIMBING], 0)));
        }
        let mut found = Vec::new();
        while let Some(Reverse((_, index))) = queue.pop() {
            let Partial {
                node,
                phase,
                length,
                ..
            } = partials[index];
            let back = || {
                let step = |&index: &usize| partials[index].by.map(|(_, before)| before);
                std::iter::successors(Some(index), step)
            };
            if node == to {
                let mut links: Vec<LinkId> = back()
                    .filter_map(|index| partials[index].by.map(|(link, _)| link))
                    .collect();
                links.reverse();
                found.push(links.into());
                if found.len() >= self.candidates {
                    break;
                }
                continue;
            }
            let met: Vec<NodeIndex> = back().map(|index| partials[index].node).collect();
            for &link in network.outgoing(node) {
                let Link { to: next, .. } = network.link(link);
                let Some(phase) = self.legality.after(network, phase, link) else {
                    continue;
                };
                let left = distances[next.at()][phase];
                if left == u32::MAX || met.contains(&next) {
                    continue;
                }
                let length = length + 1;
                queue.push(Reverse((length + left, partials.len())));
                partials.push(Partial {
                    node: next,
                    phase,
                    by: Some((link, index)),
                    length,
                });
            }
        }
        found
    }
}

/// Drops candidates until each pair has one.
fn drop_most_loaded(network: &Network, candidates: &mut [Candidate], alternatives: &mut [u32]) {
    let mut loads = LinkLoads::new(network);
    for candidate in candidates.iter() {
        loads.add(&candidate.links);
    }
    // Of each link, the pairs that have candidates over it, by their alternatives and the longest of
    // these candidates. Both only ever become less: an entry that is out of date is put back where
    // it belongs.
    let mut over: Vec<BinaryHeap<(u32, u32, Reverse<u32>)>> =
        network.links().map(|_| BinaryHeap::new()).collect();
    let mut of_pair: Vec<Vec<u32>> = vec![Vec::new(); alternatives.len()];
    for (index, candidate) in candidates.iter().enumerate() {
        of_pair[candidate.pair as usize].push(index as u32);
    }
    for (pair, members) in of_pair.iter().enumerate() {
        let mut longest: BTreeMap<LinkId, u32> = BTreeMap::new();
        for &index in members {
            let links = &candidates[index as usize].links;
            for &link in links {
                let longest = longest.entry(link).or_default();
                *longest = (*longest).max(links.len() as u32);
            }
        }
        for (link, longest) in longest {
            over[link.at()].push((alternatives[pair], longest, Reverse(pair as u32)));
        }
    }
    let mut busiest: BinaryHeap<(u32, Reverse<u32>)> = network
        .links()
        .map(|link| (loads.get(link), Reverse(link.0)))
        .collect();
    while let Some((load, Reverse(link))) = busiest.pop() {
        let link = LinkId(link);
        let now = loads.get(link);
        if now < load {
            busiest.push((now, Reverse(link.0)));
            continue;
        }
        let heap = &mut over[link.at()];
        while let Some((before, longest, Reverse(pair))) = heap.pop() {
            let now = alternatives[pair as usize];
            if now < 2 {
                // The last of its pair stays.
                continue;
            }
            let over_link = of_pair[pair as usize]
                .iter()
                .map(|&index| {
                    (
                        candidates[index as usize].links.len() as u32,
                        Reverse(index),
                    )
                })
                .filter(|(_, Reverse(index))| {
                    let candidate = &candidates[*index as usize];
                    !candidate.dropped && candidate.links.contains(&link)
                });
            let Some((length, Reverse(index))) = over_link.max() else {
                continue;
            };
            if (now, length) < (before, longest) {
                heap.push((now, length, Reverse(pair)));
                continue;
            }
            let candidate = &mut candidates[index as usize];
            candidate.dropped = true;
            alternatives[pair as usize] -= 1;
            loads.remove(&candidate.links);
            heap.push((now - 1, length, Reverse(pair)));
            busiest.push((loads.get(link), Reverse(link.0)));
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LinkLoads, ShortestWidest, SingleLid, UpDown, maximum_load, repair};
    use super::*;
    use crate::assignment::{Heuristic, Kind};

    /// Switches in a ring with chords, `each` machines at every one.
    fn ring(switches: u32, each: u32) -> Network {
        let mut network = Network::default();
        let nodes: Vec<NodeIndex> = (0..switches).map(|_| network.add_switch()).collect();
        for at in 0..switches as usize {
            let other = |step: usize| nodes[(at + step) % nodes.len()];
            network.cable(nodes[at], other(1));
            if at % 3 == 0 {
                network.cable(nodes[at], other(4));
                network.cable(nodes[at], other(4));
            }
        }
        for &switch in &nodes {
            for _ in 0..each {
                let machine = network.add_machine();
                network.cable(machine, switch);
            }
        }
        network
    }

    fn root(network: &Network) -> NodeIndex {
        network.switches().next().unwrap()
    }

    /// A path for every pair of machines, each legal.
    fn check(network: &Network, paths: &[Path], legality: Legality<'_>) {
        let machines = network.machines().count();
        let mut pairs: Vec<_> = paths
            .iter()
            .map(|path| (network.source(path), network.destination(path)))
            .collect();
        pairs.sort();
        pairs.dedup();
        assert_eq!(
            (pairs.len(), paths.len()),
            (machines * (machines - 1), paths.len())
        );
        assert!(
            paths
                .iter()
                .all(|path| legality.allows(network, path.links()))
        );
    }

    #[test]
    fn all_schemes_connect_all_pairs_legally() {
        let network = ring(12, 2);
        let order = UpDown::new(&network, root(&network)).unwrap();
        let legality = Legality::UpDown(&order);
        let shortest = ShortestWidest { legality }.paths(&network).unwrap();
        check(&network, &shortest, legality);
        let candidates = CANDIDATES;
        let selected = PathSelection {
            legality,
            candidates,
        }
        .paths(&network)
        .unwrap();
        check(&network, &selected, legality);
        let single = SingleLid { order: &order }.paths(&network).unwrap();
        check(&network, &single, legality);
        let [narrow, wide] = [&single, &selected].map(|paths| maximum_load(&network, paths));
        assert!(
            wide <= narrow,
            "path selection balances: {wide} and {narrow}"
        );
        // One LID for each destination does for the paths that are made for it.
        for to in network.machines() {
            let paths: Vec<Path> = single
                .iter()
                .filter(|path| network.destination(path) == to)
                .cloned()
                .collect();
            assert_eq!(
                Heuristic::Greedy.assign(&network, &paths).configurations(),
                1
            );
        }
    }

    #[test]
    fn candidates_come_shortest_first_and_differ() {
        let network = ring(9, 1);
        let machines: Vec<NodeIndex> = network.machines().collect();
        let selection = PathSelection {
            legality: Legality::Any,
            candidates: 10,
        };
        let distances = Legality::Any.distances(&network, machines[4]);
        let found = selection.shortest(&network, machines[0], machines[4], &distances);
        assert_eq!(found.len(), 10);
        assert!(found.windows(2).all(|pair| pair[0].len() <= pair[1].len()));
        // The chord of two cables: two paths of three links.
        assert_eq!([found[0].len(), found[1].len()], [3, 3]);
        assert_ne!(found[0], found[1]);
        for links in found {
            assert!(network.path_of_links(links.into()).is_ok());
        }
    }

    #[test]
    fn the_lightest_of_the_shortest() {
        let network = ring(9, 2);
        let paths = ShortestWidest {
            legality: Legality::Any,
        }
        .paths(&network)
        .unwrap();
        let mut loads = LinkLoads::new(&network);
        paths.iter().for_each(|path| loads.add(path.links()));
        // Parallel cables share what goes their way.
        let chords: Vec<u32> = network
            .links()
            .filter(|&link| {
                let Link { from, to, .. } = network.link(link);
                let kinds = [from, to].map(|node| network.kind(node));
                kinds == [Kind::Switch; 2] && (to.0 + 9 - from.0) % 9 == 4
            })
            .map(|link| loads.get(link))
            .collect();
        for pair in chords.chunks(2) {
            assert!(pair[0].abs_diff(pair[1]) <= 1, "{chords:?}");
        }
    }

    #[test]
    fn broken_cables_are_gone_round() {
        let network = ring(8, 1);
        let paths = ShortestWidest {
            legality: Legality::Any,
        }
        .paths(&network)
        .unwrap();
        let broken = [LinkId(1)];
        let mended = repair(&network, &paths, &broken).unwrap();
        check(&network, &mended, Legality::Avoiding(&broken));
        let kept = paths.iter().zip(&mended).filter(|(a, b)| a == b).count();
        let whole = paths
            .iter()
            .filter(|path| Legality::Avoiding(&broken).allows(&network, path.links()));
        assert_eq!(kept, whole.count());
    }

    #[test]
    fn parts_are_an_error() {
        let mut network = ring(4, 1);
        let (machine, island) = (network.add_machine(), network.add_switch());
        network.cable(machine, island);
        let legality = Legality::Any;
        assert!(UpDown::new(&network, root(&network)).is_err());
        let error = ShortestWidest { legality }.paths(&network).unwrap_err();
        assert_eq!(error.to, machine);
        assert!(
            PathSelection {
                legality,
                candidates: 2
            }
            .paths(&network)
            .is_err()
        );
        assert!(repair(&network, &[], &[]).is_ok());
    }
}
