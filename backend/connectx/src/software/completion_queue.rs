//! Completion queues: CREATE_CQ, MODIFY_CQ, QUERY_CQ, DESTROY_CQ.

use hca::Dma;

use super::capability::LOG_MAX_CQ_SIZE;
use super::{Commands, NUMBER, Outcome, Refusal, list, refuse};
use crate::bits::command::{Status, create_eq_in as head_in};
use crate::bits::completion::{
    STATE_ARMED, STATE_FIRED, STATE_SOLICITED_ARMED, STATUS_OVERRUN, cqc, create_cq_in,
    modify_cq_in, query_cq_out,
};
use crate::queue::completion::{Arm, CompletionQueue, Moderation, Ring, Traits};
use crate::queue::{Buffer, Record};

/// Modifier of MODIFY_CQ: another ring. Without it, single fields change.
const RESIZE: u32 = 1;
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

/// Which format completions have that are compressed, if they are.
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

/// The ring that a CREATE_CQ asks for.
pub(super) fn requested(request: &[u8]) -> Result<Ring, Refusal> {
    ring(create_cq_in::CQ_CONTEXT.get(request), list(request))
}

/// The ring that a MODIFY_CQ asks for, if it does.
pub(super) fn resized(request: &[u8]) -> Option<Result<Ring, Refusal>> {
    let resizes = head_in::OP_MOD.get(request) == RESIZE;
    resizes.then(|| ring(modify_cq_in::CQ_CONTEXT.get(request), list(request)))
}

impl<D: Dma + 'static> Commands<'_, D> {
    pub(super) fn create_cq(&mut self, request: &[u8], ring: Ring, reply: &mut [u8]) -> Outcome {
        let context = create_cq_in::CQ_CONTEXT.get(request);
        let record = Record::new(cqc::DBR_ADDR.get(context))?;
        let eqn = cqc::C_EQN_OR_APU_ELEMENT.get(context) as u8;
        let uar = cqc::UAR_PAGE.get(context);
        let state = self.state();
        if state.events.get(eqn).is_none() {
            return Err(refuse(Status::BadResource, "no such event queue"));
        }
        let announced = state.configuration.traps(uar);
        let ignore_overrun = cqc::OI.is_set(context);
        let moderation = moderation(context);
        let compression = compression(context)?;
        let cqn = self.engine.create_cq(self.vf, |cqn| {
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

    pub(super) fn modify_cq(&mut self, request: &[u8]) -> Outcome {
        let context = modify_cq_in::CQ_CONTEXT.get(request);
        let cqn = modify_cq_in::CQN.get(request);
        let select = modify_cq_in::MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT.get(request);
        if select & !(PERIOD | COUNT | OVERRUN) != 0 {
            return Err(refuse(
                Status::BadParameter,
                "of a completion queue only moderation and what an overrun does can change",
            ));
        }
        let (queue, _, _) = self.engine.cq_mut(self.vf, cqn)?;
        let (mut new, given) = (queue.moderation(), moderation(context));
        if select & PERIOD != 0 {
            new.period = given.period;
        }
        if select & COUNT != 0 {
            new.count = given.count;
        }
        queue.moderate(new);
        if select & OVERRUN != 0 {
            queue.set_ignore_overrun(cqc::OI.is_set(context));
        }
        Ok(())
    }

    pub(super) fn resize_cq(&mut self, request: &[u8], ring: Ring) -> Outcome {
        let cqn = modify_cq_in::CQN.get(request);
        let after = ring.buffer.held();
        let (queue, _, _) = self.engine.cq_mut(self.vf, cqn)?;
        if ring.log_stride < queue.ring().log_stride {
            return Err(refuse(
                Status::BadParameter,
                "entries cannot get shorter than the messages that they hold",
            ));
        }
        self.engine.take_memory(self.vf, after)?;
        let resized = self.engine.cq_mut(self.vf, cqn).map(|(queue, _, dma)| {
            let before = queue.ring().buffer.held();
            queue.resize(dma, ring).map(|()| before)
        });
        let unused = match resized {
            Ok(Ok(before)) => before,
            _ => after,
        };
        self.engine.give_memory(self.vf, unused);
        resized?.map(drop).map_err(|_| {
            refuse(
                Status::BadResourceState,
                "the completions in the queue do not fit",
            )
        })
    }

    pub(super) fn destroy_cq(&mut self, request: &[u8]) -> Outcome {
        self.engine.destroy_cq(self.vf, NUMBER.get(request))?;
        Ok(())
    }

    pub(super) fn query_cq(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
        let (queue, _, _) = self.engine.cq_mut(self.vf, NUMBER.get(request))?;
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
}
