//! Configuration of a function on the PCI bus.

use crate::bits::initialization::PAGE_SIZE;

/// Most interrupt vectors: what fits in a page of the MSI-X table.
const MAX_VECTORS: u16 = 128;

/// As which device drivers know a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Vendor.
    pub vendor: u16,
    /// Device of this vendor.
    pub device: u16,
    /// Revision.
    pub revision: u8,
    /// Vendor of the board.
    pub subsystem_vendor: u16,
    /// Board of this vendor.
    pub subsystem: u16,
}

impl Default for Identity {
    /// Mellanox Technologies, "ConnectX Family mlx5Gen Virtual Function": a virtual function without
    /// the particulars of one generation.
    fn default() -> Self {
        Self {
            vendor: 0x15b3,
            device: 0x101e,
            revision: 0,
            subsystem_vendor: 0x15b3,
            subsystem: 0x0001,
        }
    }
}

/// Way of the guest's doorbells to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Doorbells {
    /// Every doorbell is a write that the device sees.
    #[default]
    Trap,
    /// Doorbell pages of user programs are memory; the engine looks for work.
    Poll,
}

/// After what a function is made, where that makes a difference to drivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Likeness {
    /// As drivers need it, and no more.
    #[default]
    Plain,
    /// A virtual function of a ConnectX-5: its identity, the MSI-X structures in BAR 0, the second
    /// version of the command interface (ISSI 1), user memory objects.
    ConnectX5,
}

/// Offloads of IP over InfiniBand that a function has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IpOverInfiniBand {
    /// Checksums and segments of a queue pair of datagrams. A driver may have connections besides.
    #[default]
    Basic,
    /// All that queues of network interfaces have: the driver of those has the interface, without a connected mode.
    Enhanced,
}

/// Configuration of a function on the PCI bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Configuration {
    /// As which device drivers know it.
    pub identity: Identity,
    /// Bytes of BAR 0, a power of two of at least 128 KiB. Every 4 KiB but the
    /// first 16 KiB and the device's memory are a doorbell page; each process
    /// that opens the device takes one.
    pub bar_size: u64,
    /// Bytes of memory of the device, at the end of BAR 0, in whole pages. A small BAR has none.
    pub device_memory: u64,
    /// Interrupt vectors, 2 to 128: one for asynchronous events and one per
    /// completion vector.
    pub vectors: u16,
    /// Way of doorbells to the device.
    pub doorbells: Doorbells,
    /// After what it is made.
    pub like: Likeness,
    /// Its offloads of IP over InfiniBand.
    pub ipoib: IpOverInfiniBand,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            identity: Identity::default(),
            bar_size: 8 << 20,
            device_memory: DEVICE_MEMORY_IN_BAR,
            vectors: 32,
            doorbells: Doorbells::Trap,
            like: Likeness::Plain,
            ipoib: IpOverInfiniBand::Basic,
        }
    }
}

/// Where a ConnectX has its MSI-X structures in BAR 0, in bytes: in the two pages before the first doorbell
/// page.
pub const MSIX_IN_BAR0: u64 = 0x2000;

/// Bytes of BAR 0 for memory of the device. An allocation takes whole pages of this area; the memory itself may be
/// smaller ([`MAX_DEVICE_MEMORY`]).
const DEVICE_MEMORY_IN_BAR: u64 = 256 << 10;
/// Bytes of memory of the device that a function has at most.
pub const MAX_DEVICE_MEMORY: u64 = 128 << 10;

/// Pages of BAR 0 at its start that always trap: the initialization segment,
/// and the doorbell pages that the kernel's driver gets, which come first.
pub const TRAPPED_PAGES: u32 = 16;

impl Configuration {
    /// A function like the virtual functions of an adapter.
    #[must_use]
    pub fn like(like: Likeness) -> Self {
        let mut configuration = Self {
            like,
            ..Self::default()
        };
        if like == Likeness::ConnectX5 {
            configuration.identity.device = 0x1018;
        }
        configuration
    }

    /// Whether drivers may have queues of network interfaces.
    #[must_use]
    pub const fn has_network_queues(&self) -> bool {
        matches!(self.ipoib, IpOverInfiniBand::Enhanced)
    }

    /// Whether the MSI-X structures lie in BAR 0, before the first doorbell page; else they have BAR 2.
    #[must_use]
    pub const fn has_msix_in_bar0(&self) -> bool {
        matches!(self.like, Likeness::ConnectX5)
    }

    /// This configuration with every value within what the device can be.
    #[must_use]
    pub fn checked(mut self) -> Self {
        self.bar_size = self.bar_size.clamp(128 << 10, 1 << 30).next_power_of_two();
        self.vectors = self.vectors.clamp(2, MAX_VECTORS);
        let fits =
            self.device_memory.is_multiple_of(PAGE_SIZE) && self.device_memory <= self.bar_size / 4;
        if !fits {
            self.device_memory = 0;
        }
        self
    }

    /// Number of pages of BAR 0 up to the last doorbell page.
    #[must_use]
    pub const fn pages(&self) -> u32 {
        ((self.bar_size - self.device_memory) / PAGE_SIZE) as u32
    }

    /// Where the device's memory is in BAR 0, as offset and length in bytes, if it has any.
    #[must_use]
    pub const fn device_memory_area(&self) -> Option<(u64, u64)> {
        match self.device_memory {
            0 => None,
            len => Some((self.bar_size - len, len)),
        }
    }

    /// The part of BAR 0 that drivers hear of as the device's memory. Where doorbells trap, they hear of none: each
    /// store of eight bytes would be a message, and programs that take such memory for the fastest way (UCX
    /// does) would wait a thousand times as long as without.
    #[must_use]
    pub const fn offered_device_memory(&self) -> Option<(u64, u64)> {
        match self.doorbells {
            Doorbells::Trap => None,
            Doorbells::Poll => self.device_memory_area(),
        }
    }

    /// Whether the device sees writes to doorbell page `uar`.
    #[must_use]
    pub const fn traps(&self, uar: u32) -> bool {
        matches!(self.doorbells, Doorbells::Trap) || uar < TRAPPED_PAGES
    }

    /// The part of BAR 0 that is memory which the guest may map, as offset and
    /// length in bytes, if any: doorbell pages that do not trap, and the device's memory behind them.
    ///
    /// Where doorbells trap there is none: QEMU waits for the answer to each write to a BAR of which a part is mapped, and
    /// for none otherwise, so that doorbells took ten times as long.
    #[must_use]
    pub const fn mapped_area(&self) -> Option<(u64, u64)> {
        match self.doorbell_area() {
            Some((start, _)) => Some((start, self.bar_size - start)),
            None => None,
        }
    }

    /// The doorbell pages that are memory, as offset and length in bytes, if any.
    #[must_use]
    pub const fn doorbell_area(&self) -> Option<(u64, u64)> {
        match self.doorbells {
            Doorbells::Trap => None,
            Doorbells::Poll => {
                let start = TRAPPED_PAGES as u64 * PAGE_SIZE;
                Some((start, self.bar_size - self.device_memory - start))
            }
        }
    }
}
