//! Making progress: turns of ready queue pairs, timers, completions, and what
//! happens to a queue pair in error.

use std::cmp::Reverse;

use wire::Qpn;

use crate::engine::{CqIndex, Engine, QpIndex, VfId};
use crate::face::{CqError, Event, Face};
use crate::qp::{Inbound, QpState, RecvQueue, Wait};
use crate::work::{CompletionEntry, RecvKind, RecvWr, SendWr, Side, Status, WqeError};

/// Requests that one queue pair may start in one turn.
const TURN_REQUESTS: u32 = 64;
/// Bytes that one queue pair may move in one turn.
const TURN_BYTES: i64 = 256 * 1024;
/// Turns of [`Engine::run`] before it returns to its caller.
const RUN_TURNS: usize = 64;
/// How long a queue pair without a local ACK timeout waits before it looks
/// again whether the path is back, in nanoseconds.
const NO_TIMEOUT_RECHECK: u64 = 100_000_000;
/// How often queue pairs in error are looked at for receive requests, which
/// come without a doorbell, in nanoseconds.
const ERROR_RECHECK: u64 = 1_000_000;

/// RNR NAK timer field in units of 10 µs (specification table 45).
const RNR_TIMER: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// How a request fared in one attempt.
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
    /// Failed.
    Failed(Status),
}

impl<F: Face> Engine<F> {
    /// Executes posted work until none is left or a bounded amount is done.
    /// Returns whether some is left.
    pub fn run(&mut self) -> bool {
        self.run_ready(true)
    }

    pub(crate) fn run_ready(&mut self, look_at_clock: bool) -> bool {
        if look_at_clock && (!self.timers.is_empty() || !self.errored.is_empty()) {
            self.expire();
        }
        for _ in 0..RUN_TURNS {
            let Some(index) = self.ready.pop_front() else {
                break;
            };
            if let Some(qp) = self.qps.get_mut(index.0) {
                qp.req.queued = false;
                self.turn(index);
            }
        }
        if !self.failed_cqs.is_empty() {
            self.fail_users();
        }
        !self.ready.is_empty()
    }

    /// When [`Engine::run`] must be called again although nothing rings, in
    /// the clock's nanoseconds.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let timer = self.timers.peek().map(|Reverse((at, _, _))| *at);
        let errored = (!self.errored.is_empty()).then(|| self.clock.now() + ERROR_RECHECK);
        match (timer, errored) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn expire(&mut self) {
        let now = self.clock.now();
        while let Some(&Reverse((at, index, id))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            self.timer_fired(QpIndex(index), id);
        }
        for at in (0..self.errored.len()).rev() {
            let index = self.errored[at];
            self.flush(index);
        }
    }

    fn timer_fired(&mut self, index: QpIndex, id: u64) {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return;
        };
        if qp.req.timer != id {
            return;
        }
        let failed = match qp.req.wait {
            Wait::None => return,
            Wait::Rnr => None,
            // Without a timeout there is no retry to count (9.7.6.1.3).
            Wait::Ack if qp.core.attr.timeout == 0 => None,
            Wait::Ack if qp.req.retries_left == 0 => Some(Status::RetryExceeded),
            Wait::Ack => {
                qp.req.retries_left -= 1;
                None
            }
        };
        qp.req.wait = Wait::None;
        match failed {
            Some(status) => {
                if let Some(wr) = qp.req.current.take() {
                    self.finish(index, wr, status, 0);
                }
            }
            None => self.make_ready(index),
        }
    }

    fn wait(&mut self, index: QpIndex, wait: Wait, nanoseconds: u64) {
        self.next_timer += 1;
        let id = self.next_timer;
        if let Some(qp) = self.qps.get_mut(index.0) {
            qp.req.wait = wait;
            qp.req.timer = id;
            self.timers
                .push(Reverse((self.clock.now() + nanoseconds, index.0, id)));
        }
    }

    pub(crate) fn spare_send(&mut self) -> Box<SendWr> {
        self.spare_sends
            .pop()
            .unwrap_or_else(|| Box::new(SendWr::with_capacity()))
    }

    pub(crate) fn spare_recv(&mut self) -> Box<RecvWr> {
        self.spare_recvs
            .pop()
            .unwrap_or_else(|| Box::new(RecvWr::with_capacity()))
    }

    /// One bounded turn of a queue pair's requester.
    pub(crate) fn turn(&mut self, index: QpIndex) {
        let mut budget = TURN_BYTES;
        for _ in 0..TURN_REQUESTS {
            let Some(qp) = self.qps.get_mut(index.0) else {
                return;
            };
            match qp.core.state {
                QpState::ReadyToSend => {}
                QpState::SendQueueDrain if qp.req.current.is_some() => {}
                QpState::Error | QpState::SendQueueError => return self.flush(index),
                _ => return,
            }
            if qp.req.wait != Wait::None {
                return;
            }
            let wr = match qp.req.current.take() {
                Some(wr) => wr,
                None => match self.take_request(index) {
                    Some(wr) => wr,
                    None => return,
                },
            };
            if !self.attempt(index, wr, &mut budget) {
                return;
            }
            if budget <= 0 {
                return self.make_ready(index);
            }
        }
        self.make_ready(index);
    }

    /// Takes the next posted request, or handles a malformed one.
    #[inline]
    fn take_request(&mut self, index: QpIndex) -> Option<Box<SendWr>> {
        let mut wr = self.spare_send();
        wr.clear();
        let Self { qps, vfs, .. } = self;
        let qp = qps.get_mut(index.0)?;
        let queue = qp.req.queue.as_mut()?;
        match F::take_send(&vfs[usize::from(qp.core.vf.0)].dma, queue, &mut wr) {
            Ok(true) => {
                qp.req.offset = 0;
                Some(wr)
            }
            Ok(false) => {
                self.spare_sends.push(wr);
                None
            }
            Err(WqeError::Unmapped) => {
                self.spare_sends.push(wr);
                self.catastrophe(index);
                None
            }
            Err(WqeError::Malformed { index: at, opcode }) => {
                wr.index = at;
                wr.opcode = opcode;
                self.finish(index, wr, Status::LocalQpOperation, 0);
                None
            }
        }
    }

    /// Attempts a request; whether the queue pair may go on with the next.
    #[inline]
    fn attempt(&mut self, index: QpIndex, mut wr: Box<SendWr>, budget: &mut i64) -> bool {
        let Some(qp) = self.qps.get(index.0) else {
            return false;
        };
        let transport = qp.core.transport;
        let outcome = if transport.is_datagram() {
            self.send_datagram(index, &mut wr)
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
                self.keep(index, wr);
                self.make_ready(index);
            }
            Outcome::NotReady(code) => self.not_ready(index, wr, code),
            Outcome::Unanswered => {
                let timeout =
                    qp_timeout(self.qps.get(index.0).map_or(0, |qp| qp.core.attr.timeout));
                self.keep(index, wr);
                self.wait(index, Wait::Ack, timeout);
            }
        }
        false
    }

    #[inline]
    fn keep(&mut self, index: QpIndex, wr: Box<SendWr>) {
        if let Some(qp) = self.qps.get_mut(index.0) {
            qp.req.current = Some(wr);
        }
    }

    fn not_ready(&mut self, index: QpIndex, wr: Box<SendWr>, code: u8) {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return;
        };
        match qp.req.rnr_left {
            0 => return self.finish(index, wr, Status::RnrRetryExceeded, 0),
            7 => {}
            _ => qp.req.rnr_left -= 1,
        }
        self.keep(index, wr);
        self.wait(
            index,
            Wait::Rnr,
            u64::from(RNR_TIMER[usize::from(code & 31)]) * 10_000,
        );
    }

    /// Ends a request: completion, retry counters, and on failure the error
    /// state.
    #[inline]
    pub(crate) fn finish(
        &mut self,
        index: QpIndex,
        wr: Box<SendWr>,
        status: Status,
        byte_len: u32,
    ) {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return;
        };
        qp.req.offset = 0;
        qp.req.retries_left = qp.core.attr.retry_count;
        qp.req.rnr_left = qp.core.attr.rnr_retry;
        if wr.signaled || status != Status::Success {
            let entry = CompletionEntry {
                qpn: qp.core.qpn,
                index: wr.index,
                status,
                byte_len,
                solicited: status != Status::Success,
                side: Side::Send { opcode: wr.opcode },
            };
            if let Some(cq) = qp.req.cq {
                self.complete(cq, &entry);
            }
        }
        self.spare_sends.push(wr);
        if status != Status::Success {
            self.fail_sender(index);
        }
    }

    /// A request failed: the send queue of an unreliable transport goes to its
    /// error state, any other queue pair as a whole.
    #[cold]
    fn fail_sender(&mut self, index: QpIndex) {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return;
        };
        if qp.core.transport.is_reliable() || qp.core.state == QpState::Error {
            self.fail_qp(index);
        } else {
            qp.core.state = QpState::SendQueueError;
            self.flush(index);
        }
    }

    /// Writes a completion entry.
    #[inline]
    pub(crate) fn complete(&mut self, cq: CqIndex, entry: &CompletionEntry) {
        let Some(state) = self.cqs.get_mut(cq.0) else {
            return;
        };
        if state.failed {
            return;
        }
        let vf = &mut self.vfs[usize::from(state.vf.0)];
        match F::complete(&vf.dma, &mut vf.face, &mut state.ring, entry) {
            Ok(watch) => {
                if watch && !state.watched {
                    state.watched = true;
                    self.poll.watch(cq);
                }
            }
            Err(error) => self.cq_failed(cq, error),
        }
    }

    #[cold]
    pub(crate) fn cq_failed(&mut self, cq: CqIndex, error: CqError) {
        let Some(state) = self.cqs.get_mut(cq.0) else {
            return;
        };
        if state.failed {
            return;
        }
        state.failed = true;
        let (vf, cqn) = (state.vf, state.cqn);
        self.failed_cqs.push(cq);
        self.notify(vf, Event::CqError { cqn, error });
    }

    /// Every user of a failed completion queue fails with it.
    #[cold]
    fn fail_users(&mut self) {
        while let Some(cq) = self.failed_cqs.pop() {
            let users: Vec<(QpIndex, VfId, Qpn)> = self
                .qps
                .iter_mut()
                .filter(|(_, qp)| {
                    (qp.req.cq == Some(cq) || qp.resp.cq == Some(cq))
                        && !matches!(qp.core.state, QpState::Error | QpState::Reset)
                })
                .map(|(index, qp)| (QpIndex(index), qp.core.vf, qp.core.qpn))
                .collect();
            for (index, vf, qpn) in users {
                self.fail_qp(index);
                self.notify(vf, Event::QpCatastrophic(qpn));
            }
        }
    }

    /// A work queue cannot be read: the queue pair is unusable.
    #[cold]
    pub(crate) fn catastrophe(&mut self, index: QpIndex) {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return;
        };
        if qp.core.state == QpState::Error {
            return;
        }
        let (vf, qpn) = (qp.core.vf, qp.core.qpn);
        self.fail_qp(index);
        self.notify(vf, Event::QpCatastrophic(qpn));
    }

    /// Moves a queue pair to the error state and flushes it.
    #[cold]
    pub(crate) fn fail_qp(&mut self, index: QpIndex) {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return;
        };
        let (vf, qpn) = (qp.core.vf, qp.core.qpn);
        let earlier = std::mem::replace(&mut qp.core.state, QpState::Error);
        qp.req.wait = Wait::None;
        qp.req.timer = 0;
        self.epoch += 1;
        if earlier != QpState::Error {
            let shared = matches!(qp.resp.queue, RecvQueue::Shared(_));
            if !self.errored.contains(&index) {
                self.errored.push(index);
            }
            self.flush(index);
            if shared {
                self.notify(vf, Event::LastWqeReached(qpn));
            }
        }
    }

    /// Flushes what is posted to a queue pair in error, a bounded number of
    /// requests; the rest on a later turn.
    #[cold]
    pub(crate) fn flush(&mut self, index: QpIndex) {
        let mut left = TURN_REQUESTS;
        while left > 0 {
            let Some(qp) = self.qps.get_mut(index.0) else {
                return;
            };
            if !matches!(qp.core.state, QpState::Error | QpState::SendQueueError) {
                return;
            }
            let flush_recv = qp.core.state == QpState::Error;
            left -= 1;
            if !self.flush_send(index) && !(flush_recv && self.flush_recv(index)) {
                return;
            }
        }
        self.make_ready(index);
    }

    fn flush_send(&mut self, index: QpIndex) -> bool {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return false;
        };
        let wr = match qp.req.current.take() {
            Some(wr) => wr,
            None => {
                let mut wr = self.spare_send();
                wr.clear();
                let Self { qps, vfs, .. } = self;
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
                    Err(WqeError::Malformed { index, opcode }) => {
                        wr.index = index;
                        wr.opcode = opcode;
                    }
                    Ok(false) | Err(WqeError::Unmapped) => {
                        self.spare_sends.push(wr);
                        return false;
                    }
                }
                wr
            }
        };
        let Some(qp) = self.qps.get_mut(index.0) else {
            return false;
        };
        let entry = CompletionEntry {
            qpn: qp.core.qpn,
            index: wr.index,
            status: Status::Flushed,
            byte_len: 0,
            solicited: true,
            side: Side::Send { opcode: wr.opcode },
        };
        let cq = qp.req.cq;
        self.spare_sends.push(wr);
        if let Some(cq) = cq {
            self.complete(cq, &entry);
        }
        true
    }

    fn flush_recv(&mut self, index: QpIndex) -> bool {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return false;
        };
        let inbound = match qp.resp.inbound.take() {
            Some(inbound) => inbound,
            None => {
                let cq = qp.resp.cq;
                let mut wr = self.spare_recv();
                wr.clear();
                let Self { qps, vfs, .. } = self;
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
                        self.spare_recvs.push(wr);
                        return false;
                    }
                }
                Inbound { wr, srqn: None, cq }
            }
        };
        self.complete_recv(index, inbound, Status::Flushed, 0, RecvKind::Send, 0);
        true
    }

    /// Completes a receive request of a connected queue pair.
    pub(crate) fn complete_recv(
        &mut self,
        index: QpIndex,
        inbound: Inbound,
        status: Status,
        byte_len: u32,
        kind: RecvKind,
        immediate: u32,
    ) {
        let Some(qp) = self.qps.get(index.0) else {
            return;
        };
        let entry = CompletionEntry {
            qpn: qp.core.qpn,
            index: inbound.wr.index,
            status,
            byte_len,
            solicited: status != Status::Success,
            side: Side::Recv {
                kind,
                immediate,
                srqn: inbound.srqn,
                source: None,
            },
        };
        self.spare_recvs.push(inbound.wr);
        if let Some(cq) = inbound.cq {
            self.complete(cq, &entry);
        }
    }

    /// Back to Reset: nothing posted, nothing in progress, no completions.
    pub(crate) fn empty_qp(&mut self, index: QpIndex) {
        self.errored.retain(|&errored| errored != index);
        let Some(qp) = self.qps.get_mut(index.0) else {
            return;
        };
        qp.core.state = QpState::Reset;
        qp.core.attr = crate::qp::QpAttr::default();
        qp.req.wait = Wait::None;
        qp.req.timer = 0;
        qp.req.offset = 0;
        qp.req.peer = None;
        qp.resp.msn = 0;
        qp.resp.established = false;
        let recv = if let RecvQueue::Own(queue) = &mut qp.resp.queue {
            Some(queue)
        } else {
            None
        };
        F::reset_queues(qp.req.queue.as_mut(), recv);
        self.spare_sends.extend(qp.req.current.take());
        self.spare_recvs
            .extend(qp.resp.inbound.take().map(|inbound| inbound.wr));
    }
}

/// Local ACK timeout in nanoseconds (specification 9.7.6.1.3).
const fn qp_timeout(code: u8) -> u64 {
    if code == 0 {
        NO_TIMEOUT_RECHECK
    } else {
        4096 << (code & 31)
    }
}
