//! The header of each frame (virtio 1.3, 5.1.6).

use virtio_bindings::virtio_net::{
    VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_NONE, VIRTIO_NET_HDR_GSO_TCPV4,
    VIRTIO_NET_HDR_GSO_TCPV6,
};

use crate::HEADER;

/// A checksum to be filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checksum {
    /// From where on it counts, in bytes of the frame.
    pub start: u16,
    /// Its place from there.
    pub offset: u16,
}

/// Segments to be cut, with so many bytes of payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segments {
    /// Segments of TCP over IPv4.
    TcpIpv4(u16),
    /// Segments of TCP over IPv6.
    TcpIpv6(u16),
}

/// Work that the port is to do for a frame, or leaves to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetHeader {
    /// A checksum to be filled in.
    pub checksum: Option<Checksum>,
    /// Segments to be cut.
    pub segments: Option<Segments>,
}

impl NetHeader {
    /// The header of a frame that has come.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let checksum = (u32::from(bytes[0]) & VIRTIO_NET_HDR_F_NEEDS_CSUM != 0).then(|| Checksum {
            start: number(6),
            offset: number(8),
        });
        let segments = match u32::from(bytes[1]) {
            VIRTIO_NET_HDR_GSO_TCPV4 => Some(Segments::TcpIpv4(number(4))),
            VIRTIO_NET_HDR_GSO_TCPV6 => Some(Segments::TcpIpv6(number(4))),
            _ => None,
        };
        Self { checksum, segments }
    }

    pub(crate) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let (kind, size) = match self.segments {
            None => (VIRTIO_NET_HDR_GSO_NONE, 0),
            Some(Segments::TcpIpv4(size)) => (VIRTIO_NET_HDR_GSO_TCPV4, size),
            Some(Segments::TcpIpv6(size)) => (VIRTIO_NET_HDR_GSO_TCPV6, size),
        };
        bytes[1] = kind as u8;
        bytes[4..6].copy_from_slice(&size.to_le_bytes());
        if let Some(Checksum { start, offset }) = self.checksum {
            bytes[0] = VIRTIO_NET_HDR_F_NEEDS_CSUM as u8;
            bytes[6..8].copy_from_slice(&start.to_le_bytes());
            bytes[8..10].copy_from_slice(&offset.to_le_bytes());
        }
        bytes
    }
}
