//! The end of a connection.

use nix::errno::Errno;
use thiserror::Error;
use vmm_socket::socket::Lost;

/// Reason for the end of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum End {
    /// The client closed the socket.
    #[error("the client closed the socket")]
    Closed,
    /// The client closed the socket in the middle of a message.
    #[error("the client closed the socket in the middle of a message")]
    Truncated,
    /// The client sent a message of a length that no message has; what follows
    /// it cannot be found.
    #[error(
        "the client sent a message of {0} bytes, more than a message can have or less than its header"
    )]
    BadLength(u32),
    /// The client truncated memory that it shared, and the device touched it.
    #[error("the client truncated memory that the device was using")]
    MemoryLost,
    /// The server was told to stop.
    #[error("the server was told to stop")]
    Stopped,
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Failed(Errno),
}

impl From<Lost> for End {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Closed => Self::Closed,
            Lost::Truncated => Self::Truncated,
            Lost::Stopped => Self::Stopped,
            Lost::System(errno) => Self::Failed(errno),
        }
    }
}
