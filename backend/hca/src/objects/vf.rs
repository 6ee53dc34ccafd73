//! A virtual function, as the engine keeps it.

pub(crate) mod polled;
pub(crate) mod port;
pub(crate) mod quiesce;
pub(crate) mod route_cache;
pub(crate) mod run_queue;
pub(crate) mod service_level;

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
use crate::objects::vf::port::{PortView, Quota};
use crate::objects::vf::quiesce::{QUIESCE_HISTORY, Quiesced};
use crate::objects::vf::route_cache::Ways;
use crate::objects::vf::run_queue::RunQueue;
use crate::queue_format::{Event, PortChange, QueueFormat};
use crate::storage::numbers::Numbers;
use crate::storage::share::Memory;

/// A function: its memory, its port, and what it has created.
#[derive(Debug)]
pub struct Vf<F: QueueFormat> {
    pub(crate) dma: F::Dma,
    pub(crate) face: F::Vf,
    /// Changes with the port and with a reset: connections from and to here look their peers up again.
    pub(crate) version: u64,
    /// It lives in another engine. This engine knows only its port.
    pub(crate) elsewhere: bool,
    /// Its share of the host's memory.
    pub(crate) memory: Memory,
    pub(crate) keys: KeyTable,
    /// Protection domains: how many objects are of each.
    pub(crate) pds: Numbers<u32>,
    /// XRC domains, likewise.
    pub(crate) xrcds: Numbers<u32>,
    /// Signature values under way (PSV): the protection domain of each.
    pub(crate) psvs: Numbers<u32>,
    pub(crate) qps: QpNumbers,
    pub(crate) cqs: Numbers<CqIndex>,
    pub(crate) srqs: Numbers<SrqIndex>,
    pub(crate) port: PortView,
    /// The functions at the same port, this one among them; empty where it has its port for itself.
    pub(crate) sharers: Arc<[VfId]>,
    pub(crate) counters: Arc<TrafficCounters>,
    /// Sets of counters of queue pairs.
    pub(crate) sets: CounterSets,
    /// Queue pairs 0 and 1.
    pub(crate) special: [Option<QpIndex>; 2],
    pub(crate) multicast: HashMap<Gid, Vec<QpIndex>>,
    pub(crate) multicast_left: u32,
    /// Requests of connections that are under way in frames.
    pub(crate) taken: u32,
    /// Slots of the host's memory that frames on their way, and answers to them, hold.
    pub(crate) in_flight: Arc<AtomicU32>,
    /// Results of look-ups.
    pub(crate) ways: Ways,
    /// While the function rests.
    pub(crate) quiesced: Option<Box<Quiesced>>,
    /// When it came back from its last rest, in the clock's nanoseconds; [`QUIESCED`](crate::objects::vf::quiesce::QUIESCED) while it rests, as far
    /// as others wait for it.
    pub(crate) back: u64,
    /// When its last rests began and ended, the latest first.
    pub(crate) rested: [(u64, u64); QUIESCE_HISTORY],
    pub(crate) quota: Quota,
    pub(crate) run_queue: RunQueue,
    /// Queue pairs that wait for pages.
    pub(crate) faults: Faults,
    pub(crate) polled: Polled,
}

impl<F: QueueFormat> Vf<F> {
    /// Delivers an asynchronous event to its face.
    pub(crate) fn notify(&mut self, event: Event) {
        F::event(&self.dma, &mut self.face, event);
    }

    /// The memory that a protection domain can reach.
    #[inline]
    pub(crate) const fn domain(&self, pd: u32) -> Domain<'_, F::Dma> {
        Domain {
            dma: &self.dma,
            keys: &self.keys,
            pd,
        }
    }

    pub(crate) fn new(dma: F::Dma, face: F::Vf, quota: Quota, seed: u64) -> Self {
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
    pub(crate) fn retries<'a>(&'a self, core: &'a Core) -> Retries<'a> {
        Retries([&self.counters.retries, &core.set.counters.retries])
    }

    /// One more object of a protection domain.
    pub(crate) fn hold_pd(&mut self, pd: u32) {
        if let Some(users) = self.pds.get_mut(pd) {
            *users += 1;
        }
    }

    /// One object less of a protection domain.
    pub(crate) fn release_pd(&mut self, pd: u32) {
        if let Some(users) = self.pds.get_mut(pd) {
            *users = users.saturating_sub(1);
        }
    }

    /// One more object of an XRC domain.
    pub(crate) fn hold_xrcd(&mut self, xrcd: u32) {
        if let Some(users) = self.xrcds.get_mut(xrcd) {
            *users += 1;
        }
    }

    /// One object less of an XRC domain.
    pub(crate) fn release_xrcd(&mut self, xrcd: u32) {
        if let Some(users) = self.xrcds.get_mut(xrcd) {
            *users = users.saturating_sub(1);
        }
    }

    /// Guest memory of a function.
    #[must_use]
    pub fn dma(&self) -> &F::Dma {
        &self.dma
    }

    /// Guest memory of a function, to map and unmap.
    pub fn dma_mut(&mut self) -> &mut F::Dma {
        self.keys.revoke();
        &mut self.dma
    }

    /// QueueFormat state of a function.
    #[must_use]
    pub fn face(&self) -> &F::Vf {
        &self.face
    }

    /// QueueFormat state and memory of a function.
    pub fn face_mut(&mut self) -> (&mut F::Vf, &F::Dma) {
        let vf = self;
        (&mut vf.face, &vf.dma)
    }

    /// Memory keys of a function.
    #[must_use]
    pub fn keys(&self) -> &KeyTable {
        &self.keys
    }

    /// Traffic counters of a function's port.
    #[must_use]
    pub fn counters(&self) -> Arc<TrafficCounters> {
        Arc::clone(&self.counters)
    }

    /// The port of a function, as last set.
    #[must_use]
    pub fn port(&self) -> &PortView {
        &self.port
    }

    /// Takes over what management changed at a function's port. The face is
    /// told separately, with [`Vf::port_changed`].
    pub fn set_port(&mut self, port: PortView) {
        let state = self;
        state.port = port;
        if let Some(rest) = &mut state.quiesced {
            rest.active = state.port.active;
            state.port.active &= rest.returns;
        }
        state.version += 1;
    }

    /// Tells a function's face what has changed at its port; a function that rests hears of it when it goes on.
    pub fn port_changed(&mut self, change: PortChange) {
        match &mut self.quiesced {
            Some(rest) => rest.note(change),
            None => self.notify(Event::Port(change)),
        }
    }

    /// Bytes of the host's memory that a function's objects take, see [`Quota::memory`].
    #[must_use]
    pub fn memory_taken(&self) -> usize {
        self.memory.charged()
    }

    /// Numbers of objects of a function: queue pairs, completion queues, shared
    /// receive queues, memory keys, protection domains.
    #[must_use]
    pub fn object_counts(&self) -> [(&'static str, usize); 5] {
        let vf = self;
        [
            ("qp", vf.qps.len()),
            ("cq", vf.cqs.len()),
            ("srq", vf.srqs.len()),
            ("mkey", vf.keys.len()),
            ("pd", vf.pds.len()),
        ]
    }

    /// Whether a function has work that waits for its turn.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.run_queue.is_pending()
    }

    /// Whether [`Engine::clear_away`](crate::Engine::clear_away) has something to do.
    #[must_use]
    pub fn has_remains(&self) -> bool {
        !self.run_queue.remains.is_empty()
    }

    /// Whether a function lives in this engine.
    #[must_use]
    pub fn is_home(&self) -> bool {
        !self.elsewhere
    }
}
