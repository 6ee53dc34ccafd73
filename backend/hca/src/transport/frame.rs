//! A frame: the packets of a message, or some of them in a row, as one thing. It has their headers once
//! and up to [`MAX_PAYLOAD`] bytes of payload, which stand for as many packets as the path MTU makes
//! of them. The module `packets` makes the packets.

use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::ops::Range;
use wire::header::Service;
use wire::ipoib::Train;
use wire::{Gid, Lid, Mtu, PKey, Psn, QKey, Qpn, Sl};

use crate::memory::lending::Loan;
use crate::memory::sge::Sge;
use crate::objects::qp::attributes::Transport;
use crate::objects::reason::Reason;
use crate::objects::work::{AtomicOperands, GlobalRoute, Operation};
use crate::path::Crossing;

pub(crate) mod packets;

/// Most bytes of payload of a frame.
pub const MAX_PAYLOAD: u32 = 64 << 10;

/// Shorter payloads are not lent: they are copied sooner.
pub(crate) const LOAN: u32 = 4096;

/// Bytes of headers and check sums that each packet of a connected transport has (LRH, BTH, ICRC,
/// VCRC), in words of four octets as the port counters count.
pub(crate) const HEADER_WORDS: u64 = (8 + 12 + 4 + 2) / 4;
/// The same of a datagram, which has a DETH.
pub(crate) const DATAGRAM_WORDS: u64 = (8 + 12 + 8 + 4 + 2) / 4;
/// Words behind the headers of a congestion notification, which say nothing.
pub(crate) const NOTIFICATION_WORDS: u64 = 16 / 4;

/// Where a frame comes from and goes to, which all of its packets say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// Source LID.
    pub slid: Lid,
    /// Destination LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Global route and source GID.
    pub global: Option<(GlobalRoute, Gid)>,
    /// Transport service.
    pub service: Service,
    /// Partition.
    pub pkey: PKey,
    /// Destination queue pair.
    pub dest_qp: Qpn,
}

/// Memory at the responder (RETH).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Virtual address.
    pub addr: u64,
    /// Memory key.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub length: u32,
}

impl Target {
    /// As an element of a list.
    pub(crate) const fn stretch(&self) -> Sge {
        Sge {
            addr: self.addr,
            lkey: self.rkey,
            len: self.length,
        }
    }
}

/// Dynamic connection of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Access key of the target.
    pub key: u64,
    /// Number of the initiator's connection. No two that it has had of late have the same number.
    pub number: u32,
    /// The initiator's queue pair.
    pub source: Qpn,
    /// Number of the connection's first packet.
    pub start: Psn,
}

/// Fields of the last packet of a SEND besides payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Tail {
    /// Nothing.
    None,
    /// Immediate data.
    Immediate(u32),
    /// The key to invalidate.
    Invalidate(u32),
}

/// Syndrome of an acknowledgement (AETH, IBA table 43).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Syndrome {
    /// Everything up to this packet has arrived.
    Acknowledged,
    /// The receiver is not ready; to be asked again after the time of this timer code.
    NotReady(u8),
    /// Another packet was expected.
    Sequence,
    /// The request cannot be carried out.
    InvalidRequest,
    /// The key or the rights do not allow it.
    RemoteAccess,
    /// The responder failed on its own.
    RemoteOperation,
}

/// Content of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Content {
    /// SEND.
    Send(Tail),
    /// RDMA WRITE: where to, in the message's first packet, and immediate data in its last.
    Write(Option<Target>, Option<u32>),
    /// RDMA READ request.
    Read(Target),
    /// Atomic request.
    Atomic {
        /// One of the four atomics. The packets of masked ones are the manufacturer's.
        operation: Operation,
        /// Virtual address.
        addr: u64,
        /// Memory key.
        rkey: u32,
        /// Operands.
        operands: AtomicOperands,
    },
    /// Acknowledgement, and the responder's message sequence number.
    Acknowledge(Syndrome, u32),
    /// Response to a READ, and the responder's message sequence number.
    ReadResponse(u32),
    /// Original value of an atomic, and the responder's message sequence number.
    AtomicResponse(u64, u32),
    /// Congestion notification: what its receiver sends to the sender has met congestion (IBA A10.3.2).
    Notification,
    /// A datagram.
    Datagram {
        /// Queue key.
        qkey: QKey,
        /// Source queue pair.
        source: Qpn,
        /// Immediate data.
        immediate: Option<u32>,
    },
}

/// Packets in a row of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// From where to where.
    pub address: Address,
    /// Payload of a full packet.
    pub mtu: Mtu,
    /// Number of the first packet.
    pub psn: Psn,
    /// Begins with the message's first packet.
    pub first: bool,
    /// Ends with the message's last packet.
    pub last: bool,
    /// The receiver is to raise an event; said by the message's last packet.
    pub solicited: bool,
    /// The last packet asks for an acknowledgement.
    pub acknowledge: bool,
    /// Its sender has migrated, and so is its receiver to do (MigReq).
    pub migrated: bool,
    /// A switch has marked it: it has met congestion (forward explicit congestion notification).
    pub marked: bool,
    /// Shared receive queue at the responder, in requests of the XRC service.
    pub srq: Qpn,
    /// In requests of the DC service.
    pub session: Option<Box<Session>>,
    /// Its content.
    pub content: Content,
    /// Why a request is refused, which packets do not say.
    pub reason: Reason,
    /// The answer to a READ may lend its payload.
    pub borrows: bool,
    /// Payload of all packets.
    pub payload: Vec<u8>,
    /// In place of the payload: where it lies in the sender's memory, for an engine of the same program. A holder
    /// that keeps a frame, or writes it down, has it take its payload along first (`Frame::take_along`).
    pub loan: Option<Box<Loan>>,
    /// The payload stands for several datagrams. Such a frame goes from one function that lives in no engine to
    /// another ([`Station`](super::Station)), over links that do nothing to it.
    pub train: Option<Train>,
}

/// The payload of a frame.
pub(crate) enum Bytes<'a> {
    /// The frame has it.
    Here(&'a mut [u8]),
    /// It is in its sender's memory.
    Lent(&'a Loan),
}

impl Bytes<'_> {
    /// Length in bytes.
    pub const fn len(&self) -> u32 {
        match self {
            Self::Here(bytes) => bytes.len() as u32,
            Self::Lent(loan) => loan.len(),
        }
    }
}

impl Frame {
    /// A frame of one packet without payload.
    #[must_use]
    pub const fn new(address: Address, mtu: Mtu, psn: Psn, content: Content) -> Self {
        Self {
            address,
            mtu,
            psn,
            first: true,
            last: true,
            solicited: false,
            acknowledge: false,
            migrated: true,
            marked: false,
            srq: Qpn::new(0),
            session: None,
            content,
            reason: Reason::Status,
            borrows: false,
            payload: Vec::new(),
            loan: None,
            train: None,
        }
    }

    /// Length of the payload in bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        let loan = self.loan.as_ref();
        loan.map_or(self.payload.len() as u32, |loan| loan.len())
    }

    /// Whether there is no payload.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The payload.
    pub(crate) fn bytes(&mut self) -> Bytes<'_> {
        match &self.loan {
            Some(loan) => Bytes::Lent(loan),
            None => Bytes::Here(&mut self.payload),
        }
    }

    /// Has the payload with it from now on, if the sender's memory can be read yet.
    pub(crate) fn take_along(&mut self) {
        let Some(loan) = &self.loan else { return };
        let mut payload = vec![0; loan.len() as usize];
        let mut at = 0;
        let read = loan.read(|piece| {
            at += piece.copy_to(&mut payload[at..]);
            Ok::<(), Infallible>(())
        });
        if read.is_ok() {
            (self.payload, self.loan) = (payload, None);
        }
    }

    /// Number of packets that it stands for.
    #[must_use]
    pub fn packets(&self) -> u32 {
        if let Some(train) = &self.train {
            return train.datagrams();
        }
        self.len().div_ceil(self.mtu.bytes()).max(1)
    }

    /// Number of packet sequence numbers that it takes: a READ takes as many as its response has packets.
    #[must_use]
    pub fn span(&self) -> u32 {
        match &self.content {
            Content::Read(target) => target.length.div_ceil(self.mtu.bytes()).max(1),
            _ => self.packets(),
        }
    }

    /// Whether it answers a request.
    #[must_use]
    pub const fn is_response(&self) -> bool {
        matches!(
            self.content,
            Content::Acknowledge(..) | Content::ReadResponse(_) | Content::AtomicResponse(..)
        )
    }

    /// Whether it asks for something or brings a datagram, and is no answer to anything.
    #[must_use]
    pub const fn is_request(&self) -> bool {
        !self.is_response() && !matches!(self.content, Content::Notification)
    }

    /// Whether port counters count it. Acknowledgements and notifications are not counted.
    #[must_use]
    pub const fn is_counted(&self) -> bool {
        !matches!(
            self.content,
            Content::Acknowledge(..) | Content::AtomicResponse(..) | Content::Notification
        )
    }

    /// Length of all packets in words of four octets, as the port counters count.
    #[must_use]
    pub fn words(&self) -> u64 {
        let headers = match self.content {
            Content::Datagram { .. } => DATAGRAM_WORDS,
            _ => HEADER_WORDS,
        };
        let operands = match self.content {
            Content::Atomic { .. } => 8 / 4,
            Content::Notification => NOTIFICATION_WORDS,
            _ => 0,
        };
        let payload = self.train.map_or(self.len(), |train| train.total());
        u64::from(payload) / 4 + operands + u64::from(self.packets()) * headers
    }

    /// Whether payload and packets fit together: packets that others follow are full, and a last
    /// packet behind others is not empty (IBA 9.7.4.1.5, 9.8.3.2.2).
    #[must_use]
    pub fn is_well_formed(&self) -> bool {
        let (len, mtu) = (self.len(), self.mtu.bytes());
        let carries = matches!(
            self.content,
            Content::Send(_) | Content::Write(..) | Content::ReadResponse(_)
        );
        let fits = match self.content {
            Content::Datagram { .. } => match &self.train {
                Some(train) => train.length() == len && train.longest() <= mtu,
                None => len <= mtu,
            },
            _ => self.train.is_none() && (carries || len == 0),
        };
        let whole = carries || (self.first && self.last);
        let full = self.last || (len > 0 && len.is_multiple_of(mtu));
        let ends = !self.last || self.first || len > 0;
        let begins = match self.content {
            Content::Write(target, _) => target.is_some() == self.first,
            _ => true,
        };
        let closes = match self.content {
            Content::Send(tail) => self.last || tail == Tail::None,
            Content::Write(_, immediate) => self.last || immediate.is_none(),
            _ => true,
        };
        len <= MAX_PAYLOAD && fits && whole && full && ends && begins && closes
    }

    /// The datagrams of a train, as a frame each; nothing where it is none.
    pub fn datagrams(&self) -> impl Iterator<Item = Self> {
        let trains = self.train.into_iter();
        trains
            .flat_map(|train| (0..train.datagrams()).map(move |number| (train, number)))
            .map(|(train, number)| {
                let mut payload = Vec::new();
                train.write(&self.payload, number, &mut payload);
                Self {
                    psn: self.psn.plus(number),
                    session: None,
                    content: self.content.clone(),
                    payload,
                    loan: None,
                    train: None,
                    ..*self
                }
            })
    }

    /// Some of the packets, as a frame. Of a train there are none.
    ///
    /// # Panics
    /// When there are not as many.
    #[must_use]
    pub fn part(&self, packets: Range<u32>) -> Self {
        let total = self.packets();
        assert!(packets.start < packets.end && packets.end <= total);
        let mtu = self.mtu.bytes();
        let from = packets.start * mtu;
        let to = (packets.end * mtu).min(self.len());
        let loan = self.loan.as_ref().map(|loan| Box::new(loan.part(from, to)));
        let payload = match loan {
            Some(_) => Vec::new(),
            None => self.payload[from as usize..to as usize].to_vec(),
        };
        let ends = packets.end == total;
        let content = match self.content {
            Content::Send(_) if !ends => Content::Send(Tail::None),
            Content::Write(target, immediate) => Content::Write(
                target.filter(|_| packets.start == 0),
                immediate.filter(|_| ends),
            ),
            ref content => content.clone(),
        };
        Self {
            psn: self.psn.plus(packets.start),
            first: self.first && packets.start == 0,
            last: self.last && ends,
            solicited: self.solicited && ends,
            acknowledge: self.acknowledge && ends,
            session: self.session.clone(),
            content,
            payload,
            loan,
            ..*self
        }
    }

    /// Routers have passed it on.
    pub(crate) fn cross(&mut self, crossing: &Crossing) {
        self.address.slid = crossing.slid;
        self.address.dlid = crossing.dlid;
        if let Some((global, _)) = &mut self.address.global {
            global.hop_limit = crossing.hop_limit;
        }
    }
}

/// The service of a connected transport.
pub(crate) const fn service(transport: Transport) -> Service {
    match transport {
        Transport::Uc => Service::Uc,
        Transport::Xrc => Service::Xrc,
        Transport::Dci | Transport::Dct => Service::Dc,
        _ => Service::Rc,
    }
}
