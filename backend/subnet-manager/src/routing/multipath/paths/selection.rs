//! Path selection: many candidates, of which the links with most of them lose first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::load::LinkLoads;
use super::up_down::{CLIMBING, Distances, Legality, NotConnected, Phase};
use crate::routing::multipath::{Link, LinkId, Network, NodeIndex, Path};

/// Candidates of a pair in the paper.
pub const CANDIDATES: usize = 16;

/// For each pair its shortest legal paths, up to a number; then, while a pair has several, the most
/// loaded link between switches loses one: of the paths over it that have alternatives one whose pair
/// has most of them, and of these the longest.
///
/// The paper leaves the rule by which paths are dropped to its reference (Koibuchi, Jouraku, Amano,
/// "Path selection algorithm: the strategy for designing deterministic routing from alternative
/// paths"); of the rules tried, this one comes nearest to its results.
#[derive(Debug, Clone, Copy)]
pub struct PathSelection<'a> {
    /// Legal paths.
    pub legality: Legality<'a>,
    /// Candidates of a pair at most; more than 64 are as good as 64.
    pub candidates: usize,
}

/// Where a machine's paths begin to differ: its switch, or the machine itself when it has several
/// cables, with the one link to there.
struct Site {
    node: NodeIndex,
    link: Option<LinkId>,
}

/// All pairs of machines between two sites: they have the same candidates.
#[derive(Default)]
struct Group {
    /// Shortest first.
    candidates: Vec<Box<[LinkId]>>,
    /// The candidates, a bit for each, that lead over a link, by link.
    over: Vec<(LinkId, u64)>,
    /// Pairs by the candidates they still have.
    pairs: BTreeMap<u64, VecDeque<u32>>,
}

/// Measure for the next group to lose a candidate: the most alternatives of a pair, and the length of its
/// longest candidate.
type Plenty = (u32, usize);

impl Group {
    fn new(candidates: Vec<Box<[LinkId]>>) -> Self {
        let mut over: BTreeMap<LinkId, u64> = BTreeMap::new();
        for (bit, links) in candidates.iter().enumerate() {
            for &link in links {
                *over.entry(link).or_default() |= 1 << bit;
            }
        }
        Self {
            candidates,
            over: over.into_iter().collect(),
            pairs: BTreeMap::new(),
        }
    }

    /// All candidates, a bit for each.
    fn all(&self) -> u64 {
        u64::MAX >> (64 - self.candidates.len().clamp(1, 64))
    }

    /// The pairs that would lose a candidate over a link first, as the candidates they have, and
    /// which it would be.
    fn first(&self, link: LinkId) -> Option<(Plenty, u64, usize)> {
        let at = self.over.binary_search_by_key(&link, |&(link, _)| link);
        let (_, over) = self.over[at.ok()?];
        let loses = |&left: &u64| {
            // The last one of a pair stays.
            let longest = (left & over)
                .checked_ilog2()
                .filter(|_| left.count_ones() > 1)? as usize;
            let plenty = (left.count_ones(), self.candidates[longest].len());
            Some((plenty, left, longest))
        };
        self.pairs
            .keys()
            .filter_map(loses)
            .max_by_key(|&(plenty, left, _)| (plenty, Reverse(left)))
    }

    /// Takes a candidate from the first pair that has these.
    fn lose(&mut self, left: u64, candidate: usize) {
        let Some(pairs) = self.pairs.get_mut(&left) else {
            return;
        };
        let pair = pairs.pop_front();
        if pairs.is_empty() {
            self.pairs.remove(&left);
        }
        let now = self.pairs.entry(left & !(1 << candidate)).or_default();
        now.extend(pair);
    }
}

impl PathSelection<'_> {
    /// The paths of all pairs, by rising source and then rising destination.
    ///
    /// # Errors
    /// [`NotConnected`] names a pair without a legal path.
    pub fn paths(&self, network: &Network) -> Result<Vec<Path>, NotConnected> {
        let machines: Vec<NodeIndex> = network.machines().collect();
        let sites: Vec<Site> = machines
            .iter()
            .map(|&machine| match *network.outgoing(machine) {
                [link] => Site {
                    node: network.link(link).to,
                    link: Some(link),
                },
                _ => Site {
                    node: machine,
                    link: None,
                },
            })
            .collect();
        let mut distances: BTreeMap<NodeIndex, Distances> = BTreeMap::new();
        for site in &sites {
            let of = || self.legality.distances(network, site.node);
            distances.entry(site.node).or_insert_with(of);
        }
        let mut groups: Vec<Group> = Vec::new();
        let mut numbers: BTreeMap<(NodeIndex, NodeIndex), usize> = BTreeMap::new();
        let pairs = || {
            let of = |from| (0..machines.len()).map(move |to| (from, to));
            (0..machines.len())
                .flat_map(of)
                .filter(|(from, to)| from != to)
        };
        let taken = |link: LinkId| self.legality.after(network, CLIMBING, link).is_some();
        for (pair, (from, to)) in pairs().enumerate() {
            let (source, sink) = (&sites[from], &sites[to]);
            let number = *numbers.entry((source.node, sink.node)).or_insert_with(|| {
                let distances = &distances[&sink.node];
                let found = self.shortest(network, source.node, sink.node, distances);
                groups.push(Group::new(found));
                groups.len() - 1
            });
            let group = &mut groups[number];
            let ends = [source.link, sink.link.map(LinkId::reverse)];
            if group.candidates.is_empty() || !ends.into_iter().flatten().all(taken) {
                let (from, to) = (machines[from], machines[to]);
                return Err(NotConnected { from, to });
            }
            let all = group.all();
            group.pairs.entry(all).or_default().push_back(pair as u32);
        }
        drop_most_loaded(network, &mut groups);
        let mut kept: Vec<(usize, usize)> = vec![(0, 0); pairs().count()];
        for (number, group) in groups.iter().enumerate() {
            for (left, pairs) in &group.pairs {
                let candidate = left.trailing_zeros() as usize;
                for &pair in pairs {
                    kept[pair as usize] = (number, candidate);
                }
            }
        }
        let path = |((from, to), &(group, candidate)): ((usize, usize), &(usize, usize))| {
            let between = &groups[group].candidates[candidate];
            let first = sites[from].link.into_iter();
            let last = sites[to].link.map(LinkId::reverse);
            let links = first.chain(between.iter().copied()).chain(last);
            let path = network.path_of_links(links.collect());
            path.expect("candidates are paths")
        };
        Ok(pairs().zip(&kept).map(path).collect())
    }

    /// The shortest legal paths of a pair, shortest first: a best-first search over partial paths.
    fn shortest(
        &self,
        network: &Network,
        from: NodeIndex,
        to: NodeIndex,
        distances: &Distances,
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
                if found.len() >= self.candidates.min(64) {
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
fn drop_most_loaded(network: &Network, groups: &mut [Group]) {
    let mut loads = LinkLoads::new(network);
    // Of each link, the groups with candidates over it. What a group has to lose only ever becomes
    // less: an entry that is out of date is put back where it belongs.
    let mut over: Vec<BinaryHeap<(Plenty, Reverse<u32>)>> =
        network.links().map(|_| BinaryHeap::new()).collect();
    for (number, group) in groups.iter().enumerate() {
        let pairs = group.pairs.values().map(VecDeque::len).sum::<usize>() as u32;
        for &(link, candidates) in &group.over {
            loads.add_many(link, pairs * candidates.count_ones());
            if let Some((plenty, _, _)) = group.first(link) {
                over[link.at()].push((plenty, Reverse(number as u32)));
            }
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
        while let Some(mut top) = over[link.at()].peek_mut() {
            let (plenty, Reverse(number)) = *top;
            let group = &mut groups[number as usize];
            let Some((now, left, candidate)) = group.first(link) else {
                std::collections::binary_heap::PeekMut::pop(top);
                continue;
            };
            if now < plenty {
                top.0 = now;
                continue;
            }
            loads.remove(&group.candidates[candidate]);
            group.lose(left, candidate);
            busiest.push((loads.get(link), Reverse(link.0)));
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LinkLoads, ShortestWidest, UpDown, repair};
    use super::*;
    use crate::routing::multipath::Kind;

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
    fn both_schemes_connect_all_pairs_legally() {
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
