//! A subnet in operation.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::attribute::{CapabilityMask, NodeDescription, NodeInfo, NodeType, PortInfo};
use wire::mad::{Class, Method};
use wire::smp::Smp;
use wire::{Gid, Guid, Lid, MadPacket, PKey, PortState, QKey, Qpn};

use crate::counters::{Counter, PortCounters, SmpCounts};
use crate::directed::{self, Origin, Step};
use crate::node::{Node, Port, Switch};
use crate::topology::{NodeId, PortRef, Topology, TopologyError};

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
}

/// What became of a packet that was to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Injected {
    /// It is on its way.
    Sent,
    /// The owner of the port may not send it.
    Denied,
    /// There are too many packets on their way, or the port does not exist; it was dropped.
    Dropped,
}

/// A packet between two steps.
#[derive(Debug)]
struct Transit {
    at: PortRef,
    origin: Origin,
    hops: u8,
    packet: Box<MadPacket>,
}

/// Packets on their way at most: what all buffers of the fabric hold together. A sweep keeps some
/// hundreds busy; more than this is a flood.
const IN_TRANSIT: usize = 16_384;
/// Links a LID-routed packet may cross: more means that forwarding tables make a circle.
pub(crate) const HOP_LIMIT: u8 = 64;

/// Whether a subnet management packet reads an attribute of the port that sends it, and neither it
/// nor the answer can leave that port.
fn asks_itself(port: &Port, packet: &MadPacket) -> bool {
    let Ok(smp) = Smp::new_checked(&packet.mad[..]) else {
        return false;
    };
    if smp.mad().method() != Method::GET {
        return false;
    }
    let own = port.answers_to(packet.dlid);
    match smp.is_directed() {
        true => {
            let nowhere = smp.hop_count() == 0
                && (smp.dr_slid(), smp.dr_dlid()) == (Lid::PERMISSIVE, Lid::PERMISSIVE);
            nowhere && (own || packet.dlid == Lid::PERMISSIVE)
        }
        false => own,
    }
}

/// A subnet in operation. See the [crate's description](crate).
#[derive(Debug)]
pub struct Fabric {
    pub(crate) nodes: Vec<Node>,
    by_guid: HashMap<Guid, PortRef>,
    transit: VecDeque<Transit>,
    outputs: VecDeque<Output>,
    generation: Arc<AtomicU64>,
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
        let mut fabric = Self {
            nodes: topology.nodes().iter().map(Node::new).collect(),
            by_guid,
            transit: VecDeque::new(),
            outputs: VecDeque::new(),
            generation: Arc::new(AtomicU64::new(1)),
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
        if let Some(node) = self.nodes.get_mut(node.index()) {
            node.description = description;
        }
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

    /// A port's GIDs, by index; unused entries are zero.
    pub fn gids(&self, port: PortRef) -> impl Iterator<Item = Gid> + '_ {
        self.port(port).into_iter().flat_map(|port| {
            port.guids.iter().map(|&guid| match guid {
                Guid::NONE => Gid::NONE,
                guid => Gid::new(port.info.gid_prefix, guid),
            })
        })
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
        if let Some(port) = self.port_mut(port) {
            port.info.capability_mask = port.info.capability_mask.without(clear).with(set);
        }
    }

    /// The next thing that left the fabric.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Sends a packet from a port's queue pair 0 or 1.
    ///
    /// The port stamps the source LID, unless the one there is one of its own (path bits) or, in a
    /// packet for a directed route, permissive.
    pub fn inject(&mut self, from: PortRef, packet: MadPacket) -> Injected {
        let Some(port) = self.port(from) else {
            return Injected::Dropped;
        };
        let is_smp = packet.is_smp();
        // Queue pair 0 talks to queue pair 0 and to no other (IBA 10.2.3).
        if is_smp != (packet.src_qp == Qpn::QP0) {
            return Injected::Denied;
        }
        let allowed = match port.access {
            SmpAccess::Fabric => true,
            SmpAccess::OwnPort => !is_smp || asks_itself(port, &packet),
            SmpAccess::Deny => !is_smp,
        };
        if !allowed {
            self.drop_smp(from.node);
            return Injected::Denied;
        }
        let mut packet = Box::new(packet);
        let keeps = port.answers_to(packet.slid) || is_smp && packet.slid == Lid::PERMISSIVE;
        if !keeps {
            packet.slid = port.info.lid;
        }
        let origin = Origin::Own(from.port);
        if self.push(from, origin, 0, packet) {
            Injected::Sent
        } else {
            Injected::Dropped
        }
    }

    /// Moves one packet on; false when there is none.
    pub fn step(&mut self) -> bool {
        let Some(transit) = self.transit.pop_front() else {
            return false;
        };
        self.pass(transit);
        true
    }

    /// Moves packets on until all have arrived.
    pub fn run(&mut self) {
        while self.step() {}
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
        if let Some(port) = self.port_mut(at) {
            port.guid = guid;
            port.guids[0] = guid;
            self.by_guid.insert(guid, at);
        }
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

    fn push(&mut self, at: PortRef, origin: Origin, hops: u8, packet: Box<MadPacket>) -> bool {
        if self.transit.len() >= IN_TRANSIT {
            self.count(at, Counter::Vl15Dropped, 1);
            return false;
        }
        self.transit.push_back(Transit {
            at,
            origin,
            hops,
            packet,
        });
        true
    }

    fn drop_smp(&mut self, node: NodeId) {
        if let Some(node) = self.nodes.get_mut(node.index()) {
            node.smps.dropped += 1;
        }
    }

    fn pass(&mut self, mut transit: Transit) {
        let at = transit.at;
        if let Origin::Neighbour(_) = transit.origin {
            let words = u64::from(transit.packet.words());
            self.count(at, Counter::UnicastRcv, 1);
            self.count(at, Counter::RcvData, words);
        }
        let Some(node) = self.nodes.get(at.node.index()) else {
            return;
        };
        let management = PortRef {
            port: node.management_port(at.port),
            ..at
        };
        let is_switch = node.switch.is_some();
        let dlid = transit.packet.dlid;
        let ours = dlid == Lid::PERMISSIVE
            || self
                .port(management)
                .is_some_and(|port| port.answers_to(dlid));
        if !transit.packet.is_smp() {
            let sl = transit.packet.sl;
            match (ours, transit.origin, is_switch) {
                (true, Origin::Own(_), false) if self.loop_back(at, sl).is_err() => {
                    self.count(at, Counter::XmitDiscards, 1);
                }
                (true, _, _) => self.arrive(management, at.port, transit.packet),
                (false, Origin::Own(_), false) | (false, _, true) => self.route_by_lid(transit),
                // A packet to a LID that is not this adapter's.
                _ => self.count(at, Counter::RcvErrors, 1),
            }
            return;
        }
        if Smp::new_checked(&transit.packet.mad[..]).is_err() {
            self.drop_smp(at.node);
            return;
        }
        let directed = transit.packet.header().class() == Class::SUBN_DIRECTED;
        let Ok(mut smp) = Smp::new_checked(&mut transit.packet.mad[..]) else {
            return;
        };
        let step = match (directed, transit.origin) {
            // By its LID a packet finds the interface where its directed part begins or ends.
            (true, Origin::Neighbour(_)) if dlid != Lid::PERMISSIVE && ours => {
                directed::step(&mut smp, Origin::ByLid, is_switch)
            }
            // The same at a requester, and at a responder that is reached by its LID in the end.
            (true, Origin::Own(_))
                if dlid != Lid::PERMISSIVE
                    && !ours
                    && (!smp.is_returning() || smp.dr_dlid() != Lid::PERMISSIVE) =>
            {
                Step::ByLid(dlid)
            }
            (true, Origin::Neighbour(_)) if dlid != Lid::PERMISSIVE => Step::ByLid(dlid),
            (true, origin) => directed::step(&mut smp, origin, is_switch),
            (false, _) if ours => Step::Local,
            (false, _) => Step::ByLid(dlid),
        };
        match step {
            Step::Local => self.arrive(management, at.port, transit.packet),
            Step::Forward(out) => {
                transit.packet.slid = Lid::PERMISSIVE;
                transit.packet.dlid = Lid::PERMISSIVE;
                let out = PortRef { port: out, ..at };
                self.transmit(out, 0, transit.packet);
            }
            Step::ByLid(lid) => {
                if transit.packet.dlid != lid {
                    transit.packet.dlid = lid;
                    transit.packet.slid = self
                        .port(management)
                        .map_or(Lid::NONE, |port| port.info.lid);
                }
                if is_switch || matches!(transit.origin, Origin::Own(_)) {
                    self.route_by_lid(transit);
                } else {
                    self.drop_smp(at.node);
                }
            }
            Step::Discard => self.drop_smp(at.node),
        }
    }

    /// Sends a packet on by its LID, from a switch by its forwarding table.
    fn route_by_lid(&mut self, transit: Transit) {
        let Transit {
            at,
            origin,
            hops,
            packet,
        } = transit;
        let is_smp = packet.is_smp();
        let from = match origin {
            Origin::Neighbour(port) => port,
            Origin::Own(_) | Origin::ByLid => 0,
        };
        let out = if self.switch(at.node).is_none() {
            Ok(at)
        } else {
            self.forwarding_port(at.node, packet.dlid)
        };
        let out = out.and_then(|out| {
            if !is_smp {
                self.admit(at, from, out, packet.sl, Some(packet.pkey))?;
            }
            Ok(out)
        });
        match out {
            Ok(out) if hops < HOP_LIMIT => self.transmit(out, hops, packet),
            _ => {
                self.count(at, Counter::RcvSwitchRelayErrors, 1);
                if is_smp {
                    self.drop_smp(at.node);
                }
            }
        }
    }

    /// Puts a packet on the link at a port.
    fn transmit(&mut self, out: PortRef, hops: u8, packet: Box<MadPacket>) {
        let is_smp = packet.is_smp();
        let peer = self
            .port(out)
            .filter(|port| out.port != 0 && port.is_linked())
            .and_then(|port| port.peer);
        let Some(peer) = peer else {
            self.count(out, Counter::XmitDiscards, 1);
            if is_smp {
                self.drop_smp(out.node);
            }
            return;
        };
        self.count(out, Counter::UnicastXmit, 1);
        self.count(out, Counter::XmitData, u64::from(packet.words()));
        if is_smp && let Some(node) = self.nodes.get_mut(out.node.index()) {
            node.smps.forwarded += 1;
        }
        self.push(peer, Origin::Neighbour(peer.port), hops + 1, packet);
    }

    /// A packet has reached the port that it is for.
    fn arrive(&mut self, at: PortRef, ingress: u8, packet: Box<MadPacket>) {
        let Some(port) = self.port(at) else {
            return;
        };
        let consumer = port.owner == Owner::Consumer;
        let is_sm = port.info.capability_mask.contains(CapabilityMask::IS_SM);
        let method = packet.header().method();
        if packet.is_smp() {
            let attribute = packet.header().attribute();
            let for_manager = match method {
                Method::GET | Method::SET => {
                    attribute == wire::mad::AttributeId::SM_INFO && consumer && is_sm
                }
                Method::TRAP_REPRESS => false,
                _ => true,
            };
            if for_manager {
                self.deliver(at, packet);
            } else if matches!(method, Method::GET | Method::SET) {
                self.answer_smp(at, ingress, packet);
            }
            return;
        }
        if consumer {
            self.deliver(at, packet);
            return;
        }
        // The node's own general services: its performance agent.
        let allowed = packet.dst_qp == Qpn::QP1
            && packet.qkey == QKey::QP1
            && port.holds(packet.pkey)
            && packet.src_qp != Qpn::QP0;
        if !allowed {
            self.count(at, Counter::RcvConstraintErrors, 1);
            return;
        }
        let mut reply = packet.reply();
        if self.answer_performance(at, &mut reply.mad) {
            self.push(at, Origin::Own(at.port), 0, Box::new(reply));
        }
    }

    fn deliver(&mut self, port: PortRef, packet: Box<MadPacket>) {
        if self
            .port(port)
            .is_some_and(|port| port.owner == Owner::Consumer)
        {
            self.outputs.push_back(Output::Deliver { port, packet });
        }
    }

    /// Has the node's subnet management agent answer and sends the answer back.
    fn answer_smp(&mut self, at: PortRef, ingress: u8, mut packet: Box<MadPacket>) {
        let Ok(mut smp) = Smp::new_checked(&mut packet.mad[..]) else {
            return;
        };
        self.process_smp(at.node, ingress, &mut smp);
        let own = self.port(at).map_or(Lid::NONE, |port| port.info.lid);
        let mut reply = packet.reply();
        if reply.slid == Lid::PERMISSIVE && reply.dlid != Lid::PERMISSIVE {
            reply.slid = own;
        }
        self.push(at, Origin::Own(at.port), 0, Box::new(reply));
    }
}
