//! Counters of queue pairs.
//!
//! A function has one set, which counts for all of its queue pairs: what `rdma
//! statistic` shows of a port.

use std::sync::atomic::{AtomicU64, Ordering};

use hca::{Dma, TrafficCounters};

use super::{Commands, Outcome, refuse};
use crate::bits::Field;
use crate::bits::command::Status;
use crate::bits::counter::{
    alloc_q_counter_out, dealloc_q_counter_in, query_q_counter_in, query_q_counter_out as out,
};

/// The number of the set; 0 is none.
const SET: u32 = 1;
/// Sets of a function.
pub const SETS: u32 = 1;

/// Where each counter stands in a reply, and where it is counted.
type Counter = (Field, fn(&TrafficCounters) -> &AtomicU64);

const COUNTERS: [Counter; 10] = [
    (out::RX_WRITE_REQUESTS, |of| &of.requests.rx_write_requests),
    (out::RX_READ_REQUESTS, |of| &of.requests.rx_read_requests),
    (out::RX_ATOMIC_REQUESTS, |of| {
        &of.requests.rx_atomic_requests
    }),
    (out::OUT_OF_BUFFER, |of| &of.requests.out_of_buffer),
    (out::OUT_OF_SEQUENCE, |of| &of.retries.out_of_sequence),
    (out::DUPLICATE_REQUEST, |of| &of.retries.duplicate_request),
    (out::RNR_NAK_RETRY_ERR, |of| &of.retries.rnr_nak_retry_err),
    (out::PACKET_SEQ_ERR, |of| &of.retries.packet_seq_err),
    (out::IMPLIED_NAK_SEQ_ERR, |of| {
        &of.retries.implied_nak_seq_err
    }),
    (out::LOCAL_ACK_TIMEOUT_ERR, |of| {
        &of.retries.local_ack_timeout_err
    }),
];

/// What the counters were when their set was allocated or cleared. They have 32
/// bits, and wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct CounterSet([u32; COUNTERS.len()]);

impl CounterSet {
    fn now(counters: &TrafficCounters) -> Self {
        Self(COUNTERS.map(|(_, counter)| counter(counters).load(Ordering::Relaxed) as u32))
    }
}

impl<D: Dma + 'static> Commands<'_, D> {
    pub(super) fn alloc_q_counter(&mut self, reply: &mut [u8]) -> Outcome {
        let now = CounterSet::now(&self.engine.counters(self.vf));
        let set = &mut self.state_mut().counter_set;
        if set.is_some() {
            return Err(refuse(
                Status::NoResources,
                "a function has one set of counters",
            ));
        }
        *set = Some(now);
        alloc_q_counter_out::COUNTER_SET_ID.set(reply, SET);
        Ok(())
    }

    pub(super) fn dealloc_q_counter(&mut self, request: &[u8]) -> Outcome {
        let number = dealloc_q_counter_in::COUNTER_SET_ID.get(request);
        match self.state_mut().counter_set.take_if(|_| number == SET) {
            Some(_) => Ok(()),
            None => Err(refuse(Status::BadResource, "no such set of counters")),
        }
    }

    pub(super) fn query_q_counter(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
        use query_q_counter_in as query;
        if query::OTHER_VPORT.is_set(request) {
            return Err(refuse(
                Status::BadParameter,
                "a virtual function has no say over other ports",
            ));
        }
        let now = CounterSet::now(&self.engine.counters(self.vf));
        let set = self.state_mut().counter_set.as_mut();
        let Some(set) = set.filter(|_| query::COUNTER_SET_ID.get(request) == SET) else {
            return Err(refuse(Status::BadResource, "no such set of counters"));
        };
        for ((field, _), (now, then)) in COUNTERS.iter().zip(now.0.iter().zip(set.0)) {
            field.set(reply, now.wrapping_sub(then));
        }
        if query::CLEAR.is_set(request) {
            *set = now;
        }
        Ok(())
    }
}
