//! Completion queues: CREATE_CQ, MODIFY_CQ, QUERY_CQ, DESTROY_CQ.

use hca::Dma;

use crate::bits::command::{Status, create_eq_in as head_in};
use crate::bits::completion::{
    CQ_RESIZE, STATE_ARMED, STATE_FIRED, STATE_SOLICITED_ARMED, STATUS_OVERRUN, cqc, create_cq_in,
    modify_cq_in, query_cq_out,
};
use crate::command::{Commands, NUMBER, list};
use crate::queue::completion::{Arm, CompletionQueue, Moderation, Ring, Traits};
use crate::queue::{Buffer, Record};
use crate::refusal::{Outcome, Refusal, refuse};
use crate::state::capability::LOG_MAX_CQ_SIZE;

/// Fields that MODIFY_CQ changes: the period of moderation.
const PERIOD: u32 = 1 << 0;
/// As above: the count of moderation.
const COUNT: u32 = 1 << 1;
/// As above: whether an overrun is ignored.
const OVERRUN: u32 = 1 << 2;
/// Formats of the compressed completions of received messages, by what they say besides their length: a hash.
const HASH: u32 = 0;
/// As above: a checksum.
const CHECKSUM: u32 = 1;
/// As above: a checksum, and the number of a stride.
const CHECKSUM_STRIDE: u32 = 3;
/// Code of an entry's size: 64 bytes.
const ENTRY_64: u32 = 0;
/// Code of an entry's size: 128 bytes.
const ENTRY_128: u32 = 1;
/// Code of an entry's size: 128 bytes, of which those that say nothing are written, too.
const ENTRY_128_PADDED: u32 = 2;

/// The ring that a context and the page list behind it describe.
fn ring(context: &[u8], pages: &[u8]) -> Result<Ring, Refusal> {
    let log_size = cqc::LOG_CQ_SIZE.get(context);
    if log_size > LOG_MAX_CQ_SIZE {
        return Err(refuse(
            Status::ExceededLimits,
            "the completion queue is too long",
        ));
    }
    let (log_stride, padded) = match cqc::CQE_SZ.get(context) {
        ENTRY_64 => (6, false),
        ENTRY_128 => (7, false),
        ENTRY_128_PADDED => (7, true),
        _ => return Err(refuse(Status::BadParameter, "entries have 64 or 128 bytes")),
    };
    let buffer = Buffer::new(
        pages,
        cqc::LOG_PAGE_SIZE.get(context),
        cqc::PAGE_OFFSET.get(context),
        1 << (log_size + log_stride),
    )?;
    Ok(Ring {
        buffer,
        log_size,
        log_stride,
        padded,
    })
}

/// The code of the size of a ring's entries.
const fn entry_size(ring: &Ring) -> u32 {
    match (ring.log_stride, ring.padded) {
        (6, _) => ENTRY_64,
        (_, false) => ENTRY_128,
        (_, true) => ENTRY_128_PADDED,
    }
}

fn moderation(context: &[u8]) -> Moderation {
    Moderation {
        count: cqc::CQ_MAX_COUNT.get(context) as u16,
        period: cqc::CQ_PERIOD.get(context) as u16,
    }
}

/// Format of compressed completions, if they are compressed.
fn compression(context: &[u8]) -> Result<Option<u8>, Refusal> {
    let enabled = cqc::CQE_COMP_EN.is_set(context);
    let layout = cqc::CQE_COMPRESSION_LAYOUT.get(context);
    match (enabled, layout, cqc::MINI_CQE_RES_FORMAT.get(context)) {
        (false, ..) => Ok(None),
        (true, 0, format @ (HASH | CHECKSUM | CHECKSUM_STRIDE)) => Ok(Some(format as u8)),
        _ => Err(refuse(
            Status::BadParameter,
            "no such format of compressed completions",
        )),
    }
}

/// The completion queue that a CREATE_CQ asks for.
#[derive(Debug)]
pub(crate) struct NewCompletionQueue {
    ring: Ring,
    record: Record,
    eqn: u8,
    uar: u32,
    ignore_overrun: bool,
    moderation: Moderation,
    /// It is looked at after the event queue.
    compression: Result<Option<u8>, Refusal>,
}

impl NewCompletionQueue {
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        let context = create_cq_in::CQ_CONTEXT.get(request);
        Ok(Self {
            ring: ring(context, list(request))?,
            record: Record::new(cqc::DBR_ADDR.get(context))?,
            eqn: cqc::C_EQN_OR_APU_ELEMENT.get(context) as u8,
            uar: cqc::UAR_PAGE.get(context),
            ignore_overrun: cqc::OI.is_set(context),
            moderation: moderation(context),
            compression: compression(context),
        })
    }
}

/// The ring that a MODIFY_CQ asks for.
#[derive(Debug)]
pub(crate) struct NewRing {
    cqn: u32,
    ring: Ring,
}

impl NewRing {
    /// `None` where single fields change.
    pub fn parse(request: &[u8]) -> Result<Option<Self>, Refusal> {
        if head_in::OP_MOD.get(request) != CQ_RESIZE {
            return Ok(None);
        }
        Ok(Some(Self {
            cqn: modify_cq_in::CQN.get(request),
            ring: ring(modify_cq_in::CQ_CONTEXT.get(request), list(request))?,
        }))
    }
}

/// Fields that a MODIFY_CQ changes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompletionQueueChange {
    cqn: u32,
    select: u32,
    moderation: Moderation,
    ignore_overrun: bool,
}

impl CompletionQueueChange {
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        let context = modify_cq_in::CQ_CONTEXT.get(request);
        let select = modify_cq_in::MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT.get(request);
        if select & !(PERIOD | COUNT | OVERRUN) != 0 {
            return Err(refuse(
                Status::BadParameter,
                "of a completion queue only moderation and what an overrun does can change",
            ));
        }
        Ok(Self {
            cqn: modify_cq_in::CQN.get(request),
            select,
            moderation: moderation(context),
            ignore_overrun: cqc::OI.is_set(context),
        })
    }
}

pub(crate) fn create_cq<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    new: NewCompletionQueue,
    reply: &mut [u8],
) -> Outcome {
    let NewCompletionQueue {
        ring,
        record,
        eqn,
        uar,
        ignore_overrun,
        moderation,
        compression,
    } = new;
    let state = commands.state();
    if state.events.get(eqn).is_none() {
        return Err(refuse(Status::BadResource, "no such event queue"));
    }
    let announced = state.configuration.traps(uar);
    let compression = compression?;
    let cqn = commands.engine.verbs(commands.vf).create_cq(|cqn| {
        CompletionQueue::new(
            ring,
            record,
            Traits {
                cqn,
                eqn,
                uar,
                announced,
                ignore_overrun,
                moderation,
                compression,
            },
        )
    })?;
    NUMBER.set(reply, cqn);
    Ok(())
}

pub(crate) fn modify_cq<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    change: CompletionQueueChange,
) -> Outcome {
    let (queue, _, _) = commands.engine.verbs(commands.vf).cq_mut(change.cqn)?;
    let mut new = queue.moderation();
    if change.select & PERIOD != 0 {
        new.period = change.moderation.period;
    }
    if change.select & COUNT != 0 {
        new.count = change.moderation.count;
    }
    queue.moderate(new);
    if change.select & OVERRUN != 0 {
        queue.set_ignore_overrun(change.ignore_overrun);
    }
    Ok(())
}

pub(crate) fn resize_cq<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    NewRing { cqn, ring }: NewRing,
) -> Outcome {
    let after = ring.buffer.held();
    let (queue, _, _) = commands.engine.verbs(commands.vf).cq_mut(cqn)?;
    if ring.log_stride < queue.ring().log_stride {
        return Err(refuse(
            Status::BadParameter,
            "entries cannot get shorter than the messages that they hold",
        ));
    }
    commands.engine.vf_mut(commands.vf).take_memory(after)?;
    let resized = commands
        .engine
        .verbs(commands.vf)
        .cq_mut(cqn)
        .map(|(queue, _, dma)| {
            let before = queue.ring().buffer.held();
            queue.resize(dma, ring).map(|()| before)
        });
    let unused = match resized {
        Ok(Ok(before)) => before,
        _ => after,
    };
    commands.engine.vf_mut(commands.vf).give_memory(unused);
    resized?.map(drop).map_err(|_| {
        refuse(
            Status::BadResourceState,
            "the completions in the queue do not fit",
        )
    })
}

pub(crate) fn destroy_cq<D: Dma + 'static>(commands: &mut Commands<'_, D>, cqn: u32) -> Outcome {
    commands.engine.verbs(commands.vf).destroy_cq(cqn)?;
    Ok(())
}

pub(crate) fn query_cq<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    cqn: u32,
    reply: &mut [u8],
) -> Outcome {
    let (queue, _, _) = commands.engine.verbs(commands.vf).cq_mut(cqn)?;
    let out = query_cq_out::CQ_CONTEXT.get_mut(reply);
    let [producer, consumer, notified, solicited] = queue.counters();
    let state = match queue.arm() {
        Arm::No => STATE_FIRED,
        Arm::Any => STATE_ARMED,
        Arm::Solicited => STATE_SOLICITED_ARMED,
    };
    let values = [
        (
            cqc::STATUS,
            if queue.overran() { STATUS_OVERRUN } else { 0 },
        ),
        (cqc::CQE_SZ, entry_size(queue.ring())),
        (cqc::ST, state),
        (cqc::CQE_COMP_EN, queue.compression().is_some().into()),
        (
            cqc::MINI_CQE_RES_FORMAT,
            queue.compression().unwrap_or(0).into(),
        ),
        (cqc::LOG_CQ_SIZE, queue.ring().log_size),
        (cqc::UAR_PAGE, queue.uar),
        (cqc::CQ_PERIOD, u32::from(queue.moderation().period)),
        (cqc::CQ_MAX_COUNT, u32::from(queue.moderation().count)),
        (cqc::C_EQN_OR_APU_ELEMENT, u32::from(queue.eqn)),
        (cqc::LAST_NOTIFIED_INDEX, notified),
        (cqc::LAST_SOLICIT_INDEX, solicited),
        (cqc::CONSUMER_COUNTER, consumer),
        (cqc::PRODUCER_COUNTER, producer),
    ];
    for (field, value) in values {
        field.set(out, value);
    }
    Ok(())
}
