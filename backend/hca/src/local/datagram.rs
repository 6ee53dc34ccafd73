//! Datagrams: to queue pairs of other ports, and to management agents.

use vm_memory::VolatileSlice;
use wire::ipoib::{self, Checked, Train};
use wire::{Gid, MadPacket, PKey, QKey, Qpn};

use crate::engine::Engine;
use crate::engine::progress::{Outcome, failed};
use crate::engine::requests::Requests;
use crate::memory::access::{Cursor, copy_whole};
use crate::memory::domain::Domain;
use crate::memory::mr::{Access, KeyError};
use crate::objects::Objects;
use crate::objects::counters::TrafficCounters;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::page_fault::{Half, PageFault, Paging};
use crate::objects::qp::attributes::{Inbound, QpState, Transport};
use crate::objects::qp::{Qp, RecvQueue};
use crate::objects::reason::{KeyFault, Reason, Status};
use crate::objects::vf::quiesce::{For, QUIESCED};
use crate::objects::work::payload::read_payload;
use crate::objects::work::{
    AddressVector, CompletionEntry, GlobalRoute, Offload, Operation, RecvKind, RecvWr, SendWr,
    Side, Source, WqeError,
};
use crate::path::{Envelope, NoRoute, WrongKey};
use crate::queue_format::QueueFormat;
use crate::transport::datagram::{Datagram, GRH_LEN, HOP_LIMIT, MAX_DATAGRAM};
use crate::transport::{DATAGRAM_WORDS, Destination, Room};

/// Length of the header with immediate data.
const IMMEDIATE_LEN: usize = 4;
/// Most that a datagram may cost to gather, and to scatter: it goes as a whole,
/// so that buffers in too many pieces are at fault like any that are unusable.
const LONGEST_WALK: i64 = 1024 * 1024;
/// Length of a MAD.
const MAD_LEN: usize = 256;

/// The part of a request that goes in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet {
    /// All of it.
    Whole,
    /// One of the datagrams that a train stands for, which has its headers inline.
    Segment(Train, u32),
}

impl<F: QueueFormat> Engine<F> {
    /// One attempt, which is also the last: nobody acknowledges a datagram.
    pub(crate) fn send_datagram(
        &mut self,
        index: QpIndex,
        wr: &mut SendWr,
        budget: &mut i64,
    ) -> Outcome {
        match wr.operation {
            Operation::Nop => return Outcome::Done(0),
            Operation::LocalInvalidate => return self.objects.local_invalidate(index, wr),
            Operation::UpdateKey => return self.objects.update_key(index, wr, budget),
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
        budget: &mut i64,
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
        let gathered = self
            .objects
            .gather_datagram(index, wr, packet, &mut buffer, budget);
        self.requests
            .completions
            .tell_half(&mut self.objects, index, Half::Requester);
        if let Ok(payload) = &gathered {
            let payload = &mut buffer[..*payload];
            *budget -= payload.len() as i64;
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
}

impl<F: QueueFormat> Engine<F> {
    /// Sends a gathered datagram to whom it may concern.
    fn dispatch_datagram(
        &mut self,
        index: QpIndex,
        wr: &SendWr,
        address: &AddressVector,
        payload: &mut [u8],
        budget: &mut i64,
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
            cost: 0,
        };
        if multicast {
            let counters = &self.objects.vf(from).counters;
            counters.sent(sl, words, 1);
            counters.sent_to_group(sl);
            let sender = blocks.then_some(index);
            self.multicast(from, sender, address, &mut datagram, psn, budget);
            *budget -= datagram.cost;
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
                self.receive_for(function, address.dest_qp, &mut datagram);
                *budget -= datagram.cost;
            }
        } else {
            TrafficCounters::add(&self.objects.vf(from).counters.xmit_discards, 1);
        }
    }

    /// A datagram has come to a function's port.
    pub(crate) fn receive_for(&mut self, at: VfId, qpn: Qpn, datagram: &mut Datagram<'_>) {
        if self.objects.vf(at).back == QUIESCED {
            return self.hold_datagram(at, For::QueuePair, qpn, datagram);
        }
        let target = self.objects.vf(at).qps.get(u32::from(qpn));
        // The management queue pairs are reached as 0 and 1 alone.
        if let Some(&target) = target
            && self
                .objects
                .qps
                .get(target.0)
                .is_some_and(|qp| qp.core.transport.is_address())
        {
            self.receive_datagram(target, datagram);
        }
    }
}

impl<F: QueueFormat> Engine<F> {
    /// Hands a management datagram to queue pair 0 or 1 of a function, or to an ordinary datagram queue
    /// pair. Where functions share the port, the GID or the queue pair number says which function has
    /// that queue pair. A queue pair that cannot take the datagram drops it, as on the wire.
    ///
    /// False when there is no such queue pair, as where no driver runs.
    pub fn deliver_mad(&mut self, vf: VfId, packet: &MadPacket) -> bool {
        let target = match u32::from(packet.dst_qp) {
            slot @ (0 | 1) => self.objects.vf(vf).special[slot as usize],
            number => {
                let dgid = packet.grh.map(|grh| grh.dgid);
                let function = self.objects.function_at(vf, dgid, packet.dst_qp);
                function.and_then(|function| self.objects.vf(function).qps.get(number).copied())
            }
        };
        let Some(target) = target else { return false };
        let function = self.objects.qps.get(target.0).map(|qp| qp.core.vf);
        let (mut mad, dest_qp) = (packet.mad, packet.dst_qp);
        let mut datagram = Datagram {
            slid: packet.slid,
            dlid: packet.dlid,
            sl: packet.sl,
            pkey: packet.pkey,
            src_qp: packet.src_qp,
            qkey: packet.qkey,
            sgid: packet.grh.map_or(Gid::NONE, |grh| grh.sgid),
            grh: { packet.grh.as_ref() }
                .map(|route| grh(&GlobalRoute::of(route), route.sgid, MAD_LEN, false)),
            immediate: None,
            solicited: false,
            payload: &mut mad,
            cost: 0,
        };
        if let Some(function) =
            function.filter(|function| self.objects.vf(*function).back == QUIESCED)
        {
            self.hold_datagram(function, For::Agent, dest_qp, &datagram);
            return true;
        }
        // The subnet has counted it at the port.
        self.take_datagram(target, &mut datagram);
        true
    }

    /// Delivers to one queue pair, or drops (9.8.3), and counts at the port.
    pub(crate) fn receive_datagram(&mut self, index: QpIndex, datagram: &mut Datagram<'_>) {
        if let Some((id, _)) = self.objects.takes_datagrams(index) {
            let words = datagram.payload.len() as u64 / 4 + DATAGRAM_WORDS;
            self.objects.vf(id).counters.received(datagram.sl, words, 1);
            self.take_datagram(index, datagram);
        }
    }

    /// Delivers to one queue pair, or drops.
    fn take_datagram(&mut self, index: QpIndex, datagram: &mut Datagram<'_>) {
        let (Some((id, transport)), Some(qp)) = (
            self.objects.takes_datagrams(index),
            self.objects.qps.get(index.0),
        ) else {
            return;
        };
        let vf = self.objects.vf(id);
        let (member, key_fits) = match transport {
            Transport::Smi => (true, true),
            Transport::Gsi => {
                let member = vf.port.pkeys.iter().any(|pkey| pkey.matches(datagram.pkey));
                (member, datagram.qkey == QKey::QP1)
            }
            _ => {
                let own = vf.port.pkey(qp.core.attr.pkey_index);
                (
                    own.matches(datagram.pkey),
                    qp.core.attr.qkey == datagram.qkey,
                )
            }
        };
        if !vf.counters.check_keys(member, key_fits) {
            let key = if member {
                WrongKey::Queue(datagram.qkey)
            } else {
                WrongKey::Partition(datagram.pkey)
            };
            let envelope = Envelope {
                slid: datagram.slid,
                dlid: datagram.dlid,
                sl: datagram.sl,
                src_qp: datagram.src_qp,
                dest_qp: qp.core.qpn,
            };
            return self.network.subnet.wrong_key(id, key, &envelope);
        }
        let address = qp.core.qpn;
        let (index, qp, steering) = if transport == Transport::Underlay {
            let (packet, cost) = (&*datagram.payload, &mut datagram.cost);
            let steered = self.objects.steered(id, address, packet, cost);
            let Some((index, qp, hash)) = steered else {
                return;
            };
            // The sum of its bytes.
            datagram.cost += datagram.payload.len() as i64;
            (index, qp, Some(hash))
        } else {
            (index, qp, None)
        };
        let paging = qp.resp.paging;
        if paging == Paging::Told {
            return;
        }
        let Some((mut recv, srqn)) = self
            .requests
            .take_datagram_receive(&mut self.objects, index)
        else {
            return;
        };
        let time = self
            .requests
            .completions
            .completion_time(datagram.payload.len() as u32);
        let Some(qp) = self.objects.qps.get(index.0) else {
            return;
        };
        let vf = self.objects.vf(id);
        let pd = match srqn
            .and_then(|srqn| vf.srqs.get(srqn))
            .and_then(|srq| self.objects.srqs.get(srq.0))
        {
            Some(srq) => srq.pd,
            None => qp.core.pd,
        };
        let capacity: u64 = recv.sges.iter().map(|sge| u64::from(sge.len)).sum();
        let total = GRH_LEN + datagram.payload.len();
        let domain = Domain {
            dma: &vf.dma,
            keys: &vf.keys,
            pd,
        };
        let scattered = if capacity < total as u64 {
            Err(None)
        } else if paging == Paging::Denied {
            Err(Some(KeyError::Unmapped(0)))
        } else {
            scatter_datagram(domain, &recv, datagram)
        };
        if let Err(Some(KeyError::Absent(_))) = scattered
            && F::hears_of_pages(&vf.face)
        {
            // It is dropped, and the next one finds the request here, and the page.
            let inbound = Inbound { wr: recv, srqn, pd };
            let fault = PageFault::receive(&qp.core, domain, &inbound, [0, total as u64]);
            if let Some(qp) = self.objects.qps.get_mut(index.0) {
                qp.resp.inbound = Some(inbound);
            }
            self.objects.responder_waits(index, fault);
            return;
        }
        let checked = if qp.core.offloads {
            datagram.cost += datagram.payload.len() as i64;
            ipoib::check(datagram.payload)
        } else {
            Checked::default()
        };
        let status = match scattered {
            Ok(()) => Status::Success,
            Err(_) if capacity < total as u64 => Status::LocalLength,
            Err(_) => Status::LocalProtection,
        };
        let source = Source {
            slid: datagram.slid,
            src_qp: datagram.src_qp,
            sl: datagram.sl,
            grh: datagram.grh.is_some(),
            pkey: vf.port.shown(datagram.pkey),
            path_bits: vf.port.path_bits(datagram.dlid),
            checked,
        };
        let side = match steering {
            Some(hash) => Side::Steered {
                source,
                hash,
                checksum: ipoib::sum(datagram.payload),
            },
            None => Side::Recv {
                kind: if datagram.immediate.is_some() {
                    RecvKind::SendImm
                } else {
                    RecvKind::Send
                },
                immediate: datagram.immediate.unwrap_or(0),
                srqn,
                source: Some(source),
            },
        };
        let entry = CompletionEntry {
            qpn: address,
            user_index: qp.core.user_index,
            index: recv.index,
            status,
            reason: Reason::Status,
            byte_len: total as u32,
            solicited: datagram.solicited || status != Status::Success,
            time,
            side,
        };
        let cq = qp.resp.cq;
        recv.clear();
        self.requests.completions.spare_recvs.keep(recv);
        if let Some(cq) = cq {
            self.requests
                .completions
                .tell_half(&mut self.objects, index, Half::Responder);
            self.requests
                .completions
                .complete(&mut self.objects, cq, &entry, &[]);
        }
        if let Some(srqn) = srqn {
            self.objects.check_srq_limit(id, srqn);
        }
        if status != Status::Success {
            // Flushed on its own turn: this one is the sender's.
            if self
                .requests
                .completions
                .enter_error(&mut self.objects, index)
            {
                self.requests
                    .completions
                    .scheduler
                    .make_ready(&mut self.objects, index);
                self.objects.last_request_reached(index);
            }
        }
    }
}

impl Requests {
    pub fn take_datagram_receive<F: QueueFormat>(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
    ) -> Option<(Box<RecvWr>, Option<u32>)> {
        let mut recv = self.completions.spare_recvs.take(RecvWr::with_capacity);
        recv.clear();
        let Objects { qps, vfs, srqs, .. } = objects;
        let qp = qps.get_mut(index.0)?;
        if let Some(inbound) = qp.resp.inbound.take() {
            // Of a datagram that was dropped.
            qp.resp.paging = Paging::None;
            self.completions.spare_recvs.keep(recv);
            return Some((inbound.wr, inbound.srqn));
        }
        let dma = &vfs[usize::from(qp.core.vf.0)].dma;
        let (taken, srqn) = match &mut qp.resp.queue {
            RecvQueue::Own(queue) => (F::take_recv(dma, queue, &mut recv), None),
            RecvQueue::Shared(srq) => match srqs.get_mut(srq.0) {
                Some(srq) => (
                    F::take_shared(dma, &mut srq.ring, &mut recv),
                    Some(srq.srqn),
                ),
                None => (Ok(false), None),
            },
            RecvQueue::None | RecvQueue::Tagged(_) | RecvQueue::Xrc(_) => (Ok(false), None),
        };
        match taken {
            Ok(true) => return Some((recv, srqn)),
            // An unreadable list has no room; the length check reports it.
            Err(WqeError::Malformed { index, .. }) => {
                recv.clear();
                recv.index = index;
                return Some((recv, srqn));
            }
            Ok(false) => {
                let requests = &qp.core.set.counters.requests;
                TrafficCounters::add(&requests.out_of_buffer, 1);
            }
            Err(WqeError::Unmapped) => {
                if qp.core.state != QpState::Error {
                    self.catastrophe(objects, index);
                }
            }
        }
        self.completions.spare_recvs.keep(recv);
        None
    }
}

impl<F: QueueFormat> Objects<F> {
    /// Gathers a packet of a request at the start of `buffer`, and gives its length.
    fn gather_datagram(
        &self,
        index: QpIndex,
        wr: &SendWr,
        packet: Packet,
        buffer: &mut [u8; MAX_DATAGRAM],
        budget: &mut i64,
    ) -> Result<usize, Reason> {
        let Some(Qp { core, .. }) = self.qps.get(index.0) else {
            return Err(Reason::Status);
        };
        let vf = self.vf(core.vf);
        let domain = Domain {
            dma: &vf.dma,
            keys: &vf.keys,
            pd: core.pd,
        };
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
        *budget -= LONGEST_WALK - left;
        match read {
            Ok(read) if read == payload.len() => Ok(header.len() + len),
            Ok(_) => Err(Reason::Pieces),
            Err(error) => Err(Reason::LocalKey(error.into())),
        }
    }

    /// Function and transport of a queue pair that takes datagrams now.
    pub(crate) fn takes_datagrams(&self, index: QpIndex) -> Option<(VfId, Transport)> {
        let core = &self.qps.get(index.0)?.core;
        let (transport, id) = (core.transport, core.vf);
        // Subnet management brings ports up, so it does not need them up.
        let up = self.vf(id).port.active || transport == Transport::Smi;
        (transport.is_datagram() && core.state.receives() && up).then_some((id, transport))
    }
}

/// GRH (or the room for it) and payload, into the receive buffers.
fn scatter_datagram<D: crate::memory::dma::Dma>(
    domain: Domain<'_, D>,
    recv: &RecvWr,
    datagram: &mut Datagram<'_>,
) -> Result<(), Option<KeyError>> {
    let mut left = LONGEST_WALK;
    let scattered = scatter(domain, recv, datagram, &mut left);
    datagram.cost += LONGEST_WALK - left;
    scattered
}

fn scatter<D: crate::memory::dma::Dma>(
    domain: Domain<'_, D>,
    recv: &RecvWr,
    datagram: &mut Datagram<'_>,
    budget: &mut i64,
) -> Result<(), Option<KeyError>> {
    let mut offset = 0;
    if let Some(header) = &mut datagram.grh {
        let mut to = Cursor::new(domain, &recv.sges, 0, Access::LOCAL_WRITE);
        copy_whole(VolatileSlice::from(&mut header[..]), &mut to, budget)?;
    }
    offset += GRH_LEN as u64;
    let mut to = Cursor::new(domain, &recv.sges, offset, Access::LOCAL_WRITE);
    let payload = VolatileSlice::from(&mut datagram.payload[..]);
    copy_whole(payload, &mut to, budget)
}

/// The global route header that a receiver sees (8.3).
pub(crate) fn grh(
    global: &GlobalRoute,
    source: Gid,
    payload: usize,
    immediate: bool,
) -> [u8; GRH_LEN] {
    let mut header = [0; GRH_LEN];
    let first = 6_u32 << 28 | u32::from(global.traffic_class) << 20 | global.flow_label & 0xf_ffff;
    header[0..4].copy_from_slice(&first.to_be_bytes());
    let immediate = if immediate { IMMEDIATE_LEN } else { 0 };
    // BTH, DETH, immediate data, payload padded to words, ICRC
    let length = 12 + 8 + immediate + payload.next_multiple_of(4) + 4;
    header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    header[6] = 0x1b;
    header[HOP_LIMIT] = global.hop_limit;
    header[8..24].copy_from_slice(&source.to_bytes());
    header[24..40].copy_from_slice(&global.dgid.to_bytes());
    header
}

/// Decodes a global route header.
pub(crate) fn global_route(header: &[u8; GRH_LEN]) -> GlobalRoute {
    let first = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let mut dgid = [0; 16];
    dgid.copy_from_slice(&header[24..40]);
    GlobalRoute {
        dgid: Gid::from_bytes(dgid),
        sgid_index: 0,
        flow_label: first & 0xf_ffff,
        traffic_class: (first >> 20) as u8,
        hop_limit: header[HOP_LIMIT],
    }
}
