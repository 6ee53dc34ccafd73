//! Paths.

use super::{Component, plain_record};
use crate::layout::layout;
use crate::{Gid, Lid, LinkSpeed, LinkSpeedExt, LinkWidth, PKey, Sl};

layout! {
    /// PathRecord (IBA 15.2.5.16).
    PathRecord, 64 bytes {
        /// Service that the path is for; 0: none.
        service_id: u64 = 0..64,
        /// Destination.
        dgid: Gid = 64..192,
        /// Source.
        sgid: Gid = 192..320,
        /// Destination.
        dlid: Lid = 320..336,
        /// Source.
        slid: Lid = 336..352,
        /// For raw packets.
        raw_traffic: bool = 352..353,
        /// In a bit that the specification reserves: addresses move with their owners here, so the
        /// client may keep this record (*A Novel Query Caching Scheme for Dynamic InfiniBand
        /// Subnets*).
        cacheable: bool = 353..354,
        /// Flow label of the global route header.
        flow_label: u32 = 356..376,
        /// Hop limit of the global route header; 0 or 1 inside a subnet.
        hop_limit: u8 = 376..384,
        /// Traffic class of the global route header.
        traffic_class: u8 = 384..392,
        /// The same path leads back.
        reversible: bool = 392..393,
        /// In a request, how many paths at most.
        numb_path: u8 = 393..400,
        /// Partition.
        pkey: PKey = 400..416,
        /// Class of service.
        qos_class: u16 = 416..428,
        /// Service level.
        sl: Sl = 428..432,
        /// Selector of a request's `mtu`: a [`Selector`] code.
        mtu_selector: u8 = 432..434,
        /// MTU, in the code of [`Mtu`](crate::Mtu).
        mtu: u8 = 434..440,
        /// Selector of a request's `rate`.
        rate_selector: u8 = 440..442,
        /// Rate, a [`Rate`] code.
        rate: u8 = 442..448,
        /// Selector of a request's `packet_life_time`.
        packet_life_time_selector: u8 = 448..450,
        /// A packet's longest time on the path: 4.096 us * 2^value.
        packet_life_time: u8 = 450..456,
        /// Order among several paths, the lowest first.
        preference: u8 = 456..464,
    }
}

plain_record!(PathRecord = super::id::PATH, components & PATH);

/// The service ID is two components, its halves.
const PATH: [Component; 23] = [
    (0, 32),
    (32, 32),
    (64, 128),
    (192, 128),
    (320, 16),
    (336, 16),
    (352, 1),
    (353, 3),
    (356, 20),
    (376, 8),
    (384, 8),
    (392, 1),
    (393, 7),
    (400, 16),
    (416, 12),
    (428, 4),
    (432, 2),
    (434, 6),
    (440, 2),
    (442, 6),
    (448, 2),
    (450, 6),
    (456, 8),
];

impl PathRecord {
    /// Component: the service ID, both halves.
    pub const SERVICE_ID: u64 = 0b11;
    /// Component.
    pub const DGID: u64 = 1 << 2;
    /// Component.
    pub const SGID: u64 = 1 << 3;
    /// Component.
    pub const DLID: u64 = 1 << 4;
    /// Component.
    pub const SLID: u64 = 1 << 5;
    /// Component.
    pub const RAW_TRAFFIC: u64 = 1 << 6;
    /// Component.
    pub const FLOW_LABEL: u64 = 1 << 8;
    /// Component.
    pub const HOP_LIMIT: u64 = 1 << 9;
    /// Component.
    pub const TRAFFIC_CLASS: u64 = 1 << 10;
    /// Component.
    pub const REVERSIBLE: u64 = 1 << 11;
    /// Component.
    pub const NUMB_PATH: u64 = 1 << 12;
    /// Component.
    pub const PKEY: u64 = 1 << 13;
    /// Component.
    pub const QOS_CLASS: u64 = 1 << 14;
    /// Component.
    pub const SL: u64 = 1 << 15;
    /// Component.
    pub const MTU_SELECTOR: u64 = 1 << 16;
    /// Component.
    pub const MTU: u64 = 1 << 17;
    /// Component.
    pub const RATE_SELECTOR: u64 = 1 << 18;
    /// Component.
    pub const RATE: u64 = 1 << 19;
    /// Component.
    pub const PACKET_LIFE_TIME_SELECTOR: u64 = 1 << 20;
    /// Component.
    pub const PACKET_LIFE_TIME: u64 = 1 << 21;
}

/// Comparison of a value in a request (IBA 15.2.5.16).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Selector {
    /// More than the value.
    Greater,
    /// Less than the value.
    Less,
    /// The value.
    Exactly,
    /// As much as there is, whatever the value.
    Largest,
}

impl Selector {
    /// The selector of a 2-bit code.
    pub const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => Self::Greater,
            1 => Self::Less,
            2 => Self::Exactly,
            _ => Self::Largest,
        }
    }

    /// The code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Greater => 0,
            Self::Less => 1,
            Self::Exactly => 2,
            Self::Largest => 3,
        }
    }

    /// Chooses the value for a request of `wanted` on a path that can do `best` or less; `None` when there is none.
    /// `rank` orders the codes.
    pub fn choose(self, wanted: u8, best: u8, rank: impl Fn(u8) -> Option<u32>) -> Option<u8> {
        let (wanted_rank, best_rank) = (rank(wanted), rank(best)?);
        match self {
            Self::Largest => Some(best),
            Self::Exactly => (wanted_rank? <= best_rank).then_some(wanted),
            Self::Greater => (best_rank > wanted_rank?).then_some(best),
            Self::Less => {
                let wanted_rank = wanted_rank?;
                if best_rank < wanted_rank {
                    return Some(best);
                }
                // The largest value that is less.
                (0..64)
                    .filter_map(|code| Some((rank(code)?, code)))
                    .filter(|(rank, _)| *rank < wanted_rank)
                    .max()
                    .map(|(_, code)| code)
            }
        }
    }
}

/// A path's rate (IBA 15.2.5.16): codes are not in the order of rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate(pub u8);

/// Code, and rate in Gb/s as the code's name says it.
const RATES: [(u8, u32); 23] = [
    // The only one with a fraction: 2.5 Gb/s.
    (2, 2),
    (3, 10),
    (4, 30),
    (5, 5),
    (6, 20),
    (7, 40),
    (8, 60),
    (9, 80),
    (10, 120),
    (11, 14),
    (12, 56),
    (13, 112),
    (14, 168),
    (15, 25),
    (16, 100),
    (17, 200),
    (18, 300),
    (19, 28),
    (20, 50),
    (21, 400),
    (22, 600),
    (23, 800),
    (24, 1200),
];

impl Rate {
    /// 10 Gb/s, what OpenSM gives a multicast group unless told otherwise.
    pub const GB10: Self = Self(3);

    /// Gb/s, rounded down; `None` for a reserved code.
    pub fn gigabits(self) -> Option<u32> {
        RATES
            .iter()
            .find(|(code, _)| *code == self.0)
            .map(|(_, gigabits)| *gigabits)
    }

    /// The code of a link's rate: the largest that is no faster than the link.
    pub fn of_link(width: LinkWidth, speed: LinkSpeed, extended: LinkSpeedExt) -> Self {
        let lanes = match width {
            LinkWidth::X1 => 1,
            LinkWidth::X2 => 2,
            LinkWidth::X4 => 4,
            LinkWidth::X8 => 8,
            LinkWidth::X12 => 12,
        };
        // Tenths of Gb/s per lane, as the names of the rates count them.
        let lane = match extended {
            LinkSpeedExt::Fdr => 140,
            LinkSpeedExt::Edr => 250,
            LinkSpeedExt::Hdr => 500,
            LinkSpeedExt::Ndr => 1000,
            LinkSpeedExt::Xdr => 2000,
            LinkSpeedExt::None => match speed {
                LinkSpeed::Sdr => 25,
                LinkSpeed::Ddr => 50,
                LinkSpeed::Qdr => 100,
            },
        };
        let gigabits = lanes * lane / 10;
        RATES
            .iter()
            .filter(|(_, rate)| *rate <= gigabits)
            .max_by_key(|(_, rate)| *rate)
            .map_or(Self(2), |(code, _)| Self(*code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_links() {
        let of = |width, speed, extended| Rate::of_link(width, speed, extended).0;
        use LinkSpeedExt::{Edr, Fdr, Hdr, Ndr, Xdr};
        let none = LinkSpeedExt::None;
        // Codes of ib_types.h (IB_PATH_RECORD_RATE_*).
        assert_eq!(of(LinkWidth::X1, LinkSpeed::Sdr, none), 2);
        assert_eq!(of(LinkWidth::X4, LinkSpeed::Sdr, none), 3);
        assert_eq!(of(LinkWidth::X4, LinkSpeed::Ddr, none), 6);
        assert_eq!(of(LinkWidth::X4, LinkSpeed::Qdr, none), 7);
        assert_eq!(of(LinkWidth::X8, LinkSpeed::Qdr, none), 9);
        assert_eq!(of(LinkWidth::X12, LinkSpeed::Qdr, none), 10);
        assert_eq!(of(LinkWidth::X4, LinkSpeed::Qdr, Fdr), 12);
        assert_eq!(of(LinkWidth::X4, LinkSpeed::Qdr, Edr), 16);
        assert_eq!(of(LinkWidth::X1, LinkSpeed::Qdr, Edr), 15);
        assert_eq!(of(LinkWidth::X4, LinkSpeed::Qdr, Hdr), 17);
        assert_eq!(of(LinkWidth::X2, LinkSpeed::Qdr, Fdr), 19);
        assert_eq!(of(LinkWidth::X4, LinkSpeed::Qdr, Ndr), 21);
        assert_eq!(of(LinkWidth::X4, LinkSpeed::Qdr, Xdr), 23);
        assert_eq!(Rate(16).gigabits(), Some(100));
        assert_eq!(Rate(25).gigabits(), None);
    }

    #[test]
    fn selectors() {
        let mtu = |code| (1..=5).contains(&code).then_some(u32::from(code));
        let choose = |selector: Selector, wanted| selector.choose(wanted, 4, mtu);
        assert_eq!(choose(Selector::Greater, 3), Some(4));
        assert_eq!(choose(Selector::Greater, 4), None);
        assert_eq!(choose(Selector::Less, 5), Some(4));
        assert_eq!(choose(Selector::Less, 4), Some(3));
        assert_eq!(choose(Selector::Less, 1), None);
        assert_eq!(choose(Selector::Exactly, 2), Some(2));
        assert_eq!(choose(Selector::Exactly, 5), None);
        assert_eq!(choose(Selector::Exactly, 0), None);
        assert_eq!(choose(Selector::Largest, 0), Some(4));
        let rate = |code| Rate(code).gigabits();
        // Less than 14 Gb/s (code 11) on a path of 100: 10.
        assert_eq!(Selector::Less.choose(11, 16, rate), Some(3));
    }
}
