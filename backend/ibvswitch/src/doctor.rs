//! Checks of this host: everything that the daemon and its VMs need, and how to get what is missing.
//!
//! The checks change nothing. [`Host`] checks whether VFs can be passed through; here the host's prerequisites for it
//! are checked.

mod accelerator;
mod doorbells;
mod limits;
mod memory;
mod plan;
mod program;
mod qemu;
mod service;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use passthrough::Device;
use serde::Serialize;

use self::program::Programs;
use crate::budget::Available;
use crate::finding::{Finding, Verdict};
use crate::host::Host;
use crate::host::machine::{Machine, allowed};
use config::{Config, Kind};

/// Time limit of a program of the host. QEMU lists its devices in a second, on a busy machine too.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(20);

/// All that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In the order in which one needs it.
    pub checks: Vec<Finding>,
    /// Prerequisites of VFs of the host's own adapters.
    pub passthrough: Passthrough,
}

/// Prerequisites of VFs that are passed through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Passthrough {
    /// The configuration has such VFs. Where it has none, what is missing is a note.
    pub configured: bool,
    /// Checks of the host. [`Host::check`] is about the VFs themselves.
    pub checks: Vec<Finding>,
}

impl Report {
    /// Whether something does not work.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        let mut all = self.checks.iter().chain(&self.passthrough.checks);
        all.any(|it| it.verdict == Verdict::Error)
    }
}

/// The host, or what stands for it in a test.
#[derive(Debug, Clone)]
pub struct Doctor {
    /// Where `/dev`, `/etc`, `/proc`, `/run` and `/sys` are.
    pub root: PathBuf,
    /// Directories of programs, as in `$PATH`.
    pub path: OsString,
    /// Time limit of each program.
    pub patience: Duration,
    /// The QEMU of the VMs; `None`: the one of `path`.
    pub qemu: Option<PathBuf>,
    /// Number of processors for this process; a control group may let it have only a share of them.
    pub processors: usize,
    /// The numbers of those that it may run on, in rising order.
    pub allowed: Vec<usize>,
    /// Number of files that the daemon may have open: the hard limit, since the daemon raises its own limit to it.
    pub open_files: u64,
    /// Memory for the daemon, if the system tells.
    pub available: Option<Available>,
    /// The host, for checks of VFs that are passed through.
    pub host: Host,
}

impl Default for Doctor {
    fn default() -> Self {
        Self {
            root: "/".into(),
            path: std::env::var_os("PATH").unwrap_or_default(),
            patience: PROGRAM_TIMEOUT,
            qemu: None,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            allowed: allowed(),
            open_files: getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(_, hard)| hard),
            available: Available::here(),
            host: Host::default(),
        }
    }
}

impl Doctor {
    /// Looks at everything that this configuration needs.
    #[must_use]
    pub fn examine(&self, config: &Config) -> Report {
        let cards_only =
            config.hardware().count() == 0 && config.vfs().all(|(_, vf)| vf.kind != Kind::Hca);
        let programs = self.programs();
        let mut checks = vec![
            qemu::check(self.qemu.as_deref(), programs, &self.root, !cards_only),
            accelerator::check(&self.root),
        ];
        checks.extend(memory::of_daemon(config, self.available));
        checks.push(memory::shared());
        checks.push(memory::huge_pages(&self.root));
        checks.push(limits::open_files(config, self.open_files));
        checks.extend(limits::mappings(config, &self.root));
        checks.extend(doorbells::check(config, self.processors, &self.allowed));
        let memory = self.available.map(Available::bytes);
        let machine = Machine::at(&self.root, &self.allowed, memory);
        checks.extend(plan::check(config, &machine));
        let daemon = service::daemon(&config.control_socket());
        let serves = daemon.verdict == Verdict::Ok;
        checks.push(service::runtime_dir(&config.runtime_dir, serves));
        checks.push(daemon);
        checks.push(service::unit(programs, &self.root));
        Report {
            checks,
            passthrough: self.passthrough(config),
        }
    }

    fn programs(&self) -> Programs<'_> {
        Programs {
            path: &self.path,
            limit: self.patience,
        }
    }

    fn passthrough(&self, config: &Config) -> Passthrough {
        let mut devices = config.hardware().map(|it| &it.device);
        let configured = devices.any(|device| matches!(device, Device::Pci(_)));
        let mut checks = self.host.prerequisites();
        if !configured {
            let lacking = checks.iter_mut().filter(|it| it.verdict != Verdict::Ok);
            lacking.for_each(|it| it.verdict = Verdict::Note);
        }
        Passthrough { configured, checks }
    }
}
