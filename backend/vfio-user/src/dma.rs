//! Guest memory by DMA address.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use nix::errno::Errno;
use thiserror::Error;
use vm_memory::VolatileSlice;

use crate::memory::{MappedFile, SharedMemory};

/// The most mappings that one client may have at a time (`max_dma_maps`).
pub const MAX_DMA_MAPS: usize = 65535;

/// The unit of mappings and of the dirty log, in bytes (`pgsizes`).
pub const PAGE_SIZE: u64 = 4096;

/// What a device may do with a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protection {
    /// Read it.
    pub read: bool,
    /// Write it.
    pub write: bool,
}

impl Protection {
    /// Reading only.
    pub const READ: Self = Self {
        read: true,
        write: false,
    };
    /// Writing only.
    pub const WRITE: Self = Self {
        read: false,
        write: true,
    };
    /// Both.
    pub const READ_WRITE: Self = Self {
        read: true,
        write: true,
    };
}

/// Why a mapping or a change of the table is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DmaError {
    /// The range is empty, ends past the last DMA address, is not of whole
    /// pages, lies outside its memory, or allows nothing.
    #[error("{size:#x} bytes at DMA address {addr:#x} are no valid range for a mapping")]
    Invalid {
        /// First DMA address.
        addr: u64,
        /// Size in bytes.
        size: u64,
    },
    /// Part of the range is mapped already.
    #[error("part of {size:#x} bytes at DMA address {addr:#x} is mapped already: unmap it first")]
    Overlap {
        /// First DMA address.
        addr: u64,
        /// Size in bytes.
        size: u64,
    },
    /// A range to unmap ends within a mapping.
    #[error("{size:#x} bytes at DMA address {addr:#x} are part of a mapping: unmap all of it")]
    Bisects {
        /// First DMA address.
        addr: u64,
        /// Size in bytes.
        size: u64,
    },
    /// There are [`MAX_DMA_MAPS`] mappings.
    #[error("{MAX_DMA_MAPS} mappings exist: unmap some first")]
    Full,
}

impl From<DmaError> for Errno {
    fn from(error: DmaError) -> Self {
        match error {
            DmaError::Invalid { .. } | DmaError::Bisects { .. } => Self::EINVAL,
            DmaError::Overlap { .. } => Self::EEXIST,
            DmaError::Full => Self::ENOSPC,
        }
    }
}

/// Guest memory at a range of DMA addresses.
#[derive(Debug, Clone)]
pub struct Mapping {
    addr: u64,
    size: u64,
    protection: Protection,
    memory: Option<(Arc<MappedFile>, usize)>,
}

impl Mapping {
    /// A range that the client shares no memory for (guest RAM without
    /// `share=on`, ROMs, another device's BARs). Nothing can be read or
    /// written there.
    ///
    /// # Errors
    /// [`DmaError::Invalid`].
    pub fn without_memory(addr: u64, size: u64, protection: Protection) -> Result<Self, DmaError> {
        // The end is exclusive, so that the last address of all is never
        // mapped and every range that is has an end.
        if size == 0 || addr.checked_add(size).is_none() || !(protection.read || protection.write) {
            return Err(DmaError::Invalid { addr, size });
        }
        Ok(Self {
            addr,
            size,
            protection,
            memory: None,
        })
    }

    /// `size` bytes of `memory` from `offset` on, at DMA address `addr`.
    /// `addr`, `size` and `offset` are multiples of [`PAGE_SIZE`], so that
    /// whatever is aligned for the guest is so for the device.
    ///
    /// # Errors
    /// [`DmaError::Invalid`].
    pub fn new(
        addr: u64,
        size: u64,
        protection: Protection,
        memory: Arc<MappedFile>,
        offset: u64,
    ) -> Result<Self, DmaError> {
        let mapping = Self::without_memory(addr, size, protection)?;
        let end = offset
            .checked_add(size)
            .filter(|&end| end <= memory.len() as u64);
        let aligned = (addr | size | offset).is_multiple_of(PAGE_SIZE);
        match (end, usize::try_from(offset)) {
            (Some(_), Ok(offset)) if aligned && (memory.is_writable() || !protection.write) => {
                Ok(Self {
                    memory: Some((memory, offset)),
                    ..mapping
                })
            }
            _ => Err(DmaError::Invalid { addr, size }),
        }
    }

    /// All of `memory` at DMA address `addr`.
    ///
    /// # Errors
    /// [`DmaError::Invalid`].
    pub fn of_shared(addr: u64, memory: &SharedMemory) -> Result<Self, DmaError> {
        let mapped = Arc::clone(memory.mapped());
        Self::new(addr, mapped.len() as u64, Protection::READ_WRITE, mapped, 0)
    }

    /// First DMA address.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What the device may do.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// The client shared the memory itself.
    pub fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// The DMA address after the last. Does not overflow: see
    /// [`Mapping::without_memory`].
    fn end(&self) -> u64 {
        self.addr + self.size
    }

    /// Memory from `addr`, which lies in this mapping, up to `len` bytes.
    #[inline]
    fn window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let (memory, offset) = self.memory.as_ref()?;
        let within = addr - self.addr;
        // `Mapping::new` checked that the whole mapping fits a usize.
        let len = (self.size - within).min(len as u64) as usize;
        memory.slice(offset + within as usize, len)
    }
}

/// Pages written, 64 to a word, by page number / 64.
#[derive(Debug, Default)]
struct DirtyLog(BTreeMap<u64, u64>);

impl DirtyLog {
    /// Sparse on purpose: it grows with what the device writes, not with what
    /// the client maps.
    fn record(&mut self, addr: u64, len: usize) {
        if len == 0 {
            return;
        }
        let first = addr / PAGE_SIZE;
        let last = (addr + (len as u64 - 1)) / PAGE_SIZE;
        for word in first / 64..=last / 64 {
            let low = first.max(word * 64) % 64;
            let high = last.min(word * 64 + 63) % 64;
            *self.0.entry(word).or_default() |= (u64::MAX >> (63 - (high - low))) << low;
        }
    }

    fn pages(self) -> Vec<u64> {
        let set = |word: u64, bits: u64| {
            (0..64)
                .filter(move |bit| bits >> bit & 1 != 0)
                .map(move |bit| (word * 64 + bit) * PAGE_SIZE)
        };
        self.0
            .into_iter()
            .flat_map(|(word, bits)| set(word, bits))
            .collect()
    }
}

/// The guest memory that a device can reach, sorted by DMA address.
///
/// A plain structure without locks: the device decides who shares it and how.
/// Whoever holds a window holds the table, so that no mapping goes away under
/// an access.
#[derive(Debug, Default)]
pub struct DmaTable {
    /// Sorted by address, without overlaps.
    mappings: Vec<Mapping>,
    /// Where the last address was found: the next is likely there as well.
    hint: Cell<usize>,
    dirty: Option<RefCell<DirtyLog>>,
}

impl DmaTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of mappings.
    pub fn len(&self) -> usize {
        self.mappings.len()
    }

    /// There are no mappings.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// The mappings, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter()
    }

    /// Adds a mapping.
    ///
    /// # Errors
    /// [`DmaError::Overlap`] or [`DmaError::Full`].
    pub fn map(&mut self, mapping: Mapping) -> Result<(), DmaError> {
        let at = self
            .mappings
            .partition_point(|known| known.end() <= mapping.addr);
        if self
            .mappings
            .get(at)
            .is_some_and(|next| next.addr < mapping.end())
        {
            return Err(DmaError::Overlap {
                addr: mapping.addr,
                size: mapping.size,
            });
        }
        if self.mappings.len() >= MAX_DMA_MAPS {
            return Err(DmaError::Full);
        }
        self.mappings.insert(at, mapping);
        Ok(())
    }

    /// Removes all mappings in `addr..addr + size` (saturating) and returns
    /// how many there were, which may be none.
    ///
    /// # Errors
    /// [`DmaError::Bisects`] where a mapping lies there in part only, as the
    /// kernel's VFIO has it; nothing is removed then.
    pub fn unmap(&mut self, addr: u64, size: u64) -> Result<usize, DmaError> {
        let end = addr.saturating_add(size);
        let first = self.mappings.partition_point(|known| known.end() <= addr);
        let last = self.mappings.partition_point(|known| known.addr < end);
        let Some(gone) = self
            .mappings
            .get(first..last)
            .filter(|gone| !gone.is_empty())
        else {
            return Ok(0);
        };
        if gone[0].addr < addr || gone[gone.len() - 1].end() > end {
            return Err(DmaError::Bisects { addr, size });
        }
        self.mappings.drain(first..last);
        Ok(last - first)
    }

    /// Removes all mappings. The dirty log stays.
    pub fn clear(&mut self) {
        self.mappings.clear();
    }

    #[inline]
    fn find(&self, addr: u64) -> Option<&Mapping> {
        if let Some(mapping) = self.mappings.get(self.hint.get())
            && addr.wrapping_sub(mapping.addr) < mapping.size
        {
            return Some(mapping);
        }
        self.search(addr)
    }

    #[cold]
    fn search(&self, addr: u64) -> Option<&Mapping> {
        let at = self.mappings.partition_point(|known| known.end() <= addr);
        let mapping = self
            .mappings
            .get(at)
            .filter(|mapping| mapping.addr <= addr)?;
        self.hint.set(at);
        Some(mapping)
    }

    /// Memory for reading at DMA address `addr`: between 1 and `len` bytes,
    /// fewer than `len` where a mapping ends. `None` where nothing is mapped,
    /// the mapping is not for reading or has no memory. Only read through it:
    /// the memory may be mapped read-only.
    #[inline]
    pub fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let mapping = self.find(addr)?;
        if mapping.protection.read {
            mapping.window(addr, len)
        } else {
            None
        }
    }

    /// As [`DmaTable::read_window`], for memory that the device is about to
    /// write. The dirty log takes all of it as written: ask for no more than
    /// that. Every DMA write passes here.
    #[inline]
    pub fn write_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let mapping = self.find(addr)?;
        if !mapping.protection.write {
            return None;
        }
        let window = mapping.window(addr, len)?;
        if let Some(dirty) = &self.dirty {
            dirty.borrow_mut().record(addr, window.len());
        }
        Some(window)
    }

    /// Starts recording the pages that the device writes, anew where it was
    /// recording already.
    pub fn start_dirty_log(&mut self) {
        self.dirty = Some(RefCell::default());
    }

    /// Stops recording and forgets what was recorded.
    pub fn stop_dirty_log(&mut self) {
        self.dirty = None;
    }

    /// DMA addresses of the pages of [`PAGE_SIZE`] written since the last
    /// call or the start, in order; empty where nothing is recorded.
    /// Recording goes on.
    pub fn take_dirty_log(&self) -> Vec<u64> {
        self.dirty
            .as_ref()
            .map(|dirty| dirty.take().pages())
            .unwrap_or_default()
    }
}
