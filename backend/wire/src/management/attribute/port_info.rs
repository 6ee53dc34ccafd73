//! Capabilities and settings of a port.

use core::fmt;
use core::ops::{BitAnd, BitOr, Not};

use crate::layout::{Field, layout};
use crate::{Lid, LinkSpeed, LinkSpeedExt, LinkWidth, Mtu, PhysicalState, PortState, Sl};

/// Capabilities of a port (PortInfo:CapabilityMask): a set of the constants here.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CapabilityMask(pub u32);

impl CapabilityMask {
    /// A subnet manager runs at this port.
    pub const IS_SM: Self = Self(1 << 1);
    /// The port keeps notices to be read.
    pub const NOTICE: Self = Self(1 << 2);
    /// The port sends traps.
    pub const TRAP: Self = Self(1 << 3);
    /// Static rate control with other than the default inter-packet delays.
    pub const OPTIONAL_IPD: Self = Self(1 << 4);
    /// Automatic path migration.
    pub const AUTOMATIC_MIGRATION: Self = Self(1 << 5);
    /// The port has an SL-to-VL table.
    pub const SL_MAPPING: Self = Self(1 << 6);
    /// The subnet manager at this port is switched off.
    pub const SM_DISABLED: Self = Self(1 << 10);
    /// NodeInfo has a system image GUID.
    pub const SYSTEM_IMAGE_GUID: Self = Self(1 << 11);
    /// A switch sends traps about partitions that its external ports keep apart.
    pub const SWITCH_PKEY_TRAP: Self = Self(1 << 12);
    /// LinkSpeedExt* of PortInfo mean something.
    pub const EXTENDED_SPEEDS: Self = Self(1 << 14);
    /// CapabilityMask2 of PortInfo means something.
    pub const CAPABILITY_MASK2: Self = Self(1 << 15);
    /// A communication manager runs at this port.
    pub const COMMUNICATION_MANAGEMENT: Self = Self(1 << 16);
    /// SNMP tunnelling.
    pub const SNMP_TUNNELING: Self = Self(1 << 17);
    /// PortInfo:InitType means something.
    pub const REINIT: Self = Self(1 << 18);
    /// Device management.
    pub const DEVICE_MANAGEMENT: Self = Self(1 << 19);
    /// A vendor's class.
    pub const VENDOR_CLASS: Self = Self(1 << 20);
    /// Traps tell the path of a directed route.
    pub const DIRECTED_ROUTE_NOTICE: Self = Self(1 << 21);
    /// A trap tells of a change of this mask.
    pub const CAPABILITY_MASK_NOTICE: Self = Self(1 << 22);
    /// Baseboard management.
    pub const BOOT_MANAGEMENT: Self = Self(1 << 23);
    /// PortInfo:ClientReregister means something.
    pub const CLIENT_REREGISTRATION: Self = Self(1 << 25);
    /// A trap tells of other changes at the port.
    pub const OTHER_LOCAL_CHANGES_NOTICE: Self = Self(1 << 26);
    /// SwitchInfo:MulticastFDBTop means something.
    pub const MULTICAST_FDB_TOP: Self = Self(1 << 30);

    /// Whether all of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set and `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for CapabilityMask {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

impl BitAnd for CapabilityMask {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for CapabilityMask {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl fmt::Display for CapabilityMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

impl fmt::Debug for CapabilityMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CapabilityMask({self})")
    }
}

impl Field for CapabilityMask {
    fn from_bits(bits: u128) -> Option<Self> {
        Some(Self(bits as u32))
    }
    fn to_bits(self) -> u128 {
        u128::from(self.0)
    }
}

layout! {
    /// PortInfo (IBA 14.2.5.6). The lower 8 bits of the attribute modifier are the port's number;
    /// at a channel adapter 0 means the port that receives the request.
    PortInfo, 64 bytes {
        /// Management key: who knows it may change this port.
        m_key: u64 = 0..64,
        /// Prefix of the port's GIDs.
        gid_prefix: u64 = 64..128,
        /// Base LID.
        lid: Lid = 128..144,
        /// LID of the subnet manager that manages this port.
        master_sm_lid: Lid = 144..160,
        /// Capabilities.
        capability_mask: CapabilityMask = 160..192,
        /// Diagnostic code.
        diag_code: u16 = 192..208,
        /// Seconds after which the management key no longer protects; 0: never.
        m_key_lease_period: u16 = 208..224,
        /// The port that received the request.
        local_port_num: u8 = 224..232,
        /// Set of [`LinkWidth`] codes; in a Set 0 means no change, 255 all supported.
        link_width_enabled: u8 = 232..240,
        /// Set of [`LinkWidth`] codes.
        link_width_supported: u8 = 240..248,
        /// Width in use; as raw code, since a port without link may show none.
        link_width_active: u8 = 248..256,
        /// Set of [`LinkSpeed`] codes.
        link_speed_supported: u8 = 256..260,
        /// Logical state.
        port_state: PortState = 260..264,
        /// State of the physical link.
        port_physical_state: PhysicalState = 264..268,
        /// Default state of a link that is down: 1 sleep, 2 polling; in a Set 0 means no change.
        link_down_default_state: u8 = 268..272,
        /// Protection by the management key.
        m_key_protect_bits: u8 = 272..274,
        /// LID mask control: the port answers to 2^LMC LIDs.
        lmc: u8 = 277..280,
        /// Speed in use; as raw code.
        link_speed_active: u8 = 280..284,
        /// Set of [`LinkSpeed`] codes; in a Set 0 means no change, 15 all supported.
        link_speed_enabled: u8 = 284..288,
        /// The largest packet that may be sent; as raw [`Mtu`] code.
        neighbor_mtu: u8 = 288..292,
        /// Service level towards the subnet manager.
        master_sm_sl: Sl = 292..296,
        /// Virtual lanes supported: 1 VL0, 2 VL0-1, 3 VL0-3, 4 VL0-7, 5 VL0-14.
        vl_cap: u8 = 296..300,
        /// Initialisation that the port should have.
        init_type: u8 = 300..304,
        /// Limit of high-priority data before a low-priority lane gets its turn.
        vl_high_limit: u8 = 304..312,
        /// Entries of the high-priority arbitration table.
        vl_arbitration_high_cap: u8 = 312..320,
        /// Entries of the low-priority arbitration table.
        vl_arbitration_low_cap: u8 = 320..328,
        /// Initialisation that the port had.
        init_type_reply: u8 = 328..332,
        /// The largest packet the port can take; as raw [`Mtu`] code.
        mtu_cap: u8 = 332..336,
        /// Packets dropped in a row before a lane counts as stalled.
        vl_stall_count: u8 = 336..339,
        /// Time that a packet may wait at the head of a switch's queue.
        hoq_life: u8 = 339..344,
        /// Virtual lanes in use, in the code of `vl_cap`; in a Set 0 means no change.
        operational_vls: u8 = 344..348,
        /// Check P_Keys of packets that come in (switch).
        partition_enforcement_inbound: bool = 348..349,
        /// Check P_Keys of packets that go out (switch).
        partition_enforcement_outbound: bool = 349..350,
        /// Drop raw packets that come in (switch).
        filter_raw_inbound: bool = 350..351,
        /// Drop raw packets that go out (switch).
        filter_raw_outbound: bool = 351..352,
        /// Packets with a wrong management key.
        m_key_violations: u16 = 352..368,
        /// Packets with a wrong partition key.
        p_key_violations: u16 = 368..384,
        /// Packets with a wrong queue key.
        q_key_violations: u16 = 384..400,
        /// Entries of the GUID table.
        guid_cap: u8 = 400..408,
        /// In a Set: clients should register again.
        client_reregister: bool = 408..409,
        /// Traps about multicast partition keys that are held back.
        multicast_pkey_trap_suppression: u8 = 409..411,
        /// A packet's longest time through the subnet: 4.096 us * 2^value.
        subnet_timeout: u8 = 411..416,
        /// The port's longest time to answer: 4.096 us * 2^value.
        resp_time_value: u8 = 419..424,
        /// Threshold of physical errors.
        local_phy_errors: u8 = 424..428,
        /// Threshold of overrun errors.
        overrun_errors: u8 = 428..432,
        /// The most credits that the link can use.
        max_credit_hint: u16 = 432..448,
        /// The newest speed in use: 1 XDR.
        link_speed_ext2_active: u8 = 449..451,
        /// Set of the newest speeds.
        link_speed_ext2_supported: u8 = 451..453,
        /// Set of the newest speeds; in a Set 0 means no change, 7 all supported.
        link_speed_ext2_enabled: u8 = 453..456,
        /// Link round trip time in units of 4 ns.
        link_round_trip_latency: u32 = 456..480,
        /// More capabilities.
        capability_mask2: u16 = 480..496,
        /// Extended speed in use; as raw [`LinkSpeedExt`] code.
        link_speed_ext_active: u8 = 496..500,
        /// Set of [`LinkSpeedExt`] codes.
        link_speed_ext_supported: u8 = 500..504,
        /// Set of [`LinkSpeedExt`] codes; in a Set 0 means no change, 31 all supported.
        link_speed_ext_enabled: u8 = 507..512,
    }
}

/// Codes of [`LinkSpeedExt`] that the components without a 2 have.
const EXT_SPEEDS: u8 = 0xf;
/// Where the codes of the components with a 2 begin in [`LinkSpeedExt`].
const EXT2_SHIFT: u32 = 5;

impl PortInfo {
    /// In the attribute modifier: the requester knows extended speeds (SMSupportExtendedSpeeds). Quantum-2 switches tell and
    /// take them only then.
    pub const SPEEDS_REQUESTED: u32 = 1 << 31;
    /// In `capability_mask2`: the port can have virtual ports
    /// ([`VirtualizationInfo`](super::VirtualizationInfo)).
    pub const VIRTUALIZATION: u16 = 1 << 2;
    /// In `capability_mask2`: the components with a 2 in their names mean something.
    pub const EXTENDED_SPEEDS_2: u16 = 1 << 11;

    /// `neighbor_mtu` decoded; the smallest unit when the code is reserved.
    pub const fn active_mtu(&self) -> Mtu {
        match Mtu::from_code(self.neighbor_mtu) {
            Some(mtu) => mtu,
            None => Mtu::B256,
        }
    }

    /// `mtu_cap` decoded; the smallest unit when the code is reserved.
    pub const fn max_mtu(&self) -> Mtu {
        match Mtu::from_code(self.mtu_cap) {
            Some(mtu) => mtu,
            None => Mtu::B256,
        }
    }

    /// `link_width_active` decoded.
    pub const fn active_width(&self) -> Option<LinkWidth> {
        LinkWidth::from_code(self.link_width_active)
    }

    /// `link_speed_active` decoded.
    pub const fn active_speed(&self) -> Option<LinkSpeed> {
        LinkSpeed::from_code(self.link_speed_active)
    }

    /// `link_speed_ext_active` and `link_speed_ext2_active` decoded.
    pub const fn active_speed_ext(&self) -> Option<LinkSpeedExt> {
        match self.link_speed_ext2_active {
            0 => LinkSpeedExt::from_code(self.link_speed_ext_active),
            newest => LinkSpeedExt::from_code(newest << EXT2_SHIFT),
        }
    }

    /// Has the link run at this extended speed: in use, and all up to it supported and enabled.
    pub const fn set_speed_ext(&mut self, speed: LinkSpeedExt) {
        let code = speed.code();
        let up_to = match code {
            0 => 0,
            code => (code << 1).wrapping_sub(1),
        };
        self.link_speed_ext_active = code & EXT_SPEEDS;
        self.link_speed_ext_supported = up_to & EXT_SPEEDS;
        self.link_speed_ext_enabled = self.link_speed_ext_supported;
        self.link_speed_ext2_active = code >> EXT2_SHIFT;
        self.link_speed_ext2_supported = up_to >> EXT2_SHIFT;
        self.link_speed_ext2_enabled = self.link_speed_ext2_supported;
    }

    /// Makes it that of a port without extended speeds.
    pub const fn hide_speeds_ext(&mut self) {
        self.link_speed_ext_active = 0;
        self.link_speed_ext_supported = 0;
        self.link_speed_ext_enabled = 0;
        self.link_speed_ext2_active = 0;
        self.link_speed_ext2_supported = 0;
        self.link_speed_ext2_enabled = 0;
    }

    /// Number of data lanes for a `vl_cap` or `operational_vls` code; 0 for a reserved one.
    pub const fn lanes(code: u8) -> u8 {
        match code {
            1 => 1,
            2 => 2,
            3 => 4,
            4 => 8,
            5 => 15,
            _ => 0,
        }
    }
}
