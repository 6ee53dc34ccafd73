//! State of functions and their objects, one noun a file.

pub(crate) mod counters;
pub(crate) mod cq;
pub(crate) mod dynamic;
pub(crate) mod ids;
pub(crate) mod missing_page;
pub(crate) mod page_fault;
pub(crate) mod qp;
mod queue_pairs;
pub(crate) mod reason;
pub(crate) mod refusal;
pub(crate) mod shared_port;
pub(crate) mod srq;
pub(crate) mod tags;
pub(crate) mod vf;
pub mod work;

use std::sync::atomic::AtomicU64;

use wire::Qpn;

use crate::memory::sge::Sge;
use crate::objects::counters::{QpCounters, TrafficCounters};
use crate::objects::cq::CompletionQueues;
use crate::objects::dynamic::Context;
use crate::objects::ids::{CqIndex, QpIndex, VerbError, VfId};
use crate::objects::qp::attributes::QpState;
use crate::objects::qp::{Qp, QueuePairs, Wait};
use crate::objects::srq::{SharedQueues, Srq};
use crate::objects::vf::Vf;
use crate::objects::work::{CompletionEntry, MAX_SGE, RecvWr};
use crate::queue_format::{Event, QueueFormat};

/// Bytes that the lists take in which an object stands by its index: those of the engine, of what it
/// looks at, and of what is due.
pub(crate) const LISTED: usize = 128;

/// Functions, and what they have created. A function knows its objects by their numbers and has their
/// indices here.
#[derive(Debug)]
pub(crate) struct Objects<F: QueueFormat> {
    pub vfs: Vec<Vf<F>>,
    pub qps: QueuePairs<F>,
    pub cqs: CompletionQueues<F>,
    pub srqs: SharedQueues<F>,
}

impl<F: QueueFormat> Default for Objects<F> {
    fn default() -> Self {
        Self {
            vfs: Vec::new(),
            qps: QueuePairs::default(),
            cqs: CompletionQueues::default(),
            srqs: SharedQueues::default(),
        }
    }
}

impl<F: QueueFormat> Objects<F> {
    #[inline]
    pub fn vf(&self, vf: VfId) -> &Vf<F> {
        &self.vfs[usize::from(vf.0)]
    }

    #[inline]
    pub fn vf_mut(&mut self, vf: VfId) -> &mut Vf<F> {
        &mut self.vfs[usize::from(vf.0)]
    }

    /// Delivers an asynchronous event to a function's face.
    pub fn notify(&mut self, vf: VfId, event: Event) {
        let vf = self.vf_mut(vf);
        F::event(&vf.dma, &mut vf.face, event);
    }

    pub fn srq(&self, vf: VfId, srqn: u32) -> Option<&Srq<F>> {
        self.srqs.get(self.vf(vf).srqs.get(srqn)?.0)
    }

    /// Raises a shared receive queue's limit event if it is due.
    pub fn check_srq_limit(&mut self, vf: VfId, srqn: u32) {
        let state = &mut self.vfs[usize::from(vf.0)];
        if let Some(srq) = state
            .srqs
            .get(srqn)
            .and_then(|srq| self.srqs.get_mut(srq.0))
        {
            srq.check_limit(&state.dma, &mut state.face);
        }
    }

    /// No more of a shared receive queue goes to this queue pair (11.6.3.1.7).
    pub fn last_request_reached(&mut self, index: QpIndex) {
        if let Some(qp) = self.qps.get(index.0)
            && qp.resp.queue.shared().is_some()
        {
            let (vf, qpn) = (qp.core.vf, qp.core.qpn);
            self.notify(vf, Event::LastWqeReached(qpn));
        }
    }

    pub fn has_lost_cq(&self, index: QpIndex) -> bool {
        self.qps.get(index.0).is_some_and(|qp| {
            let mut cqs = [qp.req.cq, qp.resp.cq].into_iter().flatten();
            qp.core.state != QpState::Reset
                && cqs.any(|cq| self.cqs.get(cq.0).is_some_and(|cq| cq.failed))
        })
    }

    /// Counts a completion with an error.
    #[cold]
    pub fn ended_badly(&self, cq: CqIndex, entry: &CompletionEntry) {
        let cq = self.cqs.get(cq.0);
        if let Some(qp) = cq.and_then(|cq| self.vf(cq.vf).qps.get(entry.qpn.value()))
            && let Some(qp) = self.qps.get(qp.0)
        {
            let counters = &qp.core.set.counters;
            counters.ended_badly(&entry.side, entry.status);
        }
    }

    /// Counts at a queue pair.
    #[cold]
    pub fn count_at(&self, vf: VfId, qpn: Qpn, counter: fn(&QpCounters) -> &AtomicU64) {
        if let Some(index) = self.vf(vf).qps.get(qpn.value())
            && let Some(qp) = self.qps.get(index.0)
        {
            TrafficCounters::add(counter(&qp.core.set.counters), 1);
        }
    }

    /// The last request before a drain is done (11.6.3.1.6).
    #[cold]
    pub fn drained(&mut self, index: QpIndex) {
        if let Some(qp) = self.qps.get(index.0) {
            let (vf, qpn) = (qp.core.vf, qp.core.qpn);
            self.notify(vf, Event::SendQueueDrained(qpn));
        }
    }

    /// Whether blocks of these functions were wrong, and nobody has been told.
    #[inline]
    pub fn has_failed<const N: usize>(&self, vfs: [VfId; N]) -> bool {
        vfs.iter().any(|vf| self.vf(*vf).keys.has_failed())
    }

    /// First packet while in Ready-to-Receive (11.6.3.1.5).
    #[cold]
    pub fn established(&mut self, index: QpIndex) {
        let Some(qp) = self.qps.get(index.0) else {
            return;
        };
        if qp.core.state == QpState::ReadyToReceive {
            let (vf, qpn) = (qp.core.vf, qp.core.qpn);
            self.notify(vf, Event::CommunicationEstablished(qpn));
        }
    }

    #[inline]
    pub fn versions(&self, from: VfId, to: VfId) -> [u64; 2] {
        [self.vf(from).version, self.vf(to).version]
    }

    /// Whether `peer` takes packets of `qp` for its connection's: a responder
    /// listens to its own peer only (9.6.1.1, 9.6.1.5). One in another subnet
    /// (`beyond`) knows it by its GID, and the LID there as a router's.
    pub fn connected(&self, qp: &Qp<F>, peer: &Qp<F>, beyond: bool) -> bool {
        peer.core.transport == qp.core.transport
            && peer.core.attr.dest_qp == qp.core.qpn
            && peer.core.state.receives()
            && peer.core.attr.path.is_some_and(|back| {
                let dgid = back.global.map(|global| global.dgid);
                let port = &self.vf(qp.core.vf).port;
                let known = if beyond {
                    dgid.is_some_and(|dgid| port.has_gid(dgid))
                } else {
                    port.owns(back.dlid)
                };
                known && self.function_at(qp.core.vf, dgid, qp.core.qpn) == Some(qp.core.vf)
            })
    }

    /// Whether a turn of this queue pair would find something to do. One that
    /// waits for a timer has nothing, whatever is posted, and one that is ready
    /// has its turn anyway.
    #[inline]
    pub fn has_work(&self, index: QpIndex) -> bool {
        self.qps.get(index.0).is_some_and(|qp| {
            let executes = match qp.core.state {
                QpState::ReadyToSend => qp.req.wait == Wait::None,
                QpState::Error | QpState::SendQueueError => true,
                _ => false,
            };
            executes
                && !qp.req.queued
                && qp.req.away.as_ref().is_none_or(|away| !away.full)
                && qp
                    .req
                    .queue
                    .as_ref()
                    .is_some_and(|queue| F::send_posted(&self.vf(qp.core.vf).dma, queue))
        })
    }

    pub fn qp_index(&self, vf: VfId, qpn: Qpn) -> Result<QpIndex, VerbError> {
        let index = self.vf(vf).qps.get(u32::from(qpn)).copied();
        // Targets of dynamic connections have verbs of their own.
        let index =
            index.filter(|&index| index != QpIndex::NOBODY && self.qps.target(index).is_none());
        index.ok_or(VerbError::NotFound)
    }

    /// Bytes of the host's memory that a context takes.
    pub(crate) const OF_CONTEXT: usize = size_of::<Qp<F>>()
        + size_of::<Context>()
        + LISTED
        + size_of::<RecvWr>()
        + MAX_SGE * size_of::<Sge>();

    pub fn dct_index(&self, vf: VfId, dctn: Qpn) -> Result<QpIndex, VerbError> {
        let index = self.vf(vf).qps.get(u32::from(dctn)).copied();
        let index = index.filter(|index| self.qps.target(*index).is_some());
        index.ok_or(VerbError::NotFound)
    }
}
