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

use super::{Management, Message, SubnetState, guid_at};
use crate::config::{Address, Config, MadRules};
use crate::control::{
    Deadlock, Migrated, MigrationRequest, Packets, Place, SwitchPackets, Transition,
};

/// How long a migration may take, with every packet lost and a sweep after it.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A VF, and the VM that is configured there.
#[derive(Debug)]
pub(super) struct Slot {
    name: String,
    hypervisor: String,
    vswitch: Guid,
    /// Of the node, and of the VM's port; in a fabric it is at one place as either.
    guid: Guid,
    socket: String,
    address: Address,
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
        address: vf.address,
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
    /// The VF named has a LID of its own and the VM shares one, or the other way round.
    #[error(
        "the VF `{0}` and the VM differ in whether they share a LID (`address`); name another one"
    )]
    OtherAddress(String),
    /// Options for forwarding tables, where none changes.
    #[error(
        "`{0}` shares the LID of its hypervisor, so that no forwarding table changes when it moves; \
         leave out --method, --drop-first and --destination-routed"
    )]
    NoTables(String),
    /// The VM's GUID is at no port.
    #[error(
        "the GUID of `{0}` is registered at no port yet; `ibvswitch topology` says what the subnet \
         manager has done"
    )]
    NotThere(String),
    /// A VM that shares a LID stays where it was.
    #[error(transparent)]
    Readdress(super::ReaddressError),
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
        if self.slots[vm].address == Address::Shared {
            return self.readdress(request, vm, is_connected);
        }
        let slots = || self.slots.iter().enumerate();
        let here: Vec<usize> = self
            .functions_of(&request.to)?
            .into_iter()
            .map(|vf| usize::from(vf.0))
            .filter(|&index| self.slots[index].address == Address::Dedicated)
            .collect();
        let Some(&first) = here.first() else {
            return Err(MigrateError::Full {
                hypervisor: request.to.clone(),
                functions: 0,
            });
        };
        let occupants = self.with(|state| self.occupants(state));
        let is_free = |index: usize| {
            let occupant = occupants.get(index).copied().flatten();
            occupant.is_some_and(|occupant| self.slots[occupant].spare)
        };
        let to = match &request.vf {
            Some(name) => {
                let vf = self.function(name, &request.to)?;
                if self.address(vf) == Address::Shared {
                    return Err(MigrateError::OtherAddress(name.clone()));
                }
                Target::Function(self.configured_guid(vf))
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
            check_deadlock: true,
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
        let occupant = |(index, &port): (usize, &PortRef)| {
            let guid = guid_at(&state.fabric, &state.shared, VfId(index as u16), port)?;
            self.slots.iter().position(|slot| slot.guid == guid)
        };
        self.ports.iter().enumerate().map(occupant).collect()
    }

    /// The GUID of the VM that is configured at a VF, or nobody's of a spare one.
    pub(super) fn configured_guid(&self, vf: VfId) -> Guid {
        let slot = self.slots.get(usize::from(vf.0));
        slot.map_or(Guid::NONE, |slot| slot.guid)
    }

    /// For each VF, the name of the VM whose addresses are at it; `None` where it is nobody's.
    #[must_use]
    pub fn holders(&self) -> Vec<Option<String>> {
        self.holders_in(&self.state.lock())
    }

    pub(super) fn holders_in(&self, state: &SubnetState) -> Vec<Option<String>> {
        let occupants = self.occupants(state);
        let name = |occupant: Option<usize>| {
            let slot = &self.slots[occupant?];
            (!slot.spare).then(|| slot.name.clone())
        };
        occupants.into_iter().map(name).collect()
    }

    /// The VFs of a hypervisor.
    pub(super) fn functions_of(&self, hypervisor: &str) -> Result<Vec<VfId>, MigrateError> {
        let slots = || self.slots.iter().enumerate();
        let here: Vec<VfId> = slots()
            .filter(|(_, slot)| slot.hypervisor == hypervisor)
            .map(|(index, _)| VfId(index as u16))
            .collect();
        if here.is_empty() {
            let mut known: Vec<String> = slots().map(|(_, s)| s.hypervisor.clone()).collect();
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
    pub(super) fn function(&self, name: &str, hypervisor: &str) -> Result<VfId, MigrateError> {
        let index = self.slot("VF", name, |_| true)?;
        let slot = &self.slots[index];
        if slot.hypervisor != hypervisor {
            return Err(MigrateError::Elsewhere {
                vf: name.to_owned(),
                hypervisor: slot.hypervisor.clone(),
            });
        }
        Ok(VfId(index as u16))
    }

    /// Whether a VF is on this hypervisor.
    pub(super) fn is_on(&self, vf: VfId, hypervisor: &str) -> bool {
        let slot = self.slots.get(usize::from(vf.0));
        slot.is_some_and(|slot| slot.hypervisor == hypervisor)
    }

    /// Whether a VF has a LID of its own.
    pub(super) fn address(&self, vf: VfId) -> Address {
        let slot = self.slots.get(usize::from(vf.0));
        slot.map(|slot| slot.address).unwrap_or_default()
    }

    /// The name of a VF.
    pub(super) fn name(&self, vf: VfId) -> String {
        let slot = self.slots.get(usize::from(vf.0));
        slot.map(|slot| slot.name.clone()).unwrap_or_default()
    }

    /// A VF as a place that VMs come to and leave.
    pub(super) fn place_of(&self, vf: VfId) -> Place {
        self.place(self.configured_guid(vf))
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
            former_lid: None,
            guid: moved.vm.to_string(),
            from: self.place(moved.from),
            to: self.place(moved.to),
            method: Some(moved.method.into()),
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
            transition: moved.deadlock.as_ref().map(|found| {
                let (deadlock, circle) = match found {
                    subnet::Deadlock::Free => (Deadlock::None, None),
                    subnet::Deadlock::Unknown => (Deadlock::Unknown, None),
                    subnet::Deadlock::Possible(circle) => (Deadlock::Possible, Some(circle)),
                    subnet::Deadlock::Lasting(circle) => (Deadlock::Lasting, Some(circle)),
                    subnet::Deadlock::Standing(circle) => (Deadlock::Standing, Some(circle)),
                };
                let channels = circle.into_iter().flat_map(|circle| &circle.channels);
                Transition {
                    deadlock,
                    lane: circle.map(|circle| circle.lane),
                    circle: channels.map(|&(guid, port)| (name(guid), port)).collect(),
                }
            }),
        }
    }

    /// A VMM has connected to a VF, or has gone.
    pub fn presence(&self, vf: VfId, present: bool) {
        if self.model.is_dynamic() && self.address(vf) == Address::Dedicated {
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
            self.serve_occupants(state);
        }
    }

    /// Gives those who are at a VF now their rights.
    pub(super) fn serve_occupants(&self, state: &mut SubnetState) {
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
