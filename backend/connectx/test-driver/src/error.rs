//! Errors of the driver.

use std::io;

use thiserror::Error;
use vfio_user::client::ClientError;

use crate::function::opcode::{Opcode, Status};

/// Why something did not succeed.
#[derive(Debug, Error)]
pub enum Error {
    /// The connection to the device failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The device executed a command and refused it.
    #[error("{opcode:?} was refused: {status:?}, syndrome {syndrome:#x}")]
    Refused {
        /// The command.
        opcode: Opcode,
        /// The outcome.
        status: Status,
        /// The device's reason.
        syndrome: u32,
    },
    /// The device could not take a command from its entry.
    #[error("{opcode:?} was not delivered: delivery status {status:#x}")]
    NotDelivered {
        /// The command.
        opcode: Opcode,
        /// Delivery status of the entry.
        status: u8,
    },
    /// Nothing came for too long.
    #[error("waited in vain for {0}; see the device's log")]
    Timeout(&'static str),
    /// A command timed out before this one: the device does not answer.
    #[error("the device stopped answering commands; open it again")]
    Dead,
    /// The driver's memory is used up.
    #[error("no {0} bytes of the driver's memory are left: open the device with more")]
    OutOfMemory(usize),
    /// The system refused memory or file descriptors.
    #[error("cannot {what}: {source}")]
    System {
        /// The failed action.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The device is not what the driver expects.
    #[error("unexpected device: {0}")]
    Unexpected(String),
    /// The queue has no room: poll for completions first.
    #[error("the queue is full: poll its completion queue first")]
    Full,
    /// The request cannot be encoded.
    #[error("the request needs {0} segments of 16 bytes, more than there is room for")]
    TooLong(usize),
}

impl Error {
    /// Returns the status of a refused command, if this error is one.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// The usual result.
pub type Result<T> = std::result::Result<T, Error>;
