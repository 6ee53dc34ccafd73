//! A function's port, as its device sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabric::{PortRef, SmpAccess};
use hca::{TrafficCounters, VfId};
use wire::attribute::NodeDescription;
use wire::mad::Status;
use wire::smp::Smp;
use wire::{Gid, Guid, Lid, MadPacket, PKey};

use super::cluster::Direction;
use super::{Management, Reason};
use crate::config::GmpClass;

/// A function's port, as its device sees it.
#[derive(Debug)]
pub struct FunctionPort {
    management: Arc<Management>,
    vf: VfId,
    port: PortRef,
    counters: Arc<TrafficCounters>,
    /// Of the VM that is configured here.
    guid: Guid,
    /// What the guest calls the node, where the node is not its own to name.
    description: Option<[u8; 64]>,
}

impl FunctionPort {
    /// The port of `vf`, whose traffic is counted in `counters`; `None` when
    /// there is no such function.
    #[must_use]
    pub fn new(
        management: &Arc<Management>,
        vf: VfId,
        counters: Arc<TrafficCounters>,
    ) -> Option<Self> {
        let port = management.port(vf)?;
        Some(Self {
            management: Arc::clone(management),
            vf,
            port,
            counters,
            guid: management.configured_guid(vf),
            description: None,
        })
    }
}

/// The device's registers have one set of speed bits: those of PortInfo, and
/// from the fifth on what PortInfo calls extended speeds.
const EXTENDED_SPEED_SHIFT: u32 = 4;

impl connectx::Port for FunctionPort {
    fn attributes(&self) -> connectx::PortAttributes {
        let state = self.management.state.read_recursive();
        let info = state.fabric.port_info(self.port).unwrap_or_default();
        let node = state.fabric.node_info(self.port).unwrap_or_default();
        let extended = u16::from(info.link_speed_ext_active);
        let clusters = &state.clusters;
        let shared = &state.shared;
        let place = shared.place(self.vf);
        let (lid, lmc) = shared.address(self.vf, &state.fabric, self.port);
        // A VM has one HCA, wherever its port is.
        let guid = match place {
            Some(place) => place.guid(&state.fabric).unwrap_or(self.guid),
            None => node.port_guid,
        };
        connectx::PortAttributes {
            lid: clusters.own_lid(self.vf, lid),
            lmc: match clusters.has_own_lids(self.vf) {
                true => 0,
                false => lmc,
            },
            sm_lid: clusters
                .seen(self.vf, info.master_sm_lid)
                .unwrap_or_default(),
            sm_sl: info.master_sm_sl,
            state: shared.state(self.vf, &state.fabric, self.port),
            physical_state: info.port_physical_state,
            system_image_guid: node.system_image_guid,
            node_guid: guid,
            port_guid: guid,
            capability_mask: info.capability_mask.0,
            capability_mask_writable: self.writable_capabilities(),
            subnet_timeout: info.subnet_timeout,
            init_type_reply: info.init_type_reply,
            max_mtu: info.max_mtu(),
            active_mtu: info.active_mtu(),
            active_width: info.active_width().unwrap_or_default(),
            active_speed: if extended == 0 {
                u16::from(info.link_speed_active)
            } else {
                extended << EXTENDED_SPEED_SHIFT
            },
            vl_cap: info.vl_cap,
            operational_vls: info.operational_vls,
            qkey_violations: saturated(&self.counters.qkey_violations),
            pkey_violations: saturated(&self.counters.pkey_violations),
            has_smi: self.access() != SmpAccess::Deny,
            grh_required: shared.requires_grh(self.vf, &state.fabric),
        }
    }

    fn gid(&self, index: u16) -> Gid {
        let state = self.management.state.read_recursive();
        let index = usize::from(index);
        let guid = match state.shared.place(self.vf) {
            Some(place) => place.guid(&state.fabric).filter(|_| index == 0),
            None => state
                .fabric
                .guids(self.port)
                .and_then(|guids| guids.get(index).copied()),
        };
        let info = state.fabric.port_info(self.port).unwrap_or_default();
        Gid::new(info.gid_prefix, guid.unwrap_or_default())
    }

    fn pkey(&self, index: u16) -> PKey {
        let state = self.management.state.read_recursive();
        let shared = state.shared.pkeys(self.vf, &state.fabric);
        let table = state.fabric.pkeys(self.port).unwrap_or_default();
        state
            .clusters
            .pkeys(self.vf, shared.as_deref().unwrap_or(table))
            .get(usize::from(index))
            .copied()
            .unwrap_or(PKey::INVALID)
    }

    fn node_description(&self) -> [u8; 64] {
        if let Some(description) = self.description {
            return description;
        }
        let state = self.management.state.read_recursive();
        state
            .fabric
            .node_description(self.port.node)
            .map_or([0; 64], |text| text.to_bytes())
    }

    fn set_node_description(&mut self, description: &[u8; 64]) {
        if self.shares_port() {
            self.description = Some(*description);
            return;
        }
        let text = NodeDescription::from_bytes(*description);
        let mut state = self.management.state.write();
        state.fabric.set_node_description(self.port.node, text);
        drop(state);
        self.management.views.outdate();
        // The subnet manager is told.
        self.management.look();
    }

    fn set_capability_mask(&mut self, value: u32, select: u32) {
        use wire::attribute::CapabilityMask;
        let (set, clear) = (
            CapabilityMask(value & select),
            // What one has switched off another may still have on.
            match self.shares_port() {
                true => CapabilityMask::default(),
                false => CapabilityMask(!value & select),
            },
        );
        let mut state = self.management.state.write();
        state.fabric.set_capabilities(self.port, set, clear);
        drop(state);
        self.management.views.outdate();
        self.management.look();
    }

    fn reset(&mut self) {
        let port = connectx::Port::attributes(self);
        match port.capability_mask & port.capability_mask_writable {
            0 => {}
            set => self.set_capability_mask(0, set),
        }
    }

    fn process_mad(&mut self, mad: &[u8; 256]) -> Option<[u8; 256]> {
        let proxy = &self.management.proxy;
        if !proxy.admit_local(self.management.now(), self.vf, mad) {
            return None;
        }
        if let Some(answer) = self.management.ask_view_locally(self.vf, mad) {
            return Some(answer);
        }
        let mut asked = *mad;
        let answer = self.management.with(|state| {
            let clusters = &state.clusters;
            if !clusters.translate_local(self.vf, Direction::ToWire, &mut asked) {
                let packet = MadPacket::smp(Lid::NONE, Lid::NONE, *mad);
                proxy.refuse(self.management.now(), self.vf, Reason::Attribute, &packet);
                return Some(unsupported(mad));
            }
            let mut answer = state.fabric.local_mad(self.port, &asked)?;
            let clusters = &state.clusters;
            if !clusters.translate_local(self.vf, Direction::ToGuest, &mut answer) {
                return Some(unsupported(mad));
            }
            proxy.clean(self.vf, &mut answer);
            Some(answer)
        });
        // A Set may have changed the port.
        self.management.look();
        answer
    }
}

impl FunctionPort {
    fn shares_port(&self) -> bool {
        let state = self.management.state.read_recursive();
        state.shared.place(self.vf).is_some()
    }

    fn access(&self) -> SmpAccess {
        self.management.proxy.smp_access(self.vf)
    }

    /// Capabilities that a driver may switch: those that say that an agent of
    /// the guest's listens. Its communication manager comes and goes; agents of
    /// other classes, such as a storage target's, may be there where the class
    /// passes, and a subnet manager where the guest may manage: one that may not
    /// must not make managers talk to it either.
    fn writable_capabilities(&self) -> u32 {
        use wire::attribute::CapabilityMask as Mask;
        let proxy = &self.management.proxy;
        let of_class = [
            (GmpClass::DevMgt, Mask::DEVICE_MANAGEMENT),
            (GmpClass::Snmp, Mask::SNMP_TUNNELING),
            (GmpClass::Vendor, Mask::VENDOR_CLASS),
        ];
        let passing = of_class
            .into_iter()
            .filter(|&(class, _)| proxy.passes(self.vf, class));
        let always = Mask::COMMUNICATION_MANAGEMENT;
        let mask = passing.fold(always, |mask, (_, capability)| mask.with(capability));
        match self.access() {
            SmpAccess::Fabric => mask.with(Mask::IS_SM).0,
            SmpAccess::OwnPort | SmpAccess::Deny => mask.0,
        }
    }
}

/// What an agent answers that does not know the attribute.
fn unsupported(asked: &[u8; 256]) -> [u8; 256] {
    let mut answer = *asked;
    if let Ok(mut smp) = Smp::new_checked(&mut answer[..]) {
        smp.respond(Status::UNSUPPORTED_ATTRIBUTE);
    }
    answer
}

fn saturated(counter: &AtomicU64) -> u16 {
    counter.load(Ordering::Relaxed).min(u64::from(u16::MAX)) as u16
}
