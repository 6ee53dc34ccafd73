//! Groups that a guest listens to: reports of IGMP (RFC 1112, 2236, 3376) and of multicast listener discovery
//! (RFC 2710, 3810).

use std::net::{Ipv4Addr, Ipv6Addr};

use wire::ipoib::{self, HEADER_LEN};
use wire::{Gid, PKey};

/// The most groups of one report.
const MAX_GROUPS: usize = 64;

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
    while told.len() < MAX_GROUPS
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

#[cfg(test)]
mod tests {
    use super::*;

    const PKEY: PKey = PKey::DEFAULT_FULL;

    fn ipv4(message: &[u8]) -> Vec<u8> {
        // With a router alert.
        let mut datagram = vec![0x08, 0, 0, 0, 0x46, 0xc0, 0, 24 + message.len() as u8];
        datagram.extend([
            0, 0, 0x40, 0, 1, IGMP, 0, 0, 10, 0, 0, 1, 224, 0, 0, 22, 0x94, 4, 0, 0,
        ]);
        datagram.extend(message);
        datagram
    }

    fn ipv6(message: &[u8]) -> Vec<u8> {
        let mut datagram = vec![
            0x86,
            0xdd,
            0,
            0,
            0x60,
            0,
            0,
            0,
            0,
            8 + message.len() as u8,
            0,
            1,
        ];
        datagram.extend([0; 32]);
        // Hop-by-hop options: a router alert, and padding.
        datagram.extend([ICMPV6, 0, 5, 2, 0, 0, 1, 0]);
        datagram.extend(message);
        datagram
    }

    fn group4(last: u8) -> Gid {
        ipoib::ipv4_group(PKEY, Ipv4Addr::new(239, 1, 2, last))
    }

    fn group6(last: u16) -> Gid {
        ipoib::ipv6_group(PKEY, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, last))
    }

    /// A record of IGMPv3 with so many sources and words of auxiliary data.
    fn record4(kind: u8, last: u8, sources: u16, auxiliary: u8) -> Vec<u8> {
        let mut record = vec![kind, auxiliary];
        record.extend(sources.to_be_bytes());
        record.extend([239, 1, 2, last]);
        record.resize(
            8 + 4 * usize::from(sources) + 4 * usize::from(auxiliary),
            0xee,
        );
        record
    }

    #[test]
    fn igmp() {
        let two = |kind| ipv4(&[kind, 0, 0, 0, 239, 1, 2, 3]);
        assert_eq!(told(PKEY, &two(0x12)), [(group4(3), true)]);
        assert_eq!(told(PKEY, &two(0x16)), [(group4(3), true)]);
        assert_eq!(told(PKEY, &two(0x17)), [(group4(3), false)]);
        assert_eq!(told(PKEY, &two(0x11)), []);
        // A group that is none.
        assert_eq!(told(PKEY, &ipv4(&[0x16, 0, 0, 0, 10, 1, 2, 3])), []);
        let mut three = vec![0x22, 0, 0, 0, 0, 0, 0, 7];
        // Is include, is exclude, to include, to exclude, allow, block.
        for (kind, sources) in [(1, 0), (2, 0), (3, 2), (3, 0), (4, 0), (5, 1), (6, 1)] {
            three.extend(record4(kind, three.len() as u8, sources, kind % 2));
        }
        let at = [8, 20, 28, 48, 60, 68, 84];
        let joins = [false, true, true, false, true, true];
        let expected: Vec<_> = at
            .iter()
            .zip(joins)
            .map(|(&at, it)| (group4(at), it))
            .collect();
        assert_eq!(told(PKEY, &ipv4(&three)), expected);
    }

    #[test]
    fn mld() {
        let mut one = vec![131, 0, 0, 0, 0, 0, 0, 0];
        one.extend(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 9).octets());
        assert_eq!(told(PKEY, &ipv6(&one)), [(group6(9), true)]);
        one[0] = 132;
        assert_eq!(told(PKEY, &ipv6(&one)), [(group6(9), false)]);
        let mut two = vec![143, 0, 0, 0, 0, 0, 0, 2];
        for (kind, last) in [(4, 0x21), (3, 0x22)] {
            two.extend([kind, 0, 0, 0]);
            two.extend(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, last).octets());
        }
        let expected = [(group6(0x21), true), (group6(0x22), false)];
        assert_eq!(told(PKEY, &ipv6(&two)), expected);
    }

    /// Cut off anywhere, a report tells of what is whole in it.
    #[test]
    fn reports_of_every_length() {
        let mut igmp = vec![0x22, 0, 0, 0, 0, 0, 0, 9];
        (0..9).for_each(|last| igmp.extend(record4(4, last, 1, 1)));
        let mut mld = vec![143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0];
        mld.extend(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 9).octets());
        for (whole, most) in [(ipv4(&igmp), 9), (ipv6(&mld), 1)] {
            let mut before = 0;
            for len in 0..=whole.len() {
                let found = told(PKEY, &whole[..len]).len();
                assert!(found >= before, "{len}");
                before = found;
            }
            assert_eq!(before, most);
        }
        // Lengths that lie: sources, auxiliary data, the header of IP, the hop-by-hop options.
        let mut lies = ipv4(&record4(4, 1, 0, 0));
        for at in 4..lies.len() {
            for value in [0, 1, 0x0f, 0x4f, 0x7f, 0xff] {
                let right = std::mem::replace(&mut lies[at], value);
                assert!(told(PKEY, &lies).len() <= MAX_GROUPS);
                lies[at] = right;
            }
        }
    }

    #[test]
    fn a_report_of_very_many_groups_counts_in_part() {
        let mut igmp = vec![0x22, 0, 0, 0, 0, 0, 0, 0xff];
        (0..=u8::MAX).for_each(|last| igmp.extend(record4(4, last, 0, 0)));
        assert_eq!(told(PKEY, &ipv4(&igmp)).len(), MAX_GROUPS);
    }
}
