//! Nodes and cables, one after the other.

use std::collections::{HashMap, HashSet};

use fabric::{LinkRate as CableRate, NodeId, NodeSpec, PortRef, Topology, VPortSpec};
use wire::attribute::{NodeDescription, NodeType};
use wire::{Guid, LinkSpeed, LinkSpeedExt, LinkWidth};

use super::{NodeKind, PlannedNode, PlannedVf, SharedPlace, UPLINK, entries};
use crate::model::{
    Address, AddressModel, Hypervisor, LinkRate, Model, Router, Switch, Vf, Wiring,
};

#[derive(Debug, Default)]
pub(super) struct Builder {
    pub(super) topology: Topology,
    pub(super) nodes: Vec<PlannedNode>,
    pub(super) model: AddressModel,
    pub(super) dynamic: bool,
    /// The subnet of the nodes that are added.
    pub(super) subnet: Option<usize>,
}

/// The switches while cables are laid, each with its ports that have none.
pub(super) struct Switches(Vec<(NodeId, Box<dyn Iterator<Item = u8>>)>);

impl Switches {
    /// The next free port of a switch. The configuration has counted them.
    pub(super) fn port(&mut self, switch: usize) -> (NodeId, u8) {
        let (node, free) = &mut self.0[switch];
        (*node, free.next().unwrap_or(0))
    }
}

impl Builder {
    /// A hypervisor at the port `end` of a switch, and its VFs. It is a vSwitch with adapters behind
    /// it, or in Shared Port an adapter itself.
    pub(super) fn hypervisor(
        &mut self,
        hypervisor: &Hypervisor,
        end: (NodeId, u8),
        rate: CableRate,
        vfs: &mut Vec<PlannedVf>,
    ) {
        let name = hypervisor.name.as_str();
        let shares = |vf: &&Vf| vf.address == Address::Shared;
        let sharers = hypervisor.vfs.iter().filter(shares).count() as u8;
        let addresses = hypervisor.vfs.iter().map(|vf| vf.address);
        let physical = self.model.has_physical_function(addresses);
        let (vswitch, mut inner) = if self.model.has_vswitch() {
            let adapters = hypervisor.vfs.len() as u8 - sharers + u8::from(physical);
            let (kind, guid) = (NodeKind::Vswitch, hypervisor.vswitch_guid);
            let vswitch = self.switch(kind, name, guid, UPLINK + adapters, Some(name));
            self.topology.link(end, (vswitch, UPLINK), rate);
            (Some(vswitch), UPLINK)
        } else {
            (None, 0)
        };
        // Where the next adapter is cabled to.
        let mut next = || match vswitch {
            None => end,
            Some(vswitch) => {
                inner += 1;
                (vswitch, inner)
            }
        };
        let physical = physical.then(|| {
            let own = hypervisor.physical_function(self.model);
            let guid = hypervisor.physical_guid;
            let spec = match self.model {
                AddressModel::Virtualized => {
                    NodeSpec::virtualized(guid, vports(hypervisor, self.model), &own)
                }
                _ => NodeSpec::shared_port(guid, sharers, &own),
            };
            let node = self.add(NodeKind::Pf, &own, spec, Some(name), false);
            self.topology.link(next(), (node, 1), rate);
            PortRef { node, port: 1 }
        });
        let entries = entries(hypervisor, self.model);
        for (vf, entry) in hypervisor.vfs.iter().zip(entries) {
            let place = match (vf.address, physical) {
                (Address::Shared, Some(port)) => Some(SharedPlace { port, entry }),
                _ => None,
            };
            let port = place.map(|place| place.port).unwrap_or_else(|| {
                let pinned = vf.lid.is_some();
                let node = self.adapter(NodeKind::Vf, &vf.name, vf.guid, Some(name), pinned);
                self.topology.link(next(), (node, 1), rate);
                PortRef { node, port: 1 }
            });
            vfs.push(PlannedVf {
                name: vf.name.clone(),
                hypervisor: name.to_owned(),
                guid: vf.guid,
                spare: vf.spare,
                port,
                place,
            });
        }
    }

    /// A router, cabled to a switch of each of its subnets.
    pub(super) fn router(
        &mut self,
        router: &Router,
        wiring: &Wiring,
        switches: &mut Switches,
        rate: CableRate,
    ) {
        let guids = router.ports.iter().map(|port| port.guid).collect();
        let spec = NodeSpec::router(router.guid, guids, &router.name);
        self.subnet = None;
        let node = self.add(NodeKind::Router, &router.name, spec, None, false);
        let subnets = router
            .ports
            .iter()
            .map(|port| wiring.switches[port.switch].subnet);
        if let Some(added) = self.nodes.last_mut() {
            added.router_subnets = subnets.collect();
        }
        for (number, port) in (1..).zip(&router.ports) {
            let end = switches.port(port.switch);
            self.topology.link(end, (node, number), rate);
        }
    }

    /// The switches, and with a file all its nodes and cables.
    pub(super) fn switches(&mut self, model: &Model) -> Switches {
        let wiring = &model.wiring;
        let Some(file) = &wiring.file else {
            let mut used = vec![0u8; wiring.switches.len()];
            let hypervisors = model.hypervisors.iter().map(|it| it.switch);
            for switch in wiring.ends(&model.subnets).chain(hypervisors) {
                // The limits of a configuration keep all numbers of ports below 255.
                used[switch] = used[switch].saturating_add(1);
            }
            let add = |(switch, ports): (&Switch, u8)| {
                // A switch with nothing at it still has a port.
                let ports = ports.max(1);
                self.subnet = Some(switch.subnet);
                let id = self.switch(NodeKind::Switch, &switch.name, switch.guid, ports, None);
                (id, Box::new(1..=ports) as Box<dyn Iterator<Item = u8>>)
            };
            return Switches(wiring.switches.iter().zip(used).map(add).collect());
        };
        self.topology = file.topology.clone();
        let specs = file.topology.nodes().iter();
        for ((spec, id), name) in specs.zip(file.topology.ids()).zip(&file.names) {
            let kind = match spec.kind {
                NodeType::Switch => NodeKind::Switch,
                NodeType::Router => NodeKind::Router,
                NodeType::ChannelAdapter if id == file.manager.node => NodeKind::Manager,
                NodeType::ChannelAdapter => NodeKind::Host,
            };
            let is_router = kind == NodeKind::Router;
            self.nodes.push(PlannedNode {
                id,
                kind,
                name: name.clone(),
                hypervisor: None,
                subnet: (!is_router).then_some(0),
                router_subnets: vec![0; if is_router { spec.ports.into() } else { 0 }],
                pinned: id == file.manager.node,
                dynamic: self.dynamic,
            });
        }
        let mut taken: HashMap<NodeId, HashSet<u8>> = HashMap::new();
        for &(a, b, _) in file.topology.links() {
            for end in [a, b] {
                taken.entry(end.node).or_default().insert(end.port);
            }
        }
        let free = |&id: &NodeId| {
            let ports = file.topology.nodes()[id.index()].ports;
            let taken = taken.remove(&id).unwrap_or_default();
            let free = (1..=ports).filter(move |port| !taken.contains(port));
            (id, Box::new(free) as Box<dyn Iterator<Item = u8>>)
        };
        Switches(file.switches.iter().map(free).collect())
    }

    fn switch(
        &mut self,
        kind: NodeKind,
        name: &str,
        guid: Guid,
        ports: u8,
        hypervisor: Option<&str>,
    ) -> NodeId {
        let spec = NodeSpec::switch(guid, ports, name);
        self.add(kind, name, spec, hypervisor, false)
    }

    pub(super) fn adapter(
        &mut self,
        kind: NodeKind,
        name: &str,
        guid: Guid,
        hypervisor: Option<&str>,
        pinned: bool,
    ) -> NodeId {
        let spec = match kind {
            NodeKind::Vf => NodeSpec::virtual_function(guid, name),
            _ => NodeSpec::channel_adapter(guid, guid, name),
        };
        self.add(kind, name, spec, hypervisor, pinned)
    }

    fn add(
        &mut self,
        kind: NodeKind,
        name: &str,
        spec: NodeSpec,
        hypervisor: Option<&str>,
        pinned: bool,
    ) -> NodeId {
        let id = self.topology.add(spec);
        self.nodes.push(PlannedNode {
            id,
            kind,
            name: name.to_owned(),
            hypervisor: hypervisor.map(str::to_owned),
            subnet: self.subnet,
            router_subnets: Vec::new(),
            pinned,
            dynamic: self.dynamic,
        });
        id
    }
}

/// The virtual ports of a hypervisor's port, by their index: the entries of its VFs.
fn vports(hypervisor: &Hypervisor, model: AddressModel) -> Vec<VPortSpec> {
    let mut vports = vec![VPortSpec::default(); hypervisor.vfs.len()];
    for (vf, entry) in hypervisor.vfs.iter().zip(entries(hypervisor, model)) {
        let place = usize::from(entry).checked_sub(1);
        if let Some(place) = place.and_then(|at| vports.get_mut(at)) {
            *place = VPortSpec {
                guid: if vf.spare { Guid::NONE } else { vf.guid },
                node_guid: vf.guid,
                description: NodeDescription::new(&vf.name),
                lid_required: vf.has_own_lid(),
            };
        }
    }
    vports
}

pub(super) fn cable_rate(width: LinkWidth, speed: LinkRate) -> CableRate {
    // A port with an extended speed shows QDR where only the lower speeds have a place.
    let (speed, extended) = match speed {
        LinkRate::Sdr => (LinkSpeed::Sdr, LinkSpeedExt::None),
        LinkRate::Ddr => (LinkSpeed::Ddr, LinkSpeedExt::None),
        LinkRate::Qdr => (LinkSpeed::Qdr, LinkSpeedExt::None),
        LinkRate::Fdr => (LinkSpeed::Qdr, LinkSpeedExt::Fdr),
        LinkRate::Edr => (LinkSpeed::Qdr, LinkSpeedExt::Edr),
        LinkRate::Hdr => (LinkSpeed::Qdr, LinkSpeedExt::Hdr),
        LinkRate::Ndr => (LinkSpeed::Qdr, LinkSpeedExt::Ndr),
        LinkRate::Xdr => (LinkSpeed::Qdr, LinkSpeedExt::Xdr),
    };
    CableRate {
        width,
        speed,
        extended,
        fdr10: false,
    }
}
