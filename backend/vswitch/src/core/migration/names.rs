//! The VFs, VMs and hypervisors that requests to move name.

use hca::VfId;

use super::MoveRequest;
use super::error::{MigrateError, Need};
use crate::layout::{Layout, PlacedVf};
use crate::model::Address;

impl Layout {
    /// The VMs that requests name, each once; the other names in the requests are right, too.
    ///
    /// # Errors
    /// [`MigrateError`] for mistakes in names.
    pub(crate) fn vms_to_move<'a>(
        &self,
        requests: &'a [MoveRequest],
    ) -> Result<Vec<(usize, &'a MoveRequest)>, MigrateError> {
        let mut vms: Vec<(usize, &MoveRequest)> = Vec::with_capacity(requests.len());
        for request in requests {
            let vm = self.placed_vf("VM", &request.vm, |place| !place.spare)?;
            if vms.iter().any(|&(other, _)| other == vm) {
                return Err(MigrateError::Twice(request.vm.clone()));
            }
            vms.push((vm, request));
            self.functions_of(&request.to)?;
            if let Some(name) = &request.vf {
                self.vf_named(name, &request.to)?;
            }
        }
        Ok(vms)
    }

    /// The VFs of a hypervisor.
    pub(super) fn functions_of(&self, hypervisor: &str) -> Result<Vec<VfId>, MigrateError> {
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
    pub(super) fn vf_named(&self, name: &str, hypervisor: &str) -> Result<VfId, MigrateError> {
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

    fn placed_vf(
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
                known: { self.places.iter().filter(|place| fits(place)) }
                    .map(|place| place.name.clone())
                    .collect(),
            }),
        }
    }

    /// The kind of place that a VM needs at its destination.
    pub(super) fn need_of(&self, vm: usize) -> Need {
        let place = &self.places[vm];
        match place.address {
            _ if place.ethernet => Need::Port,
            Address::Dedicated => Need::Dedicated,
            Address::Shared => Need::Shared,
        }
    }
}
