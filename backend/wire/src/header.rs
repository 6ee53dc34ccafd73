//! Packet headers: link, network and transport layer.
//!
//! Each header is an owned structure with `parse` and `emit` and a borrowed view that reads single
//! fields in place. Offsets are those of the specification's figures.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::layout::layout;
use crate::{Gid, Lid, PKey, Psn, QKey, Qpn, Sl, Vl};

/// Header after a local route header (its field LNH, IBA 7.7.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NextHeader {
    /// A raw packet without an InfiniBand transport, ethertype first.
    Raw = 0,
    /// A raw packet that starts with an IPv6 header.
    Ipv6 = 1,
    /// A base transport header: the packet stays within its subnet.
    Bth = 2,
    /// A global route header, then the base transport header.
    Grh = 3,
}

impl NextHeader {
    /// The field's value.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

layout! {
    /// Local route header: the link layer's addressing (IBA 7.7).
    LocalRoute, 8 bytes, view LocalRoutePacket {
        /// Virtual lane.
        vl: Vl = 0..4,
        /// Link version, 0.
        version: u8 = 4..8,
        /// Service level.
        sl: Sl = 8..12,
        /// [`NextHeader`].
        next_header: u8 = 14..16,
        /// Destination.
        dlid: Lid = 16..32,
        /// Bits 17 and 16 of the destination in the extended LID space
        /// ([`ExtendedLid`](crate::ExtendedLid)); reserved, and zero, without it.
        dlid_extension: u8 = 33..35,
        /// The same of the source.
        slid_extension: u8 = 35..37,
        /// Length from the first byte of this header to the last before the variant CRC, in units
        /// of 4 bytes.
        length: u16 = 37..48,
        /// Source.
        slid: Lid = 48..64,
    }
}

layout! {
    /// Global route header: the network layer's addressing, an IPv6 header (IBA 8.3).
    GlobalRoute, 40 bytes, view GlobalRoutePacket {
        /// IP version, 6.
        ip_version: u8 = 0..4,
        /// Traffic class.
        traffic_class: u8 = 4..12,
        /// Flow label, 20 bits.
        flow_label: u32 = 12..32,
        /// Length from the first byte after this header to the last of the invariant CRC, in bytes.
        payload_length: u16 = 32..48,
        /// Next header: [`GlobalRoute::IBA_TRANSPORT`].
        next_header: u8 = 48..56,
        /// Hop limit.
        hop_limit: u8 = 56..64,
        /// Source.
        sgid: Gid = 64..192,
        /// Destination.
        dgid: Gid = 192..320,
    }
}

impl GlobalRoute {
    /// The value of `next_header` for an InfiniBand transport (IBA 8.3).
    pub const IBA_TRANSPORT: u8 = 0x1b;
}

/// Transport service of a packet: the upper three bits of the opcode (IBA 9.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Reliable datagram.
    Rd = 2,
    /// Unreliable datagram.
    Ud = 3,
    /// Extended reliable connection.
    Xrc = 5,
    /// Dynamic connection. The specification leaves these opcodes to manufacturers; their form in hardware is not
    /// public.
    Dc = 6,
}

/// A packet's operation: service and what the packet is of a message (IBA table 38).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opcode(pub u8);

#[allow(
    missing_docs,
    reason = "the names are those of the specification's table"
)]
impl Opcode {
    pub const SEND_FIRST: u8 = 0x00;
    pub const SEND_MIDDLE: u8 = 0x01;
    pub const SEND_LAST: u8 = 0x02;
    pub const SEND_LAST_IMMEDIATE: u8 = 0x03;
    pub const SEND_ONLY: u8 = 0x04;
    pub const SEND_ONLY_IMMEDIATE: u8 = 0x05;
    pub const WRITE_FIRST: u8 = 0x06;
    pub const WRITE_MIDDLE: u8 = 0x07;
    pub const WRITE_LAST: u8 = 0x08;
    pub const WRITE_LAST_IMMEDIATE: u8 = 0x09;
    pub const WRITE_ONLY: u8 = 0x0a;
    pub const WRITE_ONLY_IMMEDIATE: u8 = 0x0b;
    pub const READ_REQUEST: u8 = 0x0c;
    pub const READ_RESPONSE_FIRST: u8 = 0x0d;
    pub const READ_RESPONSE_MIDDLE: u8 = 0x0e;
    pub const READ_RESPONSE_LAST: u8 = 0x0f;
    pub const READ_RESPONSE_ONLY: u8 = 0x10;
    pub const ACKNOWLEDGE: u8 = 0x11;
    pub const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
    pub const COMPARE_SWAP: u8 = 0x13;
    pub const FETCH_ADD: u8 = 0x14;
    pub const SEND_LAST_INVALIDATE: u8 = 0x16;
    pub const SEND_ONLY_INVALIDATE: u8 = 0x17;
    /// A congestion notification, of any service (IBA A10.3.2).
    pub const NOTIFICATION: Self = Self(0x80);
    /// An unreliable datagram.
    pub const UD_SEND_ONLY: Self = Self::of(Service::Ud, Self::SEND_ONLY);
    /// An unreliable datagram with immediate data.
    pub const UD_SEND_ONLY_IMMEDIATE: Self = Self::of(Service::Ud, Self::SEND_ONLY_IMMEDIATE);
}

impl Opcode {
    /// The opcode of an operation in a service.
    pub const fn of(service: Service, operation: u8) -> Self {
        Self((service as u8) << 5 | (operation & 0x1f))
    }

    /// The service; `None` for reserved and manufacturer's opcodes.
    pub const fn service(self) -> Option<Service> {
        match self.0 >> 5 {
            0 => Some(Service::Rc),
            1 => Some(Service::Uc),
            2 => Some(Service::Rd),
            3 => Some(Service::Ud),
            5 => Some(Service::Xrc),
            6 => Some(Service::Dc),
            _ => None,
        }
    }

    /// The operation without the service: one of the constants of this type.
    pub const fn operation(self) -> u8 {
        self.0 & 0x1f
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:02x}", self.0)
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({self})")
    }
}

impl crate::layout::Field for Opcode {
    fn from_bits(bits: u128) -> Option<Self> {
        Some(Self(bits as u8))
    }
    fn to_bits(self) -> u128 {
        u128::from(self.0)
    }
}

layout! {
    /// Base transport header (IBA 9.2).
    BaseTransport, 12 bytes, view BaseTransportPacket {
        /// Operation.
        opcode: Opcode = 0..8,
        /// The receiver should raise a completion event.
        solicited: bool = 8..9,
        /// Path migration state.
        migrated: bool = 9..10,
        /// Bytes that pad the payload to a multiple of 4.
        pad_count: u8 = 10..12,
        /// Transport header version, 0.
        version: u8 = 12..16,
        /// Partition.
        pkey: PKey = 16..32,
        /// Forward explicit congestion notification.
        fecn: bool = 32..33,
        /// Backward explicit congestion notification.
        becn: bool = 33..34,
        /// Destination queue pair.
        destination: Qpn = 40..64,
        /// An acknowledge is asked for.
        acknowledge: bool = 64..65,
        /// Packet sequence number.
        psn: Psn = 72..96,
    }
}

layout! {
    /// Datagram extended transport header (IBA 9.3.2).
    DatagramExtended, 8 bytes, view DatagramExtendedPacket {
        /// Queue key.
        qkey: QKey = 0..32,
        /// Source queue pair.
        source: Qpn = 40..64,
    }
}

layout! {
    /// RDMA extended transport header (IBA 9.3.3).
    RdmaExtended, 16 bytes, view RdmaExtendedPacket {
        /// Virtual address at the responder.
        address: u64 = 0..64,
        /// Key of the memory there.
        rkey: u32 = 64..96,
        /// Length of the whole transfer in bytes.
        length: u32 = 96..128,
    }
}

layout! {
    /// Atomic extended transport header (IBA 9.3.4).
    AtomicExtended, 28 bytes, view AtomicExtendedPacket {
        /// Virtual address at the responder.
        address: u64 = 0..64,
        /// Key of the memory there.
        rkey: u32 = 64..96,
        /// Value to swap in, or to add.
        swap_or_add: u64 = 96..160,
        /// Value to compare with.
        compare: u64 = 160..224,
    }
}

layout! {
    /// Acknowledge extended transport header (IBA 9.3.5).
    AcknowledgeExtended, 4 bytes, view AcknowledgeExtendedPacket {
        /// Acknowledge, RNR or negative acknowledge, with credits, timer or code (IBA table 43).
        syndrome: u8 = 0..8,
        /// Message sequence number, 24 bits.
        msn: u32 = 8..32,
    }
}

layout! {
    /// Atomic acknowledge extended transport header (IBA 9.3.5.3).
    AtomicAcknowledge, 8 bytes, view AtomicAcknowledgePacket {
        /// Original value of the memory.
        original: u64 = 0..64,
    }
}

layout! {
    /// Immediate data (IBA 9.3.6).
    Immediate, 4 bytes, view ImmediatePacket {
        /// The data, in the byte order of the wire when taken as four bytes.
        data: u32 = 0..32,
    }
}

layout! {
    /// Invalidate extended transport header (IBA 9.3.7).
    InvalidateExtended, 4 bytes, view InvalidateExtendedPacket {
        /// The key to invalidate.
        rkey: u32 = 0..32,
    }
}

layout! {
    /// Extended reliable connection header (IBA A14).
    XrcExtended, 4 bytes, view XrcExtendedPacket {
        /// The shared receive queue meant.
        srq: Qpn = 8..32,
    }
}

layout! {
    /// Header of requests of dynamic connections, in this program's own layout.
    DynamicExtended, 20 bytes, view DynamicExtendedPacket {
        /// Access key of the target.
        key: u64 = 0..64,
        /// Number of the initiator's connection.
        session: u32 = 64..96,
        /// The initiator's queue pair.
        source: Qpn = 104..128,
        /// Number of the connection's first packet.
        start: Psn = 136..160,
    }
}
