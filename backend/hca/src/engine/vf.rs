//! A virtual function, as the engine keeps it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use wire::{Gid, Lid, PKey, Sl};

use crate::engine::agenda::Agenda;
use crate::engine::counters::{Retries, TrafficCounters};
use crate::engine::paging::Faults;
use crate::engine::poll::Polled;
use crate::engine::rest::{RESTS_KEPT, Rest};
use crate::engine::service_level::ServiceLevels;
use crate::engine::{CqIndex, QpIndex, SrqIndex, VfId};
use crate::face::Face;
use crate::memory::access::Domain;
use crate::memory::mr::KeyTable;
use crate::storage::numbers::Numbers;
use crate::storage::share::Memory;
use crate::subnet::{Heading, NoRoute, Route};
use crate::verbs::counters::CounterSets;
use crate::verbs::qp::{Core, QpNumbers};

/// Most objects of each kind that one function may have, as powers of two, and what all of them
/// together may take of the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Queue pairs.
    pub log_qps: u8,
    /// Completion queues.
    pub log_cqs: u8,
    /// Shared receive queues.
    pub log_srqs: u8,
    /// Memory keys, and signature values under way.
    pub log_keys: u8,
    /// Protection domains, and XRC domains.
    pub log_pds: u8,
    /// Multicast attachments.
    pub log_multicast: u8,
    /// Bytes of the host's memory that all objects and their lists of pages may take.
    pub memory: usize,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            log_qps: 17,
            log_cqs: 16,
            log_srqs: 16,
            log_keys: 20,
            log_pds: 16,
            log_multicast: 13,
            memory: 40 << 20,
        }
    }
}

/// What the engine needs to know of a function's port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortView {
    /// Base LID.
    pub lid: Lid,
    /// LID mask control: the port also answers to the LIDs that differ in the
    /// low `lmc` bits.
    pub lmc: u8,
    /// Whether the port is Active: nothing but subnet management passes otherwise.
    pub active: bool,
    /// P_Key table.
    pub pkeys: Vec<PKey>,
    /// GID table. Unused entries have a GUID of 0.
    pub gids: Vec<Gid>,
    /// P_Keys that the guest sees under another value: the table's P_Key, and what the guest sees. It
    /// sees all others as they are.
    pub shown_pkeys: Vec<(PKey, PKey)>,
    /// The service levels it may use.
    pub service_levels: ServiceLevels,
    /// The virtual cluster it is in, if any. Of functions at one port those in a cluster have LIDs of
    /// their own, and those of different clusters, or of one and of none, hear nothing of each other.
    pub cluster: Option<u16>,
}

impl PortView {
    /// Whether a packet to `lid` is for this port.
    #[inline]
    #[must_use]
    pub fn owns(&self, lid: Lid) -> bool {
        u16::from(lid) >> self.lmc == u16::from(self.lid) >> self.lmc
    }

    /// Whether a GID is this port's.
    #[inline]
    #[must_use]
    pub fn has_gid(&self, gid: Gid) -> bool {
        !gid.guid().is_none() && self.gids.contains(&gid)
    }

    /// The low bits by which a LID of this port differs from the base LID.
    #[inline]
    #[must_use]
    pub fn path_bits(&self, lid: Lid) -> u8 {
        (u16::from(lid) & self.path_mask()) as u8
    }

    /// The source LID that path bits of a request make; those that the LMC leaves no room for do not
    /// count.
    #[inline]
    #[must_use]
    pub fn source(&self, path_bits: u8) -> Lid {
        Lid::new(u16::from(self.lid) | u16::from(path_bits) & self.path_mask())
    }

    fn path_mask(&self) -> u16 {
        (1 << self.lmc) - 1
    }

    /// P_Key at `index`, or an invalid one.
    #[inline]
    #[must_use]
    pub fn pkey(&self, index: u16) -> PKey {
        self.pkeys
            .get(usize::from(index))
            .copied()
            .unwrap_or_default()
    }

    /// What the guest sees in place of a P_Key that came in.
    #[inline]
    #[must_use]
    pub fn shown(&self, pkey: PKey) -> PKey {
        const MEMBERSHIP: u16 = 0x8000;
        let mut pairs = self.shown_pkeys.iter();
        let found = pairs.find(|(own, _)| own.partition() == pkey.partition());
        found.map_or(pkey, |(_, shown)| {
            PKey::new(shown.partition() | pkey.value() & MEMBERSHIP)
        })
    }
}

/// What became of looking for a way, cached for packets with one heading.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CachedRoute {
    pub heading: Heading,
    pub generation: u64,
    pub route: Result<Route, NoRoute>,
}

impl CachedRoute {
    /// Whether this still answers for such a packet.
    #[inline]
    pub fn holds(&self, heading: &Heading, generation: u64) -> bool {
        self.generation == generation && self.heading == *heading
    }
}

/// Where multicast packets to a group go.
#[derive(Debug)]
pub(crate) struct CachedFanout {
    pub mgid: Gid,
    /// The group's LID as its sender knows it, and as the subnet does.
    pub mlid: Lid,
    pub here: Lid,
    pub pkey: PKey,
    pub sl: Sl,
    pub generation: u64,
    pub routes: Vec<Route>,
}

/// Slots of the multicast route cache.
pub(crate) const FANOUT_CACHE: usize = 16;
/// Slots of the datagram route cache.
pub(crate) const ROUTE_CACHE: usize = 64;

/// Where datagrams of a function go, as last resolved. No image has it.
#[derive(Debug)]
pub(crate) struct Ways {
    pub routes: [Option<CachedRoute>; ROUTE_CACHE],
    pub fanouts: [Option<CachedFanout>; FANOUT_CACHE],
}

impl Default for Ways {
    fn default() -> Self {
        Self {
            routes: [None; ROUTE_CACHE],
            fanouts: [const { None }; FANOUT_CACHE],
        }
    }
}

#[derive(Debug)]
pub(crate) struct Vf<F: Face> {
    pub dma: F::Dma,
    pub face: F::Vf,
    /// Changes with the port and with a reset: connections from and to here look their peers up again.
    pub version: u64,
    /// It lives in another engine. What is known of it here is its port.
    pub elsewhere: bool,
    /// What it may take of the host's memory.
    pub memory: Memory,
    pub keys: KeyTable,
    /// Protection domains: how many objects are of each.
    pub pds: Numbers<u32>,
    /// XRC domains, likewise.
    pub xrcds: Numbers<u32>,
    /// Signature values under way (PSV): the protection domain of each.
    pub psvs: Numbers<u32>,
    pub qps: QpNumbers,
    pub cqs: Numbers<CqIndex>,
    pub srqs: Numbers<SrqIndex>,
    pub port: PortView,
    /// The functions at the same port, this one among them; empty where it has its port for itself.
    pub sharers: Arc<[VfId]>,
    pub counters: Arc<TrafficCounters>,
    /// Sets of counters of queue pairs.
    pub sets: CounterSets,
    /// Queue pairs 0 and 1.
    pub special: [Option<QpIndex>; 2],
    pub multicast: HashMap<Gid, Vec<QpIndex>>,
    pub multicast_left: u32,
    /// Requests of connections that are under way in frames.
    pub taken: u32,
    /// What frames on their way, and answers to them, hold of the host's memory.
    pub afloat: Arc<AtomicU32>,
    /// What is looked up again.
    pub ways: Ways,
    /// While the function rests.
    pub rest: Option<Box<Rest>>,
    /// When it came back from its last rest, in the clock's nanoseconds; [`RESTS`](crate::engine::rest::RESTS) while it rests, as far
    /// as others wait for it.
    pub back: u64,
    /// When its last rests began and ended, the latest first.
    pub rested: [(u64, u64); RESTS_KEPT],
    pub quota: Quota,
    pub agenda: Agenda,
    /// Who waits for pages.
    pub faults: Faults,
    pub polled: Polled,
}

impl<F: Face> Vf<F> {
    /// The memory that a protection domain can reach.
    pub fn domain(&self, pd: u32) -> Domain<'_, F::Dma> {
        Domain {
            dma: &self.dma,
            keys: &self.keys,
            pd,
        }
    }

    pub fn new(dma: F::Dma, face: F::Vf, quota: Quota, seed: u64) -> Self {
        Self {
            dma,
            face,
            version: 0,
            elsewhere: false,
            memory: Memory::new(quota.memory),
            keys: KeyTable::new(quota.log_keys, seed),
            pds: Numbers::new(quota.log_pds, 24, 1, seed ^ 1),
            xrcds: Numbers::new(quota.log_pds, 24, 1, seed ^ 2),
            psvs: Numbers::new(quota.log_keys, 24, 1, seed ^ 6),
            // Numbers 0 and 1 are the management queue pairs'.
            qps: Numbers::new(quota.log_qps, 24, 16, seed ^ 3),
            cqs: Numbers::new(quota.log_cqs, 24, 1, seed ^ 4),
            srqs: Numbers::new(quota.log_srqs, 24, 1, seed ^ 5),
            port: PortView::default(),
            sharers: Arc::default(),
            counters: Arc::default(),
            sets: CounterSets::default(),
            special: [None; 2],
            multicast: HashMap::new(),
            multicast_left: 1 << quota.log_multicast,
            taken: 0,
            afloat: Arc::default(),
            ways: Ways::default(),
            rest: None,
            back: 0,
            rested: [(0, 0); RESTS_KEPT],
            quota,
            agenda: Agenda::default(),
            faults: Faults::default(),
            polled: Polled::default(),
        }
    }
    /// Where one of its queue pairs counts what it does again.
    #[inline]
    pub fn retries<'a>(&'a self, core: &'a Core) -> Retries<'a> {
        Retries([&self.counters.retries, &core.set.counters.retries])
    }

    /// One more object of a protection domain.
    pub fn hold_pd(&mut self, pd: u32) {
        if let Some(users) = self.pds.get_mut(pd) {
            *users += 1;
        }
    }

    /// One object less of a protection domain.
    pub fn release_pd(&mut self, pd: u32) {
        if let Some(users) = self.pds.get_mut(pd) {
            *users = users.saturating_sub(1);
        }
    }

    /// One more object of an XRC domain.
    pub fn hold_xrcd(&mut self, xrcd: u32) {
        if let Some(users) = self.xrcds.get_mut(xrcd) {
            *users += 1;
        }
    }

    /// One object less of an XRC domain.
    pub fn release_xrcd(&mut self, xrcd: u32) {
        if let Some(users) = self.xrcds.get_mut(xrcd) {
            *users = users.saturating_sub(1);
        }
    }
}
