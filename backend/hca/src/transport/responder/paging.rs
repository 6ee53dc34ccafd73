//! Page faults of responders, as frames cause them.

use crate::objects::page_fault::{PageFault, Paging};
use crate::objects::qp::RecvQueue;
use crate::objects::refusal::Refusal;
use crate::objects::work::Operation;
use crate::queue_format::QueueFormat;
use crate::transport::arrived::Arrived;
use crate::transport::frame::{Content, Target};
use crate::transport::responder::receiving::Open;
use crate::transport::responder::{Reception, xrc_domain};

impl<F: QueueFormat> Reception<'_, F> {
    /// The page fault of a frame that is refused for one, if there is somebody to tell.
    pub(crate) fn fault(&self, arrival: &Arrived, refusal: Refusal) -> Option<PageFault> {
        let (frame, done) = (&arrival.frame, u64::from(arrival.done));
        if refusal != Refusal::Absent || self.resp.paging != Paging::None {
            return None;
        }
        let received = self.resp.received + done;
        let pd = match self.resp.queue {
            RecvQueue::Xrc(xrcd) => xrc_domain(self.vf, self.srqs, xrcd, frame.srq).ok()?,
            _ => self.core.pd,
        };
        let memory = self.domain(pd);
        let remote = |operation, target: Target, at| {
            let named = (target.rkey, target.addr, target.length);
            PageFault::remote(self.core, memory, operation, named, at)
        };
        Some(match (frame.content.clone(), self.resp.receiving.open) {
            (Content::Write(Some(target), _), _) => remote(Operation::Write, target, done),
            (Content::Write(None, _), Some(Open::Write(target))) => {
                remote(Operation::Write, target, received)
            }
            (Content::Read(target), _) => remote(Operation::Read, target, done),
            (
                Content::Atomic {
                    operation,
                    addr,
                    rkey,
                    operands,
                },
                _,
            ) => {
                let named = (rkey, addr, operands.size() as u32);
                PageFault::remote(self.core, memory, operation, named, 0)
            }
            _ => {
                let end = self.resp.received + u64::from(frame.len());
                let memory = self.domain(self.resp.inbound.as_ref()?.pd);
                PageFault::message(self.core, self.resp, memory, [received, end])?
            }
        })
    }
}
