//! A part of a subnet under other names: what one of several tenants is to see of it.
//!
//! A view fabric is a fabric of its own, made from what a subnet is at the moment: the hosts of one tenant,
//! the switches that are of use to them ([`extent`]), and the cables between those. LIDs, GUIDs, texts
//! and P_Keys are those that it is made with; forwarding tables say of the LIDs in it what the
//! subnet's say of the LIDs that these stand for. Nothing else of the subnet is in it, so that no
//! question to its agents can bring up more: ports that lead elsewhere have no cable.
//!
//! After *Towards Virtual InfiniBand Clusters with Network and Performance Isolation*, 3.3.1: the
//! topology state machine of a virtual cluster, in its managed mode and in full mode ([`writable`]).

mod division;
mod extent;
mod writable;

use std::collections::HashMap;

use wire::attribute::{LinearBlock, NodeDescription, PortInfo, SmInfo};
use wire::mad::{Method, Status};
use wire::smp::Smp;
use wire::{ExtendedLid, Guid, Lid, MadPacket, PKey, PhysicalState, PortState};

use crate::fabric::Fabric;
use crate::links::rate::LinkRate;
use crate::nodes::Nodes;
use crate::nodes::owner::{Owner, SmpAccess};
use crate::nodes::topology::{NodeId, NodeSpec, PortRef, Topology, TopologyError};
use crate::output::Output;
use crate::transit::Injected;
pub use division::Division;

/// The addresses and the text of a node in a view fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewName {
    /// The node's LID. Packets by LID do not find a node without one.
    pub lid: Lid,
    /// GUID of the node and of its port.
    pub guid: Guid,
    /// Text.
    pub description: NodeDescription,
}

/// A host that a view fabric shows, as an adapter with one port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewHost {
    /// Its port. Port 0 of a switch: the switch is there, and is nobody's adapter.
    pub port: PortRef,
    /// The host's entry in the port's table of GUIDs, where several hosts share the port. The view fabric
    /// shows the adapter of such a port as a switch: port 1 leads out, port 1 + entry leads to the host.
    pub entry: Option<u8>,
    /// The LID by which the subnet reaches it.
    pub physical: Lid,
    /// Its name.
    pub name: ViewName,
    /// Its P_Key table.
    pub pkeys: Vec<PKey>,
    /// Whether the view fabric is made for this host, so that the host may ask. The view fabric shows the ways to
    /// and from other hosts, and no alternatives to these ways.
    pub member: bool,
}

/// The LID of the subnet manager.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ViewManager {
    /// In the subnet.
    pub physical: Lid,
    /// In the view fabric.
    pub lid: Lid,
}

/// A part of a subnet under other names. It stays as it was made, unless its tenant manages it.
#[derive(Debug)]
pub struct ViewFabric {
    fabric: Fabric,
    hosts: Vec<PortRef>,
    switches: Vec<ShownSwitch>,
}

/// A switch of the subnet.
#[derive(Debug, Clone, Copy)]
struct ShownSwitch {
    /// Its node GUID and number in the subnet.
    guid: Guid,
    physical: NodeId,
    /// Its number in the view fabric.
    node: NodeId,
}

impl ViewFabric {
    /// Content of the view fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The port of a host, by its index among those that the view fabric was made with.
    pub fn host(&self, host: usize) -> Option<PortRef> {
        self.hosts.get(host).copied()
    }

    /// The switches of the subnet that it shows, by their node GUIDs there. Adapters that are shown as switches are not among
    /// them.
    pub fn switches(&self) -> impl Iterator<Item = (Guid, NodeId)> + '_ {
        self.switches
            .iter()
            .map(|switch| (switch.guid, switch.node))
    }

    /// The answer to a subnet management packet of a host, as it comes back to it. A Set is refused by the node
    /// that it reaches; a request that reaches none has no answer, nor has anything but a Get or Set. `manager` is
    /// what the subnet manager says of itself, if that is known.
    pub fn ask(
        &mut self,
        host: usize,
        packet: &MadPacket,
        manager: Option<&SmInfo>,
    ) -> Option<MadPacket> {
        let from = self.host(host)?;
        let mut question = packet.clone();
        let mut smp = Smp::new_checked(&mut question.mad[..]).ok()?;
        let asked = smp.mad().method();
        match asked {
            Method::GET => {}
            // It finds its way as a Get does.
            Method::SET => smp.mad_mut().set_method(Method::GET),
            _ => return None,
        }
        if self.fabric.inject(from, question) != Injected::Sent {
            return None;
        }
        let mut answer = None;
        loop {
            self.fabric.run();
            match self.fabric.poll_output() {
                Some(Output::Deliver { port, packet }) if port == from => answer = Some(packet),
                // An answer that went astray is not to be answered.
                Some(Output::Deliver { port, packet })
                    if packet.header().method() == Method::GET =>
                {
                    self.answer_as_manager(port, &packet, manager);
                }
                Some(_) => {}
                None => break,
            }
        }
        let mut answer = answer?;
        if asked == Method::SET {
            let sent = Smp::new_checked(&packet.mad[..]).ok()?;
            let mut smp = Smp::new_checked(&mut answer.mad[..]).ok()?;
            *smp.data_mut() = *sent.data();
            smp.mad_mut().set_status(Status::UNSUPPORTED_ATTRIBUTE);
        }
        Some(*answer)
    }

    /// Answers a question for SMInfo, which is a manager's to answer and not an agent's.
    fn answer_as_manager(&mut self, at: PortRef, question: &MadPacket, info: Option<&SmInfo>) {
        let mut reply = question.reply();
        let Ok(mut smp) = Smp::new_checked(&mut reply.mad[..]) else {
            return;
        };
        let status = match info {
            Some(info) => {
                // The managers' key is none of a host's business.
                let info = SmInfo { sm_key: 0, ..*info };
                smp.data_mut().fill(0);
                info.emit(smp.data_mut());
                Status::OK
            }
            None => Status::UNSUPPORTED_ATTRIBUTE,
        };
        smp.respond(status);
        self.fabric.inject(at, reply);
    }

    /// The answer of a host's own agent to a Get, without a packet on any link.
    pub fn ask_local(&mut self, host: usize, mad: &[u8; 256]) -> Option<[u8; 256]> {
        let from = self.host(host)?;
        let smp = Smp::new_checked(&mad[..]).ok()?;
        if smp.mad().method() != Method::GET {
            return None;
        }
        self.fabric.local_mad(from, mad)
    }
}

/// A port as a view fabric shows it.
fn shown(physical: &PortInfo, lid: Lid, manager: ViewManager) -> PortInfo {
    let master_sm_lid = if physical.master_sm_lid == manager.physical {
        manager.lid
    } else {
        Lid::NONE
    };
    PortInfo {
        lid,
        master_sm_lid,
        lmc: 0,
        m_key: 0,
        m_key_protect_bits: 0,
        m_key_lease_period: 0,
        partition_enforcement_inbound: false,
        partition_enforcement_outbound: false,
        diag_code: 0,
        m_key_violations: 0,
        p_key_violations: 0,
        q_key_violations: 0,
        ..*physical
    }
}

/// A view fabric in the making.
struct Draft<'a> {
    subnet: &'a Nodes,
    hosts: &'a [ViewHost],
    manager: ViewManager,
    topology: Topology,
    /// Switches, and adapters that are shown as switches, with their names.
    switches: Vec<(PortRef, NodeId, ViewName)>,
    /// Switches by their nodes.
    nodes: HashMap<NodeId, NodeId>,
    /// Ports of adapters.
    adapters: HashMap<PortRef, PortRef>,
    /// The hosts' ports, in their order.
    ports: Vec<PortRef>,
}

impl Nodes {
    /// A view fabric of these nodes that shows `hosts` and what connects them. `name` is asked for the
    /// names of switches, by their port 0, and of adapters whose port hosts share, by that port.
    ///
    /// # Errors
    /// [`TopologyError::DuplicateGuid`] when two names have the same GUID.
    pub fn view_fabric(
        &self,
        hosts: &[ViewHost],
        manager: ViewManager,
        name: impl FnMut(PortRef) -> ViewName,
    ) -> Result<ViewFabric, TopologyError> {
        let mut draft = Draft::new(self, hosts, manager);
        draft.add_nodes(name);
        draft.add_links(|_| true);
        draft.finish()
    }
}

impl<'a> Draft<'a> {
    fn new(subnet: &'a Nodes, hosts: &'a [ViewHost], manager: ViewManager) -> Self {
        Self {
            subnet,
            hosts,
            manager,
            topology: Topology::new(),
            switches: Vec::new(),
            nodes: HashMap::new(),
            adapters: HashMap::new(),
            ports: Vec::new(),
        }
    }

    fn add_nodes(&mut self, name: impl FnMut(PortRef) -> ViewName) {
        self.add_switches(name);
        self.add_hosts();
    }

    fn add_switches(&mut self, mut name: impl FnMut(PortRef) -> ViewName) {
        for node in extent::switches(self.subnet, self.hosts) {
            let port0 = PortRef { node, port: 0 };
            let shown = self.add_switch(port0, None, name(port0));
            self.nodes.insert(node, shown);
        }
        for host in self.hosts.iter().filter(|host| host.entry.is_some()) {
            if self.adapters.contains_key(&host.port) {
                continue;
            }
            let guids = self.subnet.guids(host.port).map_or(1, <[Guid]>::len);
            let ports = u8::try_from(guids).unwrap_or(u8::MAX).clamp(1, 254);
            let node = self.add_switch(host.port, Some(ports), name(host.port));
            self.adapters.insert(host.port, PortRef { node, port: 1 });
        }
    }

    fn add_switch(&mut self, of: PortRef, ports: Option<u8>, name: ViewName) -> NodeId {
        let spec = self.subnet.node(of.node).map(|node| &node.spec);
        let ports = ports.or(spec.map(|spec| spec.ports)).unwrap_or(1);
        let node = self.topology.add(NodeSpec {
            description: name.description,
            vendor_id: spec.map_or(0, |spec| spec.vendor_id),
            device_id: spec.map_or(0, |spec| spec.device_id),
            ..NodeSpec::switch(name.guid, ports, "")
        });
        self.switches.push((of, node, name));
        node
    }

    fn add_hosts(&mut self) {
        for host in self.hosts {
            let node = self.subnet.node(host.port.node);
            let Some(spec) = node.map(|node| &node.spec) else {
                continue;
            };
            if let Some(&node) = self.nodes.get(&host.port.node) {
                self.ports.push(PortRef { node, port: 0 });
                continue;
            }
            let node = self.topology.add(NodeSpec {
                description: host.name.description,
                vendor_id: spec.vendor_id,
                device_id: spec.device_id,
                partition_cap: spec.partition_cap,
                ..NodeSpec::channel_adapter(host.name.guid, host.name.guid, "")
            });
            let port = PortRef { node, port: 1 };
            self.ports.push(port);
            match (host.entry, self.adapters.get(&host.port)) {
                (Some(entry), Some(adapter)) => {
                    let end = (adapter.node, entry.saturating_add(1));
                    self.topology.link(end, (node, 1), LinkRate::default());
                }
                _ => {
                    self.adapters.insert(host.port, port);
                }
            }
        }
    }

    /// The port of the view fabric for a port of the subnet; `None` where it is not shown.
    fn shown(&self, port: PortRef) -> Option<PortRef> {
        let switch = self.nodes.get(&port.node);
        match switch {
            Some(&node) => Some(PortRef { node, ..port }),
            None => self.adapters.get(&port).copied(),
        }
    }

    /// The ports that are shown, and that cables end at: of the subnet, and of the view fabric.
    fn ends(&self) -> Vec<(PortRef, PortRef)> {
        let of_switch = |&node: &NodeId| {
            let spec = self.subnet.node(node).map(|node| &node.spec);
            let ports = spec.map_or(0, |spec| spec.ports);
            (1..=ports).map(move |port| PortRef { node, port })
        };
        let ends = self.nodes.keys().flat_map(of_switch);
        let ends = ends.chain(self.adapters.keys().copied());
        ends.filter_map(|end| Some((end, self.shown(end)?)))
            .collect()
    }

    /// Lays the cables between ports that are shown, where `shows` says so of one end.
    fn add_links(&mut self, shows: impl Fn(PortRef) -> bool) {
        for (end, here) in self.ends() {
            let peer = self.subnet.peer(end).filter(|peer| end < *peer);
            let peer = peer.filter(|_| shows(end));
            if let Some(there) = peer.and_then(|peer| self.shown(peer)) {
                let ends = [here, there].map(|end| (end.node, end.port));
                self.topology.link(ends[0], ends[1], LinkRate::default());
            }
        }
    }

    fn finish(self) -> Result<ViewFabric, TopologyError> {
        let mut view_fabric = Fabric::new(&self.topology)?;
        for (end, here) in self.ends() {
            self.fill_port(&mut view_fabric, end, here);
        }
        for (host, &at) in self.hosts.iter().zip(&self.ports) {
            self.fill_host(&mut view_fabric, host, at);
        }
        let destinations = self.destinations();
        for &(of, node, name) in &self.switches {
            self.fill_switch(&mut view_fabric, of, node, name, &destinations);
        }
        // Events while it was made are no news to anybody.
        view_fabric.outputs.clear();
        Ok(self.done(view_fabric))
    }

    fn done(self, fabric: Fabric) -> ViewFabric {
        let shown = self.switches.iter().filter(|(of, ..)| of.port == 0);
        let switches = shown.filter_map(|&(of, node, _)| {
            let spec = self.subnet.node(of.node).map(|node| &node.spec);
            Some(ShownSwitch {
                guid: spec?.guid,
                physical: of.node,
                node,
            })
        });
        ViewFabric {
            fabric,
            switches: switches.collect(),
            hosts: self.ports,
        }
    }

    /// A port with or without a cable: one that leads out of the view fabric is down.
    fn fill_port(&self, view_fabric: &mut Fabric, end: PortRef, here: PortRef) {
        let Some(physical) = self.subnet.port(end) else {
            return;
        };
        let mut info = shown(&physical.info, Lid::NONE, self.manager);
        if let Some(port) = view_fabric.nodes.port_mut(here) {
            if port.peer.is_none() {
                info.port_state = PortState::Down;
                info.port_physical_state = PhysicalState::Polling;
            }
            info.guid_cap = port.info.guid_cap;
            port.info = info;
            port.copy_lanes(physical);
        }
    }

    fn fill_host(&self, view_fabric: &mut Fabric, host: &ViewHost, at: PortRef) {
        view_fabric.set_owner(at, Owner::Consumer, SmpAccess::Fabric);
        let Some(physical) = self.subnet.port(host.port).filter(|_| at.port != 0) else {
            return;
        };
        let link = view_fabric.peer(at).filter(|_| host.entry.is_some());
        if let Some(link) = link.and_then(|link| view_fabric.nodes.port_mut(link)) {
            // Inside of the adapter, which is not shown as such.
            link.info = PortInfo {
                guid_cap: link.info.guid_cap,
                ..shown(&physical.info, Lid::NONE, self.manager)
            };
        }
        if let Some(port) = view_fabric.nodes.port_mut(at) {
            port.info = PortInfo {
                guid_cap: port.info.guid_cap,
                ..shown(&physical.info, host.name.lid, self.manager)
            };
            port.copy_lanes(physical);
            let keys = host.pkeys.iter().copied();
            let room = port.pkeys.len();
            port.pkeys = { keys.chain(std::iter::repeat(PKey::INVALID)) }
                .take(room)
                .collect();
        }
    }

    /// LIDs of the subnet that lead to something in the view fabric, with what they are there.
    fn destinations(&self) -> Vec<(Lid, Lid)> {
        let hosts = self.hosts.iter();
        let hosts = hosts.map(|host| (host.physical, host.name.lid));
        let switches = self.switches.iter().filter_map(|&(of, _, name)| {
            let port = self.subnet.port(of)?;
            Some((port.info.lid, name.lid))
        });
        let all = hosts.chain(switches);
        all.filter(|(physical, lid)| physical.is_unicast() && lid.is_unicast())
            .collect()
    }

    fn fill_switch(
        &self,
        view_fabric: &mut Fabric,
        of: PortRef,
        node: NodeId,
        name: ViewName,
        destinations: &[(Lid, Lid)],
    ) {
        let Some(physical) = self.subnet.port(of) else {
            return;
        };
        let at = PortRef { node, port: 0 };
        if let Some(port) = view_fabric.nodes.port_mut(at) {
            port.info = PortInfo {
                guid_cap: port.info.guid_cap,
                port_state: PortState::Active,
                port_physical_state: PhysicalState::LinkUp,
                ..shown(&physical.info, name.lid, self.manager)
            };
        }
        let mut blocks: HashMap<u16, LinearBlock> = HashMap::new();
        for (lid, out) in match of.port {
            0 => self.ways_out(of.node, destinations),
            _ => self.ways_out_of_adapter(of, name, destinations),
        } {
            let (number, entry) = ExtendedLid::from(lid).place();
            blocks.entry(number).or_default().0[entry] = out;
        }
        let lifetime = self
            .subnet
            .switch(of.node)
            .map(|from| from.info.lifetime_value);
        if let Some(switch) = view_fabric.nodes.switch_mut(node) {
            for (number, block) in blocks {
                switch.linear.set(number, block);
            }
            let lids = destinations.iter().map(|(_, lid)| lid.value());
            switch.info.linear_fdb_top = lids.max().unwrap_or_default();
            switch.info.lifetime_value = lifetime.unwrap_or_default();
            switch.info.port_state_change = false;
        }
    }

    /// The ports by which a switch sends to LIDs of the view fabric, where what is there is shown.
    fn ways_out(&self, node: NodeId, destinations: &[(Lid, Lid)]) -> Vec<(Lid, u8)> {
        let Some(switch) = self.subnet.switch(node) else {
            return Vec::new();
        };
        let leads_on = |port| {
            let peer = self.subnet.peer(PortRef { node, port });
            port == 0 || peer.is_some_and(|peer| self.shown(peer).is_some())
        };
        let leads_on: Vec<bool> = (0..=u8::MAX).map(leads_on).collect();
        let ways = destinations.iter();
        let ways = ways.map(|&(physical, lid)| (lid, switch.linear.port(physical)));
        ways.filter(|(_, port)| leads_on[usize::from(*port)])
            .collect()
    }

    /// The ways out of an adapter that is shown as a switch.
    fn ways_out_of_adapter(
        &self,
        adapter: PortRef,
        name: ViewName,
        destinations: &[(Lid, Lid)],
    ) -> Vec<(Lid, u8)> {
        let here = self.hosts.iter().filter(|host| host.port == adapter);
        let own = here.filter_map(|host| Some((host.name.lid, host.entry?.saturating_add(1))));
        let own: HashMap<Lid, u8> = own.chain([(name.lid, 0)]).collect();
        let out = |lid| own.get(&lid).copied().unwrap_or(1);
        let lids = destinations.iter().map(|&(_, lid)| lid);
        lids.map(|lid| (lid, out(lid))).collect()
    }
}
