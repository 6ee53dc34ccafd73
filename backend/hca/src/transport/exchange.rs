//! Connections that send their messages in frames: turns of their requesters, and what arrives.

use std::sync::Arc;

use wire::Gid;
use wire::header::Service;

use super::arrived::{Arrived, STEP_COST};
use super::endpoint::{Destination, Endpoint, InFlight, Transmit};
use super::frame::{Address, Frame};
use super::requester::{Requester, Surroundings};
use super::responder::Reception;
use super::room::{BYTES_PER_SLOT, Room};
use crate::engine::Engine;
use crate::engine::cost::{REQUEST_COST, TURN};
use crate::memory::domain::Domain;
use crate::objects::Objects;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::page_fault::Half;
use crate::objects::qp::attributes::{AddressPath, QpState, Transport};
use crate::objects::qp::{Qp, QueuePairs, Wait};
use crate::objects::reason::Status;
use crate::objects::vf::quiesce::{For, QUIESCED};
use crate::objects::work::{Operation, SendWr};
use crate::path::LinkId;
use crate::queue_format::QueueFormat;
use crate::transport::endpoint::exits::over;
use crate::transport::endpoint::mesh::Mesh;
use crate::transport::frame::service;
use crate::transport::requester::away::Away;

/// After how long a connection looks again whether its function may have more on its way, in nanoseconds:
/// where what is on its way has no answer, nothing tells.
const RETRY_INTERVAL_NS: u64 = 100_000;

impl<F: QueueFormat> Engine<F> {
    /// A turn of a queue pair with requests under way.
    #[cold]
    pub(crate) fn away_turn(&mut self, index: QpIndex, budget: &mut i64) {
        while *budget > 0 {
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
                return self
                    .requests
                    .completions
                    .scheduler
                    .make_ready(&mut self.objects, index);
            }
            if away.requester.absent().is_some() && qp.req.wait != Wait::Page {
                self.requests.away_waits(&mut self.objects, index);
            }
            let Some(qp) = self.objects.qps.get(index.0) else {
                return;
            };
            if qp.req.wait == Wait::Page {
                return self
                    .requests
                    .completions
                    .scheduler
                    .set_away_timer(&mut self.objects, index);
            }
            *budget -= REQUEST_COST;
            let (from, reliable) = (qp.core.vf, qp.core.transport.is_reliable());
            if self.network.waits_with_frames(&mut self.objects, index) {
                self.network.wait_for_rest(&self.objects, index);
                return self
                    .requests
                    .completions
                    .scheduler
                    .set_away_timer(&mut self.objects, index);
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
                return self
                    .requests
                    .completions
                    .scheduler
                    .set_away_timer(&mut self.objects, index);
            }
            self.requests.finish_requests(&mut self.objects, index);
        }
        self.requests
            .completions
            .scheduler
            .make_ready(&mut self.objects, index);
    }
}

impl<F: QueueFormat> Engine<F> {
    fn next_frame(&mut self, index: QpIndex, budget: &mut i64) -> Option<Frame> {
        let address = self.objects.address(index)?;
        self.with_requester(index, |requester, around| {
            requester.poll_transmit(address, around, budget)
        })?
    }
}

impl<F: QueueFormat> Engine<F> {
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
            memory: Domain {
                dma: &vf.dma,
                keys: &vf.keys,
                pd: core.pd,
            },
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
}

impl<F: QueueFormat> Engine<F> {
    /// Joins the engine to others: paths that end [`End::Away`] over this link lead there. Frames that arrive at
    /// the endpoint are for functions of this engine.
    pub fn add_link(&mut self, endpoint: Box<dyn Endpoint>) -> LinkId {
        self.network.exits.add(endpoint)
    }

    /// Joins the engine to others of the program, which have the same functions: each lives in one of
    /// them, as the homes of the mesh say, and the others know its port.
    pub fn join(&mut self, mesh: Mesh) {
        let links = self.network.subnet.links();
        self.join_over(mesh, |mesh| over(links, mesh));
    }

    /// The same, with other links on the way.
    pub fn join_over(&mut self, mesh: Mesh, links: impl FnOnce(Mesh) -> Box<dyn Endpoint>) {
        for (at, vf) in self.objects.vfs.iter_mut().enumerate() {
            vf.elsewhere = !mesh.is_home(VfId(at as u16));
        }
        self.network.exits.may_be_crowded = true;
        self.set_endpoint(links(mesh));
    }

    /// Whether a function lives in this engine.
    #[must_use]
    pub fn is_home(&self, vf: VfId) -> bool {
        !self.objects.vf(vf).elsewhere
    }

    /// Looks at the endpoints, at one of which something has arrived without the engine's doing.
    pub fn wake(&mut self) {
        self.network.exits.look();
    }

    /// Takes in what has arrived, as far as one long turn goes.
    pub(crate) fn arrivals(&mut self, now: u64) {
        // There may be room afterwards. Who waits for it has a turn before those whose answers come now.
        while let Some(index) = self.network.exits.injections.due(now) {
            self.objects.qps.end_wait(index);
            self.requests
                .completions
                .scheduler
                .make_ready(&mut self.objects, index);
        }
        for index in self.network.exits.crowded.take() {
            self.objects.qps.set_sent(index, false);
            self.requests
                .completions
                .scheduler
                .make_ready(&mut self.objects, index);
        }
        let mut left = TURN;
        while left > 0
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
                        left -= REQUEST_COST;
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
                left -= REQUEST_COST;
                continue;
            }
            if let Some(crossing) = &route.crossing {
                frame.cross(crossing);
            }
            left -= REQUEST_COST + i64::from(frame.len());
            match to {
                Destination::Function(to) if frame.address.service != Service::Ud => {
                    self.arrive(to, frame, in_flight, &mut left);
                }
                to => self.datagram_arrives(from, to, path_bits, frame, &mut left),
            }
        }
        self.look_at_rests(now);
        self.network.exits.look();
        if let Some(waiter) = &self.network.exits.rests.waiter {
            waiter.wake_by_ref();
        }
    }

    /// A frame has come to a function's port from outside the engine. It may say anything.
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
                self.datagram_arrives(at, to, [0; 2], frame, &mut { TURN });
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
        budget: &mut i64,
    ) {
        if self.objects.vf(at).back == QUIESCED {
            return self.hold(at, For::QueuePair, frame, in_flight);
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
    pub(crate) fn carry_out(&mut self, index: QpIndex, mut arrived: Arrived, budget: &mut i64) {
        let least = STEP_COST.max(*budget);
        let mut left = least;
        let complete = if arrived.frame.is_response() {
            let handled = self.with_requester(index, |requester, around| {
                requester.handle(&mut arrived, around, &mut left)
            });
            self.migrate_exhausted(index);
            self.requests.finish_requests(&mut self.objects, index);
            self.requests
                .completions
                .scheduler
                .make_ready(&mut self.objects, index);
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
        *budget -= least - left;
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        if !complete {
            qp.req.line.push_front(arrived);
            *budget = (*budget).min(0);
        }
        if !qp.req.line.is_empty() {
            self.requests
                .completions
                .scheduler
                .make_ready(&mut self.objects, index);
        }
    }

    /// The queue pair that takes a frame for its connection's. It listens to its own peer only, knows
    /// it by its LID, or by its GID where both say one (9.6.1.1, 9.6.1.5), and shares a partition with it.
    fn taker(&mut self, at: VfId, frame: &Frame) -> Option<QpIndex> {
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
            self.requests
                .completions
                .scheduler
                .make_ready(&mut self.objects, index);
        }
    }
}

impl<F: QueueFormat> Objects<F> {
    /// Has a request go in frames, and those that follow it.
    #[cold]
    pub(crate) fn send_in_frames(
        &mut self,
        index: QpIndex,
        wr: Box<SendWr>,
        fault: Option<Status>,
    ) {
        let Some(Qp { core, req, .. }) = self.qps.get_mut(index.0) else {
            return;
        };
        if req.away.is_none() && core.transport == Transport::Dci {
            // Whatever the target has kept of the last connection is void.
            req.far.begin(req.psn);
        }
        let away = req
            .away
            .get_or_insert_with(|| Box::new(Away::new(Requester::new(req.psn, &core.attr))));
        away.requester.post(wr, &core.attr, fault);
        req.psn = away.requester.newest();
        req.offset = 0;
        let vf = &mut self.vfs[usize::from(core.vf.0)];
        vf.taken += 1;
        vf.memory.exchange(0, BYTES_PER_SLOT);
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

impl<F: QueueFormat> Objects<F> {
    /// Where a connection's frames go and what they say of where they come from.
    pub(crate) fn address(&self, index: QpIndex) -> Option<Address> {
        let core = &self.qps.get(index.0)?.core;
        let path = core.attr.path?;
        let port = &self.vf(core.vf).port;
        Some(Address {
            slid: port.source(path.src_path_bits),
            dlid: path.dlid,
            sl: path.sl,
            global: path.global.map(|global| {
                let gid = port.gids.get(usize::from(global.sgid_index));
                (global, gid.copied().unwrap_or(Gid::NONE))
            }),
            service: service(core.transport),
            pkey: port.pkey(core.attr.pkey_index),
            dest_qp: core.attr.dest_qp,
        })
    }
}
