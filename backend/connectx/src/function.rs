//! The PCI function as its guest sees it: configuration space and BARs.

pub(crate) mod absent;
pub(crate) mod image;
pub mod pci;
pub mod segment;
pub(crate) mod transport;

use hca::dma::{self, DEVICE_MEMORY};

use crate::backend::Backend;
use crate::bits::initialization::{FIRST_UAR, PAGE_SIZE};
use crate::configuration::{Configuration, MSIX_IN_BAR0};
use crate::function::pci::{CONFIG_SIZE, ConfigEffect, ConfigSpace, MSIX_BAR_SIZE, MsixTable};
use crate::function::segment::{InitializationSegment, SegmentEffect};
use crate::function::transport::CommandQueue;

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

/// Effect of an access besides reading or writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// Nothing to do.
    None,
    /// The picture of the function without a server ([`Function::absent`]) has changed.
    Shown,
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

    /// The backend that executes its commands and doorbells.
    #[must_use]
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    /// The backend that executes its commands and doorbells, to map and unmap memory and to connect interrupts.
    pub const fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Size of a region in bytes.
    #[must_use]
    pub const fn region_size(&self, region: Region) -> u64 {
        match region {
            Region::Bar0 => self.configuration.bar_size,
            Region::Bar2 if self.configuration.has_msix_in_bar0() => 0,
            Region::Bar2 => MSIX_BAR_SIZE,
            Region::Config => CONFIG_SIZE as u64,
        }
    }

    /// Reads from byte `offset` of a region.
    pub fn read(&mut self, region: Region, offset: u64, data: &mut [u8]) {
        match region {
            Region::Bar0 if self.is_msix(offset) => self.msix.read(offset - MSIX_IN_BAR0, data),
            Region::Bar0 if offset < u64::from(FIRST_UAR) * PAGE_SIZE => {
                self.segment.read(offset, data, &self.backend.registers());
            }
            Region::Bar0 if self.is_device_memory(offset) => {
                data.fill(0);
                // A monitor that does not map it. What is past its end reads as zeros.
                let _ = dma::read(self.backend.dma(), DEVICE_MEMORY + offset, data);
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
            Region::Bar0 if self.is_msix(offset) => {
                self.msix.write(offset - MSIX_IN_BAR0, data);
                Effect::None
            }
            Region::Bar0 if self.is_device_memory(offset) => {
                let _ = dma::write(self.backend.dma(), DEVICE_MEMORY + offset, data);
                Effect::None
            }
            Region::Bar0 if offset >= u64::from(FIRST_UAR) * PAGE_SIZE => {
                let page = offset / PAGE_SIZE;
                if page < u64::from(self.configuration.pages()) {
                    let within = (offset % PAGE_SIZE) as usize;
                    self.backend.doorbell(page as u32, within, data);
                }
                Effect::None
            }
            Region::Bar0 if !offset.is_multiple_of(4) => Effect::None,
            Region::Bar0 => {
                let (mut effect, before) = (Effect::None, self.segment);
                let dwords = data.as_chunks::<4>().0.iter();
                for (at, dword) in (offset..).step_by(4).zip(dwords) {
                    match self.segment.write(at, u32::from_be_bytes(*dword)) {
                        SegmentEffect::None => {}
                        SegmentEffect::Commands { queue, entries } => {
                            self.commands.ring(queue, entries, &mut self.backend);
                        }
                        SegmentEffect::Reset => {
                            self.commands.forget();
                            self.backend.reset();
                            effect = Effect::Reset;
                        }
                    }
                }
                if effect == Effect::None && self.segment != before {
                    effect = Effect::Shown;
                }
                effect
            }
            Region::Bar2 => {
                self.msix.write(offset, data);
                Effect::None
            }
            Region::Config => match self.config.write(offset, data) {
                ConfigEffect::None => Effect::Shown,
                ConfigEffect::Reset => {
                    self.reset();
                    Effect::Reset
                }
            },
        }
    }

    /// Whether the MSI-X structures are at byte `offset` of BAR 0.
    fn is_msix(&self, offset: u64) -> bool {
        let place = MSIX_IN_BAR0..MSIX_IN_BAR0 + MSIX_BAR_SIZE;
        self.configuration.has_msix_in_bar0() && place.contains(&offset)
    }

    /// Whether the device's memory is at byte `offset` of BAR 0.
    fn is_device_memory(&self, offset: u64) -> bool {
        let area = self.configuration.device_memory_area();
        area.is_some_and(|(begin, len)| (begin..begin + len).contains(&offset))
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
