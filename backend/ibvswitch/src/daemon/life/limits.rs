//! Share of each VF in the limits of the process: address space, mappings, open files.
//!
//! The share belongs to the VF alone: other VMMs cannot use it up.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;
use vfio_user::MemoryLimits;

use config::{Config, GUEST_MEMORY_OF_ALL};

/// The most that a VF has by default.
const GUEST_MEMORY_DEFAULT: u64 = 1 << 40;

/// The most files of guest memory that a VF's client may have mapped.
const FILES: usize = 128;
/// With fewer, VMs of several NUMA nodes may not fit.
const FILES_ENOUGH: usize = 4;
/// `vm.max_map_count` unless somebody has changed it.
const MAPPINGS_DEFAULT: usize = 65530;
/// Mappings that the program has, whatever it serves.
const MAPPINGS_OWN: usize = 8192;
/// Mappings of a VF besides its guest's memory: its thread's stack, its signal stack, both with a
/// guard, and its doorbell pages.
const MAPPINGS_OF_VF: usize = 6;
/// Mappings of a file: two where its owner has truncated it.
const MAPPINGS_OF_FILE: usize = 2;
/// Open files that the program has, whatever it serves.
const DESCRIPTORS_OWN: usize = 128;
/// Open files of a VF besides its guest's memory and interrupts: the listening socket, the stop
/// signal, the doorbell pages (twice), the client's socket, and what may come with one message.
const DESCRIPTORS_OF_VF: usize = 5 + vfio_user::MAX_MSG_FDS;

/// Remedy for too few mappings.
pub(crate) const MAPPINGS_REMEDY: &str = "raise `sysctl vm.max_map_count`";
/// Remedy for too few open files.
pub(crate) const OPEN_FILES_REMEDY: &str =
    "raise `LimitNOFILE=` of the service, or `ulimit -n` in the shell";

/// Limits of the process that give each VF a share for a VM of several NUMA nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// Mappings of the process.
    pub mappings: u64,
    /// Its open files.
    pub open_files: u64,
}

impl Need {
    /// For the VFs of `config`, each with `vectors` interrupts.
    pub(crate) fn of(config: &Config, vectors: u16) -> Self {
        let vfs = (config.vfs().count() + config.hardware().count()).max(1);
        let of_vf = MAPPINGS_OF_VF + MAPPINGS_OF_FILE * FILES_ENOUGH;
        let files = DESCRIPTORS_OF_VF + usize::from(vectors) + FILES_ENOUGH;
        Self {
            mappings: (MAPPINGS_OWN + vfs * of_vf) as u64,
            open_files: (DESCRIPTORS_OWN + vfs * files) as u64,
        }
    }
}

/// Limits of one VF.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes for VFs without a value in the configuration.
    guest_memory: u64,
    files: usize,
}

impl Limits {
    /// The shares of the VFs of `config`, each with `vectors` interrupts. The log says where they
    /// are small.
    #[must_use]
    pub fn new(config: &Config, vectors: u16) -> Self {
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let mappings = mappings.ok().and_then(|text| text.trim().parse().ok());
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(usize::MAX, |(soft, _)| {
            usize::try_from(soft).unwrap_or(usize::MAX)
        });
        let vfs = (config.vfs().count() + config.hardware().count()).max(1);
        let of_mappings = share(
            mappings.unwrap_or(MAPPINGS_DEFAULT),
            MAPPINGS_OWN,
            vfs,
            MAPPINGS_OF_VF,
        ) / MAPPINGS_OF_FILE;
        let of_descriptors = share(
            descriptors,
            DESCRIPTORS_OWN,
            vfs,
            DESCRIPTORS_OF_VF + usize::from(vectors),
        );
        for (files, what, remedy) in [
            (of_mappings, "mappings", MAPPINGS_REMEDY),
            (of_descriptors, "open files", OPEN_FILES_REMEDY),
        ] {
            if files < FILES_ENOUGH {
                warn!(
                    vfs,
                    "the limit of {what} is low for so many VFs: VMs may be unable to attach while others \
                    use their maximum; {remedy}"
                );
            }
        }
        let files = of_mappings.min(of_descriptors);
        let of_vfs = config.vfs().map(|(_, vf)| vf.guest_memory);
        let of_hardware = config.hardware().map(|vf| vf.guest_memory);
        let each: Vec<Option<u64>> = of_vfs.chain(of_hardware).collect();
        let given: u64 = each.iter().flatten().sum();
        let others = each.iter().filter(|given| given.is_none()).count();
        let rest = GUEST_MEMORY_OF_ALL.saturating_sub(given) / (others as u64).max(1);
        Self {
            guest_memory: rest.min(GUEST_MEMORY_DEFAULT),
            files: files.clamp(FILES_ENOUGH, FILES),
        }
    }

    /// Returns the limits of the memory that a VF's client shares, with the value of the configuration if it has one.
    #[must_use]
    pub fn of(&self, guest_memory: Option<u64>) -> MemoryLimits {
        MemoryLimits {
            bytes: guest_memory.unwrap_or(self.guest_memory),
            files: self.files,
        }
    }
}

/// Returns the share of each of `vfs` in `all`, without the program's `own` and each VF's `of_vf`.
fn share(all: usize, own: usize, vfs: usize, of_vf: usize) -> usize {
    (all.saturating_sub(own) / vfs).saturating_sub(of_vf)
}

/// Takes all the open files that the system lets this process have: the usual limit (1024) is for
/// programs that use select(2).
///
/// # Errors
/// When the system refuses.
pub fn raise_open_files() -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use config::Directories;
    use testing::Configuration;

    fn config(vfs: usize, of_first: &str) -> Config {
        let mut text = Configuration::new();
        for number in 0..vfs {
            if number % 100 == 0 {
                text = text.hypervisor(&format!("h{number}"), []);
            }
            text = text.vf(&format!("v{number}"));
            if number == 0 {
                text = text.lines(of_first);
            }
        }
        let dirs = Directories {
            chosen: None,
            fallback: Path::new("/run/ibvswitch"),
        };
        Config::parse("f", &text.to_string(), dirs).expect("is right")
    }

    #[test]
    fn what_is_needed_is_enough_and_no_more() {
        for vfs in [1, 2, 640] {
            let need = Need::of(&config(vfs, ""), 32);
            let of_descriptors = |all: u64| {
                let of_vf = DESCRIPTORS_OF_VF + 32;
                share(all as usize, DESCRIPTORS_OWN, vfs, of_vf)
            };
            assert_eq!(of_descriptors(need.open_files), FILES_ENOUGH);
            assert!(of_descriptors(need.open_files - 1) < FILES_ENOUGH);
            let of_mappings = |all: u64| {
                share(all as usize, MAPPINGS_OWN, vfs, MAPPINGS_OF_VF) / MAPPINGS_OF_FILE
            };
            assert_eq!(of_mappings(need.mappings), FILES_ENOUGH);
            assert!(of_mappings(need.mappings - 1) < FILES_ENOUGH);
        }
    }

    #[test]
    fn all_shares_together_are_no_more_than_there_is() {
        for (vfs, of_first, expected) in [
            (1, "", 1 << 40),
            (64, "", 1 << 40),
            (128, "", 1 << 39),
            (640, "", (1u64 << 46) / 640),
            (65, "guest_memory = \"32T\"\n", 1 << 39),
        ] {
            let config = config(vfs, of_first);
            let limits = Limits::new(&config, 32);
            let bytes = config.vfs().map(|(_, vf)| limits.of(vf.guest_memory).bytes);
            assert!(bytes.sum::<u64>() <= 1 << 46, "{vfs}");
            let (_, last) = config.vfs().last().expect("a VF");
            assert_eq!(limits.of(last.guest_memory).bytes, expected, "{vfs}");
            assert!(
                (4..=128).contains(&limits.of(last.guest_memory).files),
                "{vfs}"
            );
        }
    }
}
