//! Packets on their way: from a port's queue pairs, hop by hop, to the agents and queue pairs of
//! another.

use std::time::Duration;

use wire::attribute::CapabilityMask;
use wire::mad::{AttributeId, Class, Method};
use wire::smp::Smp;
use wire::{Lid, MadPacket, QKey, Qpn, Sl};

use crate::agents::directed::{self, Origin, Step};
use crate::agents::{congestion, vendor};
use crate::fabric::Fabric;
use crate::links::loss::Passage;
use crate::nodes::counters::Counter;
use crate::nodes::node::Port;
use crate::nodes::owner::{Owner, SmpAccess};
use crate::nodes::topology::{NodeId, PortRef};
use crate::output::Output;
use crate::packet::Transit;
use crate::paths::route::{HOP_LIMIT, NoRoute};
use crate::tap::Direction;
use crate::timers::Timer;

/// Outcome of a packet that was to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Injected {
    /// It is on its way.
    Sent,
    /// The owner of the port may not send it.
    Denied,
    /// There are too many packets on their way, or the port does not exist; it was dropped.
    Dropped,
}

/// Packets on their way at most: what all buffers of the fabric hold together. A sweep keeps some
/// hundreds busy; more than this is a flood.
const IN_TRANSIT: usize = 16_384;
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
    if smp.is_directed() {
        let nowhere = smp.hop_count() == 0
            && (smp.dr_slid(), smp.dr_dlid()) == (Lid::PERMISSIVE, Lid::PERMISSIVE);
        nowhere && (own || packet.dlid == Lid::PERMISSIVE)
    } else {
        own
    }
}

impl Fabric {
    /// Sends a packet from a port's queue pair 0 or 1.
    ///
    /// The port stamps the partition key as its table has it, full or limited member, and the source
    /// LID, unless the one there is one of its own (path bits) or, in a
    /// packet for a directed route, permissive.
    pub fn inject(&mut self, from: PortRef, packet: MadPacket) -> Injected {
        let access = self.port(from).map_or(SmpAccess::Deny, |port| port.access);
        self.inject_as(from, packet, access)
    }

    /// The same for a sender at this port whose subnet management packets go as far as `access`
    /// says, and not as far as the owner's do: a program of the host, for example.
    pub fn inject_as(&mut self, from: PortRef, packet: MadPacket, access: SmpAccess) -> Injected {
        let Some(port) = self.port(from) else {
            return Injected::Dropped;
        };
        let is_smp = packet.is_smp();
        // Queue pair 0 talks to queue pair 0 and to no other (IBA 10.2.3).
        if is_smp != (packet.src_qp == Qpn::QP0) {
            return Injected::Denied;
        }
        let allowed = match access {
            SmpAccess::Fabric => true,
            SmpAccess::OwnPort => !is_smp || asks_itself(port, &packet),
            SmpAccess::Deny => !is_smp,
        };
        if !allowed {
            self.drop_smp(from.node);
            return Injected::Denied;
        }
        let pkey = if is_smp {
            packet.pkey
        } else {
            port.own_key(packet.pkey)
        };
        self.send(from, MadPacket { pkey, ..packet })
    }

    /// The same for a function that shares this port: it is no member of more than its packet says,
    /// and no subnet management packets of it go anywhere.
    pub fn inject_for_function(&mut self, from: PortRef, packet: MadPacket) -> Injected {
        if packet.is_smp() || packet.src_qp == Qpn::QP0 {
            self.drop_smp(from.node);
            return Injected::Denied;
        }
        self.send(from, packet)
    }

    fn send(&mut self, from: PortRef, packet: MadPacket) -> Injected {
        let Some(port) = self.port(from) else {
            return Injected::Dropped;
        };
        let is_smp = packet.is_smp();
        let mut packet = Box::new(packet);
        let keeps = port.answers_to(packet.slid) || is_smp && packet.slid == Lid::PERMISSIVE;
        if !keeps {
            packet.slid = port.info.lid;
        }
        let sent = self.push(Transit {
            at: from,
            origin: Origin::Own(from.port),
            hops: 0,
            packet,
        });
        if sent {
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

    /// Puts a packet among those on their way; false when they are too many.
    pub(crate) fn push(&mut self, transit: Transit) -> bool {
        if self.transit.len() + self.timers.packets() >= IN_TRANSIT {
            self.ledgers.count(transit.at, Counter::Vl15Dropped, 1);
            return false;
        }
        self.transit.push_back(transit);
        true
    }

    fn push_later(&mut self, time: Duration, transit: Transit) {
        if self.transit.len() + self.timers.packets() >= IN_TRANSIT {
            self.ledgers.count(transit.at, Counter::Vl15Dropped, 1);
            return;
        }
        self.timers.schedule(time, Timer::Packet(transit));
    }

    /// Counts a packet of a kind, which says whether the port has sent or received it, and its length
    /// in units of 4 bytes.
    pub(crate) fn count_packet(&mut self, at: PortRef, kind: Counter, sl: Sl, words: u64) {
        let (data, sent, received) = match kind {
            Counter::UnicastXmit | Counter::MulticastXmit => (Counter::XmitData, words, 0),
            _ => (Counter::RcvData, 0, words),
        };
        self.ledgers.count(at, kind, 1);
        self.ledgers.count(at, data, words);
        if sl != Sl::default()
            && let Some(port) = self.port(at)
        {
            port.counters.get().on_level(sl, sent, received);
        }
    }

    fn drop_smp(&mut self, node: NodeId) {
        if let Some(ledger) = self.ledgers.node_mut(node) {
            ledger.smps.dropped += 1;
        }
    }

    fn pass(&mut self, mut transit: Transit) {
        let at = transit.at;
        if let Origin::Neighbour(_) = transit.origin {
            let words = u64::from(transit.packet.words());
            let kind = if transit.packet.dlid.is_multicast() {
                Counter::MulticastRcv
            } else {
                Counter::UnicastRcv
            };
            self.count_packet(at, kind, transit.packet.sl, words);
            if let Some(ledger) = self.ledgers.port_mut(at) {
                ledger.receive_sound();
            }
            if self.tap.is_some() {
                self.show(at, Direction::Received, &transit.packet);
            }
        }
        let Some(node) = self.nodes.node(at.node) else {
            return;
        };
        let management = PortRef {
            port: node.management_port(at.port),
            ..at
        };
        let is_switch = node.switch.is_some();
        let dlid = transit.packet.dlid;
        let agent = node.port(management.port);
        let ours = dlid == Lid::PERMISSIVE || agent.is_some_and(|port| port.answers_to(dlid));
        if !transit.packet.is_smp() && dlid.is_multicast() {
            match transit.origin {
                Origin::Neighbour(_) if !is_switch => self.arrive(at, at.port, transit),
                _ => self.route_by_group(&transit),
            }
            return;
        }
        if !transit.packet.is_smp() {
            let sl = transit.packet.sl;
            match (ours, transit.origin, is_switch) {
                (true, Origin::Own(_), false) if self.loop_back(at, sl).is_err() => {
                    self.ledgers.count(at, Counter::OtherDiscards, 1);
                }
                (true, Origin::Neighbour(_), false) if self.is_router(at.node) => {
                    self.reach_router(at, transit);
                }
                (true, _, _) => self.arrive(management, at.port, transit),
                (false, Origin::Own(_), false) | (false, _, true) => self.route_by_lid(transit),
                // A packet to a LID that is not this adapter's.
                _ => self.ledgers.count(at, Counter::OtherRcvErrors, 1),
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
            Step::Local => self.arrive(management, at.port, transit),
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
        let at = transit.at;
        let is_smp = transit.packet.is_smp();
        match self.next_port(&transit) {
            Ok(out) if transit.hops < HOP_LIMIT => {
                self.transmit(out, transit.hops, transit.packet);
            }
            Ok(_) => self.ledgers.count(at, Counter::LoopingErrors, 1),
            Err(reason) => {
                self.refuse(at, reason, &transit.packet);
                if is_smp {
                    self.drop_smp(at.node);
                }
            }
        }
    }

    /// The port by which a packet with a unicast LID leaves a node.
    fn next_port(&self, transit: &Transit) -> Result<PortRef, NoRoute> {
        let Transit {
            at, origin, packet, ..
        } = transit;
        let out = if self.switch(at.node).is_none() {
            *at
        } else {
            self.forwarding_port(at.node, packet.dlid)?
        };
        // The two parts of a combined route may well share a link.
        if *origin == Origin::Neighbour(out.port) && packet.header().class() != Class::SUBN_DIRECTED
        {
            return Err(NoRoute::Circle(at.node));
        }
        if !packet.is_smp() {
            let from = origin.port();
            self.admit(*at, from, out, packet.sl, Some(packet.pkey))?;
        }
        Ok(out)
    }

    /// Sends copies of a packet on by its multicast LID.
    fn route_by_group(&mut self, transit: &Transit) {
        let Transit {
            at,
            origin,
            hops,
            ref packet,
        } = *transit;
        let from = origin.port();
        let outs: Vec<u8> = match self.switch(at.node) {
            None => vec![at.port],
            Some(_) if hops >= HOP_LIMIT => Vec::new(),
            Some(switch) => {
                let ports = switch.multicast.ports(packet.dlid);
                ports.filter(|&port| port != 0 && port != from).collect()
            }
        };
        if outs.is_empty() {
            self.ledgers.count(at, Counter::DlidMappingErrors, 1);
        }
        for port in outs {
            let out = PortRef { port, ..at };
            match self.admit(at, from, out, packet.sl, Some(packet.pkey)) {
                Ok(_) => self.transmit(out, hops, packet.clone()),
                Err(reason) => self.refuse(at, reason, packet),
            }
        }
    }

    /// Counts a packet that a node does not send on, where the specification says (IBA 16.1.3.5),
    /// and tells the manager of a partition that a switch keeps apart.
    fn refuse(&mut self, at: PortRef, reason: NoRoute, packet: &MadPacket) {
        self.count_refused(at, reason, 1);
        if let NoRoute::Partition(port) = reason {
            self.partition_kept_apart(port, packet);
        }
    }

    /// Counts packets that got to `at` and no further.
    pub(crate) fn count_refused(&mut self, at: PortRef, reason: NoRoute, packets: u64) {
        match reason {
            NoRoute::NotActive(out) if self.port(out).is_some() => {
                self.ledgers.count(out, Counter::InactiveDiscards, packets);
            }
            NoRoute::Partition(port) => {
                let counter = if port == at {
                    Counter::RcvConstraintErrors
                } else {
                    Counter::XmitConstraintErrors
                };
                self.ledgers.count(port, counter, packets);
            }
            NoRoute::NotThere(port) | NoRoute::HopLimit(port) | NoRoute::NotRouted(port) => {
                self.ledgers.count(port, Counter::OtherRcvErrors, packets);
            }
            NoRoute::Stalled(port) => {
                self.ledgers
                    .count(port, Counter::HoqLifetimeDiscards, packets);
                self.waits_in_vain(port);
            }
            // A packet that a switch itself sends to nowhere was not received by it.
            _ if at.port == 0 => {}
            NoRoute::Lane(_) => self.ledgers.count(at, Counter::VlMappingErrors, packets),
            NoRoute::Circle(_) => self.ledgers.count(at, Counter::LoopingErrors, packets),
            _ => self.ledgers.count(at, Counter::DlidMappingErrors, packets),
        }
    }

    /// Puts a packet on the link at a port.
    pub(crate) fn transmit(&mut self, out: PortRef, hops: u8, packet: Box<MadPacket>) {
        let is_smp = packet.is_smp();
        let link = self
            .port(out)
            .filter(|port| out.port != 0 && port.is_linked())
            .and_then(|port| Some((port.peer?, port.fault.is_some())));
        let Some((peer, is_faulty)) = link else {
            self.ledgers.count(out, Counter::InactiveDiscards, 1);
            if is_smp {
                self.drop_smp(out.node);
            }
            return;
        };
        if is_faulty && !is_smp && self.is_starved(out) {
            return self.hold(out, hops, packet);
        }
        let words = u64::from(packet.words());
        let kind = if packet.dlid.is_multicast() {
            Counter::MulticastXmit
        } else {
            Counter::UnicastXmit
        };
        if let Some(node) = self.ledgers.node_mut(out.node) {
            node.smps.forwarded += u64::from(is_smp);
        }
        self.count_packet(out, kind, packet.sl, words);
        if self.tap.is_some() {
            self.show(out, Direction::Sent, &packet);
        }
        let transit = Transit {
            at: peer,
            origin: Origin::Neighbour(peer.port),
            hops: hops + 1,
            packet,
        };
        if !is_faulty {
            self.push(transit);
            return;
        }
        match self.passage(out, !is_smp) {
            Passage::Lost => {}
            Passage::At(time) if time <= self.timers.now() => {
                self.push(transit);
            }
            Passage::At(time) => self.push_later(time, transit),
        }
    }

    /// A packet has reached the port that it is for.
    pub(crate) fn arrive(&mut self, at: PortRef, ingress: u8, transit: Transit) {
        let Transit { origin, packet, .. } = transit;
        let Some(port) = self.port(at) else {
            return;
        };
        let consumer = port.owner == Owner::Consumer;
        let is_sm = port.info.capability_mask.contains(CapabilityMask::IS_SM);
        let by_owner = matches!(origin, Origin::Own(_)) && port.access != SmpAccess::Fabric;
        let method = packet.header().method();
        if packet.is_smp() {
            let attribute = packet.header().attribute();
            let for_manager = match method {
                Method::GET | Method::SET => attribute == AttributeId::SM_INFO && consumer && is_sm,
                Method::TRAP_REPRESS => false,
                _ => true,
            };
            if for_manager {
                self.deliver(at, packet);
            } else {
                self.for_agent(at, ingress, by_owner, packet);
            }
            return;
        }
        let port_takes = port.holds(packet.pkey);
        if !port_takes {
            self.wrong_partition(at, &packet);
        } else if packet.dst_qp == Qpn::QP1 && packet.qkey != QKey::QP1 {
            self.wrong_queue_key(at, &packet);
        } else if packet.dst_qp == Qpn::QP1 && congestion::asks(&packet.mad) {
            // The general agent, even if the owner has the queue pairs: a port's owner does not decide how the port
            // is held back.
            self.for_general_agent(at, by_owner, &packet);
        } else if consumer {
            self.deliver(at, packet);
        } else if packet.dst_qp == Qpn::QP1 && packet.src_qp != Qpn::QP0 {
            self.for_general_agent(at, by_owner, &packet);
        }
    }

    /// A packet has reached an agent of a node: for performance, for congestion control, or for the class of
    /// the device's vendor.
    fn for_general_agent(&mut self, at: PortRef, by_owner: bool, packet: &MadPacket) {
        let mut reply = packet.reply();
        if let Some(port) = self.port(at) {
            reply.pkey = port.own_key(packet.pkey);
        }
        let answered = if congestion::asks(&reply.mad) {
            self.answer_congestion(at, by_owner, &mut reply.mad)
        } else if vendor::asks(&reply.mad) {
            self.answer_vendor(at, &mut reply.mad)
        } else {
            self.performance().answer(at, &mut reply.mad)
        };
        if answered {
            self.push(Transit {
                at,
                origin: Origin::Own(at.port),
                hops: 0,
                packet: Box::new(reply),
            });
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

    /// A packet has reached a node's subnet management agent.
    fn for_agent(&mut self, at: PortRef, ingress: u8, by_owner: bool, mut packet: Box<MadPacket>) {
        let source = packet.slid;
        let Ok(mut smp) = Smp::new_checked(&mut packet.mad[..]) else {
            return;
        };
        // An owner that reads its own port needs no key.
        let reads_itself = by_owner && smp.mad().method() == Method::GET;
        if !reads_itself && !self.check_m_key(at, source, &smp) {
            self.drop_smp(at.node);
            return;
        }
        if smp.mad().method() == Method::TRAP_REPRESS {
            // A manager that is not the master tells traps too, and waits for this.
            if smp.mad().attribute() == AttributeId::NOTICE
                && !self.repress(at, smp.mad().transaction())
            {
                self.deliver(at, packet);
            }
            return;
        }
        self.process_smp(at.node, ingress, by_owner, &mut smp);
        let own = self.port(at).map_or(Lid::NONE, |port| port.info.lid);
        let mut reply = packet.reply();
        if reply.slid == Lid::PERMISSIVE && reply.dlid != Lid::PERMISSIVE {
            reply.slid = own;
        }
        self.push(Transit {
            at,
            origin: Origin::Own(at.port),
            hops: 0,
            packet: Box::new(reply),
        });
    }
}
