//! The engine: every function's objects, and what is done with them. The verbs are in the room `verbs`; data moves
//! in `local` and `transport`; the order of turns is here.
//!
//! An engine has parts, each with methods that need no more than it and the objects: [`Objects`] are the functions
//! and what they have created, [`Scheduler`] the order of turns and the timers, [`Polling`] the doorbell records
//! that are looked at without being rung, [`Exits`] where frames leave and arrive. The engine's own work needs most
//! of them: requests, completions, failures.

use std::sync::Arc;

use crate::engine::requests::Requests;
use crate::engine::scheduler::Clock;
use crate::memory::mr::KeyTable;
use crate::objects::Objects;
use crate::objects::counters::TrafficCounters;
use crate::objects::ids::VfId;
use crate::objects::page_fault::Faults;
use crate::objects::reason::Report;
use crate::objects::vf::Vf;
use crate::objects::vf::port::{PortView, Quota};
use crate::path::Subnet;
use crate::queue_format::{Event, PortChange, QueueFormat};
use crate::transport::datagram::MAX_DATAGRAM;
use crate::transport::network::Network;
use crate::transport::{Endpoint, Watch};

pub(crate) mod completion;
pub(crate) mod cost;
pub(crate) mod errors;
pub(crate) mod paging;
pub(crate) mod poll;
pub(crate) mod progress;
pub(crate) mod quiesce;
pub(crate) mod requests;
mod run_queue;
pub(crate) mod scheduler;
mod signature;

/// The engine. See the crate's documentation for who calls it.
#[derive(Debug)]
pub struct Engine<F: QueueFormat> {
    pub(crate) objects: Objects<F>,
    pub(crate) requests: Requests,
    pub(crate) network: Network,
    /// Where datagrams are gathered; taken out while one is on its way.
    pub(crate) datagram: Option<Box<[u8; MAX_DATAGRAM]>>,
    pub(crate) seed: u64,
}

impl<F: QueueFormat> Engine<F> {
    /// An engine without functions. `seed` makes object numbers unguessable;
    /// draw it from the system, or fix it to repeat a run.
    #[must_use]
    pub fn new(subnet: Box<dyn Subnet>, clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self {
            objects: Objects::default(),
            requests: Requests::new(Arc::clone(&clock)),
            network: Network::new(subnet, clock),
            datagram: None,
            seed,
        }
    }

    /// Keeps something large that is of no use any more until somebody takes it
    /// ([`Engine::take_discarded`]): to drop it takes time.
    pub fn discard<T: Send + 'static>(&mut self, thing: T) {
        self.requests.discard(thing);
    }

    /// Adds a function.
    pub fn add_vf(&mut self, dma: F::Dma, face: F::Vf, quota: Quota) -> VfId {
        let id = VfId(self.objects.vfs.len() as u16);
        let seed = self.seed ^ (u64::from(id.0) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.objects.vfs.push(Vf::new(dma, face, quota, seed));
        id
    }

    pub(crate) fn vf_mut(&mut self, vf: VfId) -> &mut Vf<F> {
        self.objects.vf_mut(vf)
    }

    /// Guest memory of a function.
    #[must_use]
    pub fn dma(&self, vf: VfId) -> &F::Dma {
        &self.objects.vf(vf).dma
    }

    /// Guest memory of a function, to map and unmap.
    pub fn dma_mut(&mut self, vf: VfId) -> &mut F::Dma {
        self.objects.vf_mut(vf).keys.revoke();
        &mut self.objects.vf_mut(vf).dma
    }

    /// QueueFormat state of a function.
    #[must_use]
    pub fn face(&self, vf: VfId) -> &F::Vf {
        &self.objects.vf(vf).face
    }

    /// QueueFormat state and memory of a function.
    pub fn face_mut(&mut self, vf: VfId) -> (&mut F::Vf, &F::Dma) {
        let vf = self.objects.vf_mut(vf);
        (&mut vf.face, &vf.dma)
    }

    /// Memory keys of a function.
    #[must_use]
    pub fn keys(&self, vf: VfId) -> &KeyTable {
        &self.objects.vf(vf).keys
    }

    /// Traffic counters of a function's port.
    #[must_use]
    pub fn counters(&self, vf: VfId) -> Arc<TrafficCounters> {
        Arc::clone(&self.objects.vf(vf).counters)
    }

    /// The port of a function, as last set.
    #[must_use]
    pub fn port(&self, vf: VfId) -> &PortView {
        &self.objects.vf(vf).port
    }

    /// Takes over what management changed at a function's port. The face is
    /// told separately, with [`Engine::port_changed`].
    pub fn set_port(&mut self, vf: VfId, port: PortView) {
        let state = self.objects.vf_mut(vf);
        state.port = port;
        if let Some(rest) = &mut state.quiesced {
            rest.active = state.port.active;
            state.port.active &= rest.returns;
        }
        state.version += 1;
    }

    /// Number of times that connections have looked their peers up: for the first message, and after something
    /// changed on the way or at either end.
    #[must_use]
    pub const fn peer_lookups(&self) -> u64 {
        self.network.lookups
    }

    /// Tells a function's face what has changed at its port; a function that rests hears of it when it goes on.
    pub fn port_changed(&mut self, vf: VfId, change: PortChange) {
        match &mut self.objects.vf_mut(vf).quiesced {
            Some(rest) => rest.note(change),
            None => self.objects.notify(vf, Event::Port(change)),
        }
    }

    /// Has frames watched from now on, or not any more. Watched traffic goes in frames.
    pub fn set_watch(&mut self, watch: Option<Box<dyn Watch>>) {
        self.network.exits.endpoint.watch = watch;
        self.objects.vfs.iter_mut().for_each(|vf| vf.version += 1);
    }

    /// Has frames leave and arrive elsewhere. Those on their way are lost.
    pub fn set_endpoint(&mut self, endpoint: Box<dyn Endpoint>) {
        self.network.exits.replace(endpoint);
    }

    /// Bytes of the host's memory that a function's objects take, see [`Quota::memory`].
    #[must_use]
    pub fn memory_taken(&self, vf: VfId) -> usize {
        self.objects.vf(vf).memory.charged()
    }

    /// Numbers of objects of a function: queue pairs, completion queues, shared
    /// receive queues, memory keys, protection domains.
    #[must_use]
    pub fn object_counts(&self, vf: VfId) -> [(&'static str, usize); 5] {
        let vf = self.objects.vf(vf);
        [
            ("qp", vf.qps.len()),
            ("cq", vf.cqs.len()),
            ("srq", vf.srqs.len()),
            ("mkey", vf.keys.len()),
            ("pd", vf.pds.len()),
        ]
    }

    /// Destroys all objects of a function: it was reset, or its guest is gone. Nobody finds them from
    /// now on, and the function may have new ones at once. To give the memory of the old ones back
    /// takes as long as there are many: call [`Engine::clear_away`] until nothing is left, and drop what
    /// [`Engine::take_discarded`] returns, with others at the engine between.
    pub fn reset_vf(&mut self, vf: VfId) {
        self.requests.bury(&mut self.objects, vf);
        self.requests.forget_held(&mut self.objects, vf);
        let polled = self
            .requests
            .completions
            .scheduler
            .polling
            .forget(&mut self.objects, vf);
        let state = &mut self.objects.vfs[usize::from(vf.0)];
        let gone = (
            state.pds.replace(),
            state.xrcds.replace(),
            state.psvs.replace(),
            std::mem::take(&mut state.multicast),
            std::mem::take(&mut state.ways),
            state.keys.replace(),
            std::mem::take(&mut state.sets),
            polled,
        );
        self.network.exits.injections.forget(vf);
        state.special = [None; 2];
        state.faults = Faults::default();
        if let Some(rest) = &mut state.quiesced {
            rest.changes.clear();
        }
        state.version += 1;
        state.multicast_left = 1 << state.quota.log_multicast;
        state.memory.clear();
        state.taken = 0;
        self.requests.trim();
        self.requests.discard(gone);
    }
}

impl<F: QueueFormat> Engine<F> {
    /// The same for a queue that its owner armed.
    pub fn hold_armed(&mut self, vf: VfId, cqn: u32, nanoseconds: u32) {
        if let Ok(cq) = self.objects.vf(vf).cq_index(cqn) {
            self.requests
                .completions
                .hold_event(&mut self.objects, cq, nanoseconds);
        }
    }

    /// Says that these functions are at one port. To be said before they have queue pairs.
    pub fn share_port(&mut self, functions: &[VfId]) {
        let sharers: Arc<[VfId]> = functions.into();
        for &function in functions {
            self.objects.vf_mut(function).sharers = Arc::clone(&sharers);
        }
    }

    /// Has failed requests reported from now on.
    pub fn set_report(&mut self, report: Box<dyn Report>) {
        self.requests.report = Some(report);
    }
}
