//! Messages of the control socket, which `--json` prints.
//!
//! LIDs are numbers; GUIDs and P_Keys are the strings that InfiniBand tools print.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    CountersReport, Elsewhere, FirmwareReport, FirmwareRequest, LinkReport, LinkRequest, LiveDone,
    LiveRequest, LiveStep, Migrated, MigrationRequest, MigrationsReport, MigrationsRequest,
    PassedVf, PinRequest, Pinned, Placement, Sandbox, SmAction, SmStatus, UpgradeRequest, Upgraded,
};
use crate::{Doorbells, Wish};

/// A request: one line, such as `{"request":"status"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The state of the daemon and its VFs: answered with [`Response::Status`].
    Status {},
    /// The nodes and links of the subnet: answered with [`Response::Topology`].
    Topology {},
    /// Asks something of the embedded subnet manager: answered with [`Response::Sm`], or where it
    /// concerns those of several subnets, with [`Response::Sms`].
    Sm {
        /// The action.
        action: SmAction,
        /// The subnet of the manager that is asked. Without it all managers are asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subnet: Option<String>,
    },
    /// Moves a VM: answered with [`Response::Migrated`] when it has moved.
    Migrate(MigrationRequest),
    /// Moves several VMs: answered with [`Response::Migrations`] when each has moved, or will not.
    MigrateAll(MigrationsRequest),
    /// Begins to move a VM that runs: answered with [`Response::Live`]. It lasts as long as the connection.
    Live(LiveRequest),
    /// The next step of the move that this connection carries: answered with [`Response::Live`].
    LiveStep {
        /// The step.
        step: LiveStep,
    },
    /// Waits until no move of a VM that runs is under way: answered with [`Response::LiveSettled`].
    LiveSettle {
        /// The VM.
        vm: String,
    },
    /// Moves a VF to another engine: answered with [`Response::Pinned`].
    Pin(PinRequest),
    /// Has another program take the daemon's place: not answered, but for the reason if it does not. The
    /// connection ends when it does.
    Upgrade(UpgradeRequest),
    /// Changes a link, or shows it: answered with [`Response::Link`].
    Link(LinkRequest),
    /// Changes how the firmware of a VF behaves, or shows it: answered with [`Response::Firmware`].
    Firmware(FirmwareRequest),
    /// The topology as `ibnetdiscover` prints it: answered with [`Response::Netlist`].
    Netlist {},
    /// Counters of nodes and ports: answered with [`Response::Counters`].
    Counters {
        /// The one node, by name or GUID; all nodes without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<String>,
    },
    /// Where programs of the host attach: answered with [`Response::External`].
    External {
        /// The node that one is to attach to, by name or GUID; the subnet manager's host without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
    },
    /// A capture: answered with [`Response::Capture`], after which the connection carries it.
    Capture(Wish),
}

/// A response: one line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "kebab-case")]
pub enum Response {
    /// To [`Request::Status`].
    Status(Status),
    /// To [`Request::Topology`].
    Topology(Topology),
    /// To [`Request::Sm`].
    Sm(SmStatus),
    /// To [`Request::Sm`] of several subnets.
    Sms {
        /// The managers.
        managers: Vec<SmStatus>,
    },
    /// To [`Request::Migrate`].
    Migrated(Migrated),
    /// To [`Request::MigrateAll`].
    Migrations(MigrationsReport),
    /// To [`Request::Live`] and [`Request::LiveStep`].
    Live(LiveDone),
    /// To [`Request::LiveSettle`].
    LiveSettled {},
    /// To [`Request::Pin`].
    Pinned(Pinned),
    /// To [`Request::Link`].
    Link(LinkReport),
    /// To [`Request::Firmware`].
    Firmware(FirmwareReport),
    /// To [`Request::Netlist`].
    Netlist {
        /// The text.
        text: String,
    },
    /// To [`Request::Counters`].
    Counters(CountersReport),
    /// To [`Request::External`].
    External {
        /// Beginning of the sockets' names, in the abstract namespace.
        socket: String,
        /// Name of the node that the program would attach to.
        node: String,
    },
    /// To [`Request::Capture`]: what follows is no line, but the capture.
    Capture {},
    /// The request was not carried out.
    Error {
        /// Kind of the error, for programs.
        kind: ErrorKind,
        /// The error and its remedy, for people.
        message: String,
    },
}

/// Kinds of [`Response::Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The line is no request this daemon knows.
    BadRequest,
    /// The line is longer than [`REQUEST_MAX`](super::REQUEST_MAX).
    TooLong,
    /// There is nothing of a name in the request.
    Unknown,
    /// It could not be done; the message says why.
    Failed,
}

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
    /// Settings that do not do what they look like.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
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

/// The nodes and links of the subnet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The links, each once.
    pub links: Vec<Link>,
    /// The subnets, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<SubnetName>,
    /// VFs that are passed through to others, and so are no nodes of the subnet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Elsewhere>,
}

/// One of several subnets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetName {
    /// Its name in the configuration.
    pub name: String,
    /// Upper half of its GIDs, as in `fec0:0000:0000:0001`.
    pub prefix: String,
}

/// A node of the subnet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its name: that of the configuration.
    pub name: String,
    /// Kind of the node.
    pub kind: NodeKind,
    /// Node GUID.
    pub guid: String,
    /// GUID of its port: the first with a cable of an adapter, port 0 of a switch.
    pub port_guid: String,
    /// The hypervisor it is part of, for a vSwitch and a VF.
    pub hypervisor: Option<String>,
    /// External ports.
    pub ports: u8,
    /// LID, `None` while there is none; beyond 65 535 one of 18 bits.
    pub lid: Option<u32>,
    /// Why it has this LID, or none.
    pub reason: String,
    /// State of an adapter's port as `ibstat` names it; `None` for a switch, whose port 0 has none
    /// that could change.
    pub state: Option<String>,
    /// P_Key table of an adapter's port from index 0, without trailing empty entries.
    pub pkeys: Vec<String>,
    /// Whether a VMM is connected, for a VF.
    pub connected: Option<bool>,
    /// The VM whose addresses are at a VF, as the configuration names it; `None` at a spare one.
    pub holds: Option<String>,
    /// Its subnet, where there are several; `None` of a router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<String>,
    /// All ports of an adapter with several; empty of other nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapter_ports: Vec<AdapterPort>,
}

/// A port of an adapter with several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterPort {
    /// Its number.
    pub port: u8,
    /// Port GUID.
    pub guid: String,
    /// LID, `None` while there is none.
    pub lid: Option<u32>,
    /// State as `ibstat` names it.
    pub state: String,
    /// Lanes and signalling rate in use, as in `4X EDR`; `None` without a cable.
    pub rate: Option<String>,
}

/// Kinds of [`Node`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    /// A switch between hypervisors.
    Switch,
    /// The switch inside a hypervisor's adapter.
    Vswitch,
    /// The host of the subnet manager.
    Manager,
    /// A router between subnets.
    Router,
    /// A host without VFs.
    Host,
    /// A hypervisor's physical function, whose LID VFs share.
    Pf,
    /// A virtual function.
    Vf,
}

/// A link between two ports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The end nearer the switch.
    pub from: LinkEnd,
    /// The other end.
    pub to: LinkEnd,
    /// State of the port at the nearer end: `Down`, `Initialize`, `Armed` or `Active`.
    pub state: String,
    /// Lanes in use, as in `4X`.
    pub width: String,
    /// Signalling rate of a lane, as in `EDR`.
    pub speed: String,
}

/// A port at the end of a [`Link`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkEnd {
    /// Name of the node.
    pub node: String,
    /// Node GUID, which no other node has.
    pub guid: String,
    /// Number of the port.
    pub port: u8,
}
