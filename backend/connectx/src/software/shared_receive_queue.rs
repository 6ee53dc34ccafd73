//! Shared receive queues, basic and XRC: CREATE_SRQ, ARM_RQ, QUERY_SRQ,
//! DESTROY_SRQ.

use hca::Dma;

use super::capability::LOG_MAX_SRQ_SIZE;
use super::{Commands, NUMBER, Outcome, Refusal, list, refuse};
use crate::bits::command::{Status, create_eq_in as head_in};
use crate::bits::shared_receive::{arm_rq_in, create_srq_in, query_srq_out, srqc};
use crate::queue::shared::SharedQueue;
use crate::queue::{Buffer, Record};

/// Modifier of ARM_RQ: of a shared receive queue.
pub(super) const ARM_SRQ: u32 = 1;

/// The queue that a CREATE_SRQ asks for.
pub(super) fn requested(request: &[u8]) -> Result<SharedQueue, Refusal> {
    let context = create_srq_in::SRQ_CONTEXT_ENTRY.get(request);
    let log_size = srqc::LOG_SRQ_SIZE.get(context);
    let log_stride = srqc::LOG_RQ_STRIDE.get(context) + 4;
    if srqc::WQ_SIGNATURE.is_set(context) {
        return Err(refuse(
            Status::BadParameter,
            "requests with signatures are not supported",
        ));
    }
    if log_stride < 5 {
        return Err(refuse(
            Status::BadParameter,
            "a request has 32 bytes at least",
        ));
    }
    if log_size > LOG_MAX_SRQ_SIZE {
        return Err(refuse(
            Status::ExceededLimits,
            "the shared receive queue is too long",
        ));
    }
    let buffer = Buffer::new(
        list(request),
        srqc::LOG_PAGE_SIZE.get(context),
        srqc::PAGE_OFFSET.get(context),
        1 << (log_size + log_stride),
    )?;
    let record = Record::new(srqc::DBR_ADDR.get(context))?;
    Ok(SharedQueue::new(buffer, log_size, log_stride, record))
}

impl<D: Dma + 'static> Commands<'_, D> {
    pub(super) fn create_srq(
        &mut self,
        request: &[u8],
        queue: SharedQueue,
        reply: &mut [u8],
    ) -> Outcome {
        let context = create_srq_in::SRQ_CONTEXT_ENTRY.get(request);
        // Drivers give basic queues a domain and a completion queue too, of
        // their own; it does no harm that XRC could reach them there.
        let xrc = match (srqc::XRCD.get(context), srqc::CQN.get(context)) {
            (0, _) => None,
            pair => Some(pair),
        };
        let srqn = self
            .engine
            .create_srq(self.vf, srqc::PD.get(context), xrc, queue)?;
        let context = create_srq_in::SRQ_CONTEXT_ENTRY.array(request);
        self.state_mut()
            .contexts
            .srqs
            .insert(srqn, Box::new(context));
        NUMBER.set(reply, srqn);
        Ok(())
    }

    pub(super) fn arm_rq(&mut self, request: &[u8]) -> Outcome {
        if head_in::OP_MOD.get(request) != ARM_SRQ {
            return Err(refuse(
                Status::BadParameter,
                "only shared receive queues have a limit",
            ));
        }
        let srqn = arm_rq_in::SRQ_NUMBER.get(request);
        Ok(self
            .engine
            .arm_srq(self.vf, srqn, arm_rq_in::LWM.get(request))?)
    }

    pub(super) fn query_srq(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
        let srqn = NUMBER.get(request);
        let (_, limit) = self.engine.srq_mut(self.vf, srqn)?;
        let out = query_srq_out::SRQ_CONTEXT_ENTRY.get_mut(reply);
        if let Some(context) = self.state().contexts.srqs.get(&srqn) {
            let len = out.len().min(context.len());
            out[..len].copy_from_slice(&context[..len]);
        }
        srqc::LWM.set(out, limit);
        Ok(())
    }

    pub(super) fn destroy_srq(&mut self, request: &[u8]) -> Outcome {
        let srqn = NUMBER.get(request);
        self.engine.destroy_srq(self.vf, srqn)?;
        self.state_mut().contexts.srqs.remove(&srqn);
        Ok(())
    }
}
