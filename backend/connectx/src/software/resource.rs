//! Protection domains, XRC domains and doorbell pages.

use hca::Dma;

use super::{Commands, NUMBER, Outcome, refuse};
use crate::bits::command::Status;

impl<D: Dma + 'static> Commands<'_, D> {
    pub(super) fn alloc_pd(&mut self, reply: &mut [u8]) -> Outcome {
        NUMBER.set(reply, self.engine.alloc_pd(self.vf)?);
        Ok(())
    }

    pub(super) fn dealloc_pd(&mut self, request: &[u8]) -> Outcome {
        Ok(self.engine.dealloc_pd(self.vf, NUMBER.get(request))?)
    }

    pub(super) fn alloc_xrcd(&mut self, reply: &mut [u8]) -> Outcome {
        NUMBER.set(reply, self.engine.alloc_xrcd(self.vf)?);
        Ok(())
    }

    pub(super) fn dealloc_xrcd(&mut self, request: &[u8]) -> Outcome {
        Ok(self.engine.dealloc_xrcd(self.vf, NUMBER.get(request))?)
    }

    pub(super) fn alloc_uar(&mut self, reply: &mut [u8]) -> Outcome {
        let page = self.state_mut().uars.allocate().ok_or(refuse(
            Status::NoResources,
            "no doorbell page is left: make BAR 0 larger",
        ))?;
        NUMBER.set(reply, page);
        Ok(())
    }

    pub(super) fn dealloc_uar(&mut self, request: &[u8]) -> Outcome {
        if self.state_mut().uars.free(NUMBER.get(request)) {
            Ok(())
        } else {
            Err(refuse(Status::BadResource, "no such doorbell page"))
        }
    }
}
