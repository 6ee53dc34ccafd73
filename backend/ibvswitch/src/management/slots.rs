//! VFs as places, and who is there.
//!
//! A VF is a place: a socket, an engine function, a port of a vSwitch. Whose addresses are at it, the
//! port's GUID says: at first those of the VM that the configuration has there, or nobody's at a
//! spare one.

use fabric::{Owner, PortRef, SmpAccess};
use hca::VfId;
use wire::Guid;

use super::{Management, MigrateError, SubnetState, guid_at};
use crate::config::{Address, Config, MadRules};
use crate::control::Place;

/// A VF, and the VM that is configured there.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) hypervisor: String,
    /// Which of the subnets its hypervisor is in.
    pub(super) subnet: usize,
    pub(super) vswitch: Guid,
    /// Of the node, and of the VM's port; in a fabric it is at one place as either.
    pub(super) guid: Guid,
    pub(super) socket: String,
    pub(super) address: Address,
    pub(super) smp: SmpAccess,
    pub(super) has_view: bool,
    pub(super) mads: MadRules,
    pub(super) spare: bool,
}

/// The VFs of a configuration, in its order.
pub(super) fn slots(config: &Config) -> Vec<Slot> {
    let slot = |(hypervisor, vf): (&crate::config::Hypervisor, &crate::config::Vf)| Slot {
        name: vf.name.clone(),
        hypervisor: hypervisor.name.clone(),
        subnet: config.subnet_of(hypervisor),
        vswitch: hypervisor.vswitch_guid,
        guid: vf.guid,
        socket: vf.socket.display().to_string(),
        address: vf.address,
        smp: vf.smp,
        has_view: config.has_view(vf),
        mads: vf.mads.clone(),
        spare: vf.spare,
    };
    config.vfs().map(slot).collect()
}

impl Management {
    /// For each VF, whose addresses are at it: the VF that is configured with them.
    pub(super) fn occupants(&self, state: &SubnetState) -> Vec<Option<usize>> {
        let occupant = |(index, &port): (usize, &PortRef)| {
            let guid = guid_at(&state.fabric, &state.shared, VfId(index as u16), port)?;
            self.slots.iter().position(|slot| slot.guid == guid)
        };
        self.ports.iter().enumerate().map(occupant).collect()
    }

    /// The GUID of the VM that is configured at a VF, or nobody's of a spare one.
    pub(super) fn configured_guid(&self, vf: VfId) -> Guid {
        let slot = self.slots.get(usize::from(vf.0));
        slot.map_or(Guid::NONE, |slot| slot.guid)
    }

    /// For each VF, the name of the VM whose addresses are at it; `None` where it is nobody's.
    #[must_use]
    pub fn holders(&self) -> Vec<Option<String>> {
        self.holders_in(&self.state.read())
    }

    pub(super) fn holders_in(&self, state: &SubnetState) -> Vec<Option<String>> {
        let occupants = self.occupants(state);
        let name = |occupant: Option<usize>| {
            let slot = &self.slots[occupant?];
            (!slot.spare).then(|| slot.name.clone())
        };
        occupants.into_iter().map(name).collect()
    }

    /// The VFs of a hypervisor.
    pub(super) fn functions_of(&self, hypervisor: &str) -> Result<Vec<VfId>, MigrateError> {
        let slots = || self.slots.iter().enumerate();
        let here: Vec<VfId> = slots()
            .filter(|(_, slot)| slot.hypervisor == hypervisor)
            .map(|(index, _)| VfId(index as u16))
            .collect();
        if here.is_empty() {
            let mut known: Vec<String> = slots().map(|(_, s)| s.hypervisor.clone()).collect();
            known.dedup();
            return Err(MigrateError::Unknown {
                what: "hypervisor with VFs",
                name: hypervisor.to_owned(),
                known,
            });
        }
        Ok(here)
    }

    /// The VF of this name, which has to be one of the hypervisor's.
    pub(super) fn function(&self, name: &str, hypervisor: &str) -> Result<VfId, MigrateError> {
        let index = self.slot("VF", name, |_| true)?;
        let slot = &self.slots[index];
        if slot.hypervisor != hypervisor {
            return Err(MigrateError::Elsewhere {
                vf: name.to_owned(),
                hypervisor: slot.hypervisor.clone(),
            });
        }
        Ok(VfId(index as u16))
    }

    /// Whether a VF is on this hypervisor.
    pub(super) fn is_on(&self, vf: VfId, hypervisor: &str) -> bool {
        let slot = self.slots.get(usize::from(vf.0));
        slot.is_some_and(|slot| slot.hypervisor == hypervisor)
    }

    /// Whether a VF has a LID of its own.
    pub(super) fn address(&self, vf: VfId) -> Address {
        let slot = self.slots.get(usize::from(vf.0));
        slot.map(|slot| slot.address).unwrap_or_default()
    }

    /// The name of a VF.
    pub(super) fn name(&self, vf: VfId) -> String {
        let slot = self.slots.get(usize::from(vf.0));
        slot.map(|slot| slot.name.clone()).unwrap_or_default()
    }

    /// A VF as a place that VMs come to and leave.
    pub(super) fn place_of(&self, vf: VfId) -> Place {
        self.place(self.configured_guid(vf))
    }

    pub(super) fn slot(
        &self,
        what: &'static str,
        name: &str,
        fits: impl Fn(&Slot) -> bool,
    ) -> Result<usize, MigrateError> {
        match self.slots.iter().position(|slot| slot.name == name) {
            Some(index) if fits(&self.slots[index]) => Ok(index),
            Some(_) => Err(MigrateError::Spare(name.to_owned())),
            None => Err(MigrateError::Unknown {
                what,
                name: name.to_owned(),
                known: self
                    .slots
                    .iter()
                    .filter(|slot| fits(slot))
                    .map(|slot| slot.name.clone())
                    .collect(),
            }),
        }
    }

    pub(super) fn name_of(&self, function: Guid) -> String {
        let mut slots = self.slots.iter();
        let slot = slots.find(|slot| slot.guid == function);
        slot.map_or_else(|| function.to_string(), |slot| slot.name.clone())
    }

    pub(super) fn place(&self, function: Guid) -> Place {
        let mut slots = self.slots.iter();
        match slots.find(|slot| slot.guid == function) {
            Some(slot) => Place {
                vf: slot.name.clone(),
                hypervisor: slot.hypervisor.clone(),
                socket: slot.socket.clone(),
            },
            None => Place::default(),
        }
    }

    /// Gives those who are at a VF now their rights.
    pub(super) fn serve_occupants(&self, state: &mut SubnetState) {
        let occupants = self.occupants(state);
        for (index, (&port, occupant)) in self.ports.iter().zip(occupants).enumerate() {
            if let Some(occupant) = occupant {
                let slot = &self.slots[occupant];
                state.fabric.set_owner(port, Owner::Consumer, slot.smp);
                self.proxy.serve(VfId(index as u16), slot);
            }
        }
    }
}
