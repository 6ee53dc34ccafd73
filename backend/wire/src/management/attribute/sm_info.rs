//! Subnet managers.

use crate::Guid;
use crate::layout::{Field, layout};

/// State of a subnet manager (SMInfo:SMState).
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
