//! The work of a physical function's driver for the virtual functions at its port: it registers
//! their GUIDs with the subnet administration, and tells their management packets apart.
//!
//! A packet to a LID that one function has for itself is for that one. Of the others a packet with a
//! global route header is for the function with its destination GID. An answer without one is known by
//! its transaction: the uppermost byte of those of requests that leave is the function's entry in the
//! port's table, which kernels leave free for this. A report of an event without one is for each function
//! that has subscribed to the event. Any other request without one is for the physical function, as on
//! hardware (the demultiplexing of Linux' mlx4 driver): for the programs of the host that are attached
//! there, and else for nobody.

mod registrar;
mod subscribers;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use fabric::{Fabric, Nodes, PortRef, VPortOwner, VPorts};
use hca::VfId;
use wire::mad::Method;
use wire::{Guid, Lid, MadPacket, PKey, PortState};

use super::hosts::answers;
use crate::model::Model;
use crate::plan::SharedPlace;
use crate::sharing::Sharing;
pub(crate) use registrar::Refused;
use registrar::Registrar;
use subscribers::Subscribers;

/// Uppermost byte of the registrar's transactions. Programs of the host have 0xc0 to 0xcf, functions
/// at most 127.
const REGISTRAR: u8 = 0xff;

/// The recipient of a packet that reached a shared port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Addressee {
    /// These functions; none where nobody can be told.
    Functions(Vec<VfId>),
    /// The physical function, which registers GUIDs.
    Registrar,
}

/// State of the driver of one physical function.
#[derive(Debug, Default)]
struct SharedPort {
    registrar: Registrar,
    subscribers: Subscribers,
}

/// All shared ports.
#[derive(Debug)]
pub(crate) struct SharedPorts {
    sharing: Arc<Sharing>,
    ports: BTreeMap<PortRef, SharedPort>,
}

impl Deref for SharedPorts {
    type Target = Sharing;

    fn deref(&self) -> &Sharing {
        &self.sharing
    }
}

impl SharedPorts {
    /// The shared ports of a configuration; VMs are to be where it has them.
    pub(crate) fn new(sharing: Arc<Sharing>, model: &Model) -> Self {
        let ports = sharing
            .ports()
            .map(|(port, _)| (port, SharedPort::default()));
        let mut all = Self {
            ports: ports.collect(),
            sharing,
        };
        for (vf, (_, configured)) in (0..).map(VfId).zip(model.vfs()) {
            let guid = if configured.spare {
                Guid::NONE
            } else {
                configured.guid
            };
            if let Some(place) = all.place(vf) {
                all.want(place, guid);
            }
        }
        all
    }

    fn at(&self, port: PortRef) -> Option<&SharedPort> {
        self.ports.get(&port)
    }

    fn at_mut(&mut self, port: PortRef) -> Option<&mut SharedPort> {
        self.ports.get_mut(&port)
    }

    /// Marks a function's request, so that the answer finds back. False: the guest uses a transaction ID with bits
    /// that are not its own. A function with a LID of its own needs no mark.
    pub(crate) fn mark(&self, vf: VfId, nodes: &Nodes, packet: &mut MadPacket) -> bool {
        let place = self.place(vf);
        let Some(place) = place.filter(|_| !self.has_own_lid(vf, nodes)) else {
            return true;
        };
        // Packets that nobody answers by their transaction are found by their global route. Connection managers
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
        nodes: &Nodes,
        packet: &MadPacket,
    ) -> Option<MadPacket> {
        if self.has_own_lid(vf, nodes) {
            return None;
        }
        let port = self.place(vf)?.port;
        self.at_mut(port)?.subscribers.end(vf, packet)
    }

    /// The recipient of a packet; gives an answer the request's transaction again.
    pub(crate) fn addressee(
        &self,
        port: PortRef,
        nodes: &Nodes,
        packet: &mut MadPacket,
    ) -> Addressee {
        let at = self.at(port).zip(self.functions(port));
        let Some((shared, functions)) = at.filter(|_| !packet.is_smp()) else {
            return Addressee::Functions(Vec::new());
        };
        if let Some(vf) = self.owner(port, nodes, packet) {
            return Addressee::Functions(vec![vf]);
        }
        let functions = functions.iter().copied();
        let mut functions = functions.filter(|&vf| !self.has_own_lid(vf, nodes));
        let function = if answers(packet.header().method()) {
            if top(packet) == REGISTRAR {
                return Addressee::Registrar;
            }
            let entry = top(packet);
            set_top(packet, 0);
            functions.find(|&vf| self.place(vf).is_some_and(|place| place.entry == entry))
        } else if let Some(grh) = packet.grh {
            let guids = |vf| {
                self.place(vf)
                    .into_iter()
                    .flat_map(|place| place.guids(nodes))
            };
            let to = grh.dgid.guid();
            functions.find(|&vf| !to.is_none() && guids(vf).any(|guid| guid == to))
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
        nodes: &Nodes,
        packet: &MadPacket,
    ) {
        // A function with a LID of its own is a subscriber of its own.
        if self.has_own_lid(vf, nodes) {
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
        let function = self.function_at(place);
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
    pub(crate) fn is_registered(&self, place: SharedPlace, nodes: &Nodes) -> Result<bool, Refused> {
        if let Some(vport) = place.vport(nodes) {
            let wanted = self.wanted(place);
            let up = wanted.is_none() || self.own_lids().state(place, nodes) == PortState::Active;
            return Ok(vport.guid() == wanted && up);
        }
        let shared = self.at(place.port);
        shared.map_or(Ok(false), |shared| {
            shared.registrar.is_registered(place.entry)
        })
    }

    /// Requests that are due now, with the ports that they leave by.
    pub(crate) fn poll(&mut self, now: Duration, nodes: &Nodes) -> Vec<(PortRef, MadPacket)> {
        let mut packets = Vec::new();
        // Virtual ports have GUIDs that nobody needs to register.
        let registering =
            { self.ports.iter_mut() }.filter(|(port, _)| VPorts::at(nodes, **port).is_none());
        for (&port, shared) in registering {
            let info = nodes.port_info(port).unwrap_or_default();
            let pkey = nodes.pkeys(port).and_then(<[PKey]>::first).copied();
            let requests = shared.registrar.poll(now, &info);
            packets.extend(requests.into_iter().map(|mad| {
                let pkey = pkey.unwrap_or(PKey::DEFAULT_FULL);
                let (from, to): (Lid, Lid) = (info.lid, info.master_sm_lid);
                (port, MadPacket::gmp(from, to, info.master_sm_sl, pkey, mad))
            }));
        }
        packets
    }

    /// Has each virtual port be that of the VM that is to be there, as a hypervisor's driver does.
    pub(crate) fn set_vports(&self, fabric: &mut Fabric) {
        for (port, functions) in self.sharing.ports() {
            if VPorts::at(fabric, port).is_none() {
                continue;
            }
            for place in functions.iter().filter_map(|&vf| self.place(vf)) {
                let vm = self.wanted(place);
                let lid_required = self.wants_own_lid(vm);
                VPortOwner::new(fabric, port).set(place.entry.into(), vm, lid_required);
            }
        }
    }

    /// When to poll again.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let deadlines = self.ports.values();
        deadlines
            .filter_map(|shared| shared.registrar.deadline())
            .min()
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
