//! Counters of a port, as plain data: they go with the VM whose port it was.
//!
//! The rest of a port is the subnet's: its manager writes it where the VM comes to be.

use serde::{Deserialize, Serialize};

use crate::fabric::Fabric;
use crate::nodes::counters::DataBySl;
use crate::nodes::topology::PortRef;

/// Version 1 of the image of a port's counters. Further quantities come last; where an image has fewer
/// than a port, the others stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountersImageV1 {
    /// Each quantity since the port exists.
    totals: Vec<u64>,
    /// Where the counters of PortCounters, PortCountersExtended, PortRcvErrorDetails and
    /// PortXmitDiscardDetails began, in the order of their selection bits.
    short: Vec<u64>,
    long: Vec<u64>,
    errors: Vec<u64>,
    discards: Vec<u64>,
    /// Data sent and received on each service level, and the same where the counters of PortXmitDataSL
    /// and PortRcvDataSL began. Where it is not known, these counters begin anew.
    #[serde(default)]
    by_sl: Vec<(u64, u64)>,
    #[serde(default)]
    by_sl_from: Vec<(u64, u64)>,
    /// Violations of M_Key, P_Key and Q_Key, as PortInfo has them.
    violations: [u16; 3],
}

impl Fabric {
    /// The image of what a port has counted; `None` where there is no such port. A sample that is being
    /// taken is not in it.
    pub fn save_counters(&self, at: PortRef) -> Option<CountersImageV1> {
        let (port, ledger) = (self.port(at)?, self.ledgers.port(at)?);
        let base = ledger.base_lines.as_deref().cloned().unwrap_or_default();
        let info = &port.info;
        let totals = ledger.totals(port, self.timers.now());
        Some(CountersImageV1 {
            totals: totals.values().to_vec(),
            short: base.short.to_vec(),
            long: base.long.to_vec(),
            errors: base.errors.to_vec(),
            discards: base.discards.to_vec(),
            by_sl: port.counters.data_by_sl(&totals).pairs().collect(),
            by_sl_from: { base.by_sl.iter() }
                .flat_map(|data| data.pairs())
                .collect(),
            violations: [
                info.m_key_violations,
                info.p_key_violations,
                info.q_key_violations,
            ],
        })
    }

    /// Has a port have counted what an image says. Counters may have any value, so that there is nothing to check;
    /// counters that the port does not have are left out.
    pub fn restore_counters(&mut self, at: PortRef, image: &CountersImageV1) {
        let now = self.timers.now();
        let (Some(port), Some(ledger)) = (self.nodes.port_mut(at), self.ledgers.port_mut(at))
        else {
            return;
        };
        let totals = ledger.totals(port, now);
        ledger.management.make_up(&totals, &image.totals);
        let base = ledger.base_lines.get_or_insert_default();
        for (lines, image) in [
            (&mut base.short[..], &image.short),
            (&mut base.long, &image.long),
            (&mut base.errors, &image.errors),
            (&mut base.discards, &image.discards),
        ] {
            for (line, value) in lines.iter_mut().zip(image) {
                *line = *value;
            }
        }
        port.counters.get().make_up_levels(&image.by_sl);
        let from = if image.by_sl.is_empty() {
            Some(port.counters.data_by_sl(&ledger.totals(port, now)))
        } else {
            { !image.by_sl_from.is_empty() }.then(|| DataBySl::of(&image.by_sl_from))
        };
        ledger.base_lines.get_or_insert_default().by_sl = from.map(Box::new);
        let info = &mut port.info;
        [
            info.m_key_violations,
            info.p_key_violations,
            info.q_key_violations,
        ] = image.violations;
    }
}
