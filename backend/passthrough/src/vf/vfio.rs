//! A VF of this host's adapter, which the kernel's VFIO hands to this process.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use connectx::DoorbellPages;
use nix::errno::Errno;
use nix::sys::uio::{pread, pwrite};
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_REGION_INFO_FLAG_MMAP,
};
use vfio_ioctls::VfioError;
use vfio_user::{Journal, Mapping, SparseArea};

use crate::vf::address::PciAddress;
use crate::vf::host::Sysfs;
use crate::vf::kernel::Kernel;
use crate::vf::msix::{self, Tables};
use crate::vf::obstacle::{Obstacle, locked_memory_limit, usable};
use crate::vf::physical::{self, BAR_SIZES, Physical, PhysicalError, VECTORS};

const BAR0: u32 = VFIO_PCI_BAR0_REGION_INDEX;
const CONFIG: u32 = VFIO_PCI_CONFIG_REGION_INDEX;
/// Bytes of configuration space that capabilities of every device are in.
const CONFIG_SPACE: usize = 256;
/// Most vectors that are asked for: as many as a guest's function has.
const MAX_VECTORS: u32 = 128;

/// A VF under the kernel's VFIO.
#[derive(Debug)]
pub struct Vfio {
    address: PciAddress,
    /// A descriptor of the VF for whoever maps doorbell pages. Before `kernel`: the group is given up by
    /// who drops the last.
    shared: Arc<OwnedFd>,
    kernel: Kernel,
    /// Where BAR 0 and configuration space are in the descriptor.
    bar: u64,
    bar_size: u64,
    config: u64,
    /// Parts of BAR 0 that can be mapped and have nothing of the MSI-X structures.
    areas: Vec<SparseArea>,
    vectors: u16,
    /// Whether the kernel has given the VF interrupt vectors.
    has_vectors: bool,
    journal: Journal,
}

fn unfit<T>(what: impl Into<String>) -> Result<T, PhysicalError> {
    Err(PhysicalError::Unfit(what.into()))
}

impl Vfio {
    /// Opens the VF at an address, and resets it.
    ///
    /// # Errors
    /// [`PhysicalError`]: what is in the way, with its remedy.
    pub fn open(sysfs: &Sysfs, address: PciAddress) -> Result<Self, PhysicalError> {
        let (_, group) = usable(sysfs, address)?;
        let kernel = Kernel::open(&sysfs.folder(address));
        let kernel = kernel.map_err(|error| refused(group, error))?;
        let (bar, bar_size, flags) = kernel.region(BAR0);
        let (config, config_size, _) = kernel.region(CONFIG);
        if !(bar_size.is_power_of_two() && BAR_SIZES.contains(&bar_size)) {
            return unfit(format!("its BAR 0 has {bar_size} bytes"));
        }
        if config_size < CONFIG_SPACE as u64 {
            return unfit(format!("its configuration space has {config_size} bytes"));
        }
        if !VECTORS.contains(&kernel.vectors()) {
            return unfit(format!("it has {} MSI-X vectors", kernel.vectors()));
        }
        let vectors = kernel.vectors().min(MAX_VECTORS) as u16;
        let mut space = [0; CONFIG_SPACE];
        read_at(kernel.fd(), config, &mut space)?;
        let mut areas = kernel.areas(BAR0);
        if areas.is_empty() {
            areas.push(SparseArea {
                offset: 0,
                size: bar_size,
            });
        }
        // The table is the kernel's: who writes it chooses where interrupts go.
        let Some(tables) = Tables::of(&space) else {
            return unfit("its MSI-X capability is not to be found");
        };
        let areas = if flags & VFIO_REGION_INFO_FLAG_MMAP == 0 {
            Vec::new()
        } else {
            msix::without(&areas, &tables.in_bar(0))
        };
        let shared = kernel.fd().try_clone_to_owned();
        let shared = shared.map_err(|error| PhysicalError::Unfit(error.to_string()))?;
        let mut vf = Self {
            address,
            shared: Arc::new(shared),
            kernel,
            bar,
            bar_size,
            config,
            areas,
            vectors,
            has_vectors: false,
            journal: Journal::default(),
        };
        vf.reset()?;
        Ok(vf)
    }

    /// Returns the obstacle if the IOMMU has no address for the mapping.
    fn untranslated(&self, mapping: &Mapping) -> Option<Obstacle> {
        let ranges = self.kernel.addresses().ok()?;
        let (addr, end) = (mapping.addr(), mapping.addr() + mapping.size());
        let mut within = ranges
            .iter()
            .filter(|range| range.contains(&addr) && range.contains(&(end - 1)));
        let known = !ranges.is_empty();
        (known && within.next().is_none()).then_some(Obstacle::Addresses { addr, end })
    }
}

/// Why the kernel does not hand out the VF.
fn refused(group: u32, error: VfioError) -> PhysicalError {
    let path = |name: &str| PathBuf::from("/dev/vfio").join(name);
    let file = |name: &str, error: &io::Error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES | Errno::EPERM) => Some(Obstacle::Permission(path(name))),
        Some(Errno::EBUSY) => Some(Obstacle::Busy(path(name))),
        _ => None,
    };
    let obstacle = match &error {
        VfioError::OpenContainer(cause) if cause.kind() == io::ErrorKind::NotFound => {
            Some(Obstacle::NoVfio)
        }
        VfioError::VfioExtension => Some(Obstacle::NoVfio),
        VfioError::OpenContainer(cause) => file("vfio", cause),
        VfioError::OpenGroup(cause, name) => file(name, cause),
        VfioError::GroupViable => Some(Obstacle::Group(group, Vec::new())),
        VfioError::ContainerSetIOMMU(cause) if cause.errno() == Errno::EPERM as i32 => {
            Some(Obstacle::Interrupts)
        }
        VfioError::GroupGetDeviceFD(cause) if cause.errno() == Errno::EBUSY as i32 => {
            Some(Obstacle::Busy(path(&group.to_string())))
        }
        _ => None,
    };
    match obstacle {
        Some(obstacle) => obstacle.into(),
        None => PhysicalError::Unfit(format!("VFIO: {error}")),
    }
}

fn read_at(fd: BorrowedFd<'_>, offset: u64, data: &mut [u8]) -> Result<(), PhysicalError> {
    match pread(fd, data, offset.cast_signed()) {
        Ok(len) if len == data.len() => Ok(()),
        Ok(len) => unfit(format!("{len} of {} bytes could be read", data.len())),
        Err(errno) => Err(PhysicalError::kernel("it cannot be read", errno)),
    }
}

impl Physical for Vfio {
    fn bar_size(&self) -> u64 {
        self.bar_size
    }

    fn vectors(&self) -> u16 {
        self.vectors
    }

    fn doorbell_pages(&self, first: u32) -> Option<DoorbellPages> {
        let (offset, len) = physical::doorbell_area(&self.areas, first, self.bar_size)?;
        Some(DoorbellPages {
            fd: Arc::clone(&self.shared),
            fd_offset: self.bar,
            offset,
            len,
        })
    }

    fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), PhysicalError> {
        read_at(self.kernel.fd(), self.bar + offset, data)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), PhysicalError> {
        match pwrite(self.kernel.fd(), data, (self.bar + offset).cast_signed()) {
            Ok(len) if len == data.len() => Ok(()),
            Ok(len) => unfit(format!("{len} of {} bytes could be written", data.len())),
            Err(errno) => Err(PhysicalError::kernel("it cannot be written", errno)),
        }
    }

    fn map(&mut self, mapping: &Mapping) -> Result<(), PhysicalError> {
        let Err(errno) = self.kernel.map(mapping) else {
            return Ok(());
        };
        let obstacle = match errno {
            Errno::ENOMEM => Some(Obstacle::LockedMemory {
                wanted: mapping.size(),
                limit: locked_memory_limit(),
            }),
            Errno::EINVAL => self.untranslated(mapping),
            _ => None,
        };
        let error = match obstacle {
            Some(obstacle) => obstacle.into(),
            None => PhysicalError::kernel("memory cannot be mapped for it", errno),
        };
        if let Some(omitted) = self.journal.admit("memory") {
            tracing::warn!(vf = %self.address, "{error}{omitted}");
        }
        Err(error)
    }

    fn unmap(&mut self, addr: u64, _size: u64) -> Result<(), PhysicalError> {
        let gone = self.kernel.unmap(addr);
        gone.map_err(|error| PhysicalError::Unfit(error.to_string()))
    }

    fn connect(
        &mut self,
        vector: u16,
        eventfd: Option<BorrowedFd<'_>>,
    ) -> Result<(), PhysicalError> {
        let failed =
            |errno| PhysicalError::kernel("an interrupt vector cannot be connected", errno);
        if !self.has_vectors {
            // All at once: kernels before 6.5 give a function no vectors after the first.
            let none = vec![None; self.vectors.into()];
            match self.kernel.set_vectors(0, &none).map_err(failed)? {
                0 => self.has_vectors = true,
                left => {
                    return unfit(format!(
                        "the host has {left} interrupt vectors left of the {} that it needs",
                        self.vectors
                    ));
                }
            }
        }
        let set = self.kernel.set_vectors(vector.into(), &[eventfd]);
        set.map(drop).map_err(failed)
    }

    fn reset(&mut self) -> Result<(), PhysicalError> {
        let reset = self.kernel.reset();
        reset.map_err(|errno| PhysicalError::kernel("it cannot be reset", errno))?;
        let enabled = physical::ENABLED.to_le_bytes();
        let at = self.config + physical::COMMAND;
        match pwrite(self.kernel.fd(), &enabled, at.cast_signed()) {
            Ok(_) => Ok(()),
            Err(errno) => Err(PhysicalError::kernel("it cannot be enabled", errno)),
        }
    }
}
