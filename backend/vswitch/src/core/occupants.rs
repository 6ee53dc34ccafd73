//! The VMs that are at VFs now.

use fabric::{Nodes, Owner, PortRef};
use hca::VfId;
use tracing::warn;
use wire::{Guid, Lid};

use super::Core;
use crate::filter::Finding;
use crate::layout::{Layout, PlacedVf};

impl Core {
    /// For each VF, the VF that is configured with the addresses at it.
    pub(crate) fn occupants(&self) -> Vec<Option<usize>> {
        let layout = &self.layout;
        let occupant = |(vf, port): (VfId, PortRef)| {
            let guid = layout.sharing.guid_at(vf, &self.fabric, port)?;
            layout.places.iter().position(|place| place.guid == guid)
        };
        layout.vfs().map(occupant).collect()
    }

    /// The VM whose addresses are at a VF.
    pub(crate) fn vm_at(&self, vf: VfId) -> Option<Guid> {
        let port = self.layout.port(vf)?;
        self.layout.sharing.guid_at(vf, &self.fabric, port)
    }

    /// The VF where the VM is that is configured at the VF with this index.
    pub(crate) fn vf_of(&self, vm: usize) -> Option<VfId> {
        let occupants = self.occupants();
        let at = occupants
            .iter()
            .position(|&occupant| occupant == Some(vm))?;
        Some(VfId(at as u16))
    }

    /// The VF that is configured with the addresses at a VF.
    pub(super) fn occupant(&self, vf: VfId) -> Option<&PlacedVf> {
        let guid = self.vm_at(vf)?;
        self.layout.configured_with(guid)
    }

    /// For each VF, the name of the VM that has its addresses there; `None` where nobody has.
    pub(crate) fn holders(&self) -> Vec<Option<String>> {
        let name = |occupant: Option<usize>| {
            let place = &self.layout.places[occupant?];
            (!place.spare).then(|| place.name.clone())
        };
        self.occupants().into_iter().map(name).collect()
    }

    /// The name of the VM that has its addresses at a VF; nothing where nobody has.
    pub(super) fn vm_name_at(&self, vf: VfId) -> String {
        let place = self.occupant(vf).filter(|place| !place.spare);
        place.map_or_else(String::new, |place| place.name.clone())
    }

    /// The LID of a function's port in the subnet.
    pub(crate) fn physical_lid(&self, vf: VfId) -> Lid {
        let port = self.layout.port(vf);
        port.map_or(Lid::NONE, |port| {
            self.layout.sharing.address(vf, &self.fabric, port).0
        })
    }

    /// Gives those who are at a VF now their rights.
    pub(super) fn serve_occupants(&mut self) {
        let ports: Vec<PortRef> = self.layout.ports.clone();
        for (index, (port, occupant)) in ports.into_iter().zip(self.occupants()).enumerate() {
            if let Some(occupant) = occupant {
                let smp = self.layout.places[occupant].smp;
                self.fabric.set_owner(port, Owner::Consumer, smp);
                self.rules[index] = occupant;
                let vf = VfId(index as u16);
                self.outputs.find(vf, Finding::Occupant(occupant));
            }
        }
    }

    /// The configured VF whose rules hold at a VF.
    pub(super) fn rules(&self, vf: VfId) -> Option<&PlacedVf> {
        let &at = self.rules.get(usize::from(vf.0))?;
        self.layout.places.get(at)
    }
}

/// Warns where a port has another GUID now, and another port has that, too: somebody has set one by a
/// packet, and no migration has. Where a VM moves, the other port that still has it has given up its
/// LID.
pub(super) fn warn_of_duplicates(layout: &Layout, nodes: &Nodes, port: PortRef) {
    let addressed = |port| {
        let info = nodes.port_info(port)?;
        let guid = nodes.guids(port)?.first().copied()?;
        (info.lid != Lid::NONE).then_some(guid)
    };
    let name = |port| {
        let named = layout.names.iter().find(|&&(_, at)| at == port);
        named.map_or("", |(name, _)| name.as_str())
    };
    let Some(guid) = addressed(port) else {
        return;
    };
    let mut others = layout.ports.iter().filter(|&&other| other != port);
    if let Some(&other) = others.find(|&&other| addressed(other) == Some(guid)) {
        warn!(
            %guid,
            "two ports have one GUID, {} and {}: one of them needs another",
            name(other),
            name(port)
        );
    }
}
