//! Shared receive queues: requests are a chain, since they are freed in any
//! order.

use hca::work::{RecvWr, WqeError};
use hca::{Dma, Reason};
use serde::{Deserialize, Serialize};

use super::receive::take_scatter;
use super::{Buffer, BufferImageV1, Record, checked};
use crate::bits::work::{SEGMENT, mlx5_wqe_srq_next_seg as next_segment};

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedQueue {
    buffer: Buffer,
    log_size: u32,
    /// Logarithm of the bytes of a request, 5 to 11: its first 16 are the link.
    log_stride: u32,
    record: Record,
    /// Index of the next request.
    head: u16,
    taken: u16,
}

/// A shared receive queue in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedQueueImageV1 {
    buffer: BufferImageV1,
    log_size: u32,
    log_stride: u32,
    record: u64,
    head: u16,
    taken: u16,
}

impl SharedQueue {
    /// Its part of an image.
    #[must_use]
    pub fn save(&self) -> SharedQueueImageV1 {
        SharedQueueImageV1 {
            buffer: self.buffer.save(),
            log_size: self.log_size,
            log_stride: self.log_stride,
            record: self.record.addr(),
            head: self.head,
            taken: self.taken,
        }
    }

    /// The queue of an image.
    ///
    /// # Errors
    /// The defect of the image.
    pub fn restore(image: SharedQueueImageV1) -> Result<Self, String> {
        let sizes = [(image.log_size, 0..=15), (image.log_stride, 5..=11)];
        checked(&sizes, "shared receive queue")?;
        if u32::from(image.head) >= 1 << image.log_size {
            return Err("the chain of a shared receive queue leaves it".into());
        }
        let len = 1 << (image.log_size + image.log_stride);
        let record = Record::new(image.record).map_err(|error| error.to_string())?;
        let buffer = Buffer::restore(image.buffer, len)?;
        Ok(Self {
            head: image.head,
            taken: image.taken,
            ..Self::new(buffer, image.log_size, image.log_stride, record)
        })
    }

    /// Bytes of the host's memory that its list of pages takes.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.buffer.held()
    }

    /// A queue of `1 << log_size` requests (at most 2^15) of `1 << log_stride`
    /// bytes each (5 to 11). Its chain begins with request 0.
    #[must_use]
    pub const fn new(buffer: Buffer, log_size: u32, log_stride: u32, record: Record) -> Self {
        Self {
            buffer,
            log_size,
            log_stride,
            record,
            head: 0,
            taken: 0,
        }
    }

    /// Requests posted and not taken.
    #[inline]
    pub fn available<D: Dma>(&self, dma: &D) -> u32 {
        let posted = self.record.load(dma, 0).unwrap_or(0) as u16;
        u32::from(posted.wrapping_sub(self.taken))
    }

    /// Takes the next request; `Ok(false)` when none is posted.
    ///
    /// The link is followed at once: the guest gives a posted request its
    /// successor before, and gives it another one as soon as it is free again.
    ///
    /// # Errors
    /// [`WqeError`]; the request counts as taken.
    #[inline]
    pub fn take<D: Dma>(&mut self, dma: &D, wr: &mut RecvWr) -> Result<bool, WqeError> {
        let posted = self.record.load(dma, 0).ok_or(WqeError::Unmapped)? as u16;
        let available = posted.wrapping_sub(self.taken);
        if available == 0 {
            return Ok(false);
        }
        let index = self.head;
        if u32::from(available) > 1 << self.log_size {
            self.taken = posted;
            return Err(WqeError::Malformed {
                index,
                opcode: 0,
                reason: Reason::Counter,
            });
        }
        self.taken = self.taken.wrapping_add(1);
        wr.index = index;
        let at = u64::from(index) << self.log_stride;
        let mut link = [0; SEGMENT];
        self.buffer
            .read(dma, at, &mut link)
            .map_err(|_| WqeError::Unmapped)?;
        self.head = next_segment::NEXT_WQE_INDEX.get(&link) as u16 & ((1 << self.log_size) - 1);
        let len = (1 << self.log_stride) - SEGMENT;
        take_scatter(&self.buffer, dma, at + SEGMENT as u64, len, 0, wr)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Memory;

    const RING: u64 = 0x1000;
    const RECORD: u64 = 0x3000;

    /// A queue of four requests of 32 bytes; `next` are their links.
    fn queue(memory: &Memory, next: [u16; 4]) -> SharedQueue {
        for (at, next) in next.into_iter().enumerate() {
            let at = RING + at as u64 * 32;
            memory.write(at + 2, &next.to_be_bytes());
            memory.write32(at + 16, 0x100 + at as u32);
        }
        let buffer = Buffer::new(&RING.to_be_bytes(), 0, 0, 128).unwrap();
        SharedQueue::new(buffer, 2, 5, Record::new(RECORD).unwrap())
    }

    fn taken(queue: &mut SharedQueue, memory: &Memory) -> Option<u16> {
        let mut wr = RecvWr::with_capacity();
        queue.take(memory, &mut wr).unwrap().then_some(wr.index)
    }

    #[test]
    fn the_chain_is_followed_as_it_was_when_posted() {
        let memory = Memory::new(0x4000);
        let mut queue = queue(&memory, [2, 3, 1, 0]);
        memory.write32(RECORD, 2);
        assert_eq!(queue.available(&memory), 2);
        assert_eq!(taken(&mut queue, &memory), Some(0));
        // Freed and linked anew before its successor is taken.
        memory.write(RING + 2, &3_u16.to_be_bytes());
        assert_eq!(taken(&mut queue, &memory), Some(2));
        assert_eq!(taken(&mut queue, &memory), None);
        memory.write32(RECORD, 3);
        assert_eq!(taken(&mut queue, &memory), Some(1));
    }

    #[test]
    fn links_and_counts_are_not_trusted() {
        let memory = Memory::new(0x4000);
        // A loop, and a link that points out of the queue.
        let mut queue = queue(&memory, [0, 1, 2, 3]);
        memory.write32(RECORD, 4);
        for _ in 0..4 {
            assert_eq!(taken(&mut queue, &memory), Some(0));
        }
        assert_eq!(taken(&mut queue, &memory), None);
        memory.write(RING + 2, &0xffff_u16.to_be_bytes());
        memory.write32(RECORD, 6);
        assert_eq!(taken(&mut queue, &memory), Some(0));
        assert_eq!(taken(&mut queue, &memory), Some(3));
        memory.write32(RECORD, 100);
        assert!(queue.take(&memory, &mut RecvWr::with_capacity()).is_err());
        assert_eq!(taken(&mut queue, &memory), None);
    }
}
