//! Extent of a view fabric: the switches that are of use to its hosts.
//!
//! A switch is in the view fabric for one of two reasons. It is on a shortest way between two switches that
//! members are at: the view fabric then offers a choice of ways where the subnet does, rather than a tree.
//! Or the forwarding tables lead over it, whichever ways these choose: the view fabric is then complete. A
//! way ends at a link that is down.

use std::collections::{BTreeSet, VecDeque};

use wire::Lid;

use super::ViewHost;
use crate::nodes::Nodes;
use crate::nodes::topology::{NodeId, PortRef};

/// Farther than any switch.
const NOWHERE: u32 = u32::MAX;

/// The switches of a view fabric of these hosts, in the order of their nodes.
pub(super) fn switches(subnet: &Nodes, hosts: &[ViewHost]) -> BTreeSet<NodeId> {
    let beside = |members: bool| {
        let hosts = hosts.iter().filter(move |host| host.member == members);
        hosts.filter_map(|host| beside(subnet, host.port))
    };
    let ends: BTreeSet<NodeId> = beside(true).collect();
    let mut found = Graph::new(subnet).between(&ends);
    found.extend(ends.iter().copied().chain(beside(false)));
    let lids: Vec<Lid> = hosts.iter().map(|host| host.physical).collect();
    loop {
        follow(subnet, &lids, &mut found);
        let before = found.len();
        follow_to_switches(subnet, &ends, &mut found);
        if found.len() == before {
            return found;
        }
    }
}

/// The switch that a port's cable leads to, or that it is a port of.
fn beside(subnet: &Nodes, port: PortRef) -> Option<NodeId> {
    if subnet.switch(port.node).is_some() {
        return Some(port.node);
    }
    across(subnet, port)
}

/// The switch at the other end of the link at a port, if it is up.
fn across(subnet: &Nodes, port: PortRef) -> Option<NodeId> {
    let port = subnet.port(port).filter(|port| port.is_linked())?;
    let peer = port.peer?.node;
    subnet.switch(peer).is_some().then_some(peer)
}

/// The switches that each switch is linked to, by the index of its node.
struct Graph(Vec<Vec<NodeId>>);

impl Graph {
    fn new(subnet: &Nodes) -> Self {
        let around = |node: NodeId| {
            let switch = subnet.switch(node).and(subnet.node(node));
            let ports = 1..=switch.map_or(0, |node| node.spec.ports);
            let across = ports.filter_map(|port| across(subnet, PortRef { node, port }));
            let mut around: Vec<NodeId> = across.collect();
            around.sort_unstable();
            around.dedup();
            around
        };
        Self(subnet.nodes().map(around).collect())
    }

    fn around(&self, node: NodeId) -> &[NodeId] {
        self.0.get(node.index()).map_or(&[], Vec::as_slice)
    }

    /// The switches on shortest ways between any two of `ends`.
    fn between(&self, ends: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        if ends.len() < 2 {
            return BTreeSet::new();
        }
        // All ways of a switch with one neighbour go over that one: hundreds of vSwitches at a switch
        // are searched from once.
        let source = |end: &NodeId| match *self.around(*end) {
            [only] => only,
            _ => *end,
        };
        let sources: BTreeSet<NodeId> = ends.iter().map(source).collect();
        let mut is_source = vec![false; self.0.len()];
        for source in &sources {
            is_source[source.index()] = true;
        }
        let mut found = is_source.clone();
        for &source in &sources {
            let (distances, order) = self.distances(source);
            // Backwards: a switch is on the way to an end if one further away is.
            let mut useful = is_source.clone();
            for node in order.into_iter().rev() {
                let further = distances[node.index()] + 1;
                let leads_on = |next: &NodeId| {
                    let next = next.index();
                    useful[next] && distances[next] == further
                };
                if useful[node.index()] || self.around(node).iter().any(leads_on) {
                    useful[node.index()] = true;
                    found[node.index()] = true;
                }
            }
        }
        let all = (0..).map(NodeId).zip(found);
        all.filter_map(|(node, found)| found.then_some(node))
            .collect()
    }

    /// Distance of each switch from one, and the reachable ones in the order of their distance.
    fn distances(&self, source: NodeId) -> (Vec<u32>, Vec<NodeId>) {
        let mut distances = vec![NOWHERE; self.0.len()];
        distances[source.index()] = 0;
        let mut order = Vec::new();
        let mut waiting = VecDeque::from([source]);
        while let Some(node) = waiting.pop_front() {
            order.push(node);
            for &next in self.around(node) {
                if distances[next.index()] == NOWHERE {
                    distances[next.index()] = distances[node.index()] + 1;
                    waiting.push_back(next);
                }
            }
        }
        (distances, order)
    }
}

/// Adds the switches that the forwarding tables of those found lead over on the way to `lids`.
fn follow(subnet: &Nodes, lids: &[Lid], found: &mut BTreeSet<NodeId>) {
    let mut waiting: Vec<NodeId> = found.iter().copied().collect();
    while let Some(node) = waiting.pop() {
        let Some(switch) = subnet.switch(node) else {
            continue;
        };
        let mut ports = [false; 256];
        for lid in lids.iter().filter(|lid| lid.is_unicast()) {
            ports[usize::from(switch.linear.port(*lid))] = true;
        }
        let used = (0..=u8::MAX).zip(ports).filter(|(_, used)| *used);
        for (port, _) in used {
            if let Some(next) = across(subnet, PortRef { node, port })
                && found.insert(next)
            {
                waiting.push(next);
            }
        }
    }
}

/// Adds the switches on the ways from `ends` to those found.
fn follow_to_switches(subnet: &Nodes, ends: &BTreeSet<NodeId>, found: &mut BTreeSet<NodeId>) {
    // For each node, the switch on the way to which it was last passed.
    let mut passed: Vec<Option<NodeId>> = vec![None; subnet.len()];
    for to in found.clone() {
        let port0 = PortRef { node: to, port: 0 };
        let lid = subnet.port(port0).map_or(Lid::NONE, |port| port.info.lid);
        for &end in ends {
            let mut at = end;
            // From where another has passed, the way is the same.
            while passed[at.index()].replace(to) != Some(to) {
                match next(subnet, at, lid) {
                    Some(next) => at = next,
                    None => break,
                }
                found.insert(at);
            }
        }
    }
}

/// The next switch on the way to a LID.
fn next(subnet: &Nodes, node: NodeId, lid: Lid) -> Option<NodeId> {
    if !lid.is_unicast() {
        return None;
    }
    let port = subnet.switch(node)?.linear.port(lid);
    across(subnet, PortRef { node, port })
}
