//! Multicast groups that a configuration asks for.

use wire::sa::{McMemberRecord, Rate, Selector};
use wire::{Gid, Mtu, PKey, QKey};

/// Queue key that OpenSM gives IPoIB's broadcast groups, and with it we do.
const IPOIB_QKEY: u32 = 0x0b1b;

/// A group that is there whether anybody is in it or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresetGroup {
    /// GID, partition, MTU, rate and so on; LID, port and join state do not count.
    pub record: McMemberRecord,
    /// Its service level is its own, not that of its partition.
    pub has_own_level: bool,
}

impl PresetGroup {
    /// The group that IPoIB of a partition broadcasts to (RFC 4391, section 4), as OpenSM's option
    /// `ipoib` makes it: 2048 bytes, 10 Gb/s.
    #[must_use]
    pub fn ipoib(pkey: PKey) -> Self {
        let pkey = PKey::new(pkey.value() | 0x8000);
        let partition = u128::from(pkey.value());
        Self {
            has_own_level: false,
            record: McMemberRecord {
                mgid: Gid::from_bits(0xff12_401b << 96 | partition << 80 | 0xffff_ffff),
                qkey: QKey::new(IPOIB_QKEY),
                mtu_selector: Selector::Exactly.code(),
                mtu: Mtu::B2048.code(),
                pkey,
                rate_selector: Selector::Exactly.code(),
                rate: Rate::GB10.0,
                packet_life_time_selector: Selector::Exactly.code(),
                packet_life_time: 18,
                scope: 2,
                ..McMemberRecord::default()
            },
        }
    }
}
