//! A split virtqueue (virtio 1.3, 2.7), the device's side. The three parts of it are looked up once, when
//! the ring starts or the memory changes. A descriptor is copied, then checked, then used.

use std::sync::atomic::{Ordering, fence};

use thiserror::Error;
use vm_memory::{Bytes, VolatileSlice};

use crate::memory::{DirtyLog, Memory, Window};
use crate::message::RingAddresses;

/// The most descriptors of a ring.
pub const MAX_SIZE: u16 = 1024;
/// The most buffers of a chain, and of a table of indirect descriptors.
const MAX_CHAIN: usize = MAX_SIZE as usize;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;

/// The chain goes on at `next`.
const NEXT: u16 = 1;
/// The device writes the buffer.
const WRITE: u16 = 2;
/// The buffer is a table of descriptors.
const INDIRECT: u16 = 4;

/// The driver wants no interrupts (`flags` of the available ring); the device no kicks (of the used ring).
const QUIET: u16 = 1;

/// Invalid state of a ring by its guest. The ring cannot be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RingError {
    /// More is available than the ring has room for.
    #[error("{0} entries are available of a ring of {1}")]
    Jump(u16, u16),
    /// An entry or a descriptor names a descriptor that there is not.
    #[error("there is no descriptor {0}")]
    Index(u16),
    /// A chain that does not end.
    #[error("a chain of more than {MAX_CHAIN} descriptors")]
    Loop,
    /// A table of indirect descriptors in a place or of a length that it cannot have.
    #[error("a table of {1} bytes of indirect descriptors at {0:#x}")]
    Table(u64, u32),
    /// Indirect descriptors in a table of such, or without being offered.
    #[error("a table of descriptors where none can be")]
    Nested,
    /// A buffer to read behind one to write.
    #[error("a buffer for the device to read behind one to write")]
    Order,
    /// A buffer that is not in memory.
    #[error("{1} bytes at {0:#x} are not the guest's memory")]
    Memory(u64, u32),
    /// A chain for a frame that has no room for the frame's header.
    #[error("{0} bytes of buffers for a frame, which is less than its header has")]
    Small(usize),
}

/// A buffer: guest address and length.
pub type Buffer = (u64, u32);

/// Buffers that a driver has made available together.
#[derive(Debug, Default)]
pub struct Chain {
    /// Its number in the used ring.
    pub head: u16,
    /// Buffers that the device reads.
    pub readable: Vec<Buffer>,
    /// Buffers that the device writes.
    pub writable: Vec<Buffer>,
    /// Number of its descriptors.
    pub walked: usize,
}

impl Chain {
    /// Bytes of some buffers.
    #[must_use]
    pub fn len_of(buffers: &[Buffer]) -> usize {
        let lengths = buffers.iter().map(|&(_, len)| len as usize);
        lengths.fold(0, usize::saturating_add)
    }

    fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
    }
}

/// Features that matter to rings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingFeatures {
    /// Descriptors may be in tables.
    pub indirect: bool,
    /// Each side says from which index on it wants to hear.
    pub event_index: bool,
}

/// A ring at work.
#[derive(Debug)]
pub struct Ring {
    size: u16,
    descriptors: Window,
    available: Window,
    used: Window,
    /// Where the used ring is in the dirty log, if writes to it are logged.
    logged_at: Option<u64>,
    features: RingFeatures,
    next_available: u16,
    /// The available index as it was when the ring was looked at last: entries before it are taken without a look.
    seen_available: u16,
    next_used: u16,
    /// The used index as the driver knows it.
    published: u16,
}

impl Ring {
    /// A ring of `size` descriptors at these addresses of the client, that begins with the entry `base`.
    /// `None` where it is not all in memory, or the size is none that a ring can have.
    #[must_use]
    pub fn new(
        memory: &Memory,
        size: u16,
        addresses: &RingAddresses,
        base: u16,
        features: RingFeatures,
    ) -> Option<Self> {
        if !size.is_power_of_two() || size > MAX_SIZE {
            return None;
        }
        let entries = usize::from(size);
        // Each of the rings ends with the index of an event (2.7.6, 2.7.8).
        let descriptors = memory.window(addresses.descriptors, DESCRIPTOR * entries, 16)?;
        let available = memory.window(addresses.available, 6 + 2 * entries, 2)?;
        let used = memory.window(addresses.used, 6 + 8 * entries, 4)?;
        // Used entries are in order, so that a device that comes back goes on where the last one ended.
        let next_used = used.load(2);
        Some(Self {
            size,
            descriptors,
            available,
            used,
            logged_at: addresses.log,
            features,
            next_available: base,
            seen_available: base,
            next_used,
            published: next_used,
        })
    }

    /// The entry that is next.
    #[must_use]
    pub const fn base(&self) -> u16 {
        self.next_available
    }

    /// Returns the number of available chains.
    ///
    /// # Errors
    /// [`RingError::Jump`].
    pub fn available(&self) -> Result<u16, RingError> {
        let some = self.available.load(2).wrapping_sub(self.next_available);
        if some > self.size {
            return Err(RingError::Jump(some, self.size));
        }
        Ok(some)
    }

    /// Takes the next chain; whether there is one.
    ///
    /// # Errors
    /// [`RingError`]; the ring is to be stopped then.
    pub fn pop(&mut self, memory: &Memory, chain: &mut Chain) -> Result<bool, RingError> {
        chain.clear();
        if self.seen_available == self.next_available {
            let some = self.available()?;
            self.seen_available = self.next_available.wrapping_add(some);
            if some == 0 {
                return Ok(false);
            }
        }
        let slot = usize::from(self.next_available % self.size);
        chain.head = self.available.load(4 + 2 * slot);
        self.walk(memory, chain)?;
        self.next_available = self.next_available.wrapping_add(1);
        Ok(true)
    }

    /// Puts the chains back that were taken last and not used.
    pub const fn put_back(&mut self, chains: u16) {
        self.next_available = self.next_available.wrapping_sub(chains);
        self.seen_available = self.next_available;
    }

    fn walk(&self, memory: &Memory, chain: &mut Chain) -> Result<(), RingError> {
        let table = self.descriptors.bytes();
        let mut table = table.ok_or(RingError::Index(chain.head))?;
        let mut entries = usize::from(self.size);
        let (mut at, mut nested) = (chain.head, false);
        for walked in 1..=MAX_CHAIN {
            chain.walked = walked;
            if usize::from(at) >= entries {
                return Err(RingError::Index(at));
            }
            let Descriptor {
                addr,
                len,
                flags,
                next,
            } = Descriptor::copied(&table, at).ok_or(RingError::Index(at))?;
            if flags & INDIRECT != 0 {
                if nested || !self.features.indirect || flags & NEXT != 0 {
                    return Err(RingError::Nested);
                }
                let length = len as usize;
                let fits = length.is_multiple_of(DESCRIPTOR) && length / DESCRIPTOR <= MAX_CHAIN;
                let indirect = memory.slice(addr, length).filter(|_| fits && len > 0);
                table = indirect.ok_or(RingError::Table(addr, len))?;
                (entries, at, nested) = (length / DESCRIPTOR, 0, true);
                continue;
            }
            if memory.slice(addr, len as usize).is_none() {
                return Err(RingError::Memory(addr, len));
            }
            if flags & WRITE != 0 {
                chain.writable.push((addr, len));
            } else if chain.writable.is_empty() {
                chain.readable.push((addr, len));
            } else {
                return Err(RingError::Order);
            }
            if flags & NEXT == 0 {
                return Ok(());
            }
            at = next;
        }
        Err(RingError::Loop)
    }

    /// Says that a chain is used, of which `written` bytes were written. The driver hears of it when it
    /// is published.
    pub fn push(&mut self, head: u16, written: u32) {
        let at = 4 + 8 * usize::from(self.next_used % self.size);
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&written.to_le_bytes());
        if let Some(used) = self.used.bytes() {
            // The window has room for all entries.
            let _ = used.write_slice(&entry, at);
        }
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Shows the driver what was used; whether it wants to be interrupted for it.
    pub fn publish(&mut self, log: Option<&DirtyLog>) -> bool {
        if self.published == self.next_used {
            return false;
        }
        if let (Some(log), Some(at)) = (log, self.logged_at) {
            log.mark(at, 6 + 8 * usize::from(self.size));
        }
        let before = std::mem::replace(&mut self.published, self.next_used);
        self.used.store(2, self.next_used);
        // The index is there before anybody looks at whether it is to be told of.
        fence(Ordering::SeqCst);
        if !self.features.event_index {
            return self.available.load(0) & QUIET == 0;
        }
        let event = self.available.load(4 + 2 * usize::from(self.size));
        let since = self.next_used.wrapping_sub(event).wrapping_sub(1);
        since < self.next_used.wrapping_sub(before)
    }

    /// Asks for a kick with the next chain, or for none. Whether chains are available already, which
    /// nobody kicks for.
    ///
    /// # Errors
    /// [`RingError::Jump`].
    pub fn listen(&mut self, wanted: bool) -> Result<bool, RingError> {
        if !self.features.event_index {
            self.used.store(0, if wanted { 0 } else { QUIET });
        } else if wanted {
            let event = 4 + 8 * usize::from(self.size);
            self.used.store(event, self.next_available);
        }
        fence(Ordering::SeqCst);
        Ok(self.available()? > 0)
    }
}

/// A descriptor (2.7.5).
#[derive(Debug, Clone, Copy)]
struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    #[inline]
    fn copied(table: &VolatileSlice<'_>, at: u16) -> Option<Self> {
        let mut bytes = [0; DESCRIPTOR];
        table
            .read_slice(&mut bytes, DESCRIPTOR * usize::from(at))
            .ok()?;
        let bits = u128::from_le_bytes(bytes);
        Some(Self {
            addr: bits as u64,
            len: (bits >> 64) as u32,
            flags: (bits >> 96) as u16,
            next: (bits >> 112) as u16,
        })
    }
}
