//! Obstacles to the use of a VF of this host, with remedies.

use std::io;
use std::path::PathBuf;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use thiserror::Error;

use crate::driver::window::LOCKED;
use crate::vf::address::PciAddress;
use crate::vf::host::{HostFunction, MELLANOX, Sysfs, VFIO_PCI};

/// An obstacle. Its text is what is wrong; [`Obstacle::remedy`] is what to do.
#[derive(Debug, Error)]
pub enum Obstacle {
    /// Nothing is at the address.
    #[error("there is no PCI function {0}")]
    NotThere(PciAddress),
    /// The device at this address has another vendor.
    #[error("{0} is of vendor {1:04x}, and no ConnectX VF, of vendor {MELLANOX:04x}")]
    Vendor(PciAddress, u16),
    /// The device at this address is the adapter itself, or unknown.
    #[error("{0} is a {MELLANOX:04x}:{1:04x}, which is no virtual function")]
    NotVirtual(PciAddress, u16),
    /// The kernel cannot be asked.
    #[error("{0}: {1}")]
    Sysfs(PathBuf, #[source] io::Error),
    /// It is bound to another driver, or to none.
    #[error("{0} has {driver}, not {VFIO_PCI}", driver = .1.as_ref().map_or("no driver".into(), |it| format!("the driver {it}")))]
    Driver(PciAddress, Option<String>),
    /// No IOMMU stands before it.
    #[error("{0} is behind no IOMMU")]
    NoIommu(PciAddress),
    /// Other functions of its IOMMU group have drivers of the host.
    #[error("IOMMU group {0} is not viable: {others} there", others = others(.1))]
    Group(u32, Vec<HostFunction>),
    /// Modules of the kernel are not there.
    #[error("VFIO is not loaded, or not for IOMMUs of this host")]
    NoVfio,
    /// A file of VFIO may not be opened.
    #[error("{0} may not be opened by this user")]
    Permission(PathBuf),
    /// Somebody has the group.
    #[error("{0} is in use")]
    Busy(PathBuf),
    /// Interrupts are not remapped.
    #[error("interrupts are not remapped: the VF could raise any interrupt of the host")]
    Interrupts,
    /// The process may not lock so much memory.
    #[error("{wanted} more bytes of memory cannot be locked; the limit is {limit}", limit = .limit.map_or("none".into(), |it| format!("{it} bytes")))]
    LockedMemory {
        /// Bytes that were to be locked.
        wanted: u64,
        /// The process's limit, in bytes.
        limit: Option<u64>,
    },
    /// The IOMMU does not have the address.
    #[error("the IOMMU does not translate {addr:#x} to {end:#x}")]
    Addresses {
        /// First DMA address.
        addr: u64,
        /// DMA address after the last.
        end: u64,
    },
}

fn others(functions: &[HostFunction]) -> String {
    let one = |it: &HostFunction| {
        let driver = it.driver.as_deref().unwrap_or("no driver");
        format!("{} has {driver}", it.address)
    };
    functions.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl Obstacle {
    /// Returns the remedy.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NotThere(_) => {
                "`lspci -D -d 15b3:` lists what there is; VFs are made by writing \
                                  their number to sriov_numvfs of the adapter"
                    .into()
            }
            Self::Vendor(..) | Self::NotVirtual(..) => {
                "name a virtual function: `lspci -D -d 15b3:` calls them so".into()
            }
            Self::Sysfs(..) => "mount /sys".into(),
            Self::Driver(address, _) => format!(
                "`driverctl --nosave set-override {address} {VFIO_PCI}`, or, as root, write \
                 {VFIO_PCI} to /sys/bus/pci/devices/{address}/driver_override and the address to \
                 driver/unbind there and to /sys/bus/pci/drivers_probe"
            ),
            Self::NoIommu(_) => "turn VT-d or AMD-Vi on in the firmware, and on Intel boot with \
                                 intel_iommu=on"
                .into(),
            Self::Group(..) => format!(
                "bind these to {VFIO_PCI} as well, or put the adapter into a slot with ACS, which \
                 gives each VF a group of its own"
            ),
            Self::NoVfio => format!("`modprobe -a {VFIO_PCI} vfio_iommu_type1`"),
            Self::Permission(path) => format!(
                "give the file to the daemon's user (`chown USER {}`), or run the daemon as root",
                path.display()
            ),
            Self::Busy(path) => format!(
                "end the process that has it (`fuser -v {}`): another ibvswitch, or a QEMU that has \
                 mapped the VF's doorbell pages",
                path.display()
            ),
            Self::Interrupts => "turn interrupt remapping on in the firmware (VT-d with x2APIC, \
                                 AMD-Vi); where all guests are trusted, load vfio_iommu_type1 with \
                                 allow_unsafe_interrupts=1"
                .into(),
            Self::LockedMemory { limit: Some(_), .. } => format!(
                "raise it to the guest's memory and {} MiB for each VF: `LimitMEMLOCK=infinity` in \
                 the service, or `ulimit -l unlimited`",
                LOCKED >> 20
            ),
            Self::LockedMemory { limit: None, .. } => "free memory of the host".into(),
            Self::Addresses { .. } => {
                "use an IOMMU of at least 39 bits, and give guests less memory than it reaches"
                    .into()
            }
        }
    }
}

/// Returns the number of bytes that this process may lock; `None` if there is no limit.
#[must_use]
pub fn locked_memory_limit() -> Option<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (soft != RLIM_INFINITY).then_some(soft)
}

/// A VF that can be opened, as far as the host's description goes, and the number of its IOMMU group.
///
/// # Errors
/// The first obstacle.
pub fn usable(sysfs: &Sysfs, address: PciAddress) -> Result<(HostFunction, u32), Obstacle> {
    let function = sysfs
        .function(address)
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Obstacle::NotThere(address),
            _ => Obstacle::Sysfs(sysfs.folder(address), error),
        })?;
    let (vendor, device) = function.id;
    if vendor != MELLANOX {
        return Err(Obstacle::Vendor(address, vendor));
    }
    if !function.is_connectx_vf() {
        return Err(Obstacle::NotVirtual(address, device));
    }
    let group = function.group.ok_or(Obstacle::NoIommu(address))?;
    if function.driver.as_deref() != Some(VFIO_PCI) {
        return Err(Obstacle::Driver(address, function.driver));
    }
    let others = sysfs.in_the_way(group);
    let others = others.map_err(|error| Obstacle::Sysfs(sysfs.root().to_owned(), error))?;
    if !others.is_empty() {
        return Err(Obstacle::Group(group, others));
    }
    Ok((function, group))
}
