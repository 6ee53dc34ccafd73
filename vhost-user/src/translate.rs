//! Ethernet frames of a guest and datagrams of IP over InfiniBand (RFC 4391) into each other: addresses in
//! ARP, in neighbour discovery (RFC 4861, 4.6.1) and in DHCP (RFC 4390) become those of the other link, and what
//! depends on their length changes with them.

mod arp;
mod bytes;
mod dhcp;
mod learned;
mod neighbour_discovery;
mod offload;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;
use wire::ipoib::{self, Address, NotATrain, Train};
use wire::{Gid, Guid, PKey, Qpn, ethernet_address};

pub(crate) use bytes::{checksum, ipv6_checksum};
pub use dhcp::Transactions;
pub use learned::Learned;
pub use offload::complete;

/// Bytes of an Ethernet header.
pub const ETHERNET_HEADER: usize = 14;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

const ICMPV6: u8 = 58;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it is of a group.
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The GUID of a port whose guest has this address: its EUI-64, as IPv6 makes it (RFC 4291, A).
    #[must_use]
    pub const fn eui64(self) -> Guid {
        let [a, b, c, d, e, f] = self.0;
        Guid::new(u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]))
    }

    /// The address that makes this GUID, if one does.
    #[must_use]
    pub const fn of_eui64(guid: Guid) -> Option<Self> {
        let [a, b, c, mark, mark2, d, e, f] = guid.value().to_be_bytes();
        let individual = a & 1 == 0;
        if individual && mark == 0xff && mark2 == 0xfe {
            Some(Self([a ^ 2, b, c, d, e, f]))
        } else {
            None
        }
    }

    /// The address under which a guest knows somebody of the fabric. A port like this one is known by
    /// the address of its guest, everybody else by one that is made of queue pair and GID. LIDs do not
    /// matter, since they change where a VM moves; so it is the same in every daemon.
    #[must_use]
    pub fn of(address: Address) -> Self {
        let guid = address.gid.guid();
        match Self::of_eui64(guid) {
            Some(mac) if address.qpn == queue_pair_of(guid) => mac,
            _ => {
                let low = mixed(u64::from(u32::from(address.qpn)) ^ mixed(guid.value()));
                let [_, _, _, a, b, c, d, e] = low.to_be_bytes();
                // Locally administered.
                Self([2, a, b, c, d, e])
            }
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = NotAMac;

    fn from_str(text: &str) -> Result<Self, NotAMac> {
        ethernet_address(text).map(Self).ok_or(NotAMac)
    }
}

/// A text is not an Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not an Ethernet address, as in 52:54:00:12:34:56")]
pub struct NotAMac;

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mac({self})")
    }
}

/// The queue pair number of a port with this GUID: always the same, so that those who know it find the
/// guest again after it has moved.
#[must_use]
pub const fn queue_pair_of(guid: Guid) -> Qpn {
    Qpn::new(0x40_0000 | (guid.value() & 0x3f_ffff) as u32)
}

/// Spreads bits over all others (the finalizer of splitmix64).
const fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Why a frame or datagram goes no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Dropped {
    /// It is shorter than its headers say.
    #[error("shorter than its headers say")]
    Short,
    /// It is longer than the MTU.
    #[error("longer than the MTU")]
    Long,
    /// It is to be cut in a way that it cannot be.
    #[error("to be cut in a way that it cannot be")]
    Segments,
    /// It is of a protocol that does not pass: IPv4, IPv6 and ARP do.
    #[error("of a protocol other than IPv4, IPv6 and ARP")]
    Protocol,
    /// It comes from, or tells of, an address that is not the guest's.
    #[error("from an address that is not the guest's")]
    Spoofed,
    /// It says that another's address is the guest's.
    #[error("from an IP address that is not the guest's")]
    Claimed,
    /// Others are asked first for an address that it says is the guest's.
    #[error("from an IP address that others are asked for first")]
    Unproven,
    /// It is neighbour discovery behind other headers.
    #[error("neighbour discovery behind extension headers")]
    Hidden,
    /// Its checksum is wrong.
    #[error("its checksum is wrong")]
    Checksum,
    /// Nobody is known under the address.
    #[error("for an address of nobody")]
    Unknown,
    /// The port is not, or not yet, in a subnet.
    #[error("the port is not in a subnet")]
    NoCarrier,
    /// The guest has no room for it.
    #[error("the guest has no receive buffer for it")]
    NoBuffer,
    /// As much waits as may.
    #[error("too much waits already")]
    Full,
}

impl From<NotATrain> for Dropped {
    fn from(why: NotATrain) -> Self {
        match why {
            NotATrain::Short => Self::Short,
            NotATrain::Segments => Self::Segments,
        }
    }
}

/// Destination of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// A group.
    Group(Gid),
    /// One queue pair.
    One(Address),
}

/// Addresses of this port and its guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own {
    /// The guest's Ethernet address.
    pub mac: Mac,
    /// The port's address.
    pub address: Address,
    /// The partition.
    pub pkey: PKey,
}

/// Neighbours that are known under an Ethernet address.
pub trait Neighbours {
    /// Finds the address of a neighbour.
    fn find(&mut self, mac: Mac) -> Option<Address>;
    /// Somebody has told of itself.
    fn learn(&mut self, address: Address);
}

/// An Ethernet frame, or a datagram of IP over InfiniBand. Behind their headers the two are the same, so that
/// one is made of the other where it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Packet {
    /// The header of the frame.
    pub ethernet: [u8; ETHERNET_HEADER],
    /// The datagram: its header, and what both carry.
    datagram: Vec<u8>,
    /// It stands for several.
    pub train: Option<Train>,
}

impl Packet {
    /// A frame that begins with these bytes; `None` where it has no header.
    #[must_use]
    pub fn from_frame(frame: &[u8]) -> Option<Self> {
        let (&ethernet, rest) = frame.split_first_chunk()?;
        let mut packet = Self {
            ethernet,
            ..Self::default()
        };
        packet.refill(rest.len()).copy_from_slice(rest);
        Some(packet)
    }

    /// A datagram, in place of what was there before, which is returned.
    pub const fn put(&mut self, datagram: Vec<u8>) -> Vec<u8> {
        self.train = None;
        std::mem::replace(&mut self.datagram, datagram)
    }

    /// So many bytes that the frame carries, all to be written anew: what they are now is left from before.
    pub fn refill(&mut self, len: usize) -> &mut [u8] {
        self.train = None;
        self.datagram.resize(ipoib::HEADER_LEN + len, 0);
        self.packet_mut()
    }

    /// The sender of the frame.
    #[must_use]
    pub const fn source(&self) -> Mac {
        let [_, _, _, _, _, _, a, b, c, d, e, f, ..] = self.ethernet;
        Mac([a, b, c, d, e, f])
    }

    /// The datagram.
    #[must_use]
    pub fn datagram(&self) -> &[u8] {
        &self.datagram
    }

    /// The same, to change some of it.
    pub fn datagram_mut(&mut self) -> &mut [u8] {
        &mut self.datagram
    }

    /// Returns the packet in the frame.
    #[must_use]
    pub fn packet(&self) -> &[u8] {
        self.datagram.get(ipoib::HEADER_LEN..).unwrap_or_default()
    }

    /// The same, to change some of it.
    pub fn packet_mut(&mut self) -> &mut [u8] {
        self.datagram
            .get_mut(ipoib::HEADER_LEN..)
            .unwrap_or_default()
    }

    /// The frame.
    #[must_use]
    pub fn to_frame(&self) -> Vec<u8> {
        [&self.ethernet[..], self.packet()].concat()
    }

    /// Leaves so many bytes of what it carries.
    fn truncate(&mut self, len: usize) {
        self.datagram.truncate(ipoib::HEADER_LEN + len);
    }
}

/// Makes a datagram of a guest's frame, and returns its receiver.
///
/// # Errors
/// [`Dropped`].
pub fn outbound(
    packet: &mut Packet,
    own: &Own,
    neighbours: &mut impl Neighbours,
    transactions: &mut Transactions,
) -> Result<To, Dropped> {
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = packet.ethernet;
    let to = Mac([d0, d1, d2, d3, d4, d5]);
    if Mac([s0, s1, s2, s3, s4, s5]) != own.mac {
        return Err(Dropped::Spoofed);
    }
    let mut group = ipoib::broadcast_group(own.pkey);
    match u16::from_be_bytes([t0, t1]) {
        IPV4 => {
            let (length, address) = ipv4(packet.packet())?;
            if address.is_multicast() {
                group = ipoib::ipv4_group(own.pkey, address);
            }
            packet.truncate(length);
            dhcp::outbound(packet, own, transactions)?;
        }
        IPV6 => {
            let (length, address) = ipv6(packet.packet())?;
            if address.is_multicast() {
                group = ipoib::ipv6_group(own.pkey, address);
            }
            packet.truncate(length);
            if let Some(rewritten) = neighbour_discovery::outbound(packet.packet(), own)? {
                packet.datagram = rewritten;
            }
        }
        ARP => packet.datagram = arp::outbound(packet.packet(), own, neighbours)?,
        _ => return Err(Dropped::Protocol),
    }
    if let Some(header) = packet.datagram.first_chunk_mut() {
        *header = [t0, t1, 0, 0];
    }
    if to.is_group() {
        return Ok(To::Group(group));
    }
    neighbours.find(to).map(To::One).ok_or(Dropped::Unknown)
}

/// Makes a frame for the guest of a datagram. `group` is the one that it was for, `from` who has sent it,
/// where that is known.
///
/// # Errors
/// [`Dropped`].
pub fn inbound(
    packet: &mut Packet,
    group: Option<Gid>,
    from: Option<Address>,
    own: &Own,
    neighbours: &mut impl Neighbours,
    transactions: &Transactions,
) -> Result<(), Dropped> {
    let &[t0, t1, _, _] = packet.datagram.first_chunk().ok_or(Dropped::Short)?;
    let mut sender = from;
    let to = match u16::from_be_bytes([t0, t1]) {
        IPV4 => {
            let (length, address) = ipv4(packet.packet())?;
            packet.truncate(length);
            let asks = dhcp::inbound(packet, from, own, transactions)?;
            if let Some(from) = from.filter(|_| asks) {
                // It may be answered before it has an address to tell of.
                neighbours.learn(from);
            }
            let [_, b, c, d] = address.octets();
            if address.is_multicast() {
                Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d])
            } else {
                Mac::BROADCAST
            }
        }
        IPV6 => {
            let (length, address) = ipv6(packet.packet())?;
            packet.truncate(length);
            let inbound = neighbour_discovery::inbound(packet.packet(), own, neighbours)?;
            if let Some((rewritten, told)) = inbound {
                packet.datagram = rewritten;
                sender = told.or(from);
            }
            let [.., a, b, c, d] = address.octets();
            Mac([0x33, 0x33, a, b, c, d])
        }
        ARP => {
            let (rewritten, teller) = arp::inbound(packet.packet(), own, neighbours)?;
            packet.datagram = rewritten;
            sender = Some(teller);
            Mac::BROADCAST
        }
        _ => return Err(Dropped::Protocol),
    };
    let Mac([d0, d1, d2, d3, d4, d5]) = if group.is_some() { to } else { own.mac };
    let Mac([s0, s1, s2, s3, s4, s5]) = sender.map_or(UNKNOWN, Mac::of);
    packet.ethernet = [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1];
    Ok(())
}

/// The source of frames from somebody who has not told of itself.
pub(crate) const UNKNOWN: Mac = Mac([2, 0, 0, 0, 0, 0]);

/// Length of a packet, without what pads the frame, and whom it is for.
fn ipv4(packet: &[u8]) -> Result<(usize, Ipv4Addr), Dropped> {
    let version = packet.first().ok_or(Dropped::Short)?;
    let length = usize::from(bytes::u16_at(packet, 2).ok_or(Dropped::Short)?);
    if version >> 4 != 4 {
        return Err(Dropped::Protocol);
    }
    if length < 20 {
        return Err(Dropped::Short);
    }
    let packet = packet.get(..length).ok_or(Dropped::Short)?;
    let to = bytes::array::<4>(packet, 16).ok_or(Dropped::Short)?;
    Ok((length, to.into()))
}

/// Length of a packet, without what pads the frame, and whom it is for.
fn ipv6(packet: &[u8]) -> Result<(usize, Ipv6Addr), Dropped> {
    let version = packet.first().ok_or(Dropped::Short)?;
    let length = 40 + usize::from(bytes::u16_at(packet, 4).ok_or(Dropped::Short)?);
    if version >> 4 != 6 {
        return Err(Dropped::Protocol);
    }
    let packet = packet.get(..length).ok_or(Dropped::Short)?;
    let to = bytes::array::<16>(packet, 24).ok_or(Dropped::Short)?;
    Ok((length, to.into()))
}

/// A datagram, as yet without its header, with room for so many bytes.
fn datagram(room: usize) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(ipoib::HEADER_LEN + room);
    datagram.extend_from_slice(&[0; ipoib::HEADER_LEN]);
    datagram
}
