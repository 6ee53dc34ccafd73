//! Kinds of errors.

use serde::{Deserialize, Serialize};

/// Kinds of [`Response::Error`](super::Response::Error).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The line is no request this daemon knows.
    BadRequest,
    /// The line is longer than [`REQUEST_MAX`](crate::REQUEST_MAX).
    TooLong,
    /// There is nothing of a name in the request.
    Unknown,
    /// It could not be done; the message says why.
    Failed,
}
