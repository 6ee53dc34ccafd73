//! The LIDs here of the groups of VMs that came from images.
//!
//! A subnet administration gives each group a LID, and another one gives it another. A guest that knows nothing of
//! the move goes on sending to the one that it was told. The group's GID does not change and stands in each of its
//! packets: by the GID the LID here is found.

use std::collections::HashMap;

use wire::{Gid, Guid, Lid};

/// By VM and group; none of groups that the administration here has not answered for yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct GroupLids(HashMap<(Guid, Gid), Option<Lid>>);

impl GroupLids {
    /// A VM brings a group along.
    pub(super) fn bring(&mut self, vm: Guid, mgid: Gid) {
        self.0.insert((vm, mgid), None);
    }

    /// A group has this LID here, as a VM in it is told. Whether that is news of a group that the VM has
    /// brought along.
    pub(super) fn is_news(&self, vm: Guid, mgid: Gid, lid: Lid) -> bool {
        let known = self.0.get(&(vm, mgid));
        known.is_some_and(|known| *known != Some(lid))
    }

    /// Takes note of it.
    pub(super) fn learn(&mut self, vm: Guid, mgid: Gid, lid: Lid) {
        self.0.insert((vm, mgid), Some(lid));
    }

    /// A VM has left a group.
    pub(super) fn forget(&mut self, vm: Guid, mgid: Gid) {
        self.0.remove(&(vm, mgid));
    }

    /// A VM is no more.
    pub(super) fn forget_all(&mut self, vm: Guid) {
        self.0.retain(|(of, _), _| *of != vm);
    }

    pub(super) fn has(&self, vm: Guid) -> bool {
        self.0.keys().any(|(of, _)| *of == vm)
    }

    /// Where a VM's packet to a group goes that the VM addresses to `lid`.
    pub(crate) fn here(&self, vm: Guid, mgid: Gid, lid: Lid) -> Lid {
        let known = self.0.get(&(vm, mgid)).copied().flatten();
        known.unwrap_or(lid)
    }
}
