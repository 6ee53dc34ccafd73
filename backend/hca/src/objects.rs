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

use wire::{Gid, Qpn, Sl};

use crate::engine::outcome::Outcome;
use crate::memory::sge::Sge;
use crate::objects::counters::{QpCounters, TrafficCounters};
use crate::objects::cq::{CompletionQueues, Cq};
use crate::objects::dynamic::{Context, Role};
use crate::objects::ids::{CqIndex, QpIndex, SrqIndex, VerbError, VfId};
use crate::objects::qp::attributes::{AddressPath, QpState, Transport};
use crate::objects::qp::{Core, Found, Qp, QueuePairs, Wait};
use crate::objects::reason::{Reason, Status};
use crate::objects::srq::{SharedQueues, Srq};
use crate::objects::tags::{TagList, Tagged};
use crate::objects::vf::Vf;
use crate::objects::vf::quiesce::QUIESCED;
use crate::objects::work::{CompletionEntry, MAX_SGE, RecvWr, SendWr, Source};
use crate::path::Route;
use crate::queue_format::{Event, QueueFormat};
use crate::transport::datagram::Datagram;
use crate::transport::frame::{Address, service};
use crate::transport::requester::Requester;
use crate::transport::requester::away::Away;
use crate::transport::room::BYTES_PER_SLOT;

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
    /// Bytes of the host's memory that a completion queue takes without what its ring has.
    pub(crate) const OF_CQ: usize = size_of::<Cq<F>>() + LISTED;
    /// The same of a shared receive queue.
    pub(crate) const OF_SRQ: usize = size_of::<Srq<F>>() + LISTED + F::OF_SRQ;

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
        self.vf_mut(vf).notify(event);
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

    pub fn qp(&self, vf: VfId, qpn: Qpn) -> Result<&Qp<F>, VerbError> {
        let index = self.qp_index(vf, qpn)?;
        self.qps.get(index.0).ok_or(VerbError::NotFound)
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

    /// The function at the other end of a connection, as last found; `None` where it is not known.
    pub fn other_end(&self, index: QpIndex) -> Option<VfId> {
        let qp = self.qps.get(index.0)?;
        let port = qp.req.found.route?.route.ok()?.here()?;
        let path = qp.core.attr.path?;
        let dgid = path.global.map(|global| global.dgid);
        self.function_at(port, dgid, qp.core.attr.dest_qp)
    }

    /// Whether a connection's path leads nowhere, and the function rests that was at its end: while a function moves,
    /// its addresses are at no port for a moment.
    pub fn other_end_moves(&self, index: QpIndex) -> bool {
        let other_end = || {
            let qp = self.qps.get(index.0)?;
            let (dgid, port) = (qp.core.attr.path?.global, qp.req.found.former?);
            let dgid = dgid.map(|global| global.dgid);
            let end = self.function_at(port, dgid, qp.core.attr.dest_qp);
            end.or(Some(port))
        };
        other_end().is_some_and(|end| self.vf(end).back == QUIESCED)
    }

    /// Whether the function at the other end of a connection rests.
    pub fn other_end_rests(&self, index: QpIndex) -> bool {
        let end = self.other_end(index);
        end.is_some_and(|end| self.vf(end).back == QUIESCED)
    }

    /// A frame of its other end has come to a connection, from one that has migrated or may: it goes along.
    #[inline]
    pub fn migrate_along(&mut self, index: QpIndex, migrated: bool) {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return;
        };
        if !qp.core.attr.is_armed() {
            return;
        }
        if !migrated {
            qp.resp.other_is_armed = true;
        } else if qp.resp.other_is_armed {
            self.migrate_end(index);
        }
    }

    pub fn migrate_end(&mut self, index: QpIndex) -> bool {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return false;
        };
        if !qp.core.attr.migrate() {
            return false;
        }
        let (vf, qpn) = (qp.core.vf, qp.core.qpn);
        qp.resp.other_is_armed = false;
        qp.req.found = Found::default();
        qp.req.retries_left = qp.core.attr.retry_count;
        self.qps.forget_as_peer(index);
        self.notify(vf, Event::PathMigrated(qpn));
        true
    }

    /// Where a message comes from that the context of a target has got: the target's owner can answer there.
    #[inline]
    pub fn initiator(&self, qp: &Qp<F>) -> Option<Source> {
        let Role::Context(context) = &qp.resp.role else {
            return None;
        };
        let attr = &qp.core.attr;
        Some(Source {
            slid: context.initiator.lid,
            src_qp: context.initiator.qpn,
            sl: attr.path.map_or_else(Sl::default, |path| path.sl),
            // A connected packet's is not in the buffer.
            grh: false,
            pkey: self.vf(qp.core.vf).port.pkey(attr.pkey_index),
            path_bits: attr.path.map_or(0, |path| path.src_path_bits),
            checked: wire::ipoib::Checked::default(),
        })
    }

    /// An initiator, which has nothing under way, turns to the far end of a request. Why it cannot.
    #[inline]
    pub fn turn_to(&mut self, index: QpIndex, wr: &mut SendWr) -> Option<Status> {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return Some(Status::LocalQpOperation);
        };
        match &wr.address {
            Some(vector) if qp.req.far.is(vector, wr.access_key) => None,
            _ => self.turn(index, wr),
        }
    }

    #[cold]
    pub fn turn(&mut self, index: QpIndex, wr: &mut SendWr) -> Option<Status> {
        let Qp { core, req, .. } = self.qps.get_mut(index.0)?;
        let levels = self.vfs[usize::from(core.vf.0)].port.service_levels;
        let vector = wr.address.filter(|vector| !vector.dlid.is_multicast());
        let sl = vector.and_then(|vector| levels.admit(vector.sl));
        let (Some(vector), Some(sl)) = (vector, sl) else {
            wr.reason = Reason::FarEnd;
            return Some(Status::LocalQpOperation);
        };
        core.attr.path = Some(AddressPath {
            dlid: vector.dlid,
            sl,
            src_path_bits: vector.src_path_bits,
            global: vector.global,
        });
        core.attr.dest_qp = vector.dest_qp;
        req.far.turn_to(vector, wr.access_key);
        req.far.begin(req.psn);
        req.found = Found::default();
        req.offset = 0;
        None
    }

    /// Where a connection's frames go and what they say of where they come from.
    pub fn address(&self, index: QpIndex) -> Option<Address> {
        let core = &self.qps.get(index.0)?.core;
        let path = core.attr.path?;
        let port = &self.vf(core.vf).port;
        Some(Address {
            slid: port.source(path.src_path_bits),
            dlid: path.dlid,
            sl: path.sl,
            global: path.global.map(|global| {
                let gid = port.gids.get(usize::from(global.sgid_index));
                (global, gid.copied().unwrap_or(Gid::NONE))
            }),
            service: service(core.transport),
            pkey: port.pkey(core.attr.pkey_index),
            dest_qp: core.attr.dest_qp,
        })
    }

    /// Has a request go in frames, and those that follow it.
    #[cold]
    pub fn send_in_frames(&mut self, index: QpIndex, wr: Box<SendWr>, fault: Option<Status>) {
        let Some(Qp { core, req, .. }) = self.qps.get_mut(index.0) else {
            return;
        };
        if req.away.is_none() && core.transport == Transport::Dci {
            // Whatever the target has kept of the last connection is void.
            req.far.begin(req.psn);
        }
        let away = req
            .away
            .get_or_insert_with(|| Box::new(Away::new(Requester::new(req.psn, &core.attr))));
        away.requester.post(wr, &core.attr, fault);
        req.psn = away.requester.newest();
        req.offset = 0;
        let vf = &mut self.vfs[usize::from(core.vf.0)];
        vf.taken += 1;
        vf.memory.exchange(0, BYTES_PER_SLOT);
    }

    /// Does something with what a queue pair keeps of tags, and with the list.
    pub fn with_tags<R>(
        &mut self,
        index: QpIndex,
        act: impl FnOnce(&mut Tagged, &mut TagList) -> R,
    ) -> Option<R> {
        let Self { qps, srqs, .. } = self;
        let resp = &mut qps.get_mut(index.0)?.resp;
        let srq = srqs.get_mut(resp.queue.shared()?.0)?;
        let list = srq.tags.as_mut()?;
        Some(act(resp.tagged_mut()?, list))
    }

    /// A queue pair is reset or goes: the entries that its messages have matched are free, and nobody is told.
    pub fn release_tags(&mut self, index: QpIndex) {
        self.with_tags(index, |tagged, list| {
            while tagged.pop(list).is_some() {}
            if let Some(matched) = std::mem::take(&mut tagged.arrival).matched() {
                list.free(matched);
            }
            tagged.forget_steps();
        });
    }

    /// Number of underlay queue pairs of a function in a group.
    pub fn underlays(&self, vf: VfId, mgid: Gid) -> usize {
        let members = self
            .vf(vf)
            .multicast
            .get(&mgid)
            .map_or(&[][..], Vec::as_slice);
        let members = members.iter().filter_map(|index| self.qps.get(index.0));
        members
            .filter(|qp| qp.core.transport == Transport::Underlay)
            .count()
    }

    /// The port of this program where a packet gets by this way: the HCA itself has served the sender's
    /// own.
    pub fn reached(&self, from: VfId, route: &Route, datagram: &Datagram<'_>) -> Option<VfId> {
        let own = |port: &VfId| self.sharer(*port, 0) == self.sharer(from, 0);
        let fits = datagram.payload.len() <= route.mtu.bytes() as usize;
        route.here().filter(|port| fits && !own(port))
    }

    /// Whether links lose or delay what goes there, or some of it leaves the engine.
    pub fn is_impaired(&self, from: VfId, slot: usize) -> bool {
        let fanout = self.vf(from).ways.fanouts[slot].as_ref();
        let mut routes = fanout.into_iter().flat_map(|fanout| &fanout.routes);
        routes.any(|route| {
            let near = route.here().is_some_and(|to| !self.vf(to).elsewhere);
            route.is_impaired() || !near
        })
    }

    /// Function and transport of a queue pair that takes datagrams now.
    pub fn takes_datagrams(&self, index: QpIndex) -> Option<(VfId, Transport)> {
        let core = &self.qps.get(index.0)?.core;
        let (transport, id) = (core.transport, core.vf);
        // Subnet management brings ports up, so it does not need them up.
        let up = self.vf(id).port.active || transport == Transport::Smi;
        (transport.is_datagram() && core.state.receives() && up).then_some((id, transport))
    }

    /// A shared receive queue has a list of tags from now on, whose completion queue it uses.
    pub fn attach_tags(&mut self, index: SrqIndex, tags: Box<TagList>) {
        if let Some(cq) = self.cqs.get_mut(tags.cq.0) {
            cq.users += 1;
        }
        if let Some(srq) = self.srqs.get_mut(index.0) {
            srq.tags = Some(tags);
        }
    }

    /// Does what a request of a queue pair asks for at its function's keys.
    #[inline]
    pub fn at_keys(
        &mut self,
        index: QpIndex,
        wr: &mut SendWr,
        act: impl FnOnce(&mut Vf<F>, &Core, &mut SendWr) -> Outcome,
    ) -> Outcome {
        let Some(Qp { core, .. }) = self.qps.get(index.0) else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        act(&mut self.vfs[usize::from(core.vf.0)], core, wr)
    }
}
