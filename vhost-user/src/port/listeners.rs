//! What a guest says that it listens to: reports of IGMP (RFC 1112, 2236, 3376) and of multicast listener
//! discovery (RFC 2710, 3810).

use std::net::{Ipv4Addr, Ipv6Addr};

use wire::ipoib::{self, HEADER_LEN};
use wire::{Gid, PKey};

/// The most groups of one report.
const MOST: usize = 64;

const IGMP: u8 = 2;
const HOP_BY_HOP: u8 = 0;
const ICMPV6: u8 = 58;

/// Records of a report that say that nobody listens to a group any more (RFC 3376, 4.2.12): those that
/// have the sources of no address included.
const IS_INCLUDE: u8 = 1;
const TO_INCLUDE: u8 = 3;
/// A record that says from whom the guest does not want to hear any more: nothing that matters here.
const BLOCK: u8 = 6;

/// The groups that a datagram tells of, and whether the guest listens from now on.
pub fn told(pkey: PKey, datagram: &[u8]) -> Vec<(Gid, bool)> {
    let found = match (datagram.get(..2), datagram.get(HEADER_LEN..)) {
        (Some([0x08, 0x00]), Some(packet)) => of_ipv4(packet).map(|told| {
            let group = |(address, joins)| (ipoib::ipv4_group(pkey, address), joins);
            told.into_iter().map(group).collect()
        }),
        (Some([0x86, 0xdd]), Some(packet)) => of_ipv6(packet).map(|told| {
            let group = |(address, joins)| (ipoib::ipv6_group(pkey, address), joins);
            told.into_iter().map(group).collect()
        }),
        _ => None,
    };
    found.unwrap_or_default()
}

fn of_ipv4(packet: &[u8]) -> Option<Vec<(Ipv4Addr, bool)>> {
    if *packet.get(9)? != IGMP {
        return None;
    }
    let header = usize::from(packet.first()? & 0xf) * 4;
    let message = packet.get(header..)?;
    let address = |at: usize| Some(Ipv4Addr::from(*message.get(at..)?.first_chunk::<4>()?));
    let told = match message.first()? {
        0x12 | 0x16 => vec![(address(4)?, true)],
        0x17 => vec![(address(4)?, false)],
        0x22 => records(message, 4, |bytes| {
            Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?))
        }),
        _ => return None,
    };
    let is_group = |(address, _): &(Ipv4Addr, bool)| address.is_multicast();
    Some(told.into_iter().filter(is_group).collect())
}

fn of_ipv6(packet: &[u8]) -> Option<Vec<(Ipv6Addr, bool)>> {
    let mut next = *packet.get(6)?;
    let mut rest = packet.get(40..)?;
    // The router alert is in front (RFC 2710, 3).
    if next == HOP_BY_HOP {
        next = *rest.first()?;
        let length = 8 + usize::from(*rest.get(1)?) * 8;
        rest = rest.get(length..)?;
    }
    if next != ICMPV6 {
        return None;
    }
    let message = rest;
    let address = |at: usize| Some(Ipv6Addr::from(*message.get(at..)?.first_chunk::<16>()?));
    let told = match message.first()? {
        131 => vec![(address(8)?, true)],
        132 => vec![(address(8)?, false)],
        143 => records(message, 16, |bytes| {
            Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?))
        }),
        _ => return None,
    };
    let is_group = |(address, _): &(Ipv6Addr, bool)| address.is_multicast();
    Some(told.into_iter().filter(is_group).collect())
}

/// The records of a report (RFC 3376, 4.2; RFC 3810, 5.2), of addresses of `width` bytes.
fn records<A>(
    message: &[u8],
    width: usize,
    address: impl Fn(&[u8]) -> Option<A>,
) -> Vec<(A, bool)> {
    let mut told = Vec::new();
    let mut rest = message.get(8..).unwrap_or_default();
    while told.len() < MOST
        && let Some([kind, auxiliary, sources, sources2]) = rest.first_chunk().copied()
        && let Some(group) = rest.get(4..).and_then(&address)
    {
        let sources = usize::from(u16::from_be_bytes([sources, sources2]));
        let nobody = matches!(kind, IS_INCLUDE | TO_INCLUDE) && sources == 0;
        if kind != BLOCK {
            told.push((group, !nobody));
        }
        let length = 4 + width + sources * width + usize::from(auxiliary) * 4;
        rest = rest.get(length..).unwrap_or_default();
    }
    told
}
