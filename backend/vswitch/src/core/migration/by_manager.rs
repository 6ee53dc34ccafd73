//! VMs with a LID of their own, which the embedded subnet manager moves: it exchanges the identities of
//! two places.

use std::collections::HashMap;
use std::time::Duration;

use fabric::Fabric;
use subnet_manager::{Deadlock, Migration, MigrationError, Moved, Target, Ticket, Wait};
use wire::Guid;

use super::error::MigrateError;
use super::report::{How, Migrated};
use super::{Ground, Move, Wish};
use crate::core::Core;

/// A move that the subnet manager makes.
#[derive(Debug)]
pub(super) struct Managed {
    vm: usize,
    /// The hypervisor.
    to: String,
    /// Index of the manager.
    subnet: usize,
    migration: Migration,
    ticket: Option<Ticket>,
}

impl Managed {
    pub(super) fn plan(core: &Core, wish: Wish<'_>) -> Result<Self, MigrateError> {
        let layout = &core.layout;
        let room = wish.room(core)?;
        let (request, vm) = (wish.request, wish.vm);
        let to = match (room.named, room.waits(&wish)) {
            (Some(vf), _) => Target::Function(layout.configured_guid(vf)),
            (None, Some(vf)) => {
                wish.promised.promise(vf);
                Target::Function(layout.configured_guid(vf))
            }
            // The subnet manager knows no kinds.
            (None, None) if room.mixed => {
                let vf = room.free(&wish).ok_or_else(|| MigrateError::Full {
                    hypervisor: request.to.clone(),
                    functions: room.functions,
                    need: layout.need_of(vm),
                })?;
                wish.promised.promise(vf);
                Target::Function(layout.configured_guid(vf))
            }
            // Another VM may make room until then.
            (None, None) => Target::Hypervisor(layout.places[room.first].vswitch),
        };
        Ok(Self {
            vm,
            to: request.to.clone(),
            subnet: layout.subnet_at(&request.to),
            migration: Migration {
                vm: layout.places[vm].guid,
                to,
                method: request.method,
                drop_first: request.drop_first,
                every_switch: request.every_switch,
                check_deadlock: true,
                destination_routed: request.destination_routed,
            },
            ticket: None,
        })
    }

    /// The subnet manager's error, with names.
    fn explain(&self, core: &Core, error: MigrationError) -> MigrateError {
        let layout = &core.layout;
        match error {
            MigrationError::NoFreeFunction { functions, .. } => MigrateError::Full {
                hypervisor: self.to.clone(),
                functions,
                need: layout.need_of(self.vm),
            },
            MigrationError::Occupied { function } => {
                let occupants = core.occupants();
                let mut places = layout.places.iter().zip(&occupants);
                MigrateError::Occupied {
                    vf: layout.name_of(function),
                    vm: places
                        .find(|(place, _)| place.guid == function)
                        .and_then(|(_, &occupant)| Some(layout.places[occupant?].name.clone()))
                        .unwrap_or_default(),
                }
            }
            MigrationError::Circular { blocker } => MigrateError::Circular {
                blocker: layout.name_of(blocker),
                need: layout.need_of(self.vm),
            },
            error => MigrateError::Manager(error),
        }
    }
}

impl Move for Managed {
    fn begin(&mut self, ground: &mut Ground<'_>) -> Result<(), MigrateError> {
        let manager = ground.managers.get_mut(self.subnet);
        let manager = manager.and_then(Option::as_mut);
        self.ticket = manager.map(|manager| manager.migrate(self.migration));
        Ok(())
    }

    fn advance(&mut self, ground: &mut Ground<'_>) -> Option<Result<Migrated, MigrateError>> {
        let manager = ground.managers.get_mut(self.subnet)?.as_mut()?;
        let result = manager.take_migration(self.ticket?)?;
        let core = &*ground.core;
        let layout = &core.layout;
        Some(match result {
            Ok(moved) => Ok(Migrated {
                vm: layout.places[self.vm].name.clone(),
                guid: moved.vm,
                from: layout.place(moved.from),
                to: layout.place(moved.to),
                lid: moved.virtual_lid.unwrap_or_else(|| moved.lid.into()),
                former_lid: None,
                how: How::by_manager(core, moved),
            }),
            Err(error) => Err(self.explain(core, error)),
        })
    }

    fn due(&self) -> Option<Duration> {
        None
    }
}

impl How {
    /// By the embedded subnet manager.
    fn by_manager(core: &Core, moved: Moved) -> Self {
        let circle = match &moved.deadlock {
            Some(
                Deadlock::Possible(circle) | Deadlock::Lasting(circle) | Deadlock::Standing(circle),
            ) => &circle.channels[..],
            _ => &[],
        };
        let switches = { moved.per_switch.iter() }.map(|switch| switch.guid);
        let switches = switches.chain(circle.iter().map(|&(guid, _)| guid));
        let (switch, vm) = match moved.waited {
            Some(Wait::Switch { switch, vm }) => (Some(switch), Some(vm)),
            Some(Wait::Place { vm }) => (None, Some(vm)),
            Some(Wait::Itself | Wait::Turn) | None => (None, None),
        };
        let switches = switches.chain(switch);
        let mut names: HashMap<Guid, String> = switches
            .map(|guid| (guid, node_name(&core.fabric, guid)))
            .collect();
        names.extend(vm.map(|vm| (vm, core.layout.name_of(vm))));
        Self::Manager {
            moved: Box::new(moved),
            names,
        }
    }
}

/// The text of the node where this GUID is.
fn node_name(fabric: &Fabric, guid: Guid) -> String {
    let port = fabric.port_by_guid(guid);
    let text = port.and_then(|port| fabric.node_description(port.node));
    text.and_then(|text| Some(text.text()?.to_owned()))
        .unwrap_or_else(|| guid.to_string())
}
