//! The server's interface to a device.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use crate::{DmaTable, Errno, Interrupts, IrqInfo, Mapping, MemoryLimits, Region, StandIn};

/// Effect of an access besides reading or writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// Nothing.
    None,
    /// The values of [`Device::stand_in`] have changed.
    Shown,
    /// The device was reset, as [`Device::reset`] does it.
    Reset,
}

/// A PCI device, as the server sees it.
///
/// All methods are called from the thread that serves the socket, one at a
/// time, and none may block: the client waits for the answer (QEMU gives up
/// after 5 s). An `Err` is sent to the client as the error reply's errno.
pub trait Device: Send {
    /// The device's regions, by VFIO PCI region index (0 to 5 BARs, 6 ROM, 7
    /// configuration space, 8 VGA). Indexes not named are regions of size 0.
    /// Asked once per client.
    fn regions(&self) -> Vec<Region>;

    /// The device's interrupts, by VFIO PCI interrupt index. Indexes not named
    /// have no interrupts. Asked once per client.
    fn irqs(&self) -> Vec<IrqInfo>;

    /// The handle by which the device raises its interrupts. The server puts
    /// the client's eventfds into it, and takes them out when the client goes.
    fn interrupts(&self) -> Interrupts;

    /// The client has connected or disconnected the eventfds of some of the vectors of index `index`
    /// ([`Interrupts::with_eventfd`]): of interest to a device that does not raise all of its
    /// interrupts itself.
    fn irqs_set(&mut self, _index: u32, _vectors: Range<u32>) {}

    /// Becomes readable when the device wants to be polled, with no message there, or no client. `None`
    /// where that never happens.
    fn ready(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Called when [`Device::ready`] is readable; it is not, afterwards.
    fn poll(&mut self) {}

    /// Limits of the memory that one client may share. Asked once per client.
    fn memory_limits(&self) -> MemoryLimits {
        MemoryLimits::default()
    }

    /// The device as one that can go on elsewhere; `None` where it cannot.
    fn migration(&mut self) -> Option<&mut dyn Migration> {
        None
    }

    /// Returns the values that the client sees while the device has no server; `None` for a device that is not
    /// taken over.
    fn stand_in(&self) -> Option<StandIn> {
        None
    }

    /// Reads `data.len()` bytes at `offset` of `region` into `data`, which is
    /// zeroed. The range lies within a readable region.
    ///
    /// # Errors
    /// The errno for the client.
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;

    /// Writes `data` at `offset` of `region`. The range lies within a writable
    /// region. The client may not wait for the answer (posted writes).
    ///
    /// # Errors
    /// The errno for the client.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<Effect, Errno>;

    /// Guest memory appeared; a device that does DMA puts it in its
    /// [`DmaTable`](crate::DmaTable).
    ///
    /// # Errors
    /// The errno for the client; `EEXIST` where the range is mapped already.
    fn dma_map(&mut self, mapping: Mapping) -> Result<(), Errno>;

    /// The guest memory in `addr..addr + size` (saturating: `0, u64::MAX` is
    /// all of it) goes away. When this returns, the device no longer touches
    /// it. A range in which nothing is mapped is no error.
    ///
    /// # Errors
    /// The errno for the client.
    fn dma_unmap(&mut self, addr: u64, size: u64) -> Result<(), Errno>;

    /// Resets the device as a PCI function-level reset does. Mappings and
    /// eventfds stay.
    fn reset(&mut self);

    /// The client that had negotiated a version is gone: the device drops all
    /// mappings. Its interrupts have been disconnected.
    fn disconnected(&mut self);
}

/// A device that can go on elsewhere.
///
/// Its writes are logged on request, in the [`DmaTable`] where it keeps its mappings.
pub trait Migration {
    /// Lets the device rest: it writes no memory, raises no interrupts and changes nothing outside.
    ///
    /// # Errors
    /// The errno for the client; the device goes on.
    fn stop(&mut self) -> Result<(), Errno>;

    /// The device, which rests, goes on.
    ///
    /// # Errors
    /// The errno for the client; the device goes on resting.
    fn resume(&mut self) -> Result<(), Errno>;

    /// All that the device is, while it rests.
    ///
    /// # Errors
    /// The errno for the client.
    fn save(&mut self) -> Result<Vec<u8>, Errno>;

    /// Makes the device, which rests, what it was when these bytes were saved. They may be anything.
    ///
    /// # Errors
    /// The errno for the client. The device is as after a reset.
    fn restore(&mut self, image: &[u8]) -> Result<(), Errno>;

    /// About how many bytes an image would have now: cheap to tell, and rather too many.
    fn image_size(&self) -> u64;

    /// The longest image that it takes, in bytes.
    fn image_limit(&self) -> usize;

    /// Does something with the table of the device's mappings, and has the device use what has become of
    /// it from then on.
    fn with_mappings(&mut self, act: &mut dyn FnMut(&mut DmaTable));
}
