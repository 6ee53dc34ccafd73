//! A subnet in operation.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::attribute::{
    CapabilityMask, LocalChange, NodeDescription, NodeInfo, NodeType, PortInfo, SystemImageChange,
    Trap,
};
use wire::{Gid, Guid, MadPacket, PKey, PortState};

use crate::nodes::counters::{Counter, PortCounters, SmpCounts};
use crate::nodes::node::{Node, Port, Switch};
use crate::nodes::topology::{NodeId, PortRef, Topology, TopologyError};
use crate::tap::{Direction, Tap};
use crate::timers::Timers;
use crate::transit::Transit;

/// Who has the queue pairs of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Owner {
    /// Nobody: the fabric's own agents answer what they know, the rest is dropped.
    #[default]
    Fabric,
    /// Somebody outside, a guest or a subnet manager: packets that are not for the node's subnet
    /// management agent are handed out as [`Output::Deliver`], and changes as [`Output::Event`].
    Consumer,
}

/// How far the subnet management packets of a port's owner go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum SmpAccess {
    /// Not even to the port itself.
    Deny,
    /// To the port itself, to read.
    OwnPort,
    /// Anywhere, for anything.
    #[default]
    Fabric,
}

/// What happened at a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortEvent {
    /// The logical state is now this one.
    StateChange(PortState),
    /// The base LID or the LID mask control changed.
    LidChange,
    /// The P_Key table changed.
    PkeyChange,
    /// LID or service level of the subnet manager changed.
    SmChange,
    /// The subnet manager asks clients to register again.
    ClientReregister,
    /// GID prefix or GUID table changed.
    GidChange,
}

/// What leaves the fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A packet for a queue pair of this port.
    Deliver {
        /// The port.
        port: PortRef,
        /// The packet.
        packet: Box<MadPacket>,
    },
    /// Something happened at this port.
    Event {
        /// The port.
        port: PortRef,
        /// What.
        event: PortEvent,
    },
    /// A packet passes this port, and [`Fabric::set_tap`] asked to see it.
    Tapped {
        /// The port.
        port: PortRef,
        /// Which way.
        direction: Direction,
        /// The packet, as it is on the link.
        packet: Box<MadPacket>,
    },
}

/// A subnet in operation. See the [crate's description](crate).
#[derive(Debug)]
pub struct Fabric {
    pub(crate) nodes: Vec<Node>,
    by_guid: HashMap<Guid, PortRef>,
    pub(crate) routers: Vec<NodeId>,
    pub(crate) transit: VecDeque<Transit>,
    pub(crate) outputs: VecDeque<Output>,
    generation: Arc<AtomicU64>,
    pub(crate) timers: Timers,
    pub(crate) tap: Option<Tap>,
    /// Transaction of the last trap.
    pub(crate) last_transaction: u64,
}

impl Fabric {
    /// The fabric of this topology. Links train at once: ports with a cable are in Initialize.
    ///
    /// # Errors
    /// What [`Topology::check`] finds.
    pub fn new(topology: &Topology) -> Result<Self, TopologyError> {
        topology.check()?;
        let mut by_guid = HashMap::new();
        for (index, spec) in topology.nodes().iter().enumerate() {
            let first = u8::from(spec.kind != NodeType::Switch);
            for (port, &guid) in (first..).zip(&spec.port_guids) {
                let node = NodeId(index as u32);
                by_guid.insert(guid, PortRef { node, port });
            }
        }
        let nodes = topology.nodes().iter().zip(topology.ids());
        let routers = nodes.filter(|(spec, _)| spec.kind == NodeType::Router);
        let mut fabric = Self {
            nodes: topology.nodes().iter().map(Node::new).collect(),
            by_guid,
            routers: routers.map(|(_, id)| id).collect(),
            transit: VecDeque::new(),
            outputs: VecDeque::new(),
            generation: Arc::new(AtomicU64::new(1)),
            timers: Timers::default(),
            tap: None,
            last_transaction: 0,
        };
        for &(a, b, rate) in topology.links() {
            fabric.connect(a, b, rate);
        }
        Ok(fabric)
    }

    /// Rises with every change that could alter a path: forwarding tables, port states, LIDs,
    /// partitions, lanes, MTUs, links. Never 0, so that 0 can mean "not resolved yet".
    pub fn generation(&self) -> &Arc<AtomicU64> {
        &self.generation
    }

    pub(crate) fn path_changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// The channel adapter port, or the switch's port 0, of this port GUID.
    pub fn port_by_guid(&self, guid: Guid) -> Option<PortRef> {
        self.by_guid.get(&guid).copied()
    }

    /// What a node is, as its port `port` tells it.
    pub fn node_info(&self, port: PortRef) -> Option<NodeInfo> {
        let node = self.nodes.get(port.node.index())?;
        node.port(port.port)?;
        Some(node.info(port.port))
    }

    /// A node's text.
    pub fn node_description(&self, node: NodeId) -> Option<NodeDescription> {
        Some(self.nodes.get(node.index())?.description)
    }

    /// Changes a node's text, as the node's owner may.
    pub fn set_node_description(&mut self, node: NodeId, description: NodeDescription) {
        let Some(changed) = self.nodes.get_mut(node.index()) else {
            return;
        };
        if std::mem::replace(&mut changed.description, description) == description {
            return;
        }
        for port in self.agents(node) {
            let change = LocalChange {
                other_changes: true,
                node_description_changed: true,
                ..LocalChange::default()
            };
            self.local_change(port, change);
        }
    }

    /// Changes the GUID of the system that a node is a part of.
    pub fn set_system_image_guid(&mut self, node: NodeId, system_image_guid: Guid) {
        let Some(changed) = self.nodes.get_mut(node.index()) else {
            return;
        };
        let before = std::mem::replace(&mut changed.system_image_guid, system_image_guid);
        if before == system_image_guid {
            return;
        }
        for port in self.agents(node) {
            let lid = self.port(port).map(|port| port.info.lid);
            let change = SystemImageChange {
                lid: lid.unwrap_or_default(),
                system_image_guid,
            };
            self.raise(port, &Trap::SystemImageChange(change));
        }
    }

    /// The ports of a node that speak for a subnet management agent.
    fn agents(&self, node: NodeId) -> Vec<PortRef> {
        let ports = self.nodes.get(node.index()).map(|node| {
            let first = node.first_port();
            first..=if first == 0 { 0 } else { node.last_port() }
        });
        ports
            .into_iter()
            .flatten()
            .map(|port| PortRef { node, port })
            .collect()
    }

    /// State, LIDs, capabilities, MTU and rates of a port. `local_port_num` is that of the port.
    pub fn port_info(&self, port: PortRef) -> Option<PortInfo> {
        let mut info = self.port(port)?.info;
        info.local_port_num = port.port;
        Some(info)
    }

    /// A port's GUIDs; the first is its own, unused entries are zero.
    pub fn guids(&self, port: PortRef) -> Option<&[Guid]> {
        Some(&self.port(port)?.guids)
    }

    /// A port's GIDs, by index. Unused entries have the subnet's prefix, too, and a GUID of 0, as on
    /// hardware: readers take the prefix from any of them.
    pub fn gids(&self, port: PortRef) -> impl Iterator<Item = Gid> + '_ {
        self.port(port).into_iter().flat_map(|port| {
            let prefix = port.info.gid_prefix;
            port.guids.iter().map(move |&guid| Gid::new(prefix, guid))
        })
    }

    /// Whether a GID is one of a port's.
    pub(crate) fn has_gid(&self, port: PortRef, gid: Gid) -> bool {
        !gid.guid().is_none() && self.gids(port).any(|own| own == gid)
    }

    /// A port's P_Key table.
    pub fn pkeys(&self, port: PortRef) -> Option<&[PKey]> {
        Some(&self.port(port)?.pkeys)
    }

    /// Where the cable at a port ends.
    pub fn peer(&self, port: PortRef) -> Option<PortRef> {
        self.port(port)?.peer
    }

    /// Where the data plane counts what it moves through a port.
    pub fn counters(&self, port: PortRef) -> Option<&Arc<PortCounters>> {
        Some(&self.port(port)?.counters)
    }

    /// Subnet management packets a node has seen.
    pub fn smp_counts(&self, node: NodeId) -> Option<&SmpCounts> {
        Some(&self.nodes.get(node.index())?.smps)
    }

    /// Says who has the queue pairs of a port, and how far its subnet management packets go.
    pub fn set_owner(&mut self, port: PortRef, owner: Owner, access: SmpAccess) {
        if let Some(port) = self.port_mut(port) {
            port.owner = owner;
            port.access = access;
        }
    }

    /// Switches capabilities of a port on (`set`) and off (`clear`), as its owner may when a
    /// manager starts or ends.
    pub fn set_capabilities(&mut self, port: PortRef, set: CapabilityMask, clear: CapabilityMask) {
        if let Some(changed) = self.port_mut(port) {
            let mask = &mut changed.info.capability_mask;
            let wanted = mask.without(clear).with(set);
            if std::mem::replace(mask, wanted) != wanted {
                self.local_change(port, LocalChange::default());
            }
        }
    }

    /// The next thing that left the fabric.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub(crate) fn port(&self, port: PortRef) -> Option<&Port> {
        self.nodes.get(port.node.index())?.port(port.port)
    }

    pub(crate) fn port_mut(&mut self, port: PortRef) -> Option<&mut Port> {
        self.nodes.get_mut(port.node.index())?.port_mut(port.port)
    }

    pub(crate) fn switch(&self, node: NodeId) -> Option<&Switch> {
        self.nodes.get(node.index())?.switch.as_ref()
    }

    pub(crate) fn switch_mut(&mut self, node: NodeId) -> Option<&mut Switch> {
        self.nodes.get_mut(node.index())?.switch.as_mut()
    }

    pub(crate) fn is_virtual_function(&self, node: NodeId) -> bool {
        let node = self.nodes.get(node.index());
        node.is_some_and(|node| node.spec.virtual_function)
    }

    /// Gives a virtual function's port another GUID. Where two ports have one for a while, the
    /// last to get it is found by it.
    pub(crate) fn set_port_guid(&mut self, at: PortRef, guid: Guid) {
        let Some(port) = self.port_mut(at) else {
            return;
        };
        let former = std::mem::replace(&mut port.guid, guid);
        port.guids[0] = guid;
        self.found_at(guid, at);
        // Another port may have had the former one, too, and keeps it.
        if self.by_guid.get(&former) == Some(&at)
            && let Some(keeper) = self.holder(former)
        {
            self.found_at(former, keeper);
        }
    }

    /// A port that has this GUID now.
    fn holder(&self, guid: Guid) -> Option<PortRef> {
        let nodes = self.nodes().zip(&self.nodes);
        let mut ports = nodes.flat_map(|(node, entry)| {
            (entry.first_port()..=entry.last_port())
                .map(move |port| (PortRef { node, port }, entry))
        });
        let holds = |&(at, entry): &(PortRef, &Node)| {
            let port = entry.port(at.port);
            port.is_some_and(|port| port.guid == guid)
        };
        ports.find(holds).map(|(at, _)| at)
    }

    /// A GUID is to be found at this port.
    pub(crate) fn found_at(&mut self, guid: Guid, at: PortRef) {
        self.by_guid.insert(guid, at);
    }

    pub(crate) fn count(&mut self, port: PortRef, counter: Counter, value: u64) {
        if let Some(port) = self.port_mut(port) {
            port.management.add(counter, value);
        }
    }

    pub(crate) fn tell(&mut self, port: PortRef, event: PortEvent) {
        if self
            .port(port)
            .is_some_and(|port| port.owner == Owner::Consumer)
        {
            self.outputs.push_back(Output::Event { port, event });
        }
    }
}
