//! Send queues: a ring of 64-byte blocks; a request takes one block or more.

use hca::work::{SendWr, WqeError};
use hca::{Dma, Reason};
use serde::{Deserialize, Serialize};

use super::{Buffer, BufferImageV1, Record, checked};
use crate::bits::work::{BLOCK, MAX_SEND, SEGMENT};
use crate::request::{self, Format};

/// Most blocks that are fetched at once.
const FETCH: usize = 8;

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
    /// Blocks posted when the record was last looked at: it lies in memory that
    /// the driver's processor writes, so it is looked at once for all of them.
    posted: u16,
    /// Blocks that doorbells have announced, where each doorbell is a message.
    /// The record is then ahead of the messages, and is not followed beyond
    /// them: a driver whose requests complete before their doorbells arrive
    /// posts more, and doorbells pile up on the way without bound.
    rung: Option<u16>,
    fetched: Fetched,
}

/// Posted blocks, copied several at a time: their way from the cache of the
/// driver's processor is most of what a small request costs, and takes no
/// longer for some than for one.
#[derive(Debug)]
struct Fetched {
    blocks: [[u8; BLOCK]; FETCH],
    /// Where in the ring the first of them is.
    first: u16,
    count: u16,
}

impl Fetched {
    const EMPTY: Self = Self {
        blocks: [[0; BLOCK]; FETCH],
        first: 0,
        count: 0,
    };

    /// The block with this number, where it is there.
    #[inline]
    fn get(&self, number: u16) -> Option<&[u8; BLOCK]> {
        let at = number.wrapping_sub(self.first);
        if at < self.count {
            self.blocks.get(usize::from(at))
        } else {
            None
        }
    }
}

/// A send queue in an image. Requests that were fetched ahead are fetched again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendQueueImageV1 {
    buffer: BufferImageV1,
    start: u64,
    log_blocks: u32,
    record: u64,
    format: Format,
    taken: u16,
    posted: u16,
    rung: Option<u16>,
}

impl SendQueue {
    /// Its part of an image.
    #[must_use]
    pub fn save(&self) -> SendQueueImageV1 {
        SendQueueImageV1 {
            buffer: self.buffer.save(),
            start: self.start,
            log_blocks: self.log_blocks,
            record: self.record.addr(),
            format: self.format,
            taken: self.taken,
            posted: self.posted,
            rung: self.rung,
        }
    }

    /// The queue of an image.
    ///
    /// # Errors
    /// The defect of the image.
    pub fn restore(image: SendQueueImageV1) -> Result<Self, String> {
        checked(&[(image.log_blocks, 0..=15)], "send queue")?;
        // Behind a receive queue, of one request of one segment at least, and of most requests of most bytes at most.
        let behind = SEGMENT as u64..=1 << 26;
        if image.start != 0 && !(image.start.is_power_of_two() && behind.contains(&image.start)) {
            return Err("a send queue does not begin behind a receive queue".into());
        }
        let len = image.start + ((BLOCK as u64) << image.log_blocks);
        let record = Record::new(image.record).map_err(|error| error.to_string())?;
        let buffer = Buffer::restore(image.buffer, len)?;
        Ok(Self {
            taken: image.taken,
            posted: image.posted,
            rung: image.rung,
            ..Self::new(buffer, image.start, image.log_blocks, record, image.format)
        })
    }

    /// Bytes of the host's memory that its list of pages takes.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.buffer.held()
    }

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
            posted: 0,
            rung: None,
            fetched: Fetched::EMPTY,
        }
    }

    /// The queue, with every doorbell told to [`SendQueue::ring`].
    #[must_use]
    pub const fn trapped(mut self) -> Self {
        self.rung = Some(0);
        self
    }

    /// A doorbell says that the blocks before number `through` are posted. Of a
    /// queue that is not trapped the record alone says that.
    #[inline]
    pub const fn ring(&mut self, through: u16) {
        if self.rung.is_some() {
            self.rung = Some(through);
        }
    }

    /// Blocks taken so far, modulo 2^16.
    #[must_use]
    pub const fn taken(&self) -> u16 {
        self.taken
    }

    /// Blocks posted so far, modulo 2^16, as the doorbell record says, and where
    /// doorbells are messages, those as well. A doorbell that does not fit the
    /// record announces all that the record has.
    #[inline]
    pub fn posted<D: Dma>(&self, dma: &D) -> Option<u16> {
        let recorded = self.record.load(dma, 1)? as u16;
        let ahead = |count: u16| count.wrapping_sub(self.taken);
        Some(match self.rung {
            Some(rung) if ahead(rung) < ahead(recorded) => rung,
            _ => recorded,
        })
    }

    /// Whether blocks remain of those that the last look at the record found, or
    /// that a doorbell has announced since: it may have rung while a request was
    /// under way, and does not ring again.
    #[inline]
    #[must_use]
    pub const fn is_announced(&self) -> bool {
        let rung = match self.rung {
            Some(rung) => rung != self.taken,
            None => false,
        };
        self.posted != self.taken || rung
    }

    /// Forgets what was posted: the queue pair was reset.
    pub const fn reset(&mut self) {
        self.taken = 0;
        self.posted = 0;
        if self.rung.is_some() {
            self.rung = Some(0);
        }
        self.fetched.count = 0;
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
        let index = self.taken;
        if self.posted == index {
            self.posted = self.posted(dma).ok_or(WqeError::Unmapped)?;
        }
        let available = self.posted.wrapping_sub(index);
        if available == 0 {
            return Ok(false);
        }
        if u32::from(available) > 1 << self.log_blocks {
            // More than the ring holds: nothing in it can be trusted.
            self.taken = self.posted;
            return Err(WqeError::Malformed {
                index,
                opcode: 0,
                reason: Reason::Counter,
            });
        }
        if self.fetched.get(index).is_none() {
            self.fetch(dma, index, available)?;
        }
        let Some(first) = self.fetched.get(index) else {
            return Err(WqeError::Unmapped);
        };
        let len = request::len(first);
        wr.index = index;
        if len <= BLOCK {
            self.taken = index.wrapping_add(1);
            return request::decode(&first[..len.max(SEGMENT)], self.format, wr).map(|()| true);
        }
        let first = *first;
        self.take_long(dma, wr, &first, len, available)
    }

    /// Copies posted blocks from number `index` on, as many as lie side by side.
    #[inline]
    fn fetch<D: Dma>(&mut self, dma: &D, index: u16, available: u16) -> Result<(), WqeError> {
        let to_end = (1 << self.log_blocks) - u32::from(index & ((1 << self.log_blocks) - 1));
        let count = usize::from(available).min(FETCH).min(to_end as usize);
        let at = self.position(index);
        // Blocks never lie across pages.
        let count = count.min(self.buffer.run(at) / BLOCK).max(1);
        self.fetched.count = 0;
        let blocks = self.fetched.blocks[..count].as_flattened_mut();
        self.buffer
            .read(dma, at, blocks)
            .map_err(|_| WqeError::Unmapped)?;
        self.fetched.first = index;
        self.fetched.count = count as u16;
        Ok(())
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
                reason: Reason::Counter,
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

#[cfg(test)]
mod tests {
    use hca::work::Operation;

    use super::*;
    use crate::testing::{Memory, vector};

    const RING: u64 = 0x1000;
    const RECORD: u64 = 0x3000;

    /// A queue of four blocks behind 128 bytes of something else.
    fn queue(memory: &Memory) -> SendQueue {
        let pages: Vec<u8> = [RING]
            .iter()
            .flat_map(|page: &u64| page.to_be_bytes())
            .collect();
        memory.write32(RECORD + 4, 0);
        SendQueue::new(
            Buffer::new(&pages, 0, 0, 128 + 256).unwrap(),
            128,
            2,
            Record::new(RECORD).unwrap(),
            Format::Connected,
        )
    }

    fn put(memory: &Memory, block: u64, bytes: &[u8]) {
        for (at, chunk) in bytes.chunks(BLOCK).enumerate() {
            memory.write(RING + 128 + (block + at as u64) % 4 * 64, chunk);
        }
    }

    #[test]
    fn requests_are_taken_in_order_and_wrap() {
        let memory = Memory::new(0x4000);
        let mut queue = queue(&memory);
        let mut wr = SendWr::with_capacity();
        assert_eq!(queue.take(&memory, &mut wr), Ok(false));
        put(&memory, 0, &vector("send"));
        put(&memory, 1, &vector("write"));
        put(&memory, 2, &vector("fetch_add"));
        memory.write32(RECORD + 4, 3);
        let mut taken = Vec::new();
        for _ in 0..3 {
            wr.clear();
            assert_eq!(queue.take(&memory, &mut wr), Ok(true));
            taken.push((wr.index, wr.operation));
        }
        assert_eq!(queue.take(&memory, &mut wr), Ok(false));
        // One of two blocks: the last of the ring and its first.
        let long = vector("send_inval_inline_twice");
        assert!(long.len() > BLOCK);
        put(&memory, 3, &long);
        memory.write32(RECORD + 4, 5);
        wr.clear();
        assert_eq!(queue.take(&memory, &mut wr), Ok(true));
        taken.push((wr.index, wr.operation));
        assert_eq!(
            taken,
            [
                (0, Operation::Send),
                (1, Operation::Write),
                (2, Operation::FetchAdd),
                (3, Operation::SendInvalidate)
            ]
        );
        assert_eq!(wr.inline.len(), 41);
        assert_eq!(queue.taken(), 5);
    }

    #[test]
    fn counts_that_cannot_be_are_errors_and_end() {
        let memory = Memory::new(0x4000);
        let mut queue = queue(&memory);
        let mut wr = SendWr::with_capacity();
        // More than the ring holds.
        memory.write32(RECORD + 4, 5);
        assert_eq!(
            queue.take(&memory, &mut wr),
            Err(WqeError::Malformed {
                index: 0,
                opcode: 0,
                reason: Reason::Counter,
            })
        );
        assert_eq!(queue.take(&memory, &mut wr), Ok(false));
        // A request longer than what is posted.
        put(&memory, 5, &vector("send_inval_inline_twice"));
        memory.write32(RECORD + 4, 6);
        assert_eq!(
            queue.take(&memory, &mut wr),
            Err(WqeError::Malformed {
                index: 5,
                opcode: 1,
                reason: Reason::Counter,
            })
        );
        assert_eq!(queue.take(&memory, &mut wr), Ok(false));
        // One of 63 segments in a ring of 16.
        memory.write(RING + 128 + 2 * 64, &[0, 0, 0, 8, 0, 0, 0, 63]);
        memory.write32(RECORD + 4, 7);
        assert!(queue.take(&memory, &mut wr).is_err());
        assert_eq!(queue.take(&memory, &mut wr), Ok(false));
    }

    #[test]
    fn requests_wait_for_the_doorbell_that_is_their_message() {
        let memory = Memory::new(0x4000);
        let mut queue = queue(&memory).trapped();
        let mut wr = SendWr::with_capacity();
        let mut take = |queue: &mut SendQueue| {
            wr.clear();
            queue
                .take(&memory, &mut wr)
                .map(|taken| taken.then_some(wr.index))
        };
        for block in 0..4 {
            put(&memory, block, &vector("send"));
        }
        memory.write32(RECORD + 4, 3);
        assert_eq!(take(&mut queue), Ok(None));
        queue.ring(1);
        assert_eq!(take(&mut queue), Ok(Some(0)));
        assert_eq!(take(&mut queue), Ok(None));
        queue.ring(3);
        assert_eq!(take(&mut queue), Ok(Some(1)));
        assert_eq!(take(&mut queue), Ok(Some(2)));
        assert_eq!(take(&mut queue), Ok(None));
        // Doorbells that nobody could ring leave the record.
        for through in [9, 2] {
            let next = queue.taken();
            memory.write32(RECORD + 4, u32::from(next) + 1);
            queue.ring(through);
            assert_eq!(take(&mut queue), Ok(Some(next)));
        }
        queue.reset();
        memory.write32(RECORD + 4, 1);
        assert_eq!(take(&mut queue), Ok(None));
    }

    #[test]
    fn a_doorbell_while_a_request_is_under_way_is_not_lost() {
        let memory = Memory::new(0x4000);
        let mut queue = queue(&memory).trapped();
        let mut wr = SendWr::with_capacity();
        for block in 0..2 {
            put(&memory, block, &vector("send"));
        }
        memory.write32(RECORD + 4, 1);
        queue.ring(1);
        assert_eq!(queue.take(&memory, &mut wr), Ok(true));
        assert!(!queue.is_announced());
        memory.write32(RECORD + 4, 2);
        assert!(!queue.is_announced(), "its doorbell is to come");
        queue.ring(2);
        assert!(queue.is_announced());
        wr.clear();
        assert_eq!(queue.take(&memory, &mut wr), Ok(true));
        assert!(!queue.is_announced());
    }

    #[test]
    fn a_counter_wraps_at_sixteen_bits() {
        let memory = Memory::new(0x4000);
        let mut queue = queue(&memory);
        queue.taken = 0xffff;
        put(&memory, 3, &vector("send"));
        put(&memory, 0, &vector("write"));
        memory.write32(RECORD + 4, 1);
        let mut wr = SendWr::with_capacity();
        assert_eq!(queue.take(&memory, &mut wr), Ok(true));
        assert_eq!((wr.index, wr.operation), (0xffff, Operation::Send));
        wr.clear();
        assert_eq!(queue.take(&memory, &mut wr), Ok(true));
        assert_eq!((wr.index, wr.operation), (0, Operation::Write));
    }

    #[test]
    fn memory_that_went_away_is_an_error() {
        let memory = Memory::new(0x4000);
        let pages: Vec<u8> = 0x9000_u64.to_be_bytes().to_vec();
        let record = Record::new(RECORD).unwrap();
        let mut queue = SendQueue::new(
            Buffer::new(&pages, 0, 0, 256).unwrap(),
            0,
            2,
            record,
            Format::Connected,
        );
        memory.write32(RECORD + 4, 1);
        assert_eq!(
            queue.take(&memory, &mut SendWr::with_capacity()),
            Err(WqeError::Unmapped)
        );
        let record = Record::new(0x9000).unwrap();
        let mut queue = SendQueue::new(
            Buffer::new(&pages, 0, 0, 256).unwrap(),
            0,
            2,
            record,
            Format::Connected,
        );
        assert_eq!(
            queue.take(&memory, &mut SendWr::with_capacity()),
            Err(WqeError::Unmapped)
        );
    }
}
