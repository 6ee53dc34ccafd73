//! Signatures: check values that the HCA makes, compares and takes away for each block of data, on its way between
//! a guest's memory and the wire.
//!
//! What a key with signatures describes is a stream of bytes in memory, with check values behind each block there or
//! without, and another one on the wire, which is what the key's users address. Nothing is kept from one access to
//! the next but a check value that has come in part: all that is to be compared is computed from memory when a block
//! is complete. So accesses may be cut anywhere, and made again.

pub mod digest;
pub mod format;
pub mod key;
pub(crate) mod transfer;
