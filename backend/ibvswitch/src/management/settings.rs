//! The embedded subnet manager's settings, as the configuration has them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;

use subnet::routing::{Dfsssp, DimensionOrder, FatTree, Lash, VSwitchFatTree};
use subnet::{KeyPolicy, MinHop, RoutingEngine, UpDown};
use tracing::warn;
use wire::PKey;

use crate::config::{Address, Config, KeyChoice, RoutingChoice};

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

pub(super) fn manager_config(config: &Config) -> subnet::Config {
    let mut manager = subnet::Config {
        gid_prefix: config.fabric.subnet_prefix,
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
    manager
        .pinned_lids
        .insert(config.manager.guid, config.manager.lid);
    for (_, vf) in config.vfs() {
        if let Some(lid) = vf.lid {
            manager.pinned_lids.insert(vf.guid, lid);
        }
        if config.has_dynamic_lids() && vf.address == Address::Dedicated {
            manager.without_lid.insert(vf.guid);
        }
        if vf.spare {
            manager.spare_functions.insert(vf.guid);
        }
        // A partition configuration file says it of those that do not say it themselves.
        if config.manager.partitions_file.is_none() || vf.has_pkeys {
            manager.partitions.insert(vf.guid, vf.pkeys.clone());
        }
    }
    if config.manager.partitions_file.is_none() {
        let own = manager_partitions(config);
        manager.partitions.insert(config.manager.guid, own);
    }
    manager
}

/// The manager's port is a full member of every partition, so that a guest reaches the subnet
/// administration with whichever P_Key it uses.
fn manager_partitions(config: &Config) -> Vec<PKey> {
    let all = config.vfs().flat_map(|(_, vf)| &vf.pkeys);
    let full = all.map(|pkey| PKey::new(pkey.value() | 0x8000));
    let others: BTreeSet<PKey> = full.filter(|pkey| *pkey != PKey::DEFAULT_FULL).collect();
    [PKey::DEFAULT_FULL].into_iter().chain(others).collect()
}
