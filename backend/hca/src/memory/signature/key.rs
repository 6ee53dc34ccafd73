//! Signatures of a memory key.

use std::cell::Cell;

use super::format::{Format, LONGEST, Side};
use crate::memory::klm::KlmList;

/// Bytes of a form of a stream of bytes in a key, as the interface counts them.
pub const FORMAT_OCTWORDS: u32 = 4;

/// The bytes of a key that may have signatures.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signed {
    /// Where they are in memory, as of any indirect key.
    pub list: KlmList,
    /// Their form; without one the key is like any indirect key.
    pub format: Option<Format>,
    /// Bytes in memory; the key itself has the length on the wire.
    pub len: u64,
    /// The value of [`Signed::errors`] that the owner expects after the next error. While the two differ, an error
    /// is reported.
    pub expected: bool,
    /// The lowest bit of the number of errors that have been told of.
    pub errors: Cell<bool>,
    /// Received bytes of the check value that is under way on the wire.
    pub seen: Cell<[u8; LONGEST]>,
    /// The block that they are behind, if it is known. No image has it.
    pub seen_of: Cell<Option<u64>>,
}

impl Signed {
    /// The length that the key's users see.
    #[must_use]
    pub fn wire_len(&self) -> u64 {
        match &self.format {
            Some(format) if self.len != u64::MAX => format.wire_len(self.len),
            _ => self.len,
        }
    }

    /// Bytes of the host's memory that it takes.
    pub(crate) fn held(&self) -> usize {
        size_of::<Self>() + self.list.held()
    }
}

/// The wrong part of the signature behind a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// The check value of the data (of T10-DIF the block guard).
    Guard,
    /// The application tag.
    Application,
    /// The reference tag.
    Reference,
}

/// A block that is not as its signature says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignatureError {
    /// The key, index and variant.
    pub key: u32,
    /// The side whose signature it is.
    pub side: Side,
    /// The wrong part; the first one where several are.
    pub wrong: Wrong,
    /// The value in the signature. Of T10-DIF, block guard, application tag and reference tag from the topmost bit
    /// on; of others, the check value in the upper half.
    pub expected: u64,
    /// The value computed from the block.
    pub actual: u64,
    /// Where the block begins, in bytes on that side.
    pub offset: u64,
}
