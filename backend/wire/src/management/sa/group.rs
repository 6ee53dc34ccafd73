//! Multicast groups.

use core::fmt;

use super::{Component, plain_record};
use crate::layout::{Field, layout};
use crate::{Gid, Lid, PKey, QKey, Sl};

/// Membership of a port in a multicast group (MCMemberRecord:JoinState): a set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JoinState(pub u8);

impl JoinState {
    /// Receives and sends; keeps the group alive.
    pub const FULL: Self = Self(1);
    /// Receives and sends as long as others keep the group alive.
    pub const NON: Self = Self(2);
    /// Sends only, and does not keep the group alive.
    pub const SEND_ONLY: Self = Self(4);
    /// Sends only, and keeps the group alive.
    pub const SEND_ONLY_FULL: Self = Self(8);

    /// Whether this has all of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether packets are to reach the port.
    pub const fn receives(self) -> bool {
        self.0 & (Self::FULL.0 | Self::NON.0) != 0
    }

    /// Whether the group lives as long as this member.
    pub const fn keeps(self) -> bool {
        self.0 & (Self::FULL.0 | Self::SEND_ONLY_FULL.0) != 0
    }

    /// This and `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether nothing is left.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for JoinState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:x}", self.0)
    }
}

impl Field for JoinState {
    fn from_bits(bits: u128) -> Option<Self> {
        Some(Self(bits as u8))
    }
    fn to_bits(self) -> u128 {
        u128::from(self.0)
    }
}

layout! {
    /// MCMemberRecord (IBA 15.2.5.17): a port's membership, or with no port a group.
    McMemberRecord, 52 bytes {
        /// The group.
        mgid: Gid = 0..128,
        /// The port.
        port_gid: Gid = 128..256,
        /// Queue key of the group.
        qkey: QKey = 256..288,
        /// The group's multicast LID.
        mlid: Lid = 288..304,
        /// Selector of a request's `mtu`.
        mtu_selector: u8 = 304..306,
        /// MTU of the group, in the code of [`Mtu`](crate::Mtu).
        mtu: u8 = 306..312,
        /// Traffic class.
        traffic_class: u8 = 312..320,
        /// Partition.
        pkey: PKey = 320..336,
        /// Selector of a request's `rate`.
        rate_selector: u8 = 336..338,
        /// Rate of the group, a [`Rate`](super::Rate) code.
        rate: u8 = 338..344,
        /// Selector of a request's `packet_life_time`.
        packet_life_time_selector: u8 = 344..346,
        /// Longest time of a packet in the group: 4.096 us * 2^value.
        packet_life_time: u8 = 346..352,
        /// Service level.
        sl: Sl = 352..356,
        /// Flow label.
        flow_label: u32 = 356..376,
        /// Hop limit.
        hop_limit: u8 = 376..384,
        /// Scope, as in the group's GID.
        scope: u8 = 384..388,
        /// Membership of the port.
        join_state: JoinState = 388..392,
        /// Another port of the partition may end the membership.
        proxy_join: bool = 392..393,
    }
}

plain_record!(McMemberRecord = super::id::MC_MEMBER, components & MEMBER);

const MEMBER: [Component; 18] = [
    (0, 128),
    (128, 128),
    (256, 32),
    (288, 16),
    (304, 2),
    (306, 6),
    (312, 8),
    (320, 16),
    (336, 2),
    (338, 6),
    (344, 2),
    (346, 6),
    (352, 4),
    (356, 20),
    (376, 8),
    (384, 4),
    (388, 4),
    (392, 1),
];

impl McMemberRecord {
    /// Component.
    pub const MGID: u64 = 1;
    /// Component.
    pub const PORT_GID: u64 = 1 << 1;
    /// Component.
    pub const QKEY: u64 = 1 << 2;
    /// Component.
    pub const MLID: u64 = 1 << 3;
    /// Component.
    pub const MTU_SELECTOR: u64 = 1 << 4;
    /// Component.
    pub const MTU: u64 = 1 << 5;
    /// Component.
    pub const TRAFFIC_CLASS: u64 = 1 << 6;
    /// Component.
    pub const PKEY: u64 = 1 << 7;
    /// Component.
    pub const RATE_SELECTOR: u64 = 1 << 8;
    /// Component.
    pub const RATE: u64 = 1 << 9;
    /// Component.
    pub const PACKET_LIFE_TIME_SELECTOR: u64 = 1 << 10;
    /// Component.
    pub const PACKET_LIFE_TIME: u64 = 1 << 11;
    /// Component.
    pub const SL: u64 = 1 << 12;
    /// Component.
    pub const FLOW_LABEL: u64 = 1 << 13;
    /// Component.
    pub const HOP_LIMIT: u64 = 1 << 14;
    /// Component.
    pub const SCOPE: u64 = 1 << 15;
    /// Component.
    pub const JOIN_STATE: u64 = 1 << 16;
    /// Component.
    pub const PROXY_JOIN: u64 = 1 << 17;
}
