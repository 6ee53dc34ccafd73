//! A VF that a vfio-user server has, such as another ibvswitch.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use connectx::DoorbellPages;
use vfio_user::client::{Client, RegionInfo};
use vfio_user::{Mapping, PAGE_SIZE};

use crate::vf::host::MELLANOX;
use crate::vf::physical::{self, BAR_SIZES, COMMAND, ENABLED, Physical, PhysicalError, VECTORS};

/// Time limit of the server for an answer. The guest's monitor gives a device up after 5 s.
const TIME_LIMIT: Duration = Duration::from_secs(3);

const BAR0: u32 = 0;
const CONFIG: u32 = 7;
const MSIX: u32 = 2;

/// Offset of the vendor's number in configuration space.
const VENDOR: u64 = 0;
/// A VF behind a vfio-user socket.
#[derive(Debug)]
pub struct Socket {
    client: Client,
    bar: RegionInfo,
    vectors: u16,
}

impl Socket {
    /// Connects to the server at `path`.
    ///
    /// # Errors
    /// [`PhysicalError`]: nobody serves, or what is served is no ConnectX VF.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PhysicalError> {
        let unfit = |what: String| Err(PhysicalError::Unfit(what));
        let mut client = Client::connect_within(path, TIME_LIMIT)?;
        client.device_info()?;
        let mut vendor = [0; 2];
        client.region_read(CONFIG, VENDOR, &mut vendor)?;
        let vendor = u16::from_le_bytes(vendor);
        if vendor != MELLANOX {
            return unfit(format!(
                "the device there is of vendor {vendor:04x}; a ConnectX VF is needed, of \
                 vendor {MELLANOX:04x}"
            ));
        }
        let bar = client.region_info(BAR0)?;
        if !(bar.size.is_power_of_two() && BAR_SIZES.contains(&bar.size)) {
            return unfit(format!("its BAR 0 has {} bytes", bar.size));
        }
        let vectors = client.irq_info(MSIX)?.count;
        if !VECTORS.contains(&vectors) {
            return unfit(format!("it has {vectors} MSI-X vectors"));
        }
        let mut socket = Self {
            client,
            bar,
            vectors: vectors as u16,
        };
        socket.reset()?;
        Ok(socket)
    }

    /// The connection, which is readable when the server has gone.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }
}

impl Physical for Socket {
    fn bar_size(&self) -> u64 {
        self.bar.size
    }

    fn vectors(&self) -> u16 {
        self.vectors
    }

    fn doorbell_pages(&self, first: u32) -> Option<DoorbellPages> {
        let fd = self.bar.fd.clone().filter(|_| self.bar.mmap)?;
        // Without areas, all of it.
        let whole = [vfio_user::SparseArea {
            offset: 0,
            size: self.bar.size,
        }];
        let areas = match &self.bar.areas[..] {
            [] => &whole,
            areas => areas,
        };
        let (offset, len) = physical::doorbell_area(areas, first, self.bar.size)?;
        let aligned = self.bar.fd_offset.is_multiple_of(PAGE_SIZE);
        aligned.then_some(DoorbellPages {
            fd,
            fd_offset: self.bar.fd_offset,
            offset,
            len,
        })
    }

    fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), PhysicalError> {
        Ok(self.client.region_read(BAR0, offset, data)?)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), PhysicalError> {
        // Messages are taken in their order.
        Ok(self.client.region_post(BAR0, offset, data)?)
    }

    fn map(&mut self, mapping: &Mapping) -> Result<(), PhysicalError> {
        let Some((file, offset)) = mapping.file() else {
            return Ok(());
        };
        let (addr, size) = (mapping.addr(), mapping.size());
        let protection = mapping.protection();
        Ok(self
            .client
            .dma_map(Some(file), offset, addr, size, protection)?)
    }

    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), PhysicalError> {
        Ok(self.client.dma_unmap(addr, size)?)
    }

    fn connect(
        &mut self,
        vector: u16,
        eventfd: Option<BorrowedFd<'_>>,
    ) -> Result<(), PhysicalError> {
        match eventfd {
            Some(eventfd) => self.client.set_irqs(MSIX, vector.into(), &[eventfd])?,
            None => self.client.disconnect_irq(MSIX, vector.into())?,
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<(), PhysicalError> {
        self.client.device_reset()?;
        let enabled = ENABLED.to_le_bytes();
        Ok(self.client.region_write(CONFIG, COMMAND, &enabled)?)
    }
}
