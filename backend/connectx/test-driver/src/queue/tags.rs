//! Tags: changes of a shared receive queue's list, headers of messages, and what completions tell.

use crate::bits::{put_dword, put_qword};
use crate::function::opcode::codes;
use crate::queue::completion::Cqe;
use crate::queue::segment::Sge;

/// A change of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagOperation {
    /// Nothing changes.
    Nop,
    /// An entry is added, the one that the last change named.
    Append {
        /// The entry that is added next.
        next: u16,
        /// Its tag.
        tag: u64,
        /// Bits of the tag that count.
        mask: u64,
    },
    /// An entry goes.
    Remove {
        /// Index of the entry.
        index: u16,
    },
}

/// Change of the list of the queue pair's shared queue by a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagChange {
    /// The change.
    pub operation: TagOperation,
    /// It completes.
    pub signaled: bool,
    /// Unexpected messages that software has seen, modulo 2^16, if it says so.
    pub seen: Option<u16>,
}

impl TagChange {
    /// As it lies in a request (`mlx5_wqe_tm_seg`).
    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let (opcode, index) = match self.operation {
            TagOperation::Nop => (0, 0),
            TagOperation::Append { next, tag, mask } => {
                put_qword(&mut bytes, 0x10, tag);
                put_qword(&mut bytes, 0x18, mask);
                (1, next)
            }
            TagOperation::Remove { index } => (2, index),
        };
        let flags = u8::from(self.signaled) << 7 | u8::from(self.seen.is_some()) << 6;
        bytes[0] = opcode << 4;
        bytes[1] = flags;
        bytes[2..4].copy_from_slice(&index.to_be_bytes());
        put_dword(&mut bytes, 0x04, self.seen.unwrap_or(0).into());
        bytes
    }
}

/// The header of a message with a tag and its data (`ibv_tmh`), 16 bytes.
pub fn eager_header(tag: u64) -> [u8; 16] {
    const EAGER: u8 = 3;
    let mut bytes = [0; 16];
    bytes[0] = EAGER;
    put_qword(&mut bytes, 8, tag);
    bytes
}

/// The header of a message with a tag whose data lies with its sender (`ibv_tmh` and `ibv_rvh`), 32 bytes.
pub fn rendezvous_header(tag: u64, at: Sge) -> [u8; 32] {
    const RENDEZVOUS: u8 = 1;
    let mut bytes = [0; 32];
    bytes[0] = RENDEZVOUS;
    put_qword(&mut bytes, 8, tag);
    put_qword(&mut bytes, 16, at.addr);
    put_dword(&mut bytes, 24, at.key);
    put_dword(&mut bytes, 28, at.len);
    bytes
}

codes! {
    /// Event of a completion of a queue with tags.
    TagEvent: u8 {
        /// A rendezvous has matched an entry, and is to be read.
        Begun = 0x01,
        /// It has been read.
        Received = 0x02,
        /// A message has a tag that no entry has.
        Unexpected = 0x03,
        /// A message has no tag.
        NoTag = 0x04,
        /// An entry has been added.
        Append = 0x05,
        /// An entry has gone, or was not there.
        Remove = 0x06,
        /// A message has matched an entry, and is there.
        Matched = 0x0a,
    }
}

impl Cqe {
    /// Returns the event of a queue with tags, and its entry or request.
    pub const fn tag_event(&self) -> (TagEvent, u16) {
        let info = self.dword(0x28);
        (TagEvent::from_code((info >> 16) as u8), info as u16)
    }
}
