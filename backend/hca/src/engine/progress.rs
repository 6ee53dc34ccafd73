//! Making progress: turns of queue pairs, attempts at requests, retries and
//! timers. The module `run_queue` says whose turn it is.

use wire::Qpn;

use crate::engine::Engine;
use crate::engine::completion::Burst;
use crate::engine::cost::{FAILURE_COST, REQUEST_COST};
use crate::objects::Objects;
use crate::objects::ids::{CqIndex, QpIndex};
use crate::objects::qp::attributes::{QpState, Transport};
use crate::objects::qp::timers::{local_ack_timeout, rnr_time};
use crate::objects::qp::{Qp, Wait};
use crate::objects::reason::{Reason, Status};
use crate::objects::work::{CompletionEntry, SendWr, Side, WqeError};
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

/// Properties of a queue pair that the end of its request depends on.
struct Ending {
    index: QpIndex,
    qpn: Qpn,
    user_index: Option<u32>,
    cq: Option<CqIndex>,
    /// It was the last one before a drain.
    drained: bool,
}

impl Ending {
    #[inline]
    fn of<F: QueueFormat>(index: QpIndex, qp: &Qp<F>, last: bool) -> Self {
        Self {
            index,
            qpn: qp.core.qpn,
            user_index: qp.core.user_index,
            cq: qp.req.cq,
            drained: last && qp.core.state == QpState::SendQueueDrain,
        }
    }
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
        self.find_other_end(index);
        if matches!(wait, Wait::Ack | Wait::Nak)
            && !self.objects.other_end_rests(index)
            && let Some(left) = self
                .completions
                .scheduler
                .time_left(&self.objects, index, since)
        {
            return self.wait(index, wait, left);
        }
        let excused = self.objects.other_end_rests(index);
        if !excused && self.objects.qps.is_exhausted(index) && self.migrate(index) {
            if let Some(qp) = self.objects.qps.get_mut(index.0) {
                qp.req.wait = Wait::None;
            }
            return self
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
            Some((Some(wr), status)) => self.finish(index, wr, status, 0),
            Some((None, _)) => {}
            None => self
                .completions
                .scheduler
                .make_ready(&mut self.objects, index),
        }
    }
}

impl<F: QueueFormat> Engine<F> {
    fn wait(&mut self, index: QpIndex, wait: Wait, nanoseconds: u64) {
        let now = self.completions.scheduler.clock.now();
        let term = (now, now + nanoseconds);
        self.completions
            .scheduler
            .set_wait(&mut self.objects, index, wait, term);
        self.trim();
    }

    /// Keeps no more structures than a steady load needs.
    #[inline]
    fn trim_spares(&mut self) {
        if self.spare_sends.overflows() || self.completions.spare_recvs.overflows() {
            self.trim();
        }
    }

    /// One turn of a queue pair's requester, until its work or the budget is
    /// used up.
    #[inline]
    pub(crate) fn turn(&mut self, index: QpIndex, budget: &mut i64) {
        self.completions.burst = Burst::Begun;
        self.take_turn(index, budget);
        self.completions.burst = Burst::None;
        if !self.completions.unwritten.is_empty() {
            self.completions.write_out(&mut self.objects);
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
                    self.flush(index, budget);
                    return;
                }
                _ => return,
            }
            if qp.req.wait != Wait::None {
                return;
            }
            let wr = match qp.req.current.take() {
                Some(wr) => wr,
                None => match self.take_request(index) {
                    Some(wr) => wr,
                    None => return self.trim_spares(),
                },
            };
            let goes_on = self.attempt(index, wr, budget);
            *budget -= REQUEST_COST;
            if !goes_on {
                return;
            }
            if !self.objects.qps.send_announced(index) {
                return self.trim_spares();
            }
            if self.completions.scheduler.had_others() && self.completions.scheduler.takes_long() {
                *budget = 0;
            }
        }
        self.completions
            .scheduler
            .make_ready(&mut self.objects, index);
    }

    /// Takes the next posted request, or handles a malformed one.
    #[inline(always)]
    pub(crate) fn take_request(&mut self, index: QpIndex) -> Option<Box<SendWr>> {
        let mut wr = self.spare_sends.take(SendWr::with_capacity);
        wr.clear();
        let Objects { qps, vfs, .. } = &mut self.objects;
        let qp = qps.get_mut(index.0)?;
        let Some(queue) = qp.req.queue.as_mut() else {
            return self.take_step(index, wr);
        };
        match F::take_send(&vfs[usize::from(qp.core.vf.0)].dma, queue, &mut wr) {
            Ok(true) => {
                qp.req.offset = 0;
                Some(wr)
            }
            Ok(false) => {
                self.spare_sends.keep(wr);
                None
            }
            Err(WqeError::Unmapped) => {
                self.spare_sends.keep(wr);
                self.catastrophe(index);
                None
            }
            Err(WqeError::Malformed {
                index: at,
                opcode,
                reason,
            }) => {
                wr.index = at;
                wr.opcode = opcode;
                wr.reason = reason;
                self.malformed(index, wr);
                None
            }
        }
    }

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
                self.finish(index, wr, Status::Success, len);
                return true;
            }
            Outcome::Failed(status) => {
                self.finish(index, wr, status, 0);
                return false;
            }
            Outcome::Partly => {
                if let Some(qp) = self.objects.qps.get_mut(index.0) {
                    qp.req.reload_retries(&qp.core.attr);
                }
                self.objects.qps.keep(index, wr);
                self.completions
                    .scheduler
                    .make_ready(&mut self.objects, index);
            }
            Outcome::Departs => {
                self.objects.send_in_frames(index, wr, None);
                self.completions
                    .scheduler
                    .make_ready(&mut self.objects, index);
            }
            Outcome::Held(until) => {
                self.objects.qps.keep(index, wr);
                self.wait_until(index, until, true);
            }
            Outcome::Crowded => {
                self.objects.qps.keep(index, wr);
                // Whether it has sent others before, nobody knows here.
                self.exits.crowded.push(index, true);
            }
            Outcome::OtherEndQuiesced => {
                if self.objects.other_end_moves(index) {
                    // Nobody tells when there is a path again.
                    self.wait_answer(index, wr, Wait::Quiesced);
                } else {
                    self.objects.qps.keep(index, wr);
                    if let Some(qp) = self.objects.qps.get_mut(index.0) {
                        qp.req.wait = Wait::Quiesced;
                    }
                }
                self.wait_for_rest(index);
            }
            Outcome::Absent => self.requester_waits(index, wr),
            Outcome::NotReady(code) => self.not_ready(index, wr, code),
            Outcome::Unanswered => self.wait_answer(index, wr, Wait::Ack),
            Outcome::OutOfSequence => self.wait_answer(index, wr, Wait::Nak),
        }
        false
    }

    /// Waits for an answer that does not come, as long as it would be waited for.
    #[cold]
    fn wait_answer(&mut self, index: QpIndex, wr: Box<SendWr>, wait: Wait) {
        let code = self
            .objects
            .qps
            .get(index.0)
            .map_or(0, |qp| qp.core.attr.timeout);
        self.objects.qps.keep(index, wr);
        self.wait(index, wait, local_ack_timeout(code));
    }

    fn not_ready(&mut self, index: QpIndex, wr: Box<SendWr>, code: u8) {
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        let retries = self.objects.vfs[usize::from(qp.core.vf.0)].retries(&qp.core);
        retries.add(|of| &of.rnr_nak_retry_err, 1);
        // It is an answer, if not the one hoped for.
        qp.req.retries_left = qp.core.attr.retry_count;
        match qp.req.rnr_left {
            0 => return self.finish(index, wr, Status::RnrRetryExceeded, 0),
            7 => {}
            _ => qp.req.rnr_left -= 1,
        }
        self.objects.qps.keep(index, wr);
        self.wait(index, Wait::Rnr, rnr_time(code));
    }

    /// A request that makes no sense. It fails when those before it have ended.
    #[cold]
    fn malformed(&mut self, index: QpIndex, wr: Box<SendWr>) {
        let status = Status::LocalQpOperation;
        match self.objects.qps.get(index.0) {
            Some(qp) if qp.req.away.is_some() => {
                self.objects.send_in_frames(index, wr, Some(status))
            }
            _ => self.finish(index, wr, status, 0),
        }
    }

    /// Ends a request.
    #[inline]
    pub(crate) fn finish(
        &mut self,
        index: QpIndex,
        wr: Box<SendWr>,
        status: Status,
        byte_len: u32,
    ) {
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        qp.req.offset = 0;
        qp.req.reload_retries(&qp.core.attr);
        let ending = Ending::of(index, qp, true);
        self.complete_request(ending, wr, status, byte_len);
    }

    /// The end of a request that went in frames; the `last` one that was under way.
    pub(crate) fn conclude(
        &mut self,
        index: QpIndex,
        wr: Box<SendWr>,
        status: Status,
        byte_len: u32,
        last: bool,
    ) {
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        if last {
            qp.req.offset = 0;
            qp.req.reload_retries(&qp.core.attr);
        }
        let ending = Ending::of(index, qp, last);
        self.complete_request(ending, wr, status, byte_len);
    }

    /// A completion if one is due, and on failure the error state.
    #[inline(always)]
    fn complete_request(
        &mut self,
        ending: Ending,
        mut wr: Box<SendWr>,
        status: Status,
        byte_len: u32,
    ) {
        let Ending {
            index,
            qpn,
            user_index,
            cq,
            drained,
        } = ending;
        if wr.signaled || status != Status::Success {
            let entry = CompletionEntry {
                qpn,
                user_index,
                index: wr.index,
                status,
                reason: wr.reason,
                byte_len,
                solicited: status != Status::Success,
                time: self.completions.completion_time(byte_len),
                side: Side::Send { opcode: wr.opcode },
            };
            let held = match status {
                Status::Success => wr.held(),
                _ => &[],
            };
            match cq {
                Some(cq) => self
                    .completions
                    .complete(&mut self.objects, cq, &entry, held),
                // The queue pair has sent this by itself.
                None if status == Status::Success => {
                    self.completions.step_ends(&mut self.objects, index)
                }
                None => {}
            }
        }
        if status != Status::Success {
            self.report_failure(index, &wr, status);
            wr.reason = Reason::Status;
        }
        self.spare_sends.keep(wr);
        if status != Status::Success {
            self.fail_sender(index);
        } else if drained {
            self.objects.drained(index);
        }
    }

    /// A request failed: the send queue of an unreliable transport goes to its
    /// error state, any other queue pair as a whole.
    #[cold]
    fn fail_sender(&mut self, index: QpIndex) {
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        let send_queue_alone = matches!(
            qp.core.transport,
            Transport::Uc | Transport::Ud | Transport::Smi | Transport::Gsi
        );
        if send_queue_alone && qp.core.state != QpState::Error {
            qp.core.state = QpState::SendQueueError;
            self.flush(index, &mut { FAILURE_COST });
        } else {
            self.fail_qp(index);
        }
    }
}
