//! One message between the two halves of a connection, on the local path: one
//! copy from guest memory to guest memory, in slices.

use vm_memory::VolatileSlice;
use wire::Sl;

use crate::budget::{Budget, WINDOW_NS};
use crate::engine::outcome::Outcome;
use crate::local::payload::{Payload, local};
use crate::memory::access::{
    CopyError, Cursor, Source, checked_window, copy, fits, read_list, window,
};
use crate::memory::dma::copy_in_order;
use crate::memory::domain::Domain;
use crate::memory::mr::{Access, KeyError};
use crate::objects::counters::traffic::{PathId, PathTraffic};
use crate::objects::page_fault::PageFault;
use crate::objects::qp::attributes::RemoteRights;
use crate::objects::qp::{Core, Requester};
use crate::objects::reason::Reason;
use crate::objects::refusal::Refusal;
use crate::objects::vf::Vf;
use crate::objects::work::payload::check_local;
use crate::objects::work::{Operation, SendWr};
use crate::queue_format::QueueFormat;
use crate::transport::payload::{Part, refused};
use crate::transport::responder::{Reception, atomic_at};
use crate::transport::{HEADER_WORDS, Target};

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
    pub from_vf: &'a Vf<F>,
    pub req: &'a mut Requester<F>,
    /// The responder.
    pub to: Reception<'a, F>,
    /// Protection domain in which the responder takes the message.
    pub pd: u32,
    pub traffic: &'a PathTraffic,
    pub paths: [PathId; 2],
    pub levels: [Sl; 2],
    pub len: u64,
    pub mtu: u32,
}

impl<'a, F: QueueFormat> Message<'a, F> {
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
        let resp = &mut *self.to.resp;
        if resp.psn == self.req.psn {
            resp.psn = resp.psn.plus(packets);
            resp.msn = (resp.msn + 1) & 0xff_ffff;
        }
        self.req.psn = self.req.psn.plus(packets);
        resp.received = 0;
        let packets = u64::from(packets);
        let words = self.len / 4 + packets * HEADER_WORDS;
        let [from, to] = [&self.from_vf.counters, &self.to.vf.counters];
        self.to.core.set.counters.requests.received(operation);
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
        let retries = self.to.vf.retries(self.to.core);
        let packets = self.packets();
        retries.add(|of| &of.out_of_sequence, packets.into());
        Outcome::OutOfSequence
    }

    const fn requester_domain(&self) -> Domain<'a, F::Dma> {
        self.from_vf.domain(self.from_core.pd)
    }

    fn responder_domain(&self) -> Domain<'_, F::Dma> {
        self.to.domain(self.pd)
    }

    /// Memory that the request names at the responder.
    const fn target(&self, wr: &SendWr) -> Target {
        Target {
            addr: wr.remote_addr,
            rkey: wr.rkey,
            length: self.len as u32,
        }
    }

    /// Moves the message on.
    ///
    /// # Errors
    /// [`Refusal`]; it tells the end at fault. Where both ends are at fault it is the requester's, whose HCA would
    /// not have sent anything.
    #[inline(always)]
    pub fn execute(&mut self, wr: &mut SendWr, budget: &mut Budget) -> Result<Progress, Refusal> {
        if self.req.offset == 0 {
            self.to.resp.received = 0;
        }
        let result = self.dispatch(wr, budget);
        result.map_err(|refusal| self.blame(wr, refusal))
    }

    #[inline(always)]
    fn dispatch(&mut self, wr: &mut SendWr, budget: &mut Budget) -> Result<Progress, Refusal> {
        self.pd = self.to.pd(wr.xrc_srqn)?;
        let rights = self.to.core.attr.rights;
        match wr.operation {
            Operation::Write | Operation::WriteImm => self.write(wr, rights, budget),
            Operation::Send | Operation::SendImm | Operation::SendInvalidate => {
                self.send(wr, budget)
            }
            Operation::Read => self.read(wr, rights, budget),
            Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::MaskedCompareSwap
            | Operation::MaskedFetchAdd => self.atomic(wr, budget),
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
        if matches!(refusal, Refusal::LocalAbsent | Refusal::Absent) {
            return refusal;
        }
        let target = self.target(wr);
        wr.reason = self.to.reason(self.pd, wr.operation, target, refusal);
        refusal
    }

    /// The page fault of a responder.
    #[cold]
    pub fn fault(&self, wr: &SendWr) -> Option<PageFault> {
        let (target, part) = (self.target(wr), [self.req.offset, self.len]);
        self.to.page_fault(self.pd, wr.operation, target, part)
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

    /// Where the message stands after `done` more bytes. A copy stops early
    /// only for its budget; were it to stop otherwise, it would for ever.
    #[inline]
    fn advance(&mut self, done: u64, budget: Budget) -> Result<Progress, Refusal> {
        self.req.offset += done;
        self.to.resp.received = self.req.offset;
        if self.req.offset >= self.len {
            Ok(Progress::Done)
        } else if !budget.is_left() {
            Ok(Progress::Partly)
        } else {
            Err(Refusal::LocalLength)
        }
    }

    /// The part of the message that its payload is: all of it.
    const fn part(&self) -> Part {
        Part {
            begin: 0,
            at: self.req.offset,
            end: self.len,
            is_whole: true,
        }
    }

    #[inline]
    fn write(
        &mut self,
        wr: &mut SendWr,
        rights: RemoteRights,
        budget: &mut Budget,
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
            self.to.take_receive(wr.xrc_srqn)?;
        }
        Ok(Progress::Done)
    }

    /// Writes a message that lies in one piece on either side, as most do, and
    /// returns its length; `None` where it does not, with nothing written.
    #[inline]
    fn write_at_once(&self, wr: &mut SendWr, budget: &mut Budget) -> Result<Option<u64>, Refusal> {
        if self.req.offset != 0 || !fits(self.len, *budget) {
            return Ok(None);
        }
        let (key, addr, len) = (wr.rkey, wr.remote_addr, self.len);
        let region = self
            .to
            .check_remote(self.pd, self.target(wr), Access::REMOTE_WRITE)?;
        let source = if wr.is_inline {
            VolatileSlice::from(&mut wr.inline[..])
        } else if let [sge] = wr.sges[..] {
            let domain = self.requester_domain();
            match window(domain, sge.lkey, sge.addr, len, Access::LOCAL_READ, budget) {
                Ok(window) => window,
                Err(KeyError::Signed(_)) => return Ok(None),
                Err(error) => return Err(local(error)),
            }
        } else {
            return Ok(None);
        };
        let domain = self.responder_domain();
        let needed = Access::REMOTE_WRITE;
        let target = match checked_window(domain, region, key, addr, len, needed, budget) {
            Ok(window) => window,
            Err(KeyError::Signed(_)) => return Ok(None),
            Err(error) => return Err(refused(Some(error), Refusal::Access)),
        };
        if source.len() as u64 != len || target.len() as u64 != len {
            return Ok(None);
        }
        copy_in_order(&source, &target);
        budget.take_window(len as usize);
        Ok(Some(len))
    }

    fn write_piecewise(&self, wr: &mut SendWr, budget: &mut Budget) -> Result<u64, Refusal> {
        self.check_ahead(wr)?;
        let (target, part) = (self.target(wr), self.part());
        self.to
            .check_remote(self.pd, target, Access::REMOTE_WRITE)?;
        let (domain, len) = (self.requester_domain(), self.len);
        let mut payload = Payload { domain, wr, len };
        let at = self.to.write(self.pd, target, part, &mut payload, budget)?;
        Ok(at - part.at)
    }

    #[inline]
    fn send(&mut self, wr: &mut SendWr, budget: &mut Budget) -> Result<Progress, Refusal> {
        let (part, domain, len) = (self.part(), self.requester_domain(), self.len);
        if part.at == 0 {
            // The gather list is checked before the responder gives up a
            // receive request for a message that will never come.
            check_local(domain, wr).map_err(|_| Refusal::Local)?;
        }
        let mut payload = Payload { domain, wr, len };
        if part.at == 0 {
            let srqn = payload.wr.xrc_srqn;
            self.to.begin_send(srqn, &mut payload, budget)?;
        }
        let at = self.to.scatter(part, &mut payload, budget)?;
        if self.advance(at - part.at, *budget)? == Progress::Partly {
            return Ok(Progress::Partly);
        }
        if wr.operation == Operation::SendInvalidate {
            self.to.check_invalidation(self.pd, wr.immediate)?;
        }
        Ok(Progress::Done)
    }

    #[inline(never)]
    fn read(
        &mut self,
        wr: &mut SendWr,
        rights: RemoteRights,
        budget: &mut Budget,
    ) -> Result<Progress, Refusal> {
        if !rights.read {
            return Err(Refusal::Invalid);
        }
        if self.len == 0 {
            return Ok(Progress::Done);
        }
        self.check_ahead(wr)?;
        let target = self.target(wr);
        self.to.check_remote(self.pd, target, Access::REMOTE_READ)?;
        let source = [target.stretch()];
        if self.from_core.in_completion.answers(wr, self.len) && self.req.offset == 0 {
            check_local(self.requester_domain(), wr).map_err(|_| Refusal::Local)?;
            wr.inline.clear();
            wr.inline.resize(self.len as usize, 0);
            let from = self.responder_domain();
            let (needed, to) = (Access::REMOTE_READ, &mut wr.inline);
            let read = budget.as_a_whole(|left| read_list(from, &source, 0, needed, to, left));
            if read.ok() != Some(wr.inline.len()) {
                wr.inline.clear();
                return Err(refused(read.err(), Refusal::Access));
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
                    CopyError::From(error) => refused(Some(error), Refusal::Access),
                    CopyError::To(error) => local(error),
                },
            )?;
        self.advance(done, *budget)
    }

    #[inline(never)]
    fn atomic(&mut self, wr: &mut SendWr, budget: &mut Budget) -> Result<Progress, Refusal> {
        let len = wr.atomic.size();
        self.to
            .check_atomic(self.pd, (wr.remote_addr, wr.rkey), wr.atomic)?;
        check_local(self.requester_domain(), wr).map_err(|_| Refusal::Local)?;
        let held = self.from_core.in_completion.answers(wr, len);
        // The answer has a place before there is one: an atomic is not done twice.
        let mut to = Cursor::new(self.requester_domain(), &wr.sges, 0, Access::LOCAL_WRITE);
        let mut place = None;
        let mut room = if held { len } else { 0 };
        while room < len {
            let window = to.window(len - room, budget).map_err(local)?;
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
        .map_err(|error| refused(Some(error), Refusal::Access))?;
        let (mut bytes, count) = wr.atomic.answer(original, held);
        let bytes = &mut bytes[..count];
        if held {
            wr.inline.clear();
            wr.inline.extend_from_slice(bytes);
            budget.take(WINDOW_NS);
            return Ok(Progress::Done);
        }
        let source = VolatileSlice::from(bytes);
        if let Some(place) = place.filter(|place| place.len() == count) {
            copy_in_order(&source, &place);
            budget.take(WINDOW_NS);
            return Ok(Progress::Done);
        }
        let mut to = Cursor::new(self.requester_domain(), &wr.sges, 0, Access::LOCAL_WRITE);
        // Done as a whole, whatever is left of the turn.
        budget
            .as_a_whole(|left| {
                copy::<F::Dma, F::Dma>(&mut Source::Bytes(source), &mut to, len, left)
            })
            .map_err(|_| Refusal::Local)?;
        Ok(Progress::Done)
    }
}
