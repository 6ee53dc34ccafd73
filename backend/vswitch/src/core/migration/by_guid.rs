//! VMs that share a port and move: the GUID leaves one port and goes to another. Where ports are shared, it is registered with
//! the subnet administration; where they have virtual ports, it leaves one of these for another. A shared LID becomes that
//! of the other port.
//!
//! No forwarding table changes, and other VMs of the two hypervisors notice nothing. Peers have to ask
//! for the new LID: their connections to the VM end.

use std::time::Duration;

use hca::VfId;
use wire::{Guid, Lid};

use super::error::{GuidMoveError, MigrateError};
use super::report::{How, Migrated};
use super::{Ground, Move, Wish};
use crate::core::Core;
use crate::model::Address;

/// Limit for the subnet administration and the manager.
const GUID_MOVE_TIMEOUT: Duration = Duration::from_secs(30);

/// A VM that shares a port and is to move.
#[derive(Debug)]
pub(super) struct GuidMove {
    vm: usize,
    guid: Guid,
    from: VfId,
    to: VfId,
    /// The LID that it had.
    lid: Lid,
    stage: Stage,
    /// When it is given up.
    due: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begun,
    /// The GUID leaves the one port.
    Leaving,
    /// The other port gets it.
    Arriving,
}

impl GuidMove {
    pub(super) fn plan(core: &Core, wish: Wish<'_>) -> Result<Self, MigrateError> {
        let (request, vm) = (wish.request, wish.vm);
        if request.is_about_tables() {
            return Err(MigrateError::NoTables(request.vm.clone()));
        }
        let from = core.vf_of(vm);
        let from = from.ok_or_else(|| MigrateError::NotThere(request.vm.clone()))?;
        let to = free_place(core, &wish, from)?;
        wish.promised.promise(to);
        Ok(Self {
            vm,
            guid: core.layout.places[vm].guid,
            from,
            to,
            lid: core.physical_lid(from),
            stage: Stage::Begun,
            due: None,
        })
    }

    /// Whether the GUID is at its new place.
    fn registered(&mut self, core: &mut Core, now: Duration) -> Outcome {
        let Core { shared, fabric, .. } = core;
        let (Some(from), Some(to)) = (shared.place(self.from), shared.place(self.to)) else {
            return Some(Err(GuidMoveError::Overtaken));
        };
        if self.stage == Stage::Begun {
            if shared.wanted(from) != self.guid || !shared.wanted(to).is_none() {
                return Some(Err(GuidMoveError::Overtaken));
            }
            shared.want(from, Guid::NONE);
            self.stage = Stage::Leaving;
        }
        if self.due.is_some_and(|due| now >= due) {
            shared.want(to, Guid::NONE);
            shared.want(from, self.guid);
            return Some(Err(GuidMoveError::Silent));
        }
        if self.stage == Stage::Leaving {
            if shared.is_registered(from, fabric) != Ok(true) {
                return None;
            }
            shared.want(to, self.guid);
            self.stage = Stage::Arriving;
        }
        match shared.is_registered(to, fabric) {
            Err(_) => {
                shared.want(to, Guid::NONE);
                shared.want(from, self.guid);
                Some(Err(GuidMoveError::Refused))
            }
            Ok(true) if to.guid(fabric) == Some(self.guid) => Some(Ok(())),
            Ok(_) => None,
        }
    }
}

/// The result, if the move is over.
type Outcome = Option<Result<(), GuidMoveError>>;

impl Move for GuidMove {
    fn begin(&mut self, ground: &mut Ground<'_>) -> Result<(), MigrateError> {
        self.due = Some(ground.now + GUID_MOVE_TIMEOUT);
        Ok(())
    }

    fn advance(&mut self, ground: &mut Ground<'_>) -> Option<Result<Migrated, MigrateError>> {
        if let Err(error) = self.registered(ground.core, ground.now)? {
            return Some(Err(MigrateError::Guid(error)));
        }
        let layout = &ground.core.layout;
        Some(Ok(Migrated {
            vm: layout.places[self.vm].name.clone(),
            guid: self.guid,
            from: layout.place_of(self.from),
            to: layout.place_of(self.to),
            lid: ground.core.physical_lid(self.to).into(),
            former_lid: Some(self.lid),
            how: How::Guid,
        }))
    }

    fn due(&self) -> Option<Duration> {
        self.due
    }
}

/// A place at the destination that nobody has: rather one with a VMM.
fn free_place(core: &Core, wish: &Wish<'_>, from: VfId) -> Result<VfId, MigrateError> {
    let (request, layout) = (wish.request, &core.layout);
    let here = layout.functions_of(&request.to)?;
    if layout.is_on(from, &request.to) && request.vf.is_none() {
        return Err(MigrateError::Manager(
            subnet_manager::MigrationError::AlreadyThere,
        ));
    }
    let is_free = |vf: VfId| {
        let place = core.shared.place(vf);
        !wish.promised.has(vf) && place.is_some_and(|place| core.shared.wanted(place).is_none())
    };
    let guid = layout.places[wish.vm].guid;
    let needs_lid = core.shared.wants_own_lid(guid);
    let has_lid = |vf: VfId| {
        let place = core.shared.place(vf);
        place.is_some_and(|place| place.has_room_for_lid(&core.fabric))
    };
    let suits = |vf: VfId| {
        if !needs_lid || has_lid(vf) {
            return Ok(vf);
        }
        let place = core.shared.place(vf);
        let port = place.and_then(|place| core.fabric.port_info(place.port));
        Err(MigrateError::Range {
            vm: request.vm.clone(),
            hypervisor: request.to.clone(),
            place: place.map_or(0, |place| place.entry),
            lmc: port.unwrap_or_default().lmc,
        })
    };
    if let Some(name) = &request.vf {
        let vf = layout.vf_named(name, &request.to)?;
        return match (layout.address(vf), is_free(vf)) {
            (Address::Dedicated, _) => Err(MigrateError::OtherAddress(name.clone())),
            (Address::Shared, true) => suits(vf),
            (Address::Shared, false) => Err(MigrateError::Occupied {
                vf: name.clone(),
                vm: core.vm_name_at(vf),
            }),
        };
    }
    let free = here.iter().copied().filter(|&vf| is_free(vf));
    // Places with a LID are for those who need one.
    let chosen = free.min_by_key(|&vf| {
        let has = has_lid(vf);
        (
            needs_lid && !has,
            !(wish.is_connected)(vf),
            has != needs_lid,
        )
    });
    let full = || MigrateError::Full {
        hypervisor: request.to.clone(),
        functions: { here.iter() }
            .filter(|&&vf| layout.address(vf) == Address::Shared)
            .count(),
        need: layout.need_of(wish.vm),
    };
    suits(chosen.ok_or_else(full)?)
}
