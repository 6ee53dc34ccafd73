//! Finds the IP addresses that a datagram gives as the sender's own, and its destination.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::ipoib::{ADDRESS_LEN, HEADER_LEN};

use super::{ARP, ICMPV6, IPV4, IPV6, bytes};

/// Where ARP over InfiniBand has the sender's address.
const ARP_SENDER: usize = 8 + ADDRESS_LEN;
/// The same of whom it asks for, or answers.
const ARP_TARGET: usize = ARP_SENDER + 4 + ADDRESS_LEN;
/// Types of neighbour discovery that tell of an address: a solicitation and an advertisement.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Where an IPv6 packet has its source, and neighbour discovery the address that it is about.
const SOURCE: usize = 8;
const TARGET: usize = 40 + 8;

/// Addresses in a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Learned {
    /// Addresses that the sender says are its own: the source, and what ARP or an advertisement tells of.
    pub own: [Option<IpAddr>; 2],
    /// An address that it is about to have, if nobody says that it is his (RFC 4862, 5.4).
    pub tentative: Option<IpAddr>,
}

impl Learned {
    /// Reads a datagram that has been translated, or is to be.
    #[must_use]
    pub fn by(datagram: &[u8]) -> Self {
        let Some((&[t0, t1, ..], packet)) = datagram.split_first_chunk::<HEADER_LEN>() else {
            return Self::default();
        };
        let mut told = Self::default();
        match u16::from_be_bytes([t0, t1]) {
            IPV4 => told.own[0] = ipv4(packet, 12),
            ARP => told.own[0] = ipv4(packet, ARP_SENDER),
            IPV6 => {
                told.own[0] = ipv6(packet, SOURCE);
                match (packet.get(6), packet.get(40)) {
                    (Some(&ICMPV6), Some(&ADVERTISEMENT)) => told.own[1] = ipv6(packet, TARGET),
                    (Some(&ICMPV6), Some(&SOLICITATION)) if told.own[0].is_none() => {
                        told.tentative = ipv6(packet, TARGET);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        told
    }

    /// The address of whom a datagram is for.
    #[must_use]
    pub fn receiver(datagram: &[u8]) -> Option<IpAddr> {
        let (&[t0, t1, ..], packet) = datagram.split_first_chunk::<HEADER_LEN>()?;
        match u16::from_be_bytes([t0, t1]) {
            IPV4 => ipv4(packet, 16),
            ARP => ipv4(packet, ARP_TARGET),
            IPV6 => ipv6(packet, 24),
            _ => None,
        }
    }

    /// The address that it says is the sender's by ARP or neighbour discovery.
    #[must_use]
    pub fn announced(datagram: &[u8]) -> Option<IpAddr> {
        let told = Self::by(datagram);
        match datagram.first_chunk() {
            Some(&kind) if u16::from_be_bytes(kind) == ARP => told.own[0],
            _ => told.own[1],
        }
    }
}

/// The address at this place; none where it is that of nobody.
fn ipv4(packet: &[u8], at: usize) -> Option<IpAddr> {
    let address = Ipv4Addr::from(bytes::array::<4>(packet, at)?);
    (!address.is_unspecified()).then_some(address.into())
}

/// The same.
fn ipv6(packet: &[u8], at: usize) -> Option<IpAddr> {
    let address = Ipv6Addr::from(bytes::array::<16>(packet, at)?);
    (!address.is_unspecified()).then_some(address.into())
}
