//! Queries of a port for its guest: the groups that it listens to. A guest reports them when it begins to
//! listen, and when it is asked, so a port that is new to its guest has to ask.

use crate::translate::{Mac, Packet, UNKNOWN, checksum, ipv6_checksum};

/// Time for listeners to answer: in tenths of seconds, and in milliseconds.
const TENTHS: u8 = 10;
const MILLISECONDS: [u8; 2] = 1000_u16.to_be_bytes();
/// Number of queries that may get lost, and the seconds between them; no query is repeated here.
const ROBUSTNESS: u8 = 2;
const INTERVAL: u8 = 125;

/// A general query of IGMP (RFC 3376, 4.1) and one of multicast listener discovery (RFC 3810, 5.1), as frames.
pub fn general() -> [Packet; 2] {
    let frames = [
        (Mac([0x01, 0, 0x5e, 0, 0, 1]), [0x08, 0], igmp()),
        (Mac([0x33, 0x33, 0, 0, 0, 1]), [0x86, 0xdd], mld()),
    ];
    frames.map(|(to, kind, packet)| {
        let mut frame = Packet::default();
        frame.ethernet[..6].copy_from_slice(&to.0);
        frame.ethernet[6..12].copy_from_slice(&UNKNOWN.0);
        frame.ethernet[12..].copy_from_slice(&kind);
        frame.refill(packet.len()).copy_from_slice(&packet);
        frame
    })
}

/// From nobody, to all hosts.
fn igmp() -> Vec<u8> {
    let mut message = [0x11, TENTHS, 0, 0, 0, 0, 0, 0, ROBUSTNESS, INTERVAL, 0, 0];
    let sum = checksum(&[&message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    // With a router alert.
    let mut header = [
        0x46, 0xc0, 0, 36, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 224, 0, 0, 1, 0x94, 4, 0, 0,
    ];
    let sum = checksum(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&header[..], &message].concat()
}

/// From the link-local address that belongs to the frame's source, to all nodes.
fn mld() -> Vec<u8> {
    const HOP_BY_HOP: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
    let mut message = [0; 28];
    message[0] = 130;
    message[4..6].copy_from_slice(&MILLISECONDS);
    message[24..26].copy_from_slice(&[ROBUSTNESS, INTERVAL]);
    let mut header = [0; 40];
    let length = (HOP_BY_HOP.len() + message.len()) as u8;
    header[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, length, 0, 1]);
    header[8..10].copy_from_slice(&[0xfe, 0x80]);
    header[16..24].copy_from_slice(&u64::from(UNKNOWN.eui64()).to_be_bytes());
    header[24..26].copy_from_slice(&[0xff, 0x02]);
    header[39] = 1;
    let sum = ipv6_checksum(&header, 58, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    [&header[..], &HOP_BY_HOP, &message].concat()
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    use super::*;

    #[test]
    fn queries_have_right_lengths_and_checksums() {
        let [igmp, mld] = general();
        let igmp = igmp.to_frame();
        let Some(NetSlice::Ipv4(ip)) = SlicedPacket::from_ethernet(&igmp).unwrap().net else {
            panic!("{igmp:x?}");
        };
        let header = ip.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        assert_eq!(header.destination, [224, 0, 0, 1]);
        assert_eq!(checksum(&[ip.payload().payload]), 0);
        let mld = mld.to_frame();
        let sliced = SlicedPacket::from_ethernet(&mld).unwrap();
        let (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Icmpv6(query))) =
            (sliced.net, sliced.transport)
        else {
            panic!("{mld:x?}");
        };
        let [from, to] = [ip.header().source(), ip.header().destination()];
        assert!(query.is_checksum_valid(from, to));
        assert_eq!(query.type_u8(), 130);
        assert_eq!(query.slice().len(), 28);
    }
}
