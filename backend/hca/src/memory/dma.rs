//! Guest memory as the HCA sees it: windows of contiguous memory at DMA addresses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use thiserror::Error;
use vm_memory::{VolatileMemory, VolatileSlice};

/// Where a device has its own memory among DMA addresses: behind all that a machine has.
pub const DEVICE_MEMORY: u64 = 1 << 63;

/// An access to guest memory that no mapping backs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "no guest memory behind DMA address {addr:#x}: map it, or share it (memory-backend with share=on)"
)]
pub struct DmaFault {
    /// First DMA address that could not be reached.
    pub addr: u64,
}

/// The DMA address space of one virtual function.
///
/// All accesses of the device to its guest's memory go through this trait, so
/// an implementation can record in one place which pages were written.
pub trait Dma: std::fmt::Debug + Send {
    /// Contiguous memory that starts at `addr`: between 1 and `len` bytes,
    /// fewer than `len` where a mapping ends. `None` where nothing is mapped.
    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>>;

    /// As [`Dma::read_window`], for memory the device is about to write.
    fn write_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>>;

    /// The same memory for other threads to read, if it can be given to them.
    fn share(&self) -> Option<Arc<dyn Readable>> {
        None
    }
}

/// Guest memory that several threads read.
pub trait Readable: std::fmt::Debug + Send + Sync {
    /// As [`Dma::read_window`].
    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>>;
}

/// The window of exactly `len` bytes at `addr`, or `None` when it is not
/// contiguous. For structures that the interface aligns within a page.
#[inline]
pub fn exact<D: Dma>(dma: &D, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
    dma.read_window(addr, len)
        .filter(|slice| slice.len() == len)
}

/// Reads `data.len()` bytes at `addr`.
///
/// # Errors
/// [`DmaFault`] when part of the range is not mapped.
#[inline]
pub fn read<D: Dma>(dma: &D, addr: u64, data: &mut [u8]) -> Result<(), DmaFault> {
    let mut done = 0;
    while done < data.len() {
        let at = addr.wrapping_add(done as u64);
        let window = dma
            .read_window(at, data.len() - done)
            .ok_or(DmaFault { addr: at })?;
        let copied = window.copy_to(&mut data[done..]);
        if copied == 0 {
            return Err(DmaFault { addr: at });
        }
        done += copied;
    }
    Ok(())
}

/// Writes `data` at `addr`.
///
/// # Errors
/// [`DmaFault`] when part of the range is not mapped for writing; the bytes before the fault may have been written.
#[inline]
pub fn write<D: Dma>(dma: &D, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
    let mut done = 0;
    while done < data.len() {
        let at = addr.wrapping_add(done as u64);
        let window = dma
            .write_window(at, data.len() - done)
            .ok_or(DmaFault { addr: at })?;
        let len = window.len();
        if len == 0 {
            return Err(DmaFault { addr: at });
        }
        window.copy_from(&data[done..done + len]);
        done += len;
    }
    Ok(())
}

/// Copies as much of `from` as fits into `to`, guest to guest, and returns the
/// number of bytes.
///
/// The last bytes become visible last: programs that poll the final byte of a
/// buffer (as `ib_write_lat` and eager RDMA protocols do) rely on what PCI
/// Express writes give them on hardware, and a library copy does not promise
/// an order.
#[inline(always)]
pub fn copy_in_order(from: &VolatileSlice<'_>, to: &VolatileSlice<'_>) -> usize {
    const TAIL: usize = 8;
    let len = from.len().min(to.len());
    if len <= TAIL {
        copy_small(from, to, len);
        return len;
    }
    let tail = len - TAIL;
    if let (Ok(a), Ok(b)) = (from.subslice(0, tail), to.subslice(0, tail)) {
        a.copy_to_volatile_slice(b);
    }
    fence(Ordering::Release);
    if let (Ok(a), Ok(b)) = (from.subslice(tail, TAIL), to.subslice(tail, TAIL)) {
        copy_small(&a, &b, TAIL);
    }
    len
}

#[inline]
fn copy_small(from: &VolatileSlice<'_>, to: &VolatileSlice<'_>, len: usize) {
    // An aligned eight-byte store is seen whole; the common case of a
    // latency-bound write. Loads and stores by `Bytes` are calls of vm-memory.
    if len == 8
        && let Ok(value) = from.get_atomic_ref::<AtomicU64>(0)
        && let Ok(to) = to.get_atomic_ref::<AtomicU64>(0)
    {
        to.store(value.load(Ordering::Relaxed), Ordering::Release);
        return;
    }
    if let (Ok(a), Ok(b)) = (from.subslice(0, len), to.subslice(0, len)) {
        a.copy_to_volatile_slice(b);
    }
}
