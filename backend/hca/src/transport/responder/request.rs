//! A request at its responder, whatever brings it: receive requests that it takes, memory that it fills, refusals.

use crate::budget::Budget;
use crate::memory::access::{Cursor, check_list};
use crate::memory::domain::Domain;
use crate::memory::mr::{Access, MemoryKey};
use crate::memory::sge::Sge;
use crate::objects::page_fault::PageFault;
use crate::objects::qp::RecvQueue;
use crate::objects::reason::Reason;
use crate::objects::refusal::Refusal;
use crate::objects::vf::Vf;
use crate::objects::work::{AtomicOperands, MAX_MESSAGE, Operation};
use crate::queue_format::QueueFormat;
use crate::transport::frame::Target;
use crate::transport::payload::{Incoming, Part};
use crate::transport::refusal::Refused;
use crate::transport::responder::{Reception, check_remote, take_receive, xrc_domain};

impl<F: QueueFormat> Reception<'_, F> {
    /// Protection domain in which a request is carried out: the responder's own, or that of the shared receive queue
    /// which an XRC request names.
    ///
    /// # Errors
    /// Refusal of a request that names no such queue.
    #[inline]
    pub fn pd(&self, srqn: u32) -> Result<u32, Refusal> {
        match self.resp.queue {
            RecvQueue::Xrc(xrcd) => xrc_domain(self.vf, self.srqs, xrcd, srqn),
            _ => Ok(self.core.pd),
        }
    }

    #[inline]
    pub fn domain(&self, pd: u32) -> Domain<'_, F::Dma> {
        self.vf.domain(pd)
    }

    /// Takes what a SEND goes to that begins: a receive request, or the entry of a tag list that its beginning matches.
    ///
    /// # Errors
    /// [`Refusal`].
    #[inline]
    pub fn begin_send(
        &mut self,
        srqn: u32,
        payload: &mut impl Incoming<F::Dma>,
        budget: &mut Budget,
    ) -> Result<(), Refusal> {
        if let RecvQueue::Tagged(_) = self.resp.queue {
            let head = payload.head(budget)?;
            return self.take_tagged(&head);
        }
        self.take_receive(srqn)
    }

    /// Takes the responder's next receive request, for the message to fill.
    ///
    /// # Errors
    /// [`Refusal`].
    #[inline]
    pub fn take_receive(&mut self, srqn: u32) -> Result<(), Refusal> {
        take_receive(
            self.core,
            self.resp,
            self.vf,
            self.srqs,
            self.spare_recvs,
            srqn,
        )
    }

    /// Fills what a SEND goes to with a part of it. Returns as far as the message has come then.
    ///
    /// # Errors
    /// [`Refusal`].
    #[inline]
    pub fn scatter(
        &mut self,
        part: Part,
        payload: &mut impl Incoming<F::Dma>,
        budget: &mut Budget,
    ) -> Result<u64, Refusal> {
        if let RecvQueue::Tagged(_) = self.resp.queue {
            return self.scatter_tagged(part, payload, budget);
        }
        if part.is_whole
            && part.at == 0
            && self.core.in_completion.receives(part.end)
            && self.hold(part, payload, budget)?
        {
            return Ok(part.end);
        }
        let Some(inbound) = &self.resp.inbound else {
            return Err(Refusal::Operation);
        };
        if capacity(&inbound.wr.sges) < part.end {
            return Err(Refusal::Invalid);
        }
        let (domain, list) = (self.domain(inbound.pd), &inbound.wr.sges);
        let mut to = Cursor::new(domain, list, part.at, Access::LOCAL_WRITE);
        let filled = payload.fill(&mut to, part.at - part.begin, budget);
        Ok(part.at + filled.map_err(|why| why.refusal(Refusal::Operation))?)
    }

    /// Keeps a message for its completion, if that may hold it. Its receive request has to have room for it all the
    /// same.
    #[inline(never)]
    fn hold(
        &mut self,
        part: Part,
        payload: &impl Incoming<F::Dma>,
        budget: &mut Budget,
    ) -> Result<bool, Refusal> {
        let Some(inbound) = &mut self.resp.inbound else {
            return Err(Refusal::Operation);
        };
        let domain = self.vf.domain(inbound.pd);
        check_room(domain, &inbound.wr.sges, part.end)?;
        payload.hold(&mut inbound.wr.held, budget)
    }

    /// Fills the memory that a WRITE names with a part of it. Returns as far as the message has come then.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn write(
        &self,
        pd: u32,
        target: Target,
        part: Part,
        payload: &mut impl Incoming<F::Dma>,
        budget: &mut Budget,
    ) -> Result<u64, Refusal> {
        let list = [target.stretch()];
        let mut to = Cursor::new(self.domain(pd), &list, part.at, Access::REMOTE_WRITE);
        let filled = payload.fill(&mut to, part.at - part.begin, budget);
        Ok(part.at + filled.map_err(|why| why.refusal(Refusal::Access))?)
    }

    /// Checks the memory that a WRITE or a READ names. The key of a transfer of no bytes is not looked at (9.7.4.1.5).
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn check_target(&self, pd: u32, target: Target, needed: Access) -> Result<(), Refusal> {
        if u64::from(target.length) > MAX_MESSAGE {
            return Err(Refusal::Invalid);
        }
        if target.length > 0 {
            self.check_remote(pd, target, needed)?;
        }
        Ok(())
    }

    /// Checks the memory that an atomic names, and that the responder takes atomics.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn check_atomic(
        &self,
        pd: u32,
        (addr, rkey): (u64, u32),
        operands: AtomicOperands,
    ) -> Result<(), Refusal> {
        let len = operands.size();
        if !self.core.attr.rights.atomic || !addr.is_multiple_of(len) {
            return Err(Refusal::Invalid);
        }
        let length = len as u32;
        let target = Target { addr, rkey, length };
        self.check_remote(pd, target, Access::ATOMIC).map(drop)
    }

    #[inline]
    pub fn check_remote(
        &self,
        pd: u32,
        Target { addr, rkey, length }: Target,
        needed: Access,
    ) -> Result<&MemoryKey, Refusal> {
        let (domain, len) = (self.domain(pd), length.into());
        check_remote(domain, self.core, rkey, addr, len, needed)
    }

    /// Checks that a peer may invalidate a key (10.6.5).
    ///
    /// # Errors
    /// [`Refusal::Access`] if not.
    pub fn check_invalidation(&self, pd: u32, key: u32) -> Result<(), Refusal> {
        match self.vf.keys.get(key >> 8) {
            Some(region)
                if region.variant == key as u8
                    && region.pd == pd
                    && region.qpn.is_none_or(|only| only == self.core.qpn)
                    && region.remote_invalidate
                    && !region.free =>
            {
                Ok(())
            }
            _ => Err(Refusal::Access),
        }
    }

    /// The page fault of a request that has come as far as byte `at` and goes on to `end` at least.
    #[cold]
    pub fn page_fault(
        &self,
        pd: u32,
        operation: Operation,
        target: Target,
        [at, end]: [u64; 2],
    ) -> Option<PageFault> {
        if let Refusal::Operation = Refusal::without_page(operation) {
            let memory = self.domain(self.resp.inbound.as_ref()?.pd);
            return PageFault::message(self.core, self.resp, memory, [at, end]);
        }
        let named = (target.rkey, target.addr, target.length);
        let memory = self.domain(pd);
        Some(PageFault::remote(self.core, memory, operation, named, at))
    }

    /// Why a request is refused.
    #[cold]
    pub fn reason(
        &self,
        pd: u32,
        operation: Operation,
        target: Target,
        refusal: Refusal,
    ) -> Reason {
        refusal.reason(&Refused {
            core: self.core,
            xrc: matches!(self.resp.queue, RecvQueue::Xrc(_)),
            domain: self.domain(pd),
            operation,
            addr: target.addr,
            rkey: target.rkey,
            len: target.length.into(),
        })
    }
}

/// Invalidates a key of a responder, which [`Reception::check_invalidation`] has allowed.
#[cold]
pub(crate) fn invalidate<F: QueueFormat>(vf: &mut Vf<F>, key: u32) {
    if let Some(region) = vf.keys.get_mut(key >> 8) {
        region.free = true;
    }
}

/// Bytes that a list has room for.
pub(crate) fn capacity(list: &[Sge]) -> u64 {
    list.iter().map(|sge| u64::from(sge.len)).sum()
}

/// Checks that a scatter list has room for a message, and what of it that would take.
fn check_room<D>(domain: Domain<'_, D>, sges: &[Sge], len: u64) -> Result<(), Refusal> {
    if capacity(sges) < len {
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
