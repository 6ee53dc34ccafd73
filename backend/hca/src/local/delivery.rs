//! Datagrams that have come: to whom they are, and what they find there.

use vm_memory::VolatileSlice;
use wire::ipoib::Checked;
use wire::{Gid, MadPacket, QKey, Qpn, ipoib};

use crate::budget::Budget;
use crate::engine::executor::Executor;
use crate::engine::requests::Requests;
use crate::memory::access::{Cursor, copy_whole};
use crate::memory::domain::Domain;
use crate::memory::mr::{Access, KeyError};
use crate::objects::Objects;
use crate::objects::counters::TrafficCounters;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::page_fault::{Half, PageFault, Paging};
use crate::objects::qp::RecvQueue;
use crate::objects::qp::attributes::{Inbound, QpState, Transport};
use crate::objects::reason::{Reason, Status};
use crate::objects::vf::quiesce::{For, QUIESCED};
use crate::objects::work::{
    CompletionEntry, GlobalRoute, RecvKind, RecvWr, Side, Source, WqeError,
};
use crate::path::{Envelope, Route, WrongKey};
use crate::queue_format::QueueFormat;
use crate::transport::datagram::{Datagram, GRH_LEN, grh};
use crate::transport::endpoint::Destination;
use crate::transport::frame::Frame;
use crate::transport::network::Network;
use crate::transport::{DATAGRAM_WORDS, unframed};
use crate::verbs::multicast::Group;

/// Longest time that a datagram may take to gather, and to scatter: it goes as a whole,
/// so that buffers in too many pieces are at fault like any that are unusable.
pub(super) const LONGEST_WALK: Budget = Budget::of_ns(131_072);
/// Length of a MAD.
pub(super) const MAD_LEN: usize = 256;
/// Time of the delivery of a packet to one more member of a group, beside the copy.
const DELIVERY_NS: i64 = 32;

/// Parts of the engine that a datagram needs when it has come.
pub(crate) struct Delivery<'a, F: QueueFormat> {
    objects: &'a mut Objects<F>,
    requests: &'a mut Requests<F>,
    network: &'a mut Network<F>,
}

impl<'a, F: QueueFormat> Delivery<'a, F> {
    #[inline]
    pub fn new(executor: &'a mut Executor<F>) -> Self {
        let Executor {
            objects,
            requests,
            network,
            ..
        } = executor;
        Self {
            objects,
            requests,
            network,
        }
    }
}

impl<F: QueueFormat> Delivery<'_, F> {
    /// A datagram has come to a function's port.
    pub fn receive_for(&mut self, at: VfId, qpn: Qpn, datagram: &mut Datagram<'_>) {
        if self.objects.vf(at).back == QUIESCED {
            return self
                .objects
                .vf_mut(at)
                .hold_datagram(For::QueuePair, qpn, datagram);
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

    /// See [`Engine::deliver_mad`](crate::Engine::deliver_mad).
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
            budget: Budget::NONE,
        };
        if let Some(function) =
            function.filter(|function| self.objects.vf(*function).back == QUIESCED)
        {
            self.objects
                .vf_mut(function)
                .hold_datagram(For::Agent, dest_qp, &datagram);
            return true;
        }
        // The subnet has counted it at the port.
        self.take_datagram(target, &mut datagram);
        true
    }

    /// Delivers to one queue pair, or drops (9.8.3), and counts at the port.
    pub fn receive_datagram(&mut self, index: QpIndex, datagram: &mut Datagram<'_>) {
        if let Some((id, _)) = self.objects.takes_datagrams(index) {
            let words = datagram.payload.len() as u64 / 4 + DATAGRAM_WORDS;
            self.objects.vf(id).counters.received(datagram.sl, words, 1);
            self.take_datagram(index, datagram);
        }
    }

    /// Delivers to one queue pair, or drops.
    pub fn take_datagram(&mut self, index: QpIndex, datagram: &mut Datagram<'_>) {
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
            let (packet, budget) = (&*datagram.payload, &mut datagram.budget);
            let steered = self.objects.steered(id, address, packet, budget);
            let Some((index, qp, hash)) = steered else {
                return;
            };
            // The sum of its bytes.
            datagram.budget.take_bytes(datagram.payload.len());
            (index, qp, Some(hash))
        } else {
            (index, qp, None)
        };
        let paging = qp.resp.paging;
        if paging == Paging::Told {
            return;
        }
        let Some((mut recv, srqn)) = self.requests.take_datagram_receive(self.objects, index)
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
        let domain = vf.domain(pd);
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
            datagram.budget.take_bytes(datagram.payload.len());
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
                .tell_half(self.objects, index, Half::Responder);
            self.requests
                .completions
                .complete(self.objects, cq, &entry, &[]);
        }
        if let Some(srqn) = srqn {
            self.objects.check_srq_limit(id, srqn);
        }
        if status != Status::Success {
            // Flushed on its own turn: this one is the sender's.
            if self.requests.completions.enter_error(self.objects, index) {
                let scheduler = &mut self.requests.completions.scheduler;
                scheduler.make_ready(self.objects, index);
                self.objects.last_request_reached(index);
            }
        }
    }

    /// A datagram for a group has come to a port.
    pub fn receive_multicast(
        &mut self,
        port: VfId,
        group: Group,
        datagram: &mut Datagram<'_>,
        budget: &mut Budget,
    ) {
        // Of one at rest it is counted when it comes.
        if self.objects.vf(port).back != QUIESCED {
            let counters = &self.objects.vf(port).counters;
            counters.received_for_group(datagram.sl);
        }
        self.serve_port(port, group, None, datagram, budget);
    }

    /// Serves the members of all functions at a port that are in the sender's virtual cluster.
    pub fn serve_port(
        &mut self,
        vf: VfId,
        (group, cluster): Group,
        blocked: Option<QpIndex>,
        datagram: &mut Datagram<'_>,
        budget: &mut Budget,
    ) {
        let mut at = 0;
        while let Some(function) = self.objects.sharer(vf, at) {
            at += 1;
            if self.objects.vf(function).port.cluster == cluster {
                self.serve_members(function, group, blocked, datagram, budget);
            }
        }
    }

    /// Serves the members of a function.
    pub fn serve_members(
        &mut self,
        vf: VfId,
        group: Gid,
        blocked: Option<QpIndex>,
        datagram: &mut Datagram<'_>,
        budget: &mut Budget,
    ) {
        if self.objects.vf(vf).back == QUIESCED {
            if self.objects.vf(vf).multicast.contains_key(&group) {
                self.objects
                    .vf_mut(vf)
                    .hold_datagram(For::Group(group), Qpn::MULTICAST, datagram);
            }
            return;
        }
        let mut at = 0;
        while let Some(&member) = self
            .objects
            .vf(vf)
            .multicast
            .get(&group)
            .and_then(|members| members.get(at))
        {
            at += 1;
            if Some(member) != blocked {
                budget.take(DELIVERY_NS);
                budget.take_bytes(datagram.payload.len());
                self.receive_datagram(member, datagram);
            }
        }
    }

    /// A datagram has come in a frame. `budget` is charged with the time of its receivers.
    pub fn datagram_arrives(
        &mut self,
        from: VfId,
        to: Destination,
        path_bits: [u8; 2],
        mut frame: Frame,
        budget: &mut Budget,
    ) {
        let (seen, dest_qp) = (frame.clone(), frame.address.dest_qp);
        let Some(mut datagram) = unframed(&mut frame) else {
            return;
        };
        match to {
            Destination::Function(to) => self.receive_for(to, dest_qp, &mut datagram),
            Destination::Away => {}
            Destination::Group(routes, group, cluster) => {
                for to in routes.iter().filter_map(Route::here) {
                    self.network
                        .show_at_port(self.objects, (from, to), cluster, path_bits, &seen);
                    let group = (group, cluster);
                    self.receive_multicast(to, group, &mut datagram, budget);
                }
            }
        }
        budget.charge(Budget::NONE, datagram.budget);
    }

    pub fn deliver_datagram(&mut self, vf: VfId, to: For, frame: &mut Frame) {
        let (dest_qp, global) = (frame.address.dest_qp, frame.address.global);
        let Some(mut datagram) = unframed(frame) else {
            return;
        };
        match to {
            For::QueuePair => self.receive_for(vf, dest_qp, &mut datagram),
            For::Group(group) => {
                if self.objects.sharer(vf, 0) == Some(vf) {
                    let counters = &self.objects.vf(vf).counters;
                    counters.received_for_group(datagram.sl);
                }
                self.serve_members(vf, group, None, &mut datagram, &mut { Budget::UNLIMITED });
            }
            For::Agent => {
                let mut mad = [0; 256];
                if let Some(bytes) = mad.get_mut(..datagram.payload.len()) {
                    bytes.copy_from_slice(datagram.payload);
                }
                let packet = MadPacket {
                    slid: datagram.slid,
                    dlid: datagram.dlid,
                    sl: datagram.sl,
                    pkey: datagram.pkey,
                    src_qp: datagram.src_qp,
                    dst_qp: dest_qp,
                    qkey: datagram.qkey,
                    grh: global.map(|(global, sgid)| global.header(sgid)),
                    mad,
                };
                self.deliver_mad(vf, &packet);
            }
        }
    }
}

impl<F: QueueFormat> Requests<F> {
    pub fn take_datagram_receive(
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

/// GRH (or the room for it) and payload, into the receive buffers.
fn scatter_datagram<D: crate::memory::dma::Dma>(
    domain: Domain<'_, D>,
    recv: &RecvWr,
    datagram: &mut Datagram<'_>,
) -> Result<(), Option<KeyError>> {
    let mut left = LONGEST_WALK;
    let scattered = scatter(domain, recv, datagram, &mut left);
    datagram.budget.charge(LONGEST_WALK, left);
    scattered
}

fn scatter<D: crate::memory::dma::Dma>(
    domain: Domain<'_, D>,
    recv: &RecvWr,
    datagram: &mut Datagram<'_>,
    budget: &mut Budget,
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
