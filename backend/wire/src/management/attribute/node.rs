//! Properties of a node.

use core::fmt;

use crate::Guid;
use crate::layout::{Field, layout};
use crate::management::smp::DATA;

/// Kind of a node (NodeInfo:NodeType).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum NodeType {
    /// Channel adapter.
    #[default]
    ChannelAdapter = 1,
    /// Switch.
    Switch = 2,
    /// Router.
    Router = 3,
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ChannelAdapter => "Channel Adapter",
            Self::Switch => "Switch",
            Self::Router => "Router",
        })
    }
}

impl Field for NodeType {
    fn from_bits(bits: u128) -> Option<Self> {
        match bits {
            1 => Some(Self::ChannelAdapter),
            2 => Some(Self::Switch),
            3 => Some(Self::Router),
            _ => None,
        }
    }
    fn to_bits(self) -> u128 {
        self as u128
    }
}

layout! {
    /// NodeInfo (IBA 14.2.5.3).
    NodeInfo, 40 bytes {
        /// Base version of MADs, 1.
        base_version: u8 = 0..8,
        /// Class version of subnet management, 1.
        class_version: u8 = 8..16,
        /// Kind of node.
        node_type: NodeType = 16..24,
        /// Physical ports; a switch's port 0 not counted.
        num_ports: u8 = 24..32,
        /// GUID of the system this node is a part of.
        system_image_guid: Guid = 32..96,
        /// GUID of the node.
        node_guid: Guid = 96..160,
        /// GUID of the port that received the request; of a switch, of port 0.
        port_guid: Guid = 160..224,
        /// Entries of the P_Key table of each port; of a switch, of port 0.
        partition_cap: u16 = 224..240,
        /// Device, as its vendor numbers it.
        device_id: u16 = 240..256,
        /// Revision, as its vendor numbers it.
        revision: u32 = 256..288,
        /// The port that received the request.
        local_port_num: u8 = 288..296,
        /// The vendor's 24-bit number.
        vendor_id: u32 = 296..320,
    }
}

layout! {
    /// GUIDInfo (IBA 14.2.5.5): eight GUIDs of a port. The attribute modifier is the block's
    /// number; the first GUID of block 0 is the port's own and read-only.
    GuidInfo, 64 bytes {
        /// Entry 0.
        guid0: Guid = 0..64,
        /// Entry 1.
        guid1: Guid = 64..128,
        /// Entry 2.
        guid2: Guid = 128..192,
        /// Entry 3.
        guid3: Guid = 192..256,
        /// Entry 4.
        guid4: Guid = 256..320,
        /// Entry 5.
        guid5: Guid = 320..384,
        /// Entry 6.
        guid6: Guid = 384..448,
        /// Entry 7.
        guid7: Guid = 448..512,
    }
}

impl GuidInfo {
    /// Entries of a block.
    pub const ENTRIES: usize = 8;

    /// The entries in order.
    pub fn entries(&self) -> [Guid; Self::ENTRIES] {
        [
            self.guid0, self.guid1, self.guid2, self.guid3, self.guid4, self.guid5, self.guid6,
            self.guid7,
        ]
    }

    /// The block of these entries.
    pub fn from_entries(entries: [Guid; Self::ENTRIES]) -> Self {
        let [guid0, guid1, guid2, guid3, guid4, guid5, guid6, guid7] = entries;
        Self {
            guid0,
            guid1,
            guid2,
            guid3,
            guid4,
            guid5,
            guid6,
            guid7,
        }
    }
}

/// NodeDescription (IBA 14.2.5.2): up to 64 bytes of UTF-8, filled with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeDescription([u8; DATA]);

impl NodeDescription {
    /// The description of this text, cut to 64 bytes at a character's boundary.
    pub fn new(text: &str) -> Self {
        let length = text.floor_char_boundary(DATA);
        let mut bytes = [0; DATA];
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        Self(bytes)
    }

    /// The description of these bytes, cut to 64.
    pub fn of_bytes(text: &[u8]) -> Self {
        let length = text.len().min(DATA);
        let mut bytes = [0; DATA];
        bytes[..length].copy_from_slice(&text[..length]);
        Self(bytes)
    }

    /// The description of these bytes.
    pub const fn from_bytes(bytes: [u8; DATA]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn to_bytes(&self) -> [u8; DATA] {
        self.0
    }

    /// The bytes before the first zero.
    pub fn as_bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|&b| b == 0).unwrap_or(DATA);
        &self.0[..end]
    }

    /// The text before the first zero; `None` when it is not UTF-8.
    pub fn text(&self) -> Option<&str> {
        core::str::from_utf8(self.as_bytes()).ok()
    }
}

impl Default for NodeDescription {
    fn default() -> Self {
        Self([0; DATA])
    }
}

impl fmt::Display for NodeDescription {
    /// The text, control characters escaped: it comes from a stranger and goes to a terminal. Bytes
    /// that are not UTF-8 are taken for Latin-1.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut show = |c: char| {
            if c.is_control() {
                write!(f, "{}", c.escape_default())
            } else {
                write!(f, "{c}")
            }
        };
        match self.text() {
            Some(text) => text.chars().try_for_each(show),
            None => self
                .as_bytes()
                .iter()
                .try_for_each(|&byte| show(byte.into())),
        }
    }
}

impl fmt::Debug for NodeDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeDescription({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions() {
        assert_eq!(NodeDescription::new("h1 mlx5_0").text(), Some("h1 mlx5_0"));
        let long = "ü".repeat(40);
        assert_eq!(NodeDescription::new(&long).text(), Some(&long[..64]));
        assert_eq!(NodeDescription::new("a\x1b[2J").to_string(), "a\\u{1b}[2J");
        assert_eq!(NodeDescription::from_bytes([0xff; 64]).text(), None);
        let latin = NodeDescription::of_bytes(b"B\xe2timent\x85");
        assert_eq!(latin.text(), None);
        assert_eq!(latin.to_string(), "B\u{e2}timent\\u{85}");
    }
}
