//! Results of a request: an answer, and a message that is complete.

use std::sync::Arc;

use wire::Psn;

use super::endpoint::InFlight;
use super::frame::{Content, Frame, Syndrome};
use super::responder::request::invalidate;
use crate::engine::Engine;
use crate::memory::lending::Loan;
use crate::objects::ids::QpIndex;
use crate::objects::page_fault::PageFault;
use crate::objects::reason::{Reason, Status};
use crate::objects::refusal::Refusal;
use crate::objects::work::RecvKind;
use crate::queue_format::QueueFormat;

/// A message is complete, and a receive request with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub kind: RecvKind,
    pub immediate: u32,
    pub len: u32,
    pub solicited: bool,
}

/// Result of a frame.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// The answer: what it says, its number and its payload.
    pub answer: Option<(Content, Psn, Vec<u8>)>,
    /// In place of the payload, where the answer lends it.
    pub loan: Option<Box<Loan>>,
    /// Why it refuses, if it does.
    pub reason: Reason,
    /// Some of it has been carried out; the rest is to be in the next turn.
    pub partly: bool,
    /// A receive request to complete.
    pub delivery: Option<Delivery>,
    /// The responder has refused, other than for the time being, and fails.
    pub refusal: Option<Refusal>,
    /// A page that it needs is not there.
    pub fault: Option<PageFault>,
}

impl Reply {
    pub fn say(syndrome: Syndrome, psn: Psn, msn: u32) -> Self {
        Self {
            answer: Some((Content::Acknowledge(syndrome, msn), psn, Vec::new())),
            ..Self::default()
        }
    }
}

impl<F: QueueFormat> Engine<F> {
    /// Acts on the result of a request. Its answer takes the room that it has reserved.
    pub(super) fn reply(&mut self, index: QpIndex, reply: Reply, reserved: Option<Arc<InFlight>>) {
        let Reply {
            answer,
            loan,
            reason,
            partly: _,
            delivery,
            refusal,
            fault,
        } = reply;
        if let Some(fault) = fault {
            self.objects.responder_waits(index, fault);
        }
        if let (Some((content, psn, payload)), Some(address)) =
            (answer, self.objects.address(index))
            && let Some(qp) = self.objects.qps.get(index.0)
        {
            let frame = Frame {
                payload,
                loan,
                reason,
                ..Frame::new(address, qp.core.attr.mtu, psn, content)
            };
            self.network
                .transmit(&mut self.objects, index, frame, reserved);
        }
        if let Some(Delivery {
            kind,
            immediate,
            len,
            solicited,
        }) = delivery
            && let Some(qp) = self.objects.qps.get_mut(index.0)
            && let Some(inbound) = qp.resp.inbound.take()
        {
            if kind == RecvKind::SendInvalidate {
                invalidate(&mut self.objects.vfs[usize::from(qp.core.vf.0)], immediate);
            }
            let received = (kind, immediate, solicited);
            self.requests.completions.complete_recv(
                &mut self.objects,
                index,
                inbound,
                Status::Success,
                len,
                received,
            );
        }
        if let Some(refusal) = refusal {
            self.requests
                .refuse(&mut self.objects, index, refusal, false);
        }
    }
}
