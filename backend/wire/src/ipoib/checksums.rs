//! Checksums of the IP packets that datagrams are, which a queue pair of IP over InfiniBand leaves to its HCA.

use core::ops::Range;

use super::HEADER_LEN;
use crate::internet::{checksum, folded, partial, prepared};

const TYPE_V4: [u8; 2] = [0x08, 0x00];
const TYPE_V6: [u8; 2] = [0x86, 0xdd];
/// Bytes of a header of version 4 without options.
const SHORTEST_V4: usize = 20;
/// Bytes of a header of version 6.
const LENGTH_V6: usize = 40;
/// More fragments follow, or there are some in front.
const FRAGMENT: u16 = 0x3fff;
/// Where IPv4 has its checksum.
const CHECKSUM_V4: Range<usize> = 10..12;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Checksums of an IP packet that were found right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Checked {
    /// There is an IP header, and its checksum is right. Version 6 has none.
    pub network: bool,
    /// The packet is all of one of TCP or UDP, and that checksum is right, too. UDP over version 4 may have none.
    pub transport: bool,
}

/// Where the parts of a packet are.
struct Parts {
    is_v4: bool,
    /// Its protocol; 0 in a fragment, where it is unknown.
    protocol: u8,
    /// Bytes of the IP header.
    header: usize,
    /// Behind the packet. Bytes after it are no part of it.
    end: usize,
}

impl Parts {
    /// Parses a complete IP packet in a datagram of this type.
    fn of(kind: &[u8], packet: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?));
        let parts = if kind.starts_with(&TYPE_V4) && packet.len() >= SHORTEST_V4 {
            let whole = half(6)? & FRAGMENT == 0;
            Self {
                is_v4: packet[0] >> 4 == 4,
                protocol: if whole { packet[9] } else { 0 },
                header: usize::from(packet[0] & 0xf) * 4,
                end: usize::from(half(2)?),
            }
        } else if kind.starts_with(&TYPE_V6) && packet.len() >= LENGTH_V6 && packet[0] >> 4 == 6 {
            Self {
                is_v4: false,
                // Behind extension headers nobody looks.
                protocol: packet[6],
                header: LENGTH_V6,
                end: LENGTH_V6 + usize::from(half(4)?),
            }
        } else {
            return None;
        };
        let version = parts.is_v4 || kind.starts_with(&TYPE_V6);
        let fits = SHORTEST_V4 <= parts.header && parts.header <= parts.end;
        (version && fits && parts.end <= packet.len()).then_some(parts)
    }

    /// Where the checksum of TCP or UDP is, if their header is all there.
    fn place(&self) -> Option<Range<usize>> {
        let (header, place) = match self.protocol {
            TCP => (20, 16),
            UDP => (8, 6),
            _ => return None,
        };
        let at = self.header + place;
        (self.header + header <= self.end).then_some(at..at + 2)
    }

    /// The checksum over TCP or UDP and the pseudo header.
    fn checksum(&self, packet: &[u8]) -> u16 {
        let addresses = if self.is_v4 { 12..20 } else { 8..40 };
        let counted = &packet[self.header..self.end];
        let sum = partial(&packet[addresses]) + partial(&[0, self.protocol]) + partial(counted);
        folded(sum + partial(&(counted.len() as u32).to_be_bytes()))
    }
}

/// Finds the correct checksums of a datagram.
#[must_use]
pub fn check(datagram: &[u8]) -> Checked {
    let Some((kind, packet)) = datagram.split_at_checked(HEADER_LEN) else {
        return Checked::default();
    };
    let Some(parts) = Parts::of(kind, packet) else {
        return Checked::default();
    };
    if parts.is_v4 && checksum(&[&packet[..parts.header]]) != 0 {
        return Checked::default();
    }
    let transport = parts.place().is_some_and(|place| {
        let absent = parts.protocol == UDP && parts.is_v4 && packet[place] == [0; 2];
        absent || parts.checksum(packet) == 0
    });
    Checked {
        network: true,
        transport,
    }
}

/// The sum of all of a datagram but its own header, as RFC 1071 adds up: not inverted. A driver makes the checksum of
/// whatever it finds in the packet of it.
#[must_use]
pub fn sum(datagram: &[u8]) -> u16 {
    prepared(partial(datagram.get(HEADER_LEN..).unwrap_or_default()))
}

/// Writes the checksum of IPv4, that of TCP or UDP, or both into a datagram that has a place for it.
pub fn fill(datagram: &mut [u8], network: bool, transport: bool) {
    let Some((kind, packet)) = datagram.split_at_mut_checked(HEADER_LEN) else {
        return;
    };
    let Some(parts) = Parts::of(kind, packet) else {
        return;
    };
    if network && parts.is_v4 {
        packet[CHECKSUM_V4].fill(0);
        let sum = checksum(&[&packet[..parts.header]]);
        packet[CHECKSUM_V4].copy_from_slice(&sum.to_be_bytes());
    }
    if let Some(place) = parts.place().filter(|_| transport) {
        packet[place.clone()].fill(0);
        let sum = match parts.checksum(packet) {
            // It would say that there is none (RFC 768); both stand for the same.
            0 if parts.protocol == UDP => 0xffff,
            sum => sum,
        };
        packet[place].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram with the IPv4 header of textbooks, which has the checksum 0xb861, and with the UDP packet that the
    /// header announces.
    fn published() -> Vec<u8> {
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        let mut datagram = vec![0x08, 0x00, 0, 0];
        datagram.extend(header);
        datagram.extend([0x00, 0x35, 0xe9, 0x7c, 0x00, 0x5f, 0x00, 0x00]);
        datagram.resize(4 + 0x73, 0x5a);
        datagram
    }

    const RIGHT: Checked = Checked {
        network: true,
        transport: true,
    };
    const NETWORK_ALONE: Checked = Checked {
        network: true,
        transport: false,
    };

    #[test]
    fn the_published_header_is_right_and_is_what_is_written() {
        let mut datagram = published();
        // Without a checksum of UDP.
        assert_eq!(check(&datagram), RIGHT);
        datagram[4 + 10] = 0;
        assert_eq!(check(&datagram), Checked::default());
        fill(&mut datagram, false, true);
        assert_eq!(check(&datagram), Checked::default());
        fill(&mut datagram, true, false);
        assert_eq!(datagram[4 + 10..4 + 12], [0xb8, 0x61]);
        assert_eq!(check(&datagram), RIGHT);
    }

    #[test]
    fn a_byte_that_is_another_is_noticed() {
        for (protocol, place) in [(UDP, 6), (TCP, 16)] {
            let mut datagram = published();
            datagram[4 + 9] = protocol;
            fill(&mut datagram, true, true);
            assert_eq!(check(&datagram), RIGHT);
            assert_ne!(datagram[4 + 20 + place..4 + 22 + place], [0; 2]);
            for at in 4 + 20..datagram.len() {
                datagram[at] ^= 0x10;
                assert_eq!(check(&datagram), NETWORK_ALONE, "byte {at}");
                datagram[at] ^= 0x10;
            }
            // What follows the packet is not looked at.
            datagram.extend([1, 2, 3]);
            assert_eq!(check(&datagram), RIGHT);
        }
    }

    #[test]
    fn version_six_has_no_checksum_of_its_own_and_needs_that_of_udp() {
        let mut datagram = vec![0x86, 0xdd, 0, 0, 0x60, 0, 0, 0, 0, 9, UDP, 64];
        datagram.extend([0x20; 32]);
        datagram.extend([1, 2, 3, 4, 0, 9, 0, 0, 0xff]);
        assert_eq!(check(&datagram), NETWORK_ALONE);
        fill(&mut datagram, true, true);
        assert_eq!(check(&datagram), RIGHT);
    }

    #[test]
    fn what_is_no_such_packet_is_left_and_not_right() {
        let whole = published();
        let changed = |at: usize, to: u8| {
            let mut datagram = published();
            datagram[at] = to;
            datagram
        };
        let mut cases: Vec<Vec<u8>> = (0..whole.len()).map(|len| whole[..len].to_vec()).collect();
        // ARP, another version, headers that are too short or too long, more than there is.
        cases.extend(
            [
                (1, 6),
                (4, 0x65),
                (4, 0x44),
                (4, 0x4f),
                (6, 0xff),
                (0, 0x86),
            ]
            .map(|(at, to)| changed(at, to)),
        );
        for mut datagram in cases {
            assert_eq!(check(&datagram), Checked::default());
            let before = datagram.clone();
            if datagram.get(4) != Some(&0x4f) {
                fill(&mut datagram, true, true);
                assert_eq!(datagram, before);
            }
        }
        // A fragment's header is as right as any.
        let mut fragment = changed(4 + 6, 0x20);
        fill(&mut fragment, true, true);
        assert_eq!(check(&fragment), NETWORK_ALONE);
        assert_eq!(fragment[4 + 26..4 + 28], [0; 2]);
    }
}
