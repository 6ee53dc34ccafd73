//! Models piece by piece, with what holds where nothing else is said.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric::SmpAccess;
use hca::ServiceLevels;
use wire::{Gid, Lid, LinkWidth, Mtu, PKey};

use super::{
    Address, AddressModel, Bandwidth, Cluster, Fabric, FullMode, GmpClasses, Hypervisor, KeyChoice,
    LinkRate, MANAGER, MadRate, MadRules, Manager, ManagerHost, ManagerPlace, Model, Multipath,
    RoutingChoice, Subnet, Switch, Vf, View, Wiring, derive_guid,
};

impl Default for Fabric {
    fn default() -> Self {
        Self {
            model: AddressModel::default(),
            grh_required: true,
            extended_lids: false,
            strict: false,
            mtu: Mtu::B4096,
            link_width: LinkWidth::X4,
            link_speed: LinkRate::Edr,
            bandwidth: Bandwidth::Unlimited,
        }
    }
}

impl Default for Manager {
    fn default() -> Self {
        Self {
            place: ManagerPlace::Embedded,
            lmc: 0,
            multipath: Multipath::default(),
            sweep_interval: Duration::from_secs(10),
            priority: 0,
            routing: RoutingChoice::default(),
            nue_lanes: None,
            ucast_cache: false,
            roots: Vec::new(),
            enforce_partitions: false,
            cluster_lanes: false,
            max_lanes: None,
            sl_to_vl: None,
            arbitration: None,
            kinds: BTreeMap::new(),
            m_key: KeyChoice::None,
            m_key_protect: 2,
            m_key_lease: 60,
            rebalance_threshold: None,
            path_caching: false,
        }
    }
}

impl Model {
    /// One subnet of these switches, with the subnet manager's host at the first.
    #[must_use]
    pub fn new(switches: &[&str]) -> Self {
        let mut model = Self {
            fabric: Fabric::default(),
            manager: Manager::default(),
            subnets: Vec::new(),
            clusters: Vec::new(),
            wiring: Wiring {
                switches: Vec::new(),
                cables: Vec::new(),
                routers: Vec::new(),
                file: None,
            },
            hypervisors: Vec::new(),
        };
        model.add_subnet(None, Gid::DEFAULT_PREFIX, switches);
        model
    }

    /// Adds a subnet of these switches, with its manager's host at the first.
    pub fn add_subnet(&mut self, name: Option<&str>, prefix: u64, switches: &[&str]) {
        let host = match name {
            Some(name) => format!("{MANAGER} {name}"),
            None => MANAGER.to_owned(),
        };
        let subnet = self.subnets.len();
        self.subnets.push(Subnet {
            name: name.map(str::to_owned),
            prefix,
            manager: ManagerHost {
                guid: derive_guid("node", &host),
                name: host,
                lid: Lid::new(1),
                switch: self.wiring.switches.len(),
            },
        });
        for &name in switches {
            self.wiring.switches.push(Switch {
                name: name.to_owned(),
                guid: derive_guid("switch", name),
                subnet,
                extended_lids: true,
            });
        }
    }

    /// Adds a cable between two switches, named by their places in [`Wiring::switches`].
    pub fn add_cable(&mut self, from: usize, to: usize) {
        self.wiring.cables.push((from, to));
    }

    /// Adds a hypervisor at a switch.
    pub fn add_hypervisor(&mut self, name: &str, switch: usize, vfs: Vec<Vf>) {
        self.hypervisors.push(Hypervisor {
            name: name.to_owned(),
            switch,
            vswitch_guid: derive_guid("vswitch", name),
            physical_guid: derive_guid("PF", name),
            vfs,
        });
    }

    /// Adds a virtual cluster.
    pub fn add_cluster(&mut self, name: &str, sm_lid: Lid, view: View) {
        self.clusters.push(Cluster {
            name: name.to_owned(),
            sm_lid,
            view,
            full_mode: FullMode::default(),
            share: 1,
        });
    }
}

impl Vf {
    /// A VF with a LID of its own and a VM of this name, which may do what VMs may.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            address: Address::Dedicated,
            requires_lid: false,
            lid: None,
            guid: derive_guid("VF", name),
            pkeys: vec![PKey::DEFAULT_FULL],
            has_pkeys: false,
            node_guid: None,
            smp: SmpAccess::OwnPort,
            mads: MadRules {
                classes: GmpClasses::default(),
                rate: Some(MadRate::default()),
                class_rates: Vec::new(),
            },
            cluster: None,
            virtual_pkeys: Vec::new(),
            service_levels: ServiceLevels::default(),
            spare: false,
            ethernet: false,
        }
    }

    /// A VF without a VM.
    #[must_use]
    pub fn spare(name: &str) -> Self {
        Self {
            spare: true,
            ..Self::new(name)
        }
    }

    /// The same for a VM with an Ethernet card.
    #[must_use]
    pub fn ethernet(self) -> Self {
        Self {
            ethernet: true,
            smp: SmpAccess::Deny,
            ..self
        }
    }

    /// The same, sharing a port.
    #[must_use]
    pub fn shared(self) -> Self {
        Self {
            address: Address::Shared,
            // Queue pair 0 of a shared port is its physical function's.
            smp: SmpAccess::Deny,
            ..self
        }
    }

    /// The same, at a virtual port: with a LID of its own or without.
    #[must_use]
    pub fn virtualized(self, requires_lid: bool) -> Self {
        Self {
            requires_lid,
            ..self.shared()
        }
    }

    /// The same, in a virtual cluster with this LID.
    #[must_use]
    pub fn in_cluster(self, cluster: usize, lid: u16) -> Self {
        Self {
            cluster: Some((cluster, Lid::new(lid))),
            ..self
        }
    }
}
