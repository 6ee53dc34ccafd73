//! What the driver of a physical function does for the virtual functions at its port: it registers
//! their GUIDs with the subnet administration, and tells their management packets apart.
//!
//! A packet with a global route header is for the function with its destination GID. An answer
//! without one is known by its transaction: the uppermost byte of those of requests that leave is the
//! function's entry in the port's table, which kernels leave free for this.

mod registrar;

use std::collections::HashMap;
use std::time::Duration;

use fabric::{Fabric, PortEvent, PortRef};
use hca::{PortView, VfId};
use tracing::debug;
use wire::mad::Method;
use wire::{Gid, Guid, Lid, MadPacket, PKey, PortState};

use super::delivery::Delivery;
use super::hosts::answers;
use super::{Management, SubnetState};
use crate::config::Config;
use crate::shared_port::{Place, pkeys};
use crate::topology::Plan;
pub(super) use registrar::Refused;
use registrar::Registrar;

/// Uppermost byte of the registrar's transactions. Programs of the host have 0xc0 to 0xcf, functions
/// at most 127.
const REGISTRAR: u8 = 0xff;

/// Whom a packet is for that reached a shared port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Addressee {
    /// This function.
    Function(VfId),
    /// The physical function, which registers GUIDs.
    Registrar,
    /// Nobody that can be told.
    Nobody,
}

#[derive(Debug)]
struct SharedPort {
    port: PortRef,
    functions: Vec<VfId>,
    registrar: Registrar,
}

/// All shared ports.
#[derive(Debug, Default)]
pub(super) struct SharedPorts {
    ports: Vec<SharedPort>,
    /// By function.
    places: Vec<Option<Place>>,
    /// The P_Keys of VMs, by GUID.
    pkeys: HashMap<Guid, Vec<PKey>>,
}

impl SharedPorts {
    /// The shared ports of a configuration; VMs are to be where it has them.
    pub(super) fn new(config: &Config, plan: &Plan) -> Self {
        let mut all = Self {
            places: plan.places().collect(),
            pkeys: config
                .vfs()
                .map(|(_, vf)| (vf.guid, vf.pkeys.clone()))
                .collect(),
            ..Self::default()
        };
        for (index, (place, (_, vf))) in plan.places().zip(config.vfs()).enumerate() {
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
    pub(super) fn ports(&self) -> impl Iterator<Item = (PortRef, &[VfId])> {
        self.ports
            .iter()
            .map(|shared| (shared.port, &shared.functions[..]))
    }

    /// The functions at a port, if it is a shared one.
    pub(super) fn functions(&self, port: PortRef) -> Option<&[VfId]> {
        Some(&self.at(port)?.functions)
    }

    /// The place of a function that shares its port.
    pub(super) fn place(&self, vf: VfId) -> Option<Place> {
        *self.places.get(usize::from(vf.0))?
    }

    /// The P_Key table of a function that shares its port; `None` where it has its port for itself.
    pub(super) fn pkeys(&self, vf: VfId, fabric: &Fabric) -> Option<Vec<PKey>> {
        let place = self.place(vf)?;
        let own = place.guid(fabric).and_then(|guid| self.pkeys.get(&guid));
        let port = fabric.pkeys(place.port).unwrap_or_default();
        Some(own.map(|own| pkeys(own, port)).unwrap_or_default())
    }

    /// Makes of a port what it is to a function that shares it.
    pub(super) fn adapt(&self, vf: VfId, fabric: &Fabric, view: &mut PortView) {
        let Some(place) = self.place(vf) else { return };
        let guid = place.guid(fabric);
        let prefix = fabric.port_info(place.port).unwrap_or_default().gid_prefix;
        view.active &= guid.is_some();
        view.gids = guid
            .map(|guid| Gid::new(prefix, guid))
            .into_iter()
            .collect();
        view.pkeys = self.pkeys(vf, fabric).unwrap_or_default();
    }

    /// Marks a function's request, so that the answer finds back. False: the guest uses what is not
    /// its to use.
    pub(super) fn mark(&self, vf: VfId, packet: &mut MadPacket) -> bool {
        let Some(place) = self.place(vf) else {
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

    /// Whom a packet is for; an answer's transaction is again what the request's was.
    pub(super) fn addressee(
        &self,
        port: PortRef,
        fabric: &Fabric,
        packet: &mut MadPacket,
    ) -> Addressee {
        let Some(shared) = self.at(port).filter(|_| !packet.is_smp()) else {
            return Addressee::Nobody;
        };
        if answers(packet.header().method()) {
            if top(packet) == REGISTRAR {
                return Addressee::Registrar;
            }
            let entry = top(packet);
            let asked = |vf: &&VfId| self.place(**vf).is_some_and(|place| place.entry == entry);
            let function = shared.functions.iter().find(asked);
            set_top(packet, 0);
            return function.map_or(Addressee::Nobody, |&vf| Addressee::Function(vf));
        }
        let named = packet.grh.map(|grh| grh.dgid).and_then(|gid| {
            let mut functions = shared.functions.iter();
            functions.find(|&&vf| {
                let guid = self.place(vf).and_then(|place| place.guid(fabric));
                guid == Some(gid.guid())
            })
        });
        named.map_or(Addressee::Nobody, |&vf| Addressee::Function(vf))
    }

    /// An answer for the registrar has come.
    pub(super) fn answered(&mut self, port: PortRef, packet: &MadPacket, now: Duration) {
        if let Some(shared) = self.at_mut(port) {
            shared.registrar.answered(packet, now);
        }
    }

    /// The subnet manager may be another one now, or know nothing any more.
    pub(super) fn forget(&mut self, port: PortRef) {
        if let Some(shared) = self.at_mut(port) {
            shared.registrar.forget();
        }
    }

    /// Has a place hold this GUID, or none.
    pub(super) fn want(&mut self, place: Place, guid: Guid) {
        if let Some(shared) = self.at_mut(place.port) {
            shared.registrar.want(place.entry, guid);
        }
    }

    /// The GUID that a place is to hold.
    pub(super) fn wanted(&self, place: Place) -> Guid {
        let shared = self.at(place.port);
        shared.map_or(Guid::NONE, |shared| shared.registrar.wanted(place.entry))
    }

    /// Whether the subnet administration has agreed to what a place is to hold.
    ///
    /// # Errors
    /// It has refused.
    pub(super) fn is_registered(&self, place: Place) -> Result<bool, Refused> {
        let shared = self.at(place.port);
        shared.map_or(Ok(false), |shared| {
            shared.registrar.is_registered(place.entry)
        })
    }

    /// Requests that are due now, with the ports that they leave by.
    pub(super) fn poll(&mut self, now: Duration, fabric: &Fabric) -> Vec<(PortRef, MadPacket)> {
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
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.ports
            .iter()
            .filter_map(|shared| shared.registrar.deadline())
            .min()
    }
}

impl Management {
    /// The functions that have their port at `port`.
    pub(super) fn functions_at(&self, state: &SubnetState, port: PortRef) -> Vec<VfId> {
        match state.shared.functions(port) {
            Some(functions) => functions.to_vec(),
            None => self.functions.get(&port).copied().into_iter().collect(),
        }
    }

    /// Something happened at a port: if functions share it, their GUIDs may have to be registered.
    pub(super) fn note_shared_port(
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
        self.look();
    }

    /// A packet that has reached a port that functions share.
    pub(super) fn to_shared_port(
        &self,
        state: &mut SubnetState,
        port: PortRef,
        mut packet: Box<MadPacket>,
    ) -> Vec<Delivery> {
        if state.answer_for(port, &packet) {
            return Vec::new();
        }
        let SubnetState { shared, fabric, .. } = state;
        match shared.addressee(port, fabric, &mut packet) {
            Addressee::Function(vf) => {
                let packets = self.to_guest(state, vf, *packet).into_iter();
                packets
                    .map(|packet| Delivery::Packet(vf, Box::new(packet)))
                    .collect()
            }
            Addressee::Registrar => {
                shared.answered(port, &packet, self.now());
                self.look();
                Vec::new()
            }
            Addressee::Nobody => {
                debug!(%port, packet = %packet.header(), "for nobody at this shared port");
                Vec::new()
            }
        }
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
