//! Nodes: which there are, what they know of themselves, and what they count.
//!
//! [`Nodes`] is all that paths are found in. Packets on their way, time and what leaves the fabric are
//! not in it, so that nothing here moves a packet; nor is what nodes count and remember while packets
//! pass, which is in their ledgers.

pub(crate) mod base_lines;
pub(crate) mod chunks;
pub(crate) mod congestion;
pub(crate) mod counters;
pub(crate) mod forwarding;
pub(crate) mod ledger;
pub(crate) mod node;
pub(crate) mod owner;
pub(crate) mod report;
pub(crate) mod sampler;
pub(crate) mod topology;
pub(crate) mod trap;
pub(crate) mod vport;

use std::collections::HashMap;
use std::sync::Arc;

use wire::attribute::{NodeDescription, NodeInfo, NodeType, PortInfo};
use wire::{ExtendedLid, Gid, Guid, PKey};

use chunks::Chunks;
use counters::PortCounters;
use node::{Node, Port, Switch};
use topology::{NodeId, PortRef, Topology, TopologyError};
use vport::VPorts;

/// The nodes of a subnet, with their ports, tables and cables.
///
/// A copy is what they are now: a snapshot, in which paths are found as in the original. It is cheap,
/// since the two share all that stays the same, and each of the next changes costs a copy of what lies
/// around it: 64 pointers to nodes, the node's ports as pointers, and a port or 1 KiB of a table at most.
#[derive(Debug, Clone)]
pub struct Nodes {
    all: Chunks<Arc<Node>, 64>,
    by_guid: Arc<HashMap<Guid, PortRef>>,
    /// Ports that had a GUID when another port got it, and may have it yet.
    twins: Arc<HashMap<Guid, Vec<PortRef>>>,
    routers: Arc<[NodeId]>,
    generation: u64,
    revision: u64,
}

impl Nodes {
    /// The nodes of a topology, without cables.
    pub(crate) fn new(topology: &Topology) -> Result<Self, TopologyError> {
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
        Ok(Self {
            all: { topology.nodes().iter() }
                .map(|spec| Arc::new(Node::new(spec)))
                .collect(),
            by_guid: Arc::new(by_guid),
            twins: Arc::default(),
            routers: routers.map(|(_, id)| id).collect(),
            generation: 1,
            revision: 1,
        })
    }

    pub(crate) fn node(&self, node: NodeId) -> Option<&Node> {
        self.all.get(node.index()).map(Arc::as_ref)
    }

    /// A node that is going to change. Where a snapshot has it, too, this makes a copy: not for those
    /// who only look.
    pub(crate) fn node_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        self.revision += 1;
        self.all.get_mut(node.index()).map(Arc::make_mut)
    }

    /// Has two virtual functions change places; false where there are not two.
    pub(crate) fn exchange(&mut self, one: NodeId, other: NodeId) -> bool {
        let Some(mut first) = self.node(one).filter(|_| one != other).cloned() else {
            return false;
        };
        let Some(second) = self.node_mut(other) else {
            return false;
        };
        first.exchange(second);
        if let Some(place) = self.node_mut(one) {
            *place = first;
        }
        true
    }

    pub(crate) fn routers(&self) -> &[NodeId] {
        &self.routers
    }

    /// Number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Rises with every change that could alter a path: forwarding tables, port states, LIDs,
    /// partitions, lanes, MTUs, links. Never 0, so that 0 can mean "not resolved yet".
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn path_changed(&mut self) {
        self.generation += 1;
        self.revision += 1;
    }

    /// Rises with every change of anything that can be asked here, but for counters. Two snapshots of
    /// one fabric with the same revision are the same.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.all.len() as u32).map(NodeId)
    }

    /// The channel adapter port, or the switch's port 0, of this port GUID.
    pub fn port_by_guid(&self, guid: Guid) -> Option<PortRef> {
        self.by_guid.get(&guid).copied()
    }

    /// NodeInfo of a node, as its port `port` answers it.
    pub fn node_info(&self, port: PortRef) -> Option<NodeInfo> {
        let node = self.node(port.node)?;
        node.port(port.port)?;
        Some(node.info(port.port))
    }

    /// A node's text.
    pub fn node_description(&self, node: NodeId) -> Option<NodeDescription> {
        Some(self.node(node)?.description)
    }

    /// The ports of a node that speak for a subnet management agent.
    pub(crate) fn agents(&self, node: NodeId) -> Vec<PortRef> {
        let ports = self.node(node).map(|node| {
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
        let prefix = self.port(port).map(|port| port.info.gid_prefix);
        let vports = VPorts::at(self, port);
        let mut virtual_ports = vports.into_iter().flat_map(|it| &it.ports);
        !gid.guid().is_none()
            && (self.gids(port).any(|own| own == gid)
                || prefix == Some(gid.prefix())
                    && virtual_ports.any(|port| port.guids.contains(&gid.guid())))
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
        Some(self.port(port)?.counters.get())
    }

    pub(crate) fn port(&self, port: PortRef) -> Option<&Port> {
        self.node(port.node)?.port(port.port)
    }

    pub(crate) fn port_mut(&mut self, port: PortRef) -> Option<&mut Port> {
        self.node_mut(port.node)?.port_mut(port.port)
    }

    pub(crate) fn switch(&self, node: NodeId) -> Option<&Switch> {
        self.node(node)?.switch.as_ref()
    }

    pub(crate) fn switch_mut(&mut self, node: NodeId) -> Option<&mut Switch> {
        self.node_mut(node)?.switch.as_mut()
    }

    pub(crate) fn is_virtual_function(&self, node: NodeId) -> bool {
        let node = self.node(node);
        node.is_some_and(|node| node.spec.virtual_function)
    }

    /// Gives a virtual function's port another GUID. Where two ports have one for a while, the
    /// last to get it is found by it.
    pub(crate) fn set_port_guid(&mut self, at: PortRef, guid: Guid) {
        let Some(port) = self.port_mut(at) else {
            return;
        };
        let former = std::mem::replace(&mut port.guid, guid);
        port.set_guid(0, guid);
        self.found_at(guid, at);
        // Another port may have had the former one, too, and keeps it.
        let twins = self.twins.get(&former).into_iter().flatten();
        let keeper = twins.copied().find(|&twin| self.has_guid(twin, former));
        if self.by_guid.get(&former) == Some(&at)
            && let Some(keeper) = keeper
        {
            self.found_at(former, keeper);
        }
    }

    fn has_guid(&self, at: PortRef, guid: Guid) -> bool {
        self.port(at).is_some_and(|port| port.guid == guid)
    }

    /// A GUID is to be found at this port.
    pub(crate) fn found_at(&mut self, guid: Guid, at: PortRef) {
        self.revision += 1;
        let Some(former) = Arc::make_mut(&mut self.by_guid).insert(guid, at) else {
            return;
        };
        let known = self.twins.get(&guid).into_iter().flatten();
        let all = known.copied().chain([former]);
        let twins: Vec<PortRef> = all
            .filter(|&other| other != at && self.has_guid(other, guid))
            .collect();
        if twins.is_empty() && !self.twins.contains_key(&guid) {
            return;
        }
        let all = Arc::make_mut(&mut self.twins);
        if twins.is_empty() {
            all.remove(&guid);
        } else {
            all.insert(guid, twins);
        }
    }

    /// The vLID of a port; `None` where it has none.
    pub fn virtual_lid(&self, port: PortRef) -> Option<ExtendedLid> {
        self.port(port)?.virtual_lid
    }
}

#[cfg(test)]
mod tests {
    use topology::NodeSpec;
    use wire::attribute::LinearBlock;

    use super::*;

    /// One block of a table changes: the snapshot shares with the nodes all but the way there.
    #[test]
    fn a_change_copies_what_lies_around_it() {
        let mut topology = Topology::new();
        for guid in 1..300 {
            topology.add(NodeSpec::switch(Guid::new(guid), 36, ""));
        }
        let mut nodes = Nodes::new(&topology).unwrap();
        let changed = NodeId(100);
        let set = |nodes: &mut Nodes, number: u16, port| {
            let switch = nodes.switch_mut(changed).expect("is one");
            switch.linear.set(number, LinearBlock([port; 64]));
        };
        for number in 0..64 {
            set(&mut nodes, number, 1);
        }
        let snapshot = nodes.clone();
        assert!(nodes.all.shared_with(&snapshot.all).all(|same| same));
        set(&mut nodes, 17, 2);
        let apart = |same: Vec<bool>| same.iter().filter(|same| !**same).count();
        let chunks: Vec<bool> = nodes.all.shared_with(&snapshot.all).collect();
        assert_eq!((chunks.len() > 3, apart(chunks)), (true, 1));
        let pairs = nodes.all.iter().zip(snapshot.all.iter());
        assert_eq!(apart(pairs.map(|(a, b)| Arc::ptr_eq(a, b)).collect()), 1);
        let [now, before] = [&nodes, &snapshot].map(|nodes| nodes.node(changed).expect("is there"));
        assert!(now.shares_ports_with(before));
        let [now, before] = [now, before].map(|node| &node.switch.as_ref().expect("is one").linear);
        assert_eq!(apart(now.shared_with(before).collect()), 1);
    }
}
