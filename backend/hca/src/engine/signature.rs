//! Reports of blocks that do not match their signatures.

use crate::engine::completion::Completions;
use crate::memory::signature::format::Side as Domain;
use crate::memory::signature::key::SignatureError;
use crate::objects::Objects;
use crate::objects::ids::QpIndex;
use crate::objects::page_fault::Half;
use crate::objects::qp::attributes::QpState;
use crate::objects::qp::{Qp, RecvQueue};
use crate::objects::reason::{Reason, Status};
use crate::objects::work::{CompletionEntry, Operation, Side};
use crate::queue_format::QueueFormat;

impl<F: QueueFormat> Completions<F> {
    /// Tells of the blocks that a message on the local path has found wrong: who sends data has looked at the
    /// signatures in its memory, and who takes them at those on the wire.
    #[cold]
    pub fn tell_both(
        &mut self,
        objects: &mut Objects<F>,
        from: QpIndex,
        to: QpIndex,
        operation: Operation,
    ) {
        let (source, target) = if operation == Operation::Read {
            ((to, Half::Responder), (from, Half::Requester))
        } else {
            ((from, Half::Requester), (to, Half::Responder))
        };
        self.tell(objects, source.0, source.1, Some(Domain::Memory));
        self.tell(objects, target.0, target.1, Some(Domain::Wire));
    }

    /// Tells of the blocks that one half of a queue pair has found wrong.
    #[inline]
    pub fn tell_half(&mut self, objects: &mut Objects<F>, index: QpIndex, half: Half) {
        let Some(qp) = objects.qps.get(index.0) else {
            return;
        };
        if objects.has_failed([qp.core.vf]) {
            self.tell(objects, index, half, None);
        }
    }

    /// Completions say so in the queue of who has used the key, before the one of what it was used for.
    #[cold]
    pub fn tell(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        half: Half,
        of: Option<Domain>,
    ) {
        let Some(qp) = objects.qps.get(index.0) else {
            return;
        };
        let cq = match (half, &qp.resp.queue) {
            (Half::Requester, _) => qp.req.cq,
            // Which shared receive queue its messages take, they say themselves.
            (Half::Responder, RecvQueue::Xrc(_)) => None,
            (Half::Responder, _) => qp.resp.cq.or(qp.req.cq),
        };
        let (vf, qpn) = (qp.core.vf, qp.core.qpn);
        let is_of = |error: &mut SignatureError| of.is_none_or(|of| error.side == of);
        let told = objects.vf_mut(vf).keys.take_failed(is_of);
        if half == Half::Requester
            && !told.is_empty()
            && let Some(Qp { core, .. }) = objects.qps.get_mut(index.0)
            && core.attr.drain_sigerr
            && core.state == QpState::ReadyToSend
        {
            // Drained it is when the request that has used the key is complete.
            core.state = QpState::SendQueueDrain;
        }
        for error in told {
            let entry = CompletionEntry {
                qpn,
                user_index: None,
                index: 0,
                status: Status::Success,
                reason: Reason::Status,
                byte_len: 0,
                solicited: true,
                time: self.completion_time(0),
                side: Side::Signature(error),
            };
            if let Some(cq) = cq {
                self.complete(objects, cq, &entry, &[]);
            }
        }
    }
}
