//! Send queues: a ring of 64-byte blocks; a request takes one block or more.

use hca::Dma;
use hca::work::{SendWr, WqeError};

use super::{Buffer, Record};
use crate::bits::work::{BLOCK, MAX_SEND, SEGMENT};
use crate::request::{self, Format};

/// A send queue.
#[derive(Debug)]
pub struct SendQueue {
    buffer: Buffer,
    /// Where the ring begins within the buffer, behind the receive queue.
    start: u64,
    log_blocks: u32,
    record: Record,
    format: Format,
    /// Blocks taken, as the producer counts them.
    taken: u16,
}

impl SendQueue {
    /// A queue of `1 << log_blocks` blocks (at most 2^15) at byte `start` of
    /// `buffer`, whose requests have the given `format`.
    #[must_use]
    pub const fn new(
        buffer: Buffer,
        start: u64,
        log_blocks: u32,
        record: Record,
        format: Format,
    ) -> Self {
        Self {
            buffer,
            start,
            log_blocks,
            record,
            format,
            taken: 0,
        }
    }

    /// Blocks taken so far, modulo 2^16.
    #[must_use]
    pub const fn taken(&self) -> u16 {
        self.taken
    }

    /// Blocks posted so far, modulo 2^16, as the doorbell record says.
    #[inline]
    pub fn posted<D: Dma>(&self, dma: &D) -> Option<u16> {
        self.record.load(dma, 1).map(|count| count as u16)
    }

    /// Forgets what was posted: the queue pair was reset.
    pub const fn reset(&mut self) {
        self.taken = 0;
    }

    #[inline]
    fn position(&self, block: u16) -> u64 {
        self.start + u64::from(block & ((1 << self.log_blocks) - 1)) * BLOCK as u64
    }

    /// Takes the next request; `Ok(false)` when none is posted.
    ///
    /// # Errors
    /// [`WqeError`]; the request counts as taken.
    #[inline]
    pub fn take<D: Dma>(&mut self, dma: &D, wr: &mut SendWr) -> Result<bool, WqeError> {
        let posted = self.posted(dma).ok_or(WqeError::Unmapped)?;
        let available = posted.wrapping_sub(self.taken);
        if available == 0 {
            return Ok(false);
        }
        let index = self.taken;
        if u32::from(available) > 1 << self.log_blocks {
            // More than the ring holds: nothing in it can be trusted.
            self.taken = posted;
            return Err(WqeError::Malformed { index, opcode: 0 });
        }
        let mut first = [0; BLOCK];
        self.buffer
            .read(dma, self.position(index), &mut first)
            .map_err(|_| WqeError::Unmapped)?;
        let len = request::len(&first);
        wr.index = index;
        if len <= BLOCK {
            self.taken = index.wrapping_add(1);
            return request::decode(&first[..len.max(SEGMENT)], self.format, wr).map(|()| true);
        }
        self.take_long(dma, wr, &first, len, available)
    }

    fn take_long<D: Dma>(
        &mut self,
        dma: &D,
        wr: &mut SendWr,
        first: &[u8; BLOCK],
        len: usize,
        available: u16,
    ) -> Result<bool, WqeError> {
        let index = self.taken;
        let blocks = len.div_ceil(BLOCK) as u16;
        self.taken = index.wrapping_add(blocks.min(available));
        if blocks > available {
            return Err(WqeError::Malformed {
                index,
                opcode: first[3],
            });
        }
        let mut bytes = [0; MAX_SEND.next_multiple_of(BLOCK)];
        bytes[..BLOCK].copy_from_slice(first);
        // The rest up to the end of the ring, and from its start.
        let ring = (1 << self.log_blocks) * BLOCK as u64;
        let end = usize::from(blocks) * BLOCK;
        let at = self.position(index.wrapping_add(1));
        let before_wrap = ((self.start + ring - at) as usize).min(end - BLOCK);
        let (now, wrapped) = bytes[BLOCK..end].split_at_mut(before_wrap);
        self.buffer
            .read(dma, at, now)
            .map_err(|_| WqeError::Unmapped)?;
        if !wrapped.is_empty() {
            self.buffer
                .read(dma, self.start, wrapped)
                .map_err(|_| WqeError::Unmapped)?;
        }
        request::decode(&bytes[..len], self.format, wr).map(|()| true)
    }
}
