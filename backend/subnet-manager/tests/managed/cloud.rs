//! Hypervisors with VMs that may move, start and end.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{Fabric, LinkRate, NodeId, NodeSpec, PortRef, Topology};
use ibvswitch_subnet_manager::{Config, Migration, MigrationError, Moved, Target};
use wire::mad::{AttributeId, Method as MadMethod};
use wire::{Guid, Lid, PKey};

use crate::harness::Managed;

pub const SWITCH: u64 = 0x0002_c903_0100_0000;
pub const NODE: u64 = 0x0002_c903_0000_0000;

pub fn switch_guid(number: usize) -> Guid {
    Guid::new(SWITCH + 1 + number as u64)
}

pub fn node_guid(number: usize) -> Guid {
    Guid::new(NODE + 1 + number as u64)
}

/// Hypervisors below two levels of switches: the vSwitch of each has an uplink and functions.
pub struct Cloud {
    pub leaves: usize,
    pub spines: usize,
    pub hypervisors: usize,
    pub functions: usize,
    pub vms: usize,
}

impl Cloud {
    pub const SMALL: Self = Self {
        leaves: 6,
        spines: 3,
        hypervisors: 4,
        functions: 4,
        vms: 2,
    };

    pub fn vswitch(&self, hypervisor: usize) -> Guid {
        switch_guid(self.spines + self.leaves + hypervisor)
    }

    pub fn function(&self, hypervisor: usize, function: usize) -> Guid {
        node_guid(hypervisor * self.functions + function)
    }

    pub fn all(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (hypervisors, functions) = (self.leaves * self.hypervisors, self.functions);
        (0..hypervisors).flat_map(move |h| (0..functions).map(move |f| (h, f)))
    }

    pub fn spares(&self) -> BTreeSet<Guid> {
        self.all()
            .filter(|&(_, function)| function >= self.vms)
            .map(|(h, f)| self.function(h, f))
            .collect()
    }

    pub fn manager(&self) -> Guid {
        Guid::new(NODE + 0xffff)
    }

    pub fn topology(&self) -> Topology {
        let mut topology = Topology::new();
        let rate = LinkRate::default();
        let switch = |topology: &mut Topology, number, ports: usize| {
            topology.add(NodeSpec::switch(switch_guid(number), ports as u8, "switch"))
        };
        let spines: Vec<NodeId> = (0..self.spines)
            .map(|number| switch(&mut topology, number, self.leaves + 1))
            .collect();
        let manager = self.manager();
        let manager = topology.add(NodeSpec::channel_adapter(manager, manager, "manager"));
        topology.link((spines[0], self.leaves as u8 + 1), (manager, 1), rate);
        for leaf in 0..self.leaves {
            let ports = self.hypervisors + self.spines;
            let here = switch(&mut topology, self.spines + leaf, ports);
            for (spine, &above) in spines.iter().enumerate() {
                let up = (here, (self.hypervisors + 1 + spine) as u8);
                topology.link(up, (above, 1 + leaf as u8), rate);
            }
            for below in 0..self.hypervisors {
                let hypervisor = leaf * self.hypervisors + below;
                let number = self.spines + self.leaves + hypervisor;
                let vswitch = switch(&mut topology, number, 1 + self.functions);
                topology.link((here, 1 + below as u8), (vswitch, 1), rate);
                for function in 0..self.functions {
                    let guid = self.function(hypervisor, function);
                    let spec = NodeSpec::virtual_function(guid, "function");
                    let node = topology.add(spec);
                    topology.link((vswitch, 2 + function as u8), (node, 1), rate);
                }
            }
        }
        topology
    }

    pub fn config(&self) -> Config {
        Config {
            spare_functions: self.spares(),
            ..Config::default()
        }
    }

    pub fn managed(&self, config: Config) -> Managed {
        let fabric = Fabric::new(&self.topology()).unwrap();
        let mut managed = Managed::new(fabric, self.manager(), config);
        managed.settle();
        assert_eq!(managed.manager.report().errors, Vec::<String>::new());
        managed
    }
}

pub fn lid_of(managed: &Managed, guid: Guid) -> Lid {
    let fabric = &managed.link.fabric;
    let port = fabric.port_by_guid(guid).unwrap();
    fabric.port_info(port).unwrap().lid
}

/// Where each GUID's port is, with its LID and first P_Keys.
pub fn addresses(managed: &Managed) -> BTreeMap<Guid, (Guid, Lid, Vec<PKey>)> {
    let fabric = &managed.link.fabric;
    let ports = managed.end_ports();
    let all: BTreeMap<_, _> = ports
        .iter()
        .map(|&port| {
            let node = fabric.node_info(port).unwrap();
            let lid = fabric.port_info(port).unwrap().lid;
            let pkeys = fabric.pkeys(port).unwrap()[..4].to_vec();
            (fabric.guids(port).unwrap()[0], (node.node_guid, lid, pkeys))
        })
        .collect();
    assert_eq!(all.len(), ports.len(), "a GUID is there twice");
    all
}

/// Forwarding table blocks set at each node so far.
pub fn blocks_set(managed: &Managed) -> BTreeMap<Guid, u64> {
    let fabric = &managed.link.fabric;
    fabric
        .nodes()
        .map(|node| {
            let port = PortRef { node, port: 1 };
            let guid = fabric.node_info(port).unwrap().node_guid;
            let counts = fabric.smp_counts(node).unwrap();
            let set = counts.answered_of(MadMethod::SET, AttributeId::LINEAR_FORWARDING);
            (guid, set)
        })
        .collect()
}

/// Checks that the packet counts of a migration agree with the answers of the switches.
pub fn checked(managed: &mut Managed, migration: Migration) -> Result<Moved, MigrationError> {
    checked_by(managed, |managed| managed.migrate(migration))
}

pub fn checked_by(
    managed: &mut Managed,
    act: impl FnOnce(&mut Managed) -> Result<Moved, MigrationError>,
) -> Result<Moved, MigrationError> {
    let before = blocks_set(managed);
    let result = act(managed);
    let after = blocks_set(managed);
    if let Ok(moved) = &result {
        let answered: BTreeMap<Guid, u64> = after
            .iter()
            .map(|(&guid, &count)| (guid, count - before[&guid]))
            .filter(|&(_, count)| count > 0)
            .collect();
        let told: BTreeMap<Guid, u64> = moved
            .per_switch
            .iter()
            .map(|switch| (switch.guid, switch.packets.updated))
            .collect();
        assert_eq!(told, answered);
    }
    result
}

pub fn to_hypervisor(cloud: &Cloud, vm: Guid, hypervisor: usize) -> Migration {
    Migration::new(vm, Target::Hypervisor(cloud.vswitch(hypervisor)))
}

/// For each switch, the LIDs that it forwards.
pub fn entries(managed: &Managed) -> BTreeMap<NodeId, Vec<Lid>> {
    let fabric = &managed.link.fabric;
    let lids: Vec<Lid> = (1..0x400).map(Lid::new).collect();
    fabric
        .nodes()
        .map(|node| {
            let known = lids.iter().copied();
            (
                node,
                known
                    .filter(|&lid| fabric.forwarding(node, lid).is_some())
                    .collect(),
            )
        })
        .collect()
}

pub fn seed() -> u64 {
    testing::seed(0x5eed)
}

impl Cloud {
    /// No function has a LID before a VM starts there.
    pub fn dynamic(&self) -> Config {
        Config {
            without_lid: self.all().map(|(h, f)| self.function(h, f)).collect(),
            ..self.config()
        }
    }
}
