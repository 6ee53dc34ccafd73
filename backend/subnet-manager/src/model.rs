//! The subnet as the last sweep found it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wire::attribute::{
    NodeDescription, NodeInfo, NodeType, PKeyBlock, PortInfo, SwitchInfo, VNodeInfo, VPortInfo,
    VirtualizationInfo,
};
use wire::smp::Route;
use wire::{Guid, Lid, PortState};

use crate::config::quality::PortKind;
use crate::keys::Holder;
use crate::lids;
use crate::routing::{Endpoint, Graph, Roles, Trunk, Vertex};

/// A port: the node as an index of [`Subnet::nodes`], and the port's number.
pub(crate) type At = (usize, u8);

#[derive(Debug)]
pub(crate) struct Port {
    /// GUID of an adapter's port or a switch's port 0.
    pub(crate) guid: Guid,
    /// Route to this port's agent.
    pub(crate) route: Route,
    /// As last read or set; `None` before the first answer.
    pub(crate) info: Option<PortInfo>,
    /// The port at the other end of the cable, once both ends have been looked at.
    pub(crate) peer: Option<At>,
    /// The port that answered at the other end.
    pub(crate) claim: Option<At>,
    /// P_Key table of an adapter's port, as last read or set.
    pub(crate) pkeys: BTreeMap<u16, Arc<PKeyBlock>>,
    /// Its agent does not take the bit of the modifier by which a requester says that it knows extended speeds.
    pub(crate) refuses_speeds: bool,
    /// As last read or set, where the port can have virtual ports.
    pub(crate) virtualization: Option<VirtualizationInfo>,
    /// Virtual ports that are not Down, by index; 0, the physical port, is none of them.
    pub(crate) vports: BTreeMap<u16, VPort>,
}

/// A virtual port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VPort {
    /// As last read or set.
    pub(crate) info: VPortInfo,
    /// The virtual adapter that it belongs to.
    pub(crate) node: VNodeInfo,
    /// Name of that adapter.
    pub(crate) description: NodeDescription,
}

impl VPort {
    /// The LID that it has for itself.
    pub(crate) fn own_lid(&self) -> Option<Lid> {
        let lid = self.info.lid;
        (self.info.lid_required && lid.is_unicast()).then_some(lid)
    }
}

impl Port {
    fn new(guid: Guid, route: Route) -> Self {
        Self {
            guid,
            route,
            info: None,
            peer: None,
            claim: None,
            pkeys: BTreeMap::new(),
            refuses_speeds: false,
            virtualization: None,
            vports: BTreeMap::new(),
        }
    }

    /// The attribute modifier of PortInfo for this port, which has this number. A switch of NDR tells extended speeds only
    /// to requesters that know them.
    pub(crate) fn info_modifier(&self, number: u8) -> u32 {
        let known = if self.refuses_speeds {
            0
        } else {
            PortInfo::SPEEDS_REQUESTED
        };
        known | u32::from(number)
    }

    pub(crate) fn state(&self) -> PortState {
        self.info
            .map_or(PortState::NoChange, |info| info.port_state)
    }

    /// Whether management packets pass the link.
    pub(crate) fn is_linked(&self) -> bool {
        self.state() >= PortState::Initialize
    }
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) info: NodeInfo,
    pub(crate) description: NodeDescription,
    pub(crate) switch: Option<SwitchInfo>,
    /// Each by itself: nodes of a map have room for eleven, and most of it would stay free.
    pub(crate) ports: BTreeMap<u8, Box<Port>>,
}

impl Node {
    pub(crate) fn is_switch(&self) -> bool {
        self.info.node_type == NodeType::Switch
    }

    /// Route to the node.
    pub(crate) fn route(&self) -> Option<&Route> {
        self.ports.values().next().map(|port| &port.route)
    }
}

/// The subnet as a sweep has found it.
#[derive(Debug, Default)]
pub(crate) struct Subnet {
    pub(crate) nodes: Vec<Node>,
    by_guid: HashMap<Guid, usize>,
    /// Adapters' ports by GUID: where a GUID was last put. A port may have got another one since.
    adapters: HashMap<Guid, At>,
    /// The manager's own port.
    pub(crate) own: Option<At>,
}

/// Result of an answer by a node.
pub(crate) struct Found {
    pub(crate) node: usize,
    /// Ports not seen before.
    pub(crate) new_ports: Vec<u8>,
    pub(crate) new_node: bool,
}

impl Subnet {
    /// Takes in a node that answered at the end of `route`.
    pub(crate) fn found(&mut self, info: &NodeInfo, route: &Route) -> Found {
        let is_switch = info.node_type == NodeType::Switch;
        let (node, new_node) = match self.by_guid.get(&info.node_guid) {
            Some(&node) => (node, false),
            None => {
                self.nodes.push(Node {
                    info: *info,
                    description: NodeDescription::default(),
                    switch: None,
                    ports: BTreeMap::new(),
                });
                let node = self.nodes.len() - 1;
                self.by_guid.insert(info.node_guid, node);
                (node, true)
            }
        };
        let seen = if is_switch {
            0..=info.num_ports
        } else {
            info.local_port_num..=info.local_port_num
        };
        let ports = &mut self.nodes[node].ports;
        let mut new_ports = Vec::new();
        for port in seen {
            let guid = if is_switch && port != 0 {
                Guid::NONE
            } else {
                info.port_guid
            };
            ports.entry(port).or_insert_with(|| {
                new_ports.push(port);
                if !is_switch {
                    self.adapters.entry(guid).or_insert((node, port));
                }
                Box::new(Port::new(guid, route.clone()))
            });
        }
        if route.ports().is_empty() {
            let own = if is_switch { 0 } else { info.local_port_num };
            self.own = Some((node, own));
        }
        Found {
            node,
            new_ports,
            new_node,
        }
    }

    /// Notes who answered at the other end of a port's cable.
    pub(crate) fn claim(&mut self, from: At, other: At) {
        if let Some(port) = self.port_mut(from) {
            port.claim = Some(other);
        }
    }

    /// Makes links of what answered where. Returns the ports whose cable ends at a node that says
    /// its cable ends elsewhere: there are two nodes with its GUID.
    pub(crate) fn link(&mut self) -> Vec<At> {
        let claims: Vec<(At, At)> = self
            .ports()
            .filter_map(|(at, port)| Some((at, port.claim?)))
            .collect();
        let mut contradicted = Vec::new();
        for (at, other) in claims {
            let (Some(here), Some(there)) = (self.port(at), self.port(other)) else {
                continue;
            };
            let mutual = match there.claim {
                Some(claim) => claim == at,
                // A switch's port without a link that somebody came in by.
                None if self.nodes[other.0].is_switch() => {
                    there.info.is_none() || there.is_linked()
                }
                // Nobody looks behind an adapter: the one that is reached this way is meant.
                None => here.route.then(at.1).as_ref() == Some(&there.route),
            };
            if !mutual {
                contradicted.push(at);
                continue;
            }
            for (end, peer) in [(at, other), (other, at)] {
                if let Some(port) = self.port_mut(end) {
                    port.peer = Some(peer);
                }
            }
        }
        contradicted
    }

    pub(crate) fn node_by_guid(&self, guid: Guid) -> Option<usize> {
        self.by_guid.get(&guid).copied()
    }

    pub(crate) fn port(&self, (node, port): At) -> Option<&Port> {
        self.nodes.get(node)?.ports.get(&port).map(Box::as_ref)
    }

    pub(crate) fn port_mut(&mut self, (node, port): At) -> Option<&mut Port> {
        let ports = &mut self.nodes.get_mut(node)?.ports;
        ports.get_mut(&port).map(Box::as_mut)
    }

    /// The adapter's port that has this GUID and has answered.
    pub(crate) fn adapter_port(&self, guid: Guid) -> Option<At> {
        let has = |at: At| {
            let port = self.port(at);
            port.is_some_and(|port| port.guid == guid && port.info.is_some())
        };
        let last = self.adapters.get(&guid).copied();
        last.filter(|&at| has(at)).or_else(|| {
            let mut ports = self.ports().map(|(at, _)| at);
            ports.find(|&at| has(at) && !self.nodes[at.0].is_switch())
        })
    }

    /// Gives an adapter's port another GUID.
    pub(crate) fn set_guid(&mut self, at: At, guid: Guid) {
        if let Some(port) = self.port_mut(at) {
            port.guid = guid;
            self.adapters.insert(guid, at);
        }
    }

    /// The port with this LID.
    pub(crate) fn port_of(&self, lid: Lid) -> Option<At> {
        let mut ports = self.ports().filter(|(_, port)| !port.guid.is_none());
        let found = ports.find(|(_, port)| port.info.is_some_and(|info| info.lid == lid));
        found.map(|(at, _)| at)
    }

    /// Whether a port has a GUID, and with it a LID and a management key.
    pub(crate) fn is_end_port(&self, at: At) -> bool {
        self.port(at).is_some_and(|port| !port.guid.is_none())
    }

    /// The kind of a port, by which options tell ports apart.
    pub(crate) fn kind(&self, (node, port): At) -> PortKind {
        PortKind::of(self.nodes[node].info.node_type, port)
    }

    /// Holder of the management key of a port.
    pub(crate) fn key_holder(&self, (node, port): At) -> Holder {
        let entry = &self.nodes[node];
        (
            entry.info.node_guid,
            if entry.is_switch() { 0 } else { port },
        )
    }

    /// All ports in a fixed order.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (At, &Port)> {
        self.nodes.iter().enumerate().flat_map(|(node, entry)| {
            let ports = entry.ports.iter();
            ports.map(move |(&number, port)| ((node, number), port.as_ref()))
        })
    }

    /// Ports that have LIDs: the manager's own first, then by GUID.
    pub(crate) fn end_ports(&self) -> Vec<At> {
        let mut ports: Vec<_> = self
            .ports()
            .filter(|(_, port)| !port.guid.is_none() && port.info.is_some())
            .map(|(at, port)| (Some(at) != self.own, port.guid, at))
            .collect();
        ports.sort_unstable();
        ports.into_iter().map(|(_, _, at)| at).collect()
    }

    pub(crate) fn switches(&self) -> impl Iterator<Item = (usize, &Node)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(|(_, node)| node.is_switch())
    }

    /// The graph for routing, and which node each of its switches is.
    pub(crate) fn graph(&self, roles: &Arc<Roles>) -> (Graph, Vec<usize>) {
        let lids = |_, info: &PortInfo| lids::range(info.lid, info.lmc);
        self.graph_by(roles, lids)
    }

    /// The graph with one LID, which does not count, for each port of these GUIDs.
    pub(crate) fn shape(&self, roles: &Arc<Roles>, has_lid: impl Fn(Guid) -> bool) -> Graph {
        let lid = |guid, _: &PortInfo| has_lid(guid).then_some(Lid::NONE).into_iter();
        self.graph_by(roles, lid).0
    }

    fn graph_by<L: Iterator<Item = Lid>>(
        &self,
        roles: &Arc<Roles>,
        lids: impl Fn(Guid, &PortInfo) -> L,
    ) -> (Graph, Vec<usize>) {
        let mut nodes: Vec<usize> = self.switches().map(|(node, _)| node).collect();
        nodes.sort_by_key(|&node| self.nodes[node].info.node_guid);
        let index: HashMap<usize, usize> = (0..).zip(&nodes).map(|(i, &node)| (node, i)).collect();
        let switches = nodes
            .iter()
            .map(|&node| self.vertex(node, &index))
            .collect();
        let mut endpoints: Vec<Endpoint> = self
            .ports()
            .filter_map(|((node, number), port)| {
                let info = port.info?;
                if port.guid.is_none() {
                    return None;
                }
                let (guid, vports) = (port.guid, &port.vports);
                let (switch, port) = match index.get(&node) {
                    Some(&switch) => (switch, number),
                    None => {
                        let (peer, port) = port.peer?;
                        (*index.get(&peer)?, port)
                    }
                };
                Some((info, guid, vports, switch, port))
            })
            .flat_map(|(info, guid, vports, switch, port)| {
                let lids = lids(guid, &info).map(move |lid| (lid, guid));
                let virtual_ports = vports.values();
                let own = virtual_ports.filter_map(|it| Some((it.own_lid()?, it.info.port_guid)));
                lids.chain(own).map(move |(lid, guid)| Endpoint {
                    lid,
                    guid,
                    switch,
                    port,
                })
            })
            .collect();
        endpoints.sort_unstable_by_key(|endpoint| endpoint.lid);
        (
            Graph {
                switches,
                endpoints,
                roles: Arc::clone(roles),
                lanes: None,
            },
            nodes,
        )
    }

    fn vertex(&self, node: usize, index: &HashMap<usize, usize>) -> Vertex {
        let entry = &self.nodes[node];
        let ports = entry.ports.iter().map(|(&number, port)| (number, &**port));
        let trunk = |(number, port): (u8, &Port)| {
            let (peer, to_port) = port.peer.filter(|_| port.is_linked())?;
            Some(Trunk {
                port: number,
                to: *index.get(&peer)?,
                to_port,
            })
        };
        Vertex {
            guid: entry.info.node_guid,
            ports: entry.info.num_ports,
            trunks: ports.filter_map(trunk).collect(),
        }
    }
}
