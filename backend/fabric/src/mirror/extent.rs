//! How far a mirror goes: which switches are of use to its hosts.
//!
//! Those on any shortest way between two switches that members are at, so that there is a choice of
//! ways where the subnet has one, rather than a tree; and those that the forwarding tables lead over,
//! whatever ways these choose, so that what is shown is complete. Where a way goes over a link that is
//! down it ends.

use std::collections::{BTreeSet, HashMap, VecDeque};

use wire::Lid;

use super::MirrorHost;
use crate::fabric::Fabric;
use crate::topology::{NodeId, PortRef};
use crate::transit::HOP_LIMIT;

/// The switches of a mirror of these hosts, in the order of their nodes.
pub(super) fn switches(fabric: &Fabric, hosts: &[MirrorHost]) -> Vec<NodeId> {
    let members = hosts.iter().filter(|host| host.member);
    let at: BTreeSet<NodeId> = members
        .filter_map(|host| beside(fabric, host.port))
        .collect();
    let mut found = between(fabric, &at);
    found.extend(at.iter().copied());
    let others = hosts.iter().filter(|host| !host.member);
    let others: Vec<NodeId> = others
        .filter_map(|host| beside(fabric, host.port))
        .collect();
    found.extend(others.iter().copied());
    let lids: Vec<Lid> = hosts.iter().map(|host| host.physical).collect();
    loop {
        follow(fabric, &lids, &mut found);
        let more = follow_to_switches(fabric, &at, &found);
        if more.is_subset(&found) {
            return found.into_iter().collect();
        }
        found.extend(more);
    }
}

/// The switch that a port's cable leads to, or that it is a port of.
fn beside(fabric: &Fabric, port: PortRef) -> Option<NodeId> {
    if fabric.switch(port.node).is_some() {
        return Some(port.node);
    }
    across(fabric, port)
}

/// The switch at the other end of the link at a port, if it is up.
fn across(fabric: &Fabric, port: PortRef) -> Option<NodeId> {
    let port = fabric.port(port).filter(|port| port.is_linked())?;
    let peer = port.peer?.node;
    fabric.switch(peer).is_some().then_some(peer)
}

fn neighbours(fabric: &Fabric, node: NodeId) -> Vec<NodeId> {
    let ports = fabric.nodes.get(node.index()).map_or(0, |it| it.spec.ports);
    let across = |port| across(fabric, PortRef { node, port });
    let found: BTreeSet<NodeId> = (1..=ports).filter_map(across).collect();
    found.into_iter().collect()
}

/// The switches on shortest ways between any two of `ends`.
fn between(fabric: &Fabric, ends: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    if ends.len() < 2 {
        return found;
    }
    let mut graph: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
    // All ways of a switch with one neighbour go over that one: hundreds of vSwitches at a switch
    // are searched from once.
    let mut sources = BTreeSet::new();
    for &end in ends {
        let around = graph.entry(end).or_insert_with(|| neighbours(fabric, end));
        sources.insert(match around[..] {
            [only] => only,
            _ => end,
        });
    }
    found.extend(sources.iter().copied());
    for &source in &sources {
        let mut distances = HashMap::from([(source, 0_u32)]);
        let mut order = Vec::new();
        let mut waiting = VecDeque::from([source]);
        while let Some(node) = waiting.pop_front() {
            order.push(node);
            let next = distances[&node] + 1;
            let around = graph
                .entry(node)
                .or_insert_with(|| neighbours(fabric, node));
            for &neighbour in around.iter() {
                distances.entry(neighbour).or_insert_with(|| {
                    waiting.push_back(neighbour);
                    next
                });
            }
        }
        // Backwards: a switch is on the way to an end if one further away is.
        let mut useful: BTreeSet<NodeId> = BTreeSet::new();
        for node in order.into_iter().rev() {
            let further = distances[&node] + 1;
            let leads_on = |next: &&NodeId| distances[*next] == further && useful.contains(*next);
            if sources.contains(&node) || graph[&node].iter().find(leads_on).is_some() {
                useful.insert(node);
            }
        }
        found.extend(useful);
    }
    found
}

/// Adds the switches that the forwarding tables of those found lead over on the way to `lids`.
fn follow(fabric: &Fabric, lids: &[Lid], found: &mut BTreeSet<NodeId>) {
    let mut waiting: Vec<NodeId> = found.iter().copied().collect();
    while let Some(node) = waiting.pop() {
        for &lid in lids {
            if let Some(next) = next(fabric, node, lid)
                && found.insert(next)
            {
                waiting.push(next);
            }
        }
    }
}

/// The switches on the way from `ends` to those found.
fn follow_to_switches(
    fabric: &Fabric,
    ends: &BTreeSet<NodeId>,
    found: &BTreeSet<NodeId>,
) -> BTreeSet<NodeId> {
    let mut on_the_way = BTreeSet::new();
    for &to in found {
        let port0 = PortRef { node: to, port: 0 };
        let lid = fabric.port(port0).map_or(Lid::NONE, |port| port.info.lid);
        for &end in ends {
            let mut at = end;
            for _ in 0..HOP_LIMIT {
                match next(fabric, at, lid) {
                    Some(next) => at = next,
                    None => break,
                }
                on_the_way.insert(at);
            }
        }
    }
    on_the_way
}

/// The next switch on the way to a LID.
fn next(fabric: &Fabric, node: NodeId, lid: Lid) -> Option<NodeId> {
    if !lid.is_unicast() {
        return None;
    }
    let port = fabric.switch(node)?.linear.port(lid);
    across(fabric, PortRef { node, port })
}
