//! Management packets of guests, as the control socket tells of them.

use vswitch::FilterReport;

use super::{Mads, RefusedMad};

/// Returns the counts of the management packets that a filter has seen.
pub(crate) fn mads(report: &FilterReport) -> Mads {
    let refused = |refusal: &vswitch::Refusal| RefusedMad {
        at_ms: refusal.at.as_millis() as u64,
        packet: refusal.packet(),
        dlid: refusal.dlid,
        reason: refusal.reason.to_string(),
    };
    Mads {
        passed: report.passed,
        refused: report
            .refused
            .iter()
            .map(|(reason, count)| (reason.to_string(), *count))
            .collect(),
        last_refused: report.last.iter().map(refused).collect(),
    }
}

#[cfg(test)]
mod tests {
    use control::MAD_REFUSALS;
    use vswitch::Reason;

    #[test]
    fn reasons_have_the_names_of_the_control_socket() {
        assert_eq!(Reason::ALL.map(Reason::name), MAD_REFUSALS);
    }
}
