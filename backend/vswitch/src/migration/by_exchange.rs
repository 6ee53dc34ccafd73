//! VMs with a LID of their own that move to another subnet, or while another subnet manager manages
//! theirs.
//!
//! The VM's function and the free one at the destination change places: their links go down and come
//! up again, the vSwitches tell the managers, and these give LIDs and paths to whom they find where.
//! An OpenSM remembers LIDs by GUID, so that the VM keeps its own.

use std::time::Duration;

use hca::VfId;
use subnet_manager::MigrationError;
use wire::{Guid, Lid, PortState};

use super::{Ground, How, MigrateError, Migrated, Move, MoveRequest, Wish};
use crate::vswitch::{SubnetState, VSwitch};

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

/// A VM: its node changes places with a spare one's, and its port is to become Active then.
#[derive(Debug)]
pub(super) struct Exchange {
    request: MoveRequest,
    vm: usize,
    guid: Guid,
    from: VfId,
    to: VfId,
    /// The LID that it had.
    lid: Lid,
    began: Duration,
}

impl Exchange {
    pub(super) fn plan(
        vswitch: &VSwitch,
        state: &SubnetState,
        wish: Wish<'_>,
    ) -> Result<Self, MigrateError> {
        let to = free_function(vswitch, state, &wish)?;
        let occupants = vswitch.occupants(state);
        let from = { occupants.iter() }.position(|&occupant| occupant == Some(wish.vm));
        let from = from.ok_or_else(|| MigrateError::NotThere(wish.request.vm.clone()))?;
        let exchange = Self {
            request: wish.request.clone(),
            vm: wish.vm,
            guid: vswitch.places[wish.vm].guid,
            from: VfId(from as u16),
            to,
            lid: Lid::NONE,
            began: Duration::ZERO,
        };
        if wish.request.is_about_tables() {
            return Err(if exchange.crosses(vswitch) {
                MigrateError::Crossing {
                    vm: wish.request.vm.clone(),
                    hypervisor: wish.request.to.clone(),
                }
            } else {
                MigrateError::NotOurs
            });
        }
        wish.promised.promise(to);
        Ok(exchange)
    }

    /// Whether it leads to another subnet.
    fn crosses(&self, vswitch: &VSwitch) -> bool {
        vswitch.subnet_of(self.from) != vswitch.subnet_of(self.to)
    }
}

impl Move for Exchange {
    fn begin(&mut self, ground: &mut Ground<'_>) -> Result<(), MigrateError> {
        let Ground {
            vswitch,
            managers,
            state,
            now,
        } = ground;
        let not_there = || MigrateError::NotThere(self.request.vm.clone());
        let (Some(here), Some(there)) = (vswitch.port(self.from), vswitch.port(self.to)) else {
            return Err(not_there());
        };
        let crosses = self.crosses(vswitch);
        let lid = state.fabric.port_info(here).unwrap_or_default().lid;
        if crosses && vswitch.dynamic && !lid.is_unicast() {
            let vm = self.guid;
            return Err(MigrateError::Manager(MigrationError::NotRunning { vm }));
        }
        let spare = vswitch.occupants(state)[usize::from(self.to.0)];
        if !state.fabric.exchange(here, there) {
            return Err(not_there());
        }
        if crosses {
            let spare = vswitch.places[spare.ok_or_else(not_there)?].guid;
            let (vm, spare) = ((self.guid, self.from), (spare, self.to));
            vswitch.cross_subnets(managers, state, vm, spare);
        }
        vswitch.serve_occupants(state);
        (self.lid, self.began) = (lid, *now);
        Ok(())
    }

    fn advance(&mut self, ground: &mut Ground<'_>) -> Option<Result<Migrated, MigrateError>> {
        let (vswitch, now) = (ground.vswitch, ground.now);
        let fabric = &ground.state.fabric;
        let port = vswitch.port(self.to);
        let info = port.and_then(|port| fabric.port_info(port));
        let info = info.unwrap_or_default();
        let guid = port.and_then(|port| fabric.guids(port)?.first().copied());
        let is_there = guid == Some(self.guid);
        if is_there && info.port_state == PortState::Active && info.lid.is_unicast() {
            let lid = vswitch.physical_lid_in(ground.state, self.to);
            return Some(Ok(Migrated {
                vm: vswitch.places[self.vm].name.clone(),
                guid: self.guid,
                from: vswitch.place_of(self.from),
                to: vswitch.place_of(self.to),
                lid: lid.into(),
                former_lid: (lid != self.lid).then_some(self.lid),
                how: How::Exchange {
                    active_after: now.saturating_sub(self.began),
                },
            }));
        }
        let given_up = now >= self.began + self.request.allowed || !is_there;
        given_up.then(|| {
            Err(MigrateError::NotActive(NotActive {
                vf: vswitch.name(self.to),
                state: info.port_state,
                allowed: self.request.allowed,
            }))
        })
    }

    fn due(&self) -> Option<Duration> {
        Some(self.began + self.request.allowed)
    }
}

/// A VF where a VM with a LID of its own can go.
fn free_function(
    vswitch: &VSwitch,
    state: &SubnetState,
    wish: &Wish<'_>,
) -> Result<VfId, MigrateError> {
    let room = vswitch.room(state, wish)?;
    if let Some(vf) = room.named {
        return if room.free.contains(&vf) {
            Ok(vf)
        } else {
            Err(MigrateError::Occupied {
                vf: vswitch.name(vf),
                vm: vswitch.vm_name_at(state, vf),
            })
        };
    }
    let mut free = { room.free.iter().copied() }.filter(|&vf| !wish.promised.has(vf));
    let chosen = room.waits(wish).or_else(|| free.next());
    chosen.ok_or_else(|| MigrateError::Full {
        hypervisor: wish.request.to.clone(),
        functions: room.functions,
        need: vswitch.need_of(wish.vm),
    })
}
