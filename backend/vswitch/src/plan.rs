//! The nodes and cables of a model.
//!
//! A switch has at its ports from 1 the uplinks of the hypervisors' vSwitches, then the cables to
//! other switches, then to routers, at the last port of one the host of the subnet manager; hypervisors on the
//! switches of a file take their lowest free ports. A vSwitch has its uplink at port 1, and from port
//! 2 the physical function whose LID VFs share, if there are such, and the other VFs.

mod builder;
mod shared_place;
mod waiting;

use std::collections::HashMap;

use fabric::{Fabric, NodeId, PortRef, Topology};
use wire::{Guid, PKey};

use crate::model::{ManagerPlace, Model};
use crate::names::{self, Candidate, NameError};
use builder::{Builder, cable_rate};
pub use shared_place::{OwnLids, SharedPlace};
pub(crate) use shared_place::{entries, pkeys, table};
pub use waiting::Cause;

/// Port of a vSwitch towards the switch.
const UPLINK: u8 = 1;

/// The nodes and cables of a model, and which node is what.
#[derive(Debug)]
pub struct Plan {
    topology: Topology,
    nodes: Vec<PlannedNode>,
    /// The ports of the subnets' managers.
    managers: Vec<PortRef>,
    /// The subnets' names.
    subnets: Vec<Option<String>>,
    vfs: Vec<PlannedVf>,
    /// The P_Keys of VMs, by GUID.
    pkeys: HashMap<Guid, Vec<PKey>>,
    own_lids: OwnLids,
}

/// A VF of a plan.
#[derive(Debug)]
pub struct PlannedVf {
    /// Its name.
    pub name: String,
    /// Its hypervisor.
    pub hypervisor: String,
    /// Node and port GUID of its VM.
    pub guid: Guid,
    /// Whether it has no VM of its own.
    pub spare: bool,
    /// Its port.
    pub port: PortRef,
    /// Where it shares the port.
    pub place: Option<SharedPlace>,
}

/// A node of a plan.
#[derive(Debug)]
pub struct PlannedNode {
    /// Its number in the topology.
    pub id: NodeId,
    /// Its kind.
    pub kind: NodeKind,
    /// Its name.
    pub name: String,
    /// The hypervisor it is part of.
    pub hypervisor: Option<String>,
    /// Its subnet; `None` of a router.
    pub subnet: Option<usize>,
    /// The subnets of a router's ports.
    pub router_subnets: Vec<usize>,
    /// Whether the model says which LID it has.
    pub pinned: bool,
    /// Whether a VF with a LID of its own has it only while a VM runs.
    pub dynamic: bool,
}

/// Kinds of [`PlannedNode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// A switch between hypervisors.
    Switch,
    /// The switch inside a hypervisor's adapter.
    Vswitch,
    /// The host of the subnet manager.
    Manager,
    /// A router between subnets.
    Router,
    /// A host without VFs.
    Host,
    /// A hypervisor's physical function, whose LID VFs share.
    Pf,
    /// A virtual function.
    Vf,
}

impl PlannedNode {
    /// Whether it is a switch, a vSwitch among them.
    #[must_use]
    pub const fn is_switch(&self) -> bool {
        matches!(self.kind, NodeKind::Switch | NodeKind::Vswitch)
    }
}

impl Plan {
    /// The plan of a model.
    pub fn new(model: &Model) -> Self {
        let rate = cable_rate(model.fabric.link_width, model.fabric.link_speed);
        let mut builder = Builder {
            model: model.fabric.model,
            dynamic: model.has_dynamic_lids(),
            ..Builder::default()
        };
        let mut vfs = Vec::new();
        let mut switches = builder.switches(model);
        for hypervisor in &model.hypervisors {
            let end = switches.port(hypervisor.switch);
            builder.subnet = Some(model.subnet_of(hypervisor));
            builder.hypervisor(hypervisor, end, rate, &mut vfs);
        }
        for &(a, b) in &model.wiring.cables {
            let ends = (switches.port(a), switches.port(b));
            builder.topology.link(ends.0, ends.1, rate);
        }
        for router in &model.wiring.routers {
            builder.router(router, &model.wiring, &mut switches, rate);
        }
        let managers = match &model.wiring.file {
            Some(file) => vec![file.manager],
            None => {
                let subnets = model.subnets.iter().enumerate();
                subnets
                    .map(|(number, subnet)| {
                        let host = &subnet.manager;
                        builder.subnet = Some(number);
                        let node =
                            builder.adapter(NodeKind::Manager, &host.name, host.guid, None, true);
                        let end = switches.port(host.switch);
                        builder.topology.link(end, (node, 1), rate);
                        PortRef { node, port: 1 }
                    })
                    .collect()
            }
        };
        if model.manager.place == ManagerPlace::External {
            // It does not know what the configuration says.
            for node in &mut builder.nodes {
                node.pinned = false;
            }
        }
        if model.fabric.strict {
            builder.topology.make_strict();
        }
        if model.fabric.extended_lids {
            let legacy = model.wiring.switches.iter();
            let legacy = legacy.filter(|switch| !switch.extended_lids);
            let legacy: Vec<Guid> = legacy.map(|switch| switch.guid).collect();
            builder.topology.extend_lids(&legacy);
        }
        Self {
            topology: builder.topology,
            nodes: builder.nodes,
            managers,
            subnets: model.subnets.iter().map(|it| it.name.clone()).collect(),
            vfs,
            pkeys: model
                .vfs()
                .map(|(_, vf)| (vf.guid, vf.pkeys.clone()))
                .collect(),
            own_lids: OwnLids::new(model),
        }
    }

    /// The node of this name, with this GUID, or alone of this text.
    ///
    /// # Errors
    /// [`NameError`] where there is none, or several.
    pub fn node(&self, fabric: &Fabric, name: &str) -> Result<NodeId, NameError> {
        let nodes: Vec<_> = { self.nodes.iter() }
            .map(|node| candidate(fabric, node.id, node.id, &node.name))
            .collect();
        names::find(name, &nodes)
    }

    /// The nodes of this name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = NodeId> + 'a {
        let nodes = self.nodes.iter().filter(move |node| node.name == name);
        nodes.map(|node| node.id)
    }

    /// The name of a node.
    pub fn name(&self, node: NodeId) -> Option<&str> {
        let found = self.nodes.iter().find(|other| other.id == node);
        found.map(|node| node.name.as_str())
    }

    /// The nodes and cables.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The ports of the subnet managers' hosts, in the order of
    /// [`Model::subnets`](crate::Model::subnets).
    pub fn managers(&self) -> impl Iterator<Item = PortRef> + '_ {
        self.managers.iter().copied()
    }

    /// The names of all nodes, each with the port at which a program of the host attaches: of an adapter the
    /// manager's, or the lowest with a cable.
    pub fn host_ports(&self) -> impl Iterator<Item = (String, PortRef)> + '_ {
        let mut cabled: HashMap<NodeId, u8> = HashMap::new();
        for end in { self.topology.links().iter() }.flat_map(|&(a, b, _)| [a, b]) {
            let lowest = cabled.entry(end.node).or_insert(end.port);
            *lowest = end.port.min(*lowest);
        }
        self.nodes.iter().map(move |planned| {
            let node = planned.id;
            let port = match planned.kind {
                NodeKind::Switch | NodeKind::Vswitch => 0,
                NodeKind::Manager
                | NodeKind::Router
                | NodeKind::Host
                | NodeKind::Pf
                | NodeKind::Vf => cabled.get(&node).copied().unwrap_or(1),
            };
            (planned.name.clone(), PortRef { node, port })
        })
    }

    /// The ports of the VFs, in the order of [`Model::vfs`]: some may share one.
    pub fn vfs(&self) -> impl Iterator<Item = PortRef> + '_ {
        self.vfs.iter().map(|vf| vf.port)
    }

    /// The places of the VFs that share a port, in the same order; `None` for the others.
    pub fn places(&self) -> impl Iterator<Item = Option<SharedPlace>> + '_ {
        self.vfs.iter().map(|vf| vf.place)
    }

    /// The VMs that have LIDs of their own where they share a port.
    pub fn own_lids(&self) -> &OwnLids {
        &self.own_lids
    }

    /// The P_Key table of a VF that shares its port, without empty entries.
    pub fn pkeys(&self, fabric: &Fabric, place: SharedPlace) -> Vec<PKey> {
        if let Some(vport) = place.vport(fabric) {
            let keys = table(vport).into_iter();
            return keys.filter(|key| key.is_valid()).collect();
        }
        let own = place.guid(fabric).and_then(|guid| self.pkeys.get(&guid));
        let port = fabric.pkeys(place.port).unwrap_or_default();
        own.map(|own| pkeys(own, port)).unwrap_or_default()
    }

    /// Switches of a subnet, vSwitches included.
    pub fn switches(&self, subnet: usize) -> usize {
        let is_switch = |node: &&PlannedNode| node.is_switch() && node.subnet == Some(subnet);
        self.nodes.iter().filter(is_switch).count()
    }

    /// All nodes.
    #[must_use]
    pub fn nodes(&self) -> &[PlannedNode] {
        &self.nodes
    }

    /// All VFs, in the order of [`Model::vfs`].
    #[must_use]
    pub fn functions(&self) -> &[PlannedVf] {
        &self.vfs
    }

    /// The names of the subnets, where there are several.
    #[must_use]
    pub fn subnets(&self) -> &[Option<String>] {
        &self.subnets
    }
}

/// A node of a fabric under a name that a person may give.
pub(crate) fn candidate<'a, T>(
    fabric: &Fabric,
    it: T,
    node: NodeId,
    name: &'a str,
) -> Candidate<'a, T> {
    let info = |port| fabric.node_info(PortRef { node, port });
    let ports = info(1).map_or(0, |info| info.num_ports);
    let infos = (1..=ports).filter_map(info);
    let text = fabric.node_description(node);
    Candidate {
        node: it,
        name,
        text: text.map_or_else(String::new, |text| text.to_string()),
        guids: infos
            .flat_map(|info| [info.node_guid, info.port_guid])
            .collect(),
    }
}
