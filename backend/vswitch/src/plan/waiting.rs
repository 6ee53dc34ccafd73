//! Parts of a subnet that its manager does not find, and ports that are not Active although their link is up.

use std::collections::{HashMap, HashSet};

use fabric::{Fabric, NodeId, PortRef};
use wire::PortState;

use super::Plan;
use crate::model::ManagerPlace;

/// Why a port stays in Initialize or Armed although its link is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Cause {
    /// No links that are up join it to the manager's host.
    #[error("no link that is up leads there from the subnet manager's host")]
    Unreached,
    /// Another program manages the subnet.
    #[error("no external subnet manager has activated them; start one, or see its log")]
    External,
    /// The embedded manager has swept.
    #[error("the subnet manager has not activated them; `ibvswitch sm status` shows its errors")]
    Embedded,
}

impl Plan {
    /// Names of the switches that no cables join to a subnet manager's host: it does not find them.
    #[must_use]
    pub fn unreached(&self) -> Vec<&str> {
        let reached = self.reached(|_| true);
        let switches = self.nodes.iter().filter(|node| node.is_switch());
        let lost = switches.filter(|node| !reached.contains(&node.id));
        lost.map(|node| node.name.as_str()).collect()
    }

    /// The ports that are in Initialize or Armed, and why they stay there once managers have swept.
    #[must_use]
    pub fn waiting(
        &self,
        fabric: &Fabric,
        place: ManagerPlace,
    ) -> Vec<(PortRef, PortState, Cause)> {
        let state = |port| fabric.port_info(port).unwrap_or_default().port_state;
        let links = self.topology.links().iter();
        let waiting: Vec<_> = links
            .flat_map(|&(a, b, _)| [(a, b), (b, a)])
            .map(|(port, peer)| (port, peer, state(port)))
            .filter(|(_, _, state)| matches!(state, PortState::Initialize | PortState::Armed))
            .collect();
        if waiting.is_empty() {
            return Vec::new();
        }
        let reached = self.reached(|port| state(port) != PortState::Down);
        let is_reached = |end: PortRef| reached.contains(&end.node) || self.managers.contains(&end);
        let cause = |port, peer| match place {
            _ if !is_reached(port) && !is_reached(peer) => Cause::Unreached,
            ManagerPlace::External => Cause::External,
            ManagerPlace::Embedded => Cause::Embedded,
        };
        let waiting = waiting.into_iter();
        waiting
            .map(|(port, peer, state)| (port, state, cause(port, peer)))
            .collect()
    }

    /// The switches that a subnet manager finds over the links whose ports are `up`.
    fn reached(&self, up: impl Fn(PortRef) -> bool) -> HashSet<NodeId> {
        let mut neighbours: HashMap<NodeId, Vec<PortRef>> = HashMap::new();
        let links = self.topology.links().iter();
        for &(a, b, _) in links.filter(|&&(a, _, _)| up(a)) {
            neighbours.entry(a.node).or_default().push(b);
            neighbours.entry(b.node).or_default().push(a);
        }
        let switches = self.nodes.iter().filter(|node| node.is_switch());
        let switches: HashSet<NodeId> = switches.map(|node| node.id).collect();
        // An adapter or a router passes on no management packets: of its ports the manager has one.
        let mut ahead: Vec<NodeId> = { self.topology.links().iter() }
            .flat_map(|&(a, b, _)| [(a, b), (b, a)])
            .filter(|(own, _)| self.managers.contains(own) && up(*own))
            .map(|(_, next)| next.node)
            .filter(|next| switches.contains(next))
            .collect();
        let mut reached: HashSet<NodeId> = ahead.iter().copied().collect();
        while let Some(node) = ahead.pop() {
            for next in neighbours.get(&node).into_iter().flatten() {
                if switches.contains(&next.node) && reached.insert(next.node) {
                    ahead.push(next.node);
                }
            }
        }
        reached
    }
}
