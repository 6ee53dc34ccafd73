//! Forwarding of packets by a switch.

use crate::layout::layout;
use crate::management::smp::DATA;

layout! {
    /// SwitchInfo (IBA 14.2.5.4).
    SwitchInfo, 20 bytes {
        /// Entries of the linear forwarding table.
        linear_fdb_cap: u16 = 0..16,
        /// Entries of the random forwarding table.
        random_fdb_cap: u16 = 16..32,
        /// Entries of the multicast forwarding table.
        multicast_fdb_cap: u16 = 32..48,
        /// The highest LID that the linear forwarding table is used for.
        linear_fdb_top: u16 = 48..64,
        /// Port for LIDs that a random forwarding table lacks.
        default_port: u8 = 64..72,
        /// Port for multicast packets that the table lacks, from other ports.
        default_multicast_primary_port: u8 = 72..80,
        /// Port for multicast packets that the table lacks, from the primary port.
        default_multicast_not_primary_port: u8 = 80..88,
        /// Lifetime of a packet in the switch.
        lifetime_value: u8 = 88..93,
        /// A port's state changed since this was cleared; a Set with 1 clears it.
        port_state_change: bool = 93..94,
        /// Ports whose SL-to-VL tables may be set together.
        optimized_sl_to_vl: u8 = 94..96,
        /// LIDs per port of the random forwarding table.
        lids_per_port: u16 = 96..112,
        /// Entries of the P_Key table of each external port.
        partition_enforcement_cap: u16 = 112..128,
        /// Can check P_Keys of packets that come in.
        inbound_enforcement_cap: bool = 128..129,
        /// Can check P_Keys of packets that go out.
        outbound_enforcement_cap: bool = 129..130,
        /// Can drop raw packets that come in.
        filter_raw_inbound_cap: bool = 130..131,
        /// Can drop raw packets that go out.
        filter_raw_outbound_cap: bool = 131..132,
        /// Port 0 has the properties of a channel adapter's port.
        enhanced_port0: bool = 132..133,
        /// The highest LID that the multicast forwarding table is used for.
        multicast_fdb_top: u16 = 144..160,
    }
}

/// A block of the linear forwarding table (IBA 14.2.5.10): the ports of 64 LIDs.
///
/// The attribute modifier is the block's number, 0 to 767. Port 255 drops the packet. A switch of
/// the extended LID space ([`ExtendedLid`](crate::ExtendedLid)) has blocks 1024 to 4095 besides: its
/// second table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinearBlock(pub [u8; DATA]);

impl LinearBlock {
    /// LIDs of a block.
    pub const LIDS: u16 = DATA as u16;
    /// Blocks of a full table.
    pub const COUNT: u16 = 768;
    /// The first block of the second table.
    pub const SECONDARY_FIRST: u16 = 1024;
    /// Blocks of a full second table.
    pub const SECONDARY_COUNT: u16 = 3072;
    /// The port that drops packets.
    pub const DROP: u8 = 255;
}

impl Default for LinearBlock {
    fn default() -> Self {
        Self([Self::DROP; DATA])
    }
}

/// A block of the multicast forwarding table (IBA 14.2.5.12): for 32 LIDs, which of 16 ports get a
/// copy.
///
/// The attribute modifier has the block's number in its lower 9 bits and in its upper 4 bits the
/// position: ports 16 * position to 16 * position + 15, the lowest bit the lowest port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MulticastBlock(pub [u16; MulticastBlock::LIDS as usize]);

impl MulticastBlock {
    /// LIDs of a block.
    pub const LIDS: u16 = 32;
    /// Ports of a position.
    pub const PORTS: u8 = 16;

    /// Reads a block.
    pub fn parse(data: &[u8; DATA]) -> Self {
        let (pairs, _) = data.as_chunks::<2>();
        let mut masks = [0; Self::LIDS as usize];
        for (mask, bytes) in masks.iter_mut().zip(pairs) {
            *mask = u16::from_be_bytes(*bytes);
        }
        Self(masks)
    }

    /// Writes a block.
    pub fn to_bytes(&self) -> [u8; DATA] {
        let mut data = [0; DATA];
        for (bytes, mask) in data.chunks_exact_mut(2).zip(self.0) {
            bytes.copy_from_slice(&mask.to_be_bytes());
        }
        data
    }

    /// The attribute modifier of a block and position.
    pub const fn modifier(block: u16, position: u8) -> u32 {
        ((position as u32) << 28) | (block as u32 & 0x1ff)
    }

    /// Block and position of an attribute modifier.
    pub const fn select(modifier: u32) -> (u16, u8) {
        ((modifier & 0x1ff) as u16, (modifier >> 28) as u8)
    }
}
