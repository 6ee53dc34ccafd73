//! The two check sums of a packet (IBA 7.8).

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
    let crc = crc32(u32::MAX, headers);
    !crc32(crc, &packet[bth + 12..])
}

/// The variant CRC of a packet that starts with its local route header and ends with its invariant
/// CRC (IBA 7.8.2). Goes on the wire as [`u16::to_le_bytes`].
pub fn variant(packet: &[u8]) -> u16 {
    !packet.iter().fold(u16::MAX, |crc, &byte| {
        (crc >> 8) ^ CRC16[usize::from(crc as u8 ^ byte)]
    })
}

fn crc32(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, &byte| {
        (crc >> 8) ^ CRC32[usize::from(crc as u8 ^ byte)]
    })
}

/// The polynomial 0x04C11DB7 of Ethernet, least significant bit first.
static CRC32: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

/// The polynomial 0x100B, least significant bit first.
static CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 {
                (crc >> 1) ^ 0xd008
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

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

    #[test]
    fn ethernet_polynomial() {
        assert_eq!(!crc32(u32::MAX, b"123456789"), 0xcbf4_3926);
    }

    /// Entries of the published table for x^16 + x^12 + x^3 + x + 1.
    #[test]
    fn variant_polynomial() {
        assert_eq!(CRC16[0x80], 0xd008);
        assert_eq!(CRC16[0x81], 0xcba9);
        assert_eq!(CRC16[0xff], 0x0960);
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
