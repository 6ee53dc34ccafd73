//! Counters of a function and its queue pairs.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use wire::Sl;

use crate::objects::counters::{Passed, QpCounters};
use crate::objects::vf::Vf;
use crate::queue_format::QueueFormat;

/// Counters of a function.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountersImageV1 {
    pub(crate) xmit_words: u64,
    pub(crate) xmit_packets: u64,
    pub(crate) rcv_words: u64,
    pub(crate) rcv_packets: u64,
    pub(crate) multicast_xmit_packets: u64,
    pub(crate) multicast_rcv_packets: u64,
    pub(crate) pkey_violations: u64,
    pub(crate) qkey_violations: u64,
    pub(crate) xmit_discards: u64,
    pub(crate) local_ack_timeout_err: u64,
    pub(crate) packet_seq_err: u64,
    pub(crate) implied_nak_seq_err: u64,
    pub(crate) rnr_nak_retry_err: u64,
    pub(crate) out_of_sequence: u64,
    pub(crate) duplicate_request: u64,
    /// From here on: what queue pairs without a set of counters have received.
    pub(crate) rx_write_requests: u64,
    pub(crate) rx_read_requests: u64,
    pub(crate) rx_atomic_requests: u64,
    pub(crate) out_of_buffer: u64,
    /// The first six, by service level from 1 on, where any is not zero.
    #[serde(default)]
    pub(crate) levels: Vec<(u8, [u64; 6])>,
}

/// A set of counters of queue pairs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CounterSetImageV1 {
    pub(crate) number: u8,
    pub(crate) counts: QpCountersImageV1,
}

/// Counters of a set of queue pairs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QpCountersImageV1 {
    pub(crate) rx_write_requests: u64,
    pub(crate) rx_read_requests: u64,
    pub(crate) rx_atomic_requests: u64,
    pub(crate) out_of_buffer: u64,
    pub(crate) local_ack_timeout_err: u64,
    pub(crate) packet_seq_err: u64,
    pub(crate) implied_nak_seq_err: u64,
    pub(crate) rnr_nak_retry_err: u64,
    pub(crate) out_of_sequence: u64,
    pub(crate) duplicate_request: u64,
    pub(crate) resp_local_length_error: u64,
    pub(crate) req_local_length_error: u64,
    pub(crate) resp_local_qp_error: u64,
    pub(crate) local_operation_error: u64,
    pub(crate) resp_local_protection: u64,
    pub(crate) req_local_protection: u64,
    pub(crate) resp_cqe_error: u64,
    pub(crate) req_cqe_error: u64,
    pub(crate) req_mw_binding: u64,
    pub(crate) req_bad_response: u64,
    pub(crate) req_remote_invalid_request: u64,
    pub(crate) resp_remote_invalid_request: u64,
    pub(crate) req_remote_access_errors: u64,
    pub(crate) resp_remote_access_errors: u64,
    pub(crate) req_remote_operation_errors: u64,
    pub(crate) req_transport_retries_exceeded: u64,
    pub(crate) req_rnr_retries_exceeded: u64,
    pub(crate) cq_overflow: u64,
    pub(crate) resp_cqe_flush_error: u64,
    pub(crate) req_cqe_flush_error: u64,
}

/// Each counter of an image, and where it is counted.
macro_rules! counters {
    ($image:ident, |$of:ident: $from:ty| $(for $face:ident)? $(beside $save:path, $restore:path)? { $($group:expr => { $($field:ident),+ $(,)? })+ }) => {
        impl $image {
            pub(crate) fn save$(<$face: QueueFormat>)?($of: &$from) -> Self {
                Self {
                    $($($field: $group.$field.load(Ordering::Relaxed),)+)+
                    $(..$save($of))?
                }
            }

            pub(crate) fn restore$(<$face: QueueFormat>)?(&self, $of: &$from) {
                let set = |counter: &AtomicU64, value| counter.store(value, Ordering::Relaxed);
                $($(set(&$group.$field, self.$field);)+)+
                $($restore(self, $of);)?
            }
        }
    };
}

impl CountersImageV1 {
    fn save_passed<F: QueueFormat>(of: &Vf<F>) -> Self {
        let passed = of.counters.passed();
        Self {
            xmit_words: passed.xmit_words,
            xmit_packets: passed.xmit_packets,
            rcv_words: passed.rcv_words,
            rcv_packets: passed.rcv_packets,
            multicast_xmit_packets: passed.multicast_xmit_packets,
            multicast_rcv_packets: passed.multicast_rcv_packets,
            levels: { of.counters.levels() }
                .filter(|(sl, _)| *sl != Sl::default())
                .map(|(sl, passed)| (sl.value(), passed.into()))
                .collect(),
            ..Self::default()
        }
    }

    fn restore_passed<F: QueueFormat>(&self, of: &Vf<F>) {
        let mut rest = Passed {
            xmit_words: self.xmit_words,
            xmit_packets: self.xmit_packets,
            rcv_words: self.rcv_words,
            rcv_packets: self.rcv_packets,
            multicast_xmit_packets: self.multicast_xmit_packets,
            multicast_rcv_packets: self.multicast_rcv_packets,
        };
        for &(sl, passed) in &self.levels {
            of.counters.go_on(Sl::new(sl), passed.into());
            rest = rest.with(passed.into(), u64::wrapping_sub);
        }
        of.counters.go_on(Sl::default(), rest);
    }
}

counters! { CountersImageV1, |of: Vf<F>| for F beside Self::save_passed, Self::restore_passed {
    of.counters => {
        pkey_violations, qkey_violations, xmit_discards,
    }
    of.counters.retries => {
        local_ack_timeout_err, packet_seq_err, implied_nak_seq_err, rnr_nak_retry_err, out_of_sequence,
        duplicate_request,
    }
    of.sets.none.requests => { rx_write_requests, rx_read_requests, rx_atomic_requests, out_of_buffer }
} }

counters! { QpCountersImageV1, |of: QpCounters| {
    of.requests => { rx_write_requests, rx_read_requests, rx_atomic_requests, out_of_buffer }
    of.retries => {
        local_ack_timeout_err, packet_seq_err, implied_nak_seq_err, rnr_nak_retry_err, out_of_sequence,
        duplicate_request,
    }
    of.errors => {
        resp_local_length_error, req_local_length_error, resp_local_qp_error, local_operation_error,
        resp_local_protection, req_local_protection, resp_cqe_error, req_cqe_error, req_mw_binding,
        req_bad_response, req_remote_invalid_request, resp_remote_invalid_request,
        req_remote_access_errors, resp_remote_access_errors, req_remote_operation_errors,
        req_transport_retries_exceeded, req_rnr_retries_exceeded, cq_overflow, resp_cqe_flush_error,
        req_cqe_flush_error,
    }
} }
