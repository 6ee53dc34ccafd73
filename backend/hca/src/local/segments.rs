//! A stretch of TCP that a queue pair of IP over InfiniBand posts as one request, and that goes in many datagrams.

use wire::ipoib::Train;

use crate::engine::Engine;
use crate::engine::cost::REQUEST_COST;
use crate::engine::progress::{Outcome, failed};
use crate::local::datagram::Packet;
use crate::objects::ids::QpIndex;
use crate::objects::reason::{Reason, Status};
use crate::objects::work::{AddressVector, Segmentation, SendWr};
use crate::queue_format::QueueFormat;

/// Most bytes of a stretch, its headers among them.
const MAX_STRETCH: u64 = 1 << 18;

impl<F: QueueFormat> Engine<F> {
    /// Sends the segments of a request that have not gone yet, as far as the turn's bytes go, each as long as the
    /// request says and no longer than `most` bytes with its headers.
    #[cold]
    pub(super) fn send_segments(
        &mut self,
        index: QpIndex,
        wr: &mut SendWr,
        address: &AddressVector,
        (cut, most): (Segmentation, u64),
        budget: &mut i64,
    ) -> Result<(), Outcome> {
        let header = wr.inline.get(..cut.header.into()).unwrap_or_default();
        let payload = wr.payload_len().saturating_sub(cut.header.into());
        let train = Train::of(header, payload as u32, cut.mss);
        let Some(train) = train.ok().filter(|train| train.start() == header.len()) else {
            return Err(failed(wr, Status::LocalQpOperation, Reason::Segments));
        };
        if u64::from(train.longest()) > most || wr.payload_len() > MAX_STRETCH {
            return Err(failed(wr, Status::LocalLength, Reason::Length));
        }
        loop {
            let Some(qp) = self.objects.qps.get(index.0) else {
                return Err(Outcome::Failed(Status::LocalQpOperation));
            };
            // Of an image, it may be anything.
            let number = (qp.req.offset as u32 / u32::from(cut.mss)).min(train.datagrams() - 1);
            self.send_packet(index, wr, address, Packet::Segment(train, number), budget)?;
            if number + 1 == train.datagrams() {
                return Ok(());
            }
            if let Some(qp) = self.objects.qps.get_mut(index.0) {
                qp.req.offset = train.part(number).end.into();
            }
            *budget -= REQUEST_COST;
            if *budget <= 0 {
                return Err(Outcome::Partly);
            }
        }
    }
}
