//! The header of each frame in a ring (virtio 1.3, 5.1.6).

/// Bytes of the longest header.
pub const LEN: usize = 12;

use wire::ipoib::Train;

use crate::message::feature;
use crate::translate::{ETHERNET_HEADER, Packet};

/// Bytes of the header with these features: of version 0 it lacks the number of buffers unless there may
/// be several.
#[must_use]
pub const fn len(features: u64) -> usize {
    if features & (feature::VERSION_1 | feature::MERGEABLE) == 0 {
        LEN - 2
    } else {
        LEN
    }
}

/// The guest has not computed a checksum.
const NEEDS_CHECKSUM: u8 = 1;

/// The frame is complete, and not to be cut.
pub const WHOLE: u8 = 0;
/// The frame is a TCP segment to be cut, over IPv4.
pub const TCP_IPV4: u8 = 1;
/// The same over IPv6.
pub const TCP_IPV6: u8 = 4;
/// Where TCP has its checksum.
const TCP_CHECKSUM: u16 = 16;
/// Congestion was met, which the first part alone tells of (RFC 3168, 6.1.2).
const CONGESTION: u8 = 0x80;

/// Fields of the header that have a meaning here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetHeader {
    /// Where a checksum is to be filled in: from where on it counts, and its place from there.
    pub checksum: Option<(u16, u16)>,
    /// Kind of segments that the frame is to be cut into, or [`WHOLE`].
    pub segmentation: u8,
    /// Bytes of payload of a segment.
    pub segment: u16,
}

impl NetHeader {
    /// Reads the header of a frame of the guest's.
    #[must_use]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        let [flags, segmentation, _, _, s0, s1, c0, c1, o0, o1, _, _] = *bytes;
        let start = u16::from_le_bytes([c0, c1]);
        let offset = u16::from_le_bytes([o0, o1]);
        Self {
            checksum: if flags & NEEDS_CHECKSUM != 0 {
                Some((start, offset))
            } else {
                None
            },
            segmentation: segmentation & !CONGESTION,
            segment: u16::from_le_bytes([s0, s1]),
        }
    }

    /// The header of a frame for the guest that is complete, in so many buffers.
    #[must_use]
    pub const fn whole(buffers: u16) -> [u8; LEN] {
        let [low, high] = buffers.to_le_bytes();
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, low, high]
    }

    /// The header of a train for a guest that takes such (5.1.6.4.1), in so many buffers: it has a checksum that
    /// nobody has filled in.
    #[must_use]
    pub const fn of_train(train: &Train, version: u8, buffers: u16) -> [u8; LEN] {
        let kind = if version == 4 { TCP_IPV4 } else { TCP_IPV6 };
        let ethernet = ETHERNET_HEADER as u16;
        let [h0, h1] = (ethernet + train.headers()).to_le_bytes();
        let [s0, s1] = train.segment().to_le_bytes();
        let [c0, c1] = (ethernet + train.ip_header()).to_le_bytes();
        let [o0, o1] = TCP_CHECKSUM.to_le_bytes();
        let [low, high] = buffers.to_le_bytes();
        [
            NEEDS_CHECKSUM,
            kind,
            h0,
            h1,
            s0,
            s1,
            c0,
            c1,
            o0,
            o1,
            low,
            high,
        ]
    }

    /// The header of a frame for the guest, in so many buffers.
    #[must_use]
    pub fn of(packet: &Packet, buffers: u16) -> [u8; LEN] {
        let version = packet.packet().first().map_or(0, |byte| byte >> 4);
        match &packet.train {
            Some(train) => Self::of_train(train, version, buffers),
            None => Self::whole(buffers),
        }
    }
}
