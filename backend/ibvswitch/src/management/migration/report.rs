//! What migrations took, as programs and people read it.

use subnet::{MigrationError, Moved, Wait};
use wire::Guid;

use super::super::{Management, SubnetState};
use super::MigrateError;
use crate::control::{
    Deadlock, Migrated, MigrationRequest, MigrationsReport, MoveOutcome, Packets, StepPackets,
    SwitchPackets, Transition, Waited,
};

impl Management {
    pub(super) fn describe(&self, vm: usize, moved: &Moved) -> Migrated {
        let packets = |packets: subnet::Packets| Packets {
            sent: packets.sent,
            updated: packets.updated,
        };
        let state = self.state.read();
        let name = |guid: Guid| state.node_name(guid);
        Migrated {
            vm: self.slots[vm].name.clone(),
            lid: moved
                .virtual_lid
                .unwrap_or_else(|| moved.lid.into())
                .value(),
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
            round: Some(moved.round),
            waited: moved.waited.map(|wait| match wait {
                Wait::Switch { switch, vm } => Waited::Switch {
                    switch: name(switch),
                    vm: self.name_of(vm),
                },
                Wait::Place { vm } => Waited::Place {
                    vm: self.name_of(vm),
                },
                Wait::Itself => Waited::Itself,
                Wait::Turn => Waited::Turn,
            }),
            not_fewest: moved.not_fewest.as_ref().map(ToString::to_string),
            active_after_ms: None,
        }
    }

    /// What the subnet manager says, with names.
    pub(super) fn explain(&self, hypervisor: &str, error: MigrationError) -> MigrateError {
        match error {
            MigrationError::NoFreeFunction { functions, .. } => MigrateError::Full {
                hypervisor: hypervisor.to_owned(),
                functions,
            },
            MigrationError::Occupied { function } => {
                let occupants = self.occupants(&self.state.read());
                let mut slots = self.slots.iter().zip(&occupants);
                MigrateError::Occupied {
                    vf: self.name_of(function),
                    vm: slots
                        .find(|(slot, _)| slot.guid == function)
                        .and_then(|(_, &occupant)| Some(self.slots[occupant?].name.clone()))
                        .unwrap_or_default(),
                }
            }
            MigrationError::Circular { blocker } => MigrateError::Circular {
                blocker: self.name_of(blocker),
            },
            error => MigrateError::Manager(error),
        }
    }

    /// How several moves came out, with rounds from 1.
    pub(super) fn report(
        &self,
        requests: &[MigrationRequest],
        outcomes: Vec<Result<Migrated, MigrateError>>,
    ) -> MigrationsReport {
        let round = |outcome: &Result<Migrated, MigrateError>| match outcome {
            Ok(migrated) => migrated.round,
            Err(MigrateError::Manager(MigrationError::Interrupted { round, .. })) => Some(*round),
            Err(_) => None,
        };
        let before = outcomes.iter().filter_map(round).min().unwrap_or(1) - 1;
        let mut packets = StepPackets::default();
        let moves = requests.iter().zip(outcomes).map(|(request, outcome)| {
            let round = round(&outcome).map(|round| round - before);
            match outcome {
                Ok(migrated) => {
                    packets.add(&migrated);
                    MoveOutcome::Moved(Box::new(Migrated { round, ..migrated }))
                }
                Err(error) => MoveOutcome::Failed {
                    vm: request.vm.clone(),
                    to: request.to.clone(),
                    round,
                    error: error.to_string(),
                },
            }
        });
        MigrationsReport {
            moves: moves.collect(),
            packets,
        }
    }
}

impl SubnetState {
    /// The text of the node where this GUID is.
    fn node_name(&self, guid: Guid) -> String {
        let port = self.fabric.port_by_guid(guid);
        let text = port.and_then(|port| self.fabric.node_description(port.node));
        text.and_then(|text| Some(text.text()?.to_owned()))
            .unwrap_or_else(|| guid.to_string())
    }
}
