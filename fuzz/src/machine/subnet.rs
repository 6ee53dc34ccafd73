//! A subnet that never changes: every function reaches every other.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use connectx::{Port, PortAttributes};
use hca::{End, Heading, NoRoute, Route, Subnet, VfId};
use wire::{Gid, Guid, Lid, LinkWidth, MadPacket, Mtu, PKey, PhysicalState, PortState, Sl};

/// The subnet: LID `n` is function `n - 1`.
#[derive(Debug)]
pub struct FixedSubnet {
    count: u16,
    delay: u64,
    generation: Arc<AtomicU64>,
}

impl FixedSubnet {
    /// A subnet of `count` functions, with so many nanoseconds from one to another.
    pub fn new(count: u16, delay: u64) -> Self {
        Self {
            count,
            delay,
            generation: Arc::default(),
        }
    }

    fn route(vf: u16) -> Route {
        Route::clean(
            End::Here(VfId(vf)),
            Mtu::from_bytes(4096).expect("an MTU of the specification"),
        )
    }
}

impl Subnet for FixedSubnet {
    fn generation(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.generation)
    }

    fn resolve(&mut self, from: VfId, heading: &Heading) -> Result<Route, NoRoute> {
        let dlid = heading.dlid;
        match u16::from(dlid).checked_sub(1) {
            Some(vf) if vf < self.count => Ok(Route {
                delay: if from.0 == vf { 0 } else { self.delay },
                ..Self::route(vf)
            }),
            _ => Err(NoRoute::Dropped),
        }
    }

    fn resolve_multicast(&mut self, _: VfId, _: Lid, _: Sl, _: PKey) -> Vec<Route> {
        (0..self.count).map(Self::route).collect()
    }

    fn send_mad(&mut self, _: VfId, _: MadPacket) {}
}

/// A port that never changes.
#[derive(Debug)]
pub struct FixedPort {
    lid: u16,
    guid: Guid,
    /// Its only GID.
    pub gid: Gid,
    description: [u8; 64],
}

impl FixedPort {
    /// The port with this LID.
    pub fn new(lid: u16) -> Self {
        let guid = Guid::new(0x0002_c903_0000_0000 + u64::from(lid));
        Self {
            lid,
            guid,
            gid: Gid::new(0xfe80 << 48, guid),
            description: [0; 64],
        }
    }
}

impl Port for FixedPort {
    fn attributes(&self) -> PortAttributes {
        let mtu = Mtu::from_bytes(4096).expect("an MTU of the specification");
        PortAttributes {
            grh_required: false,
            lid: Lid::new(self.lid),
            lmc: 0,
            sm_lid: Lid::new(1),
            sm_sl: Sl::default(),
            state: PortState::Active,
            physical_state: PhysicalState::LinkUp,
            system_image_guid: self.guid,
            node_guid: self.guid,
            port_guid: self.guid,
            capability_mask: 0,
            capability_mask_writable: 0x0001_0002,
            subnet_timeout: 18,
            init_type_reply: 0,
            max_mtu: mtu,
            active_mtu: mtu,
            active_width: LinkWidth::X4,
            active_speed: 32,
            vl_cap: 4,
            operational_vls: 4,
            qkey_violations: 0,
            pkey_violations: 0,
            has_smi: true,
        }
    }

    fn gid(&self, index: u16) -> Gid {
        let unused = Gid::new(self.gid.prefix(), Guid::NONE);
        if index == 0 { self.gid } else { unused }
    }

    fn pkey(&self, index: u16) -> PKey {
        PKey::new(if index == 0 { 0xffff } else { 0 })
    }

    fn node_description(&self) -> [u8; 64] {
        self.description
    }

    fn set_node_description(&mut self, description: &[u8; 64]) {
        self.description = *description;
    }

    fn set_capability_mask(&mut self, _: u32, _: u32) {}

    fn reset(&mut self) {}

    fn process_mad(&mut self, mad: &[u8; 256]) -> Option<[u8; 256]> {
        Some(*mad)
    }
}
