//! Check values of blocks.

use crc::{CRC_16_T10_DIF, CRC_32_ISCSI, CRC_32_ISO_HDLC, Crc, Digest, Table};

/// Tables that take sixteen bytes at a time.
type Fast = Table<16>;

static T10_DIF: Crc<u16, Fast> = Crc::<u16, Fast>::new(&CRC_16_T10_DIF);
static CRC32: Crc<u32, Fast> = Crc::<u32, Fast>::new(&CRC_32_ISO_HDLC);
static CRC32C: Crc<u32, Fast> = Crc::<u32, Fast>::new(&CRC_32_ISCSI);

/// Algorithm of the check value of a block's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// CRC of 16 bits, polynomial 0x8bb7 (T10 SBC-3, 4.22.4).
    T10Dif,
    /// Check sum of 16 bits, as that of the Internet protocol (RFC 1071).
    Checksum,
    /// CRC of 32 bits, as that of Ethernet (ANSI X3.230).
    Crc32,
    /// CRC of 32 bits, as that of iSCSI (RFC 3720, 12.1).
    Crc32c,
}

/// A check value that is being computed.
pub(super) enum Running {
    T10Dif(Digest<'static, u16, Fast>),
    Checksum {
        /// Sum of the 16-bit words so far.
        sum: u64,
        /// The first byte of a word that is not complete.
        odd: Option<u8>,
    },
    Crc(Digest<'static, u32, Fast>),
}

impl Algorithm {
    /// Begins with a seed of ones, or of zeros.
    pub(super) fn begin(self, ones: bool) -> Running {
        let (short, long) = if ones { (u16::MAX, u32::MAX) } else { (0, 0) };
        match self {
            Self::T10Dif => Running::T10Dif(T10_DIF.digest_with_initial(short)),
            Self::Checksum => Running::Checksum {
                sum: short.into(),
                odd: None,
            },
            Self::Crc32 => Running::Crc(CRC32.digest_with_initial(long)),
            Self::Crc32c => Running::Crc(CRC32C.digest_with_initial(long)),
        }
    }
}

impl Running {
    /// Takes the next bytes of the block.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::T10Dif(digest) => digest.update(bytes),
            Self::Crc(digest) => digest.update(bytes),
            Self::Checksum { sum, odd } => {
                let mut bytes = bytes;
                if let (Some(first), Some((&second, rest))) = (*odd, bytes.split_first()) {
                    *sum += u64::from(u16::from_be_bytes([first, second]));
                    *odd = None;
                    bytes = rest;
                }
                let (words, last) = bytes.as_chunks();
                let words = words
                    .iter()
                    .map(|word| u64::from(u16::from_be_bytes(*word)));
                *sum += words.sum::<u64>();
                if let [last] = last {
                    *odd = Some(*last);
                }
            }
        }
    }

    /// The check value: of 16 bits or of 32, by the algorithm.
    pub(super) fn finish(self) -> u32 {
        match self {
            Self::T10Dif(digest) => digest.finalize().into(),
            Self::Crc(digest) => digest.finalize(),
            Self::Checksum { mut sum, odd } => {
                sum += odd.map_or(0, |last| u64::from(last) << 8);
                while sum > u64::from(u16::MAX) {
                    sum = (sum & 0xffff) + (sum >> 16);
                }
                u32::from(!(sum as u16))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(algorithm: Algorithm, ones: bool, bytes: &[u8]) -> u32 {
        let mut running = algorithm.begin(ones);
        running.update(bytes);
        running.finish()
    }

    /// Values that others have published.
    #[test]
    fn published_values() {
        // T10 SBC-3, annex B.
        let (rising, falling): (Vec<u8>, Vec<u8>) = (0..32).map(|n| (n, 31 - n)).unzip();
        for (bytes, value) in [
            (&[0; 32][..], 0x0000),
            (&[0xff; 32], 0xa293),
            (&rising, 0x0224),
            (&[&[0xff, 0xff], &[0; 30][..]].concat(), 0x21b8),
            (&(0xe0..=0xff).rev().collect::<Vec<u8>>(), 0xa0b7),
        ] {
            assert_eq!(of(Algorithm::T10Dif, false, bytes), value, "{bytes:x?}");
        }
        // RFC 3720, B.4, as bytes on the wire.
        for (bytes, wire) in [
            (&[0; 32][..], [0xaa, 0x36, 0x91, 0x8a]),
            (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (&rising, [0x4e, 0x79, 0xdd, 0x46]),
            (&falling, [0x5c, 0xdb, 0x3f, 0x11]),
        ] {
            let value = of(Algorithm::Crc32c, true, bytes);
            assert_eq!(value.to_le_bytes(), wire, "{bytes:x?}");
        }
        // The check value of every list of CRCs, and what the example of RFC 1071 adds up to.
        assert_eq!(of(Algorithm::Crc32, true, b"123456789"), 0xcbf4_3926);
        assert_eq!(of(Algorithm::T10Dif, false, b"123456789"), 0xd0db);
        let example = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(of(Algorithm::Checksum, false, &example), 0xffff ^ 0xddf2);
    }

    #[test]
    fn where_a_block_is_cut_does_not_matter() {
        let bytes: Vec<u8> = (0..520_u32).map(|n| (n * 7 + n / 3) as u8).collect();
        for algorithm in [
            Algorithm::T10Dif,
            Algorithm::Checksum,
            Algorithm::Crc32,
            Algorithm::Crc32c,
        ] {
            let whole = of(algorithm, true, &bytes);
            for at in [0, 1, 2, 17, 259, 519] {
                let mut running = algorithm.begin(true);
                let (first, second) = bytes.split_at(at);
                running.update(first);
                running.update(&second[..1]);
                running.update(&second[1..]);
                assert_eq!(running.finish(), whole, "{algorithm:?} {at}");
            }
        }
    }
}
