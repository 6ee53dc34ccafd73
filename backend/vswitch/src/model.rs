//! The model of a virtual fabric: plain data, checked by whoever made it of a configuration.

mod address;
mod build;
mod cluster;
mod guid;
mod link_rate;
mod mads;
mod manager;
mod wiring;

use fabric::SmpAccess;
use hca::ServiceLevels;
use wire::{Guid, Lid, LinkWidth, Mtu, PKey};

pub use address::{Address, AddressModel};
pub use cluster::{Cluster, FullMode, FullModeEnd, View};
pub use guid::{derive_guid, derive_name};
pub use link_rate::LinkRate;
pub use mads::{GmpClass, GmpClasses, MadRate, MadRules};
pub use manager::{KeyChoice, Manager, ManagerPlace};
pub use subnet_manager::routing::RoutingChoice;
pub use subnet_manager::routing::multipath::{LidChoice, Multipath, PathChoice};
pub use wiring::{FileNodes, Router, RouterPort, Switch, Wiring};

/// Name of the node that an embedded subnet manager runs on; with several subnets, their names
/// follow.
pub const MANAGER: &str = "subnet manager";

/// Subnets, their managers, hypervisors with their VFs, virtual clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Links and addresses.
    pub fabric: Fabric,
    /// The subnet managers: each subnet has one, and all are alike.
    pub manager: Manager,
    /// The subnets, at least one.
    pub subnets: Vec<Subnet>,
    /// The virtual clusters.
    pub clusters: Vec<Cluster>,
    /// The switches and the cables between them.
    pub wiring: Wiring,
    /// The hypervisors.
    pub hypervisors: Vec<Hypervisor>,
}

impl Model {
    /// All VFs, each with its hypervisor, in their order.
    pub fn vfs(&self) -> impl Iterator<Item = (&Hypervisor, &Vf)> {
        self.hypervisors
            .iter()
            .flat_map(|hypervisor| hypervisor.vfs.iter().map(move |vf| (hypervisor, vf)))
    }

    /// The view that a VF's guest has of the subnet.
    #[must_use]
    pub fn view(&self, vf: &Vf) -> View {
        let cluster = { vf.cluster }.and_then(|(cluster, _)| self.clusters.get(cluster));
        cluster.map_or(View::OwnPort, |cluster| cluster.view)
    }

    /// Whether VFs with a LID of their own have it only while a VM runs.
    #[must_use]
    pub fn has_dynamic_lids(&self) -> bool {
        let external = self.manager.place == ManagerPlace::External;
        self.fabric.model.is_dynamic(external)
    }

    /// The subnet that a hypervisor is in: which of [`Model::subnets`].
    #[must_use]
    pub fn subnet_of(&self, hypervisor: &Hypervisor) -> usize {
        self.wiring.switches[hypervisor.switch].subnet
    }
}

/// Links and addresses of all subnets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fabric {
    /// The source of VFs' LIDs.
    pub model: AddressModel,
    /// Whether drivers of VFs that share a LID are told that every packet needs a global route header.
    pub grh_required: bool,
    /// Whether VMs get LIDs of 18 bits, where all nodes speak them.
    pub extended_lids: bool,
    /// Whether switches answer management packets as strictly as NDR switches.
    pub strict: bool,
    /// Largest packet payload of all links.
    pub mtu: Mtu,
    /// Lanes of a link.
    pub link_width: LinkWidth,
    /// Signalling rate of a lane.
    pub link_speed: LinkRate,
    /// The bandwidth for data.
    pub bandwidth: Bandwidth,
}

/// The bandwidth that links have for data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Bandwidth {
    /// As much as the machine has.
    #[default]
    Unlimited,
    /// As their width and speed say, shared among lanes by the ports' arbitration tables.
    Model,
}

impl Bandwidth {
    /// Both with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 2] =
        [("unlimited", Self::Unlimited), ("model", Self::Model)];
}

/// A subnet: a manager, LIDs and a prefix of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subnet {
    /// Name, unique among subnets; `None` where there is one subnet alone and it has none.
    pub name: Option<String>,
    /// Upper half of every GID.
    pub prefix: u64,
    /// The host of its manager.
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

/// A hypervisor and its virtual functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hypervisor {
    /// Name, unique among hypervisors.
    pub name: String,
    /// Its switch: which of [`Wiring::switches`].
    pub switch: usize,
    /// Node GUID of its vSwitch.
    pub vswitch_guid: Guid,
    /// Node and port GUID of its physical function.
    pub physical_guid: Guid,
    /// Its virtual functions, the spare ones last.
    pub vfs: Vec<Vf>,
}

impl Hypervisor {
    /// Name of the physical function: without a vSwitch it is all there is of the hypervisor.
    #[must_use]
    pub fn physical_function(&self, model: AddressModel) -> String {
        if model.has_vswitch() {
            format!("{}-pf", self.name)
        } else {
            self.name.clone()
        }
    }
}

/// A virtual function, and the VM that is configured there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vf {
    /// Name, unique among all VFs.
    pub name: String,
    /// Whether it has a LID of its own.
    pub address: Address,
    /// Whether it has a LID of its own at the port that it shares: its virtual port requires one.
    pub requires_lid: bool,
    /// LID, or `None` to let the subnet manager choose.
    pub lid: Option<Lid>,
    /// GUID of its port, and of its node in the subnet.
    pub guid: Guid,
    /// GUID of the node as its guest sees it, where it is another one.
    pub node_guid: Option<Guid>,
    /// P_Key table from index 0, membership bit included; never empty.
    pub pkeys: Vec<PKey>,
    /// Whether this table holds although a partition configuration file may say another.
    pub has_pkeys: bool,
    /// The reach of the guest's subnet management packets.
    pub smp: SmpAccess,
    /// The rules for its management packets: classes and rates.
    pub mads: MadRules,
    /// Its virtual cluster (index in [`Model::clusters`]), and its LID there.
    pub cluster: Option<(usize, Lid)>,
    /// The P_Keys its guest sees in place of those in `pkeys`, by index; empty: those.
    pub virtual_pkeys: Vec<PKey>,
    /// The service levels it may use.
    pub service_levels: ServiceLevels,
    /// Whether it has no VM of its own: a VM may move to it.
    pub spare: bool,
    /// Whether its VM has an Ethernet card there, and no HCA. VMs move between places of a kind.
    pub ethernet: bool,
}

impl Vf {
    /// Whether it shares a port and has one of the port's LIDs for itself.
    #[must_use]
    pub fn is_clustered(&self) -> bool {
        self.address == Address::Shared && self.cluster.is_some()
    }

    /// Whether it shares a port, and has a LID for itself there.
    #[must_use]
    pub fn has_own_lid(&self) -> bool {
        self.requires_lid || self.is_clustered()
    }
}
