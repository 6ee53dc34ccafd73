//! Requests of connected queue pairs on the local path: both ends are of this
//! engine, so the acknowledgement is a function's return.
//!
//! Requester and responder keep the state they would keep on a wire (PSNs, MSN,
//! retry counters) and check what they would check there.

use wire::{Psn, Qpn};

use crate::access::Domain;
use crate::engine::{Engine, QpIndex};
use crate::face::{Event, Face};
use crate::message::{HEADER_WORDS, Message, Progress, Refusal, check_local};
use crate::progress::{Outcome, failed};
use crate::qp::{Impairment, Peer, Qp, QpState, RecvQueue, Transport};
use crate::reason::Reason;
use crate::subnet::NoRoute;
use crate::vf::{CachedRoute, TrafficCounters};
use crate::work::{Operation, RecvKind, SendWr, Status};

/// Longest message (the port's maximum, 2^30 bytes).
pub const MAX_MESSAGE: u64 = 1 << 30;

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
            Operation::UpdateKey => return self.update_key(index, wr, budget),
            _ => {}
        }
        let Some(qp) = self.qps.get(index.0) else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        let transport = qp.core.transport;
        let supported = match transport {
            Transport::Rc | Transport::Xrc => true,
            Transport::Uc => matches!(
                wr.operation,
                Operation::Send | Operation::SendImm | Operation::Write | Operation::WriteImm
            ),
            _ => false,
        };
        // What fills its list cannot have inline data instead of one.
        if !supported {
            return failed(wr, Status::LocalQpOperation, Reason::Transport);
        }
        if (wr.is_inline || wr.is_mixed()) && wr.operation.fills_list() {
            return failed(wr, Status::LocalQpOperation, Reason::InlineAnswer);
        }
        let len = wr.payload_len();
        if len > MAX_MESSAGE {
            return failed(wr, Status::LocalLength, Reason::Length);
        }
        let peer = match self.peer(index) {
            Some(peer) if len <= peer.longest => peer,
            _ => return self.unheard(index, wr, len),
        };
        let mute = match peer.impaired {
            false => None,
            true => match self.try_impaired(index, peer, wr, len) {
                Ok(mute) => mute,
                Err(outcome) => return outcome,
            },
        };
        let outcome = self.transfer(index, peer, wr, len, budget);
        match mute {
            None => outcome,
            Some(psn) => self.acknowledged(index, peer, psn, outcome),
        }
    }

    /// One attempt at a request for a peer that can be reached.
    #[inline(always)]
    fn transfer(
        &mut self,
        index: QpIndex,
        peer: Peer,
        wr: &mut SendWr,
        len: u64,
        budget: &mut i64,
    ) -> Outcome {
        let Self {
            vfs,
            qps,
            srqs,
            spare_recvs,
            traffic,
            ..
        } = self;
        let mut message = if peer.qp == index {
            let Some(Qp { core, req, resp }) = qps.get_mut(index.0) else {
                return Outcome::Unanswered;
            };
            Message {
                from_core: &*core,
                to_core: &*core,
                pd: core.pd,
                req,
                resp,
                vfs,
                srqs,
                spare_recvs,
                traffic,
                paths: peer.paths,
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
                pd: to.core.pd,
                req: &mut from.req,
                resp: &mut to.resp,
                vfs,
                srqs,
                spare_recvs,
                traffic,
                paths: peer.paths,
                len,
                mtu: peer.mtu,
            }
        };
        let transport = message.from_core.transport;
        if message.req.offset == 0 {
            if message.req.psn != message.resp.psn
                && let Some(outcome) = out_of_order(&mut message, transport, wr.operation)
            {
                return outcome;
            }
        } else if message.req.offset != message.resp.received && wr.operation != Operation::Read {
            // The responder is not the one that has the beginning.
            return if transport == Transport::Uc {
                self.dropped(index, len, peer.mtu)
            } else {
                Outcome::OutOfSequence
            };
        }
        let psn = message.req.psn;
        let finished = match message.execute(wr, budget) {
            Ok(Progress::Done) => {
                message.account(wr.operation);
                Outcome::Done(len as u32)
            }
            Ok(Progress::Partly) => Outcome::Partly,
            Err(refusal) => return self.refused(index, peer, transport, refusal, len),
        };
        if !std::mem::replace(&mut message.resp.established, true) {
            self.established(peer);
        }
        if finished != Outcome::Partly {
            if self.watch.is_some() {
                self.watch_connected(index, peer, wr, psn, len);
            }
            self.deliver(peer, wr, len as u32);
        }
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
        if let Some(inbound) = qp.resp.inbound.take() {
            let received = (kind, wr.immediate);
            self.complete_recv(
                peer.qp,
                inbound,
                Status::Success,
                len,
                received,
                wr.solicited,
            );
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

    /// Where something is wrong with the way there or back: what has come of a request, or that it
    /// gets there. The number it began with, if its acknowledgement may not come back.
    #[cold]
    fn try_impaired(
        &mut self,
        index: QpIndex,
        peer: Peer,
        wr: &mut SendWr,
        len: u64,
    ) -> Result<Option<Psn>, Outcome> {
        let operation = wr.operation;
        let Some(Qp { core, req, .. }) = self.qps.get(index.0) else {
            return Err(Outcome::Failed(Status::LocalQpOperation));
        };
        let Impairment {
            faulty,
            answers,
            delays,
        } = req.impairment;
        let (psn, acknowledged) = (req.psn, core.transport.is_reliable());
        let delayed = delays[0] > 0 || acknowledged && delays[1] > 0;
        if delayed && req.flight.is_none() {
            return Err(Outcome::Departs);
        }
        let mute = acknowledged && !answers;
        // What brings a result would be asked for again, and is not carried out before the result
        // can come.
        if mute && operation.fills_list() {
            return Err(self.unheard(index, wr, len));
        }
        let lossy = faulty != [false; 2];
        if mute || lossy {
            self.pass(index, peer, wr, len)?;
        }
        let unsure = mute || acknowledged && faulty[1] && !operation.fills_list();
        Ok(unsure.then_some(psn))
    }

    /// Nobody is there to take the message.
    #[cold]
    fn unheard(&mut self, index: QpIndex, wr: &mut SendWr, len: u64) -> Outcome {
        let Some(qp) = self.qps.get(index.0) else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        let mtu = qp.core.attr.mtu.bytes();
        let vf = self.vf(qp.core.vf);
        let domain = Domain {
            dma: &vf.dma,
            keys: &vf.keys,
            pd: qp.core.pd,
        };
        if let Err(error) = check_local(domain, wr) {
            let reason = Reason::LocalKey(error.into());
            return failed(wr, Status::LocalProtection, reason);
        }
        if vf.port.active
            && let Some(CachedRoute {
                route: Err(reason @ (NoRoute::Lost(path) | NoRoute::Held(path))),
                ..
            }) = qp.req.route
        {
            let packets = len.div_ceil(u64::from(mtu)).max(1);
            let words = len / 4 + packets * HEADER_WORDS;
            if matches!(reason, NoRoute::Lost(_)) {
                vf.counters.sent(words, packets);
            }
            self.traffic.add(path, words, packets);
        }
        if qp.core.transport == Transport::Uc {
            self.dropped(index, len, mtu)
        } else {
            Outcome::Unanswered
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
        if let (Refusal::NotReady(_), Some(qp)) = (refusal, self.qps.get(peer.qp.0)) {
            let counters = &self.vf(qp.core.vf).counters;
            TrafficCounters::add(&counters.requests.out_of_buffer, 1);
        }
        let (event, responder, requester): (fn(Qpn) -> Event, _, _) = match refusal {
            Refusal::Local => return Outcome::Failed(Status::LocalProtection),
            Refusal::LocalLength => return Outcome::Failed(Status::LocalLength),
            Refusal::NotReady(code) if reliable => return Outcome::NotReady(code),
            Refusal::NotReady(_) | Refusal::Invalid | Refusal::Access if !reliable => {
                return self.dropped(index, len, peer.mtu);
            }
            Refusal::NotReady(_) | Refusal::Invalid => (
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
        let Some(qp) = self.qps.get_mut(peer.qp.0) else {
            return Outcome::Unanswered;
        };
        let (vf, qpn) = (qp.core.vf, qp.core.qpn);
        let shared = match qp.resp.queue {
            RecvQueue::Shared(srq) => Some(srq),
            _ => None,
        };
        let inbound = qp.resp.inbound.take();
        let had_request = inbound.is_some();
        if let Some(inbound) = inbound {
            let received = (RecvKind::Send, 0);
            self.complete_recv(peer.qp, inbound, responder, 0, received, true);
        }
        if peer.qp == index {
            // Its own request's completion comes before those of the others,
            // which are flushed on its next turn.
            if self.enter_error(index) {
                self.make_ready(index);
                self.last_request_reached(index);
            }
        } else {
            self.fail_qp(peer.qp);
        }
        if !had_request || refusal == Refusal::Catastrophe {
            self.notify(vf, event(qpn));
        }
        if refusal == Refusal::Catastrophe
            && let Some(srqn) = shared
                .and_then(|srq| self.srqs.get(srq.0))
                .map(|srq| srq.srqn)
        {
            self.notify(vf, Event::SrqCatastrophic(srqn));
        }
        if reliable {
            Outcome::Failed(requester)
        } else {
            Outcome::Done(len as u32)
        }
    }

    /// An unreliable message is dropped: the sender never knows; the receive
    /// request it had begun to fill takes the next message.
    pub(crate) fn dropped(&mut self, index: QpIndex, len: u64, mtu: u32) -> Outcome {
        let packets = len.div_ceil(u64::from(mtu)).max(1) as u32;
        if let Some(qp) = self.qps.get_mut(index.0) {
            qp.req.psn = qp.req.psn.plus(packets);
        }
        Outcome::Done(len as u32)
    }
}

/// What becomes of a message whose PSN is not the expected one; `None` when it
/// is executed all the same.
#[cold]
fn out_of_order<F: Face>(
    message: &mut Message<'_, F>,
    transport: Transport,
    operation: Operation,
) -> Option<Outcome> {
    let (psn, expected) = (message.req.psn, message.resp.psn);
    if transport == Transport::Uc {
        // Unreliable: resynchronises on the first packet (9.8.2.2).
        message.resp.psn = psn;
        return None;
    }
    // Behind is what has been executed before, up to half the number space
    // away (9.7.1); ahead is what has lost a predecessor.
    if !psn.precedes(expected) {
        return Some(Outcome::OutOfSequence);
    }
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
