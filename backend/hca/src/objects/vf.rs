//! A virtual function, as the engine keeps it.

pub(crate) mod polled;
pub(crate) mod port;
pub(crate) mod quiesce;
pub(crate) mod route_cache;
pub(crate) mod run_queue;
pub(crate) mod service_level;

use crate::objects::vf::port::{PortView, Quota};
use crate::objects::vf::route_cache::Ways;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use wire::Gid;

use crate::memory::domain::Domain;
use crate::memory::mr::KeyTable;
use crate::objects::counters::set::CounterSets;
use crate::objects::counters::{Retries, TrafficCounters};
use crate::objects::ids::{CqIndex, QpIndex, SrqIndex, VfId};
use crate::objects::page_fault::Faults;
use crate::objects::qp::{Core, QpNumbers};
use crate::objects::vf::polled::Polled;
use crate::objects::vf::quiesce::{QUIESCE_HISTORY, Quiesced};
use crate::objects::vf::run_queue::RunQueue;
use crate::queue_format::QueueFormat;
use crate::storage::numbers::Numbers;
use crate::storage::share::Memory;

#[derive(Debug)]
pub(crate) struct Vf<F: QueueFormat> {
    pub dma: F::Dma,
    pub face: F::Vf,
    /// Changes with the port and with a reset: connections from and to here look their peers up again.
    pub version: u64,
    /// It lives in another engine. This engine knows only its port.
    pub elsewhere: bool,
    /// Its share of the host's memory.
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
    /// Slots of the host's memory that frames on their way, and answers to them, hold.
    pub in_flight: Arc<AtomicU32>,
    /// Results of look-ups.
    pub ways: Ways,
    /// While the function rests.
    pub quiesced: Option<Box<Quiesced>>,
    /// When it came back from its last rest, in the clock's nanoseconds; [`QUIESCED`](crate::objects::vf::quiesce::QUIESCED) while it rests, as far
    /// as others wait for it.
    pub back: u64,
    /// When its last rests began and ended, the latest first.
    pub rested: [(u64, u64); QUIESCE_HISTORY],
    pub quota: Quota,
    pub run_queue: RunQueue,
    /// Queue pairs that wait for pages.
    pub faults: Faults,
    pub polled: Polled,
}

impl<F: QueueFormat> Vf<F> {
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
            in_flight: Arc::default(),
            ways: Ways::default(),
            quiesced: None,
            back: 0,
            rested: [(0, 0); QUIESCE_HISTORY],
            quota,
            run_queue: RunQueue::default(),
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
