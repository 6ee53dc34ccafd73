//! The layout of the subnets: the VFs and their ports, as the configuration has them. It never changes.
//!
//! A VF is a place: a socket, an engine function, a port of a vSwitch. The GUID of the port tells which
//! VM has its addresses there: at first the VM that the configuration has there, or nobody at a spare
//! VF.

use std::collections::HashMap;
use std::sync::Arc;

use fabric::{Nodes, PortRef, SmpAccess};
use hca::VfId;
use wire::{Guid, Lid};

use crate::model::{Address, Hypervisor, MadRules, Model, Vf, View};
use crate::plan::Plan;
use crate::sharing::Sharing;

/// A VF on a hypervisor, by names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The VF.
    pub vf: String,
    /// Its hypervisor.
    pub hypervisor: String,
}

/// A VF, and the VM that is configured there.
#[derive(Debug)]
pub(crate) struct PlacedVf {
    pub(crate) name: String,
    pub(crate) hypervisor: String,
    /// Index of its hypervisor's subnet.
    pub(crate) subnet: usize,
    pub(crate) vswitch: Guid,
    /// GUID of the node, and of the VM's port; in a fabric it is at one place as either.
    pub(crate) guid: Guid,
    pub(crate) node_guid: Guid,
    pub(crate) address: Address,
    pub(crate) smp: SmpAccess,
    pub(crate) view: View,
    pub(crate) mads: MadRules,
    pub(crate) spare: bool,
    pub(crate) ethernet: bool,
}

/// The VFs of a model, in its order.
fn places(model: &Model) -> Vec<PlacedVf> {
    let place = |(hypervisor, vf): (&Hypervisor, &Vf)| PlacedVf {
        name: vf.name.clone(),
        hypervisor: hypervisor.name.clone(),
        subnet: model.subnet_of(hypervisor),
        vswitch: hypervisor.vswitch_guid,
        guid: vf.guid,
        node_guid: vf.node_guid.unwrap_or(vf.guid),
        address: vf.address,
        smp: vf.smp,
        view: model.view(vf),
        mads: vf.mads.clone(),
        spare: vf.spare,
        ethernet: vf.ethernet,
    };
    model.vfs().map(place).collect()
}

/// The VFs, the ports, and their names.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The ports of the VFs, in their order.
    pub(crate) ports: Vec<PortRef>,
    /// The function at a port; of those that share one, the first: the engine knows the others.
    pub(crate) functions: HashMap<PortRef, VfId>,
    /// The ports of the subnet managers' hosts.
    pub(crate) manager_ports: Vec<PortRef>,
    pub(crate) names: Vec<(String, PortRef)>,
    pub(crate) places: Vec<PlacedVf>,
    /// Whether VFs with a LID of their own have it only while a VM runs.
    pub(crate) dynamic: bool,
    pub(crate) sharing: Arc<Sharing>,
}

impl Layout {
    /// The layout of a model and its plan.
    pub(crate) fn new(model: &Model, plan: &Plan) -> Self {
        let ports: Vec<PortRef> = plan.vfs().collect();
        let functions = { ports.iter().enumerate().rev() }
            .map(|(at, &port)| (port, VfId(at as u16)))
            .collect();
        Self {
            functions,
            ports,
            manager_ports: plan.managers().collect(),
            names: plan.host_ports().collect(),
            places: places(model),
            dynamic: model.has_dynamic_lids(),
            sharing: Arc::new(Sharing::new(model, plan)),
        }
    }

    /// The port of a function.
    pub(crate) fn port(&self, vf: VfId) -> Option<PortRef> {
        self.ports.get(usize::from(vf.0)).copied()
    }

    /// The VFs and their ports.
    pub(crate) fn vfs(&self) -> impl Iterator<Item = (VfId, PortRef)> + '_ {
        (0..).map(VfId).zip(self.ports.iter().copied())
    }

    /// The functions that have their port at `port`.
    pub(crate) fn functions_at(&self, port: PortRef) -> Vec<VfId> {
        match self.sharing.functions(port) {
            Some(functions) => functions.to_vec(),
            None => self.functions.get(&port).copied().into_iter().collect(),
        }
    }

    /// The function that a LID leads to which leads to a port.
    pub(crate) fn function_with(&self, nodes: &Nodes, port: PortRef, dlid: Lid) -> Option<VfId> {
        match self.sharing.functions(port) {
            Some(_) => self.sharing.function_with(port, nodes, dlid),
            None => self.functions.get(&port).copied(),
        }
    }

    fn at(&self, vf: VfId) -> Option<&PlacedVf> {
        self.places.get(usize::from(vf.0))
    }

    /// The VF that is configured with a GUID.
    pub(crate) fn configured_with(&self, guid: Guid) -> Option<&PlacedVf> {
        self.places.iter().find(|place| place.guid == guid)
    }

    /// The GUID of the node that the VM with this port GUID has.
    pub(crate) fn node_guid(&self, guid: Guid) -> Guid {
        self.configured_with(guid).map_or(guid, |vm| vm.node_guid)
    }

    /// The GUID of the VM that is configured at a VF, or the unused one of a spare VF.
    pub(crate) fn configured_guid(&self, vf: VfId) -> Guid {
        self.at(vf).map_or(Guid::NONE, |place| place.guid)
    }

    /// Whether a VM that moves between two VFs keeps its LID, if the embedded manager of their subnet
    /// exchanges them: both have a LID of their own.
    pub(crate) fn can_keep_lid(&self, from: VfId, to: VfId) -> bool {
        let (Some(from), Some(to)) = (self.at(from), self.at(to)) else {
            return false;
        };
        let dedicated = [from, to].map(|place| place.address == Address::Dedicated);
        dedicated == [true; 2] && from.subnet == to.subnet
    }

    /// Whether a VF is on this hypervisor.
    pub(crate) fn is_on(&self, vf: VfId, hypervisor: &str) -> bool {
        self.at(vf)
            .is_some_and(|place| place.hypervisor == hypervisor)
    }

    /// Whether a VF has a LID of its own.
    pub(crate) fn address(&self, vf: VfId) -> Address {
        self.at(vf).map(|place| place.address).unwrap_or_default()
    }

    /// Whether a VF has a LID of its own, and only while a VM runs there.
    pub(crate) fn has_dynamic_lid(&self, vf: VfId) -> bool {
        self.dynamic && self.address(vf) == Address::Dedicated
    }

    /// Whether VMs at a VF have an Ethernet card there, and no HCA.
    pub(crate) fn is_ethernet(&self, vf: VfId) -> bool {
        self.at(vf).is_some_and(|place| place.ethernet)
    }

    /// The subnet that a VF is in.
    pub(crate) fn subnet_of(&self, vf: VfId) -> usize {
        self.at(vf).map_or(0, |place| place.subnet)
    }

    /// The subnet of a hypervisor.
    pub(crate) fn subnet_at(&self, hypervisor: &str) -> usize {
        let mut places = self.places.iter();
        let place = places.find(|place| place.hypervisor == hypervisor);
        place.map_or(0, |place| place.subnet)
    }

    /// The name of a VF.
    pub(crate) fn name(&self, vf: VfId) -> String {
        self.at(vf)
            .map(|place| place.name.clone())
            .unwrap_or_default()
    }

    /// The name of the VF that is configured with a GUID, or the GUID.
    pub(crate) fn name_of(&self, guid: Guid) -> String {
        let place = self.configured_with(guid);
        place.map_or_else(|| guid.to_string(), |place| place.name.clone())
    }

    /// A VF as a place that VMs come to and leave.
    pub(crate) fn place_of(&self, vf: VfId) -> Place {
        self.place(self.configured_guid(vf))
    }

    /// The same of the VF that is configured with a GUID.
    pub(crate) fn place(&self, guid: Guid) -> Place {
        let place = self.configured_with(guid);
        place.map_or_else(Place::default, |place| Place {
            vf: place.name.clone(),
            hypervisor: place.hypervisor.clone(),
        })
    }
}
