//! Signatures: check values that the HCA makes, compares and takes away for each block of data, on its way between
//! a guest's memory and the wire.
//!
//! A key with signatures describes two streams of bytes: one in memory, with or without check values behind each
//! block, and one on the wire, which is what the key's users address. Nothing is kept from one access to the next but
//! a check value that has come in part: all that is to be compared is computed from memory when a block is complete.
//! So accesses may be cut anywhere, and made again.

pub mod digest;
pub mod format;
pub mod key;
pub(crate) mod transfer;
