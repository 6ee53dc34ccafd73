//! The congestion control agent of a node (IBA A10.4).

use std::sync::Arc;
use std::time::Duration;

use wire::congestion::{
    AdapterCongestionEvent, AdapterCongestionLog, BY_QUEUE_PAIR, BY_SERVICE_LEVEL,
    CA_CONGESTION_SETTING, CLASS, CONGESTION_CONTROL_TABLE, CONGESTION_INFO, CONGESTION_KEY_INFO,
    CONGESTION_LOG, CaCongestionEntry, CaCongestionSetting, CongestionControlTable, CongestionInfo,
    CongestionKeyInfo, DATA, ELEMENTS, ENTRIES, InjectionDelay, KEY, LOG, LOG_OF_ADAPTER,
    LOG_OF_SWITCH, MARKING_RATE, PORT_CONTROL_BY_SERVICE_LEVEL, PORT_MARKING_RATE,
    PORT_PACKET_SIZE, PORT_THRESHOLD, SWITCH_CONGESTION_SETTING, SWITCH_PORT_CONGESTION_SETTING,
    SwitchCongestionEvent, SwitchCongestionLog, SwitchCongestionSetting,
    SwitchPortCongestionElement, THRESHOLD, TIME_STAMP, VERSION, VICTIM_MASK, entry,
};
use wire::mad::{AttributeId, Mad, Method, SIZE, Status};
use wire::performance::ClassPortInfo;

use crate::fabric::Fabric;
use crate::links::marks::Marks;
use crate::nodes::congestion::{AdapterCongestion, BLOCKS, Congestion, LEVELS};
use crate::nodes::node::RESPONSE_TIME;
use crate::nodes::topology::PortRef;

/// Fields of SwitchCongestionSetting that switches here have. None starves its neighbours of credits.
const SETTINGS: u32 = VICTIM_MASK | THRESHOLD | MARKING_RATE;

/// A time in the units of the log and of TimeStamp, 1.024 us.
const fn ticks(nanoseconds: u64) -> u32 {
    (nanoseconds / 1024) as u32
}

const fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// The value that a counter of 16 bits stops at.
fn bits16(count: u64) -> u16 {
    count.min(0xffff) as u16
}

/// The datagram's attribute, where congestion control has it.
fn part(attribute: AttributeId) -> std::ops::Range<usize> {
    if attribute == CONGESTION_LOG {
        LOG
    } else {
        DATA
    }
}

/// Whether a datagram asks the congestion control agent of a port.
pub(crate) fn asks(mad: &[u8; SIZE]) -> bool {
    let Ok(mad) = Mad::new_checked(&mad[..]) else {
        return false;
    };
    mad.class() == CLASS && matches!(mad.method(), Method::GET | Method::SET)
}

impl Fabric {
    /// Takes in what switches have marked since the last call: who reads their logs wants to see it.
    pub fn tell_marks(&mut self, marks: Marks) {
        for (node, later) in marks.0 {
            if let Some(ledger) = self.ledgers.node_mut(node) {
                ledger.marks.append(later);
            }
        }
    }

    /// Takes in what a channel adapter has begun to hold back at a port, at a time in nanoseconds.
    pub fn tell_held_back(&mut self, port: PortRef, event: AdapterCongestionEvent, at: u64) {
        if let Some(ledger) = self.ledgers.port_mut(port) {
            let time = ticks(at);
            ledger
                .held_back
                .add(AdapterCongestionEvent { time, ..event });
        }
    }

    /// Makes a request to a port's congestion control agent its own response; false when it gets none. The subnet's
    /// managers set how ports are held back: their owners may only look.
    pub(crate) fn answer_congestion(
        &mut self,
        at: PortRef,
        by_owner: bool,
        bytes: &mut [u8; SIZE],
    ) -> bool {
        let Ok(mad) = Mad::new_checked(&bytes[..]) else {
            return false;
        };
        let set = mad.method() == Method::SET;
        let (attribute, modifier) = (mad.attribute(), mad.modifier());
        let version = (mad.base_version(), mad.class_version());
        let status = if version != (1, VERSION) {
            Status::BAD_VERSION
        } else if by_owner && set {
            Status::UNSUPPORTED_ATTRIBUTE
        } else {
            let mut key = [0; 8];
            key.copy_from_slice(&bytes[KEY]);
            if !self.check_congestion_key(at, u64::from_be_bytes(key), attribute, set) {
                return false;
            }
            let data = &mut bytes[part(attribute)];
            let outcome = self.congestion_attribute(at, attribute, modifier, set, data);
            outcome.err().unwrap_or(Status::OK)
        };
        let Ok(mut mad) = Mad::new_checked(&mut bytes[..]) else {
            return false;
        };
        mad.set_method(Method::GET_RESPONSE);
        mad.set_status(status);
        true
    }

    /// Whether a datagram has the key that it needs. Without protection everybody may read.
    fn check_congestion_key(
        &mut self,
        at: PortRef,
        key: u64,
        attribute: AttributeId,
        set: bool,
    ) -> bool {
        let now = self.timers.now();
        let Some(of) = self.port(at).and_then(|port| port.congestion.as_ref()) else {
            return true;
        };
        let CongestionKeyInfo {
            key: right,
            protect,
            lease_period,
            violations,
        } = of.key;
        if right == 0 || key == right {
            if of.violated.is_some() {
                self.change_congestion(at, |of| of.violated = None);
            }
            return true;
        }
        let lease = Duration::from_secs(lease_period.into());
        let expired = |since| lease_period > 0 && now >= since + lease;
        if protect && of.violated.is_some_and(expired) {
            self.change_congestion(at, |of| (of.key.protect, of.violated) = (false, None));
            return self.check_congestion_key(at, key, attribute, set);
        }
        if !set && (!protect || attribute == CONGESTION_KEY_INFO) {
            return true;
        }
        self.change_congestion(at, |of| {
            of.key.violations = violations.saturating_add(1);
            of.violated.get_or_insert(now);
        });
        false
    }

    fn change_congestion(&mut self, at: PortRef, change: impl FnOnce(&mut Congestion)) {
        if let Some(port) = self.nodes.port_mut(at) {
            change(Arc::make_mut(port.congestion.get_or_insert_default()));
        }
    }

    fn congestion_attribute(
        &mut self,
        at: PortRef,
        attribute: AttributeId,
        modifier: u32,
        set: bool,
        data: &mut [u8],
    ) -> Result<(), Status> {
        let is_switch = self.switch(at.node).is_some();
        match attribute {
            AttributeId::CLASS_PORT_INFO if !set => {
                data.fill(0);
                ClassPortInfo {
                    base_version: 1,
                    class_version: VERSION,
                    resp_time_value: RESPONSE_TIME,
                    ..ClassPortInfo::default()
                }
                .emit(data);
            }
            CONGESTION_INFO if !set => {
                let (congestion_info, control_table_cap) = if is_switch {
                    (PORT_THRESHOLD | PORT_PACKET_SIZE | PORT_MARKING_RATE, 0)
                } else {
                    (BY_QUEUE_PAIR | BY_SERVICE_LEVEL, BLOCKS as u8)
                };
                data.fill(0);
                CongestionInfo {
                    congestion_info,
                    control_table_cap,
                }
                .emit(data);
            }
            TIME_STAMP if !set => {
                data.fill(0);
                let now = ticks(nanoseconds(self.timers.now()));
                data[..4].copy_from_slice(&now.to_be_bytes());
            }
            CONGESTION_KEY_INFO => self.congestion_key_info(at, set, data)?,
            CONGESTION_LOG if !set => self.congestion_log(at, is_switch, data),
            SWITCH_CONGESTION_SETTING if is_switch => {
                self.switch_congestion_setting(at, set, data)?;
            }
            SWITCH_PORT_CONGESTION_SETTING if is_switch => {
                self.switch_port_congestion_setting(at, modifier, set, data)?;
            }
            CA_CONGESTION_SETTING if !is_switch => self.ca_congestion_setting(at, set, data)?,
            CONGESTION_CONTROL_TABLE if !is_switch => {
                self.congestion_control_table(at, modifier, set, data)?;
            }
            _ => return Err(Status::UNSUPPORTED_ATTRIBUTE),
        }
        Ok(())
    }

    fn congestion(&self, at: PortRef) -> Option<&Congestion> {
        self.port(at)?.congestion.as_deref()
    }

    fn congestion_key_info(
        &mut self,
        at: PortRef,
        set: bool,
        data: &mut [u8],
    ) -> Result<(), Status> {
        if set {
            let asked = CongestionKeyInfo::parse(data).map_err(|_| Status::INVALID_FIELD)?;
            self.change_congestion(at, |of| {
                let violations = match asked.violations {
                    0 => 0,
                    _ => of.key.violations,
                };
                of.key = CongestionKeyInfo {
                    violations,
                    ..asked
                };
                of.violated = None;
            });
        }
        let mut own = self.congestion(at).map(|of| of.key).unwrap_or_default();
        // The one who set the key knows it; nobody else is shown a key that protects.
        if own.protect && !set {
            own.key = 0;
        }
        data.fill(0);
        own.emit(data);
        Ok(())
    }

    fn switch_congestion_setting(
        &mut self,
        at: PortRef,
        set: bool,
        data: &mut [u8],
    ) -> Result<(), Status> {
        let mut control_map = SETTINGS;
        if set {
            let asked = SwitchCongestionSetting::parse(data).map_err(|_| Status::INVALID_FIELD)?;
            control_map = asked.control_map;
            self.change_congestion(at, |of| {
                let all = &mut of.switch.all;
                if control_map & VICTIM_MASK != 0 {
                    all.victim_mask_high = asked.victim_mask_high;
                    all.victim_mask_low = asked.victim_mask_low;
                }
                if control_map & THRESHOLD != 0 {
                    (all.threshold, all.packet_size) = (asked.threshold, asked.packet_size);
                }
                if control_map & MARKING_RATE != 0 {
                    all.marking_rate = asked.marking_rate;
                }
            });
            self.nodes.path_changed();
        }
        let all = self
            .congestion(at)
            .map(|of| of.switch.all)
            .unwrap_or_default();
        data.fill(0);
        SwitchCongestionSetting { control_map, ..all }.emit(data);
        Ok(())
    }

    fn switch_port_congestion_setting(
        &mut self,
        at: PortRef,
        block: u32,
        set: bool,
        data: &mut [u8],
    ) -> Result<(), Status> {
        let last = self.node(at.node).map_or(0, |node| node.last_port());
        let first = block as usize * ELEMENTS;
        if first > usize::from(last) {
            return Err(Status::INVALID_FIELD);
        }
        let ports = (first..=usize::from(last)).take(ELEMENTS);
        let places = || {
            ports
                .clone()
                .zip(0..)
                .map(|(port, at)| (port as u8, at * 4))
        };
        if set {
            let mut asked = Vec::new();
            for (port, place) in places() {
                let element = SwitchPortCongestionElement::parse(&data[place..])
                    .map_err(|_| Status::INVALID_FIELD)?;
                asked.push((port, element));
            }
            self.change_congestion(at, |of| {
                for (port, element) in asked {
                    match element {
                        // No port starves its neighbour of credits.
                        SwitchPortCongestionElement {
                            valid: true,
                            starvation: true,
                            ..
                        } => {}
                        SwitchPortCongestionElement { valid: true, .. } => {
                            of.switch.ports.insert(port, element);
                        }
                        _ => {
                            of.switch.ports.remove(&port);
                        }
                    }
                }
            });
            self.nodes.path_changed();
        }
        data.fill(0);
        if let Some(of) = self.congestion(at) {
            for (port, place) in places() {
                if let Some(element) = of.switch.ports.get(&port) {
                    element.emit(&mut data[place..]);
                }
            }
        }
        Ok(())
    }

    fn ca_congestion_setting(
        &mut self,
        at: PortRef,
        set: bool,
        data: &mut [u8],
    ) -> Result<(), Status> {
        let mut control_map = 0xffff;
        if set {
            let asked = CaCongestionSetting::parse(data).map_err(|_| Status::INVALID_FIELD)?;
            control_map = asked.control_map;
            let mut levels = [CaCongestionEntry::default(); LEVELS];
            for (level, asked) in levels.iter_mut().enumerate() {
                *asked = CaCongestionEntry::parse(&data[entry(level)])
                    .map_err(|_| Status::INVALID_FIELD)?;
            }
            self.change_adapter(at, |of| {
                of.by_level = asked.port_control & PORT_CONTROL_BY_SERVICE_LEVEL != 0;
                let own = of.levels.iter_mut().zip(levels).enumerate();
                for (level, (own, asked)) in own {
                    if control_map >> level & 1 != 0 {
                        *own = asked;
                    }
                }
            });
        }
        let of = self.adapter(at);
        data.fill(0);
        CaCongestionSetting {
            port_control: u16::from(of.by_level),
            control_map,
        }
        .emit(data);
        for (level, own) in of.levels.iter().enumerate() {
            own.emit(&mut data[entry(level)]);
        }
        Ok(())
    }

    fn congestion_control_table(
        &mut self,
        at: PortRef,
        block: u32,
        set: bool,
        data: &mut [u8],
    ) -> Result<(), Status> {
        let first = block as usize * ENTRIES;
        let head = CongestionControlTable::SIZE;
        let place = |at: usize| head + at * InjectionDelay::SIZE;
        if block as usize >= BLOCKS {
            return Err(Status::INVALID_FIELD);
        }
        if set {
            let asked = CongestionControlTable::parse(data).map_err(|_| Status::INVALID_FIELD)?;
            if usize::from(asked.limit) >= BLOCKS * ENTRIES {
                return Err(Status::INVALID_FIELD);
            }
            let mut delays = [InjectionDelay::default(); ENTRIES];
            for (at, delay) in delays.iter_mut().enumerate() {
                *delay =
                    InjectionDelay::parse(&data[place(at)..]).map_err(|_| Status::INVALID_FIELD)?;
            }
            self.change_adapter(at, |of| {
                of.limit = asked.limit;
                of.delays[first..first + ENTRIES].copy_from_slice(&delays);
            });
        }
        let of = self.adapter(at);
        data.fill(0);
        CongestionControlTable { limit: of.limit }.emit(data);
        for (at, delay) in of.delays[first..first + ENTRIES].iter().enumerate() {
            delay.emit(&mut data[place(at)..]);
        }
        Ok(())
    }

    fn adapter(&self, at: PortRef) -> Arc<AdapterCongestion> {
        self.congestion(at)
            .map(|of| Arc::clone(&of.adapter))
            .unwrap_or_default()
    }

    /// Changes how a channel adapter holds back what it sends. Engines ask for it when they ask for paths.
    fn change_adapter(&mut self, at: PortRef, change: impl FnOnce(&mut AdapterCongestion)) {
        self.change_congestion(at, |of| change(Arc::make_mut(&mut of.adapter)));
        self.nodes.path_changed();
    }

    /// The log, which is empty once it has been read.
    fn congestion_log(&mut self, at: PortRef, is_switch: bool, data: &mut [u8]) {
        let now = ticks(nanoseconds(self.timers.now()));
        data.fill(0);
        if is_switch {
            let Some(ledger) = self.ledgers.node_mut(at.node) else {
                return;
            };
            let marks = std::mem::take(&mut ledger.marks);
            let [ports_high, ports_low] = marks.ports;
            SwitchCongestionLog {
                log_type: LOG_OF_SWITCH,
                flags: 0,
                events: bits16(marks.count),
                now,
                ports_high,
                ports_low,
            }
            .emit(data);
            let places = data[SwitchCongestionLog::SIZE..].chunks_mut(SwitchCongestionEvent::SIZE);
            for (mark, place) in marks.last.iter().rev().zip(places) {
                let (slid, dlid, sl) = mark.header;
                SwitchCongestionEvent {
                    slid,
                    dlid,
                    sl,
                    time: ticks(mark.at),
                }
                .emit(place);
            }
            return;
        }
        let Some(ledger) = self.ledgers.port_mut(at) else {
            return;
        };
        let held_back = std::mem::take(&mut ledger.held_back);
        AdapterCongestionLog {
            log_type: LOG_OF_ADAPTER,
            flags: 0,
            events: bits16(held_back.count),
            levels: held_back.levels,
            now,
        }
        .emit(data);
        let places = data[AdapterCongestionLog::SIZE..].chunks_mut(AdapterCongestionEvent::SIZE);
        for (event, place) in held_back.last.iter().rev().zip(places) {
            event.emit(place);
        }
    }
}
