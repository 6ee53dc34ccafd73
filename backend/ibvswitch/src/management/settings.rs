//! The embedded subnet manager's settings, as the configuration has them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;

use subnet::routing::{Dfsssp, DimensionOrder, FatTree, Lash, VSwitchFatTree};
use subnet::{KeyPolicy, MinHop, RoutingEngine, UpDown};
use tracing::warn;
use wire::{Guid, PKey};

use crate::config::{Address, Config, KeyChoice, RouterPort, RoutingChoice};

/// A number that nobody can guess.
pub(super) fn random() -> u64 {
    let mut bytes = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    if let Err(error) = read {
        warn!(%error, "no random numbers from /dev/urandom: management keys can be guessed");
    }
    u64::from_ne_bytes(bytes)
}

pub(super) fn routing(config: &Config) -> Box<dyn RoutingEngine> {
    match config.manager.routing {
        RoutingChoice::MinHop => Box::new(MinHop),
        RoutingChoice::FatTree => Box::new(FatTree),
        RoutingChoice::VSwitchFatTree => Box::new(VSwitchFatTree),
        RoutingChoice::UpDown => Box::new(UpDown::new(config.manager.roots.iter().copied())),
        // Whether links have so many lanes the manager finds out.
        RoutingChoice::Dfsssp => Box::new(Dfsssp { lanes: 15 }),
        RoutingChoice::Lash => Box::new(Lash { lanes: 15 }),
        RoutingChoice::DimensionOrder => Box::new(DimensionOrder),
    }
}

/// Settings of the manager of one of the subnets.
pub(super) fn manager_config(config: &Config, subnet: usize) -> subnet::Config {
    let host = &config.subnets[subnet].manager;
    let mut manager = subnet::Config {
        gid_prefix: config.subnets[subnet].prefix,
        prefix_routes: prefix_routes(config, subnet),
        lmc: config.manager.lmc,
        mtu: config.fabric.mtu,
        sweep_interval: config.manager.sweep_interval,
        priority: config.manager.priority,
        max_lanes: config.manager.max_lanes,
        sl_to_vl: config.manager.sl_to_vl,
        arbitration: config.manager.arbitration.clone(),
        m_key: match config.manager.m_key {
            KeyChoice::None => KeyPolicy::None,
            KeyChoice::PerNode => KeyPolicy::PerNode,
            KeyChoice::One(key) => KeyPolicy::One(key),
        },
        m_key_protect: config.manager.m_key_protect,
        m_key_lease: config.manager.m_key_lease,
        enforce_partitions: config.manager.enforce_partitions,
        rebalance_threshold: config.manager.rebalance_threshold,
        path_caching: config.manager.path_caching,
        extended_lids: config.fabric.extended_lids,
        ..subnet::Config::default()
    };
    manager.pinned_lids.insert(host.guid, host.lid);
    for (hypervisor, vf) in config.vfs() {
        let is_here = config.subnet_of(hypervisor) == subnet;
        if let (Some(lid), true) = (vf.lid, is_here) {
            manager.pinned_lids.insert(vf.guid, lid);
        }
        if config.has_dynamic_lids() && vf.address == Address::Dedicated && is_here {
            manager.without_lid.insert(vf.guid);
        }
        if vf.spare && is_here {
            manager.spare_functions.insert(vf.guid);
        }
        // A partition configuration file says it of those that do not say it themselves.
        if config.manager.partitions_file.is_none() || vf.has_pkeys {
            manager.partitions.insert(vf.guid, vf.pkeys.clone());
        }
    }
    if config.manager.partitions_file.is_none() {
        let own = manager_partitions(config);
        let routers = config.wiring.routers.iter();
        for port in routers.flat_map(|router| &router.ports) {
            manager.partitions.insert(port.guid, own.clone());
        }
        manager.partitions.insert(host.guid, own);
    }
    manager
}

/// The routers' ports in a subnet by which others are reached: those with the fewest routers on the
/// way first.
fn prefix_routes(config: &Config, subnet: usize) -> Vec<(u64, Guid)> {
    let wiring = &config.wiring;
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
            let prefixes = reached.iter().map(|&subnet| config.subnets[subnet].prefix);
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
fn manager_partitions(config: &Config) -> Vec<PKey> {
    let all = config.vfs().flat_map(|(_, vf)| &vf.pkeys);
    let full = all.map(|pkey| PKey::new(pkey.value() | 0x8000));
    let others: BTreeSet<PKey> = full.filter(|pkey| *pkey != PKey::DEFAULT_FULL).collect();
    [PKey::DEFAULT_FULL].into_iter().chain(others).collect()
}
