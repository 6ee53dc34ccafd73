//! The state of the daemon and its subnets.

use serde::{Deserialize, Serialize};

use crate::passthrough::PassedVf;
use crate::placement::Placement;
use crate::sandbox::Sandbox;
use crate::upgrade::Upgraded;

use super::topology::Adapter;
use super::vf::VfStatus;

/// The state of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it began to serve.
    pub uptime_s: u64,
    /// Directory of its sockets.
    pub runtime_dir: String,
    /// Its configuration file, with no link in the path; none where the configuration is the built-in one.
    #[serde(default)]
    pub config: Option<String>,
    /// The subnet.
    pub fabric: FabricStatus,
    /// The virtual functions, in the order of the configuration.
    pub vfs: Vec<VfStatus>,
    /// Adapters without VFs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<Adapter>,
    /// VFs that are passed through to others: nodes of other subnets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passthrough: Vec<PassedVf>,
    /// Names of the commands that their guests can send.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// Where they live, where there are several engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// The last upgrade, if this program has taken another one's place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgraded: Option<Upgraded>,
    /// The daemon's own sandbox.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// Clusters in full mode: a subnet manager in a VM has set what their VMs see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub full_mode: Vec<String>,
    /// Clusters that have service levels of their own, or whose manager's settings are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<ClusterState>,
    /// Settings that do not do what they look like, and ports that stay in Initialize.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The state of a cluster in the subnet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterState {
    /// Its name.
    pub name: String,
    /// Its service levels, each with the lane of the same number.
    pub levels: Vec<u8>,
    /// By lane of the cluster's own network, where its manager divides links: the service level that takes its place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_levels: Vec<u8>,
    /// Reasons why it has no service level, and why forwarding tables of its manager do not act.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<String>,
}

/// The place of the subnet manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ManagerPlace {
    /// In the daemon.
    #[default]
    Embedded,
    /// A program of the host, or in a guest.
    External,
}

/// The subnet at a glance; of several all together, with prefix and manager's LID of the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FabricStatus {
    /// Switches, vSwitches included.
    pub switches: u32,
    /// Upper half of every GID, as in `fe80:0000:0000:0000`.
    pub subnet_prefix: String,
    /// LID of the subnet manager, 0 while there is none.
    pub sm_lid: u16,
    /// Where the subnet manager is.
    pub manager: ManagerPlace,
    /// Sweeps that the embedded subnet manager completed.
    pub sweeps: u64,
    /// Subnet management packets that it has sent in all its sweeps and between them.
    pub smps: u64,
    /// The subnets, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<SubnetStatus>,
}

/// One of several subnets at a glance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubnetStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Upper half of its GIDs.
    pub prefix: String,
    /// Switches, vSwitches included.
    pub switches: u32,
    /// LID of its subnet manager, 0 while there is none.
    pub sm_lid: u16,
    /// Sweeps that it completed.
    pub sweeps: u64,
    /// Subnet management packets that it has sent in all its sweeps and between them.
    pub smps: u64,
}
