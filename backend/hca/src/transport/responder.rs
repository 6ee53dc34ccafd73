//! The responding side of a connection. It owns its own side alone, and checks what a request says and nothing else: a
//! frame from afar may say anything.

mod paging;
pub(crate) mod receiving;
pub(crate) mod request;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vm_memory::VolatileMemory;

use super::arrived::Arrived;
use super::frame::{Content, Frame, LOAN, MAX_PAYLOAD, Syndrome, Tail, Target};
use super::payload::{Part, read, refused};
use super::reply::{Delivery, Reply};
use super::requester::MAX_READS;
use crate::budget::Budget;
use crate::local::atomic::atomic_result;
use crate::memory::access::window;
use crate::memory::dma::Dma;
use crate::memory::domain::Domain;
use crate::memory::lending::Loan;
use crate::memory::mr::{Access, KeyError, MemoryKey};
use crate::objects::counters::TrafficCounters;
use crate::objects::page_fault::Paging;
use crate::objects::qp::attributes::Inbound;
use crate::objects::qp::{Core, RecvQueue, Responder};
use crate::objects::reason::Reason;
use crate::objects::refusal::Refusal;
use crate::objects::srq::Srq;
use crate::objects::vf::Vf;
use crate::objects::work::{AtomicOperands, Operation, RecvKind, RecvWr, WqeError};
use crate::queue_format::QueueFormat;
use crate::storage::slab::Slab;
use crate::storage::spares::Spares;
use crate::transport::responder::receiving::Open;

/// The responding side, with what of the engine is its own.
pub(crate) struct Reception<'a, F: QueueFormat> {
    pub core: &'a Core,
    pub resp: &'a mut Responder<F>,
    pub vf: &'a Vf<F>,
    pub srqs: &'a mut Slab<Srq<F>>,
    pub spare_recvs: &'a mut Spares<RecvWr>,
    /// Answers may lend their payload.
    pub lends: bool,
}

impl<F: QueueFormat> Reception<'_, F> {
    /// A request has come, or goes on.
    pub fn handle(&mut self, arrival: &mut Arrived, budget: &mut Budget) -> Reply {
        if !self.core.transport.is_reliable() {
            return self.unreliable(arrival, budget);
        }
        let ahead = arrival.frame.psn.distance(self.resp.psn);
        if ahead > 0 {
            return self.out_of_sequence(&arrival.frame);
        }
        let behind = ahead.unsigned_abs();
        if behind >= arrival.frame.span() {
            return self.duplicate(arrival, budget);
        }
        self.resp.receiving.strayed = None;
        if behind > 0 && !matches!(arrival.frame.content, Content::Read(_)) {
            self.count_duplicates(behind);
            arrival.begin_anew(behind);
        }
        match self.execute(arrival, budget) {
            Ok(reply) => self.answer(arrival, reply),
            Err(refusal) => self.refuse(arrival, refusal),
        }
    }

    /// A request has been carried out, or some packets of it: its sender hears of these.
    fn answer(&mut self, arrival: &mut Arrived, mut reply: Reply) -> Reply {
        let packets = arrival.packets_done();
        reply.partly = !arrival.is_complete();
        if reply.partly && packets == 0 {
            return reply;
        }
        let Frame {
            psn, acknowledge, ..
        } = arrival.frame;
        if self.resp.psn.precedes(psn.plus(packets)) {
            self.advance(arrival, packets);
        }
        let msn = self.resp.msn;
        reply.answer = match arrival.frame.content {
            Content::Read(_) => {
                let payload = if reply.partly {
                    arrival.advance(packets)
                } else {
                    std::mem::take(&mut arrival.answer)
                };
                Some((Content::ReadResponse(msn), psn, payload))
            }
            Content::Atomic { .. } => reply.answer.map(|(content, psn, payload)| match content {
                Content::AtomicResponse(value, _) => {
                    (Content::AtomicResponse(value, msn), psn, payload)
                }
                content => (content, psn, payload),
            }),
            _ => {
                if reply.partly {
                    arrival.advance(packets);
                }
                let content = Content::Acknowledge(Syndrome::Acknowledged, msn);
                acknowledge.then(|| (content, psn.plus(packets - 1), Vec::new()))
            }
        };
        reply
    }

    /// Nobody hears of it: a message that is not complete, or cannot be taken, is dropped (9.8.2.2).
    fn unreliable(&mut self, arrival: &mut Arrived, budget: &mut Budget) -> Reply {
        let follows = arrival.frame.psn == self.resp.psn;
        let expected = follows && (self.resp.receiving.open.is_some() || arrival.is_begun());
        if arrival.frame.first && !arrival.is_begun() {
            self.abandon();
            self.resp.psn = arrival.frame.psn;
        } else if !expected {
            self.abandon();
            return Reply::default();
        }
        match self.execute(arrival, budget) {
            Ok(mut reply) => {
                reply.partly = !arrival.is_complete();
                let packets = arrival.packets_done();
                if packets > 0 {
                    self.advance(arrival, packets);
                }
                if reply.partly && packets > 0 {
                    arrival.advance(packets);
                }
                reply
            }
            Err(refusal) => {
                self.abandon();
                let fault = self.fault(arrival, refusal);
                match refusal {
                    Refusal::NotReady(_) => self.count_not_ready(),
                    Refusal::Access => self.core.set.counters.refused(refusal, false),
                    _ => {}
                }
                let fails = matches!(refusal, Refusal::Operation | Refusal::Catastrophe);
                Reply {
                    refusal: fails.then_some(refusal),
                    fault,
                    ..Reply::default()
                }
            }
        }
    }

    fn abandon(&mut self) {
        self.resp.receiving.open = None;
        self.resp.received = 0;
    }

    /// So many packets of a frame have been carried out.
    fn advance(&mut self, arrival: &Arrived, packets: u32) {
        let frame = &arrival.frame;
        self.resp.psn = frame.psn.plus(packets);
        if packets < frame.span() {
            if !matches!(frame.content, Content::Read(_)) {
                self.resp.received += u64::from(packets * frame.mtu.bytes());
            }
        } else if frame.last {
            self.abandon();
            self.resp.msn = (self.resp.msn + 1) & 0xff_ffff;
            let operation = match frame.content {
                Content::Write(..) => Operation::Write,
                Content::Read(_) => Operation::Read,
                Content::Atomic { operation, .. } => operation,
                _ => Operation::Send,
            };
            self.core.set.counters.requests.received(operation);
        }
    }

    /// Packets before this one are missing: the requester is told once, and once more when it has
    /// tried again in vain (9.7.5.1.3).
    fn out_of_sequence(&mut self, frame: &Frame) -> Reply {
        let packets = u64::from(frame.packets());
        let retries = self.vf.retries(self.core);
        retries.add(|of| &of.out_of_sequence, packets);
        let Responder {
            psn,
            msn,
            receiving,
            ..
        } = &mut *self.resp;
        let earlier = receiving.strayed.replace(frame.psn);
        if earlier.is_none_or(|earlier| !earlier.precedes(frame.psn)) {
            Reply::say(Syndrome::Sequence, *psn, *msn)
        } else {
            Reply::default()
        }
    }

    fn count_duplicates(&self, packets: u32) {
        let retries = self.vf.retries(self.core);
        retries.add(|of| &of.duplicate_request, packets.into());
    }

    fn count_not_ready(&self) {
        let requests = &self.core.set.counters.requests;
        TrafficCounters::add(&requests.out_of_buffer, 1);
    }

    /// It has been carried out before: the requester has missed the answer (9.7.5.1.2). A READ is carried
    /// out again, and says what memory holds by now; of an atomic the result was kept.
    fn duplicate(&mut self, arrival: &mut Arrived, budget: &mut Budget) -> Reply {
        if !arrival.is_begun() {
            self.count_duplicates(arrival.frame.packets());
        }
        let frame = &arrival.frame;
        match frame.content {
            Content::Read(_) => match self.execute(arrival, budget) {
                Ok(reply) => self.answer(arrival, reply),
                Err(refusal) => self.refuse(arrival, refusal),
            },
            Content::Atomic { .. } => {
                let mut kept = self.resp.receiving.kept.iter();
                let original = kept.find(|(psn, _)| *psn == frame.psn);
                // One that is no longer known gets no answer.
                let answer = original.map(|&(psn, value)| {
                    let content = Content::AtomicResponse(value, self.resp.msn);
                    (content, psn, Vec::new())
                });
                Reply {
                    answer,
                    ..Reply::default()
                }
            }
            _ if frame.acknowledge => {
                let last = frame.psn.plus(frame.packets() - 1);
                Reply::say(Syndrome::Acknowledged, last, self.resp.msn)
            }
            _ => Reply::default(),
        }
    }

    fn refuse(&mut self, arrival: &Arrived, refusal: Refusal) -> Reply {
        let frame = &arrival.frame;
        if refusal == Refusal::Absent {
            self.resp.receiving.strayed = Some(frame.psn);
            return Reply {
                fault: self.fault(arrival, refusal),
                ..Reply::say(refusal.syndrome(), frame.psn, self.resp.msn)
            };
        }
        let reply = Reply::say(refusal.syndrome(), frame.psn, self.resp.msn);
        if refusal == Refusal::Stale {
            return Reply::default();
        }
        if refusal == Refusal::Void {
            // The requester sends it again, with what follows.
            self.resp.receiving.strayed = Some(frame.psn);
            return reply;
        }
        if let Refusal::NotReady(_) = refusal {
            self.count_not_ready();
            // Later packets arrive out of sequence, which the requester need not be told.
            self.resp.receiving.strayed = Some(frame.psn);
            return reply;
        }
        Reply {
            refusal: Some(refusal),
            reason: self.reason_of(frame, refusal),
            ..reply
        }
    }

    /// Operation that a frame asks for, and the memory that it names.
    fn named(&self, frame: &Frame) -> (Operation, Target) {
        match frame.content {
            Content::Write(target, _) => {
                let open = match self.resp.receiving.open {
                    Some(Open::Write(target)) => Some(target),
                    _ => None,
                };
                (Operation::Write, target.or(open).unwrap_or_default())
            }
            Content::Read(target) => (Operation::Read, target),
            Content::Atomic {
                operation,
                addr,
                rkey,
                operands,
            } => {
                let length = operands.size() as u32;
                (operation, Target { addr, rkey, length })
            }
            Content::Send(Tail::Invalidate(_)) => (Operation::SendInvalidate, Target::default()),
            _ => (Operation::Send, Target::default()),
        }
    }

    /// Why a frame is refused.
    #[cold]
    fn reason_of(&self, frame: &Frame, refusal: Refusal) -> Reason {
        if !frame.is_well_formed() || frame.mtu != self.core.attr.mtu {
            return Reason::Status;
        }
        let pd = self.pd(frame.srq.value()).unwrap_or(self.core.pd);
        let (operation, target) = self.named(frame);
        self.reason(pd, operation, target, refusal)
    }

    /// Carries out a frame that is expected.
    fn execute(&mut self, arrival: &mut Arrived, budget: &mut Budget) -> Result<Reply, Refusal> {
        let frame = &arrival.frame;
        if !frame.is_well_formed() || frame.mtu != self.core.attr.mtu {
            return Err(Refusal::Invalid);
        }
        match self.resp.paging {
            Paging::None => {}
            Paging::Denied => {
                self.resp.paging = Paging::None;
                return Err(self.without_page(frame));
            }
            Paging::Told | Paging::Later(_) => return Err(Refusal::Absent),
        }
        let result = self.carry_out(arrival, budget);
        if let Err(Refusal::Absent) = result
            && !F::hears_of_pages(&self.vf.face)
        {
            return Err(self.without_page(&arrival.frame));
        }
        result
    }

    /// Refusal of a frame that needs a page which does not come.
    #[cold]
    fn without_page(&self, frame: &Frame) -> Refusal {
        match frame.content {
            Content::Send(_) => Refusal::without_page(Operation::Send),
            _ => Refusal::without_page(Operation::Write),
        }
    }

    fn carry_out(&mut self, arrival: &mut Arrived, budget: &mut Budget) -> Result<Reply, Refusal> {
        let frame = &mut arrival.frame;
        let srqn = frame.srq.value();
        let pd = self.pd(srqn)?;
        let rights = self.core.attr.rights;
        let opens = frame.first && self.resp.receiving.open.is_none();
        let mut reply = Reply::default();
        match frame.content {
            Content::Send(tail) => {
                match self.resp.receiving.open {
                    Some(Open::Send) if !frame.first => {}
                    _ if opens => {
                        self.begin_send(srqn, frame, budget)?;
                        self.resp.received = 0;
                    }
                    _ => return Err(Refusal::Invalid),
                }
                let part = self.part(arrival);
                let at = self.scatter(part, &mut arrival.frame, budget)?;
                arrival.done = (at - part.begin) as u32;
                let frame = &arrival.frame;
                if arrival.packets_done() > 0 {
                    self.resp.receiving.open = Some(Open::Send);
                }
                if !arrival.is_complete() {
                    return Ok(reply);
                }
                self.resp.received += u64::from(frame.len());
                if let Tail::Invalidate(key) = tail
                    && frame.last
                {
                    self.check_invalidation(pd, key)?;
                }
                if frame.last {
                    let (kind, immediate) = match tail {
                        Tail::None => (RecvKind::Send, 0),
                        Tail::Immediate(data) => (RecvKind::SendImm, data),
                        Tail::Invalidate(key) => (RecvKind::SendInvalidate, key),
                    };
                    reply.delivery = Some(self.delivery(frame, kind, immediate));
                }
            }
            Content::Write(target, immediate) => {
                // Operations that the receive queue does not do are invalid requests, whatever the
                // key says (9.7.4.1.3, 11.6.2).
                if !rights.write {
                    return Err(Refusal::Invalid);
                }
                let target = match (self.resp.receiving.open, target) {
                    (Some(Open::Write(target)), None) => target,
                    (None, Some(target)) if opens => {
                        self.check_target(pd, target, Access::REMOTE_WRITE)?;
                        self.resp.received = 0;
                        target
                    }
                    _ => return Err(Refusal::Invalid),
                };
                let end = self.resp.received + u64::from(frame.len());
                let length = u64::from(target.length);
                if end > length || frame.last && end < length {
                    return Err(Refusal::Invalid);
                }
                let part = self.part(arrival);
                let at = self.write(pd, target, part, &mut arrival.frame, budget)?;
                arrival.done = (at - part.begin) as u32;
                if arrival.is_complete()
                    && let Some(data) = immediate
                    && arrival.frame.last
                {
                    self.take_receive(srqn)?;
                    let mut delivery = self.delivery(&arrival.frame, RecvKind::WriteImm, data);
                    delivery.len = target.length;
                    reply.delivery = Some(delivery);
                }
                if arrival.packets_done() > 0 {
                    self.resp.receiving.open = Some(Open::Write(target));
                }
                if arrival.is_complete() {
                    self.resp.received = end;
                }
            }
            Content::Read(target) => {
                if !rights.read || !self.may_begin(frame) || target.length > MAX_PAYLOAD {
                    return Err(Refusal::Invalid);
                }
                self.check_target(pd, target, Access::REMOTE_READ)?;
                if frame.borrows && self.lends && arrival.done == 0 {
                    reply.loan = self.lend(pd, target);
                }
                match reply.loan {
                    Some(_) => arrival.done = target.length,
                    None => self.read(pd, target, arrival, budget)?,
                }
            }
            Content::Atomic {
                operation,
                addr,
                rkey,
                operands,
            } => {
                if !self.may_begin(frame) {
                    return Err(Refusal::Invalid);
                }
                self.check_atomic(pd, (addr, rkey), operands)?;
                let domain = self.domain(pd);
                let original = atomic_at(domain, operation, addr, rkey, operands, budget)
                    .map_err(|error| refused(Some(error), Refusal::Access))?;
                let kept = &mut self.resp.receiving.kept;
                if kept.len() == MAX_READS {
                    kept.pop_front();
                }
                kept.push_back((frame.psn, original));
                let content = Content::AtomicResponse(original, self.resp.msn);
                reply.answer = Some((content, frame.psn, Vec::new()));
            }
            _ => return Err(Refusal::Invalid),
        }
        Ok(reply)
    }

    /// A request of one packet may not come amid another message; once more it may.
    fn may_begin(&self, frame: &Frame) -> bool {
        self.resp.receiving.open.is_none() || frame.psn.precedes(self.resp.psn)
    }

    fn delivery(&self, frame: &Frame, kind: RecvKind, immediate: u32) -> Delivery {
        Delivery {
            kind,
            immediate,
            len: self.resp.received as u32,
            solicited: frame.solicited,
        }
    }

    /// The part of its message that a frame has.
    fn part(&self, Arrived { frame, done, .. }: &Arrived) -> Part {
        let begin = self.resp.received;
        Part {
            begin,
            at: begin + u64::from(*done),
            end: begin + u64::from(frame.len()),
            is_whole: frame.first && frame.last,
        }
    }

    /// Lends memory for an answer.
    fn lend(&mut self, pd: u32, target: Target) -> Option<Box<Loan>> {
        if target.length < LOAN {
            return None;
        }
        let domain = self.vf.domain(pd);
        domain.lend(
            &target.stretch(),
            Access::REMOTE_READ,
            &mut self.resp.lending,
        )
    }

    fn read(
        &self,
        pd: u32,
        target: Target,
        Arrived { answer, done, .. }: &mut Arrived,
        budget: &mut Budget,
    ) -> Result<(), Refusal> {
        if answer.is_empty() {
            *answer = vec![0; target.length as usize];
        }
        let (domain, at) = (self.domain(pd), *done as usize);
        let (list, to) = ([target.stretch()], &mut answer[at..]);
        let read = read(domain, &list, at as u64, Access::REMOTE_READ, to, budget);
        *done += read.map_err(|error| refused(error, Refusal::Access))? as u32;
        Ok(())
    }
}

/// The protection domain of the shared receive queue that an XRC request names. The target belongs to
/// whoever opened the XRC domain first, often the guest's kernel; memory is that of the queue's owner
/// (annex A14).
#[inline]
fn xrc_domain<F: QueueFormat>(
    vf: &Vf<F>,
    srqs: &Slab<Srq<F>>,
    xrcd: u32,
    srqn: u32,
) -> Result<u32, Refusal> {
    let named = vf.srqs.get(srqn);
    match named.and_then(|index| srqs.get(index.0)) {
        Some(srq) if srq.xrc.is_some_and(|(domain, _)| domain == xrcd) => Ok(srq.pd),
        _ => Err(Refusal::Invalid),
    }
}

/// A remote key must be unrestricted or meant for this responder.
#[inline]
fn check_remote<'a, D>(
    domain: Domain<'a, D>,
    core: &Core,
    rkey: u32,
    addr: u64,
    len: u64,
    needed: Access,
) -> Result<&'a MemoryKey, Refusal> {
    let region = domain
        .keys
        .check(rkey, domain.pd, addr, len, needed)
        .map_err(|_| Refusal::Access)?;
    match region.qpn {
        Some(only) if only != core.qpn => Err(Refusal::Access),
        _ => Ok(region),
    }
}

/// Takes the responder's next receive request, for the message to fill. One that an aborted message
/// left behind is filled anew.
#[inline]
fn take_receive<F: QueueFormat>(
    core: &Core,
    resp: &mut Responder<F>,
    vf: &Vf<F>,
    srqs: &mut Slab<Srq<F>>,
    spare_recvs: &mut Spares<RecvWr>,
    xrc_srqn: u32,
) -> Result<(), Refusal> {
    if let Some(inbound) = &mut resp.inbound {
        inbound.wr.held.clear();
        return match resp.queue {
            RecvQueue::Xrc(_) if inbound.srqn != Some(xrc_srqn) => Err(Refusal::Invalid),
            _ => Ok(()),
        };
    }
    let mut recv = spare_recvs.take(RecvWr::with_capacity);
    recv.clear();
    let mut give_back = |recv: Box<RecvWr>, refusal| {
        spare_recvs.keep(recv);
        Err(refusal)
    };
    let srq = match &resp.queue {
        RecvQueue::None | RecvQueue::Own(_) => None,
        RecvQueue::Shared(index) | RecvQueue::Tagged(index) => srqs.get_mut(index.0),
        RecvQueue::Xrc(domain) => {
            let named = vf.srqs.get(xrc_srqn);
            match named.and_then(|index| srqs.get_mut(index.0)) {
                Some(srq) if srq.xrc.is_some_and(|(xrcd, _)| xrcd == *domain) => Some(srq),
                _ => return give_back(recv, Refusal::Invalid),
            }
        }
    };
    let (taken, srqn, pd) = match (srq, &mut resp.queue) {
        (Some(srq), _) => (
            F::take_shared(&vf.dma, &mut srq.ring, &mut recv),
            Some(srq.srqn),
            srq.pd,
        ),
        (None, RecvQueue::Own(queue)) => (F::take_recv(&vf.dma, queue, &mut recv), None, core.pd),
        (None, _) => (Ok(false), None, core.pd),
    };
    match taken {
        Ok(true) => {
            resp.inbound = Some(Inbound { wr: recv, srqn, pd });
            Ok(())
        }
        Ok(false) => give_back(recv, Refusal::NotReady(core.attr.min_rnr_timer)),
        Err(WqeError::Malformed { index, .. }) => {
            recv.index = index;
            resp.inbound = Some(Inbound { wr: recv, srqn, pd });
            Err(Refusal::Operation)
        }
        Err(WqeError::Unmapped) => give_back(recv, Refusal::Catastrophe),
    }
}

/// Executes an atomic on guest memory, atomically with respect to the guest's
/// processors as well, and returns the original value.
pub(crate) fn atomic_at<D: Dma>(
    domain: Domain<'_, D>,
    operation: Operation,
    addr: u64,
    rkey: u32,
    operands: AtomicOperands,
    budget: &mut Budget,
) -> Result<u64, KeyError> {
    let slice = window(domain, rkey, addr, operands.size(), Access::ATOMIC, budget)?;
    let update = |value: u64| atomic_result(operation, operands, value);
    let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
    let original = if operands.half {
        let cell = slice.get_atomic_ref::<AtomicU32>(0);
        cell.map(|cell| {
            let update = |value: u32| update(value.into()).map(|value| value as u32);
            let original = cell.fetch_update(set, get, update);
            u64::from(original.unwrap_or_else(|value| value))
        })
    } else {
        let cell = slice.get_atomic_ref::<AtomicU64>(0);
        cell.map(|cell| {
            let original = cell.fetch_update(set, get, update);
            original.unwrap_or_else(|value| value)
        })
    };
    // Aligned bytes lie in one page of a translation. What remains is memory that ends here, or a stretch of an indirect
    // key that begins off alignment.
    original.map_err(|_| KeyError::Unmapped(rkey))
}
