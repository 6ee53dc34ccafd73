//! Completions, and what happens to a queue pair or a completion queue in error.

use std::sync::Arc;

use crate::engine::scheduler::{Clock, Scheduler};
use crate::objects::Objects;
use crate::objects::cq::HeldEvents;
use crate::objects::ids::{CqIndex, QpIndex};
use crate::objects::qp::attributes::Inbound;
use crate::objects::qp::{Peer, RecvQueue};
use crate::objects::reason::{Reason, Status};
use crate::objects::work::{CompletionEntry, Operation, RecvKind, RecvWr, SendWr, Side};
use crate::queue_format::{Attention, CqError, QueueFormat};
use crate::storage::spares::Spares;
use crate::transport::responder::request::invalidate;

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
pub(crate) struct Completions<F: QueueFormat> {
    pub scheduler: Scheduler<F>,
    pub held_events: HeldEvents,
    pub spare_recvs: Spares<RecvWr>,
    /// The burst of the turn in hand.
    pub burst: Burst,
    /// Completion queues in which entries of this turn wait to be written.
    pub unwritten: Vec<CqIndex>,
}

impl<F: QueueFormat> Completions<F> {
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
    pub fn complete(
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
    pub fn write_out(&mut self, objects: &mut Objects<F>) {
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
    pub fn attend(&mut self, objects: &mut Objects<F>, cq: CqIndex, attention: Attention) {
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

    /// Completes a receive request of a connected queue pair.
    #[inline]
    pub fn complete_recv(
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
    pub fn hold_event(&mut self, objects: &mut Objects<F>, cq: CqIndex, nanoseconds: u32) {
        if let Some(state) = objects.cqs.get_mut(cq.0) {
            let until = self.scheduler.clock.now() + u64::from(nanoseconds);
            self.held_events.hold(cq, state, until);
        }
    }

    /// Raises the events that have waited long enough.
    pub fn expire_events(&mut self, objects: &mut Objects<F>, now: u64) {
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

    /// The responder has got a whole message: completes its receive request.
    #[inline]
    pub fn deliver(&mut self, objects: &mut Objects<F>, peer: Peer, wr: &SendWr, len: u32) {
        let kind = match wr.operation {
            Operation::Send => RecvKind::Send,
            Operation::SendImm => RecvKind::SendImm,
            Operation::SendInvalidate => RecvKind::SendInvalidate,
            Operation::WriteImm => RecvKind::WriteImm,
            _ => return,
        };
        let Some(qp) = objects.qps.get_mut(peer.qp.0) else {
            return;
        };
        if let Some(inbound) = qp.resp.inbound.take() {
            if kind == RecvKind::SendInvalidate {
                invalidate(&mut objects.vfs[usize::from(qp.core.vf.0)], wr.immediate);
            }
            let received = (kind, wr.immediate, wr.solicited);
            self.complete_recv(objects, peer.qp, inbound, Status::Success, len, received);
        }
    }
}
