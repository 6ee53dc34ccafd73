//! Event queues: CREATE_EQ, QUERY_EQ, DESTROY_EQ.

use hca::Dma;

use super::{Commands, Outcome, list, refuse};
use crate::bits::command::{Status, create_eq_in};
use crate::bits::event::{
    EQE_SIZE, STATE_ARMED, STATE_FIRED, create_eq_out, destroy_eq_in, eqc, query_eq_out,
};
use crate::queue::event::{EventQueue, LOG_MAX_EQ_SIZE};
use crate::queue::{Buffer, BufferError};

/// The memory that a CREATE_EQ names.
pub(super) fn requested(request: &[u8]) -> Result<Buffer, BufferError> {
    let context = create_eq_in::EQ_CONTEXT_ENTRY.get(request);
    // What is longer than a queue may be is refused before this is looked at.
    let log_size = eqc::LOG_EQ_SIZE.get(context).min(LOG_MAX_EQ_SIZE);
    Buffer::new(
        list(request),
        eqc::LOG_PAGE_SIZE.get(context),
        eqc::PAGE_OFFSET.get(context),
        (EQE_SIZE as u64) << log_size,
    )
}

impl<D: Dma + 'static> Commands<'_, D> {
    pub(super) fn create_eq(
        &mut self,
        request: &[u8],
        buffer: Result<Buffer, BufferError>,
        reply: &mut [u8],
    ) -> Outcome {
        let context = create_eq_in::EQ_CONTEXT_ENTRY.get(request);
        let log_size = eqc::LOG_EQ_SIZE.get(context);
        if log_size > LOG_MAX_EQ_SIZE {
            return Err(refuse(
                Status::ExceededLimits,
                "the event queue is too long",
            ));
        }
        let vector = eqc::INTR.get(context) as u16;
        let state = self.state_mut();
        if vector >= state.configuration.vectors {
            return Err(refuse(Status::BadParameter, "no such interrupt vector"));
        }
        let buffer = buffer?;
        // Of the mask's four words only the first has events.
        let mask = crate::bits::Wide::new(0).get(create_eq_in::EVENT_BITMASK.get(request));
        let announced = state.configuration.traps(eqc::UAR_PAGE.get(context));
        let queue = EventQueue::new(buffer, log_size, vector, mask, announced);
        let held = queue.held();
        self.engine.take_memory(self.vf, held)?;
        let Some(eqn) = self.state_mut().events.insert(queue) else {
            self.engine.give_memory(self.vf, held);
            return Err(refuse(Status::NoResources, "too many event queues"));
        };
        create_eq_out::EQ_NUMBER.set(reply, u32::from(eqn));
        Ok(())
    }

    pub(super) fn destroy_eq(&mut self, request: &[u8]) -> Outcome {
        let eqn = destroy_eq_in::EQ_NUMBER.get(request) as u8;
        match self.state_mut().events.remove(eqn) {
            Some(queue) => {
                self.engine.give_memory(self.vf, queue.held());
                Ok(())
            }
            None => Err(refuse(Status::BadResource, "no such event queue")),
        }
    }

    pub(super) fn query_eq(&self, request: &[u8], reply: &mut [u8]) -> Outcome {
        let eqn = destroy_eq_in::EQ_NUMBER.get(request) as u8;
        let queue = self
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
}
