//! Queue pairs: their attributes and states.

use serde::{Deserialize, Serialize};
use wire::{Lid, Mtu, Psn, QKey, Qpn, Sl};

use crate::engine::paging::Paging;
use crate::engine::traffic::PathId;
use crate::engine::vf::CachedRoute;
use crate::engine::{CqIndex, QpIndex, SrqIndex, VfId};
use crate::face::Face;
use crate::memory::lending::Lending;
use crate::storage::numbers::Numbers;
use crate::transport::Away;
use crate::transport::responder::Receiving;
use crate::verbs::counters::CounterSet;
use crate::verbs::dynamic::{FarEnd, Role};
use crate::verbs::migration::{AlternatePath, MigrationState};
use crate::verbs::work::{GlobalRoute, RecvWr, SendWr};

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
    /// goes to the [`Self::ReceiveQueue`] that the face chooses ([`Face::steer`]).
    Underlay,
    /// A send queue alone. Its datagrams are those of the underlay queue pair that is its
    /// [`QpDesc::source_qpn`], as long as that one may send.
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
    /// Of SENDs that it receives.
    pub received: u8,
    /// Of answers to its READs and atomics that are signaled.
    pub answered: u8,
}

/// Most bytes of a message that a completion holds.
pub const MAX_IN_COMPLETION: usize = 64;

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

/// A queue pair to be created.
#[derive(Debug)]
pub struct QpDesc<F: Face> {
    /// Transport service.
    pub transport: Transport,
    /// Protection domain.
    pub pd: u32,
    /// Send queue and its completion queue.
    pub send: Option<(F::Send, u32)>,
    /// Receive side.
    pub recv: RecvSide<F::Recv>,
    /// Completion queue of the receive side.
    pub recv_cqn: Option<u32>,
    /// Queue pair number that packets carry as their source, if not its own
    /// (general services send as queue pair 1).
    pub source_qpn: Option<Qpn>,
    /// Multicast packets it sends do not come back to it.
    pub block_multicast_loopback: bool,
    /// Its datagrams are IP packets (RFC 4391), of which it checks and computes checksums.
    pub offloads: bool,
    /// Its doorbells are not announced: the engine looks at its records.
    pub polled: bool,
    /// The set of counters that it counts in; 0 is none.
    pub counter_set: u8,
    /// Index that its completions carry; see
    /// [`CompletionEntry::user_index`](crate::work::CompletionEntry::user_index).
    pub user_index: Option<u32>,
    /// Messages that its completions hold.
    pub in_completion: InCompletion,
}

/// What a query tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpView {
    /// State now.
    pub state: QpState,
    /// Attributes, with the PSNs as they are now.
    pub attr: QpAttr,
    /// Message sequence number of the responder.
    pub msn: u32,
}

/// What does not change while a queue pair lives, and its state.
#[derive(Debug)]
pub(crate) struct Core {
    pub vf: VfId,
    pub qpn: Qpn,
    pub user_index: Option<u32>,
    pub in_completion: InCompletion,
    pub transport: Transport,
    pub pd: u32,
    pub state: QpState,
    pub attr: QpAttr,
    pub set: CounterSet,
    pub source_qpn: Qpn,
    pub block_multicast_loopback: bool,
    pub offloads: bool,
    pub polled: bool,
    /// Among those that the engine looks at on every turn.
    pub hot: bool,
    /// Where it stands in the function's list of polled queue pairs.
    pub polled_at: usize,
    /// Where it stands in the function's list of queue pairs in error.
    pub errored_at: usize,
}

/// Why a requester does not go on, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wait {
    /// For work.
    None,
    /// Receiver not ready.
    Rnr,
    /// No acknowledgement.
    Ack,
    /// To send again what the responder did not expect (sequence error NAK).
    Nak,
    /// For a peer at rest. No image has it: who waits so looks again.
    #[serde(skip)]
    Rest,
    /// For a page of its own memory. An image has that with the requester's [`Paging`].
    #[serde(skip)]
    Page,
}

/// The requesting half of a queue pair.
#[derive(Debug)]
pub(crate) struct Requester<F: Face> {
    pub queue: Option<F::Send>,
    pub cq: Option<CqIndex>,
    /// Request in progress: taken, not completed.
    pub current: Option<Box<SendWr>>,
    /// Bytes of it already moved.
    pub offset: u64,
    pub psn: Psn,
    pub retries_left: u8,
    pub rnr_left: u8,
    pub wait: Wait,
    /// Identifies the timer that may end the wait; others are stale.
    pub timer: u64,
    /// Since when the wait lasts, in the clock's nanoseconds.
    pub since: u64,
    /// When the timer is due.
    pub due: u64,
    /// Whether it waits for a page.
    pub paging: Paging,
    /// In the function's ready queue.
    pub queued: bool,
    /// It has sent a frame since it last waited for room. No image has it.
    pub sent: bool,
    /// Until when it waits for congestion, and is on the list of those who do; 0: it is not. No image has it.
    pub held_until: u64,
    /// What it has under way in frames.
    pub away: Option<Box<Away>>,
    /// The far end that an initiator of dynamic connections has now.
    pub far: FarEnd,
    /// What is looked up again.
    pub found: Found,
}

/// What a requester has looked up of the subnet and of other functions. It lasts no longer than they
/// stay as they are: no image has it.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Path, as last resolved.
    pub route: Option<CachedRoute>,
    /// The port where the path led before it led nowhere.
    pub former: Option<VfId>,
    /// Peer, as last found.
    pub peer: Option<Peer>,
}

impl Found {
    /// A path has been resolved anew.
    pub fn resolved(&mut self, found: CachedRoute) {
        self.former = match (&found.route, &self.route) {
            (Ok(_), _) => None,
            (
                Err(_),
                Some(CachedRoute {
                    route: Ok(route), ..
                }),
            ) => route.here(),
            (Err(_), _) => self.former,
        };
        self.route = Some(found);
    }
}

impl<F: Face> Requester<F> {
    pub fn new(queue: Option<F::Send>, cq: Option<CqIndex>) -> Self {
        Self {
            queue,
            cq,
            current: None,
            offset: 0,
            psn: Psn::default(),
            retries_left: 0,
            rnr_left: 0,
            wait: Wait::None,
            timer: 0,
            since: 0,
            due: 0,
            paging: Paging::None,
            queued: false,
            sent: false,
            held_until: 0,
            away: None,
            far: FarEnd::default(),
            found: Found::default(),
        }
    }

    /// There was progress: both retry counters begin anew.
    #[inline]
    pub const fn reload_retries(&mut self, attr: &QpAttr) {
        self.retries_left = attr.retry_count;
        self.rnr_left = attr.rnr_retry;
    }
}

/// The queue pair at the other end, and the counters under which it is that. When it changes itself,
/// it has this forgotten ([`Responder::heard_by`]).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub qp: QpIndex,
    pub vf: VfId,
    /// Payload bytes per packet.
    pub mtu: u32,
    /// Longest message that gets through: all, or one packet that fits the path.
    pub longest: u64,
    /// The way there, and the way back that responses to reads take.
    pub paths: [PathId; 2],
    /// The service levels there and back.
    pub levels: [Sl; 2],
    /// Something on the way there or back loses, delays or watches, or there is no way back: messages
    /// go in frames.
    pub away: bool,
    pub generation: u64,
    /// Versions of the functions at both ends.
    pub versions: [u64; 2],
}

/// The receive queue of a queue pair.
#[derive(Debug)]
pub(crate) enum RecvQueue<F: Face> {
    None,
    Own(F::Recv),
    Shared(SrqIndex),
    /// A shared receive queue with a list of tags; what the queue pair keeps of them is its [`Role`].
    Tagged(SrqIndex),
    Xrc(u32),
}

impl<F: Face> RecvQueue<F> {
    /// The shared receive queue that it is.
    pub const fn shared(&self) -> Option<SrqIndex> {
        match self {
            Self::Shared(srq) | Self::Tagged(srq) => Some(*srq),
            Self::None | Self::Own(_) | Self::Xrc(_) => None,
        }
    }
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

/// The responding half of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder<F: Face> {
    pub queue: RecvQueue<F>,
    pub cq: Option<CqIndex>,
    pub psn: Psn,
    pub msn: u32,
    pub inbound: Option<Inbound>,
    /// Bytes received of a message that is not complete.
    pub received: u64,
    pub established: bool,
    /// The other end has said that it may migrate, since this one may. No image has it: who is restored hears it again.
    pub other_is_armed: bool,
    /// Whether it waits for a page.
    pub paging: Paging,
    /// What it keeps of messages that come in frames.
    pub receiving: Receiving,
    /// What answers to READs have lent. No image has it.
    pub lending: Lending,
    /// The queue pair that keeps this one as its peer; it looks again, so no image has this.
    pub heard_by: Option<QpIndex>,
    /// What it is of dynamic connections, or keeps of tags.
    pub role: Role,
}

impl<F: Face> Responder<F> {
    pub fn new(queue: RecvQueue<F>, cq: Option<CqIndex>) -> Self {
        Self {
            queue,
            cq,
            psn: Psn::default(),
            msn: 0,
            inbound: None,
            received: 0,
            established: false,
            other_is_armed: false,
            paging: Paging::None,
            receiving: Receiving::default(),
            lending: Lending::default(),
            heard_by: None,
            role: Role::None,
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp<F: Face> {
    pub core: Core,
    pub req: Requester<F>,
    pub resp: Responder<F>,
}

/// Queue pairs of one function by number.
pub(crate) type QpNumbers = Numbers<QpIndex>;
