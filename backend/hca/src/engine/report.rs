//! Why requests fail, more precisely than their status says, and who is told.

use crate::engine::Engine;
use crate::objects::ids::QpIndex;
use crate::objects::reason::Status;
use crate::objects::reason::{Failure, Report};
use crate::objects::work::SendWr;
use crate::queue_format::QueueFormat;

impl<F: QueueFormat> Engine<F> {
    /// Has failed requests reported from now on.
    pub fn set_report(&mut self, report: Box<dyn Report>) {
        self.report = Some(report);
    }

    /// A request has failed.
    #[cold]
    pub(crate) fn report_failure(&mut self, index: QpIndex, wr: &SendWr, status: Status) {
        if let Some(report) = &mut self.report
            && let Some(qp) = self.objects.qps.get(index.0)
        {
            report.failed(Failure {
                vf: qp.core.vf,
                qpn: qp.core.qpn,
                index: wr.index,
                opcode: wr.opcode,
                status,
                reason: wr.reason,
            });
        }
    }
}
