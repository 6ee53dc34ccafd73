//! Send and receive queues of network interfaces: CREATE_SQ and CREATE_RQ, and what changes, tells of and destroys
//! them. To the engine they are halves of queue pairs.

use hca::{Dma, InCompletion, QpChange, QpDesc, QpState, RecvSide, Transport};
use wire::Qpn;

use crate::bits::Field;
use crate::bits::command::Status;
use crate::bits::network::{CYCLIC, QueueState, modify_sq_in, query_sq_out, rqc, sqc, wq};
use crate::bits::queue_pair::TimestampFormat;
use crate::bits::work::BLOCK;
use crate::command::{Commands, NUMBER, list};
use crate::configuration::Configuration;
use crate::queue::receive::ReceiveQueue;
use crate::queue::send::SendQueue;
use crate::queue::{Buffer, Record};
use crate::queue_format::Mlx5;
use crate::refusal::{Outcome, Refusal, refuse};
use crate::request::Format;
use crate::state::capability::LOG_MAX_QP_SIZE;
use crate::state::network::{Named, Queue, Unmade};

/// A request's bytes of a receive queue, as a power of two.
const LOG_STRIDES: std::ops::RangeInclusive<u32> = 4..=11;

/// Where a work queue's memory is, and how many entries it has, as a power of two.
#[derive(Debug)]
struct Place {
    buffer: Buffer,
    record: Record,
    log_size: u32,
}

/// The memory of a cyclic queue with entries of so many bytes, as a power of two.
fn place(request: &[u8], queue: &[u8], log_stride: u32) -> Result<Place, Refusal> {
    if wq::WQ_TYPE.get(queue) != CYCLIC || wq::WQ_SIGNATURE.is_set(queue) {
        return Err(refuse(
            Status::BadParameter,
            "queues are cyclic, and their requests have no signatures",
        ));
    }
    if wq::WQ_UMEM_VALID.is_set(queue) || wq::DBR_UMEM_VALID.is_set(queue) {
        return Err(refuse(
            Status::BadParameter,
            "the driver's queues do not lie in memory objects",
        ));
    }
    let log_size = wq::LOG_WQ_SZ.get(queue);
    if log_size > LOG_MAX_QP_SIZE {
        return Err(refuse(Status::ExceededLimits, "the queue is too long"));
    }
    let buffer = Buffer::new(
        list(request),
        wq::LOG_WQ_PG_SZ.get(queue),
        wq::PAGE_OFFSET.get(queue),
        1 << (log_size + log_stride),
    )?;
    Ok(Place {
        buffer,
        record: Record::new(wq::DBR_ADDR.get(queue))?,
        log_size,
    })
}

/// Checks the fields that both kinds of contexts have.
fn check_context(context: &[u8]) -> Outcome {
    let format = TimestampFormat::from_code(sqc::TS_FORMAT.get(context));
    let clock = matches!(
        format,
        Some(TimestampFormat::FreeRunning | TimestampFormat::Default)
    );
    let new = sqc::STATE.get(context) == QueueState::Reset.code();
    if sqc::HAIRPIN.is_set(context) || !clock || !new {
        return Err(refuse(
            Status::BadParameter,
            "a queue begins in its reset state, with the free-running clock's time and no hairpin",
        ));
    }
    Ok(())
}

fn state_of(state: QpState) -> QueueState {
    match state {
        QpState::Reset => QueueState::Reset,
        QpState::Error | QpState::SendQueueError => QueueState::Error,
        _ => QueueState::Ready,
    }
}

/// The send queue that a CREATE_SQ asks for.
#[derive(Debug)]
pub(crate) struct NewSendQueue {
    context: Vec<u8>,
    tis: Option<u32>,
    trapped: bool,
    /// It is looked at after the TIS.
    place: Result<Place, Refusal>,
}

impl NewSendQueue {
    pub fn parse(request: &[u8], configuration: &Configuration) -> Result<Self, Refusal> {
        let context: [u8; sqc::SIZE] = modify_sq_in::CTX.array(request);
        check_context(&context)?;
        let queue = sqc::WQ.get(&context);
        if wq::LOG_WQ_STRIDE.get(queue) != BLOCK.ilog2() {
            return Err(refuse(
                Status::BadParameter,
                "requests that are sent have blocks of 64 bytes",
            ));
        }
        let tis = match sqc::TIS_LST_SZ.get(&context) {
            0 => None,
            1 => Some(sqc::TIS_NUM_0.get(&context)),
            _ => return Err(refuse(Status::ExceededLimits, "a queue has one TIS")),
        };
        Ok(Self {
            tis,
            trapped: configuration.traps(wq::UAR_PAGE.get(queue)),
            place: place(request, queue, BLOCK.ilog2()),
            context: context.to_vec(),
        })
    }
}

/// The receive queue that a CREATE_RQ asks for.
#[derive(Debug)]
pub(crate) struct NewReceiveQueue {
    context: Vec<u8>,
    queue: ReceiveQueue,
}

impl NewReceiveQueue {
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        let context: [u8; rqc::SIZE] = modify_sq_in::CTX.array(request);
        check_context(&context)?;
        if rqc::MEM_RQ_TYPE.is_set(&context) {
            return Err(refuse(
                Status::BadParameter,
                "a queue has memory of its own",
            ));
        }
        let queue = rqc::WQ.get(&context);
        // Linux has a queue that takes nothing, whose requests have no bytes.
        let log_stride = wq::LOG_WQ_STRIDE.get(queue).max(*LOG_STRIDES.start());
        if !LOG_STRIDES.contains(&log_stride) {
            return Err(refuse(Status::ExceededLimits, "requests are too long"));
        }
        let place = place(request, queue, log_stride)?;
        let queue = ReceiveQueue::new(place.buffer, place.log_size, log_stride, place.record);
        Ok(Self {
            context: context.to_vec(),
            queue: queue.padded(),
        })
    }
}

/// A change of a queue's state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueChange {
    number: u32,
    /// The state that it begins with, and the one it leads to. They are looked at after the queue.
    states: Result<(QueueState, QueueState), Refusal>,
}

impl QueueChange {
    pub fn parse(request: &[u8]) -> Self {
        let state =
            |code| QueueState::from_code(code).ok_or(refuse(Status::BadParameter, "no such state"));
        let before = state(modify_sq_in::SQ_STATE.get(request));
        let next = state(sqc::STATE.get(modify_sq_in::CTX.get(request)));
        Self {
            number: modify_sq_in::SQN.get(request),
            states: before.and_then(|before| Ok((before, next?))),
        }
    }
}

pub(crate) fn create_sq<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    new: NewSendQueue,
    reply: &mut [u8],
) -> Outcome {
    let NewSendQueue {
        context,
        tis,
        trapped,
        place,
    } = new;
    let underlay = match tis {
        Some(number) => {
            let tis = commands
                .state()
                .network
                .tis(number)
                .ok_or(Unmade::Missing)?;
            tis.underlay.map(Qpn::new)
        }
        None => None,
    };
    let place = place?;
    let queue = sqc::WQ.get(&context);
    let send = SendQueue::new(
        place.buffer,
        0,
        place.log_size,
        place.record,
        Format::Packet,
    );
    let send = if trapped { send.trapped() } else { send };
    let user_index = commands.user_index(sqc::USER_INDEX.get(&context));
    let sqn = commands.engine.verbs(commands.vf).create_qp(QpDesc {
        transport: Transport::SendQueue,
        send: Some((send, sqc::CQN.get(&context))),
        source_qpn: underlay,
        polled: !trapped,
        user_index,
        ..half(wq::PD.get(queue))
    })?;
    let network = &mut commands.state_mut().network;
    network.add_send_queue(sqn.value(), Queue { tis, context });
    NUMBER.set(reply, sqn.value());
    Ok(())
}

pub(crate) fn create_rq<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    new: NewReceiveQueue,
    reply: &mut [u8],
) -> Outcome {
    let NewReceiveQueue { context, queue } = new;
    let user_index = commands.user_index(rqc::USER_INDEX.get(&context));
    let rqn = commands.engine.verbs(commands.vf).create_qp(QpDesc {
        transport: Transport::ReceiveQueue,
        recv: RecvSide::Own(queue),
        recv_cqn: Some(rqc::CQN.get(&context)),
        counter_set: rqc::COUNTER_SET_ID.get(&context) as u8,
        user_index,
        ..half(wq::PD.get(rqc::WQ.get(&context)))
    })?;
    let network = &mut commands.state_mut().network;
    network.add_receive_queue(rqn.value(), Queue { tis: None, context });
    NUMBER.set(reply, rqn.value());
    Ok(())
}

pub(crate) fn modify_sq<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    change: QueueChange,
) -> Outcome {
    const TO_READY: [QpState; 3] = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
    let queue = commands.state().network.send_queue(change.number);
    let queue = queue.ok_or(Unmade::Missing)?;
    let uar = wq::UAR_PAGE.get(sqc::WQ.get(&queue.context));
    if modify_queue(commands, change, &TO_READY)? {
        // Its requests are counted from zero again: its first doorbell may be the last of before.
        commands.state_mut().uars.begin_anew(uar);
    }
    Ok(())
}

pub(crate) fn modify_rq<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    change: QueueChange,
) -> Outcome {
    const TO_READY: [QpState; 2] = [QpState::Init, QpState::ReadyToReceive];
    let queue = commands.state().network.receive_queue(change.number);
    queue.ok_or(Unmade::Missing)?;
    modify_queue(commands, change, &TO_READY)?;
    Ok(())
}

/// Changes the state of a queue; true where it is ready from now on and was not.
fn modify_queue<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    change: QueueChange,
    to_ready: &[QpState],
) -> Result<bool, Refusal> {
    let number = Qpn::new(change.number);
    let (before, next) = change.states?;
    let now = state_of(commands.engine.query_qp(commands.vf, number)?.state);
    let steps: &[QpState] = match (before, next) {
        _ if before != now => {
            return Err(refuse(
                Status::BadResourceState,
                "the queue is not in the state that the command begins with",
            ));
        }
        (QueueState::Reset, QueueState::Ready) => to_ready,
        // Of what changes in this state there is nothing.
        (QueueState::Ready, QueueState::Ready) => &[],
        (_, QueueState::Reset) => &[QpState::Reset],
        (_, QueueState::Error) => &[QpState::Error],
        (QueueState::Error, QueueState::Ready) => {
            return Err(refuse(
                Status::BadResourceState,
                "a queue in error is reset before it is ready again",
            ));
        }
    };
    for step in steps {
        commands
            .engine
            .verbs(commands.vf)
            .modify_qp(number, *step, &QpChange::default())?;
    }
    Ok((before, next) == (QueueState::Reset, QueueState::Ready))
}

pub(crate) fn destroy_sq<D: Dma + 'static>(commands: &mut Commands<'_, D>, sqn: u32) -> Outcome {
    commands
        .state()
        .network
        .send_queue(sqn)
        .ok_or(Unmade::Missing)?;
    commands
        .engine
        .verbs(commands.vf)
        .destroy_qp(Qpn::new(sqn))?;
    commands.state_mut().network.remove_send_queue(sqn);
    Ok(())
}

pub(crate) fn destroy_rq<D: Dma + 'static>(commands: &mut Commands<'_, D>, rqn: u32) -> Outcome {
    commands.state().network.check_unused(Named::Queue, rqn)?;
    commands
        .engine
        .verbs(commands.vf)
        .destroy_qp(Qpn::new(rqn))?;
    commands.state_mut().network.remove_receive_queue(rqn);
    Ok(())
}

pub(crate) fn query_sq<D: Dma + 'static>(
    commands: &Commands<'_, D>,
    sqn: u32,
    reply: &mut [u8],
) -> Outcome {
    let queue = commands.state().network.send_queue(sqn);
    query_queue(commands, queue, sqc::STATE, sqn, reply)
}

pub(crate) fn query_rq<D: Dma + 'static>(
    commands: &Commands<'_, D>,
    rqn: u32,
    reply: &mut [u8],
) -> Outcome {
    let queue = commands.state().network.receive_queue(rqn);
    query_queue(commands, queue, rqc::STATE, rqn, reply)
}

fn query_queue<D: Dma + 'static>(
    commands: &Commands<'_, D>,
    queue: Option<&Queue>,
    field: Field,
    number: u32,
    reply: &mut [u8],
) -> Outcome {
    let queue = queue.ok_or(Unmade::Missing)?;
    let number = Qpn::new(number);
    let state = commands.engine.query_qp(commands.vf, number)?.state;
    let out = query_sq_out::SQ_CONTEXT.get_mut(reply);
    let len = out.len().min(queue.context.len());
    out[..len].copy_from_slice(&queue.context[..len]);
    field.set(out, state_of(state).code());
    let (send, recv) = commands.engine.qp_queues(commands.vf, number)?;
    let dma = commands.engine.vf(commands.vf).dma();
    let counts = match (send, recv) {
        (Some(queue), _) => (queue.taken(), queue.posted(dma)),
        (_, Some(queue)) => (queue.taken(), queue.posted(dma)),
        _ => return Ok(()),
    };
    let shown = sqc::WQ.get_mut(out);
    wq::HW_COUNTER.set(shown, u32::from(counts.0));
    wq::SW_COUNTER.set(shown, u32::from(counts.1.unwrap_or(0)));
    Ok(())
}

/// A queue pair of this protection domain with neither queue.
fn half<D: Dma + 'static>(pd: u32) -> QpDesc<Mlx5<D>> {
    QpDesc {
        transport: Transport::SendQueue,
        pd,
        send: None,
        recv: RecvSide::None,
        recv_cqn: None,
        source_qpn: None,
        // A network interface does not hear itself.
        block_multicast_loopback: true,
        offloads: false,
        polled: false,
        counter_set: 0,
        user_index: None,
        in_completion: InCompletion::default(),
    }
}

/// The address of a network interface's queues: a queue pair of datagrams without queues of its own.
pub(crate) fn underlay<D: Dma + 'static>() -> QpDesc<Mlx5<D>> {
    QpDesc {
        transport: Transport::Underlay,
        ..half(0)
    }
}
