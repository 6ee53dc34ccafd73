//! VMs with a LID of their own, which the embedded subnet manager moves: it exchanges the identities of
//! two places.

use std::time::Duration;

use subnet_manager::{Migration, MigrationError, Target, Ticket};

use super::{Ground, How, MigrateError, Migrated, Move, Wish};
use crate::vswitch::{SubnetState, VSwitch};

/// A move that the subnet manager makes.
#[derive(Debug)]
pub(super) struct Managed {
    vm: usize,
    /// The hypervisor.
    to: String,
    /// Which of the managers.
    subnet: usize,
    migration: Migration,
    ticket: Option<Ticket>,
}

impl Managed {
    pub(super) fn plan(
        vswitch: &VSwitch,
        state: &SubnetState,
        wish: Wish<'_>,
    ) -> Result<Self, MigrateError> {
        let room = vswitch.room(state, &wish)?;
        let (request, vm) = (wish.request, wish.vm);
        let to = match (room.named, room.waits(&wish)) {
            (Some(vf), _) => Target::Function(vswitch.configured_guid(vf)),
            (None, Some(vf)) => {
                wish.promised.promise(vf);
                Target::Function(vswitch.configured_guid(vf))
            }
            // The subnet manager knows no kinds.
            (None, None) if room.mixed => {
                let vf = room.free(&wish).ok_or_else(|| MigrateError::Full {
                    hypervisor: request.to.clone(),
                    functions: room.functions,
                    need: vswitch.need_of(vm),
                })?;
                wish.promised.promise(vf);
                Target::Function(vswitch.configured_guid(vf))
            }
            // Another VM may make room until then.
            (None, None) => Target::Hypervisor(vswitch.places[room.first].vswitch),
        };
        Ok(Self {
            vm,
            to: request.to.clone(),
            subnet: vswitch.subnet_at(&request.to),
            migration: Migration {
                vm: vswitch.places[vm].guid,
                to,
                method: request.method,
                drop_first: request.drop_first,
                fewest: request.fewest,
                check_deadlock: true,
                destination_routed: request.destination_routed,
            },
            ticket: None,
        })
    }

    /// What the subnet manager says, with names.
    fn explain(
        &self,
        vswitch: &VSwitch,
        state: &SubnetState,
        error: MigrationError,
    ) -> MigrateError {
        match error {
            MigrationError::NoFreeFunction { functions, .. } => MigrateError::Full {
                hypervisor: self.to.clone(),
                functions,
                need: vswitch.need_of(self.vm),
            },
            MigrationError::Occupied { function } => {
                let occupants = vswitch.occupants(state);
                let mut places = vswitch.places.iter().zip(&occupants);
                MigrateError::Occupied {
                    vf: vswitch.name_of(function),
                    vm: places
                        .find(|(place, _)| place.guid == function)
                        .and_then(|(_, &occupant)| Some(vswitch.places[occupant?].name.clone()))
                        .unwrap_or_default(),
                }
            }
            MigrationError::Circular { blocker } => MigrateError::Circular {
                blocker: vswitch.name_of(blocker),
                need: vswitch.need_of(self.vm),
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
        let (vswitch, state) = (ground.vswitch, &*ground.state);
        Some(match result {
            Ok(moved) => Ok(Migrated {
                vm: vswitch.places[self.vm].name.clone(),
                guid: moved.vm,
                from: vswitch.place(moved.from),
                to: vswitch.place(moved.to),
                lid: moved.virtual_lid.unwrap_or_else(|| moved.lid.into()),
                former_lid: None,
                how: How::by_manager(vswitch, state, moved),
            }),
            Err(error) => Err(self.explain(vswitch, state, error)),
        })
    }

    fn due(&self) -> Option<Duration> {
        None
    }
}
