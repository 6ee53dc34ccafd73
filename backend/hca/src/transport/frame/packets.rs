//! The packets of a frame, with the headers and check sums that they have on a wire (IBA 7.7, 7.8, 8.3,
//! 9), and back.

use thiserror::Error;
use wire::header::{
    AcknowledgeExtended, AtomicAcknowledge, AtomicExtended, BaseTransport, DatagramExtended,
    DynamicExtended, GlobalRoute as GlobalRouteHeader, Immediate, InvalidateExtended, LocalRoute,
    NextHeader, Opcode, RdmaExtended, Service, XrcExtended,
};
use wire::{Mtu, Qpn, Vl, crc};

use crate::objects::work::{AtomicOperands, GlobalRoute, Operation};
use crate::transport::frame::{Address, Content, Frame, Session, Syndrome, Tail, Target};

/// Room for all headers and check sums of a packet.
const OVERHEAD: usize = 128;
/// Invariant CRC.
const ICRC: usize = 4;
/// Variant CRC.
const VCRC: usize = 2;
/// Bytes of a congestion notification, which say nothing.
const NOTIFICATION: usize = 16;

/// Bytes that are no packet of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NotAFrame {
    /// Too short, or not as long as it says.
    #[error("the packet is not as long as its headers say")]
    Length,
    /// A header that is none of this transport's.
    #[error("the packet has headers that no connection or datagram has")]
    Header,
    /// A check sum that is not the packet's.
    #[error("the packet's check sum is wrong")]
    Checksum,
}

/// Place of a packet in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    First,
    Middle,
    Last,
    Only,
}

impl Place {
    const fn of(begins: bool, ends: bool) -> Self {
        match (begins, ends) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// A packet, as far as its payload is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// From local route header on; with both check sums where all of it is shown.
    pub bytes: &'a [u8],
    /// Length on the wire, check sums included.
    pub length: usize,
}

/// A frame of which some of the payload may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extract<'a> {
    /// The frame. Its payload is what is shown of each packet, one after the other.
    pub frame: &'a Frame,
    /// Bytes of payload of the whole frame.
    pub length: u32,
    /// Bytes of payload that are shown of a full packet.
    pub shown: u32,
}

impl Frame {
    /// All of it.
    #[must_use]
    pub fn extract(&self) -> Extract<'_> {
        Extract {
            frame: self,
            length: self.payload.len() as u32,
            shown: self.mtu.bytes(),
        }
    }

    /// Takes a packet, from local route header to variant CRC, of a path with this MTU.
    ///
    /// # Errors
    /// [`NotAFrame`].
    pub fn parse(packet: &[u8], mtu: Mtu) -> Result<Self, NotAFrame> {
        Reader::new(packet)?.frame(mtu)
    }
}

impl Extract<'_> {
    /// Makes the packets, in their order. Returns how many cannot be made: those of operations that
    /// the specification does not have.
    pub fn packets(&self, mut show: impl FnMut(Packet<'_>)) -> u32 {
        let frame = self.frame;
        let mtu = frame.mtu.bytes();
        let total = self.length.div_ceil(mtu).max(1);
        let mut buffer = Vec::with_capacity(OVERHEAD + self.shown as usize);
        let mut rest = &frame.payload[..];
        for at in 0..total {
            let length = (self.length - (at * mtu).min(self.length)).min(mtu);
            let shown = (length.min(self.shown) as usize).min(rest.len());
            let (payload, behind) = rest.split_at(shown);
            rest = behind;
            let place = Place::of(frame.first && at == 0, frame.last && at + 1 == total);
            buffer.clear();
            if headers(frame, at, at + 1 == total, place, &mut buffer).is_none() {
                return total;
            }
            let length = finish(&mut buffer, payload, length as usize);
            show(Packet {
                bytes: &buffer,
                length,
            });
        }
        0
    }
}

/// Appends all headers of a packet of the frame. `None` for what has no packets.
fn headers(frame: &Frame, at: u32, ends: bool, place: Place, to: &mut Vec<u8>) -> Option<()> {
    let address = &frame.address;
    let opcode = match frame.content {
        Content::Notification => Opcode::NOTIFICATION,
        _ => Opcode::of(address.service, operation(frame, place)?),
    };
    route(address, to);
    let bth = BaseTransport {
        opcode,
        solicited: ends && frame.solicited,
        migrated: frame.migrated,
        pkey: address.pkey,
        destination: address.dest_qp,
        acknowledge: ends && frame.acknowledge,
        fecn: frame.marked,
        becn: frame.content == Content::Notification,
        psn: frame.psn.plus(at),
        ..BaseTransport::default()
    };
    put::<{ BaseTransport::SIZE }>(to, |bytes| bth.emit(bytes));
    if frame.content == Content::Notification {
        put::<NOTIFICATION>(to, |_| {});
        return Some(());
    }
    if address.service == Service::Xrc && !frame.is_response() {
        // Requests name the shared receive queue (IBA A14).
        let xrceth = XrcExtended { srq: frame.srq };
        put::<{ XrcExtended::SIZE }>(to, |bytes| xrceth.emit(bytes));
    }
    if address.service == Service::Dc && !frame.is_response() {
        let Session {
            key,
            number,
            source,
            start,
        } = frame.session.as_deref().copied().unwrap_or_default();
        let header = DynamicExtended {
            key,
            session: number,
            source,
            start,
        };
        put::<{ DynamicExtended::SIZE }>(to, |bytes| header.emit(bytes));
    }
    let immediate = |data: u32, to: &mut Vec<u8>| {
        put::<{ Immediate::SIZE }>(to, |bytes| Immediate { data }.emit(bytes));
    };
    match frame.content {
        Content::Send(Tail::Immediate(data)) if place.ends() => immediate(data, to),
        Content::Send(Tail::Invalidate(rkey)) if place.ends() => {
            put::<{ InvalidateExtended::SIZE }>(to, |bytes| {
                InvalidateExtended { rkey }.emit(bytes);
            });
        }
        Content::Send(_) => {}
        Content::Write(target, data) => {
            if let Some(target) = target.filter(|_| place.begins()) {
                put::<{ RdmaExtended::SIZE }>(to, |bytes| reth(target).emit(bytes));
            }
            if let Some(data) = data.filter(|_| place.ends()) {
                immediate(data, to);
            }
        }
        Content::Read(target) => {
            put::<{ RdmaExtended::SIZE }>(to, |bytes| reth(target).emit(bytes));
        }
        Content::Atomic {
            addr,
            rkey,
            operands,
            ..
        } => {
            let header = AtomicExtended {
                address: addr,
                rkey,
                swap_or_add: operands.swap_add,
                compare: operands.compare,
            };
            put::<{ AtomicExtended::SIZE }>(to, |bytes| header.emit(bytes));
        }
        Content::Acknowledge(syndrome, msn) => aeth(syndrome, msn, to),
        Content::Notification => {}
        Content::ReadResponse(msn) => {
            if place != Place::Middle {
                aeth(Syndrome::Acknowledged, msn, to);
            }
        }
        Content::AtomicResponse(original, msn) => {
            aeth(Syndrome::Acknowledged, msn, to);
            put::<{ AtomicAcknowledge::SIZE }>(to, |bytes| {
                AtomicAcknowledge { original }.emit(bytes);
            });
        }
        Content::Datagram {
            qkey,
            source,
            immediate: data,
        } => {
            let deth = DatagramExtended { qkey, source };
            put::<{ DatagramExtended::SIZE }>(to, |bytes| deth.emit(bytes));
            if let Some(data) = data {
                immediate(data, to);
            }
        }
    }
    Some(())
}

/// Local and global route header; their lengths come with the end of the packet.
fn route(address: &Address, to: &mut Vec<u8>) {
    let header = LocalRoute {
        vl: Vl::new(0),
        version: 0,
        sl: address.sl,
        next_header: match address.global {
            Some(_) => NextHeader::Grh.code(),
            None => NextHeader::Bth.code(),
        },
        dlid: address.dlid,
        length: 0,
        slid: address.slid,
        ..LocalRoute::default()
    };
    put::<{ LocalRoute::SIZE }>(to, |bytes| header.emit(bytes));
    if let Some((global, sgid)) = address.global {
        let header = GlobalRouteHeader {
            ip_version: 6,
            traffic_class: global.traffic_class,
            flow_label: global.flow_label,
            payload_length: 0,
            next_header: GlobalRouteHeader::IBA_TRANSPORT,
            hop_limit: global.hop_limit,
            sgid,
            dgid: global.dgid,
        };
        put::<{ GlobalRouteHeader::SIZE }>(to, |bytes| header.emit(bytes));
    }
}

const fn reth(target: Target) -> RdmaExtended {
    RdmaExtended {
        address: target.addr,
        rkey: target.rkey,
        length: target.length,
    }
}

fn aeth(syndrome: Syndrome, msn: u32, to: &mut Vec<u8>) {
    let syndrome = syndrome.code();
    let header = AcknowledgeExtended { syndrome, msn };
    put::<{ AcknowledgeExtended::SIZE }>(to, |bytes| header.emit(bytes));
}

impl Syndrome {
    /// The field's value (IBA table 43); an acknowledgement says nothing about credits.
    const fn code(self) -> u8 {
        match self {
            Self::Acknowledged => 0x1f,
            Self::NotReady(timer) => 0x20 | (timer & 0x1f),
            Self::Sequence => 0x60,
            Self::InvalidRequest => 0x61,
            Self::RemoteAccess => 0x62,
            Self::RemoteOperation => 0x63,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match (code >> 5, code & 0x1f) {
            (0, _) => Some(Self::Acknowledged),
            (1, timer) => Some(Self::NotReady(timer)),
            (3, 0) => Some(Self::Sequence),
            (3, 1) => Some(Self::InvalidRequest),
            (3, 2) => Some(Self::RemoteAccess),
            (3, 3) => Some(Self::RemoteOperation),
            _ => None,
        }
    }
}

/// The operation of a packet in this place.
fn operation(frame: &Frame, place: Place) -> Option<u8> {
    use Place::{First, Last, Middle, Only};
    Some(match (&frame.content, place) {
        (Content::Write(..), First) => Opcode::WRITE_FIRST,
        (Content::Write(..), Middle) => Opcode::WRITE_MIDDLE,
        (Content::Write(_, None), Last) => Opcode::WRITE_LAST,
        (Content::Write(_, None), Only) => Opcode::WRITE_ONLY,
        (Content::Write(_, Some(_)), Last) => Opcode::WRITE_LAST_IMMEDIATE,
        (Content::Write(_, Some(_)), Only) => Opcode::WRITE_ONLY_IMMEDIATE,
        (Content::Send(_), First) => Opcode::SEND_FIRST,
        (Content::Send(_), Middle) => Opcode::SEND_MIDDLE,
        (Content::Send(Tail::None), Last) => Opcode::SEND_LAST,
        (Content::Send(Tail::None), Only) => Opcode::SEND_ONLY,
        (Content::Send(Tail::Immediate(_)), Last) => Opcode::SEND_LAST_IMMEDIATE,
        (Content::Send(Tail::Immediate(_)), Only) => Opcode::SEND_ONLY_IMMEDIATE,
        (Content::Send(Tail::Invalidate(_)), Last) => Opcode::SEND_LAST_INVALIDATE,
        (Content::Send(Tail::Invalidate(_)), Only) => Opcode::SEND_ONLY_INVALIDATE,
        (Content::Read(_), _) => Opcode::READ_REQUEST,
        (Content::Atomic { operation, .. }, _) => match operation {
            Operation::CompareSwap => Opcode::COMPARE_SWAP,
            Operation::FetchAdd => Opcode::FETCH_ADD,
            _ => return None,
        },
        (Content::Acknowledge(..), _) => Opcode::ACKNOWLEDGE,
        (Content::ReadResponse(_), First) => Opcode::READ_RESPONSE_FIRST,
        (Content::ReadResponse(_), Middle) => Opcode::READ_RESPONSE_MIDDLE,
        (Content::ReadResponse(_), Last) => Opcode::READ_RESPONSE_LAST,
        (Content::ReadResponse(_), Only) => Opcode::READ_RESPONSE_ONLY,
        (Content::AtomicResponse(..), _) => Opcode::ATOMIC_ACKNOWLEDGE,
        (Content::Notification, _) => return None,
        (Content::Datagram { immediate, .. }, _) => match immediate {
            None => Opcode::SEND_ONLY,
            Some(_) => Opcode::SEND_ONLY_IMMEDIATE,
        },
    })
}

fn put<const SIZE: usize>(to: &mut Vec<u8>, emit: impl FnOnce(&mut [u8])) {
    let mut bytes = [0; SIZE];
    emit(&mut bytes);
    to.extend_from_slice(&bytes);
}

/// Payload, of which `shown` is at hand, lengths, padding and check sums; returns the packet's length.
fn finish(packet: &mut Vec<u8>, shown: &[u8], payload: usize) -> usize {
    let headers = packet.len();
    packet.extend_from_slice(shown);
    let pad = payload.next_multiple_of(4) - payload;
    let length = headers + payload + pad + ICRC + VCRC;
    let is_global = packet[1] & 3 == NextHeader::Grh.code();
    let words = ((length - VCRC) / 4) as u16;
    packet[4..6].copy_from_slice(&words.to_be_bytes());
    let mut bth = LocalRoute::SIZE;
    if is_global {
        let rest = (length - VCRC - LocalRoute::SIZE - GlobalRouteHeader::SIZE) as u16;
        let at = LocalRoute::SIZE + 4;
        packet[at..at + 2].copy_from_slice(&rest.to_be_bytes());
        bth += GlobalRouteHeader::SIZE;
    }
    // The pad count of the base transport header.
    packet[bth + 1] |= (pad as u8) << 4;
    if shown.len() == payload {
        packet.resize(headers + payload + pad, 0);
        let invariant = crc::invariant(packet);
        packet.extend_from_slice(&invariant.to_le_bytes());
        let variant = crc::variant(packet);
        packet.extend_from_slice(&variant.to_le_bytes());
    }
    length
}

/// Reads a packet header by header.
struct Reader<'a> {
    rest: &'a [u8],
    route: LocalRoute,
    global: Option<GlobalRouteHeader>,
}

impl<'a> Reader<'a> {
    fn new(packet: &'a [u8]) -> Result<Self, NotAFrame> {
        let route = LocalRoute::parse(packet).map_err(|_| NotAFrame::Length)?;
        let length = usize::from(route.length) * 4 + VCRC;
        let is_global = route.next_header == NextHeader::Grh.code();
        let headers = if is_global {
            LocalRoute::SIZE + GlobalRouteHeader::SIZE
        } else {
            LocalRoute::SIZE
        };
        if packet.len() != length || length < headers + BaseTransport::SIZE + ICRC + VCRC {
            return Err(NotAFrame::Length);
        }
        if !is_global && route.next_header != NextHeader::Bth.code() {
            return Err(NotAFrame::Header);
        }
        let (packet, variant) = packet.split_at(length - VCRC);
        if crc::variant(packet).to_le_bytes() != *variant {
            return Err(NotAFrame::Checksum);
        }
        let (packet, invariant) = packet.split_at(packet.len() - ICRC);
        if crc::invariant(packet).to_le_bytes() != *invariant {
            return Err(NotAFrame::Checksum);
        }
        let mut reader = Self {
            rest: &packet[LocalRoute::SIZE..],
            route,
            global: None,
        };
        if is_global {
            let header = reader.take(GlobalRouteHeader::SIZE, GlobalRouteHeader::parse)?;
            let rest = reader.rest.len() + ICRC;
            if usize::from(header.payload_length) != rest {
                return Err(NotAFrame::Length);
            }
            if header.ip_version != 6 || header.next_header != GlobalRouteHeader::IBA_TRANSPORT {
                return Err(NotAFrame::Header);
            }
            reader.global = Some(header);
        }
        Ok(reader)
    }

    fn take<T>(
        &mut self,
        size: usize,
        parse: impl FnOnce(&[u8]) -> wire::Result<T>,
    ) -> Result<T, NotAFrame> {
        let (header, rest) = self.rest.split_at_checked(size).ok_or(NotAFrame::Length)?;
        self.rest = rest;
        parse(header).map_err(|_| NotAFrame::Header)
    }

    fn frame(mut self, mtu: Mtu) -> Result<Frame, NotAFrame> {
        let bth = self.take(BaseTransport::SIZE, BaseTransport::parse)?;
        let notifies = bth.opcode == Opcode::NOTIFICATION;
        let service = match bth.opcode.service() {
            Some(service) => service,
            // It does not say of which service it is: its queue pair knows.
            None if notifies => Service::Rc,
            None => return Err(NotAFrame::Header),
        };
        let operation = bth.opcode.operation();
        if bth.version != 0 || service == Service::Rd {
            return Err(NotAFrame::Header);
        }
        let is_response =
            (Opcode::READ_RESPONSE_FIRST..=Opcode::ATOMIC_ACKNOWLEDGE).contains(&operation);
        let mut srq = Qpn::new(0);
        if service == Service::Xrc && !is_response {
            srq = self.take(XrcExtended::SIZE, XrcExtended::parse)?.srq;
        }
        let mut session = None;
        if service == Service::Dc && !is_response {
            let header = self.take(DynamicExtended::SIZE, DynamicExtended::parse)?;
            session = Some(Box::new(Session {
                key: header.key,
                number: header.session,
                source: header.source,
                start: header.start,
            }));
        }
        let (content, place) = match service {
            _ if notifies => {
                self.take(NOTIFICATION, |_| Ok(()))?;
                (Content::Notification, Place::Only)
            }
            Service::Ud => (self.datagram(operation)?, Place::Only),
            _ => self.content(operation)?,
        };
        let pad = usize::from(bth.pad_count);
        let length = self.rest.len().checked_sub(pad).ok_or(NotAFrame::Length)?;
        if !(length + pad).is_multiple_of(4) || pad > 3 {
            return Err(NotAFrame::Length);
        }
        let address = Address {
            slid: self.route.slid,
            dlid: self.route.dlid,
            sl: self.route.sl,
            global: self.global.map(|header| {
                let global = GlobalRoute {
                    dgid: header.dgid,
                    sgid_index: 0,
                    flow_label: header.flow_label,
                    traffic_class: header.traffic_class,
                    hop_limit: header.hop_limit,
                };
                (global, header.sgid)
            }),
            service,
            pkey: bth.pkey,
            dest_qp: bth.destination,
        };
        Ok(Frame {
            first: place.begins(),
            last: place.ends(),
            solicited: bth.solicited,
            acknowledge: bth.acknowledge,
            migrated: bth.migrated,
            marked: bth.fecn,
            srq,
            session,
            payload: self.rest[..length].to_vec(),
            ..Frame::new(address, mtu, bth.psn, content)
        })
    }

    fn datagram(&mut self, operation: u8) -> Result<Content, NotAFrame> {
        let deth = self.take(DatagramExtended::SIZE, DatagramExtended::parse)?;
        let immediate = match operation {
            Opcode::SEND_ONLY => None,
            Opcode::SEND_ONLY_IMMEDIATE => Some(self.immediate()?),
            _ => return Err(NotAFrame::Header),
        };
        Ok(Content::Datagram {
            qkey: deth.qkey,
            source: deth.source,
            immediate,
        })
    }

    fn immediate(&mut self) -> Result<u32, NotAFrame> {
        Ok(self.take(Immediate::SIZE, Immediate::parse)?.data)
    }

    fn target(&mut self) -> Result<Target, NotAFrame> {
        let reth = self.take(RdmaExtended::SIZE, RdmaExtended::parse)?;
        Ok(Target {
            addr: reth.address,
            rkey: reth.rkey,
            length: reth.length,
        })
    }

    fn acknowledge(&mut self) -> Result<(Syndrome, u32), NotAFrame> {
        let aeth = self.take(AcknowledgeExtended::SIZE, AcknowledgeExtended::parse)?;
        let syndrome = Syndrome::from_code(aeth.syndrome).ok_or(NotAFrame::Header)?;
        Ok((syndrome, aeth.msn))
    }

    fn content(&mut self, operation: u8) -> Result<(Content, Place), NotAFrame> {
        use Place::{First, Last, Middle, Only};
        let send = |place| (Content::Send(Tail::None), place);
        Ok(match operation {
            Opcode::SEND_FIRST => send(First),
            Opcode::SEND_MIDDLE => send(Middle),
            Opcode::SEND_LAST => send(Last),
            Opcode::SEND_ONLY => send(Only),
            Opcode::SEND_LAST_IMMEDIATE | Opcode::SEND_ONLY_IMMEDIATE => {
                let place = if operation == Opcode::SEND_LAST_IMMEDIATE {
                    Last
                } else {
                    Only
                };
                (Content::Send(Tail::Immediate(self.immediate()?)), place)
            }
            Opcode::SEND_LAST_INVALIDATE | Opcode::SEND_ONLY_INVALIDATE => {
                let place = if operation == Opcode::SEND_LAST_INVALIDATE {
                    Last
                } else {
                    Only
                };
                let header = self.take(InvalidateExtended::SIZE, InvalidateExtended::parse)?;
                (Content::Send(Tail::Invalidate(header.rkey)), place)
            }
            Opcode::WRITE_FIRST => (Content::Write(Some(self.target()?), None), First),
            Opcode::WRITE_MIDDLE => (Content::Write(None, None), Middle),
            Opcode::WRITE_LAST => (Content::Write(None, None), Last),
            Opcode::WRITE_ONLY => (Content::Write(Some(self.target()?), None), Only),
            Opcode::WRITE_LAST_IMMEDIATE => (Content::Write(None, Some(self.immediate()?)), Last),
            Opcode::WRITE_ONLY_IMMEDIATE => {
                let target = self.target()?;
                (Content::Write(Some(target), Some(self.immediate()?)), Only)
            }
            Opcode::READ_REQUEST => (Content::Read(self.target()?), Only),
            Opcode::COMPARE_SWAP | Opcode::FETCH_ADD => {
                let header = self.take(AtomicExtended::SIZE, AtomicExtended::parse)?;
                let content = Content::Atomic {
                    operation: match operation {
                        Opcode::COMPARE_SWAP => Operation::CompareSwap,
                        _ => Operation::FetchAdd,
                    },
                    addr: header.address,
                    rkey: header.rkey,
                    operands: AtomicOperands {
                        swap_add: header.swap_or_add,
                        compare: header.compare,
                        ..AtomicOperands::default()
                    },
                };
                (content, Only)
            }
            Opcode::ACKNOWLEDGE => {
                let (syndrome, msn) = self.acknowledge()?;
                (Content::Acknowledge(syndrome, msn), Only)
            }
            Opcode::READ_RESPONSE_FIRST
            | Opcode::READ_RESPONSE_LAST
            | Opcode::READ_RESPONSE_ONLY => {
                let place = match operation {
                    Opcode::READ_RESPONSE_FIRST => First,
                    Opcode::READ_RESPONSE_LAST => Last,
                    _ => Only,
                };
                (Content::ReadResponse(self.acknowledge()?.1), place)
            }
            Opcode::READ_RESPONSE_MIDDLE => (Content::ReadResponse(0), Middle),
            Opcode::ATOMIC_ACKNOWLEDGE => {
                let (_, msn) = self.acknowledge()?;
                let header = self.take(AtomicAcknowledge::SIZE, AtomicAcknowledge::parse)?;
                (Content::AtomicResponse(header.original, msn), Only)
            }
            _ => return Err(NotAFrame::Header),
        })
    }
}

#[cfg(test)]
mod tests;
