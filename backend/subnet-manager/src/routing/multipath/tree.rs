//! The ways to one LID: a link by which each node forwards it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::network::{Kind, LinkId, Network, NodeIndex, Path};
use super::paths::{LinkLoads, UpDown};

/// The link by which each node forwards a LID, by node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tree(Vec<Option<LinkId>>);

/// Distance of a node from the destination, and whether all links from there lead down.
#[derive(Debug, Clone, Copy)]
struct Standing {
    distance: u32,
    falls: bool,
}

impl Tree {
    /// No way from anywhere.
    pub(super) fn new(network: &Network) -> Self {
        Self(vec![None; network.nodes().len()])
    }

    /// The ways along these paths, which do not part.
    pub(super) fn along<'a>(network: &Network, paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut tree = Self::new(network);
        for path in paths {
            tree.enter(network, path.links());
        }
        tree
    }

    pub(super) fn enter(&mut self, network: &Network, links: &[LinkId]) {
        for &link in links {
            self.0[network.link(link).from.at()] = Some(link);
        }
    }

    pub(super) fn entries(&self) -> &[Option<LinkId>] {
        &self.0
    }

    pub(super) fn link(&self, node: NodeIndex) -> Option<LinkId> {
        self.0[node.at()]
    }

    /// The standing of each node from which a way leads to `to`.
    fn standings(&self, network: &Network, order: &UpDown, to: NodeIndex) -> Vec<Option<Standing>> {
        let mut found = vec![None; self.0.len()];
        found[to.at()] = Some(Standing {
            distance: 0,
            falls: true,
        });
        let mut queue = VecDeque::from([to]);
        while let Some(at) = queue.pop_front() {
            let Some(Standing { distance, falls }) = found[at.at()] else {
                continue;
            };
            for &back in network.outgoing(at) {
                let (link, from) = (back.reverse(), network.link(back).to);
                if self.0[from.at()] == Some(link) && found[from.at()].is_none() {
                    found[from.at()] = Some(Standing {
                        distance: distance + 1,
                        falls: falls && !order.is_up(network, link),
                    });
                    queue.push_back(from);
                }
            }
        }
        found
    }

    /// Finds a way for the switches that have none, up and then down and onto the ways there are: down where that is
    /// possible, since what comes from above may go nowhere else. Of equal ways the one with the least load. Returns
    /// whether each switch with a machine has a way then; the others get any.
    pub(super) fn complete(
        &mut self,
        network: &Network,
        order: &UpDown,
        to: NodeIndex,
        loads: &mut LinkLoads,
    ) -> bool {
        let mut found = self.standings(network, order, to);
        for up in [false, true] {
            let mut queue = BinaryHeap::new();
            let ways = |at: NodeIndex, found: &[Option<Standing>], loads: &LinkLoads| {
                let standing = found[at.at()].filter(|standing| up || standing.falls);
                let passes = at == to || network.kind(at) == Kind::Switch;
                let links = network.outgoing(at).iter().map(|back| back.reverse());
                let fits = |link: &LinkId| {
                    let from = network.link(*link).from;
                    network.kind(from) == Kind::Switch
                        && found[from.at()].is_none()
                        && order.is_up(network, *link) == up
                };
                let ways: Vec<_> = { standing.filter(|_| passes).into_iter() }
                    .flat_map(|standing| {
                        links.clone().filter(fits).map(move |link| (standing, link))
                    })
                    .map(|(standing, link)| Reverse((standing.distance + 1, loads.get(link), link)))
                    .collect();
                ways
            };
            for at in network.nodes() {
                queue.extend(ways(at, &found, loads));
            }
            while let Some(Reverse((distance, _, link))) = queue.pop() {
                let from = network.link(link).from;
                if found[from.at()].is_some() {
                    continue;
                }
                let falls = !up;
                found[from.at()] = Some(Standing { distance, falls });
                self.0[from.at()] = Some(link);
                loads.add(&[link]);
                queue.extend(ways(from, &found, loads));
            }
        }
        let serves = |switch: NodeIndex| {
            let ends = network.outgoing(switch).iter();
            let mut ends = ends.map(|&link| network.kind(network.link(link).to));
            ends.any(|kind| kind == Kind::Machine)
        };
        let lost = |switch: &NodeIndex| found[switch.at()].is_none();
        let complete = !network.switches().filter(lost).any(serves);
        if complete {
            self.join(network, &mut found);
        }
        complete
    }

    /// Gives the switches without a way any: management packets alone begin there.
    fn join(&mut self, network: &Network, found: &mut [Option<Standing>]) {
        let there = network.nodes().filter(|node| found[node.at()].is_some());
        let mut queue: VecDeque<NodeIndex> = there.collect();
        while let Some(at) = queue.pop_front() {
            for &back in network.outgoing(at) {
                let (link, from) = (back.reverse(), network.link(back).to);
                let is_switch = [at, from].map(|node| network.kind(node)) == [Kind::Switch; 2];
                if is_switch && found[from.at()].is_none() {
                    found[from.at()] = found[at.at()];
                    self.0[from.at()] = Some(link);
                    queue.push_back(from);
                }
            }
        }
    }
}
