//! Capture records that packet analysers read: ERF records of InfiniBand packets in a pcap file.
//!
//! The layout is that of the ERF format (type 21, InfiniBand) behind pcap's link type 197. All
//! lengths of an ERF header are big endian, its time stamp is little endian; the pcap headers here
//! are little endian.

use core::time::Duration;

/// The pcap link type of ERF records.
pub const LINK_TYPE: u32 = 197;
/// The ERF record type of InfiniBand packets.
pub const TYPE_INFINIBAND: u8 = 21;
/// Bytes of a pcap file's header.
pub const FILE_HEADER: usize = 24;
/// Bytes before the packet: pcap's record header and ERF's.
pub const RECORD_HEADER: usize = 16 + ERF_HEADER;
const ERF_HEADER: usize = 16;
/// The longest packet a record holds.
pub const MAX_PACKET: usize = u16::MAX as usize - ERF_HEADER;

/// Beginning of a capture file.
pub fn file_header() -> [u8; FILE_HEADER] {
    let mut bytes = [0; FILE_HEADER];
    // The magic number of pcap with nanoseconds, in the file's byte order.
    bytes[0..4].copy_from_slice(&0xa1b2_3c4d_u32.to_le_bytes());
    bytes[4..6].copy_from_slice(&2u16.to_le_bytes());
    bytes[6..8].copy_from_slice(&4u16.to_le_bytes());
    bytes[16..20].copy_from_slice(&u32::from(u16::MAX).to_le_bytes());
    bytes[20..24].copy_from_slice(&LINK_TYPE.to_le_bytes());
    bytes
}

/// Header of a record before a packet of `length` bytes, local route header to variant CRC, that was seen `time`
/// after 1970. `interface`, 0 to 3, tells places of capture apart.
///
/// `None` when the packet is longer than [`MAX_PACKET`].
pub fn record_header(time: Duration, interface: u8, length: usize) -> Option<[u8; RECORD_HEADER]> {
    beginning_header(time, interface, length, length)
}

/// The same for the first `captured` bytes of a packet of `length` bytes.
///
/// `None` when the packet is longer than [`MAX_PACKET`], or shorter than what was captured of it.
pub fn beginning_header(
    time: Duration,
    interface: u8,
    captured: usize,
    length: usize,
) -> Option<[u8; RECORD_HEADER]> {
    if length > MAX_PACKET || captured > length {
        return None;
    }
    let record = (ERF_HEADER + captured) as u16;
    let whole = (ERF_HEADER + length) as u32;
    let seconds = time.as_secs() as u32;
    // The fraction of a second in units of 2^-32 s.
    let fraction = ((u64::from(time.subsec_nanos()) << 32) / 1_000_000_000) as u32;

    let mut bytes = [0; RECORD_HEADER];
    bytes[0..4].copy_from_slice(&seconds.to_le_bytes());
    bytes[4..8].copy_from_slice(&time.subsec_nanos().to_le_bytes());
    bytes[8..12].copy_from_slice(&u32::from(record).to_le_bytes());
    bytes[12..16].copy_from_slice(&whole.to_le_bytes());
    bytes[16..20].copy_from_slice(&fraction.to_le_bytes());
    bytes[20..24].copy_from_slice(&seconds.to_le_bytes());
    bytes[24] = TYPE_INFINIBAND;
    // Flags: the interface, and that records have varying length.
    bytes[25] = 0x04 | (interface & 3);
    bytes[26..28].copy_from_slice(&record.to_be_bytes());
    bytes[30..32].copy_from_slice(&(length as u16).to_be_bytes());
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_long() {
        assert!(record_header(Duration::ZERO, 0, MAX_PACKET).is_some());
        assert!(record_header(Duration::ZERO, 0, MAX_PACKET + 1).is_none());
    }

    #[test]
    fn the_beginning_of_a_packet() {
        let header = beginning_header(Duration::ZERO, 0, 80, 290).unwrap();
        assert_eq!(header[8..16], [96, 0, 0, 0, 0x32, 1, 0, 0]);
        assert_eq!(header[26..28], [0, 96]);
        assert_eq!(header[30..32], [1, 0x22]);
        assert!(beginning_header(Duration::ZERO, 0, 291, 290).is_none());
    }

    #[test]
    fn half_a_second() {
        let header = record_header(Duration::from_millis(1500), 1, 4).unwrap();
        assert_eq!(header[16..24], [0, 0, 0, 0x80, 1, 0, 0, 0]);
    }
}
