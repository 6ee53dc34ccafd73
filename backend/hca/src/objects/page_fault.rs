//! Pages that queue pairs wait for.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use wire::Qpn;

use crate::memory::sge::Sge;

/// After which time a requester asks again whose responder waits for a page, as a code of the RNR NAK timer:
/// 0.64 ms.
pub(crate) const RETRY_CODE: u8 = 12;

/// A half of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Half {
    /// The one that sends requests.
    Requester,
    /// The one that receives them.
    Responder,
}

/// A page that a queue pair needs is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFault {
    /// The queue pair.
    pub qpn: Qpn,
    /// The half of it that waits.
    pub half: Half,
    /// The memory that is needed.
    pub of: Needed,
    /// Bytes before the page, which have been moved.
    pub committed: u32,
    /// Bytes of a packet.
    pub packet: u16,
}

/// For what a page is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    /// A request of the send queue.
    Send {
        /// `SendWr::index`.
        index: u16,
        /// It fills its list: a READ or an atomic.
        fills: bool,
    },
    /// A receive request.
    Receive {
        /// [`crate::work::RecvWr::index`].
        index: u16,
        /// The shared receive queue that it came from.
        srqn: Option<u32>,
    },
    /// Memory that no request of the queue pair's own names: a request of the far end does, or an entry of a list of
    /// tags.
    Memory {
        /// The key.
        key: u32,
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u32,
        /// It is to be written.
        writes: bool,
    },
}

/// Whether a half of a queue pair waits for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Paging {
    /// It does not.
    #[default]
    None,
    /// It does, and its owner has been told.
    Told,
    /// It does, and its owner is to be told when others go on. No image has it: who waits so tries again.
    #[serde(skip)]
    Later(u64),
    /// The page does not come: the message that needs it fails when it comes again.
    Denied,
}

impl Paging {
    /// Its image.
    pub const fn lasting(self) -> Self {
        match self {
            Self::Later(_) => Self::None,
            lasting => lasting,
        }
    }

    /// Whether its owner is yet to be told.
    pub const fn is_to_be_told(self) -> bool {
        matches!(self, Self::Later(_))
    }
}

/// Queue pairs that wait for pages of a function.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Number of halves of queue pairs that the owner has been told of.
    pub told: usize,
    /// Requesters of which it is to be told, in their order.
    pub later: BTreeSet<(u64, u32)>,
    /// Number of the last of them.
    pub last: u64,
}

impl Needed {
    /// An element of a list.
    pub(crate) const fn element(element: &Sge, writes: bool) -> Self {
        Self::Memory {
            key: element.lkey,
            addr: element.addr,
            len: element.len,
            writes,
        }
    }
}
