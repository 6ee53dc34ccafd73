//! Messages of connected queue pairs on the local path: both ends are of this
//! engine, so a message is one copy from guest memory to guest memory, and the
//! acknowledgement is the function's return.
//!
//! Requester and responder keep the state they would keep on a wire (PSNs, MSN,
//! retry counters) and check what they would check there.

use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::{VolatileMemory, VolatileSlice};

use crate::access::{CopyError, Cursor, Domain, Source, check_list, copy, window};
use crate::engine::{Engine, QpIndex};
use crate::face::{Event, Face};
use crate::mr::{Access, KeyError};
use crate::progress::Outcome;
use crate::qp::{Inbound, Peer, Qp, QpState, RecvQueue, RemoteRights, Transport};
use crate::vf::Vf;
use crate::work::{AtomicOperands, Operation, RecvKind, SendWr, Sge, Status, WqeError};

/// Longest message (the port's maximum, 2^30 bytes).
pub const MAX_MESSAGE: u64 = 1 << 30;

/// Bytes of headers that one packet of a connected transport has on the wire
/// (LRH, BTH, ICRC, VCRC), in words of four octets as the port counters count.
const HEADER_WORDS: u64 = (8 + 12 + 4 + 2) / 4;

/// Distance up to which a PSN counts as one already seen (specification
/// 9.7.1): half the 24-bit space lies behind, half ahead.
fn is_duplicate(psn: wire::Psn, expected: wire::Psn) -> bool {
    psn.precedes(expected)
}

/// How the responder refuses.
enum Refusal {
    /// NAK, invalid request.
    Invalid,
    /// NAK, remote access error.
    Access,
    /// NAK, remote operational error.
    Operation,
    /// RNR NAK with this timer code.
    NotReady(u8),
    /// The requester's own memory is at fault.
    Local,
    /// The responder's receive queue is unreadable.
    Catastrophe,
}

impl<F: Face> Engine<F> {
    /// One attempt at a request of a connected (or key-update) queue pair.
    #[inline]
    pub(crate) fn send_connected(
        &mut self,
        index: QpIndex,
        wr: &mut SendWr,
        budget: &mut i64,
    ) -> Outcome {
        match wr.operation {
            Operation::Nop => return Outcome::Done(0),
            Operation::LocalInvalidate => return self.local_invalidate(index, wr),
            Operation::UpdateKey => return self.update_key(index, wr),
            _ => {}
        }
        let Some(qp) = self.qps.get(index.0) else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        if qp.core.transport == Transport::KeyUpdate {
            return Outcome::Failed(Status::LocalQpOperation);
        }
        let transport = qp.core.transport;
        let len = wr.payload_len();
        if len > MAX_MESSAGE {
            return Outcome::Failed(Status::LocalLength);
        }
        let Some(peer) = self.peer(index) else {
            return if transport == Transport::Uc {
                Outcome::Done(len as u32)
            } else {
                Outcome::Unanswered
            };
        };
        let Self {
            vfs,
            qps,
            srqs,
            spare_recvs,
            ..
        } = self;
        let mut message = if peer.qp == index {
            let Some(Qp { core, req, resp }) = qps.get_mut(index.0) else {
                return Outcome::Unanswered;
            };
            Message {
                from_core: &*core,
                to_core: &*core,
                req,
                resp,
                vfs,
                srqs,
                spare_recvs,
                len,
                mtu: peer.mtu,
            }
        } else {
            let Some((from, to)) = qps.pair_mut(index.0, peer.qp.0) else {
                return Outcome::Unanswered;
            };
            Message {
                from_core: &from.core,
                to_core: &to.core,
                req: &mut from.req,
                resp: &mut to.resp,
                vfs,
                srqs,
                spare_recvs,
                len,
                mtu: peer.mtu,
            }
        };
        // A request that starts ahead of what the responder expects is NAKed
        // until the retries run out; one that starts behind is acknowledged
        // and not executed again (9.7.5.1.2).
        if message.req.psn != message.resp.psn && message.req.offset == 0 {
            if transport == Transport::Uc {
                // Unreliable: resynchronises on the first packet (9.8.2.2).
                message.resp.psn = message.req.psn;
            } else if is_duplicate(message.req.psn, message.resp.psn) {
                message.req.psn = message.req.psn.plus(message.packets());
                return Outcome::Done(len as u32);
            } else {
                return Outcome::Unanswered;
            }
        }
        let result = message.execute(wr, budget);
        let established = !std::mem::replace(&mut message.resp.established, true);
        let finished = match result {
            Ok(Progress::Done) => {
                message.account();
                Outcome::Done(len as u32)
            }
            Ok(Progress::Partly) => Outcome::Partly,
            Err(refusal) => return self.refused(index, peer, transport, refusal, len),
        };
        if established {
            self.established(peer);
        }
        if finished == Outcome::Partly {
            return finished;
        }
        self.deliver(peer, wr, len as u32);
        finished
    }

    /// The responder has got a whole message: completes its receive request.
    #[inline]
    fn deliver(&mut self, peer: Peer, wr: &SendWr, len: u32) {
        let kind = match wr.operation {
            Operation::Send => RecvKind::Send,
            Operation::SendImm => RecvKind::SendImm,
            Operation::SendInvalidate => RecvKind::SendInvalidate,
            Operation::WriteImm => RecvKind::WriteImm,
            _ => return,
        };
        let Some(qp) = self.qps.get_mut(peer.qp.0) else {
            return;
        };
        let Some(inbound) = qp.resp.inbound.take() else {
            return;
        };
        let entry = crate::work::CompletionEntry {
            qpn: qp.core.qpn,
            index: inbound.wr.index,
            status: Status::Success,
            byte_len: len,
            solicited: wr.solicited,
            side: crate::work::Side::Recv {
                kind,
                immediate: wr.immediate,
                srqn: inbound.srqn,
                source: None,
            },
        };
        self.spare_recvs.push(inbound.wr);
        if let Some(cq) = inbound.cq {
            self.complete(cq, &entry);
        }
        if let Some(srqn) = entry_srqn(&entry) {
            let state = &mut self.vfs[usize::from(peer.vf.0)];
            if let Some(srq) = state
                .srqs
                .get(srqn)
                .and_then(|srq| self.srqs.get_mut(srq.0))
            {
                srq.check_limit(&state.dma, &mut state.face);
            }
        }
    }

    /// First packet while in Ready-to-Receive (11.6.3.1.5).
    #[cold]
    fn established(&mut self, peer: Peer) {
        let Some(qp) = self.qps.get(peer.qp.0) else {
            return;
        };
        if qp.core.state == QpState::ReadyToReceive {
            let (vf, qpn) = (qp.core.vf, qp.core.qpn);
            self.notify(vf, Event::CommunicationEstablished(qpn));
        }
    }

    /// What a refusal means for both ends (specification tables 59 to 62).
    #[cold]
    fn refused(
        &mut self,
        index: QpIndex,
        peer: Peer,
        transport: Transport,
        refusal: Refusal,
        len: u64,
    ) -> Outcome {
        let reliable = transport.is_reliable();
        let (responder_event, responder_status, requester): (fn(wire::Qpn) -> Event, _, _) =
            match refusal {
                Refusal::Local => {
                    return Outcome::Failed(Status::LocalProtection);
                }
                Refusal::NotReady(code) => {
                    return if reliable {
                        Outcome::NotReady(code)
                    } else {
                        self.dropped(index, peer, len)
                    };
                }
                Refusal::Invalid => (
                    Event::QpInvalidRequest,
                    Status::LocalLength,
                    Status::RemoteInvalidRequest,
                ),
                Refusal::Access => (Event::QpAccess, Status::LocalAccess, Status::RemoteAccess),
                Refusal::Operation => (
                    Event::QpAccess,
                    Status::LocalProtection,
                    Status::RemoteOperation,
                ),
                Refusal::Catastrophe => (
                    Event::QpCatastrophic,
                    Status::LocalProtection,
                    Status::RemoteOperation,
                ),
            };
        if !reliable && !matches!(refusal, Refusal::Operation | Refusal::Catastrophe) {
            return self.dropped(index, peer, len);
        }
        let Some(qp) = self.qps.get_mut(peer.qp.0) else {
            return Outcome::Unanswered;
        };
        let (vf, qpn) = (qp.core.vf, qp.core.qpn);
        let inbound = qp.resp.inbound.take();
        let had_request = inbound.is_some();
        if let Some(inbound) = inbound {
            self.complete_recv(peer.qp, inbound, responder_status, 0, RecvKind::Send, 0);
        }
        self.fail_qp(peer.qp);
        if !had_request || matches!(refusal, Refusal::Catastrophe) {
            self.notify(vf, responder_event(qpn));
        }
        if reliable {
            Outcome::Failed(requester)
        } else {
            Outcome::Done(len as u32)
        }
    }

    /// An unreliable message is dropped: the sender never knows; the receive
    /// request it had begun to fill takes the next message.
    fn dropped(&mut self, index: QpIndex, peer: Peer, len: u64) -> Outcome {
        let packets = len.div_ceil(u64::from(peer.mtu)).max(1) as u32;
        if let Some(qp) = self.qps.get_mut(index.0) {
            qp.req.psn = qp.req.psn.plus(packets);
        }
        Outcome::Done(len as u32)
    }

    /// The peer of a connected queue pair, if a packet to it would arrive and
    /// be taken for this connection's.
    #[inline]
    fn peer(&mut self, index: QpIndex) -> Option<Peer> {
        let generation = self.generation.load(Ordering::Acquire);
        let peer = self.qps.get(index.0)?.req.peer;
        match peer {
            Some(peer) if peer.generation == generation && peer.epoch == self.epoch => Some(peer),
            _ => self.find_peer(index, generation),
        }
    }

    #[cold]
    fn find_peer(&mut self, index: QpIndex, generation: u64) -> Option<Peer> {
        let qp = self.qps.get(index.0)?;
        let from = qp.core.vf;
        let path = qp.core.attr.path?;
        let (transport, qpn, dest, pkey_index) = (
            qp.core.transport,
            qp.core.qpn,
            qp.core.attr.dest_qp,
            qp.core.attr.pkey_index,
        );
        let mtu = qp.core.attr.mtu;
        let port = &self.vf(from).port;
        if !port.active {
            return None;
        }
        let (lid, pkey) = (port.lid, port.pkey(pkey_index));
        if !pkey.is_valid() {
            return None;
        }
        let route = self.subnet.resolve(from, path.dlid, path.sl, pkey).ok()?;
        let to = self.vf(route.to);
        if !to.port.active {
            return None;
        }
        let peer_index = *to.qps.get(u32::from(dest))?;
        let peer = self.qps.get(peer_index.0)?;
        let pkey_there = to.port.pkey(peer.core.attr.pkey_index);
        if !pkey.matches(pkey_there) {
            crate::vf::TrafficCounters::add(&to.counters.pkey_violations, 1);
            return None;
        }
        // A responder takes packets from its own peer only (9.6.1.1, 9.6.1.5).
        let own_lid_expected = peer
            .core
            .attr
            .path
            .is_some_and(|back| self.vf(from).port.owns(back.dlid) || back.dlid == lid);
        if peer.core.transport != transport
            || peer.core.attr.dest_qp != qpn
            || !own_lid_expected
            || !peer.core.state.receives()
        {
            return None;
        }
        let resolved = Peer {
            qp: peer_index,
            vf: route.to,
            mtu: mtu.bytes().min(route.mtu.bytes()),
            generation,
            epoch: self.epoch,
        };
        self.qps.get_mut(index.0)?.req.peer = Some(resolved);
        Some(resolved)
    }
}

fn entry_srqn(entry: &crate::work::CompletionEntry) -> Option<u32> {
    match entry.side {
        crate::work::Side::Recv { srqn, .. } => srqn,
        crate::work::Side::Send { .. } => None,
    }
}

enum Progress {
    Done,
    Partly,
}

/// One message between two halves of queue pairs.
struct Message<'a, F: Face> {
    from_core: &'a crate::qp::Core,
    to_core: &'a crate::qp::Core,
    req: &'a mut crate::qp::Requester<F>,
    resp: &'a mut crate::qp::Responder<F>,
    vfs: &'a mut [Vf<F>],
    srqs: &'a mut crate::slab::Slab<crate::srq::Srq<F>>,
    spare_recvs: &'a mut Vec<Box<crate::work::RecvWr>>,
    len: u64,
    mtu: u32,
}

impl<F: Face> Message<'_, F> {
    fn packets(&self) -> u32 {
        if self.len <= u64::from(self.mtu) {
            1
        } else {
            self.len.div_ceil(u64::from(self.mtu)) as u32
        }
    }

    /// Advances sequence numbers and counters by the whole message.
    #[inline]
    fn account(&mut self) {
        let packets = self.packets();
        self.req.psn = self.req.psn.plus(packets);
        self.resp.psn = self.resp.psn.plus(packets);
        self.resp.msn = (self.resp.msn + 1) & 0xff_ffff;
        let words = self.len / 4 + u64::from(packets) * HEADER_WORDS;
        self.vfs[usize::from(self.from_core.vf.0)]
            .counters
            .sent(words, u64::from(packets));
        self.vfs[usize::from(self.to_core.vf.0)]
            .counters
            .received(words, u64::from(packets));
    }

    fn from_domain(&self) -> Domain<'_, F::Dma> {
        let vf = &self.vfs[usize::from(self.from_core.vf.0)];
        Domain {
            dma: &vf.dma,
            keys: &vf.keys,
            pd: self.from_core.pd,
        }
    }

    fn to_domain(&self) -> Domain<'_, F::Dma> {
        let vf = &self.vfs[usize::from(self.to_core.vf.0)];
        Domain {
            dma: &vf.dma,
            keys: &vf.keys,
            pd: self.to_core.pd,
        }
    }

    #[inline]
    fn execute(&mut self, wr: &mut SendWr, budget: &mut i64) -> Result<Progress, Refusal> {
        let rights = self.to_core.attr.rights;
        match wr.operation {
            Operation::Write | Operation::WriteImm => self.write(wr, rights, budget),
            Operation::Send | Operation::SendImm | Operation::SendInvalidate => {
                self.send(wr, budget)
            }
            Operation::Read => self.read(wr, rights, budget),
            Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::MaskedCompareSwap
            | Operation::MaskedFetchAdd => self.atomic(wr, rights),
            Operation::Nop | Operation::LocalInvalidate | Operation::UpdateKey => {
                Ok(Progress::Done)
            }
        }
    }

    /// A remote key must be unrestricted or meant for this responder.
    fn check_remote(&self, wr: &SendWr, len: u64, needed: Access) -> Result<(), Refusal> {
        let domain = self.to_domain();
        let region = domain
            .keys
            .check(wr.rkey, domain.pd, wr.remote_addr, len, needed)
            .map_err(|_| Refusal::Access)?;
        match region.qpn {
            Some(only) if only != self.to_core.qpn => Err(Refusal::Access),
            _ => Ok(()),
        }
    }

    #[inline]
    fn write(
        &mut self,
        wr: &mut SendWr,
        rights: RemoteRights,
        budget: &mut i64,
    ) -> Result<Progress, Refusal> {
        if self.len > 0 && self.req.offset < self.len {
            if !rights.write {
                return Err(Refusal::Access);
            }
            self.check_remote(wr, self.len, Access::REMOTE_WRITE)?;
            let target = [Sge {
                addr: wr.remote_addr,
                lkey: wr.rkey,
                len: self.len as u32,
            }];
            let done = {
                let mut to = Cursor::new(
                    self.to_domain(),
                    &target,
                    self.req.offset,
                    Access::REMOTE_WRITE,
                );
                self.gather(wr, &mut to, budget, Refusal::Access)?
            };
            self.req.offset += done;
            if self.req.offset < self.len {
                return Ok(Progress::Partly);
            }
        }
        if wr.operation == Operation::WriteImm {
            self.take_receive(wr)?;
        }
        Ok(Progress::Done)
    }

    #[inline]
    fn send(&mut self, wr: &mut SendWr, budget: &mut i64) -> Result<Progress, Refusal> {
        if self.req.offset == 0 {
            // The gather list is checked before the responder gives up a
            // receive request for a message that will never come.
            if !wr.is_inline {
                check_list(self.from_domain(), &wr.sges, Access::LOCAL_READ)
                    .map_err(|_| Refusal::Local)?;
            }
            self.take_receive(wr)?;
        }
        let Some(inbound) = self.resp.inbound.take() else {
            return Err(Refusal::Operation);
        };
        let result = self.scatter(wr, &inbound, budget);
        self.resp.inbound = Some(inbound);
        self.req.offset += result?;
        if self.req.offset < self.len {
            return Ok(Progress::Partly);
        }
        if wr.operation == Operation::SendInvalidate {
            self.invalidate(wr.immediate)?;
        }
        Ok(Progress::Done)
    }

    fn scatter(
        &self,
        wr: &mut SendWr,
        inbound: &Inbound,
        budget: &mut i64,
    ) -> Result<u64, Refusal> {
        let pd = match inbound
            .srqn
            .and_then(|srqn| self.vfs[usize::from(self.to_core.vf.0)].srqs.get(srqn))
        {
            Some(srq) => self.srqs.get(srq.0).map_or(self.to_core.pd, |srq| srq.pd),
            None => self.to_core.pd,
        };
        let domain = Domain {
            pd,
            ..self.to_domain()
        };
        let capacity: u64 = inbound.wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
        if capacity < self.len {
            return Err(Refusal::Invalid);
        }
        let mut to = Cursor::new(
            domain,
            &inbound.wr.sges,
            self.req.offset,
            Access::LOCAL_WRITE,
        );
        self.gather(wr, &mut to, budget, Refusal::Operation)
    }

    /// Copies the requester's payload, from the current offset on, to `to`.
    #[inline]
    fn gather(
        &self,
        wr: &mut SendWr,
        to: &mut Cursor<'_, F::Dma>,
        budget: &mut i64,
        at_fault: Refusal,
    ) -> Result<u64, Refusal> {
        let left = self.len - self.req.offset;
        let copied = if wr.is_inline {
            let bytes = VolatileSlice::from(&mut wr.inline[..]);
            let bytes = bytes
                .offset(self.req.offset as usize)
                .map_err(|_| Refusal::Local)?;
            copy::<F::Dma, F::Dma>(&mut Source::Bytes(bytes), to, left, budget)
        } else {
            let from = Cursor::new(
                self.from_domain(),
                &wr.sges,
                self.req.offset,
                Access::LOCAL_READ,
            );
            copy(&mut Source::Memory(from), to, left, budget)
        };
        copied.map_err(|error| match error {
            CopyError::From(_) => Refusal::Local,
            CopyError::To(_) => at_fault,
        })
    }

    fn read(
        &mut self,
        wr: &SendWr,
        rights: RemoteRights,
        budget: &mut i64,
    ) -> Result<Progress, Refusal> {
        if self.len == 0 {
            return Ok(Progress::Done);
        }
        if !rights.read {
            return Err(Refusal::Access);
        }
        self.check_remote(wr, self.len, Access::REMOTE_READ)?;
        let source = [Sge {
            addr: wr.remote_addr,
            lkey: wr.rkey,
            len: self.len as u32,
        }];
        let from = Cursor::new(
            self.to_domain(),
            &source,
            self.req.offset,
            Access::REMOTE_READ,
        );
        let mut to = Cursor::new(
            self.from_domain(),
            &wr.sges,
            self.req.offset,
            Access::LOCAL_WRITE,
        );
        let left = self.len - self.req.offset;
        let done =
            copy(&mut Source::Memory(from), &mut to, left, budget).map_err(
                |error| match error {
                    CopyError::From(_) => Refusal::Access,
                    CopyError::To(_) => Refusal::Local,
                },
            )?;
        self.req.offset += done;
        Ok(if self.req.offset < self.len {
            Progress::Partly
        } else {
            Progress::Done
        })
    }

    fn atomic(&mut self, wr: &SendWr, rights: RemoteRights) -> Result<Progress, Refusal> {
        if self.len != 8 {
            return Err(Refusal::Local);
        }
        if !wr.remote_addr.is_multiple_of(8) {
            return Err(Refusal::Invalid);
        }
        if !rights.atomic {
            return Err(Refusal::Access);
        }
        self.check_remote(wr, 8, Access::ATOMIC)?;
        check_list(self.from_domain(), &wr.sges, Access::LOCAL_WRITE)
            .map_err(|_| Refusal::Local)?;
        let original = atomic_at(self.to_domain(), wr).map_err(|_| Refusal::Access)?;
        // Values lie in memory in the host's order (atomic 8-byte endianness
        // mode 1 of the interface), little endian for every host we run on.
        let mut bytes = original.to_le_bytes();
        let source = VolatileSlice::from(&mut bytes[..]);
        let mut to = Cursor::new(self.from_domain(), &wr.sges, 0, Access::LOCAL_WRITE);
        let mut budget = i64::MAX;
        copy::<F::Dma, F::Dma>(&mut Source::Bytes(source), &mut to, 8, &mut budget)
            .map_err(|_| Refusal::Local)?;
        Ok(Progress::Done)
    }

    /// Takes the responder's next receive request, for the message to fill.
    #[inline]
    fn take_receive(&mut self, wr: &SendWr) -> Result<(), Refusal> {
        if self.resp.inbound.is_some() {
            return Ok(());
        }
        let mut recv = self
            .spare_recvs
            .pop()
            .unwrap_or_else(|| Box::new(crate::work::RecvWr::with_capacity()));
        recv.clear();
        let vf = &self.vfs[usize::from(self.to_core.vf.0)];
        let (taken, srqn, cq) = match &mut self.resp.queue {
            RecvQueue::None => (Ok(false), None, self.resp.cq),
            RecvQueue::Own(queue) => (F::take_recv(&vf.dma, queue, &mut recv), None, self.resp.cq),
            RecvQueue::Shared(index) => match self.srqs.get_mut(index.0) {
                Some(srq) => (
                    F::take_shared(&vf.dma, &mut srq.ring, &mut recv),
                    Some(srq.srqn),
                    self.resp.cq,
                ),
                None => (Ok(false), None, self.resp.cq),
            },
            RecvQueue::Xrc(domain) => {
                let srq = vf
                    .srqs
                    .get(wr.xrc_srqn)
                    .and_then(|srq| self.srqs.get_mut(srq.0));
                match srq {
                    Some(srq) => match srq.xrc {
                        Some((xrcd, cq)) if xrcd == *domain => (
                            F::take_shared(&vf.dma, &mut srq.ring, &mut recv),
                            Some(srq.srqn),
                            Some(cq),
                        ),
                        _ => return Err(self.give_back(recv, Refusal::Invalid)),
                    },
                    None => return Err(self.give_back(recv, Refusal::Invalid)),
                }
            }
        };
        match taken {
            Ok(true) => {
                self.resp.inbound = Some(Inbound { wr: recv, srqn, cq });
                Ok(())
            }
            Ok(false) => {
                let code = self.to_core.attr.min_rnr_timer;
                Err(self.give_back(recv, Refusal::NotReady(code)))
            }
            Err(WqeError::Malformed { index, .. }) => {
                recv.index = index;
                self.resp.inbound = Some(Inbound { wr: recv, srqn, cq });
                Err(Refusal::Operation)
            }
            Err(WqeError::Unmapped) => Err(self.give_back(recv, Refusal::Catastrophe)),
        }
    }

    fn give_back(&mut self, recv: Box<crate::work::RecvWr>, refusal: Refusal) -> Refusal {
        self.spare_recvs.push(recv);
        refusal
    }

    /// Invalidates a key of the responder on behalf of its peer (10.6.5).
    fn invalidate(&mut self, key: u32) -> Result<(), Refusal> {
        let pd = self.to_core.pd;
        let keys = &mut self.vfs[usize::from(self.to_core.vf.0)].keys;
        match keys.get_mut(key >> 8) {
            Some(region)
                if region.variant == key as u8
                    && region.pd == pd
                    && region.remote_invalidate
                    && !region.free =>
            {
                region.free = true;
                Ok(())
            }
            _ => Err(Refusal::Access),
        }
    }
}

/// Executes an atomic on guest memory, atomically with respect to the guest's
/// processors as well, and returns the original value.
fn atomic_at<D: crate::dma::Dma>(domain: Domain<'_, D>, wr: &SendWr) -> Result<u64, KeyError> {
    let unmapped = KeyError::Unmapped(wr.rkey);
    let slice = window(domain, wr.rkey, wr.remote_addr, 8, Access::ATOMIC)?;
    let Ok(cell) = slice.get_atomic_ref::<AtomicU64>(0) else {
        // A page boundary of the translation within the eight bytes cannot be,
        // they are aligned; what remains is memory that ends here.
        return Err(unmapped);
    };
    let operands = wr.atomic;
    let update = |value: u64| atomic_result(wr.operation, operands, value);
    let original = cell
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, update)
        .unwrap_or_else(|value| value);
    Ok(original)
}

/// New value of an atomic operation, or `None` where the value stays.
pub(crate) fn atomic_result(
    operation: Operation,
    operands: AtomicOperands,
    value: u64,
) -> Option<u64> {
    match operation {
        Operation::CompareSwap => (value == operands.compare).then_some(operands.swap_add),
        Operation::FetchAdd => Some(value.wrapping_add(operands.swap_add)),
        Operation::MaskedCompareSwap => ((value ^ operands.compare) & operands.compare_mask == 0)
            .then_some((value & !operands.swap_mask) | (operands.swap_add & operands.swap_mask)),
        Operation::MaskedFetchAdd => Some(masked_add(value, operands.swap_add, operands.swap_mask)),
        _ => None,
    }
}

/// Adds field by field: a set bit of `boundaries` is the most significant bit
/// of a field, out of which no carry goes.
fn masked_add(value: u64, addend: u64, boundaries: u64) -> u64 {
    let low = (value & !boundaries).wrapping_add(addend & !boundaries);
    low ^ ((value ^ addend) & boundaries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operands(swap_add: u64, compare: u64, swap_mask: u64, compare_mask: u64) -> AtomicOperands {
        AtomicOperands {
            swap_add,
            compare,
            swap_mask,
            compare_mask,
        }
    }

    #[test]
    fn masked_add_keeps_carries_in_their_field() {
        // two 32-bit fields
        let boundaries = 0x8000_0000_8000_0000;
        assert_eq!(
            masked_add(0x0000_0001_ffff_ffff, 0x0000_0001_0000_0001, boundaries),
            0x0000_0002_0000_0000
        );
        // no boundaries: a plain addition
        assert_eq!(masked_add(u64::MAX, 2, 0), 1);
        assert_eq!(
            masked_add(0x7fff_ffff_ffff_ffff, 1, 1 << 63),
            0x8000_0000_0000_0000
        );
    }

    #[test]
    fn masked_add_equals_field_by_field_addition() {
        // Independent formulation: every bit position with its carry.
        let slow = |value: u64, addend: u64, boundaries: u64| {
            let (mut result, mut carry) = (0_u64, 0_u64);
            for bit in 0..64 {
                let sum = (value >> bit & 1) + (addend >> bit & 1) + carry;
                result |= (sum & 1) << bit;
                carry = if boundaries >> bit & 1 == 1 {
                    0
                } else {
                    sum >> 1
                };
            }
            result
        };
        let mut x = 0x1234_5678_9abc_def1_u64;
        for _ in 0..1000 {
            let mut next = || {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x
            };
            let (value, addend, boundaries) = (next(), next(), next());
            assert_eq!(
                masked_add(value, addend, boundaries),
                slow(value, addend, boundaries)
            );
        }
    }

    #[test]
    fn compare_and_swap_under_masks() {
        let op = Operation::MaskedCompareSwap;
        assert_eq!(
            atomic_result(op, operands(0xaa, 0x10, 0xff, 0xf0), 0x1234_5618),
            Some(0x1234_56aa)
        );
        assert_eq!(
            atomic_result(op, operands(0xaa, 0x20, 0xff, 0xf0), 0x1234_5618),
            None
        );
        assert_eq!(
            atomic_result(Operation::CompareSwap, operands(7, 5, 0, 0), 5),
            Some(7)
        );
        assert_eq!(
            atomic_result(Operation::CompareSwap, operands(7, 5, 0, 0), 6),
            None
        );
    }
}
