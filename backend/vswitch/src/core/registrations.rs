//! Registrations of guests with the subnet administration: groups that they joined,
//! services that they offer, events that they subscribed to.
//!
//! All of these are there until they are taken back, and a guest that is reset, or that dies, cannot do
//! that any more. On hardware its port goes down then, and its manager sees to it; here the port is the
//! vSwitch's and stays. So the daemon takes them back, by the packets that the guest would send. It
//! knows them by what the guest sent itself. Where a VM comes from an image, the daemon has them entered
//! in the same way.

mod group_lids;
mod image;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fabric::MULTICAST_LIDS;
use hca::VfId;
use tracing::warn;
use wire::mad::{AttributeId, Class, Mad, Method, Status};
use wire::sa::{self, InformInfo, JoinState, McMemberRecord, Record, SaHeader, ServiceRecord, id};
use wire::{Gid, Guid, MadPacket, Qpn};

use crate::model::{ManagerPlace, Model};
pub(crate) use group_lids::GroupLids;
pub(crate) use image::{RegistrationImageV1, packet_of};

/// Groups of one VM of which note is taken, services and subscriptions; more are refused.
const MAX_GROUPS: usize = 256;
const MAX_SERVICES_OR_SUBSCRIPTIONS: usize = 64;
/// Requests of one VM that are on their way; of older ones the answer is missed.
const MAX_REQUESTS: usize = 256;
/// Time to wait for an answer, and number of repetitions.
const TIMEOUT: Duration = Duration::from_secs(1);
const RETRIES: u8 = 4;
/// Transactions of the daemon's own requests begin here. Transactions of a guest's kernel have the number of
/// an agent in this place, which is small.
const FIRST_TRANSACTION: u64 = 0x006c_6561_7665_0000;

/// The subject of a registration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Group(Gid),
    /// A group that the subnet administration is to name, by the transaction.
    Unnamed(u64),
    /// Number, GID and P_Key of a service, as they lie in the record.
    Service([u8; 26]),
    Subscription(Box<[u8; InformInfo::SIZE]>),
}

impl Key {
    const fn is_group(&self) -> bool {
        matches!(self, Self::Group(_) | Self::Unnamed(_))
    }
}

/// The join states of a VM's MCMemberRecord, a bit each. Anything, for a subject that is
/// not a group.
type States = u8;
const ANY: States = 1;

#[derive(Debug)]
struct Entry {
    states: States,
    /// The request that it began with, as the wire had it.
    request: Box<MadPacket>,
}

/// A request that is not answered yet.
#[derive(Debug)]
struct Asked {
    transaction: u64,
    key: Key,
    /// The states that it adds, or takes back.
    states: States,
    begins: bool,
}

#[derive(Debug, Default)]
struct Vm {
    entries: HashMap<Key, Entry>,
    asked: VecDeque<Asked>,
}

/// A request that the daemon makes in a guest's place.
#[derive(Debug)]
struct Errand {
    vm: Guid,
    vf: VfId,
    key: Key,
    /// Whether something is entered by it, or taken back.
    enters: bool,
    request: Box<MadPacket>,
    due: Duration,
    left: u8,
}

/// The registrations of a daemon's VMs, and those that the daemon enters or takes back.
#[derive(Debug)]
pub(crate) struct Registrations {
    vms: HashMap<Guid, Vm>,
    group_lids: Arc<GroupLids>,
    errands: Vec<Errand>,
    begun: u64,
    max_groups: usize,
}

/// The VM has as many as it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany;

impl Registrations {
    /// Nothing so far.
    pub(crate) fn new(model: &Model) -> Self {
        Self {
            vms: HashMap::new(),
            group_lids: Arc::default(),
            errands: Vec::new(),
            begun: 0,
            max_groups: groups_of_a_vm(model),
        }
    }

    /// A VM sends this, as the wire has it.
    ///
    /// # Errors
    /// [`TooMany`], and it is not to be sent.
    pub(crate) fn ask(&mut self, vm: Guid, packet: &MadPacket) -> Result<(), TooMany> {
        let Some((key, states, begins)) = subject(packet) else {
            return Ok(());
        };
        let of = self.vms.entry(vm).or_default();
        let mut changed = states;
        if begins {
            self.errands
                .retain(|errand| (errand.vm, &errand.key) != (vm, &key));
            let held = of.entries.get(&key).map_or(0, |entry| entry.states);
            changed &= !held;
            if held == 0 {
                let alike = |other: &&Key| other.is_group() == key.is_group();
                let max = if key.is_group() {
                    self.max_groups
                } else {
                    MAX_SERVICES_OR_SUBSCRIPTIONS
                };
                if of.entries.keys().filter(alike).count() >= max {
                    return Err(TooMany);
                }
            }
            // Until the answer says otherwise it is entered: there may be none.
            let entry = of.entries.entry(key.clone()).or_insert_with(|| Entry {
                states: 0,
                request: Box::new(packet.clone()),
            });
            entry.states |= states;
        }
        if of.asked.len() >= MAX_REQUESTS {
            of.asked.pop_front();
        }
        of.asked.push_back(Asked {
            transaction: packet.header().transaction(),
            key,
            states: changed,
            begins,
        });
        Ok(())
    }

    /// Returns the LIDs here of groups that VMs know by other LIDs. A change makes a new map.
    pub(crate) const fn group_lids(&self) -> &Arc<GroupLids> {
        &self.group_lids
    }

    /// A packet has come for a VM.
    pub(crate) fn answered(&mut self, vm: Guid, packet: &MadPacket) {
        let header = packet.header();
        if header.class() != Class::SUBN_ADM || !header.method().is_response() {
            return;
        }
        let Some(of) = self.vms.get_mut(&vm) else {
            return;
        };
        let is_it = |asked: &Asked| {
            asked.transaction == header.transaction() && attribute(&asked.key) == header.attribute()
        };
        let at = of.asked.iter().position(is_it);
        let Some(asked) = at.and_then(|at| of.asked.remove(at)) else {
            return;
        };
        let done = header.status().is_ok();
        if done == asked.begins {
            if done && let Key::Unnamed(_) = asked.key {
                of.name(&asked.key, packet);
            }
            if let (true, Key::Group(mgid)) = (done, asked.key)
                && let Ok(McMemberRecord { mlid, .. }) = McMemberRecord::read(&packet.mad[sa::DATA])
                && self.group_lids.is_news(vm, mgid, mlid)
            {
                Arc::make_mut(&mut self.group_lids).learn(vm, mgid, mlid);
            }
            return;
        }
        if let Some(entry) = of.entries.get_mut(&asked.key) {
            entry.states &= !asked.states;
            if entry.states == 0 {
                of.entries.remove(&asked.key);
                if let Key::Group(mgid) = asked.key
                    && self.group_lids.has(vm)
                {
                    Arc::make_mut(&mut self.group_lids).forget(vm, mgid);
                }
            }
        }
    }

    /// A VM at this VF is no more, or begins anew: takes back what it has entered.
    pub(crate) fn depart(&mut self, vm: Guid, vf: VfId, now: Duration) {
        self.errands
            .retain(|errand| !(errand.vm == vm && errand.enters));
        let Some(of) = self.vms.remove(&vm) else {
            return;
        };
        if self.group_lids.has(vm) {
            Arc::make_mut(&mut self.group_lids).forget_all(vm);
        }
        for (key, entry) in of.entries {
            // One by one: those that the administration does not know of are refused by themselves.
            let states = (0..8).map(|bit| 1 << bit);
            for state in states.filter(|state| entry.states & state != 0) {
                let transaction = self.transaction();
                if let Some(request) = taken_back(&key, &entry.request, state, transaction) {
                    self.errands.push(Errand {
                        vm,
                        vf,
                        key: key.clone(),
                        enters: false,
                        request: Box::new(request),
                        due: now,
                        left: RETRIES,
                    });
                }
            }
        }
    }

    /// A transaction of the daemon's own.
    fn transaction(&mut self) -> u64 {
        self.begun += 1;
        FIRST_TRANSACTION | self.begun & 0xffff
    }

    /// Whether anything is being entered or taken back.
    pub(crate) fn has_errands(&self) -> bool {
        !self.errands.is_empty()
    }

    /// Requests that are due, and the VFs that they are of.
    pub(crate) fn poll(&mut self, now: Duration) -> Vec<(VfId, MadPacket)> {
        let mut due = Vec::new();
        self.errands.retain_mut(|errand| {
            if errand.due > now {
                return true;
            }
            if errand.left == 0 {
                return false;
            }
            errand.left -= 1;
            errand.due = now + TIMEOUT;
            due.push((errand.vf, (*errand.request).clone()));
            true
        });
        due
    }

    /// When [`Registrations::poll`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.errands.iter().map(|errand| errand.due).min()
    }

    /// Whether a packet for a VF answers what [`Registrations::poll`] has given out.
    pub(crate) fn take_answer(&mut self, vf: VfId, packet: &MadPacket) -> bool {
        let header = packet.header();
        if self.errands.is_empty() || header.class() != Class::SUBN_ADM {
            return false;
        }
        let transaction = header.transaction();
        let at = self.errands.iter().position(|errand| {
            (errand.vf, errand.request.header().transaction()) == (vf, transaction)
        });
        let Some(at) = at else { return false };
        let errand = self.errands.swap_remove(at);
        if errand.enters {
            if !header.status().is_ok() {
                let status = header.status();
                warn!(vm = %errand.vm, %status, "an entry of a VM from elsewhere is refused here");
            }
            self.answered(errand.vm, packet);
        }
        true
    }
}

impl Vm {
    /// The subnet administration has named a group.
    fn name(&mut self, key: &Key, answer: &MadPacket) {
        let Ok(record) = McMemberRecord::read(&answer.mad[sa::DATA]) else {
            return;
        };
        if let Some(mut entry) = self.entries.remove(key) {
            let own = &mut entry.request.mad[sa::DATA];
            own[..16].copy_from_slice(&record.mgid.to_bytes());
            self.entries.insert(Key::Group(record.mgid), entry);
        }
    }
}

/// Groups that a VM may be in. The embedded subnet administration has a limit of its own; for another
/// one, which has none, it is an equal share of what switches can forward, within reason.
fn groups_of_a_vm(model: &Model) -> usize {
    const MIN_GROUPS: usize = 32;
    let share = usize::from(MULTICAST_LIDS) / model.vfs().count().max(1);
    match model.manager.place {
        ManagerPlace::Embedded => MAX_GROUPS,
        ManagerPlace::External => share.clamp(MIN_GROUPS, MAX_GROUPS),
    }
}

/// The subject that a guest's packet enters or takes back, and its states; and whether it enters.
fn subject(packet: &MadPacket) -> Option<(Key, States, bool)> {
    let header = packet.header();
    let method = header.method();
    if header.class() != Class::SUBN_ADM || !matches!(method, Method::SET | Method::DELETE) {
        return None;
    }
    let data = &packet.mad[sa::DATA];
    let sets = method == Method::SET;
    match header.attribute() {
        id::MC_MEMBER => {
            let record = McMemberRecord::read(data).ok()?;
            let key = match record.mgid {
                Gid::NONE => Key::Unnamed(header.transaction()),
                mgid => Key::Group(mgid),
            };
            Some((key, record.join_state.0, sets))
        }
        id::SERVICE => Some((Key::Service(*data.first_chunk()?), ANY, sets)),
        AttributeId::INFORM_INFO if sets => {
            let info = InformInfo::parse(data).ok()?;
            let plain = InformInfo {
                subscribe: 0,
                qpn: Qpn::QP0,
                resp_time_value: 0,
                ..info
            };
            let key = Key::Subscription(Box::new(plain.to_bytes()));
            Some((key, ANY, info.subscribe != 0))
        }
        _ => None,
    }
}

/// The attribute of requests about a subject.
const fn attribute(key: &Key) -> AttributeId {
    match key {
        Key::Group(_) | Key::Unnamed(_) => id::MC_MEMBER,
        Key::Service(_) => id::SERVICE,
        Key::Subscription(_) => AttributeId::INFORM_INFO,
    }
}

/// The request that takes back what another one has entered, a group in one of its states.
fn taken_back(
    key: &Key,
    request: &MadPacket,
    state: States,
    transaction: u64,
) -> Option<MadPacket> {
    const TO_LEAVE: u64 =
        McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    let mut packet = request.clone();
    let mut header = SaHeader::of(&packet.mad).ok()?;
    let data = &mut packet.mad[sa::DATA];
    let method = match key {
        // Without a name there is none.
        Key::Unnamed(_) => return None,
        Key::Group(_) => {
            let record = McMemberRecord::read(data).ok()?;
            McMemberRecord {
                join_state: JoinState(state),
                ..record
            }
            .write(data);
            header.component_mask = TO_LEAVE;
            Method::DELETE
        }
        Key::Service(_) => {
            // A key that was not given is 0, whatever stands in its place.
            if header.component_mask & ServiceRecord::SERVICE_KEY == 0 {
                let record = ServiceRecord::read(data).ok()?;
                ServiceRecord {
                    service_key: 0,
                    ..record
                }
                .write(data);
            }
            Method::DELETE
        }
        Key::Subscription(_) => {
            let info = InformInfo {
                subscribe: 0,
                qpn: request.src_qp,
                ..InformInfo::parse(data).ok()?
            };
            info.emit(data);
            Method::SET
        }
    };
    header.emit(&mut packet.mad[sa::HEADER]);
    let mut mad = Mad::new_checked(&mut packet.mad[..]).ok()?;
    mad.set_method(method);
    mad.set_transaction(transaction);
    Some(packet)
}

/// The answer to a request that is refused for a VM that has too much already.
pub(crate) fn refusal(request: &MadPacket) -> MadPacket {
    let mut answer = request.reply();
    if let Ok(mut mad) = Mad::new_checked(&mut answer.mad[..]) {
        mad.set_method(Method::GET_RESPONSE);
        mad.set_status(Status::SA_NO_RESOURCES);
    }
    answer
}
