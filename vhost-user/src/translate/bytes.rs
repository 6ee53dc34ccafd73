//! Numbers in packets, and the checksum of the Internet protocols.

/// The bytes at this place.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The number at this place.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// The sum of some bytes as numbers of this machine's byte order, which the sum does not depend on until
/// it is [`folded`] (RFC 1071, 2). It is no more than 2³³ times the number of words.
pub(super) fn partial(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let words = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)));
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    words.sum::<u64>() + u64::from(u32::from_ne_bytes(last))
}

/// The checksum of what has this [`partial`] sum.
pub(super) const fn folded(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be()
}

/// The checksum over some parts (RFC 1071); all but the last have an even length. It is 0 over what has
/// its checksum in it.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    folded(parts.iter().map(|part| partial(part)).sum())
}

/// The checksum of what an IPv6 packet carries (RFC 8200, 8.1). `header` is that of the packet.
pub(crate) fn ipv6_checksum(header: &[u8; 40], protocol: u8, payload: &[u8]) -> u16 {
    let length = (payload.len() as u32).to_be_bytes();
    checksum(&[&header[8..], &length, &[0, 0, 0, protocol], payload])
}
