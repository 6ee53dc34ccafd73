//! The engine: every function's objects, and the verbs that create, change and
//! destroy them. What moves data is in the modules `requester`, `responder`,
//! `datagram` and `progress`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use thiserror::Error;
use wire::{Gid, Psn, Qpn};

use crate::cq::Cq;
use crate::face::{Event, Face};
use crate::mr::{KeyTable, MemoryKey};
use crate::qp::{
    Core, Qp, QpAttr, QpChange, QpDesc, QpState, QpView, RecvQueue, RecvSide, Requester, Responder,
    Transport, Wait,
};
use crate::slab::Slab;
use crate::srq::Srq;
use crate::subnet::Subnet;
use crate::vf::{PortView, Quota, TrafficCounters, Vf};
use crate::work::{RecvWr, SendWr};

/// A virtual function of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VfId(pub u16);

/// Engine-wide index of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct QpIndex(pub u32);

/// Engine-wide index of a completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CqIndex(pub u32);

/// Engine-wide index of a shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SrqIndex(pub u32);

/// A source of time in nanoseconds that only moves forward.
pub trait Clock: std::fmt::Debug + Send + Sync {
    /// Now.
    fn now(&self) -> u64;
}

/// Why a verb failed. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum VerbError {
    /// The function has as many of these as it may have.
    #[error("no more objects of this kind: the function's quota is reached")]
    Exhausted,
    /// No such object.
    #[error("no such object")]
    NotFound,
    /// Others still use it.
    #[error("the object is still in use")]
    InUse,
    /// The queue pair's state does not allow it.
    #[error("the queue pair's state does not allow this")]
    BadState,
    /// A parameter makes no sense.
    #[error("invalid parameter")]
    Invalid,
}

/// The engine. See the crate's documentation for who calls it.
#[derive(Debug)]
pub struct Engine<F: Face> {
    pub(crate) vfs: Vec<Vf<F>>,
    pub(crate) qps: Slab<Qp<F>>,
    pub(crate) cqs: Slab<Cq<F>>,
    pub(crate) srqs: Slab<Srq<F>>,
    pub(crate) subnet: Box<dyn Subnet>,
    pub(crate) generation: Arc<AtomicU64>,
    /// Changes with any queue pair's attributes, state or existence; cached
    /// peers of an earlier epoch are looked up again.
    pub(crate) epoch: u64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) timers: BinaryHeap<Reverse<(u64, u32, u64)>>,
    pub(crate) next_timer: u64,
    pub(crate) ready: VecDeque<QpIndex>,
    /// Queue pairs in error: requests posted to them must be flushed, and
    /// receive requests come without a doorbell.
    pub(crate) errored: Vec<QpIndex>,
    /// Completion queues that failed; their users are yet to be told.
    pub(crate) failed_cqs: Vec<CqIndex>,
    pub(crate) poll: crate::poll::PollState,
    pub(crate) spare_sends: Vec<Box<SendWr>>,
    pub(crate) spare_recvs: Vec<Box<RecvWr>>,
    seed: u64,
}

impl<F: Face> Engine<F> {
    /// An engine without functions. `seed` makes object numbers unguessable;
    /// draw it from the system, or fix it to repeat a run.
    #[must_use]
    pub fn new(subnet: Box<dyn Subnet>, clock: Arc<dyn Clock>, seed: u64) -> Self {
        let generation = subnet.generation();
        Self {
            vfs: Vec::new(),
            qps: Slab::default(),
            cqs: Slab::default(),
            srqs: Slab::default(),
            subnet,
            generation,
            epoch: 0,
            clock,
            timers: BinaryHeap::new(),
            next_timer: 0,
            ready: VecDeque::new(),
            errored: Vec::new(),
            failed_cqs: Vec::new(),
            poll: crate::poll::PollState::default(),
            spare_sends: Vec::new(),
            spare_recvs: Vec::new(),
            seed,
        }
    }

    /// Adds a function.
    pub fn add_vf(&mut self, dma: F::Dma, face: F::Vf, quota: Quota) -> VfId {
        let id = VfId(self.vfs.len() as u16);
        let seed = self.seed ^ (u64::from(id.0) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.vfs.push(Vf::new(dma, face, quota, seed));
        id
    }

    /// Number of functions.
    #[must_use]
    pub fn vf_count(&self) -> usize {
        self.vfs.len()
    }

    pub(crate) fn vf(&self, vf: VfId) -> &Vf<F> {
        &self.vfs[usize::from(vf.0)]
    }

    pub(crate) fn vf_mut(&mut self, vf: VfId) -> &mut Vf<F> {
        &mut self.vfs[usize::from(vf.0)]
    }

    /// Guest memory of a function.
    #[must_use]
    pub fn dma(&self, vf: VfId) -> &F::Dma {
        &self.vf(vf).dma
    }

    /// Guest memory of a function, to map and unmap.
    pub fn dma_mut(&mut self, vf: VfId) -> &mut F::Dma {
        &mut self.vf_mut(vf).dma
    }

    /// Face state of a function.
    #[must_use]
    pub fn face(&self, vf: VfId) -> &F::Vf {
        &self.vf(vf).face
    }

    /// Face state and memory of a function.
    pub fn face_mut(&mut self, vf: VfId) -> (&mut F::Vf, &F::Dma) {
        let vf = self.vf_mut(vf);
        (&mut vf.face, &vf.dma)
    }

    /// Memory keys of a function.
    #[must_use]
    pub fn keys(&self, vf: VfId) -> &KeyTable {
        &self.vf(vf).keys
    }

    /// Traffic counters of a function's port.
    #[must_use]
    pub fn counters(&self, vf: VfId) -> Arc<TrafficCounters> {
        Arc::clone(&self.vf(vf).counters)
    }

    /// The port of a function, as last set.
    #[must_use]
    pub fn port(&self, vf: VfId) -> &PortView {
        &self.vf(vf).port
    }

    /// Takes over what management changed at a function's port. The face is
    /// told separately, with [`Engine::notify`].
    pub fn set_port(&mut self, vf: VfId, port: PortView) {
        self.vf_mut(vf).port = port;
        self.epoch += 1;
    }

    /// Delivers an asynchronous event to a function's face.
    pub fn notify(&mut self, vf: VfId, event: Event) {
        let vf = self.vf_mut(vf);
        F::event(&vf.dma, &mut vf.face, event);
    }

    /// Numbers of objects of a function: queue pairs, completion queues, shared
    /// receive queues, memory keys, protection domains.
    #[must_use]
    pub fn object_counts(&self, vf: VfId) -> [(&'static str, usize); 5] {
        let vf = self.vf(vf);
        [
            ("qp", vf.qps.len()),
            ("cq", vf.cqs.len()),
            ("srq", vf.srqs.len()),
            ("mkey", vf.keys.len()),
            ("pd", vf.pds.len()),
        ]
    }

    /// Destroys all objects of a function: it was reset, or its guest is gone.
    pub fn reset_vf(&mut self, vf: VfId) {
        let numbers: Vec<u32> = self.vf(vf).qps.iter().map(|(number, _)| number).collect();
        for number in numbers {
            let _ = self.remove_qp(vf, number);
        }
        let cqs: Vec<CqIndex> = self.vf(vf).cqs.iter().map(|(_, &cq)| cq).collect();
        for cq in cqs {
            self.cqs.remove(cq.0);
            self.poll.forget_cq(cq);
        }
        let srqs: Vec<SrqIndex> = self.vf(vf).srqs.iter().map(|(_, &srq)| srq).collect();
        for srq in srqs {
            self.srqs.remove(srq.0);
        }
        let state = self.vf_mut(vf);
        state.cqs.clear();
        state.srqs.clear();
        state.pds.clear();
        state.xrcds.clear();
        state.multicast.clear();
        state.multicast_left = 1 << state.quota.log_multicast;
        let log_keys = state.quota.log_keys;
        self.seed = self
            .seed
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(1);
        let seed = self.seed;
        self.vf_mut(vf).keys = KeyTable::new(log_keys, seed);
    }

    // Protection and XRC domains.

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`].
    pub fn alloc_pd(&mut self, vf: VfId) -> Result<u32, VerbError> {
        self.vf_mut(vf).pds.insert(()).ok_or(VerbError::Exhausted)
    }

    /// Frees a protection domain.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn dealloc_pd(&mut self, vf: VfId, pd: u32) -> Result<(), VerbError> {
        self.vf_mut(vf).pds.remove(pd).ok_or(VerbError::NotFound)
    }

    /// Allocates an XRC domain.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`].
    pub fn alloc_xrcd(&mut self, vf: VfId) -> Result<u32, VerbError> {
        self.vf_mut(vf).xrcds.insert(()).ok_or(VerbError::Exhausted)
    }

    /// Frees an XRC domain.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn dealloc_xrcd(&mut self, vf: VfId, xrcd: u32) -> Result<(), VerbError> {
        self.vf_mut(vf)
            .xrcds
            .remove(xrcd)
            .ok_or(VerbError::NotFound)
    }

    // Memory keys.

    /// Creates a memory key and returns its index; the key is
    /// `index << 8 | variant`.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`], or [`VerbError::NotFound`] for the domain.
    pub fn create_key(&mut self, vf: VfId, key: MemoryKey) -> Result<u32, VerbError> {
        let state = self.vf_mut(vf);
        state.pds.get(key.pd).ok_or(VerbError::NotFound)?;
        state.keys.insert(key).ok_or(VerbError::Exhausted)
    }

    /// Destroys the memory key with this index.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn destroy_key(&mut self, vf: VfId, index: u32) -> Result<MemoryKey, VerbError> {
        self.vf_mut(vf)
            .keys
            .remove(index)
            .ok_or(VerbError::NotFound)
    }

    // Completion queues.

    /// Creates a completion queue; `make` builds its ring, knowing its number.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`].
    pub fn create_cq(
        &mut self,
        vf: VfId,
        make: impl FnOnce(u32) -> F::Completion,
    ) -> Result<u32, VerbError> {
        let Self { vfs, cqs, .. } = self;
        vfs[usize::from(vf.0)]
            .cqs
            .insert_with(|cqn| CqIndex(cqs.insert(Cq::new(vf, cqn, make(cqn)))))
            .ok_or(VerbError::Exhausted)
    }

    /// The ring of a completion queue, with the function's face and memory.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn cq_mut(
        &mut self,
        vf: VfId,
        cqn: u32,
    ) -> Result<(&mut F::Completion, &mut F::Vf, &F::Dma), VerbError> {
        let state = &mut self.vfs[usize::from(vf.0)];
        let index = *state.cqs.get(cqn).ok_or(VerbError::NotFound)?;
        let cq = self.cqs.get_mut(index.0).ok_or(VerbError::NotFound)?;
        Ok((&mut cq.ring, &mut state.face, &state.dma))
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// [`VerbError::NotFound`], or [`VerbError::InUse`] by queue pairs.
    pub fn destroy_cq(&mut self, vf: VfId, cqn: u32) -> Result<F::Completion, VerbError> {
        let index = self.cq_index(vf, cqn)?;
        if self.cqs.get(index.0).is_some_and(|cq| cq.users > 0) {
            return Err(VerbError::InUse);
        }
        self.vf_mut(vf).cqs.remove(cqn);
        self.poll.forget_cq(index);
        self.cqs
            .remove(index.0)
            .map(|cq| cq.ring)
            .ok_or(VerbError::NotFound)
    }

    pub(crate) fn cq_index(&self, vf: VfId, cqn: u32) -> Result<CqIndex, VerbError> {
        self.vf(vf).cqs.get(cqn).copied().ok_or(VerbError::NotFound)
    }

    // Shared receive queues.

    /// Creates a shared receive queue. `xrc` names the XRC domain and the
    /// completion queue of an XRC one.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`], or [`VerbError::NotFound`] for what it names.
    pub fn create_srq(
        &mut self,
        vf: VfId,
        pd: u32,
        xrc: Option<(u32, u32)>,
        ring: F::Shared,
    ) -> Result<u32, VerbError> {
        self.vf(vf).pds.get(pd).ok_or(VerbError::NotFound)?;
        let xrc = match xrc {
            Some((xrcd, cqn)) => {
                self.vf(vf).xrcds.get(xrcd).ok_or(VerbError::NotFound)?;
                Some((xrcd, self.cq_index(vf, cqn)?))
            }
            None => None,
        };
        let Self { vfs, srqs, cqs, .. } = self;
        let number = vfs[usize::from(vf.0)]
            .srqs
            .insert_with(|srqn| SrqIndex(srqs.insert(Srq::new(vf, srqn, pd, xrc, ring))))
            .ok_or(VerbError::Exhausted)?;
        if let Some(cq) = xrc.and_then(|(_, cq)| cqs.get_mut(cq.0)) {
            cq.users += 1;
        }
        Ok(number)
    }

    pub(crate) fn srq_index(&self, vf: VfId, srqn: u32) -> Result<SrqIndex, VerbError> {
        self.vf(vf)
            .srqs
            .get(srqn)
            .copied()
            .ok_or(VerbError::NotFound)
    }

    /// The ring of a shared receive queue and its armed limit (0: not armed).
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn srq_mut(&mut self, vf: VfId, srqn: u32) -> Result<(&mut F::Shared, u32), VerbError> {
        let index = self.srq_index(vf, srqn)?;
        let srq = self.srqs.get_mut(index.0).ok_or(VerbError::NotFound)?;
        Ok((&mut srq.ring, srq.limit))
    }

    /// Arms the limit event of a shared receive queue: it is raised once, when
    /// fewer than `limit` requests remain.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn arm_srq(&mut self, vf: VfId, srqn: u32, limit: u32) -> Result<(), VerbError> {
        let index = self.srq_index(vf, srqn)?;
        let srq = self.srqs.get_mut(index.0).ok_or(VerbError::NotFound)?;
        srq.limit = limit;
        let state = &mut self.vfs[usize::from(vf.0)];
        srq.check_limit(&state.dma, &mut state.face);
        Ok(())
    }

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// [`VerbError::NotFound`], or [`VerbError::InUse`] by queue pairs.
    pub fn destroy_srq(&mut self, vf: VfId, srqn: u32) -> Result<(), VerbError> {
        let index = self.srq_index(vf, srqn)?;
        if self.srqs.get(index.0).is_some_and(|srq| srq.users > 0) {
            return Err(VerbError::InUse);
        }
        self.vf_mut(vf).srqs.remove(srqn);
        if let Some(srq) = self.srqs.remove(index.0) {
            self.release_cq(srq.xrc.map(|(_, cq)| cq));
        }
        Ok(())
    }

    fn release_cq(&mut self, cq: Option<CqIndex>) {
        if let Some(cq) = cq.and_then(|cq| self.cqs.get_mut(cq.0)) {
            cq.users -= 1;
        }
    }

    // Queue pairs.

    /// Creates a queue pair in the Reset state and returns its number.
    ///
    /// # Errors
    /// [`VerbError::Exhausted`], [`VerbError::NotFound`] for what it names, or
    /// [`VerbError::InUse`] for a second queue pair 0 or 1.
    pub fn create_qp(&mut self, vf: VfId, desc: QpDesc<F>) -> Result<Qpn, VerbError> {
        let state = self.vf(vf);
        if desc.transport != Transport::KeyUpdate || desc.pd != 0 {
            state.pds.get(desc.pd).ok_or(VerbError::NotFound)?;
        }
        let special = special_slot(desc.transport);
        if special.is_some_and(|slot| state.special[slot].is_some()) {
            return Err(VerbError::InUse);
        }
        let (send_queue, send_cq) = match desc.send {
            Some((queue, cqn)) => (Some(queue), Some(self.cq_index(vf, cqn)?)),
            None => (None, None),
        };
        let recv_cq = desc
            .recv_cqn
            .map(|cqn| self.cq_index(vf, cqn))
            .transpose()?;
        let recv_queue = match desc.recv {
            RecvSide::None => RecvQueue::None,
            RecvSide::Own(_) if recv_cq.is_none() => return Err(VerbError::Invalid),
            RecvSide::Own(queue) => RecvQueue::Own(queue),
            RecvSide::Shared(srqn) => RecvQueue::Shared(self.srq_index(vf, srqn)?),
            RecvSide::Xrc(xrcd) => {
                self.vf(vf).xrcds.get(xrcd).ok_or(VerbError::NotFound)?;
                RecvQueue::Xrc(xrcd)
            }
        };
        let shared = if let RecvQueue::Shared(srq) = recv_queue {
            Some(srq)
        } else {
            None
        };
        let Self { vfs, qps, .. } = self;
        let mut index = None;
        let number = vfs[usize::from(vf.0)]
            .qps
            .insert_with(|number| {
                let qpn = Qpn::new(number);
                let qp = QpIndex(qps.insert(Qp {
                    core: Core {
                        vf,
                        qpn,
                        transport: desc.transport,
                        pd: desc.pd,
                        state: QpState::Reset,
                        attr: QpAttr::default(),
                        source_qpn: desc.source_qpn.unwrap_or(qpn),
                        block_multicast_loopback: desc.block_multicast_loopback,
                        polled: desc.polled,
                    },
                    req: Requester {
                        queue: send_queue,
                        cq: send_cq,
                        current: None,
                        offset: 0,
                        psn: Psn::default(),
                        retries_left: 0,
                        rnr_left: 0,
                        wait: Wait::None,
                        timer: 0,
                        queued: false,
                        peer: None,
                    },
                    resp: Responder {
                        queue: recv_queue,
                        cq: recv_cq,
                        psn: Psn::default(),
                        msn: 0,
                        inbound: None,
                        established: false,
                    },
                }));
                index = Some(qp);
                qp
            })
            .ok_or(VerbError::Exhausted)?;
        let index = index.ok_or(VerbError::Exhausted)?;
        for cq in [send_cq, recv_cq].into_iter().flatten() {
            if let Some(cq) = self.cqs.get_mut(cq.0) {
                cq.users += 1;
            }
        }
        if let Some(srq) = shared.and_then(|srq| self.srqs.get_mut(srq.0)) {
            srq.users += 1;
        }
        if let Some(slot) = special {
            self.vf_mut(vf).special[slot] = Some(index);
        }
        if desc.polled {
            self.poll.add(index);
        }
        self.epoch += 1;
        Ok(Qpn::new(number))
    }

    pub(crate) fn qp_index(&self, vf: VfId, qpn: Qpn) -> Result<QpIndex, VerbError> {
        self.vf(vf)
            .qps
            .get(u32::from(qpn))
            .copied()
            .ok_or(VerbError::NotFound)
    }

    /// Moves a queue pair to `next`, changing what `change` names.
    ///
    /// # Errors
    /// [`VerbError::NotFound`], or [`VerbError::BadState`] when the transition
    /// is not one of the specification's.
    pub fn modify_qp(
        &mut self,
        vf: VfId,
        qpn: Qpn,
        next: QpState,
        change: &QpChange,
    ) -> Result<(), VerbError> {
        let index = self.qp_index(vf, qpn)?;
        let qp = self.qps.get_mut(index.0).ok_or(VerbError::NotFound)?;
        if !qp.core.state.may_become(next) {
            return Err(VerbError::BadState);
        }
        self.epoch += 1;
        match next {
            QpState::Error => self.fail_qp(index),
            QpState::Reset => self.empty_qp(index),
            _ => {
                let earlier = qp.core.state;
                qp.core.attr.apply(change);
                qp.core.state = next;
                if let Some(psn) = change.rq_psn {
                    qp.resp.psn = psn;
                }
                if let Some(psn) = change.sq_psn {
                    qp.req.psn = psn;
                }
                if next == QpState::ReadyToSend {
                    qp.req.retries_left = qp.core.attr.retry_count;
                    qp.req.rnr_left = qp.core.attr.rnr_retry;
                    self.make_ready(index);
                } else if next == QpState::SendQueueDrain
                    && earlier == QpState::ReadyToSend
                    && qp.req.current.is_none()
                {
                    self.notify(vf, Event::SendQueueDrained(qpn));
                }
            }
        }
        Ok(())
    }

    /// What a queue pair is now.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn query_qp(&self, vf: VfId, qpn: Qpn) -> Result<QpView, VerbError> {
        let index = self.qp_index(vf, qpn)?;
        let qp = self.qps.get(index.0).ok_or(VerbError::NotFound)?;
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
    pub fn qp_queues(
        &self,
        vf: VfId,
        qpn: Qpn,
    ) -> Result<(Option<&F::Send>, Option<&F::Recv>), VerbError> {
        let index = self.qp_index(vf, qpn)?;
        let qp = self.qps.get(index.0).ok_or(VerbError::NotFound)?;
        let recv = if let RecvQueue::Own(queue) = &qp.resp.queue {
            Some(queue)
        } else {
            None
        };
        Ok((qp.req.queue.as_ref(), recv))
    }

    /// Destroys a queue pair. Requests in progress are dropped.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn destroy_qp(&mut self, vf: VfId, qpn: Qpn) -> Result<(), VerbError> {
        self.remove_qp(vf, u32::from(qpn))
    }

    fn remove_qp(&mut self, vf: VfId, number: u32) -> Result<(), VerbError> {
        let index = self
            .vf_mut(vf)
            .qps
            .remove(number)
            .ok_or(VerbError::NotFound)?;
        self.epoch += 1;
        self.poll.forget(index);
        self.ready.retain(|&ready| ready != index);
        self.errored.retain(|&errored| errored != index);
        let Some(qp) = self.qps.remove(index.0) else {
            return Err(VerbError::NotFound);
        };
        self.spare_sends.extend(qp.req.current);
        self.spare_recvs
            .extend(qp.resp.inbound.map(|inbound| inbound.wr));
        self.release_cq(qp.req.cq);
        self.release_cq(qp.resp.cq);
        if let RecvQueue::Shared(srq) = qp.resp.queue
            && let Some(srq) = self.srqs.get_mut(srq.0)
        {
            srq.users -= 1;
        }
        let state = self.vf_mut(vf);
        for special in &mut state.special {
            if *special == Some(index) {
                *special = None;
            }
        }
        let mut detached = 0;
        state.multicast.retain(|_, members| {
            let before = members.len();
            members.retain(|&member| member != index);
            detached += before - members.len();
            !members.is_empty()
        });
        state.multicast_left += detached as u32;
        Ok(())
    }

    // Multicast.

    /// Attaches a datagram queue pair to a multicast group.
    ///
    /// # Errors
    /// [`VerbError::NotFound`], [`VerbError::Invalid`] for another transport,
    /// [`VerbError::Exhausted`].
    pub fn attach_multicast(&mut self, vf: VfId, qpn: Qpn, mgid: Gid) -> Result<(), VerbError> {
        let index = self.qp_index(vf, qpn)?;
        if self
            .qps
            .get(index.0)
            .is_none_or(|qp| qp.core.transport != Transport::Ud)
        {
            return Err(VerbError::Invalid);
        }
        let state = self.vf_mut(vf);
        if state
            .multicast
            .get(&mgid)
            .is_some_and(|members| members.contains(&index))
        {
            return Ok(());
        }
        if state.multicast_left == 0 {
            return Err(VerbError::Exhausted);
        }
        state.multicast_left -= 1;
        state.multicast.entry(mgid).or_default().push(index);
        Ok(())
    }

    /// Detaches a queue pair from a multicast group.
    ///
    /// # Errors
    /// [`VerbError::NotFound`].
    pub fn detach_multicast(&mut self, vf: VfId, qpn: Qpn, mgid: Gid) -> Result<(), VerbError> {
        let index = self.qp_index(vf, qpn)?;
        let state = self.vf_mut(vf);
        let members = state.multicast.get_mut(&mgid).ok_or(VerbError::NotFound)?;
        let at = members
            .iter()
            .position(|&member| member == index)
            .ok_or(VerbError::NotFound)?;
        members.swap_remove(at);
        if members.is_empty() {
            state.multicast.remove(&mgid);
        }
        state.multicast_left += 1;
        Ok(())
    }

    // Work.

    /// Rings the send doorbell of a queue pair: new requests are posted. They
    /// are executed by [`Engine::run`].
    pub fn ring_send(&mut self, vf: VfId, qpn: Qpn) {
        if let Ok(index) = self.qp_index(vf, qpn) {
            self.make_ready(index);
        }
    }

    pub(crate) fn make_ready(&mut self, index: QpIndex) {
        if let Some(qp) = self.qps.get_mut(index.0)
            && !qp.req.queued
            && qp.req.queue.is_some()
        {
            qp.req.queued = true;
            self.ready.push_back(index);
        }
    }
}

/// Slot of a management queue pair in [`Vf::special`].
const fn special_slot(transport: Transport) -> Option<usize> {
    match transport {
        Transport::Smi => Some(0),
        Transport::Gsi => Some(1),
        _ => None,
    }
}
