//! Functions that share a port of the subnet, and with it its LID: the Shared Port model of *Towards
//! the InfiniBand SR-IOV vSwitch Architecture*, III, and what it lends to hybrid ones.
//!
//! The port is the physical function's. Each virtual function has a place in its table of GUIDs; the VM with the GUID
//! at that place has its addresses there.
//!
//! Where the port has several LIDs, a VM of a virtual cluster has one of them for itself, and the base
//! LID is the others' (*Towards Virtual InfiniBand Clusters with Network and Performance Isolation*,
//! 3.3.4). It is that which follows the base LID at the distance of the place in the table.

use std::collections::HashSet;

use fabric::{Nodes, PortRef, VPort, VPorts};
use wire::{Guid, Lid, PKey, PortState};

use crate::model::{Address, AddressModel, Hypervisor, Model, Vf};

/// A function's place at a shared port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedPlace {
    /// The port.
    pub port: PortRef,
    /// The function's entry of the port's table of GUIDs; entry 0 is the port's own.
    pub entry: u8,
}

impl SharedPlace {
    /// The GUID that stands there; `None` while there is none.
    #[must_use]
    pub fn guid(&self, nodes: &Nodes) -> Option<Guid> {
        let guid = match self.vport(nodes) {
            Some(vport) => vport.guid(),
            None => *nodes.guids(self.port)?.get(usize::from(self.entry))?,
        };
        (!guid.is_none()).then_some(guid)
    }

    /// The table of GUIDs of whoever is there: its own, and those that the subnet manager has given its virtual port
    /// besides; none at a place that is free.
    pub fn guids<'a>(&self, nodes: &'a Nodes) -> impl Iterator<Item = Guid> + use<'a> {
        let aliases = self
            .vport(nodes)
            .map_or(&[][..], |vport| &vport.guids()[1..]);
        let own = self.guid(nodes);
        own.into_iter()
            .flat_map(|own| [own].into_iter().chain(aliases.iter().copied()))
    }

    /// The virtual port that this place is, where the port has such: its index is the entry.
    #[must_use]
    pub fn vport<'a>(&self, nodes: &'a Nodes) -> Option<&'a VPort> {
        VPorts::at(nodes, self.port)?.port(self.entry.into())
    }

    /// Whether a VM that comes here can have a LID for itself.
    #[must_use]
    pub fn has_room_for_lid(&self, nodes: &Nodes) -> bool {
        self.vport(nodes).is_some() || self.own_lid(nodes).is_some()
    }

    /// The LID that only this place has; `None` where it has none, or the port has fewer.
    #[must_use]
    pub fn own_lid(&self, nodes: &Nodes) -> Option<Lid> {
        if let Some(vport) = self.vport(nodes) {
            return Some(vport.lid()).filter(|lid| lid.is_unicast());
        }
        let info = nodes.port_info(self.port)?;
        let lid = Lid::unicast(info.lid.value().checked_add(self.entry.into())?)?;
        (info.lid.is_unicast() && info.lid.covers(info.lmc, lid)).then_some(lid)
    }
}

/// The VMs that are told apart by LIDs, wherever they share a port: those in virtual clusters, and those whose virtual port
/// requires a LID.
#[derive(Debug, Clone, Default)]
pub struct OwnLids(HashSet<Guid>);

impl OwnLids {
    /// The VMs of a model that are told apart by LIDs.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        let vms = model.vfs().filter(|(_, vf)| vf.has_own_lid());
        Self(vms.map(|(_, vf)| vf.guid).collect())
    }

    /// Whether there are any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a VM is one.
    #[must_use]
    pub fn contains(&self, vm: Guid) -> bool {
        self.0.contains(&vm)
    }

    /// Whether it is such a VM whose addresses are at a place.
    #[must_use]
    pub fn is_at(&self, place: SharedPlace, nodes: &Nodes) -> bool {
        match place.vport(nodes) {
            Some(vport) => vport.is_enabled() && vport.requires_lid(),
            None => place.guid(nodes).is_some_and(|guid| self.contains(guid)),
        }
    }

    /// The LID of whoever is at a place; `None` where nobody can be reached.
    #[must_use]
    pub fn lid(&self, place: SharedPlace, nodes: &Nodes) -> Option<Lid> {
        place.guid(nodes)?;
        if self.is_at(place, nodes) {
            place.own_lid(nodes)
        } else {
            let info = nodes.port_info(place.port)?;
            Some(info.lid).filter(|lid| lid.is_unicast())
        }
    }

    /// The state of the port as the function at a place has it: without a GUID, or without the LID
    /// that it has to have, nobody can reach it.
    #[must_use]
    pub fn state(&self, place: SharedPlace, nodes: &Nodes) -> PortState {
        let state = nodes.port_info(place.port).unwrap_or_default().port_state;
        let state = place
            .vport(nodes)
            .map_or(state, |vport| state.min(vport.state()));
        match self.lid(place, nodes) {
            None => state.min(PortState::Initialize),
            Some(_) => state,
        }
    }
}

/// The entries of the VFs of a hypervisor in the port's table of GUIDs, in their order: LIDs are few,
/// so those who need one come first, and then those that are free for whoever moves there. Virtual ports have LIDs from
/// elsewhere, and the order of their VFs.
#[must_use]
pub fn entries(hypervisor: &Hypervisor, model: AddressModel) -> Vec<u8> {
    let rank = |vf: &Vf| match (vf.is_clustered(), vf.spare) {
        _ if model == AddressModel::Virtualized => 0,
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    };
    let mut order: Vec<usize> = (0..hypervisor.vfs.len())
        .filter(|&at| hypervisor.vfs[at].address == Address::Shared)
        .collect();
    order.sort_by_key(|&at| rank(&hypervisor.vfs[at]));
    let mut entries = vec![0; hypervisor.vfs.len()];
    for (entry, at) in (1..).zip(order) {
        entries[at] = entry;
    }
    entries
}

/// The P_Key table of a virtual port, up to its last key.
#[must_use]
pub fn table(vport: &VPort) -> Vec<PKey> {
    let keys = vport.pkeys();
    let last = keys.iter().rposition(|key| key.is_valid());
    keys[..last.map_or(0, |last| last + 1)].to_vec()
}

/// The P_Key table of a function that is to have `own` at a port that has `port`: of its partitions
/// those that the port is in, too, and a full member only where the port is one.
#[must_use]
pub fn pkeys(own: &[PKey], port: &[PKey]) -> Vec<PKey> {
    let held = own.iter().filter_map(|&own| {
        let mut same = port
            .iter()
            .filter(|other| other.partition() == own.partition());
        same.any(|other| other.is_full() || *other == own)
            .then_some(own)
            .or_else(|| {
                let limited = PKey::new(own.partition());
                port.contains(&limited).then_some(limited)
            })
    });
    held.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_function_is_more_than_its_port() {
        let keys = |keys: &[u16]| keys.iter().copied().map(PKey::new).collect::<Vec<_>>();
        let port = keys(&[0xffff, 0x0001, 0x8002]);
        let cases: [(&[u16], &[u16]); 5] = [
            (&[0xffff, 0x8002], &[0xffff, 0x8002]),
            // Less than the port.
            (&[0x7fff, 0x0002], &[0x7fff, 0x0002]),
            // More than the port.
            (&[0x8001], &[0x0001]),
            (&[0x0001], &[0x0001]),
            // Not the port's.
            (&[0x8003, 0x8002], &[0x8002]),
        ];
        for (own, held) in cases {
            assert_eq!(pkeys(&keys(own), &port), keys(held), "{own:x?}");
        }
    }
}
