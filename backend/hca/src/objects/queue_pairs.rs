//! Queue pairs: questions about one of them, and small changes.

use crate::objects::dynamic::{Role, Target};
use crate::objects::ids::QpIndex;
use crate::objects::qp::{QueuePairs, Wait};
use crate::objects::work::SendWr;
use crate::queue_format::QueueFormat;

impl<F: QueueFormat> QueuePairs<F> {
    pub fn target(&self, index: QpIndex) -> Option<&Target> {
        match &self.get(index.0)?.resp.role {
            Role::Target(target) => Some(target),
            _ => None,
        }
    }

    pub fn target_mut(&mut self, index: QpIndex) -> Option<&mut Target> {
        match &mut self.get_mut(index.0)?.resp.role {
            Role::Target(target) => Some(target),
            _ => None,
        }
    }

    #[inline]
    pub fn keep(&mut self, index: QpIndex, wr: Box<SendWr>) {
        if let Some(qp) = self.get_mut(index.0) {
            qp.req.current = Some(wr);
        }
    }

    #[inline]
    pub fn send_announced(&self, index: QpIndex) -> bool {
        let queue = self.get(index.0).and_then(|qp| qp.req.queue.as_ref());
        match queue {
            Some(queue) => F::send_announced(queue),
            None => self.has_steps(index),
        }
    }

    /// Whether a queue pair that waits for an answer has no retries left.
    pub fn is_exhausted(&self, index: QpIndex) -> bool {
        let qp = self.get(index.0);
        qp.is_some_and(|qp| match qp.req.wait {
            Wait::Ack => qp.core.attr.timeout != 0 && qp.req.retries_left == 0,
            Wait::Nak => qp.req.retries_left == 0,
            _ => false,
        })
    }

    /// Whether a queue pair without a send queue has something to send.
    #[cold]
    pub fn has_steps(&self, index: QpIndex) -> bool {
        let qp = self.get(index.0);
        qp.is_some_and(|qp| matches!(&qp.resp.role, Role::Tagged(tagged) if tagged.has_steps()))
    }

    /// A queue pair changes: who keeps it as its peer has to look again.
    pub fn forget_as_peer(&mut self, index: QpIndex) {
        let peer = self.get_mut(index.0);
        if let Some(heard_by) = peer.and_then(|qp| qp.resp.heard_by.take())
            && let Some(qp) = self.get_mut(heard_by.0)
            && qp.req.found.peer.is_some_and(|peer| peer.qp == index)
        {
            qp.req.found.peer = None;
        }
    }

    pub fn set_sent(&mut self, index: QpIndex, sent: bool) {
        if let Some(qp) = self.get_mut(index.0) {
            qp.req.sent = sent;
        }
    }

    /// A queue pair has waited until then.
    pub fn end_wait(&mut self, index: QpIndex) {
        if let Some(qp) = self.get_mut(index.0) {
            (qp.req.sent, qp.req.held_until) = (false, 0);
        }
    }

    /// Whether a requester of frames has met such a page.
    pub fn sender_misses_page(&self, index: QpIndex) -> bool {
        let qp = self.get(index.0);
        let away = qp.and_then(|qp| qp.req.away.as_ref());
        away.is_some_and(|away| away.requester.absent().is_some())
    }
}
