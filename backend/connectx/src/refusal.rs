//! A refused command: the status of its reply, and the reason for the log.

use hca::VerbError;

use crate::bits::command::Status;
use crate::queue::BufferError;

/// Why a command is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Status of the reply.
    pub status: Status,
    /// The reason, for the log.
    pub reason: &'static str,
}

/// A refusal.
pub(crate) const fn refuse(status: Status, reason: &'static str) -> Refusal {
    Refusal { status, reason }
}

/// Outcome of a command.
pub(crate) type Outcome = Result<(), Refusal>;

/// The driver sends commands in an order: it enables the function, initializes it, and creates objects then.
pub(crate) const TOO_EARLY: Refusal = refuse(
    Status::BadSystemState,
    "the function is not enabled or not initialized",
);
/// The device does not know the command.
pub(crate) const UNKNOWN: Refusal = refuse(Status::BadOperation, "unknown command");

impl From<VerbError> for Refusal {
    fn from(error: VerbError) -> Self {
        match error {
            VerbError::Exhausted => refuse(Status::NoResources, "the function's quota is reached"),
            VerbError::NotFound => refuse(Status::BadResource, "no such object"),
            VerbError::InUse => refuse(Status::BadResourceState, "the object is still in use"),
            VerbError::BadState => refuse(
                Status::BadQpState,
                "the queue pair's state does not allow this",
            ),
            VerbError::Invalid => refuse(Status::BadParameter, "invalid parameter"),
        }
    }
}

impl From<BufferError> for Refusal {
    fn from(error: BufferError) -> Self {
        match error {
            BufferError::TooFewPages { .. } => refuse(
                Status::BadInputLength,
                "the page list is shorter than the queue",
            ),
            BufferError::MisalignedRecord(_) => {
                refuse(Status::BadParameter, "the doorbell record is not aligned")
            }
        }
    }
}
