//! Forwarding tables of tenants: kept, merged into the provider's paths, and given up where they would hurt others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem;
use std::sync::Arc;

use tracing::info;
use wire::{Guid, Lid};

use super::set_manager_levels;
use crate::manager::lanes::clusters::update;
use crate::manager::{Knowledge, Phase, SubnetManager};
use crate::migration::LinkCircle;
use crate::routing::clusters::{Overlay, Ways};
use crate::routing::{ClusterTables, Endpoint, IdleEntry, Routing, added_circle};
use crate::sa::Paths;

/// Effect of a cluster's forwarding tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// Entries that act.
    pub acting: usize,
    /// Entries that do not, in whose place the provider's act.
    pub idle: usize,
    /// The first of these.
    pub idle_entries: Vec<IdleEntry>,
    /// The reason why none of the tables acts.
    pub refusal: Option<ClusterRefusal>,
}

/// Reason why forwarding tables of a cluster are refused as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterRefusal {
    /// Packets could wait for each other for ever, those of others among them.
    #[error("{}", deadlock(.0))]
    Deadlock(LinkCircle),
}

impl ClusterRefusal {
    /// The circle of links on which packets could wait for each other.
    pub const fn circle(&self) -> Option<&LinkCircle> {
        match self {
            Self::Deadlock(circle) => Some(circle),
        }
    }
}

fn deadlock(circle: &LinkCircle) -> String {
    let (switch, port) = circle.channels.first().copied().unwrap_or_default();
    format!(
        "packets could wait for each other for ever: the circle of {} links on lane {} begins at port {port} of switch \
         {switch}; change the way that crosses it",
        circle.channels.len(),
        circle.lane
    )
}

impl fmt::Display for ClusterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(refusal) = &self.refusal {
            return write!(f, "no entry acts: {refusal}");
        }
        let Self { acting, idle, .. } = self;
        write!(f, "{acting} entries act, {idle} do not")?;
        match self.idle_entries.first() {
            Some(first) => write!(f, ", the first: {first}"),
            None => Ok(()),
        }
    }
}

/// Forwarding tables of one cluster, and their effect.
#[derive(Debug, Clone)]
struct Cluster {
    name: String,
    tables: ClusterTables,
    state: ClusterState,
    /// Entries that acted do not any more, since the subnet has changed.
    gave_way: bool,
}

/// Forwarding tables of all clusters.
#[derive(Debug, Default)]
pub struct Clusters {
    /// In the order in which they were set: those that were set earlier have precedence.
    list: Vec<Cluster>,
    /// LIDs of VMs that are to move, which go the provider's ways meanwhile.
    lifted: BTreeSet<Lid>,
    /// The entries that act may not be those that are to act.
    is_outdated: bool,
}

impl Clusters {
    pub(in crate::manager) fn new(known: &[(String, ClusterTables)]) -> Self {
        let known = known.iter().map(|(name, tables)| Cluster {
            name: name.clone(),
            tables: tables.clone(),
            state: ClusterState::default(),
            gave_way: false,
        });
        Self {
            list: known.filter(|it| !it.tables.entries.is_empty()).collect(),
            ..Self::default()
        }
    }

    /// The tables of each cluster that has some, with their effect. To be kept in this order, and given back as
    /// [`Config::known_cluster_tables`](crate::Config::known_cluster_tables).
    pub fn all(&self) -> impl Iterator<Item = (&str, &ClusterTables, &ClusterState)> {
        let list = self.list.iter();
        list.map(|it| (it.name.as_str(), &it.tables, &it.state))
    }

    /// The tables of a cluster and their effect.
    pub fn get(&self, name: &str) -> Option<(&ClusterTables, &ClusterState)> {
        let found = self.list.iter().find(|it| it.name == name)?;
        Some((&found.tables, &found.state))
    }

    /// VMs have moved, started or ended.
    pub(in crate::manager) fn outdate(&mut self) {
        self.is_outdated |= !self.list.is_empty();
    }

    /// Finds the entries of each cluster that act over the provider's tables, and puts these in.
    fn lay(&mut self, known: &Knowledge, paths: &mut Paths) {
        let own = known.subnet.own.and_then(|own| known.subnet.port(own));
        let own = own.map_or(Guid::NONE, |own| own.guid);
        let mut taken = BTreeSet::new();
        let mut all = Vec::with_capacity(self.list.len());
        for cluster in &self.list {
            let admits = |end: &Endpoint| {
                let is_vm = end.port != 0
                    && end.guid != own
                    && !known.config.spare_functions.contains(&end.guid);
                is_vm && !taken.contains(&end.lid) && !self.lifted.contains(&end.lid)
            };
            all.push(Ways::new(
                &paths.graph,
                &paths.tables,
                &cluster.tables,
                admits,
            ));
            taken.extend(cluster.tables.lids.iter().copied());
        }
        let mut refusals: BTreeMap<usize, LinkCircle> = BTreeMap::new();
        let found = find_circle(paths, all.iter());
        if found.is_some() {
            // One after the other, to find the ones at fault.
            for number in 0..all.len() {
                let judged = all[..=number].iter().enumerate();
                let judged = judged.filter(|(number, _)| !refusals.contains_key(number));
                if let Some(circle) = find_circle(paths, judged.map(|(_, ways)| ways)) {
                    refusals.insert(number, circle);
                }
            }
        }
        let mut overlay = Overlay::default();
        let mut tables = (*paths.tables).clone();
        for (number, (cluster, ways)) in self.list.iter_mut().zip(all).enumerate() {
            let refused = refusals.remove(&number);
            if refused.is_none() {
                overlay.lay(&mut tables, &ways.acting);
            }
            cluster.state = ClusterState {
                acting: if refused.is_some() {
                    0
                } else {
                    ways.acting.len()
                },
                idle: ways.idle_count,
                idle_entries: ways.idle,
                refusal: refused.map(ClusterRefusal::Deadlock),
            };
        }
        if !overlay.is_empty() {
            paths.tables = Arc::new(tables);
        }
        paths.overlay = Some(overlay);
    }
}

/// A circle of channels that these entries add to the provider's paths.
fn find_circle<'a>(paths: &Paths, ways: impl Iterator<Item = &'a Ways>) -> Option<LinkCircle> {
    let old = Routing {
        tables: (*paths.tables).clone(),
        levels: paths.levels.clone(),
    };
    let mut new = old.clone();
    let mut overlay = Overlay::default();
    for ways in ways {
        overlay.lay(&mut new.tables, &ways.acting);
    }
    if overlay.is_empty() {
        return None;
    }
    let circle = added_circle(&paths.graph, &old, &new)?;
    let named = |(switch, port): (usize, u8)| (paths.graph.switches[switch].guid, port);
    Some(LinkCircle {
        lane: circle.lane,
        channels: circle.channels.into_iter().map(named).collect(),
    })
}

/// Makes paths the provider's alone.
pub(super) fn lift(paths: &mut Paths) {
    if let Some(overlay) = paths.overlay.take()
        && !overlay.is_empty()
    {
        let tables = Arc::make_mut(&mut paths.tables);
        overlay.lift(tables);
    }
}

/// Puts the clusters' entries in, unless they are. Returns the errors of clusters whose entries gave way to the provider's.
pub(super) fn merge(known: &mut Knowledge, paths: &mut Paths) -> Vec<String> {
    if paths.overlay.is_none() || known.clusters.is_outdated {
        lift(paths);
        let mut clusters = mem::take(&mut known.clusters);
        clusters.is_outdated = false;
        let states = clusters.list.iter().map(|it| it.state.clone());
        let before: Vec<ClusterState> = states.collect();
        clusters.lay(known, paths);
        // A VM that moves has its entries back in a moment.
        let is_whole = clusters.lifted.is_empty();
        for (cluster, before) in clusters.list.iter_mut().zip(before) {
            let Cluster { name, state, .. } = cluster;
            if *state != before {
                info!(cluster = name, "routes of a cluster: {state}");
            }
            cluster.gave_way &= state.idle > 0;
            cluster.gave_way |= state.acting < before.acting && is_whole;
        }
        known.clusters = clusters;
    }
    let list = known.clusters.list.iter();
    let failed = list.filter(|it| it.gave_way || it.state.refusal.is_some());
    failed
        .map(|it| format!("routes of the cluster {}: {}", it.name, it.state))
        .collect()
}

/// Sets a cluster's tables, once it is known that they hurt nobody else.
pub(in crate::manager) fn set(
    manager: &mut SubnetManager,
    name: &str,
    tables: ClusterTables,
) -> Result<ClusterState, ClusterRefusal> {
    let known = &mut manager.known;
    let mut clusters = Clusters {
        list: mem::take(&mut known.clusters.list),
        ..Clusters::default()
    };
    let former = clusters.list.iter().position(|it| it.name == name);
    let is_cleared = tables.entries.is_empty();
    if is_cleared && former.is_none() {
        known.clusters.list = clusters.list;
        return Ok(ClusterState::default());
    }
    let former = former.map(|place| (place, clusters.list.remove(place)));
    let mut state = ClusterState::default();
    if !is_cleared {
        clusters.list.push(Cluster {
            name: name.to_owned(),
            tables,
            state: state.clone(),
            gave_way: false,
        });
        if !known.paths.tables.is_empty() {
            let mut paths = known.paths.clone();
            lift(&mut paths);
            let before: Vec<_> = clusters.list.iter().map(|it| it.state.clone()).collect();
            clusters.lay(known, &mut paths);
            // They are told of when they change.
            for (cluster, before) in clusters.list.iter_mut().zip(before) {
                state = mem::replace(&mut cluster.state, before);
            }
        }
        if let Some(refusal) = state.refusal.take() {
            info!(cluster = name, "routes of a cluster are refused: {refusal}");
            clusters.list.pop();
            if let Some((place, former)) = former {
                clusters.list.insert(place, former);
            }
            known.clusters.list = clusters.list;
            return Err(refusal);
        }
    }
    known.clusters.list = clusters.list;
    known.clusters.is_outdated = true;
    Ok(state)
}

/// Begins to write what is to act, and before moves takes away what is in their way; false when nothing is to be done.
pub(in crate::manager) fn begin(manager: &mut SubnetManager) -> bool {
    let known = &mut manager.known;
    if known.paths.tables.is_empty() {
        return false;
    }
    let has_lanes = mem::take(&mut known.cluster_lanes.is_outdated);
    if merge_between_sweeps(manager) || has_lanes {
        manager.phase = Phase::Rebalancing;
        update(manager);
        set_manager_levels(manager);
        return true;
    }
    false
}

/// Writes the tables that are to act; false when they do.
fn merge_between_sweeps(manager: &mut SubnetManager) -> bool {
    let known = &mut manager.known;
    if manager.migrations.has_waiting() {
        let moving = manager.migrations.waiting_vms();
        let lids = moving.flat_map(|vm| known.lids_of(vm));
        let overlay = known.paths.overlay.iter();
        let holds = |lid| overlay.clone().any(|overlay| overlay.holds(lid));
        let lifted: Vec<Lid> = lids.filter(|&lid| holds(lid)).collect();
        if lifted.is_empty() {
            return false;
        }
        known.clusters.lifted.extend(lifted);
        known.clusters.is_outdated = true;
    } else if !mem::take(&mut known.clusters.lifted).is_empty() || known.paths.overlay.is_none() {
        known.clusters.outdate();
    }
    if !known.clusters.is_outdated {
        return false;
    }
    let mut paths = mem::take(&mut manager.known.paths);
    for message in merge(&mut manager.known, &mut paths) {
        manager.sweeps.error(message);
    }
    manager.send_tables(&paths, false);
    manager.known.paths = paths;
    true
}
