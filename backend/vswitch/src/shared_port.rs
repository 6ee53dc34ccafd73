//! What the driver of a physical function does for the virtual functions at its port: it registers
//! their GUIDs with the subnet administration, and tells their management packets apart.
//!
//! A packet to a LID that one function has for itself is for that one. Of the others a packet with a
//! global route header is for the function with its destination GID. An answer without one is known by
//! its transaction: the uppermost byte of those of requests that leave is the function's entry in the
//! port's table, which kernels leave free for this. A report of an event without one is for each function
//! that has subscribed to the event. Any other request without one is for the physical function, as on
//! hardware (the demultiplexing of Linux' mlx4 driver): for the programs of the host that are attached
//! there, and else for nobody.

mod address;
mod registrar;
mod subscribers;

use std::collections::HashMap;
use std::time::Duration;

use fabric::{Fabric, PortEvent, PortRef};
use hca::{PortView, VfId};
use wire::mad::Method;
use wire::{Gid, Guid, Lid, MadPacket, PKey, PortState};

use crate::host_programs::answers;
use crate::model::Model;
use crate::plan::Plan;
use crate::vswitch::{SubnetState, VSwitch};
pub use address::{Clustered, SharedPlace};
pub(crate) use address::{entries, pkeys};
pub(crate) use registrar::Refused;
use registrar::Registrar;
use subscribers::Subscribers;

/// Uppermost byte of the registrar's transactions. Programs of the host have 0xc0 to 0xcf, functions
/// at most 127.
const REGISTRAR: u8 = 0xff;

/// Whom a packet is for that reached a shared port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Addressee {
    /// These functions; none where nobody can be told.
    Functions(Vec<VfId>),
    /// The physical function, which registers GUIDs.
    Registrar,
}

#[derive(Debug)]
struct SharedPort {
    port: PortRef,
    functions: Vec<VfId>,
    registrar: Registrar,
    subscribers: Subscribers,
}

/// All shared ports.
#[derive(Debug, Default)]
pub(crate) struct SharedPorts {
    ports: Vec<SharedPort>,
    /// By function.
    places: Vec<Option<SharedPlace>>,
    /// The P_Keys of VMs, by GUID.
    pkeys: HashMap<Guid, Vec<PKey>>,
    clustered: Clustered,
    /// Whether drivers are told that they need global routes.
    grh_required: bool,
}

impl SharedPorts {
    /// The shared ports of a configuration; VMs are to be where it has them.
    pub(crate) fn new(model: &Model, plan: &Plan) -> Self {
        let mut all = Self {
            places: plan.places().collect(),
            pkeys: model
                .vfs()
                .map(|(_, vf)| (vf.guid, vf.pkeys.clone()))
                .collect(),
            clustered: plan.clustered().clone(),
            grh_required: model.fabric.grh_required,
            ..Self::default()
        };
        for (index, (place, (_, vf))) in plan.places().zip(model.vfs()).enumerate() {
            let Some(place) = place else { continue };
            let known = all
                .ports
                .iter()
                .position(|shared| shared.port == place.port);
            let at = known.unwrap_or_else(|| {
                all.ports.push(SharedPort {
                    port: place.port,
                    functions: Vec::new(),
                    registrar: Registrar::default(),
                    subscribers: Subscribers::default(),
                });
                all.ports.len() - 1
            });
            let shared = &mut all.ports[at];
            shared.functions.push(VfId(index as u16));
            shared
                .registrar
                .want(place.entry, if vf.spare { Guid::NONE } else { vf.guid });
        }
        all
    }

    fn at(&self, port: PortRef) -> Option<&SharedPort> {
        self.ports.iter().find(|shared| shared.port == port)
    }

    fn at_mut(&mut self, port: PortRef) -> Option<&mut SharedPort> {
        self.ports.iter_mut().find(|shared| shared.port == port)
    }

    /// The ports.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (PortRef, &[VfId])> {
        self.ports
            .iter()
            .map(|shared| (shared.port, &shared.functions[..]))
    }

    /// The functions at a port, if it is a shared one.
    pub(crate) fn functions(&self, port: PortRef) -> Option<&[VfId]> {
        Some(&self.at(port)?.functions)
    }

    /// The place of a function that shares its port.
    pub(crate) fn place(&self, vf: VfId) -> Option<SharedPlace> {
        *self.places.get(usize::from(vf.0))?
    }

    /// The P_Key table of a function that shares its port; `None` where it has its port for itself.
    pub(crate) fn pkeys(&self, vf: VfId, fabric: &Fabric) -> Option<Vec<PKey>> {
        let place = self.place(vf)?;
        let own = place.guid(fabric).and_then(|guid| self.pkeys.get(&guid));
        let port = fabric.pkeys(place.port).unwrap_or_default();
        Some(own.map(|own| pkeys(own, port)).unwrap_or_default())
    }

    /// Whether the VM at a function has a LID of its own, although others have the same port.
    pub(crate) fn is_clustered(&self, vf: VfId, fabric: &Fabric) -> bool {
        let place = self.place(vf);
        place.is_some_and(|place| self.clustered.is_at(place, fabric))
    }

    /// Whether the driver of a function is told that every packet needs a global route header.
    pub(crate) fn requires_grh(&self, vf: VfId, fabric: &Fabric) -> bool {
        self.grh_required && self.place(vf).is_some() && !self.is_clustered(vf, fabric)
    }

    /// Whether a VM is one that has a LID of its own.
    pub(crate) fn wants_own_lid(&self, vm: Guid) -> bool {
        self.clustered.contains(vm)
    }

    /// The LID of a function, and its LID mask control.
    pub(crate) fn address(&self, vf: VfId, fabric: &Fabric, port: PortRef) -> (Lid, u8) {
        let info = fabric.port_info(port).unwrap_or_default();
        match self.place(vf) {
            None => (info.lid, info.lmc),
            Some(place) if self.clustered.is_at(place, fabric) => {
                (place.range_lid(fabric).unwrap_or(Lid::NONE), 0)
            }
            // The rest of the range is, or may become, that of VMs of clusters.
            Some(_) if !self.clustered.is_empty() => (info.lid, 0),
            Some(_) => (info.lid, info.lmc),
        }
    }

    /// The function that a LID leads to among those that share a port: the one that has the LID for
    /// itself, or else any function that GIDs tell from the others.
    pub(crate) fn function_with(&self, port: PortRef, fabric: &Fabric, dlid: Lid) -> Option<VfId> {
        let mut among = None;
        for &vf in self.functions(port)? {
            let (lid, _) = self.address(vf, fabric, port);
            if !self.is_clustered(vf, fabric) {
                among = among.or(Some(vf));
            } else if lid == dlid {
                return Some(vf);
            }
        }
        among
    }

    /// The function that alone has the LID which a packet is for, at a port that is others', too.
    pub(crate) fn owner(&self, port: PortRef, fabric: &Fabric, packet: &MadPacket) -> Option<VfId> {
        if self.clustered.is_empty() || packet.is_smp() {
            return None;
        }
        let function = self.function_with(port, fabric, packet.dlid);
        function.filter(|&vf| self.is_clustered(vf, fabric))
    }

    /// The state of a function's port as it has it.
    pub(crate) fn state(&self, vf: VfId, fabric: &Fabric, port: PortRef) -> PortState {
        match self.place(vf) {
            Some(place) => self.clustered.state(place, fabric),
            None => fabric.port_info(port).unwrap_or_default().port_state,
        }
    }

    /// Makes of a port what it is to a function that shares it.
    pub(crate) fn adapt(&self, vf: VfId, fabric: &Fabric, view: &mut PortView) {
        let Some(place) = self.place(vf) else { return };
        let guid = place.guid(fabric);
        let prefix = fabric.port_info(place.port).unwrap_or_default().gid_prefix;
        (view.lid, view.lmc) = self.address(vf, fabric, place.port);
        view.active &= self.clustered.lid(place, fabric).is_some();
        view.gids = guid
            .map(|guid| Gid::new(prefix, guid))
            .into_iter()
            .collect();
        view.pkeys = self.pkeys(vf, fabric).unwrap_or_default();
    }

    /// Marks a function's request, so that the answer finds back. False: the guest uses what is not
    /// its to use. Who has a LID for itself needs no mark.
    pub(crate) fn mark(&self, vf: VfId, fabric: &Fabric, packet: &mut MadPacket) -> bool {
        let place = self.place(vf);
        let Some(place) = place.filter(|place| !self.clustered.is_at(*place, fabric)) else {
            return true;
        };
        // What nobody answers by its transaction is found by its global route. Connection managers
        // answer with such packets of their own, which repeat the transaction of the first.
        let method = packet.header().method();
        if answers(method) || method == Method::SEND {
            return true;
        }
        let unused = top(packet) == 0;
        set_top(packet, place.entry);
        unused
    }

    /// The answer to a function's request to end a subscription, where that is not the subnet
    /// administration's to give.
    pub(crate) fn end_subscription(
        &mut self,
        vf: VfId,
        fabric: &Fabric,
        packet: &MadPacket,
    ) -> Option<MadPacket> {
        if self.is_clustered(vf, fabric) {
            return None;
        }
        let port = self.place(vf)?.port;
        self.at_mut(port)?.subscribers.end(vf, packet)
    }

    /// Whom a packet is for; an answer's transaction is again what the request's was.
    pub(crate) fn addressee(
        &self,
        port: PortRef,
        fabric: &Fabric,
        packet: &mut MadPacket,
    ) -> Addressee {
        let Some(shared) = self.at(port).filter(|_| !packet.is_smp()) else {
            return Addressee::Functions(Vec::new());
        };
        if let Some(vf) = self.owner(port, fabric, packet) {
            return Addressee::Functions(vec![vf]);
        }
        let functions = shared.functions.iter().copied();
        let mut functions = functions.filter(|&vf| !self.is_clustered(vf, fabric));
        let function = if answers(packet.header().method()) {
            if top(packet) == REGISTRAR {
                return Addressee::Registrar;
            }
            let entry = top(packet);
            set_top(packet, 0);
            functions.find(|&vf| self.place(vf).is_some_and(|place| place.entry == entry))
        } else if let Some(grh) = packet.grh {
            let guid = |vf| self.place(vf).and_then(|place| place.guid(fabric));
            functions.find(|&vf| guid(vf) == Some(grh.dgid.guid()))
        } else {
            return Addressee::Functions(shared.subscribers.of(packet));
        };
        Addressee::Functions(function.into_iter().collect())
    }

    /// Takes note of what has come for a function.
    pub(crate) fn note_answer(
        &mut self,
        port: PortRef,
        vf: VfId,
        fabric: &Fabric,
        packet: &MadPacket,
    ) {
        // Who has a LID for itself is a subscriber of its own.
        if self.is_clustered(vf, fabric) {
            return;
        }
        if let Some(shared) = self.at_mut(port) {
            shared.subscribers.answered(vf, packet);
        }
    }

    /// An answer for the registrar has come.
    pub(crate) fn answered(&mut self, port: PortRef, packet: &MadPacket, now: Duration) {
        if let Some(shared) = self.at_mut(port) {
            shared.registrar.answered(packet, now);
        }
    }

    /// The subnet manager may be another one now, or know nothing any more.
    pub(crate) fn forget(&mut self, port: PortRef) {
        if let Some(shared) = self.at_mut(port) {
            shared.registrar.forget();
            shared.subscribers.forget_all();
        }
    }

    /// Has a place hold this GUID, or none.
    pub(crate) fn want(&mut self, place: SharedPlace, guid: Guid) {
        let mut functions = (0..).map(VfId).zip(&self.places);
        let function = functions.find(|(_, at)| **at == Some(place));
        let function = function.map(|(vf, _)| vf);
        if let Some(shared) = self.at_mut(place.port) {
            shared.registrar.want(place.entry, guid);
            if let Some(vf) = function {
                shared.subscribers.forget(vf);
            }
        }
    }

    /// The GUID that a place is to hold.
    pub(crate) fn wanted(&self, place: SharedPlace) -> Guid {
        let shared = self.at(place.port);
        shared.map_or(Guid::NONE, |shared| shared.registrar.wanted(place.entry))
    }

    /// Whether the subnet administration has agreed to what a place is to hold.
    ///
    /// # Errors
    /// It has refused.
    pub(crate) fn is_registered(&self, place: SharedPlace) -> Result<bool, Refused> {
        let shared = self.at(place.port);
        shared.map_or(Ok(false), |shared| {
            shared.registrar.is_registered(place.entry)
        })
    }

    /// Requests that are due now, with the ports that they leave by.
    pub(crate) fn poll(&mut self, now: Duration, fabric: &Fabric) -> Vec<(PortRef, MadPacket)> {
        let mut packets = Vec::new();
        for shared in &mut self.ports {
            let port = shared.port;
            let info = fabric.port_info(port).unwrap_or_default();
            let pkey = fabric.pkeys(port).and_then(<[PKey]>::first).copied();
            let requests = shared.registrar.poll(now, &info);
            packets.extend(requests.into_iter().map(|mad| {
                let pkey = pkey.unwrap_or(PKey::DEFAULT_FULL);
                let (from, to): (Lid, Lid) = (info.lid, info.master_sm_lid);
                (port, MadPacket::gmp(from, to, info.master_sm_sl, pkey, mad))
            }));
        }
        packets
    }

    /// When to poll again.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.ports
            .iter()
            .filter_map(|shared| shared.registrar.deadline())
            .min()
    }
}

impl VSwitch {
    /// The functions that have their port at `port`.
    pub(crate) fn functions_at(&self, state: &SubnetState, port: PortRef) -> Vec<VfId> {
        match state.shared.functions(port) {
            Some(functions) => functions.to_vec(),
            None => self.functions.get(&port).copied().into_iter().collect(),
        }
    }

    /// The function that a LID leads to which leads to a port.
    pub(crate) fn function_with(
        &self,
        state: &SubnetState,
        port: PortRef,
        dlid: Lid,
    ) -> Option<VfId> {
        match state.shared.functions(port) {
            Some(_) => state.shared.function_with(port, &state.fabric, dlid),
            None => self.functions.get(&port).copied(),
        }
    }

    /// Something happened at a port: if functions share it, their GUIDs may have to be registered.
    pub(crate) fn note_shared_port(
        &self,
        state: &mut SubnetState,
        port: PortRef,
        event: PortEvent,
    ) {
        if state.shared.functions(port).is_none() {
            return;
        }
        match event {
            PortEvent::SmChange | PortEvent::ClientReregister => state.shared.forget(port),
            PortEvent::StateChange(PortState::Down) => state.shared.forget(port),
            _ => {}
        }
        // Whoever moves packets now may not be the thread that asks.
        self.wake();
    }
}

/// Where a management datagram's transaction begins: with its uppermost byte.
const TRANSACTION: usize = 8;

fn top(packet: &MadPacket) -> u8 {
    packet.mad[TRANSACTION]
}

fn set_top(packet: &mut MadPacket, value: u8) {
    packet.mad[TRANSACTION] = value;
}
