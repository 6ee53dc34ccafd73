//! Tables of a port: partitions and lanes.

use crate::management::smp::DATA;
use crate::{Kind, PKey, Sl, Vl};

/// A block of a P_Key table (IBA 14.2.5.7): 32 keys.
///
/// The lower 16 bits of the attribute modifier are the block's number, at a switch the upper 16
/// bits the port's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PKeyBlock(pub [PKey; PKeyBlock::ENTRIES]);

impl PKeyBlock {
    /// Keys of a block.
    pub const ENTRIES: usize = 32;
    /// First bit and kind of every key.
    pub const KINDS: &'static [(usize, Kind)] = &{
        let mut kinds = [(0, Kind::PKey); Self::ENTRIES];
        let mut entry = 0;
        while entry < Self::ENTRIES {
            kinds[entry].0 = 16 * entry;
            entry += 1;
        }
        kinds
    };

    /// Reads a block.
    pub fn parse(data: &[u8; DATA]) -> Self {
        let (pairs, _) = data.as_chunks::<2>();
        let mut keys = [PKey::INVALID; Self::ENTRIES];
        for (key, bytes) in keys.iter_mut().zip(pairs) {
            *key = PKey::new(u16::from_be_bytes(*bytes));
        }
        Self(keys)
    }

    /// Writes a block.
    pub fn to_bytes(&self) -> [u8; DATA] {
        let mut data = [0; DATA];
        for (bytes, key) in data.chunks_exact_mut(2).zip(self.0) {
            bytes.copy_from_slice(&key.value().to_be_bytes());
        }
        data
    }
}

/// An SL-to-VL mapping table (IBA 14.2.5.8): the lane each service level takes.
///
/// At a switch there is one per pair of ports: the attribute modifier has the port a packet came in
/// by in bits 8 to 15 and the port it leaves by in bits 0 to 7.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlToVl(pub [Vl; 16]);

impl SlToVl {
    /// Bytes on the wire.
    pub const SIZE: usize = 8;

    /// The lane of a service level; [`Vl::MANAGEMENT`] means that the packet is dropped.
    pub fn lane(&self, sl: Sl) -> Vl {
        self.0[usize::from(sl.value())]
    }

    /// The table that spreads the service levels over `lanes` data lanes.
    pub fn modulo(lanes: u8) -> Self {
        Self(core::array::from_fn(|sl| {
            Vl::new(sl as u8 % lanes.clamp(1, 15))
        }))
    }

    /// Reads a table.
    pub fn parse(data: &[u8; DATA]) -> Self {
        Self(core::array::from_fn(|sl| {
            Vl::new(data[sl / 2] >> (4 * (1 - sl % 2)))
        }))
    }

    /// Writes a table.
    pub fn to_bytes(&self) -> [u8; DATA] {
        let mut data = [0; DATA];
        for (byte, lanes) in data.iter_mut().zip(self.0.as_chunks::<2>().0) {
            *byte = lanes[0].value() << 4 | lanes[1].value();
        }
        data
    }
}

impl Default for SlToVl {
    fn default() -> Self {
        Self::modulo(1)
    }
}

/// An entry of an arbitration table: a lane and how much it may send at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct VlWeight {
    /// Lane.
    pub vl: Vl,
    /// Weight in units of 64 bytes; 0 skips the entry.
    pub weight: u8,
}

/// Half a VL arbitration table (IBA 14.2.5.9): 32 entries.
///
/// The upper 16 bits of the attribute modifier select: 1 and 2 the low-priority table's halves, 3
/// and 4 the high-priority table's. The lower 8 bits are the port's number at a switch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct VlArbitration(pub [VlWeight; VlArbitration::ENTRIES]);

impl VlArbitration {
    /// Entries of half a table.
    pub const ENTRIES: usize = 32;

    /// Reads half a table.
    pub fn parse(data: &[u8; DATA]) -> Self {
        let (pairs, _) = data.as_chunks::<2>();
        let mut entries = [VlWeight::default(); Self::ENTRIES];
        for (entry, [vl, weight]) in entries.iter_mut().zip(pairs) {
            *entry = VlWeight {
                vl: Vl::new(*vl),
                weight: *weight,
            };
        }
        Self(entries)
    }

    /// Writes half a table.
    pub fn to_bytes(&self) -> [u8; DATA] {
        let mut data = [0; DATA];
        for (bytes, entry) in data.chunks_exact_mut(2).zip(self.0) {
            bytes.copy_from_slice(&[entry.vl.value(), entry.weight]);
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_nibbles() {
        let mut table = SlToVl::default();
        table.0[0] = Vl::new(1);
        table.0[15] = Vl::MANAGEMENT;
        let bytes = table.to_bytes();
        assert_eq!((bytes[0], bytes[7], bytes[8]), (0x10, 0x0f, 0));
        assert_eq!(SlToVl::parse(&bytes), table);
        assert_eq!(table.lane(Sl::new(15)), Vl::MANAGEMENT);
        assert_eq!(SlToVl::modulo(4).lane(Sl::new(6)), Vl::new(2));
    }
}
