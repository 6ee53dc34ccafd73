//! Short messages that completions hold.

use crate::local::message::check_room;
use crate::memory::domain::Domain;
use crate::objects::refusal::Refusal;
use crate::queue_format::QueueFormat;
use crate::transport::frame::{Bytes, Frame};
use crate::transport::responder::Reception;

impl<F: QueueFormat> Reception<'_, F> {
    /// Keeps a message for its completion, if that may hold it. Its receive request has to have room for it all the
    /// same.
    pub(crate) fn hold(&mut self, frame: &mut Frame) -> Result<bool, Refusal> {
        let Some(inbound) = &mut self.resp.inbound else {
            return Err(Refusal::Operation);
        };
        let may = self.core.in_completion.receives(frame.len().into());
        let whole = frame.first && frame.last;
        let (true, true, Bytes::Here(bytes)) = (may, whole, frame.bytes()) else {
            return Ok(false);
        };
        let domain = Domain {
            dma: &self.vf.dma,
            keys: &self.vf.keys,
            pd: inbound.pd,
        };
        check_room(domain, &inbound.wr.sges, bytes.len() as u64)?;
        inbound.wr.held.extend_from_slice(bytes);
        Ok(true)
    }
}
