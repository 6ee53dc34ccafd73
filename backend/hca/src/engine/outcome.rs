//! Making progress: turns of queue pairs, attempts at requests, retries and
//! timers. The module `run_queue` says whose turn it is.

use crate::objects::reason::{Reason, Status};
use crate::objects::work::SendWr;

/// Outcome of one attempt at a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Complete; this many bytes.
    Done(u32),
    /// The turn's bytes are used up; more to move.
    Partly,
    /// The responder has no receive request; it says to wait by this timer code.
    NotReady(u8),
    /// Nobody answers.
    Unanswered,
    /// The function at the other end is quiesced.
    OtherEndQuiesced,
    /// The responder expects another packet.
    OutOfSequence,
    /// Failed.
    Failed(Status),
    /// It goes in frames.
    Departs,
    /// There is no room on the way.
    Crowded,
    /// It has met congestion, and waits until then.
    Held(u64),
    /// Its own memory is not there.
    Absent,
}

/// A request fails for this reason.
#[cold]
pub(crate) fn failed(wr: &mut SendWr, status: Status, reason: Reason) -> Outcome {
    wr.reason = reason;
    Outcome::Failed(status)
}
