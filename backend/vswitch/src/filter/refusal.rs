//! Refused packets, and the reasons.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use wire::MadPacket;
use wire::mad::{AttributeId, Class, Method};

/// Why a management packet of a guest goes no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// A subnet management packet that leaves the port, or changes it.
    Smp,
    /// A class that this guest may not use towards others, or none at all.
    Class,
    /// A packet that only a manager may send: an answer of the subnet administration, a report, a trap.
    Manager,
    /// An address inside that is not the sender's.
    Address,
    /// A partition inside that is not the sender's.
    Partition,
    /// To or from nobody in the sender's cluster.
    Cluster,
    /// For a guest that sees other addresses than there are: an attribute, method or class of which
    /// nobody knows where addresses stand in it.
    Attribute,
    /// A transaction that the port itself uses: its uppermost byte is not 0, at a port that is shared.
    Transaction,
    /// Too many in a short time.
    Rate,
    /// Too many that wait for the subnet.
    Queue,
}

impl Reason {
    /// All reasons, in the order in which they are counted.
    pub const ALL: [Self; 10] = [
        Self::Smp,
        Self::Class,
        Self::Manager,
        Self::Address,
        Self::Partition,
        Self::Cluster,
        Self::Attribute,
        Self::Transaction,
        Self::Rate,
        Self::Queue,
    ];

    /// Its name, as in status reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Smp => "smp",
            Self::Class => "class",
            Self::Manager => "manager",
            Self::Address => "address",
            Self::Partition => "partition",
            Self::Cluster => "cluster",
            Self::Attribute => "attribute",
            Self::Transaction => "transaction",
            Self::Rate => "rate",
            Self::Queue => "queue",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A refused packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// When, on the clock.
    pub at: Duration,
    /// Why.
    pub reason: Reason,
    /// Its class.
    pub class: Class,
    /// Its method.
    pub method: Method,
    /// Its attribute.
    pub attribute: AttributeId,
    /// Its destination LID, as the guest wrote it.
    pub dlid: u16,
}

impl Refusal {
    pub(crate) fn new(at: Duration, reason: Reason, packet: &MadPacket) -> Self {
        let header = packet.header();
        Self {
            at,
            reason,
            class: header.class(),
            method: header.method(),
            attribute: header.attribute(),
            dlid: packet.dlid.value(),
        }
    }
}

impl Refusal {
    /// Class, method and attribute of the packet.
    pub fn packet(&self) -> String {
        // As the specification writes it: attribute in brackets after class and method.
        let attribute = self.attribute.in_class(self.class);
        format!("{}{}({attribute})", self.class, self.method)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to LID {}: {}", self.packet(), self.dlid, self.reason)
    }
}

/// Refusals of one guest that are remembered one by one.
const MAX_REMEMBERED: usize = 16;

/// Refusals of one guest.
#[derive(Debug, Clone, Default)]
pub(super) struct Refusals {
    counts: [u64; Reason::ALL.len()],
    last: VecDeque<Refusal>,
}

impl Refusals {
    pub(super) fn add(&mut self, refusal: Refusal) {
        let count = &mut self.counts[refusal.reason as usize];
        *count = count.saturating_add(1);
        if self.last.len() == MAX_REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(refusal);
    }

    /// Returns the reasons that occurred, with their counts.
    pub(super) fn counts(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL
            .into_iter()
            .zip(self.counts)
            .filter(|&(_, count)| count > 0)
    }

    /// So many of this reason have occurred.
    pub(super) fn set_count(&mut self, reason: Reason, count: u64) {
        self.counts[reason as usize] = count;
    }

    /// The last ones, oldest first.
    pub(super) fn last(&self) -> impl Iterator<Item = &Refusal> {
        self.last.iter()
    }
}
