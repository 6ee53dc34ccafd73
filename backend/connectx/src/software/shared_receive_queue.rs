//! Shared receive queues, basic, of XRC and with tags: CREATE_SRQ, ARM_RQ,
//! QUERY_SRQ, DESTROY_SRQ.

use hca::{Dma, LOG_MAX_TAGS};

use super::capability::LOG_MAX_SRQ_SIZE;
use super::receive_pool::{Form, tags};
use super::{Commands, NUMBER, Outcome, Refusal, list, refuse};
use crate::bits::command::{Status, create_eq_in as head_in};
use crate::bits::shared_receive::{
    ARM_SRQ, ARM_XRQ, OFFLOAD_RENDEZVOUS, TOPOLOGY_TAG_MATCHING, arm_rq_in, create_srq_in,
    query_srq_out, srqc, xrc_srqc,
};
use crate::queue::shared::SharedQueue;
use crate::queue::{Buffer, Record};

/// The list of tags that a queue is to have: entries, as a power of two, and whether the device reads what a
/// rendezvous says.
pub(super) type Tags = (u8, bool);

/// The queue that a CREATE_SRQ asks for, and its list of tags.
pub(super) fn requested(
    request: &[u8],
    form: Option<Form>,
) -> Result<(SharedQueue, Option<Tags>), Refusal> {
    let tags = match form {
        Some(Form::Tagged) => Some(requested_tags(request)?),
        _ => None,
    };
    Ok((requested_queue(request)?, tags))
}

fn requested_tags(request: &[u8]) -> Result<Tags, Refusal> {
    if tags::TOPOLOGY.get(request) != TOPOLOGY_TAG_MATCHING {
        return Err(refuse(
            Status::BadParameter,
            "a queue of this kind (XRQ) must match messages with tags",
        ));
    }
    let log_size = tags::LOG_SIZE.get(request) as u8;
    if log_size > LOG_MAX_TAGS {
        return Err(refuse(
            Status::ExceededLimits,
            "the list of tags is too long",
        ));
    }
    match tags::OFFLOAD.get(request) {
        0 => Ok((log_size, false)),
        OFFLOAD_RENDEZVOUS => Ok((log_size, true)),
        _ => Err(refuse(Status::BadParameter, "no such offload of tags")),
    }
}

fn requested_queue(request: &[u8]) -> Result<SharedQueue, Refusal> {
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
        (queue, tags): (SharedQueue, Option<Tags>),
        reply: &mut [u8],
    ) -> Outcome {
        let context = create_srq_in::SRQ_CONTEXT_ENTRY.get(request);
        let pd = srqc::PD.get(context);
        // Drivers give basic queues a domain and a completion queue too, of
        // their own; it does no harm that XRC could reach them there.
        let xrc = match (srqc::XRCD.get(context), srqc::CQN.get(context)) {
            (0, _) => None,
            pair => Some(pair),
        };
        let srqn = match tags {
            None => self.engine.create_srq(self.vf, pd, xrc, queue)?,
            Some((log_size, rendezvous)) => {
                let list = (srqc::CQN.get(context), log_size, rendezvous);
                self.engine.create_tagged_srq(self.vf, pd, list, queue)?
            }
        };
        let given = match (tags, xrc) {
            (Some(_), _) => Some(tags::USER_INDEX.get(request)),
            (None, Some(_)) if !xrc_srqc::USER_INDEX_EQUAL_XRC_SRQN.is_set(context) => {
                Some(xrc_srqc::USER_INDEX.get(context))
            }
            _ => None,
        };
        if let Some(given) = given {
            let user_index = self.user_index(given);
            self.engine.index_srq(self.vf, srqn, user_index)?;
        }
        let context = create_srq_in::SRQ_CONTEXT_ENTRY.array(request);
        self.state_mut()
            .contexts
            .srqs
            .insert(srqn, Box::new(context));
        NUMBER.set(reply, srqn);
        Ok(())
    }

    pub(super) fn arm_rq(&mut self, request: &[u8]) -> Outcome {
        if !matches!(head_in::OP_MOD.get(request), ARM_SRQ | ARM_XRQ) {
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
        if let Some(view) = self.engine.query_tags(self.vf, srqn)? {
            for (field, value) in [
                (tags::OFFLOAD, view.rendezvous.into()),
                (tags::LOG_SIZE, view.log_size.into()),
                (tags::NEXT, view.next.into()),
                (tags::SEEN, view.seen.into()),
                (tags::UNEXPECTED, view.unexpected.into()),
            ] {
                field.set(reply, value);
            }
        }
        Ok(())
    }

    pub(super) fn destroy_srq(&mut self, request: &[u8]) -> Outcome {
        let srqn = NUMBER.get(request);
        self.engine.destroy_srq(self.vf, srqn)?;
        self.state_mut().contexts.srqs.remove(&srqn);
        Ok(())
    }
}
