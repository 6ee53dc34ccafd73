//! The VMs of a cluster, by name rather than by where they are.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use wire::{Gid, Guid, Lid};

/// The VMs of a cluster, by their GUIDs, each with its LID there.
#[derive(Debug, Clone, Default)]
pub struct Vms {
    lids: HashMap<Guid, Lid>,
    guids: HashMap<Lid, Guid>,
    /// All GUIDs of the configuration, in clusters or not.
    known: Arc<HashSet<Guid>>,
}

impl Vms {
    /// A cluster of these VMs, in a subnet in which others are `known`, too.
    #[must_use]
    pub fn new(vms: impl IntoIterator<Item = (Guid, Lid)>, known: Arc<HashSet<Guid>>) -> Self {
        let lids: HashMap<Guid, Lid> = vms.into_iter().collect();
        let guids = lids.iter().map(|(&guid, &lid)| (lid, guid)).collect();
        Self { lids, guids, known }
    }

    /// The LID of a VM in the cluster.
    #[must_use]
    pub fn lid(&self, guid: Guid) -> Option<Lid> {
        self.lids.get(&guid).copied()
    }

    /// The VM with a LID in the cluster.
    #[must_use]
    pub fn guid(&self, lid: Lid) -> Option<Guid> {
        self.guids.get(&lid).copied()
    }

    /// Whether a GID may be that of who has this LID in the cluster. At a port that others share it
    /// may be another's, for all that the subnet administration knows.
    #[must_use]
    pub fn fits(&self, gid: Gid, lid: Lid) -> bool {
        self.guid(lid)
            .is_none_or(|own| own == gid.guid() || !self.known.contains(&gid.guid()))
    }
}
