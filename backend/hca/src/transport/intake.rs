//! Frames that have come for a queue pair are carried out, in turns where one does not do.

use super::arrived::Arrived;
use super::endpoint::InFlight;
use super::exchange::is_full;
use super::frame::MAX_PAYLOAD;
use super::responder::Reception;
use crate::engine::Engine;
use crate::objects::Objects;
use crate::objects::ids::QpIndex;
use crate::objects::page_fault::Half;
use crate::objects::qp::Qp;
use crate::queue_format::QueueFormat;

/// Least cost of a step of a frame: payload in one piece is copied in one step.
pub(super) const STEP_COST: i64 = MAX_PAYLOAD as i64;

impl<F: QueueFormat> Engine<F> {
    /// A frame has come for this queue pair. `budget` is charged with what it costs to carry it out.
    pub(super) fn frame_arrives(&mut self, index: QpIndex, mut arrival: Arrived, budget: &mut i64) {
        let Some(Qp { core, req, .. }) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        if req.line.is_empty() {
            return self.carry_out(index, arrival, budget);
        }
        let vf = &self.objects.vfs[usize::from(core.vf.0)];
        // Its sender may not count it any more while it waits.
        let uncounted = arrival.in_flight.is_none();
        if req.line.is_full() || uncounted && is_full(vf) {
            return;
        }
        if uncounted {
            arrival.in_flight = Some(InFlight::new(&vf.in_flight, 1));
        }
        req.line.push(arrival);
    }

    /// Goes on with frames that wait in line for a queue pair, in a turn of its function.
    #[cold]
    pub(crate) fn work_off_line(&mut self, index: QpIndex, budget: &mut i64) {
        while *budget > 0
            && let Some(qp) = self.objects.qps.get_mut(index.0)
            && let Some(arrival) = qp.req.line.pop()
        {
            let listens = if arrival.frame.is_response() {
                qp.req.away.is_some()
            } else {
                qp.core.state.receives()
            };
            if listens {
                self.carry_out(index, arrival, budget);
            }
        }
    }

    /// Carries a frame out, as far as a step goes. What is left comes first in the line.
    fn carry_out(&mut self, index: QpIndex, mut arrival: Arrived, budget: &mut i64) {
        let least = STEP_COST.max(*budget);
        let mut left = least;
        let complete = if arrival.frame.is_response() {
            self.take_answer(index, &mut arrival, &mut left)
        } else {
            self.take_request_frame(index, &mut arrival, &mut left)
        };
        *budget -= least - left;
        if !complete && let Some(qp) = self.objects.qps.get_mut(index.0) {
            qp.req.line.push_front(arrival);
            *budget = (*budget).min(0);
        }
        if self
            .objects
            .qps
            .get(index.0)
            .is_some_and(|qp| !qp.req.line.is_empty())
        {
            self.make_ready(index);
        }
    }

    /// An answer, or some of it; whether all of it.
    fn take_answer(&mut self, index: QpIndex, arrival: &mut Arrived, budget: &mut i64) -> bool {
        let complete = self.with_requester(index, |requester, around| {
            requester.handle(arrival, around, budget)
        });
        self.migrate_exhausted(index);
        self.finish_requests(index);
        self.make_ready(index);
        complete.unwrap_or(true)
    }

    /// A request, or some of it; whether all of it.
    fn take_request_frame(
        &mut self,
        index: QpIndex,
        arrival: &mut Arrived,
        budget: &mut i64,
    ) -> bool {
        let lends = self.lends(index);
        let Self {
            objects,
            spare_recvs,
            ..
        } = self;
        let Objects { qps, vfs, srqs, .. } = objects;
        let Some(Qp { core, resp, .. }) = qps.get_mut(index.0) else {
            return true;
        };
        let begins = !std::mem::replace(&mut resp.established, true);
        let mut reception = Reception {
            core,
            resp,
            vf: &mut vfs[usize::from(core.vf.0)],
            srqs,
            spare_recvs,
            lends,
        };
        let reply = reception.handle(arrival, budget);
        self.tell_half(index, Half::Responder);
        if begins {
            self.objects.established(index);
        }
        let complete = !reply.partly;
        self.reply(index, reply, arrival.in_flight.clone());
        complete
    }
}
