//! Captures, as they are asked for, and as they end.

use serde::{Deserialize, Serialize};

/// A capture to be made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// The VFs that have the ports to capture at; all VFs and the subnet manager where none is named and
    /// `manager` is false.
    pub vfs: Vec<String>,
    /// Whether to capture at the port of the subnet manager.
    pub manager: bool,
    /// Whether to capture data, too.
    pub data: bool,
    /// Bytes of payload of each of those to keep.
    pub snaplen: u32,
}

/// The end of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Packets written.
    pub packets: u64,
    /// Management packets and frames of data that found no room in the queue.
    pub lost: u64,
    /// Packets of operations without a published packet format.
    pub left_out: u64,
}
