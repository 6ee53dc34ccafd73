//! Connections that send their messages in frames: turns of their requesters, and what arrives.

use std::sync::Arc;

use wire::header::Service;

use super::arrived::{Arrived, STEP};
use super::endpoint::{Destination, InFlight, Transmit};
use super::frame::{Address, Frame};
use super::requester::{Requester, Surroundings};
use super::responder::Reception;
use super::room::Room;
use crate::budget::{Budget, REQUEST_NS, TURN};
use crate::engine::executor::Executor;
use crate::memory::domain::Domain;
use crate::objects::Objects;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::page_fault::Half;
use crate::objects::qp::attributes::{AddressPath, QpState, Transport};
use crate::objects::qp::{Qp, QueuePairs, Wait};
use crate::objects::reason::Status;
use crate::objects::vf::quiesce::{For, QUIESCED};
use crate::objects::work::{Operation, RecvKind, SendWr};
use crate::queue_format::QueueFormat;
use crate::transport::dynamic::{Call, Denied, LetIn};
use crate::transport::frame::service;
use crate::transport::reply::{Delivery, Reply};
use crate::transport::responder::request::invalidate;

/// After how long a connection looks again whether its function may have more on its way, in nanoseconds:
/// where what is on its way has no answer, nothing tells.
const RETRY_INTERVAL_NS: u64 = 100_000;

impl<F: QueueFormat> Executor<F> {
    fn set_away_timer(&mut self, index: QpIndex) {
        let scheduler = &mut self.requests.completions.scheduler;
        scheduler.set_away_timer(&mut self.objects, index);
    }

    /// A turn of a queue pair with requests under way.
    #[cold]
    pub(crate) fn away_turn(&mut self, index: QpIndex, budget: &mut Budget) {
        while budget.is_left() {
            let Some(qp) = self.objects.qps.get(index.0) else {
                return;
            };
            let takes = match qp.core.state {
                // One that drains for a wrong block takes the next when nothing before it can be found to be wrong.
                QpState::ReadyToSend => !qp.core.attr.drain_sigerr,
                QpState::SendQueueDrain => false,
                QpState::Error | QpState::SendQueueError => {
                    self.requests.flush(&mut self.objects, index, budget);
                    return;
                }
                _ => return,
            };
            let Some(away) = &qp.req.away else { return };
            let sent = qp.req.sent;
            let (empty, held) = (away.requester.is_empty(), qp.req.current.is_some());
            let awaits = away.requester.awaits();
            if empty {
                // All are complete: the ordinary turn goes on.
                self.requests.forget_away(&mut self.objects, index);
                return self.make_ready(index);
            }
            if away.requester.absent().is_some() && qp.req.wait != Wait::Page {
                self.requests.away_waits(&mut self.objects, index);
            }
            let Some(qp) = self.objects.qps.get(index.0) else {
                return;
            };
            if qp.req.wait == Wait::Page {
                return self.set_away_timer(index);
            }
            budget.take(REQUEST_NS);
            let (from, reliable) = (qp.core.vf, qp.core.transport.is_reliable());
            if self.network.waits_with_frames(&mut self.objects, index) {
                self.network.wait_for_rest(&self.objects, index);
                return self.set_away_timer(index);
            }
            // Frames on their way have to arrive first.
            let crowded = reliable && self.objects.vf(from).is_full();
            match self.network.room_to_send(&self.objects, index) {
                Room::Now => {}
                Room::Then(until) => {
                    return self
                        .network
                        .wait_until(&mut self.objects, index, until, sent);
                }
                Room::Unknown => return self.network.exits.crowded.push(index, sent),
            }
            if !crowded && let Some(frame) = self.next_frame(index, budget) {
                self.network.transmit(&mut self.objects, index, frame, None);
                self.objects.qps.set_sent(index, true);
            } else if self.objects.qps.get(index.0).is_some_and(Qp::reads_on) {
                break;
            } else if self.objects.qps.sender_misses_page(index)
                || self.requests.finish_requests(&mut self.objects, index)
                || (takes && !held && self.requests.take_next(&mut self.objects, index))
            {
                continue;
            } else {
                if crowded && !awaits {
                    let again = self.requests.completions.scheduler.clock.now() + RETRY_INTERVAL_NS;
                    self.with_requester(index, |requester, _| requester.look_again(again));
                }
                return self.set_away_timer(index);
            }
            self.requests.finish_requests(&mut self.objects, index);
        }
        self.make_ready(index);
    }

    pub fn next_frame(&mut self, index: QpIndex, budget: &mut Budget) -> Option<Frame> {
        let address = self.objects.address(index)?;
        self.with_requester(index, |requester, around| {
            requester.poll_transmit(address, around, budget)
        })?
    }

    /// Does something with a queue pair's requesting side.
    pub(crate) fn with_requester<R>(
        &mut self,
        index: QpIndex,
        act: impl FnOnce(&mut Requester, &Surroundings<'_, Domain<'_, F::Dma>>) -> R,
    ) -> Option<R> {
        let now = self.requests.completions.scheduler.clock.now();
        let lends = self.network.lends(&self.objects, index);
        let Objects { qps, vfs, .. } = &mut self.objects;
        let Qp { core, req, .. } = qps.get_mut(index.0)?;
        let vf = &vfs[usize::from(core.vf.0)];
        let around = Surroundings {
            attr: &core.attr,
            transport: core.transport,
            session: (core.transport == Transport::Dci).then(|| req.far.session(core.qpn)),
            memory: vf.domain(core.pd),
            lends,
            in_completion: core.in_completion,
            retries: vf.retries(core),
            now,
        };
        let away = req.away.as_mut()?;
        let done = act(&mut away.requester, &around);
        self.requests
            .completions
            .tell_half(&mut self.objects, index, Half::Requester);
        Some(done)
    }

    /// Takes in what has arrived, as far as one long turn goes.
    pub(crate) fn arrivals(&mut self, now: u64) {
        // There may be room afterwards. Who waits for it has a turn before those whose answers come now.
        while let Some(index) = self.network.exits.injections.due(now) {
            self.objects.qps.end_wait(index);
            self.make_ready(index);
        }
        for index in self.network.exits.crowded.take() {
            self.objects.qps.set_sent(index, false);
            self.make_ready(index);
        }
        let mut left = TURN;
        while left.is_left()
            && let Some(Transmit {
                from,
                to,
                route,
                path_bits,
                mut frame,
                in_flight,
            }) = self.network.exits.receive(now)
        {
            let to = match to {
                Destination::Function(port) => {
                    let dgid = frame.address.global.map(|(global, _)| global.dgid);
                    let to = self.objects.function_at(port, dgid, frame.address.dest_qp);
                    // A port that several functions share may have none with that GID or number.
                    let Some(to) = to else {
                        left.take(REQUEST_NS);
                        continue;
                    };
                    if self.network.exits.are_watched() {
                        frame.take_along();
                    }
                    self.network
                        .exits
                        .endpoint
                        .show_arrival(&frame, from, to, path_bits);
                    Destination::Function(to)
                }
                to => to,
            };
            if self.network.see_congestion(&mut self.objects, &to, &frame) {
                left.take(REQUEST_NS);
                continue;
            }
            if let Some(crossing) = &route.crossing {
                frame.cross(crossing);
            }
            left.take(REQUEST_NS);
            left.take_bytes(frame.len() as usize);
            match to {
                Destination::Function(to) if frame.address.service != Service::Ud => {
                    self.arrive(to, frame, in_flight, &mut left);
                }
                to => crate::local::delivery::Delivery::new(self)
                    .datagram_arrives(from, to, path_bits, frame, &mut left),
            }
        }
        self.look_at_rests(now);
        self.network.exits.look();
        if let Some(waiter) = &self.network.exits.rests.waiter {
            waiter.wake_by_ref();
        }
    }

    /// See [`Engine::receive`](crate::Engine::receive).
    pub fn receive(&mut self, at: VfId, frame: Frame) {
        if self
            .network
            .see_congestion(&mut self.objects, &Destination::Function(at), &frame)
        {
            return;
        }
        match frame.address.service {
            Service::Ud => {
                let to = Destination::Function(at);
                crate::local::delivery::Delivery::new(self).datagram_arrives(
                    at,
                    to,
                    [0; 2],
                    frame,
                    &mut { TURN },
                );
            }
            _ => self.arrive(at, frame, None, &mut { TURN }),
        }
    }

    /// A frame of a connection has come to a function's port. It may say anything.
    pub(crate) fn arrive(
        &mut self,
        at: VfId,
        frame: Frame,
        in_flight: Option<Arc<InFlight>>,
        budget: &mut Budget,
    ) {
        if self.objects.vf(at).back == QUIESCED {
            return self
                .objects
                .vf_mut(at)
                .hold(For::QueuePair, frame, in_flight);
        }
        let Some(index) = self.taker(at, &frame) else {
            return;
        };
        if frame.is_counted() {
            let (words, packets) = (frame.words(), u64::from(frame.packets()));
            self.objects
                .vf(at)
                .counters
                .received(frame.address.sl, words, packets);
        }
        self.objects.migrate_along(index, frame.migrated);
        let Some(Qp { core, req, .. }) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        let vf = &self.objects.vfs[usize::from(core.vf.0)];
        let arrived = Arrived::new(frame, in_flight);
        if let Some(arrived) = req.line.admit(arrived, &vf.in_flight, vf.is_full()) {
            self.carry_out(index, arrived, budget);
        }
    }

    /// Carries a frame out, as far as a step goes. The rest of it is first in the line.
    pub(crate) fn carry_out(&mut self, index: QpIndex, mut arrived: Arrived, budget: &mut Budget) {
        let step = STEP.max(*budget);
        let mut left = step;
        let complete = if arrived.frame.is_response() {
            let handled = self.with_requester(index, |requester, around| {
                requester.handle(&mut arrived, around, &mut left)
            });
            self.migrate_exhausted(index);
            self.requests.finish_requests(&mut self.objects, index);
            self.make_ready(index);
            handled.unwrap_or(true)
        } else {
            let lends = self.network.lends(&self.objects, index);
            let Self {
                objects, requests, ..
            } = self;
            let Objects { qps, vfs, srqs, .. } = objects;
            let Some(Qp { core, resp, .. }) = qps.get_mut(index.0) else {
                return;
            };
            let begins = !std::mem::replace(&mut resp.established, true);
            let mut reception = Reception {
                core,
                resp,
                vf: &vfs[usize::from(core.vf.0)],
                srqs,
                spare_recvs: &mut requests.completions.spare_recvs,
                lends,
            };
            let reply = reception.handle(&mut arrived, &mut left);
            self.requests
                .completions
                .tell_half(&mut self.objects, index, Half::Responder);
            if begins {
                self.objects.established(index);
            }
            let complete = !reply.partly;
            self.reply(index, reply, arrived.in_flight.clone());
            complete
        };
        budget.charge(step, left);
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        if !complete {
            qp.req.line.push_front(arrived);
            budget.end();
        }
        if !qp.req.line.is_empty() {
            self.make_ready(index);
        }
    }

    /// The queue pair that takes a frame for its connection's. It listens to its own peer only, knows
    /// it by its LID, or by its GID where both say one (9.6.1.1, 9.6.1.5), and shares a partition with it.
    pub fn taker(&mut self, at: VfId, frame: &Frame) -> Option<QpIndex> {
        let Address {
            slid,
            global,
            service: said,
            dest_qp,
            ..
        } = frame.address;
        if said == Service::Dc && !frame.is_response() {
            return self.answerer(at, frame);
        }
        let vf = self.objects.vf(at);
        let index = *vf.qps.get(dest_qp.value())?;
        let core = &self.objects.qps.get(index.0)?.core;
        let connected = matches!(
            core.transport,
            Transport::Rc | Transport::Uc | Transport::Xrc | Transport::Dci
        );
        let back = core.attr.path?;
        let comes_by = |back: &AddressPath| match (global, back.global) {
            (Some((_, sgid)), Some(back)) => sgid == back.dgid,
            _ => (u16::from(slid) ^ u16::from(back.dlid)) >> vf.port.lmc == 0,
        };
        // A sender that has migrated uses the other path.
        let other = { core.attr.alternate.as_ref() }.filter(|_| core.attr.is_armed());
        let known = comes_by(&back) || other.is_some_and(|other| comes_by(&other.path));
        let listens = connected
            && said == service(core.transport)
            && core.state.receives()
            && vf.port.active
            && known;
        if !listens {
            return None;
        }
        let pkey_index = core.attr.pkey_index;
        self.network
            .shares_partition(&self.objects, at, frame, pkey_index)
            .then_some(index)
    }

    /// The timer of a queue pair's requesting side has fired.
    pub(crate) fn away_timeout(&mut self, index: QpIndex, id: u64) {
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        if let Some(away) = &mut qp.req.away
            && away.timer == id
        {
            away.timer = 0;
            let since = away.requester.waits_since();
            self.network.find_other_end(&mut self.objects, index);
            let left = since.and_then(|since| {
                self.requests
                    .completions
                    .scheduler
                    .time_left(&self.objects, index, since)
            });
            self.with_requester(index, |requester, around| {
                if let Some(left) = left {
                    requester.prolong(around, left);
                }
                requester.timeout(around);
            });
            self.migrate_exhausted(index);
            self.requests.finish_requests(&mut self.objects, index);
            self.make_ready(index);
        }
    }

    /// Acts on the result of a request. Its answer takes the room that it has reserved.
    pub fn reply(&mut self, index: QpIndex, reply: Reply, reserved: Option<Arc<InFlight>>) {
        let Reply {
            answer,
            loan,
            reason,
            partly: _,
            delivery,
            refusal,
            fault,
        } = reply;
        if let Some(fault) = fault {
            self.objects.responder_waits(index, fault);
        }
        if let (Some((content, psn, payload)), Some(address)) =
            (answer, self.objects.address(index))
            && let Some(qp) = self.objects.qps.get(index.0)
        {
            let frame = Frame {
                payload,
                loan,
                reason,
                ..Frame::new(address, qp.core.attr.mtu, psn, content)
            };
            self.network
                .transmit(&mut self.objects, index, frame, reserved);
        }
        if let Some(Delivery {
            kind,
            immediate,
            len,
            solicited,
        }) = delivery
            && let Some(qp) = self.objects.qps.get_mut(index.0)
            && let Some(inbound) = qp.resp.inbound.take()
        {
            if kind == RecvKind::SendInvalidate {
                invalidate(&mut self.objects.vfs[usize::from(qp.core.vf.0)], immediate);
            }
            let received = (kind, immediate, solicited);
            self.requests.completions.complete_recv(
                &mut self.objects,
                index,
                inbound,
                Status::Success,
                len,
                received,
            );
        }
        if let Some(refusal) = refusal {
            self.requests
                .refuse(&mut self.objects, index, refusal, false);
        }
    }

    /// Has a queue pair go on by its alternate path, if its retries are exhausted.
    #[inline]
    pub fn migrate_exhausted(&mut self, index: QpIndex) {
        let qp = self.objects.qps.get_mut(index.0);
        let away = qp.and_then(|qp| qp.req.away.as_mut());
        if away.is_some_and(|away| away.requester.take_exhausted()) {
            self.network.migrate(&mut self.objects, index);
            self.with_requester(index, |requester, around| requester.migrated(around.attr));
        }
    }

    /// The context that takes a request in a frame. It is told in which way one with a wrong key is.
    pub fn answerer(&mut self, at: VfId, frame: &Frame) -> Option<QpIndex> {
        let session = **frame.session.as_ref()?;
        let vf = self.objects.vf(at);
        let index = *vf.qps.get(frame.address.dest_qp.value())?;
        let core = &self.objects.qps.get(index.0)?.core;
        if core.transport != Transport::Dct || !core.state.receives() || !vf.port.active {
            return None;
        }
        let pkey_index = core.attr.pkey_index;
        if !self
            .network
            .shares_partition(&self.objects, at, frame, pkey_index)
        {
            return None;
        }
        let port = &self.objects.vf(at).port;
        let call = Call::new(&frame.address, session, frame.mtu, port)?;
        match self
            .requests
            .completions
            .let_in(&mut self.objects, index, &call)
        {
            Ok(LetIn { context, .. }) => Some(context),
            Err(Denied::Unheard) => None,
            Err(Denied::Key) => {
                self.network
                    .turn_away(&mut self.objects, at, &call, pkey_index);
                None
            }
        }
    }
}

impl<F: QueueFormat> QueuePairs<F> {
    /// Whether a request is for the peer that the queue pair has now, and why it cannot be sent then.
    pub(crate) fn fits_transport(&self, index: QpIndex, wr: &mut SendWr) -> Option<Option<Status>> {
        let local = matches!(
            wr.operation,
            Operation::Nop
                | Operation::LocalInvalidate
                | Operation::UpdateKey
                | Operation::ChangeTags
                | Operation::SetSignature
        );
        let transport = self.get(index.0)?.core.transport;
        (!local && !self.turns_away(index, wr)).then(|| transport.refuses(wr))
    }
}
