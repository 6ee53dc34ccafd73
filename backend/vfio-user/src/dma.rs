//! Guest memory by DMA address.

use std::cell::Cell;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use thiserror::Error;
use vm_memory::VolatileSlice;

use vmm_socket::memory::{MappedFile, SharedMemory};

/// The most mappings that one client may have at a time (`max_dma_maps`).
pub const MAX_DMA_MAPS: usize = 65535;

/// The unit of mappings and of the dirty log, in bytes (`pgsizes`).
pub const PAGE_SIZE: u64 = 4096;

/// Logs of mappings that are gone which are kept until somebody asks, and bytes of them.
const GONE_LOGS: usize = 1024;
const GONE_BYTES: usize = 8 << 20;

/// Rights of a device on a mapping.
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
#[non_exhaustive]
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
    dirty: Option<Arc<DirtyLog>>,
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
            dirty: None,
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

    /// Returns the rights of the device.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// The client shared the memory itself.
    pub fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// All of its memory; `None` where the client shared none.
    pub fn memory(&self) -> Option<VolatileSlice<'_>> {
        self.window(self.addr, usize::try_from(self.size).ok()?)
    }

    /// The file that the memory lies in, and where it begins there, in bytes; `None` where the client
    /// shared none.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let (memory, offset) = self.memory.as_ref()?;
        Some((memory.fd(), *offset as u64))
    }

    /// This is the guest's RAM, and the client does not share it. On a PC, RAM begins at address 0; other areas that
    /// a VMM maps without memory (ROMs and other devices' BARs) lie elsewhere.
    pub fn is_unshared_ram(&self) -> bool {
        self.memory.is_none() && self.addr == 0 && self.protection == Protection::READ_WRITE
    }

    /// Begins to record what is written.
    fn log(&mut self) {
        if self.memory.is_some() && self.protection.write {
            self.dirty = Some(Arc::new(DirtyLog::new(self.addr, self.size)));
        }
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

/// Pages of a mapping that were written, a bit each.
#[derive(Debug)]
struct DirtyLog {
    /// DMA address of the first page.
    addr: u64,
    words: Box<[AtomicU64]>,
}

impl DirtyLog {
    fn new(addr: u64, size: u64) -> Self {
        let words = (size / PAGE_SIZE).div_ceil(64);
        Self {
            addr,
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Takes `len` bytes at DMA address `addr` as written. Apart from those who find the memory: mostly
    /// nobody asks for a log.
    #[inline(never)]
    fn record(&self, addr: u64, len: usize) {
        if len == 0 {
            return;
        }
        let first = (addr - self.addr) / PAGE_SIZE;
        let last = (addr - self.addr + (len as u64 - 1)) / PAGE_SIZE;
        for word in first / 64..=last / 64 {
            let low = first.max(word * 64) % 64;
            let high = last.min(word * 64 + 63) % 64;
            let bits = (u64::MAX >> (63 - (high - low))) << low;
            // Most pages are written more than once, and to look is cheaper than to write.
            if let Some(word) = self.words.get(word as usize)
                && word.load(Ordering::Relaxed) & bits != bits
            {
                word.fetch_or(bits, Ordering::Relaxed);
            }
        }
    }

    /// The addresses of the pages in `addr..addr + size` (saturating), which are forgotten.
    fn take(&self, addr: u64, size: u64) -> impl Iterator<Item = u64> {
        let own = self.addr;
        let count = self.words.len() as u64 * 64;
        let end = addr.saturating_add(size).saturating_sub(own);
        let first = addr.saturating_sub(own) / PAGE_SIZE;
        let last = end.div_ceil(PAGE_SIZE).min(count);
        let words = (first / 64..last.div_ceil(64)).filter(move |_| first < last);
        words.flat_map(move |word| {
            let low = first.max(word * 64) % 64;
            let high = (last - 1).min(word * 64 + 63) % 64;
            let asked = (u64::MAX >> (63 - (high - low))) << low;
            let bits = self.words.get(word as usize);
            let bits = bits.map_or(0, |bits| bits.fetch_and(!asked, Ordering::Relaxed) & asked);
            (0..64_u64)
                .filter(move |bit| bits >> bit & 1 != 0)
                .map(move |bit| own + (word * 64 + bit) * PAGE_SIZE)
        })
    }

    /// Whether nothing was written.
    fn is_clean(&self) -> bool {
        let mut words = self.words.iter();
        words.all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Bytes that it takes.
    fn cost(&self) -> usize {
        self.words.len() * size_of::<AtomicU64>()
    }
}

/// A way to find the guest memory behind DMA addresses. A window keeps its mapping, so that none goes away under an
/// access.
#[derive(Debug, Default)]
pub struct Lookup<L> {
    /// Sorted by address, without overlaps.
    mappings: L,
    /// Where the last address was found: the next is likely there as well.
    hint: Cell<usize>,
}

/// The guest memory that a device could reach at one moment, for a data path to
/// have. It stays as it is, and so does what it shows: who changes the
/// [`DmaTable`] gives the data path another view before the memory is taken away.
pub type DmaView = Lookup<Arc<[Mapping]>>;

/// The same for several threads to read at a time. It remembers no place.
#[derive(Debug, Clone)]
pub struct SharedView(Arc<[Mapping]>);

impl DmaView {
    /// The memory of the view, for other threads.
    #[must_use]
    pub fn shared(&self) -> SharedView {
        SharedView(Arc::clone(&self.mappings))
    }
}

impl SharedView {
    /// As [`Lookup::read_window`].
    #[must_use]
    pub fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let at = self.0.partition_point(|known| known.end() <= addr);
        let mapping = self.0.get(at).filter(|mapping| mapping.addr <= addr)?;
        (mapping.protection.read)
            .then(|| mapping.window(addr, len))
            .flatten()
    }
}

impl Clone for DmaView {
    fn clone(&self) -> Self {
        Self {
            mappings: Arc::clone(&self.mappings),
            hint: Cell::new(0),
        }
    }
}

impl<L: Deref<Target = [Mapping]>> Lookup<L> {
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

    /// As [`Lookup::read_window`], for memory that the device is about to
    /// write. The dirty log takes all of it as written: ask for no more than
    /// that. Every DMA write passes here.
    #[inline]
    pub fn write_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let mapping = self.find(addr)?;
        if !mapping.protection.write {
            return None;
        }
        let window = mapping.window(addr, len)?;
        if let Some(dirty) = &mapping.dirty {
            dirty.record(addr, window.len());
        }
        Some(window)
    }
}

/// The guest memory that a device can reach, sorted by DMA address.
///
/// A plain structure without locks: the device decides who shares it and how.
/// To those who are to reach the memory while it changes it gives a
/// [`DmaView`].
#[derive(Debug, Default)]
pub struct DmaTable {
    memory: Lookup<Vec<Mapping>>,
    /// Whether writes are recorded.
    logs: bool,
    /// Logs of mappings that are gone.
    gone: Vec<Arc<DirtyLog>>,
    /// Where mappings were whose logs could not be kept: everything there counts as written.
    lost: Option<(u64, u64)>,
}

impl DmaTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of mappings.
    pub fn len(&self) -> usize {
        self.memory.mappings.len()
    }

    /// There are no mappings.
    pub fn is_empty(&self) -> bool {
        self.memory.mappings.is_empty()
    }

    /// The mappings, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.memory.mappings.iter()
    }

    /// Adds a mapping.
    ///
    /// # Errors
    /// [`DmaError::Overlap`] or [`DmaError::Full`].
    pub fn map(&mut self, mut mapping: Mapping) -> Result<(), DmaError> {
        let at = self
            .memory
            .mappings
            .partition_point(|known| known.end() <= mapping.addr);
        if self
            .memory
            .mappings
            .get(at)
            .is_some_and(|next| next.addr < mapping.end())
        {
            return Err(DmaError::Overlap {
                addr: mapping.addr,
                size: mapping.size,
            });
        }
        if self.memory.mappings.len() >= MAX_DMA_MAPS {
            return Err(DmaError::Full);
        }
        if self.logs {
            mapping.log();
        }
        self.memory.mappings.insert(at, mapping);
        Ok(())
    }

    /// Removes all mappings in `addr..addr + size` (saturating) and returns
    /// them, which may be none. To drop them may unmap gigabytes: do that
    /// without the lock that others need to reach the table.
    ///
    /// # Errors
    /// [`DmaError::Bisects`] where a mapping lies there in part only, as the
    /// kernel's VFIO has it; nothing is removed then.
    pub fn unmap(&mut self, addr: u64, size: u64) -> Result<Vec<Mapping>, DmaError> {
        if size == 0 {
            return Ok(Vec::new());
        }
        let end = addr.saturating_add(size);
        let first = self
            .memory
            .mappings
            .partition_point(|known| known.end() <= addr);
        let last = self
            .memory
            .mappings
            .partition_point(|known| known.addr < end);
        let Some(gone) = self
            .memory
            .mappings
            .get(first..last)
            .filter(|gone| !gone.is_empty())
        else {
            return Ok(Vec::new());
        };
        if gone[0].addr < addr || gone[gone.len() - 1].end() > end {
            return Err(DmaError::Bisects { addr, size });
        }
        let gone: Vec<_> = self.memory.mappings.drain(first..last).collect();
        self.keep_logs(&gone);
        Ok(gone)
    }

    /// Removes all mappings and returns them, as [`DmaTable::unmap`] does. The
    /// dirty log stays.
    #[must_use = "drop them without the lock that others need to reach the table"]
    pub fn clear(&mut self) -> Vec<Mapping> {
        let gone = std::mem::take(&mut self.memory.mappings);
        self.keep_logs(&gone);
        gone
    }

    /// Keeps the logs of removed mappings, whose writes are still to be reported, and writes under way by
    /// holders of the old table. A client that maps and unmaps all the time without a query hears that all
    /// pages were written.
    fn keep_logs(&mut self, gone: &[Mapping]) {
        // Everybody has another view since these went.
        self.gone.retain(|log| !log.is_clean());
        let mut cost: usize = self.gone.iter().map(|log| log.cost()).sum();
        for mapping in gone {
            let Some(log) = &mapping.dirty else { continue };
            cost += log.cost();
            if self.gone.len() < GONE_LOGS && cost <= GONE_BYTES {
                self.gone.push(Arc::clone(log));
            } else {
                let (first, end) = self.lost.unwrap_or((u64::MAX, 0));
                self.lost = Some((first.min(mapping.addr), end.max(mapping.end())));
            }
        }
    }

    /// The memory as it is now, for others to reach it; with the log of writes,
    /// if there is one.
    pub fn view(&self) -> DmaView {
        Lookup {
            mappings: self.memory.mappings.as_slice().into(),
            hint: Cell::new(0),
        }
    }

    /// As [`Lookup::read_window`].
    #[inline]
    pub fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.memory.read_window(addr, len)
    }

    /// As [`Lookup::write_window`].
    #[inline]
    pub fn write_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.memory.write_window(addr, len)
    }

    /// Starts recording the pages that the device writes, anew where it was
    /// recording already. Views of before do not record for this log.
    pub fn start_dirty_log(&mut self) {
        self.stop_dirty_log();
        self.logs = true;
        self.memory.mappings.iter_mut().for_each(Mapping::log);
    }

    /// Stops recording and forgets what was recorded.
    pub fn stop_dirty_log(&mut self) {
        self.logs = false;
        self.gone.clear();
        self.lost = None;
        for mapping in &mut self.memory.mappings {
            mapping.dirty = None;
        }
    }

    /// Whether the device's writes are recorded.
    pub fn is_logging(&self) -> bool {
        self.logs
    }

    /// DMA addresses of the pages of [`PAGE_SIZE`] written since the last
    /// call or the start, in order; empty where nothing is recorded.
    /// Recording goes on.
    pub fn take_dirty_log(&mut self) -> Vec<u64> {
        let pages = self.take_dirty_log_of(0, u64::MAX);
        // Nobody writes there any more.
        self.gone.clear();
        pages
    }

    /// As [`DmaTable::take_dirty_log`], of the pages in `addr..addr + size` (saturating) alone.
    pub fn take_dirty_log_of(&mut self, addr: u64, size: u64) -> Vec<u64> {
        let present = self.memory.mappings.iter();
        let present = present.filter_map(|mapping| mapping.dirty.as_ref());
        let logs = present.chain(&self.gone);
        let mut pages: Vec<u64> = logs.flat_map(|log| log.take(addr, size)).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Where everything counts as written, whatever [`DmaTable::take_dirty_log_of`] tells: a range of DMA
    /// addresses, until logging stops.
    pub fn lost_dirty_logs(&self) -> Option<std::ops::Range<u64>> {
        self.lost.map(|(first, end)| first..end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Addresses are pages 0 to 31, so that ranges meet often.
    #[derive(Debug, Clone)]
    enum Step {
        Map {
            page: u64,
            pages: u64,
            file_page: u64,
            write: bool,
        },
        Announce {
            page: u64,
            pages: u64,
        },
        Unmap {
            addr: u64,
            size: u64,
        },
        Look {
            addr: u64,
            len: usize,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        let size = || {
            prop_oneof![
                (0..16u64).prop_map(|pages| pages * PAGE_SIZE),
                Just(u64::MAX)
            ]
        };
        prop_oneof![
            (0..32u64, 1..6u64, 0..27u64, any::<bool>()).prop_map(
                |(page, pages, file_page, write)| Step::Map {
                    page,
                    pages,
                    file_page,
                    write
                }
            ),
            (0..32u64, 1..6u64).prop_map(|(page, pages)| Step::Announce { page, pages }),
            (0..32u64, size()).prop_map(|(page, size)| Step::Unmap {
                addr: page * PAGE_SIZE,
                size
            }),
            (0..40 * PAGE_SIZE, 1..12_000usize).prop_map(|(addr, len)| Step::Look { addr, len }),
        ]
    }

    /// A page of the model: the mapping's number, the page of the file if it
    /// has one, and whether it can be written.
    type Page = (usize, Option<u64>, bool);

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn the_table_agrees_with_a_page_table(steps in vec(step(), 1..60)) {
            let memory = SharedMemory::new("model", 32 * PAGE_SIZE as usize).unwrap();
            for page in 0..32 {
                let number = [page as u8; PAGE_SIZE as usize];
                memory.slice(page * PAGE_SIZE as usize, number.len()).unwrap().copy_from(&number);
            }
            let mut table = DmaTable::new();
            let mut model: [Option<Page>; 48] = [None; 48];
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Map { page, pages, .. } | Step::Announce { page, pages } => {
                        let (addr, size) = (page * PAGE_SIZE, pages * PAGE_SIZE);
                        let (mapping, file_page, write) = match step {
                            Step::Map { file_page, write, .. } => {
                                let protection = Protection { read: true, write };
                                let mapped = Arc::clone(memory.mapped());
                                let offset = file_page * PAGE_SIZE;
                                let mapping = Mapping::new(addr, size, protection, mapped, offset);
                                (mapping, Some(file_page), write)
                            }
                            _ => (Mapping::without_memory(addr, size, Protection::READ_WRITE), None, true),
                        };
                        let range = page as usize..(page + pages) as usize;
                        let outcome = table.map(mapping.unwrap());
                        if model[range.clone()].iter().any(Option::is_some) {
                            prop_assert_eq!(outcome, Err(DmaError::Overlap { addr, size }));
                        } else {
                            prop_assert_eq!(outcome, Ok(()));
                            for (index, entry) in model[range].iter_mut().enumerate() {
                                let file_page = file_page.map(|first| first + index as u64);
                                *entry = Some((number, file_page, write));
                            }
                        }
                    }
                    Step::Unmap { addr, size } => {
                        let end = addr.saturating_add(size).div_ceil(PAGE_SIZE).min(48) as usize;
                        let range = (addr / PAGE_SIZE) as usize..end;
                        let owner = |page: &Option<Page>| page.map(|(number, ..)| number);
                        let inside: Vec<_> = model[range.clone()].iter().filter_map(owner).collect();
                        let outside = model[..range.start].iter().chain(&model[range.end..]);
                        let bisects = outside.filter_map(owner).any(|number| inside.contains(&number));
                        if bisects {
                            prop_assert_eq!(table.unmap(addr, size).err(), Some(DmaError::Bisects { addr, size }));
                        } else {
                            let mut gone = inside;
                            gone.dedup();
                            let mut pages: Vec<_> = gone.iter().map(|&number| {
                                let of = |page: &Option<Page>| page.is_some_and(|(other, ..)| other == number);
                                let first = model.iter().position(of).expect("is in the model");
                                (first as u64 * PAGE_SIZE, model.iter().filter(|page| of(page)).count() as u64 * PAGE_SIZE)
                            }).collect();
                            pages.sort_unstable();
                            let removed = table.unmap(addr, size).unwrap();
                            let removed: Vec<_> = removed.iter().map(|gone| (gone.addr(), gone.size())).collect();
                            prop_assert_eq!(removed, pages);
                            model[range].fill(None);
                        }
                    }
                    Step::Look { addr, len } => {
                        let page = model[(addr / PAGE_SIZE) as usize];
                        let window = table.read_window(addr, len);
                        let reachable = page.filter(|(_, file_page, _)| file_page.is_some());
                        prop_assert_eq!(window.is_some(), reachable.is_some());
                        let writable = reachable.is_some_and(|(.., write)| write);
                        prop_assert_eq!(table.write_window(addr, len).is_some(), writable);
                        if let (Some(window), Some((number, ..))) = (window, reachable) {
                            let same = |page: &&Option<Page>| page.is_some_and(|(other, ..)| other == number);
                            let pages = model[(addr / PAGE_SIZE) as usize..].iter().take_while(same).count();
                            let end = (addr / PAGE_SIZE + pages as u64) * PAGE_SIZE;
                            prop_assert_eq!(window.len() as u64, (len as u64).min(end - addr));
                            let mut found = vec![0u8; window.len()];
                            window.copy_to(&mut found);
                            for (byte, at) in found.iter().zip(addr..) {
                                let file_page = model[(at / PAGE_SIZE) as usize].and_then(|(_, page, _)| page);
                                prop_assert_eq!(Some(u64::from(*byte)), file_page);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn there_is_an_end_to_mappings() {
        let mut table = DmaTable::new();
        let mapping = |number: usize| {
            Mapping::without_memory(number as u64 * PAGE_SIZE, PAGE_SIZE, Protection::READ).unwrap()
        };
        for number in 0..MAX_DMA_MAPS {
            table.map(mapping(number)).unwrap();
        }
        assert_eq!(table.map(mapping(MAX_DMA_MAPS)), Err(DmaError::Full));
        assert_eq!(table.unmap(0, u64::MAX).unwrap().len(), MAX_DMA_MAPS);
        table.map(mapping(MAX_DMA_MAPS)).unwrap();
    }
}
