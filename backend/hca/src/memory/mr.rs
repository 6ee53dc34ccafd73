//! Memory regions: keys, bounds, rights, and the translation to DMA addresses.

use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell, RefMut};
use std::ops::BitOr;
use thiserror::Error;
use wire::Qpn;

use crate::budget::Budget;
use crate::memory::klm::STEP_NS;
pub use crate::memory::klm::{Klm, KlmList};
use crate::memory::lending::Lent;
use crate::memory::pages::{NO_READ, NO_WRITE, PageList};
use crate::memory::signature::key::{SignatureError, Signed};
use crate::memory::uniform::{NULL_KEY, Stretches};
use crate::storage::numbers::Numbers;
use crate::storage::share::Memory;

/// Page sizes that a translation may have, as powers of two.
pub const PAGE_SIZES: std::ops::RangeInclusive<u8> = 12..=40;
/// Most elements of an indirect key.
pub const MAX_KLMS: usize = 1 << 16;
/// Deepest nesting of indirect keys that is followed.
pub const MAX_INDIRECTION: u8 = 4;

/// A set of access rights to a memory region (specification 10.6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Access(u8);

impl Access {
    /// No rights.
    pub const NONE: Self = Self(0);
    /// Read by the local HCA, as a gather entry.
    pub const LOCAL_READ: Self = Self(1);
    /// Written by the local HCA, as a scatter entry.
    pub const LOCAL_WRITE: Self = Self(2);
    /// Target of RDMA reads.
    pub const REMOTE_READ: Self = Self(4);
    /// Target of RDMA writes.
    pub const REMOTE_WRITE: Self = Self(8);
    /// Target of atomic operations.
    pub const ATOMIC: Self = Self(16);

    /// Whether all of `needed` is granted.
    #[inline]
    #[must_use]
    pub const fn grants(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }

    /// Whether any of these rights is one to write memory.
    #[inline]
    #[must_use]
    pub const fn writes(self) -> bool {
        self.0 & (Self::LOCAL_WRITE.0 | Self::REMOTE_WRITE.0 | Self::ATOMIC.0) != 0
    }

    /// The rights that the same access needs of the keys behind an indirect
    /// one: the HCA reaches through those itself, whoever asked.
    #[must_use]
    pub const fn behind_indirection(self) -> Self {
        if self.writes() {
            Self::LOCAL_WRITE
        } else {
            Self::LOCAL_READ
        }
    }

    /// This set, if there are such rights.
    pub(crate) const fn checked(self) -> Option<Self> {
        if self.0 < 32 { Some(self) } else { None }
    }

    /// This set with `right` switched on or off.
    #[must_use]
    pub const fn with(self, right: Self, on: bool) -> Self {
        Self(if on {
            self.0 | right.0
        } else {
            self.0 & !right.0
        })
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Translation of addresses within a region to DMA addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Translation {
    /// The address is the DMA address.
    Physical,
    /// A table of pages.
    Pages {
        /// Page size as a power of two.
        log_size: u8,
        /// DMA address of each page.
        pages: PageList,
    },
    /// A list of stretches of other keys.
    Indirect(KlmList),
    /// One stretch, which begins anywhere: memory of the device.
    Stretch {
        /// DMA address of the first byte.
        first: u64,
    },
    /// Stretches of other keys, all of one size, of which any may be away.
    Uniform {
        /// Their size as a power of two.
        log_size: u8,
        /// The stretches.
        list: Stretches,
    },
    /// A list of stretches of other keys, whose bytes have signatures or may get them.
    Signed(Box<Signed>),
}

impl Translation {
    /// Number of entries.
    #[must_use]
    pub fn entries(&self) -> usize {
        match self {
            Self::Physical | Self::Stretch { .. } => 0,
            Self::Pages { pages, .. } => pages.len(),
            Self::Indirect(list) => list.entries.len(),
            Self::Uniform { .. } => 0,
            Self::Signed(signed) => signed.list.entries.len(),
        }
    }

    /// Bytes of the host's memory that the entries take.
    #[must_use]
    pub fn held(&self) -> usize {
        match self {
            Self::Physical | Self::Stretch { .. } => 0,
            Self::Pages { pages, .. } => pages.held(),
            Self::Indirect(list) => list.held(),
            Self::Uniform { list, .. } => list.held(),
            Self::Signed(signed) => signed.held(),
        }
    }
}

/// Why a memory key does not allow an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// No such key, or it is not usable now.
    #[error("memory key {0:#010x} is not valid")]
    Invalid(u32),
    /// The key belongs to another protection domain or queue pair.
    #[error("memory key {0:#010x} belongs to another protection domain")]
    Protection(u32),
    /// The key does not grant the access.
    #[error("memory key {0:#010x} does not grant this access")]
    Access(u32),
    /// The range is not within the region.
    #[error("{len} bytes at {addr:#x} are not within memory key {key:#010x}")]
    Bounds {
        /// The key.
        key: u32,
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The guest memory behind the region is gone.
    #[error("memory key {0:#010x} points to memory that is not mapped")]
    Unmapped(u32),
    /// The page is not there now, or must not be written now. Its owner brings it when it is told.
    #[error("a page of memory key {0:#010x} is not there")]
    Absent(u32),
    /// The region's bytes have signatures. Copies go by [`signature`](crate::memory::signature).
    #[error("memory key {0:#010x} has signatures")]
    Signed(u32),
}

/// A memory key and the region it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryKey {
    /// Low byte of the key, chosen by its owner.
    pub variant: u8,
    /// Set while the key must not be used.
    pub free: bool,
    /// Protection domain.
    pub pd: u32,
    /// First address.
    pub start: u64,
    /// Length in bytes; [`u64::MAX`] for all memory.
    pub len: u64,
    /// Rights.
    pub access: Access,
    /// Whether a peer may invalidate the key.
    pub remote_invalidate: bool,
    /// Whether the key may be changed by work requests.
    pub updatable: bool,
    /// The only queue pair that may use the key remotely, if any.
    pub qpn: Option<Qpn>,
    /// Where the bytes are.
    pub translation: Translation,
    /// Most translation entries the key may get.
    pub capacity: usize,
}

impl MemoryKey {
    /// Checks that `len` bytes at `addr` may be accessed with `needed` rights
    /// from protection domain `pd`. Zero-length accesses need a valid key only.
    ///
    /// # Errors
    /// [`KeyError`] with the given `key`, which is the one the user presented.
    #[inline]
    pub fn check(
        &self,
        key: u32,
        pd: u32,
        addr: u64,
        len: u64,
        needed: Access,
    ) -> Result<(), KeyError> {
        if self.variant != key as u8 || self.free {
            return Err(KeyError::Invalid(key));
        }
        if self.pd != pd {
            return Err(KeyError::Protection(key));
        }
        if !self.access.grants(needed) {
            return Err(KeyError::Access(key));
        }
        let offset = addr.wrapping_sub(self.start);
        if self.len == u64::MAX || (offset <= self.len && len <= self.len - offset) {
            Ok(())
        } else {
            Err(KeyError::Bounds { key, addr, len })
        }
    }
}

/// The memory keys of one virtual function, by index.
#[derive(Debug, Default)]
// Every message asks whether blocks were wrong: the answer is beside what it has looked at.
#[repr(C)]
pub struct KeyTable {
    has_failed: Cell<bool>,
    slots: Numbers<MemoryKey>,
    /// Memory that other engines may read by them.
    lent: RefCell<Lent>,
    /// Blocks that were not as their signatures say, until somebody is told.
    failed: RefCell<Vec<SignatureError>>,
}

impl KeyTable {
    /// An empty table for at most `1 << log_size` keys with 24-bit indices.
    #[must_use]
    pub fn new(log_size: u8, seed: u64) -> Self {
        Self {
            has_failed: Cell::default(),
            slots: Numbers::new(log_size, 24, 2, seed),
            lent: RefCell::default(),
            failed: RefCell::default(),
        }
    }

    /// A block is not as its signature says. No more than one error of a key waits for somebody who is told.
    pub(crate) fn fail(&self, error: SignatureError) {
        self.has_failed.set(true);
        self.failed.borrow_mut().push(error);
    }

    /// Whether there are errors of which nobody has been told.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    /// Takes those errors that `of` says.
    pub(crate) fn take_failed(
        &mut self,
        of: impl FnMut(&mut SignatureError) -> bool,
    ) -> Vec<SignatureError> {
        let failed = self.failed.get_mut();
        let taken = failed.extract_if(.., of).collect();
        self.has_failed.set(!failed.is_empty());
        taken
    }

    /// Memory lent by the keys.
    pub(crate) fn lent(&self) -> RefMut<'_, Lent> {
        self.lent.borrow_mut()
    }

    /// Nobody else reads any memory by these keys any more.
    pub(crate) fn revoke(&mut self) {
        *self.lent.get_mut() = Lent::default();
    }

    /// Adds a key and returns its index (the key is `index << 8 | variant`), or
    /// `None` when the table is full or `memory` does not suffice for it.
    pub fn insert(&mut self, key: MemoryKey, memory: &mut Memory) -> Option<u32> {
        let held = key.translation.held();
        if !self.slots.make_room(memory) || !memory.take(held) {
            return None;
        }
        let may = |index| index != Klm::REPEATED >> 8;
        let index = self.slots.insert_free(may, |_| key);
        if index.is_none() {
            memory.give(held);
        }
        index
    }

    /// Removes the key with this index.
    pub fn remove(&mut self, index: u32, memory: &mut Memory) -> Option<MemoryKey> {
        let key = self.slots.remove(index)?;
        self.lent.get_mut().revoke(index);
        memory.give(key.translation.held());
        Some(key)
    }

    /// See [`Numbers::make_room_at`].
    pub(crate) fn make_room_at(&mut self, index: u32, memory: &mut Memory) -> bool {
        self.slots.make_room_at(index, memory)
    }

    /// See [`Numbers::insert_at`]. `memory` has room for the key.
    pub(crate) fn insert_at(&mut self, index: u32, key: MemoryKey, memory: &mut Memory) -> bool {
        memory.exchange(0, key.translation.held());
        self.slots.insert_at(index, key)
    }

    /// See [`Numbers::close`].
    pub(crate) fn close(&mut self) {
        self.slots.close();
    }

    /// The keys by their slots.
    pub(crate) const fn numbers(&self) -> &Numbers<MemoryKey> {
        &self.slots
    }

    /// The key with this index.
    #[inline]
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&MemoryKey> {
        self.slots.get(index)
    }

    /// The key with this index, to change it in place.
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut MemoryKey> {
        self.lent.get_mut().revoke(index);
        self.slots.get_mut(index)
    }

    /// Lets `change` do what it likes to a key; the second argument is how many
    /// bytes its translation may take.
    pub(crate) fn update<R>(
        &mut self,
        index: u32,
        memory: &mut Memory,
        change: impl FnOnce(&mut MemoryKey, usize) -> R,
    ) -> Option<R> {
        self.lent.get_mut().revoke(index);
        let key = self.slots.get_mut(index)?;
        let before = key.translation.held();
        let result = change(key, memory.left().saturating_add(before));
        memory.exchange(before, key.translation.held());
        Some(result)
    }

    /// Takes all keys out at once.
    #[must_use]
    pub(crate) fn replace(&mut self) -> Self {
        self.revoke();
        Self {
            slots: self.slots.replace(),
            has_failed: Cell::new(self.has_failed.take()),
            failed: RefCell::new(self.failed.take()),
            lent: RefCell::default(),
        }
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.len() == 0
    }

    /// Looks up the full key and checks the access.
    ///
    /// # Errors
    /// [`KeyError`] as [`MemoryKey::check`].
    #[inline]
    pub fn check(
        &self,
        key: u32,
        pd: u32,
        addr: u64,
        len: u64,
        needed: Access,
    ) -> Result<&MemoryKey, KeyError> {
        let region = self.get(key >> 8).ok_or(KeyError::Invalid(key))?;
        region.check(key, pd, addr, len, needed)?;
        Ok(region)
    }

    /// DMA address of the byte at `addr` of an already checked region, and how
    /// many of the following `len` bytes lie contiguously behind it. Keys that
    /// an indirect key leads to must grant the HCA itself the access; each of
    /// them is charged to `budget`.
    ///
    /// # Errors
    /// [`KeyError`] when an indirect key leads nowhere.
    #[inline]
    pub fn translate(
        &self,
        region: &MemoryKey,
        key: u32,
        addr: u64,
        len: u64,
        needed: Access,
        budget: &mut Budget,
    ) -> Result<(u64, u64), KeyError> {
        match &region.translation {
            Translation::Physical => Ok((addr, len)),
            Translation::Pages { log_size, pages } => {
                translate_pages(*log_size, pages, region.start, key, addr, len, needed)
            }
            Translation::Indirect(_) | Translation::Uniform { .. } | Translation::Signed(_) => {
                self.translate_indirect(region, key, addr, len, needed, budget)
            }
            Translation::Stretch { first } => Ok((within_stretch(*first, region.start, addr), len)),
        }
    }

    /// As [`KeyTable::translate`], of what is at byte `place` of the list of a key, whatever the key itself is.
    ///
    /// # Errors
    /// [`KeyError`] when the list leads nowhere, or to a key with signatures.
    pub(crate) fn translate_list(
        &self,
        region: &MemoryKey,
        list: &KlmList,
        key: u32,
        (place, len): (u64, u64),
        needed: Access,
        budget: &mut Budget,
    ) -> Result<(u64, u64), KeyError> {
        let outside = KeyError::Bounds {
            key,
            addr: place,
            len,
        };
        let (klm, into) = list.find(place, budget).ok_or(outside)?;
        let len = len.min(u64::from(klm.len) - into);
        let addr = klm.addr.wrapping_add(into);
        let needed = needed.behind_indirection();
        let other = self.check(klm.key, region.pd, addr, len, needed)?;
        match self.translate(other, klm.key, addr, len, needed, budget) {
            Err(KeyError::Signed(key)) => Err(KeyError::Invalid(key)),
            found => found,
        }
    }

    #[cold]
    fn translate_indirect<'a>(
        &'a self,
        mut region: &'a MemoryKey,
        mut key: u32,
        mut addr: u64,
        mut len: u64,
        mut needed: Access,
        budget: &mut Budget,
    ) -> Result<(u64, u64), KeyError> {
        for depth in 0..=MAX_INDIRECTION {
            let step = match &region.translation {
                Translation::Physical => return Ok((addr, len)),
                Translation::Pages { log_size, pages } => {
                    return translate_pages(*log_size, pages, region.start, key, addr, len, needed);
                }
                _ if depth == MAX_INDIRECTION => break,
                Translation::Indirect(list) => {
                    let offset = addr.wrapping_sub(region.start);
                    let found = list.find(offset, budget);
                    let (klm, into) = found.ok_or(KeyError::Bounds { key, addr, len })?;
                    (klm.key, klm.addr, into, u64::from(klm.len) - into)
                }
                // Of others' keys no key has the signatures.
                Translation::Signed(signed) if signed.format.is_some() => {
                    return Err(if depth == 0 {
                        KeyError::Signed(key)
                    } else {
                        KeyError::Invalid(key)
                    });
                }
                Translation::Signed(signed) => {
                    let offset = addr.wrapping_sub(region.start);
                    let found = signed.list.find(offset, budget);
                    let (klm, into) = found.ok_or(KeyError::Bounds { key, addr, len })?;
                    (klm.key, klm.addr, into, u64::from(klm.len) - into)
                }
                Translation::Uniform { log_size, list } => {
                    budget.take(STEP_NS);
                    let mask = (1 << log_size) - 1;
                    // They follow one another from the key's first address on, which may be anywhere. Pages do not.
                    let offset = addr.wrapping_sub(region.start);
                    let at = usize::try_from(offset >> log_size).unwrap_or(usize::MAX);
                    let (other, first) = list.get(at);
                    if other == NULL_KEY {
                        return Err(KeyError::Absent(key));
                    }
                    let into = offset & mask;
                    (other, first, into, mask + 1 - into)
                }
                Translation::Stretch { first } => {
                    return Ok((within_stretch(*first, region.start, addr), len));
                }
            };
            let (other, first, into, most) = step;
            len = len.min(most);
            addr = first.wrapping_add(into);
            needed = needed.behind_indirection();
            let pd = region.pd;
            key = other;
            region = self.check(key, pd, addr, len, needed)?;
        }
        Err(KeyError::Invalid(key))
    }
}

/// DMA address of the byte at `addr` of a region whose bytes lie side by side from `first` on.
#[inline]
const fn within_stretch(first: u64, start: u64, addr: u64) -> u64 {
    first.wrapping_add(addr.wrapping_sub(start))
}

/// Page-table translation. The first page holds `start` rounded down.
#[inline]
fn translate_pages(
    log_size: u8,
    pages: &PageList,
    start: u64,
    key: u32,
    addr: u64,
    len: u64,
    needed: Access,
) -> Result<(u64, u64), KeyError> {
    let mask = (1_u64 << log_size) - 1;
    let offset = addr.wrapping_sub(start & !mask);
    let within = offset & mask;
    let index = usize::try_from(offset >> log_size).ok();
    let entry = index.and_then(|index| Some((index, pages.get(index)?)));
    let (index, entry) = entry.ok_or(KeyError::Unmapped(key))?;
    // Whatever writes a page needs it writable, atomics too.
    let missing = if needed.writes() { NO_WRITE } else { NO_READ };
    if entry & missing != 0 {
        return Err(KeyError::Absent(key));
    }
    let mut run = mask + 1 - within;
    // Neighbouring pages often lie side by side; one longer window is cheaper
    // than several short ones.
    if run < len {
        let wanted = usize::try_from((len - run).div_ceil(mask + 1)).unwrap_or(usize::MAX);
        run += pages.side_by_side(index, wanted, log_size) * (mask + 1);
    }
    Ok(((entry & !mask) + within, run.min(len)))
}

#[cfg(test)]
mod tests;
