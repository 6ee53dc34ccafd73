//! The subnet around an engine, as the engine sees it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use wire::congestion::AdapterCongestionEvent;
use wire::{Gid, Lid, MadPacket, Mtu, PKey, QKey, Qpn, Sl, Vl};

use crate::objects::counters::traffic::{PathId, PathTraffic};
use crate::objects::ids::VfId;
use crate::objects::work::GlobalRoute;
use crate::transport::endpoint::injection::Injection;
use crate::transport::endpoint::links::Links;

/// Where a way ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// At a function of this program. Which of its engines the function lives in, engines know.
    Here(VfId),
    /// Elsewhere: over this link, whose endpoint knows who is there ([`crate::Engine::add_link`]).
    Away(LinkId),
}

/// A link to another engine, on another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u16);

impl Route {
    /// A clean way, which nobody counts.
    #[must_use]
    pub const fn clean(end: End, mtu: Mtu) -> Self {
        Self {
            end,
            mtu,
            path: PathId::NONE,
            faulty: false,
            delay: 0,
            shares: None,
            crossing: None,
        }
    }

    /// Whether links do anything to what goes there but to carry it.
    #[inline]
    #[must_use]
    pub const fn is_impaired(&self) -> bool {
        self.faulty || self.delay > 0 || self.shares.is_some()
    }

    /// The function at the end, where that is of this program.
    #[inline]
    #[must_use]
    pub const fn here(&self) -> Option<VfId> {
        match self.end {
            End::Here(to) => Some(to),
            End::Away(_) => None,
        }
    }
}

/// A resolved way from one port to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Where it ends.
    pub end: End,
    /// Largest packet payload on the way.
    pub mtu: Mtu,
    /// Under which number to count what takes it. Of a multicast packet all routes have the same,
    /// and it is counted once.
    pub path: PathId,
    /// Links on the way lose packets: [`Subnet::lose`] says which.
    pub faulty: bool,
    /// Delay of slow links on the way, in nanoseconds.
    pub delay: u64,
    /// Links on the way share their bandwidth among lanes; `None` where everybody gets all of it.
    pub shares: Option<Shares>,
    /// Headers as routers on the way change them; `None` within a subnet.
    pub crossing: Option<Crossing>,
}

/// A way over links that share their bandwidth among lanes ([`Subnet::links`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Its number. Of a multicast packet all routes have the same.
    pub way: u32,
    /// The link, among these, to the port at the end.
    pub end: u16,
    /// The lane at the sender's port.
    pub lane: Vl,
    /// Bytes per second of the sender's link.
    pub rate: u64,
}

/// Header fields of a packet that has come from another subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossing {
    /// Source LID: the last router's.
    pub slid: Lid,
    /// Destination LID.
    pub dlid: Lid,
    /// Hop limit.
    pub hop_limit: u8,
}

/// The fields of a packet's headers that decide where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Heading {
    /// Destination LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: Sl,
    /// P_Key.
    pub pkey: PKey,
    /// Destination GID and hop limit, with a global route header.
    pub global: Option<(Gid, u8)>,
}

impl Heading {
    pub(crate) fn new(dlid: Lid, sl: Sl, pkey: PKey, global: Option<GlobalRoute>) -> Self {
        let global = global.map(|global| (global.dgid, global.hop_limit));
        Self {
            dlid,
            sl,
            pkey,
            global,
        }
    }
}

/// Why a packet does not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoute {
    /// It does not get beyond the sender's port; the sender hears nothing.
    Dropped,
    /// Some hop, link or table on the way drops it, or it reaches a port that has no queue pairs (a
    /// switch, a manager). Counted under this number.
    Lost(PathId),
    /// The sender's port gets no credits to send it. Counted under this number, and not as sent.
    Held(PathId),
}

/// A packet with a key that is not the receiver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrongKey {
    /// The partition: what the packet had.
    Partition(PKey),
    /// The queue key: what the packet had.
    Queue(QKey),
}

/// Where a packet came from and where it was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// Source LID.
    pub slid: Lid,
    /// Destination LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: Sl,
    /// Source queue pair.
    pub src_qp: Qpn,
    /// Destination queue pair.
    pub dest_qp: Qpn,
}

/// The subnet. Called when a cached path is stale and for management
/// datagrams, never for each packet, unless links are faulty.
pub trait Subnet: std::fmt::Debug + Send {
    /// Counter that changes whenever a path may have changed.
    fn generation(&self) -> Arc<AtomicU64>;

    /// Where the engine counts what passes over the paths.
    fn traffic(&self) -> Arc<PathTraffic> {
        Arc::default()
    }

    /// The links, where they share their bandwidth among lanes.
    fn links(&self) -> Option<Box<dyn Links>> {
        None
    }

    /// Rules by which a function's port holds back frames that meet congestion, if it does. The answer is kept
    /// until [`Subnet::generation`] changes.
    fn injection(&self, _at: VfId) -> Option<Arc<Injection>> {
        None
    }

    /// Is told of what a function has begun to hold back: an index has reached the threshold of its service level.
    /// The event has no time.
    fn held_back(&mut self, _at: VfId, _event: AdapterCongestionEvent) {}

    /// The way of a unicast packet, also of one to the sender's own port. The
    /// answer is kept, be it a route or none, until [`Subnet::generation`]
    /// changes.
    ///
    /// # Errors
    /// [`NoRoute`] says what becomes of it instead.
    fn resolve(&mut self, from: VfId, heading: &Heading) -> Result<Route, NoRoute>;

    /// The LID by which the subnet knows a group that a function sends to, by this LID: another one where
    /// the function comes from a subnet where the group had that. The answer is kept until
    /// [`Subnet::generation`] changes.
    fn group_lid(&self, _from: VfId, _mgid: Gid, lid: Lid) -> Lid {
        lid
    }

    /// Functions that a multicast packet reaches. The sender's own makes no
    /// difference: the HCA delivers to it without the subnet.
    fn resolve_multicast(&mut self, from: VfId, mlid: Lid, sl: Sl, pkey: PKey) -> Vec<Route>;

    /// Sends packets of `words` words each on a path whose route is `faulty`, until one gets lost, which
    /// is counted where that happens. How many have arrived before it; `None`: all.
    fn lose(&mut self, _path: PathId, _packets: u64, _words: u64) -> Option<u64> {
        None
    }

    /// The functions, of those that [`Subnet::resolve_multicast`] tells, that a packet of `words` words reaches
    /// where links on the way lose packets; `None`: all of them. Packets that do not reach all are counted.
    fn lose_multicast(&mut self, _path: PathId, _words: u64) -> Option<Vec<VfId>> {
        None
    }

    /// Is told of a packet that `at` dropped for its key, beside its being counted: subnet managers
    /// want to know. Called for each, so it must not cost much.
    fn wrong_key(&mut self, _at: VfId, _key: WrongKey, _packet: &Envelope) {}

    /// Takes a datagram that a guest sent to queue pair 0 or 1 of any port. The
    /// subnet decides whether it goes anywhere and returns it, where it is for
    /// a function's queue pair, through [`crate::Engine::deliver_mad`].
    fn send_mad(&mut self, from: VfId, packet: MadPacket);
}
