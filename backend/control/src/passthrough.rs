//! VFs that are passed through, as the control socket tells of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Mads, Objects};

/// A VF that is passed through to another one, which is a node of another subnet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PassedVf {
    /// Its name in the configuration.
    pub name: String,
    /// Its hypervisor.
    pub hypervisor: String,
    /// The VF behind it, as the configuration names it.
    pub device: String,
    /// Protection of the daemon's memory from the guest there: `strict` or `sriov`.
    pub isolation: String,
    /// Whether the VF behind it is there and well.
    pub alive: bool,
    /// State of the port of the VF behind it, as `ibstat` names it; `Down` where that VF is lost.
    pub state: String,
    /// LID of that port in the subnet there, 0 while there is none.
    pub lid: u16,
    /// LID of the subnet manager there, 0 while there is none.
    pub sm_lid: u16,
    /// Node GUID of the VF behind it.
    pub node_guid: String,
    /// Port GUID of the VF behind it.
    pub port_guid: String,
    /// The virtual cluster that its VM is in, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Its LID there, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_lid: Option<u16>,
    /// The guest's P_Key table up to its last entry; `0x0000` where the port does not have the P_Key.
    pub pkeys: Vec<String>,
    /// Whether packets to and from that port need a global route header.
    pub grh_required: bool,
    /// Whether the guest's programs ring doorbells of the VF behind it without the daemon.
    pub doorbells_mapped: bool,
    /// The vfio-user socket for its VM.
    pub socket: String,
    /// Whether a VMM is connected.
    pub client_connected: bool,
    /// Whether that VMM does not share its guest's memory, so that the device cannot reach it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_unshared: bool,
    /// Objects of the guest's driver.
    pub objects: Objects,
    /// Management packets that the guest's queue pair 1 sent.
    #[serde(default)]
    pub mads: Mads,
    /// Fate of the guest's datagrams that pass the daemon.
    #[serde(default)]
    pub datagrams: Datagrams,
    /// The guest's commands by their names in the interface, such as `CREATE_QP`.
    pub commands: BTreeMap<String, CommandCounts>,
}

/// Fate of a guest's datagrams since the daemon began to serve: of management packets, and, with `cluster` or
/// `sl`, of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagrams {
    /// The VF behind has them.
    pub passed: u64,
    /// Lost for a service level that is not the guest's.
    pub refused_service_level: u64,
    /// Lost since nobody in the cluster has the address.
    pub refused_address: u64,
    /// Lost since they are management packets that are not the guest's to send.
    #[serde(default)]
    pub refused_management: u64,
    /// Errors: requests that make no sense.
    pub malformed: u64,
}

/// Fate of a guest's commands of one kind since the daemon began to serve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandCounts {
    /// Answered by the daemon.
    pub answered: u64,
    /// Refused by the daemon.
    pub refused: u64,
    /// Executed by the VF behind.
    pub executed: u64,
    /// Refused by the VF behind, or lost with it.
    pub failed: u64,
    /// Microseconds that the VF behind had those that it answered, all together, from their arrival at
    /// the daemon on.
    pub time_us: u64,
    /// Microseconds that it had one of them at most.
    pub longest_us: u64,
}

/// A node of another subnet: a VF that is passed through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// Its name in the configuration.
    pub name: String,
    /// Its hypervisor.
    pub hypervisor: String,
    /// The VF behind it, as the configuration names it: the node there.
    pub device: String,
}

impl PassedVf {
    /// The commands of all kinds together.
    #[must_use]
    pub fn all_commands(&self) -> CommandCounts {
        let each = self.commands.values();
        each.fold(CommandCounts::default(), |all, of| CommandCounts {
            answered: all.answered + of.answered,
            refused: all.refused + of.refused,
            executed: all.executed + of.executed,
            failed: all.failed + of.failed,
            time_us: all.time_us.saturating_add(of.time_us),
            longest_us: all.longest_us.max(of.longest_us),
        })
    }
}
