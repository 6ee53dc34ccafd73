//! The two check sums of a packet (IBA 7.8).

use crc::{Algorithm, CRC_32_ISO_HDLC, Crc};

/// The polynomial 0x04C11DB7, as Ethernet's.
static INVARIANT: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// The polynomial 0x100B, which no other standard has.
static VARIANT: Crc<u16> = Crc::<u16>::new(&Algorithm {
    width: 16,
    poly: 0x100b,
    init: u16::MAX,
    refin: true,
    refout: true,
    xorout: u16::MAX,
    check: 0x0a3d,
    residue: 0x556f,
});

/// The invariant CRC of a packet that starts with its local route header and ends before this
/// check sum.
///
/// Fields that may change on the way count as ones: the lane of the local route header, or the whole
/// of it where a global route header follows; traffic class, flow label and hop limit of that one;
/// the congestion bits of the base transport header (IBA 7.8.1). The check sum goes on the wire as [`u32::to_le_bytes`].
///
/// # Panics
/// When `packet` is shorter than its headers.
pub fn invariant(packet: &[u8]) -> u32 {
    const LRH: usize = 8;
    const GRH: usize = 40;
    let global = packet[1] & 3 == 3;
    let bth = if global { LRH + GRH } else { LRH };
    let mut headers = [0; LRH + GRH + 12];
    let headers = &mut headers[..bth + 12];
    headers.copy_from_slice(&packet[..bth + 12]);
    headers[0] |= 0xf0;
    if global {
        headers[..LRH].fill(0xff);
        headers[LRH] |= 0x0f;
        headers[LRH + 1..LRH + 4].fill(0xff);
        headers[LRH + 7] = 0xff;
    }
    headers[bth + 4] = 0xff;
    let mut digest = INVARIANT.digest();
    digest.update(headers);
    digest.update(&packet[bth + 12..]);
    digest.finalize()
}

/// The variant CRC of a packet that starts with its local route header and ends with its invariant
/// CRC (IBA 7.8.2). Goes on the wire as [`u16::to_le_bytes`].
pub fn variant(packet: &[u8]) -> u16 {
    VARIANT.checksum(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example packet of IBA 7.8.3: local, from the first byte of its local route header to the
    /// last of its payload.
    const LOCAL: [u8; 52] = [
        0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1,
        0xb3, 0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2,
        0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72,
        0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00, 0x00,
    ];

    #[test]
    fn the_specifications_example() {
        assert_eq!(invariant(&LOCAL).to_le_bytes(), [0x96, 0x25, 0xb7, 0x5a]);
    }

    /// Entries of the published table for x^16 + x^12 + x^3 + x + 1.
    #[test]
    fn variant_polynomial() {
        assert_eq!(VARIANT.checksum(b"123456789"), VARIANT.algorithm.check);
        for (byte, entry) in [(0x80, 0xd008), (0x81, 0xcba9), (0xff, 0x0960)] {
            let mut digest = VARIANT.digest_with_initial(0);
            digest.update(&[byte]);
            assert_eq!(!digest.finalize(), entry);
        }
    }

    #[test]
    fn what_may_change_does_not_count() {
        let mut other = LOCAL;
        other[0] = 0x00;
        other[12] = 0xc0;
        assert_eq!(invariant(&LOCAL), invariant(&other));
        assert_ne!(variant(&LOCAL), variant(&other));
        other[16] ^= 1;
        assert_ne!(invariant(&LOCAL), invariant(&other));

        let mut global = [[0; 8].as_slice(), &[0; 40], &LOCAL[8..]].concat();
        global[1] = 3;
        let before = invariant(&global);
        global[2..8].fill(7);
        global[9..12].fill(7);
        global[15] = 7;
        assert_eq!(invariant(&global), before);
        global[16] = 7;
        assert_ne!(invariant(&global), before);
    }
}
