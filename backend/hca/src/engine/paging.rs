//! Paging on demand: pages of a key may be away, and their owner brings them when it is told that somebody
//! needs them.
//!
//! An access to such a page stops one half of one queue pair. A requester keeps its request and goes on where it
//! stood. A responder says that it is not ready, so that the far end, who holds the message, comes again: nothing of
//! it is kept here. Unreliable messages are dropped. The contexts of a dynamic target have one number: its owner is
//! told of one of them at a time.

use wire::Qpn;

use crate::engine::requests::Requests;
use crate::engine::scheduler::Scheduler;
use crate::objects::Objects;
use crate::objects::dynamic::Role;
use crate::objects::ids::{QpIndex, VerbError, VfId};
use crate::objects::page_fault::{Half, PageFault, Paging};
use crate::objects::qp::attributes::QpState;
use crate::objects::qp::{Qp, Wait};
use crate::objects::reason::{KeyFault, Reason, Status};
use crate::objects::work::SendWr;
use crate::queue_format::{Event, QueueFormat};
use crate::verbs::Verbs;

/// Page faults that a function is told of at a time. Those beyond come when it has resumed others: its queue
/// of events is not to overflow.
pub const MAX_PAGE_FAULTS: usize = 512;

impl<F: QueueFormat> Verbs<'_, F> {
    /// The owner of a queue pair has done what it can about a page fault, and whether the page is there now.
    ///
    /// # Errors
    /// [`VerbError::NotFound`], or [`VerbError::BadState`] where that half waits for no page.
    pub fn resume_fault(&mut self, qpn: Qpn, half: Half, there: bool) -> Result<(), VerbError> {
        // A queue pair, or a target of dynamic connections.
        let index = self.objects.vf(self.vf).qps.get(u32::from(qpn)).copied();
        let index = index.ok_or(VerbError::NotFound)?;
        let qp = { self.objects.qps.get_mut(index.0) }.ok_or(VerbError::NotFound)?;
        let paging = match half {
            Half::Requester => &mut qp.req.paging,
            Half::Responder => &mut qp.resp.paging,
        };
        if *paging != Paging::Told {
            // The work that it waited for has gone with its state.
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
            let scheduler = &mut self.requests.completions.scheduler;
            scheduler.responder_goes_on(self.objects, waits, there);
        } else {
            qp.req.wait = Wait::None;
            if let Some(away) = &mut qp.req.away {
                away.requester.paged(there);
                self.requests.finish_requests(self.objects, index);
                let scheduler = &mut self.requests.completions.scheduler;
                scheduler.make_ready(self.objects, index);
            } else if there {
                let scheduler = &mut self.requests.completions.scheduler;
                scheduler.make_ready(self.objects, index);
            } else if let Some(mut wr) = qp.req.current.take() {
                wr.reason = Reason::LocalKey(KeyFault::Absent);
                self.requests
                    .finish(self.objects, index, wr, Status::LocalProtection, 0);
            }
        }
        let scheduler = &mut self.requests.completions.scheduler;
        scheduler.gone_on(self.objects, self.vf);
        Ok(())
    }
}

impl<F: QueueFormat> Scheduler<F> {
    /// The far end of a responder may come again, if there still is one. Without its page, the message fails then.
    pub fn responder_goes_on(
        &mut self,
        objects: &mut Objects<F>,
        index: Option<QpIndex>,
        there: bool,
    ) {
        let qp = index.and_then(|index| objects.qps.get_mut(index.0));
        let Some(Qp { resp, .. }) = qp else { return };
        resp.paging = if there { Paging::None } else { Paging::Denied };
        let peer = resp.heard_by;
        self.call_again(objects, peer);
    }

    /// A requester that was told to come again later may come now.
    pub fn call_again(&mut self, objects: &mut Objects<F>, index: Option<QpIndex>) {
        if let Some(index) = index
            && let Some(qp) = objects.qps.get(index.0)
            && qp.req.wait == Wait::Rnr
        {
            self.end_wait(objects, index);
            self.make_ready(objects, index);
        }
    }

    /// A queue pair waits for no page any more: its state or the whole of it goes.
    pub fn forget_faults(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        let Objects { qps, vfs, .. } = objects;
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
        self.call_later(objects, vf);
    }

    /// Somebody of whom the function was told goes on.
    fn gone_on(&mut self, objects: &mut Objects<F>, vf: VfId) {
        let faults = &mut objects.vf_mut(vf).faults;
        faults.told = faults.told.saturating_sub(1);
        self.call_later(objects, vf);
    }

    /// Has those try again of whom the function may be told now.
    fn call_later(&mut self, objects: &mut Objects<F>, vf: VfId) {
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

impl<F: QueueFormat> Requests<F> {
    /// A request's own memory is not there, from the bytes on that have been moved.
    #[cold]
    pub(crate) fn requester_waits(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        mut wr: Box<SendWr>,
    ) {
        let Some(qp) = objects.qps.get(index.0) else {
            return;
        };
        let vf = objects.vf(qp.core.vf);
        if F::hears_of_pages(&vf.face) {
            let memory = vf.domain(qp.core.pd);
            let fault = PageFault::send(&qp.core, &qp.req, memory, &wr, qp.req.offset);
            objects.qps.keep(index, wr);
            objects.requester_tells(index, fault);
        } else {
            wr.reason = Reason::LocalKey(KeyFault::Absent);
            self.finish(objects, index, wr, Status::LocalProtection, 0);
        }
    }

    /// The same of a request that goes in frames.
    #[cold]
    pub(crate) fn away_waits(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return;
        };
        let vf = &objects.vfs[usize::from(qp.core.vf.0)];
        let Some(away) = &qp.req.away else { return };
        let Some((wr, committed)) = away.requester.absent() else {
            return;
        };
        if F::hears_of_pages(&vf.face) {
            let memory = vf.domain(qp.core.pd);
            let fault = PageFault::send(&qp.core, &qp.req, memory, wr, committed);
            objects.requester_tells(index, fault);
        } else if let Some(away) = &mut qp.req.away {
            away.requester.paged(false);
            self.finish_requests(objects, index);
            self.completions.scheduler.make_ready(objects, index);
        }
    }
}

impl<F: QueueFormat> Objects<F> {
    /// A responder's memory is not there. Whether its owner hears of it: a message that nobody can bring the
    /// page for fails.
    #[cold]
    pub(crate) fn responder_waits(&mut self, index: QpIndex, fault: PageFault) -> bool {
        let Self { qps, vfs, .. } = self;
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
            self.notify(vf, Event::PageFault(fault));
        }
        true
    }

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
