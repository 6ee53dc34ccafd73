//! The device's view of the subnet: everything about its own port.

use wire::{Gid, Guid, Lid, LinkWidth, Mtu, PKey, PhysicalState, PortState, Sl};

/// Attributes of a port, most of which are those of PortInfo (IBA 14.2.5.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAttributes {
    /// Base LID.
    pub lid: Lid,
    /// LID mask control.
    pub lmc: u8,
    /// LID of the master subnet manager.
    pub sm_lid: Lid,
    /// Service level of its datagrams.
    pub sm_sl: Sl,
    /// Port state.
    pub state: PortState,
    /// Physical state.
    pub physical_state: PhysicalState,
    /// GUID of the system.
    pub system_image_guid: Guid,
    /// GUID of the node.
    pub node_guid: Guid,
    /// GUID of the port.
    pub port_guid: Guid,
    /// Capability mask.
    pub capability_mask: u32,
    /// Bits of the capability mask that the guest may change.
    pub capability_mask_writable: u32,
    /// Subnet timeout, 4.096 µs · 2^n.
    pub subnet_timeout: u8,
    /// Initialization that the subnet manager did.
    pub init_type_reply: u8,
    /// Largest packet payload that the port supports.
    pub max_mtu: Mtu,
    /// Largest packet payload that the subnet manager allows.
    pub active_mtu: Mtu,
    /// Width in use, where the link is up.
    pub active_width: LinkWidth,
    /// Speed in use, where the link is up, as the bit set of the port registers: 1 SDR, 2 DDR, 4 QDR,
    /// 8 FDR10, 16 FDR, 32 EDR, 64 HDR, 128 NDR, 256 XDR.
    pub active_speed: u16,
    /// Virtual lanes as VLCap counts them: 1 VL0, 2 VL0-1, 3 VL0-3, 4 VL0-7, 5 VL0-14.
    pub vl_cap: u8,
    /// Virtual lanes in use, counted as in `vl_cap`.
    pub operational_vls: u8,
    /// Packets received with a wrong Q_Key.
    pub qkey_violations: u16,
    /// Packets received with a wrong P_Key.
    pub pkey_violations: u16,
    /// Whether the guest may use queue pair 0.
    pub has_smi: bool,
    /// Whether packets to and from the port need a global route header: others have its LID, too.
    pub grh_required: bool,
}

/// A port as its device sees it.
///
/// Called with the engine at rest, so an implementation must not wait for
/// anything that waits for the engine.
pub trait Port {
    /// The attributes now.
    fn attributes(&self) -> PortAttributes;

    /// Entry `index` of the GID table; where it is unused, the subnet's prefix
    /// and a GUID of 0.
    fn gid(&self, index: u16) -> Gid;

    /// Entry `index` of the P_Key table; invalid (zero) where it is empty.
    fn pkey(&self, index: u16) -> PKey;

    /// The 64-byte node description, padded with zeros.
    fn node_description(&self) -> [u8; 64];

    /// Changes the node description.
    fn set_node_description(&mut self, description: &[u8; 64]);

    /// Changes those bits of the capability mask that `select` names, all of
    /// them writable, to those of `value`.
    fn set_capability_mask(&mut self, value: u32, select: u32);

    /// The function was reset: capabilities that its driver has switched on are
    /// off again.
    fn reset(&mut self);

    /// Lets the port's own agents process a management datagram (subnet
    /// management or performance management) and returns the answer, if there
    /// is to be one. They check the M_Key of what would change the port,
    /// whoever asks.
    fn process_mad(&mut self, mad: &[u8; 256]) -> Option<[u8; 256]>;
}
