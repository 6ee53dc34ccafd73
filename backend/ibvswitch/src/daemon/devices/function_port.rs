//! A function's port, as its device sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hca::{TrafficCounters, VfId};
use vswitch::{Function, VSwitch};
use wire::attribute::{CapabilityMask, NodeDescription};
use wire::{Gid, LinkSpeedExt, PKey};

/// A function's port, as its device sees it.
#[derive(Debug)]
pub struct FunctionPort {
    function: Function,
    counters: Arc<TrafficCounters>,
    /// The guest's name for the node, if the node also belongs to others.
    description: Option<[u8; 64]>,
    /// The guest's name for the node, if the node is its own.
    named: Option<Named>,
}

/// A node that a guest has given a name.
#[derive(Debug)]
struct Named {
    by_guest: [u8; 64],
    before: [u8; 64],
}

impl FunctionPort {
    /// The port of `vf`, whose traffic is counted in `counters`; `None` when
    /// there is no such function.
    #[must_use]
    pub fn new(vswitch: &Arc<VSwitch>, vf: VfId, counters: Arc<TrafficCounters>) -> Option<Self> {
        Some(Self {
            function: vswitch.function(vf)?,
            counters,
            description: None,
            named: None,
        })
    }
}

/// The device's registers have one set of speed bits: those of PortInfo, and
/// from the fifth on what PortInfo calls extended speeds.
const EXTENDED_SPEED_SHIFT: u32 = 4;

impl connectx::Port for FunctionPort {
    fn attributes(&self) -> connectx::PortAttributes {
        let facts = self.function.facts();
        let port = facts.port;
        let extended = match port.active_speed_ext() {
            // The fifth of the extended speeds there; the code in between is libibmad's alone.
            Some(LinkSpeedExt::Xdr) => 16,
            other => u16::from(other.unwrap_or_default().code()),
        };
        connectx::PortAttributes {
            lid: facts.lid,
            lmc: facts.lmc,
            sm_lid: facts.sm_lid,
            sm_sl: port.master_sm_sl,
            state: facts.state,
            physical_state: port.port_physical_state,
            system_image_guid: facts.node.system_image_guid,
            node_guid: facts.node_guid,
            port_guid: facts.guid,
            capability_mask: port.capability_mask.0,
            capability_mask_writable: facts.writable.0,
            subnet_timeout: port.subnet_timeout,
            init_type_reply: port.init_type_reply,
            max_mtu: port.max_mtu(),
            active_mtu: port.active_mtu(),
            active_width: port.active_width().unwrap_or_default(),
            active_speed: if extended == 0 {
                u16::from(port.link_speed_active)
            } else {
                extended << EXTENDED_SPEED_SHIFT
            },
            vl_cap: port.vl_cap,
            operational_vls: port.operational_vls,
            qkey_violations: saturated(&self.counters.qkey_violations),
            pkey_violations: saturated(&self.counters.pkey_violations),
            has_smi: facts.has_smi,
            grh_required: facts.grh_required,
        }
    }

    fn gid(&self, index: u16) -> Gid {
        self.function.gid(index)
    }

    fn pkey(&self, index: u16) -> PKey {
        self.function.pkey(index)
    }

    fn node_description(&self) -> [u8; 64] {
        self.description.unwrap_or_else(|| {
            let text = self.function.node_description();
            text.map_or([0; 64], |text| text.to_bytes())
        })
    }

    fn set_node_description(&mut self, description: &[u8; 64]) {
        if self.function.shares_port() {
            self.description = Some(*description);
        } else {
            let before = match &self.named {
                Some(named) => named.before,
                None => self.node_description(),
            };
            self.named = Some(Named {
                by_guest: *description,
                before,
            });
            let text = NodeDescription::from_bytes(*description);
            self.function.set_node_description(text);
        }
    }

    fn set_capability_mask(&mut self, value: u32, select: u32) {
        self.function.set_capabilities(
            CapabilityMask(value & select),
            CapabilityMask(!value & select),
        );
    }

    fn reset(&mut self) {
        let port = self.function.facts();
        match port.port.capability_mask.0 & port.writable.0 {
            0 => {}
            set => self.set_capability_mask(0, set),
        }
        self.description = None;
        // Unless the node has changed places since.
        if let Some(Named { by_guest, before }) = self.named.take()
            && self.node_description() == by_guest
        {
            let text = NodeDescription::from_bytes(before);
            self.function.set_node_description(text);
        }
    }

    fn process_mad(&mut self, mad: &[u8; 256]) -> Option<[u8; 256]> {
        self.function.ask_own_port(mad)
    }
}

fn saturated(counter: &AtomicU64) -> u16 {
    counter.load(Ordering::Relaxed).min(u64::from(u16::MAX)) as u16
}
