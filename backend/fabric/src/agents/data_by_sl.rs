//! Data of a port by service level (IBA A13.6.4, A13.6.5).

use wire::mad::Status;
use wire::performance::PortDataSl;

use super::performance::{Asked, PerformanceAgent};
use crate::nodes::base_lines::BaseLines;
use crate::nodes::counters::{LEVELS, Totals};
use crate::nodes::node::Port;
use crate::nodes::topology::PortRef;

impl PerformanceAgent<'_> {
    pub(super) fn port_xmit_data_sl(
        &mut self,
        at: PortRef,
        set: bool,
        data: &mut [u8],
    ) -> Result<(), Status> {
        let totals = |port: &Port, totals: &Totals| port.counters.data_by_sl(totals).xmit;
        self.port_data_sl(at, set, data, totals, |base| {
            &mut base.by_sl.get_or_insert_default().xmit
        })
    }

    pub(super) fn port_rcv_data_sl(
        &mut self,
        at: PortRef,
        set: bool,
        data: &mut [u8],
    ) -> Result<(), Status> {
        let totals = |port: &Port, totals: &Totals| port.counters.data_by_sl(totals).rcv;
        self.port_data_sl(at, set, data, totals, |base| {
            &mut base.by_sl.get_or_insert_default().rcv
        })
    }

    fn port_data_sl(
        &mut self,
        at: PortRef,
        set: bool,
        data: &mut [u8],
        totals: fn(&Port, &Totals) -> [u64; LEVELS],
        base: fn(&mut BaseLines) -> &mut [u64; LEVELS],
    ) -> Result<(), Status> {
        let asked = PortDataSl::parse(data).map_err(|_| Status::INVALID_FIELD)?;
        let request = Asked {
            set,
            port_select: asked.port_select,
            counter_select: u32::from(asked.counter_select),
            written: asked.data.map(u64::from),
        };
        let counters = self.counters_since(at, &request, totals, base)?;
        data.fill(0);
        PortDataSl {
            data: counters.map(|counter| u32::try_from(counter).unwrap_or(u32::MAX)),
            ..asked
        }
        .emit(data);
        Ok(())
    }
}
