//! The engine: every function's objects, and what is done with them. The verbs are in the room `verbs`; data moves
//! in `local` and `transport`; the order of turns is here.
//!
//! An engine has parts, each with methods that need no more than it and the objects: [`Objects`] are the functions
//! and what they have created, [`Scheduler`](scheduler::Scheduler) the order of turns, the timers, and doorbell records
//! that are looked at without being rung, [`Completions`](completion::Completions) what completes in a turn, [`Requests`]
//! requests up to their completion and what fails, [`Network`] routes and exits. The [`Executor`] joins them.

use std::sync::Arc;
use std::task::Waker;

use wire::{MadPacket, Qpn};

use crate::engine::executor::Executor;
use crate::engine::requests::Requests;
use crate::engine::scheduler::Clock;
use crate::local::delivery::Delivery;
use crate::objects::Objects;
use crate::objects::dynamic::{DctView, Role};
use crate::objects::ids::{VerbError, VfId};
use crate::objects::page_fault::Faults;
use crate::objects::qp::RecvQueue;
use crate::objects::qp::attributes::{QpAttr, QpView};
use crate::objects::reason::Report;
use crate::objects::tags::TagView;
use crate::objects::vf::Vf;
use crate::objects::vf::port::Quota;
use crate::path::{LinkId, Subnet};
use crate::queue_format::QueueFormat;
use crate::storage::discarded::Discarded;
use crate::transport::endpoint::exits::over;
use crate::transport::endpoint::mesh::Mesh;
use crate::transport::network::Network;
use crate::transport::{Endpoint, Frame, Watch};
use crate::verbs::Verbs;
use crate::verbs::connection::QpQueues;

pub(crate) mod completion;
pub(crate) mod errors;
pub(crate) mod executor;
pub(crate) mod outcome;
pub(crate) mod paging;
mod poll;
pub(crate) mod polling;
pub(crate) mod quiesce;
pub(crate) mod requests;
pub(crate) mod scheduler;
mod signature;

/// The engine. See the crate's documentation for who calls it.
#[derive(Debug)]
pub struct Engine<F: QueueFormat> {
    pub(crate) executor: Executor<F>,
    pub(crate) seed: u64,
}

impl<F: QueueFormat> Engine<F> {
    /// An engine without functions. `seed` makes object numbers unguessable;
    /// draw it from the system, or fix it to repeat a run.
    #[must_use]
    pub fn new(subnet: Box<dyn Subnet>, clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self {
            executor: Executor {
                objects: Objects::default(),
                requests: Requests::new(Arc::clone(&clock)),
                network: Network::new(subnet, clock),
                datagram: None,
            },
            seed,
        }
    }

    /// Keeps something large that is of no use any more until somebody takes it
    /// ([`Engine::take_discarded`]): to drop it takes time.
    pub fn discard<T: Send + 'static>(&mut self, thing: T) {
        self.executor.requests.discard(thing);
    }

    /// Adds a function.
    pub fn add_vf(&mut self, dma: F::Dma, face: F::Vf, quota: Quota) -> VfId {
        let id = VfId(self.executor.objects.vfs.len() as u16);
        let seed = self.seed ^ (u64::from(id.0) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.executor
            .objects
            .vfs
            .push(Vf::new(dma, face, quota, seed));
        id
    }

    /// A function, to change what is its own alone.
    pub fn vf_mut(&mut self, vf: VfId) -> &mut Vf<F> {
        self.executor.objects.vf_mut(vf)
    }

    /// Number of times that connections have looked their peers up: for the first message, and after something
    /// changed on the way or at either end.
    #[must_use]
    pub const fn peer_lookups(&self) -> u64 {
        self.executor.network.lookups
    }

    /// Has frames watched from now on, or not any more. Watched traffic goes in frames.
    pub fn set_watch(&mut self, watch: Option<Box<dyn Watch>>) {
        self.executor.network.exits.endpoint.watch = watch;
        self.executor
            .objects
            .vfs
            .iter_mut()
            .for_each(|vf| vf.version += 1);
    }

    /// Has frames leave and arrive elsewhere. Those on their way are lost.
    pub fn set_endpoint(&mut self, endpoint: Box<dyn Endpoint>) {
        self.executor.network.exits.replace(endpoint);
    }

    /// Destroys all objects of a function: it was reset, or its guest is gone. Nobody finds them from
    /// now on, and the function may have new ones at once. To give the memory of the old ones back
    /// takes as long as there are many: call [`Engine::clear_away`] until nothing is left, and drop what
    /// [`Engine::take_discarded`] returns, with others at the engine between.
    pub fn reset_vf(&mut self, vf: VfId) {
        let Executor {
            objects,
            requests,
            network,
            ..
        } = &mut self.executor;
        requests.bury(objects, vf);
        requests.forget_held(objects, vf);
        let polled = requests.completions.scheduler.polling.forget(objects, vf);
        let state = objects.vf_mut(vf);
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
        network.exits.injections.forget(vf);
        state.special = [None; 2];
        state.faults = Faults::default();
        if let Some(rest) = &mut state.quiesced {
            rest.changes.clear();
        }
        state.version += 1;
        state.multicast_left = 1 << state.quota.log_multicast;
        state.memory.clear();
        state.taken = 0;
        requests.trim();
        requests.discard(gone);
    }

    /// The event of a completion queue, which its owner armed, waits for more entries, no longer than these
    /// nanoseconds (completion queue moderation).
    pub fn hold_armed(&mut self, vf: VfId, cqn: u32, nanoseconds: u32) {
        let Executor {
            objects, requests, ..
        } = &mut self.executor;
        if let Ok(cq) = objects.vf(vf).cq_index(cqn) {
            requests.completions.hold_event(objects, cq, nanoseconds);
        }
    }

    /// Says that these functions are at one port. To be said before they have queue pairs.
    pub fn share_port(&mut self, functions: &[VfId]) {
        let sharers: Arc<[VfId]> = functions.into();
        for &function in functions {
            self.executor.objects.vf_mut(function).sharers = Arc::clone(&sharers);
        }
    }

    /// Has failed requests reported from now on.
    pub fn set_report(&mut self, report: Box<dyn Report>) {
        self.executor.requests.report = Some(report);
    }

    /// One turn: looks for posted work and does some of it. Returns whether
    /// there was any.
    #[inline]
    pub fn poll(&mut self) -> bool {
        self.executor.poll()
    }

    /// Lets a function rest: it has no turns, and what comes to it waits. Its commands have to be kept away,
    /// too. Where there are several engines, say so to each, and to the one where it lives last.
    pub fn quiesce(&mut self, vf: VfId) {
        self.executor.quiesce(vf);
    }

    /// A function goes on that rests, with what has come for it first. Where there are several engines, say
    /// so to each, and to the one where it lives first.
    pub fn resume(&mut self, vf: VfId) {
        self.executor.resume(vf);
    }

    /// Executes posted work until none is left or a bounded amount is done.
    /// Returns whether some is left.
    #[inline]
    pub fn run(&mut self) -> bool {
        self.executor.run()
    }

    /// A turn of one function, out of order, for a caller who brings it work and would have to wait
    /// for another thread to do it.
    #[inline]
    pub fn run_vf(&mut self, vf: VfId) {
        self.executor.run_vf(vf);
    }

    /// When [`Engine::run`] must be called again although nothing rings, in
    /// the clock's nanoseconds; a time in the past when there is work now.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.executor.next_deadline()
    }

    /// A frame has come to a function's port from outside the engine. It may say anything.
    pub fn receive(&mut self, at: VfId, frame: Frame) {
        self.executor.receive(at, frame);
    }

    /// Hands a management datagram to queue pair 0 or 1 of a function, or to an ordinary datagram queue
    /// pair. Where functions share the port, the GID or the queue pair number says which function has
    /// that queue pair. A queue pair that cannot take the datagram drops it, as on the wire.
    ///
    /// False when there is no such queue pair, as where no driver runs.
    pub fn deliver_mad(&mut self, vf: VfId, packet: &MadPacket) -> bool {
        Delivery::new(&mut self.executor).deliver_mad(vf, packet)
    }

    /// A function, as it is in this engine.
    #[must_use]
    pub fn vf(&self, vf: VfId) -> &Vf<F> {
        self.executor.objects.vf(vf)
    }

    /// The verbs of a function.
    pub fn verbs(&mut self, vf: VfId) -> Verbs<'_, F> {
        let Executor {
            objects,
            requests,
            network,
            ..
        } = &mut self.executor;
        Verbs {
            vf,
            objects,
            requests,
            network,
            seed: self.seed,
        }
    }

    /// Takes away objects that a function had before it was reset, a bounded number of them; returns whether some
    /// are left. The objects are discarded.
    pub fn clear_away(&mut self, vf: VfId) -> bool {
        let Executor {
            objects, requests, ..
        } = &mut self.executor;
        requests.clear_away(objects, vf)
    }

    /// Whether [`Engine::take_discarded`] has something.
    #[inline]
    #[must_use]
    pub fn has_discarded(&self) -> bool {
        !self.executor.requests.discarded.is_empty()
    }

    /// Takes the objects that are of no use any more. The caller drops them where nobody waits.
    pub fn take_discarded(&mut self) -> Discarded {
        std::mem::take(&mut self.executor.requests.discarded)
    }

    /// Whether frames are on their way from or to a function, as far as this engine carries them. While the
    /// function rests nobody sends any more, so that those come to an end.
    #[must_use]
    pub fn carries(&self, vf: VfId) -> bool {
        let mut at = 0;
        std::iter::from_fn(|| {
            at += 1;
            self.executor.objects.sharer(vf, at - 1)
        })
        .any(|port| self.executor.network.exits.carry(vf, port))
    }

    /// Wakes somebody whenever frames have arrived here, from now on or not any more: [`Engine::carries`] may
    /// say something else then.
    pub fn call_at_arrivals(&mut self, waiter: Option<Waker>) {
        self.executor.network.exits.rests.waiter = waiter;
    }

    /// A doorbell page of `vf` says that `qpn` was rung. Others may have been
    /// rung before it and overwritten.
    pub fn hint(&mut self, vf: VfId, qpn: Qpn) {
        let Executor {
            objects, requests, ..
        } = &mut self.executor;
        requests
            .completions
            .scheduler
            .polling
            .hint(objects, vf, qpn);
    }

    /// Starts looking at every polled queue pair's record, a few per turn.
    pub fn sweep(&mut self) {
        let Executor {
            objects, requests, ..
        } = &mut self.executor;
        requests.completions.scheduler.polling.sweep(objects);
    }

    /// Whether any queue pair needs polling.
    #[must_use]
    pub fn polls(&self) -> bool {
        self.executor
            .requests
            .completions
            .scheduler
            .polling
            .is_needed()
    }

    /// Whether any queue pair was busy lately, and is looked at on every turn.
    #[inline]
    #[must_use]
    pub fn is_hot(&self) -> bool {
        self.executor
            .requests
            .completions
            .scheduler
            .polling
            .is_hot_beside(0)
    }

    /// Joins the engine to others: paths that end [`End::Away`](crate::End::Away) over this link lead there. Frames that arrive at
    /// the endpoint are for functions of this engine.
    pub fn add_link(&mut self, endpoint: Box<dyn Endpoint>) -> LinkId {
        self.executor.network.exits.add(endpoint)
    }

    /// Joins the engine to others of the program, which have the same functions: each lives in one of
    /// them, as the homes of the mesh say, and the others know its port.
    pub fn join(&mut self, mesh: Mesh) {
        let links = self.executor.network.subnet.links();
        self.join_over(mesh, |mesh| over(links, mesh));
    }

    /// The same, with other links on the way.
    pub fn join_over(&mut self, mesh: Mesh, links: impl FnOnce(Mesh) -> Box<dyn Endpoint>) {
        for (at, vf) in self.executor.objects.vfs.iter_mut().enumerate() {
            vf.elsewhere = !mesh.is_home(VfId(at as u16));
        }
        self.executor.network.exits.may_be_crowded = true;
        self.set_endpoint(links(mesh));
    }

    /// Looks at the endpoints, at one of which something has arrived without the engine's doing.
    pub fn wake(&mut self) {
        self.executor.network.exits.look();
    }

    /// Queries a queue pair.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn query_qp(&self, vf: VfId, qpn: Qpn) -> Result<QpView, VerbError> {
        let qp = self.executor.objects.qp(vf, qpn)?;
        let attr = QpAttr {
            rq_psn: qp.resp.psn,
            sq_psn: qp.req.psn,
            ..qp.core.attr
        };
        Ok(QpView {
            state: qp.core.state,
            attr,
            msn: qp.resp.msn,
        })
    }

    /// The queues of a queue pair, for queries.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn qp_queues(&self, vf: VfId, qpn: Qpn) -> Result<QpQueues<'_, F>, VerbError> {
        let qp = self.executor.objects.qp(vf, qpn)?;
        let recv = if let RecvQueue::Own(queue) = &qp.resp.queue {
            Some(queue)
        } else {
            None
        };
        Ok((qp.req.queue.as_ref(), recv))
    }

    /// Rings the send doorbell of a queue pair: everything before `through`,
    /// counted as its send queue counts ([`QueueFormat::ring_send`]), is posted. It is
    /// executed by [`Engine::run`].
    pub fn ring_send(&mut self, vf: VfId, qpn: Qpn, through: u16) {
        if let Ok(index) = self.executor.objects.qp_index(vf, qpn) {
            if let Some(qp) = self.executor.objects.qps.get_mut(index.0)
                && let Some(queue) = &mut qp.req.queue
            {
                F::ring_send(queue, through);
            }
            let scheduler = &mut self.executor.requests.completions.scheduler;
            scheduler.make_ready(&mut self.executor.objects, index);
        }
    }

    /// Queries a DC target.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn query_dct(&self, vf: VfId, dctn: Qpn) -> Result<DctView, VerbError> {
        let index = self.executor.objects.dct_index(vf, dctn)?;
        let qp = self
            .executor
            .objects
            .qps
            .get(index.0)
            .ok_or(VerbError::NotFound)?;
        let Role::Target(target) = &qp.resp.role else {
            return Err(VerbError::NotFound);
        };
        Ok(DctView {
            qp: QpView {
                state: qp.core.state,
                attr: qp.core.attr,
                msn: 0,
            },
            violations: target.violations,
            contexts: target.list.len(),
        })
    }

    /// Queries the tag list of a shared receive queue, if it has one.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn query_tags(&self, vf: VfId, srqn: u32) -> Result<Option<TagView>, VerbError> {
        let srq = self
            .executor
            .objects
            .srq(vf, srqn)
            .ok_or(VerbError::NotFound)?;
        Ok(srq.tags.as_ref().map(|tags| tags.view()))
    }
}
