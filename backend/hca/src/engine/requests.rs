//! Requests of queue pairs, from the send queue to their completion.

use std::sync::Arc;

use wire::Qpn;

use crate::budget::{Budget, FAILURE_NS, REMOVAL_NS, SHARED_TURN};
use crate::engine::completion::Completions;
use crate::engine::scheduler::Clock;
use crate::objects::Objects;
use crate::objects::dynamic::Role;
use crate::objects::ids::{CqIndex, QpIndex, VfId};
use crate::objects::qp::attributes::{QpState, Transport};
use crate::objects::qp::timers::{local_ack_timeout, rnr_time};
use crate::objects::qp::{Qp, Wait};
use crate::objects::reason::{Failure, Reason, Report, Status};
use crate::objects::tags::Step;
use crate::objects::vf::run_queue::{Remains, RunQueue};
use crate::objects::work::{CompletionEntry, Operation, SendWr, Side, WqeError};
use crate::queue_format::QueueFormat;
use crate::storage::discarded::Discarded;
use crate::storage::spares::Spares;
use crate::transport::requester::Finished;

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

/// Requests that are taken and completed, and the completions that they have.
#[derive(Debug)]
pub(crate) struct Requests<F: QueueFormat> {
    pub completions: Completions<F>,
    pub spare_sends: Spares<SendWr>,
    /// Objects to be dropped where nobody waits.
    pub discarded: Discarded,
    /// Is told of each request that fails, where there is somebody.
    pub report: Option<Box<dyn Report>>,
}

impl<F: QueueFormat> Requests<F> {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            completions: Completions::new(clock),
            spare_sends: Spares::default(),
            discarded: Discarded::default(),
            report: None,
        }
    }

    /// Takes the next posted request, or handles a malformed one.
    #[inline(always)]
    pub fn take_request(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
    ) -> Option<Box<SendWr>> {
        let mut wr = self.spare_sends.take(SendWr::with_capacity);
        wr.clear();
        let Objects { qps, vfs, .. } = objects;
        let qp = qps.get_mut(index.0)?;
        let Some(queue) = qp.req.queue.as_mut() else {
            return self.take_step(objects, index, wr);
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
                self.catastrophe(objects, index);
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
                self.malformed(objects, index, wr);
                None
            }
        }
    }

    /// A request that makes no sense. It fails when those before it have ended.
    #[cold]
    pub fn malformed(&mut self, objects: &mut Objects<F>, index: QpIndex, wr: Box<SendWr>) {
        let status = Status::LocalQpOperation;
        match objects.qps.get(index.0) {
            Some(qp) if qp.req.away.is_some() => objects.send_in_frames(index, wr, Some(status)),
            _ => self.finish(objects, index, wr, status, 0),
        }
    }

    pub fn not_ready(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        wr: Box<SendWr>,
        code: u8,
    ) {
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return;
        };
        let retries = objects.vfs[usize::from(qp.core.vf.0)].retries(&qp.core);
        retries.add(|of| &of.rnr_nak_retry_err, 1);
        // It is an answer, if not the one hoped for.
        qp.req.retries_left = qp.core.attr.retry_count;
        match qp.req.rnr_left {
            0 => return self.finish(objects, index, wr, Status::RnrRetryExceeded, 0),
            7 => {}
            _ => qp.req.rnr_left -= 1,
        }
        objects.qps.keep(index, wr);
        self.wait(objects, index, Wait::Rnr, rnr_time(code));
    }

    pub fn wait(&mut self, objects: &mut Objects<F>, index: QpIndex, wait: Wait, nanoseconds: u64) {
        let now = self.completions.scheduler.clock.now();
        let term = (now, now + nanoseconds);
        let scheduler = &mut self.completions.scheduler;
        scheduler.set_wait(objects, index, wait, term);
        self.trim();
    }

    /// Waits for an answer that does not come, as long as it would be waited for.
    #[cold]
    pub fn wait_answer(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        wr: Box<SendWr>,
        wait: Wait,
    ) {
        let code = objects
            .qps
            .get(index.0)
            .map_or(0, |qp| qp.core.attr.timeout);
        objects.qps.keep(index, wr);
        self.wait(objects, index, wait, local_ack_timeout(code));
    }

    /// Ends a request.
    #[inline]
    pub fn finish(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        wr: Box<SendWr>,
        status: Status,
        byte_len: u32,
    ) {
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return;
        };
        qp.req.offset = 0;
        qp.req.reload_retries(&qp.core.attr);
        let ending = Ending::of(index, qp, true);
        self.complete_request(objects, ending, wr, status, byte_len);
    }

    /// The end of a request that went in frames; the `last` one that was under way.
    pub fn conclude(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        wr: Box<SendWr>,
        status: Status,
        byte_len: u32,
        last: bool,
    ) {
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return;
        };
        if last {
            qp.req.offset = 0;
            qp.req.reload_retries(&qp.core.attr);
        }
        let ending = Ending::of(index, qp, last);
        self.complete_request(objects, ending, wr, status, byte_len);
    }

    /// A completion if one is due, and on failure the error state.
    #[inline(always)]
    fn complete_request(
        &mut self,
        objects: &mut Objects<F>,
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
                Some(cq) => self.completions.complete(objects, cq, &entry, held),
                // The queue pair has sent this by itself.
                None if status == Status::Success => self.completions.step_ends(objects, index),
                None => {}
            }
        }
        if status != Status::Success {
            self.report_failure(objects, index, &wr, status);
            wr.reason = Reason::Status;
        }
        self.spare_sends.keep(wr);
        if status != Status::Success {
            self.fail_sender(objects, index);
        } else if drained {
            objects.drained(index);
        }
    }

    /// A request failed: the send queue of an unreliable transport goes to its
    /// error state, any other queue pair as a whole.
    #[cold]
    pub fn fail_sender(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return;
        };
        let send_queue_alone = matches!(
            qp.core.transport,
            Transport::Uc | Transport::Ud | Transport::Smi | Transport::Gsi
        );
        if send_queue_alone && qp.core.state != QpState::Error {
            qp.core.state = QpState::SendQueueError;
            self.flush(objects, index, &mut Budget::of_ns(FAILURE_NS));
        } else {
            self.fail_qp(objects, index);
        }
    }

    /// Keeps no more structures than a steady load needs.
    #[inline]
    pub fn trim_spares(&mut self) {
        if self.spare_sends.overflows() || self.completions.spare_recvs.overflows() {
            self.trim();
        }
    }

    /// Gives back what a burst of work left behind.
    pub fn trim(&mut self) {
        let surplus = (
            self.spare_sends.surplus(),
            self.completions.spare_recvs.surplus(),
        );
        if !surplus.0.is_empty() || !surplus.1.is_empty() {
            self.discard(surplus);
        }
    }

    /// A request has failed.
    #[cold]
    pub fn report_failure(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        wr: &SendWr,
        status: Status,
    ) {
        if let Some(report) = &mut self.report
            && let Some(qp) = objects.qps.get(index.0)
        {
            report.failed(Failure {
                vf: qp.core.vf,
                qpn: qp.core.qpn,
                index: wr.index,
                opcode: wr.opcode,
                status,
                reason: wr.reason,
            });
        }
    }

    /// Takes the next posted request on, if there is one and room for it.
    pub fn take_next(&mut self, objects: &mut Objects<F>, index: QpIndex) -> bool {
        let Objects { qps, vfs, .. } = objects;
        let Some(qp) = qps.get_mut(index.0) else {
            return false;
        };
        let full = !vfs[usize::from(qp.core.vf.0)].has_slots();
        if let Some(away) = &mut qp.req.away {
            away.full = full;
        }
        if full {
            return false;
        }
        let Some(mut wr) = self.take_request(objects, index) else {
            return false;
        };
        match objects.qps.fits_transport(index, &mut wr) {
            Some(fault) => objects.send_in_frames(index, wr, fault),
            // The queue pair's own work is done after the requests before it.
            None => {
                if let Some(qp) = objects.qps.get_mut(index.0) {
                    qp.req.current = Some(wr);
                }
            }
        }
        true
    }

    /// Completes requests that have their answers. Returns whether there were any.
    pub fn finish_requests(&mut self, objects: &mut Objects<F>, index: QpIndex) -> bool {
        let mut any = false;
        while let Some(qp) = objects.qps.get_mut(index.0)
            && matches!(
                qp.core.state,
                QpState::ReadyToSend | QpState::SendQueueDrain
            )
            && let Some(away) = &mut qp.req.away
            && let Some(finished) = away.requester.poll_finished()
        {
            any = true;
            away.full = false;
            let last = away.requester.is_empty() && qp.req.current.is_none();
            let vf = qp.core.vf;
            objects.vf_mut(vf).release_slots(1);
            let Finished {
                wr,
                status,
                byte_len,
            } = finished;
            self.conclude(objects, index, wr, status, byte_len, last);
        }
        any
    }

    /// Forgets what a queue pair has under way.
    pub fn forget_away(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return;
        };
        if let Some(mut away) = qp.req.away.take() {
            let vf = qp.core.vf;
            let timers = &mut objects.vf_mut(vf).run_queue.timers;
            timers.remove(&(away.due, index.0, away.timer));
            self.completions.scheduler.set_alarm(objects, vf);
            let mut requests = 0;
            while let Some(wr) = away.requester.take_unfinished() {
                self.spare_sends.keep(wr);
                requests += 1;
            }
            objects.vf_mut(vf).release_slots(requests);
            self.trim();
        }
    }

    /// Takes the next step of a queue pair without a send queue: it reads the message of a rendezvous, and tells
    /// the sender.
    #[cold]
    pub fn take_step(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        mut wr: Box<SendWr>,
    ) -> Option<Box<SendWr>> {
        let step = objects.with_tags(index, |tagged, list| tagged.step(list));
        let Some(step) = step.flatten() else {
            self.spare_sends.keep(wr);
            return None;
        };
        if let Some(qp) = objects.qps.get_mut(index.0) {
            qp.req.offset = 0;
        }
        match step {
            Step::Read(fetch, memory) => {
                wr.operation = Operation::Read;
                (wr.remote_addr, wr.rkey) = (fetch.addr, fetch.rkey);
                if memory.len > 0 {
                    wr.sges.push(memory);
                }
            }
            Step::Finish(fetch) => {
                wr.operation = Operation::Send;
                wr.signaled = true;
                // Not before the message has come.
                wr.fence = true;
                wr.is_inline = true;
                wr.inline.extend_from_slice(&fetch.finished());
            }
        }
        Some(wr)
    }

    /// A function gets nothing of what others have sent it.
    pub fn forget_held(&mut self, objects: &mut Objects<F>, vf: VfId) {
        if let Some(rest) = &mut objects.vf_mut(vf).quiesced {
            let held = rest.clear();
            self.discard(held);
        }
    }

    /// Lets go of all objects of a function at once, in a time that does not depend on how many there
    /// are.
    pub fn bury(&mut self, objects: &mut Objects<F>, vf: VfId) {
        let state = &mut objects.vfs[usize::from(vf.0)];
        let remains = Remains {
            qps: state.qps.replace(),
            cqs: state.cqs.replace(),
            srqs: state.srqs.replace(),
        };
        let earlier = &mut state.run_queue;
        self.completions.scheduler.forget_alarm(vf, earlier);
        let run_queue = RunQueue {
            queued: earlier.queued,
            rests: earlier.rests,
            remains: std::mem::take(&mut earlier.remains),
            ..RunQueue::default()
        };
        let gone = std::mem::replace(&mut state.run_queue, run_queue);
        state.run_queue.remains.push(remains);
        self.discard(gone);
    }

    /// Keeps something large that is of no use any more until somebody takes it
    /// ([`Engine::take_discarded`](crate::Engine::take_discarded)): to drop it takes time.
    pub fn discard<T: Send + 'static>(&mut self, thing: T) {
        self.discarded.keep(Box::new(thing));
    }

    /// Takes away objects that a function had before it was reset, a bounded number of them; returns whether some
    /// are left.
    pub fn clear_away(&mut self, objects: &mut Objects<F>, vf: VfId) -> bool {
        let mut left = SHARED_TURN;
        while left.is_left()
            && let Some(remains) = objects.vf_mut(vf).run_queue.remains.last_mut()
        {
            left.take(REMOVAL_NS);
            if let Some(slot) = remains.qps.pop() {
                if let Some(qp) = slot.and_then(|index| objects.qps.remove(index.0)) {
                    if let Role::Target(target) = &qp.resp.role {
                        for context in target.contexts() {
                            left.take(REMOVAL_NS);
                            if let Some(context) = objects.qps.remove(context.0) {
                                self.discarded.keep(context);
                            }
                        }
                    }
                    self.discarded.keep(qp);
                }
            } else if let Some(slot) = remains.cqs.pop() {
                if let Some(cq) = slot.and_then(|index| objects.cqs.remove(index.0)) {
                    self.discarded.keep(cq);
                }
            } else if let Some(slot) = remains.srqs.pop() {
                if let Some(srq) = slot.and_then(|index| objects.srqs.remove(index.0)) {
                    self.discarded.keep(srq);
                }
            } else {
                objects.vf_mut(vf).run_queue.remains.pop();
            }
        }
        !objects.vf(vf).run_queue.remains.is_empty()
    }
}
