//! Reasons for which work requests fail.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use wire::Qpn;

use crate::memory::mr::KeyError;
use crate::objects::ids::VfId;

/// A fault of an access by a memory key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error, Serialize, Deserialize)]
pub enum KeyFault {
    /// No such key, or it is not usable now.
    #[error("is not valid")]
    Invalid,
    /// It belongs to another protection domain or queue pair.
    #[error("belongs to another protection domain or queue pair")]
    Protection,
    /// It does not grant the access.
    #[error("does not grant the access")]
    Access,
    /// The range is not within the region.
    #[error("is of a region that does not hold the whole range")]
    Bounds,
    /// The guest memory behind the region is gone.
    #[error("is of memory that the VM does not have")]
    Unmapped,
    /// The page is not there, and its owner does not bring it.
    #[error("is of a page that is not there")]
    Absent,
}

impl From<KeyError> for KeyFault {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Invalid(_) => Self::Invalid,
            KeyError::Protection(_) => Self::Protection,
            // An operation that needs memory itself, as atomics do, finds none under signatures.
            KeyError::Access(_) | KeyError::Signed(_) => Self::Access,
            KeyError::Bounds { .. } => Self::Bounds,
            KeyError::Unmapped(_) => Self::Unmapped,
            KeyError::Absent(_) => Self::Absent,
        }
    }
}

/// Why a send request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Error, Serialize, Deserialize)]
pub enum Reason {
    /// The status says all.
    #[default]
    #[error("the status says all")]
    Status,
    /// The device does not execute the opcode, or not with its modifier.
    #[error("the device does not execute this opcode, or not with this modifier")]
    Opcode,
    /// The segments are not those that opcode and queue pair need, or data
    /// goes beyond the end of the request.
    #[error("the segments are not those of the opcode, or end early")]
    Segments,
    /// More is posted than the queue holds, or less than the request is long.
    #[error("the queue's counter and the length of the request do not fit")]
    Counter,
    /// The transport does not carry the operation.
    #[error("the transport of the queue pair does not carry this operation")]
    Transport,
    /// Inline data in place of memory for an answer.
    #[error("an answer cannot go to inline data")]
    InlineAnswer,
    /// The message is longer than the transport carries.
    #[error("the message is longer than the transport or the path carries")]
    Length,
    /// A datagram goes as a whole, and its memory is in too many pieces for that.
    #[error("the datagram is in more pieces of memory than are read at once")]
    Pieces,
    /// The answer does not have the length of the list that it goes to.
    #[error("the answer is not as long as the list that it goes to")]
    AnswerLength,
    /// The memory key cannot be changed as it was asked to.
    #[error("the memory key cannot be changed so, or by this queue pair")]
    KeyUpdate,
    /// The list of tags cannot be changed as it was asked to.
    #[error("the list of tags cannot be changed so, or not by this queue pair")]
    Tags,
    /// A key of the sender's own.
    #[error("a local key {0}")]
    LocalKey(KeyFault),
    /// The key of the receiver that the request names.
    #[error("the remote key {0}")]
    RemoteKey(KeyFault),
    /// The receiver's queue pair does not do this, whatever the key says.
    #[error("the responder's queue pair does not grant this operation")]
    RemoteRight,
    /// The address of an atomic is not a multiple of eight.
    #[error("the address of an atomic is not a multiple of 8")]
    AtomicAddress,
    /// The message does not fit into the receiver's request.
    #[error("the message is longer than the responder's receive request")]
    ReceiveLength,
    /// The receiver's request cannot be read or names keys that it must not.
    #[error("the responder's receive request cannot be used")]
    ReceiveRequest,
    /// The receiver has no shared receive queue of this number.
    #[error("the responder has no such shared receive queue")]
    SharedQueue,
    /// The access key is not the target's.
    #[error("the DC access key is not the target's")]
    AccessKey,
    /// The far end cannot be one.
    #[error("the request names no far end that the VF may have a connection with")]
    FarEnd,
    /// The key may not be invalidated.
    #[error("the responder's key cannot be invalidated")]
    Invalidation,
}

/// A send request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Function of the queue pair.
    pub vf: VfId,
    /// Its queue pair, as its owner numbers it.
    pub qpn: Qpn,
    /// `SendWr::index`.
    pub index: u16,
    /// `SendWr::opcode`.
    pub opcode: u8,
    /// Status of its completion.
    pub status: Status,
    /// Why.
    pub reason: Reason,
}

/// Is told of requests that fail. Called on the data path: must neither wait nor
/// take long. A guest decides how often.
pub trait Report: std::fmt::Debug + Send {
    /// A request failed. Those that are flushed then are not told of.
    fn failed(&mut self, failure: Failure);
}

/// Completion status (specification 11.6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Status {
    /// Done.
    Success,
    /// Message longer than the receive buffers, or than the port allows.
    LocalLength,
    /// The work request is inconsistent.
    LocalQpOperation,
    /// A local key or its bounds do not allow the access.
    LocalProtection,
    /// Flushed, because the queue pair is in error.
    Flushed,
    /// Memory-key bind or update failed.
    MemoryBind,
    /// The responder sent something that makes no sense.
    BadResponse,
    /// Local access error on the responder side.
    LocalAccess,
    /// The responder found the request invalid.
    RemoteInvalidRequest,
    /// The remote key or its bounds do not allow the access.
    RemoteAccess,
    /// The responder failed on its own.
    RemoteOperation,
    /// No answer after all retries.
    RetryExceeded,
    /// Receiver not ready after all retries.
    RnrRetryExceeded,
}
