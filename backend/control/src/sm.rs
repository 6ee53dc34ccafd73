//! The embedded subnet manager over the control socket.

use serde::{Deserialize, Serialize};

/// A request to the subnet manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SmAction {
    /// Only how it is.
    Status,
    /// A full sweep, now.
    Sweep,
    /// To read its files again, and a sweep.
    Reload,
}

/// State of the subnet manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SmStatus {
    /// Its subnet, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<String>,
    /// `Master`, `Standby`, `Discovering` or `NotActive`.
    pub state: String,
    /// Among subnet managers, 15 the highest.
    pub priority: u8,
    /// GUID of its port.
    pub guid: String,
    /// LID of its port, 0 while there is none.
    pub lid: u16,
    /// Name of the routing engine.
    pub routing: String,
    /// Name of the engine that has computed the paths: another one where that one cannot route the
    /// subnet; none before the first sweep.
    pub routed_by: Option<String>,
    /// Lanes that keep the paths from waiting for each other.
    pub lanes: u8,
    /// Spread of paths, if the manager watches it.
    pub balance: Option<Balance>,
    /// LIDs by paths, where the configuration has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lids: Option<LidsByPaths>,
    /// LIDs of 18 bits, where the configuration has them.
    pub extended_lids: Option<ExtendedLids>,
    /// Full sweeps so far.
    pub sweeps: u64,
    /// Light sweeps so far.
    pub light_sweeps: u64,
    /// Seconds since the last full sweep ended.
    pub last_sweep_s: Option<f64>,
    /// Switches it found, vSwitches included.
    pub switches: usize,
    /// Channel adapters it found.
    pub adapters: usize,
    /// Ports with a LID that are Active.
    pub active: usize,
    /// Packets that the last full sweep sent.
    pub packets: u64,
    /// Number of these packets that set something.
    pub sets: u64,
    /// Requests sent so far.
    pub requests: Vec<SmRequests>,
    /// Traps that came so far.
    pub traps: Vec<SmTraps>,
    /// Other subnet managers.
    pub others: Vec<OtherManager>,
    /// Partitions of the configuration file.
    pub partitions: Vec<Partition>,
    /// Errors of the last full sweep.
    pub errors: Vec<String>,
}

/// LIDs by the paths of pairs of ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LidsByPaths {
    /// Name of the LID assignment.
    pub assignment: String,
    /// Ports of adapters.
    pub ports: usize,
    /// Paths from each of them to each other one.
    pub paths: usize,
    /// LIDs that the ports have.
    pub used: usize,
    /// LIDs that are saved against one for each path.
    pub saved: usize,
    /// Paths without a LID, which follow those of the base LID.
    pub following: usize,
    /// Ports for which it is not proved that they need so many.
    pub undecided: usize,
}

/// LIDs of 18 bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtendedLids {
    /// VMs that have one.
    pub vms: usize,
    /// Node GUIDs of those that do not speak them, so that VMs have ordinary LIDs.
    pub lacking: Vec<String>,
}

/// Number of paths between VMs that share the most loaded link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    /// When all paths were last computed.
    pub computed: u64,
    /// Now.
    pub now: u64,
    /// Percentage at which paths are spread anew.
    pub threshold: u16,
    /// Number of times that paths were spread anew.
    pub rebalanced: u64,
}

/// Requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmRequests {
    /// `Get` or `Set`.
    pub method: String,
    /// The attribute, as in `PortInfo`.
    pub attribute: String,
    /// Number of requests.
    pub count: u64,
}

/// Traps of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmTraps {
    /// Its number.
    pub trap: u16,
    /// Number of traps.
    pub count: u64,
}

/// Another subnet manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherManager {
    /// GUID of its port.
    pub guid: String,
    /// Its priority.
    pub priority: u8,
    /// Its state.
    pub state: String,
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// The P_Key of full members.
    pub pkey: String,
}
