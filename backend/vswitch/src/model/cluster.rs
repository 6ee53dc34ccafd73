//! Virtual clusters.

use std::time::Duration;

use wire::{Lid, PKey};

/// A virtual cluster: VMs with a LID space of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Name, unique among clusters.
    pub name: String,
    /// The LID by which its VMs know the subnet manager.
    pub sm_lid: Lid,
    /// The part of the subnet that its VMs see.
    pub view: View,
    /// The rules of its full mode.
    pub full_mode: FullMode,
    /// Its part of a link, against those of the other clusters there, where clusters have lanes of their own.
    pub share: u8,
}

/// The part of the subnet that VMs of a cluster see when they ask its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum View {
    /// Their own port.
    #[default]
    OwnPort,
    /// The part of it that serves the cluster, under names of its own.
    Mirror,
    /// The same, until a subnet manager in one of the VMs manages it.
    Full,
}

impl View {
    /// All with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("own-port", Self::OwnPort),
        ("mirror", Self::Mirror),
        ("full", Self::Full),
    ];
}

/// The rules of a cluster's full mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullMode {
    /// Its managers' silence after which it ends.
    pub lease: Duration,
    /// The fate of what they have set.
    pub end: FullModeEnd,
    /// P_Keys of the subnet that stand for partitions of the cluster's own.
    pub pkeys: Vec<PKey>,
}

impl Default for FullMode {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(60),
            end: FullModeEnd::Drop,
            pkeys: Vec::new(),
        }
    }
}

/// The fate of what a cluster's managers have set, when they are silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FullModeEnd {
    /// The cluster is managed as at first.
    #[default]
    Drop,
    /// It stays in force.
    Keep,
}

impl FullModeEnd {
    /// Both with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 2] = [("drop", Self::Drop), ("keep", Self::Keep)];
}
