//! Datagrams: to queue pairs of other ports, and to management agents.

use wire::ipoib::{self, Train};
use wire::{Gid, MadPacket, Mtu, PKey, Psn, QKey, Qpn};

use crate::budget::{Budget, REQUEST_NS};
use crate::engine::executor::Executor;
use crate::engine::outcome::{Outcome, failed};
use crate::local::delivery::{Delivery, LONGEST_WALK, MAD_LEN};
use crate::memory::dma::Dma;
use crate::memory::domain::Domain;
use crate::memory::mr::Access;
use crate::objects::counters::TrafficCounters;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::page_fault::Half;
use crate::objects::qp::Qp;
use crate::objects::qp::attributes::Transport;
use crate::objects::reason::{KeyFault, Reason, Status};
use crate::objects::vf::Vf;
use crate::objects::work::payload::read_payload;
use crate::objects::work::{AddressVector, Offload, Operation, Segmentation, SendWr};
use crate::path::{End, NoRoute, Route};
use crate::queue_format::QueueFormat;
use crate::transport::datagram::frame::framed;
use crate::transport::datagram::{Datagram, MAX_DATAGRAM, grh};
use crate::transport::endpoint::InFlight;
use crate::transport::{DATAGRAM_WORDS, Destination, Room};
use crate::verbs::multicast::Group;

/// Most bytes of a stretch of TCP, its headers among them.
const MAX_STRETCH: u64 = 1 << 18;

/// The part of a request that goes in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet {
    /// All of it.
    Whole,
    /// One of the datagrams that a train stands for, which has its headers inline.
    Segment(Train, u32),
}

impl<F: QueueFormat> Executor<F> {
    /// One attempt, which is also the last: nobody acknowledges a datagram.
    pub(crate) fn send_datagram(
        &mut self,
        index: QpIndex,
        wr: &mut SendWr,
        budget: &mut Budget,
    ) -> Outcome {
        match wr.operation {
            Operation::Nop => return Outcome::Done(0),
            Operation::LocalInvalidate => {
                return self.objects.at_keys(index, wr, Vf::local_invalidate);
            }
            Operation::UpdateKey => {
                let update = |vf: &mut Vf<F>, core: &_, wr: &mut _| vf.update_key(core, wr, budget);
                return self.objects.at_keys(index, wr, update);
            }
            Operation::Send | Operation::SendImm => {}
            _ => return failed(wr, Status::LocalQpOperation, Reason::Transport),
        }
        let Some(qp) = self.objects.qps.get(index.0) else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        let Some(address) = wr.address else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        let most = u64::from(qp.core.attr.mtu.bytes()).min(MAX_DATAGRAM as u64);
        let sent = match wr.offload {
            Some(Offload {
                segmentation: Some(cut),
                ..
            }) => self.send_segments(index, wr, &address, (cut, most), budget),
            _ if wr.payload_len() > most => {
                return failed(wr, Status::LocalLength, Reason::Length);
            }
            _ => self.send_packet(index, wr, &address, Packet::Whole, budget),
        };
        sent.map_or_else(
            |outcome| outcome,
            |()| Outcome::Done(wr.payload_len() as u32),
        )
    }

    /// Gathers a packet of a request, no longer than the path's MTU, and sends it.
    pub(super) fn send_packet(
        &mut self,
        index: QpIndex,
        wr: &mut SendWr,
        address: &AddressVector,
        packet: Packet,
        budget: &mut Budget,
    ) -> Result<(), Outcome> {
        if self.network.exits.may_be_crowded {
            match self
                .network
                .datagram_room(&mut self.objects, index, address)
            {
                Room::Now => {}
                Room::Then(until) => return Err(Outcome::Held(until)),
                Room::Unknown => return Err(Outcome::Crowded),
            }
        }
        let mut buffer = self
            .datagram
            .take()
            .unwrap_or_else(|| Box::new([0; MAX_DATAGRAM]));
        let gathered = match self.objects.qps.get(index.0) {
            Some(Qp { core, .. }) => {
                let domain = self.objects.vf(core.vf).domain(core.pd);
                gather_datagram(domain, wr, packet, &mut buffer, budget)
            }
            None => Err(Reason::Status),
        };
        self.requests
            .completions
            .tell_half(&mut self.objects, index, Half::Requester);
        if let Ok(payload) = &gathered {
            let payload = &mut buffer[..*payload];
            budget.take_bytes(payload.len());
            match (packet, wr.offload) {
                (Packet::Segment(train, number), _) => train.finish(payload, number),
                (Packet::Whole, Some(offload)) => {
                    ipoib::fill(
                        payload,
                        offload.network_checksum,
                        offload.transport_checksum,
                    );
                }
                (Packet::Whole, None) => {}
            }
            self.dispatch_datagram(index, wr, address, payload, budget);
            // Nobody looks at it, but every packet has its own (9.8.3.1).
            if let Some(qp) = self.objects.qps.get_mut(index.0) {
                qp.req.psn = qp.req.psn.next();
            }
        }
        self.datagram = Some(buffer);
        match gathered {
            Ok(_) => Ok(()),
            Err(Reason::LocalKey(KeyFault::Absent)) => Err(Outcome::Absent),
            Err(reason) => Err(failed(wr, Status::LocalProtection, reason)),
        }
    }

    /// Sends a gathered datagram to whom it may concern.
    pub fn dispatch_datagram(
        &mut self,
        index: QpIndex,
        wr: &SendWr,
        address: &AddressVector,
        payload: &mut [u8],
        budget: &mut Budget,
    ) {
        let Some(qp) = self.objects.qps.get(index.0) else {
            return;
        };
        let (from, psn) = (qp.core.vf, qp.req.psn);
        let (index, qp) = if qp.core.transport == Transport::SendQueue {
            match self.objects.underlay(&qp.core) {
                Some(underlay) => underlay,
                None => {
                    return TrafficCounters::add(&self.objects.vf(from).counters.xmit_discards, 1);
                }
            }
        } else {
            (index, qp)
        };
        let transport = qp.core.transport;
        let blocks = qp.core.block_multicast_loopback;
        let port = &self.objects.vf(from).port;
        // Subnet management has no service level of its own.
        let sl = match transport {
            Transport::Smi => Some(address.sl),
            _ => port.service_levels.admit(address.sl),
        };
        let Some(sl) = sl else {
            return TrafficCounters::add(&self.objects.vf(from).counters.xmit_discards, 1);
        };
        let address = &AddressVector { sl, ..*address };
        let src_qp = match transport {
            Transport::Smi => Qpn::QP0,
            Transport::Gsi => Qpn::QP1,
            _ => qp.core.source_qpn,
        };
        // A controlled Q_Key in the request stands for the queue pair's own,
        // which only a privileged consumer could have set (10.2.5).
        let qkey = if address.qkey.is_controlled() {
            qp.core.attr.qkey
        } else {
            address.qkey
        };
        let pkey = if transport == Transport::Smi {
            PKey::DEFAULT_FULL
        } else {
            port.pkey(qp.core.attr.pkey_index)
        };
        let source_gid = address
            .global
            .and_then(|global| port.gids.get(usize::from(global.sgid_index)).copied())
            .unwrap_or(Gid::NONE);
        let (slid, active) = (port.source(address.src_path_bits), port.active);
        let counters = &self.objects.vf(from).counters;
        let words = payload.len() as u64 / 4 + DATAGRAM_WORDS;
        let multicast = address.dlid.is_multicast();
        let to_agent = address.dest_qp == Qpn::QP0 || (address.dest_qp == Qpn::QP1 && !multicast);
        if to_agent {
            // Subnet management is between queue pairs 0 and passes any link;
            // general services have their well-known Q_Key (C9-49, 10.2.5).
            let allowed = if address.dest_qp == Qpn::QP0 {
                transport == Transport::Smi
            } else {
                active && qkey == QKey::QP1
            };
            if !allowed || payload.len() > MAD_LEN {
                return TrafficCounters::add(&counters.xmit_discards, 1);
            }
            // The subnet counts at the port what it lets in.
            let mut mad = [0_u8; MAD_LEN];
            mad[..payload.len()].copy_from_slice(payload);
            let packet = MadPacket {
                slid,
                dlid: address.dlid,
                sl: address.sl,
                pkey,
                src_qp,
                dst_qp: address.dest_qp,
                qkey,
                grh: address.global.map(|global| global.header(source_gid)),
                mad,
            };
            return self.network.subnet.send_mad(from, packet);
        }
        if !active || !pkey.is_valid() {
            return TrafficCounters::add(&counters.xmit_discards, 1);
        }
        let immediate = (wr.operation == Operation::SendImm).then_some(wr.immediate);
        let mut datagram = Datagram {
            slid,
            dlid: address.dlid,
            sl: address.sl,
            pkey,
            src_qp,
            qkey,
            sgid: source_gid,
            grh: address
                .global
                .map(|global| grh(&global, source_gid, payload.len(), immediate.is_some())),
            immediate,
            solicited: wr.solicited,
            payload,
            budget: Budget::NONE,
        };
        if multicast {
            let counters = &self.objects.vf(from).counters;
            counters.sent(sl, words, 1);
            counters.sent_to_group(sl);
            let sender = blocks.then_some(index);
            self.multicast(from, sender, address, &mut datagram, psn, budget);
            budget.charge(Budget::NONE, datagram.budget);
            return;
        }
        let route = self
            .network
            .datagram_route(&mut self.objects, from, address, pkey);
        if let Err(NoRoute::Held(path)) = route {
            return self.network.traffic.add(path, words, 1);
        }
        self.objects.vf(from).counters.sent(sl, words, 1);
        let route = match route {
            Err(NoRoute::Lost(path)) => return self.network.traffic.add(path, words, 1),
            Ok(route) if datagram.payload.len() <= route.mtu.bytes() as usize => Some(route),
            Ok(_) | Err(_) => None,
        };
        if let Some(route) = route {
            let dgid = address.global.map(|global| global.dgid);
            let Some(port) = route.here() else {
                let to = Destination::Away;
                return self.launch_datagram(from, to, route, address, &datagram, psn);
            };
            if self.objects.vf(port).elsewhere {
                let to = Destination::Function(port);
                return self.launch_datagram(from, to, route, address, &datagram, psn);
            }
            let function = self.objects.function_at(port, dgid, address.dest_qp);
            if let Some(to) = function
                && (route.is_impaired() || self.network.exits.shows(from, to))
            {
                let to = Destination::Function(to);
                return self.launch_datagram(from, to, route, address, &datagram, psn);
            }
            self.network.traffic.add(route.path, words, 1);
            if let Some(crossing) = route.crossing {
                datagram.cross(&crossing);
            }
            if let Some(function) = function {
                Delivery::new(self).receive_for(function, address.dest_qp, &mut datagram);
                budget.charge(Budget::NONE, datagram.budget);
            }
        } else {
            TrafficCounters::add(&self.objects.vf(from).counters.xmit_discards, 1);
        }
    }

    /// Sends the segments of a request that have not gone yet, as far as the turn's bytes go, each as long as the
    /// request says and no longer than `most` bytes with its headers.
    #[cold]
    pub fn send_segments(
        &mut self,
        index: QpIndex,
        wr: &mut SendWr,
        address: &AddressVector,
        (cut, most): (Segmentation, u64),
        budget: &mut Budget,
    ) -> Result<(), Outcome> {
        let header = wr.inline.get(..cut.header.into()).unwrap_or_default();
        let payload = wr.payload_len().saturating_sub(cut.header.into());
        let train = Train::of(header, payload as u32, cut.mss);
        let Some(train) = train.ok().filter(|train| train.start() == header.len()) else {
            return Err(failed(wr, Status::LocalQpOperation, Reason::Segments));
        };
        if u64::from(train.longest()) > most || wr.payload_len() > MAX_STRETCH {
            return Err(failed(wr, Status::LocalLength, Reason::Length));
        }
        loop {
            let Some(qp) = self.objects.qps.get(index.0) else {
                return Err(Outcome::Failed(Status::LocalQpOperation));
            };
            // Of an image, it may be anything.
            let number = (qp.req.offset as u32 / u32::from(cut.mss)).min(train.datagrams() - 1);
            self.send_packet(index, wr, address, Packet::Segment(train, number), budget)?;
            if number + 1 == train.datagrams() {
                return Ok(());
            }
            if let Some(qp) = self.objects.qps.get_mut(index.0) {
                qp.req.offset = train.part(number).end.into();
            }
            budget.take(REQUEST_NS);
            if !budget.is_left() {
                return Err(Outcome::Partly);
            }
        }
    }

    /// Sends a datagram in a frame. `psn` is its number.
    #[cold]
    pub fn launch_datagram(
        &mut self,
        from: VfId,
        to: Destination,
        route: Route,
        address: &AddressVector,
        datagram: &Datagram<'_>,
        psn: Psn,
    ) {
        if !self.objects.vf(from).has_slots() {
            return TrafficCounters::add(&self.objects.vf(from).counters.xmit_discards, 1);
        }
        let mut frame = framed(datagram, address.dest_qp);
        frame.psn = psn;
        self.network
            .hold_back(from, datagram.src_qp, &route, &frame);
        let in_flight = InFlight::new(&self.objects.vf(from).in_flight, 1);
        self.network
            .send_routed(&self.objects, from, to, route, frame, Some(in_flight));
        // A datagram that takes no time arrives before the sender knows that it has left.
        if self.network.exits.have_arrivals() {
            self.arrivals(self.requests.completions.scheduler.clock.now());
        }
    }

    /// Sends a packet to every queue pair attached to its group, at its own port and at the ports that
    /// it reaches, but not to `blocked`.
    pub fn multicast(
        &mut self,
        from: VfId,
        blocked: Option<QpIndex>,
        address: &AddressVector,
        datagram: &mut Datagram<'_>,
        psn: Psn,
        budget: &mut Budget,
    ) {
        // A multicast packet has a GRH whose destination GID names the group,
        // and goes to the multicast queue pair number (9.8.1, 10.5.2).
        let Some(global) = address.global else { return };
        if address.dest_qp != Qpn::MULTICAST {
            return;
        }
        let cluster = self.objects.vf(from).port.cluster;
        let group = (global.dgid, cluster);
        Delivery::new(self).serve_port(from, group, blocked, datagram, budget);
        let slot =
            self.network
                .fan_out(&mut self.objects, from, address, global.dgid, datagram.pkey);
        if let Some(fanout) = &self.objects.vf(from).ways.fanouts[slot] {
            datagram.dlid = fanout.here;
        }
        if self.network.exits.are_watched() || self.objects.is_impaired(from, slot) {
            return self.launch_multicast(from, group, slot, address, datagram, psn);
        }
        let fanout = self.objects.vf(from).ways.fanouts[slot].as_ref();
        if let Some(first) = fanout.and_then(|fanout| fanout.routes.first()) {
            let words = datagram.payload.len() as u64 / 4 + DATAGRAM_WORDS;
            self.network.traffic.add(first.path, words, 1);
        }
        let mut at = 0;
        while let Some(&route) = self.objects.vf(from).ways.fanouts[slot]
            .as_ref()
            .and_then(|fanout| fanout.routes.get(at))
        {
            at += 1;
            if let Some(port) = self.objects.reached(from, &route, datagram) {
                Delivery::new(self).receive_multicast(port, group, datagram, budget);
            }
        }
    }

    /// Sends a packet in a frame.
    #[cold]
    pub fn launch_multicast(
        &mut self,
        from: VfId,
        (gid, cluster): Group,
        slot: usize,
        address: &AddressVector,
        datagram: &Datagram<'_>,
        psn: Psn,
    ) {
        let fanout = self.objects.vf(from).ways.fanouts[slot].as_ref();
        let routes = fanout.map_or(&[][..], |fanout| &fanout.routes);
        let first = routes.first().copied();
        let first = first.unwrap_or(Route::clean(End::Here(from), Mtu::B4096));
        let reached = |route: &&Route| self.objects.reached(from, route, datagram).is_some();
        let here = routes.iter().filter(reached).copied().collect();
        // One copy goes over each link.
        let mut away: Vec<_> = routes.iter().filter(|it| it.here().is_none()).collect();
        away.dedup_by_key(|route| route.end);
        let away: Vec<_> = away.into_iter().copied().collect();
        let to = Destination::Group(here, gid, cluster);
        self.launch_datagram(from, to, first, address, datagram, psn);
        for route in away {
            self.launch_datagram(from, Destination::Away, route, address, datagram, psn);
        }
    }
}

/// Gathers a packet of a request at the start of `buffer`, and gives its length.
fn gather_datagram<D: Dma>(
    domain: Domain<'_, D>,
    wr: &SendWr,
    packet: Packet,
    buffer: &mut [u8; MAX_DATAGRAM],
    budget: &mut Budget,
) -> Result<usize, Reason> {
    let (header, start, len) = match packet {
        Packet::Whole => (&[][..], 0, wr.payload_len() as usize),
        Packet::Segment(train, number) => {
            let (header, part) = (train.start(), train.part(number));
            let header = wr.inline.get(..header).ok_or(Reason::Segments)?;
            let start = header.len() as u64 + u64::from(part.start);
            (header, start, part.len())
        }
    };
    let (head, payload) = buffer[..header.len() + len].split_at_mut(header.len());
    head.copy_from_slice(header);
    let mut left = LONGEST_WALK;
    let read = read_payload(domain, wr, start, Access::LOCAL_READ, payload, &mut left);
    budget.charge(LONGEST_WALK, left);
    match read {
        Ok(read) if read == payload.len() => Ok(header.len() + len),
        Ok(_) => Err(Reason::Pieces),
        Err(error) => Err(Reason::LocalKey(error.into())),
    }
}
