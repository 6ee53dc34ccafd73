//! One message between the two halves of a connection, on the local path: one
//! copy from guest memory to guest memory, in slices.

use vm_memory::VolatileSlice;
use wire::{Qpn, Sl};

use crate::engine::progress::Outcome;
use crate::memory::access::{
    CopyError, Cursor, Source, as_a_whole, check_list, checked_window, copy, fits, missing,
    read_list, window,
};
use crate::memory::dma::copy_in_order;
use crate::memory::domain::{Domain, WINDOW_COST};
use crate::memory::mr::{Access, KeyError, MemoryKey};
use crate::memory::sge::Sge;
use crate::objects::counters::traffic::{PathId, PathTraffic};
use crate::objects::page_fault::PageFault;
use crate::objects::qp::attributes::{Inbound, RemoteRights};
use crate::objects::qp::{Core, RecvQueue, Requester, Responder};
use crate::objects::reason::Reason;
use crate::objects::refusal::Refusal;
use crate::objects::srq::Srq;
use crate::objects::vf::Vf;
use crate::objects::work::payload::{check_local, local_access, missing_of, read_payload};
use crate::objects::work::{Operation, RecvWr, SendWr};
use crate::queue_format::QueueFormat;
use crate::storage::slab::Slab;
use crate::storage::spares::Spares;
use crate::transport::HEADER_WORDS;
use crate::transport::refusal::Refused;
use crate::transport::responder::{atomic_at, check_remote, invalidate, take_receive, xrc_domain};

/// Longest local list element that is not checked ahead of the copy, in bytes:
/// what is copied in one go is checked by the copy itself.
const CHECKED_BY_COPY: u64 = 4096;

/// Progress of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    /// The budget is used up.
    Partly,
}

/// One message between two halves of queue pairs.
pub(crate) struct Message<'a, F: QueueFormat> {
    pub from_core: &'a Core,
    pub to_core: &'a Core,
    /// Protection domain in which the responder takes the message: its own, or
    /// that of the shared receive queue which an XRC packet names.
    pub pd: u32,
    pub req: &'a mut Requester<F>,
    pub resp: &'a mut Responder<F>,
    pub vfs: &'a mut [Vf<F>],
    pub srqs: &'a mut Slab<Srq<F>>,
    pub spare_recvs: &'a mut Spares<RecvWr>,
    pub traffic: &'a PathTraffic,
    pub paths: [PathId; 2],
    pub levels: [Sl; 2],
    pub len: u64,
    pub mtu: u32,
}

impl<F: QueueFormat> Message<'_, F> {
    /// Packets of the message, or of the response to a read.
    #[inline]
    pub fn packets(&self) -> u32 {
        if self.len <= u64::from(self.mtu) {
            1
        } else {
            self.len.div_ceil(u64::from(self.mtu)) as u32
        }
    }

    /// Advances sequence numbers and counters by the whole message.
    /// Acknowledgements are not counted.
    #[inline]
    pub fn account(&mut self, operation: Operation) {
        let packets = self.packets();
        // A read that is behind is answered again; it is not a new message.
        if self.resp.psn == self.req.psn {
            self.resp.psn = self.resp.psn.plus(packets);
            self.resp.msn = (self.resp.msn + 1) & 0xff_ffff;
        }
        self.req.psn = self.req.psn.plus(packets);
        self.resp.received = 0;
        let packets = u64::from(packets);
        let words = self.len / 4 + packets * HEADER_WORDS;
        let from = &self.vfs[usize::from(self.from_core.vf.0)].counters;
        let to = &self.vfs[usize::from(self.to_core.vf.0)].counters;
        self.to_core.set.counters.requests.received(operation);
        let [there, back] = self.paths;
        let [sl, back_sl] = self.levels;
        if operation == Operation::Read {
            // The request, and the data in response.
            self.traffic.add(there, HEADER_WORDS, 1);
            self.traffic.add(back, words, packets);
            from.sent(sl, HEADER_WORDS, 1);
            to.received(sl, HEADER_WORDS, 1);
            to.sent(back_sl, words, packets);
            from.received(back_sl, words, packets);
        } else {
            self.traffic.add(there, words, packets);
            from.sent(sl, words, packets);
            to.received(sl, words, packets);
        }
    }

    /// The responder expects another packet. It says so with a number from before the requester's oldest, which the
    /// requester takes for an answer to something else, and waits.
    #[cold]
    pub fn strays(&self) -> Outcome {
        let (to, packets) = (self.to_core, self.packets());
        let retries = self.vfs[usize::from(to.vf.0)].retries(to);
        retries.add(|of| &of.out_of_sequence, packets.into());
        Outcome::OutOfSequence
    }

    pub(super) fn requester_domain(&self) -> Domain<'_, F::Dma> {
        let vf = &self.vfs[usize::from(self.from_core.vf.0)];
        Domain {
            dma: &vf.dma,
            keys: &vf.keys,
            pd: self.from_core.pd,
        }
    }

    pub(super) fn responder_domain(&self) -> Domain<'_, F::Dma> {
        let vf = &self.vfs[usize::from(self.to_core.vf.0)];
        Domain {
            dma: &vf.dma,
            keys: &vf.keys,
            pd: self.pd,
        }
    }

    /// Memory that the message goes to, where that is a receive request or an entry of a tag list.
    pub(super) fn message_domain(&self) -> Domain<'_, F::Dma> {
        let domain = self.responder_domain();
        let pd = self.resp.inbound.as_ref().map_or(self.pd, |it| it.pd);
        Domain { pd, ..domain }
    }

    /// Moves the message on.
    ///
    /// # Errors
    /// [`Refusal`]; it tells the end at fault. Where both ends are at fault it is the requester's, whose HCA would
    /// not have sent anything.
    #[inline(always)]
    pub fn execute(&mut self, wr: &mut SendWr, budget: &mut i64) -> Result<Progress, Refusal> {
        if self.req.offset == 0 {
            self.resp.received = 0;
        }
        let result = self.dispatch(wr, budget);
        result.map_err(|refusal| self.blame(wr, refusal))
    }

    #[inline(always)]
    fn dispatch(&mut self, wr: &mut SendWr, budget: &mut i64) -> Result<Progress, Refusal> {
        if let RecvQueue::Xrc(xrcd) = self.resp.queue {
            let vf = &self.vfs[usize::from(self.to_core.vf.0)];
            self.pd = xrc_domain(vf, self.srqs, xrcd, Qpn::new(wr.xrc_srqn))?;
        }
        let rights = self.to_core.attr.rights;
        match wr.operation {
            Operation::Write | Operation::WriteImm => self.write(wr, rights, budget),
            Operation::Send | Operation::SendImm | Operation::SendInvalidate => {
                self.send(wr, budget)
            }
            Operation::Read => self.read(wr, rights, budget),
            Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::MaskedCompareSwap
            | Operation::MaskedFetchAdd => self.atomic(wr, rights, budget),
            Operation::Nop
            | Operation::LocalInvalidate
            | Operation::UpdateKey
            | Operation::ChangeTags
            | Operation::SetSignature => Ok(Progress::Done),
        }
    }

    /// Finds the end that is at fault in a refusal, and notes the reason in the request.
    #[cold]
    fn blame(&self, wr: &mut SendWr, refusal: Refusal) -> Refusal {
        if let Err(error) = check_local(self.requester_domain(), wr) {
            wr.reason = Reason::LocalKey(error.into());
            return match refusal {
                Refusal::LocalLength => refusal,
                _ => Refusal::Local,
            };
        }
        if let Some(absent) = self.absent(wr, refusal) {
            return absent;
        }
        wr.reason = self.reason(wr, refusal);
        refusal
    }

    /// Whether a message stands because a page is not there, and at which end. A copy that comes to such a page
    /// ends before it.
    fn absent(&self, wr: &SendWr, refusal: Refusal) -> Option<Refusal> {
        let at = self.req.offset;
        let found = match refusal {
            Refusal::LocalAbsent => true,
            Refusal::Local => {
                let needed = local_access(wr.operation);
                missing_of(self.requester_domain(), wr, at, needed).is_some()
            }
            Refusal::Operation => {
                let inbound = self.resp.inbound.as_ref()?;
                let domain = self.message_domain();
                // A header may stay out.
                let skip = self.resp.arrival().skip();
                let [at, end] = [at, self.len].map(|to| to.saturating_sub(skip));
                missing(domain, &inbound.wr.sges, [at, end], Access::LOCAL_WRITE).is_some()
            }
            Refusal::Access => {
                let needed = match wr.operation {
                    Operation::Write | Operation::WriteImm => Access::REMOTE_WRITE,
                    Operation::Read => Access::REMOTE_READ,
                    operation if operation.is_atomic() => Access::ATOMIC,
                    _ => return None,
                };
                let list = [Sge {
                    addr: wr.remote_addr,
                    lkey: wr.rkey,
                    len: self.len as u32,
                }];
                missing(self.responder_domain(), &list, [at, self.len], needed).is_some()
            }
            _ => false,
        };
        found.then_some(match refusal {
            Refusal::Local | Refusal::LocalAbsent => Refusal::LocalAbsent,
            _ => Refusal::Absent,
        })
    }

    /// The page fault of a responder.
    #[cold]
    pub fn fault(&self, wr: &SendWr) -> PageFault {
        let at = self.req.offset;
        let of_message = match Refusal::without_page(wr.operation) {
            Refusal::Operation => {
                let memory = self.message_domain();
                PageFault::message(self.to_core, self.resp, memory, [at, self.len])
            }
            _ => None,
        };
        of_message.unwrap_or_else(|| {
            let named = (wr.rkey, wr.remote_addr, self.len as u32);
            let memory = self.responder_domain();
            PageFault::remote(self.to_core, memory, wr.operation, named, at)
        })
    }

    /// Why the requester's request was refused, its own list apart.
    fn reason(&self, wr: &SendWr, refusal: Refusal) -> Reason {
        refusal.reason(&Refused {
            core: self.to_core,
            xrc: matches!(self.resp.queue, RecvQueue::Xrc(_)),
            domain: self.responder_domain(),
            operation: wr.operation,
            addr: wr.remote_addr,
            rkey: wr.rkey,
            len: self.len,
        })
    }

    /// Checks what the copy would notice only when the responder's memory has
    /// changed already.
    #[inline]
    fn check_ahead(&self, wr: &SendWr) -> Result<(), Refusal> {
        if self.req.offset == 0 && (wr.sges.len() > 1 || self.len > CHECKED_BY_COPY) {
            check_local(self.requester_domain(), wr).map_err(|_| Refusal::Local)?;
        }
        Ok(())
    }

    #[inline]
    fn check_remote(&self, wr: &SendWr, len: u64, needed: Access) -> Result<&MemoryKey, Refusal> {
        let domain = self.responder_domain();
        check_remote(domain, self.to_core, wr.rkey, wr.remote_addr, len, needed)
    }

    /// Where the message stands after `done` more bytes. A copy stops early
    /// only for its budget; were it to stop otherwise, it would for ever.
    #[inline]
    pub(super) fn advance(&mut self, done: u64, budget: i64) -> Result<Progress, Refusal> {
        self.req.offset += done;
        self.resp.received = self.req.offset;
        if self.req.offset >= self.len {
            Ok(Progress::Done)
        } else if budget <= 0 {
            Ok(Progress::Partly)
        } else {
            Err(Refusal::LocalLength)
        }
    }

    #[inline]
    fn write(
        &mut self,
        wr: &mut SendWr,
        rights: RemoteRights,
        budget: &mut i64,
    ) -> Result<Progress, Refusal> {
        // Operations that the receive queue does not do are invalid requests,
        // whatever the key says (9.7.4.1.3, 11.6.2).
        if !rights.write {
            return Err(Refusal::Invalid);
        }
        // The key of a write of no bytes is not looked at (9.7.4.1.5).
        if self.req.offset < self.len {
            let done = match self.write_at_once(wr, budget)? {
                Some(done) => done,
                None => self.write_piecewise(wr, budget)?,
            };
            if self.advance(done, *budget)? == Progress::Partly {
                return Ok(Progress::Partly);
            }
        }
        if wr.operation == Operation::WriteImm {
            self.take_receive(wr)?;
        }
        Ok(Progress::Done)
    }

    /// Writes a message that lies in one piece on either side, as most do, and
    /// returns its length; `None` where it does not, with nothing written.
    #[inline]
    fn write_at_once(&self, wr: &mut SendWr, budget: &mut i64) -> Result<Option<u64>, Refusal> {
        if self.req.offset != 0 || !fits(self.len, *budget) {
            return Ok(None);
        }
        let (key, addr, len) = (wr.rkey, wr.remote_addr, self.len);
        let region = self.check_remote(wr, len, Access::REMOTE_WRITE)?;
        let source = if wr.is_inline {
            VolatileSlice::from(&mut wr.inline[..])
        } else if let [sge] = wr.sges[..] {
            let domain = self.requester_domain();
            match window(domain, sge.lkey, sge.addr, len, Access::LOCAL_READ, budget) {
                Ok(window) => window,
                Err(KeyError::Signed(_)) => return Ok(None),
                Err(_) => return Err(Refusal::Local),
            }
        } else {
            return Ok(None);
        };
        let domain = self.responder_domain();
        let needed = Access::REMOTE_WRITE;
        let target = match checked_window(domain, region, key, addr, len, needed, budget) {
            Ok(window) => window,
            Err(KeyError::Signed(_)) => return Ok(None),
            Err(_) => return Err(Refusal::Access),
        };
        if source.len() as u64 != len || target.len() as u64 != len {
            return Ok(None);
        }
        copy_in_order(&source, &target);
        *budget -= (len as i64).max(WINDOW_COST);
        Ok(Some(len))
    }

    fn write_piecewise(&self, wr: &mut SendWr, budget: &mut i64) -> Result<u64, Refusal> {
        self.check_ahead(wr)?;
        self.check_remote(wr, self.len, Access::REMOTE_WRITE)?;
        let target = [Sge {
            addr: wr.remote_addr,
            lkey: wr.rkey,
            len: self.len as u32,
        }];
        let mut to = Cursor::new(
            self.responder_domain(),
            &target,
            self.req.offset,
            Access::REMOTE_WRITE,
        );
        self.gather(wr, &mut to, budget, Refusal::Access)
    }

    #[inline]
    fn send(&mut self, wr: &mut SendWr, budget: &mut i64) -> Result<Progress, Refusal> {
        if let RecvQueue::Tagged(_) = self.resp.queue {
            return self.send_tagged(wr, budget);
        }
        if self.req.offset == 0 {
            // The gather list is checked before the responder gives up a
            // receive request for a message that will never come.
            check_local(self.requester_domain(), wr).map_err(|_| Refusal::Local)?;
            self.take_receive(wr)?;
        }
        let Some(mut inbound) = self.resp.inbound.take() else {
            return Err(Refusal::Operation);
        };
        let result = if self.to_core.in_completion.receives(self.len) && self.req.offset == 0 {
            self.hold(wr, &mut inbound, budget)
        } else {
            self.scatter(wr, &inbound, budget)
        };
        self.resp.inbound = Some(inbound);
        if self.advance(result?, *budget)? == Progress::Partly {
            return Ok(Progress::Partly);
        }
        self.invalidate(wr)?;
        Ok(Progress::Done)
    }

    /// Invalidates the key that a message names which does that, and is complete.
    #[inline]
    pub(super) fn invalidate(&mut self, wr: &SendWr) -> Result<(), Refusal> {
        if wr.operation == Operation::SendInvalidate {
            let vf = &mut self.vfs[usize::from(self.to_core.vf.0)];
            invalidate(vf, self.to_core, self.pd, wr.immediate)?;
        }
        Ok(())
    }

    /// Keeps the message for its completion. The memory that it would have gone to is looked at no less.
    #[inline(never)]
    fn hold(&self, wr: &SendWr, inbound: &mut Inbound, budget: &mut i64) -> Result<u64, Refusal> {
        let domain = Domain {
            pd: inbound.pd,
            ..self.responder_domain()
        };
        check_room(domain, &inbound.wr.sges, self.len)?;
        let from = self.requester_domain();
        let held = &mut inbound.wr.held;
        held.resize(self.len as usize, 0);
        let needed = Access::LOCAL_READ;
        let read = as_a_whole(budget, |left| read_payload(from, wr, 0, needed, held, left));
        match read {
            Ok(read) if read == held.len() => {}
            _ => {
                held.clear();
                return Err(Refusal::Local);
            }
        }
        Ok(self.len)
    }

    fn scatter(
        &self,
        wr: &mut SendWr,
        inbound: &Inbound,
        budget: &mut i64,
    ) -> Result<u64, Refusal> {
        let domain = Domain {
            pd: inbound.pd,
            ..self.responder_domain()
        };
        let capacity: u64 = inbound.wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
        if capacity < self.len {
            return Err(Refusal::Invalid);
        }
        let mut to = Cursor::new(
            domain,
            &inbound.wr.sges,
            self.req.offset,
            Access::LOCAL_WRITE,
        );
        self.gather(wr, &mut to, budget, Refusal::Operation)
    }

    /// Copies the requester's payload, from the current offset on, to `to`.
    #[inline]
    pub(super) fn gather(
        &self,
        wr: &mut SendWr,
        to: &mut Cursor<'_, F::Dma>,
        budget: &mut i64,
        at_fault: Refusal,
    ) -> Result<u64, Refusal> {
        let left = self.len - self.req.offset;
        let copied = if wr.is_inline {
            let bytes = VolatileSlice::from(&mut wr.inline[..]);
            let bytes = bytes
                .offset(self.req.offset as usize)
                .map_err(|_| Refusal::LocalLength)?;
            copy::<F::Dma, F::Dma>(&mut Source::Bytes(bytes), to, left, budget)
        } else if wr.is_mixed() {
            self.copy_pieces(wr, to, budget)
        } else {
            let from = Cursor::new(
                self.requester_domain(),
                &wr.sges,
                self.req.offset,
                Access::LOCAL_READ,
            );
            copy(&mut Source::Memory(from), to, left, budget)
        };
        copied.map_err(|error| match error {
            CopyError::From(_) => Refusal::Local,
            CopyError::To(_) => at_fault,
        })
    }

    /// Copies a payload that is inline data and memory in turns, from the
    /// current offset on.
    #[inline(never)]
    fn copy_pieces(
        &self,
        wr: &mut SendWr,
        to: &mut Cursor<'_, F::Dma>,
        budget: &mut i64,
    ) -> Result<u64, CopyError> {
        let SendWr {
            sges,
            inline,
            inlined,
            ..
        } = wr;
        let inline = VolatileSlice::from(&mut inline[..]);
        let domain = self.requester_domain();
        let (mut offset, mut done) = (self.req.offset, 0);
        for (index, piece) in sges.iter().enumerate() {
            let len = u64::from(piece.len);
            if offset >= len {
                offset -= len;
                continue;
            }
            let left = len - offset;
            let mut from = if *inlined >> index & 1 == 0 {
                let list = std::slice::from_ref(piece);
                Source::Memory(Cursor::new(domain, list, offset, Access::LOCAL_READ))
            } else {
                let bytes = inline.subslice((piece.addr + offset) as usize, left as usize);
                Source::Bytes(bytes.map_err(|_| CopyError::From(KeyError::Invalid(piece.lkey)))?)
            };
            let copied = copy::<F::Dma, F::Dma>(&mut from, to, left, budget)?;
            done += copied;
            if copied < left {
                break;
            }
            offset = 0;
        }
        Ok(done)
    }

    #[inline(never)]
    fn read(
        &mut self,
        wr: &mut SendWr,
        rights: RemoteRights,
        budget: &mut i64,
    ) -> Result<Progress, Refusal> {
        if !rights.read {
            return Err(Refusal::Invalid);
        }
        if self.len == 0 {
            return Ok(Progress::Done);
        }
        self.check_ahead(wr)?;
        self.check_remote(wr, self.len, Access::REMOTE_READ)?;
        let source = [Sge {
            addr: wr.remote_addr,
            lkey: wr.rkey,
            len: self.len as u32,
        }];
        if self.from_core.in_completion.answers(wr, self.len) && self.req.offset == 0 {
            check_local(self.requester_domain(), wr).map_err(|_| Refusal::Local)?;
            wr.inline.clear();
            wr.inline.resize(self.len as usize, 0);
            let from = self.responder_domain();
            let (needed, to) = (Access::REMOTE_READ, &mut wr.inline);
            let read = as_a_whole(budget, |left| read_list(from, &source, 0, needed, to, left));
            if read.ok() != Some(wr.inline.len()) {
                wr.inline.clear();
                return Err(Refusal::Access);
            }
            return self.advance(self.len, *budget);
        }
        let from = Cursor::new(
            self.responder_domain(),
            &source,
            self.req.offset,
            Access::REMOTE_READ,
        );
        let mut to = Cursor::new(
            self.requester_domain(),
            &wr.sges,
            self.req.offset,
            Access::LOCAL_WRITE,
        );
        let left = self.len - self.req.offset;
        let done =
            copy(&mut Source::Memory(from), &mut to, left, budget).map_err(
                |error| match error {
                    CopyError::From(_) => Refusal::Access,
                    CopyError::To(_) => Refusal::Local,
                },
            )?;
        self.advance(done, *budget)
    }

    #[inline(never)]
    fn atomic(
        &mut self,
        wr: &mut SendWr,
        rights: RemoteRights,
        budget: &mut i64,
    ) -> Result<Progress, Refusal> {
        let len = wr.atomic.size();
        if !rights.atomic || !wr.remote_addr.is_multiple_of(len) {
            return Err(Refusal::Invalid);
        }
        self.check_remote(wr, len, Access::ATOMIC)?;
        check_local(self.requester_domain(), wr).map_err(|_| Refusal::Local)?;
        let held = self.from_core.in_completion.answers(wr, len);
        // The answer has a place before there is one: an atomic is not done twice.
        let mut to = Cursor::new(self.requester_domain(), &wr.sges, 0, Access::LOCAL_WRITE);
        let mut place = None;
        let mut room = if held { len } else { 0 };
        while room < len {
            let window = to.window(len - room, budget).map_err(|error| match error {
                KeyError::Absent(_) => Refusal::LocalAbsent,
                _ => Refusal::Local,
            })?;
            let Some(window) = window else { break };
            room += window.len() as u64;
            to.advance(window.len() as u64);
            place = Some(window);
        }
        let original = atomic_at(
            self.responder_domain(),
            wr.operation,
            wr.remote_addr,
            wr.rkey,
            wr.atomic,
            budget,
        )
        .map_err(|_| Refusal::Access)?;
        let (mut bytes, count) = wr.atomic.answer(original, held);
        let bytes = &mut bytes[..count];
        if held {
            wr.inline.clear();
            wr.inline.extend_from_slice(bytes);
            *budget -= WINDOW_COST;
            return Ok(Progress::Done);
        }
        let source = VolatileSlice::from(bytes);
        if let Some(place) = place.filter(|place| place.len() == count) {
            copy_in_order(&source, &place);
            *budget -= WINDOW_COST;
            return Ok(Progress::Done);
        }
        let mut to = Cursor::new(self.requester_domain(), &wr.sges, 0, Access::LOCAL_WRITE);
        // Done as a whole, whatever is left of the turn.
        as_a_whole(budget, |left| {
            copy::<F::Dma, F::Dma>(&mut Source::Bytes(source), &mut to, len, left)
        })
        .map_err(|_| Refusal::Local)?;
        Ok(Progress::Done)
    }

    #[inline]
    fn take_receive(&mut self, wr: &SendWr) -> Result<(), Refusal> {
        take_receive(
            self.to_core,
            self.resp,
            &self.vfs[usize::from(self.to_core.vf.0)],
            self.srqs,
            self.spare_recvs,
            wr.xrc_srqn,
        )
    }
}

/// Checks that a scatter list has room for a message, and what of it that would take.
///
/// # Errors
/// [`Refusal`].
pub(crate) fn check_room<D>(domain: Domain<'_, D>, sges: &[Sge], len: u64) -> Result<(), Refusal> {
    let capacity: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
    if capacity < len {
        return Err(Refusal::Invalid);
    }
    let mut left = len;
    for sge in sges {
        let part = left.min(sge.len.into()) as u32;
        let list = [Sge { len: part, ..*sge }];
        check_list(domain, &list, Access::LOCAL_WRITE).map_err(|_| Refusal::Operation)?;
        left -= u64::from(part);
    }
    Ok(())
}
