//! Queue pairs and completion queues in error.

use std::sync::Arc;

use wire::Psn;

use crate::budget::{Budget, FAILURE_NS, LOOK_NS, REQUEST_NS, SHARED_TURN};
use crate::engine::completion::Completions;
use crate::engine::requests::Requests;
use crate::engine::scheduler::Scheduler;
use crate::memory::lending::Lending;
use crate::objects::Objects;
use crate::objects::counters::set::CounterSet;
use crate::objects::ids::{CqIndex, QpIndex, VfId};
use crate::objects::qp::attributes::{Inbound, QpState};
use crate::objects::qp::{Found, Qp, RecvQueue, Wait};
use crate::objects::reason::{Reason, Status};
use crate::objects::vf::run_queue::{Errored, ErroredList};
use crate::objects::work::{CompletionEntry, RecvKind, RecvWr, SendWr, Side, WqeError};
use crate::queue_format::{CqError, Event, QueueFormat};
use crate::transport::arrived::Line;
use crate::transport::responder::receiving::Receiving;

/// Time until a queue pair in error is looked at again after a flush, in nanoseconds.
pub(crate) const ERROR_RECHECK: u64 = 1_000_000;
/// Longest time between two such looks, in nanoseconds.
pub(crate) const LONGEST_ERROR_RECHECK: u64 = 100_000_000;

impl<F: QueueFormat> Requests<F> {
    /// A work queue cannot be read: the queue pair is unusable.
    #[cold]
    pub fn catastrophe(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return;
        };
        if qp.core.state == QpState::Error {
            return;
        }
        let (vf, qpn) = (qp.core.vf, qp.core.qpn);
        self.fail_qp(objects, index);
        objects.notify(vf, Event::QpCatastrophic(qpn));
    }

    /// Moves a queue pair to the error state and flushes it.
    #[cold]
    pub fn fail_qp(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        self.completions.disconnect_all(objects, index);
        if self.completions.enter_error(objects, index) {
            self.flush(objects, index, &mut Budget::of_ns(FAILURE_NS));
            objects.last_request_reached(index);
        }
    }

    /// Every user of a failed completion queue fails with it. A completion queue is used by its own
    /// function alone, of which some objects are looked at in each turn.
    pub fn search_users(&mut self, objects: &mut Objects<F>, vf: VfId, left: &mut Budget) {
        while left.is_left() {
            let state = &mut objects.vfs[usize::from(vf.0)];
            if state.run_queue.search_left == 0 {
                return;
            }
            left.take(LOOK_NS);
            let (qps, srqs) = (state.qps.slots(), state.srqs.slots());
            let run_queue = &mut state.run_queue;
            run_queue.search_left -= 1;
            if run_queue.search_at >= qps + srqs {
                run_queue.search_at = 0;
            }
            let at = run_queue.search_at;
            run_queue.search_at += 1;
            if let Some(&index) = state.qps.in_slot(at) {
                if objects.has_lost_cq(index) {
                    left.take(FAILURE_NS);
                    self.catastrophe(objects, index);
                }
            } else if let Some(&index) = at.checked_sub(qps).and_then(|at| state.srqs.in_slot(at))
                && let Some(srq) = objects.srqs.get_mut(index.0)
                && let Some(cq) = srq.cq()
                && !srq.failed
                && objects.cqs.get(cq.0).is_some_and(|cq| cq.failed)
            {
                srq.failed = true;
                let srqn = srq.srqn;
                objects.notify(vf, Event::SrqCatastrophic(srqn));
            }
        }
    }

    /// Looks for requests that were posted to queue pairs of a function in error: receive requests
    /// come without a doorbell. A queue pair that gets none is looked at less and less often, and
    /// where there are many, a part of them at a time.
    pub fn look_at_errored(
        &mut self,
        objects: &mut Objects<F>,
        vf: VfId,
        now: u64,
        left: &mut Budget,
    ) {
        // Others of the function's work are not to wait for this.
        let most = SHARED_TURN.min(*left);
        let mut share = most;
        let errored = &mut objects.vf_mut(vf).run_queue.errored;
        if errored.left == 0 {
            (errored.left, errored.next) = (errored.list.len(), u64::MAX);
        }
        while share.is_left() {
            let errored = &mut objects.vf_mut(vf).run_queue.errored;
            if errored.at >= errored.list.len() {
                errored.at = 0;
            }
            let at = errored.at;
            let Some(&Errored { qp, due, pause }) = errored.list.get(at) else {
                break;
            };
            if errored.left == 0 {
                break;
            }
            errored.left -= 1;
            errored.at += 1;
            share.take(LOOK_NS);
            let (due, pause) = if due > now {
                (due, pause)
            } else if self.flush(objects, qp, &mut share) {
                (now + ERROR_RECHECK, ERROR_RECHECK)
            } else {
                let pause = (pause * 2).min(LONGEST_ERROR_RECHECK);
                (now + pause, pause)
            };
            let errored = &mut objects.vf_mut(vf).run_queue.errored;
            if let Some(entry) = errored.list.get_mut(at) {
                *entry = Errored { qp, due, pause };
            }
            errored.next = errored.next.min(due);
        }
        left.charge(most, share);
        let errored = &mut objects.vf_mut(vf).run_queue.errored;
        errored.due = if errored.left > 0 {
            now + ERROR_RECHECK
        } else {
            errored.next
        };
    }

    /// Flushes what is posted to a queue pair in error, as far as the budget
    /// goes; the rest on a later turn. Whether there was any.
    #[cold]
    pub fn flush(&mut self, objects: &mut Objects<F>, index: QpIndex, budget: &mut Budget) -> bool {
        let mut any = false;
        while budget.is_left() {
            let Some(qp) = objects.qps.get_mut(index.0) else {
                return any;
            };
            if !matches!(qp.core.state, QpState::Error | QpState::SendQueueError) {
                return any;
            }
            let flush_recv = qp.core.state == QpState::Error;
            let flushed = self.flush_send(objects, index)
                || (flush_recv && self.completions.flush_recv(objects, index));
            if !flushed {
                return any;
            }
            budget.take(REQUEST_NS);
            any = true;
        }
        self.completions.scheduler.make_ready(objects, index);
        any
    }

    pub fn flush_send(&mut self, objects: &mut Objects<F>, index: QpIndex) -> bool {
        let wr = match self.take_unfinished(objects, index) {
            Some(wr) => wr,
            None => {
                let mut wr = self.spare_sends.take(SendWr::with_capacity);
                wr.clear();
                let Objects { qps, vfs, .. } = objects;
                let Some(qp) = qps.get_mut(index.0) else {
                    return false;
                };
                let taken = match qp.req.queue.as_mut() {
                    Some(queue) => {
                        F::take_send(&vfs[usize::from(qp.core.vf.0)].dma, queue, &mut wr)
                    }
                    None => Ok(false),
                };
                match taken {
                    Ok(true) => {}
                    Err(WqeError::Malformed { index, opcode, .. }) => {
                        wr.index = index;
                        wr.opcode = opcode;
                    }
                    Ok(false) | Err(WqeError::Unmapped) => {
                        self.spare_sends.keep(wr);
                        return false;
                    }
                }
                wr
            }
        };
        let time = self.completions.completion_time(0);
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return false;
        };
        let entry = CompletionEntry {
            qpn: qp.core.qpn,
            user_index: qp.core.user_index,
            index: wr.index,
            status: Status::Flushed,
            reason: Reason::Status,
            byte_len: 0,
            solicited: true,
            time,
            side: Side::Send { opcode: wr.opcode },
        };
        let cq = qp.req.cq;
        self.spare_sends.keep(wr);
        if let Some(cq) = cq {
            self.completions.complete(objects, cq, &entry, &[]);
        }
        true
    }

    /// Takes the first request that a queue pair has not completed, to flush it.
    pub fn take_unfinished(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
    ) -> Option<Box<SendWr>> {
        let qp = objects.qps.get_mut(index.0)?;
        let unfinished = match &mut qp.req.away {
            Some(away) => away.requester.take_unfinished(),
            None => return qp.req.current.take(),
        };
        let vf = qp.core.vf;
        match unfinished {
            Some(wr) => {
                objects.vf_mut(vf).release_slots(1);
                Some(wr)
            }
            None => {
                self.forget_away(objects, index);
                objects.qps.get_mut(index.0)?.req.current.take()
            }
        }
    }

    /// Back to Reset: nothing posted, nothing in progress, no completions.
    pub fn empty_qp(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        self.forget_away(objects, index);
        self.completions.scheduler.end_wait(objects, index);
        self.completions.scheduler.forget_errored(objects, index);
        objects.release_tags(index);
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return;
        };
        qp.core.state = QpState::Reset;
        qp.core.attr = crate::objects::qp::attributes::QpAttr::default();
        let vf = &mut objects.vfs[usize::from(qp.core.vf.0)];
        let none = CounterSet {
            number: 0,
            counters: Arc::clone(&vf.sets.none),
        };
        std::mem::replace(&mut qp.core.set, none).release(&mut vf.memory);
        qp.req.offset = 0;
        qp.req.psn = Psn::default();
        qp.req.line = Line::default();
        qp.req.far.forget();
        qp.req.found = Found::default();
        qp.resp.psn = Psn::default();
        qp.resp.msn = 0;
        qp.resp.received = 0;
        qp.resp.established = false;
        qp.resp.receiving = Receiving::default();
        qp.resp.lending = Lending::default();
        let recv = if let RecvQueue::Own(queue) = &mut qp.resp.queue {
            Some(queue)
        } else {
            None
        };
        F::reset_queues(qp.req.queue.as_mut(), recv);
        if let Some(wr) = qp.req.current.take() {
            self.spare_sends.keep(wr);
        }
        if let Some(inbound) = qp.resp.inbound.take() {
            self.completions.spare_recvs.keep(inbound.wr);
        }
    }
}

impl<F: QueueFormat> Completions<F> {
    /// Moves a queue pair to the error state, to be flushed later. Whether it
    /// was not there already.
    #[cold]
    pub fn enter_error(&mut self, objects: &mut Objects<F>, index: QpIndex) -> bool {
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return false;
        };
        let earlier = std::mem::replace(&mut qp.core.state, QpState::Error);
        qp.resp.lending = Lending::default();
        if let Some(away) = &mut qp.req.away {
            away.requester.revoke();
        }
        let waited = !matches!(qp.req.wait, Wait::None | Wait::Page);
        self.scheduler.forget_faults(objects, index);
        objects.qps.forget_as_peer(index);
        self.cancel_tags(objects, index);
        if waited {
            self.scheduler.end_wait(objects, index);
        }
        if earlier == QpState::Error {
            return false;
        }
        let due = self.scheduler.clock.now() + ERROR_RECHECK;
        let Objects { qps, vfs, .. } = objects;
        if let Some(Qp { core, .. }) = qps.get_mut(index.0) {
            let vf = core.vf;
            let errored = &mut vfs[usize::from(vf.0)].run_queue.errored;
            core.errored_at = errored.list.len();
            errored.list.push(Errored {
                qp: index,
                due,
                pause: ERROR_RECHECK,
            });
            errored.next = errored.next.min(due);
            errored.due = errored.due.min(due);
            self.scheduler.set_alarm(objects, vf);
        }
        true
    }

    pub fn flush_recv(&mut self, objects: &mut Objects<F>, index: QpIndex) -> bool {
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return false;
        };
        let inbound = match qp.resp.inbound.take() {
            Some(inbound) => inbound,
            None => {
                let mut wr = self.spare_recvs.take(RecvWr::with_capacity);
                wr.clear();
                let Objects { qps, vfs, .. } = objects;
                let Some(qp) = qps.get_mut(index.0) else {
                    return false;
                };
                let taken = match &mut qp.resp.queue {
                    RecvQueue::Own(queue) => {
                        F::take_recv(&vfs[usize::from(qp.core.vf.0)].dma, queue, &mut wr)
                    }
                    _ => Ok(false),
                };
                match taken {
                    Ok(true) => {}
                    Err(WqeError::Malformed { index, .. }) => wr.index = index,
                    Ok(false) | Err(WqeError::Unmapped) => {
                        self.spare_recvs.keep(wr);
                        return false;
                    }
                }
                let (srqn, pd) = (None, qp.core.pd);
                Inbound { wr, srqn, pd }
            }
        };
        let received = (RecvKind::Send, 0, true);
        self.complete_recv(objects, index, inbound, Status::Flushed, 0, received);
        true
    }
}

impl<F: QueueFormat> Scheduler<F> {
    #[cold]
    pub fn cq_failed(&mut self, objects: &mut Objects<F>, cq: CqIndex, error: CqError) {
        let Some(state) = objects.cqs.get_mut(cq.0) else {
            return;
        };
        if state.failed {
            return;
        }
        state.failed = true;
        let (vf, cqn) = (state.vf, state.cqn);
        let state = &mut objects.vfs[usize::from(vf.0)];
        state.run_queue.search_left = state.qps.slots() + state.srqs.slots();
        self.queue(objects, vf);
        objects.notify(vf, Event::CqError { cqn, error });
    }

    /// A queue pair is no longer in error, or no longer there.
    pub fn forget_errored(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        let Objects { qps, vfs, .. } = objects;
        let Some(Qp { core, .. }) = qps.get(index.0) else {
            return;
        };
        let (vf, at) = (core.vf, core.errored_at);
        let errored = &mut vfs[usize::from(vf.0)].run_queue.errored;
        if core.state != QpState::Error || errored.list.get(at).is_none_or(|it| it.qp != index) {
            return;
        }
        errored.list.swap_remove(at);
        if let Some(moved) = errored.list.get(at)
            && let Some(Qp { core, .. }) = qps.get_mut(moved.qp.0)
        {
            core.errored_at = at;
        }
        if errored.list.is_empty() {
            *errored = ErroredList::default();
            self.set_alarm(objects, vf);
        }
    }
}
