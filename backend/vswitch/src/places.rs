//! VFs as places, and who is there.
//!
//! A VF is a place: a socket, an engine function, a port of a vSwitch. Whose addresses are at it, the
//! port's GUID says: at first those of the VM that the configuration has there, or nobody's at a
//! spare one.

use fabric::{Owner, PortRef, SmpAccess};
use hca::VfId;
use wire::Guid;

use crate::migration::MigrateError;
use crate::model::{Address, Hypervisor, MadRules, Model, Vf};
use crate::snapshot::guid_at;
use crate::vswitch::{SubnetState, VSwitch};

/// A VF on a hypervisor, by names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The VF.
    pub vf: String,
    /// Its hypervisor.
    pub hypervisor: String,
}

/// A VF, and the VM that is configured there.
#[derive(Debug)]
pub(crate) struct PlacedVf {
    pub(crate) name: String,
    pub(crate) hypervisor: String,
    /// Which of the subnets its hypervisor is in.
    pub(crate) subnet: usize,
    pub(crate) vswitch: Guid,
    /// Of the node, and of the VM's port; in a fabric it is at one place as either.
    pub(crate) guid: Guid,
    pub(crate) address: Address,
    pub(crate) smp: SmpAccess,
    pub(crate) has_view: bool,
    pub(crate) mads: MadRules,
    pub(crate) spare: bool,
    pub(crate) ethernet: bool,
}

/// The VFs of a model, in its order.
pub(crate) fn places(model: &Model) -> Vec<PlacedVf> {
    let place = |(hypervisor, vf): (&Hypervisor, &Vf)| PlacedVf {
        name: vf.name.clone(),
        hypervisor: hypervisor.name.clone(),
        subnet: model.subnet_of(hypervisor),
        vswitch: hypervisor.vswitch_guid,
        guid: vf.guid,
        address: vf.address,
        smp: vf.smp,
        has_view: model.has_view(vf),
        mads: vf.mads.clone(),
        spare: vf.spare,
        ethernet: vf.ethernet,
    };
    model.vfs().map(place).collect()
}

impl VSwitch {
    /// For each VF, whose addresses are at it: the VF that is configured with them.
    pub(crate) fn occupants(&self, state: &SubnetState) -> Vec<Option<usize>> {
        let occupant = |(index, &port): (usize, &PortRef)| {
            let guid = guid_at(&state.fabric, &state.shared, VfId(index as u16), port)?;
            self.places.iter().position(|place| place.guid == guid)
        };
        self.ports.iter().enumerate().map(occupant).collect()
    }

    /// The GUID of the VM that is configured at a VF, or nobody's of a spare one.
    pub(crate) fn configured_guid(&self, vf: VfId) -> Guid {
        let place = self.places.get(usize::from(vf.0));
        place.map_or(Guid::NONE, |place| place.guid)
    }

    /// For each VF, the name of the VM that has its addresses there; `None` where nobody has.
    #[must_use]
    pub fn holders(&self) -> Vec<Option<String>> {
        self.holders_in(&self.state.read())
    }

    /// Whether a VM that moves from one VF to another one has the same LID there: both have one of their own, and
    /// the embedded manager of their subnet exchanges them.
    #[must_use]
    pub fn keeps_lid(&self, from: VfId, to: VfId) -> bool {
        let place = |vf: VfId| self.places.get(usize::from(vf.0));
        let (Some(from), Some(to)) = (place(from), place(to)) else {
            return false;
        };
        let dedicated = [from, to].map(|place| place.address == Address::Dedicated);
        dedicated == [true; 2] && from.subnet == to.subnet && self.state.read().is_managed()
    }

    pub(crate) fn holders_in(&self, state: &SubnetState) -> Vec<Option<String>> {
        let occupants = self.occupants(state);
        let name = |occupant: Option<usize>| {
            let place = &self.places[occupant?];
            (!place.spare).then(|| place.name.clone())
        };
        occupants.into_iter().map(name).collect()
    }

    /// The name of the VM that has its addresses at a VF; nothing where nobody has.
    pub(crate) fn vm_name_at(&self, state: &SubnetState, vf: VfId) -> String {
        let mut holders = self.holders_in(state);
        holders.swap_remove(usize::from(vf.0)).unwrap_or_default()
    }

    /// The VFs of a hypervisor.
    pub(crate) fn functions_of(&self, hypervisor: &str) -> Result<Vec<VfId>, MigrateError> {
        let places = || self.places.iter().enumerate();
        let here: Vec<VfId> = places()
            .filter(|(_, place)| place.hypervisor == hypervisor)
            .map(|(index, _)| VfId(index as u16))
            .collect();
        if here.is_empty() {
            let mut known: Vec<String> = places().map(|(_, it)| it.hypervisor.clone()).collect();
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
    pub(crate) fn vf_named(&self, name: &str, hypervisor: &str) -> Result<VfId, MigrateError> {
        let index = self.placed_vf("VF", name, |_| true)?;
        let place = &self.places[index];
        if place.hypervisor != hypervisor {
            return Err(MigrateError::Elsewhere {
                vf: name.to_owned(),
                hypervisor: place.hypervisor.clone(),
            });
        }
        Ok(VfId(index as u16))
    }

    /// Whether a VF is on this hypervisor.
    pub(crate) fn is_on(&self, vf: VfId, hypervisor: &str) -> bool {
        let place = self.places.get(usize::from(vf.0));
        place.is_some_and(|place| place.hypervisor == hypervisor)
    }

    /// Whether a VF has a LID of its own.
    pub(crate) fn address(&self, vf: VfId) -> Address {
        let place = self.places.get(usize::from(vf.0));
        place.map(|place| place.address).unwrap_or_default()
    }

    /// Whether VMs at a VF have an Ethernet card there, and no HCA.
    pub(crate) fn is_ethernet(&self, vf: VfId) -> bool {
        let place = self.places.get(usize::from(vf.0));
        place.is_some_and(|place| place.ethernet)
    }

    /// The name of a VF.
    pub(crate) fn name(&self, vf: VfId) -> String {
        let place = self.places.get(usize::from(vf.0));
        place.map(|place| place.name.clone()).unwrap_or_default()
    }

    /// A VF as a place that VMs come to and leave.
    pub(crate) fn place_of(&self, vf: VfId) -> Place {
        self.place(self.configured_guid(vf))
    }

    pub(crate) fn placed_vf(
        &self,
        what: &'static str,
        name: &str,
        fits: impl Fn(&PlacedVf) -> bool,
    ) -> Result<usize, MigrateError> {
        match self.places.iter().position(|place| place.name == name) {
            Some(index) if fits(&self.places[index]) => Ok(index),
            Some(_) => Err(MigrateError::Spare(name.to_owned())),
            None => Err(MigrateError::Unknown {
                what,
                name: name.to_owned(),
                known: self
                    .places
                    .iter()
                    .filter(|place| fits(place))
                    .map(|place| place.name.clone())
                    .collect(),
            }),
        }
    }

    pub(crate) fn name_of(&self, function: Guid) -> String {
        let mut places = self.places.iter();
        let place = places.find(|place| place.guid == function);
        place.map_or_else(|| function.to_string(), |place| place.name.clone())
    }

    pub(crate) fn place(&self, function: Guid) -> Place {
        let mut places = self.places.iter();
        match places.find(|place| place.guid == function) {
            Some(place) => Place {
                vf: place.name.clone(),
                hypervisor: place.hypervisor.clone(),
            },
            None => Place::default(),
        }
    }

    /// Gives those who are at a VF now their rights.
    pub(crate) fn serve_occupants(&self, state: &mut SubnetState) {
        let occupants = self.occupants(state);
        for (index, (&port, occupant)) in self.ports.iter().zip(occupants).enumerate() {
            if let Some(occupant) = occupant {
                let place = &self.places[occupant];
                state.fabric.set_owner(port, Owner::Consumer, place.smp);
                self.filter.serve(VfId(index as u16), place);
            }
        }
    }
}
