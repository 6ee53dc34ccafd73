//! Numbers in packets, and the checksum of the Internet protocols.

/// The bytes at this place.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The number at this place.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// The checksum over some parts (RFC 1071); all but the last have an even length. It is 0 over what has
/// its checksum in it.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u64;
    for part in parts {
        let (words, rest) = part.as_chunks::<4>();
        let words = words
            .iter()
            .map(|word| u64::from(u32::from_be_bytes(*word)));
        sum += words.sum::<u64>();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_be_bytes(last));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The checksum of what an IPv6 packet carries (RFC 8200, 8.1). `header` is that of the packet.
pub(crate) fn ipv6_checksum(header: &[u8; 40], protocol: u8, payload: &[u8]) -> u16 {
    let length = (payload.len() as u32).to_be_bytes();
    checksum(&[&header[8..], &length, &[0, 0, 0, protocol], payload])
}
