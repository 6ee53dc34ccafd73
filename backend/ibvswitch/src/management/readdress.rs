//! VMs that share a LID and move: the GUID leaves one port's table and goes to another's, and the LID
//! becomes that of the other port.
//!
//! No forwarding table changes, and other VMs of the two hypervisors notice nothing. Peers have to ask
//! for the new LID: their connections to the VM end.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use hca::VfId;
use wire::{Guid, Lid};

use super::migration::{MigrateError, PATIENCE, Promised, wait};
use super::{Management, Message, SubnetState};
use crate::config::Address;
use crate::control::{Migrated, MigrationRequest, Packets};

/// How long the subnet administration and manager may take.
const ALLOWED: Duration = Duration::from_secs(30);

/// Why a GUID is where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReaddressError {
    /// It was to leave a place that it had left already, or go to one that is taken.
    #[error("another migration was faster; `ibvswitch vf show` says where the VM's addresses are")]
    Overtaken,
    /// The subnet administration does not register it at the destination.
    #[error("the subnet administration does not let the destination's port have the VM's GUID")]
    Refused,
    /// The subnet manager does not answer, or does not write the tables.
    #[error("the subnet manager has not moved the VM's GUID within 30 s; is there one?")]
    Silent,
}

/// A VM that is to move.
#[derive(Debug)]
pub(super) struct Readdress {
    guid: Guid,
    from: VfId,
    to: VfId,
    stage: Stage,
    /// When it is given up.
    due: Duration,
    reply: Sender<Result<(), ReaddressError>>,
}

/// The same for who asked.
#[derive(Debug)]
pub(super) struct Readdressing {
    vm: usize,
    from: VfId,
    to: VfId,
    /// The LID that it had.
    lid: Lid,
    answer: Receiver<Result<(), ReaddressError>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begun,
    /// The GUID leaves the one port.
    Leaving,
    /// The other port gets it.
    Arriving,
}

impl Management {
    /// Asks for a VM that shares a LID to be moved, which is then that of the destination.
    pub(super) fn begin_readdress(
        &self,
        request: &MigrationRequest,
        vm: usize,
        is_connected: impl Fn(VfId) -> bool,
        promised: &mut Promised,
    ) -> Result<Readdressing, MigrateError> {
        if request.is_about_tables() {
            return Err(MigrateError::NoTables(request.vm.clone()));
        }
        let (from, to, lid) = {
            let state = self.state.read();
            let occupants = self.occupants(&state);
            let from = occupants.iter().position(|&occupant| occupant == Some(vm));
            let from = from.ok_or_else(|| MigrateError::NotThere(request.vm.clone()))?;
            let vf = VfId(from as u16);
            let to = self.free_place(&state, request, (vm, vf), is_connected, promised)?;
            let lid = self.port(vf).map_or(Lid::NONE, |port| {
                state.shared.address(vf, &state.fabric, port).0
            });
            (vf, to, lid)
        };
        promised.promise(to);
        let (reply, answer) = bounded(1);
        let readdress = Readdress {
            guid: self.configured_guid(VfId(vm as u16)),
            from,
            to,
            stage: Stage::Begun,
            due: self.now() + ALLOWED,
            reply,
        };
        self.sender
            .send(Message::Readdress(readdress))
            .map_err(|_| MigrateError::Ending)?;
        Ok(Readdressing {
            vm,
            from,
            to,
            lid,
            answer,
        })
    }

    /// Waits for its end.
    pub(super) fn end_readdress(&self, begun: &Readdressing) -> Result<Migrated, MigrateError> {
        wait(&begun.answer, PATIENCE)?.map_err(MigrateError::Readdress)?;
        let now = self.physical_lid(begun.to);
        Ok(self.describe_readdress(begun.vm, (begun.from, begun.to), (begun.lid, now)))
    }

    /// A place at the destination that nobody has: rather one with a VMM.
    fn free_place(
        &self,
        state: &SubnetState,
        request: &MigrationRequest,
        (vm, from): (usize, VfId),
        is_connected: impl Fn(VfId) -> bool,
        promised: &Promised,
    ) -> Result<VfId, MigrateError> {
        let here = self.functions_of(&request.to)?;
        if self.is_on(from, &request.to) && request.vf.is_none() {
            return Err(MigrateError::Manager(subnet::MigrationError::AlreadyThere));
        }
        let is_free = |vf: VfId| {
            let place = state.shared.place(vf);
            !promised.has(vf) && place.is_some_and(|place| state.shared.wanted(place).is_none())
        };
        let guid = self.configured_guid(VfId(vm as u16));
        let needs_lid = state.shared.wants_own_lid(guid);
        let has_lid = |vf: VfId| {
            let place = state.shared.place(vf);
            place.is_some_and(|place| place.range_lid(&state.fabric).is_some())
        };
        let suits = |vf: VfId| match needs_lid && !has_lid(vf) {
            false => Ok(vf),
            true => {
                let place = state.shared.place(vf);
                let port = place.and_then(|place| state.fabric.port_info(place.port));
                Err(MigrateError::Range {
                    vm: request.vm.clone(),
                    hypervisor: request.to.clone(),
                    place: place.map_or(0, |place| place.entry),
                    lmc: port.unwrap_or_default().lmc,
                })
            }
        };
        if let Some(name) = &request.vf {
            let vf = self.function(name, &request.to)?;
            return match (self.address(vf), is_free(vf)) {
                (Address::Dedicated, _) => Err(MigrateError::OtherAddress(name.clone())),
                (Address::Shared, true) => suits(vf),
                (Address::Shared, false) => Err(MigrateError::Occupied {
                    vf: name.clone(),
                    vm: self
                        .holders_in(state)
                        .swap_remove(usize::from(vf.0))
                        .unwrap_or_default(),
                }),
            };
        }
        let free = here.iter().copied().filter(|&vf| is_free(vf));
        // Places with a LID are for those who need one.
        let chosen = free.min_by_key(|&vf| {
            let has = has_lid(vf);
            (needs_lid && !has, !is_connected(vf), has != needs_lid)
        });
        let full = || MigrateError::Full {
            hypervisor: request.to.clone(),
            functions: here.len(),
        };
        suits(chosen.ok_or_else(full)?)
    }

    fn describe_readdress(
        &self,
        vm: usize,
        (from, to): (VfId, VfId),
        (before, lid): (Lid, Lid),
    ) -> Migrated {
        let guid = self.configured_guid(VfId(vm as u16));
        Migrated {
            vm: self.name(VfId(vm as u16)),
            lid: lid.value().into(),
            former_lid: Some(before.value()),
            guid: guid.to_string(),
            from: self.place_of(from),
            to: self.place_of(to),
            method: None,
            functions: Packets::default(),
            drops: Packets::default(),
            vswitches: Packets::default(),
            switches: Packets::default(),
            per_switch: Vec::new(),
            transition: None,
            round: None,
            waited: None,
            not_fewest: None,
            active_after_ms: None,
        }
    }

    /// Takes moves as far as they come now; whether VMs are elsewhere since.
    pub(super) fn advance_readdresses(&self, state: &mut SubnetState, now: Duration) -> bool {
        let mut moved = false;
        let all = std::mem::take(&mut state.readdresses);
        for mut readdress in all {
            match readdress.advance(state, now) {
                None => state.readdresses.push(readdress),
                Some(result) => {
                    moved |= result.is_ok();
                    // Who asked may have gone.
                    let _ = readdress.reply.try_send(result);
                }
            }
        }
        if moved {
            self.serve_occupants(state);
        }
        moved
    }
}

impl Readdress {
    /// When to look at it again at the latest.
    pub(super) fn due(&self) -> Duration {
        self.due
    }

    /// How it came out, if it is over.
    fn advance(
        &mut self,
        state: &mut SubnetState,
        now: Duration,
    ) -> Option<Result<(), ReaddressError>> {
        let SubnetState { shared, fabric, .. } = state;
        let (Some(from), Some(to)) = (shared.place(self.from), shared.place(self.to)) else {
            return Some(Err(ReaddressError::Overtaken));
        };
        if self.stage == Stage::Begun {
            if shared.wanted(from) != self.guid || !shared.wanted(to).is_none() {
                return Some(Err(ReaddressError::Overtaken));
            }
            shared.want(from, Guid::NONE);
            self.stage = Stage::Leaving;
        }
        if now >= self.due {
            shared.want(to, Guid::NONE);
            shared.want(from, self.guid);
            return Some(Err(ReaddressError::Silent));
        }
        if self.stage == Stage::Leaving {
            if shared.is_registered(from) != Ok(true) {
                return None;
            }
            shared.want(to, self.guid);
            self.stage = Stage::Arriving;
        }
        match shared.is_registered(to) {
            Err(_) => {
                shared.want(to, Guid::NONE);
                shared.want(from, self.guid);
                Some(Err(ReaddressError::Refused))
            }
            Ok(true) if to.guid(fabric) == Some(self.guid) => Some(Ok(())),
            Ok(_) => None,
        }
    }
}
