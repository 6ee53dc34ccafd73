//! IP over InfiniBand (RFC 4391): link-layer addresses, the header of a datagram, and the groups that
//! multicast addresses of IP belong to.

mod checksums;
mod train;

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use crate::{Gid, PKey, Qpn};

pub use checksums::{Checked, check, fill, sum};
pub use train::{NotATrain, Sums, Train};

/// Bytes of a link-layer address.
pub const ADDRESS_LEN: usize = 20;
/// Bytes of the header of each datagram: the EtherType, then two that are 0 (RFC 4391, 6).
pub const HEADER_LEN: usize = 4;
/// The hardware type of ARP and DHCP (RFC 4391, 9.1.1).
pub const HARDWARE_TYPE: u16 = 32;

/// A link-layer address: a queue pair, and the GID of its port (RFC 4391, 9.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The queue pair that takes datagrams.
    pub qpn: Qpn,
    /// The port.
    pub gid: Gid,
}

impl Address {
    /// The address of all that are in the broadcast group. A network card for Ethernet says `ff:ff:ff:ff:ff:ff`.
    pub const fn broadcast(group: Gid) -> Self {
        Self {
            qpn: Qpn::MULTICAST,
            gid: group,
        }
    }

    /// The address of these bytes. The first one has flags (RFC 4755: a connected mode is spoken), which
    /// are not looked at.
    pub fn from_bytes(bytes: [u8; ADDRESS_LEN]) -> Self {
        let [_, a, b, c, ref gid @ ..] = bytes;
        let mut whole = [0; 16];
        whole.copy_from_slice(gid);
        Self {
            qpn: Qpn::new(u32::from_be_bytes([0, a, b, c])),
            gid: Gid::from_bytes(whole),
        }
    }

    /// The bytes in wire order, without flags.
    pub fn to_bytes(self) -> [u8; ADDRESS_LEN] {
        let mut bytes = [0; ADDRESS_LEN];
        bytes[..4].copy_from_slice(&u32::from(self.qpn).to_be_bytes());
        bytes[4..].copy_from_slice(&self.gid.to_bytes());
        bytes
    }
}

impl fmt::Display for Address {
    /// As `ip link` prints it, twenty bytes with colons between.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.to_bytes().iter().enumerate() {
            let colon = if at == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

/// Scope of groups that are in one subnet alone (IBA 4.1.1, RFC 4391, 4).
const LINK_LOCAL: u128 = 0x2;
/// The signature of IPv4 in a group's GID.
const IPV4: u128 = 0x401b;
/// The signature of IPv6 in a group's GID.
const IPV6: u128 = 0x601b;

fn group(signature: u128, pkey: PKey, low: u128) -> Gid {
    // The P_Key is that of full members (RFC 4391, 4).
    let pkey = u128::from(pkey.value() | 0x8000);
    Gid::from_bits(0xff1 << 116 | LINK_LOCAL << 112 | signature << 96 | pkey << 80 | low)
}

/// The broadcast group of a partition (RFC 4391, 4).
pub fn broadcast_group(pkey: PKey) -> Gid {
    group(IPV4, pkey, 0xffff_ffff)
}

/// The group of an IPv4 multicast address: its 28 bits (RFC 4391, 4).
pub fn ipv4_group(pkey: PKey, address: Ipv4Addr) -> Gid {
    group(IPV4, pkey, u128::from(address.to_bits() & 0x0fff_ffff))
}

/// The group of an IPv6 multicast address: its 80 lower bits (RFC 4391, 4).
pub fn ipv6_group(pkey: PKey, address: Ipv6Addr) -> Gid {
    group(IPV6, pkey, address.to_bits() & ((1 << 80) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `ip link` and `ip maddr` of Linux show it for a port fe80::2:c903:0:101 with P_Key 0xffff.
    #[test]
    fn what_linux_prints() {
        let address = Address {
            qpn: Qpn::new(0x12_3456),
            gid: "fe80::2:c903:0:101".parse().unwrap(),
        };
        let text = "00:12:34:56:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:01:01";
        assert_eq!(address.to_string(), text);
        let mut bytes = address.to_bytes();
        assert_eq!(Address::from_bytes(bytes), address);
        // Connected mode.
        bytes[0] = 0x80;
        assert_eq!(Address::from_bytes(bytes), address);
        let broadcast = Address::broadcast(broadcast_group(PKey::DEFAULT_FULL));
        assert_eq!(
            broadcast.to_string(),
            "00:ff:ff:ff:ff:12:40:1b:ff:ff:00:00:00:00:00:00:ff:ff:ff:ff"
        );
    }

    /// Linux maps addresses by ip_ib_mc_map and ipv6_ib_mc_map.
    #[test]
    fn groups_of_addresses() {
        let pkey = PKey::new(0x8003);
        let v4 = |text: &str| ipv4_group(pkey, text.parse().unwrap()).to_string();
        assert_eq!(v4("224.0.0.1"), "ff12:401b:8003::1");
        assert_eq!(v4("239.255.1.2"), "ff12:401b:8003::fff:102");
        let v6 = |text: &str| ipv6_group(pkey, text.parse().unwrap()).to_string();
        assert_eq!(v6("ff02::1"), "ff12:601b:8003::1");
        assert_eq!(v6("ff02::1:ff12:3456"), "ff12:601b:8003::1:ff12:3456");
        // Members of either kind are in one group.
        let limited = broadcast_group(PKey::new(0x0003));
        assert_eq!(limited.to_string(), "ff12:401b:8003::ffff:ffff");
        assert_eq!(limited, broadcast_group(pkey));
    }
}
