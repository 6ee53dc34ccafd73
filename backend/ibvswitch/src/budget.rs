//! Most memory that guests can make the daemon take, and the memory that there is.
//!
//! Each thing that the daemon keeps for a guest has a limit: objects and their lists of pages the VF's
//! `object_memory`, all else a limit of its own. The sum of the limits is the most that the daemon takes on behalf of
//! guests. The daemon's own memory, on which guests have no influence, comes on top.

use std::fs;
use std::path::Path;

use connectx::{Configuration, MAX_REPLY, MAX_REQUEST};
use hca::Route;
use vfio_user::{MAX_DATA_XFER_SIZE, MAX_DMA_MAPS, Mapping};

use vswitch::TABLE_BYTES_PER_GUEST;

use crate::daemon::moves::vm_image::{LONGEST, MAX_MEMORY};
use config::{Config, Doorbells, ManagerPlace, Vf};

/// Bytes of the lists that stay small: management packets that wait, what was refused, what is entered
/// at the subnet administration and there, doorbell pages in use, capabilities.
const LISTS: u64 = 1 << 20;

/// Tables of the subnet administration that wait to be sent to a port: at most 8 of 8 MiB.
const TABLES_OF_A_PORT: u64 = 8;
const TABLE: u64 = 8 << 20;
/// A path, the longest record that there is one of for each two ports.
const PATH_RECORD: u64 = 64;

/// The most that guests can make of the daemon's memory, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// For each VF, in the order of [`Config::vfs`].
    pub vfs: Vec<u64>,
    /// Tables of the subnet administration on their way, of all of them.
    pub tables: u64,
    /// Parts of the image of a moving VM, while it is written or read.
    pub image: u64,
}

impl Budget {
    /// Returns the budget of a configuration.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let ports = config.vfs().count() as u64;
        let all = ports + config.hypervisors.len() as u64 + config.wiring.switches.len() as u64 + 1;
        let table = (all * all * PATH_RECORD).min(TABLE);
        let embedded = config.manager.place == ManagerPlace::Embedded;
        let subnets = if embedded { config.subnets.len() } else { 0 } as u64;
        let most = subnets * subnet_manager::rmpp::TABLES as u64;
        Self {
            vfs: config.vfs().map(|(_, vf)| of_vf(vf, ports)).collect(),
            tables: (ports * TABLES_OF_A_PORT * table).min(most),
            image: IMAGE,
        }
    }

    /// All together.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.vfs.iter().sum::<u64>() + self.tables + self.image
    }
}

fn of_vf(vf: &Vf, vfs: u64) -> u64 {
    /// Ways of multicast packets that the engine keeps of a function, each to all others at most.
    const FANOUTS: u64 = 16;
    // A command, its reply, and the list that is made of it.
    let command = 2 * MAX_REQUEST as u64 + MAX_REPLY as u64;
    // A message, its reply, and where guest memory is.
    let messages = 2 * u64::from(MAX_DATA_XFER_SIZE);
    let mappings = (MAX_DMA_MAPS * size_of::<Mapping>()) as u64;
    let fanouts = FANOUTS * vfs * size_of::<Route>() as u64;
    let doorbells = match vf.doorbells.unwrap_or_default() {
        // The memory of the device.
        Doorbells::Trap => Configuration::default().device_memory,
        Doorbells::Poll | Doorbells::Adaptive => Configuration::default().bar_size,
    };
    let tables = match vf.model.cluster {
        Some(_) => TABLE_BYTES_PER_GUEST as u64,
        None => 0,
    };
    vf.object_memory + command + messages + mappings + fanouts + doorbells + tables + LISTS
}

/// Bytes of the parts of a moving VM's image, while it is written or read: only one VM at a time. The image itself is
/// in the room for commands, of which there are none meanwhile.
const IMAGE: u64 = MAX_MEMORY as u64;

// The room of a command is enough for an image.
const _: () = assert!(LONGEST <= 2 * MAX_REQUEST + MAX_REPLY);

/// The memory that the daemon may have, in bytes, and who says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Available {
    /// The machine has no more.
    Machine(u64),
    /// Its control group gets no more (`memory.max`).
    ControlGroup(u64),
}

impl Available {
    /// Returns the memory that this process may have, if the system tells.
    #[must_use]
    pub fn here() -> Option<Self> {
        let machine = fs::read_to_string("/proc/meminfo").ok();
        let machine = machine.and_then(|text| total(&text)).map(Self::Machine);
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = control_group(&groups).and_then(|group| {
            let group = Path::new("/sys/fs/cgroup").join(group.trim_start_matches('/'));
            let limits = group
                .ancestors()
                .take_while(|dir| dir.starts_with("/sys/fs/cgroup"));
            let limits = limits.filter_map(|dir| fs::read_to_string(dir.join("memory.max")).ok());
            limits.filter_map(|limit| limit.trim().parse().ok()).min()
        });
        let group = group.map(Self::ControlGroup);
        machine.into_iter().chain(group).min_by_key(|it| it.bytes())
    }

    /// Returns this memory in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Machine(bytes) | Self::ControlGroup(bytes) => bytes,
        }
    }

    /// Returns an error text with its remedy, in one sentence, if guests may take more memory than there is.
    #[must_use]
    pub fn complaint(self, budget: &Budget) -> Option<String> {
        let (wrong, remedy) = self.shortage(budget)?;
        Some(format!("{wrong}; {remedy}"))
    }

    /// Returns an error text and its remedy, if guests may take more memory than there is.
    #[must_use]
    pub fn shortage(self, budget: &Budget) -> Option<(String, String)> {
        let (most, there) = (budget.sum(), self.bytes());
        let (whose, raise) = match self {
            Self::Machine(_) => ("this machine has", "or give the machine more"),
            Self::ControlGroup(_) => (
                "the daemon's control group may have (memory.max)",
                "or raise MemoryMax of its unit",
            ),
        };
        (most > there).then(|| {
            let wrong = format!(
                "guests can make the daemon take {} MiB, and {whose} {} MiB",
                mebibytes(most),
                there >> 20
            );
            let remedy = format!(
                "lower `engine.object_memory` or that of VFs, configure fewer VFs, {raise}"
            );
            (wrong, remedy)
        })
    }
}

/// Whole MiB, rounded up.
#[must_use]
pub const fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// The machine's memory, of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The control group of the second version, of `/proc/self/cgroup`.
fn control_group(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_tells() {
        assert_eq!(total("MemTotal:  2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        let groups = "12:memory:/old\n0::/system.slice/ibvswitch.service\n";
        let group = control_group(groups);
        assert_eq!(group, Some("/system.slice/ibvswitch.service"));
        assert!(Available::here().is_some_and(|it| it.bytes() > 1 << 20));
    }

    #[test]
    fn complaints_name_the_remedy() {
        let budget = Budget {
            vfs: vec![60 << 20, 61 << 20],
            tables: 1,
            image: 0,
        };
        assert_eq!(Available::Machine(122 << 20).complaint(&budget), None);
        assert_eq!(
            Available::Machine(100 << 20).complaint(&budget).as_deref(),
            Some(
                "guests can make the daemon take 122 MiB, and this machine has 100 MiB; lower \
                 `engine.object_memory` or that of VFs, configure fewer VFs, or give the machine more"
            )
        );
        assert_eq!(
            Available::ControlGroup(100 << 20)
                .complaint(&budget)
                .as_deref(),
            Some(
                "guests can make the daemon take 122 MiB, and the daemon's control group may have \
                 (memory.max) 100 MiB; lower `engine.object_memory` or that of VFs, configure fewer \
                 VFs, or raise MemoryMax of its unit"
            )
        );
    }
}
