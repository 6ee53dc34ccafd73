//! The performance management agent of a node (IBA 16.1).

use wire::mad::{AttributeId, Class, Mad, Method, SIZE, Status};
use wire::performance::{
    ALL_PORT_SELECT, ClassPortInfo, DATA, EXTENDED_WIDTH, PORT_COUNTERS, PORT_COUNTERS_EXTENDED,
    PORT_RCV_DATA_SL, PORT_RCV_ERROR_DETAILS, PORT_SAMPLES_CONTROL, PORT_SAMPLES_RESULT,
    PORT_XMIT_DATA_SL, PORT_XMIT_DISCARD_DETAILS, PortCounters, PortCountersExtended,
    PortRcvErrorDetails, PortXmitDiscardDetails, XMIT_WAIT,
};

use crate::nodes::Nodes;
use crate::nodes::base_lines::{BaseLines, DISCARDS, ERRORS, LONG, SHORT};
use crate::nodes::counters::{Counter, Totals};
use crate::nodes::ledger::Ledgers;
use crate::nodes::node::{Port, RESPONSE_TIME};
use crate::nodes::topology::PortRef;
use crate::timers::Timers;

/// All ports of a switch together.
const ALL_PORTS: u8 = 255;

/// A port's totals in the order of PortCounters' selection bits. Events that this fabric never has (link
/// recoveries, neighbours' errors) are zero.
fn short(_: &Port, totals: &Totals) -> [u64; SHORT] {
    [
        totals.get(Counter::SymbolErrors),
        0,
        totals.get(Counter::LinkDowned),
        totals.rcv_errors(),
        0,
        totals.rcv_switch_relay_errors(),
        totals.xmit_discards(),
        totals.get(Counter::XmitConstraintErrors),
        totals.get(Counter::RcvConstraintErrors),
        totals.get(Counter::LocalLinkIntegrityErrors),
        totals.get(Counter::ExcessiveBufferOverrunErrors),
        totals.get(Counter::Vl15Dropped),
        totals.get(Counter::XmitData),
        totals.get(Counter::RcvData),
        totals.xmit_packets(),
        totals.rcv_packets(),
        totals.get(Counter::XmitWait),
    ]
}

/// A port's totals in the order of PortCountersExtended's selection bits.
fn long(_: &Port, totals: &Totals) -> [u64; LONG] {
    [
        totals.get(Counter::XmitData),
        totals.get(Counter::RcvData),
        totals.xmit_packets(),
        totals.rcv_packets(),
        totals.get(Counter::UnicastXmit),
        totals.get(Counter::UnicastRcv),
        totals.get(Counter::MulticastXmit),
        totals.get(Counter::MulticastRcv),
    ]
}

/// A port's totals in the order of PortRcvErrorDetails' selection bits. Packets here are well-formed.
fn errors(_: &Port, totals: &Totals) -> [u64; ERRORS] {
    [
        totals.get(Counter::LocalPhysicalErrors),
        0,
        totals.get(Counter::BufferOverrunErrors),
        totals.get(Counter::DlidMappingErrors),
        totals.get(Counter::VlMappingErrors),
        totals.get(Counter::LoopingErrors),
    ]
}

/// A port's totals in the order of PortXmitDiscardDetails' selection bits. Senders keep to the MTU of the whole
/// path, and no packet outlives its lifetime in a switch.
fn discards(_: &Port, totals: &Totals) -> [u64; DISCARDS] {
    [
        totals.get(Counter::InactiveDiscards),
        0,
        0,
        totals.get(Counter::HoqLifetimeDiscards),
    ]
}

/// A request for counters.
pub(super) struct Asked<const N: usize> {
    pub(super) set: bool,
    pub(super) port_select: u8,
    /// Bit i for the i-th of the counters.
    pub(super) counter_select: u32,
    /// Values that a Set writes.
    pub(super) written: [u64; N],
}

fn since<const N: usize>(totals: [u64; N], base: &[u64; N]) -> [u64; N] {
    std::array::from_fn(|i| totals[i].wrapping_sub(base[i]))
}

/// Moves the selected base lines so that the counters show what was written.
fn write<const N: usize>(base: &mut [u64; N], totals: [u64; N], select: u32, written: [u64; N]) {
    for i in 0..N {
        if select >> i & 1 != 0 {
            base[i] = totals[i].wrapping_sub(written[i]);
        }
    }
}

/// Adds up counters; a counter stops at its highest value.
fn sum<const N: usize>(values: impl Iterator<Item = [u64; N]>) -> [u64; N] {
    values.fold([0; N], |sum, value| {
        std::array::from_fn(|i| sum[i].saturating_add(value[i]))
    })
}

impl Nodes {
    /// The numbers of the ports that a request selects.
    pub(super) fn selected(
        &self,
        at: PortRef,
        select: u8,
    ) -> Result<std::ops::RangeInclusive<u8>, Status> {
        let node = self.node(at.node).ok_or(Status::INVALID_FIELD)?;
        let (first, last) = (node.first_port(), node.last_port());
        match (select, node.switch.is_some()) {
            (ALL_PORTS, true) => Ok(first..=last),
            (select, true) if select <= last => Ok(select..=select),
            (select, false) if select == at.port => Ok(select..=select),
            _ => Err(Status::INVALID_FIELD),
        }
    }
}

/// The performance management agents of all nodes.
pub(crate) struct PerformanceAgent<'a> {
    pub(crate) nodes: &'a Nodes,
    pub(crate) ledgers: &'a mut Ledgers,
    pub(crate) timers: &'a mut Timers,
}

impl PerformanceAgent<'_> {
    /// Makes a performance management request for a node its own response; false when it is none.
    pub(crate) fn answer(&mut self, at: PortRef, bytes: &mut [u8; SIZE]) -> bool {
        let Ok(mad) = Mad::new_checked(&bytes[..]) else {
            return false;
        };
        let (class, method, attribute) = (mad.class(), mad.method(), mad.attribute());
        let version = (mad.base_version(), mad.class_version());
        if class != Class::PERFORMANCE || !matches!(method, Method::GET | Method::SET) {
            return false;
        }
        let set = method == Method::SET;
        let status = if version != (1, 1) {
            Status::BAD_VERSION
        } else {
            let data = &mut bytes[DATA];
            let outcome = match attribute {
                AttributeId::CLASS_PORT_INFO if !set => self.class_port_info(at, data),
                PORT_COUNTERS => self.port_counters(at, set, data),
                PORT_COUNTERS_EXTENDED => self.port_counters_extended(at, set, data),
                PORT_SAMPLES_CONTROL => self.port_samples_control(at, set, data),
                PORT_SAMPLES_RESULT if !set => self.port_samples_result(at, data),
                PORT_RCV_ERROR_DETAILS => self.port_rcv_error_details(at, set, data),
                PORT_XMIT_DISCARD_DETAILS => self.port_xmit_discard_details(at, set, data),
                PORT_XMIT_DATA_SL => self.port_xmit_data_sl(at, set, data),
                PORT_RCV_DATA_SL => self.port_rcv_data_sl(at, set, data),
                _ => Err(Status::UNSUPPORTED_ATTRIBUTE),
            };
            outcome.err().unwrap_or(Status::OK)
        };
        let Ok(mut mad) = Mad::new_checked(&mut bytes[..]) else {
            return false;
        };
        mad.set_method(Method::GET_RESPONSE);
        mad.set_status(status);
        true
    }

    fn class_port_info(&self, at: PortRef, data: &mut [u8]) -> Result<(), Status> {
        let all_ports = match self.nodes.switch(at.node) {
            Some(_) => ALL_PORT_SELECT,
            None => 0,
        };
        data.fill(0);
        ClassPortInfo {
            base_version: 1,
            class_version: 1,
            capability_mask: EXTENDED_WIDTH | XMIT_WAIT | all_ports,
            capability_mask2: 0,
            resp_time_value: RESPONSE_TIME,
            ..ClassPortInfo::default()
        }
        .emit(data);
        Ok(())
    }

    /// Writes and reads counters: those of all selected ports together.
    pub(super) fn counters_since<const N: usize>(
        &mut self,
        at: PortRef,
        asked: &Asked<N>,
        totals: fn(&Port, &Totals) -> [u64; N],
        base: fn(&mut BaseLines) -> &mut [u64; N],
    ) -> Result<[u64; N], Status> {
        let ports = self.nodes.selected(at, asked.port_select)?;
        let now = self.timers.now();
        Ok(sum(ports.filter_map(|port| {
            let at = PortRef { port, ..at };
            let ledger = self.ledgers.port_mut(at)?;
            let port = self.nodes.port(at)?;
            let totals = totals(port, &ledger.totals(port, now));
            let mut unset = BaseLines::default();
            let base = base(ledger.base_lines(asked.set, &mut unset));
            if asked.set {
                write(base, totals, asked.counter_select, asked.written);
            }
            Some(since(totals, base))
        })))
    }

    fn port_counters(&mut self, at: PortRef, set: bool, data: &mut [u8]) -> Result<(), Status> {
        let asked = PortCounters::parse(data).map_err(|_| Status::INVALID_FIELD)?;
        let written = [
            u64::from(asked.symbol_error),
            u64::from(asked.link_error_recovery),
            u64::from(asked.link_downed),
            u64::from(asked.rcv_errors),
            u64::from(asked.rcv_remote_physical_errors),
            u64::from(asked.rcv_switch_relay_errors),
            u64::from(asked.xmit_discards),
            u64::from(asked.xmit_constraint_errors),
            u64::from(asked.rcv_constraint_errors),
            u64::from(asked.local_link_integrity_errors),
            u64::from(asked.excessive_buffer_overrun_errors),
            u64::from(asked.vl15_dropped),
            u64::from(asked.xmit_data),
            u64::from(asked.rcv_data),
            u64::from(asked.xmit_packets),
            u64::from(asked.rcv_packets),
            u64::from(asked.xmit_wait),
        ];
        let request = Asked {
            set,
            port_select: asked.port_select,
            counter_select: u32::from(asked.counter_select)
                | u32::from(asked.counter_select2 & 1) << 16,
            written,
        };
        let c = self.counters_since(at, &request, short, |base| &mut base.short)?;
        let [bits4, bits8] = [0xf, 0xff].map(|max| move |i: usize| c[i].min(max) as u8);
        let bits16 = |i: usize| c[i].min(0xffff) as u16;
        let bits32 = |i: usize| c[i].min(0xffff_ffff) as u32;
        data.fill(0);
        PortCounters {
            port_select: asked.port_select,
            counter_select: asked.counter_select,
            symbol_error: bits16(0),
            link_error_recovery: bits8(1),
            link_downed: bits8(2),
            rcv_errors: bits16(3),
            rcv_remote_physical_errors: bits16(4),
            rcv_switch_relay_errors: bits16(5),
            xmit_discards: bits16(6),
            xmit_constraint_errors: bits8(7),
            rcv_constraint_errors: bits8(8),
            counter_select2: 0,
            local_link_integrity_errors: bits4(9),
            excessive_buffer_overrun_errors: bits4(10),
            vl15_dropped: bits16(11),
            xmit_data: bits32(12),
            rcv_data: bits32(13),
            xmit_packets: bits32(14),
            rcv_packets: bits32(15),
            xmit_wait: bits32(16),
        }
        .emit(data);
        Ok(())
    }

    fn port_counters_extended(
        &mut self,
        at: PortRef,
        set: bool,
        data: &mut [u8],
    ) -> Result<(), Status> {
        let asked = PortCountersExtended::parse(data).map_err(|_| Status::INVALID_FIELD)?;
        let written = [
            asked.xmit_data,
            asked.rcv_data,
            asked.xmit_packets,
            asked.rcv_packets,
            asked.unicast_xmit_packets,
            asked.unicast_rcv_packets,
            asked.multicast_xmit_packets,
            asked.multicast_rcv_packets,
        ];
        let request = Asked {
            set,
            port_select: asked.port_select,
            counter_select: u32::from(asked.counter_select),
            written,
        };
        let c = self.counters_since(at, &request, long, |base| &mut base.long)?;
        data.fill(0);
        PortCountersExtended {
            port_select: asked.port_select,
            counter_select: asked.counter_select,
            xmit_data: c[0],
            rcv_data: c[1],
            xmit_packets: c[2],
            rcv_packets: c[3],
            unicast_xmit_packets: c[4],
            unicast_rcv_packets: c[5],
            multicast_xmit_packets: c[6],
            multicast_rcv_packets: c[7],
        }
        .emit(data);
        Ok(())
    }

    fn port_rcv_error_details(
        &mut self,
        at: PortRef,
        set: bool,
        data: &mut [u8],
    ) -> Result<(), Status> {
        let asked = PortRcvErrorDetails::parse(data).map_err(|_| Status::INVALID_FIELD)?;
        let written = [
            asked.local_physical_errors,
            asked.malformed_packet_errors,
            asked.buffer_overrun_errors,
            asked.dlid_mapping_errors,
            asked.vl_mapping_errors,
            asked.looping_errors,
        ];
        let request = Asked {
            set,
            port_select: asked.port_select,
            counter_select: u32::from(asked.counter_select),
            written: written.map(u64::from),
        };
        let c = self.counters_since(at, &request, errors, |base| &mut base.errors)?;
        let c = c.map(|counter| counter.min(0xffff) as u16);
        data.fill(0);
        PortRcvErrorDetails {
            port_select: asked.port_select,
            counter_select: asked.counter_select,
            local_physical_errors: c[0],
            malformed_packet_errors: c[1],
            buffer_overrun_errors: c[2],
            dlid_mapping_errors: c[3],
            vl_mapping_errors: c[4],
            looping_errors: c[5],
        }
        .emit(data);
        Ok(())
    }

    fn port_xmit_discard_details(
        &mut self,
        at: PortRef,
        set: bool,
        data: &mut [u8],
    ) -> Result<(), Status> {
        let asked = PortXmitDiscardDetails::parse(data).map_err(|_| Status::INVALID_FIELD)?;
        let written = [
            asked.inactive_discards,
            asked.neighbor_mtu_discards,
            asked.sw_lifetime_limit_discards,
            asked.sw_hoq_lifetime_limit_discards,
        ];
        let request = Asked {
            set,
            port_select: asked.port_select,
            counter_select: u32::from(asked.counter_select),
            written: written.map(u64::from),
        };
        let c = self.counters_since(at, &request, discards, |base| &mut base.discards)?;
        let c = c.map(|counter| counter.min(0xffff) as u16);
        data.fill(0);
        PortXmitDiscardDetails {
            port_select: asked.port_select,
            counter_select: asked.counter_select,
            inactive_discards: c[0],
            neighbor_mtu_discards: c[1],
            sw_lifetime_limit_discards: c[2],
            sw_hoq_lifetime_limit_discards: c[3],
        }
        .emit(data);
        Ok(())
    }
}
