//! VFs that are passed through, as the control socket tells of them.

use std::time::Duration;

use passthrough::Isolation;
use vswitch::FilterReport;
use wire::{Guid, Lid, PKey, PortState};

use super::{CommandCounts, Datagrams, Elsewhere, Objects, PassedVf};
use config::{Hardware, Hypervisor, ISOLATION};

const fn datagrams(of: passthrough::report::Datagrams) -> Datagrams {
    Datagrams {
        passed: of.passed,
        refused_service_level: of.level,
        refused_address: of.address,
        refused_management: of.management,
        malformed: of.malformed,
    }
}

fn microseconds(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}

fn command_counts(of: passthrough::report::Commands) -> CommandCounts {
    CommandCounts {
        answered: of.answered,
        refused: of.refused,
        executed: of.executed,
        failed: of.failed,
        time_us: microseconds(of.time),
        longest_us: microseconds(of.longest),
    }
}

const fn objects(of: passthrough::report::Objects) -> Objects {
    Objects {
        pd: of.protection_domains,
        mr: of.keys,
        cq: of.completion_queues,
        eq: of.event_queues,
        srq: of.shared_receive_queues,
        qp: of.queue_pairs,
    }
}

/// One that has this report, where it is served, its cluster's name and its LID there, whether its VMM is
/// connected, and does not share memory, and what became of its management packets.
pub(crate) fn passed_vf(
    hypervisor: &Hypervisor,
    vf: &Hardware,
    cluster: Option<(String, Lid)>,
    report: &passthrough::Report,
    (client_connected, memory_unshared): (bool, bool),
    mads: FilterReport,
) -> PassedVf {
    let port = if report.alive {
        report.port
    } else {
        // Its former state is not its present one.
        passthrough::report::Port {
            state: 0,
            lid: 0,
            sm_lid: 0,
            ..report.port
        }
    };
    PassedVf {
        name: vf.name.clone(),
        hypervisor: hypervisor.name.clone(),
        device: device(vf),
        isolation: isolation(vf.isolation).to_owned(),
        alive: report.alive,
        state: PortState::from_code(port.state)
            .filter(|state| *state != PortState::NoChange)
            .unwrap_or(PortState::Down)
            .to_string(),
        lid: port.lid,
        sm_lid: port.sm_lid,
        node_guid: Guid::new(port.node_guid).to_string(),
        port_guid: Guid::new(port.port_guid).to_string(),
        virtual_lid: cluster.as_ref().map(|(_, lid)| lid.value()),
        cluster: cluster.map(|(name, _)| name),
        pkeys: report
            .pkeys
            .iter()
            .map(|key| PKey::new(*key).to_string())
            .collect(),
        grh_required: port.grh_required,
        doorbells_mapped: report.doorbells_mapped,
        socket: vf.socket.display().to_string(),
        client_connected,
        memory_unshared,
        objects: objects(report.objects),
        mads: super::mads(&mads),
        datagrams: datagrams(report.datagrams),
        commands: report
            .commands
            .iter()
            .map(|(name, of)| (name.clone(), command_counts(*of)))
            .collect(),
    }
}

fn isolation(mode: Isolation) -> &'static str {
    let found = ISOLATION.iter().find(|(_, known)| *known == mode);
    found.map_or("", |(name, _)| name)
}

/// The VF behind one, as the configuration names it.
fn device(vf: &Hardware) -> String {
    vf.device.to_string()
}

/// A VF of a hypervisor.
pub(crate) fn elsewhere(hypervisor: &Hypervisor, vf: &Hardware) -> Elsewhere {
    Elsewhere {
        name: vf.name.clone(),
        hypervisor: hypervisor.name.clone(),
        device: device(vf),
    }
}
