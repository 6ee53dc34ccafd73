//! The embedded subnet manager's settings, as the model has them.

use std::collections::BTreeSet;
use std::sync::Arc;

use subnet_manager::routing::{MAX_LANES, TableSource};
use subnet_manager::{ClusterShare, Files, KeyPolicy, MinHop, RoutingEngine};
use wire::{Guid, PKey};

use crate::model::{Address, KeyChoice, Manager, Model, RouterPort, RoutingChoice};

/// Contents of the files that settings of the subnet managers name.
#[derive(Debug, Clone, Default)]
pub struct SettingsFiles {
    /// Those that the managers take over. Roots are besides those that the model has.
    pub manager: Files,
    /// Forwarding tables that the managers do not compute themselves.
    pub tables: Option<Arc<dyn TableSource>>,
}

/// The routing engine that a manager with these settings uses.
pub(crate) fn routing(manager: &Manager) -> Box<dyn RoutingEngine> {
    // Whether links have so many lanes the manager finds out. Tables of others come in `SettingsFiles`.
    let lanes = match manager.routing {
        RoutingChoice::Nue => manager.nue_lanes.unwrap_or(MAX_LANES),
        _ => MAX_LANES,
    };
    let engine = manager.routing.engine(lanes);
    engine.unwrap_or_else(|| Box::new(MinHop))
}

/// Settings of the manager of one of the subnets.
pub(crate) fn manager_config(
    model: &Model,
    files: SettingsFiles,
    running: &BTreeSet<Guid>,
    subnet: usize,
) -> subnet_manager::Config {
    let Files {
        partitions,
        policy,
        mut roles,
        congestion,
    } = files.manager;
    roles.roots.extend(&model.manager.roots);
    let host = &model.subnets[subnet].manager;
    let mut manager = subnet_manager::Config {
        gid_prefix: model.subnets[subnet].prefix,
        prefix_routes: prefix_routes(model, subnet),
        lmc: model.manager.lmc,
        multipath: model.manager.multipath,
        policy,
        congestion,
        roles: Arc::new(roles),
        ucast_cache: model.manager.ucast_cache,
        mtu: model.fabric.mtu,
        sweep_interval: model.manager.sweep_interval,
        priority: model.manager.priority,
        max_lanes: model.manager.max_lanes,
        sl_to_vl: model.manager.sl_to_vl,
        arbitration: model.manager.arbitration.clone(),
        kinds: model.manager.kinds.clone(),
        m_key: match model.manager.m_key {
            KeyChoice::None => KeyPolicy::None,
            KeyChoice::PerNode => KeyPolicy::PerNode,
            KeyChoice::One(key) => KeyPolicy::One(key),
        },
        m_key_protect: model.manager.m_key_protect,
        m_key_lease: model.manager.m_key_lease,
        enforce_partitions: model.manager.enforce_partitions,
        cluster_lanes: model.manager.cluster_lanes,
        cluster_shares: cluster_shares(model, subnet),
        rebalance_threshold: model.manager.rebalance_threshold,
        path_caching: model.manager.path_caching,
        extended_lids: model.fabric.extended_lids,
        ..subnet_manager::Config::default()
    };
    manager.pinned_lids.insert(host.guid, host.lid);
    for (hypervisor, vf) in model.vfs() {
        let is_here = model.subnet_of(hypervisor) == subnet;
        if let (Some(lid), true) = (vf.lid, is_here) {
            manager.pinned_lids.insert(vf.guid, lid);
        }
        let has_lid = !model.has_dynamic_lids() || running.contains(&vf.guid);
        if !has_lid && vf.address == Address::Dedicated && is_here {
            manager.without_lid.insert(vf.guid);
        }
        if vf.spare && is_here {
            manager.spare_functions.insert(vf.guid);
        }
        // A partition configuration file says it of those that do not say it themselves.
        if partitions.is_none() || vf.has_pkeys {
            manager.partitions.insert(vf.guid, vf.pkeys.clone());
        }
    }
    if partitions.is_none() {
        let own = manager_partitions(model);
        let routers = model.wiring.routers.iter();
        for port in routers.flat_map(|router| &router.ports) {
            manager.partitions.insert(port.guid, own.clone());
        }
        manager.partitions.insert(host.guid, own);
    }
    manager.partition_file = partitions;
    manager
}

/// The clusters' VMs that have a LID of their own in a subnet.
fn cluster_shares(model: &Model, subnet: usize) -> Vec<ClusterShare> {
    let mut shares: Vec<ClusterShare> = { model.clusters.iter() }
        .map(|cluster| ClusterShare {
            name: cluster.name.clone(),
            share: cluster.share,
            ..ClusterShare::default()
        })
        .collect();
    for (hypervisor, vf) in model.vfs() {
        let is_here = model.subnet_of(hypervisor) == subnet && vf.address == Address::Dedicated;
        if let (Some((cluster, _)), true) = (vf.cluster, is_here) {
            shares[cluster].ports.insert(vf.guid);
        }
    }
    shares
}

/// The routers' ports in a subnet by which others are reached: those with the fewest routers on the
/// way first.
fn prefix_routes(model: &Model, subnet: usize) -> Vec<(u64, Guid)> {
    let wiring = &model.wiring;
    let subnet_of = |port: &RouterPort| wiring.switches[port.switch].subnet;
    let mut found: Vec<(usize, u64, Guid)> = Vec::new();
    for router in &wiring.routers {
        let Some(own) = router.ports.iter().find(|&port| subnet_of(port) == subnet) else {
            continue;
        };
        let mut seen = BTreeSet::from([subnet]);
        let mut reached: Vec<usize> = router.ports.iter().map(subnet_of).collect();
        for distance in 1.. {
            reached.retain(|&subnet| seen.insert(subnet));
            if reached.is_empty() {
                break;
            }
            let prefixes = reached.iter().map(|&subnet| model.subnets[subnet].prefix);
            found.extend(prefixes.map(|prefix| (distance, prefix, own.guid)));
            let others = wiring.routers.iter().filter(|other| {
                let mut ports = other.ports.iter();
                ports.any(|port| reached.contains(&subnet_of(port)))
            });
            reached = others
                .flat_map(|other| other.ports.iter().map(subnet_of))
                .collect();
        }
    }
    found.sort_by_key(|&(distance, ..)| distance);
    let route = |(_, prefix, guid)| (prefix, guid);
    found.into_iter().map(route).collect()
}

/// The manager's port is a full member of every partition, so that a guest reaches the subnet
/// administration with whichever P_Key it uses; and so are routers' ports.
fn manager_partitions(model: &Model) -> Vec<PKey> {
    let all = model.vfs().flat_map(|(_, vf)| &vf.pkeys);
    let full = all.map(|pkey| PKey::new(pkey.value() | 0x8000));
    let others: BTreeSet<PKey> = full.filter(|pkey| *pkey != PKey::DEFAULT_FULL).collect();
    [PKey::DEFAULT_FULL].into_iter().chain(others).collect()
}
