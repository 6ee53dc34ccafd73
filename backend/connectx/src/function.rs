//! The PCI function as its guest sees it: configuration space and BARs.

use crate::backend::Backend;
use crate::bits::initialization::{FIRST_UAR, PAGE_SIZE};
use crate::pci::{
    CONFIG_SIZE, ConfigEffect, ConfigSpace, Identity, MAX_VECTORS, MSIX_BAR_SIZE, MsixTable,
};
use crate::segment::{InitializationSegment, SegmentEffect};
use crate::transport::CommandQueue;

/// How the guest's doorbells reach the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Doorbells {
    /// Every doorbell is a write that the device sees.
    #[default]
    Trap,
    /// Doorbell pages of user programs are memory; the engine looks for work.
    Poll,
}

/// What a function is like on the PCI bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Configuration {
    /// As which device drivers know it.
    pub identity: Identity,
    /// Bytes of BAR 0, a power of two of at least 128 KiB. Every 4 KiB but the
    /// first 16 KiB are a doorbell page; each process that opens the device
    /// takes one.
    pub bar_size: u64,
    /// Interrupt vectors, 2 to 128: one for asynchronous events and one per
    /// completion vector.
    pub vectors: u16,
    /// How doorbells are noticed.
    pub doorbells: Doorbells,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            identity: Identity::default(),
            bar_size: 8 << 20,
            vectors: 32,
            doorbells: Doorbells::Trap,
        }
    }
}

/// Pages of BAR 0 at its start that always trap: the initialization segment,
/// and the doorbell pages that the kernel's driver gets, which come first.
pub const TRAPPED_PAGES: u32 = 16;

impl Configuration {
    /// The same with every value within what the device can be.
    #[must_use]
    pub fn checked(mut self) -> Self {
        self.bar_size = self.bar_size.clamp(128 << 10, 1 << 30).next_power_of_two();
        self.vectors = self.vectors.clamp(2, MAX_VECTORS);
        self
    }

    /// Number of pages of BAR 0.
    #[must_use]
    pub const fn pages(&self) -> u32 {
        (self.bar_size / PAGE_SIZE) as u32
    }

    /// Whether the device sees writes to doorbell page `uar`.
    #[must_use]
    pub const fn traps(&self, uar: u32) -> bool {
        matches!(self.doorbells, Doorbells::Trap) || uar < TRAPPED_PAGES
    }

    /// The part of BAR 0 that is memory which the guest may map, as offset and
    /// length in bytes, if any.
    #[must_use]
    pub const fn mapped_area(&self) -> Option<(u64, u64)> {
        match self.doorbells {
            Doorbells::Trap => None,
            Doorbells::Poll => {
                let start = TRAPPED_PAGES as u64 * PAGE_SIZE;
                Some((start, self.bar_size - start))
            }
        }
    }
}

/// A region of the function, by its index in VFIO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Region {
    /// BAR 0: initialization segment and doorbells.
    Bar0,
    /// BAR 2: MSI-X table and pending bits.
    Bar2,
    /// Configuration space.
    Config,
}

impl Region {
    /// The region with this VFIO index, if the function has it.
    #[must_use]
    pub const fn from_vfio_index(index: u32) -> Option<Self> {
        match index {
            0 => Some(Self::Bar0),
            2 => Some(Self::Bar2),
            7 => Some(Self::Config),
            _ => None,
        }
    }
}

/// What an access did besides reading or writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// Nothing to do.
    None,
    /// The function was reset.
    Reset,
}

/// A function: its registers, and the backend that is behind them.
#[derive(Debug)]
pub struct Function<B> {
    backend: B,
    configuration: Configuration,
    config: ConfigSpace,
    msix: MsixTable,
    segment: InitializationSegment,
    commands: CommandQueue,
}

impl<B: Backend> Function<B> {
    /// A function in the state of power-on.
    #[must_use]
    pub fn new(backend: B) -> Self {
        let configuration = backend.configuration().checked();
        Self {
            backend,
            config: ConfigSpace::new(&configuration),
            msix: MsixTable::new(configuration.vectors),
            segment: InitializationSegment::default(),
            commands: CommandQueue::default(),
            configuration,
        }
    }

    pub(crate) const fn registers(&self) -> (&ConfigSpace, &MsixTable, &InitializationSegment) {
        (&self.config, &self.msix, &self.segment)
    }

    pub(crate) const fn registers_mut(
        &mut self,
    ) -> (&mut ConfigSpace, &mut MsixTable, &mut InitializationSegment) {
        (&mut self.config, &mut self.msix, &mut self.segment)
    }

    /// Its configuration.
    #[must_use]
    pub const fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// What executes its commands and doorbells.
    #[must_use]
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    /// The same, to map and unmap memory and to connect interrupts.
    pub const fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Size of a region in bytes.
    #[must_use]
    pub const fn region_size(&self, region: Region) -> u64 {
        match region {
            Region::Bar0 => self.configuration.bar_size,
            Region::Bar2 => MSIX_BAR_SIZE,
            Region::Config => CONFIG_SIZE as u64,
        }
    }

    /// Reads from byte `offset` of a region.
    pub fn read(&mut self, region: Region, offset: u64, data: &mut [u8]) {
        match region {
            Region::Bar0 if offset < u64::from(FIRST_UAR) * PAGE_SIZE => {
                self.segment.read(offset, data, &self.backend.registers());
            }
            // Doorbells read as zero.
            Region::Bar0 => data.fill(0),
            Region::Bar2 => self.msix.read(offset, data),
            Region::Config => self.config.read(offset, data),
        }
    }

    /// Writes to byte `offset` of a region.
    pub fn write(&mut self, region: Region, offset: u64, data: &[u8]) -> Effect {
        match region {
            Region::Bar0 => self.write_bar0(offset, data),
            Region::Bar2 => {
                self.msix.write(offset, data);
                Effect::None
            }
            Region::Config => match self.config.write(offset, data) {
                ConfigEffect::None => Effect::None,
                ConfigEffect::Reset => {
                    self.reset();
                    Effect::Reset
                }
            },
        }
    }

    fn write_bar0(&mut self, offset: u64, data: &[u8]) -> Effect {
        let page = offset / PAGE_SIZE;
        if page >= u64::from(FIRST_UAR) {
            if page < u64::from(self.configuration.pages()) {
                self.backend
                    .doorbell(page as u32, (offset % PAGE_SIZE) as usize, data);
            }
            return Effect::None;
        }
        let mut effect = Effect::None;
        if !offset.is_multiple_of(4) {
            return effect;
        }
        for (index, dword) in data.as_chunks::<4>().0.iter().enumerate() {
            match self
                .segment
                .write(offset + index as u64 * 4, u32::from_be_bytes(*dword))
            {
                SegmentEffect::None => {}
                SegmentEffect::Commands(entries) => {
                    if let Some(queue) = self.segment.command_queue() {
                        self.commands.ring(queue, entries, &mut self.backend);
                    }
                }
                SegmentEffect::Reset => {
                    self.commands.forget();
                    self.backend.reset();
                    effect = Effect::Reset;
                }
            }
        }
        effect
    }

    /// Answers the commands that the backend has executed since, see [`Backend::ready`].
    pub fn poll(&mut self) {
        self.commands.poll(&mut self.backend);
    }

    /// Resets the function and its backend.
    pub fn reset(&mut self) {
        self.config.reset();
        self.msix.reset();
        self.segment.reset();
        self.commands.forget();
        self.backend.reset();
    }
}
