//! Receive queues: a ring of scatter lists.

use hca::work::{RecvWr, WqeError};
use hca::{Dma, Reason};
use serde::{Deserialize, Serialize};

use super::{Buffer, BufferImageV1, Record, checked};
use crate::bits::work::INLINE;
use crate::request;

/// Most bytes of a receive request.
pub const MAX_STRIDE: usize = 16 << 7;

/// A receive queue.
#[derive(Debug)]
pub struct ReceiveQueue {
    buffer: Buffer,
    log_size: u32,
    /// Logarithm of the bytes of a request, 4 to 11.
    log_stride: u32,
    record: Record,
    taken: u16,
    /// Bits of the elements' lengths that mean nothing here.
    ignored: u32,
}

/// A receive queue in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiveQueueImageV1 {
    buffer: BufferImageV1,
    log_size: u32,
    log_stride: u32,
    record: u64,
    taken: u16,
    /// It is one of a network interface.
    #[serde(default)]
    padded: bool,
}

impl ReceiveQueue {
    /// Its part of an image.
    #[must_use]
    pub fn save(&self) -> ReceiveQueueImageV1 {
        ReceiveQueueImageV1 {
            buffer: self.buffer.save(),
            log_size: self.log_size,
            log_stride: self.log_stride,
            record: self.record.addr(),
            taken: self.taken,
            padded: self.ignored != 0,
        }
    }

    /// The queue of an image.
    ///
    /// # Errors
    /// The defect of the image.
    pub fn restore(image: ReceiveQueueImageV1) -> Result<Self, String> {
        let sizes = [(image.log_size, 0..=15), (image.log_stride, 4..=11)];
        checked(&sizes, "receive queue")?;
        let len = 1 << (image.log_size + image.log_stride);
        let record = Record::new(image.record).map_err(|error| error.to_string())?;
        let buffer = Buffer::restore(image.buffer, len)?;
        let queue = Self::new(buffer, image.log_size, image.log_stride, record);
        let queue = if image.padded { queue.padded() } else { queue };
        Ok(Self {
            taken: image.taken,
            ..queue
        })
    }

    /// Bytes of the host's memory that its list of pages takes.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.buffer.held()
    }

    /// A queue of `1 << log_size` requests (at most 2^15) of `1 << log_stride`
    /// bytes each (4 to 11) at the start of `buffer`.
    #[must_use]
    pub const fn new(buffer: Buffer, log_size: u32, log_stride: u32, record: Record) -> Self {
        Self {
            buffer,
            log_size,
            log_stride,
            record,
            taken: 0,
            ignored: 0,
        }
    }

    /// The queue of a network interface: drivers say in each element that what comes may begin later in it, so that
    /// headers are aligned. It does not.
    #[must_use]
    pub const fn padded(mut self) -> Self {
        self.ignored = INLINE;
        self
    }

    /// Requests taken so far, modulo 2^16.
    #[must_use]
    pub const fn taken(&self) -> u16 {
        self.taken
    }

    /// Requests posted so far, modulo 2^16, as the doorbell record says.
    #[inline]
    pub fn posted<D: Dma>(&self, dma: &D) -> Option<u16> {
        self.record.load(dma, 0).map(|count| count as u16)
    }

    /// Forgets what was posted: the queue pair was reset.
    pub const fn reset(&mut self) {
        self.taken = 0;
    }

    /// Takes the next request; `Ok(false)` when none is posted.
    ///
    /// # Errors
    /// [`WqeError`]; the request counts as taken.
    #[inline]
    pub fn take<D: Dma>(&mut self, dma: &D, wr: &mut RecvWr) -> Result<bool, WqeError> {
        let posted = self.posted(dma).ok_or(WqeError::Unmapped)?;
        let available = posted.wrapping_sub(self.taken);
        if available == 0 {
            return Ok(false);
        }
        let index = self.taken;
        if u32::from(available) > 1 << self.log_size {
            self.taken = posted;
            return Err(WqeError::Malformed {
                index,
                opcode: 0,
                reason: Reason::Counter,
            });
        }
        self.taken = index.wrapping_add(1);
        wr.index = index;
        let at = u64::from(index & ((1 << self.log_size) - 1)) << self.log_stride;
        take_scatter(
            &self.buffer,
            dma,
            at,
            1 << self.log_stride,
            self.ignored,
            wr,
        )?;
        Ok(true)
    }
}

/// Reads the scatter list of `len` bytes at position `at`. Short lists, which
/// most are, do not pay for the room of long ones.
#[inline]
pub(super) fn take_scatter<D: Dma>(
    buffer: &Buffer,
    dma: &D,
    at: u64,
    len: usize,
    ignored: u32,
    wr: &mut RecvWr,
) -> Result<(), WqeError> {
    const SHORT: usize = 64;
    if len <= SHORT {
        let mut bytes = [0; SHORT];
        buffer
            .read(dma, at, &mut bytes[..len])
            .map_err(|_| WqeError::Unmapped)?;
        return request::decode_scatter(&bytes[..len], ignored, wr);
    }
    let mut bytes = [0; MAX_STRIDE];
    let bytes = &mut bytes[..len.min(MAX_STRIDE)];
    buffer
        .read(dma, at, bytes)
        .map_err(|_| WqeError::Unmapped)?;
    request::decode_scatter(bytes, ignored, wr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Memory;

    #[test]
    fn requests_are_taken_in_order_up_to_the_count() {
        let memory = Memory::new(0x8000);
        // 256 bytes each, from 512 bytes before the end of a page.
        let pages: Vec<u8> = [0x1000_u64, 0x4000]
            .iter()
            .flat_map(|page| page.to_be_bytes())
            .collect();
        let buffer = Buffer::new(&pages, 0, 56, 1024).unwrap();
        let mut queue = ReceiveQueue::new(buffer, 2, 8, Record::new(0x3000).unwrap());
        for (at, len) in [(0x1e00, 1), (0x1f00, 2), (0x4000, 3), (0x4100, 4)] {
            memory.write32(at, len);
            memory.write32(at + 16 + 4, 0x100);
        }
        memory.write32(0x3000, 0x0001_0003);
        let mut wr = RecvWr::with_capacity();
        for expected in 1..=3 {
            wr.clear();
            assert_eq!(queue.take(&memory, &mut wr), Ok(true));
            assert_eq!(
                wr.sges.iter().map(|sge| sge.len).collect::<Vec<_>>(),
                [expected]
            );
        }
        assert_eq!(queue.take(&memory, &mut wr), Ok(false));
        memory.write32(0x3000, 8);
        assert!(queue.take(&memory, &mut wr).is_err());
        queue.reset();
        memory.write32(0x3000, 0);
        assert_eq!(queue.take(&memory, &mut wr), Ok(false));
    }
}
