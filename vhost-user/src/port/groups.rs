//! Multicast groups: those that the guest listens to, and those that it sends to.

use std::collections::{HashMap, VecDeque};

use wire::mad::{Method, SIZE};
use wire::sa::{self, JoinState, McMemberRecord, Selector};
use wire::{Gid, Lid, Mtu, QKey, Sl};

use super::SECOND;
use super::requests::{Alarm, Question, Requests};
use crate::translate::{Dropped, Own};

/// The most groups that a guest is in or sends to.
const MAX_GROUPS: usize = 256;
/// Datagrams that wait to be sent to a group.
const WAITING: usize = 3;
/// Time without further requests for a group that does not exist.
const ABSENT: u64 = 4 * SECOND;
/// Age at which a group is forgotten if it is not received, and not sent to.
const AGE: u64 = 600 * SECOND;
/// Interval between searches for such groups.
const SWEEP: u64 = 60 * SECOND;

/// A group, as the subnet administration says it is.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// Its LID.
    pub mlid: Lid,
    /// Its queue key.
    pub qkey: QKey,
    /// Its service level.
    pub sl: Sl,
    /// Traffic class of the global route.
    pub traffic_class: u8,
    /// Flow label of the global route.
    pub flow_label: u32,
    /// Hop limit of the global route.
    pub hop_limit: u8,
    /// Longest datagram, header of IPoIB included.
    pub mtu: usize,
    rate: u8,
    mtu_code: u8,
}

impl Group {
    fn of(record: &McMemberRecord) -> Option<Self> {
        let mtu = Mtu::from_code(record.mtu)?;
        Some(Self {
            mlid: record.mlid,
            qkey: record.qkey,
            sl: record.sl,
            traffic_class: record.traffic_class,
            flow_label: record.flow_label,
            hop_limit: record.hop_limit,
            mtu: mtu.bytes() as usize,
            rate: record.rate,
            mtu_code: record.mtu,
        })
    }
}

#[derive(Debug, Default)]
struct Membership {
    /// The group, and the subnet's generation when that was said.
    group: Option<(Group, u64)>,
    /// It hears the group; otherwise it only sends.
    full: bool,
    question: Option<Question>,
    waiting: VecDeque<Vec<u8>>,
    absent: Option<u64>,
    /// When somebody sent to it last.
    used: u64,
}

impl Membership {
    const fn state(&self) -> JoinState {
        if self.full {
            JoinState::FULL
        } else {
            JoinState::SEND_ONLY
        }
    }

    /// Whether the subnet administration may have entered it.
    fn is_entered(&self) -> bool {
        self.group.is_some() || self.question.is_some_and(|it| it.transaction != 0)
    }
}

/// The groups.
#[derive(Debug, Default)]
pub struct Groups {
    known: HashMap<Gid, Membership>,
    /// Groups to be left, which nobody waits for, and what the port was in them.
    left: Vec<(Gid, JoinState)>,
    alarm: Alarm,
    swept: u64,
}

impl Groups {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.known.clear();
    }

    /// Where there is no room, a group gives way that the guest does not hear.
    fn entry(&mut self, mgid: Gid) -> Option<&mut Membership> {
        if self.known.len() >= MAX_GROUPS && !self.known.contains_key(&mgid) {
            let sent_to = { self.known.iter() }
                .filter(|(_, entry)| !entry.full)
                .min_by_key(|(_, entry)| entry.used);
            let oldest = *sent_to?.0;
            self.forget(oldest);
        }
        Some(self.known.entry(mgid).or_default())
    }

    /// Takes a group out, and has it left where it was joined.
    fn forget(&mut self, mgid: Gid) {
        if let Some(entry) = self.known.remove(&mgid)
            && entry.is_entered()
            && self.left.len() < MAX_GROUPS
        {
            self.left.push((mgid, entry.state()));
            self.alarm.set(0);
        }
    }

    /// The guest is to hear a group.
    pub fn want(&mut self, mgid: Gid, now: u64) {
        self.left.retain(|(left, _)| *left != mgid);
        let Some(entry) = self.entry(mgid) else {
            return;
        };
        if !entry.full {
            entry.full = true;
            entry.group = None;
            entry.question = Some(Question::new(now));
            entry.absent = None;
            self.alarm.set(now);
        }
    }

    /// The guest does not hear a group any more.
    pub fn leave(&mut self, mgid: Gid) {
        if self.known.get(&mgid).is_some_and(|entry| entry.full) {
            self.forget(mgid);
        }
    }

    /// A group that is heard.
    pub fn member(&self, mgid: Gid) -> Option<&Group> {
        let entry = self.known.get(&mgid).filter(|entry| entry.full)?;
        entry.group.as_ref().map(|(group, _)| group)
    }

    /// A group to send to. Where it is not known yet, it is joined. It ends with its last listener, which nobody
    /// tells: so it is joined again where something has changed, and what is known is good until the answer is there.
    pub fn sends_to(&mut self, mgid: Gid, generation: u64, now: u64) -> Option<&Group> {
        let entry = self.entry(mgid)?;
        entry.used = now;
        let absent = entry.absent.is_some_and(|until| now < until);
        let from = entry.group.as_ref().map(|(_, from)| *from);
        let fresh = from.is_some_and(|from| entry.full || from == generation);
        if !fresh && entry.question.is_none() && !absent {
            entry.question = Some(Question::new(now));
            self.alarm.set(now);
        }
        let known = self.known.get(&mgid)?.group.as_ref();
        known.map(|(group, _)| group)
    }

    /// Keeps a datagram until the group is joined.
    pub fn wait(&mut self, mgid: Gid, datagram: Vec<u8>) -> Result<(), Dropped> {
        let entry = self.known.get_mut(&mgid);
        let entry = entry.filter(|entry| entry.question.is_some());
        let entry = entry.ok_or(Dropped::Unknown)?;
        if entry.waiting.len() >= WAITING {
            return Err(Dropped::Full);
        }
        entry.waiting.push_back(datagram);
        Ok(())
    }

    /// An answer has come. The group that was joined, and what waited for it.
    pub fn answered(
        &mut self,
        transaction: u64,
        answer: Option<McMemberRecord>,
        generation: u64,
        now: u64,
    ) -> Option<(Gid, Group, VecDeque<Vec<u8>>)> {
        let asked = |(_, entry): &(&Gid, &mut Membership)| {
            let question = entry.question.as_ref();
            question.is_some_and(|question| question.transaction == transaction)
        };
        let (&mgid, entry) = self.known.iter_mut().find(asked)?;
        if let Some(group) = answer.as_ref().and_then(Group::of) {
            entry.question = None;
            entry.group = Some((group, generation));
            entry.absent = None;
            // Others may have waited for it.
            self.alarm.set(now);
            return Some((mgid, group, std::mem::take(&mut entry.waiting)));
        }
        entry.waiting.clear();
        if !entry.full {
            // Nobody listens.
            (entry.group, entry.question) = (None, None);
            entry.absent = Some(now + ABSENT);
        }
        None
    }

    /// Asks what is to be asked. `broadcast` is joined first, and says how new groups are to be.
    pub fn poll(
        &mut self,
        now: u64,
        own: &Own,
        broadcast: Gid,
        requests: &mut Requests,
        mads: &mut Vec<[u8; SIZE]>,
    ) {
        if now.saturating_sub(self.swept) >= SWEEP {
            self.swept = now;
            self.sweep(now.saturating_sub(AGE));
        }
        if !self.alarm.rings(now) {
            return;
        }
        let like = self.member(broadcast).copied();
        for (&mgid, entry) in &mut self.known {
            if mgid != broadcast && like.is_none() {
                continue;
            }
            let state = entry.state();
            let Some(question) = entry.question.as_mut() else {
                continue;
            };
            if question.is_hopeless(now) && !entry.full {
                (entry.group, entry.question) = (None, None);
                entry.waiting.clear();
                entry.absent = Some(now + ABSENT);
                continue;
            }
            let Some(transaction) = question.poll(now, requests, &mut self.alarm) else {
                continue;
            };
            let like = like.filter(|_| entry.full && mgid != broadcast);
            let (components, record) = join(mgid, own, state, like.as_ref());
            let method = Method::SET;
            mads.push(sa::with_record(method, transaction, components, &record));
        }
        while let Some(&(mgid, state)) = self.left.last() {
            let Some(transaction) = requests.next_or_later(now, &mut self.alarm) else {
                break;
            };
            self.left.pop();
            let (components, record) = join(mgid, own, state, None);
            let method = Method::DELETE;
            mads.push(sa::with_record(method, transaction, components, &record));
        }
    }

    /// Forgets groups that are not heard, and that nobody has sent to since.
    fn sweep(&mut self, oldest: u64) {
        let idle = |entry: &Membership| !entry.full && entry.question.is_none();
        let idle: Vec<Gid> = { self.known.iter() }
            .filter(|(_, entry)| idle(entry) && entry.used < oldest)
            .map(|(&mgid, _)| mgid)
            .collect();
        idle.into_iter().for_each(|mgid| self.forget(mgid));
    }

    /// When something is to be asked.
    pub const fn deadline(&self) -> Option<u64> {
        self.alarm.due()
    }
}

/// A request to join, or with the same components to leave. A group that there is not yet is made `like`
/// another.
fn join(mgid: Gid, own: &Own, state: JoinState, like: Option<&Group>) -> (u64, McMemberRecord) {
    let mut components = McMemberRecord::MGID
        | McMemberRecord::PORT_GID
        | McMemberRecord::PKEY
        | McMemberRecord::JOIN_STATE;
    let mut record = McMemberRecord {
        mgid,
        port_gid: own.address.gid,
        pkey: own.pkey,
        join_state: state,
        ..McMemberRecord::default()
    };
    if let Some(like) = like {
        components |= McMemberRecord::QKEY
            | McMemberRecord::MTU_SELECTOR
            | McMemberRecord::MTU
            | McMemberRecord::TRAFFIC_CLASS
            | McMemberRecord::RATE_SELECTOR
            | McMemberRecord::RATE
            | McMemberRecord::SL
            | McMemberRecord::FLOW_LABEL
            | McMemberRecord::HOP_LIMIT;
        record = McMemberRecord {
            qkey: like.qkey,
            mtu_selector: Selector::Exactly.code(),
            mtu: like.mtu_code,
            traffic_class: like.traffic_class,
            rate_selector: Selector::Exactly.code(),
            rate: like.rate,
            sl: like.sl,
            flow_label: like.flow_label,
            hop_limit: like.hop_limit,
            ..record
        };
    }
    (components, record)
}
