//! Completions, and what happens to a queue pair or a completion queue in error.

use std::sync::Arc;

use wire::Psn;

use crate::engine::Engine;
use crate::engine::cost::{FAILURE_COST, LOOK_COST, REQUEST_COST, SHARED_TURN};
use crate::engine::scheduler::{Clock, Scheduler};
use crate::memory::lending::Lending;
use crate::objects::Objects;
use crate::objects::counters::set::CounterSet;
use crate::objects::cq::HeldEvents;
use crate::objects::ids::{CqIndex, QpIndex, VfId};
use crate::objects::qp::attributes::{Inbound, QpState};
use crate::objects::qp::{Found, Qp, RecvQueue, Wait};
use crate::objects::reason::{Reason, Status};
use crate::objects::vf::run_queue::{Errored, ErroredList};
use crate::objects::work::{CompletionEntry, RecvKind, RecvWr, SendWr, Side, WqeError};
use crate::queue_format::{Attention, CqError, Event, QueueFormat};
use crate::storage::spares::Spares;
use crate::transport::arrived::Line;
use crate::transport::responder::receiving::Receiving;

/// Time until a queue pair in error is looked at again after a flush, in nanoseconds.
pub(crate) const ERROR_RECHECK: u64 = 1_000_000;
/// Longest time between two such looks, in nanoseconds.
pub(crate) const LONGEST_ERROR_RECHECK: u64 = 100_000_000;

/// Time until the event of a quiesced function is looked at again, in nanoseconds.
const QUIET_RECHECK: u64 = 1_000_000;

/// Events that are raised for their time before others get a turn.
const EXPIRY_BATCH: usize = 64;

/// Bytes of a message that takes longer than a look at the clock.
const LONG_MESSAGE: u32 = 4096;

/// Completion queues in which entries wait at a time. Those of others are written at once.
const MAX_UNWRITTEN: usize = 16;

/// The time that completions have which belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Burst {
    /// There is no turn in hand: each has its own.
    None,
    /// A turn has begun, and nothing has completed yet.
    Begun,
    /// The time of those of this turn.
    At(u64),
}

/// Completions of a turn, and events that wait for more of them.
#[derive(Debug)]
pub(crate) struct Completions {
    pub scheduler: Scheduler,
    pub held_events: HeldEvents,
    pub spare_recvs: Spares<RecvWr>,
    /// The burst of the turn in hand.
    pub burst: Burst,
    /// Completion queues in which entries of this turn wait to be written.
    pub unwritten: Vec<CqIndex>,
}

impl Completions {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            scheduler: Scheduler::new(clock),
            held_events: HeldEvents::default(),
            spare_recvs: Spares::default(),
            burst: Burst::None,
            unwritten: Vec::with_capacity(MAX_UNWRITTEN),
        }
    }

    /// The time of a completion now, of `byte_len` bytes. In a turn the clock is read with the first one and with
    /// long messages, for a look costs as much as a short message does. Requests that complete in a turn were
    /// posted before its first completion, so that none has a time from before its request.
    #[inline]
    pub fn completion_time(&mut self, byte_len: u32) -> u64 {
        match self.burst {
            Burst::At(time) if byte_len < LONG_MESSAGE => time,
            burst => {
                let now = self.scheduler.clock.now();
                if burst != Burst::None {
                    self.burst = Burst::At(now);
                }
                now
            }
        }
    }

    /// Writes a completion entry, which holds the message `held`, if there are any bytes.
    #[inline]
    pub fn complete<F: QueueFormat>(
        &mut self,
        objects: &mut Objects<F>,
        cq: CqIndex,
        entry: &CompletionEntry,
        held: &[u8],
    ) {
        if entry.status != Status::Success {
            objects.ended_badly(cq, entry);
        }
        let Some(state) = objects.cqs.get_mut(cq.0) else {
            return;
        };
        if state.failed {
            return;
        }
        let vf = &mut objects.vfs[usize::from(state.vf.0)];
        let more = self.burst != Burst::None && self.unwritten.len() < MAX_UNWRITTEN;
        match F::complete(&vf.dma, &mut vf.face, &mut state.ring, entry, held, more) {
            Ok(attention) => {
                let Attention {
                    watch,
                    hold,
                    unwritten,
                } = attention;
                if watch && !state.watched || hold > 0 || unwritten && !state.unwritten {
                    self.attend(objects, cq, attention);
                }
            }
            Err(error) => {
                if error == CqError::Overrun {
                    let (vf, qpn) = (state.vf, entry.qpn);
                    objects.count_at(vf, qpn, |counters| &counters.errors.cq_overflow);
                }
                self.scheduler.cq_failed(objects, cq, error);
            }
        }
    }

    /// Writes the completions of a turn that have waited for each other.
    #[cold]
    pub fn write_out<F: QueueFormat>(&mut self, objects: &mut Objects<F>) {
        while let Some(cq) = self.unwritten.pop() {
            let Some(state) = objects.cqs.get_mut(cq.0) else {
                continue;
            };
            state.unwritten = false;
            if state.failed {
                continue;
            }
            let vf = &mut objects.vfs[usize::from(state.vf.0)];
            match F::write_out(&vf.dma, &mut vf.face, &mut state.ring) {
                Ok(attention) => self.attend(objects, cq, attention),
                Err(error) => self.scheduler.cq_failed(objects, cq, error),
            }
        }
    }

    /// Sees to what a completion queue needs after an entry.
    #[cold]
    pub fn attend<F: QueueFormat>(
        &mut self,
        objects: &mut Objects<F>,
        cq: CqIndex,
        attention: Attention,
    ) {
        let Some(state) = objects.cqs.get_mut(cq.0) else {
            return;
        };
        if attention.unwritten && !state.unwritten {
            state.unwritten = true;
            self.unwritten.push(cq);
        }
        if attention.watch && !state.watched {
            state.watched = true;
            self.scheduler.polling.watch_arming(objects, cq);
        }
        if attention.hold > 0 {
            self.hold_event(objects, cq, attention.hold);
        }
    }
}

impl<F: QueueFormat> Engine<F> {
    /// Every user of a failed completion queue fails with it. A completion queue is used by its own
    /// function alone, of which some objects are looked at in each turn.
    pub(crate) fn search_users(&mut self, vf: VfId, left: &mut i64) {
        while *left > 0 {
            let state = &mut self.objects.vfs[usize::from(vf.0)];
            if state.run_queue.search_left == 0 {
                return;
            }
            *left -= LOOK_COST;
            let (qps, srqs) = (state.qps.slots(), state.srqs.slots());
            let run_queue = &mut state.run_queue;
            run_queue.search_left -= 1;
            if run_queue.search_at >= qps + srqs {
                run_queue.search_at = 0;
            }
            let at = run_queue.search_at;
            run_queue.search_at += 1;
            if let Some(&index) = state.qps.in_slot(at) {
                if self.objects.has_lost_cq(index) {
                    *left -= FAILURE_COST;
                    self.catastrophe(index);
                }
            } else if let Some(&index) = at.checked_sub(qps).and_then(|at| state.srqs.in_slot(at))
                && let Some(srq) = self.objects.srqs.get_mut(index.0)
                && let Some(cq) = srq.cq()
                && !srq.failed
                && self.objects.cqs.get(cq.0).is_some_and(|cq| cq.failed)
            {
                srq.failed = true;
                let srqn = srq.srqn;
                self.objects.notify(vf, Event::SrqCatastrophic(srqn));
            }
        }
    }

    /// A work queue cannot be read: the queue pair is unusable.
    #[cold]
    pub(crate) fn catastrophe(&mut self, index: QpIndex) {
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        if qp.core.state == QpState::Error {
            return;
        }
        let (vf, qpn) = (qp.core.vf, qp.core.qpn);
        self.fail_qp(index);
        self.objects.notify(vf, Event::QpCatastrophic(qpn));
    }

    /// Moves a queue pair to the error state and flushes it.
    #[cold]
    pub(crate) fn fail_qp(&mut self, index: QpIndex) {
        self.completions.disconnect_all(&mut self.objects, index);
        if self.completions.enter_error(&mut self.objects, index) {
            self.flush(index, &mut { FAILURE_COST });
            self.objects.last_request_reached(index);
        }
    }
}

impl Completions {
    /// Moves a queue pair to the error state, to be flushed later. Whether it
    /// was not there already.
    #[cold]
    pub fn enter_error<F: QueueFormat>(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
    ) -> bool {
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
}

impl<F: QueueFormat> Engine<F> {
    /// Looks for requests that were posted to queue pairs of a function in error: receive requests
    /// come without a doorbell. A queue pair that gets none is looked at less and less often, and
    /// where there are many, a part of them at a time.
    pub(crate) fn look_at_errored(&mut self, vf: VfId, now: u64, left: &mut i64) {
        // Others of the function's work are not to wait for this.
        let mut share = SHARED_TURN.min(*left);
        *left -= share;
        let errored = &mut self.objects.vf_mut(vf).run_queue.errored;
        if errored.left == 0 {
            (errored.left, errored.next) = (errored.list.len(), u64::MAX);
        }
        while share > 0 {
            let errored = &mut self.objects.vf_mut(vf).run_queue.errored;
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
            share -= LOOK_COST;
            let (due, pause) = if due > now {
                (due, pause)
            } else if self.flush(qp, &mut share) {
                (now + ERROR_RECHECK, ERROR_RECHECK)
            } else {
                let pause = (pause * 2).min(LONGEST_ERROR_RECHECK);
                (now + pause, pause)
            };
            let errored = &mut self.objects.vf_mut(vf).run_queue.errored;
            if let Some(entry) = errored.list.get_mut(at) {
                *entry = Errored { qp, due, pause };
            }
            errored.next = errored.next.min(due);
        }
        *left += share;
        let errored = &mut self.objects.vf_mut(vf).run_queue.errored;
        errored.due = if errored.left > 0 {
            now + ERROR_RECHECK
        } else {
            errored.next
        };
    }

    /// Flushes what is posted to a queue pair in error, as far as the budget
    /// goes; the rest on a later turn. Whether there was any.
    #[cold]
    pub(crate) fn flush(&mut self, index: QpIndex, budget: &mut i64) -> bool {
        let mut any = false;
        while *budget > 0 {
            let Some(qp) = self.objects.qps.get_mut(index.0) else {
                return any;
            };
            if !matches!(qp.core.state, QpState::Error | QpState::SendQueueError) {
                return any;
            }
            let flush_recv = qp.core.state == QpState::Error;
            let flushed = self.flush_send(index)
                || (flush_recv && self.completions.flush_recv(&mut self.objects, index));
            if !flushed {
                return any;
            }
            *budget -= REQUEST_COST;
            any = true;
        }
        self.completions
            .scheduler
            .make_ready(&mut self.objects, index);
        any
    }

    fn flush_send(&mut self, index: QpIndex) -> bool {
        let wr = match self.take_unfinished(index) {
            Some(wr) => wr,
            None => {
                let mut wr = self.spare_sends.take(SendWr::with_capacity);
                wr.clear();
                let Objects { qps, vfs, .. } = &mut self.objects;
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
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
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
            self.completions
                .complete(&mut self.objects, cq, &entry, &[]);
        }
        true
    }
}

impl Completions {
    pub fn flush_recv<F: QueueFormat>(&mut self, objects: &mut Objects<F>, index: QpIndex) -> bool {
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

    /// Completes a receive request of a connected queue pair.
    #[inline]
    pub fn complete_recv<F: QueueFormat>(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        inbound: Inbound,
        status: Status,
        byte_len: u32,
        (kind, immediate, solicited): (RecvKind, u32, bool),
    ) {
        let time = self.completion_time(byte_len);
        let Some(qp) = objects.qps.get(index.0) else {
            return;
        };
        let srqn = inbound.srqn;
        let vf = qp.core.vf;
        let (cq, user_index) = match (&qp.resp.queue, srqn) {
            // The queue may be gone since; then nobody waits for this.
            (RecvQueue::Xrc(_), Some(srqn)) => match objects.srq(vf, srqn) {
                Some(srq) => (srq.xrc.map(|(_, cq)| cq), srq.user_index),
                None => (None, None),
            },
            _ => (qp.resp.cq, qp.core.user_index),
        };
        let entry = CompletionEntry {
            qpn: qp.core.qpn,
            user_index,
            index: inbound.wr.index,
            status,
            reason: Reason::Status,
            byte_len,
            solicited,
            time,
            side: Side::Recv {
                kind,
                immediate,
                srqn,
                source: objects.initiator(qp),
            },
        };
        if let RecvQueue::Tagged(_) = qp.resp.queue {
            return self.complete_tagged(objects, index, inbound, entry);
        }
        if let Some(cq) = cq {
            let held = match status {
                Status::Success => &inbound.wr.held[..],
                _ => &[],
            };
            self.complete(objects, cq, &entry, held);
        }
        self.spare_recvs.keep(inbound.wr);
        if let Some(srqn) = srqn {
            objects.check_srq_limit(vf, srqn);
        }
    }

    /// The event of a completion queue waits for more entries, no longer than
    /// these nanoseconds (completion queue moderation).
    #[cold]
    pub fn hold_event<F: QueueFormat>(
        &mut self,
        objects: &mut Objects<F>,
        cq: CqIndex,
        nanoseconds: u32,
    ) {
        if let Some(state) = objects.cqs.get_mut(cq.0) {
            let until = self.scheduler.clock.now() + u64::from(nanoseconds);
            self.held_events.hold(cq, state, until);
        }
    }

    /// Raises the events that have waited long enough.
    pub fn expire_events<F: QueueFormat>(&mut self, objects: &mut Objects<F>, now: u64) {
        for _ in 0..EXPIRY_BATCH {
            let Some((cq, timer)) = self.held_events.fired(now) else {
                return;
            };
            let Some(state) = objects.cqs.get_mut(cq.0) else {
                continue;
            };
            if state.timer != timer {
                continue;
            }
            if state.held_until > now {
                self.held_events.set(state.held_until, cq, timer);
                continue;
            }
            if objects.vfs[usize::from(state.vf.0)].quiesced.is_some() {
                self.held_events.set(now + QUIET_RECHECK, cq, timer);
                continue;
            }
            state.timer = 0;
            let vf = &mut objects.vfs[usize::from(state.vf.0)];
            F::expire(&vf.dma, &mut vf.face, &mut state.ring);
        }
    }
}

impl<F: QueueFormat> Engine<F> {
    /// Takes the first request that a queue pair has not completed, to flush it.
    fn take_unfinished(&mut self, index: QpIndex) -> Option<Box<SendWr>> {
        let qp = self.objects.qps.get_mut(index.0)?;
        let unfinished = match &mut qp.req.away {
            Some(away) => away.requester.take_unfinished(),
            None => return qp.req.current.take(),
        };
        let vf = qp.core.vf;
        match unfinished {
            Some(wr) => {
                self.objects.vf_mut(vf).release_slots(1);
                Some(wr)
            }
            None => {
                self.forget_away(index);
                self.objects.qps.get_mut(index.0)?.req.current.take()
            }
        }
    }

    /// Back to Reset: nothing posted, nothing in progress, no completions.
    pub(crate) fn empty_qp(&mut self, index: QpIndex) {
        self.forget_away(index);
        self.completions
            .scheduler
            .end_wait(&mut self.objects, index);
        self.completions
            .scheduler
            .forget_errored(&mut self.objects, index);
        self.objects.release_tags(index);
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        qp.core.state = QpState::Reset;
        qp.core.attr = crate::objects::qp::attributes::QpAttr::default();
        let vf = &mut self.objects.vfs[usize::from(qp.core.vf.0)];
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

impl Scheduler {
    #[cold]
    pub fn cq_failed<F: QueueFormat>(
        &mut self,
        objects: &mut Objects<F>,
        cq: CqIndex,
        error: CqError,
    ) {
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
    pub fn forget_errored<F: QueueFormat>(&mut self, objects: &mut Objects<F>, index: QpIndex) {
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
