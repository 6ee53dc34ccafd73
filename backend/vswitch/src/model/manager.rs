//! The subnet managers.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wire::Guid;

/// Settings of the subnet managers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manager {
    /// Where it is.
    pub place: ManagerPlace,
    /// LID mask control of adapters' ports.
    pub lmc: u8,
    /// Time between two sweeps.
    pub sweep_interval: Duration,
    /// Priority among subnet managers, 15 the highest.
    pub priority: u8,
    /// The routing engine.
    pub routing: RoutingChoice,
    /// Roots of up*/down* and fat-tree routing; none: found by themselves.
    pub roots: Vec<Guid>,
    /// Whether switches check P_Keys at ports with an adapter.
    pub enforce_partitions: bool,
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

/// The routing engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RoutingChoice {
    /// Shortest paths.
    #[default]
    MinHop,
    /// Up*/down*.
    UpDown,
    /// Fat-tree routing.
    FatTree,
    /// Fat-tree routing in which the VMs of a vSwitch share its weight.
    VSwitchFatTree,
    /// Shortest paths spread over links and lanes.
    Dfsssp,
    /// Shortest paths between switches, layered over lanes.
    Lash,
    /// Tori and meshes, one dimension after the other.
    DimensionOrder,
    /// Tables of a file.
    File,
    /// Tables of a program.
    External,
}

impl RoutingChoice {
    /// Whether it gives paths service levels, which lanes keep apart.
    #[must_use]
    pub const fn is_layered(self) -> bool {
        matches!(self, Self::Dfsssp | Self::Lash | Self::DimensionOrder)
    }

    /// Whether it is for fat-trees.
    #[must_use]
    pub const fn is_tree(self) -> bool {
        matches!(self, Self::FatTree | Self::VSwitchFatTree)
    }

    /// All engines with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 9] = [
        ("minhop", Self::MinHop),
        ("updn", Self::UpDown),
        ("ftree", Self::FatTree),
        ("vswitch-ftree", Self::VSwitchFatTree),
        ("dfsssp", Self::Dfsssp),
        ("lash", Self::Lash),
        ("dor", Self::DimensionOrder),
        ("file", Self::File),
        ("external", Self::External),
    ];
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
