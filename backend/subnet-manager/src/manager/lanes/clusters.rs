//! Clusters that have lanes of their own: service levels, the lanes that these take, and shares of links.
//!
//! A port of a VM has the levels of its cluster alone: all others lead to lane 15, which drops them, at the adapter and at the
//! switch behind it. Between switches all levels in use have their lane, so that a VM that moves needs no new table there.

use std::collections::{BTreeMap, BTreeSet};

use tracing::info;
use wire::attribute::{NodeType, SlToVl};
use wire::mad::AttributeId;
use wire::{Guid, Lid, Sl, Vl};

use super::{Setting, arbitration_tables, linked};
use crate::config::cluster_levels::{
    ClusterLevelError, ClusterLevels, ClusterShare, LevelsOfCluster,
};
use crate::config::quality::Arbitration;
use crate::manager::{Knowledge, SubnetManager};
use crate::model::Node;
use crate::routing::clusters::lanes::{
    Direction, color, compress, meetings, spread, used, weights,
};
use crate::tables::TO_ALL;

/// Levels of clusters, and the directions of links that each uses.
#[derive(Debug, Default)]
pub(in crate::manager) struct ClusterLanes {
    pub(in crate::manager) levels: ClusterLevels,
    uses: Vec<BTreeSet<Direction>>,
    /// VMs have moved, started or ended, or paths have changed.
    pub(in crate::manager) is_outdated: bool,
}

/// Whether clusters are to have lanes of their own, and nothing contradicts it.
pub(in crate::manager) fn is_on(known: &Knowledge) -> bool {
    known.config.cluster_lanes && contradiction(known).is_none()
}

fn contradiction(known: &Knowledge) -> Option<&'static str> {
    let config = &known.config;
    let lanes = config.kinds.values().any(|own| own.sl_to_vl.is_some());
    let arbitrates = config.kinds.values().any(|own| own.arbitration.is_some());
    if known.routing.is_layered() {
        Some(known.routing.name())
    } else if config.sl_to_vl.is_some() || lanes {
        Some("qos_sl2vl")
    } else if config.arbitration.is_some() || arbitrates {
        Some("qos_vlarb_high or qos_vlarb_low")
    } else {
        None
    }
}

/// Data lanes that each link has, and that each arbitration table has room for.
fn lanes(known: &Knowledge) -> u8 {
    let lanes = known.common_lanes().map_or(1, |(lanes, _)| lanes);
    let nodes = known.subnet.nodes.iter();
    let ports = nodes.flat_map(|node| linked(node).map(|(_, port)| port));
    let room = ports.filter_map(|port| Some(port.info?.vl_arbitration_low_cap));
    room.fold(lanes.min(15), u8::min).max(1)
}

/// The LIDs of the cluster's VMs that run.
fn lids(known: &Knowledge, cluster: &ClusterShare) -> BTreeSet<Lid> {
    let lids = cluster.ports.iter().flat_map(|&port| known.lids_of(port));
    lids.filter(|lid| lid.is_unicast()).collect()
}

fn find(known: &Knowledge) -> ClusterLanes {
    let clusters = &known.config.cluster_shares;
    let paths = &known.paths;
    let mut found = ClusterLanes::default();
    if !known.config.cluster_lanes || paths.tables.is_empty() {
        return found;
    }
    let lanes = lanes(known);
    let contradiction = contradiction(known);
    if contradiction.is_none() {
        let uses = clusters.iter();
        let uses = uses.map(|cluster| used(&paths.graph, &paths.tables, &lids(known, cluster)));
        found.uses = uses.collect();
    } else {
        found.uses = vec![BTreeSet::new(); clusters.len()];
    }
    let meetings = meetings(&found.uses);
    let former = |cluster: &ClusterShare| {
        let mut former = known.cluster_lanes.levels.list.iter();
        let former = former.find(|former| former.name == cluster.name)?;
        former.levels.first().map(|level| level.value())
    };
    let kept: Vec<Option<u8>> = clusters.iter().map(former).collect();
    let range = if contradiction.is_none() {
        1..lanes
    } else {
        1..1
    };
    let colors = color(&meetings, &kept, range.clone());
    let wanted: Vec<usize> = { clusters.iter() }
        .map(|cluster| cluster.own_levels.len().max(1))
        .collect();
    let levels = spread(&meetings, &colors, &wanted, range);
    for (place, (cluster, levels)) in clusters.iter().zip(levels).enumerate() {
        let levels: Vec<Sl> = levels.into_iter().map(Sl::new).collect();
        let own = compress(cluster.own_levels.len(), levels.len());
        let refusal = levels.is_empty().then(|| match contradiction {
            Some(what) => ClusterLevelError::Contradicted(what),
            None => {
                let met = meetings[place].first_key_value();
                let (&other, &(switch, port, _)) = met.unwrap_or((&place, &(0, 0, true)));
                ClusterLevelError::Lanes {
                    lanes,
                    others: meetings[place].len(),
                    other: clusters[other].name.clone(),
                    switch: paths
                        .graph
                        .switches
                        .get(switch)
                        .map_or(Guid::NONE, |it| it.guid),
                    port,
                }
            }
        });
        found.levels.list.push(LevelsOfCluster {
            name: cluster.name.clone(),
            own_levels: own.filter_map(|own| levels.get(own).copied()).collect(),
            levels,
            refusal,
        });
        found
            .levels
            .of_port
            .extend(cluster.ports.iter().map(|&port| (port, place)));
    }
    found.levels.of_partition = partitions(known, &found.levels);
    found
}

/// Partitions that are one cluster's alone.
fn partitions(known: &Knowledge, levels: &ClusterLevels) -> BTreeMap<u16, usize> {
    let mut owners: BTreeMap<u16, Option<usize>> = BTreeMap::new();
    for (port, keys) in &known.config.partitions {
        let owner = levels.of_port.get(port).copied();
        for key in keys {
            let of = owners.entry(key.partition()).or_insert(owner);
            // The manager's port and routers are in all partitions.
            if *of != owner && owner.is_some() {
                *of = if of.is_none() { owner } else { None };
            }
        }
    }
    let shared = wire::PKey::DEFAULT_FULL.partition();
    let owners = owners
        .into_iter()
        .filter(|&(partition, _)| partition != shared);
    owners
        .filter_map(|(partition, owner)| Some((partition, owner?)))
        .collect()
}

/// Finds the clusters' levels for the paths that there are now, and writes the tables and levels that differ.
pub(in crate::manager) fn update(manager: &mut SubnetManager) {
    let mut found = find(&manager.known);
    found.is_outdated = false;
    let former = &manager.known.cluster_lanes.levels;
    let mut errors = Vec::new();
    for of in &found.levels.list {
        if let Some(refusal) = &of.refusal {
            errors.push(format!("the cluster {} has no lane: {refusal}", of.name));
        } else if !former.list.contains(of) {
            info!(cluster = of.name, "service levels of a cluster: {of}");
        }
    }
    manager.known.cluster_lanes = found;
    for error in errors {
        manager.sweeps.error(error);
    }
    manager.known.find_manager_levels();
    if is_on(&manager.known) {
        manager.set_lanes();
    }
}

/// Each level of these has its lane; the others are dropped.
fn table(levels: impl IntoIterator<Item = Sl>) -> SlToVl {
    let mut table = SlToVl([Vl::new(15); 16]);
    for level in levels {
        table.0[usize::from(level.value())] = Vl::new(level.value());
    }
    table
}

/// The tables of all ports.
pub(super) fn settings(known: &Knowledge) -> Vec<Setting> {
    let levels = &known.cluster_lanes.levels;
    let assigned = levels.assigned();
    let own = known.subnet.own;
    let mut settings = Vec::new();
    for (number, node) in known.subnet.nodes.iter().enumerate() {
        for (port, of) in linked(node) {
            if let Some(arbitration) = arbitration(known, number, port, node) {
                settings.extend(arbitration_tables(node, (number, port), of, &arbitration));
            }
        }
        // Packets of an adapter's port, or that come in from it.
        let allowed = |at: (usize, u8)| {
            let node = &known.subnet.nodes[at.0];
            let guid = known.subnet.port(at).map_or(Guid::NONE, |port| port.guid);
            let of = levels.of(guid);
            if node.info.node_type == NodeType::Router || own == Some(at) {
                table(assigned.iter().copied())
            } else if of.is_empty() {
                table([Sl::default()])
            } else {
                table(of.iter().copied())
            }
        };
        let mut put = |port, modifier, table: SlToVl| {
            settings.push((
                (number, port),
                AttributeId::SL_TO_VL,
                modifier,
                table.to_bytes(),
            ));
        };
        if !node.is_switch() {
            for (port, _) in linked(node) {
                put(port, 0, allowed((number, port)));
            }
            continue;
        }
        let outs: Vec<u8> = linked(node).map(|(port, _)| port).collect();
        let at_once = node
            .switch
            .is_some_and(|switch| switch.optimized_sl_to_vl != 0);
        for (&from, port) in &node.ports {
            let peer = port
                .peer
                .filter(|peer| !known.subnet.nodes[peer.0].is_switch());
            let table = match peer {
                Some(peer) if port.is_linked() => allowed(peer),
                _ => table(assigned.iter().copied()),
            };
            if at_once {
                if !outs.is_empty() {
                    put(0, TO_ALL | u32::from(from) << 8, table);
                }
                continue;
            }
            for &to in outs.iter().filter(|&&to| to != from) {
                put(to, u32::from(from) << 8 | u32::from(to), table);
            }
        }
    }
    settings
}

/// Arbitration at a port: the clusters on the link have their shares, and the provider as much as the least of them. Lanes
/// of clusters that are not there have an entry, too, since one may come.
fn arbitration(known: &Knowledge, node: usize, port: u8, of: &Node) -> Option<Arbitration> {
    let place = |node| known.paths.nodes.iter().position(|&other| other == node);
    let direction = if of.is_switch() {
        (place(node)?, port, true)
    } else {
        let (switch, port) = known.edge((node, port))?;
        (place(switch)?, port, false)
    };
    let lanes = &known.cluster_lanes;
    let shares = &known.config.cluster_shares;
    let least = shares.iter().map(|cluster| cluster.share.max(1)).min();
    let least = f64::from(least.unwrap_or(1));
    let assigned = lanes.levels.assigned().into_iter();
    let mut parts: BTreeMap<u8, f64> = assigned.map(|level| (level.value(), least)).collect();
    let on_link = lanes.uses.iter().zip(&lanes.levels.list).zip(shares);
    for ((_, of), cluster) in on_link.filter(|((uses, _), _)| uses.contains(&direction)) {
        let share = f64::from(cluster.share.max(1));
        let mut own: BTreeMap<u8, f64> = BTreeMap::new();
        for (level, &part) in of.own_levels.iter().zip(&cluster.own_levels) {
            *own.entry(level.value()).or_default() += f64::from(part.max(1));
        }
        let sum: f64 = own.values().sum();
        match of.levels.first() {
            Some(first) if own.is_empty() => drop(parts.insert(first.value(), share)),
            _ => parts.extend(
                own.into_iter()
                    .map(|(level, part)| (level, share * part / sum)),
            ),
        }
    }
    Some(Arbitration {
        high: Vec::new(),
        low: weights(&parts),
        high_limit: 0,
    })
}
