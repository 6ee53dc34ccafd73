//! Subnet managers and what they are told.

use crate::layout::{Field, layout};
use crate::{Guid, Lid};

/// What a subnet manager is doing (SMInfo:SMState).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum SmState {
    /// Not acting.
    #[default]
    NotActive = 0,
    /// Looking for other managers.
    Discovering = 1,
    /// Ready to take over.
    Standby = 2,
    /// Managing.
    Master = 3,
}

impl core::fmt::Display for SmState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(match self {
            Self::NotActive => "NotActive",
            Self::Discovering => "Discovering",
            Self::Standby => "Standby",
            Self::Master => "Master",
        })
    }
}

impl Field for SmState {
    fn from_bits(bits: u128) -> Option<Self> {
        match bits {
            0 => Some(Self::NotActive),
            1 => Some(Self::Discovering),
            2 => Some(Self::Standby),
            3 => Some(Self::Master),
            _ => None,
        }
    }
    fn to_bits(self) -> u128 {
        self as u128
    }
}

layout! {
    /// SMInfo (IBA 14.2.5.13).
    SmInfo, 24 bytes {
        /// GUID of the port the manager is at.
        guid: Guid = 0..64,
        /// Key by which managers trust each other.
        sm_key: u64 = 64..128,
        /// Counts up while the manager is alive.
        act_count: u32 = 128..160,
        /// Priority, 15 the highest.
        priority: u8 = 160..164,
        /// State.
        state: SmState = 164..168,
    }
}

layout! {
    /// Notice (IBA 13.4.8.2), as traps of the generic kind carry it.
    Notice, 64 bytes {
        /// The specification defines this notice, not a vendor.
        generic: bool = 0..1,
        /// 0 fatal, 1 urgent, 2 security, 3 subnet management, 4 informational.
        notice_type: u8 = 1..8,
        /// Producer: 1 channel adapter, 2 switch, 3 router, 4 class manager; or the vendor.
        producer_type: u32 = 8..32,
        /// Number of the trap.
        trap_number: u16 = 32..48,
        /// LID of who reports.
        issuer_lid: Lid = 48..64,
        /// Toggles with every notice that is read.
        toggle: bool = 64..65,
        /// Notices waiting.
        count: u16 = 65..80,
        /// Details, first word of 16 bits: for traps 128 to 131 the LID of the switch.
        detail: u16 = 80..96,
        /// Details of trap 144: the LID of the port that changed.
        changed_lid: Lid = 96..112,
        /// Details of trap 144: its new capability mask.
        changed_capability_mask: u32 = 128..160,
    }
}

impl Notice {
    /// The state of a port of the switch changed.
    pub const LINK_STATE_CHANGE: u16 = 128;
    /// Capability mask, node description or another property of a port changed.
    pub const LOCAL_CHANGE: u16 = 144;
}
