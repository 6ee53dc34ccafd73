//! Ports with several LIDs: the same number for each, or as many as the paths to it need.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wire::{Guid, Lid};

use crate::config::Config;
use crate::lids;
use crate::manager::Knowledge;
use crate::routing::multipath::{LidUsage, Plan};
use crate::routing::{Graph, RoutingError};

/// The numbers of LIDs of ports, and the paths that they are for.
#[derive(Debug)]
pub(in crate::manager) struct Ranges {
    /// By port GUID; once a port has LIDs, it keeps them.
    masks: BTreeMap<Guid, u8>,
    plan: Option<Arc<Plan>>,
}

impl Ranges {
    pub(in crate::manager) fn new(config: &Config) -> Self {
        let known = config.known_lids.iter();
        let masks: BTreeMap<Guid, u8> = known.map(|(&guid, &(_, lmc))| (guid, lmc)).collect();
        // Of a time when each port had one LID nothing is to be learned.
        let tells = config.multipath.is_on() && masks.values().any(|&lmc| lmc > 0);
        Self {
            masks: if tells { masks } else { BTreeMap::new() },
            plan: None,
        }
    }

    /// The LID mask control of a port.
    pub(in crate::manager) fn mask(&self, guid: Guid) -> u8 {
        self.masks.get(&guid).copied().unwrap_or(0)
    }

    /// The LID mask control that a port with this base LID has, if it is an adapter's.
    pub(in crate::manager) fn likely(&self, config: &Config, guid: Guid, base: Lid) -> u8 {
        match self.masks.get(&guid) {
            Some(&mask) => mask,
            None if lids::is_aligned(base, config.lmc) => config.lmc,
            None => 0,
        }
    }
}

/// The name of the scheme, or of the routing engine, that is to compute paths.
pub(in crate::manager) fn engine(known: &Knowledge) -> &'static str {
    if known.config.multipath.is_on() {
        known.config.multipath.name()
    } else {
        known.routing.name()
    }
}

/// Finds the number of LIDs of each adapter's port. One that is pinned to a LID which is no multiple of their number has
/// fewer.
pub(in crate::manager) fn find(known: &mut Knowledge) {
    let ports = known.subnet.ports();
    let adapters = ports.filter(|(at, _)| !known.subnet.nodes[at.0].is_switch());
    let adapters: Vec<Guid> = adapters.map(|(_, port)| port.guid).collect();
    if !known.config.multipath.is_on() {
        let lmc = known.config.lmc;
        let pinned = &known.config.pinned_lids;
        let fits = |lid: &Lid| lids::is_aligned(*lid, lmc);
        let several = adapters
            .iter()
            .filter(|guid| pinned.get(guid).is_none_or(fits));
        known.ranges.masks.extend(several.map(|&guid| (guid, lmc)));
        return;
    }
    let has_lid = |guid| known.has_lid(guid);
    let graph = known.subnet.shape(&known.config.roles, has_lid);
    // Why there is none will be told with the paths.
    let plan = plan(known, &graph).ok();
    for guid in adapters {
        let needed = plan.as_ref().and_then(|plan| plan.mask(guid));
        if let Some(needed) = needed.filter(|_| known.has_lid(guid)) {
            let mask = allowed(known, guid).map_or(needed, |allowed| allowed.min(needed));
            known.ranges.masks.entry(guid).or_insert(mask);
        }
    }
    known.ranges.plan = plan;
}

/// The LID mask control that a port cannot exceed.
fn allowed(known: &Knowledge, guid: Guid) -> Option<u8> {
    if let Some(&mask) = known.ranges.masks.get(&guid) {
        return Some(mask);
    }
    if let Some(lid) = known.config.pinned_lids.get(&guid) {
        return Some(lid.value().trailing_zeros() as u8);
    }
    // A VM that has started meanwhile keeps the one that it got.
    let has_one = known.ranges.plan.is_some() && known.lids.contains_key(&guid);
    has_one.then_some(0)
}

/// The paths of a graph: those that there are if it has not changed.
pub(in crate::manager) fn plan(
    known: &Knowledge,
    graph: &Graph,
) -> Result<Arc<Plan>, RoutingError> {
    let choice = known.config.multipath;
    let ports: BTreeSet<Guid> = known.subnet.ports().map(|(_, port)| port.guid).collect();
    // A virtual port has one LID at most.
    let mask = |guid| {
        if ports.contains(&guid) {
            allowed(known, guid)
        } else {
            Some(0)
        }
    };
    match &known.ranges.plan {
        Some(plan) if plan.fits(graph) => Ok(Arc::clone(plan)),
        Some(plan) => plan.again(graph, choice, mask).map(Arc::new),
        None => Plan::new(graph, choice, mask).map(Arc::new),
    }
}

/// Numbers of LIDs for the paths that there are.
pub(in crate::manager) fn usage(known: &Knowledge) -> Option<LidUsage> {
    let plan = known.paths.plan.as_ref()?;
    Some(plan.usage(|guid| known.lmc_of(guid)))
}
