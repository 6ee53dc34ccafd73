//! Queues without a queue pair, as network interfaces have them: maps a send queue to the queue pair whose address its
//! datagrams carry, and a received packet to its receive queue.

use wire::Qpn;

use crate::budget::Budget;
use crate::objects::Objects;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::qp::attributes::{QpState, Transport};
use crate::objects::qp::{Core, Qp};
use crate::objects::work::PacketHash;
use crate::queue_format::QueueFormat;

/// Time to find the receive queue of a packet without its flow tables: its headers and its hash, the TIR and its table
/// of queues.
const QUEUE_NS: i64 = 256;
/// Time of a look at a flow table, and at an entry of one.
const TABLE_NS: i64 = 64;
const ENTRY_NS: i64 = 2;

impl<F: QueueFormat> Objects<F> {
    /// The underlay queue pair whose address datagrams of a send queue have, while that one may send.
    #[inline(never)]
    pub fn underlay(&self, queue: &Core) -> Option<(QpIndex, &Qp<F>)> {
        let index = *self.vf(queue.vf).qps.get(queue.source_qpn.value())?;
        let qp = self.qps.get(index.0)?;
        let core = &qp.core;
        let sends = core.transport == Transport::Underlay && core.state == QpState::ReadyToSend;
        sends.then_some((index, qp))
    }

    /// The receive queue that takes a packet which has come to an underlay queue pair. `budget` is charged with
    /// the time to find it, or to find that there is none.
    #[inline(never)]
    pub(super) fn steered(
        &self,
        vf: VfId,
        underlay: Qpn,
        packet: &[u8],
        budget: &mut Budget,
    ) -> Option<(QpIndex, &Qp<F>, PacketHash)> {
        let vf = self.vf(vf);
        let steering = F::steer(&vf.face, underlay, packet);
        let tables = TABLE_NS * i64::from(steering.tables);
        budget.take(QUEUE_NS + tables + ENTRY_NS * i64::from(steering.entries));
        let (queue, hash) = steering.to?;
        let index = *vf.qps.get(queue.value())?;
        let qp = self.qps.get(index.0)?;
        let takes = qp.core.transport == Transport::ReceiveQueue && qp.core.state.receives();
        takes.then_some((index, qp, hash))
    }
}
