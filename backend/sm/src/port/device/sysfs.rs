//! The ports of this host's adapters, as sysfs has them.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::read;
use wire::{Gid, Guid, Lid, PKey, Sl};

use super::DeviceError;

const ADAPTERS: &str = "/sys/class/infiniband";
const MAD_DEVICES: &str = "/sys/class/infiniband_mad";

/// A port of an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AdapterPort {
    folder: PathBuf,
    adapter: String,
    number: u8,
    pub(super) guid: Guid,
    /// Whether there is a link.
    pub(super) is_up: bool,
    /// It is one of libumad2sim.
    pub(super) is_simulated: bool,
}

impl fmt::Display for AdapterPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = if self.is_up { "a link" } else { "no link" };
        write!(
            f,
            "{} of {} port {}, {link}",
            self.guid, self.adapter, self.number
        )
    }
}

/// The address of a port, and the address of its subnet manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAddress {
    /// Its LID.
    pub lid: Lid,
    /// LID of the subnet manager.
    pub sm_lid: Lid,
    /// Service level of the way there.
    pub sm_sl: Sl,
    /// First GID, by which the prefix is known.
    pub gid: Gid,
}

/// A file's text, without blanks at its ends. libumad2sim, loaded before this program, knows this way to open a file.
fn attribute(path: &Path) -> io::Result<String> {
    let file = open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut bytes = [0; 4096];
    let length = read(&file, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes[..length]).trim().to_owned())
}

/// The names in a folder, in their order; none where there is no folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// The InfiniBand ports of all adapters.
pub(super) fn ports() -> Vec<AdapterPort> {
    let mut ports = Vec::new();
    for adapter in names(Path::new(ADAPTERS)) {
        let folder = Path::new(ADAPTERS).join(&adapter);
        let kind = attribute(&folder.join("hca_type"));
        for number in names(&folder.join("ports")) {
            let folder = folder.join("ports").join(&number);
            let of = |name: &str| attribute(&folder.join(name)).ok();
            if of("link_layer").is_some_and(|layer| layer == "Ethernet") {
                continue;
            }
            let gid = of("gids/0").and_then(|gid| gid.parse::<Gid>().ok());
            let (Ok(number), Some(gid)) = (number.parse(), gid) else {
                continue;
            };
            ports.push(AdapterPort {
                adapter: adapter.clone(),
                number,
                guid: gid.guid(),
                is_up: of("phys_state").is_some_and(|state| state.starts_with("5:")),
                is_simulated: kind.as_ref().is_ok_and(|kind| kind == "simulator"),
                folder,
            });
        }
    }
    ports
}

impl AdapterPort {
    /// Name of its device that begins with `kind`: `umad` for packets, `issm` for the subnet manager's bit.
    pub(super) fn device(&self, kind: &str) -> Option<PathBuf> {
        let folder = Path::new(MAD_DEVICES);
        let mut names = names(folder).into_iter();
        let is = |name: &str, file: &str, wanted: &str| {
            attribute(&folder.join(name).join(file)).is_ok_and(|text| text == wanted)
        };
        let name = names.find(|name| {
            name.starts_with(kind)
                && is(name, "ibdev", &self.adapter)
                && is(name, "port", &self.number.to_string())
        });
        name.map(|name| Path::new("/dev/infiniband").join(name))
    }

    pub(super) fn address(&self) -> Result<PortAddress, DeviceError> {
        let of = |name: &str| {
            let path = self.folder.join(name);
            let text = attribute(&path);
            text.map_err(|source| DeviceError::Refused { path, source })
        };
        // The kernel writes both forms.
        let number = |name| {
            let text = of(name)?;
            let number = match text.strip_prefix("0x") {
                Some(digits) => u16::from_str_radix(digits, 16),
                None => text.parse(),
            };
            Ok::<_, DeviceError>(number.unwrap_or_default())
        };
        Ok(PortAddress {
            lid: Lid::new(number("lid")?),
            sm_lid: Lid::new(number("sm_lid")?),
            sm_sl: Sl::new(number("sm_sl")? as u8 & 0xf),
            gid: of("gids/0")?.parse().unwrap_or_default(),
        })
    }

    /// The P_Key at an index of its table.
    pub(super) fn pkey(&self, index: u16) -> Option<PKey> {
        let text = attribute(&self.folder.join("pkeys").join(index.to_string())).ok()?;
        let digits = text.strip_prefix("0x")?;
        u16::from_str_radix(digits, 16).ok().map(PKey::new)
    }
}
