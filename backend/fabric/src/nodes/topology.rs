//! Nodes and their cables.

use std::collections::HashMap;
use std::fmt;

use wire::attribute::{NodeDescription, NodeType};
use wire::vendor::{CONNECTX_5, ORGANIZATION};
use wire::{Guid, Lid};

use crate::links::rate::LinkRate;

/// A node of a fabric: the index of its [`NodeSpec`] in the topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) u32);

impl NodeId {
    /// The index of the node in [`Topology::nodes`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A port of a node: 1 to n; 0 is a switch's management port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRef {
    /// The node.
    pub node: NodeId,
    /// The port's number.
    pub port: u8,
}

impl fmt::Display for PortRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} port {}", self.node.0, self.port)
    }
}

/// A node as it leaves its factory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSpec {
    /// Kind of node.
    pub kind: NodeType,
    /// GUID of the node.
    pub guid: Guid,
    /// GUID of the system that the node is a part of.
    pub system_image_guid: Guid,
    /// GUIDs of a channel adapter's or a router's ports, the first being port 1's. A switch has one: port 0's.
    pub port_guids: Vec<Guid>,
    /// LIDs that the ports of `port_guids` have before a subnet manager comes; may be shorter.
    pub lids: Vec<Lid>,
    /// Physical ports.
    pub ports: u8,
    /// Whether a switch's port 0 is enhanced.
    pub enhanced_port0: bool,
    /// Text.
    pub description: NodeDescription,
    /// The vendor's 24-bit number.
    pub vendor_id: u32,
    /// The vendor's number of this device.
    pub device_id: u16,
    /// P_Key table entries of each port of a channel adapter or router and of a switch's port 0.
    pub partition_cap: u16,
    /// GUIDs that each port of a channel adapter and a switch's port 0 can hold, its own included.
    pub guid_cap: u8,
    /// Whether it is a virtual function: a subnet manager may give its port another GUID, as it
    /// does when a VM moves from one function to another.
    pub virtual_function: bool,
    /// Virtual ports of the only port of a channel adapter, from index 1 on; none: it cannot have such.
    pub vports: Vec<VPortSpec>,
    /// Whether a switch answers as strictly as Quantum-2 does: extended speeds are for requesters that know them, and reserved
    /// bits of PortInfo's attribute modifier are 0.
    pub strict: bool,
    /// Whether it speaks the extended LID space ([`wire::ExtendedLid`]): a switch has a second
    /// forwarding table, an adapter's port can have a vLID.
    pub extended_lids: bool,
}

/// A virtual port as its owner has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VPortSpec {
    /// GUID of the port; none: it is not enabled.
    pub guid: Guid,
    /// GUID of the virtual adapter that it belongs to.
    pub node_guid: Guid,
    /// Text of that adapter.
    pub description: NodeDescription,
    /// The port is to have a LID of its own.
    pub lid_required: bool,
}

/// GUIDs a port can hold where nothing else is said: one block of GUIDInfo.
const GUID_CAP: u8 = 8;

impl NodeSpec {
    /// A switch with `ports` external ports.
    pub fn switch(guid: Guid, ports: u8, description: &str) -> Self {
        Self {
            kind: NodeType::Switch,
            guid,
            system_image_guid: guid,
            port_guids: vec![guid],
            lids: Vec::new(),
            ports,
            enhanced_port0: false,
            description: NodeDescription::new(description),
            vendor_id: ORGANIZATION,
            device_id: 0,
            partition_cap: 32,
            guid_cap: GUID_CAP,
            virtual_function: false,
            vports: Vec::new(),
            strict: false,
            extended_lids: false,
        }
    }

    /// A channel adapter with one port.
    pub fn channel_adapter(guid: Guid, port_guid: Guid, description: &str) -> Self {
        Self {
            kind: NodeType::ChannelAdapter,
            guid,
            system_image_guid: guid,
            port_guids: vec![port_guid],
            lids: Vec::new(),
            ports: 1,
            enhanced_port0: false,
            description: NodeDescription::new(description),
            vendor_id: ORGANIZATION,
            device_id: CONNECTX_5,
            partition_cap: 128,
            guid_cap: GUID_CAP,
            virtual_function: false,
            vports: Vec::new(),
            strict: false,
            extended_lids: false,
        }
    }

    /// Whether it is the part of a switch that reduces data of others (SHARP): an adapter that runs no programs.
    #[must_use]
    pub fn is_aggregation_node(&self) -> bool {
        /// Device IDs of the aggregation nodes of SwitchIB-2 and Quantum.
        const DEVICES: [u16; 2] = [0xcf08, 0xcf09];
        let text = self.description.to_string().to_lowercase();
        let ends = ["aggregation node", "sharp", "/an"];
        self.kind == NodeType::ChannelAdapter
            && (DEVICES.contains(&self.device_id)
                || text.contains(ends[0])
                || ends[1..].iter().any(|end| text.ends_with(end)))
    }

    /// A router with a port in each of several subnets.
    pub fn router(guid: Guid, port_guids: Vec<Guid>, description: &str) -> Self {
        Self {
            kind: NodeType::Router,
            ports: port_guids.len() as u8,
            port_guids,
            ..Self::channel_adapter(guid, guid, description)
        }
    }

    /// A virtual function behind a vSwitch: a channel adapter whose port is of the node's GUID
    /// until a subnet manager gives it another one, in entry 0 of GUIDInfo.
    pub fn virtual_function(guid: Guid, description: &str) -> Self {
        Self {
            virtual_function: true,
            ..Self::channel_adapter(guid, guid, description)
        }
    }

    /// An adapter whose port has virtual ports: one for each function.
    pub fn virtualized(guid: Guid, vports: Vec<VPortSpec>, description: &str) -> Self {
        Self {
            vports,
            ..Self::channel_adapter(guid, guid, description)
        }
    }

    /// An adapter whose port several functions share, as Shared Port hardware has it: one LID, and
    /// for each of `functions` functions a place for a GUID of its own in GUIDInfo, after the port's.
    pub fn shared_port(guid: Guid, functions: u8, description: &str) -> Self {
        Self {
            guid_cap: functions.saturating_add(1).max(GUID_CAP),
            ..Self::channel_adapter(guid, guid, description)
        }
    }
}

/// Why nodes and links do not make a fabric.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A GUID must not be zero.
    #[error("node {node}: GUID is zero; give every node and port a GUID of its own")]
    ZeroGuid {
        /// The node's index.
        node: usize,
    },
    /// Two nodes, or ports of two channel adapters, share a GUID.
    #[error("GUID {guid} is used twice; give every node and port a GUID of its own")]
    DuplicateGuid {
        /// The GUID.
        guid: Guid,
    },
    /// A node's number of ports is impossible.
    #[error(
        "node {guid}: {ports} ports; a switch has 1 to 254, an adapter or router 1 to 254 with a GUID each"
    )]
    Ports {
        /// The node.
        guid: Guid,
        /// Its ports.
        ports: u8,
    },
    /// A link ends where there is no port.
    #[error("link to {port}: there is no such external port")]
    NoSuchPort {
        /// The end.
        port: PortRef,
    },
    /// Two links end at one port, or a link ends where it starts.
    #[error("{port} has two cables; a port takes one")]
    PortTaken {
        /// The port.
        port: PortRef,
    },
}

/// Nodes and the cables between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<NodeSpec>,
    links: Vec<(PortRef, PortRef, LinkRate)>,
}

impl Topology {
    /// No nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Has all nodes speak the extended LID space, but for those with these GUIDs.
    pub fn extend_lids(&mut self, without: &[Guid]) {
        for node in &mut self.nodes {
            node.extended_lids = !without.contains(&node.guid);
        }
    }

    /// Has all switches answer strictly.
    pub fn make_strict(&mut self) {
        for node in &mut self.nodes {
            node.strict = node.kind == NodeType::Switch;
        }
    }

    /// Adds a node.
    pub fn add(&mut self, node: NodeSpec) -> NodeId {
        self.nodes.push(node);
        NodeId((self.nodes.len() - 1) as u32)
    }

    /// Lays a cable between two ports.
    pub fn link(&mut self, a: (NodeId, u8), b: (NodeId, u8), rate: LinkRate) {
        let end = |(node, port)| PortRef { node, port };
        self.links.push((end(a), end(b), rate));
    }

    /// The nodes, in the order of their [`NodeId`]s.
    pub fn nodes(&self) -> &[NodeSpec] {
        &self.nodes
    }

    /// The nodes' numbers, in their order.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// The cables.
    pub fn links(&self) -> &[(PortRef, PortRef, LinkRate)] {
        &self.links
    }

    /// Whether nodes and links make a fabric.
    ///
    /// # Errors
    /// The first thing wrong.
    pub fn check(&self) -> Result<(), TopologyError> {
        let mut guids = HashMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let guid = node.guid;
            let switch = match node.kind {
                NodeType::Switch => true,
                NodeType::ChannelAdapter | NodeType::Router => false,
            };
            let port_guids = if switch { 1 } else { usize::from(node.ports) };
            if !(1..=254).contains(&node.ports) || node.port_guids.len() != port_guids {
                let ports = node.ports;
                return Err(TopologyError::Ports { guid, ports });
            }
            // A node may share its GUID with its own ports, but with nothing else.
            for &guid in node.port_guids.iter().chain([&node.guid]) {
                if guid.is_none() {
                    return Err(TopologyError::ZeroGuid { node: index });
                }
                if guids
                    .insert(guid, index)
                    .is_some_and(|other| other != index)
                {
                    return Err(TopologyError::DuplicateGuid { guid });
                }
            }
            let mut of_ports = node.port_guids.clone();
            of_ports.sort_unstable();
            if let Some(pair) = of_ports.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(TopologyError::DuplicateGuid { guid: pair[0] });
            }
        }
        let mut taken = HashMap::new();
        for &(a, b, _) in &self.links {
            for port in [a, b] {
                let node = self.nodes.get(port.node.index());
                if node.is_none_or(|node| !(1..=node.ports).contains(&port.port)) {
                    return Err(TopologyError::NoSuchPort { port });
                }
                if taken.insert(port, ()).is_some() {
                    return Err(TopologyError::PortTaken { port });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(guid: u64) -> NodeSpec {
        NodeSpec::channel_adapter(Guid::new(guid), Guid::new(guid), "")
    }

    #[test]
    fn good() {
        let mut topology = Topology::new();
        let a = topology.add(adapter(1));
        let b = topology.add(adapter(2));
        topology.link((a, 1), (b, 1), LinkRate::default());
        assert_eq!(topology.check(), Ok(()));
    }

    #[test]
    fn guids() {
        let mut topology = Topology::new();
        topology.add(adapter(0));
        assert_eq!(topology.check(), Err(TopologyError::ZeroGuid { node: 0 }));

        let mut topology = Topology::new();
        topology.add(adapter(1));
        topology.add(adapter(1));
        assert!(matches!(
            topology.check(),
            Err(TopologyError::DuplicateGuid { .. })
        ));
    }

    #[test]
    fn cables() {
        let mut topology = Topology::new();
        let a = topology.add(adapter(1));
        let b = topology.add(adapter(2));
        let mut wrong = topology.clone();
        wrong.link((a, 1), (b, 2), LinkRate::default());
        assert!(matches!(
            wrong.check(),
            Err(TopologyError::NoSuchPort { .. })
        ));
        let mut wrong = topology.clone();
        wrong.link((a, 1), (a, 1), LinkRate::default());
        assert!(matches!(
            wrong.check(),
            Err(TopologyError::PortTaken { .. })
        ));
    }

    #[test]
    fn ports() {
        let mut topology = Topology::new();
        topology.add(NodeSpec::switch(Guid::new(1), 255, ""));
        assert!(matches!(topology.check(), Err(TopologyError::Ports { .. })));
    }
}
