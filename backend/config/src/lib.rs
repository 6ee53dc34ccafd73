//! The configuration of the daemon: TOML, checked as a whole before anything starts.
//!
//! Every key is explained in `docs/users/configuration.md`, and the built-in configuration
//! ([`DEFAULT`]) shows each with its default. A mistake is a [`Problem`] that names file, line,
//! key, value and remedy; all mistakes of a file are reported together.

pub mod cluster;
pub mod difference;
mod document;
pub mod edit;
mod host;
pub mod keys;
mod names;
mod placement;
mod population;
mod read;
pub mod scope;
#[cfg(test)]
mod tests;
mod wiring;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use connectx::{IpOverInfiniBand, Likeness};
use fabric::SmpAccess;
use hca::ServiceLevels;
use passthrough::Isolation;
use vhost_user::port::Claims;
use vhost_user::translate::Mac;
use vswitch::model;
use wire::{Guid, Lid, PKey};

pub use control::Doorbells;
pub use document::Problem;
pub use host::{Host, Needs, Vm};
pub use names::{ISOLATION, SMP_ACCESS};
pub use vswitch::model::{
    Address, AddressModel, Bandwidth, Cluster, Fabric, FileNodes, FullMode, FullModeEnd, GmpClass,
    GmpClasses, KeyChoice, LidChoice, LinkRate, MANAGER, MadRate, MadRules, Manager, ManagerHost,
    ManagerPlace, Multipath, PathChoice, Router, RouterPort, RoutingChoice, Subnet, Switch, View,
    Wiring,
};

/// The configuration used when none is named: two hypervisors behind one switch, one VF each.
pub const DEFAULT: &str = include_str!("default.toml");

/// Name of [`DEFAULT`] in messages.
pub const DEFAULT_ORIGIN: &str = "built-in configuration";

/// The most bytes of a UNIX socket's path: `sun_path` holds 108 and the last is a NUL (unix(7)).
pub const SOCKET_PATH_MAX: usize = 107;

/// The most virtual functions of one hypervisor, as on a ConnectX port.
pub const VFS_PER_HYPERVISOR_MAX: usize = 127;

/// The most hypervisors on one switch. It has at most 254 external ports, since 255 means "drop" in a
/// linear forwarding table (IBA 18.2.4.3.3), and one of them is the subnet manager's.
pub const HYPERVISORS_MAX: usize = 253;

/// The most entries in the P_Key table of a virtual function.
pub const PKEYS_MAX: usize = 128;

/// Values of `guest_memory`, in bytes.
pub const GUEST_MEMORY: RangeInclusive<u64> = 1 << 20..=GUEST_MEMORY_OF_ALL;

/// Address space for the memory of all guests, in bytes: half of the 47 bits that a process has.
pub const GUEST_MEMORY_OF_ALL: u64 = 1 << 46;

/// A checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Directory of the sockets and the lock file; absolute.
    pub runtime_dir: PathBuf,
    /// Log filter, such as `info` or `info,ibvswitch_vfio_user=debug`.
    pub log: String,
    /// Permission bits of the VFs' sockets.
    pub socket_mode: u32,
    /// Sandbox of the daemon.
    pub sandbox: Sandbox,
    /// Warnings: values that take effect in another way than they are written, such as parts of a listing that are
    /// not kept.
    pub warnings: Vec<String>,
    /// Warnings about the files of `[sm]`, which a running daemon reads again.
    pub file_warnings: Vec<String>,
    /// Files that it was read from.
    pub read: Vec<PathBuf>,
    /// The configuration file among them, with no link in its path; none where it is the built-in one.
    pub file: Option<PathBuf>,
    /// The threads that execute work requests.
    pub engine: Engine,
    /// Processors and memory of the host.
    pub host: Host,
    /// Links and addresses.
    pub fabric: Fabric,
    /// The subnet managers: each subnet has one, and all are alike.
    pub manager: Manager,
    /// Files of the subnet managers.
    pub files: ManagerFiles,
    /// The subnets, at least one.
    pub subnets: Vec<Subnet>,
    /// Programs of the host on the subnet.
    pub external: External,
    /// By name, the P_Keys of the table `[partitions]`, without the bit of full membership.
    pub partitions: HashMap<String, u16>,
    /// The virtual clusters.
    pub clusters: Vec<Cluster>,
    /// By cluster, whether placement keeps VMs of others from its switches.
    pub exclusive_switches: Vec<bool>,
    /// VMs of clusters that have their VFs at other daemons.
    pub elsewhere: Vec<Elsewhere>,
    /// The switches and the cables between them.
    pub wiring: Wiring,
    /// The hypervisors, at least one unless the switches are those of a file.
    pub hypervisors: Vec<Hypervisor>,
}

/// Sandbox of a daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sandbox {
    /// The daemon keeps only the rights that it needs, as far as the kernel can confine it.
    #[default]
    Auto,
    /// Nothing.
    Off,
}

impl Sandbox {
    /// Their names.
    pub const NAMES: [(&'static str, Self); 2] = [("auto", Self::Auto), ("off", Self::Off)];
}

/// Table `[engine]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// Processor to pin the engine thread to, the next ones for further engines; `None` leaves it to the
    /// scheduler.
    pub cpu: Option<usize>,
    /// Number of engines.
    pub threads: Threads,
}

/// Number of engines of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// One less than the processors, and no more than the hypervisors.
    Auto,
    /// So many.
    Fixed(usize),
}

/// Most engines.
pub const ENGINES_MAX: usize = 64;

/// Files of the subnet managers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ManagerFiles {
    /// Partition configuration file in OpenSM's format.
    pub partitions: Option<PathBuf>,
    /// Policy of service levels, in OpenSM's format.
    pub policy: Option<PathBuf>,
    /// Congestion control, by the keys of OpenSM's configuration file.
    pub congestion: Option<PathBuf>,
    /// GUIDs of the switches that are roots, in OpenSM's format, as the next two.
    pub roots: Option<PathBuf>,
    /// GUIDs of the ports of compute nodes.
    pub compute: Option<PathBuf>,
    /// GUIDs of the ports of I/O nodes.
    pub io: Option<PathBuf>,
    /// Forwarding tables, in the form in which OpenSM dumps them.
    pub tables: Option<PathBuf>,
    /// Hops between switches, in the form in which OpenSM dumps them.
    pub hops: Option<PathBuf>,
    /// GUIDs of the ports whose LIDs are routed first, in OpenSM's format.
    pub order: Option<PathBuf>,
    /// The program that computes forwarding tables, with its arguments.
    pub routing_program: Vec<String>,
    /// Its time limit.
    pub routing_timeout: Duration,
    /// Directory of what they are to remember.
    pub state_dir: Option<PathBuf>,
}

impl ManagerFiles {
    /// The files that are read, also when the daemon runs.
    pub fn read(&self) -> impl Iterator<Item = &PathBuf> {
        let guids = [&self.roots, &self.compute, &self.io, &self.order];
        let Self {
            partitions,
            policy,
            congestion,
            tables,
            hops,
            ..
        } = self;
        let files = [partitions, policy, congestion, tables, hops];
        files.into_iter().chain(guids).flatten()
    }
}

/// Table `[external]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct External {
    /// Beginning of the sockets' names, in the abstract namespace; `None` if programs of the host are not served.
    pub socket: Option<String>,
    /// File that the daemon writes, with the partitions of clusters in OpenSM's format.
    pub partitions: Option<PathBuf>,
}

/// A table `[[hypervisor]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hypervisor {
    /// Name, unique among hypervisors.
    pub name: String,
    /// Its switch: which of [`Wiring::switches`].
    pub switch: usize,
    /// Node GUID of its vSwitch, derived from its name.
    pub vswitch_guid: Guid,
    /// Node and port GUID of its physical function, derived from its name.
    pub physical_guid: Guid,
    /// Processors for VMs; `None`: placement counts none.
    pub processors: Option<u64>,
    /// Bytes of memory for VMs; `None`: placement counts none.
    pub memory: Option<u64>,
    /// Its virtual functions, the spare ones last.
    pub vfs: Vec<Vf>,
    /// VFs that are passed through. They are no part of the subnet.
    pub hardware: Vec<Hardware>,
}

/// A table `[[cluster.elsewhere]]`: a VM of a cluster that has its VF at another daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elsewhere {
    /// The cluster, by its place in [`Config::clusters`].
    pub cluster: usize,
    /// The VM's LID there.
    pub virtual_lid: Lid,
    /// The port's LID in the subnet.
    pub lid: Lid,
    /// The port's GUID.
    pub guid: Guid,
}

/// A table `[[hypervisor.vf]]` with a `device`: a VF that is passed through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// Name, unique among all VFs.
    pub name: String,
    /// The VF behind it.
    pub device: passthrough::Device,
    /// Protection of the daemon's memory at the VF behind from the guest.
    pub isolation: Isolation,
    /// Reach of the guest's subnet management packets.
    pub smp: SmpAccess,
    /// Packets that the guest's queue pair 1 may send.
    pub mads: MadRules,
    /// Service levels of its guest's connections.
    pub service_levels: ServiceLevels,
    /// The cluster that its VM is in, by its place in [`Config::clusters`], and its LID there.
    pub cluster: Option<(usize, Lid)>,
    /// Its P_Key table from index 0; `None`: it has the table of the VF behind it.
    pub pkeys: Option<Vec<PKey>>,
    /// As [`Vf::guest_memory`].
    pub guest_memory: Option<u64>,
    /// Needs of its VM.
    pub needs: Needs,
    /// The vfio-user socket for its VM; absolute.
    pub socket: PathBuf,
}

/// A table `[[hypervisor.vf]]`, or `[[hypervisor.port]]`: one virtual function, to be attached to one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vf {
    /// Its part of the fabric.
    pub model: model::Vf,
    /// Kind of device that its VM has.
    pub kind: Kind,
    /// Way of the guest's doorbells to the engine; `None` until it is [settled](Config::settled).
    pub doorbells: Option<Doorbells>,
    /// After what its function is made.
    pub like: Likeness,
    /// Offloads of its function for IP over InfiniBand.
    pub ipoib: IpOverInfiniBand,
    /// Bytes of the daemon's memory that the guest's objects may take.
    pub object_memory: u64,
    /// The most memory that its VMM may share, in bytes; `None`: what all such VFs have.
    pub guest_memory: Option<u64>,
    /// Needs of its VM.
    pub needs: Needs,
    /// IP addresses that a VM with an Ethernet card may claim.
    pub claims: Claims,
    /// The vfio-user socket; absolute.
    pub socket: PathBuf,
}

/// Kind of device that a VM has at its VF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An InfiniBand HCA, over vfio-user.
    Hca,
    /// An Ethernet card of this address, over vhost-user, of which the frames are IPoIB in the subnet: a
    /// table `[[hypervisor.port]]`.
    VhostUserNet(Mac),
}

/// Functions that may be what a VF's is made after, with their names in the configuration.
pub const LIKENESSES: [(&str, Likeness); 2] = [
    ("plain", Likeness::Plain),
    ("connectx-5", Likeness::ConnectX5),
];

/// Offloads of a VF's function for IP over InfiniBand, with their names in the configuration.
pub const IPOIB: [(&str, IpOverInfiniBand); 2] = [
    ("basic", IpOverInfiniBand::Basic),
    ("enhanced", IpOverInfiniBand::Enhanced),
];

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{}: {source}; name a readable file with --config, or leave the option out for the built-in configuration (`ibvswitch config default` prints it)", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is not in UTF-8.
    #[error("{}{place}: not UTF-8 ({form}); save the file as UTF-8", .path.display())]
    Encoding {
        /// The file.
        path: PathBuf,
        /// The line, as in `:3`; empty where the whole file is in another form.
        place: String,
        /// The form that it seems to have.
        form: &'static str,
    },
    /// The text has mistakes.
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

/// So many mistakes at the same key are printed. A generated file with one mistake in its generator has
/// thousands of them, which would hide the others.
const PRINTED: usize = 10;

fn lines(problems: &[Problem]) -> String {
    let mut keys: BTreeMap<&str, usize> = BTreeMap::new();
    let mut lines = Vec::new();
    for problem in problems {
        let times = keys.entry(&problem.key).or_default();
        *times += 1;
        if *times <= PRINTED {
            lines.push(problem.to_string());
        }
    }
    for (key, times) in keys {
        if let Some(more @ 1..) = times.checked_sub(PRINTED) {
            lines.push(format!("… and {more} more mistakes at `{key}`"));
        }
    }
    lines.join("\n")
}

/// The filter that a text like `info,ibvswitch_vfio_user=debug` describes, of the key `log` or of the environment
/// variable `RUST_LOG`.
///
/// # Errors
/// The fault of the text, and the remedy.
pub fn log_filter(text: &str) -> Result<EnvFilter, (String, String)> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    for directive in text.split(',') {
        let named = directive.rsplit_once('=');
        let level = named.map_or(directive, |(_, level)| level);
        if !LEVELS.contains(&level) {
            let levels = document::list(&LEVELS);
            let remedy = format!(
                "the levels are {levels}; a directive is LEVEL or MODULE=LEVEL, separated by commas"
            );
            return Err((format!("`{level}` is no log level"), remedy));
        }
    }
    let wrong = |error: ParseError| {
        let remedy = "write something like \"info,ibvswitch_vfio_user=debug\"";
        (error.to_string(), remedy.to_owned())
    };
    EnvFilter::builder().parse(text).map_err(wrong)
}

/// Where a configuration comes from.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// The file, or `None` for [`DEFAULT`].
    pub file: Option<PathBuf>,
    /// A runtime directory that overrides the configured one.
    pub runtime_dir: Option<PathBuf>,
}

impl Source {
    /// Reads and checks the configuration.
    ///
    /// # Errors
    /// [`ConfigError`] says what to mend.
    pub fn load(&self) -> Result<Config, ConfigError> {
        match &self.file {
            None => self.parse(DEFAULT_ORIGIN, DEFAULT),
            Some(path) => {
                let text = read_text(path)?;
                let mut config = self.parse(&path.display().to_string(), &text)?;
                config.read.push(path.clone());
                config.file = std::fs::canonicalize(path).ok();
                Ok(config)
            }
        }
    }

    /// The runtime directory: as given, without a look at the file; else as the file says, even where there are mistakes
    /// in the rest of it, which are returned.
    ///
    /// # Errors
    /// [`ConfigError`] of a file that cannot be read.
    pub fn locate(&self) -> Result<(PathBuf, Option<ConfigError>), ConfigError> {
        if let Some(chosen) = &self.runtime_dir {
            let whole = std::path::absolute(chosen).unwrap_or_else(|_| chosen.clone());
            return Ok((whole, None));
        }
        match (self.load(), &self.file) {
            (Ok(config), _) => Ok((config.runtime_dir, None)),
            (Err(mistakes @ ConfigError::Invalid(_)), Some(path)) => {
                let named = document::line_of(&read_text(path)?, "runtime_dir").map(PathBuf::from);
                let dir = named.filter(|dir| dir.is_absolute());
                Ok((dir.unwrap_or_else(default_runtime_dir), Some(mistakes)))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Checks a text in place of the file; `origin` names it in problems.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`].
    pub fn parse(&self, origin: &str, text: &str) -> Result<Config, ConfigError> {
        let fallback = default_runtime_dir();
        let dirs = Directories {
            chosen: self.runtime_dir.as_deref(),
            fallback: &fallback,
        };
        Config::parse(origin, text, dirs)
    }
}

/// The text of a file.
///
/// # Errors
/// [`ConfigError`] of a file that cannot be read, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, ConfigError> {
    let owned = || path.to_owned();
    let bytes = std::fs::read(path);
    let bytes = bytes.map_err(|source| ConfigError::Unreadable {
        path: owned(),
        source,
    })?;
    let wide = matches!(
        bytes[..],
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [_, 0, _, 0, ..] | [0, _, 0, _, ..]
    );
    if wide {
        return Err(ConfigError::Encoding {
            path: owned(),
            place: String::new(),
            form: "it looks like UTF-16",
        });
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        ConfigError::Encoding {
            path: owned(),
            place: format!(":{line}"),
            form: "it may be Latin-1",
        }
    })
}

/// The runtime directory where the configuration does not settle it.
#[derive(Debug, Clone, Copy)]
pub struct Directories<'a> {
    /// Given on the command line: goes before the configuration.
    pub chosen: Option<&'a Path>,
    /// Used when the configuration has none either.
    pub fallback: &'a Path,
}

impl Config {
    /// Reads and checks a configuration text; `origin` names it in problems.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every mistake found.
    pub fn parse(origin: &str, text: &str, dirs: Directories<'_>) -> Result<Self, ConfigError> {
        read::read(origin, text, dirs).map_err(ConfigError::Invalid)
    }

    /// All VFs, each with its hypervisor, in the order of the configuration.
    pub fn vfs(&self) -> impl Iterator<Item = (&Hypervisor, &Vf)> {
        self.hypervisors
            .iter()
            .flat_map(|hypervisor| hypervisor.vfs.iter().map(move |vf| (hypervisor, vf)))
    }

    /// All VFs that are passed through, in the order of the configuration.
    pub fn hardware(&self) -> impl Iterator<Item = &Hardware> {
        let hypervisors = self.hypervisors.iter();
        hypervisors.flat_map(|hypervisor| &hypervisor.hardware)
    }

    /// The same, each with its hypervisor.
    pub fn hardware_of(&self) -> impl Iterator<Item = (&Hypervisor, &Hardware)> {
        let hypervisors = self.hypervisors.iter();
        hypervisors.flat_map(|at| at.hardware.iter().map(move |vf| (at, vf)))
    }

    /// VMs of all VFs that are not spare, in the order of the configuration. A port that does not speak of its VM may
    /// be that of a VM with a VF.
    pub fn vms(&self) -> impl Iterator<Item = Vm<'_>> {
        self.hypervisors.iter().flat_map(|hypervisor| {
            let is_a_vm = |vf: &&Vf| vf.kind == Kind::Hca || vf.needs.are_planned();
            let vfs = hypervisor.vfs.iter().filter(|vf| !vf.model.spare);
            let vfs = vfs.filter(is_a_vm);
            let vfs = vfs.map(|vf| Vm {
                name: &vf.model.name,
                memory: vf.guest_memory,
                needs: vf.needs,
            });
            let hardware = hypervisor.hardware.iter().map(|vf| Vm {
                name: &vf.name,
                memory: vf.guest_memory,
                needs: vf.needs,
            });
            vfs.chain(hardware)
        })
    }

    /// The VF of that name.
    pub fn vf(&self, name: &str) -> Option<(&Hypervisor, &Vf)> {
        self.vfs().find(|(_, vf)| vf.model.name == name)
    }

    /// Returns the number of engines on this machine.
    pub fn engine_count(&self) -> usize {
        self.engine_count_on(std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Returns the number of engines on a machine of so many processors.
    pub fn engine_count_on(&self, processors: usize) -> usize {
        match self.engine.threads {
            Threads::Fixed(count) => count,
            Threads::Auto => {
                let most = self.hypervisors.len().min(ENGINES_MAX);
                processors.saturating_sub(1).min(most).max(1)
            }
        }
    }

    /// Returns the way of doorbells to the engine on a machine of so many processors, if the configuration leaves it
    /// to the daemon: with a processor for each VM and each engine a doorbell is a store, and nothing spins while VMs
    /// rest; with fewer processors, an engine and a VM would take turns.
    pub fn suitable_doorbells(&self, processors: usize) -> Doorbells {
        if processors >= self.processors_of_all(processors) {
            Doorbells::Adaptive
        } else {
            Doorbells::Trap
        }
    }

    /// Returns the number of processors that VMs of one processor each and polling engines would take, on a machine
    /// of so many.
    pub fn processors_of_all(&self, processors: usize) -> usize {
        let vms = self.vfs().filter(|(_, vf)| !vf.model.spare).count() + self.hardware().count();
        vms + self.engine_count_on(processors)
    }

    /// The same configuration with this mode where it leaves the choice to the daemon; without one, with what suits this
    /// machine.
    #[must_use]
    pub fn settled(mut self, mode: Option<Doorbells>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mode = mode.unwrap_or_else(|| self.suitable_doorbells(processors));
        let vfs = self.hypervisors.iter_mut().flat_map(|it| &mut it.vfs);
        for vf in vfs {
            vf.doorbells.get_or_insert(mode);
        }
        self
    }

    /// The subnet that a hypervisor is in: which of [`Config::subnets`].
    pub fn subnet_of(&self, hypervisor: &Hypervisor) -> usize {
        self.wiring.switches[hypervisor.switch].subnet
    }

    /// Returns the model of the fabric: everything but the daemon's own settings.
    pub fn model(&self) -> model::Model {
        let hypervisors = self.hypervisors.iter().map(|hypervisor| model::Hypervisor {
            name: hypervisor.name.clone(),
            switch: hypervisor.switch,
            vswitch_guid: hypervisor.vswitch_guid,
            physical_guid: hypervisor.physical_guid,
            vfs: hypervisor.vfs.iter().map(|vf| vf.model.clone()).collect(),
        });
        model::Model {
            fabric: self.fabric.clone(),
            manager: self.manager.clone(),
            subnets: self.subnets.clone(),
            clusters: self.clusters.clone(),
            wiring: self.wiring.clone(),
            hypervisors: hypervisors.collect(),
        }
    }

    /// The socket on which the daemon answers `status` and the like.
    pub fn control_socket(&self) -> PathBuf {
        self.runtime_dir.join(CONTROL_SOCKET)
    }
}

/// The name of the daemon's control socket in its runtime directory.
pub const CONTROL_SOCKET: &str = "control.sock";

/// `$RUNTIME_DIRECTORY` (systemd's `RuntimeDirectory=`), else `/run/ibvswitch` for root, else
/// `$XDG_RUNTIME_DIR/ibvswitch`, else `/tmp/ibvswitch-UID`.
fn default_runtime_dir() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let user = nix::unistd::geteuid();
    if let Some(dir) = variable("RUNTIME_DIRECTORY") {
        PathBuf::from(dir)
    } else if user.is_root() {
        PathBuf::from("/run/ibvswitch")
    } else if let Some(dir) = variable("XDG_RUNTIME_DIR") {
        PathBuf::from(dir).join("ibvswitch")
    } else {
        PathBuf::from(format!("/tmp/ibvswitch-{user}"))
    }
}
