//! Queue pairs that match messages with tags: how a message is taken, what completes, what the HCA reads by itself,
//! and changes of the list.

use vm_memory::VolatileSlice;

use super::payload::{Incoming, Part, refused};
use super::responder::Reception;
use super::responder::request::capacity;
use crate::budget::Budget;
use crate::engine::completion::Completions;
use crate::engine::outcome::{Outcome, failed};
use crate::memory::access::{CopyError, Cursor, Source, copy};
use crate::memory::mr::Access;
use crate::objects::Objects;
use crate::objects::dynamic::Role;
use crate::objects::ids::QpIndex;
use crate::objects::qp::attributes::Inbound;
use crate::objects::qp::{Qp, RecvQueue, Responder};
use crate::objects::reason::{Reason, Status};
use crate::objects::refusal::Refusal;
use crate::objects::tags::{Arrival, Head, Tagged};
use crate::objects::work::{CompletionEntry, RecvKind, RecvWr, SendWr, Side, TagEvent};
use crate::queue_format::QueueFormat;

impl<F: QueueFormat> Responder<F> {
    /// Result of matching the message that arrives at a queue pair with tags.
    pub(crate) fn arrival(&self) -> Arrival {
        match &self.role {
            Role::Tagged(tagged) => tagged.arrival,
            _ => Arrival::NoTag,
        }
    }

    /// Header of that message, as it was when it was matched.
    pub(crate) fn head(&self) -> Head {
        match &self.role {
            Role::Tagged(tagged) => tagged.head,
            _ => Head::default(),
        }
    }

    pub(crate) fn tagged_mut(&mut self) -> Option<&mut Tagged> {
        match &mut self.role {
            Role::Tagged(tagged) => Some(tagged),
            _ => None,
        }
    }
}

impl<F: QueueFormat> Reception<'_, F> {
    /// Takes the memory of the entry that a message has matched which begins so, or else the next receive request. A
    /// receive request taken for a message whose copy failed is filled anew.
    pub(super) fn take_tagged(&mut self, head: &Head) -> Result<(), Refusal> {
        if self.resp.inbound.is_some() {
            return Ok(());
        }
        let RecvQueue::Tagged(queue) = self.resp.queue else {
            return Err(Refusal::Invalid);
        };
        let srq = self.srqs.get_mut(queue.0);
        let (Some(srq), Role::Tagged(tagged)) = (srq, &mut self.resp.role) else {
            return Err(Refusal::Invalid);
        };
        let list = srq.tags.as_mut().ok_or(Refusal::Invalid)?;
        let (arrival, memory) = list.classify(head, tagged.fetches);
        (tagged.arrival, tagged.head) = (arrival, *head);
        if let (Some(index), Some(memory)) = (arrival.matched(), memory) {
            let mut wr = self.spare_recvs.take(RecvWr::with_capacity);
            wr.clear();
            wr.index = index;
            wr.sges.push(memory);
            let (srqn, pd) = (Some(srq.srqn), srq.pd);
            self.resp.inbound = Some(Inbound { wr, srqn, pd });
            return Ok(());
        }
        self.take_receive(0)?;
        if arrival == Arrival::Unexpected
            && let Some(list) = self.srqs.get_mut(queue.0).and_then(|srq| srq.tags.as_mut())
        {
            list.count_unexpected();
        }
        Ok(())
    }

    /// Fills what a message goes to, on from what has come of it, without its header where the header stays out. The
    /// bytes that it was matched by are those that were looked at, whatever the sender has in its memory by now.
    pub(super) fn scatter_tagged(
        &mut self,
        part: Part,
        payload: &mut impl Incoming<F::Dma>,
        budget: &mut Budget,
    ) -> Result<u64, Refusal> {
        let skip = self.resp.arrival().skip();
        let Some(inbound) = &self.resp.inbound else {
            return Err(Refusal::Operation);
        };
        if capacity(&inbound.wr.sges) < part.end.saturating_sub(skip) {
            return Err(Refusal::Invalid);
        }
        let mut at = part.at.max(skip.min(part.end));
        if at == part.end {
            return Ok(at);
        }
        let (domain, list) = (self.domain(inbound.pd), &inbound.wr.sges);
        let mut to = Cursor::new(domain, list, at - skip, Access::LOCAL_WRITE);
        let mut head = self.resp.head();
        let head = head.bytes_mut();
        let looked_at = part.end.min(head.len() as u64);
        if skip == 0 && at < looked_at {
            let piece = VolatileSlice::from(&mut head[at as usize..looked_at as usize]);
            let len = looked_at - at;
            let copied = budget.as_a_whole(|left| {
                copy::<F::Dma, F::Dma>(&mut Source::Bytes(piece), &mut to, len, left)
            });
            at += match copied {
                Ok(copied) => copied,
                Err(CopyError::To(error) | CopyError::From(error)) => {
                    return Err(refused(Some(error), Refusal::Operation));
                }
            };
            if at < looked_at || !budget.is_left() || at == part.end {
                return Ok(at);
            }
        }
        let filled = payload.fill(&mut to, at - part.begin, budget);
        Ok(at + filled.map_err(|why| why.refusal(Refusal::Operation))?)
    }
}

impl<F: QueueFormat> Completions<F> {
    /// Changes the list of tags of a queue pair that is connected to itself.
    #[inline(never)]
    pub fn change_tags(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        wr: &mut SendWr,
    ) -> Outcome {
        let refused = |wr: &mut SendWr| failed(wr, Status::LocalQpOperation, Reason::Tags);
        let Some(qp) = objects.qps.get(index.0) else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        let qpn = qp.core.qpn;
        let RecvQueue::Tagged(srq) = qp.resp.queue else {
            return refused(wr);
        };
        let srq = objects.srqs.get_mut(srq.0);
        let list = srq.and_then(|srq| Some((srq.srqn, srq.user_index, srq.tags.as_mut()?)));
        let Some((srqn, user_index, list)) = list.filter(|_| qp.core.attr.dest_qp == qpn) else {
            return refused(wr);
        };
        let memory = wr.sges.first().copied().unwrap_or_default();
        let Ok(done) = list.change(&wr.tags, memory) else {
            return refused(wr);
        };
        let (unexpected, cq) = (list.view().unexpected, list.cq);
        if wr.tags.signaled {
            let entry = CompletionEntry {
                qpn,
                user_index,
                index: wr.index,
                status: Status::Success,
                reason: Reason::Status,
                byte_len: 0,
                solicited: false,
                time: self.completion_time(0),
                side: Side::Tags {
                    srqn,
                    operation: wr.tags.operation,
                    done,
                    unexpected,
                },
            };
            self.complete(objects, cq, &entry, &[]);
        }
        Outcome::Done(0)
    }

    /// Completes what a message has taken at a queue pair with tags.
    #[inline(never)]
    pub fn complete_tagged(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        inbound: Inbound,
        mut entry: CompletionEntry,
    ) {
        let Objects { qps, srqs, .. } = objects;
        let srqn = inbound.srqn.unwrap_or(0);
        self.spare_recvs.keep(inbound.wr);
        let Some(Qp { core, resp, .. }) = qps.get_mut(index.0) else {
            return;
        };
        let vf = core.vf;
        let list = match resp.queue {
            RecvQueue::Tagged(srq) => srqs.get_mut(srq.0),
            _ => None,
        };
        let list = list.and_then(|srq| Some((srq.user_index, srq.tags.as_mut()?)));
        let (Some((user_index, list)), Role::Tagged(tagged)) = (list, &mut resp.role) else {
            return;
        };
        entry.user_index = user_index;
        let cq = list.cq;
        let arrival = std::mem::take(&mut tagged.arrival);
        let (kind, immediate) = match entry.side {
            Side::Recv {
                kind, immediate, ..
            } => (kind, immediate),
            _ => (RecvKind::Send, 0),
        };
        let whole = entry.status == Status::Success;
        let mut reads = false;
        let mut header = [0; 16];
        let event = match arrival {
            Arrival::NoTag => TagEvent::NoTag,
            Arrival::Unexpected => TagEvent::Unexpected,
            Arrival::Expected { index, header: it } => {
                list.free(index);
                header = it;
                entry.byte_len = entry.byte_len.saturating_sub(arrival.skip() as u32);
                TagEvent::Whole
            }
            Arrival::Rendezvous { index } if whole => {
                header = list.fetch(index).map_or(header, |(fetch, _)| fetch.header);
                entry.byte_len = 0;
                tagged.push(list, index);
                reads = true;
                TagEvent::Matched
            }
            Arrival::Rendezvous { index } => {
                list.free(index);
                TagEvent::Canceled
            }
        };
        let matched = arrival.matched().is_some();
        // The software of a request that an entry was is not told by errors, which are about receive requests.
        if whole || matched {
            let event = if whole { event } else { TagEvent::Canceled };
            entry.status = Status::Success;
            entry.side = Side::Tagged {
                kind,
                immediate,
                srqn,
                event,
                header,
            };
        }
        self.complete(objects, cq, &entry, &[]);
        if !matched {
            objects.check_srq_limit(vf, srqn);
        }
        if reads {
            self.scheduler.make_ready(objects, index);
        }
    }

    /// The sender of a rendezvous knows that its message has been read.
    #[cold]
    pub fn step_ends(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        let popped = objects.with_tags(index, |tagged, list| tagged.pop(list));
        if let Some((slot, len)) = popped.flatten() {
            self.tell_of_tag(objects, index, slot, len, TagEvent::Received);
        }
    }

    /// A queue pair fails: what it was to read does not come.
    #[cold]
    pub fn cancel_tags(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        while let Some((slot, _)) = objects
            .with_tags(index, |tagged, list| tagged.pop(list))
            .flatten()
        {
            self.tell_of_tag(objects, index, slot, 0, TagEvent::Canceled);
        }
        objects.with_tags(index, |tagged, _| tagged.forget_steps());
    }

    /// Completes an entry of a list whose message has been read, or is not.
    pub fn tell_of_tag(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        slot: u16,
        byte_len: u32,
        event: TagEvent,
    ) {
        let time = self.completion_time(byte_len);
        let Some(qp) = objects.qps.get(index.0) else {
            return;
        };
        let srq = qp.resp.queue.shared();
        let srq = srq.and_then(|srq| objects.srqs.get(srq.0));
        let list = srq.and_then(|srq| Some((srq.srqn, srq.user_index, srq.tags.as_ref()?.cq)));
        let Some((srqn, user_index, cq)) = list else {
            return;
        };
        let entry = CompletionEntry {
            qpn: qp.core.qpn,
            user_index,
            index: slot,
            status: Status::Success,
            reason: Reason::Status,
            byte_len,
            solicited: false,
            time,
            side: Side::Tagged {
                kind: RecvKind::Send,
                immediate: 0,
                srqn,
                event,
                header: [0; 16],
            },
        };
        self.complete(objects, cq, &entry, &[]);
    }
}
