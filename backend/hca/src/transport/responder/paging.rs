//! Page faults of responders, as frames cause them.

use crate::objects::page_fault::{PageFault, Paging};
use crate::objects::refusal::Refusal;
use crate::queue_format::QueueFormat;
use crate::transport::arrived::Arrived;
use crate::transport::responder::Reception;

impl<F: QueueFormat> Reception<'_, F> {
    /// The page fault of a frame that is refused for one, if there is somebody to tell.
    pub(crate) fn fault(&self, arrival: &Arrived, refusal: Refusal) -> Option<PageFault> {
        if refusal != Refusal::Absent || self.resp.paging != Paging::None {
            return None;
        }
        let frame = &arrival.frame;
        let pd = self.pd(frame.srq.value()).ok()?;
        let (operation, target) = self.named(frame);
        let begin = if frame.first { 0 } else { self.resp.received };
        let [at, end] = [arrival.done, frame.len()].map(|bytes| begin + u64::from(bytes));
        self.page_fault(pd, operation, target, [at, end])
    }
}
