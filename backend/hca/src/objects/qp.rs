//! Queue pairs: their attributes and states.

pub(crate) mod attributes;
pub(crate) mod timers;

use serde::{Deserialize, Serialize};
use wire::{Psn, Qpn, Sl};

use crate::memory::lending::Lending;
use crate::objects::counters::set::CounterSet;
use crate::objects::counters::traffic::PathId;
use crate::objects::dynamic::{FarEnd, Role};
use crate::objects::ids::{CqIndex, QpIndex, SrqIndex, VfId};
use crate::objects::page_fault::Paging;
use crate::objects::qp::attributes::{InCompletion, Inbound, QpAttr, QpState, RecvSide, Transport};
use crate::objects::vf::route_cache::CachedRoute;
use crate::objects::work::SendWr;
use crate::queue_format::QueueFormat;
use crate::storage::numbers::Numbers;
use crate::storage::slab::Slab;
use crate::transport::Away;
use crate::transport::arrived::{Arrived, Line};
use crate::transport::responder::receiving::Receiving;

/// A queue pair to be created.
#[derive(Debug)]
pub struct QpDesc<F: QueueFormat> {
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

/// Constant properties of a queue pair, and its state.
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
    Quiesced,
    /// For a page of its own memory. An image has that with the requester's [`Paging`].
    #[serde(skip)]
    Page,
}

/// The requesting half of a queue pair.
#[derive(Debug)]
pub(crate) struct Requester<F: QueueFormat> {
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
    /// Messages under way in frames.
    pub away: Option<Box<Away>>,
    /// Frames that have come for either half and wait for turns.
    pub line: Line,
    /// The far end that an initiator of dynamic connections has now.
    pub far: FarEnd,
    /// Results of look-ups.
    pub found: Found,
}

/// Results of a requester's look-ups in the subnet and at other functions. They are valid until those change: no
/// image has them.
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

impl<F: QueueFormat> Requester<F> {
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
            line: Line::default(),
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
pub(crate) enum RecvQueue<F: QueueFormat> {
    None,
    Own(F::Recv),
    Shared(SrqIndex),
    /// A shared receive queue with a list of tags; the queue pair's state of matching is its [`Role`].
    Tagged(SrqIndex),
    Xrc(u32),
}

impl<F: QueueFormat> RecvQueue<F> {
    /// The shared receive queue that it is.
    pub const fn shared(&self) -> Option<SrqIndex> {
        match self {
            Self::Shared(srq) | Self::Tagged(srq) => Some(*srq),
            Self::None | Self::Own(_) | Self::Xrc(_) => None,
        }
    }
}

/// The responding half of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder<F: QueueFormat> {
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
    /// Messages that come in frames.
    pub receiving: Receiving,
    /// Memory lent to answers to READs. No image has it.
    pub lending: Lending,
    /// The queue pair that keeps this one as its peer; it looks again, so no image has this.
    pub heard_by: Option<QpIndex>,
    /// Its role in dynamic connections or tag matching.
    pub role: Role,
}

impl<F: QueueFormat> Responder<F> {
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

/// All queue pairs, by index.
pub(crate) type QueuePairs<F> = Slab<Qp<F>>;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp<F: QueueFormat> {
    pub core: Core,
    pub req: Requester<F>,
    pub resp: Responder<F>,
}

impl<F: QueueFormat> Qp<F> {
    /// Whether the payload of the next packet has been read in part: its turn is over.
    pub(crate) fn reads_on(&self) -> bool {
        let away = self.req.away.as_ref();
        away.is_some_and(|away| away.requester.reads_on())
    }

    /// Takes the next frame that waits in line, if the queue pair still takes such frames.
    #[cold]
    pub(crate) fn next_arrived(&mut self) -> Option<Arrived> {
        while let Some(arrived) = self.req.line.pop() {
            let listens = if arrived.frame.is_response() {
                self.req.away.is_some()
            } else {
                self.core.state.receives()
            };
            if listens {
                return Some(arrived);
            }
        }
        None
    }
}

/// Queue pairs of one function by number.
pub(crate) type QpNumbers = Numbers<QpIndex>;
