//! Attributes of queue pairs.

use serde::{Deserialize, Serialize};
use wire::{Lid, Mtu, Psn, QKey, Qpn, Sl};

use crate::objects::work::{GlobalRoute, MAX_IN_COMPLETION, RecvWr, SendWr};

/// Transport service of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection: initiator or target.
    Xrc,
    /// Queue pair 0, subnet management.
    Smi,
    /// Queue pair 1, general services.
    Gsi,
    /// No transport: executes memory-key updates only.
    KeyUpdate,
    /// Initiator of dynamic connections: each request names its far end.
    Dci,
    /// Target of dynamic connections.
    Dct,
    /// Unreliable datagram, without queues: the address of those that [`Self::SendQueue`]s send, and what comes to it
    /// goes to the [`Self::ReceiveQueue`] that the face chooses ([`QueueFormat::steer`](crate::QueueFormat::steer)).
    Underlay,
    /// A send queue alone. Its datagrams are those of the underlay queue pair that is its
    /// [`QpDesc::source_qpn`](crate::QpDesc::source_qpn), as long as that one may send.
    SendQueue,
    /// A receive queue alone, which takes what comes to underlay queue pairs.
    ReceiveQueue,
}

impl Transport {
    /// Whether requests carry an address vector each.
    #[must_use]
    pub const fn is_datagram(self) -> bool {
        matches!(
            self,
            Self::Ud
                | Self::Smi
                | Self::Gsi
                | Self::Underlay
                | Self::SendQueue
                | Self::ReceiveQueue
        )
    }

    /// Whether a queue pair that may be anybody's is the address of datagrams, and may be in multicast groups.
    #[inline]
    pub(crate) const fn is_address(self) -> bool {
        matches!(self, Self::Ud | Self::Underlay)
    }

    /// Whether a queue pair has to have a protection domain; 0 is none. Linux has a receive queue without one, which
    /// takes nothing.
    pub(crate) const fn needs_domain(self) -> bool {
        !matches!(self, Self::KeyUpdate | Self::Underlay | Self::ReceiveQueue)
    }

    /// Whether messages are acknowledged.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc | Self::Dci | Self::Dct)
    }
}

/// State of a queue pair (specification 10.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QpState {
    /// Just created, or reset.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    ReadyToReceive,
    /// Ready to send.
    ReadyToSend,
    /// Send queue drained: no new requests start.
    SendQueueDrain,
    /// Send queue in error, receive queue alive (unreliable transports).
    SendQueueError,
    /// In error: all requests are flushed.
    Error,
}

impl QpState {
    /// Whether incoming packets are processed.
    #[inline]
    #[must_use]
    pub const fn receives(self) -> bool {
        matches!(
            self,
            Self::ReadyToReceive | Self::ReadyToSend | Self::SendQueueDrain | Self::SendQueueError
        )
    }

    /// Whether the modify verb allows this transition (specification 10.3.1,
    /// figure 124).
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        use QpState::{
            Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError,
        };
        matches!(
            (self, next),
            (_, Reset | Error)
                | (Reset | Init, Init)
                | (Init, ReadyToReceive)
                | (
                    ReadyToReceive | ReadyToSend | SendQueueDrain | SendQueueError,
                    ReadyToSend
                )
                | (ReadyToSend | SendQueueDrain, SendQueueDrain)
        )
    }
}

/// Rights of the peer of a connected queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteRights {
    /// RDMA reads.
    pub read: bool,
    /// RDMA writes.
    pub write: bool,
    /// Atomic operations.
    pub atomic: bool,
}

/// Path to the peer of a connected queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressPath {
    /// Destination LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Low bits of the source LID under the LMC.
    pub src_path_bits: u8,
    /// Global route, if packets carry a GRH.
    pub global: Option<GlobalRoute>,
}

/// Attributes of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QpAttr {
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// Q_Key (datagrams).
    pub qkey: QKey,
    /// Rights of the peer.
    pub rights: RemoteRights,
    /// Path MTU.
    pub mtu: Mtu,
    /// Path to the peer.
    pub path: Option<AddressPath>,
    /// Peer's queue pair.
    pub dest_qp: Qpn,
    /// Expected PSN.
    pub rq_psn: Psn,
    /// Next PSN to send.
    pub sq_psn: Psn,
    /// RNR NAK timer code that the peer is told.
    pub min_rnr_timer: u8,
    /// Local ACK timeout code: 4.096 µs · 2^code, 0 for none.
    pub timeout: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries, 7 for ever.
    pub rnr_retry: u8,
    /// Path to migrate to.
    #[serde(default)]
    pub alternate: Option<AlternatePath>,
    /// Whether it may migrate.
    #[serde(default)]
    pub migration: MigrationState,
    /// A block that is not as its signature says, of a key that a request of its own has used, drains its send queue:
    /// those behind wait until somebody has decided what becomes of them.
    #[serde(default)]
    pub drain_sigerr: bool,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            pkey_index: 0,
            qkey: QKey::default(),
            rights: RemoteRights::default(),
            mtu: Mtu::B4096,
            path: None,
            dest_qp: Qpn::default(),
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            min_rnr_timer: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            alternate: None,
            migration: MigrationState::Migrated,
            drain_sigerr: false,
        }
    }
}

/// Changes to [`QpAttr`]; `None` stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QpChange {
    /// See [`QpAttr::pkey_index`].
    pub pkey_index: Option<u16>,
    /// See [`QpAttr::qkey`].
    pub qkey: Option<QKey>,
    /// See [`QpAttr::rights`].
    pub read: Option<bool>,
    /// See [`QpAttr::rights`].
    pub write: Option<bool>,
    /// See [`QpAttr::rights`].
    pub atomic: Option<bool>,
    /// See [`QpAttr::mtu`].
    pub mtu: Option<Mtu>,
    /// See [`QpAttr::path`].
    pub path: Option<AddressPath>,
    /// See [`QpAttr::dest_qp`].
    pub dest_qp: Option<Qpn>,
    /// See [`QpAttr::rq_psn`].
    pub rq_psn: Option<Psn>,
    /// See [`QpAttr::sq_psn`].
    pub sq_psn: Option<Psn>,
    /// See [`QpAttr::min_rnr_timer`].
    pub min_rnr_timer: Option<u8>,
    /// See [`QpAttr::timeout`].
    pub timeout: Option<u8>,
    /// See [`QpAttr::retry_count`].
    pub retry_count: Option<u8>,
    /// See [`QpAttr::rnr_retry`].
    pub rnr_retry: Option<u8>,
    /// The set of counters that it counts in from now on; 0 is none.
    pub counter_set: Option<u8>,
    /// See [`QpAttr::alternate`].
    pub alternate: Option<AlternatePath>,
    /// See [`QpAttr::migration`]. One that is armed and is to have migrated does so.
    pub migration: Option<MigrationState>,
    /// See [`QpAttr::drain_sigerr`].
    pub drain_sigerr: Option<bool>,
}

impl QpAttr {
    pub(crate) fn apply(&mut self, change: &QpChange) {
        fn set<T: Copy>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        set(&mut self.pkey_index, change.pkey_index);
        set(&mut self.qkey, change.qkey);
        set(&mut self.rights.read, change.read);
        set(&mut self.rights.write, change.write);
        set(&mut self.rights.atomic, change.atomic);
        set(&mut self.mtu, change.mtu);
        if change.path.is_some() {
            self.path = change.path;
        }
        set(&mut self.dest_qp, change.dest_qp);
        set(&mut self.rq_psn, change.rq_psn);
        set(&mut self.sq_psn, change.sq_psn);
        set(&mut self.min_rnr_timer, change.min_rnr_timer);
        set(&mut self.timeout, change.timeout);
        set(&mut self.retry_count, change.retry_count);
        set(&mut self.rnr_retry, change.rnr_retry);
        set(&mut self.drain_sigerr, change.drain_sigerr);
        if change.alternate.is_some() {
            self.alternate = change.alternate;
        }
        if change.migration == Some(MigrationState::Armed) {
            self.migration = MigrationState::Armed;
        }
    }
}

/// The receive side that a new queue pair gets; numbers are the owner's.
#[derive(Debug)]
pub enum RecvSide<R> {
    /// None: the queue pair only sends.
    None,
    /// Its own receive queue.
    Own(R),
    /// A shared receive queue.
    Shared(u32),
    /// XRC target: the packet names the shared receive queue, which must be of
    /// this domain.
    Xrc(u32),
}

/// Longest messages that completions of a queue pair hold in place of memory, in bytes, of [`MAX_IN_COMPLETION`] at
/// most; 0: none. A queue pair that has none is not slower for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InCompletion {
    /// Longest SENDs that it receives.
    pub received: u8,
    /// Longest answers to its READs and atomics that are signaled.
    pub answered: u8,
}

impl InCompletion {
    /// Whether a received message is one that its completion holds. One of no bytes is held by nobody.
    #[inline]
    pub(crate) const fn receives(self, len: u64) -> bool {
        self.received != 0 && len != 0 && len <= self.received as u64
    }

    /// Whether the answer to a request is one that its completion holds.
    #[inline]
    pub(crate) const fn answers(self, wr: &SendWr, len: u64) -> bool {
        self.answered != 0 && wr.signaled && len != 0 && len <= self.answered as u64
    }

    /// Whether a queue pair may have it. An image says so.
    pub(crate) const fn is_sound(self) -> bool {
        self.received as usize <= MAX_IN_COMPLETION && self.answered as usize <= MAX_IN_COMPLETION
    }
}

/// Answer to a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpView {
    /// State now.
    pub state: QpState,
    /// Attributes, with the PSNs as they are now.
    pub attr: QpAttr,
    /// Message sequence number of the responder.
    pub msn: u32,
}

/// A receive request that a message is being scattered into.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub wr: Box<RecvWr>,
    /// Shared receive queue that it came from.
    pub srqn: Option<u32>,
    /// Protection domain of its buffers.
    pub pd: u32,
}

/// A path for later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlternatePath {
    /// The path.
    pub path: AddressPath,
    /// Index into the port's P_Key table on it.
    pub pkey_index: u16,
    /// Local ACK timeout code on it.
    pub timeout: u8,
}

/// Whether a connection may migrate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MigrationState {
    /// It has migrated, or has no other path.
    #[default]
    Migrated,
    /// It may: it has an alternate path.
    Armed,
}

impl QpAttr {
    /// Whether it has a path to go to when this one fails.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.migration == MigrationState::Armed && self.alternate.is_some()
    }

    /// Goes to the alternate path; whether it could.
    pub(crate) fn migrate(&mut self) -> bool {
        let armed = self.is_armed();
        if armed && let Some(alternate) = self.alternate.take() {
            self.path = Some(alternate.path);
            self.pkey_index = alternate.pkey_index;
            self.timeout = alternate.timeout;
            self.migration = MigrationState::Migrated;
        }
        armed
    }
}
