//! The functions at shared ports, and their places there. The configuration has them once
//! and for all; the nodes have the ports' tables.

use std::collections::{BTreeMap, HashMap};

use fabric::{Nodes, PortRef};
use hca::{PortView, VfId};
use wire::{Gid, Guid, Lid, MadPacket, PKey, PortState};

use crate::model::Model;
use crate::plan::{OwnLids, Plan, SharedPlace, pkeys, table};

/// The functions at shared ports.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    ports: BTreeMap<PortRef, Vec<VfId>>,
    /// By function.
    places: Vec<Option<SharedPlace>>,
    /// The P_Keys of VMs, by GUID.
    pkeys: HashMap<Guid, Vec<PKey>>,
    own_lids: OwnLids,
    /// Whether drivers are told that they need global routes.
    grh_required: bool,
}

impl Sharing {
    /// The shared ports of a configuration.
    pub(crate) fn new(model: &Model, plan: &Plan) -> Self {
        let mut ports: BTreeMap<PortRef, Vec<VfId>> = BTreeMap::new();
        for (vf, place) in (0..).map(VfId).zip(plan.places()) {
            if let Some(SharedPlace { port, .. }) = place {
                ports.entry(port).or_default().push(vf);
            }
        }
        Self {
            ports,
            places: plan.places().collect(),
            pkeys: model
                .vfs()
                .map(|(_, vf)| (vf.guid, vf.pkeys.clone()))
                .collect(),
            own_lids: plan.own_lids().clone(),
            grh_required: model.fabric.grh_required,
        }
    }

    /// The function with this place.
    pub(crate) fn function_at(&self, place: SharedPlace) -> Option<VfId> {
        let mut functions = self.functions(place.port)?.iter().copied();
        functions.find(|&vf| self.place(vf) == Some(place))
    }

    /// The ports.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (PortRef, &[VfId])> {
        self.ports
            .iter()
            .map(|(port, functions)| (*port, &functions[..]))
    }

    /// The function at a virtual port.
    pub(crate) fn function_at_vport(&self, port: PortRef, index: u16) -> Option<VfId> {
        let entry = u8::try_from(index).ok()?;
        self.function_at(SharedPlace { port, entry })
    }

    /// The functions at a port, if it is a shared one.
    pub(crate) fn functions(&self, port: PortRef) -> Option<&[VfId]> {
        self.ports.get(&port).map(|functions| &functions[..])
    }

    /// The place of a function that shares its port.
    pub(crate) fn place(&self, vf: VfId) -> Option<SharedPlace> {
        *self.places.get(usize::from(vf.0))?
    }

    /// The P_Key table of a function that shares its port; `None` where it has its port for itself.
    pub(crate) fn pkeys(&self, vf: VfId, nodes: &Nodes) -> Option<Vec<PKey>> {
        let place = self.place(vf)?;
        if let Some(vport) = place.vport(nodes) {
            return Some(table(vport));
        }
        let own = place.guid(nodes).and_then(|guid| self.pkeys.get(&guid));
        let port = nodes.pkeys(place.port).unwrap_or_default();
        Some(own.map(|own| pkeys(own, port)).unwrap_or_default())
    }

    /// Whether the VM at a function has a LID of its own, although others have the same port.
    pub(crate) fn has_own_lid(&self, vf: VfId, nodes: &Nodes) -> bool {
        let place = self.place(vf);
        place.is_some_and(|place| self.own_lids.is_at(place, nodes))
    }

    /// Whether the driver of a function is told that every packet needs a global route header.
    pub(crate) fn requires_grh(&self, vf: VfId, nodes: &Nodes) -> bool {
        self.grh_required && self.place(vf).is_some() && !self.has_own_lid(vf, nodes)
    }

    /// The VMs that have a LID of their own.
    pub(crate) fn own_lids(&self) -> &OwnLids {
        &self.own_lids
    }

    /// Whether a VM is one that has a LID of its own.
    pub(crate) fn wants_own_lid(&self, vm: Guid) -> bool {
        self.own_lids.contains(vm)
    }

    /// The LID of a function, and its LID mask control.
    pub(crate) fn address(&self, vf: VfId, nodes: &Nodes, port: PortRef) -> (Lid, u8) {
        let info = nodes.port_info(port).unwrap_or_default();
        match self.place(vf) {
            None => (info.lid, info.lmc),
            Some(place) if self.own_lids.is_at(place, nodes) => {
                (place.own_lid(nodes).unwrap_or(Lid::NONE), 0)
            }
            // The rest of the range is, or may become, that of VMs of clusters.
            Some(_) if !self.own_lids.is_empty() => (info.lid, 0),
            Some(_) => (info.lid, info.lmc),
        }
    }

    /// The function that a LID leads to among those that share a port: the one that has the LID for
    /// itself, or else any function that GIDs tell from the others.
    pub(crate) fn function_with(&self, port: PortRef, nodes: &Nodes, dlid: Lid) -> Option<VfId> {
        let mut among = None;
        for &vf in self.functions(port)? {
            let (lid, _) = self.address(vf, nodes, port);
            if !self.has_own_lid(vf, nodes) {
                among = among.or(Some(vf));
            } else if lid == dlid {
                return Some(vf);
            }
        }
        among
    }

    /// The function that alone has the LID which a packet is for, at a port that is others', too.
    pub(crate) fn owner(&self, port: PortRef, nodes: &Nodes, packet: &MadPacket) -> Option<VfId> {
        if self.own_lids.is_empty() || packet.is_smp() {
            return None;
        }
        let function = self.function_with(port, nodes, packet.dlid);
        function.filter(|&vf| self.has_own_lid(vf, nodes))
    }

    /// GUID of the VM whose addresses are at a function's port.
    pub(crate) fn guid_at(&self, vf: VfId, nodes: &Nodes, port: PortRef) -> Option<Guid> {
        match self.place(vf) {
            Some(place) => place.guid(nodes),
            None => nodes.guids(port)?.first().copied(),
        }
    }

    /// The state of a function's port as it has it.
    pub(crate) fn state(&self, vf: VfId, nodes: &Nodes, port: PortRef) -> PortState {
        match self.place(vf) {
            Some(place) => self.own_lids.state(place, nodes),
            None => nodes.port_info(port).unwrap_or_default().port_state,
        }
    }

    /// Makes of a port what it is to a function that shares it.
    pub(crate) fn adapt(&self, vf: VfId, nodes: &Nodes, view: &mut PortView) {
        let Some(place) = self.place(vf) else { return };
        let prefix = nodes.port_info(place.port).unwrap_or_default().gid_prefix;
        (view.lid, view.lmc) = self.address(vf, nodes, place.port);
        view.active &= self.own_lids.state(place, nodes) == PortState::Active;
        let guids = place.guids(nodes);
        view.gids = guids.map(|guid| Gid::new(prefix, guid)).collect();
        view.pkeys = self.pkeys(vf, nodes).unwrap_or_default();
    }
}
