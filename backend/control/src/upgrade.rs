//! Another program takes the daemon's place, over the control socket.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A program that is to take over, and the time that VMs may wait for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpgradeRequest {
    /// Path of the program; what is at the path that the daemon was started by if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<PathBuf>,
    /// Time that VMs may wait until the program is ready, in milliseconds; 2000 if left out. In all they wait at most
    /// about twice as long, since the program then does the same once more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_ms: Option<u64>,
    /// VFs with a VM that may lose what its device is: the device fails, and the guest's driver recovers it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub let_fail: Vec<String>,
}

/// The last time that another program has taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    /// Number of upgrades so far.
    pub count: u64,
    /// Version of the program before.
    pub from: String,
    /// VMs that have gone on.
    pub vms: u64,
    /// VMs with devices that could not go on as they were: their drivers recover them.
    pub failed: u64,
    /// Time without service of devices, in microseconds.
    pub rested_us: u64,
}
