//! Counters of ports and queue pairs.
//!
//! One thread writes each counter: the engine in which the function lives. So nothing is locked, and to add is a
//! load and a store. Readers may be on other threads.

pub(crate) mod set;
pub(crate) mod traffic;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use wire::Sl;

use crate::objects::reason::Status;
use crate::objects::refusal::Refusal;
use crate::objects::work::{Operation, Side};

/// Data-plane counters of a port. Written by the engine alone, read by
/// whoever manages the port.
#[derive(Debug, Default)]
pub struct TrafficCounters {
    /// Counters by service level. There is no total, so that a packet is counted once.
    levels: [Level; 16],
    /// The service levels on which something has passed, a bit each: who reads looks at no others.
    used: AtomicU32,
    /// Packets with a P_Key that the receiver does not have.
    pub pkey_violations: AtomicU64,
    /// Packets with a Q_Key that the receiver does not have.
    pub qkey_violations: AtomicU64,
    /// Packets sent that went nowhere.
    pub xmit_discards: AtomicU64,
    /// Retries of connections.
    pub retries: RetryCounters,
}

/// Counters of a port on one service level, in one line of the cache.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Level {
    xmit_words: AtomicU64,
    xmit_packets: AtomicU64,
    rcv_words: AtomicU64,
    rcv_packets: AtomicU64,
    multicast_xmit_packets: AtomicU64,
    multicast_rcv_packets: AtomicU64,
}

/// Traffic that has passed a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passed {
    /// Sent, in units of four octets.
    pub xmit_words: u64,
    /// Sent packets.
    pub xmit_packets: u64,
    /// Received, in units of four octets.
    pub rcv_words: u64,
    /// Received packets.
    pub rcv_packets: u64,
    /// Multicast packets among those sent.
    pub multicast_xmit_packets: u64,
    /// Multicast packets among those received.
    pub multicast_rcv_packets: u64,
}

impl Passed {
    /// The two taken together number by number, which wrap.
    #[must_use]
    pub fn with(self, other: Self, both: fn(u64, u64) -> u64) -> Self {
        let [one, other] = [<[u64; 6]>::from(self), other.into()];
        std::array::from_fn(|i| both(one[i], other[i])).into()
    }
}

impl From<Passed> for [u64; 6] {
    fn from(of: Passed) -> Self {
        [
            of.xmit_words,
            of.xmit_packets,
            of.rcv_words,
            of.rcv_packets,
            of.multicast_xmit_packets,
            of.multicast_rcv_packets,
        ]
    }
}

impl From<[u64; 6]> for Passed {
    fn from(of: [u64; 6]) -> Self {
        let [
            xmit_words,
            xmit_packets,
            rcv_words,
            rcv_packets,
            multicast_xmit_packets,
            multicast_rcv_packets,
        ] = of;
        Self {
            xmit_words,
            xmit_packets,
            rcv_words,
            rcv_packets,
            multicast_xmit_packets,
            multicast_rcv_packets,
        }
    }
}

impl Level {
    const fn counters(&self) -> [&AtomicU64; 6] {
        [
            &self.xmit_words,
            &self.xmit_packets,
            &self.rcv_words,
            &self.rcv_packets,
            &self.multicast_xmit_packets,
            &self.multicast_rcv_packets,
        ]
    }
}

/// Losses and duplicates of a function's connections, by the names that Linux gives the counters of hardware.
/// Written by the engine alone.
#[derive(Debug, Default)]
pub struct RetryCounters {
    /// Local ACK timeouts that ran out, after which the request was sent again.
    pub local_ack_timeout_err: AtomicU64,
    /// NAKs for a sequence error that requesters received.
    pub packet_seq_err: AtomicU64,
    /// Gaps that requesters found in responses.
    pub implied_nak_seq_err: AtomicU64,
    /// NAKs of receivers that were not ready.
    pub rnr_nak_retry_err: AtomicU64,
    /// Packets that responders received out of sequence.
    pub out_of_sequence: AtomicU64,
    /// Packets of requests that responders had carried out before.
    pub duplicate_request: AtomicU64,
}

/// Requests that responders of a function have received, by the names that Linux
/// gives the counters of hardware.
#[derive(Debug, Default)]
pub struct RequestCounters {
    /// RDMA WRITEs.
    pub rx_write_requests: AtomicU64,
    /// RDMA READs.
    pub rx_read_requests: AtomicU64,
    /// Atomic operations.
    pub rx_atomic_requests: AtomicU64,
    /// Messages that found no receive request.
    pub out_of_buffer: AtomicU64,
}

impl RequestCounters {
    #[inline]
    pub(crate) fn received(&self, operation: Operation) {
        let counter = match operation {
            Operation::Write | Operation::WriteImm => &self.rx_write_requests,
            Operation::Read => &self.rx_read_requests,
            Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::MaskedCompareSwap
            | Operation::MaskedFetchAdd => &self.rx_atomic_requests,
            Operation::Send
            | Operation::SendImm
            | Operation::SendInvalidate
            | Operation::Nop
            | Operation::LocalInvalidate
            | Operation::UpdateKey
            | Operation::ChangeTags
            | Operation::SetSignature => return,
        };
        TrafficCounters::add(counter, 1);
    }
}

impl TrafficCounters {
    /// Adds without a locked instruction: there is one writer.
    #[inline]
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.store(
            counter.load(Ordering::Relaxed).wrapping_add(amount),
            Ordering::Relaxed,
        );
    }

    /// Counts a packet if one of its keys is not the receiver's. Returns whether both are.
    #[inline]
    pub(crate) fn check_keys(&self, pkey: bool, qkey: bool) -> bool {
        if !pkey {
            Self::add(&self.pkey_violations, 1);
        } else if !qkey {
            Self::add(&self.qkey_violations, 1);
        }
        pkey && qkey
    }

    #[inline]
    fn level(&self, sl: Sl) -> &Level {
        &self.levels[usize::from(sl.value() & 0xf)]
    }

    #[inline]
    pub(crate) fn sent(&self, sl: Sl, words: u64, packets: u64) {
        let level = self.level(sl);
        Self::add(&level.xmit_words, words);
        self.add_packets(sl, &level.xmit_packets, packets);
    }

    #[inline]
    pub(crate) fn received(&self, sl: Sl, words: u64, packets: u64) {
        let level = self.level(sl);
        Self::add(&level.rcv_words, words);
        self.add_packets(sl, &level.rcv_packets, packets);
    }

    /// One of the packets that were sent is for a group.
    #[inline]
    pub(crate) fn sent_to_group(&self, sl: Sl) {
        Self::add(&self.level(sl).multicast_xmit_packets, 1);
    }

    /// A packet for a group has come to the port. The members of the group count the rest.
    #[inline]
    pub(crate) fn received_for_group(&self, sl: Sl) {
        self.add_packets(sl, &self.level(sl).multicast_rcv_packets, 1);
    }

    #[inline]
    fn add_packets(&self, sl: Sl, counter: &AtomicU64, packets: u64) {
        let before = counter.load(Ordering::Relaxed);
        if before == 0 {
            self.begin(sl);
        }
        counter.store(before.wrapping_add(packets), Ordering::Relaxed);
    }

    /// Something passes on a service level.
    #[cold]
    fn begin(&self, sl: Sl) {
        let used = self.used.load(Ordering::Relaxed) | 1 << sl.value();
        self.used.store(used, Ordering::Relaxed);
    }

    /// Traffic on each service level that has had any.
    pub fn levels(&self) -> impl Iterator<Item = (Sl, Passed)> {
        let used = self.used.load(Ordering::Relaxed);
        let levels = (0..16).filter(move |sl| used >> sl & 1 != 0).map(Sl::new);
        levels.map(|sl| {
            let counters = self.level(sl).counters();
            (
                sl,
                counters
                    .map(|counter| counter.load(Ordering::Relaxed))
                    .into(),
            )
        })
    }

    /// Traffic on all service levels.
    #[must_use]
    pub fn passed(&self) -> Passed {
        self.levels().fold(Passed::default(), |sum, (_, level)| {
            sum.with(level, u64::wrapping_add)
        })
    }

    /// Has the counters of a service level go on from there.
    pub(crate) fn go_on(&self, sl: Sl, from: Passed) {
        if from != Passed::default() {
            self.begin(sl);
        }
        for (counter, value) in self
            .level(sl)
            .counters()
            .into_iter()
            .zip(<[u64; 6]>::from(from))
        {
            counter.store(value, Ordering::Relaxed);
        }
    }
}

/// Requests that ended in an error, and what responders found wrong, by the names that the mlx5 interface gives the
/// counters of hardware.
#[derive(Debug, Default)]
pub struct ErrorCounters {
    /// Receive requests that were too short for their message.
    pub resp_local_length_error: AtomicU64,
    /// Requests with a message or a list of a length that cannot be.
    pub req_local_length_error: AtomicU64,
    /// Receive requests that are inconsistent.
    pub resp_local_qp_error: AtomicU64,
    /// Requests that are inconsistent.
    pub local_operation_error: AtomicU64,
    /// Receive requests with memory that their keys do not allow.
    pub resp_local_protection: AtomicU64,
    /// Requests with memory that their keys do not allow.
    pub req_local_protection: AtomicU64,
    /// Completions of receive requests with an error, [`Status::Flushed`] among them.
    pub resp_cqe_error: AtomicU64,
    /// Completions of requests with an error, [`Status::Flushed`] among them.
    pub req_cqe_error: AtomicU64,
    /// Requests to bind or change a memory key that failed.
    pub req_mw_binding: AtomicU64,
    /// Answers that make no sense.
    pub req_bad_response: AtomicU64,
    /// Requests that the responder found invalid.
    pub req_remote_invalid_request: AtomicU64,
    /// Requests of peers that were found invalid, other than those that were too long.
    pub resp_remote_invalid_request: AtomicU64,
    /// Requests that the responder's keys do not allow.
    pub req_remote_access_errors: AtomicU64,
    /// Requests of peers that this side's keys do not allow.
    pub resp_remote_access_errors: AtomicU64,
    /// Requests at which the responder failed.
    pub req_remote_operation_errors: AtomicU64,
    /// Requests without an answer after all retries.
    pub req_transport_retries_exceeded: AtomicU64,
    /// Requests with a receiver that was not ready after all retries.
    pub req_rnr_retries_exceeded: AtomicU64,
    /// Completions that found their queue full.
    pub cq_overflow: AtomicU64,
    /// Receive requests that were flushed.
    pub resp_cqe_flush_error: AtomicU64,
    /// Requests that were flushed.
    pub req_cqe_flush_error: AtomicU64,
}

/// Counters of queue pairs with the same set. In lines of the cache of its own: functions of other engines count in
/// others.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct QpCounters {
    /// Requests of others.
    pub requests: RequestCounters,
    /// Retries.
    pub retries: RetryCounters,
    /// Errors.
    pub errors: ErrorCounters,
}

impl QpCounters {
    /// A request of this side has completed with an error.
    #[cold]
    pub(crate) fn ended_badly(&self, side: &Side, status: Status) {
        match side {
            Side::Send { .. } => self.request_failed(status),
            Side::Recv { .. } | Side::Steered { .. } | Side::Tagged { .. } | Side::Tags { .. } => {
                self.receive_failed(status);
            }
            Side::Signature(_) => {}
        }
    }

    fn request_failed(&self, status: Status) {
        let errors = &self.errors;
        let counter = match status {
            Status::Success => return,
            Status::LocalLength => &errors.req_local_length_error,
            Status::LocalQpOperation => &errors.local_operation_error,
            Status::LocalProtection | Status::LocalAccess => &errors.req_local_protection,
            Status::Flushed => &errors.req_cqe_flush_error,
            Status::MemoryBind => &errors.req_mw_binding,
            Status::BadResponse => &errors.req_bad_response,
            Status::RemoteInvalidRequest => &errors.req_remote_invalid_request,
            Status::RemoteAccess => &errors.req_remote_access_errors,
            Status::RemoteOperation => &errors.req_remote_operation_errors,
            Status::RetryExceeded => &errors.req_transport_retries_exceeded,
            Status::RnrRetryExceeded => &errors.req_rnr_retries_exceeded,
        };
        TrafficCounters::add(counter, 1);
        TrafficCounters::add(&errors.req_cqe_error, 1);
    }

    fn receive_failed(&self, status: Status) {
        let errors = &self.errors;
        let counter = match status {
            Status::LocalLength => Some(&errors.resp_local_length_error),
            Status::LocalQpOperation => Some(&errors.resp_local_qp_error),
            Status::LocalProtection => Some(&errors.resp_local_protection),
            Status::Flushed => Some(&errors.resp_cqe_flush_error),
            // Others are none of a receiver's, or counted where they are found.
            _ => None,
        };
        if let Some(counter) = counter {
            TrafficCounters::add(counter, 1);
        }
        TrafficCounters::add(&errors.resp_cqe_error, 1);
    }

    /// A peer's request is refused, which may have begun to fill a receive request that tells of it.
    #[cold]
    pub(crate) fn refused(&self, refusal: Refusal, had_request: bool) {
        let counter = match refusal {
            Refusal::Access => &self.errors.resp_remote_access_errors,
            Refusal::Invalid if !had_request => &self.errors.resp_remote_invalid_request,
            _ => return,
        };
        TrafficCounters::add(counter, 1);
    }
}

/// Counters of a queue pair's retries: of its function, and of its set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retries<'a>(pub [&'a RetryCounters; 2]);

impl Retries<'_> {
    pub fn add(&self, counter: fn(&RetryCounters) -> &AtomicU64, amount: u64) {
        for counters in self.0 {
            TrafficCounters::add(counter(counters), amount);
        }
    }
}
