//! Lists of pages in an image.

use serde::{Deserialize, Serialize};

/// A list of pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PagesImageV1 {
    /// As one block.
    Short(BlockImageV1),
    /// In blocks of 2^15 pages. Where there is none, or its end comes early, are pages at address 0.
    Long {
        /// Number of all pages.
        count: u64,
        /// The first blocks.
        blocks: Vec<Option<BlockImageV1>>,
    },
}

/// A block of pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BlockImageV1 {
    /// Page `n` is at `first + (n << log_stride)`.
    Run {
        /// Address of the first.
        first: u64,
        /// Distance from one to the next, as a power of two.
        log_stride: u8,
        /// Number of pages.
        count: u64,
    },
    /// Addresses.
    List(Vec<u64>),
}
