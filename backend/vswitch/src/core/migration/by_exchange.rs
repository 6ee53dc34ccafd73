//! VMs with a LID of their own that move to another subnet, or while another subnet manager manages
//! theirs.
//!
//! The VM's function and the free one at the destination change places: their links go down and come
//! up again, the vSwitches tell the managers, and these give LIDs and paths to whom they find where.
//! An OpenSM remembers LIDs by GUID, so that the VM keeps its own.

use std::time::Duration;

use hca::VfId;
use subnet_manager::{Arrival, MigrationError};
use wire::{Guid, Lid, PortState};

use super::error::{MigrateError, NotActive};
use super::report::{How, Migrated};
use super::{Ground, Move, MoveRequest, Wish};
use crate::core::Core;
use crate::core::subnets::Managers;
use crate::layout::Layout;

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
    pub(super) fn plan(core: &Core, wish: Wish<'_>) -> Result<Self, MigrateError> {
        let to = free_function(core, &wish)?;
        let from = core.vf_of(wish.vm);
        let from = from.ok_or_else(|| MigrateError::NotThere(wish.request.vm.clone()))?;
        let exchange = Self {
            request: wish.request.clone(),
            vm: wish.vm,
            guid: core.layout.places[wish.vm].guid,
            from,
            to,
            lid: Lid::NONE,
            began: Duration::ZERO,
        };
        if wish.request.is_about_tables() {
            return Err(if exchange.crosses(&core.layout) {
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
    fn crosses(&self, layout: &Layout) -> bool {
        layout.subnet_of(self.from) != layout.subnet_of(self.to)
    }

    /// The VM's function and the spare one, whose ports have changed places, are in other subnets now:
    /// the ports forget what the managers have set, and the managers learn whom they have in place of
    /// whom.
    fn cross_subnets(&self, core: &mut Core, managers: &mut Managers, spare: Guid) {
        let Core { layout, fabric, .. } = core;
        for vf in [self.from, self.to] {
            if let Some(port) = layout.port(vf) {
                fabric.forget_subnet(port);
            }
        }
        let a_spare = Arrival {
            is_spare: true,
            has_lid: !layout.dynamic,
        };
        // Only VMs that run move, where it makes a difference.
        let a_vm = Arrival {
            is_spare: false,
            has_lid: true,
        };
        let [here, there] = [self.from, self.to].map(|vf| layout.subnet_of(vf));
        if let Some(manager) = &mut managers[here] {
            manager.exchanged(self.guid, spare, a_spare);
        }
        if let Some(manager) = &mut managers[there] {
            manager.exchanged(spare, self.guid, a_vm);
        }
    }
}

impl Move for Exchange {
    fn begin(&mut self, ground: &mut Ground<'_>) -> Result<(), MigrateError> {
        let Ground {
            core,
            managers,
            now,
        } = ground;
        let not_there = || MigrateError::NotThere(self.request.vm.clone());
        let layout = &core.layout;
        let (Some(here), Some(there)) = (layout.port(self.from), layout.port(self.to)) else {
            return Err(not_there());
        };
        let crosses = self.crosses(layout);
        let lid = core.fabric.port_info(here).unwrap_or_default().lid;
        if crosses && layout.dynamic && !lid.is_unicast() {
            let vm = self.guid;
            return Err(MigrateError::Manager(MigrationError::NotRunning { vm }));
        }
        let spare = core.occupants()[usize::from(self.to.0)];
        if !core.fabric.exchange(here, there) {
            return Err(not_there());
        }
        if crosses {
            let spare = core.layout.places[spare.ok_or_else(not_there)?].guid;
            self.cross_subnets(core, managers, spare);
        }
        core.serve_occupants();
        (self.lid, self.began) = (lid, *now);
        Ok(())
    }

    fn advance(&mut self, ground: &mut Ground<'_>) -> Option<Result<Migrated, MigrateError>> {
        let Ground { core, now, .. } = ground;
        let (layout, fabric) = (&core.layout, &core.fabric);
        let port = layout.port(self.to);
        let info = port.and_then(|port| fabric.port_info(port));
        let info = info.unwrap_or_default();
        let guid = port.and_then(|port| fabric.guids(port)?.first().copied());
        let is_there = guid == Some(self.guid);
        if is_there && info.port_state == PortState::Active && info.lid.is_unicast() {
            let lid = core.physical_lid(self.to);
            return Some(Ok(Migrated {
                vm: layout.places[self.vm].name.clone(),
                guid: self.guid,
                from: layout.place_of(self.from),
                to: layout.place_of(self.to),
                lid: lid.into(),
                former_lid: (lid != self.lid).then_some(self.lid),
                how: How::Exchange {
                    active_after: now.saturating_sub(self.began),
                },
            }));
        }
        let given_up = *now >= self.began + self.request.allowed || !is_there;
        given_up.then(|| {
            Err(MigrateError::NotActive(NotActive {
                vf: layout.name(self.to),
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
fn free_function(core: &Core, wish: &Wish<'_>) -> Result<VfId, MigrateError> {
    let room = wish.room(core)?;
    if let Some(vf) = room.named {
        return if room.free.contains(&vf) {
            Ok(vf)
        } else {
            Err(MigrateError::Occupied {
                vf: core.layout.name(vf),
                vm: core.vm_name_at(vf),
            })
        };
    }
    let mut free = { room.free.iter().copied() }.filter(|&vf| !wish.promised.has(vf));
    let chosen = room.waits(wish).or_else(|| free.next());
    chosen.ok_or_else(|| MigrateError::Full {
        hypervisor: wish.request.to.clone(),
        functions: room.functions,
        need: core.layout.need_of(wish.vm),
    })
}
