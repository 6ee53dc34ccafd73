//! The driver's memory, shared with the device: the only module with `unsafe`.
//!
//! The device reads and writes this memory at any time, so all of it is seen
//! through atomics (queues, records) or volatile copies (payload).

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use parking_lot::Mutex;
use vfio_user::{MappedFile, SharedMemory};
use vm_memory::VolatileSlice;

/// Size of a page of the interface, in bytes.
pub const PAGE: usize = 4096;

/// Registers of a device, mapped.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping lives as long as this value, and may be accessed from any thread.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above; it is accessed as atomics and by volatile copies only.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Maps `len` bytes of a device's descriptor from byte `begin` on.
    pub(crate) fn new(fd: Option<&Arc<OwnedFd>>, begin: u64, len: u64) -> io::Result<Self> {
        let none = || io::Error::from(io::ErrorKind::InvalidInput);
        let fd = fd.ok_or_else(none)?;
        let size = usize::try_from(len).ok().and_then(NonZeroUsize::new);
        let size = size.ok_or_else(none)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let begin = begin.cast_signed();
        // SAFETY: the kernel chooses the address: nothing that is mapped goes.
        let base = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, fd, begin) }?;
        Ok(Self {
            base: base.cast(),
            len: size.get(),
        })
    }

    fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        let end = offset.checked_add(len)?;
        // SAFETY: the range lies in the mapping, which is there while `self` is.
        (end <= self.len)
            .then(|| unsafe { VolatileSlice::new(self.base.as_ptr().add(offset), len) })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: it is this value's own mapping, and windows into it keep this value.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

/// Owner of a window's memory.
#[derive(Debug, Clone)]
pub(crate) enum Mapped {
    File(Arc<MappedFile>),
    Device(Arc<DeviceMemory>),
}

impl Mapped {
    fn is_writable(&self) -> bool {
        match self {
            Self::File(file) => file.is_writable(),
            Self::Device(_) => true,
        }
    }

    fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        match self {
            Self::File(file) => file.slice(offset, len),
            Self::Device(memory) => memory.slice(offset, len),
        }
    }
}

/// Part of a mapping, aligned to at least 8 bytes and a multiple of 8
/// bytes long.
#[derive(Debug)]
pub(crate) struct Window {
    memory: Mapped,
    offset: usize,
    len: usize,
    base: *const AtomicU64,
}

// SAFETY: the pointer is into the mapping of `memory`, which lives as long as this
// value and may be accessed from any thread; what is behind it is atomics.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// `len` bytes at `offset` of what is mapped for writing; `None`
    /// where it is not, does not have them, or they are not aligned.
    pub(crate) fn new(memory: &Mapped, offset: usize, len: usize) -> Option<Self> {
        if !memory.is_writable() || !offset.is_multiple_of(8) || !len.is_multiple_of(8) {
            return None;
        }
        let base = memory.slice(offset, len)?.ptr_guard_mut().as_ptr();
        Some(Self {
            memory: memory.clone(),
            offset,
            len,
            base: base.cast_const().cast(),
        })
    }

    /// The memory as words of 8 bytes.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `new` checked that the mapping has `len` bytes at `base`,
        // which is aligned because mappings start at a page. The mapping is
        // alive while `self` is. Atomics may be written by others, here by
        // another process, while a shared reference to them exists.
        unsafe { std::slice::from_raw_parts(self.base, self.len / 8) }
    }

    /// The memory as words of 4 bytes.
    #[inline]
    pub(crate) fn halves(&self) -> &[AtomicU32] {
        // SAFETY: as in `words`; the alignment of 8 is one of 4 too.
        unsafe { std::slice::from_raw_parts(self.base.cast(), self.len / 4) }
    }

    pub(crate) fn slice(&self, offset: usize, len: usize) -> VolatileSlice<'_> {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "{len} bytes at {offset} of a buffer of {}",
            self.len
        );
        self.memory
            .slice(self.offset + offset, len)
            .unwrap_or_else(|| unreachable!("the window lies in its mapping"))
    }
}

/// Memory that the device can reach: a memfd at one DMA address, from which
/// [`Buffer`]s are taken.
#[derive(Debug)]
pub struct Memory {
    shared: SharedMemory,
    iova: u64,
    len: usize,
    /// Free ranges: length by offset.
    free: Mutex<BTreeMap<usize, usize>>,
}

impl Memory {
    /// `len` bytes (a multiple of the page size) for DMA address `iova`.
    ///
    /// # Errors
    /// Where the system has no memory or no file descriptors left.
    pub fn new(iova: u64, len: usize) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            shared: SharedMemory::new("driver", len)?,
            iova,
            len,
            free: Mutex::new(BTreeMap::from([(0, len)])),
        }))
    }

    /// DMA address of the first byte.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte, which is never so.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file, to share with the device.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd().as_fd()
    }

    /// Takes `len` bytes, rounded up to 64, at a DMA address that is a multiple of
    /// `align` (a power of two, at least 64). They are zero only when taken
    /// for the first time. `None` when there is no such range.
    pub fn allocate(self: &Arc<Self>, len: usize, align: usize) -> Option<Buffer> {
        let align = align.max(64) as u64;
        let len = len.max(1).next_multiple_of(64);
        let mut free = self.free.lock();
        let (start, room, offset) = free.iter().find_map(|(&start, &room)| {
            let address = (self.iova + start as u64).next_multiple_of(align);
            let offset = usize::try_from(address - self.iova).ok()?;
            (offset.checked_add(len)? <= start + room).then_some((start, room, offset))
        })?;
        free.remove(&start);
        if offset > start {
            free.insert(start, offset - start);
        }
        let end = offset + len;
        if end < start + room {
            free.insert(end, start + room - end);
        }
        drop(free);
        Some(Buffer {
            window: Window::new(&Mapped::File(Arc::clone(self.shared.mapped())), offset, len)?,
            iova: self.iova + offset as u64,
            memory: Arc::clone(self),
        })
    }

    fn release(&self, offset: usize, len: usize) {
        let mut free = self.free.lock();
        let (mut start, mut end) = (offset, offset + len);
        if let Some((&before, &room)) = free.range(..offset).next_back()
            && before + room == start
        {
            free.remove(&before);
            start = before;
        }
        if let Some(room) = free.remove(&end) {
            end += room;
        }
        free.insert(start, end - start);
    }
}

/// A range of [`Memory`], given back when dropped.
#[derive(Debug)]
pub struct Buffer {
    window: Window,
    iova: u64,
    memory: Arc<Memory>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.memory.release(self.window.offset, self.window.len);
    }
}

impl Buffer {
    /// DMA address of the first byte.
    #[inline]
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.window.len
    }

    /// Whether there is no byte, which is never so.
    pub fn is_empty(&self) -> bool {
        self.window.len == 0
    }

    /// The memory as words of 8 bytes, as they lie there.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        self.window.words()
    }

    /// The memory as words of 4 bytes, as they lie there.
    #[inline]
    pub fn halves(&self) -> &[AtomicU32] {
        self.window.halves()
    }

    /// Copies `data` to `offset`.
    ///
    /// # Panics
    /// Past the end.
    pub fn write(&self, offset: usize, data: &[u8]) {
        self.window.slice(offset, data.len()).copy_from(data);
    }

    /// Copies bytes at `offset` to `data`.
    ///
    /// # Panics
    /// Past the end.
    pub fn read(&self, offset: usize, data: &mut [u8]) {
        self.window.slice(offset, data.len()).copy_to(data);
    }

    /// Sets every byte of the buffer.
    pub fn fill(&self, byte: u8) {
        let block = [byte; PAGE];
        for offset in (0..self.len()).step_by(PAGE) {
            self.write(offset, &block[..PAGE.min(self.len() - offset)]);
        }
    }

    /// DMA addresses of its pages of `1 << log_size` bytes.
    pub(crate) fn pages(&self, log_size: u32) -> impl Iterator<Item = u64> + use<> {
        let mask = (1u64 << log_size) - 1;
        let start = self.iova & !mask;
        let end = self.iova + self.len() as u64;
        (start..end).step_by(1 << log_size)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn what_is_given_back_is_taken_again() {
        let memory = Memory::new(0x1_0000_0000, 16 * PAGE).unwrap();
        let small = memory.allocate(8, 64).unwrap();
        let page = memory.allocate(PAGE, PAGE).unwrap();
        assert_eq!(page.iova() % PAGE as u64, 0);
        assert!(memory.allocate(16 * PAGE, PAGE).is_none());
        drop(small);
        drop(page);
        assert_eq!(memory.allocate(16 * PAGE, PAGE).unwrap().len(), 16 * PAGE);
    }

    #[test]
    fn words_and_bytes_are_the_same_memory() {
        let memory = Memory::new(0, PAGE).unwrap();
        let buffer = memory.allocate(64, 64).unwrap();
        buffer.write(8, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let word = u64::from_be(buffer.words()[1].load(Ordering::Relaxed));
        assert_eq!(word, 0x0102_0304_0506_0708);
        let half = u32::from_be(buffer.halves()[3].load(Ordering::Relaxed));
        assert_eq!(half, 0x0506_0708);
    }

    #[test]
    fn pages_cover_the_buffer() {
        let memory = Memory::new(0x20_0000, 4 << 20).unwrap();
        let buffer = memory.allocate(3 << 20, 1 << 20).unwrap();
        let pages: Vec<_> = buffer.pages(20).collect();
        assert_eq!(pages, [0x20_0000, 0x30_0000, 0x40_0000]);
        assert_eq!(buffer.pages(12).count(), 768);
    }
}
