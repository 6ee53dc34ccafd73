//! Requests of connected queue pairs on the local path: both ends are of this
//! engine, so the acknowledgement is a function's return.
//!
//! Requester and responder keep the state they would keep on a wire (PSNs, MSN,
//! retry counters) and check what they would check there.

use std::sync::atomic::Ordering;

use wire::{Qpn, Sl};

use crate::budget::Budget;
use crate::engine::executor::Executor;
use crate::engine::outcome::{Outcome, failed};
use crate::engine::requests::Requests;
use crate::local::message::{Message, Progress};
use crate::objects::Objects;
use crate::objects::counters::TrafficCounters;
use crate::objects::counters::traffic::{PathId, PathTraffic};
use crate::objects::dynamic::Role;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::page_fault::{PageFault, Paging, RETRY_CODE};
use crate::objects::qp::attributes::Transport;
use crate::objects::qp::{Peer, Qp, QueuePairs};
use crate::objects::reason::{KeyFault, Reason, Status};
use crate::objects::refusal::Refusal;
use crate::objects::vf::Vf;
use crate::objects::vf::route_cache::CachedRoute;
use crate::objects::work::payload::check_local;
use crate::objects::work::{MAX_MESSAGE, Operation, RecvKind, SendWr};
use crate::path::{Envelope, NoRoute, Route, WrongKey};
use crate::queue_format::{Event, QueueFormat};
use crate::transport::HEADER_WORDS;
use crate::transport::dynamic::{Call, LetIn};
use crate::transport::network::Network;
use crate::transport::responder::Reception;

impl<F: QueueFormat> Executor<F> {
    /// One attempt at a request of a connected (or key-update) queue pair.
    #[inline]
    pub(crate) fn send_connected(
        &mut self,
        index: QpIndex,
        wr: &mut SendWr,
        budget: &mut Budget,
    ) -> Outcome {
        let objects = &mut self.objects;
        match wr.operation {
            Operation::Nop => return Outcome::Done(0),
            Operation::LocalInvalidate => return objects.at_keys(index, wr, Vf::local_invalidate),
            Operation::UpdateKey => {
                let update = |vf: &mut Vf<F>, core: &_, wr: &mut _| vf.update_key(core, wr, budget);
                return objects.at_keys(index, wr, update);
            }
            Operation::ChangeTags => {
                return self.requests.completions.change_tags(objects, index, wr);
            }
            Operation::SetSignature => return objects.at_keys(index, wr, Vf::set_signature),
            _ => {}
        }
        let Some(qp) = self.objects.qps.get(index.0) else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        if let Some(status) = qp.core.transport.refuses(wr) {
            return Outcome::Failed(status);
        }
        let qp = if qp.core.transport == Transport::Dci {
            if let Some(status) = self.objects.turn_to(index, wr) {
                return Outcome::Failed(status);
            }
            let Some(qp) = self.objects.qps.get(index.0) else {
                return Outcome::Failed(Status::LocalQpOperation);
            };
            qp
        } else {
            qp
        };
        let generation = self.network.generation.load(Ordering::Acquire);
        // The peer, if a packet to it would arrive and be taken for this connection's.
        let peer = match qp.req.found.peer {
            Some(peer)
                if peer.generation == generation
                    && peer.versions == self.objects.versions(qp.core.vf, peer.vf) =>
            {
                Some(peer)
            }
            _ => self.find_peer(index, generation),
        };
        let len = wr.payload_len();
        let peer = match peer {
            Some(peer) if len <= peer.longest => peer,
            _ => return self.network.unheard(&mut self.objects, index, wr, len),
        };
        if peer.away {
            return Outcome::Departs;
        }
        self.requests.transfer(
            &mut self.objects,
            index,
            peer,
            (wr, len),
            &self.network.traffic,
            budget,
        )
    }

    /// The context of a target in this engine that takes what an initiator sends, whose message begins anew
    /// where the context does not know it.
    pub fn answerer_here(
        &mut self,
        index: QpIndex,
        target: QpIndex,
        function: VfId,
        route: &Route,
    ) -> Option<QpIndex> {
        let mut address = self.objects.address(index)?;
        if let Some(crossing) = &route.crossing {
            (address.slid, address.dlid) = (crossing.slid, crossing.dlid);
        }
        let Qp { core, req, .. } = self.objects.qps.get(index.0)?;
        let mut session = req.far.session(core.qpn);
        // Nothing is under way.
        session.start = req.psn;
        // The wrong key is told, and counted, in frames.
        if self.objects.qps.target(target)?.key != session.key {
            return None;
        }
        let port = &self.objects.vf(function).port;
        let call = Call::new(&address, session, core.attr.mtu, port)?;
        let LetIn { context, begins } = self
            .requests
            .completions
            .let_in(&mut self.objects, target, &call)
            .ok()?;
        if begins {
            self.objects.qps.get_mut(index.0)?.req.offset = 0;
        }
        Some(context)
    }

    /// Finds the peer of a connected queue pair, if there is one.
    #[cold]
    fn find_peer(&mut self, index: QpIndex, generation: u64) -> Option<Peer> {
        self.network.lookups += 1;
        let Objects { vfs, qps, .. } = &mut self.objects;
        let qp = qps.get_mut(index.0)?;
        let path = qp.core.attr.path?;
        let route = self.network.connection_route(vfs, qp, path, generation)?;
        let qp = self.objects.qps.get(index.0)?;
        let dgid = path.global.map(|global| global.dgid);
        let port = route
            .here()
            .filter(|port| !self.objects.vf(*port).elsewhere)?;
        let function = self.objects.function_at(port, dgid, qp.core.attr.dest_qp)?;
        let to = self.objects.vf(function);
        if !to.port.active || to.quiesced.is_some() {
            return None;
        }
        let mut peer_index = *to.qps.get(u32::from(qp.core.attr.dest_qp))?;
        let mut peer = self.objects.qps.get(peer_index.0)?;
        let is_dynamic = qp.core.transport == Transport::Dci;
        if !is_dynamic && !self.objects.connected(qp, peer, route.crossing.is_some()) {
            return None;
        }
        let pkey = self
            .objects
            .vf(qp.core.vf)
            .port
            .pkey(qp.core.attr.pkey_index);
        if !pkey.matches(to.port.pkey(peer.core.attr.pkey_index)) {
            TrafficCounters::add(&to.counters.pkey_violations, 1);
            let envelope = Envelope {
                slid: self.objects.vf(qp.core.vf).port.lid,
                dlid: path.dlid,
                sl: path.sl,
                // A connected packet does not say where it comes from.
                src_qp: Qpn::new(0),
                dest_qp: qp.core.attr.dest_qp,
            };
            self.network
                .subnet
                .wrong_key(function, WrongKey::Partition(pkey), &envelope);
            return None;
        }
        if is_dynamic {
            peer_index = self.answerer_here(index, peer_index, function, &route)?;
            peer = self.objects.qps.get(peer_index.0)?;
        }
        let qp = self.objects.qps.get(index.0)?;
        let (attr, from) = (&qp.core.attr, qp.core.vf);
        if is_dynamic && peer.core.attr.mtu != attr.mtu {
            return None;
        }
        let (mtu, back) = (attr.mtu.bytes(), peer.core.attr.path);
        let versions = self.objects.versions(from, function);
        let back_sl = back.map_or(path.sl, |back| back.sl);
        let Objects { vfs, qps, .. } = &mut self.objects;
        let back = back.zip(qps.get_mut(peer_index.0));
        let back = back
            .and_then(|(path, peer)| self.network.connection_route(vfs, peer, path, generation));
        // Acknowledgements take the way back, too.
        let back_is_impaired = back.is_none_or(|back| back.is_impaired());
        let away =
            route.is_impaired() || back_is_impaired || self.network.exits.shows(from, function);
        let resolved = Peer {
            qp: peer_index,
            vf: function,
            mtu,
            // Full packets that the way is too narrow for get lost on it.
            longest: if mtu <= route.mtu.bytes() {
                u64::MAX
            } else {
                u64::from(route.mtu.bytes())
            },
            paths: [route.path, back.map_or(PathId::NONE, |route| route.path)],
            levels: [path.sl, back_sl],
            away,
            generation,
            versions,
        };
        // Two that take it for their peer, of subnets apart, have to take turns.
        self.objects.qps.forget_as_peer(peer_index);
        self.objects.qps.get_mut(peer_index.0)?.resp.heard_by = Some(index);
        let req = &mut self.objects.qps.get_mut(index.0)?.req;
        req.found.peer = Some(resolved);
        Some(resolved)
    }
}

impl<F: QueueFormat> Requests<F> {
    /// One attempt at a request for a peer that can be reached.
    #[inline(always)]
    pub fn transfer(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        peer: Peer,
        (wr, len): (&mut SendWr, u64),
        traffic: &PathTraffic,
        budget: &mut Budget,
    ) -> Outcome {
        let Objects { vfs, qps, srqs, .. } = objects;
        let (from_core, req, core, resp) = if peer.qp == index {
            let Some(Qp { core, req, resp }) = qps.get_mut(index.0) else {
                return Outcome::Unanswered;
            };
            (&*core, req, &*core, resp)
        } else {
            let Some((from, to)) = qps.pair_mut(index.0, peer.qp.0) else {
                return Outcome::Unanswered;
            };
            (&from.core, &mut from.req, &to.core, &mut to.resp)
        };
        let mut message = Message {
            from_core,
            from_vf: &vfs[usize::from(from_core.vf.0)],
            req,
            pd: core.pd,
            to: Reception {
                core,
                resp,
                vf: &vfs[usize::from(core.vf.0)],
                srqs,
                spare_recvs: &mut self.completions.spare_recvs,
                lends: false,
            },
            traffic,
            paths: peer.paths,
            levels: peer.levels,
            len,
            mtu: peer.mtu,
        };
        let transport = message.from_core.transport;
        let ends = [message.from_core.vf, message.to.core.vf];
        if message.to.resp.paging != Paging::None {
            return self.waits_for_page(objects, index, peer, wr, len);
        }
        if message.req.offset == 0 {
            if message.req.psn != message.to.resp.psn
                && let Some(outcome) = out_of_order(&mut message, transport, wr.operation)
            {
                return outcome;
            }
        } else if message.req.offset != message.to.resp.received && wr.operation != Operation::Read
        {
            // The responder is not the one that has the beginning.
            return if transport == Transport::Uc {
                objects.qps.dropped(index, len, peer.mtu)
            } else {
                message.strays()
            };
        }
        let finished = match message.execute(wr, budget) {
            Ok(Progress::Done) => {
                message.account(wr.operation);
                Outcome::Done(len as u32)
            }
            Ok(Progress::Partly) => Outcome::Partly,
            Err(Refusal::Absent) => {
                let fault = message.fault(wr);
                if objects.has_failed(ends) {
                    self.completions
                        .tell_both(objects, index, peer.qp, wr.operation);
                }
                return self.misses_page(objects, index, peer, wr, fault);
            }
            Err(refusal) => {
                if objects.has_failed(ends) {
                    self.completions
                        .tell_both(objects, index, peer.qp, wr.operation);
                }
                return self.refused(objects, index, peer, transport, refusal, len);
            }
        };
        if !std::mem::replace(&mut message.to.resp.established, true) {
            objects.established(peer.qp);
        }
        if objects.has_failed(ends) {
            self.completions
                .tell_both(objects, index, peer.qp, wr.operation);
        }
        if finished != Outcome::Partly {
            self.completions.deliver(objects, peer, wr, len as u32);
        }
        finished
    }

    /// The responder waits for a page, or one does not come.
    #[cold]
    pub fn waits_for_page(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        peer: Peer,
        wr: &mut SendWr,
        len: u64,
    ) -> Outcome {
        let Some(to) = objects.qps.get_mut(peer.qp.0) else {
            return Outcome::Unanswered;
        };
        let transport = to.core.transport;
        let refusal = if to.resp.paging == Paging::Denied {
            to.resp.paging = Paging::None;
            wr.reason = Reason::RemoteKey(KeyFault::Absent);
            Refusal::without_page(wr.operation)
        } else {
            Refusal::Absent
        };
        self.refused(objects, index, peer, transport, refusal, len)
    }

    /// The responder needs a page that is not there.
    #[cold]
    pub fn misses_page(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        peer: Peer,
        wr: &mut SendWr,
        fault: Option<PageFault>,
    ) -> Outcome {
        let refusal = if fault.is_none_or(|fault| objects.responder_waits(peer.qp, fault)) {
            Refusal::Absent
        } else {
            wr.reason = Reason::RemoteKey(KeyFault::Absent);
            Refusal::without_page(wr.operation)
        };
        let transport = objects.qps.get(index.0).map(|qp| qp.core.transport);
        let transport = transport.unwrap_or(Transport::Rc);
        self.refused(objects, index, peer, transport, refusal, wr.payload_len())
    }

    /// Applies a refusal to both ends (specification tables 59 to 62).
    #[cold]
    pub fn refused(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        peer: Peer,
        transport: Transport,
        refusal: Refusal,
        len: u64,
    ) -> Outcome {
        let reliable = transport.is_reliable();
        if let Some(qp) = objects.qps.get(peer.qp.0) {
            let counters = &qp.core.set.counters;
            match refusal {
                Refusal::NotReady(_) => {
                    TrafficCounters::add(&counters.requests.out_of_buffer, 1);
                }
                Refusal::Access if !reliable => counters.refused(refusal, false),
                _ => {}
            }
        }
        let requester = match refusal {
            Refusal::Local => return Outcome::Failed(Status::LocalProtection),
            Refusal::LocalAbsent => return Outcome::Absent,
            Refusal::Absent if reliable => return Outcome::NotReady(RETRY_CODE),
            Refusal::Absent => return objects.qps.dropped(index, len, peer.mtu),
            Refusal::LocalLength => return Outcome::Failed(Status::LocalLength),
            Refusal::NotReady(code) if reliable => return Outcome::NotReady(code),
            Refusal::NotReady(_) | Refusal::Invalid | Refusal::Access if !reliable => {
                return objects.qps.dropped(index, len, peer.mtu);
            }
            // A copy borrows nothing.
            Refusal::Void | Refusal::Stale => return Outcome::Unanswered,
            Refusal::NotReady(_) | Refusal::Invalid => Status::RemoteInvalidRequest,
            Refusal::Access => Status::RemoteAccess,
            Refusal::Operation | Refusal::Catastrophe => Status::RemoteOperation,
        };
        self.refuse(objects, peer.qp, refusal, peer.qp == index);
        if reliable {
            Outcome::Failed(requester)
        } else {
            Outcome::Done(len as u32)
        }
    }

    /// Acts for a responder that has refused a request, of its `own` queue pair or of another one.
    #[cold]
    pub(crate) fn refuse(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        refusal: Refusal,
        own: bool,
    ) {
        let is_context = |qp: &Qp<F>| matches!(qp.resp.role, Role::Context(_));
        let context = objects.qps.get(index.0).is_some_and(is_context);
        let (event, responder): (fn(Qpn) -> Event, _) = match refusal {
            Refusal::Access if context => (Event::DctAccess, Status::LocalAccess),
            Refusal::Operation if context => (Event::DctAccess, Status::LocalProtection),
            Refusal::Catastrophe if context => (Event::DctAccess, Status::LocalProtection),
            _ if context => (Event::DctInvalidRequest, Status::LocalLength),
            Refusal::Access => (Event::QpAccess, Status::LocalAccess),
            Refusal::Operation => (Event::QpAccess, Status::LocalProtection),
            Refusal::Catastrophe => (Event::QpCatastrophic, Status::LocalProtection),
            _ => (Event::QpInvalidRequest, Status::LocalLength),
        };
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return;
        };
        let (vf, qpn) = (qp.core.vf, qp.core.qpn);
        let shared = qp.resp.queue.shared();
        let inbound = qp.resp.inbound.take();
        let had_request = inbound.is_some();
        qp.core.set.counters.refused(refusal, had_request);
        if let Some(inbound) = inbound {
            let received = (RecvKind::Send, 0, true);
            self.completions
                .complete_recv(objects, index, inbound, responder, 0, received);
        }
        if context {
            // Nobody else who talks to the target suffers.
            objects.qps.refuse_session(index);
        } else if own {
            // Its own request's completion comes before those of the others,
            // which are flushed on its next turn.
            if self.completions.enter_error(objects, index) {
                self.completions.scheduler.make_ready(objects, index);
                objects.last_request_reached(index);
            }
        } else {
            self.fail_qp(objects, index);
        }
        if !had_request || refusal == Refusal::Catastrophe {
            objects.notify(vf, event(qpn));
        }
        if refusal == Refusal::Catastrophe
            && let Some(srqn) = shared
                .and_then(|srq| objects.srqs.get(srq.0))
                .map(|srq| srq.srqn)
        {
            objects.notify(vf, Event::SrqCatastrophic(srqn));
        }
    }
}

impl<F: QueueFormat> Network<F> {
    /// Nobody is there to take the message.
    #[cold]
    pub fn unheard(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        wr: &mut SendWr,
        len: u64,
    ) -> Outcome {
        let Some(qp) = objects.qps.get(index.0) else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        let mtu = qp.core.attr.mtu.bytes();
        let vf = objects.vf(qp.core.vf);
        let domain = vf.domain(qp.core.pd);
        if let Err(error) = check_local(domain, wr) {
            let reason = Reason::LocalKey(error.into());
            return failed(wr, Status::LocalProtection, reason);
        }
        if vf.port.active && (objects.other_end_rests(index) || objects.other_end_moves(index)) {
            return Outcome::OtherEndQuiesced;
        }
        if let Some(CachedRoute {
            route: Ok(route), ..
        }) = qp.req.found.route
            && (route.here().is_none_or(|port| objects.vf(port).elsewhere)
                || qp.core.transport == Transport::Dci)
            && vf.port.active
        {
            // Somebody may be elsewhere. What a target refuses for its key, and who has no context, is told in frames.
            return Outcome::Departs;
        }
        if vf.port.active
            && let Some(CachedRoute {
                route: Err(reason @ (NoRoute::Lost(path) | NoRoute::Held(path))),
                ..
            }) = qp.req.found.route
        {
            let packets = len.div_ceil(u64::from(mtu)).max(1);
            let words = len / 4 + packets * HEADER_WORDS;
            if matches!(reason, NoRoute::Lost(_)) {
                let sl = qp.core.attr.path.map_or_else(Sl::default, |path| path.sl);
                vf.counters.sent(sl, words, packets);
            }
            self.traffic.add(path, words, packets);
        }
        if qp.core.transport == Transport::Uc {
            objects.qps.dropped(index, len, mtu)
        } else {
            Outcome::Unanswered
        }
    }
}

impl<F: QueueFormat> QueuePairs<F> {
    /// An unreliable message is dropped: the sender never knows; the receive
    /// request it had begun to fill takes the next message.
    pub(crate) fn dropped(&mut self, index: QpIndex, len: u64, mtu: u32) -> Outcome {
        let packets = len.div_ceil(u64::from(mtu)).max(1) as u32;
        if let Some(qp) = self.get_mut(index.0) {
            qp.req.psn = qp.req.psn.plus(packets);
        }
        Outcome::Done(len as u32)
    }
}

impl Transport {
    /// Why a request cannot go to the peer of a queue pair of this transport, with the reason in the
    /// request.
    #[inline]
    pub(crate) fn refuses(self, wr: &mut SendWr) -> Option<Status> {
        let supported = match self {
            Self::Rc | Self::Xrc | Self::Dci => true,
            Self::Uc => matches!(
                wr.operation,
                Operation::Send | Operation::SendImm | Operation::Write | Operation::WriteImm
            ),
            _ => false,
        };
        let (status, reason) = if !supported {
            (Status::LocalQpOperation, Reason::Transport)
        } else if (wr.is_inline || wr.is_mixed()) && wr.operation.fills_list() {
            // An operation that fills its list cannot have inline data instead of one.
            (Status::LocalQpOperation, Reason::InlineAnswer)
        } else if wr.payload_len() > MAX_MESSAGE {
            (Status::LocalLength, Reason::Length)
        } else if wr.operation.is_atomic() && wr.payload_len() != wr.atomic.size() {
            (Status::LocalLength, Reason::AnswerLength)
        } else {
            return None;
        };
        wr.reason = reason;
        Some(status)
    }
}

/// Outcome of a message whose PSN is not the expected one; `None` when it is executed all the same.
#[cold]
fn out_of_order<F: QueueFormat>(
    message: &mut Message<'_, F>,
    transport: Transport,
    operation: Operation,
) -> Option<Outcome> {
    let (psn, expected) = (message.req.psn, message.to.resp.psn);
    if transport == Transport::Uc {
        // Unreliable: resynchronises on the first packet (9.8.2.2).
        message.to.resp.psn = psn;
        return None;
    }
    // Behind is what has been executed before, up to half the number space
    // away (9.7.1); ahead is what has lost a predecessor.
    if !psn.precedes(expected) {
        return Some(message.strays());
    }
    let retries = message.to.vf.retries(message.to.core);
    let packets = if operation == Operation::Read {
        1
    } else {
        message.packets()
    };
    retries.add(|of| &of.duplicate_request, packets.into());
    match operation {
        // Answered once more (9.7.5.1.2).
        Operation::Read => None,
        // The answer to a former atomic is no longer there.
        _ if operation.fills_list() => Some(Outcome::OutOfSequence),
        _ => {
            message.req.psn = psn.plus(message.packets());
            Some(Outcome::Done(message.len as u32))
        }
    }
}
