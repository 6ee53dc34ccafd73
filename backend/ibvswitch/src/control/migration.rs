//! Migrations of a subnet, as the control socket tells them.

use std::collections::HashMap;

use subnet_manager::Wait;
use vswitch::{How, MoveRequest};
use wire::Guid;

use super::{
    Deadlock, Method, Migrated, MigrationRequest, MigrationsReport, MoveOutcome, Packets, Place,
    StepPackets, SwitchPackets, Transition, Waited, allowed,
};
use config::Config;

/// A request, for the vSwitch.
pub(crate) fn move_request(request: &MigrationRequest) -> MoveRequest {
    MoveRequest {
        tag: 0,
        vm: request.vm.clone(),
        to: request.to.clone(),
        vf: request.vf.clone(),
        method: request.method.map(manager_method),
        drop_first: request.drop_first,
        every_switch: request.every_switch,
        destination_routed: request.destination_routed,
        allowed: allowed(request.wait_s),
    }
}

const fn manager_method(method: Method) -> subnet_manager::Method {
    match method {
        Method::Swap => subnet_manager::Method::Swap,
        Method::Copy => subnet_manager::Method::Copy,
        Method::Full => subnet_manager::Method::Full,
    }
}

const fn method(method: subnet_manager::Method) -> Method {
    match method {
        subnet_manager::Method::Swap => Method::Swap,
        subnet_manager::Method::Copy => Method::Copy,
        subnet_manager::Method::Full => Method::Full,
    }
}

fn place(config: &Config, place: vswitch::Place) -> Place {
    let vf = config.vf(&place.vf);
    Place {
        socket: vf.map_or(String::new(), |(_, vf)| vf.socket.display().to_string()),
        vf: place.vf,
        hypervisor: place.hypervisor,
    }
}

const fn packets(packets: subnet_manager::Packets) -> Packets {
    Packets {
        sent: packets.sent,
        updated: packets.updated,
    }
}

/// A VM of `config` that has moved.
pub(crate) fn migrated(config: &Config, migrated: vswitch::Migrated) -> Migrated {
    let plain = Migrated {
        vm: migrated.vm,
        lid: migrated.lid.value(),
        former_lid: migrated.former_lid.map(wire::Lid::value),
        guid: migrated.guid.to_string(),
        from: place(config, migrated.from),
        to: place(config, migrated.to),
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
        active_after_ms: None,
    };
    match migrated.how {
        How::Guid => plain,
        How::Exchange { active_after } => Migrated {
            active_after_ms: Some(active_after.as_millis() as u64),
            ..plain
        },
        How::Manager { moved, names } => by_manager(plain, &moved, &names),
    }
}

/// The same, with what its subnet manager has done.
fn by_manager(
    plain: Migrated,
    moved: &subnet_manager::Moved,
    names: &HashMap<Guid, String>,
) -> Migrated {
    let name = |guid: &Guid| names.get(guid).cloned().unwrap_or_default();
    let per_switch = moved.per_switch.iter().map(|switch| SwitchPackets {
        name: name(&switch.guid),
        vswitch: switch.is_vswitch,
        packets: packets(switch.packets),
    });
    Migrated {
        method: Some(method(moved.method)),
        functions: packets(moved.functions),
        drops: packets(moved.drops),
        vswitches: packets(moved.vswitches),
        switches: packets(moved.switches),
        per_switch: per_switch.collect(),
        transition: { moved.deadlock.as_ref() }.map(|found| transition(found, name)),
        round: Some(moved.round),
        waited: moved.waited.map(|wait| match wait {
            Wait::Switch { switch, vm } => Waited::Switch {
                switch: name(&switch),
                vm: name(&vm),
            },
            Wait::Place { vm } => Waited::Place { vm: name(&vm) },
            Wait::Itself => Waited::Itself,
            Wait::Turn => Waited::Turn,
        }),
        not_fewest: moved.not_fewest.as_ref().map(ToString::to_string),
        ..plain
    }
}

fn transition(found: &subnet_manager::Deadlock, name: impl Fn(&Guid) -> String) -> Transition {
    let (deadlock, circle) = match found {
        subnet_manager::Deadlock::Free => (Deadlock::None, None),
        subnet_manager::Deadlock::Unknown => (Deadlock::Unknown, None),
        subnet_manager::Deadlock::Possible(circle) => (Deadlock::Possible, Some(circle)),
        subnet_manager::Deadlock::Lasting(circle) => (Deadlock::Lasting, Some(circle)),
        subnet_manager::Deadlock::Standing(circle) => (Deadlock::Standing, Some(circle)),
    };
    let channels = circle.into_iter().flat_map(|circle| &circle.channels);
    Transition {
        deadlock,
        lane: circle.map(|circle| circle.lane),
        circle: channels.map(|(guid, port)| (name(guid), *port)).collect(),
    }
}

/// Why a VM has not moved.
#[derive(Debug)]
pub struct Unmoved {
    /// The manager's number of the round in which packets were sent for it, if any were.
    pub round: Option<u64>,
    /// The reason, and what to do.
    pub why: String,
}

/// Returns the results of several moves, with rounds from 1.
pub(crate) fn migrations_report(
    config: &Config,
    requests: &[MigrationRequest],
    outcomes: Vec<Result<vswitch::Migrated, Unmoved>>,
) -> MigrationsReport {
    let before = outcomes.iter().filter_map(round).min().unwrap_or(1) - 1;
    let mut sum = StepPackets::default();
    let moves = requests.iter().zip(outcomes).map(|(request, outcome)| {
        let round = round(&outcome).map(|round| round - before);
        match outcome {
            Ok(migrated) => {
                let migrated = self::migrated(config, migrated);
                sum.add(&migrated);
                MoveOutcome::Moved(Box::new(Migrated { round, ..migrated }))
            }
            Err(error) => MoveOutcome::Failed {
                vm: request.vm.clone(),
                to: request.to.clone(),
                round,
                error: error.why,
            },
        }
    });
    MigrationsReport {
        moves: moves.collect(),
        packets: sum,
    }
}

/// The manager's number of the round in which packets were sent for a move.
fn round(outcome: &Result<vswitch::Migrated, Unmoved>) -> Option<u64> {
    match outcome {
        Ok(migrated) => match &migrated.how {
            How::Manager { moved, .. } => Some(moved.round),
            How::Guid | How::Exchange { .. } => None,
        },
        Err(unmoved) => unmoved.round,
    }
}
