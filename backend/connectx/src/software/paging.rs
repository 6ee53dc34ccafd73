//! Paging on demand: QUERY_SPECIAL_CONTEXTS, PAGE_FAULT_RESUME.

use hca::Dma;
use hca::uniform::NULL_KEY;
use wire::Qpn;

use super::{Commands, Outcome, TOO_EARLY};
use crate::bits::command::PagingOpcode;
use crate::bits::event::page_fault_resume_in as resume;
use crate::bits::memory_key::query_special_contexts_out as special;

impl<D: Dma + 'static> Commands<'_, D> {
    /// Carries out a command about pages that are not there.
    pub(super) fn paging(
        &mut self,
        opcode: PagingOpcode,
        request: &[u8],
        reply: &mut [u8],
    ) -> Outcome {
        if !self.state().is_initialized() {
            return Err(TOO_EARLY);
        }
        match opcode {
            PagingOpcode::QuerySpecialContexts => {
                special::NULL_MKEY.set(reply, NULL_KEY);
                Ok(())
            }
            PagingOpcode::PageFaultResume => {
                // The token is what the event has said: the queue pair, whatever queue the request is in.
                let qpn = Qpn::new(resume::TOKEN.get(request));
                let half = crate::paging::half(resume::PAGE_FAULT_TYPE.get(request));
                let there = !resume::ERROR.is_set(request);
                Ok(self.engine.resume_fault(self.vf, qpn, half, there)?)
            }
        }
    }
}
