//! Queues in guest memory: where their bytes are and how far each side is.

pub mod completion;
pub mod event;
pub mod receive;
pub mod send;
pub mod shared;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hca::image::PagesImageV1;
use hca::{Dma, DmaFault, PageList, dma};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use vm_memory::{VolatileMemory, VolatileSlice};

/// A queue's memory that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BufferError {
    /// The list of pages is shorter than the queue.
    #[error("{needed} pages are needed for the queue and {given} were given")]
    TooFewPages {
        /// Pages that the queue covers.
        needed: u64,
        /// Pages in the request.
        given: u64,
    },
    /// A doorbell record must lie on a multiple of eight bytes.
    #[error("doorbell record at {0:#x} is not aligned to eight bytes")]
    MisalignedRecord(u64),
}

/// The memory of a queue: a list of pages of equal size, of which the queue
/// starts within the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    pages: PageList,
    shift: u32,
    offset: u64,
}

/// A queue's memory in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferImageV1 {
    pages: PagesImageV1,
    shift: u32,
    offset: u64,
}

/// Whether a queue of an image has sizes that a command may ask for, as powers of two.
pub(crate) fn checked(
    sizes: &[(u32, std::ops::RangeInclusive<u32>)],
    what: &str,
) -> Result<(), String> {
    match sizes.iter().find(|(size, allowed)| !allowed.contains(size)) {
        Some((size, _)) => Err(format!("invalid {what} of 2^{size}")),
        None => Ok(()),
    }
}

impl Buffer {
    /// Its part of an image.
    #[must_use]
    pub fn save(&self) -> BufferImageV1 {
        BufferImageV1 {
            pages: self.pages.save(),
            shift: self.shift,
            offset: self.offset,
        }
    }

    /// The memory of an image, which is to have `len` bytes.
    ///
    /// # Errors
    /// The defect of the image.
    pub fn restore(image: BufferImageV1, len: u64) -> Result<Self, String> {
        let BufferImageV1 {
            pages,
            shift,
            offset,
        } = image;
        let pages = PageList::restore(pages).map_err(|error| error.to_string())?;
        let pages = pages.present(shift.min(63) as u8);
        if !(12..=43).contains(&shift) || offset >= 1 << shift {
            return Err("a queue does not begin within its first page".into());
        }
        let needed = match len {
            0 => 0,
            _ => (offset + len).div_ceil(1 << shift),
        };
        let given = pages.len() as u64;
        if given < needed {
            return Err(BufferError::TooFewPages { needed, given }.to_string());
        }
        Ok(Self {
            pages,
            shift,
            offset,
        })
    }

    /// Memory of `len` bytes.
    ///
    /// `list` is the page list as the request has it (big-endian addresses),
    /// `log_page_size` the logarithm of the page size in units of 4 KiB, and
    /// `page_offset` the start within the first page in units of 1/64 of a
    /// page: not of 64 bytes, which is the same for the smallest pages only.
    ///
    /// # Errors
    /// [`BufferError::TooFewPages`].
    pub fn new(
        list: &[u8],
        log_page_size: u32,
        page_offset: u32,
        len: u64,
    ) -> Result<Self, BufferError> {
        let shift = (log_page_size & 0x1f) + 12;
        let offset = u64::from(page_offset & 0x3f) << (shift - 6);
        let needed = if len == 0 {
            0
        } else {
            (offset + len).div_ceil(1 << shift)
        };
        let given = (list.len() / 8) as u64;
        if given < needed {
            return Err(BufferError::TooFewPages { needed, given });
        }
        let addresses = list.as_chunks::<8>().0.iter().take(needed as usize);
        let addresses = addresses.map(|address| u64::from_be_bytes(*address));
        Ok(Self {
            pages: PageList::new(shift as u8, addresses),
            shift,
            offset,
        })
    }

    /// Bytes of the host's memory that the list takes.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.pages.held()
    }

    /// DMA address of byte `at`, and how many bytes of its page follow.
    #[inline]
    fn locate(&self, at: u64) -> (u64, usize) {
        let at = at + self.offset;
        let within = at & ((1 << self.shift) - 1);
        // An index past the list cannot come from a position within the queue;
        // address zero is as good as any other then.
        let page = self.pages.get((at >> self.shift) as usize).unwrap_or(0);
        (
            page.wrapping_add(within),
            ((1 << self.shift) - within) as usize,
        )
    }

    /// Number of bytes that lie side by side from position `at` on.
    #[inline]
    fn run(&self, at: u64) -> usize {
        self.locate(at).1
    }

    /// Reads bytes from position `at`.
    ///
    /// # Errors
    /// [`DmaFault`] when part of it is not mapped.
    #[inline]
    pub fn read<D: Dma>(&self, dma: &D, at: u64, data: &mut [u8]) -> Result<(), DmaFault> {
        let (addr, run) = self.locate(at);
        if data.len() <= run
            && let Some(window) = dma.read_window(addr, data.len())
            && window.len() == data.len()
        {
            read_words(&window, data);
            return Ok(());
        }
        self.read_scattered(dma, at, data)
    }

    #[cold]
    fn read_scattered<D: Dma>(
        &self,
        dma: &D,
        mut at: u64,
        mut data: &mut [u8],
    ) -> Result<(), DmaFault> {
        while !data.is_empty() {
            let (addr, run) = self.locate(at);
            let (now, later) = data.split_at_mut(run.min(data.len()));
            dma::read(dma, addr, now)?;
            at += now.len() as u64;
            data = later;
        }
        Ok(())
    }

    /// The `len` bytes at position `at`, to write, if they lie in one piece.
    #[inline]
    pub fn write_window<'a, D: Dma>(
        &self,
        dma: &'a D,
        at: u64,
        len: usize,
    ) -> Option<VolatileSlice<'a>> {
        let (addr, run) = self.locate(at);
        if len > run {
            return None;
        }
        dma.write_window(addr, len)
            .filter(|window| window.len() == len)
    }
}

/// Copies a window of a few words, both of the same length, without the call of
/// a general copy.
#[inline]
fn read_words(window: &VolatileSlice<'_>, data: &mut [u8]) {
    let (words, rest) = data.as_chunks_mut::<8>();
    match window.get_array_ref::<u64>(0, words.len()) {
        Ok(from) if rest.is_empty() => {
            for (index, word) in words.iter_mut().enumerate() {
                *word = from.load(index).to_ne_bytes();
            }
        }
        _ => {
            window.copy_to(data);
        }
    }
}

/// Writes `data` at the start of a window that is at least as long, as
/// [`read_words`].
#[inline]
fn write_words(window: &VolatileSlice<'_>, data: &[[u8; 8]]) {
    if let Ok(to) = window.get_array_ref::<u64>(0, data.len()) {
        for (index, word) in data.iter().enumerate() {
            to.store(index, u64::from_ne_bytes(*word));
        }
    }
}

/// A doorbell record: two big-endian dwords in guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    addr: u64,
}

impl Record {
    /// The record at `addr`.
    ///
    /// # Errors
    /// [`BufferError::MisalignedRecord`].
    pub const fn new(addr: u64) -> Result<Self, BufferError> {
        if addr.is_multiple_of(8) {
            Ok(Self { addr })
        } else {
            Err(BufferError::MisalignedRecord(addr))
        }
    }

    /// Its DMA address.
    #[must_use]
    pub const fn addr(self) -> u64 {
        self.addr
    }

    /// Dword `index` (0 or 1), read so that what the guest wrote before it is
    /// seen; `None` when it is not mapped.
    #[inline]
    pub fn load<D: Dma>(self, dma: &D, index: u64) -> Option<u32> {
        let window = dma.read_window(self.addr + index * 4, 4)?;
        let word = window.get_atomic_ref::<AtomicU32>(0).ok()?;
        Some(u32::from_be(word.load(Ordering::Acquire)))
    }

    /// Both dwords, as one read.
    #[inline]
    pub fn load_both<D: Dma>(self, dma: &D) -> Option<(u32, u32)> {
        let window = dma.read_window(self.addr, 8)?;
        let both = window.get_atomic_ref::<AtomicU64>(0).ok()?;
        let both = u64::from_be(both.load(Ordering::Acquire));
        Some(((both >> 32) as u32, both as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Memory;

    fn list(pages: &[u64]) -> Vec<u8> {
        pages.iter().flat_map(|page| page.to_be_bytes()).collect()
    }

    #[test]
    fn the_offset_counts_in_parts_of_a_page() {
        // 64 KiB pages: offset 3 is 3 KiB, not 192 bytes.
        let buffer = Buffer::new(&list(&[0x10_0000, 0x30_0000]), 4, 3, 0x1_0000).unwrap();
        assert_eq!(buffer.locate(0), (0x10_0c00, 0xf400));
        assert_eq!(buffer.locate(0xf400), (0x30_0000, 0x1_0000));
    }

    #[test]
    fn a_list_that_is_too_short_is_refused() {
        let pages = list(&[0x1000, 0x2000]);
        assert!(Buffer::new(&pages, 0, 0, 8192).is_ok());
        assert_eq!(
            Buffer::new(&pages, 0, 1, 8192),
            Err(BufferError::TooFewPages {
                needed: 3,
                given: 2
            })
        );
        assert!(Buffer::new(&pages[..15], 0, 0, 8192).is_err());
        assert!(Buffer::new(&[], 31, 63, 1).is_err());
        assert!(Buffer::new(&[], 0, 63, 0).is_ok());
    }

    #[test]
    fn reads_cross_pages() {
        let memory = Memory::new(0x8000);
        memory.write(0x3ffc, &[1, 2, 3, 4]);
        memory.write(0x1000, &[5, 6, 7, 8]);
        let buffer = Buffer::new(&list(&[0x3000, 0x1000]), 0, 0, 8192).unwrap();
        let mut data = [0; 8];
        buffer.read(&memory, 4092, &mut data).unwrap();
        assert_eq!(data, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(buffer.write_window(&memory, 4092, 8).is_none());
        assert!(buffer.write_window(&memory, 4088, 8).is_some());
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let memory = Memory::new(0x2000);
        let buffer = Buffer::new(&list(&[0x1000, 0x7000]), 0, 0, 8192).unwrap();
        let mut data = [0; 64];
        assert!(buffer.read(&memory, 0, &mut data).is_ok());
        assert!(buffer.read(&memory, 4096, &mut data).is_err());
        assert!(buffer.read(&memory, 4090, &mut data).is_err());
        assert!(Record::new(0x9000).unwrap().load(&memory, 0).is_none());
        assert!(Record::new(0x1004).is_err());
    }
}
