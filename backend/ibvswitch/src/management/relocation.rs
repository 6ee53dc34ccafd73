//! VMs with a LID of their own that move to another subnet, or while another subnet manager manages
//! theirs.
//!
//! The VM's function and the free one at the destination change places: their links go down and come
//! up again, the vSwitches tell the managers, and these give LIDs and paths to whom they find where.
//! An OpenSM remembers LIDs by GUID, so that the VM keeps its own.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use hca::VfId;
use subnet::MigrationError;
use wire::{Guid, Lid, PortState};

use super::migration::{MigrateError, PATIENCE, Promised, wait};
use super::{Management, SubnetState};
use crate::control::{Migrated, MigrationRequest, Packets, allowed};

/// The manager has not made a port Active.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the VM's addresses are at `{vf}`, whose port is {state}: no subnet manager has made it Active \
     within {allowed:?}. Start one, or have it sweep; to have the VM where it was, migrate it back"
)]
pub struct NotActive {
    vf: String,
    state: PortState,
    allowed: Duration,
}

/// A VM whose port is to become Active.
#[derive(Debug)]
pub(super) struct Relocation {
    guid: Guid,
    to: VfId,
    began: Duration,
    /// How long the manager may take.
    allowed: Duration,
    reply: Sender<Result<Duration, NotActive>>,
}

/// The same for who asked.
#[derive(Debug)]
pub(super) struct Relocating {
    vm: usize,
    from: VfId,
    to: VfId,
    /// The LID that it had.
    lid: Lid,
    allowed: Duration,
    answer: Receiver<Result<Duration, NotActive>>,
}

impl Management {
    /// Has a VM's function and a free one at `to` change places.
    pub(super) fn begin_relocation(
        &self,
        request: &MigrationRequest,
        vm: usize,
        to: VfId,
        promised: &mut Promised,
    ) -> Result<Relocating, MigrateError> {
        let managers = &mut *self.managers.lock();
        let begun = self.with(|state| {
            let occupants = self.occupants(state);
            let from = occupants.iter().position(|&occupant| occupant == Some(vm));
            let not_there = || MigrateError::NotThere(request.vm.clone());
            let from = VfId(from.ok_or_else(not_there)? as u16);
            let guid = self.slots[vm].guid;
            let crosses = self.subnet_of(from) != self.subnet_of(to);
            if request.is_about_tables() {
                return Err(match crosses {
                    false => MigrateError::NotOurs,
                    true => MigrateError::Crossing {
                        vm: request.vm.clone(),
                        hypervisor: request.to.clone(),
                    },
                });
            }
            let (Some(&here), Some(&there)) = (
                self.ports.get(usize::from(from.0)),
                self.ports.get(usize::from(to.0)),
            ) else {
                return Err(not_there());
            };
            let lid = state.fabric.port_info(here).unwrap_or_default().lid;
            if crosses && self.dynamic && !lid.is_unicast() {
                let vm = guid;
                return Err(MigrateError::Manager(MigrationError::NotRunning { vm }));
            }
            if !state.fabric.exchange(here, there) {
                return Err(not_there());
            }
            if crosses {
                let spare = occupants.get(usize::from(to.0)).copied().flatten();
                let spare = self.slots[spare.ok_or_else(not_there)?].guid;
                self.cross_subnets(managers, state, (guid, from), (spare, to));
            }
            self.serve_occupants(state);
            let allowed = allowed(request.wait_s);
            let (reply, answer) = bounded(1);
            state.relocations.push(Relocation {
                guid,
                to,
                began: self.now(),
                allowed,
                reply,
            });
            Ok(Relocating {
                vm,
                from,
                to,
                lid,
                allowed,
                answer,
            })
        })?;
        promised.promise(to);
        self.look();
        Ok(begun)
    }

    /// Waits until its port is Active.
    pub(super) fn end_relocation(&self, begun: &Relocating) -> Result<Migrated, MigrateError> {
        let took =
            wait(&begun.answer, PATIENCE + begun.allowed)?.map_err(MigrateError::NotActive)?;
        let lid = self.physical_lid(begun.to);
        Ok(Migrated {
            vm: self.slots[begun.vm].name.clone(),
            lid: lid.value().into(),
            former_lid: (lid != begun.lid).then(|| begun.lid.value()),
            guid: self.slots[begun.vm].guid.to_string(),
            from: self.place_of(begun.from),
            to: self.place_of(begun.to),
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
            active_after_ms: Some(took.as_millis() as u64),
        })
    }

    /// Tells those who wait whose ports are Active, or have not become so.
    pub(super) fn advance_relocations(&self, state: &mut SubnetState, now: Duration) {
        let SubnetState {
            relocations,
            fabric,
            ..
        } = state;
        relocations.retain(|relocation| {
            let port = self.ports.get(usize::from(relocation.to.0)).copied();
            let info = port
                .and_then(|port| fabric.port_info(port))
                .unwrap_or_default();
            let guid = port.and_then(|port| fabric.guids(port)?.first().copied());
            let is_there = guid == Some(relocation.guid);
            let result =
                if is_there && info.port_state == PortState::Active && info.lid.is_unicast() {
                    Ok(now.saturating_sub(relocation.began))
                } else if now >= relocation.due() || !is_there {
                    Err(NotActive {
                        vf: self.name(relocation.to),
                        state: info.port_state,
                        allowed: relocation.allowed,
                    })
                } else {
                    return true;
                };
            // Who asked may have gone.
            let _ = relocation.reply.try_send(result);
            false
        });
    }
}

impl Relocation {
    /// When it is given up.
    pub(super) fn due(&self) -> Duration {
        self.began + self.allowed
    }
}
