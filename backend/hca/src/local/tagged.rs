//! Messages that are matched with tags, by one copy.

use super::message::{Message, Progress, check_local};
use crate::face::Face;
use crate::memory::access::{Cursor, Domain, read_payload};
use crate::memory::mr::{Access, KeyError};
use crate::transport::refusal::Refusal;
use crate::transport::tagged::take_tagged;
use crate::verbs::tags::{Head, RENDEZVOUS};
use crate::verbs::work::SendWr;

impl<F: Face> Message<'_, F> {
    /// Moves a message on whose receiver matches it with tags.
    pub(super) fn send_tagged(
        &mut self,
        wr: &mut SendWr,
        budget: &mut i64,
    ) -> Result<Progress, Refusal> {
        if self.req.offset == 0 {
            check_local(self.requester_domain(), wr).map_err(|_| Refusal::Local)?;
            let head = self.head(wr)?;
            let vf = &self.vfs[usize::from(self.to_core.vf.0)];
            take_tagged(
                self.to_core,
                self.resp,
                vf,
                self.srqs,
                self.spare_recvs,
                &head,
            )?;
            let skip = self.resp.arrival().skip().min(self.len);
            (self.req.offset, self.resp.received) = (skip, skip);
        }
        let mut done = 0;
        if self.req.offset < self.len {
            done = self.scatter_tagged(wr, budget)?;
        }
        if self.advance(done, *budget)? == Progress::Partly {
            return Ok(Progress::Partly);
        }
        self.invalidate(wr)?;
        Ok(Progress::Done)
    }

    /// How the message begins.
    fn head(&self, wr: &SendWr) -> Result<Head, Refusal> {
        let mut bytes = [0; RENDEZVOUS];
        let len = self.len.min(RENDEZVOUS as u64) as usize;
        let mut budget = i64::MAX;
        let domain = self.requester_domain();
        let to = &mut bytes[..len];
        match read_payload(domain, wr, 0, Access::LOCAL_READ, to, &mut budget) {
            Ok(read) if read == len => Ok(Head { bytes, len }),
            Err(KeyError::Absent(_)) => Err(Refusal::LocalAbsent),
            Ok(_) | Err(_) => Err(Refusal::Local),
        }
    }

    fn scatter_tagged(&mut self, wr: &mut SendWr, budget: &mut i64) -> Result<u64, Refusal> {
        let skip = self.resp.arrival().skip();
        let Some(inbound) = &self.resp.inbound else {
            return Err(Refusal::Operation);
        };
        let domain = Domain {
            pd: inbound.pd,
            ..self.responder_domain()
        };
        let capacity: u64 = inbound.wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
        if capacity < self.len.saturating_sub(skip) {
            return Err(Refusal::Invalid);
        }
        let at = self.req.offset.saturating_sub(skip);
        let mut to = Cursor::new(domain, &inbound.wr.sges, at, Access::LOCAL_WRITE);
        self.gather(wr, &mut to, budget, Refusal::Operation)
    }
}
