//! Requests that a responder has received in part.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use wire::Psn;

use crate::objects::work::MAX_MESSAGE;
use crate::transport::frame::Target;
use crate::transport::requester::MAX_READS;

/// State of a responder that receives frames, besides its numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Receiving {
    /// The message of which some packets have come.
    pub open: Option<Open>,
    /// The last packet that came out of sequence since the expected one did, which the requester has
    /// been told.
    pub strayed: Option<Psn>,
    /// Original values of the last atomics, by their numbers, for duplicates of them.
    pub kept: VecDeque<(Psn, u64)>,
}

/// A message of several packets that is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Open {
    Send,
    Write(Target),
}

impl Receiving {
    /// Whether some packets of a message have come, and others have not.
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether a responder may have come to this. An image says so.
    pub fn is_sound(&self) -> bool {
        let fits = match self.open {
            Some(Open::Write(target)) => u64::from(target.length) <= MAX_MESSAGE,
            Some(Open::Send) | None => true,
        };
        fits && self.kept.len() <= MAX_READS
    }
}
