//! The subnet managers.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use subnet_manager::routing::RoutingChoice;
use subnet_manager::routing::multipath::Multipath;
use wire::Guid;

/// Settings of the subnet managers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manager {
    /// Where it is.
    pub place: ManagerPlace,
    /// LID mask control of adapters' ports.
    pub lmc: u8,
    /// LIDs by the paths of pairs of ports, which take the place of the routing engine's.
    pub multipath: Multipath,
    /// Time between two sweeps.
    pub sweep_interval: Duration,
    /// Priority among subnet managers, 15 the highest.
    pub priority: u8,
    /// The routing engine.
    pub routing: RoutingChoice,
    /// The most data lanes that the engine `nue` uses.
    pub nue_lanes: Option<u8>,
    /// Whether paths stay as they are while hosts and leaf switches are away.
    pub ucast_cache: bool,
    /// Roots of up*/down* and fat-tree routing; none: found by themselves.
    pub roots: Vec<Guid>,
    /// Whether switches check P_Keys at ports with an adapter.
    pub enforce_partitions: bool,
    /// Whether clusters have service levels and lanes of their own.
    pub cluster_lanes: bool,
    /// The most data lanes that links use.
    pub max_lanes: Option<u8>,
    /// The lane of each service level.
    pub sl_to_vl: Option<wire::attribute::SlToVl>,
    /// The arbitration of lanes on links.
    pub arbitration: Option<subnet_manager::Arbitration>,
    /// Lanes of kinds of ports that differ from the others.
    pub kinds: BTreeMap<subnet_manager::PortKind, subnet_manager::PortQuality>,
    /// The management keys of ports.
    pub m_key: KeyChoice,
    /// The protection that they give: 0 to 3 (IBA 14.2.4).
    pub m_key_protect: u8,
    /// Seconds until a port with a key that nobody knows falls back to level 0; 0: never.
    pub m_key_lease: u16,
    /// Percentage of paths on the busiest link at which they are spread anew.
    pub rebalance_threshold: Option<u16>,
    /// Whether answers to path queries say that they may be kept.
    pub path_caching: bool,
}

/// The management keys of ports.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyChoice {
    /// None.
    #[default]
    None,
    /// Each node another one, at random.
    PerNode,
    /// All this one.
    One(u64),
}

impl fmt::Debug for KeyChoice {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::PerNode => "PerNode",
            Self::One(_) => "One",
        })
    }
}

/// Where the subnet manager is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ManagerPlace {
    /// In the daemon.
    #[default]
    Embedded,
    /// A program of the host, or in a guest.
    External,
}

impl ManagerPlace {
    /// All places with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 2] =
        [("embedded", Self::Embedded), ("external", Self::External)];
}
