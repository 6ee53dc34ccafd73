//! Paging on demand: QUERY_SPECIAL_CONTEXTS, PAGE_FAULT_RESUME.

use hca::uniform::NULL_KEY;
use hca::{Dma, Half};
use wire::Qpn;

use crate::bits::event::page_fault_resume_in as resume;
use crate::bits::memory_key::query_special_contexts_out as special;
use crate::command::{Command, Commands};
use crate::refusal::Outcome;

/// Reads a PAGE_FAULT_RESUME. The token is that of the event: the queue pair, whatever queue the request is in.
pub(crate) fn parse_resume<D: Dma + 'static>(request: &[u8]) -> Command<D> {
    Command::PageFaultResume {
        qpn: Qpn::new(resume::TOKEN.get(request)),
        half: crate::paging::half(resume::PAGE_FAULT_TYPE.get(request)),
        is_there: !resume::ERROR.is_set(request),
    }
}

pub(crate) fn query_special_contexts(reply: &mut [u8]) -> Outcome {
    special::NULL_MKEY.set(reply, NULL_KEY);
    Ok(())
}

pub(crate) fn resume_page_fault<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    qpn: Qpn,
    half: Half,
    is_there: bool,
) -> Outcome {
    Ok(commands
        .engine
        .verbs(commands.vf)
        .resume_fault(qpn, half, is_there)?)
}
