//! User contexts (UCTX): which of a guest's programs has which object.
//!
//! A driver opens a context for each program that has the device open, and each command names (`uid`) the context
//! that it is for; 0 is the driver itself. A program may have its driver send commands that the program has written
//! (DEVX), so a context's commands name objects of that context. Of the driver's they name only those that the driver
//! has for everybody: event queues and sets of counters (`uid` 0xffff), domains of XRC, which programs share by
//! the driver, and doorbell pages: drivers before Linux 5.14 allocate those of programs for themselves, and the
//! mapping of a page decides who writes to it. When a context is closed, its objects go with it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::bits::command::Status;
use crate::refusal::{Outcome, refuse};

/// The `uid` of objects that the driver has for all contexts.
pub(crate) const SHARED: u16 = 0xffff;
/// Contexts that a function may have, as a power of two.
pub(crate) const LOG_MAX: u32 = 12;
/// Contexts that a function may have.
const MAX_CONTEXTS: usize = 1 << LOG_MAX;
/// Bytes of the host's memory that are counted for a context, and for each object of one.
pub(crate) const HELD: usize = 128;

/// The owners whose object a context's command may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The context.
    Context,
    /// The context, or the driver for all contexts.
    ContextOrShared,
    /// The context, or the driver for itself.
    ContextOrDriver,
}

/// An object that a command names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub kind: Kind,
    pub number: u32,
    pub owner: Owner,
}

/// Kinds of objects, in the order in which they can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    QueuePair,
    Target,
    ReservedNumber,
    SharedReceiveQueue,
    CompletionQueue,
    MemoryKey,
    SignatureValue,
    UserMemory,
    CounterSet,
    XrcDomain,
    ProtectionDomain,
    TransportDomain,
    Page,
    EventQueue,
}

/// Their part of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserContextsImageV1 {
    open: Vec<u16>,
    owned: Vec<(u16, Kind, u32)>,
    /// Objects, and the memory objects that they lie in.
    lie: Vec<(Kind, u32, Vec<u32>)>,
}

/// A function's user contexts, and their objects. Objects that are not listed belong to the driver itself.
#[derive(Debug, Default)]
pub(crate) struct UserContexts {
    open: BTreeSet<u16>,
    owners: BTreeMap<(Kind, u32), u16>,
    owned: BTreeSet<(u16, Kind, u32)>,
    /// Memory objects that objects lie in, and how often each is named.
    lie: BTreeMap<(Kind, u32), Vec<u32>>,
    used: BTreeMap<u32, usize>,
}

impl UserContexts {
    fn owner(&self, kind: Kind, number: u32) -> u16 {
        self.owners.get(&(kind, number)).copied().unwrap_or(0)
    }

    /// Whether a context may name an object.
    pub fn check(&self, uid: u16, claim: Claim) -> Outcome {
        let owner = self.owner(claim.kind, claim.number);
        let is_free = match claim.owner {
            Owner::Context => false,
            Owner::ContextOrShared => owner == SHARED,
            Owner::ContextOrDriver => owner == 0,
        };
        if is_free || owner == uid {
            Ok(())
        } else {
            Err(refuse(
                Status::BadResource,
                "the object is not the user context's",
            ))
        }
    }

    /// Whether a memory object may be named by a context.
    pub fn has_memory(&self, uid: u16, number: u32) -> bool {
        self.owner(Kind::UserMemory, number) == uid
    }

    /// Whether a context is open.
    pub fn is_open(&self, uid: u16) -> bool {
        self.open.contains(&uid)
    }

    /// Whether as many contexts are open as a function may have.
    pub fn is_full(&self) -> bool {
        self.open.len() >= MAX_CONTEXTS
    }

    /// Opens a context, where there is room for one. Numbers are used again as late as possible.
    pub fn open(&mut self) -> u16 {
        let last = self.open.last().copied().unwrap_or(0);
        let uid = if last < SHARED - 1 {
            last + 1
        } else {
            (1..SHARED)
                .find(|uid| !self.open.contains(uid))
                .unwrap_or(1)
        };
        self.open.insert(uid);
        uid
    }

    /// Closes a context that has no objects.
    pub fn close(&mut self, uid: u16) {
        self.open.remove(&uid);
    }

    /// Objects of a context, `count` at most, in the order in which they can go.
    pub fn objects(&self, uid: u16, count: usize) -> Vec<(Kind, u32)> {
        let from = (uid, Kind::QueuePair, 0);
        let of = self
            .owned
            .range(from..)
            .take_while(|object| object.0 == uid);
        of.take(count).map(|it| (it.1, it.2)).collect()
    }

    /// The object is the context's from now on.
    pub fn give(&mut self, uid: u16, kind: Kind, number: u32) {
        self.take(kind, number);
        self.owners.insert((kind, number), uid);
        self.owned.insert((uid, kind, number));
    }

    /// The object is nobody's from now on; true if it was a context's.
    pub fn take(&mut self, kind: Kind, number: u32) -> bool {
        let owner = self.owners.remove(&(kind, number));
        owner.is_some_and(|uid| self.owned.remove(&(uid, kind, number)))
    }

    /// The object lies in these memory objects from now on, the last of which is its queue's.
    pub fn lay(&mut self, kind: Kind, number: u32, named: &[u32]) {
        if named.is_empty() {
            return;
        }
        for memory in named {
            *self.used.entry(*memory).or_default() += 1;
        }
        self.lie.insert((kind, number), named.to_vec());
    }

    /// A completion queue has another ring, in these memory objects; its record stays where it is.
    pub fn relay(&mut self, cqn: u32, named: &[u32]) {
        const RECORD: usize = 1;
        let lay = self.lie.get(&(Kind::CompletionQueue, cqn));
        let record = lay.map_or(&[][..], |lay| &lay[..lay.len().min(RECORD)]);
        let all = [record, named].concat();
        self.lift(Kind::CompletionQueue, cqn);
        self.lay(Kind::CompletionQueue, cqn, &all);
    }

    /// The object is gone, and lies nowhere.
    pub fn lift(&mut self, kind: Kind, number: u32) {
        for memory in self.lie.remove(&(kind, number)).unwrap_or_default() {
            if let Some(count) = self.used.get_mut(&memory) {
                *count -= 1;
                if *count == 0 {
                    self.used.remove(&memory);
                }
            }
        }
    }

    /// Whether something lies in a memory object.
    pub fn is_used(&self, memory: u32) -> bool {
        self.used.contains_key(&memory)
    }

    /// Their part of an image.
    pub fn save(&self) -> UserContextsImageV1 {
        UserContextsImageV1 {
            open: self.open.iter().copied().collect(),
            owned: self.owned.iter().copied().collect(),
            lie: (self.lie.iter())
                .map(|(&(kind, number), named)| (kind, number, named.clone()))
                .collect(),
        }
    }

    /// Restores the contexts of an image; their share of the host's memory is added to `held`.
    pub fn restore(image: &UserContextsImageV1, held: &mut Vec<usize>) -> Result<Self, String> {
        let mut contexts = Self::default();
        for &uid in &image.open {
            if uid == 0
                || uid == SHARED
                || contexts.open.len() >= MAX_CONTEXTS
                || !contexts.open.insert(uid)
            {
                return Err(format!("user context {uid} is there twice, or cannot be"));
            }
            held.push(HELD);
        }
        for &(uid, kind, number) in &image.owned {
            let twice = contexts.owners.contains_key(&(kind, number));
            if twice || uid != SHARED && !contexts.open.contains(&uid) {
                return Err(format!(
                    "object {number:#x} is of user context {uid}, which is not there, or of two"
                ));
            }
            contexts.give(uid, kind, number);
            held.push(HELD);
        }
        for (kind, number, named) in &image.lie {
            contexts.lay(*kind, *number, named);
        }
        Ok(contexts)
    }
}
