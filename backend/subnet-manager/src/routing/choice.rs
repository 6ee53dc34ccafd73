//! The engines by their names.

use super::engines::torus::FREE;
use super::{
    Dfsssp, DimensionOrder, Dragonfly, FatTree, Lash, MinHop, Nue, RoutingEngine, TorusTwoQos,
    UpDown, VSwitchFatTree,
};

/// Data lanes that links have at most.
pub const MAX_LANES: u8 = 15;

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
    /// Paths free of deadlock on any number of lanes.
    Nue,
    /// Tori and meshes, one dimension after the other.
    DimensionOrder,
    /// Tori and meshes in two classes of service, around switches that have failed.
    TorusTwoQos,
    /// Dragonflies, a higher lane after each cable between groups.
    Dragonfly,
    /// Tables of a file.
    File,
    /// Tables of a program.
    External,
}

impl RoutingChoice {
    /// All engines with their names, which are OpenSM's where it has the engine.
    pub const NAMES: [(&'static str, Self); 12] = [
        ("minhop", Self::MinHop),
        ("updn", Self::UpDown),
        ("ftree", Self::FatTree),
        ("vswitch-ftree", Self::VSwitchFatTree),
        ("dfsssp", Self::Dfsssp),
        ("lash", Self::Lash),
        ("nue", Self::Nue),
        ("dor", Self::DimensionOrder),
        ("torus-2QoS", Self::TorusTwoQos),
        ("dragonfly", Self::Dragonfly),
        ("file", Self::File),
        ("external", Self::External),
    ];

    /// The engine of this name, in large or small letters.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let found = Self::NAMES
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|&(_, engine)| engine)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, engine)| *engine == self);
        found.map_or("minhop", |&(name, _)| name)
    }

    /// Whether it gives paths service levels, which lanes keep apart.
    #[must_use]
    pub const fn is_layered(self) -> bool {
        matches!(
            self,
            Self::Dfsssp
                | Self::Lash
                | Self::Nue
                | Self::DimensionOrder
                | Self::TorusTwoQos
                | Self::Dragonfly
        )
    }

    /// Bits of a service level that it leaves to whoever asks for a path: the class of service.
    #[must_use]
    pub const fn free_levels(self) -> u8 {
        match self {
            Self::TorusTwoQos => FREE,
            _ => 0,
        }
    }

    /// Whether it is for fat-trees.
    #[must_use]
    pub const fn is_tree(self) -> bool {
        matches!(self, Self::FatTree | Self::VSwitchFatTree)
    }

    /// OpenSM has an engine of the same name.
    #[must_use]
    pub const fn is_in_opensm(self) -> bool {
        !matches!(
            self,
            Self::VSwitchFatTree | Self::Dragonfly | Self::External
        )
    }

    /// A new engine with up to so many lanes; none for tables of others.
    #[must_use]
    pub fn engine(self, lanes: u8) -> Option<Box<dyn RoutingEngine>> {
        Some(match self {
            Self::MinHop => Box::new(MinHop),
            Self::UpDown => Box::new(UpDown::default()),
            Self::FatTree => Box::new(FatTree),
            Self::VSwitchFatTree => Box::new(VSwitchFatTree),
            Self::Dfsssp => Box::new(Dfsssp { lanes }),
            Self::Lash => Box::new(Lash { lanes }),
            Self::Nue => Box::new(Nue { lanes }),
            Self::DimensionOrder => Box::new(DimensionOrder),
            Self::TorusTwoQos => Box::new(TorusTwoQos::new(lanes)),
            Self::Dragonfly => Box::new(Dragonfly { lanes }),
            Self::File | Self::External => return None,
        })
    }
}
