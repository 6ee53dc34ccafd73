//! Nodes and links of the subnet.

use serde::{Deserialize, Serialize};

use crate::passthrough::Elsewhere;

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
    /// The virtual cluster of that VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Its subnet, where there are several; `None` of a router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet: Option<String>,
    /// All ports of an adapter with several; empty of other nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapter_ports: Vec<AdapterPort>,
}

/// An adapter without VFs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adapter {
    /// Its name.
    pub name: String,
    /// Node GUID.
    pub guid: String,
    /// All its ports.
    pub ports: Vec<AdapterPort>,
}

/// A port of an adapter.
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
    /// Node and port at the other end of its cable, as in `sw1:3`.
    #[serde(default)]
    pub cable: Option<String>,
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
    /// Virtual clusters of which VMs reach each other by it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
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
