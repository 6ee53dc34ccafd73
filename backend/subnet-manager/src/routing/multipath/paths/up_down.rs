//! Legal paths: any, or those that go up before they go down.

use std::collections::VecDeque;

use crate::routing::multipath::{Kind, Link, LinkId, Network, NodeIndex};

/// Some switch cannot be reached from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("node {} cannot be reached from node {}: the network is in parts; mend a link or route the parts separately", to.0, from.0)]
pub struct NotConnected {
    /// From here.
    pub from: NodeIndex,
    /// To there.
    pub to: NodeIndex,
}

/// Up*/down*: nodes are ordered by their distance from a root, then by index; a link leads up if it
/// leads towards the first. Paths that go up and then down, and never up again, cannot deadlock.
#[derive(Debug, Clone)]
pub struct UpDown {
    rank: Vec<(u32, u32)>,
}

impl UpDown {
    /// The order of `network` from this root, a switch.
    ///
    /// # Errors
    /// [`NotConnected`] names a node that the root does not reach.
    pub fn new(network: &Network, root: NodeIndex) -> Result<Self, NotConnected> {
        Self::with_roots(network, &[root])
    }

    /// The order of `network` from the nearest of these roots. Between two of them no path may lead up and then down.
    ///
    /// # Errors
    /// [`NotConnected`] names a node that no root reaches.
    ///
    /// # Panics
    /// When there is no root.
    pub fn with_roots(network: &Network, roots: &[NodeIndex]) -> Result<Self, NotConnected> {
        let mut level = vec![None; network.nodes().len()];
        roots.iter().for_each(|root| level[root.at()] = Some(0));
        let mut queue: VecDeque<NodeIndex> = roots.iter().copied().collect();
        while let Some(at) = queue.pop_front() {
            // Nothing passes through a machine.
            if network.kind(at) == Kind::Machine {
                continue;
            }
            for &link in network.outgoing(at) {
                let to = network.link(link).to;
                if level[to.at()].is_none() {
                    level[to.at()] = level[at.at()].map(|level: u32| level + 1);
                    queue.push_back(to);
                }
            }
        }
        let rank = network
            .nodes()
            .map(|node| match level[node.at()] {
                Some(level) => Ok((level, node.0)),
                None => Err(NotConnected {
                    from: roots[0],
                    to: node,
                }),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { rank })
    }

    /// Whether a link leads up. A machine's links lead up from it, and down to it.
    #[must_use]
    pub fn is_up(&self, network: &Network, link: LinkId) -> bool {
        let Link { from, to, .. } = network.link(link);
        match (network.kind(from), network.kind(to)) {
            (Kind::Machine, _) => true,
            (_, Kind::Machine) => false,
            _ => self.rank[to.at()] < self.rank[from.at()],
        }
    }
}

/// Legal paths.
#[derive(Debug, Clone, Copy)]
pub enum Legality<'a> {
    /// Any.
    Any,
    /// Paths that go up before they go down.
    UpDown(&'a UpDown),
    /// Paths that use none of these cables, in either direction.
    Avoiding(&'a [LinkId]),
}

/// Phase of a path: [`CLIMBING`] while it may still go up.
pub(super) type Phase = usize;
pub(super) const CLIMBING: Phase = 0;
const FALLING: Phase = 1;

/// Links from each node, in each phase, to the destination; `u32::MAX` for no way.
pub(in super::super) type Distances = Vec<[u32; 2]>;

impl Legality<'_> {
    /// The phase after a link, if it may be taken.
    pub(super) fn after(self, network: &Network, phase: Phase, link: LinkId) -> Option<Phase> {
        match self {
            Legality::Any => Some(phase),
            Legality::Avoiding(broken) => {
                let is_broken = broken.contains(&link) || broken.contains(&link.reverse());
                (!is_broken).then_some(phase)
            }
            Legality::UpDown(order) => match (order.is_up(network, link), phase) {
                (true, CLIMBING) => Some(CLIMBING),
                (true, _) => None,
                (false, _) => Some(FALLING),
            },
        }
    }

    /// Whether all links may be taken one after the other.
    #[must_use]
    pub fn allows(self, network: &Network, links: &[LinkId]) -> bool {
        links
            .iter()
            .try_fold(CLIMBING, |phase, &link| self.after(network, phase, link))
            .is_some()
    }

    /// Returns the distances to `destination` from all nodes.
    pub(in super::super) fn distances(
        self,
        network: &Network,
        destination: NodeIndex,
    ) -> Distances {
        let mut distances = vec![[u32::MAX; 2]; network.nodes().len()];
        distances[destination.at()] = [0; 2];
        let mut queue = VecDeque::from([(destination, CLIMBING), (destination, FALLING)]);
        while let Some((at, phase)) = queue.pop_front() {
            if network.kind(at) == Kind::Machine && at != destination {
                continue;
            }
            let distance = distances[at.at()][phase] + 1;
            for &back in network.outgoing(at) {
                let link = back.reverse();
                let from = network.link(link).from;
                for before in [CLIMBING, FALLING] {
                    let known = &mut distances[from.at()][before];
                    if *known == u32::MAX && self.after(network, before, link) == Some(phase) {
                        *known = distance;
                        queue.push_back((from, before));
                    }
                }
            }
        }
        distances
    }
}
