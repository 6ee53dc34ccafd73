//! Sets of counters of queue pairs: what `rdma statistic` shows of a port, and of queue pairs that are bound to a
//! set of their own.

use std::sync::atomic::{AtomicU64, Ordering};

use hca::{Dma, QpCounters};

use crate::bits::Field;
use crate::bits::command::Status;
use crate::bits::counter::{
    REQ_RNR_RETRIES_EXCEEDED, alloc_q_counter_out, dealloc_q_counter_in,
    query_q_counter_in as query, query_q_counter_out as out,
};
use crate::command::Commands;
use crate::refusal::{Outcome, Refusal, refuse};

/// The set that queue pairs counted in, all of them, when there was only one.
pub(crate) const ONLY_SET: u8 = 1;

/// Where each counter stands in a reply, and where it is counted. There it has 64 bits; the interface has 32, which
/// wrap.
type Counter = (Field, fn(&QpCounters) -> &AtomicU64);

const COUNTERS: [Counter; 30] = [
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
    (out::RESP_LOCAL_LENGTH_ERROR, |of| {
        &of.errors.resp_local_length_error
    }),
    (out::REQ_LOCAL_LENGTH_ERROR, |of| {
        &of.errors.req_local_length_error
    }),
    (out::RESP_LOCAL_QP_ERROR, |of| {
        &of.errors.resp_local_qp_error
    }),
    (out::LOCAL_OPERATION_ERROR, |of| {
        &of.errors.local_operation_error
    }),
    (out::RESP_LOCAL_PROTECTION, |of| {
        &of.errors.resp_local_protection
    }),
    (out::REQ_LOCAL_PROTECTION, |of| {
        &of.errors.req_local_protection
    }),
    (out::RESP_CQE_ERROR, |of| &of.errors.resp_cqe_error),
    (out::REQ_CQE_ERROR, |of| &of.errors.req_cqe_error),
    (out::REQ_MW_BINDING, |of| &of.errors.req_mw_binding),
    (out::REQ_BAD_RESPONSE, |of| &of.errors.req_bad_response),
    (out::REQ_REMOTE_INVALID_REQUEST, |of| {
        &of.errors.req_remote_invalid_request
    }),
    (out::RESP_REMOTE_INVALID_REQUEST, |of| {
        &of.errors.resp_remote_invalid_request
    }),
    (out::REQ_REMOTE_ACCESS_ERRORS, |of| {
        &of.errors.req_remote_access_errors
    }),
    (out::RESP_REMOTE_ACCESS_ERRORS, |of| {
        &of.errors.resp_remote_access_errors
    }),
    (out::REQ_REMOTE_OPERATION_ERRORS, |of| {
        &of.errors.req_remote_operation_errors
    }),
    (out::REQ_TRANSPORT_RETRIES_EXCEEDED, |of| {
        &of.errors.req_transport_retries_exceeded
    }),
    (REQ_RNR_RETRIES_EXCEEDED, |of| {
        &of.errors.req_rnr_retries_exceeded
    }),
    (out::CQ_OVERFLOW, |of| &of.errors.cq_overflow),
    (out::RESP_CQE_FLUSH_ERROR, |of| {
        &of.errors.resp_cqe_flush_error
    }),
    (out::REQ_CQE_FLUSH_ERROR, |of| {
        &of.errors.req_cqe_flush_error
    }),
];

/// The set that a DEALLOC_Q_COUNTER names.
pub(crate) fn parse_set(request: &[u8]) -> u8 {
    dealloc_q_counter_in::COUNTER_SET_ID.get(request) as u8
}

/// A QUERY_Q_COUNTER.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueryCounters {
    set: u8,
    clears: bool,
}

impl QueryCounters {
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        if query::OTHER_VPORT.is_set(request) {
            return Err(refuse(
                Status::BadParameter,
                "a virtual function has no say over other ports",
            ));
        }
        if query::AGGREGATE.is_set(request) {
            return Err(refuse(Status::BadParameter, "sets are not added up"));
        }
        Ok(Self {
            set: query::COUNTER_SET_ID.get(request) as u8,
            clears: query::CLEAR.is_set(request),
        })
    }
}

pub(crate) fn alloc_q_counter<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    reply: &mut [u8],
) -> Outcome {
    let set = commands.engine.vf_mut(commands.vf).alloc_counters()?;
    alloc_q_counter_out::COUNTER_SET_ID.set(reply, set.into());
    Ok(())
}

pub(crate) fn dealloc_q_counter<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    set: u8,
) -> Outcome {
    Ok(commands.engine.vf_mut(commands.vf).dealloc_counters(set)?)
}

pub(crate) fn query_q_counter<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    query: QueryCounters,
    reply: &mut [u8],
) -> Outcome {
    let counters = commands.engine.vf(commands.vf).qp_counters(query.set)?;
    for (field, counter) in COUNTERS {
        let counter = counter(&counters);
        field.set(reply, counter.load(Ordering::Relaxed) as u32);
        if query.clears {
            counter.store(0, Ordering::Relaxed);
        }
    }
    Ok(())
}
