//! Dynamic connections (DC): the verbs for targets, and what either end keeps.
//!
//! An initiator (DCI) is a requester whose far end changes: each request names its own, and the initiator
//! turns from one to the next when nothing is under way. A target (DCT) is a template. Of each initiator that
//! talks to it the target has a responder, its *context*, which is a queue pair without a number of its own:
//! what moves data takes it for the responder of a reliable connection. There is a bounded number of contexts;
//! one that has been idle for long gives way to a new initiator.

use wire::Qpn;

use crate::engine::completion::Completions;
use crate::memory::sge::Sge;
use crate::objects::Objects;
use crate::objects::dynamic::{DctDesc, Role, Target};
use crate::objects::ids::{QpIndex, VerbError};
use crate::objects::qp::attributes::{QpAttr, QpState, RecvSide, Transport};
use crate::objects::qp::{Qp, QpDesc};
use crate::objects::reason::Status;
use crate::objects::work::{MAX_SGE, RecvKind, RecvWr};
use crate::queue_format::{Event, QueueFormat};
use crate::verbs::Verbs;

/// Initiators that a target has contexts for at a time.
pub const MAX_CONTEXTS: usize = 1024;
/// Receive requests that contexts which are gone have left to the next ones; others are flushed.
pub(crate) const LEFT_BEHIND: usize = 4;
/// Contexts that are looked at for one that may give way.
const CANDIDATES: usize = 64;
/// Time that a context is idle before it may give way, in nanoseconds: a train of its initiator's packets has come
/// by then.
const IDLE: u64 = 10_000_000;
/// Time without a packet after which the rest of a message counts as lost, in nanoseconds.
const ABANDONED: u64 = 10_000_000_000;

impl<F: QueueFormat> Verbs<'_, F> {
    /// Creates a DC target, which receives at once, and returns its number: one of a queue pair.
    ///
    /// # Errors
    /// As of [`Verbs::create_qp`].
    pub fn create_dct(&mut self, desc: &DctDesc) -> Result<Qpn, VerbError> {
        if !self.objects.vf_mut(self.vf).memory.take(OF_TARGET) {
            return Err(VerbError::Exhausted);
        }
        let created = self.create_qp(QpDesc {
            transport: Transport::Dct,
            pd: desc.pd,
            send: None,
            recv: RecvSide::Shared(desc.srqn),
            recv_cqn: Some(desc.cqn),
            source_qpn: None,
            block_multicast_loopback: false,
            offloads: false,
            polled: false,
            counter_set: desc.counter_set,
            user_index: desc.user_index,
            in_completion: desc.in_completion,
        });
        let Ok(qpn) = created else {
            self.objects.vf_mut(self.vf).memory.give(OF_TARGET);
            return created;
        };
        if let Some(index) = self.objects.vf(self.vf).qps.get(u32::from(qpn)).copied()
            && let Some(qp) = self.objects.qps.get_mut(index.0)
        {
            qp.core.attr = QpAttr {
                path: None,
                ..desc.attr
            };
            qp.core.state = QpState::ReadyToReceive;
            qp.resp.role = Role::Target(Box::new(Target::new(desc.key, desc.route)));
        }
        Ok(qpn)
    }

    /// Has a DC target take nothing any more. An event says when that is so, which is at once.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn drain_dct(&mut self, dctn: Qpn) -> Result<(), VerbError> {
        let index = self.objects.dct_index(self.vf, dctn)?;
        let scheduler = &mut self.requests.completions.scheduler;
        scheduler.forget_errored(self.objects, index);
        if let Some(qp) = self.objects.qps.get_mut(index.0) {
            qp.core.state = QpState::Reset;
        }
        self.requests
            .completions
            .disconnect_all(self.objects, index);
        self.objects.notify(self.vf, Event::DctDrained(dctn));
        Ok(())
    }

    /// Destroys a DC target.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn destroy_dct(&mut self, dctn: Qpn) -> Result<(), VerbError> {
        let index = self.objects.dct_index(self.vf, dctn)?;
        self.requests
            .completions
            .disconnect_all(self.objects, index);
        if let Some(qp) = self.objects.qps.get_mut(index.0)
            && let Role::Target(target) = std::mem::take(&mut qp.resp.role)
        {
            for inbound in target.left_behind {
                self.requests.completions.spare_recvs.keep(inbound.wr);
            }
        }
        self.objects.vf_mut(self.vf).memory.give(OF_TARGET);
        self.requests.remove_qp(self.objects, self.vf, dctn)
    }

    /// The next request with another key than a DC target's raises an event.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn arm_dct(&mut self, dctn: Qpn) -> Result<(), VerbError> {
        let index = self.objects.dct_index(self.vf, dctn)?;
        let target = self.objects.qps.target_mut(index);
        target.ok_or(VerbError::NotFound)?.armed = true;
        Ok(())
    }
}

impl<F: QueueFormat> Completions<F> {
    /// A target has no contexts any more.
    pub fn disconnect_all(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        while let Some(Target { list, .. }) = objects.qps.target_mut(index)
            && let Some(&context) = list.last()
        {
            self.disconnect(objects, context);
        }
    }

    /// Takes a context away. A receive request that it has begun to fill is left to others.
    pub fn disconnect(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        objects.qps.forget_as_peer(index);
        let Some(qp) = objects.qps.remove(index.0) else {
            return;
        };
        let Qp { core, resp, .. } = *qp;
        let state = objects.vf_mut(core.vf);
        state.memory.give(Objects::<F>::OF_CONTEXT);
        core.set.release(&mut state.memory);
        let Role::Context(context) = resp.role else {
            return;
        };
        let Some(target) = objects.qps.target_mut(context.of) else {
            return;
        };
        target.waits.take_if(|waits| *waits == index);
        if let Some((place, moved)) = target.remove(&context.initiator)
            && let Some(qp) = objects.qps.get(moved.0)
            && let Role::Context(moved) = &qp.resp.role
        {
            let initiator = moved.initiator;
            if let Some(target) = objects.qps.target_mut(context.of) {
                target.places.insert(initiator, place);
            }
        }
        let Some(inbound) = resp.inbound else { return };
        match objects.qps.target_mut(context.of) {
            Some(target) if target.left_behind.len() < LEFT_BEHIND => {
                target.left_behind.push(inbound);
            }
            _ => {
                let received = (RecvKind::Send, 0, true);
                self.complete_recv(objects, context.of, inbound, Status::Flushed, 0, received);
            }
        }
    }

    /// Makes room among a target's contexts: of some of them the one goes that has been idle for longest.
    pub fn make_way(&mut self, objects: &mut Objects<F>, index: QpIndex, now: u64) -> bool {
        let Some(target) = objects.qps.target_mut(index) else {
            return false;
        };
        let (count, hand) = (target.list.len(), target.hand);
        let looked_at = count.min(CANDIDATES);
        target.hand = (hand + looked_at) % count.max(1);
        let Some(target) = objects.qps.target(index) else {
            return false;
        };
        let candidates = (0..looked_at).map(|at| target.list[(hand + at) % count]);
        let idle = candidates.filter_map(|index| {
            let resp = &objects.qps.get(index.0)?.resp;
            let Role::Context(context) = &resp.role else {
                return None;
            };
            let open = resp.receiving.is_open() || resp.received > 0;
            let least = if open { ABANDONED } else { IDLE };
            (now.saturating_sub(context.used) >= least).then_some((context.used, index))
        });
        let oldest = idle.min_by_key(|(used, _)| *used);
        if let Some((_, oldest)) = oldest {
            self.disconnect(objects, oldest);
        }
        oldest.is_some()
    }
}

/// Bytes of the host's memory that a target takes beyond a queue pair.
pub(crate) const OF_TARGET: usize =
    size_of::<Target>() + LEFT_BEHIND * (size_of::<RecvWr>() + MAX_SGE * size_of::<Sge>());
