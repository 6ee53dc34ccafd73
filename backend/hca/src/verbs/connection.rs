//! The verbs for queue pairs.

use wire::Qpn;

use crate::engine::requests::Requests;
use crate::engine::scheduler::Scheduler;
use crate::memory::sge::Sge;
use crate::objects::dynamic::{FarEnd, Role};
use crate::objects::ids::{QpIndex, SrqIndex, VerbError, VfId};
use crate::objects::qp::attributes::{
    AlternatePath, MigrationState, QpAttr, QpChange, QpState, RecvSide, Transport,
};
use crate::objects::qp::{Core, Found, Qp, QpDesc, RecvQueue, Requester, Responder};
use crate::objects::shared_port::is_free;
use crate::objects::srq::{SharedQueues, Srq};
use crate::objects::tags::Tagged;
use crate::objects::vf::Vf;
use crate::objects::work::{MAX_INLINE, MAX_SGE, RecvWr, SendWr};
use crate::objects::{LISTED, Objects};
use crate::queue_format::{Event, QueueFormat};
use crate::verbs::Verbs;
use crate::verbs::multicast::ATTACHMENT;

/// Send and receive queue of a queue pair, where it has one of its own.
pub type QpQueues<'a, F> = (
    Option<&'a <F as QueueFormat>::Send>,
    Option<&'a <F as QueueFormat>::Recv>,
);

impl<F: QueueFormat> Verbs<'_, F> {
    /// Creates a queue pair in the Reset state and returns its number.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`], [`VerbError::NotFound`] for what it names,
    /// [`VerbError::InUse`] for a second queue pair 0 or 1, or
    /// [`VerbError::Invalid`] for a receive queue that completes nowhere.
    pub fn create_qp(&mut self, desc: QpDesc<F>) -> Result<Qpn, VerbError> {
        let state = self.objects.vf(self.vf);
        if desc.transport.needs_domain() || desc.pd != 0 {
            state.pds.get(desc.pd).ok_or(VerbError::NotFound)?;
        }
        let set = state
            .sets
            .get(desc.counter_set)
            .ok_or(VerbError::NotFound)?;
        let special = special_slot(desc.transport);
        if special.is_some_and(|slot| state.special[slot].is_some()) {
            return Err(VerbError::InUse);
        }
        let (send_queue, send_cq) = match desc.send {
            Some((queue, cqn)) => (Some(queue), Some(self.objects.vf(self.vf).cq_index(cqn)?)),
            None => (None, None),
        };
        let recv_cq = desc
            .recv_cqn
            .map(|cqn| self.objects.vf(self.vf).cq_index(cqn))
            .transpose()?;
        let recv_queue = match desc.recv {
            RecvSide::None => RecvQueue::None,
            RecvSide::Own(_) | RecvSide::Shared(_) if recv_cq.is_none() => {
                return Err(VerbError::Invalid);
            }
            RecvSide::Own(queue) => RecvQueue::Own(queue),
            RecvSide::Shared(srqn) => {
                let srq = self.objects.vf(self.vf).srq_index(srqn)?;
                self.objects.srqs.shared_queue(srq, desc.transport)?
            }
            RecvSide::Xrc(xrcd) => {
                self.objects
                    .vf(self.vf)
                    .xrcds
                    .get(xrcd)
                    .ok_or(VerbError::NotFound)?;
                RecvQueue::Xrc(xrcd)
            }
        };
        let role = self
            .objects
            .srqs
            .tagged_role(&recv_queue, desc.pd, send_queue.is_none());
        let polled = desc.polled && send_queue.is_some();
        let held = held(send_queue.as_ref(), &recv_queue);
        let Vf { qps, memory, .. } = self.objects.vf_mut(self.vf);
        if !qps.make_room(memory) || !memory.take_all(held) {
            return Err(VerbError::Exhausted);
        }
        // No earlier queue pair of the same number has had such connections.
        let timer = self.requests.completions.scheduler.timer() as u32;
        let session = self.seed as u32 ^ timer.wrapping_mul(0x9e37_79b9);
        let mut numbers = std::mem::take(&mut self.objects.vf_mut(self.vf).qps);
        let Objects { vfs, qps, .. } = &mut self.objects;
        let mut index = None;
        let number = numbers.insert_free(
            |number| is_free(vfs, self.vf, number),
            |number| {
                let qpn = Qpn::new(number);
                let core = Core {
                    vf: self.vf,
                    qpn,
                    user_index: desc.user_index,
                    in_completion: desc.in_completion,
                    transport: desc.transport,
                    pd: desc.pd,
                    state: QpState::Reset,
                    attr: QpAttr::default(),
                    set,
                    source_qpn: desc.source_qpn.unwrap_or(qpn),
                    block_multicast_loopback: desc.block_multicast_loopback,
                    offloads: desc.offloads,
                    polled,
                    hot: false,
                    polled_at: 0,
                    errored_at: 0,
                };
                let mut req = Requester::new(send_queue, send_cq);
                req.far = FarEnd::new(session);
                let mut resp = Responder::new(recv_queue, recv_cq);
                resp.role = role;
                let qp = QpIndex(qps.insert(Qp { core, req, resp }));
                index = Some(qp);
                qp
            },
        );
        let state = self.objects.vf_mut(self.vf);
        state.qps = numbers;
        let (Some(number), Some(index)) = (number, index) else {
            state.memory.give_all(held);
            return Err(VerbError::Exhausted);
        };
        let scheduler = &mut self.requests.completions.scheduler;
        scheduler.enlist(self.objects, index, special);
        Ok(Qpn::new(number))
    }

    /// Moves a queue pair to `next`, changing what `change` names.
    ///
    /// # Errors
    /// [`VerbError::NotFound`], or [`VerbError::BadState`] when the transition
    /// is not one of the specification's.
    pub fn modify_qp(
        &mut self,
        qpn: Qpn,
        next: QpState,
        change: &QpChange,
    ) -> Result<(), VerbError> {
        let index = self.objects.qp_index(self.vf, qpn)?;
        let levels = self.objects.vf(self.vf).port.service_levels;
        let qp = self
            .objects
            .qps
            .get_mut(index.0)
            .ok_or(VerbError::NotFound)?;
        if !qp.core.state.may_become(next) {
            return Err(VerbError::BadState);
        }
        let sets = &self.objects.vfs[usize::from(self.vf.0)].sets;
        let set = change
            .counter_set
            .map(|number| sets.get(number).ok_or(VerbError::NotFound));
        let set = set.transpose()?;
        let mut change = *change;
        // Datagrams say it one by one.
        if let Some(path) = &mut change.path
            && !qp.core.transport.is_datagram()
        {
            path.sl = levels.admit(path.sl).ok_or(VerbError::Invalid)?;
        }
        if let Some(AlternatePath { path, .. }) = &mut change.alternate {
            path.sl = levels.admit(path.sl).ok_or(VerbError::Invalid)?;
        }
        let has_alternate = change.alternate.or(qp.core.attr.alternate).is_some();
        if change.migration == Some(MigrationState::Armed) && !has_alternate {
            return Err(VerbError::Invalid);
        }
        let change = &change;
        self.objects.qps.forget_as_peer(index);
        let qp = self
            .objects
            .qps
            .get_mut(index.0)
            .ok_or(VerbError::NotFound)?;
        match next {
            QpState::Error => self.requests.fail_qp(self.objects, index),
            QpState::Reset => {
                let scheduler = &mut self.requests.completions.scheduler;
                scheduler.forget_faults(self.objects, index);
                self.requests.empty_qp(self.objects, index);
            }
            _ => {
                let earlier = qp.core.state;
                qp.core.attr.apply(change);
                qp.core.state = next;
                if let Some(set) = set {
                    let earlier = std::mem::replace(&mut qp.core.set, set);
                    earlier.release(&mut self.objects.vfs[usize::from(self.vf.0)].memory);
                }
                // Where the path leads may be what has changed.
                qp.req.found = Found::default();
                if let Some(psn) = change.rq_psn {
                    qp.resp.psn = psn;
                }
                if let Some(psn) = change.sq_psn {
                    qp.req.psn = psn;
                }
                if change.migration == Some(MigrationState::Migrated) {
                    self.network.migrate(self.objects, index);
                }
                let Some(qp) = self.objects.qps.get_mut(index.0) else {
                    return Ok(());
                };
                if next == QpState::ReadyToSend {
                    qp.req.retries_left = qp.core.attr.retry_count;
                    qp.req.rnr_left = qp.core.attr.rnr_retry;
                    let scheduler = &mut self.requests.completions.scheduler;
                    scheduler.make_ready(self.objects, index);
                } else if next == QpState::SendQueueDrain
                    && earlier == QpState::ReadyToSend
                    && qp.req.current.is_none()
                    && qp.req.away.is_none()
                {
                    self.objects.notify(self.vf, Event::SendQueueDrained(qpn));
                }
            }
        }
        Ok(())
    }

    /// Destroys a queue pair. Requests in progress are dropped.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbError> {
        self.objects.qp_index(self.vf, qpn)?;
        self.requests.remove_qp(self.objects, self.vf, qpn)
    }
}

impl<F: QueueFormat> Scheduler<F> {
    /// A new queue pair is one more user of what it uses, and where it is to be polled, it is from now on.
    /// Management's has a slot of its own.
    pub fn enlist(&mut self, objects: &mut Objects<F>, index: QpIndex, special: Option<usize>) {
        let Objects {
            vfs,
            qps,
            cqs,
            srqs,
            ..
        } = objects;
        let Some(Qp { core, req, resp }) = qps.get(index.0) else {
            return;
        };
        let state = &mut vfs[usize::from(core.vf.0)];
        state.hold_pd(core.pd);
        if let Some(slot) = special {
            state.special[slot] = Some(index);
        }
        for cq in [req.cq, resp.cq].into_iter().flatten() {
            if let Some(cq) = cqs.get_mut(cq.0) {
                cq.users += 1;
            }
        }
        match resp.queue {
            RecvQueue::Shared(srq) | RecvQueue::Tagged(srq) => {
                if let Some(srq) = srqs.get_mut(srq.0) {
                    srq.users += 1;
                }
            }
            RecvQueue::Xrc(xrcd) => state.hold_xrcd(xrcd),
            RecvQueue::None | RecvQueue::Own(_) => {}
        }
        if core.polled {
            self.polling.watch_record(objects, index);
        }
    }
}

impl<F: QueueFormat> Requests<F> {
    pub(crate) fn remove_qp(
        &mut self,
        objects: &mut Objects<F>,
        vf: VfId,
        qpn: Qpn,
    ) -> Result<(), VerbError> {
        let index = objects
            .vf_mut(vf)
            .qps
            .remove(u32::from(qpn))
            .ok_or(VerbError::NotFound)?;
        self.forget_away(objects, index);
        self.completions.scheduler.forget_faults(objects, index);
        self.completions.scheduler.end_wait(objects, index);
        let polling = &mut self.completions.scheduler.polling;
        polling.forget_record(objects, index);
        self.completions.scheduler.forget_errored(objects, index);
        objects.qps.forget_as_peer(index);
        objects.release_tags(index);
        let qp = objects.qps.remove(index.0).ok_or(VerbError::NotFound)?;
        if let Some(wr) = qp.req.current {
            self.spare_sends.keep(wr);
        }
        if let Some(inbound) = qp.resp.inbound {
            self.completions.spare_recvs.keep(inbound.wr);
        }
        self.trim();
        objects.cqs.release_cq(qp.req.cq);
        objects.cqs.release_cq(qp.resp.cq);
        let state = &mut objects.vfs[usize::from(vf.0)];
        let held = held(qp.req.queue.as_ref(), &qp.resp.queue);
        state.memory.give_all(held);
        state.release_pd(qp.core.pd);
        qp.core.set.release(&mut state.memory);
        match qp.resp.queue {
            RecvQueue::Shared(srq) | RecvQueue::Tagged(srq) => {
                if let Some(srq) = objects.srqs.get_mut(srq.0) {
                    srq.users -= 1;
                }
            }
            RecvQueue::Xrc(xrcd) => state.release_xrcd(xrcd),
            RecvQueue::None | RecvQueue::Own(_) => {}
        }
        if let Some(slot) = special_slot(qp.core.transport) {
            state.special[slot] = None;
        }
        if qp.core.transport.is_address() {
            let mut detached = 0;
            state.multicast.retain(|_, members| {
                let before = members.len();
                members.retain(|&member| member != index);
                detached += before - members.len();
                !members.is_empty()
            });
            state.multicast_left += detached as u32;
            (0..detached).for_each(|_| state.memory.give(ATTACHMENT));
        }
        Ok(())
    }
}

impl<F: QueueFormat> SharedQueues<F> {
    /// The receive queue that a shared one is to a queue pair. Only reliable connections have tags.
    pub(crate) fn shared_queue(
        &self,
        index: SrqIndex,
        transport: Transport,
    ) -> Result<RecvQueue<F>, VerbError> {
        let tagged = self.get(index.0).is_some_and(|srq| srq.tags.is_some());
        match (tagged, transport) {
            (false, _) => Ok(RecvQueue::Shared(index)),
            (true, Transport::Rc) => Ok(RecvQueue::Tagged(index)),
            (true, _) => Err(VerbError::Invalid),
        }
    }

    /// Role of a queue pair with this receive queue in tag matching. Without a send queue of its own it reads the
    /// messages of rendezvous, by keys of its own domain.
    pub(crate) fn tagged_role(&self, queue: &RecvQueue<F>, pd: u32, sends_nothing: bool) -> Role {
        let RecvQueue::Tagged(index) = queue else {
            return Role::None;
        };
        let srq = self.get(index.0);
        let offers =
            |srq: &Srq<F>| srq.pd == pd && srq.tags.as_ref().is_some_and(|tags| tags.rendezvous);
        Role::Tagged(Box::new(Tagged::new(
            sends_nothing && srq.is_some_and(offers),
        )))
    }
}

/// A queue pair has one timer to wait by and some for what it has on slow links, in a tree whose nodes
/// are half full at least.
const TIMERS: usize = 2 * 4 * 24;

/// Blocks of the host's memory that a queue pair takes: with the lists in which it stands, its timers
/// and the requests that are being carried out at either end; and what its own queues have.
pub(crate) fn held<F: QueueFormat>(send: Option<&F::Send>, recv: &RecvQueue<F>) -> [usize; 3] {
    let requests = size_of::<SendWr>() + size_of::<RecvWr>() + 2 * MAX_SGE * size_of::<Sge>();
    let own = size_of::<Qp<F>>() + LISTED + TIMERS + F::OF_QP + requests + MAX_INLINE;
    let recv = match recv {
        RecvQueue::Own(queue) => F::recv_held(queue),
        RecvQueue::Tagged(_) => size_of::<Tagged>(),
        RecvQueue::None | RecvQueue::Shared(_) | RecvQueue::Xrc(_) => 0,
    };
    [own, send.map_or(0, F::send_held), recv]
}

/// Slot of a management queue pair in `Vf::special`.
pub(crate) const fn special_slot(transport: Transport) -> Option<usize> {
    match transport {
        Transport::Smi => Some(0),
        Transport::Gsi => Some(1),
        _ => None,
    }
}
