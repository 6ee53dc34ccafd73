//! Compressed completions: several that differ in little are one entry, the *title*, and arrays of *mini CQEs* behind
//! it, of which each has what is its own.
//!
//! Completions wait for each other no longer than the engine's turn in which they come. A title that stands for
//! n completions takes n places in the ring, of which it and the arrays fill the first, the second, and every eighth
//! from there on but one: the driver makes its own use of the rest. As Linux' `en_rx.c` reads them.

use hca::work::{CompletionEntry, Side, Status};
use hca::{CqError, Dma};

use super::entry::encode;
use super::{CQE_SIZE, CompletionQueue, Notice};
use crate::bits::completion::{COMPRESSED, mlx5_cqe64 as cqe};

/// Most completions that one title stands for.
pub const MAX_COMPRESSED: usize = 64;
/// Completions in an array.
const ARRAY: usize = 8;

/// Further state of a queue of compressed completions.
#[derive(Debug)]
pub struct Compression {
    /// Format of mini CQEs of received messages. Each says what this device knows nothing of: hashes,
    /// checksums, strides.
    pub format: u8,
    /// The first of those that wait, where any do.
    title: Option<CompletionEntry>,
    count: usize,
    minis: [[u8; 8]; MAX_COMPRESSED],
}

impl Compression {
    /// The state of a queue without completions.
    #[must_use]
    pub fn new(format: u8) -> Box<Self> {
        Box::new(Self {
            format,
            title: None,
            count: 0,
            minis: [[0; 8]; MAX_COMPRESSED],
        })
    }

    /// Whether a completion differs from those that wait in no more than a mini CQE tells. Of a received message that
    /// has no place for the number of its request: it is the one behind the last.
    fn continues(&self, entry: &CompletionEntry) -> bool {
        let Some(title) = &self.title else {
            return false;
        };
        let alike = match (&title.side, &entry.side) {
            (Side::Send { .. }, Side::Send { .. }) => true,
            (first, side) => {
                first == side && entry.index == title.index.wrapping_add(self.count as u16)
            }
        };
        alike
            && (entry.qpn, entry.user_index) == (title.qpn, title.user_index)
            && (entry.solicited, entry.time) == (title.solicited, title.time)
    }

    fn push(&mut self, entry: &CompletionEntry) {
        let mut mini = [0; 8];
        if let Side::Send { opcode } = entry.side {
            mini[..2].copy_from_slice(&entry.index.to_be_bytes());
            mini[2] = opcode;
        }
        mini[4..].copy_from_slice(&entry.byte_len.to_be_bytes());
        if let Some(place) = self.minis.get_mut(self.count) {
            *place = mini;
            self.count += 1;
        }
        self.title.get_or_insert(*entry);
    }
}

impl CompletionQueue {
    /// Whether completions wait to be written together.
    #[inline]
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.compression
            .as_ref()
            .is_some_and(|compression| compression.title.is_some())
    }

    /// Has a completion wait for others if it can, where `more` of the turn may come; otherwise writes those that wait,
    /// and it.
    #[cold]
    pub(super) fn gather<D: Dma>(
        &mut self,
        dma: &D,
        entry: &CompletionEntry,
        held: &[u8],
        more: bool,
    ) -> Result<Notice, CqError> {
        let size = 1_usize << self.ring.log_size;
        // Mini CQEs say nothing of others.
        let plain = matches!(entry.side, Side::Send { .. } | Side::Recv { .. });
        let alone = !more || !plain || entry.status != Status::Success || !held.is_empty();
        let mut notice = Notice::None;
        if let Some(compression) = &self.compression
            && (alone
                || !compression.continues(entry)
                || compression.count == size.min(MAX_COMPRESSED))
        {
            notice = self.write_out(dma)?;
        }
        let waiting = self.compression.as_ref().map_or(0, |it| it.count);
        if let Err(error) = self.make_room(dma, waiting as u32) {
            let _ = self.write_out(dma)?;
            return Err(error);
        }
        match &mut self.compression {
            Some(compression) if !alone => compression.push(entry),
            _ => notice = notice.and(self.write_entry(dma, entry, held)?),
        }
        Ok(notice)
    }

    /// Writes the completions that wait, as a title and arrays where there are several.
    ///
    /// # Errors
    /// [`CqError`].
    pub fn write_out<D: Dma>(&mut self, dma: &D) -> Result<Notice, CqError> {
        let Some(compression) = &mut self.compression else {
            return Ok(Notice::None);
        };
        let Some(title) = compression.title.take() else {
            return Ok(Notice::None);
        };
        let count = std::mem::take(&mut compression.count);
        if count == 1 {
            return self.write_entry(dma, &title, &[]);
        }
        for (number, minis) in compression.minis[..count].chunks(ARRAY).enumerate() {
            let mut array = [[0; 8]; ARRAY];
            array[..minis.len()].copy_from_slice(minis);
            let place = self.producer + (ARRAY * number).max(1) as u32;
            self.ring.write_array(dma, place, &array)?;
        }
        let mut bytes = [0; CQE_SIZE];
        encode(&title, &mut bytes);
        cqe::BYTE_CNT.set(&mut bytes, count as u32);
        bytes[CQE_SIZE - 1] |= COMPRESSED;
        self.ring.write(dma, self.producer, &mut bytes, &[])?;
        Ok(self.written(dma, count as u32, title.solicited))
    }
}

impl Notice {
    /// Treatment of an event after both.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Now, _) | (_, Self::None) => self,
            _ => other,
        }
    }
}

#[cfg(test)]
mod tests;
