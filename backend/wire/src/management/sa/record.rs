//! Records of what subnet management knows: its attributes, with the port they are of.

use super::{Component, composite, plain_record};
use crate::layout::layout;
use crate::{Gid, Lid, PKey};

composite! {
    /// NodeRecord (IBA 15.2.5.2): one for each port of an adapter, one for a switch.
    NodeRecord = super::id::NODE, 108 bytes {
        /// Base LID of the port.
        lid: Lid = 0..16,
    }
    /// The [`NodeInfo`](crate::management::attribute::NodeInfo).
    node_info: 40 bytes at 4,
    /// The [`NodeDescription`](crate::management::attribute::NodeDescription).
    node_description: 64 bytes at 44,
    => &NODE
}

const NODE: [Component; 15] = [
    (0, 16),
    (16, 16),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 64),
    (128, 64),
    (192, 64),
    (256, 16),
    (272, 16),
    (288, 32),
    (320, 8),
    (328, 24),
    (352, 512),
];

impl NodeRecord {
    /// Component.
    pub const LID: u64 = 1;
    /// Component.
    pub const NODE_TYPE: u64 = 1 << 4;
    /// Component.
    pub const NODE_GUID: u64 = 1 << 7;
    /// Component.
    pub const PORT_GUID: u64 = 1 << 8;
    /// Component.
    pub const NODE_DESCRIPTION: u64 = 1 << 14;
}

composite! {
    /// PortInfoRecord (IBA 15.2.5.3): one for each port of a node.
    PortInfoRecord = super::id::PORT_INFO, 68 bytes {
        /// Base LID of the port; of a switch, of its port 0.
        lid: Lid = 0..16,
        /// Number of the port.
        port: u8 = 16..24,
        /// Kinds of extended information that are wanted.
        options: u8 = 24..32,
    }
    /// The [`PortInfo`](crate::management::attribute::PortInfo).
    port_info: 64 bytes at 4,
    => &PORT_INFO
}

const PORT_INFO: [Component; 58] = [
    (0, 16),
    (16, 8),
    (24, 8),
    // PortInfo, from byte 4: management key, prefix, LIDs, capabilities
    (32, 64),
    (96, 64),
    (160, 16),
    (176, 16),
    (192, 32),
    (224, 16),
    (240, 16),
    (256, 8),
    // widths: enabled, supported, active
    (264, 8),
    (272, 8),
    (280, 8),
    // speed supported, states
    (288, 4),
    (292, 4),
    (296, 4),
    (300, 4),
    (304, 2),
    (306, 3),
    (309, 3),
    (312, 4),
    (316, 4),
    (320, 4),
    (324, 4),
    (328, 4),
    (332, 4),
    (336, 8),
    (344, 8),
    (352, 8),
    (360, 4),
    (364, 4),
    (368, 3),
    (371, 5),
    (376, 4),
    (380, 1),
    (381, 1),
    (382, 1),
    (383, 1),
    // violations
    (384, 16),
    (400, 16),
    (416, 16),
    (432, 8),
    (440, 1),
    (441, 2),
    (443, 5),
    (448, 3),
    (451, 5),
    (456, 4),
    (460, 4),
    (464, 16),
    (480, 8),
    (488, 24),
    (512, 16),
    // extended speeds
    (528, 4),
    (532, 4),
    (536, 3),
    (539, 5),
];

impl PortInfoRecord {
    /// Component.
    pub const LID: u64 = 1;
    /// Component.
    pub const PORT: u64 = 1 << 1;
    /// Component.
    pub const BASE_LID: u64 = 1 << 5;
    /// Component; capabilities match when those of the template are all there, if bit 31 of the
    /// attribute modifier says so.
    pub const CAPABILITY_MASK: u64 = 1 << 7;
    /// Bit of the attribute modifier: see [`PortInfoRecord::CAPABILITY_MASK`].
    pub const MATCH_SET_CAPABILITIES: u32 = 1 << 31;
}

composite! {
    /// SLtoVLMappingTableRecord (IBA 15.2.5.4).
    SlToVlRecord = super::id::SL_TO_VL, 16 bytes {
        /// Base LID of the port; of a switch, of its port 0.
        lid: Lid = 0..16,
        /// The port packets come in by; of an adapter 0.
        input_port: u8 = 16..24,
        /// The port packets leave by; of an adapter 0.
        output_port: u8 = 24..32,
    }
    /// The [`SlToVl`](crate::management::attribute::SlToVl).
    table: 8 bytes at 8,
    => &[(0, 16), (16, 8), (24, 8)]
}

composite! {
    /// SwitchInfoRecord (IBA 15.2.5.5).
    SwitchInfoRecord = super::id::SWITCH_INFO, 24 bytes {
        /// Base LID of the switch.
        lid: Lid = 0..16,
    }
    /// The [`SwitchInfo`](crate::management::attribute::SwitchInfo).
    switch_info: 20 bytes at 4,
    => &[(0, 16)]
}

composite! {
    /// LinearForwardingTableRecord (IBA 15.2.5.6): a block of 64 LIDs.
    LinearForwardingRecord = super::id::LINEAR_FORWARDING, 72 bytes {
        /// Base LID of the switch.
        lid: Lid = 0..16,
        /// Number of the block.
        block: u16 = 16..32,
    }
    /// The [`LinearBlock`](crate::management::attribute::LinearBlock).
    table: 64 bytes at 8,
    => &[(0, 16), (16, 16)]
}

composite! {
    /// MulticastForwardingTableRecord (IBA 15.2.5.8): a block of 32 LIDs and 16 ports.
    MulticastForwardingRecord = super::id::MULTICAST_FORWARDING, 72 bytes {
        /// Base LID of the switch.
        lid: Lid = 0..16,
        /// Block of 16 ports.
        position: u8 = 16..20,
        /// Number of the block.
        block: u16 = 23..32,
    }
    /// The [`MulticastBlock`](crate::management::attribute::MulticastBlock).
    table: 64 bytes at 8,
    => &[(0, 16), (16, 4), (20, 3), (23, 9), (32, 32)]
}

composite! {
    /// SMInfoRecord (IBA 15.2.5.10).
    SmInfoRecord = super::id::SM_INFO, 25 bytes {
        /// Base LID of the port that the manager is at.
        lid: Lid = 0..16,
    }
    /// The [`SmInfo`](crate::management::attribute::SmInfo), as far as it means something.
    sm_info: 21 bytes at 4,
    => &SM_INFO
}

const SM_INFO: [Component; 7] = [
    (0, 16),
    (16, 16),
    (32, 64),
    (96, 64),
    (160, 32),
    (192, 4),
    (196, 4),
];

layout! {
    /// LinkRecord (IBA 15.2.5.13): a link in one direction.
    LinkRecord, 6 bytes {
        /// Base LID of the port it begins at; of a switch, of its port 0.
        from_lid: Lid = 0..16,
        /// Port it begins at.
        from_port: u8 = 16..24,
        /// Port it ends at.
        to_port: u8 = 24..32,
        /// Base LID of the port it ends at.
        to_lid: Lid = 32..48,
    }
}

plain_record!(
    LinkRecord = super::id::LINK,
    components & [(0, 16), (16, 8), (24, 8), (32, 16)]
);

composite! {
    /// GuidInfoRecord (IBA 15.2.5.18): eight GUIDs of a port.
    GuidInfoRecord = super::id::GUID_INFO, 72 bytes {
        /// Base LID of the port.
        lid: Lid = 0..16,
        /// Number of the block.
        block: u8 = 16..24,
    }
    /// The [`GuidInfo`](crate::management::attribute::GuidInfo).
    guid_info: 64 bytes at 8,
    => &GUIDS
}

const GUIDS: [Component; 12] = [
    (0, 16),
    (16, 8),
    (24, 8),
    (32, 32),
    (64, 64),
    (128, 64),
    (192, 64),
    (256, 64),
    (320, 64),
    (384, 64),
    (448, 64),
    (512, 64),
];

composite! {
    /// P_KeyTableRecord (IBA 15.2.5.11): 32 keys of a port.
    PKeyTableRecord = super::id::P_KEY_TABLE, 72 bytes {
        /// Base LID of the port; of a switch, of its port 0.
        lid: Lid = 0..16,
        /// Number of the block.
        block: u16 = 16..32,
        /// Port of a switch; of an adapter 0.
        port: u8 = 32..40,
    }
    /// The [`PKeyBlock`](crate::management::attribute::PKeyBlock).
    table: 64 bytes at 8,
    => &[(0, 16), (16, 16), (32, 8)]
}

composite! {
    /// VLArbitrationTableRecord (IBA 15.2.5.9): 32 entries of a port.
    VlArbitrationRecord = super::id::VL_ARBITRATION, 72 bytes {
        /// Base LID of the port; of a switch, of its port 0.
        lid: Lid = 0..16,
        /// Port that packets leave by.
        output_port: u8 = 16..24,
        /// Number of the block, from 1.
        block: u8 = 24..32,
    }
    /// The [`VlArbitration`](crate::management::attribute::VlArbitration).
    table: 64 bytes at 8,
    => &[(0, 16), (16, 8), (24, 8)]
}

composite! {
    /// ServiceRecord (IBA 15.2.5.14): a service that a port offers.
    ServiceRecord = super::id::SERVICE, 176 bytes {
        /// The service.
        service_id: u64 = 0..64,
        /// The port.
        service_gid: Gid = 64..192,
        /// Partition that it is reached in.
        service_pkey: PKey = 192..208,
        /// Seconds that the record lives; all ones: for ever.
        lease: u32 = 224..256,
        /// Key for changes of the record; 0: anybody may change it.
        service_key: u128 = 256..384,
    }
    /// Name, UTF-8 filled with zeros.
    name: 64 bytes at 48,
    /// Data of the service.
    data: 64 bytes at 112,
    => &SERVICE
}

impl ServiceRecord {
    /// A lease without end.
    pub const FOREVER: u32 = u32::MAX;

    /// Component.
    pub const SERVICE_ID: u64 = 1;
    /// Component.
    pub const SERVICE_GID: u64 = 1 << 1;
    /// Component.
    pub const SERVICE_PKEY: u64 = 1 << 2;
    /// Component.
    pub const LEASE: u64 = 1 << 4;
    /// Component.
    pub const SERVICE_KEY: u64 = 1 << 5;
    /// Component.
    pub const NAME: u64 = 1 << 6;
}

const SERVICE: [Component; 37] = service_components();

/// The data is sixteen components of 8 bits, eight of 16, four of 32 and two of 64.
const fn service_components() -> [Component; 37] {
    let mut components = [(0, 0); 37];
    let head = [
        (0, 64),
        (64, 128),
        (192, 16),
        (208, 16),
        (224, 32),
        (256, 128),
        (384, 512),
    ];
    let mut next = 0;
    while next < head.len() {
        components[next] = head[next];
        next += 1;
    }
    let mut start = 896;
    let mut width = 8;
    while width <= 64 {
        let mut left = 128 / width;
        while left > 0 {
            components[next] = (start, width);
            start += width;
            next += 1;
            left -= 1;
        }
        width *= 2;
    }
    components
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::management::sa::Record;

    /// Reserved fields have components as well, so that they fill a record.
    #[test]
    fn components_fill_records() {
        fn filled<R: Record>(until: u16) {
            let mut at = 0;
            for &(start, width) in R::COMPONENTS {
                assert_eq!(start, at, "{}", R::ID.0);
                at += width;
            }
            assert_eq!(at, until, "{}", R::ID.0);
        }
        filled::<NodeRecord>(108 * 8);
        filled::<PortInfoRecord>(68 * 8);
        filled::<ServiceRecord>(176 * 8);
        filled::<GuidInfoRecord>(72 * 8);
        filled::<LinkRecord>(6 * 8);
        filled::<SmInfoRecord>(25 * 8);
        filled::<crate::management::sa::PathRecord>(58 * 8);
        filled::<crate::management::sa::MultiPathRecord>(24 * 8);
        filled::<crate::management::sa::TraceRecord>(46 * 8);
        filled::<crate::management::sa::McMemberRecord>(393);
        filled::<crate::management::sa::InformInfoRecord>(60 * 8);
    }

    #[test]
    fn strides() {
        assert_eq!(NodeRecord::STRIDE, 112);
        assert_eq!(PortInfoRecord::STRIDE, 72);
        assert_eq!(SmInfoRecord::STRIDE, 32);
        assert_eq!(crate::management::sa::McMemberRecord::STRIDE, 56);
    }
}
