//! Refusals of a responder.

/// A refusal by the responder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// NAK, invalid request.
    Invalid,
    /// NAK, remote access error.
    Access,
    /// NAK, remote operational error.
    Operation,
    /// RNR NAK with this timer code.
    NotReady(u8),
    /// Nothing: the requester's own memory is at fault.
    Local,
    /// Nothing: the requester's own list has the wrong length.
    LocalLength,
    /// The responder's receive queue is unreadable.
    Catastrophe,
    /// NAK, sequence error: the payload is in memory that is not lent any more.
    Void,
    /// Nothing: the same, and the requester waits for no answer.
    Stale,
    /// RNR NAK: memory that it needs is not there.
    Absent,
    /// Nothing: the requester's own memory is not there.
    LocalAbsent,
}
