//! Virtual ports of a channel adapter's port, as NVIDIA's adapters have them.
//!
//! The annex of the specification (A18) is not public. Names and places of the components are those of two headers
//! that NVIDIA publishes: `packets_layouts.h` of ibis, which counts bits from the lowest of each word of 32, and
//! `ib_types.h` of its OpenSM, which has bytes and masks. Where the comments of the latter differ from its masks
//! (the state of a virtual port is in the upper half of its byte), the masks agree with ibis.
//!
//! Neither header tells the attribute modifiers. Here the modifier of VPortInfo, VNodeInfo and VNodeDescription is the
//! index of the virtual port, that of VPortState the number of the block. VPortPKeyTable and VPortGUIDInfo have the
//! index in the upper 16 bits and the number of the block in the lower 16, as the P_Key table of a switch's port has.

use crate::layout::layout;
use crate::management::smp::DATA;
use crate::{Guid, Lid, PortState};

layout! {
    /// VirtualizationInfo: how many virtual ports a port has, and whether they are in use.
    VirtualizationInfo, 64 bytes {
        /// The highest index that a virtual port can have.
        vport_cap: u16 = 0..16,
        /// The highest index of an enabled virtual port.
        vport_index_top: u16 = 16..32,
        /// Virtual ports have states of their own; otherwise virtual port 0 is the physical port, and the others are Down.
        virtualization_enable: bool = 32..33,
        /// In a Set: clients at all virtual ports should register again.
        client_reregister: bool = 33..34,
        /// The state of a virtual port changed since this was cleared; a Set with 1 clears it.
        vport_state_change: bool = 34..35,
        /// Revision of virtualization; a manager handles those that it knows, and 0 is the only one.
        virtualization_revision: u8 = 48..56,
        /// Options, all of them reserved.
        capability_mask: u8 = 56..64,
    }
}

layout! {
    /// VPortInfo: a virtual port.
    VPortInfo, 64 bytes {
        /// Logical state; in a Set 0 means no change.
        port_state: PortState = 0..4,
        /// In a Set: clients should register again.
        client_reregister: bool = 4..5,
        /// The port is to have a LID of its own. It has that of another virtual port otherwise.
        lid_required: bool = 5..6,
        /// Entries of the table of GUIDs.
        guid_cap: u8 = 8..16,
        /// Managers and agents at this port: bit 0 communication, 1 SNMP, 2 device, 3 vendor's class, 4 boot, 5 a subnet
        /// manager, 6 a subnet manager that is switched off.
        capability_mask: u16 = 16..32,
        /// Packets with a wrong partition key.
        p_key_violations: u16 = 32..48,
        /// Packets with a wrong queue key.
        q_key_violations: u16 = 48..64,
        /// The port's own LID, if it requires one.
        lid: Lid = 64..80,
        /// Index of the virtual port whose LID this one uses, if it requires none; 0: the physical port's.
        lid_by_vport_index: u16 = 80..96,
        /// GUID of the port.
        port_guid: Guid = 96..160,
        /// Profile that the port's owner has chosen.
        profile: u64 = 160..224,
    }
}

layout! {
    /// VNodeInfo: the virtual adapter that a virtual port belongs to.
    VNodeInfo, 64 bytes {
        /// Entries of the P_Key table of each of its ports.
        partition_cap: u16 = 0..16,
        /// The number that the virtual port has at this adapter.
        local_port_num: u8 = 16..24,
        /// Ports of the adapter.
        num_ports: u8 = 24..32,
        /// GUID of the adapter.
        node_guid: Guid = 32..96,
    }
}

/// A block of VPortState: the states of 128 virtual ports, four bits each.
///
/// The attribute modifier is the number of the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VPortStates(pub [u8; VPortStates::ENTRIES]);

impl VPortStates {
    /// Virtual ports of a block.
    pub const ENTRIES: usize = 2 * DATA;

    /// The state of an entry; `None` for a code that is reserved, and beyond the block.
    pub fn state(&self, entry: usize) -> Option<PortState> {
        PortState::from_code(*self.0.get(entry)?)
    }

    /// Writes the state of an entry.
    pub fn set(&mut self, entry: usize, state: PortState) {
        if let Some(place) = self.0.get_mut(entry) {
            *place = state.code();
        }
    }

    /// Reads a block.
    pub fn parse(data: &[u8; DATA]) -> Self {
        Self(core::array::from_fn(|entry| {
            data[entry / 2] >> (4 * (1 - entry % 2)) & 0xf
        }))
    }

    /// Writes a block.
    pub fn to_bytes(&self) -> [u8; DATA] {
        let (pairs, _) = self.0.as_chunks::<2>();
        let mut data = [0; DATA];
        for (byte, [first, second]) in data.iter_mut().zip(pairs) {
            *byte = first << 4 | second & 0xf;
        }
        data
    }
}

impl Default for VPortStates {
    fn default() -> Self {
        Self([0; Self::ENTRIES])
    }
}

/// The attribute modifier of a block of a virtual port's table.
pub const fn vport_block(index: u16, block: u16) -> u32 {
    (index as u32) << 16 | block as u32
}

/// Index of the virtual port and number of the block in an attribute modifier.
pub const fn select_vport_block(modifier: u32) -> (u16, u16) {
    ((modifier >> 16) as u16, modifier as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ops::Range;

    /// A component as `packets_layouts.h` has it: byte of the word, lowest and highest bit of the word.
    type Place = (&'static str, usize, usize, usize);

    /// Bits of a component counted from the first bit of the attribute.
    fn bits(&(_, word, low, high): &Place) -> Range<usize> {
        // A component of 64 bits ends in the next word.
        let more = if (low, high) == (0, 63) { 64 } else { 32 };
        8 * word + more - 1 - high..8 * word + more - low
    }

    fn compare(fields: &[(&str, Range<usize>)], header: &[Place]) {
        assert_eq!(fields.len(), header.len());
        for place in header {
            let field = fields.iter().find(|(name, _)| *name == place.0);
            assert_eq!(
                field.map(|(_, bits)| bits.clone()),
                Some(bits(place)),
                "{}",
                place.0
            );
        }
    }

    #[test]
    fn places_are_those_of_the_header() {
        compare(
            VirtualizationInfo::FIELDS,
            &[
                ("vport_index_top", 0, 0, 15),
                ("vport_cap", 0, 16, 31),
                ("capability_mask", 4, 0, 7),
                ("virtualization_revision", 4, 8, 15),
                ("vport_state_change", 4, 29, 29),
                ("client_reregister", 4, 30, 30),
                ("virtualization_enable", 4, 31, 31),
            ],
        );
        compare(
            VPortInfo::FIELDS,
            &[
                ("capability_mask", 0, 0, 15),
                ("guid_cap", 0, 16, 23),
                ("lid_required", 0, 26, 26),
                ("client_reregister", 0, 27, 27),
                ("port_state", 0, 28, 31),
                ("q_key_violations", 4, 0, 15),
                ("p_key_violations", 4, 16, 31),
                ("lid_by_vport_index", 8, 0, 15),
                ("lid", 8, 16, 31),
                ("port_guid", 12, 0, 63),
                ("profile", 20, 0, 63),
            ],
        );
        compare(
            VNodeInfo::FIELDS,
            &[
                ("num_ports", 0, 0, 7),
                ("local_port_num", 0, 8, 15),
                ("partition_cap", 0, 16, 31),
                ("node_guid", 4, 0, 63),
            ],
        );
    }

    /// The masks of `ib_types.h`, which somebody else has written.
    #[test]
    fn masks_of_the_other_header() {
        let info = VirtualizationInfo {
            vport_cap: 0x1234,
            virtualization_enable: true,
            ..VirtualizationInfo::default()
        };
        let bytes = info.to_bytes();
        assert_eq!((bytes[0], bytes[1], bytes[4]), (0x12, 0x34, 0x80));
        let changed = VirtualizationInfo {
            client_reregister: true,
            vport_state_change: true,
            ..VirtualizationInfo::default()
        };
        assert_eq!(changed.to_bytes()[4], 0x40 | 0x20);
        let port = VPortInfo {
            port_state: PortState::Active,
            client_reregister: true,
            lid_required: true,
            ..VPortInfo::default()
        };
        assert_eq!(port.to_bytes()[0], 4 << 4 | 1 << 3 | 1 << 2);
    }

    #[test]
    fn what_is_read_is_written_again() {
        let mut seed = 1u64;
        let mut data = [0; DATA];
        for _ in 0..1000 {
            for byte in &mut data {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (seed >> 56) as u8;
            }
            assert_eq!(VPortStates::parse(&data).to_bytes(), data);
            if let Ok(info) = VPortInfo::parse(&data) {
                assert_eq!(VPortInfo::parse(&info.to_bytes()), Ok(info));
                assert_eq!(info.to_bytes()[4..28], data[4..28]);
            }
            let info = VirtualizationInfo::parse(&data).expect("no code is reserved");
            assert_eq!(VirtualizationInfo::parse(&info.to_bytes()), Ok(info));
            let node = VNodeInfo::parse(&data).expect("no code is reserved");
            assert_eq!(node.to_bytes()[..12], data[..12]);
            let modifier = seed as u32;
            let (index, block) = select_vport_block(modifier);
            assert_eq!(vport_block(index, block), modifier);
        }
    }

    #[test]
    fn the_first_state_is_in_the_upper_half_of_the_first_byte() {
        let mut states = VPortStates::default();
        states.set(0, PortState::Active);
        states.set(127, PortState::Down);
        states.set(128, PortState::Armed);
        let bytes = states.to_bytes();
        assert_eq!((bytes[0], bytes[63]), (0x40, 0x01));
        assert_eq!(VPortStates::parse(&bytes), states);
        assert_eq!(VPortStates::parse(&[0xf1; 64]).state(0), None);
        assert_eq!(
            VPortStates::parse(&[0xf1; 64]).state(1),
            Some(PortState::Down)
        );
        assert_eq!(states.state(128), None);
    }
}
