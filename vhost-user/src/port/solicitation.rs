//! Datagrams that ask who has an IP address: ARP, and the solicitation of neighbour discovery.

use std::net::{IpAddr, Ipv6Addr};

use wire::ipoib::{ADDRESS_LEN, HARDWARE_TYPE};

use crate::translate::{Own, ipv6_checksum};

/// Asks all who has `address`, as one who has no address yet (RFC 5227, 2.1.1; RFC 4862, 5.4.2): nobody learns
/// anything of the guest from it.
pub fn of(address: IpAddr, own: &Own) -> Vec<u8> {
    let mut datagram = Vec::new();
    match address {
        IpAddr::V4(address) => {
            datagram.extend_from_slice(&[0x08, 0x06, 0, 0]);
            datagram.extend_from_slice(&HARDWARE_TYPE.to_be_bytes());
            datagram.extend_from_slice(&[0x08, 0, ADDRESS_LEN as u8, 4, 0, 1]);
            datagram.extend_from_slice(&own.address.to_bytes());
            datagram.extend_from_slice(&[0; 4 + ADDRESS_LEN]);
            datagram.extend_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            let [.., a, b, c] = address.octets();
            let low = u16::from_be_bytes([b, c]);
            let to = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), low);
            let mut header = [0; 40];
            header[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 24, 58, 255]);
            header[24..].copy_from_slice(&to.octets());
            let mut message = [0; 24];
            message[0] = 135;
            message[8..].copy_from_slice(&address.octets());
            let sum = ipv6_checksum(&header, 58, &message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            datagram.extend_from_slice(&[0x86, 0xdd, 0, 0]);
            datagram.extend_from_slice(&header);
            datagram.extend_from_slice(&message);
        }
    }
    datagram
}
