//! Event queues: CREATE_EQ, QUERY_EQ, DESTROY_EQ.

use hca::Dma;

use crate::bits::command::{EVENT_MASK, Status, create_eq_in};
use crate::bits::event::{
    EQE_SIZE, STATE_ARMED, STATE_FIRED, create_eq_out, destroy_eq_in, eqc, query_eq_out,
};
use crate::command::{Commands, list};
use crate::configuration::Configuration;
use crate::queue::Buffer;
use crate::queue::event::{EventQueue, LOG_MAX_EQ_SIZE};
use crate::refusal::{Outcome, Refusal, refuse};

/// The event queue that a request is about.
pub(crate) fn parse_number(request: &[u8]) -> u8 {
    destroy_eq_in::EQ_NUMBER.get(request) as u8
}

/// The event queue that a CREATE_EQ asks for.
#[derive(Debug)]
pub(crate) struct NewEventQueue(EventQueue);

impl NewEventQueue {
    pub fn parse(request: &[u8], configuration: &Configuration) -> Result<Self, Refusal> {
        let context = create_eq_in::EQ_CONTEXT_ENTRY.get(request);
        let announced = configuration.traps(eqc::UAR_PAGE.get(context));
        let queue = parse_event_queue(request, configuration.vectors, announced)?;
        Ok(Self(queue))
    }
}

/// The event queue that a CREATE_EQ of a function with so many interrupt vectors asks for; `announced` as in
/// [`EventQueue::new`].
///
/// # Errors
/// [`Refusal`].
pub fn parse_event_queue(
    request: &[u8],
    vectors: u16,
    announced: bool,
) -> Result<EventQueue, Refusal> {
    let context = create_eq_in::EQ_CONTEXT_ENTRY.get(request);
    let log_size = eqc::LOG_EQ_SIZE.get(context);
    if log_size > LOG_MAX_EQ_SIZE {
        return Err(refuse(
            Status::ExceededLimits,
            "the event queue is too long",
        ));
    }
    let vector = eqc::INTR.get(context) as u16;
    if vector >= vectors {
        return Err(refuse(Status::BadParameter, "no such interrupt vector"));
    }
    let buffer = Buffer::new(
        list(request),
        eqc::LOG_PAGE_SIZE.get(context),
        eqc::PAGE_OFFSET.get(context),
        (EQE_SIZE as u64) << log_size,
    )?;
    let mask = EVENT_MASK.get(request);
    Ok(EventQueue::new(buffer, log_size, vector, mask, announced))
}

pub(crate) fn create_eq<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    NewEventQueue(queue): NewEventQueue,
    reply: &mut [u8],
) -> Outcome {
    let held = queue.held();
    commands.engine.vf_mut(commands.vf).take_memory(held)?;
    let Some(eqn) = commands.state_mut().events.insert(queue) else {
        commands.engine.vf_mut(commands.vf).give_memory(held);
        return Err(refuse(Status::NoResources, "too many event queues"));
    };
    create_eq_out::EQ_NUMBER.set(reply, u32::from(eqn));
    Ok(())
}

pub(crate) fn destroy_eq<D: Dma + 'static>(commands: &mut Commands<'_, D>, eqn: u8) -> Outcome {
    match commands.state_mut().events.remove(eqn) {
        Some(queue) => {
            commands
                .engine
                .vf_mut(commands.vf)
                .give_memory(queue.held());
            Ok(())
        }
        None => Err(refuse(Status::BadResource, "no such event queue")),
    }
}

pub(crate) fn query_eq<D: Dma + 'static>(
    commands: &Commands<'_, D>,
    eqn: u8,
    reply: &mut [u8],
) -> Outcome {
    let queue = commands
        .state()
        .events
        .get(eqn)
        .ok_or(refuse(Status::BadResource, "no such event queue"))?;
    query_eq_out::EVENT_BITMASK.set(reply, queue.mask);
    let context = query_eq_out::EQ_CONTEXT_ENTRY.get_mut(reply);
    let (producer, consumer) = queue.counters();
    eqc::ST.set(
        context,
        if queue.has_fired() {
            STATE_FIRED
        } else {
            STATE_ARMED
        },
    );
    eqc::LOG_EQ_SIZE.set(context, queue.log_size());
    eqc::INTR.set(context, u32::from(queue.vector()));
    eqc::PRODUCER_COUNTER.set(context, producer);
    eqc::CONSUMER_COUNTER.set(context, consumer);
    Ok(())
}
