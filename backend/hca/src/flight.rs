//! Requests on slow links. A connected queue pair whose way there or back takes time has its
//! requests arrive that much later, several at a time and in order, and their answers after that.
//!
//! A request is carried out when it arrives. If it must be sent again, those behind it have not been
//! carried out either, as with a responder that drops what is out of sequence.

use std::collections::VecDeque;

use crate::agenda::REQUEST_COST;
use crate::datagram::MAX_DATAGRAM;
use crate::engine::{Engine, QpIndex, VfId};
use crate::face::Face;
use crate::qp::{QpState, Wait};
use crate::vf::Vf;
use crate::work::{SendWr, Status};

/// What a function may have on slow links: requests of connections, and datagrams. Each holds memory
/// of the host's. A queue pair that has nothing there may always send one.
const IN_FLIGHT: u32 = 4096;
/// What one of them takes of it at most, in bytes: a datagram of a whole packet.
pub(crate) const THING: usize = MAX_DATAGRAM + 512;

/// A queue pair's requests that have been taken from its queue and not completed, but for the one
/// that is being carried out. There is no flight where there are none.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// On their way to the responder: when they arrive.
    outbound: VecDeque<(u64, Departure)>,
    /// Carried out: when the requester hears of it.
    inbound: VecDeque<(u64, Landing)>,
    /// How long the way takes there and back, in nanoseconds.
    delays: [u64; 2],
    /// When the last request to be carried out was there.
    reached: u64,
    /// Whether more requests are posted than may be sent.
    pub full: bool,
    /// Identifies the timer that is set, and when that is due.
    pub timer: u64,
    due: u64,
}

/// A request that is sent, or one that cannot be and completes when all before it have.
#[derive(Debug)]
struct Departure {
    wr: Box<SendWr>,
    fault: Option<Status>,
}

/// How a request has ended.
#[derive(Debug)]
struct Landing {
    wr: Box<SendWr>,
    status: Status,
    byte_len: u32,
}

impl Flight {
    fn len(&self) -> usize {
        self.outbound.len() + self.inbound.len()
    }

    /// Whether one has failed, which the requester does not know yet: it was the last to be carried
    /// out.
    fn has_failed(&self) -> bool {
        let last = self.inbound.back();
        last.is_some_and(|(_, landing)| landing.status != Status::Success)
    }

    /// Whether there are requests behind the one that is being carried out.
    pub fn has_departed(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// What a request that is sent again takes longer, in nanoseconds.
    pub fn round_trip(&self) -> u64 {
        self.delays[0] + self.delays[1]
    }

    /// All requests, in the order in which they were posted; `current` is the one being carried out.
    pub fn into_requests(self, current: Option<Box<SendWr>>) -> impl Iterator<Item = Box<SendWr>> {
        let landed = self.inbound.into_iter().map(|(_, landing)| landing.wr);
        let sent = self.outbound.into_iter().map(|(_, departure)| departure.wr);
        landed.chain(current).chain(sent)
    }
}

/// Whether a function may have one thing more on slow links.
fn has_room<F: Face>(vf: &Vf<F>) -> bool {
    vf.in_flight < IN_FLIGHT && vf.memory.left() >= THING
}

impl<F: Face> Engine<F> {
    /// Whether a function may have one thing more on slow links; it is counted then.
    pub(crate) fn take_off(&mut self, vf: VfId, always: bool) -> bool {
        let state = self.vf_mut(vf);
        let room = always || has_room(state);
        if room {
            state.in_flight += 1;
            state.memory.exchange(0, THING);
        }
        room
    }

    /// So many things less.
    pub(crate) fn touch_down(&mut self, vf: VfId, things: usize) {
        let state = self.vf_mut(vf);
        state.in_flight = state.in_flight.saturating_sub(things as u32);
        (0..things).for_each(|_| state.memory.give(THING));
    }

    /// Sends a request on its way. `fault` says that it cannot be sent.
    pub(crate) fn depart(&mut self, index: QpIndex, wr: Box<SendWr>, fault: Option<Status>) {
        let now = self.clock.now();
        let is_reached = self.peer(index).is_some();
        let Some(qp) = self.qps.get_mut(index.0) else {
            return;
        };
        let delays = match is_reached {
            true => qp.req.impairment.delays,
            false => [0; 2],
        };
        let vf = qp.core.vf;
        let flight = qp.req.flight.get_or_insert_default();
        // Without acknowledgement it is done when it arrives.
        flight.delays = match qp.core.transport.is_reliable() {
            true => delays,
            false => [delays[0], 0],
        };
        let last = flight.outbound.back().map_or(0, |(arrives, _)| *arrives);
        let arrives = last.max(now + flight.delays[0]);
        flight
            .outbound
            .push_back((arrives, Departure { wr, fault }));
        self.take_off(vf, true);
    }

    /// The next request that has arrived, of a queue pair with requests on their way. `None` when
    /// there is nothing to do for now.
    #[cold]
    pub(crate) fn next_in_flight(
        &mut self,
        index: QpIndex,
        budget: &mut i64,
    ) -> Option<Box<SendWr>> {
        let now = self.clock.now();
        while *budget > 0 {
            self.land_due(index, now, budget);
            let qp = self.qps.get_mut(index.0)?;
            match qp.core.state {
                QpState::ReadyToSend | QpState::SendQueueDrain => {}
                QpState::Error | QpState::SendQueueError => {
                    self.flush(index, budget);
                    return None;
                }
                _ => return None,
            }
            if qp.req.wait != Wait::None {
                self.set_flight_timer(index);
                return None;
            }
            if let Some(wr) = qp.req.current.take() {
                if let Some(flight) = &mut qp.req.flight {
                    flight.reached = now;
                }
                return Some(wr);
            }
            if let Some(Departure { wr, fault }) = self.arrived(index, now) {
                match fault {
                    Some(status) => self.finish(index, wr, status, 0),
                    None => return Some(wr),
                }
            } else if !self.depart_next(index) {
                self.set_flight_timer(index);
                return None;
            }
            *budget -= REQUEST_COST;
        }
        self.make_ready(index);
        None
    }

    /// Completes requests whose answers have come.
    fn land_due(&mut self, index: QpIndex, now: u64, budget: &mut i64) {
        while *budget > 0
            && let Some(qp) = self.qps.get_mut(index.0)
            && matches!(
                qp.core.state,
                QpState::ReadyToSend | QpState::SendQueueDrain
            )
            && let Some(flight) = &mut qp.req.flight
            && let Some((_, landing)) = flight.inbound.pop_front_if(|(at, _)| *at <= now)
        {
            flight.full = false;
            let (vf, empty) = (qp.core.vf, flight.len() == 0);
            if empty && qp.req.current.is_none() {
                qp.req.flight = None;
            }
            self.touch_down(vf, 1);
            self.conclude(index, landing.wr, landing.status, landing.byte_len);
            *budget -= REQUEST_COST;
        }
    }

    /// The next request, if it has arrived.
    fn arrived(&mut self, index: QpIndex, now: u64) -> Option<Departure> {
        let qp = self.qps.get_mut(index.0)?;
        let flight = qp.req.flight.as_deref_mut()?;
        if flight.has_failed() {
            return None;
        }
        let (at, departure) = flight.outbound.pop_front_if(|(at, _)| *at <= now)?;
        flight.reached = at;
        let vf = qp.core.vf;
        self.touch_down(vf, 1);
        Some(departure)
    }

    /// Sends the next posted request on its way; whether there was one, and room for it.
    fn depart_next(&mut self, index: QpIndex) -> bool {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return false;
        };
        let vf = qp.core.vf;
        let Some(flight) = &mut qp.req.flight else {
            // All have landed: the ordinary turn goes on.
            self.make_ready(index);
            return false;
        };
        if qp.core.state != QpState::ReadyToSend {
            return false;
        }
        flight.full = flight.len() > 0 && !has_room(&self.vfs[usize::from(vf.0)]);
        if flight.full {
            return false;
        }
        match self.take_request(index) {
            Some(wr) => {
                self.depart(index, wr, None);
                true
            }
            None => false,
        }
    }

    /// A request has been carried out, or will not be: the requester is to hear of it.
    #[cold]
    pub(crate) fn land(&mut self, index: QpIndex, wr: Box<SendWr>, status: Status, byte_len: u32) {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return;
        };
        let vf = qp.core.vf;
        // The next one begins anew, though the requester does not know yet.
        qp.req.offset = 0;
        qp.req.reload_retries(&qp.core.attr);
        let Some(flight) = &mut qp.req.flight else {
            return;
        };
        let last = flight.inbound.back().map_or(0, |(at, _)| *at);
        let landing = Landing {
            wr,
            status,
            byte_len,
        };
        flight
            .inbound
            .push_back((last.max(flight.reached + flight.delays[1]), landing));
        self.take_off(vf, true);
        self.set_flight_timer(index);
    }

    /// Sees to it that the queue pair has a turn when something arrives.
    pub(crate) fn set_flight_timer(&mut self, index: QpIndex) {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return;
        };
        let busy = qp.req.wait != Wait::None || qp.req.current.is_some();
        let Some(flight) = &mut qp.req.flight else {
            return;
        };
        let now = self.clock.now();
        self.next_timer += 1;
        let id = self.next_timer;
        let busy = busy || flight.has_failed();
        let arrival = flight.outbound.front().filter(|_| !busy);
        let answer = flight.inbound.front().map(|(at, _)| *at);
        let due = arrival.map(|(at, _)| *at).into_iter().chain(answer).min();
        let Some(due) = due else {
            return;
        };
        if due <= now {
            self.make_ready(index);
        } else if flight.timer == 0 || flight.due != due {
            flight.timer = id;
            flight.due = due;
            let vf = qp.core.vf;
            self.vf_mut(vf).agenda.timers.insert((due, index.0, id));
            self.set_alarm(vf);
            self.trim();
        }
    }

    /// Forgets what a queue pair has on its way.
    pub(crate) fn drop_flight(&mut self, index: QpIndex) {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return;
        };
        if let Some(flight) = qp.req.flight.take() {
            let (vf, len) = (qp.core.vf, flight.len());
            self.spare_sends.extend(flight.into_requests(None));
            self.touch_down(vf, len);
        }
    }

    /// Takes the first request that a queue pair has not completed, to flush it.
    pub(crate) fn take_unfinished(&mut self, index: QpIndex) -> Option<Box<SendWr>> {
        let qp = self.qps.get_mut(index.0)?;
        let Some(flight) = &mut qp.req.flight else {
            return qp.req.current.take();
        };
        let vf = qp.core.vf;
        let wr = match flight.inbound.pop_front() {
            Some((_, landing)) => landing.wr,
            None => match qp.req.current.take() {
                Some(wr) => return Some(wr),
                None => match flight.outbound.pop_front() {
                    Some((_, departure)) => departure.wr,
                    None => {
                        qp.req.flight = None;
                        return None;
                    }
                },
            },
        };
        self.touch_down(vf, 1);
        Some(wr)
    }
}
