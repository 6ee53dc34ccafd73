//! Numbers in packets, and checksums.

pub(crate) use wire::internet::checksum;

/// The bytes at this place.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The number at this place.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// The checksum of what an IPv6 packet carries (RFC 8200, 8.1). `header` is that of the packet.
pub(crate) fn ipv6_checksum(header: &[u8; 40], protocol: u8, payload: &[u8]) -> u16 {
    let length = (payload.len() as u32).to_be_bytes();
    checksum(&[&header[8..], &length, &[0, 0, 0, protocol], payload])
}
