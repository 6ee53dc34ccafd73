//! Protection domains, XRC domains and doorbell pages.

use hca::Dma;

use crate::bits::command::Status;
use crate::command::{Commands, NUMBER};
use crate::refusal::{Outcome, refuse};

impl<D: Dma + 'static> Commands<'_, D> {
    pub(crate) fn alloc_pd(&mut self, reply: &mut [u8]) -> Outcome {
        NUMBER.set(reply, self.engine.alloc_pd(self.vf)?);
        Ok(())
    }

    pub(crate) fn dealloc_pd(&mut self, number: u32) -> Outcome {
        Ok(self.engine.dealloc_pd(self.vf, number)?)
    }

    pub(crate) fn alloc_xrcd(&mut self, reply: &mut [u8]) -> Outcome {
        NUMBER.set(reply, self.engine.alloc_xrcd(self.vf)?);
        Ok(())
    }

    pub(crate) fn dealloc_xrcd(&mut self, number: u32) -> Outcome {
        Ok(self.engine.dealloc_xrcd(self.vf, number)?)
    }

    pub(crate) fn alloc_uar(&mut self, reply: &mut [u8]) -> Outcome {
        let page = self.state_mut().uars.allocate().ok_or(refuse(
            Status::NoResources,
            "no doorbell page is left: make BAR 0 larger",
        ))?;
        NUMBER.set(reply, page);
        Ok(())
    }

    pub(crate) fn dealloc_uar(&mut self, number: u32) -> Outcome {
        if self.state_mut().uars.free(number) {
            Ok(())
        } else {
            Err(refuse(Status::BadResource, "no such doorbell page"))
        }
    }
}
