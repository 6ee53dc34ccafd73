//! Making progress: turns of queue pairs, attempts at requests, retries and
//! timers. The module `run_queue` says whose turn it is.

use crate::engine::Engine;
use crate::engine::completion::Burst;
use crate::engine::cost::REQUEST_COST;
use crate::objects::ids::QpIndex;
use crate::objects::qp::Wait;
use crate::objects::qp::attributes::QpState;
use crate::objects::reason::{Reason, Status};
use crate::objects::work::SendWr;
use crate::queue_format::QueueFormat;

/// Outcome of one attempt at a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Complete; this many bytes.
    Done(u32),
    /// The turn's bytes are used up; more to move.
    Partly,
    /// The responder has no receive request; it says to wait by this timer code.
    NotReady(u8),
    /// Nobody answers.
    Unanswered,
    /// The function at the other end is quiesced.
    OtherEndQuiesced,
    /// The responder expects another packet.
    OutOfSequence,
    /// Failed.
    Failed(Status),
    /// It goes in frames.
    Departs,
    /// There is no room on the way.
    Crowded,
    /// It has met congestion, and waits until then.
    Held(u64),
    /// Its own memory is not there.
    Absent,
}

/// A request fails for this reason.
#[cold]
pub(crate) fn failed(wr: &mut SendWr, status: Status, reason: Reason) -> Outcome {
    wr.reason = reason;
    Outcome::Failed(status)
}

impl<F: QueueFormat> Engine<F> {
    pub(crate) fn timer_fired(&mut self, index: QpIndex, id: u64) {
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        if qp.req.timer != id {
            return self.away_timeout(index, id);
        }
        let (wait, since) = (qp.req.wait, qp.req.since);
        self.network.find_other_end(&mut self.objects, index);
        if matches!(wait, Wait::Ack | Wait::Nak)
            && !self.objects.other_end_rests(index)
            && let Some(left) =
                self.requests
                    .completions
                    .scheduler
                    .time_left(&self.objects, index, since)
        {
            return self.requests.wait(&mut self.objects, index, wait, left);
        }
        let excused = self.objects.other_end_rests(index);
        if !excused
            && self.objects.qps.is_exhausted(index)
            && self.network.migrate(&mut self.objects, index)
        {
            if let Some(qp) = self.objects.qps.get_mut(index.0) {
                qp.req.wait = Wait::None;
            }
            return self
                .requests
                .completions
                .scheduler
                .make_ready(&mut self.objects, index);
        }
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        let failed = match qp.req.wait {
            Wait::None => return,
            Wait::Rnr | Wait::Quiesced | Wait::Page => None,
            Wait::Ack | Wait::Nak if excused => None,
            // Without a timeout there is no retry to count (9.7.6.1.3).
            Wait::Ack if qp.core.attr.timeout == 0 => None,
            Wait::Ack | Wait::Nak if qp.req.retries_left == 0 => Some(Status::RetryExceeded),
            Wait::Ack | Wait::Nak => {
                qp.req.retries_left -= 1;
                None
            }
        };
        let again = failed.is_none() && qp.core.attr.timeout != 0 && !excused;
        if again && matches!(qp.req.wait, Wait::Ack | Wait::Nak) {
            let retries = self.objects.vfs[usize::from(qp.core.vf.0)].retries(&qp.core);
            retries.add(|of| &of.local_ack_timeout_err, 1);
        }
        qp.req.wait = Wait::None;
        let failed = failed.map(|status| (qp.req.current.take(), status));
        match failed {
            Some((Some(wr), status)) => {
                self.requests
                    .finish(&mut self.objects, index, wr, status, 0)
            }
            Some((None, _)) => {}
            None => self
                .requests
                .completions
                .scheduler
                .make_ready(&mut self.objects, index),
        }
    }
}

impl<F: QueueFormat> Engine<F> {
    /// One turn of a queue pair's requester, until its work or the budget is
    /// used up.
    #[inline]
    pub(crate) fn turn(&mut self, index: QpIndex, budget: &mut i64) {
        self.requests.completions.burst = Burst::Begun;
        self.take_turn(index, budget);
        self.requests.completions.burst = Burst::None;
        if !self.requests.completions.unwritten.is_empty() {
            self.requests.completions.write_out(&mut self.objects);
        }
    }

    fn take_turn(&mut self, index: QpIndex, budget: &mut i64) {
        while *budget > 0 {
            let Some(qp) = self.objects.qps.get_mut(index.0) else {
                return;
            };
            if qp.req.away.is_some() {
                return self.away_turn(index, budget);
            }
            match qp.core.state {
                QpState::ReadyToSend => {}
                QpState::SendQueueDrain if qp.req.current.is_some() => {}
                QpState::Error | QpState::SendQueueError => {
                    self.requests.flush(&mut self.objects, index, budget);
                    return;
                }
                _ => return,
            }
            if qp.req.wait != Wait::None {
                return;
            }
            let wr = match qp.req.current.take() {
                Some(wr) => wr,
                None => match self.requests.take_request(&mut self.objects, index) {
                    Some(wr) => wr,
                    None => return self.requests.trim_spares(),
                },
            };
            let goes_on = self.attempt(index, wr, budget);
            *budget -= REQUEST_COST;
            if !goes_on {
                return;
            }
            if !self.objects.qps.send_announced(index) {
                return self.requests.trim_spares();
            }
            if self.requests.completions.scheduler.had_others()
                && self.requests.completions.scheduler.takes_long()
            {
                *budget = 0;
            }
        }
        self.requests
            .completions
            .scheduler
            .make_ready(&mut self.objects, index);
    }
}

impl<F: QueueFormat> Engine<F> {
    /// Attempts a request; whether the queue pair may go on with the next.
    #[inline]
    fn attempt(&mut self, index: QpIndex, mut wr: Box<SendWr>, budget: &mut i64) -> bool {
        let Some(qp) = self.objects.qps.get(index.0) else {
            return false;
        };
        let transport = qp.core.transport;
        let outcome = if transport.is_datagram() {
            self.send_datagram(index, &mut wr, budget)
        } else {
            self.send_connected(index, &mut wr, budget)
        };
        match outcome {
            Outcome::Done(len) => {
                self.requests
                    .finish(&mut self.objects, index, wr, Status::Success, len);
                return true;
            }
            Outcome::Failed(status) => {
                self.requests
                    .finish(&mut self.objects, index, wr, status, 0);
                return false;
            }
            Outcome::Partly => {
                if let Some(qp) = self.objects.qps.get_mut(index.0) {
                    qp.req.reload_retries(&qp.core.attr);
                }
                self.objects.qps.keep(index, wr);
                self.requests
                    .completions
                    .scheduler
                    .make_ready(&mut self.objects, index);
            }
            Outcome::Departs => {
                self.objects.send_in_frames(index, wr, None);
                self.requests
                    .completions
                    .scheduler
                    .make_ready(&mut self.objects, index);
            }
            Outcome::Held(until) => {
                self.objects.qps.keep(index, wr);
                self.network
                    .wait_until(&mut self.objects, index, until, true);
            }
            Outcome::Crowded => {
                self.objects.qps.keep(index, wr);
                // Whether it has sent others before, nobody knows here.
                self.network.exits.crowded.push(index, true);
            }
            Outcome::OtherEndQuiesced => {
                if self.objects.other_end_moves(index) {
                    // Nobody tells when there is a path again.
                    self.requests
                        .wait_answer(&mut self.objects, index, wr, Wait::Quiesced);
                } else {
                    self.objects.qps.keep(index, wr);
                    if let Some(qp) = self.objects.qps.get_mut(index.0) {
                        qp.req.wait = Wait::Quiesced;
                    }
                }
                self.network.wait_for_rest(&self.objects, index);
            }
            Outcome::Absent => self.requests.requester_waits(&mut self.objects, index, wr),
            Outcome::NotReady(code) => self.requests.not_ready(&mut self.objects, index, wr, code),
            Outcome::Unanswered => {
                self.requests
                    .wait_answer(&mut self.objects, index, wr, Wait::Ack)
            }
            Outcome::OutOfSequence => {
                self.requests
                    .wait_answer(&mut self.objects, index, wr, Wait::Nak)
            }
        }
        false
    }
}
