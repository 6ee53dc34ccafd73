//! Dynamic connections: their targets, and the contexts of initiators at a target.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use wire::{Gid, Lid, Psn, Qpn};

use crate::objects::ids::QpIndex;
use crate::objects::qp::attributes::{InCompletion, Inbound, QpAttr, QpView};
use crate::objects::tags::Tagged;
use crate::objects::work::AddressVector;
use crate::transport::Session;

/// A DC target to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DctDesc {
    /// Protection domain.
    pub pd: u32,
    /// Shared receive queue.
    pub srqn: u32,
    /// Completion queue.
    pub cqn: u32,
    /// Access key. Requests without it are refused.
    pub key: u64,
    /// Rights of initiators, P_Key, longest path MTU and RNR timer; the rest has no meaning.
    pub attr: QpAttr,
    /// Fields of the global route of answers, without addresses.
    pub route: RouteMarks,
    /// The set of counters that it counts in; 0 is none.
    pub counter_set: u8,
    /// Index that its completions carry; see
    /// [`CompletionEntry::user_index`](crate::work::CompletionEntry::user_index).
    pub user_index: Option<u32>,
    /// Messages that its completions hold.
    pub in_completion: InCompletion,
}

/// Fields of a global route without its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteMarks {
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

/// Answer to a query of a DC target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DctView {
    /// As of a queue pair: Ready-to-Receive, or Reset where the target is drained.
    pub qp: QpView,
    /// Requests with another access key.
    pub violations: u32,
    /// Initiators that it has contexts for.
    pub contexts: usize,
}

/// The far end of an initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FarEnd {
    /// As the last request named it.
    vector: Option<AddressVector>,
    /// Access key.
    key: u64,
    /// Number of the initiator's connection.
    number: u32,
    /// Number of its first packet.
    start: Psn,
}

impl FarEnd {
    /// No far end yet. The first connection has the number after this one.
    pub(crate) fn new(number: u32) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    #[inline]
    pub(crate) fn is(&self, vector: &AddressVector, key: u64) -> bool {
        self.key == key && self.vector.as_ref() == Some(vector)
    }

    pub(crate) fn turn_to(&mut self, vector: AddressVector, key: u64) {
        (self.vector, self.key) = (Some(vector), key);
    }

    /// The next request has another far end, or the same one once more.
    pub(crate) const fn forget(&mut self) {
        self.vector = None;
    }

    /// A connection begins with this packet.
    pub(crate) fn begin(&mut self, start: Psn) {
        self.number = self.number.wrapping_add(1);
        self.start = start;
    }

    /// The session that requests of the initiator name.
    pub(crate) const fn session(&self, source: Qpn) -> Session {
        Session {
            key: self.key,
            number: self.number,
            source,
            start: self.start,
        }
    }
}

/// An initiator that talks to a target: its port, by LID and, where packets have a global route, by GID, and its
/// queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Initiator {
    /// Source LID.
    pub lid: Lid,
    /// Source GID, or none.
    pub gid: Gid,
    /// Queue pair.
    pub qpn: Qpn,
}

/// Role of a responder in dynamic connections or tag matching.
#[derive(Debug, Default)]
pub(crate) enum Role {
    /// Nothing.
    #[default]
    None,
    Target(Box<Target>),
    Context(Box<Context>),
    Tagged(Box<Tagged>),
}

/// State of a target beside that of every responder.
#[derive(Debug)]
pub(crate) struct Target {
    pub key: u64,
    pub route: RouteMarks,
    /// The next request with another key raises an event.
    pub armed: bool,
    pub violations: u32,
    /// Where in the list an initiator's context is.
    pub places: HashMap<Initiator, usize>,
    pub list: Vec<QpIndex>,
    /// Where the next look for one that gives way begins.
    pub hand: usize,
    /// The context that waits for a page of which the owner has been told.
    pub waits: Option<QpIndex>,
    /// Receive requests of contexts that are gone.
    pub left_behind: Vec<Inbound>,
}

/// State of a target's responder for one initiator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    pub of: QpIndex,
    pub initiator: Initiator,
    /// The connection that the initiator has now, and the one before.
    pub session: u32,
    pub earlier: Option<u32>,
    /// When it was looked up last, in the clock's nanoseconds.
    pub used: u64,
}

impl Target {
    pub fn new(key: u64, route: RouteMarks) -> Self {
        Self {
            key,
            route,
            armed: false,
            violations: 0,
            places: HashMap::new(),
            list: Vec::new(),
            hand: 0,
            waits: None,
            left_behind: Vec::new(),
        }
    }

    pub fn context(&self, initiator: &Initiator) -> Option<QpIndex> {
        let place = self.places.get(initiator)?;
        self.list.get(*place).copied()
    }

    /// All contexts.
    pub fn contexts(&self) -> &[QpIndex] {
        &self.list
    }

    pub fn insert(&mut self, initiator: Initiator, index: QpIndex) {
        self.places.insert(initiator, self.list.len());
        self.list.push(index);
    }

    /// Forgets a context; returns the one that has its place now.
    pub fn remove(&mut self, initiator: &Initiator) -> Option<(usize, QpIndex)> {
        let place = self.places.remove(initiator)?;
        self.list.swap_remove(place);
        Some((place, *self.list.get(place)?))
    }
}
