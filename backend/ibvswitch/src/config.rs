//! The configuration of the daemon: TOML, checked as a whole before anything starts.
//!
//! Every key is explained in `docs/users/configuration.md`, and the built-in configuration
//! ([`DEFAULT`]) shows each with its default. A mistake is a [`Problem`] that names file, line,
//! key, value and remedy; all mistakes of a file are reported together.

mod document;
mod guid;
mod keys;
mod mads;
mod model;
mod names;
mod read;
#[cfg(test)]
mod tests;
mod wiring;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fabric::SmpAccess;
use hca::ServiceLevels;
use serde::{Deserialize, Serialize};
use wire::{Guid, Lid, LinkWidth, Mtu, PKey};

pub use document::Problem;
pub(crate) use guid::derive_guid;
pub use mads::{GmpClass, GmpClasses, MadRate, MadRules};
pub use model::{Address, AddressModel};
pub use names::LinkRate;
pub(crate) use names::SMP_ACCESS;
pub use wiring::{Router, RouterPort, Switch, Wiring};

/// The configuration used when none is named: two hypervisors behind one switch, one VF each.
pub const DEFAULT: &str = include_str!("config/default.toml");

/// What problems in [`DEFAULT`] are attributed to, and what it is called in messages.
pub const DEFAULT_ORIGIN: &str = "built-in configuration";

/// The most bytes of a UNIX socket's path: `sun_path` holds 108 and the last is a NUL (unix(7)).
pub const SOCKET_PATH_MAX: usize = 107;

/// The most virtual functions of one hypervisor, as on a ConnectX port.
pub const VFS_PER_HYPERVISOR_MAX: usize = 127;

/// The most hypervisors on one switch. It has at most 254 external ports, since 255 means "drop" in a
/// linear forwarding table (IBA 18.2.4.3.3), and one of them is the subnet manager's.
pub const HYPERVISORS_MAX: usize = 253;

/// Name of the node that the embedded subnet manager runs on; with several subnets, their names
/// follow.
pub const MANAGER: &str = "subnet manager";

/// The most entries in the P_Key table of a virtual function.
pub const PKEYS_MAX: usize = 128;

/// A checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Directory of the sockets and the lock file; absolute.
    pub runtime_dir: PathBuf,
    /// Log filter, such as `info` or `info,ibvswitch_vfio_user=debug`.
    pub log: String,
    /// Permission bits of the VFs' sockets.
    pub socket_mode: u32,
    /// The thread that executes work requests.
    pub engine: Engine,
    /// Links and addresses.
    pub fabric: Fabric,
    /// The subnet managers: each subnet has one, and all are alike.
    pub manager: Manager,
    /// The subnets, at least one.
    pub subnets: Vec<Subnet>,
    /// Programs of the host on the subnet.
    pub external: External,
    /// The virtual clusters.
    pub clusters: Vec<Cluster>,
    /// The switches and the cables between them.
    pub wiring: Wiring,
    /// The hypervisors, at least one unless the switches are those of a file.
    pub hypervisors: Vec<Hypervisor>,
}

/// Table `[engine]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// Processor to pin the engine thread to; `None` leaves it to the scheduler.
    pub cpu: Option<usize>,
}

/// Table `[fabric]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fabric {
    /// How VFs come by LIDs.
    pub model: AddressModel,
    /// Whether drivers of VFs that share a LID are told that every packet needs a global route header.
    pub grh_required: bool,
    /// Whether VMs get LIDs of 18 bits, where all nodes speak them.
    pub extended_lids: bool,
    /// Largest packet payload of all links.
    pub mtu: Mtu,
    /// Lanes of a link.
    pub link_width: LinkWidth,
    /// Signalling rate of a lane.
    pub link_speed: LinkRate,
}

/// A subnet: a manager, LIDs and a prefix of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subnet {
    /// Name, unique among subnets; `None` where there are no tables `[[subnet]]`.
    pub name: Option<String>,
    /// Upper half of every GID.
    pub prefix: u64,
    /// What its manager runs on.
    pub manager: ManagerHost,
}

/// The node that a subnet's manager runs on; with a file of nodes, one of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerHost {
    /// Its name.
    pub name: String,
    /// GUID of its port, always the same.
    pub guid: Guid,
    /// LID of its port.
    pub lid: Lid,
    /// Its switch: which of [`Wiring::switches`]; of no meaning where there is a file.
    pub switch: usize,
}

/// Table `[sm]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manager {
    /// Where it is.
    pub place: ManagerPlace,
    /// LID mask control of adapters' ports.
    pub lmc: u8,
    /// Time between two sweeps.
    pub sweep_interval: Duration,
    /// Priority among subnet managers, 15 the highest.
    pub priority: u8,
    /// How paths are computed.
    pub routing: RoutingChoice,
    /// Roots of up*/down* routing; none: found by themselves.
    pub roots: Vec<Guid>,
    /// Partition configuration file in OpenSM's format.
    pub partitions_file: Option<PathBuf>,
    /// Whether switches check P_Keys at ports with an adapter.
    pub enforce_partitions: bool,
    /// Where it keeps what it is to remember.
    pub state_dir: Option<PathBuf>,
    /// The most data lanes that links use.
    pub max_lanes: Option<u8>,
    /// The lane of each service level.
    pub sl_to_vl: Option<wire::attribute::SlToVl>,
    /// How lanes share links.
    pub arbitration: Option<subnet::Arbitration>,
    /// Which management keys ports are given.
    pub m_key: KeyChoice,
    /// What they protect: 0 to 3 (IBA 14.2.4).
    pub m_key_protect: u8,
    /// Seconds until a port with a key that nobody knows falls back to level 0; 0: never.
    pub m_key_lease: u16,
    /// Percentage of paths on the busiest link at which they are spread anew.
    pub rebalance_threshold: Option<u16>,
    /// Whether answers to path queries say that they may be kept.
    pub path_caching: bool,
}

/// Which management keys ports are given.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyChoice {
    /// None.
    #[default]
    None,
    /// Each node another one, at random.
    PerNode,
    /// All this one.
    One(u64),
}

impl fmt::Debug for KeyChoice {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::PerNode => "PerNode",
            Self::One(_) => "One",
        })
    }
}

/// How paths are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RoutingChoice {
    /// Shortest paths.
    #[default]
    MinHop,
    /// Up*/down*.
    UpDown,
    /// Fat-tree routing.
    FatTree,
    /// Fat-tree routing in which the VMs of a vSwitch share its weight.
    VSwitchFatTree,
    /// Shortest paths spread over links and lanes.
    Dfsssp,
    /// Shortest paths between switches, layered over lanes.
    Lash,
    /// Tori and meshes, one dimension after the other.
    DimensionOrder,
}

impl RoutingChoice {
    /// All engines with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 7] = [
        ("minhop", Self::MinHop),
        ("updn", Self::UpDown),
        ("ftree", Self::FatTree),
        ("vswitch-ftree", Self::VSwitchFatTree),
        ("dfsssp", Self::Dfsssp),
        ("lash", Self::Lash),
        ("dor", Self::DimensionOrder),
    ];
}

/// Where the subnet manager is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ManagerPlace {
    /// In the daemon.
    #[default]
    Embedded,
    /// A program of the host, or in a guest.
    External,
}

impl ManagerPlace {
    /// All places with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 2] =
        [("embedded", Self::Embedded), ("external", Self::External)];
}

/// Table `[external]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct External {
    /// What the names of the sockets begin with, in the abstract namespace; `None` when programs
    /// of the host are not served.
    pub socket: Option<String>,
}

/// A table `[[cluster]]`: VMs with a LID space of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Name, unique among clusters.
    pub name: String,
    /// The LID by which its VMs know the subnet manager.
    pub sm_lid: Lid,
    /// What its VMs see of the subnet.
    pub view: View,
}

/// What VMs of a cluster see of the subnet when they ask its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum View {
    /// Their own port.
    #[default]
    OwnPort,
    /// The part of it that serves the cluster, under names of its own.
    Mirror,
}

impl View {
    /// Both with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 2] =
        [("own-port", Self::OwnPort), ("mirror", Self::Mirror)];
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
    /// Its virtual functions, the spare ones last.
    pub vfs: Vec<Vf>,
}

impl Hypervisor {
    /// Whether its physical function is a port of the subnet, whose LID VFs share.
    pub fn has_physical_function(&self, model: AddressModel) -> bool {
        model == AddressModel::SharedPort || self.vfs.iter().any(|vf| vf.address == Address::Shared)
    }

    /// Name of the physical function: without a vSwitch it is all there is of the hypervisor.
    pub fn physical_function(&self, model: AddressModel) -> String {
        match self.has_vswitch(model) {
            false => self.name.clone(),
            true => format!("{}-pf", self.name),
        }
    }

    /// Whether it has a vSwitch: in Shared Port it is an adapter with one port.
    pub fn has_vswitch(&self, model: AddressModel) -> bool {
        model != AddressModel::SharedPort
    }
}

/// A table `[[hypervisor.vf]]`: one virtual function, to be attached to one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vf {
    /// Name, unique among all VFs.
    pub name: String,
    /// Whether it has a LID of its own.
    pub address: Address,
    /// LID, or `None` to let the subnet manager choose.
    pub lid: Option<Lid>,
    /// Node and port GUID. Derived from the name unless configured.
    pub guid: Guid,
    /// P_Key table from index 0, membership bit included; never empty.
    pub pkeys: Vec<PKey>,
    /// Whether the configuration gives it this table itself.
    pub has_pkeys: bool,
    /// How the guest's doorbells reach the engine.
    pub doorbells: Doorbells,
    /// Bytes of the daemon's memory that the guest's objects may take.
    pub object_memory: u64,
    /// The most memory that its VMM may share, in bytes; `None`: what all such VFs have.
    pub guest_memory: Option<u64>,
    /// How far the guest's subnet management packets go.
    pub smp: SmpAccess,
    /// Which of its management packets pass, and how many.
    pub mads: MadRules,
    /// Its virtual cluster (index in [`Config::clusters`]), and its LID there.
    pub cluster: Option<(usize, Lid)>,
    /// The P_Keys its guest sees in place of those in `pkeys`, by index; empty: those.
    pub virtual_pkeys: Vec<PKey>,
    /// The service levels it may use.
    pub service_levels: ServiceLevels,
    /// The vfio-user socket; absolute.
    pub socket: PathBuf,
    /// Whether it has no VM of its own: a VM may move to it.
    pub spare: bool,
}

/// How doorbells of a VF reach the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doorbells {
    /// Each doorbell is a write that leaves the guest: nothing spins.
    #[default]
    Trap,
    /// The guest writes memory and the engine watches doorbell records: one processor spins.
    Poll,
    /// As `poll` while there is traffic, as `trap` when there is none.
    Adaptive,
}

impl Doorbells {
    /// All modes with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("trap", Self::Trap),
        ("poll", Self::Poll),
        ("adaptive", Self::Adaptive),
    ];
}

impl fmt::Display for Doorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Trap => "trap",
            Self::Poll => "poll",
            Self::Adaptive => "adaptive",
        })
    }
}

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
    /// The text has mistakes.
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

fn lines(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(Problem::to_string)
        .collect::<Vec<_>>()
        .join("\n")
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
        let fallback = default_runtime_dir();
        let dirs = Directories {
            chosen: self.runtime_dir.as_deref(),
            fallback: &fallback,
        };
        match &self.file {
            None => Config::parse(DEFAULT_ORIGIN, DEFAULT, dirs),
            Some(path) => {
                let text =
                    std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
                        path: path.clone(),
                        source,
                    })?;
                Config::parse(&path.display().to_string(), &text, dirs)
            }
        }
    }
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

    /// Whether a VF's guest sees more of the subnet than its own port: its cluster's view.
    pub fn has_view(&self, vf: &Vf) -> bool {
        let cluster = vf
            .cluster
            .and_then(|(cluster, _)| self.clusters.get(cluster));
        cluster.is_some_and(|cluster| cluster.view == View::Mirror)
    }

    /// The VF of that name.
    pub fn vf(&self, name: &str) -> Option<(&Hypervisor, &Vf)> {
        self.vfs().find(|(_, vf)| vf.name == name)
    }

    /// Whether VFs with a LID of their own have it only while a VM runs.
    pub fn has_dynamic_lids(&self) -> bool {
        let external = self.manager.place == ManagerPlace::External;
        self.fabric.model.is_dynamic(external)
    }

    /// The subnet that a hypervisor is in: which of [`Config::subnets`].
    pub fn subnet_of(&self, hypervisor: &Hypervisor) -> usize {
        self.wiring.switches[hypervisor.switch].subnet
    }

    /// The socket on which the daemon answers `status` and the like.
    pub fn control_socket(&self) -> PathBuf {
        self.runtime_dir.join(CONTROL_SOCKET)
    }
}

const CONTROL_SOCKET: &str = "control.sock";

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
