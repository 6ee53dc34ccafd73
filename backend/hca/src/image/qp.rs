//! Queue pairs.

use serde::{Deserialize, Serialize};
use wire::{Mtu, Psn, Qpn};

use crate::objects::dynamic::{FarEnd, Initiator, RouteMarks};
use crate::objects::page_fault::Paging;
use crate::objects::qp::Wait;
use crate::objects::qp::attributes::{AddressPath, InCompletion, QpAttr, QpState, Transport};
use crate::objects::reason::Status;
use crate::objects::tags::Tagged;
use crate::objects::work::{RecvWr, SendWr};
use crate::queue_format::QueueFormat;
use crate::transport::responder::receiving::Receiving;

/// A queue pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "", deny_unknown_fields)]
pub struct QpImageV1<F: QueueFormat> {
    pub(crate) qpn: Qpn,
    #[serde(default)]
    pub(crate) user_index: Option<u32>,
    #[serde(default)]
    pub(crate) in_completion: InCompletion,
    pub(crate) transport: Transport,
    pub(crate) pd: u32,
    pub(crate) state: QpState,
    pub(crate) attr: QpAttr,
    pub(crate) source_qpn: Qpn,
    pub(crate) block_multicast_loopback: bool,
    #[serde(default)]
    pub(crate) offloads: bool,
    pub(crate) polled: bool,
    /// The set of counters that it counts in; 0 is none.
    #[serde(default)]
    pub(crate) counter_set: u8,
    pub(crate) requester: RequesterImageV1<F>,
    pub(crate) responder: ResponderImageV1<F>,
}

/// The requesting half.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "", deny_unknown_fields)]
pub struct RequesterImageV1<F: QueueFormat> {
    pub(crate) queue: Option<F::SendImage>,
    pub(crate) cqn: Option<u32>,
    /// Request in progress, and bytes of it already moved.
    pub(crate) current: Option<SendWr>,
    pub(crate) offset: u64,
    pub(crate) psn: Psn,
    pub(crate) retries_left: u8,
    pub(crate) rnr_left: u8,
    pub(crate) wait: Wait,
    /// Nanoseconds that the wait lasts.
    pub(crate) due: u64,
    /// Whether it waits for a page.
    #[serde(default)]
    pub(crate) paging: Paging,
    pub(crate) away: Option<AwayImageV1>,
    /// The far end of an initiator of dynamic connections.
    #[serde(default)]
    pub(crate) far: FarEnd,
}

/// Requests that are under way in frames.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AwayImageV1 {
    pub(crate) requests: Vec<RequestImageV1>,
    /// The request to be sent next, and the packet within it.
    pub(crate) next: (u64, u32),
    /// The number after the last packet of the last request.
    pub(crate) newest: Psn,
    /// The number after the last packet that was ever sent.
    pub(crate) reached: Psn,
    /// READs and atomics without an answer: the numbers after them.
    pub(crate) asked: Vec<Psn>,
    /// The last answer that came out of sequence.
    pub(crate) strayed: Option<Psn>,
    pub(crate) retries_left: u8,
    pub(crate) rnr_left: u8,
    /// Nanoseconds until the receiver may be ready.
    pub(crate) pause: Option<u64>,
    /// Nanoseconds until an answer is overdue.
    pub(crate) overdue: Option<u64>,
    pub(crate) finished: Vec<FinishedImageV1>,
}

/// A request that is not complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestImageV1 {
    pub(crate) wr: SendWr,
    pub(crate) psn: Psn,
    /// Packets that it takes, and how many of them are acknowledged or answered.
    pub(crate) packets: u32,
    pub(crate) done: u32,
    /// It completes so when all before it have.
    pub(crate) fault: Option<Status>,
}

/// A request that is complete, of which its owner has not been told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishedImageV1 {
    pub(crate) wr: SendWr,
    pub(crate) status: Status,
    pub(crate) byte_len: u32,
}

/// The responding half.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "", deny_unknown_fields)]
pub struct ResponderImageV1<F: QueueFormat> {
    pub(crate) queue: RecvImageV1<F>,
    pub(crate) cqn: Option<u32>,
    pub(crate) psn: Psn,
    pub(crate) msn: u32,
    pub(crate) inbound: Option<InboundImageV1>,
    /// Bytes received of a message that is not complete.
    pub(crate) received: u64,
    pub(crate) established: bool,
    /// Whether it waits for a page.
    #[serde(default)]
    pub(crate) paging: Paging,
    pub(crate) receiving: Receiving,
    /// State of a target of dynamic connections.
    #[serde(default)]
    pub(crate) target: Option<TargetImageV1>,
    /// Its state of tag matching.
    #[serde(default)]
    pub(crate) tagged: Option<Tagged>,
}

/// Additional state of a target of dynamic connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetImageV1 {
    pub(crate) key: u64,
    pub(crate) route: RouteMarks,
    pub(crate) armed: bool,
    pub(crate) violations: u32,
    /// Receive requests that contexts have left to the next ones.
    pub(crate) left_behind: Vec<InboundImageV1>,
    pub(crate) contexts: Vec<ContextImageV1>,
}

/// The responder that a target has for one initiator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextImageV1 {
    pub(crate) initiator: Initiator,
    pub(crate) session: u32,
    pub(crate) earlier: Option<u32>,
    /// It has refused a request, and takes nothing more of the connection.
    pub(crate) refused: bool,
    /// Nanoseconds since something came for it.
    pub(crate) idle: u64,
    pub(crate) mtu: Mtu,
    /// The way back.
    pub(crate) path: AddressPath,
    pub(crate) psn: Psn,
    pub(crate) msn: u32,
    pub(crate) inbound: Option<InboundImageV1>,
    pub(crate) received: u64,
    pub(crate) receiving: Receiving,
}

/// Where receive requests come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case", deny_unknown_fields)]
pub enum RecvImageV1<F: QueueFormat> {
    /// Nowhere.
    None,
    /// The queue pair's own queue.
    Own(F::RecvImage),
    /// A shared receive queue.
    Shared(u32),
    /// Receive requests of an XRC domain.
    Xrc(u32),
}

/// A receive request that a message is being scattered into.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InboundImageV1 {
    pub(crate) wr: RecvWr,
    /// Shared receive queue that it came from.
    pub(crate) srqn: Option<u32>,
    /// Protection domain of its buffers.
    pub(crate) pd: u32,
}
