//! The guest's memory, as a table of regions that the client shares.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use thiserror::Error;
use vm_memory::{Bytes, VolatileMemory, VolatileSlice};
use vmm_socket::{Files, MapError, MappedFile};

use crate::message::RegionDescription;

/// Bytes that a bit of the dirty log stands for.
const LOG_PAGE: u64 = 4096;

/// Why there is no memory table.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// A region is empty, or goes past the end of an address space.
    #[error("region at {0:#x}: it has no bytes, or more than there are addresses for")]
    Extent(u64),
    /// Two regions have the same guest addresses.
    #[error("region at {0:#x}: another region of the table has some of its addresses")]
    Overlap(u64),
    /// The file cannot be guest memory.
    #[error("region at {0:#x}: {1}")]
    Map(u64, MapError),
}

/// A part of the guest's memory.
#[derive(Debug)]
struct Region {
    /// Where the guest has it.
    guest: u64,
    /// Where the client has it.
    user: u64,
    size: u64,
    /// Where it begins in the file.
    offset: u64,
    file: Arc<MappedFile>,
}

/// The guest's memory.
#[derive(Debug, Default)]
pub struct Memory {
    regions: Vec<Region>,
}

impl Memory {
    /// Maps a table of regions, each with its file.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn new(
        table: impl IntoIterator<Item = (RegionDescription, File)>,
        files: &mut Files,
    ) -> Result<Self, MemoryError> {
        let mut regions: Vec<Region> = Vec::new();
        for (region, file) in table {
            let RegionDescription {
                guest,
                size,
                user,
                offset,
            } = region;
            let ends = [guest, user, offset].map(|start| start.checked_add(size));
            let (false, [Some(end), Some(_), Some(file_end)]) = (size == 0, ends) else {
                return Err(MemoryError::Extent(guest));
            };
            let meets = |other: &Region| guest < other.guest + other.size && other.guest < end;
            if regions.iter().any(meets) {
                return Err(MemoryError::Overlap(guest));
            }
            let file = files.map(file, file_end, true);
            let file = file.map_err(|error| MemoryError::Map(guest, error))?;
            regions.push(Region {
                guest,
                user,
                size,
                offset,
                file,
            });
        }
        Ok(Self { regions })
    }

    /// `len` bytes at a guest address; `None` where they are not all in one region.
    #[inline]
    #[must_use]
    pub fn slice(&self, guest: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.regions.iter().find_map(|region| {
            let at = guest.checked_sub(region.guest)?;
            let (file, offset) = region.place(at, len)?;
            file.slice(offset, len)
        })
    }

    /// `len` bytes at an address of the client, to keep; `None` where they are not all in one region, or
    /// not at a multiple of `align`.
    #[must_use]
    pub fn window(&self, user: u64, len: usize, align: u64) -> Option<Window> {
        self.regions.iter().find_map(|region| {
            let at = user.checked_sub(region.user)?;
            let (file, offset) = region.place(at, len)?;
            let aligned = (offset as u64).is_multiple_of(align);
            Window::new(Arc::clone(file), offset, len).filter(|_| aligned)
        })
    }

    /// Bytes of log that a bit for each page takes.
    #[must_use]
    pub fn log_len(&self) -> u64 {
        let ends = self.regions.iter().map(|it| it.guest + it.size);
        ends.max().unwrap_or(0).div_ceil(LOG_PAGE).div_ceil(8)
    }
}

impl Region {
    /// Where something is in the file that is in this region, `at` bytes from its start.
    fn place(&self, at: u64, len: usize) -> Option<(&Arc<MappedFile>, usize)> {
        let inside = at.checked_add(len as u64)? <= self.size;
        let offset = usize::try_from(self.offset + at).ok()?;
        inside.then_some((&self.file, offset))
    }
}

/// A part of a file that stays mapped.
#[derive(Debug, Clone)]
pub struct Window {
    file: Arc<MappedFile>,
    offset: usize,
    len: usize,
}

impl Window {
    /// `None` where the file has no such part.
    #[must_use]
    pub fn new(file: Arc<MappedFile>, offset: usize, len: usize) -> Option<Self> {
        file.slice(offset, len)?;
        Some(Self { file, offset, len })
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> Option<VolatileSlice<'_>> {
        self.file.slice(self.offset, self.len)
    }

    /// The 16 bits at this place; 0 where there are none.
    #[inline]
    #[must_use]
    pub fn load(&self, at: usize) -> u16 {
        let bytes = self.bytes();
        let loaded = bytes.and_then(|bytes| bytes.load(at, Ordering::Acquire).ok());
        u16::from_le(loaded.unwrap_or(0))
    }

    /// Changes the 16 bits at this place.
    #[inline]
    pub fn store(&self, at: usize, value: u16) {
        if let Some(bytes) = self.bytes() {
            // A ring is laid out for its size, so there are such bits.
            let _ = bytes.store(value.to_le(), at, Ordering::Release);
        }
    }
}

/// Log of written pages: a bit for each, in memory of the client's.
#[derive(Debug, Clone)]
pub struct DirtyLog(Window);

impl DirtyLog {
    /// In this part of a file.
    #[must_use]
    pub const fn new(window: Window) -> Self {
        Self(window)
    }

    /// Something was written at a guest address. Pages without a bit in the log are not marked: its length was
    /// checked against the memory table, so it is not the guest's memory.
    pub fn mark(&self, guest: u64, len: usize) {
        let (Some(bytes), Some(last)) = (self.0.bytes(), (len as u64).checked_sub(1)) else {
            return;
        };
        for page in guest / LOG_PAGE..=guest.saturating_add(last) / LOG_PAGE {
            let at = usize::try_from(page / 8).unwrap_or(usize::MAX);
            if let Ok(byte) = bytes.get_atomic_ref::<AtomicU8>(at) {
                byte.fetch_or(1 << (page % 8), Ordering::Relaxed);
            }
        }
    }
}
