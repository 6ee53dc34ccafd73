//! Information of the host's kernel about a PCI function, from sysfs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::vf::address::PciAddress;

/// The driver that hands functions to processes.
pub const VFIO_PCI: &str = "vfio-pci";

/// Drivers that leave a function of a group to whoever has the others: they do no DMA.
const HARMLESS: &[&str] = &[VFIO_PCI, "pci-stub", "pcieport"];

/// Where the kernel describes devices: `/sys`, or what stands for it in a test.
#[derive(Debug, Clone)]
pub struct Sysfs(PathBuf);

impl Default for Sysfs {
    fn default() -> Self {
        Self("/sys".into())
    }
}

/// Vendor of ConnectX adapters.
pub const MELLANOX: u16 = 0x15b3;
/// Devices that are virtual functions: ConnectX-4 to ConnectX-5 Ex each have their own, later ones share
/// one, BlueField has another.
const VIRTUAL_FUNCTIONS: &[u16] = &[0x1014, 0x1016, 0x1018, 0x101a, 0x101c, 0x101e, 0xa2d3];

/// A PCI function of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFunction {
    /// Its address.
    pub address: PciAddress,
    /// Vendor and device.
    pub id: (u16, u16),
    /// The driver that it is bound to.
    pub driver: Option<String>,
    /// Its IOMMU group, if an IOMMU stands before it.
    pub group: Option<u32>,
    /// The physical function that it is a virtual one of.
    pub physical: Option<PciAddress>,
}

impl HostFunction {
    /// Whether it is a virtual function of a ConnectX.
    #[must_use]
    pub fn is_connectx_vf(&self) -> bool {
        let (vendor, device) = self.id;
        vendor == MELLANOX && VIRTUAL_FUNCTIONS.contains(&device)
    }
}

impl Sysfs {
    /// With this folder as `/sys`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// The folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The folder of a function.
    #[must_use]
    pub fn folder(&self, address: PciAddress) -> PathBuf {
        self.0.join("bus/pci/devices").join(address.to_string())
    }

    /// Returns the function at an address.
    ///
    /// # Errors
    /// Those of reading; `NotFound` where there is nothing.
    pub fn function(&self, address: PciAddress) -> io::Result<HostFunction> {
        let folder = self.folder(address);
        let group = target(&folder.join("iommu_group"));
        let physical = target(&folder.join("physfn"));
        Ok(HostFunction {
            address,
            id: (
                number(&folder.join("vendor"))?,
                number(&folder.join("device"))?,
            ),
            driver: target(&folder.join("driver")),
            group: group.and_then(|group| group.parse().ok()),
            physical: physical.and_then(|address| address.parse().ok()),
        })
    }

    /// All PCI functions of the host, in the order of their addresses.
    ///
    /// # Errors
    /// Those of reading.
    pub fn functions(&self) -> io::Result<Vec<HostFunction>> {
        self.listed(&self.0.join("bus/pci/devices"))
    }

    /// The functions of an IOMMU group, in the order of their addresses.
    ///
    /// # Errors
    /// Those of reading.
    pub fn group(&self, group: u32) -> io::Result<Vec<HostFunction>> {
        self.listed(&self.0.join(format!("kernel/iommu_groups/{group}/devices")))
    }

    fn listed(&self, folder: &Path) -> io::Result<Vec<HostFunction>> {
        let mut addresses = Vec::new();
        for entry in fs::read_dir(folder)? {
            // An entry that is not a PCI function cannot be taken.
            if let Some(Ok(address)) = entry?.file_name().to_str().map(str::parse) {
                addresses.push(address);
            }
        }
        addresses.sort();
        addresses.into_iter().map(|at| self.function(at)).collect()
    }

    /// Returns the functions of a group that have drivers of the host, which keep everybody else from all of the
    /// group.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn in_the_way(&self, group: u32) -> io::Result<Vec<HostFunction>> {
        let mut functions = self.group(group)?;
        functions.retain(|it| {
            let driver = it.driver.as_deref();
            driver.is_some_and(|driver| !HARMLESS.contains(&driver))
        });
        Ok(functions)
    }
}

/// The last part of what a link leads to.
fn target(link: &Path) -> Option<String> {
    let to = fs::read_link(link).ok()?;
    Some(to.file_name()?.to_str()?.to_owned())
}

/// A number like `0x15b3`.
fn number(file: &Path) -> io::Result<u16> {
    let text = fs::read_to_string(file)?;
    let digits = text.trim().trim_start_matches("0x");
    u16::from_str_radix(digits, 16)
        .map_err(|_| io::Error::other(format!("{} is no number: {}", file.display(), text.trim())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Adds a function, with the links that the kernel makes.
    fn add(root: &Path, address: &str, device: &str, driver: Option<&str>, group: Option<u32>) {
        let folder = root.join("bus/pci/devices").join(address);
        fs::create_dir_all(&folder).expect("is made");
        fs::write(folder.join("vendor"), "0x15b3\n").expect("is written");
        fs::write(folder.join("device"), device).expect("is written");
        if let Some(driver) = driver {
            let to = format!("../../../../bus/pci/drivers/{driver}");
            symlink(to, folder.join("driver")).expect("is linked");
        }
        if let Some(group) = group {
            let to = format!("../../../kernel/iommu_groups/{group}");
            symlink(to, folder.join("iommu_group")).expect("is linked");
            let members = root.join(format!("kernel/iommu_groups/{group}/devices"));
            fs::create_dir_all(&members).expect("is made");
            symlink(&folder, members.join(address)).expect("is linked");
        }
    }

    #[test]
    fn a_group_is_all_its_functions() {
        let root = tempfile::tempdir().expect("a folder");
        let at = root.path();
        add(at, "0000:3b:00.2", "0x101e\n", Some(VFIO_PCI), Some(42));
        add(at, "0000:3b:00.3", "0x101e\n", Some("mlx5_core"), Some(42));
        add(at, "0000:3a:00.0", "0x1234\n", Some("pcieport"), Some(42));
        add(at, "0000:3b:00.4", "0x101e\n", None, Some(42));
        add(at, "0000:3b:00.5", "0x101e\n", None, None);
        let sysfs = Sysfs::at(at);
        let vf = sysfs.function("0000:3b:00.2".parse().expect("one"));
        let vf = vf.expect("is there");
        assert_eq!((vf.id, vf.group), ((0x15b3, 0x101e), Some(42)));
        assert_eq!(vf.driver.as_deref(), Some(VFIO_PCI));
        assert_eq!(sysfs.group(42).expect("is there").len(), 4);
        let others = sysfs.in_the_way(42).expect("is there");
        let addresses: Vec<String> = others.iter().map(|it| it.address.to_string()).collect();
        assert_eq!(addresses, ["0000:3b:00.3"]);
        let alone = sysfs.function("0000:3b:00.5".parse().expect("one"));
        assert_eq!(alone.expect("is there").group, None);
        let none = sysfs.function("0000:3b:00.6".parse().expect("one"));
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
