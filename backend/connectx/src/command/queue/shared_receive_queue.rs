//! Shared receive queues, basic, of XRC and with tags: CREATE_SRQ, ARM_RQ,
//! QUERY_SRQ, DESTROY_SRQ.

use hca::{Dma, LOG_MAX_TAGS};

use super::receive_pool::{self, Form};
use crate::bits::command::{Status, create_eq_in as head_in};
use crate::bits::shared_receive::{
    ARM_SRQ, ARM_XRQ, OFFLOAD_RENDEZVOUS, TOPOLOGY_TAG_MATCHING, arm_rq_in, create_srq_in,
    query_srq_out, srqc, srqc_tags as tags, xrc_srqc,
};
use crate::command::{Command, Commands, NUMBER, list};
use crate::queue::shared::SharedQueue;
use crate::queue::{Buffer, Record};
use crate::refusal::{Outcome, Refusal, refuse};
use crate::state::capability::LOG_MAX_SRQ_SIZE;

/// The list of tags that a queue is to have: entries, as a power of two, and whether the device reads what a
/// rendezvous says.
type Tags = (u8, bool);

/// The queue that a CREATE_SRQ asks for.
#[derive(Debug)]
pub(crate) struct NewSharedQueue {
    context: Box<[u8; srqc::SIZE]>,
    queue: SharedQueue,
    tags: Option<Tags>,
    /// The index that its completions have.
    user_index: Option<u32>,
}

impl NewSharedQueue {
    pub fn parse(request: &[u8], form: Option<Form>) -> Result<Self, Refusal> {
        let tags = match form {
            Some(Form::Tagged) => Some(requested_tags(request)?),
            _ => None,
        };
        let queue = requested_queue(request)?;
        let context = Box::new(create_srq_in::SRQ_CONTEXT_ENTRY.array(request));
        let is_own = !xrc_srqc::USER_INDEX_EQUAL_XRC_SRQN.is_set(context.as_slice());
        let user_index = match tags {
            Some(_) => Some(tags::USER_INDEX.get(request)),
            None if domain(context.as_slice()).is_some() && is_own => {
                Some(xrc_srqc::USER_INDEX.get(context.as_slice()))
            }
            None => None,
        };
        Ok(Self {
            context,
            queue,
            tags,
            user_index,
        })
    }
}

/// The domain of XRC that a queue is in, and its completion queue. Drivers give basic queues both, too, of
/// their own; it does no harm that XRC could reach them there.
fn domain(context: &[u8]) -> Option<(u32, u32)> {
    match (srqc::XRCD.get(context), srqc::CQN.get(context)) {
        (0, _) => None,
        pair => Some(pair),
    }
}

/// Reads an ARM_RQ.
pub(crate) fn parse_limit<D: Dma + 'static>(request: &[u8]) -> Result<Command<D>, Refusal> {
    if !matches!(head_in::OP_MOD.get(request), ARM_SRQ | ARM_XRQ) {
        return Err(refuse(
            Status::BadParameter,
            "only shared receive queues have a limit",
        ));
    }
    Ok(Command::ArmRq {
        srqn: arm_rq_in::SRQ_NUMBER.get(request),
        limit: arm_rq_in::LWM.get(request),
    })
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

pub(crate) fn create_srq<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    new: NewSharedQueue,
    reply: &mut [u8],
) -> Outcome {
    let context = new.context.as_slice();
    let pd = srqc::PD.get(context);
    let srqn = match new.tags {
        None => {
            let xrc = domain(context);
            commands
                .engine
                .verbs(commands.vf)
                .create_srq(pd, xrc, new.queue)?
        }
        Some((log_size, rendezvous)) => {
            let list = (srqc::CQN.get(context), log_size, rendezvous);
            commands
                .engine
                .verbs(commands.vf)
                .create_tagged_srq(pd, list, new.queue)?
        }
    };
    if let Some(given) = new.user_index {
        let user_index = commands.user_index(given);
        commands
            .engine
            .verbs(commands.vf)
            .index_srq(srqn, user_index)?;
    }
    commands.state_mut().contexts.srqs.insert(srqn, new.context);
    NUMBER.set(reply, srqn);
    Ok(())
}

pub(crate) fn arm_rq<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    srqn: u32,
    limit: u32,
) -> Outcome {
    Ok(commands.engine.verbs(commands.vf).arm_srq(srqn, limit)?)
}

pub(crate) fn query_srq<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    srqn: u32,
    form: Option<Form>,
    reply: &mut [u8],
) -> Outcome {
    let (_, limit) = commands.engine.verbs(commands.vf).srq_mut(srqn)?;
    let out = query_srq_out::SRQ_CONTEXT_ENTRY.get_mut(reply);
    if let Some(context) = commands.state().contexts.srqs.get(&srqn) {
        let len = out.len().min(context.len());
        out[..len].copy_from_slice(&context[..len]);
    }
    srqc::LWM.set(out, limit);
    if let Some(view) = commands.engine.query_tags(commands.vf, srqn)? {
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
    if let Some(form) = form {
        receive_pool::show(form, reply);
    }
    Ok(())
}

pub(crate) fn destroy_srq<D: Dma + 'static>(commands: &mut Commands<'_, D>, srqn: u32) -> Outcome {
    commands.engine.verbs(commands.vf).destroy_srq(srqn)?;
    commands.state_mut().contexts.srqs.remove(&srqn);
    Ok(())
}
