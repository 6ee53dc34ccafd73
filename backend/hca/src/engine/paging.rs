//! Paging on demand: pages of a key may be away, and their owner brings them when it is told that somebody
//! needs them.
//!
//! Whoever meets such a page is one half of a queue pair, and that half alone stops. A requester keeps its
//! request and goes on where it stood. A responder says that it is not ready, so that the far end, who holds
//! the message, comes again: nothing of it is kept here. Unreliable messages are dropped. The contexts of
//! a dynamic target have one number: its owner is told of one of them at a time.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use wire::Qpn;

use crate::engine::objects::Objects;
use crate::engine::turns::Turns;
use crate::engine::{Engine, QpIndex, VerbError, VfId};
use crate::face::{Event, Face};
use crate::local::message::local_access;
use crate::memory::access::{Domain, Missing, missing, missing_of};
use crate::memory::dma::Dma;
use crate::memory::mr::Access;
use crate::verbs::dynamic::Role;
use crate::verbs::qp::{Core, Inbound, Qp, QpState, RecvQueue, Requester, Responder, Wait};
use crate::verbs::reason::{KeyFault, Reason};
use crate::verbs::work::{Operation, SendWr, Sge, Status};

/// Page faults that a function is told of at a time. Those beyond come when it has resumed others: its queue
/// of events is not to overflow.
pub const MAX_PAGE_FAULTS: usize = 512;

/// After which time a requester asks again whose responder waits for a page, as a code of the RNR NAK timer:
/// 0.64 ms.
pub(crate) const RETRY_CODE: u8 = 12;

/// A half of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Half {
    /// The one that sends requests.
    Requester,
    /// The one that receives them.
    Responder,
}

/// A page that a queue pair needs is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFault {
    /// The queue pair.
    pub qpn: Qpn,
    /// Which half of it waits.
    pub half: Half,
    /// What for.
    pub of: Needed,
    /// Bytes before the page, which have been moved.
    pub committed: u32,
    /// Bytes of a packet.
    pub packet: u16,
}

/// For what a page is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    /// A request of the send queue.
    Send {
        /// [`SendWr::index`].
        index: u16,
        /// It fills its list: a READ or an atomic.
        fills: bool,
    },
    /// A receive request.
    Receive {
        /// [`crate::work::RecvWr::index`].
        index: u16,
        /// The shared receive queue that it came from.
        srqn: Option<u32>,
    },
    /// Memory that no request of the queue pair's own names: a request of the far end does, or an entry of a list of
    /// tags.
    Memory {
        /// The key.
        key: u32,
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u32,
        /// It is to be written.
        writes: bool,
    },
}

/// Whether a half of a queue pair waits for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Paging {
    /// It does not.
    #[default]
    None,
    /// It does, and its owner has been told.
    Told,
    /// It does, and its owner is to be told when others go on. No image has it: who waits so tries again.
    #[serde(skip)]
    Later(u64),
    /// The page does not come: the message that needs it fails when it comes again.
    Denied,
}

impl Paging {
    /// What an image has of it.
    pub const fn lasting(self) -> Self {
        match self {
            Self::Later(_) => Self::None,
            lasting => lasting,
        }
    }

    /// Whether its owner is yet to be told.
    pub const fn is_to_be_told(self) -> bool {
        matches!(self, Self::Later(_))
    }
}

/// Who waits for pages of a function.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// How many halves of queue pairs of which the owner has been told.
    pub told: usize,
    /// Requesters of which it is to be told, in their order.
    later: BTreeSet<(u64, u32)>,
    /// Number of the last of them.
    last: u64,
}

impl Needed {
    /// An element of a list.
    const fn element(element: &Sge, writes: bool) -> Self {
        Self::Memory {
            key: element.lkey,
            addr: element.addr,
            len: element.len,
            writes,
        }
    }
}

impl PageFault {
    /// A responder's, of its receive request, which a message fills from byte `committed` to byte `end` at least.
    pub(crate) fn receive<D: Dma>(
        core: &Core,
        memory: Domain<'_, D>,
        inbound: &Inbound,
        [committed, end]: [u64; 2],
    ) -> Self {
        let (index, srqn) = (inbound.wr.index, inbound.srqn);
        let (list, access) = (&inbound.wr.sges, Access::LOCAL_WRITE);
        let found = missing(memory, list, [committed, end], access);
        let needed = Needed::Receive { index, srqn };
        Self::of(core, Half::Responder, needed, committed).unless_behind(found, access)
    }

    /// A responder's, of what its message goes to in this memory, which has come as far as byte `committed` and goes
    /// on to `end` at least.
    pub(crate) fn message<F: Face>(
        core: &Core,
        resp: &Responder<F>,
        memory: Domain<'_, F::Dma>,
        [committed, end]: [u64; 2],
    ) -> Option<Self> {
        let inbound = resp.inbound.as_ref()?;
        let RecvQueue::Tagged(_) = resp.queue else {
            return Some(Self::receive(core, memory, inbound, [committed, end]));
        };
        // An entry is no receive request, and drivers do not look for one in such a queue.
        let skip = resp.arrival().skip();
        let [at, end] = [committed, end].map(|to| to.saturating_sub(skip));
        let (list, access) = (&inbound.wr.sges, Access::LOCAL_WRITE);
        let found = missing(memory, list, [at, end], access)?;
        let mut at = found.at;
        let left = end - at;
        let element = list.iter().find(|element| {
            let len = u64::from(element.len);
            let here = at < len;
            at -= if here { 0 } else { len };
            here
        })?;
        let len = u64::from(element.len).min(at + left) as u32;
        let needed = Needed::element(&Sge { len, ..*element }, true);
        Some(Self::of(core, Half::Responder, needed, at).unless_behind(Some(found), access))
    }

    /// A requester's, of this request's own memory.
    fn send<F: Face>(
        core: &Core,
        req: &Requester<F>,
        memory: Domain<'_, F::Dma>,
        wr: &SendWr,
        committed: u64,
    ) -> Self {
        let fills = wr.operation.fills_list();
        let needed = match (&req.queue, wr.sges.first()) {
            // The HCA reads the message of a rendezvous: nobody has posted that.
            (None, Some(entry)) => Needed::element(entry, true),
            _ => Needed::Send {
                index: wr.index,
                fills,
            },
        };
        let access = local_access(wr.operation);
        let found = missing_of(memory, wr, committed, access);
        Self::of(core, Half::Requester, needed, committed).unless_behind(found, access)
    }

    /// A responder's, of memory that the far end names.
    pub(crate) fn remote<D: Dma>(
        core: &Core,
        memory: Domain<'_, D>,
        operation: Operation,
        (key, addr, len): (u32, u64, u32),
        committed: u64,
    ) -> Self {
        let writes = operation != Operation::Read;
        let list = Sge {
            addr,
            lkey: key,
            len,
        };
        let needed = Needed::element(&list, writes);
        let access = match operation {
            Operation::Read => Access::REMOTE_READ,
            operation if operation.is_atomic() => Access::ATOMIC,
            _ => Access::REMOTE_WRITE,
        };
        let found = missing(memory, &[list], [committed, len.into()], access);
        Self::of(core, Half::Responder, needed, committed).unless_behind(found, access)
    }

    /// The same, or of the memory behind a key with signatures, where that is missing: a driver that adds up lengths of
    /// what a request names would look in the wrong places.
    fn unless_behind(self, found: Option<Missing>, access: Access) -> Self {
        match found.and_then(|found| found.behind) {
            Some(memory) => Self {
                of: Needed::element(&memory, access.writes()),
                committed: 0,
                ..self
            },
            None => self,
        }
    }

    fn of(core: &Core, half: Half, of: Needed, committed: u64) -> Self {
        Self {
            qpn: core.qpn,
            half,
            of,
            committed: u32::try_from(committed).unwrap_or(u32::MAX),
            packet: core.attr.mtu.bytes() as u16,
        }
    }
}

impl<F: Face> Engine<F> {
    /// The owner of a queue pair has done what it can about a page fault, and whether the page is there now.
    ///
    /// # Errors
    /// [`VerbError::NotFound`], or [`VerbError::BadState`] where that half waits for no page.
    pub fn resume_fault(
        &mut self,
        vf: VfId,
        qpn: Qpn,
        half: Half,
        there: bool,
    ) -> Result<(), VerbError> {
        // A queue pair, or a target of dynamic connections.
        let index = self.vf(vf).qps.get(u32::from(qpn)).copied();
        let index = index.ok_or(VerbError::NotFound)?;
        let qp = { self.objects.qps.get_mut(index.0) }.ok_or(VerbError::NotFound)?;
        let paging = match half {
            Half::Requester => &mut qp.req.paging,
            Half::Responder => &mut qp.resp.paging,
        };
        if *paging != Paging::Told {
            // What it waited for has gone with its state.
            return match qp.core.state {
                QpState::Error | QpState::Reset => Ok(()),
                _ => Err(VerbError::BadState),
            };
        }
        *paging = Paging::None;
        if half == Half::Responder {
            let waits = match &mut qp.resp.role {
                Role::Target(target) => target.waits.take(),
                _ => Some(index),
            };
            self.responder_goes_on(waits, there);
        } else {
            qp.req.wait = Wait::None;
            if let Some(away) = &mut qp.req.away {
                away.requester.paged(there);
                self.finish_requests(index);
                self.make_ready(index);
            } else if there {
                self.make_ready(index);
            } else if let Some(mut wr) = qp.req.current.take() {
                wr.reason = Reason::LocalKey(KeyFault::Absent);
                self.finish(index, wr, Status::LocalProtection, 0);
            }
        }
        self.turns.gone_on(&mut self.objects, vf);
        Ok(())
    }

    /// The far end of a responder may come again, if there still is one. Without its page, the message fails then.
    fn responder_goes_on(&mut self, index: Option<QpIndex>, there: bool) {
        let qp = index.and_then(|index| self.objects.qps.get_mut(index.0));
        let Some(Qp { resp, .. }) = qp else { return };
        resp.paging = if there { Paging::None } else { Paging::Denied };
        let peer = resp.heard_by;
        self.call_again(peer);
    }

    /// A requester that was told to come again later may come now.
    fn call_again(&mut self, index: Option<QpIndex>) {
        if let Some(index) = index
            && let Some(qp) = self.objects.qps.get(index.0)
            && qp.req.wait == Wait::Rnr
        {
            self.turns.end_wait(&mut self.objects, index);
            self.make_ready(index);
        }
    }

    /// A request's own memory is not there, from the bytes on that have been moved.
    #[cold]
    pub(crate) fn requester_waits(&mut self, index: QpIndex, mut wr: Box<SendWr>) {
        let Some(qp) = self.objects.qps.get(index.0) else {
            return;
        };
        let vf = self.vf(qp.core.vf);
        if F::hears_of_pages(&vf.face) {
            let memory = vf.domain(qp.core.pd);
            let fault = PageFault::send(&qp.core, &qp.req, memory, &wr, qp.req.offset);
            self.objects.keep(index, wr);
            self.objects.requester_tells(index, fault);
        } else {
            wr.reason = Reason::LocalKey(KeyFault::Absent);
            self.finish(index, wr, Status::LocalProtection, 0);
        }
    }

    /// The same of a request that goes in frames.
    #[cold]
    pub(crate) fn away_waits(&mut self, index: QpIndex) {
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        let vf = &self.objects.vfs[usize::from(qp.core.vf.0)];
        let Some(away) = &qp.req.away else { return };
        let Some((wr, committed)) = away.requester.absent() else {
            return;
        };
        if F::hears_of_pages(&vf.face) {
            let memory = vf.domain(qp.core.pd);
            let fault = PageFault::send(&qp.core, &qp.req, memory, wr, committed);
            self.objects.requester_tells(index, fault);
        } else if let Some(away) = &mut qp.req.away {
            away.requester.paged(false);
            self.finish_requests(index);
            self.make_ready(index);
        }
    }

    /// Whether a requester of frames has met such a page.
    pub(crate) fn sender_misses_page(&self, index: QpIndex) -> bool {
        let qp = self.objects.qps.get(index.0);
        let away = qp.and_then(|qp| qp.req.away.as_ref());
        away.is_some_and(|away| away.requester.absent().is_some())
    }

    /// A responder's memory is not there. Whether its owner hears of it: a message that nobody can bring the
    /// page for fails.
    #[cold]
    pub(crate) fn responder_waits(&mut self, index: QpIndex, fault: PageFault) -> bool {
        let Objects { qps, vfs, .. } = &mut self.objects;
        let Some(qp) = qps.get(index.0) else {
            return false;
        };
        let vf = qp.core.vf;
        let state = &mut vfs[usize::from(vf.0)];
        if !F::hears_of_pages(&state.face) {
            return false;
        }
        // Contexts have their target's number: the owner is told of one of them at a time.
        let teller = match &qp.resp.role {
            Role::Context(context) => context.of,
            _ => index,
        };
        // Beyond what its owner is told of at a time, the far end comes again, and this with it.
        if let Some(qp) = qps.get_mut(teller.0)
            && qp.resp.paging == Paging::None
            && state.faults.told < MAX_PAGE_FAULTS
        {
            qp.resp.paging = Paging::Told;
            state.faults.told += 1;
            if let Role::Target(target) = &mut qp.resp.role {
                target.waits = Some(index);
            }
            if let Some(qp) = qps.get_mut(index.0) {
                qp.resp.paging = Paging::Told;
            }
            self.objects.notify(vf, Event::PageFault(fault));
        }
        true
    }

    /// A queue pair waits for no page any more: its state or the whole of it goes.
    pub(crate) fn forget_faults(&mut self, index: QpIndex) {
        let Objects { qps, vfs, .. } = &mut self.objects;
        let Some(qp) = qps.get_mut(index.0) else {
            return;
        };
        let vf = qp.core.vf;
        let faults = &mut vfs[usize::from(vf.0)].faults;
        for paging in [&mut qp.req.paging, &mut qp.resp.paging] {
            match std::mem::take(paging) {
                Paging::Told => faults.told = faults.told.saturating_sub(1),
                Paging::Later(number) => {
                    faults.later.remove(&(number, index.0));
                }
                Paging::None | Paging::Denied => {}
            }
        }
        if qp.req.wait == Wait::Page {
            qp.req.wait = Wait::None;
        }
        self.turns.call_later(&mut self.objects, vf);
    }
}

impl<F: Face> Objects<F> {
    /// A queue pair of an image waits for pages of which its owner was told there.
    pub(crate) fn waits_for_pages(&mut self, index: QpIndex, [req, resp]: [Paging; 2]) {
        let Self { qps, vfs, .. } = self;
        let Some(qp) = qps.get_mut(index.0) else {
            return;
        };
        let faults = &mut vfs[usize::from(qp.core.vf.0)].faults;
        let has_request = qp.req.current.is_some() || qp.req.away.is_some();
        if req == Paging::Told && has_request && qp.req.wait == Wait::None {
            qp.req.paging = req;
            qp.req.wait = Wait::Page;
            faults.told += 1;
        }
        qp.resp.paging = resp;
        faults.told += usize::from(resp == Paging::Told);
    }

    fn requester_tells(&mut self, index: QpIndex, fault: PageFault) {
        let Self { qps, vfs, .. } = self;
        let Some(qp) = qps.get_mut(index.0) else {
            return;
        };
        let vf = qp.core.vf;
        let faults = &mut vfs[usize::from(vf.0)].faults;
        qp.req.wait = Wait::Page;
        if faults.told < MAX_PAGE_FAULTS {
            qp.req.paging = Paging::Told;
            faults.told += 1;
            self.notify(vf, Event::PageFault(fault));
        } else {
            faults.last += 1;
            qp.req.paging = Paging::Later(faults.last);
            faults.later.insert((faults.last, index.0));
        }
    }
}

impl Turns {
    /// Somebody of whom the function was told goes on.
    fn gone_on<F: Face>(&mut self, objects: &mut Objects<F>, vf: VfId) {
        let faults = &mut objects.vf_mut(vf).faults;
        faults.told = faults.told.saturating_sub(1);
        self.call_later(objects, vf);
    }

    /// Has those try again of whom the function may be told now.
    fn call_later<F: Face>(&mut self, objects: &mut Objects<F>, vf: VfId) {
        let Objects { qps, vfs, .. } = objects;
        let faults = &mut vfs[usize::from(vf.0)].faults;
        if faults.told >= MAX_PAGE_FAULTS {
            return;
        }
        let Some((_, index)) = faults.later.pop_first() else {
            return;
        };
        if let Some(qp) = qps.get_mut(index) {
            qp.req.paging = Paging::None;
            qp.req.wait = Wait::None;
            self.make_ready(objects, QpIndex(index));
        }
    }
}
