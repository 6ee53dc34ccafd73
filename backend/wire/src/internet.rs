//! The checksum of the Internet protocols (RFC 1071).

/// The sum of some bytes as numbers of this machine's byte order, which the sum does not depend on until
/// it is [`folded`] (RFC 1071, 2). It is no more than 2³³ times the number of words.
#[must_use]
pub fn partial(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let words = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)));
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    words.sum::<u64>() + u64::from(u32::from_ne_bytes(last))
}

/// Folds this [`partial`] sum to 16 bits with their carries.
const fn carried(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The checksum of what has this [`partial`] sum.
#[must_use]
pub const fn folded(sum: u64) -> u16 {
    (!carried(sum)).to_be()
}

/// Content of a checksum field that somebody else fills in: the sum of the parts that count and are not in the
/// packet.
#[must_use]
pub const fn prepared(sum: u64) -> u16 {
    carried(sum).to_be()
}

/// The checksum over some parts; all but the last have an even length. It is 0 over what has its checksum
/// in it.
#[must_use]
pub fn checksum(parts: &[&[u8]]) -> u16 {
    folded(parts.iter().map(|part| partial(part)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071, 3.
    #[test]
    fn the_published_sum() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(prepared(partial(&bytes)), 0xddf2);
        assert_eq!(checksum(&[&bytes]), !0xddf2);
        assert_eq!(checksum(&[&bytes[..4], &bytes[4..]]), !0xddf2);
        // An odd byte is the high half of the last word.
        assert_eq!(prepared(partial(&[0, 1, 0x12])), 0x1201);
    }
}
