//! The parts of a packet of IP over InfiniBand (RFC 4391) that flow tables match, and its hash (RSS).

use hca::work::PacketHash;

use crate::bits::completion::hash_type;
use crate::bits::network::{HashFunction, selected};

const V4: u16 = 0x0800;
const V6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Bytes in front of the IP packet.
const HEADER_LEN: usize = 4;
/// Bytes of the key of a hash.
pub(crate) const KEY_LEN: usize = 40;
/// Bytes that a hash is of at most: two addresses of version 6 and two ports.
const MAX_INPUT: usize = 2 * 16 + 2 * 2;

/// The headers of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Headers<'a> {
    /// EtherType.
    pub ethertype: u16,
    /// Protocol of IP, or the next header; 0 where there is none.
    pub protocol: u8,
    /// Source and destination address, of four bytes or of sixteen; none where it is no packet of IP.
    addresses: [&'a [u8]; 2],
    /// Source and destination port, of TCP or UDP, but not of fragments.
    ports: Option<[[u8; 2]; 2]>,
}

impl<'a> Headers<'a> {
    /// Reads any bytes.
    pub fn of(packet: &'a [u8]) -> Self {
        let kind = packet
            .first_chunk()
            .map_or(0, |kind| u16::from_be_bytes(*kind));
        let none = Self {
            ethertype: kind,
            protocol: 0,
            addresses: [&[], &[]],
            ports: None,
        };
        let ip = packet.get(HEADER_LEN..).unwrap_or_default();
        let found = match kind {
            V4 => Self::of_v4(ip),
            V6 => Self::of_v6(ip),
            _ => None,
        };
        found.map_or(none, |(protocol, addresses, ports)| Self {
            ethertype: kind,
            protocol,
            addresses,
            ports: ports.filter(|_| matches!(protocol, TCP | UDP)),
        })
    }

    fn of_v4(ip: &'a [u8]) -> Option<Parts<'a>> {
        /// More fragments follow, or there are some in front.
        const FRAGMENT: u16 = 0x3fff;
        let header = ip.first_chunk::<20>()?;
        let len = usize::from(header[0] & 0xf) * 4;
        let whole = u16::from_be_bytes([header[6], header[7]]) & FRAGMENT == 0;
        let transport = ip.get(len.max(20)..).filter(|_| whole);
        Some((header[9], [&ip[12..16], &ip[16..20]], ports(transport)))
    }

    /// Behind extension headers nobody looks.
    fn of_v6(ip: &'a [u8]) -> Option<Parts<'a>> {
        let (header, transport) = ip.split_first_chunk::<40>()?;
        Some((header[6], [&ip[8..24], &ip[24..40]], ports(Some(transport))))
    }
}

/// Protocol, addresses and ports.
type Parts<'a> = (u8, [&'a [u8]; 2], Option<[[u8; 2]; 2]>);

fn ports(transport: Option<&[u8]>) -> Option<[[u8; 2]; 2]> {
    let [a, b, c, d] = *transport?.first_chunk()?;
    Some([[a, b], [c, d]])
}

/// Computation of the hash of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hasher {
    /// The function.
    pub function: HashFunction,
    /// Both directions of a connection have the same hash: of two addresses, and of two ports, the smaller comes
    /// first.
    pub symmetric: bool,
    /// Key of the function.
    pub key: [u8; KEY_LEN],
    /// The fields that count; see [`selected`].
    pub fields: u32,
}

impl Hasher {
    /// The hash of a packet. Fields that it has not do not count.
    pub fn hash(&self, headers: &Headers<'_>) -> PacketHash {
        if self.function == HashFunction::None {
            return PacketHash::default();
        }
        let mut input = Input::default();
        let [source, destination] = self.in_order(headers.addresses);
        self.add(&mut input, selected::SOURCE, source);
        self.add(&mut input, selected::DESTINATION, destination);
        let mut kind = match input.len {
            0 => 0,
            _ if headers.ethertype == V4 => hash_type::V4,
            _ => hash_type::V6,
        };
        let before = input.len;
        if let Some(ports) = &headers.ports {
            let [source, destination] = self.in_order([&ports[0], &ports[1]]);
            self.add(&mut input, selected::SOURCE_PORT, source);
            self.add(&mut input, selected::DESTINATION_PORT, destination);
        }
        if input.len > before {
            kind |= if headers.protocol == TCP {
                hash_type::TCP
            } else {
                hash_type::UDP
            };
        }
        let input = &input.bytes[..input.len];
        let value = match self.function {
            HashFunction::None => 0,
            HashFunction::InvertedXor8 => u32::from(!input.iter().fold(0, |sum, byte| sum ^ byte)),
            HashFunction::Toeplitz => toeplitz(&self.key, input),
        };
        PacketHash { value, kind }
    }

    fn add(&self, input: &mut Input, field: u32, bytes: &[u8]) {
        if self.fields & field != 0 {
            input.push(bytes);
        }
    }

    fn in_order<'a>(&self, [first, second]: [&'a [u8]; 2]) -> [&'a [u8]; 2] {
        if self.symmetric && first > second {
            [second, first]
        } else {
            [first, second]
        }
    }
}

/// Input of a hash.
struct Input {
    bytes: [u8; MAX_INPUT],
    len: usize,
}

impl Default for Input {
    fn default() -> Self {
        Self {
            bytes: [0; MAX_INPUT],
            len: 0,
        }
    }
}

impl Input {
    fn push(&mut self, bytes: &[u8]) {
        let place = self.bytes.get_mut(self.len..self.len + bytes.len());
        if let Some(place) = place {
            place.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}

/// The Toeplitz hash, as network cards have it: for each bit that is set, the 32 bits of the key from there on.
fn toeplitz(key: &[u8; KEY_LEN], input: &[u8]) -> u32 {
    let mut hash = 0;
    for (at, byte) in input.iter().enumerate() {
        let window = key.get(at..at + 5).unwrap_or_default();
        let window = window
            .iter()
            .fold(0_u64, |window, byte| window << 8 | u64::from(*byte));
        for bit in 0..8 {
            let part = (window >> (8 - bit)) as u32;
            hash ^= if byte >> (7 - bit) & 1 != 0 { part } else { 0 };
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the packets by which Microsoft's description of RSS is verified.
    const KEY: [u8; KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    const ALL: u32 = 0xf;

    fn hasher(fields: u32) -> Hasher {
        Hasher {
            function: HashFunction::Toeplitz,
            symmetric: false,
            key: KEY,
            fields,
        }
    }

    fn v4(source: [u8; 4], destination: [u8; 4], ports: [u16; 2], protocol: u8) -> Vec<u8> {
        let mut packet = vec![
            0x08, 0, 0, 0, 0x45, 0, 0, 24, 0, 0, 0, 0, 64, protocol, 0, 0,
        ];
        packet.extend(source.into_iter().chain(destination));
        packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        packet
    }

    fn v6(source: &str, destination: &str, ports: [u16; 2]) -> Vec<u8> {
        let mut packet = vec![0x86, 0xdd, 0, 0, 0x60, 0, 0, 0, 0, 4, TCP, 64];
        for address in [source, destination] {
            packet.extend(address.parse::<std::net::Ipv6Addr>().unwrap().octets());
        }
        packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        packet
    }

    #[test]
    fn the_published_hashes() {
        for (source, destination, ports, addresses, all) in [
            (
                [66, 9, 149, 187],
                [161, 142, 100, 80],
                [2794, 1766],
                0x323e_8fc2,
                0x51cc_c178,
            ),
            (
                [199, 92, 111, 2],
                [65, 69, 140, 83],
                [14230, 4739],
                0xd718_262a,
                0xc626_b0ea,
            ),
            (
                [24, 19, 198, 95],
                [12, 22, 207, 184],
                [12898, 38024],
                0xd2d0_a5de,
                0x5c2b_394a,
            ),
        ] {
            let packet = v4(source, destination, ports, TCP);
            let headers = Headers::of(&packet);
            assert_eq!((headers.ethertype, headers.protocol), (V4, TCP));
            let hash = hasher(0b11).hash(&headers);
            assert_eq!((hash.value, hash.kind), (addresses, hash_type::V4));
            let hash = hasher(ALL).hash(&headers);
            assert_eq!(
                (hash.value, hash.kind),
                (all, hash_type::V4 | hash_type::TCP)
            );
        }
        let packet = v6("3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1", [2794, 1766]);
        let hash = hasher(ALL).hash(&Headers::of(&packet));
        assert_eq!(
            (hash.value, hash.kind),
            (0x4020_7d3d, hash_type::V6 | hash_type::TCP)
        );
        assert_eq!(hasher(0b11).hash(&Headers::of(&packet)).value, 0x2cc1_8cd5);
    }

    #[test]
    fn both_directions_have_one_hash_where_it_is_symmetric() {
        let there = v4([66, 9, 149, 187], [161, 142, 100, 80], [2794, 1766], UDP);
        let back = v4([161, 142, 100, 80], [66, 9, 149, 187], [1766, 2794], UDP);
        let mut hasher = hasher(ALL);
        assert_ne!(
            hasher.hash(&Headers::of(&there)),
            hasher.hash(&Headers::of(&back))
        );
        hasher.symmetric = true;
        assert_eq!(
            hasher.hash(&Headers::of(&there)),
            hasher.hash(&Headers::of(&back))
        );
        assert_eq!(
            hasher.hash(&Headers::of(&back)).kind,
            hash_type::V4 | hash_type::UDP
        );
    }

    #[test]
    fn any_bytes_have_headers() {
        let packet = v4([1, 2, 3, 4], [5, 6, 7, 8], [1, 2], TCP);
        for len in 0..packet.len() {
            let headers = Headers::of(&packet[..len]);
            assert_eq!(headers.ports, None);
            assert_eq!(headers.protocol, if len < 24 { 0 } else { TCP });
            let _ = hasher(ALL).hash(&headers);
        }
        // A fragment has no ports, and its protocol; a header that says that it is short is as long as the shortest.
        let mut fragment = packet.clone();
        fragment[10] = 0x20;
        assert_eq!(Headers::of(&fragment).ports, None);
        let mut short = packet;
        short[4] = 0x41;
        assert_eq!(Headers::of(&short).ports, Some([[0, 1], [0, 2]]));
        let whole = v6("::1", "::2", [3, 4]);
        for len in 0..whole.len() {
            let _ = hasher(ALL).hash(&Headers::of(&whole[..len]));
        }
        let arp = Headers::of(&[0x08, 0x06, 0, 0, 0, 32]);
        assert_eq!((arp.ethertype, arp.protocol), (0x0806, 0));
        assert_eq!(hasher(ALL).hash(&arp), PacketHash::default());
    }
}
