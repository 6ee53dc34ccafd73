//! Election of the master among several managers: SMInfo and its state machine (IBA 14.4).

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::info;
use wire::attribute::{CapabilityMask, LocalChange, NodeType, SmInfo, SmState, Trap};
use wire::mad::{AttributeId, Method, Status};
use wire::smp::{DATA, Destination, Request, Route, Smp};
use wire::{Guid, MadPacket};

use super::configuration::Step;
use super::{Knowledge, Phase, Purpose, SubnetManager};
use crate::model::{At, Subnet};
use wire::Transport;

/// Request in an SMInfo that is set (IBA 14.4.1.1): the attribute modifier.
mod control {
    pub const HANDOVER: u32 = 1;
    pub const ACKNOWLEDGE: u32 = 2;
    pub const DISABLE: u32 = 3;
    pub const STANDBY: u32 = 4;
    pub const DISCOVER: u32 = 5;
}

/// Another manager.
#[derive(Debug, Clone)]
struct Other {
    info: SmInfo,
    route: Route,
    at: At,
}

/// This manager among others.
#[derive(Debug)]
pub(super) struct Mastery {
    state: SmState,
    /// Counts up while the manager lives.
    activity: u32,
    /// Managers that the last sweep found, by port GUID.
    others: BTreeMap<Guid, Other>,
    /// The manager that this one polls. A standby polls the master, or the manager that will be. A
    /// master polls the manager from which it awaits a handover.
    polled: Option<Other>,
    next_poll: Option<Duration>,
    missed: u32,
    /// Polls that a master has spent waiting.
    waited: u32,
    /// The master that gave up waiting for this one's handover.
    ignored: Option<Guid>,
    /// The subnet was another manager's before.
    inherited: bool,
}

impl Default for Mastery {
    fn default() -> Self {
        Self {
            state: SmState::Discovering,
            activity: 0,
            others: BTreeMap::new(),
            polled: None,
            next_poll: None,
            missed: 0,
            waited: 0,
            ignored: None,
            inherited: false,
        }
    }
}

impl Mastery {
    pub(super) fn polled(&mut self) {
        self.activity = self.activity.wrapping_add(1);
    }

    pub(super) fn forget_others(&mut self) {
        self.others.clear();
    }

    /// Whether a master waits for another one's handover.
    pub(super) fn waits(&self) -> bool {
        self.state == SmState::Master && self.polled.is_some()
    }

    /// When to poll next.
    pub(super) fn due(&self) -> Option<Duration> {
        self.polled.as_ref().and(self.next_poll)
    }

    fn set(&mut self, state: SmState) {
        if state != self.state {
            info!(from = %self.state, to = %state, "subnet manager");
        }
        self.state = state;
    }
}

/// Whether one manager is to be master rather than another: the higher priority, then the lower
/// GUID (IBA 14.4.1.2).
fn outranks(one: (u8, Guid), other: (u8, Guid)) -> bool {
    one.0 > other.0 || one.0 == other.0 && one.1 < other.1
}

impl Knowledge {
    fn rank(&self) -> (u8, Guid) {
        (self.config.priority, self.own_guid())
    }

    fn own_guid(&self) -> Guid {
        let own = |subnet: &Subnet| Some(subnet.port(subnet.own?)?.guid);
        let before = self.before.as_ref().and_then(own);
        own(&self.subnet).or(before).unwrap_or(Guid::NONE)
    }
}

impl SubnetManager {
    /// State of this manager among the managers of the subnet.
    pub fn state(&self) -> SmState {
        self.mastery.state
    }

    /// The priority among managers, 15 the highest.
    pub fn priority(&self) -> u8 {
        self.known.config.priority
    }

    /// Other managers that the last sweep found.
    pub fn others(&self) -> impl Iterator<Item = &SmInfo> {
        self.mastery.others.values().map(|other| &other.info)
    }

    /// Changes the priority; a sweep then finds out who is to be master.
    pub fn set_priority(&mut self, priority: u8) {
        self.known.config.priority = priority.min(15);
        self.sweeps.changed = true;
    }

    /// SMInfo of this manager for those that ask its port.
    pub fn sm_info(&self) -> SmInfo {
        SmInfo {
            guid: self.known.own_guid(),
            sm_key: self.known.config.sm_key,
            act_count: self.mastery.activity,
            priority: self.known.config.priority,
            state: self.mastery.state,
        }
    }

    /// Asks a port whether a manager is there, if it says that one may be.
    pub(super) fn ask_manager(&mut self, at: At) {
        if self.known.subnet.own == Some(at) {
            return;
        }
        let Some(port) = self.known.subnet.port(at) else {
            return;
        };
        let mask = port.info.map(|info| info.capability_mask);
        if mask.is_some_and(|mask| mask.contains(CapabilityMask::IS_SM)) {
            let route = port.route.clone();
            self.get(route, AttributeId::SM_INFO, 0, Purpose::SmInfo(at));
        }
    }

    /// Asks the managers that are known how they are.
    pub(super) fn ask_others(&mut self) {
        let others: Vec<At> = self.mastery.others.values().map(|other| other.at).collect();
        for at in others {
            self.ask_manager(at);
        }
    }

    pub(super) fn take_sm_info(&mut self, at: At, data: &[u8; DATA]) {
        let Ok(info) = SmInfo::parse(data) else {
            return;
        };
        let Some(port) = self.known.subnet.port(at) else {
            return;
        };
        let (guid, route) = (port.guid, port.route.clone());
        if guid == self.known.own_guid() {
            return;
        }
        if self.known.config.sm_key != 0 && info.sm_key != self.known.config.sm_key {
            self.sweeps.error(format!(
                "the subnet manager at port {guid} does not have the sm_key and is left alone; \
                 give all managers of a subnet the same"
            ));
            return;
        }
        // The GUID that it tells is of no use: the manager at that port is meant.
        let info = SmInfo { guid, ..info };
        let known = self.mastery.others.insert(guid, Other { info, route, at });
        // Between sweeps a sweep decides what is to be done.
        let higher = outranks((info.priority, guid), self.known.rank());
        let matters = match info.state {
            SmState::Master => self.mastery.ignored != Some(guid) || higher,
            SmState::Standby => higher,
            _ => false,
        };
        let news = known.is_none_or(|known| known.info.state != info.state) || higher;
        if self.phase == Phase::LightSweep && matters && news {
            self.sweeps.changed = true;
        }
    }

    /// A full sweep knows all managers: goes on, or leaves the subnet to another one.
    pub(super) fn decide_mastery(&mut self) {
        let rank = self.known.rank();
        let others = &self.mastery.others;
        let best = |of: &dyn Fn(&SmInfo) -> bool| {
            others
                .values()
                .filter(|other| of(&other.info))
                .max_by_key(|other| (other.info.priority, std::cmp::Reverse(other.info.guid)))
                .cloned()
        };
        let higher = best(&|info| {
            info.state != SmState::NotActive && outranks((info.priority, info.guid), rank)
        });
        let master = best(&|info| info.state == SmState::Master);
        match self.mastery.state {
            SmState::Master => match (higher, master) {
                (Some(heir), _) => self.hand_over(heir),
                // Its part of the subnet is its own until it hands it over (C14-60.2.1).
                (None, Some(other)) if self.mastery.ignored != Some(other.info.guid) => {
                    self.wait_for(other);
                }
                _ => self.manage(),
            },
            // A master is asked for the subnet by polling it: it sees a higher one itself.
            _ => match master.or(higher) {
                Some(other) => self.stand_by(other),
                None => {
                    self.mastery.set(SmState::Master);
                    self.take_over();
                    self.manage();
                }
            },
        }
    }

    /// Goes on with a sweep, as the master.
    fn manage(&mut self) {
        if self.mastery.inherited {
            self.mastery.inherited = false;
            // LIDs that the ports have are in use, but those of a move that was cut short may be at
            // the wrong ends yet.
            let moving = self.migrations.moving();
            let ports = self.known.subnet.ports();
            let current =
                ports.filter(|(_, port)| !port.guid.is_none() && !moving.contains(&port.guid));
            let current = current.filter_map(|(_, port)| Some((port.guid, port.info?.lid)));
            for (guid, lid) in current.filter(|(_, lid)| lid.is_unicast()) {
                self.known.lids.insert(guid, lid);
            }
        }
        self.clear_changes();
        self.enter(Step::FIRST);
    }

    /// Forgets the settings of nodes, which another manager may have changed.
    fn take_over(&mut self) {
        self.known.tables.forget_all();
        self.mastery.polled = None;
        self.mastery.waited = 0;
    }

    fn stop_sweep(&mut self) {
        self.requests.clear();
        self.phase = Phase::Idle;
        self.sweeps.stop();
    }

    fn stand_by(&mut self, other: Other) {
        self.stop_sweep();
        self.mastery.set(SmState::Standby);
        self.mastery.inherited = true;
        self.mastery.ignored = None;
        self.poll_from_now(other);
    }

    fn wait_for(&mut self, other: Other) {
        self.stop_sweep();
        self.mastery.inherited = true;
        self.mastery.waited = 0;
        self.poll_from_now(other);
    }

    fn poll_from_now(&mut self, other: Other) {
        self.mastery.polled = Some(other);
        self.mastery.missed = 0;
        self.mastery.next_poll = Some(self.now);
    }

    fn hand_over(&mut self, heir: Other) {
        info!(to = %heir.info.guid, priority = heir.info.priority, "handing the subnet over");
        self.stop_sweep();
        self.phase = Phase::HandingOver;
        self.control(heir.route.clone(), control::HANDOVER, Purpose::Handover);
        self.mastery.polled = Some(heir);
    }

    /// The handover has been answered, or was not.
    pub(super) fn stand_by_for_heir(&mut self) {
        self.phase = Phase::Idle;
        match self.mastery.polled.take() {
            Some(heir) => self.stand_by(heir),
            None => self.sweeps.changed = true,
        }
    }

    /// Sends what changes another manager's state.
    fn control(&mut self, route: Route, control: u32, purpose: Purpose) {
        let mut data = [0; DATA];
        self.sm_info().emit(&mut data);
        self.request(
            route,
            Method::SET,
            AttributeId::SM_INFO,
            control,
            data,
            purpose,
        );
    }

    /// Asks the manager that is polled whether it lives, when it is time.
    pub(super) fn poll_master(&mut self) -> bool {
        let Some(route) = self
            .mastery
            .polled
            .as_ref()
            .map(|other| other.route.clone())
        else {
            return false;
        };
        if self.mastery.next_poll.is_some_and(|due| due > self.now) {
            return false;
        }
        self.mastery.next_poll = Some(self.now + self.known.config.poll_interval);
        self.get(route, AttributeId::SM_INFO, 0, Purpose::Poll);
        true
    }

    pub(super) fn take_poll(&mut self, data: &[u8; DATA]) {
        let Ok(info) = SmInfo::parse(data) else {
            self.missed_poll();
            return;
        };
        let Some(other) = &self.mastery.polled else {
            return;
        };
        let higher = outranks((info.priority, other.info.guid), self.known.rank());
        match (self.mastery.state, info.state) {
            (SmState::Master, SmState::Master) if higher => self.stop_waiting(),
            (SmState::Master, SmState::Master) => {
                self.mastery.missed = 0;
                self.mastery.waited += 1;
                if self.mastery.waited > self.known.config.poll_retries {
                    let guid = other.info.guid;
                    self.sweeps.error(format!(
                        "the subnet manager at port {guid} is master as well and does not hand \
                         over to this one, which outranks it; end one of them"
                    ));
                    self.mastery.ignored = Some(guid);
                    self.stop_waiting();
                } else {
                    self.tell_priority();
                }
            }
            (SmState::Master, _) => self.stop_waiting(),
            (_, SmState::Master) => {
                self.mastery.missed = 0;
                if !higher {
                    self.tell_priority();
                }
            }
            // Not yet master, and going to be.
            (_, SmState::Standby | SmState::Discovering) if higher => self.mastery.missed = 0,
            _ => self.missed_poll(),
        }
    }

    /// The manager that is polled did not answer, or is none any more.
    pub(super) fn missed_poll(&mut self) {
        self.mastery.missed += 1;
        if self.mastery.missed <= self.known.config.poll_retries {
            return;
        }
        if self.mastery.state == SmState::Master {
            self.stop_waiting();
        } else {
            self.mastery.polled = None;
            self.mastery.set(SmState::Discovering);
        }
    }

    fn stop_waiting(&mut self) {
        self.take_over();
        self.sweeps.changed = true;
    }

    /// Trap 144 to the master: it is to look at the priorities.
    fn tell_priority(&mut self) {
        let own = self
            .known
            .subnet
            .own
            .and_then(|at| self.known.subnet.port(at)?.info);
        let Some(other) = &self.mastery.polled else {
            return;
        };
        let master = self.known.subnet.port(other.at).and_then(|port| port.info);
        let (Some(own), Some(master)) = (own, master) else {
            return;
        };
        let change = LocalChange {
            lid: own.lid,
            other_changes: true,
            capability_mask: own.capability_mask,
            sm_priority_changed: true,
            ..LocalChange::default()
        };
        let trap = Request {
            destination: Destination::Lid(master.lid),
            method: Method::TRAP,
            attribute: AttributeId::NOTICE,
            modifier: 0,
            transaction: u64::from(self.mastery.activity),
            m_key: 0,
            data: Trap::LocalChange(change).from_node(NodeType::ChannelAdapter, own.lid),
        };
        let packet = MadPacket::smp(own.lid, master.lid, trap.to_bytes());
        self.outbox.push(packet);
    }

    /// Answers for this manager, and does what another one may ask of it.
    pub(super) fn answer_sm_info(&mut self, packet: &MadPacket, transport: &mut impl Transport) {
        let mut reply = packet.reply();
        let Ok(mut smp) = Smp::new_checked(&mut reply.mad[..]) else {
            return;
        };
        let mad = smp.mad();
        let (method, modifier) = (mad.method(), mad.modifier());
        // A manager that does not know the management key is not told the managers' key either.
        let own = self
            .known
            .subnet
            .own
            .map(|at| self.known.subnet.key_holder(at));
        let own = own.map_or(0, |own| self.known.keys.of(own));
        let trusted = own == 0 || smp.m_key() == own;
        let asked = SmInfo::parse(smp.data());
        let (status, act) = match (method, asked) {
            (Method::GET, _) => (Status::OK, None),
            (_, Ok(asked)) if trusted && self.may(modifier, &asked) => {
                (Status::OK, Some((modifier, asked)))
            }
            _ => (Status::INVALID_FIELD, None),
        };
        let mut info = self.sm_info();
        if !trusted {
            info.sm_key = 0;
        }
        smp.data_mut().fill(0);
        info.emit(smp.data_mut());
        smp.respond(status);
        transport.send(reply);
        if let Some((modifier, asked)) = act {
            self.obey(modifier, asked.guid);
        }
    }

    /// Whether another manager may ask this of this one now (IBA 14.4.1.1, table of transitions).
    fn may(&self, modifier: u32, asker: &SmInfo) -> bool {
        if self.known.config.sm_key != 0 && asker.sm_key != self.known.config.sm_key {
            return false;
        }
        let from_master = asker.state == SmState::Master;
        let state = self.mastery.state;
        match modifier {
            control::HANDOVER => from_master && state != SmState::NotActive,
            control::ACKNOWLEDGE => {
                asker.state == SmState::Standby
                    && matches!(state, SmState::Standby | SmState::Master)
            }
            control::DISABLE | control::DISCOVER => from_master && state == SmState::Standby,
            control::STANDBY => from_master && state == SmState::NotActive,
            _ => false,
        }
    }

    fn obey(&mut self, modifier: u32, asker: Guid) {
        match modifier {
            control::HANDOVER => {
                let from = self.mastery.polled.clone();
                let from = from.or_else(|| self.mastery.others.get(&asker).cloned());
                // Whatever runs is about a subnet that was another's.
                self.stop_sweep();
                self.take_over();
                self.mastery.inherited = true;
                self.mastery.set(SmState::Master);
                self.sweeps.changed = true;
                if let Some(other) = from {
                    self.control(other.route, control::ACKNOWLEDGE, Purpose::Acknowledge);
                }
            }
            control::DISABLE => {
                self.stop_sweep();
                self.mastery.polled = None;
                self.mastery.set(SmState::NotActive);
            }
            control::DISCOVER => {
                self.stop_sweep();
                self.mastery.polled = None;
                self.mastery.set(SmState::Discovering);
            }
            control::STANDBY => {
                match self.mastery.others.get(&asker).cloned() {
                    Some(master) => self.stand_by(master),
                    // Finds out who asked.
                    None => self.mastery.set(SmState::Discovering),
                }
            }
            _ => {}
        }
    }
}
