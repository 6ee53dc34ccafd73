//! Paths between any of several ports and any of several others.

use super::{Component, PathRecord, plain_record};
use crate::layout::layout;
use crate::{Gid, PKey, Sl};

layout! {
    /// MultiPathRecord (IBA 15.2.5.20) up to its GIDs: what a request of method GetMulti has for a
    /// template. The sources' GIDs follow, then the destinations'. Answers are [`PathRecord`]s.
    MultiPathRecord, 24 bytes {
        /// For raw packets.
        raw_traffic: bool = 0..1,
        /// Flow label of the global route header.
        flow_label: u32 = 4..24,
        /// Hop limit of the global route header.
        hop_limit: u8 = 24..32,
        /// Traffic class of the global route header.
        traffic_class: u8 = 32..40,
        /// Only paths that lead back as well.
        reversible: bool = 40..41,
        /// Largest number of paths, of all pairs together.
        numb_path: u8 = 41..48,
        /// Partition.
        pkey: PKey = 48..64,
        /// Class of service.
        qos_class: u16 = 64..76,
        /// Service level.
        sl: Sl = 76..80,
        /// Selector of `mtu`: a [`Selector`](super::Selector) code.
        mtu_selector: u8 = 80..82,
        /// MTU, in the code of [`Mtu`](crate::Mtu).
        mtu: u8 = 82..88,
        /// Selector of `rate`.
        rate_selector: u8 = 88..90,
        /// Rate, a [`Rate`](super::Rate) code.
        rate: u8 = 90..96,
        /// Selector of `packet_life_time`.
        packet_life_time_selector: u8 = 96..98,
        /// A packet's longest time on the path: 4.096 us * 2^value.
        packet_life_time: u8 = 98..104,
        /// Service that the paths are for: its upper 8 bits.
        service_id_high: u8 = 104..112,
        /// 1: paths that break together as little as can be come first.
        independence_selector: u8 = 112..114,
        /// Number of GIDs of sources.
        sgid_count: u8 = 120..128,
        /// Number of GIDs of destinations.
        dgid_count: u8 = 128..136,
        /// The lower 56 bits of the service.
        service_id_low: u64 = 136..192,
    }
}

plain_record!(
    MultiPathRecord = super::id::MULTI_PATH,
    components & MULTI_PATH
);

/// In the order of libibmad's `IB_MPR_COMPMASK_*`.
const MULTI_PATH: [Component; 22] = [
    (0, 1),
    (1, 3),
    (4, 20),
    (24, 8),
    (32, 8),
    (40, 1),
    (41, 7),
    (48, 16),
    (64, 12),
    (76, 4),
    (80, 2),
    (82, 6),
    (88, 2),
    (90, 6),
    (96, 2),
    (98, 6),
    (104, 8),
    (112, 2),
    (114, 6),
    (120, 8),
    (128, 8),
    (136, 56),
];

impl MultiPathRecord {
    /// Component.
    pub const NUMB_PATH: u64 = 1 << 6;
    /// Component.
    pub const PKEY: u64 = 1 << 7;
    /// Component.
    pub const INDEPENDENCE_SELECTOR: u64 = 1 << 17;
    /// Component.
    pub const SGID_COUNT: u64 = 1 << 19;
    /// Component.
    pub const DGID_COUNT: u64 = 1 << 20;

    /// Component of PathRecord for each component, from bit 0; 0: no such component.
    const AS_PATH: [u64; 22] = [
        PathRecord::RAW_TRAFFIC,
        0,
        PathRecord::FLOW_LABEL,
        PathRecord::HOP_LIMIT,
        PathRecord::TRAFFIC_CLASS,
        PathRecord::REVERSIBLE,
        0,
        PathRecord::PKEY,
        PathRecord::QOS_CLASS,
        PathRecord::SL,
        PathRecord::MTU_SELECTOR,
        PathRecord::MTU,
        PathRecord::RATE_SELECTOR,
        PathRecord::RATE,
        PathRecord::PACKET_LIFE_TIME_SELECTOR,
        PathRecord::PACKET_LIFE_TIME,
        1,
        0,
        0,
        0,
        0,
        1 << 1,
    ];

    /// The template for each of the paths, and its component mask; without ends and number.
    pub fn as_path(&self, component_mask: u64) -> (PathRecord, u64) {
        let template = PathRecord {
            service_id: u64::from(self.service_id_high) << 56 | self.service_id_low,
            raw_traffic: self.raw_traffic,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            reversible: self.reversible,
            pkey: self.pkey,
            qos_class: self.qos_class,
            sl: self.sl,
            mtu_selector: self.mtu_selector,
            mtu: self.mtu,
            rate_selector: self.rate_selector,
            rate: self.rate,
            packet_life_time_selector: self.packet_life_time_selector,
            packet_life_time: self.packet_life_time,
            ..PathRecord::default()
        };
        let given = (0..).zip(Self::AS_PATH);
        let mask = given
            .filter(|(bit, _)| component_mask >> bit & 1 == 1)
            .fold(0, |mask, (_, component)| mask | component);
        (template, mask)
    }

    /// The GIDs of sources and of destinations that follow in `data`, which begins with this
    /// record; `None` when there are fewer than it says.
    pub fn gids<'a>(&self, data: &'a [u8]) -> Option<[&'a [[u8; 16]]; 2]> {
        let (gids, _) = data.get(Self::SIZE..)?.as_chunks::<16>();
        let (sources, rest) = gids.split_at_checked(usize::from(self.sgid_count))?;
        let destinations = rest.get(..usize::from(self.dgid_count))?;
        Some([sources, destinations])
    }

    /// A request's data: this record with the counts of these GIDs, and the GIDs.
    ///
    /// # Panics
    /// When there are more than 255 of one.
    pub fn with_gids(self, sources: &[Gid], destinations: &[Gid]) -> Vec<u8> {
        let count = |gids: &[Gid]| u8::try_from(gids.len()).expect("a count has 8 bits");
        let record = Self {
            sgid_count: count(sources),
            dgid_count: count(destinations),
            ..self
        };
        let gids = sources.iter().chain(destinations);
        let bytes = record.to_bytes().into_iter();
        bytes.chain(gids.flat_map(|gid| gid.to_bytes())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_of_paths() {
        let record = MultiPathRecord {
            service_id_high: 0x12,
            service_id_low: 0x34_5678_9abc_def0,
            pkey: PKey::new(0x8001),
            ..MultiPathRecord::default()
        };
        let (path, mask) = record.as_path(MultiPathRecord::PKEY | 1 << 16 | 1 << 19 | 1 << 63);
        assert_eq!(path.service_id, 0x1234_5678_9abc_def0);
        assert_eq!(path.pkey, PKey::new(0x8001));
        assert_eq!(mask, PathRecord::PKEY | 1);
    }

    #[test]
    fn gids_that_are_there() {
        let gid = |low: u128| Gid::from_bits(0xfe80 << 112 | low);
        let data = MultiPathRecord::default().with_gids(&[gid(1), gid(2)], &[gid(3)]);
        let record = MultiPathRecord::parse(&data).unwrap();
        let [sources, destinations] = record.gids(&data).unwrap();
        assert_eq!(sources[1], gid(2).to_bytes());
        assert_eq!(destinations, [gid(3).to_bytes()]);
        assert_eq!(record.gids(&data[..71]), None);
    }
}
