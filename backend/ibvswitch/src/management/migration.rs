//! VMs that move from one VF to another.

mod error;
mod report;

use std::collections::BTreeSet;
use std::slice;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use hca::VfId;
use subnet::{Migration, MigrationError, Moved, Target};
use tracing::{debug, warn};

use super::readdress::Readdressing;
use super::relocation::Relocating;
use super::{Management, Managers, Message, SubnetState};
use crate::config::Address;
use crate::control::{Migrated, MigrationRequest, MigrationsReport, MigrationsRequest};
pub use error::MigrateError;

/// How long a migration may take, with every packet lost and a sweep after it.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A migration, and who waits for its end.
#[derive(Debug)]
pub(super) struct Pending {
    /// Of which manager's.
    subnet: usize,
    migration: Migration,
    reply: Sender<Result<Moved, MigrationError>>,
}

/// Who wants to know how something with a VM's addresses came out.
#[derive(Debug)]
pub(super) enum Waiter {
    /// Somebody who asked for a migration.
    Client(Pending),
    /// The log: the VM of this name has started or ended.
    Log(String),
}

/// A move that has been asked for.
enum Begun {
    /// The embedded subnet manager makes it.
    Managed {
        vm: usize,
        to: String,
        answer: Receiver<Result<Moved, MigrationError>>,
    },
    /// The VM shares a LID.
    Readdressing(Readdressing),
    /// Another subnet manager gives it LID and paths.
    Relocating(Relocating),
}

/// Room at a hypervisor for VMs with LIDs of their own.
struct Room {
    /// The VF that is asked for.
    named: Option<VfId>,
    /// One of its VFs, as a slot.
    first: usize,
    /// How many it has.
    functions: usize,
    free: Vec<VfId>,
}

impl Room {
    /// A free VF that a VMM waits on.
    fn waits(&self, is_connected: impl Fn(VfId) -> bool, promised: &Promised) -> Option<VfId> {
        let mut free = self.free.iter().copied();
        free.find(|&vf| is_connected(vf) && !promised.has(vf))
    }
}

/// VFs that moves asked for together have been promised.
#[derive(Debug, Default)]
pub(super) struct Promised(BTreeSet<VfId>);

impl Promised {
    pub(super) fn has(&self, vf: VfId) -> bool {
        self.0.contains(&vf)
    }

    pub(super) fn promise(&mut self, vf: VfId) {
        self.0.insert(vf);
    }
}

impl Management {
    /// Moves a VM and waits until it has moved. `is_connected` tells which VFs have a VMM: where
    /// the destination is a hypervisor, a free VF with one is taken first, since that is where a VM
    /// waits to be received.
    ///
    /// # Errors
    /// [`MigrateError`]; the VM is where it was then, or where it was to go if the message says so.
    pub fn migrate(
        &self,
        request: &MigrationRequest,
        is_connected: impl Fn(VfId) -> bool,
    ) -> Result<Migrated, MigrateError> {
        let mut outcomes = self.migrate_each(slice::from_ref(request), is_connected)?;
        let migrated = outcomes.pop().unwrap_or(Err(MigrateError::Ending))?;
        Ok(Migrated {
            round: None,
            ..migrated
        })
    }

    /// Moves VMs, at the same time where they can, and waits until each has moved or will not.
    /// `is_connected` as of [`Management::migrate`].
    ///
    /// # Errors
    /// [`MigrateError`] for mistakes in names; none has moved then.
    pub fn migrate_all(
        &self,
        request: &MigrationsRequest,
        is_connected: impl Fn(VfId) -> bool,
    ) -> Result<MigrationsReport, MigrateError> {
        let requests: Vec<MigrationRequest> = request.requests().collect();
        let outcomes = self.migrate_each(&requests, is_connected)?;
        Ok(self.report(&requests, outcomes))
    }

    fn migrate_each(
        &self,
        requests: &[MigrationRequest],
        is_connected: impl Fn(VfId) -> bool,
    ) -> Result<Vec<Result<Migrated, MigrateError>>, MigrateError> {
        let mut vms = Vec::with_capacity(requests.len());
        for request in requests {
            let vm = self.slot("VM", &request.vm, |slot| !slot.spare)?;
            if vms.contains(&vm) {
                return Err(MigrateError::Twice(request.vm.clone()));
            }
            vms.push(vm);
            self.functions_of(&request.to)?;
            if let Some(name) = &request.vf {
                self.function(name, &request.to)?;
            }
        }
        let external = !self.state.read().is_managed();
        let mut promised = Promised::default();
        let mut managed = Vec::new();
        let mut begun = Vec::with_capacity(requests.len());
        for (request, &vm) in requests.iter().zip(&vms) {
            begun.push(match self.slots[vm].address {
                Address::Shared => self
                    .begin_readdress(request, vm, &is_connected, &mut promised)
                    .map(Begun::Readdressing),
                Address::Dedicated if external || self.crosses(request, vm) => self
                    .free_function(request, vm, &is_connected, &promised)
                    .and_then(|to| self.begin_relocation(request, vm, to, &mut promised))
                    .map(Begun::Relocating),
                Address::Dedicated => self
                    .migration(request, vm, &is_connected, &mut promised)
                    .map(|migration| {
                        let (reply, answer) = bounded(1);
                        let subnet = self.subnet_at(&request.to);
                        managed.push(Pending {
                            subnet,
                            migration,
                            reply,
                        });
                        let to = request.to.clone();
                        Begun::Managed { vm, to, answer }
                    }),
            });
        }
        if !managed.is_empty() {
            self.sender
                .send(Message::Migrate(managed))
                .map_err(|_| MigrateError::Ending)?;
        }
        let ends = begun.into_iter().map(|begun| match begun? {
            Begun::Managed { vm, to, answer } => match wait(&answer, PATIENCE)? {
                Ok(moved) => Ok(self.describe(vm, &moved)),
                Err(error) => Err(self.explain(&to, error)),
            },
            Begun::Readdressing(begun) => self.end_readdress(&begun),
            Begun::Relocating(begun) => self.end_relocation(&begun),
        });
        Ok(ends.collect())
    }

    /// The subnet of a hypervisor.
    fn subnet_at(&self, hypervisor: &str) -> usize {
        let mut slots = self.slots.iter();
        let slot = slots.find(|slot| slot.hypervisor == hypervisor);
        slot.map_or(0, |slot| slot.subnet)
    }

    /// Whether a VM is to go to another subnet than it is in.
    fn crosses(&self, request: &MigrationRequest, vm: usize) -> bool {
        let occupants = self.occupants(&self.state.read());
        let at = occupants.iter().position(|&occupant| occupant == Some(vm));
        at.is_some_and(|at| self.slots[at].subnet != self.subnet_at(&request.to))
    }

    /// What the subnet manager is to do for a VM with a LID of its own.
    fn migration(
        &self,
        request: &MigrationRequest,
        vm: usize,
        is_connected: impl Fn(VfId) -> bool,
        promised: &mut Promised,
    ) -> Result<Migration, MigrateError> {
        let room = self.room(request, vm)?;
        let to = match (room.named, room.waits(is_connected, promised)) {
            (Some(vf), _) => Target::Function(self.configured_guid(vf)),
            (None, Some(vf)) => {
                promised.promise(vf);
                Target::Function(self.configured_guid(vf))
            }
            // Another VM may make room until then.
            (None, None) => Target::Hypervisor(self.slots[room.first].vswitch),
        };
        Ok(Migration {
            vm: self.slots[vm].guid,
            to,
            method: request.method.map(Into::into),
            drop_first: request.drop_first,
            fewest: request.fewest,
            check_deadlock: true,
            destination_routed: request.destination_routed,
        })
    }

    /// A VF where a VM with a LID of its own can go.
    fn free_function(
        &self,
        request: &MigrationRequest,
        vm: usize,
        is_connected: impl Fn(VfId) -> bool,
        promised: &Promised,
    ) -> Result<VfId, MigrateError> {
        let room = self.room(request, vm)?;
        if let Some(vf) = room.named {
            return match room.free.contains(&vf) {
                true => Ok(vf),
                false => Err(MigrateError::Occupied {
                    vf: self.name(vf),
                    vm: self
                        .holders()
                        .swap_remove(usize::from(vf.0))
                        .unwrap_or_default(),
                }),
            };
        }
        let mut free = room.free.iter().copied().filter(|&vf| !promised.has(vf));
        let chosen = room.waits(is_connected, promised).or_else(|| free.next());
        chosen.ok_or_else(|| MigrateError::Full {
            hypervisor: request.to.clone(),
            functions: room.functions,
        })
    }

    /// What room the destination has for a VM with a LID of its own.
    fn room(&self, request: &MigrationRequest, vm: usize) -> Result<Room, MigrateError> {
        let named = match &request.vf {
            Some(name) => {
                let vf = self.function(name, &request.to)?;
                if self.address(vf) == Address::Shared {
                    return Err(MigrateError::OtherAddress(name.clone()));
                }
                Some(vf)
            }
            None => None,
        };
        let here: Vec<VfId> = self
            .functions_of(&request.to)?
            .into_iter()
            .filter(|&vf| self.address(vf) == Address::Dedicated)
            .collect();
        let Some(&first) = here.first() else {
            return Err(MigrateError::Full {
                hypervisor: request.to.clone(),
                functions: 0,
            });
        };
        let occupants = self.occupants(&self.state.read());
        let at = |vf: VfId| occupants.get(usize::from(vf.0)).copied().flatten();
        if named.is_none() && here.iter().any(|&vf| at(vf) == Some(vm)) {
            return Err(MigrateError::Manager(MigrationError::AlreadyThere));
        }
        let is_free = |&vf: &VfId| at(vf).is_some_and(|occupant| self.slots[occupant].spare);
        Ok(Room {
            named,
            first: usize::from(first.0),
            functions: here.len(),
            free: here.into_iter().filter(is_free).collect(),
        })
    }

    /// A VMM has connected to a VF, or has gone.
    pub fn presence(&self, vf: VfId, present: bool) {
        if self.dynamic && self.address(vf) == Address::Dedicated {
            // Without the thread the daemon is ending.
            let _ = self.sender.send(Message::Presence(vf, present));
        }
    }

    /// Has the subnet manager give a LID to the VM at a VF, or take it back.
    pub(super) fn change_presence(&self, vf: VfId, present: bool) {
        let managers = &mut *self.managers.lock();
        let mut state = self.state.write();
        let occupants = self.occupants(&state);
        let occupant = occupants.get(usize::from(vf.0)).copied().flatten();
        let Some(slot) = occupant.map(|index| &self.slots[index]) else {
            return;
        };
        let at = self.subnet_of(vf);
        let subnet = &mut state.subnets[at];
        if let (false, Some(manager)) = (slot.spare, &mut managers[at]) {
            let ticket = match present {
                true => manager.start(slot.guid),
                false => manager.end(slot.guid),
            };
            subnet
                .migrations
                .push((ticket, Waiter::Log(slot.name.clone())));
        }
    }

    /// Asks the subnet manager for moves, all before it begins with any.
    pub(super) fn begin_migrations(&self, all: Vec<Pending>) {
        let managers = &mut *self.managers.lock();
        let mut state = self.state.write();
        for pending in all {
            let subnet = &mut state.subnets[pending.subnet];
            if let Some(manager) = &mut managers[pending.subnet] {
                let ticket = manager.migrate(pending.migration);
                subnet.migrations.push((ticket, Waiter::Client(pending)));
            }
        }
    }

    /// Tells those who wait, and has the rights of VMs follow them.
    pub(super) fn answer_migrations(&self, managers: &mut Managers, state: &mut SubnetState) {
        let mut moved = false;
        for (subnet, manager) in state.subnets.iter_mut().zip(managers) {
            let Some(manager) = manager else {
                continue;
            };
            subnet.migrations.retain(|(ticket, waiter)| {
                let Some(result) = manager.take_migration(*ticket) else {
                    return true;
                };
                match (waiter, result) {
                    (Waiter::Client(pending), result) => {
                        moved = true;
                        // Who asked may have gone.
                        let _ = pending.reply.try_send(result);
                    }
                    (Waiter::Log(vm), Ok(moved)) => {
                        debug!(vm, lid = %moved.lid, switches = moved.switches.sent, "LID set or freed");
                    }
                    // It has a LID already, having come with it; or none, having left.
                    (
                        Waiter::Log(_),
                        Err(MigrationError::AlreadyThere | MigrationError::NotRunning { .. }),
                    ) => {}
                    (Waiter::Log(vm), Err(error)) => warn!(vm, "{error}"),
                }
                false
            });
        }
        if moved {
            self.serve_occupants(state);
        }
    }
}

/// Waits for the end of a move.
pub(super) fn wait<T>(answer: &Receiver<T>, patience: Duration) -> Result<T, MigrateError> {
    answer.recv_timeout(patience).map_err(|error| match error {
        RecvTimeoutError::Timeout => MigrateError::Late,
        RecvTimeoutError::Disconnected => MigrateError::Ending,
    })
}
