//! VMs that move from one VF to another.
//!
//! A VF is a place: a socket, an engine function, a port of a vSwitch. Whose addresses are at it, the
//! port's GUID says: at first those of the VM that the configuration has there, or nobody's at a
//! spare one.

use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use fabric::{Owner, PortRef, SmpAccess};
use hca::VfId;
use subnet::{Migration, MigrationError, Moved, Target};
use tracing::{debug, warn};
use wire::Guid;

use super::{Management, Message, SubnetState};
use crate::config::{AddressModel, Config, MadRules};
use crate::control::{
    Deadlock, Migrated, MigrationRequest, Packets, Place, SwitchPackets, Transition,
};

/// How long a migration may take, with every packet lost and a sweep after it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A VF, and the VM that is configured there.
#[derive(Debug)]
pub(super) struct Slot {
    name: String,
    hypervisor: String,
    vswitch: Guid,
    /// Of the node, and of the VM's port; in a fabric it is at one place as either.
    guid: Guid,
    socket: String,
    smp: SmpAccess,
    mads: MadRules,
    spare: bool,
}

/// The VFs of a configuration, in its order.
pub(super) fn slots(config: &Config) -> Vec<Slot> {
    let slot = |(hypervisor, vf): (&crate::config::Hypervisor, &crate::config::Vf)| Slot {
        name: vf.name.clone(),
        hypervisor: hypervisor.name.clone(),
        vswitch: hypervisor.vswitch_guid,
        guid: vf.guid,
        socket: vf.socket.display().to_string(),
        smp: vf.smp,
        mads: vf.mads.clone(),
        spare: vf.spare,
    };
    config.vfs().map(slot).collect()
}

/// A migration, and who waits for its end.
#[derive(Debug)]
pub(super) struct Pending {
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

/// Why a VM did not move.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// Nothing has this name.
    #[error("there is no {what} `{name}`; there are {}", .known.join(", "))]
    Unknown {
        /// What was looked for.
        what: &'static str,
        /// The name.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A spare VF has no addresses to move.
    #[error("`{0}` is a spare VF and no VM; name a VM")]
    Spare(String),
    /// The VF named is another hypervisor's.
    #[error("the VF `{vf}` is on {hypervisor}; name one of the destination, or leave it out")]
    Elsewhere {
        /// The VF.
        vf: String,
        /// Its hypervisor.
        hypervisor: String,
    },
    /// The hypervisor has no spare VF left.
    #[error(
        "{hypervisor} has {functions} VFs and none is free; move a VM away from it, or give it \
         spare ones (`spare_vfs`)"
    )]
    Full {
        /// The hypervisor.
        hypervisor: String,
        /// Its VFs.
        functions: usize,
    },
    /// The VF named has a VM.
    #[error("the VF `{vf}` has the addresses of `{vm}`; name a free one, or leave it out")]
    Occupied {
        /// The VF.
        vf: String,
        /// The VM.
        vm: String,
    },
    /// The subnet manager says no.
    #[error(transparent)]
    Manager(MigrationError),
    /// Nobody here sends subnet management packets.
    #[error("another subnet manager manages the subnet; `sm.manager = \"embedded\"` moves VMs")]
    External,
    /// It may still come to its end.
    #[error("no end after a minute; `ibvswitch vf show` says where the VM's addresses are")]
    Late,
    /// The daemon is ending.
    #[error("the daemon is ending")]
    Ending,
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
        let vm = self.slot("VM", &request.vm, |slot| !slot.spare)?;
        let slots = || self.slots.iter().enumerate();
        let here: Vec<usize> = slots()
            .filter(|(_, slot)| slot.hypervisor == request.to)
            .map(|(index, _)| index)
            .collect();
        let Some(&first) = here.first() else {
            let mut known: Vec<String> = slots().map(|(_, s)| s.hypervisor.clone()).collect();
            known.dedup();
            return Err(MigrateError::Unknown {
                what: "hypervisor with VFs",
                name: request.to.clone(),
                known,
            });
        };
        let occupants = self.with(|state| self.occupants(state));
        let is_free = |index: usize| {
            let occupant = occupants.get(index).copied().flatten();
            occupant.is_some_and(|occupant| self.slots[occupant].spare)
        };
        let to = match &request.vf {
            Some(name) => {
                let index = self.slot("VF", name, |_| true)?;
                let slot = &self.slots[index];
                if slot.hypervisor != request.to {
                    return Err(MigrateError::Elsewhere {
                        vf: name.clone(),
                        hypervisor: slot.hypervisor.clone(),
                    });
                }
                Target::Function(slot.guid)
            }
            None => {
                let waits = |&&index: &&usize| is_free(index) && is_connected(VfId(index as u16));
                match here.iter().find(waits) {
                    Some(&index) => Target::Function(self.slots[index].guid),
                    None => Target::Hypervisor(self.slots[first].vswitch),
                }
            }
        };
        let elsewhere = occupants
            .iter()
            .position(|&occupant| occupant == Some(vm))
            .is_none_or(|at| self.slots[at].hypervisor != request.to);
        if request.vf.is_none() && !elsewhere {
            return Err(MigrateError::Manager(MigrationError::AlreadyThere));
        }
        let migration = Migration {
            vm: self.slots[vm].guid,
            to,
            method: request.method.map(Into::into),
            drop_first: request.drop_first,
            check_transition: true,
            destination_routed: request.destination_routed,
        };
        if self.state.lock().manager.is_none() {
            return Err(MigrateError::External);
        }
        let (reply, answer) = bounded(1);
        let pending = Pending { migration, reply };
        self.sender
            .send(Message::Migrate(pending))
            .map_err(|_| MigrateError::Ending)?;
        let answer = answer.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => MigrateError::Late,
            RecvTimeoutError::Disconnected => MigrateError::Ending,
        })?;
        match answer {
            Ok(moved) => Ok(self.describe(vm, &moved)),
            Err(MigrationError::NoFreeFunction { functions, .. }) => Err(MigrateError::Full {
                hypervisor: request.to.clone(),
                functions,
            }),
            Err(MigrationError::Occupied { function }) => Err(MigrateError::Occupied {
                vf: self.name_of(function),
                vm: slots()
                    .zip(&occupants)
                    .find(|((_, slot), _)| slot.guid == function)
                    .and_then(|(_, &occupant)| Some(self.slots[occupant?].name.clone()))
                    .unwrap_or_default(),
            }),
            Err(error) => Err(MigrateError::Manager(error)),
        }
    }

    /// For each VF, whose addresses are at it: the VF that is configured with them.
    pub(super) fn occupants(&self, state: &SubnetState) -> Vec<Option<usize>> {
        let occupant = |&port: &PortRef| {
            let guid = *state.fabric.guids(port)?.first()?;
            self.slots.iter().position(|slot| slot.guid == guid)
        };
        self.ports.iter().map(occupant).collect()
    }

    /// For each VF, the name of the VM whose addresses are at it; `None` where it is nobody's.
    #[must_use]
    pub fn holders(&self) -> Vec<Option<String>> {
        let occupants = self.occupants(&self.state.lock());
        let name = |occupant: Option<usize>| {
            let slot = &self.slots[occupant?];
            (!slot.spare).then(|| slot.name.clone())
        };
        occupants.into_iter().map(name).collect()
    }

    fn slot(
        &self,
        what: &'static str,
        name: &str,
        fits: impl Fn(&Slot) -> bool,
    ) -> Result<usize, MigrateError> {
        match self.slots.iter().position(|slot| slot.name == name) {
            Some(index) if fits(&self.slots[index]) => Ok(index),
            Some(_) => Err(MigrateError::Spare(name.to_owned())),
            None => Err(MigrateError::Unknown {
                what,
                name: name.to_owned(),
                known: self
                    .slots
                    .iter()
                    .filter(|slot| fits(slot))
                    .map(|slot| slot.name.clone())
                    .collect(),
            }),
        }
    }

    fn name_of(&self, function: Guid) -> String {
        let mut slots = self.slots.iter();
        let slot = slots.find(|slot| slot.guid == function);
        slot.map_or_else(|| function.to_string(), |slot| slot.name.clone())
    }

    fn place(&self, function: Guid) -> Place {
        let mut slots = self.slots.iter();
        match slots.find(|slot| slot.guid == function) {
            Some(slot) => Place {
                vf: slot.name.clone(),
                hypervisor: slot.hypervisor.clone(),
                socket: slot.socket.clone(),
            },
            None => Place::default(),
        }
    }

    fn describe(&self, vm: usize, moved: &Moved) -> Migrated {
        let packets = |packets: subnet::Packets| Packets {
            sent: packets.sent,
            updated: packets.updated,
        };
        let state = self.state.lock();
        let name = |guid: Guid| {
            let port = state.fabric.port_by_guid(guid);
            let text = port.and_then(|port| state.fabric.node_description(port.node));
            text.and_then(|text| Some(text.text()?.to_owned()))
                .unwrap_or_else(|| guid.to_string())
        };
        Migrated {
            vm: self.slots[vm].name.clone(),
            lid: moved.lid.value(),
            guid: moved.vm.to_string(),
            from: self.place(moved.from),
            to: self.place(moved.to),
            method: moved.method.into(),
            functions: packets(moved.functions),
            drops: packets(moved.drops),
            vswitches: packets(moved.vswitches),
            switches: packets(moved.switches),
            per_switch: moved
                .per_switch
                .iter()
                .map(|switch| SwitchPackets {
                    name: name(switch.guid),
                    vswitch: switch.is_vswitch,
                    packets: packets(switch.packets),
                })
                .collect(),
            transition: moved.transition.as_ref().map(|found| {
                let (deadlock, lane, channels) = match found {
                    subnet::Transition::Free => (Deadlock::None, None, &[][..]),
                    subnet::Transition::Unknown => (Deadlock::Unknown, None, &[][..]),
                    subnet::Transition::Possible { lane, channels } => {
                        (Deadlock::Possible, Some(*lane), &channels[..])
                    }
                    subnet::Transition::Standing { lane, channels } => {
                        (Deadlock::Standing, Some(*lane), &channels[..])
                    }
                };
                let circle = channels.iter().map(|&(guid, port)| (name(guid), port));
                Transition {
                    deadlock,
                    lane,
                    circle: circle.collect(),
                }
            }),
        }
    }

    /// A VMM has connected to a VF, or has gone.
    pub fn presence(&self, vf: VfId, present: bool) {
        if self.model == AddressModel::Dynamic {
            // Without the thread the daemon is ending.
            let _ = self.sender.send(Message::Presence(vf, present));
        }
    }

    /// Has the subnet manager give a LID to the VM at a VF, or take it back.
    pub(super) fn change_presence(&self, vf: VfId, present: bool) {
        let mut state = self.state.lock();
        let occupants = self.occupants(&state);
        let occupant = occupants.get(usize::from(vf.0)).copied().flatten();
        let Some(slot) = occupant.map(|index| &self.slots[index]) else {
            return;
        };
        if let (false, Some(manager)) = (slot.spare, &mut state.manager) {
            let ticket = match present {
                true => manager.start(slot.guid),
                false => manager.end(slot.guid),
            };
            state
                .migrations
                .push((ticket, Waiter::Log(slot.name.clone())));
        }
    }

    pub(super) fn begin_migration(&self, pending: Pending) {
        let mut state = self.state.lock();
        if let Some(manager) = &mut state.manager {
            let ticket = manager.migrate(pending.migration);
            state.migrations.push((ticket, Waiter::Client(pending)));
        }
    }

    /// Tells those who wait, and has the rights of VMs follow them.
    pub(super) fn answer_migrations(&self, state: &mut SubnetState) {
        let mut moved = false;
        let SubnetState {
            manager: Some(manager),
            migrations,
            ..
        } = state
        else {
            return;
        };
        migrations.retain(|(ticket, waiter)| {
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
        if moved {
            let occupants = self.occupants(state);
            for (index, (&port, occupant)) in self.ports.iter().zip(occupants).enumerate() {
                if let Some(occupant) = occupant {
                    let Slot {
                        name, smp, mads, ..
                    } = &self.slots[occupant];
                    state.fabric.set_owner(port, Owner::Consumer, *smp);
                    self.proxy.serve(VfId(index as u16), name, *smp, mads);
                }
            }
        }
    }
}
