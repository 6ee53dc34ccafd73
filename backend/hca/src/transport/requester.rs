//! The requesting side of a connection with a path that ends elsewhere, or is not clean: it makes frames of
//! requests, and completions of the answers. It owns its own side alone. Lost packets are sent again as
//! IBA 9.7.5 to 9.7.7 say.

pub(crate) mod away;

mod image;

use std::collections::VecDeque;

use wire::Psn;

use super::arrived::{Arrived, STEP};
use super::frame::{
    Address, Bytes, Content, Frame, LOAN, MAX_PAYLOAD, Session, Syndrome, Tail, Target,
};
use crate::budget::Budget;
use crate::memory::lending::{Lending, Loan, Unread};
use crate::objects::counters::Retries;
use crate::objects::qp::attributes::{InCompletion, QpAttr, Transport};
use crate::objects::qp::timers::{local_ack_timeout, rnr_time};
use crate::objects::reason::Status;
use crate::objects::reason::{KeyFault, Reason};
use crate::objects::work::{Operation, SendWr};

/// READs and atomics that are asked for at a time; as many results of atomics a responder keeps.
pub(crate) const MAX_READS: usize = 16;
/// Packets that are sent before the first of them is acknowledged.
const WINDOW: u32 = 8192;

/// Access of a requester to its guest's memory.
pub(crate) trait Payload {
    /// Checks a request's own list.
    fn check(&self, wr: &SendWr) -> Result<(), Reason>;
    /// Reads the payload from byte `offset` on, as far as there is room and the budget goes: some bytes.
    fn gather(
        &self,
        wr: &SendWr,
        offset: u64,
        to: &mut [u8],
        budget: &mut Budget,
    ) -> Result<usize, Reason>;
    /// Lends the payload from byte `offset` on, if that can be done.
    fn lend(&self, wr: &SendWr, offset: u64, len: u32, own: &mut Lending) -> Option<Box<Loan>>;
    /// Writes an answer to the list, where it begins at byte `offset`, from a byte of it on, as far as the budget goes.
    fn scatter(
        &self,
        wr: &SendWr,
        offset: u64,
        answer: (Bytes<'_>, u32),
        budget: &mut Budget,
    ) -> Result<u32, Unread<Reason>>;
}

/// Queue pair, port and time of a requester.
pub(crate) struct Surroundings<'a, M> {
    pub attr: &'a QpAttr,
    pub transport: Transport,
    /// Dynamic connection of the requests.
    pub session: Option<Session>,
    pub memory: M,
    /// Frames may lend their payload.
    pub lends: bool,
    /// Answers that completions hold.
    pub in_completion: InCompletion,
    pub retries: Retries<'a>,
    /// In the clock's nanoseconds.
    pub now: u64,
}

/// A request that is not complete.
#[derive(Debug)]
struct Request {
    wr: Box<SendWr>,
    /// Number of its first packet.
    psn: Psn,
    len: u64,
    /// Packets that it takes, and how many of them are acknowledged or answered.
    packets: u32,
    done: u32,
    /// It cannot be sent, or was refused: completes so when all before it have.
    fault: Option<Status>,
    /// Memory lent to its frames until it is complete. No image has it.
    lending: Lending,
    /// It was sent again: from then on its frames have their payload with them. Nothing is lent twice, and
    /// what was void once gets there.
    again: bool,
    /// The payload of this packet, as far as it has been read. No image has it.
    read: (u32, Vec<u8>),
}

/// A request that is complete.
#[derive(Debug)]
pub(crate) struct Finished {
    pub wr: Box<SendWr>,
    pub status: Status,
    pub byte_len: u32,
}

/// A time for which something is waited for, in the clock's nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Term {
    since: u64,
    until: u64,
}

impl Term {
    const fn new(since: u64, until: u64) -> Self {
        Self { since, until }
    }
}

/// The requesting side. There is none while a path is clean and everything has been answered.
#[derive(Debug)]
pub(crate) struct Requester {
    /// In the order of their posting.
    requests: VecDeque<Request>,
    /// The request to be sent next, and the packet within it.
    next: (usize, u32),
    /// The number after the last packet of the last request.
    newest: Psn,
    /// The number after the last packet that was ever sent.
    reached: Psn,
    /// READs and atomics without an answer: the numbers after them.
    asked: VecDeque<Psn>,
    /// The last answer that came out of sequence since there was progress.
    strayed: Option<Psn>,
    retries_left: u8,
    /// There are none left, and there is another path.
    exhausted: bool,
    rnr_left: u8,
    /// Until when the receiver is not ready.
    pause: Option<u64>,
    /// For which time an answer is waited for.
    term: Option<Term>,
    /// When to look again whether there is room for a frame. No image has it: a restored side looks at once.
    looks_again: Option<u64>,
    finished: VecDeque<Finished>,
    /// A page of its own memory is not there: the number of the request, and how many bytes precede the page.
    /// No image has it: a restored side meets the page again.
    absent: Option<(Psn, u64)>,
    /// The last look for a frame has read a packet in part.
    reads_on: bool,
}

impl Requester {
    /// A side whose next packet has this number.
    pub fn new(psn: Psn, attr: &QpAttr) -> Self {
        Self {
            requests: VecDeque::new(),
            next: (0, 0),
            newest: psn,
            reached: psn,
            asked: VecDeque::new(),
            strayed: None,
            retries_left: attr.retry_count,
            exhausted: false,
            rnr_left: attr.rnr_retry,
            pause: None,
            term: None,
            looks_again: None,
            finished: VecDeque::new(),
            absent: None,
            reads_on: false,
        }
    }

    /// Requests that its owner has not been told the end of.
    pub fn under_way(&self) -> usize {
        self.requests.len() + self.finished.len()
    }

    /// The number of the next request's first packet.
    pub fn newest(&self) -> Psn {
        self.newest
    }

    /// Whether something has been sent of which an answer is to come.
    pub fn awaits(&self) -> bool {
        self.term.is_some()
    }

    /// Whether all requests are complete.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Takes a request on. `fault` says that it cannot be sent.
    pub fn post(&mut self, wr: Box<SendWr>, attr: &QpAttr, fault: Option<Status>) {
        let len = wr.payload_len();
        let packets = match fault {
            Some(_) => 0,
            None => packets_of(&wr, len, attr),
        };
        let psn = self.newest;
        self.newest = psn.plus(packets);
        self.requests.push_back(Request {
            wr,
            psn,
            len,
            packets,
            done: 0,
            fault,
            lending: Lending::default(),
            again: false,
            read: (0, Vec::new()),
        });
        self.settle();
    }

    /// The next frame to send, if any may be sent now. `budget` is charged with the time to read its payload, and is
    /// used up where not even a packet of it has been read.
    pub fn poll_transmit<M: Payload>(
        &mut self,
        address: Address,
        around: &Surroundings<'_, M>,
        budget: &mut Budget,
    ) -> Option<Frame> {
        self.reads_on = false;
        if self.pause.is_some() || self.absent.is_some() {
            return None;
        }
        let oldest = self.oldest();
        let Self { requests, next, .. } = self;
        while requests
            .get(next.0)
            .is_some_and(|request| request.fault.is_none() && next.1 >= request.packets)
        {
            *next = (next.0 + 1, 0);
        }
        let (at, packet) = *next;
        let request = requests.get_mut(at).filter(|it| it.fault.is_none())?;
        let psn = request.psn.plus(packet);
        let brings = request.wr.operation.fills_list();
        let waits = (packet == 0 && request.wr.fence && !self.asked.is_empty())
            || (brings && self.asked.len() >= MAX_READS)
            || (around.transport.is_reliable() && psn.distance(oldest) >= WINDOW as i32);
        if waits {
            return None;
        }
        let checked = match packet {
            0 => around.memory.check(&request.wr),
            _ => Ok(()),
        };
        let frame = checked.and_then(|()| request.frame(packet, address, around, budget));
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => {
                self.reads_on = true;
                return None;
            }
            Err(Reason::LocalKey(KeyFault::Absent)) => {
                let before = u64::from(packet) * u64::from(around.attr.mtu.bytes());
                self.absent = Some((request.psn, before));
                return None;
            }
            Err(reason) => {
                request.wr.reason = reason;
                request.fault = Some(Status::LocalProtection);
                self.settle();
                return None;
            }
        };
        let end = frame.psn.plus(frame.span());
        *next = (at, packet + frame.span());
        if self.reached.precedes(end) {
            self.reached = end;
        }
        if brings {
            self.asked.push_back(end);
        }
        if around.transport.is_reliable() {
            self.term.get_or_insert(around.term());
        } else if frame.last
            && let Some(Request { wr, len, .. }) = self.requests.pop_front()
        {
            // Sent is all that it will know.
            *next = (0, 0);
            self.finish(wr, Status::Success, len as u32);
            self.settle();
        }
        Some(frame)
    }

    /// Whether some of the next packet's payload has been read, and not all.
    pub const fn reads_on(&self) -> bool {
        self.reads_on
    }

    /// An answer has come, or goes on; whether it is done with. `budget` is charged with the time to write its
    /// payload.
    pub fn handle<M: Payload>(
        &mut self,
        arrival: &mut Arrived,
        around: &Surroundings<'_, M>,
        budget: &mut Budget,
    ) -> bool {
        let frame = &arrival.frame;
        let end = frame.psn.plus(frame.packets());
        if !self.oldest().precedes(end) || !frame.psn.precedes(self.reached) {
            // Of something that is long answered, or was never asked.
            return true;
        }
        match frame.content {
            Content::Acknowledge(Syndrome::Acknowledged, _) => {
                self.advance(end, around);
                if self.oldest().precedes(end) {
                    self.gap(frame.psn, around);
                }
            }
            Content::Acknowledge(syndrome, _) => {
                self.advance(frame.psn, around);
                if self.oldest() == frame.psn {
                    self.refused(syndrome, frame.reason, around);
                } else {
                    self.gap(frame.psn, around);
                }
            }
            Content::ReadResponse(_) | Content::AtomicResponse(..) => {
                self.advance(frame.psn, around);
                let known = self.oldest().distance(frame.psn);
                if known < 0 {
                    self.gap(frame.psn, around);
                    return true;
                }
                if known > 0 {
                    arrival.begin_anew(known as u32);
                }
                return self.answered(arrival, around, budget);
            }
            _ => {}
        }
        true
    }

    /// When something is to be done although nothing comes.
    pub fn deadline(&self) -> Option<u64> {
        let overdue = self.term.map(|term| term.until);
        let times = [self.pause, overdue, self.looks_again];
        times.into_iter().flatten().min()
    }

    /// Since when the time runs that an answer has.
    pub fn waits_since(&self) -> Option<u64> {
        self.term.map(|term| term.since)
    }

    /// An answer that is overdue gets so many nanoseconds more: one of both ends has rested.
    pub fn prolong<M>(&mut self, around: &Surroundings<'_, M>, left: u64) {
        if self.is_overdue(around.now) {
            self.term = Some(Term::new(around.now, around.now + left));
        }
    }

    fn is_overdue(&self, now: u64) -> bool {
        self.term.is_some_and(|term| term.until <= now)
    }

    /// The deadline has come.
    pub fn timeout<M: Payload>(&mut self, around: &Surroundings<'_, M>) {
        if self.pause.is_some_and(|at| at <= around.now) {
            self.pause = None;
        }
        self.looks_again = None;
        if self.is_overdue(around.now) {
            self.strayed = None;
            if around.attr.timeout == 0 {
                // Without a timeout there is no retry to count (9.7.6.1.3).
                return self.rewind();
            }
            if self.retries_left > 0 {
                around.retries.add(|of| &of.local_ack_timeout_err, 1);
            }
            self.retry(around);
        }
    }

    /// There is no room for a frame now; maybe then.
    pub fn look_again(&mut self, at: u64) {
        self.looks_again = Some(at);
    }

    /// The next request that is complete.
    pub fn poll_finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// The first request that is not complete, to be flushed.
    pub fn take_unfinished(&mut self) -> Option<Box<SendWr>> {
        let finished = self.finished.pop_front().map(|finished| finished.wr);
        finished.or_else(|| self.requests.pop_front().map(|request| request.wr))
    }

    /// The number of the first packet without an answer.
    fn oldest(&self) -> Psn {
        let first = self.requests.front();
        first.map_or(self.reached, |request| request.psn.plus(request.done))
    }

    /// Everything before `to` is acknowledged, but for READs and atomics, which have answers.
    fn advance<M>(&mut self, to: Psn, around: &Surroundings<'_, M>) {
        let before = self.oldest();
        while let Some(request) = self.requests.front_mut()
            && request.fault.is_none()
            && !request.wr.operation.fills_list()
            && request.psn.plus(request.done).precedes(to)
        {
            let acknowledged = to.distance(request.psn) as u32;
            request.done = acknowledged.min(request.packets);
            if request.done < request.packets {
                break;
            }
            self.pop(Status::Success);
        }
        if before != self.oldest() {
            self.progress(around);
        }
    }

    /// There was progress: retries count anew, and the next answer has its own time.
    fn progress<M>(&mut self, around: &Surroundings<'_, M>) {
        self.retries_left = around.attr.retry_count;
        self.rnr_left = around.attr.rnr_retry;
        self.strayed = None;
        let oldest = self.oldest();
        self.term = oldest.precedes(self.reached).then(|| around.term());
        while self
            .asked
            .pop_front_if(|end| !oldest.precedes(*end))
            .is_some()
        {}
        if let Some(request) = self.requests.front()
            && self.next.0 == 0
        {
            self.next.1 = self.next.1.max(request.done);
        }
        self.settle();
    }

    /// Completes the first request.
    fn pop(&mut self, status: Status) {
        if let Some(request) = self.requests.pop_front() {
            self.next = match self.next.0 {
                0 => (0, 0),
                at => (at - 1, self.next.1),
            };
            let byte_len = match status {
                Status::Success => request.len as u32,
                _ => 0,
            };
            self.finish(request.wr, status, byte_len);
        }
    }

    fn finish(&mut self, wr: Box<SendWr>, status: Status, byte_len: u32) {
        self.finished.push_back(Finished {
            wr,
            status,
            byte_len,
        });
    }

    /// Completes the first request if it is at fault: everything before it has gone well.
    fn settle(&mut self) {
        if let Some(status) = self.requests.front().and_then(|request| request.fault) {
            self.term = None;
            self.pause = None;
            self.pop(status);
        }
    }

    /// The first request has failed.
    fn fail(&mut self, status: Status) {
        if let Some(request) = self.requests.front_mut() {
            request.fault = Some(status);
        }
        self.settle();
    }

    /// The request that waits for a page, and the bytes before the page.
    pub fn absent(&self) -> Option<(&SendWr, u64)> {
        let (psn, before) = self.absent?;
        let request = self.requests.iter().find(|request| request.psn == psn)?;
        Some((&request.wr, before))
    }

    /// The page is there now, or does not come.
    pub fn paged(&mut self, there: bool) {
        let Some((psn, _)) = self.absent.take().filter(|_| !there) else {
            return;
        };
        let mut requests = self.requests.iter_mut();
        if let Some(request) = requests.find(|request| request.psn == psn) {
            request.wr.reason = Reason::LocalKey(KeyFault::Absent);
            request.fault = Some(Status::LocalProtection);
        }
        self.settle();
    }

    /// Nobody reads lent memory any more.
    pub fn revoke(&mut self) {
        for request in &mut self.requests {
            request.lending = Lending::default();
            request.again = true;
        }
    }

    /// Sends again from the first packet without an answer on.
    fn rewind(&mut self) {
        for request in self.requests.iter_mut().take(self.next.0 + 1) {
            request.again = true;
        }
        self.next = (0, self.requests.front().map_or(0, |request| request.done));
        self.asked.clear();
        self.term = None;
    }

    /// Sends again, unless that has been tried often enough.
    fn retry<M>(&mut self, around: &Surroundings<'_, M>) {
        if self.retries_left == 0 && around.attr.is_armed() {
            self.exhausted = true;
            return;
        }
        if self.retries_left == 0 {
            return self.fail(Status::RetryExceeded);
        }
        self.retries_left -= 1;
        self.rewind();
    }

    /// Whether it is to go on by another path, which it has from then on.
    pub fn take_exhausted(&mut self) -> bool {
        std::mem::take(&mut self.exhausted)
    }

    /// Begins anew on another path.
    pub fn migrated(&mut self, attr: &QpAttr) {
        self.retries_left = attr.retry_count;
        self.rewind();
    }

    /// An answer is missing before the one with this number: an implied NAK (9.7.7.3). Those behind it
    /// say the same, until they come once more.
    fn gap<M>(&mut self, psn: Psn, around: &Surroundings<'_, M>) {
        let earlier = self.strayed.replace(psn);
        if earlier.is_none_or(|earlier| !earlier.precedes(psn)) {
            around.retries.add(|of| &of.implied_nak_seq_err, 1);
            self.retry(around);
        }
    }

    /// Whether the first request's payload was lent and could not be read.
    fn take_back(&mut self) -> bool {
        let first = self.requests.front_mut();
        let Some(request) = first.filter(|request| request.lending.is_void()) else {
            return false;
        };
        request.lending = Lending::default();
        true
    }

    /// The first request was refused.
    fn refused<M>(&mut self, syndrome: Syndrome, why: Reason, around: &Surroundings<'_, M>) {
        if let Some(request) = self.requests.front_mut() {
            request.wr.reason = why;
        }
        match syndrome {
            Syndrome::Acknowledged => {}
            // Memory that it has lent was taken back, its key's or its queue pair's guest's doing: nothing got
            // lost on the way.
            Syndrome::Sequence if self.take_back() => self.rewind(),
            Syndrome::Sequence => {
                around.retries.add(|of| &of.packet_seq_err, 1);
                self.retry(around);
            }
            Syndrome::NotReady(code) => {
                around.retries.add(|of| &of.rnr_nak_retry_err, 1);
                // It is an answer, if not the one hoped for.
                self.retries_left = around.attr.retry_count;
                match self.rnr_left {
                    0 => return self.fail(Status::RnrRetryExceeded),
                    7 => {}
                    _ => self.rnr_left -= 1,
                }
                self.pause = Some(around.now + rnr_time(code));
                self.rewind();
            }
            Syndrome::InvalidRequest => self.fail(Status::RemoteInvalidRequest),
            Syndrome::RemoteAccess => self.fail(Status::RemoteAccess),
            Syndrome::RemoteOperation => self.fail(Status::RemoteOperation),
        }
    }

    /// Takes data that the first request asked for, or some of it; whether the answer is done with.
    fn answered<M: Payload>(
        &mut self,
        arrival: &mut Arrived,
        around: &Surroundings<'_, M>,
        budget: &mut Budget,
    ) -> bool {
        let Some(request) = self.requests.front_mut() else {
            return true;
        };
        let mtu = u64::from(around.attr.mtu.bytes());
        let mut original;
        let held = around.in_completion.answers(&request.wr, request.len);
        let Arrived { frame, done, .. } = &mut *arrival;
        let (psn, said) = (frame.psn, frame.mtu.bytes());
        let bytes = match frame.content {
            Content::AtomicResponse(value, _) if request.wr.operation.is_atomic() => {
                let len;
                (original, len) = request.wr.atomic.answer(value, held);
                Bytes::Here(&mut original[..len])
            }
            Content::ReadResponse(_) if request.wr.operation == Operation::Read => frame.bytes(),
            _ => {
                self.fail(Status::BadResponse);
                return true;
            }
        };
        let offset = u64::from(request.done) * mtu;
        let len = bytes.len();
        let count = len.div_ceil(said).max(1);
        let end = offset + u64::from(len);
        let fits = u64::from(said) == mtu
            && request.done + count <= request.packets
            && end == request.len.min(u64::from(request.done + count) * mtu)
            && (end == request.len) == (request.done + count == request.packets);
        if !fits {
            self.fail(Status::BadResponse);
            return true;
        }
        let taken = match bytes {
            Bytes::Here(bytes) if held => {
                request.wr.inline.clear();
                request.wr.inline.extend_from_slice(bytes);
                Ok(len)
            }
            bytes => around
                .memory
                .scatter(&request.wr, offset, (bytes, *done), budget),
        };
        match taken {
            Ok(taken) => *done += taken,
            Err(Unread::Fault(Reason::LocalKey(KeyFault::Absent))) => {
                // It is asked for once more when the page is there.
                self.absent = Some((request.psn, offset));
                self.strayed = Some(psn);
                self.rewind();
                return true;
            }
            Err(Unread::Fault(reason)) => {
                request.wr.reason = reason;
                self.fail(Status::LocalProtection);
                return true;
            }
            Err(Unread::Void | Unread::Stale) => {
                // It is asked for once more, to be answered with bytes. What comes behind it is told by it.
                self.strayed = Some(psn);
                self.rewind();
                return true;
            }
        }
        let complete = *done == len;
        let packets = if complete { count } else { *done / said };
        if packets > 0 {
            request.done += packets;
            if request.done == request.packets {
                self.pop(Status::Success);
            }
            self.progress(around);
        }
        if !complete && packets > 0 {
            arrival.advance(packets);
        }
        complete
    }
}

/// Packets that a request takes, or the answer to it.
fn packets_of(wr: &SendWr, len: u64, attr: &QpAttr) -> u32 {
    if wr.operation.is_atomic() {
        1
    } else {
        len.div_ceil(u64::from(attr.mtu.bytes())).max(1) as u32
    }
}

impl Request {
    /// The frame that begins with this packet.
    fn frame<M: Payload>(
        &mut self,
        packet: u32,
        address: Address,
        around: &Surroundings<'_, M>,
        budget: &mut Budget,
    ) -> Result<Option<Frame>, Reason> {
        let lends = around.lends && !self.again;
        let (at, mut payload) = std::mem::take(&mut self.read);
        if at != packet {
            payload = Vec::new();
        }
        let Self { wr, lending, .. } = self;
        let mtu = around.attr.mtu;
        // A packet that has been read in part is read on alone.
        let most = if payload.is_empty() {
            MAX_PAYLOAD / mtu.bytes()
        } else {
            1
        };
        let count = (self.packets - packet).min(most);
        let offset = u64::from(packet) * u64::from(mtu.bytes());
        let len = self
            .len
            .saturating_sub(offset)
            .min(u64::from(count * mtu.bytes())) as u32;
        let (first, last) = (packet == 0, packet + count == self.packets);
        let target = Target {
            addr: wr.remote_addr,
            rkey: wr.rkey,
            length: self.len as u32,
        };
        let immediate = |says: bool| (last && says).then_some(wr.immediate);
        let content = match wr.operation {
            Operation::Write | Operation::WriteImm => Content::Write(
                first.then_some(target),
                immediate(wr.operation == Operation::WriteImm),
            ),
            Operation::Read => Content::Read(Target {
                addr: wr.remote_addr.wrapping_add(offset),
                length: len,
                ..target
            }),
            operation if operation.is_atomic() => Content::Atomic {
                operation,
                addr: wr.remote_addr,
                rkey: wr.rkey,
                operands: wr.atomic,
            },
            operation => Content::Send(match operation {
                Operation::SendImm if last => Tail::Immediate(wr.immediate),
                Operation::SendInvalidate if last => Tail::Invalidate(wr.immediate),
                _ => Tail::None,
            }),
        };
        let mut frame = Frame::new(address, mtu, self.psn.plus(packet), content);
        frame.srq = wire::Qpn::new(wr.xrc_srqn);
        frame.session = around.session.map(Box::new);
        frame.acknowledge = around.transport.is_reliable();
        frame.borrows = lends;
        if !wr.operation.fills_list() {
            (frame.first, frame.last) = (first, last);
            frame.solicited = last && wr.solicited;
            // A sender that does not wait for an answer may not know when its memory is no longer read.
            if lends && len >= LOAN && around.transport.is_reliable() {
                frame.loan = around.memory.lend(wr, offset, len, lending);
            }
            if frame.loan.is_some() {
                budget.take_bytes(len as usize);
            } else {
                let before = payload.len();
                payload.resize(len as usize, 0);
                let step = STEP.max(*budget);
                let mut left = step;
                let (from, to) = (offset + before as u64, &mut payload[before..]);
                let read = before + (around.memory).gather(wr, from, to, &mut left)?;
                budget.charge(step, left);
                frame.payload = payload;
                if read < len as usize {
                    let packets = read as u32 / mtu.bytes();
                    if packets == 0 {
                        self.read = (packet, frame.payload[..read].to_vec());
                        budget.end();
                        return Ok(None);
                    }
                    frame = frame.part(0..packets);
                    frame.acknowledge = around.transport.is_reliable();
                }
            }
        }
        Ok(Some(frame))
    }
}

impl<M> Surroundings<'_, M> {
    /// For which time to wait for an answer to what is sent now.
    const fn term(&self) -> Term {
        Term::new(self.now, self.now + local_ack_timeout(self.attr.timeout))
    }
}
