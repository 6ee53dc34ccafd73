//! Functions that rest. An image is made of a function that rests, and becomes one.
//!
//! Nothing gets lost by a rest. Packets on their way to the function when it is quiesced are held for it, in the
//! order in which they came, and so are datagrams that others send to it meanwhile ([`Quiesced::held`]); all that goes
//! along in the function's image. A peer that has a connection with it does not begin to send, and its earlier
//! requests are not overdue: no retry is used up. A function that does not come back within [`MAX_QUIESCE_NS`] is
//! dead to the others, as one with a port that is down.

pub(crate) mod functions;

use std::sync::Arc;

use wire::Qpn;
use wire::header::Service;

use crate::budget::{Budget, REQUEST_NS, TURN};
use crate::engine::executor::Executor;
use crate::engine::scheduler::Scheduler;
use crate::local::delivery::Delivery;
use crate::objects::Objects;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::qp::Wait;
use crate::objects::vf::Vf;
use crate::objects::vf::quiesce::{For, Held, QUIESCED, Quiesced};
use crate::queue_format::{Event, QueueFormat};
use crate::transport::datagram::Datagram;
use crate::transport::{Content, Frame, InFlight, framed};

/// Longest time that others wait for a quiesced function, in nanoseconds.
pub const MAX_QUIESCE_NS: u64 = 60_000_000_000;
/// Shortest time between two looks at an answer that does not come since somebody rests, in nanoseconds.
const MIN_RECHECK_NS: u64 = 1_000_000;
/// Queue pairs that are called at a time; the others follow.
const CALL_BATCH: usize = 64;

impl<F: QueueFormat> Executor<F> {
    /// See [`Engine::quiesce`](crate::Engine::quiesce).
    pub fn quiesce(&mut self, vf: VfId) {
        let now = self.requests.completions.scheduler.clock.now();
        let until = now.saturating_add(MAX_QUIESCE_NS);
        let state = self.objects.vf_mut(vf);
        if let Some(rest) = &mut state.quiesced {
            if std::mem::take(&mut rest.returns) {
                rest.active = std::mem::take(&mut state.port.active);
                self.network.exits.rests.returning.retain(|&it| it != vf);
            }
            return;
        }
        state.quiesced = Some(Box::new(Quiesced {
            active: std::mem::take(&mut state.port.active),
            since: now,
            ..Quiesced::default()
        }));
        state.back = QUIESCED;
        state.version += 1;
        // Queue pairs that wait for room, or for others, ask again.
        for index in self.network.exits.crowded.take() {
            self.make_ready(index);
        }
        self.call_own(vf);
        self.network.exits.rests.patience.push((until, vf));
        self.network.exits.look();
        let polling = &mut self.requests.completions.scheduler.polling;
        polling.quiesce(&mut self.objects, vf);
        let run_queue = &mut self.objects.vfs[usize::from(vf.0)].run_queue;
        self.requests.completions.scheduler.quiesce(vf, run_queue);
    }

    /// See [`Engine::resume`](crate::Engine::resume).
    pub fn resume(&mut self, vf: VfId) {
        let state = self.objects.vf_mut(vf);
        let Some(rest) = &mut state.quiesced else {
            return;
        };
        if std::mem::replace(&mut rest.returns, true) {
            return;
        }
        state.port.active = rest.active;
        let at_once = rest.held.is_empty() && !self.network.exits.have_arrivals();
        if at_once {
            return self.come_back(vf);
        }
        self.network.exits.rests.returning.push(vf);
        self.network.exits.look();
    }

    pub fn come_back(&mut self, vf: VfId) {
        let now = self.requests.completions.scheduler.clock.now();
        let state = self.objects.vf_mut(vf);
        state.end_rest(now);
        let rest = state.quiesced.take();
        for change in rest.into_iter().flat_map(|rest| rest.changes) {
            self.objects.notify(vf, Event::Port(change));
        }
        let polling = &mut self.requests.completions.scheduler.polling;
        polling.resume(&mut self.objects, vf);
        let run_queue = &mut self.objects.vfs[usize::from(vf.0)].run_queue;
        self.requests.completions.scheduler.resume(vf, run_queue);
        self.network.exits.rests.forget(vf);
        self.network.exits.look();
    }

    /// Works for quiesced functions: those that go on get the packets held for them, queue pairs that have waited
    /// look again, and a function that does not come back counts as dead.
    pub(crate) fn look_at_rests(&mut self, now: u64) {
        if self
            .network
            .exits
            .rests
            .deadline()
            .is_none_or(|at| at > now)
        {
            return;
        }
        // More than can have come since they were looked at.
        let mut left = TURN;
        while left.is_left()
            && let Some(&vf) = self.network.exits.rests.returning.first()
        {
            match self
                .objects
                .vf_mut(vf)
                .quiesced
                .as_deref_mut()
                .and_then(Quiesced::next)
            {
                Some(held) => self.deliver_held(vf, held, &mut left),
                None => self.come_back(vf),
            }
        }
        for _ in 0..CALL_BATCH {
            let Some((_, index)) = self.network.exits.rests.called.pop_first() else {
                break;
            };
            let scheduler = &mut self.requests.completions.scheduler;
            scheduler.call(&mut self.objects, QpIndex(index));
        }
        while let Some(&(_, vf)) =
            { self.network.exits.rests.patience.iter() }.find(|it| it.0 <= now)
        {
            self.objects.vf_mut(vf).end_rest(now);
            self.requests.forget_held(&mut self.objects, vf);
            self.network.exits.rests.forget(vf);
        }
    }

    pub fn deliver_held(&mut self, vf: VfId, held: Held, left: &mut Budget) {
        let Held {
            to,
            mut frame,
            in_flight,
        } = held;
        left.take(REQUEST_NS);
        left.take_bytes(frame.payload.len());
        // It does not rest for this.
        let state = self.objects.vf_mut(vf);
        let rest = state.quiesced.take();
        let back = std::mem::replace(&mut state.back, 0);
        if frame.address.service == Service::Ud {
            Delivery::new(self).deliver_datagram(vf, to, &mut frame);
        } else {
            self.arrive(vf, frame, in_flight, left);
        }
        let state = self.objects.vf_mut(vf);
        (state.quiesced, state.back) = (rest, back);
    }

    /// The queue pairs of a function that wait for others are to look again.
    pub fn call_own(&mut self, vf: VfId) {
        let own = (vf, 0)..=(vf, u32::MAX);
        let waiting = self.network.exits.rests.waiting.range(own);
        for (_, index) in waiting.copied().collect::<Vec<_>>() {
            self.network.exits.rests.waiting.remove(&(vf, index));
            let scheduler = &mut self.requests.completions.scheduler;
            scheduler.call(&mut self.objects, QpIndex(index));
        }
    }
}

impl<F: QueueFormat> Vf<F> {
    /// Whether a function rests, or has not got yet what has come for it meanwhile.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.quiesced.is_some()
    }

    /// Has a frame wait for a function that rests.
    #[cold]
    pub(crate) fn hold(&mut self, to: For, mut frame: Frame, in_flight: Option<Arc<InFlight>>) {
        if let Some(rest) = &mut self.quiesced {
            // Its sender gets its memory back, and an image of it has it all.
            frame.take_along();
            if frame.loan.is_none() {
                rest.hold(Held {
                    to,
                    frame,
                    in_flight,
                });
            }
        }
    }

    /// Has a datagram wait for a function that rests.
    #[cold]
    pub(crate) fn hold_datagram(&mut self, to: For, qpn: Qpn, datagram: &Datagram<'_>) {
        self.hold(to, framed(datagram, qpn), None);
    }

    /// Others wait for it no longer.
    fn end_rest(&mut self, now: u64) {
        if self.back == QUIESCED
            && let Some(rest) = &self.quiesced
        {
            self.rested.rotate_right(1);
            self.rested[0] = (rest.since, now);
        }
        self.back = now;
        self.version += 1;
    }

    /// For how many nanoseconds from `begin` to `end` others had to wait for it.
    fn rested_since(&self, begin: u64, end: u64) -> u64 {
        let present = self.quiesced.as_ref().filter(|_| self.back == QUIESCED);
        let present = present.map(|rest| (rest.since, end));
        let rests = self.rested.iter().copied().chain(present);
        rests
            .map(|(from, to)| to.min(end).saturating_sub(from.max(begin)))
            .sum()
    }
}

impl<F: QueueFormat> Scheduler<F> {
    /// The clock of a function, in nanoseconds: it stands still while the function is quiesced.
    pub fn time_of(&self, objects: &Objects<F>, vf: VfId) -> u64 {
        let rest = objects.vf(vf).quiesced.as_ref();
        rest.map_or_else(|| self.clock.now(), |rest| rest.since)
    }

    /// A queue pair is to look again at the other end of its connection.
    pub fn call(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        if let Some(qp) = objects.qps.get_mut(index.0) {
            if qp.req.wait == Wait::Quiesced {
                qp.req.wait = Wait::None;
            }
            self.make_ready(objects, index);
        }
    }

    /// Nanoseconds left to an answer that is overdue after a wait `since` then: as long as one of both ends has
    /// been quiesced meanwhile. `None` where none has.
    #[cold]
    pub fn time_left(&self, objects: &Objects<F>, index: QpIndex, since: u64) -> Option<u64> {
        let qp = objects.qps.get(index.0)?;
        let (own, now) = (qp.core.vf, self.clock.now());
        let other = objects.other_end(index);
        let others = match &other {
            Some(end) => std::slice::from_ref(end),
            // One of those at the port; which of them, its engine knows.
            None => {
                let route = qp.req.found.route.and_then(|found| found.route.ok());
                let port = route.and_then(|route| route.here());
                port.map_or(&[][..], |port| &objects.vf(port).sharers)
            }
        };
        let rested = |vf: &VfId| objects.vf(*vf).rested_since(since, now);
        let left = rested(&own) + others.iter().map(rested).max().unwrap_or(0);
        let rests = |vf: &VfId| objects.vf(*vf).back == QUIESCED;
        let shortest = if rests(&own) || others.iter().any(rests) {
            MIN_RECHECK_NS
        } else {
            0
        };
        Some(left.max(shortest)).filter(|&left| left > 0)
    }
}

/// Checks that a frame of an image could have been sent.
pub(crate) fn is_sound(held: &Held) -> bool {
    let frame = &held.frame;
    let datagram = matches!(frame.content, Content::Datagram { .. });
    let operation = match frame.content {
        Content::Atomic { operation, .. } => operation.is_atomic(),
        _ => true,
    };
    let is_ud = frame.address.service == Service::Ud;
    frame.is_well_formed()
        && operation
        && datagram == is_ud
        && (is_ud || held.to == For::QueuePair)
        && (held.to != For::Agent || frame.payload.len() == 256)
}
