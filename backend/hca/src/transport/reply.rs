//! Results of a request: an answer, and a message that is complete.

use wire::Psn;

use super::frame::{Content, Syndrome};
use crate::memory::lending::Loan;
use crate::objects::page_fault::PageFault;
use crate::objects::reason::Reason;
use crate::objects::refusal::Refusal;
use crate::objects::work::RecvKind;

/// A message is complete, and a receive request with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub kind: RecvKind,
    pub immediate: u32,
    pub len: u32,
    pub solicited: bool,
}

/// Result of a frame.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// The answer: what it says, its number and its payload.
    pub answer: Option<(Content, Psn, Vec<u8>)>,
    /// In place of the payload, where the answer lends it.
    pub loan: Option<Box<Loan>>,
    /// Why it refuses, if it does.
    pub reason: Reason,
    /// Some of it has been carried out; the rest is to be in the next turn.
    pub partly: bool,
    /// A receive request to complete.
    pub delivery: Option<Delivery>,
    /// The responder has refused, other than for the time being, and fails.
    pub refusal: Option<Refusal>,
    /// A page that it needs is not there.
    pub fault: Option<PageFault>,
}

impl Reply {
    pub fn say(syndrome: Syndrome, psn: Psn, msn: u32) -> Self {
        Self {
            answer: Some((Content::Acknowledge(syndrome, msn), psn, Vec::new())),
            ..Self::default()
        }
    }
}
