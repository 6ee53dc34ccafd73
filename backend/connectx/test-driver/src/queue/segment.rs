//! Segments of requests: elements of lists, and words one after the other.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// In the first dword of an inline segment.
const INLINE: u32 = 1 << 31;

/// An element of a scatter or gather list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    /// Address in the region.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local key of the region.
    pub key: u32,
}

/// Writes words one after the other to a ring.
pub(crate) struct Writer<'a> {
    pub(crate) ring: &'a [AtomicU64],
    /// The next word.
    pub(crate) at: usize,
}

impl Writer<'_> {
    #[inline]
    pub(crate) fn word(&mut self, value: u64) {
        self.ring[self.at & (self.ring.len() - 1)].store(value.to_be(), Ordering::Relaxed);
        self.at += 1;
    }

    #[inline]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_be_bytes(word));
        }
    }

    /// An inline segment: length and data, padded to a whole segment.
    #[inline]
    pub(crate) fn inline(&mut self, data: &[u8]) {
        let (first, rest) = data.split_at(data.len().min(4));
        let mut head = [0; 4];
        head[..first.len()].copy_from_slice(first);
        let len = INLINE | data.len() as u32;
        self.word(u64::from(len) << 32 | u64::from(u32::from_be_bytes(head)));
        self.bytes(rest);
        if rest.len().div_ceil(8).is_multiple_of(2) {
            self.word(0);
        }
    }
}

impl Sge {
    #[inline]
    pub(crate) fn emit(&self, put: &mut Writer<'_>) {
        put.word(u64::from(self.len) << 32 | u64::from(self.key));
        put.word(self.addr);
    }
}

/// Local key that ends a scatter list.
const TERMINATOR_KEY: u32 = 0x100;

/// Writes a scatter list, ended where there is room left.
pub(crate) fn write_list(words: &[AtomicU64], list: &[Sge]) -> Result<()> {
    if list.len() * 2 > words.len() {
        return Err(Error::TooLong(list.len()));
    }
    for (sge, words) in list.iter().zip(words.chunks_exact(2)) {
        let head = u64::from(sge.len) << 32 | u64::from(sge.key);
        words[0].store(head.to_be(), Ordering::Relaxed);
        words[1].store(sge.addr.to_be(), Ordering::Relaxed);
    }
    if let Some(words) = words.get(list.len() * 2..list.len() * 2 + 2) {
        words[0].store(u64::from(TERMINATOR_KEY).to_be(), Ordering::Relaxed);
        words[1].store(0, Ordering::Relaxed);
    }
    Ok(())
}
