//! Messages that are matched with tags, by one copy.

use vm_memory::VolatileSlice;

use super::message::{Message, Progress};
use crate::memory::access::{Cursor, Source, as_a_whole, copy};
use crate::memory::mr::{Access, KeyError};
use crate::objects::qp::attributes::Inbound;
use crate::objects::refusal::Refusal;
use crate::objects::tags::{Head, RENDEZVOUS};
use crate::objects::work::SendWr;
use crate::objects::work::payload::check_local;
use crate::objects::work::payload::read_payload;
use crate::queue_format::QueueFormat;
use crate::transport::tagged::take_tagged;

impl<F: QueueFormat> Message<'_, F> {
    /// Moves a message on whose receiver matches it with tags.
    pub(super) fn send_tagged(
        &mut self,
        wr: &mut SendWr,
        budget: &mut i64,
    ) -> Result<Progress, Refusal> {
        if self.req.offset == 0 {
            check_local(self.requester_domain(), wr).map_err(|_| Refusal::Local)?;
            let head = self.head(wr, budget)?;
            let vf = &self.vfs[usize::from(self.to_core.vf.0)];
            take_tagged(
                self.to_core,
                self.resp,
                vf,
                self.srqs,
                self.spare_recvs,
                &head,
            )?;
            self.check_tagged()?;
        }
        let skip = self.resp.arrival().skip();
        if self.req.offset < skip {
            self.begun(skip.min(self.len));
        }
        if skip == 0 && !self.brings_head(budget)? {
            return Ok(Progress::Partly);
        }
        let mut done = 0;
        if self.req.offset < self.len {
            let at = self.req.offset - skip;
            let inbound = self.tagged_inbound()?;
            let mut to = self.tagged_memory(inbound, at);
            done = self.gather(wr, &mut to, budget, Refusal::Operation)?;
        }
        if self.advance(done, *budget)? == Progress::Partly {
            return Ok(Progress::Partly);
        }
        self.invalidate(wr)?;
        Ok(Progress::Done)
    }

    /// Header of the message.
    fn head(&self, wr: &SendWr, budget: &mut i64) -> Result<Head, Refusal> {
        let mut bytes = [0; RENDEZVOUS];
        let len = self.len.min(RENDEZVOUS as u64) as usize;
        let domain = self.requester_domain();
        let to = &mut bytes[..len];
        let read = as_a_whole(budget, |left| {
            read_payload(domain, wr, 0, Access::LOCAL_READ, to, left)
        });
        match read {
            Ok(read) if read == len => Ok(Head::of(&bytes[..len])),
            Err(KeyError::Absent(_)) => Err(Refusal::LocalAbsent),
            Ok(_) | Err(_) => Err(Refusal::Local),
        }
    }

    /// Checks that what the message goes to has room for it.
    fn check_tagged(&self) -> Result<(), Refusal> {
        let skip = self.resp.arrival().skip();
        let inbound = self.tagged_inbound()?;
        let capacity: u64 = inbound.wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
        if capacity < self.len.saturating_sub(skip) {
            return Err(Refusal::Invalid);
        }
        Ok(())
    }

    /// So much of the message is where it goes, or stays out.
    fn begun(&mut self, offset: u64) {
        (self.req.offset, self.resp.received) = (offset, offset);
    }

    /// Brings what has been looked at of the message to where it goes, as far as it is not there yet; whether all
    /// of it is. The bytes that were looked at are brought, whatever the sender has in its memory by now.
    fn brings_head(&mut self, budget: &mut i64) -> Result<bool, Refusal> {
        let head = self.resp.head();
        let bytes = head.bytes();
        let end = self.len.min(bytes.len() as u64);
        let at = self.req.offset;
        if at >= end {
            return Ok(true);
        }
        let mut piece = [0; RENDEZVOUS];
        let piece = &mut piece[..(end - at) as usize];
        piece.copy_from_slice(&bytes[at as usize..end as usize]);
        let mut from = Source::Bytes(VolatileSlice::from(piece));
        let inbound = self.tagged_inbound()?;
        let mut to = self.tagged_memory(inbound, at);
        let copied = as_a_whole(budget, |left| {
            copy::<F::Dma, F::Dma>(&mut from, &mut to, end - at, left)
        });
        let reached = at + copied.map_err(|_| Refusal::Operation)?;
        self.begun(reached);
        Ok(reached == end)
    }

    fn tagged_inbound(&self) -> Result<&Inbound, Refusal> {
        self.resp.inbound.as_ref().ok_or(Refusal::Operation)
    }

    /// Memory that the message goes to, from this byte on.
    fn tagged_memory<'a>(&'a self, inbound: &'a Inbound, at: u64) -> Cursor<'a, F::Dma> {
        Cursor::new(
            self.message_domain(),
            &inbound.wr.sges,
            at,
            Access::LOCAL_WRITE,
        )
    }
}
