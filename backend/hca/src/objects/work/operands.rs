//! Operands of atomic operations, and the form of their answers.

use serde::{Deserialize, Serialize};

/// Operands of an atomic operation, host byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AtomicOperands {
    /// Value to swap in, or to add.
    pub swap_add: u64,
    /// Value to compare with.
    pub compare: u64,
    /// Bits that are swapped (masked compare and swap), or field boundaries
    /// (masked fetch and add).
    pub swap_mask: u64,
    /// Bits that are compared.
    pub compare_mask: u64,
    /// The value has four bytes, and so have the operands: those of masked atomics alone.
    #[serde(default)]
    pub half: bool,
}

impl AtomicOperands {
    /// Length of the value in bytes.
    #[inline]
    #[must_use]
    pub const fn size(&self) -> u64 {
        if self.half { 4 } else { 8 }
    }

    /// Encodes the original value for the requester, in its completion (`held`) or in memory, and returns the
    /// number of bytes that count. In memory values of eight bytes are in the host's order (atomic 8-byte
    /// endianness mode 1 of the interface), little endian for every host we run on. Those of four bytes have no
    /// mode: they are big endian. In completions all are, as UCX reads them there.
    #[inline]
    pub(crate) const fn answer(&self, original: u64, held: bool) -> ([u8; 8], usize) {
        if self.half {
            ((original << 32).to_be_bytes(), 4)
        } else if held {
            (original.to_be_bytes(), 8)
        } else {
            (original.to_le_bytes(), 8)
        }
    }
}
