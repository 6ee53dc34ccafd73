//! Frames that have come for a queue pair are carried out. Results of a request: an answer, and a message that is
//! complete.

use std::sync::Arc;

use wire::Psn;

use super::arrived::{Arrived, STEP_COST};
use super::endpoint::InFlight;
use super::frame::{Content, Frame, Syndrome};
use super::responder::Reception;
use crate::engine::Engine;
use crate::memory::lending::Loan;
use crate::objects::Objects;
use crate::objects::ids::QpIndex;
use crate::objects::page_fault::{Half, PageFault};
use crate::objects::qp::Qp;
use crate::objects::reason::Reason;
use crate::objects::reason::Status;
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
    /// Carries a frame out, as far as a step goes. What is left comes first in the line.
    pub(crate) fn carry_out(&mut self, index: QpIndex, mut arrived: Arrived, budget: &mut i64) {
        let least = STEP_COST.max(*budget);
        let mut left = least;
        let complete = if arrived.frame.is_response() {
            let handled = self.with_requester(index, |requester, around| {
                requester.handle(&mut arrived, around, &mut left)
            });
            self.migrate_exhausted(index);
            self.finish_requests(index);
            self.make_ready(index);
            handled.unwrap_or(true)
        } else {
            let lends = self.lends(index);
            let Self {
                objects,
                spare_recvs,
                ..
            } = self;
            let Objects { qps, vfs, srqs, .. } = objects;
            let Some(Qp { core, resp, .. }) = qps.get_mut(index.0) else {
                return;
            };
            let begins = !std::mem::replace(&mut resp.established, true);
            let mut reception = Reception {
                core,
                resp,
                vf: &mut vfs[usize::from(core.vf.0)],
                srqs,
                spare_recvs,
                lends,
            };
            let reply = reception.handle(&mut arrived, &mut left);
            self.tell_half(index, Half::Responder);
            if begins {
                self.objects.established(index);
            }
            let complete = !reply.partly;
            self.reply(index, reply, arrived.in_flight.clone());
            complete
        };
        *budget -= least - left;
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        if !complete {
            qp.req.line.push_front(arrived);
            *budget = (*budget).min(0);
        }
        if !qp.req.line.is_empty() {
            self.make_ready(index);
        }
    }

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
            self.responder_waits(index, fault);
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
            self.transmit(index, frame, reserved);
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
            let received = (kind, immediate);
            self.complete_recv(index, inbound, Status::Success, len, received, solicited);
        }
        if let Some(refusal) = refusal {
            self.refuse(index, refusal, false);
        }
    }
}
