//! Elements of scatter and gather lists.

use serde::{Deserialize, Serialize};

/// One element of a scatter or gather list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sge {
    /// Address within the memory region.
    pub addr: u64,
    /// Local key of the region.
    pub lkey: u32,
    /// Length in bytes.
    pub len: u32,
}

/// A stretch of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Inline data.
    Inline(&'a [u8]),
    /// An element of the gather list.
    Memory(&'a Sge),
}

impl Piece<'_> {
    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Memory(sge) => sge.len as u64,
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
