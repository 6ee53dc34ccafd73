//! Management datagrams of a class of their own for devices with Mellanox' vendor id, as far as it is public:
//! `vendstat` of infiniband-diags and `ibdiagnet` of ibutils ask for it.
//!
//! The class is one of those that have no organization in their header (IBA 13.4.4). A datagram has a key of
//! 64 bits, which nobody here has use for, from byte 24 on, and its attribute from byte 32 on.

use core::ops::Range;

use crate::layout::{Field, layout};
use crate::management::mad::{AttributeId, Class, SIZE};

/// The class.
pub const CLASS: Class = Class(0x0a);
/// Its version.
pub const VERSION: u8 = 1;
/// Where the attribute lies in a datagram.
pub const DATA: Range<usize> = 32..SIZE;
/// GeneralInfo.
pub const GENERAL_INFO: AttributeId = AttributeId(0x0017);

/// The organization of the devices that have the class, as their vendor id names it.
pub const ORGANIZATION: u32 = 0x02c9;

/// Device id of a ConnectX-5. VFs have its firmware, and its id wherever the subnet asks: their PCI functions have another.
pub const CONNECTX_5: u16 = 0x1017;
/// Version of VFs' firmware: major, minor, sub-minor.
pub const FIRMWARE: (u16, u16, u16) = (16, 35, 4030);

/// Parameter set id: which board a firmware is for, in ASCII, zeros behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Psid([u8; 16]);

impl Psid {
    /// PSID of this project's VFs.
    pub const OURS: Self = Self(*b"IBV0000000001\0\0\0");

    /// As it is sent.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl core::fmt::Display for Psid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl Field for Psid {
    fn from_bits(bits: u128) -> Option<Self> {
        Some(Self(bits.to_be_bytes()))
    }
    fn to_bits(self) -> u128 {
        u128::from_be_bytes(self.0)
    }
}

layout! {
    /// GeneralInfo: hardware, firmware and software of a node.
    ///
    /// Numbers of a version that are too large for 8 bits are in the fields that extend it.
    GeneralInfo, 128 bytes {
        /// Revision of the device.
        hardware_revision: u16 = 0..16,
        /// PCI device id, of the adapter and not of a function of it.
        device_id: u16 = 16..32,
        /// Seconds that it has been up.
        uptime: u32 = 224..256,
        /// Firmware: major version, lower 8 bits.
        firmware_major: u8 = 264..272,
        /// Minor version, lower 8 bits.
        firmware_minor: u8 = 272..280,
        /// Sub-minor version, lower 8 bits.
        firmware_subminor: u8 = 280..288,
        /// Number of the build.
        build_id: u32 = 288..320,
        /// When the firmware was built: month, in two decimal digits of 4 bits.
        month: u8 = 320..328,
        /// Day, in the same way.
        day: u8 = 328..336,
        /// Year, in four decimal digits of 4 bits.
        year: u16 = 336..352,
        /// Hour and minute, in the same way.
        hour: u16 = 368..384,
        /// Board that the firmware is for.
        psid: Psid = 384..512,
        /// Version of the file that the board's settings are from.
        ini_file_version: u32 = 512..544,
        /// Major version, all of it.
        firmware_extended_major: u32 = 544..576,
        /// Minor version, all of it.
        firmware_extended_minor: u32 = 576..608,
        /// Sub-minor version, all of it.
        firmware_extended_subminor: u32 = 608..640,
        /// Software of a node that is managed: major version.
        software_major: u8 = 776..784,
        /// Minor version.
        software_minor: u8 = 784..792,
        /// Sub-minor version.
        software_subminor: u8 = 792..800,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the offsets in the structures of `vendstat` (rdma-core, infiniband-diags/vendstat.c), which
    /// begin with the datagram's key.
    #[test]
    fn places() {
        let info = GeneralInfo {
            hardware_revision: 0x0102,
            device_id: CONNECTX_5,
            uptime: 0x0304_0506,
            firmware_major: 16,
            firmware_minor: 35,
            firmware_subminor: 0xbe,
            build_id: 7,
            month: 0x11,
            day: 0x27,
            year: 0x2026,
            hour: 0x1230,
            psid: Psid::OURS,
            ini_file_version: 8,
            firmware_extended_major: 16,
            firmware_extended_minor: 35,
            firmware_extended_subminor: 4030,
            software_major: 1,
            software_minor: 2,
            software_subminor: 3,
        };
        let bytes = info.to_bytes();
        assert_eq!(GeneralInfo::parse(&bytes), Ok(info));
        assert_eq!(bytes[..4], [1, 2, 0x10, 0x17]);
        assert_eq!(bytes[28..36], [3, 4, 5, 6, 0, 16, 35, 0xbe]);
        assert_eq!(bytes[40..48], [0x11, 0x27, 0x20, 0x26, 0, 0, 0x12, 0x30]);
        assert_eq!(&bytes[48..61], b"IBV0000000001");
        assert_eq!(
            bytes[64..80],
            [0, 0, 0, 8, 0, 0, 0, 16, 0, 0, 0, 35, 0, 0, 0x0f, 0xbe]
        );
        assert_eq!(bytes[96..100], [0, 1, 2, 3]);
        assert!(info.to_string().contains("psid=IBV0000000001\\x00"));
    }
}
