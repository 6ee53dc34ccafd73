//! The state of a VF.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::doorbells::Doorbells;

/// The state of one virtual function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VfStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Its hypervisor.
    pub hypervisor: String,
    /// Its subnet, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<String>,
    /// State of its port as `ibstat` names it: `Down`, `Initialize`, `Armed` or `Active`.
    pub state: String,
    /// LID, 0 while there is none; beyond 65 535 one of 18 bits.
    pub lid: u32,
    /// Its virtual cluster, if it is in one.
    pub cluster: Option<String>,
    /// The LID it has in there, which is the one that its guest sees.
    pub virtual_lid: Option<u16>,
    /// LID of the subnet manager as the port knows it, 0 while there is none.
    pub sm_lid: u16,
    /// Node GUID.
    pub node_guid: String,
    /// Port GUID.
    pub port_guid: String,
    /// P_Key table from index 0, without trailing empty entries.
    pub pkeys: Vec<String>,
    /// Reach of the guest's subnet management packets: `deny`, `own-port` or `fabric`.
    pub smp: String,
    /// Fate of its guest's management packets.
    pub mads: Mads,
    /// The way of doorbells to the engine.
    pub doorbells: Doorbells,
    /// The Ethernet address of its guest, where it is a vhost-user-net port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ethernet: Option<String>,
    /// The VM whose addresses are at it, as the configuration names it; `None` at a spare one.
    pub holds: Option<String>,
    /// The vfio-user socket, or that of vhost-user.
    pub socket: String,
    /// Whether a VMM is connected.
    pub client_connected: bool,
    /// Whether that VMM does not share its guest's memory, so that the device cannot reach it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_unshared: bool,
    /// Objects of the guest's driver.
    pub objects: Objects,
    /// Port counters since the daemon began to serve.
    pub counters: Counters,
}

/// Names of the reasons for which a management packet of a guest is refused.
pub const MAD_REFUSALS: [&str; 10] = [
    "smp",
    "class",
    "manager",
    "address",
    "partition",
    "cluster",
    "attribute",
    "transaction",
    "rate",
    "queue",
];

/// Management packets that one VF's guest sent to others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mads {
    /// Packets let pass.
    pub passed: u64,
    /// Number of refused packets, by their reasons in [`MAD_REFUSALS`].
    pub refused: BTreeMap<String, u64>,
    /// The last ones refused, oldest first.
    pub last_refused: Vec<RefusedMad>,
}

/// A management packet that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedMad {
    /// Milliseconds since the daemon began to serve.
    pub at_ms: u64,
    /// Method and attribute, as in `SubnDirectedGet(NodeInfo)`.
    pub packet: String,
    /// Its destination LID, as the guest wrote it.
    pub dlid: u16,
    /// Why it was refused.
    pub reason: String,
}

/// Numbers of live objects of one VF.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objects {
    /// Protection domains.
    pub pd: u64,
    /// Memory regions and windows.
    pub mr: u64,
    /// Completion queues.
    pub cq: u64,
    /// Event queues.
    pub eq: u64,
    /// Shared receive queues.
    pub srq: u64,
    /// Queue pairs.
    pub qp: u64,
}

/// Counters of one VF's port, 64 bits each, named as in PortCountersExtended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Bytes sent. (PortCountersExtended counts in words of 4 bytes.)
    pub xmit_bytes: u64,
    /// Bytes received.
    pub rcv_bytes: u64,
    /// Packets sent.
    pub xmit_packets: u64,
    /// Packets received.
    pub rcv_packets: u64,
    /// Repeated work of its connections.
    #[serde(default)]
    pub retries: Retries,
}

/// Packets that the connections of a VF have missed or received twice, by the names of Linux' hardware counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retries {
    /// Local ACK timeouts that ran out.
    pub local_ack_timeout_err: u64,
    /// NAKs for a sequence error that it received.
    pub packet_seq_err: u64,
    /// Gaps that it found in responses.
    pub implied_nak_seq_err: u64,
    /// NAKs that it received of receivers that were not ready.
    pub rnr_nak_retry_err: u64,
    /// Packets that it received out of sequence.
    pub out_of_sequence: u64,
    /// Packets of requests that it received and had carried out before.
    pub duplicate_request: u64,
}
