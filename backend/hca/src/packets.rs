//! The packets that a message would be on the wire.
//!
//! The local path moves messages without packets. For whoever looks at a capture they are made
//! from what was moved: with the headers, sequence numbers and segmentation that the transport
//! has (IBA 9), the acknowledgements of a reliable one included.

use wire::header::{
    AcknowledgeExtended, AtomicAcknowledge, AtomicExtended, BaseTransport, DatagramExtended,
    GlobalRoute, Immediate, InvalidateExtended, LocalRoute, NextHeader, Opcode, RdmaExtended,
    Service, XrcExtended,
};
use wire::{Lid, Qpn, Sl, Vl, crc};

use crate::engine::VfId;
use crate::qp::Transport;
use crate::watch::{End, SHOWN_PACKETS, Seen};
use crate::work::Operation;

/// Room for all headers and check sums of a packet.
const OVERHEAD: usize = 128;
/// An acknowledgement that says nothing about credits (IBA table 43).
const ACKNOWLEDGED: u8 = 0x1f;

/// What packets carry in place of what a guest was told: the subnet's own LIDs. P_Keys are the
/// wire's throughout the engine.
pub trait Physical {
    /// Base LID of a function's port.
    fn lid(&self, vf: VfId) -> Lid;
}

/// A packet made of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown<'a> {
    /// From local route header on, as far as the payload is shown; with both check sums where all
    /// of it is.
    pub bytes: &'a [u8],
    /// Length on the wire, check sums included.
    pub length: usize,
    /// The function that sent it.
    pub from: VfId,
}

impl Seen {
    /// Makes the packets, in their order. Returns how many there would be more: those past the
    /// first [`SHOWN_PACKETS`] of a message, and those of operations that the specification does
    /// not have.
    pub fn packets(&self, physical: &dyn Physical, mut show: impl FnMut(Shown<'_>)) -> u64 {
        let mtu = u64::from(self.mtu.bytes());
        let total = self.length.div_ceil(mtu).max(1);
        let mut writer = Writer {
            seen: self,
            physical,
            buffer: Vec::with_capacity(OVERHEAD + self.shown as usize),
        };
        let Some(service) = service(self.transport) else {
            return total;
        };
        match self.operation {
            Operation::Read => writer.read(service, total, &mut show),
            Operation::CompareSwap | Operation::FetchAdd => writer.atomic(service, &mut show),
            Operation::Send
            | Operation::SendImm
            | Operation::SendInvalidate
            | Operation::Write
            | Operation::WriteImm => writer.requests(service, total, &mut show),
            // Masked atomics are the manufacturer's; the others do not leave the adapter.
            _ => return total,
        }
        total.saturating_sub(u64::from(SHOWN_PACKETS))
    }
}

const fn service(transport: Transport) -> Option<Service> {
    match transport {
        Transport::Rc => Some(Service::Rc),
        Transport::Uc => Some(Service::Uc),
        Transport::Xrc => Some(Service::Xrc),
        Transport::Ud | Transport::Smi | Transport::Gsi => Some(Service::Ud),
        Transport::KeyUpdate => None,
    }
}

/// Which packet of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    First,
    Middle,
    Last,
    Only,
}

impl Place {
    const fn of(packet: u64, total: u64) -> Self {
        match (packet == 0, packet + 1 == total) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }

    const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }
}

struct Writer<'a> {
    seen: &'a Seen,
    physical: &'a dyn Physical,
    buffer: Vec<u8>,
}

impl Writer<'_> {
    /// Packets of a send or a write, and their acknowledgement.
    fn requests(&mut self, service: Service, total: u64, show: &mut impl FnMut(Shown<'_>)) {
        let seen = self.seen;
        let mut at = 0;
        for packet in 0..total.min(u64::from(SHOWN_PACKETS)) {
            let place = Place::of(packet, total);
            let operation = match (seen.operation, place) {
                (Operation::Write | Operation::WriteImm, Place::First) => Opcode::WRITE_FIRST,
                (Operation::Write | Operation::WriteImm, Place::Middle) => Opcode::WRITE_MIDDLE,
                (Operation::Write, Place::Last) => Opcode::WRITE_LAST,
                (Operation::Write, Place::Only) => Opcode::WRITE_ONLY,
                (Operation::WriteImm, Place::Last) => Opcode::WRITE_LAST_IMMEDIATE,
                (Operation::WriteImm, Place::Only) => Opcode::WRITE_ONLY_IMMEDIATE,
                (Operation::SendImm, Place::Last) => Opcode::SEND_LAST_IMMEDIATE,
                (Operation::SendImm, Place::Only) => Opcode::SEND_ONLY_IMMEDIATE,
                (Operation::SendInvalidate, Place::Last) => Opcode::SEND_LAST_INVALIDATE,
                (Operation::SendInvalidate, Place::Only) => Opcode::SEND_ONLY_INVALIDATE,
                (_, Place::First) => Opcode::SEND_FIRST,
                (_, Place::Middle) => Opcode::SEND_MIDDLE,
                (_, Place::Last) => Opcode::SEND_LAST,
                (_, Place::Only) => Opcode::SEND_ONLY,
            };
            self.start(&seen.requester, seen.responder.as_ref());
            let last = place.ends();
            self.transport(BaseTransport {
                opcode: Opcode::of(service, operation),
                solicited: last && seen.solicited,
                acknowledge: last && seen.responder.is_some() && seen.transport.is_reliable(),
                psn: seen.psn.plus(packet as u32),
                ..self.base(&seen.requester, seen.dest_qp)
            });
            if service == Service::Ud {
                let deth = DatagramExtended {
                    qkey: seen.qkey,
                    source: seen.requester.qp,
                };
                self.put::<{ DatagramExtended::SIZE }>(|bytes| deth.emit(bytes));
            }
            self.xrc(service);
            let is_write = matches!(seen.operation, Operation::Write | Operation::WriteImm);
            if is_write && place.begins() {
                self.rdma();
            }
            if last {
                match seen.operation {
                    Operation::SendImm | Operation::WriteImm => {
                        let data = seen.immediate;
                        self.put::<{ Immediate::SIZE }>(|bytes| Immediate { data }.emit(bytes));
                    }
                    Operation::SendInvalidate => {
                        let rkey = seen.immediate;
                        self.put::<{ InvalidateExtended::SIZE }>(|bytes| {
                            InvalidateExtended { rkey }.emit(bytes);
                        });
                    }
                    _ => {}
                }
            }
            self.payload(packet, &mut at, &seen.requester, show);
        }
        if seen.transport.is_reliable()
            && let Some(responder) = &seen.responder
        {
            self.answer(responder, Opcode::ACKNOWLEDGE, service, total - 1, true);
            self.finish(0, 0, responder.vf, show);
        }
    }

    /// The request of a read, and the packets that answer it.
    fn read(&mut self, service: Service, total: u64, show: &mut impl FnMut(Shown<'_>)) {
        let seen = self.seen;
        let Some(responder) = &seen.responder else {
            return;
        };
        self.request(service, Opcode::READ_REQUEST);
        self.rdma();
        self.finish(0, 0, seen.requester.vf, show);
        let mut at = 0;
        for packet in 0..total.min(u64::from(SHOWN_PACKETS)) {
            let (operation, acknowledges) = match Place::of(packet, total) {
                Place::First => (Opcode::READ_RESPONSE_FIRST, true),
                Place::Middle => (Opcode::READ_RESPONSE_MIDDLE, false),
                Place::Last => (Opcode::READ_RESPONSE_LAST, true),
                Place::Only => (Opcode::READ_RESPONSE_ONLY, true),
            };
            self.answer(responder, operation, service, packet, acknowledges);
            self.payload(packet, &mut at, responder, show);
        }
    }

    fn atomic(&mut self, service: Service, show: &mut impl FnMut(Shown<'_>)) {
        let seen = self.seen;
        let Some(responder) = &seen.responder else {
            return;
        };
        let operation = match seen.operation {
            Operation::CompareSwap => Opcode::COMPARE_SWAP,
            _ => Opcode::FETCH_ADD,
        };
        self.request(service, operation);
        let header = AtomicExtended {
            address: seen.remote_addr,
            rkey: seen.rkey,
            swap_or_add: seen.atomic.swap_add,
            compare: seen.atomic.compare,
        };
        self.put::<{ AtomicExtended::SIZE }>(|bytes| header.emit(bytes));
        self.finish(0, 0, seen.requester.vf, show);
        self.answer(responder, Opcode::ATOMIC_ACKNOWLEDGE, service, 0, true);
        // In the guest's memory it has the guest's byte order.
        let mut original = [0; 8];
        for (to, &from) in original.iter_mut().zip(&seen.payload) {
            *to = from;
        }
        let original = u64::from_le_bytes(original);
        self.put::<{ AtomicAcknowledge::SIZE }>(|bytes| {
            AtomicAcknowledge { original }.emit(bytes);
        });
        self.finish(0, 0, responder.vf, show);
    }

    /// Headers of a request of one packet that is answered.
    fn request(&mut self, service: Service, operation: u8) {
        let seen = self.seen;
        self.start(&seen.requester, seen.responder.as_ref());
        self.transport(BaseTransport {
            opcode: Opcode::of(service, operation),
            acknowledge: true,
            psn: seen.psn,
            ..self.base(&seen.requester, seen.dest_qp)
        });
        self.xrc(service);
    }

    /// Headers of a packet back from the responder.
    fn answer(
        &mut self,
        responder: &End,
        operation: u8,
        service: Service,
        packet: u64,
        acknowledges: bool,
    ) {
        let seen = self.seen;
        self.start(responder, Some(&seen.requester));
        self.transport(BaseTransport {
            opcode: Opcode::of(service, operation),
            psn: seen.psn.plus(packet as u32),
            ..self.base(responder, seen.requester.qp)
        });
        if acknowledges {
            let header = AcknowledgeExtended {
                syndrome: ACKNOWLEDGED,
                msn: seen.msn,
            };
            self.put::<{ AcknowledgeExtended::SIZE }>(|bytes| header.emit(bytes));
        }
    }

    fn base(&self, from: &End, destination: Qpn) -> BaseTransport {
        BaseTransport {
            // A connection that has not moved to its alternate path is in the state Migrated.
            migrated: true,
            pkey: from.pkey,
            destination,
            ..BaseTransport::default()
        }
    }

    /// Local and global route header; their lengths come with the end of the packet.
    fn start(&mut self, from: &End, to: Option<&End>) {
        self.buffer.clear();
        let lid = |vf, bits| Lid::new(u16::from(self.physical.lid(vf)) | u16::from(bits));
        let [source_bits, dest_bits] = from.path_bits;
        let dlid = match (to, self.seen.reached.first()) {
            (Some(to), _) => lid(to.vf, dest_bits),
            (None, Some(&to)) if !from.dlid.is_multicast() => lid(to, dest_bits),
            _ => from.dlid,
        };
        let slid = lid(from.vf, source_bits);
        self.route(from.sl, dlid, slid, from);
    }

    fn route(&mut self, sl: Sl, dlid: Lid, slid: Lid, from: &End) {
        let header = LocalRoute {
            vl: Vl::new(0),
            version: 0,
            sl,
            next_header: match from.global {
                Some(_) => NextHeader::Grh.code(),
                None => NextHeader::Bth.code(),
            },
            dlid,
            length: 0,
            slid,
            ..LocalRoute::default()
        };
        self.put::<{ LocalRoute::SIZE }>(|bytes| header.emit(bytes));
        if let Some((global, sgid)) = from.global {
            let header = GlobalRoute {
                ip_version: 6,
                traffic_class: global.traffic_class,
                flow_label: global.flow_label,
                payload_length: 0,
                next_header: GlobalRoute::IBA_TRANSPORT,
                hop_limit: global.hop_limit,
                sgid,
                dgid: global.dgid,
            };
            self.put::<{ GlobalRoute::SIZE }>(|bytes| header.emit(bytes));
        }
    }

    fn transport(&mut self, header: BaseTransport) {
        self.put::<{ BaseTransport::SIZE }>(|bytes| header.emit(bytes));
    }

    /// Requests of an XRC queue pair name the shared receive queue (IBA A14).
    fn xrc(&mut self, service: Service) {
        if service == Service::Xrc {
            let srq = Qpn::new(self.seen.xrc_srqn);
            self.put::<{ XrcExtended::SIZE }>(|bytes| XrcExtended { srq }.emit(bytes));
        }
    }

    fn rdma(&mut self) {
        let header = RdmaExtended {
            address: self.seen.remote_addr,
            rkey: self.seen.rkey,
            length: self.seen.length as u32,
        };
        self.put::<{ RdmaExtended::SIZE }>(|bytes| header.emit(bytes));
    }

    fn put<const SIZE: usize>(&mut self, emit: impl FnOnce(&mut [u8])) {
        let mut bytes = [0; SIZE];
        emit(&mut bytes);
        self.buffer.extend_from_slice(&bytes);
    }

    /// Payload of a packet, of which `at` bytes of what was seen have been used before it.
    fn payload(
        &mut self,
        packet: u64,
        at: &mut usize,
        from: &End,
        show: &mut impl FnMut(Shown<'_>),
    ) {
        let seen = self.seen;
        let mtu = u64::from(seen.mtu.bytes());
        let length = (seen.length - (packet * mtu).min(seen.length)).min(mtu) as usize;
        let shown = length.min(seen.shown as usize);
        let to = (*at + shown).min(seen.payload.len());
        self.buffer.extend_from_slice(&seen.payload[*at..to]);
        let shown = to - *at;
        *at = to;
        self.finish(length, shown, from.vf, show);
    }

    /// Lengths, padding and check sums, and out with it.
    fn finish(
        &mut self,
        payload: usize,
        shown: usize,
        from: VfId,
        show: &mut impl FnMut(Shown<'_>),
    ) {
        let pad = payload.next_multiple_of(4) - payload;
        let headers = self.buffer.len() - shown;
        let length = headers + payload + pad + 4 + 2;
        let is_global = self.buffer[1] & 3 == NextHeader::Grh.code();
        let words = ((length - 2) / 4) as u16;
        self.buffer[4..6].copy_from_slice(&words.to_be_bytes());
        let mut bth = LocalRoute::SIZE;
        if is_global {
            let rest = (length - 2 - LocalRoute::SIZE - GlobalRoute::SIZE) as u16;
            let at = LocalRoute::SIZE + 4;
            self.buffer[at..at + 2].copy_from_slice(&rest.to_be_bytes());
            bth += GlobalRoute::SIZE;
        }
        // The pad count of the base transport header.
        self.buffer[bth + 1] |= (pad as u8) << 4;
        if shown == payload {
            self.buffer.resize(headers + payload + pad, 0);
            let invariant = crc::invariant(&self.buffer);
            self.buffer.extend_from_slice(&invariant.to_le_bytes());
            let variant = crc::variant(&self.buffer);
            self.buffer.extend_from_slice(&variant.to_le_bytes());
        }
        show(Shown {
            bytes: &self.buffer,
            length,
            from,
        });
    }
}
