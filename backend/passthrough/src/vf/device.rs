//! Device that a guest's function is passed through to, as the configuration names it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use crate::vf::address::PciAddress;
use crate::vf::host::Sysfs;
use crate::vf::physical::{Physical, PhysicalError};
use crate::vf::socket::Socket;
use crate::vf::vfio::Vfio;

/// A VF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// One of this host's adapter, bound to vfio-pci.
    Pci(PciAddress),
    /// One that a vfio-user server has at this socket; the path is absolute.
    Socket(PathBuf),
}

/// A text names no VF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not a device for passthrough")]
pub struct NoDevice;

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(address) => address.fmt(f),
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Device {
    type Err = NoDevice;

    fn from_str(text: &str) -> Result<Self, NoDevice> {
        if let Some(path) = text.strip_prefix("unix:").map(PathBuf::from) {
            return Some(Self::Socket(path))
                .filter(|_| text.starts_with("unix:/"))
                .ok_or(NoDevice);
        }
        text.parse().map(Self::Pci).map_err(|_| NoDevice)
    }
}

impl Device {
    /// Opens the VF, which comes reset.
    ///
    /// # Errors
    /// [`PhysicalError`].
    pub fn open(&self) -> Result<Box<dyn Physical>, PhysicalError> {
        Ok(match self {
            Self::Pci(address) => Box::new(Vfio::open(&Sysfs::default(), *address)?),
            Self::Socket(path) => Box::new(Socket::open(path)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_as_they_are_written() {
        for text in ["0000:3b:00.2", "unix:/run/other/vm1.sock"] {
            let device: Device = text.parse().expect("is one");
            assert_eq!(device.to_string(), text);
        }
        for text in ["", "unix:", "unix:vm1.sock", "3b:00.2", "/run/vm1.sock"] {
            assert_eq!(text.parse::<Device>(), Err(NoDevice), "{text}");
        }
    }
}
