//! An image becomes a function. Its content is not trusted: the function has nothing that a guest could not have
//! made by verbs and packets, within the function's quota.

use wire::Qpn;

use super::{
    ContextImageV1, CqImageV1, ErroredImageV1, ImageError, InboundImageV1, Object, QpImageV1,
    RecvImageV1, SrqImageV1, TargetImageV1,
};
use crate::engine::completion::Completions;
use crate::engine::errors::{ERROR_RECHECK, LONGEST_ERROR_RECHECK};
use crate::memory::mr::MemoryKey;
use crate::objects::Objects;
use crate::objects::cq::Cq;
use crate::objects::dynamic::{Role, Target};
use crate::objects::ids::{CqIndex, QpIndex, SrqIndex, VerbError, VfId};
use crate::objects::page_fault::Paging;
use crate::objects::qp::attributes::{Inbound, QpState, Transport};
use crate::objects::qp::{Core, Found, Qp, RecvQueue, Requester, Responder, Wait};
use crate::objects::shared_port::is_free;
use crate::objects::srq::Srq;
use crate::objects::tags::TagList;
use crate::objects::vf::Vf;
use crate::objects::vf::run_queue::Errored;
use crate::objects::work::{ListTooLong, MAX_INLINE, MAX_MESSAGE, MAX_SGE, RecvWr, SendWr};
use crate::queue_format::QueueFormat;
use crate::storage::numbers::Numbers;
use crate::storage::share::Memory;
use crate::transport::arrived::Line;
use crate::transport::dynamic::Call;
use crate::transport::{Away, Session};
use crate::verbs::connection::{held, special_slot};
use crate::verbs::dynamic::{LEFT_BEHIND, MAX_CONTEXTS, OF_TARGET};

/// Longest time that a restored timer runs: none that the engine sets is longer. An hour, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

/// Nanoseconds of an image, from `now` on.
pub(crate) fn later(now: u64, nanoseconds: u64) -> u64 {
    now.saturating_add(nanoseconds.min(LONGEST))
}

/// A work request of an image, with room for the longest lists.
pub(crate) fn send_request(image: SendWr) -> Result<Box<SendWr>, ListTooLong> {
    let gathered = image.key_update.as_ref().is_none_or(|update| {
        let wanted = u64::from(update.translation_octwords) * 16;
        let most = wanted.min(image.payload_len());
        update.gathered.len() as u64 <= most && update.laid <= update.gathered.len()
    });
    if image.sges.len() > MAX_SGE || image.inline.len() > MAX_INLINE || !gathered {
        return Err(ListTooLong);
    }
    let mut wr = SendWr::with_capacity();
    let (mut sges, mut inline) = (std::mem::take(&mut wr.sges), std::mem::take(&mut wr.inline));
    sges.extend_from_slice(&image.sges);
    inline.extend_from_slice(&image.inline);
    Ok(Box::new(SendWr {
        sges,
        inline,
        ..image
    }))
}

fn receive_request(image: &RecvWr) -> Result<Box<RecvWr>, ListTooLong> {
    if image.sges.len() > MAX_SGE {
        return Err(ListTooLong);
    }
    let mut wr = RecvWr::with_capacity();
    wr.index = image.index;
    wr.sges.extend_from_slice(&image.sges);
    Ok(Box::new(wr))
}

/// Makes objects of a function anew.
pub(super) struct Restorer<'a, F: QueueFormat> {
    pub vf: VfId,
    /// The function's clock, in nanoseconds.
    pub now: u64,
    pub objects: &'a mut Objects<F>,
    pub completions: &'a mut Completions<F>,
}

impl<F: QueueFormat> Restorer<'_, F> {
    pub(super) fn restore_cq(&mut self, image: CqImageV1<F>) -> Result<(), ImageError> {
        let of = Object::new("completion queue", image.cqn);
        let state = &self.objects.vfs[usize::from(self.vf.0)];
        let ring = F::restore_completion(&state.face, &state.dma, image.cqn, image.ring);
        let ring = ring.map_err(|what| ImageError::Invalid { of, what })?;
        let held = [Objects::<F>::OF_CQ, F::completion_held(&ring)];
        let Objects { vfs, cqs, .. } = self.objects;
        let Vf {
            cqs: numbers,
            memory,
            ..
        } = &mut vfs[usize::from(self.vf.0)];
        if !numbers.make_room_at(of.number, memory) || !memory.take_all(held) {
            return Err(ImageError::Exhausted(of));
        }
        let index = CqIndex(cqs.insert(Cq {
            failed: image.failed,
            ..Cq::new(self.vf, image.cqn, ring)
        }));
        if !numbers.insert_at(of.number, index) {
            cqs.remove(index.0);
            return Err(ImageError::NoPlace(of));
        }
        if let Some(cq) = cqs.get_mut(index.0) {
            cq.watched = image.watched;
            if let Some(nanoseconds) = image.held {
                let until = later(self.now, nanoseconds);
                self.completions.held_events.hold(index, cq, until);
            }
        }
        if image.watched {
            let polling = &mut self.completions.scheduler.polling;
            polling.watch_arming(self.objects, index);
        }
        Ok(())
    }

    pub(super) fn restore_qp(&mut self, image: QpImageV1<F>) -> Result<(), ImageError> {
        let of = Object::new("queue pair", image.qpn.value());
        let invalid = |what: &dyn std::fmt::Display| ImageError::Invalid {
            of,
            what: what.to_string(),
        };
        let transport = image.transport;
        if transport.needs_domain() || image.pd != 0 {
            self.objects.vf(self.vf).require_pd(of, image.pd)?;
        }
        let special = special_slot(transport);
        if special.is_some_and(|slot| self.objects.vf(self.vf).special[slot].is_some()) {
            return Err(invalid(&"a second queue pair 0 or 1"));
        }
        let what = Object::new("set of counters", image.counter_set.into());
        let set = require(
            self.objects.vf(self.vf).sets.get(image.counter_set),
            of,
            what,
        )?;
        let (req, resp) = (image.requester, image.responder);
        let cq = |cqn: Option<u32>| {
            cqn.map(|cqn| self.objects.vf(self.vf).restored_cq(of, cqn))
                .transpose()
        };
        let (send_cq, recv_cq) = (cq(req.cqn)?, cq(resp.cqn)?);
        let state = &self.objects.vfs[usize::from(self.vf.0)];
        let send = req
            .queue
            .map(|queue| F::restore_send(&state.face, &state.dma, queue))
            .transpose()
            .map_err(|what| invalid(&what))?;
        if send.is_some() != send_cq.is_some() {
            return Err(invalid(
                &"a send queue and its completion queue go together",
            ));
        }
        let receives = matches!(resp.queue, RecvImageV1::Own(_) | RecvImageV1::Shared(_));
        if receives && recv_cq.is_none() {
            return Err(invalid(&"its receive queue completes nowhere"));
        }
        let recv = match resp.queue {
            RecvImageV1::None => RecvQueue::None,
            RecvImageV1::Own(queue) => {
                let queue = F::restore_recv(&state.face, &state.dma, queue);
                RecvQueue::Own(queue.map_err(|what| invalid(&what))?)
            }
            RecvImageV1::Shared(srqn) => {
                let srq = self.objects.vf(self.vf).restored_srq(of, srqn)?;
                let queue = self.objects.srqs.shared_queue(srq, transport);
                queue.map_err(|error| refusal(of, error))?
            }
            RecvImageV1::Xrc(number) => {
                let what = Object::new("XRC domain", number);
                require(state.xrcds.get(number), of, what)?;
                RecvQueue::Xrc(number)
            }
        };
        let current = req.current.map(send_request).transpose();
        let current = current.map_err(|error| invalid(&error))?;
        let len = current.as_ref().map_or(0, |wr| wr.payload_len());
        if req.offset > len.min(MAX_MESSAGE) || resp.received > MAX_MESSAGE {
            return Err(invalid(&"more of a message has been moved than there is"));
        }
        let waits = req.wait != Wait::None;
        if waits && current.is_none() {
            return Err(invalid(&"it waits with nothing to send"));
        }
        if !image.in_completion.is_sound() {
            return Err(invalid(&"its completions hold more than any can"));
        }
        if !resp.receiving.is_sound() || resp.msn > 0xff_ffff {
            return Err(invalid(&"its responder keeps what none can"));
        }
        let inbound = resp.inbound;
        let inbound = inbound.map(|it| self.objects.vf(self.vf).restore_inbound(of, it));
        let inbound = inbound.transpose()?;
        let target = resp.target.is_some();
        if target != (transport == Transport::Dct)
            || target && (send.is_some() || !matches!(recv, RecvQueue::Shared(_)))
        {
            return Err(invalid(
                &"it is no target of dynamic connections, or half of one",
            ));
        }
        let halves = (send.is_some(), matches!(recv, RecvQueue::Own(_)));
        let whole = match transport {
            Transport::Underlay => halves == (false, false) && matches!(recv, RecvQueue::None),
            Transport::SendQueue => halves == (true, false) && matches!(recv, RecvQueue::None),
            Transport::ReceiveQueue => halves == (false, true),
            _ => true,
        };
        if !whole {
            return Err(invalid(&"it is a half of a queue pair, and has another"));
        }
        let mut role = self
            .objects
            .srqs
            .tagged_role(&recv, image.pd, send.is_none());
        match (&mut role, resp.tagged) {
            (Role::Tagged(tagged), Some(image)) => tagged.restore(image),
            (Role::Tagged(_), None) | (_, Some(_)) => {
                return Err(invalid(
                    &"it has tags, and its queue has none, or the other way",
                ));
            }
            (_, None) => {}
        }
        let away = req.away.map(|away| {
            let connected = !transport.is_datagram() && transport != Transport::KeyUpdate;
            if !connected {
                return Err("only connections have requests under way");
            }
            crate::transport::requester::Requester::restore(away, &image.attr, transport, self.now)
        });
        let away = away.transpose().map_err(|what| invalid(&what))?;
        let under_way = away.as_ref().map_or(0, |away| away.under_way());

        let held = held(send.as_ref(), &recv);
        let Vf {
            qps: numbers,
            memory,
            port,
            ..
        } = self.objects.vf_mut(self.vf);
        if !numbers.make_room_at(of.number, memory) || !memory.take_all(held) {
            return Err(ImageError::Exhausted(of));
        }
        let lid = port.lid;
        if !is_free(&self.objects.vfs, self.vf, of.number) {
            let number = of.number;
            return Err(ImageError::Taken { number, lid });
        }
        let polled = image.polled && send.is_some();
        let qp = Qp {
            core: Core {
                vf: self.vf,
                qpn: image.qpn,
                user_index: image.user_index,
                in_completion: image.in_completion,
                transport,
                pd: image.pd,
                state: image.state,
                attr: image.attr,
                set,
                source_qpn: image.source_qpn,
                block_multicast_loopback: image.block_multicast_loopback,
                offloads: image.offloads,
                polled,
                hot: false,
                polled_at: 0,
                errored_at: 0,
            },
            req: Requester {
                queue: send,
                cq: send_cq,
                current,
                offset: req.offset,
                psn: req.psn,
                retries_left: req.retries_left,
                rnr_left: req.rnr_left,
                wait: req.wait,
                timer: 0,
                since: 0,
                due: 0,
                paging: Paging::None,
                queued: false,
                sent: false,
                held_until: 0,
                line: Line::default(),
                away: away.map(|requester| Box::new(Away::new(requester))),
                far: req.far,
                found: Found::default(),
            },
            resp: Responder {
                queue: recv,
                cq: recv_cq,
                psn: resp.psn,
                msn: resp.msn,
                inbound,
                received: resp.received,
                established: resp.established,
                other_is_armed: false,
                paging: Paging::None,
                receiving: resp.receiving,
                lending: Default::default(),
                heard_by: None,
                role,
            },
        };
        let index = QpIndex(self.objects.qps.insert(qp));
        if !self.objects.vf_mut(self.vf).qps.insert_at(of.number, index) {
            self.objects.qps.remove(index.0);
            return Err(ImageError::NoPlace(of));
        }
        let scheduler = &mut self.completions.scheduler;
        scheduler.enlist(self.objects, index, special);
        if waits {
            let term = (self.now, later(self.now, req.due));
            let scheduler = &mut self.completions.scheduler;
            scheduler.set_wait(self.objects, index, req.wait, term);
        }
        let scheduler = &mut self.completions.scheduler;
        scheduler.start_frames(self.objects, index, under_way);
        self.objects
            .waits_for_pages(index, [req.paging, resp.paging]);
        match resp.target {
            Some(target) => self.restore_target(of, index, target),
            None => Ok(()),
        }
    }

    fn restore_target(
        &mut self,
        of: Object,
        index: QpIndex,
        image: TargetImageV1,
    ) -> Result<(), ImageError> {
        if image.contexts.len() > MAX_CONTEXTS || image.left_behind.len() > LEFT_BEHIND {
            let what = "it has more contexts than a target may have".into();
            return Err(ImageError::Invalid { of, what });
        }
        if !self.objects.vf_mut(self.vf).memory.take(OF_TARGET) {
            return Err(ImageError::Exhausted(of));
        }
        if let Some(qp) = self.objects.qps.get_mut(index.0) {
            let mut target = Target::new(image.key, image.route);
            (target.armed, target.violations) = (image.armed, image.violations);
            qp.resp.role = Role::Target(Box::new(target));
        }
        for context in image.contexts {
            self.restore_context(of, index, context)?;
        }
        for inbound in image.left_behind {
            let inbound = self.objects.vf(self.vf).restore_inbound(of, inbound)?;
            if let Some(target) = self.objects.qps.target_mut(index) {
                target.left_behind.push(inbound);
            }
        }
        Ok(())
    }

    fn restore_context(
        &mut self,
        of: Object,
        index: QpIndex,
        image: ContextImageV1,
    ) -> Result<(), ImageError> {
        let known = |target: &Target| target.context(&image.initiator).is_some();
        let twice = self.objects.qps.target(index).is_none_or(known);
        let sound = image.receiving.is_sound() && image.received <= MAX_MESSAGE;
        if twice || !sound || image.msn > 0xff_ffff {
            let what = "a context of it keeps what none can, or is there twice".into();
            return Err(ImageError::Invalid { of, what });
        }
        let inbound = image.inbound;
        let inbound = inbound.map(|it| self.objects.vf(self.vf).restore_inbound(of, it));
        let inbound = inbound.transpose()?;
        if !self
            .objects
            .vf_mut(self.vf)
            .memory
            .take(Objects::<F>::OF_CONTEXT)
        {
            return Err(ImageError::Exhausted(of));
        }
        let call = Call {
            initiator: image.initiator,
            session: Session {
                key: 0,
                number: image.session,
                source: image.initiator.qpn,
                start: image.psn,
            },
            mtu: image.mtu,
            back: image.path,
        };
        let used = self.now.saturating_sub(image.idle);
        let context = self.objects.qps.add_context(index, &call, used);
        if let Some(Qp { core, resp, .. }) = context.and_then(|it| self.objects.qps.get_mut(it.0)) {
            if image.refused {
                core.state = QpState::Error;
            }
            resp.inbound = inbound;
            (resp.msn, resp.received) = (image.msn, image.received);
            resp.receiving = image.receiving;
            if let Role::Context(context) = &mut resp.role {
                context.earlier = image.earlier;
            }
        }
        Ok(())
    }

    pub(super) fn restore_errored(&mut self, image: &ErroredImageV1) -> Result<(), ImageError> {
        let of = Object::new("queue pair", image.qpn.value());
        let index = self.objects.vf(self.vf).named(of, image.qpn)?;
        let due = later(self.now, image.due);
        let pause = image.pause.clamp(ERROR_RECHECK, LONGEST_ERROR_RECHECK);
        let Objects { vfs, qps, .. } = self.objects;
        let errored = &mut vfs[usize::from(self.vf.0)].run_queue.errored;
        let Some(Qp { core, .. }) = qps.get_mut(index.0) else {
            return Ok(());
        };
        let earlier = errored.list.get(core.errored_at);
        if core.state != QpState::Error || earlier.is_some_and(|it| it.qp == index) {
            let what = "listed as in error, but not in error, or listed twice".into();
            return Err(ImageError::Invalid { of, what });
        }
        core.errored_at = errored.list.len();
        errored.list.push(Errored {
            qp: index,
            due,
            pause,
        });
        let first = errored.due.min(due);
        (errored.next, errored.due) = (first, first);
        Ok(())
    }
    pub(super) fn restore_srq(&mut self, image: SrqImageV1<F>) -> Result<(), ImageError> {
        let of = Object::new("shared receive queue", image.srqn);
        self.objects.vf(self.vf).require_pd(of, image.pd)?;
        let xrc = match image.xrc {
            Some((xrcd, cqn)) => {
                let what = Object::new("XRC domain", xrcd);
                require(self.objects.vf(self.vf).xrcds.get(xrcd), of, what)?;
                Some((xrcd, self.objects.vf(self.vf).restored_cq(of, cqn)?))
            }
            None => None,
        };
        let tags = match image.tags {
            Some(tags) => {
                let cq = self.objects.vf(self.vf).restored_cq(of, tags.cqn)?;
                let what = "invalid tag list".into();
                let list = TagList::restore(tags, cq).ok_or(ImageError::Invalid { of, what })?;
                Some(Box::new(list))
            }
            None => None,
        };
        let state = &self.objects.vfs[usize::from(self.vf.0)];
        let ring = F::restore_shared(&state.face, &state.dma, image.ring);
        let ring = ring.map_err(|what| ImageError::Invalid { of, what })?;
        let list = tags
            .as_ref()
            .map_or(0, |tags| TagList::held(tags.log_size()));
        let held = [Objects::<F>::OF_SRQ, F::shared_held(&ring), list];
        let Objects { vfs, srqs, cqs, .. } = self.objects;
        let state = &mut vfs[usize::from(self.vf.0)];
        let Vf {
            srqs: numbers,
            memory,
            ..
        } = state;
        if !numbers.make_room_at(of.number, memory) || !memory.take_all(held) {
            return Err(ImageError::Exhausted(of));
        }
        let index = SrqIndex(srqs.insert(Srq {
            limit: image.limit,
            failed: image.failed,
            user_index: image.user_index,
            ..Srq::new(image.srqn, image.pd, xrc, ring)
        }));
        if !numbers.insert_at(of.number, index) {
            srqs.remove(index.0);
            return Err(ImageError::NoPlace(of));
        }
        state.hold_pd(image.pd);
        if let Some((xrcd, cq)) = xrc {
            state.hold_xrcd(xrcd);
            if let Some(cq) = cqs.get_mut(cq.0) {
                cq.users += 1;
            }
        }
        if let Some(tags) = tags {
            self.objects.attach_tags(index, tags);
        }
        Ok(())
    }
}

impl<F: QueueFormat> Vf<F> {
    pub(crate) fn require_pd(&self, of: Object, pd: u32) -> Result<(), ImageError> {
        let what = Object::new("protection domain", pd);
        require(self.pds.get(pd), of, what).map(|_| ())
    }

    pub(crate) fn restored_cq(&self, of: Object, cqn: u32) -> Result<CqIndex, ImageError> {
        let what = Object::new("completion queue", cqn);
        require(self.cqs.get(cqn), of, what).copied()
    }

    pub(crate) fn restored_srq(&self, of: Object, srqn: u32) -> Result<SrqIndex, ImageError> {
        let what = Object::new("shared receive queue", srqn);
        require(self.srqs.get(srqn), of, what).copied()
    }

    fn restore_inbound(
        &self,
        of: Object,
        InboundImageV1 { wr, srqn, pd }: InboundImageV1,
    ) -> Result<Inbound, ImageError> {
        self.require_pd(of, pd)?;
        if let Some(srqn) = srqn {
            self.restored_srq(of, srqn)?;
        }
        let wr = receive_request(&wr).map_err(|error| ImageError::Invalid {
            of,
            what: error.to_string(),
        })?;
        Ok(Inbound { wr, srqn, pd })
    }

    pub(crate) fn named(&self, of: Object, qpn: Qpn) -> Result<QpIndex, ImageError> {
        let what = Object::new("queue pair", qpn.value());
        require(self.qps.get(qpn.value()), of, what).copied()
    }

    pub(super) fn is_vacant(&self) -> Result<(), ImageError> {
        let state = self;
        let objects = [
            state.pds.len(),
            state.xrcds.len(),
            state.psvs.len(),
            state.keys.len(),
            state.cqs.len(),
            state.srqs.len(),
            state.qps.len(),
        ];
        if objects == [0; 7] && state.sets.numbered().next().is_none() {
            Ok(())
        } else {
            Err(ImageError::Occupied)
        }
    }

    pub(super) fn restore_key(&mut self, index: u32, key: MemoryKey) -> Result<(), ImageError> {
        let (of, pd) = (Object::new("memory key", index), key.pd);
        self.require_pd(of, pd)?;
        let Vf { keys, memory, .. } = self;
        if !keys.make_room_at(of.number, memory) || key.translation.held() > memory.left() {
            return Err(ImageError::Exhausted(of));
        }
        if !keys.insert_at(of.number, key, memory) {
            return Err(ImageError::NoPlace(of));
        }
        self.hold_pd(pd);
        Ok(())
    }
}

/// Requires that a named object exists.
fn require<T>(found: Option<T>, of: Object, what: Object) -> Result<T, ImageError> {
    found.ok_or(ImageError::Missing { of, what })
}

/// Puts an object under its number.
pub(super) fn place<T>(
    numbers: &mut Numbers<T>,
    of: Object,
    memory: &mut Memory,
    value: T,
) -> Result<(), ImageError> {
    if !numbers.make_room_at(of.number, memory) {
        return Err(ImageError::Exhausted(of));
    }
    if numbers.insert_at(of.number, value) {
        Ok(())
    } else {
        Err(ImageError::NoPlace(of))
    }
}

pub(super) fn refusal(of: Object, error: VerbError) -> ImageError {
    match error {
        VerbError::Exhausted => ImageError::Exhausted(of),
        error => ImageError::Invalid {
            of,
            what: error.to_string(),
        },
    }
}
