//! The daemon's own memory, as the VF reaches it: command queue, event queue, mailboxes, and pages for
//! firmware.
//!
//! It lies high up in the VF's DMA addresses, where no guest has memory: guests' memory there is refused.
//! Below it is room for queues that the daemon keeps in a guest's place (`shadow`). Pages that are not used take no memory of the host.

use std::io;

use vfio_user::{DmaError, Mapping, SharedMemory};
use vm_memory::VolatileSlice;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of the window.
pub const SIZE: usize = 128 << 20;
/// Its DMA address: below 2^38, which every IOMMU has.
pub const BASE: u64 = (1 << 38) - SIZE as u64;

/// Bytes of the room for queues, which is named by offsets from [`SIZE`] on.
pub const RINGS_SIZE: usize = 64 << 20;
/// The DMA address of that room. From here to the end of the window no guest names anything, room or not.
pub const RINGS_BASE: u64 = BASE - SIZE as u64;

/// Bytes of the daemon's memory that a VF maps: the window, and the room for queues.
pub const LOCKED: u64 = (SIZE + RINGS_SIZE) as u64;

/// Where the command queue is, in bytes.
pub const COMMANDS: usize = 0;
/// Where the event queue is, in bytes.
pub const EVENTS: usize = PAGE;
/// Entries of the event queue, as a power of two.
pub const LOG_EVENTS: u32 = 12;
/// Where mailboxes are, in bytes.
pub const MAILBOXES: usize = 1 << 20;
/// Number of mailboxes: enough for the longest request and the longest reply at a time.
pub const MAILBOX_COUNT: usize = 24 << 10;
/// Bytes from one to the next.
pub const MAILBOX_STRIDE: usize = 1024;
/// Where pages for firmware are, in bytes.
pub const FIRMWARE: usize = 32 << 20;
/// Number of pages for firmware.
pub const FIRMWARE_PAGES: usize = (SIZE - FIRMWARE) / PAGE;

/// The window.
#[derive(Debug)]
pub struct Window {
    memory: SharedMemory,
    rings: SharedMemory,
}

impl Window {
    /// One of zeros.
    ///
    /// # Errors
    /// Where the system has no memory or descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            memory: SharedMemory::new("passthrough", SIZE)?,
            rings: SharedMemory::new("passthrough queues", RINGS_SIZE)?,
        })
    }

    /// As the VF is to map it.
    ///
    /// # Errors
    /// None: it is aligned.
    pub fn mappings(&self) -> Result<[Mapping; 2], DmaError> {
        Ok([
            Mapping::of_shared(BASE, &self.memory)?,
            Mapping::of_shared(RINGS_BASE, &self.rings)?,
        ])
    }

    /// The DMA address of a byte of it.
    #[must_use]
    pub const fn address(offset: usize) -> u64 {
        if offset < SIZE {
            BASE + offset as u64
        } else {
            RINGS_BASE + (offset - SIZE) as u64
        }
    }

    /// `len` bytes from `offset` on, within the window.
    ///
    /// # Panics
    /// When they are not.
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> VolatileSlice<'_> {
        let slice = match offset.checked_sub(SIZE) {
            Some(offset) => self.rings.slice(offset, len),
            None => self.memory.slice(offset, len),
        };
        slice.expect("within the window")
    }

    /// Whether a range of DMA addresses has a part of the window.
    #[must_use]
    pub fn overlaps(addr: u64, size: u64) -> bool {
        addr < BASE + SIZE as u64 && addr.saturating_add(size) > RINGS_BASE
    }
}
