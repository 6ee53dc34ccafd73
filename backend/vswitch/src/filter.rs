//! The filter of management packets from guests' queue pairs 0 and 1.
//!
//! A guest's management packet passes twice. When it is sent, [`MadFilter::admit`] looks at its header
//! alone: class, method, how many there were, how many wait. This runs on the engine's side, so it
//! is cheap, and it is what keeps a flood away from the queue that all guests share. Before it
//! enters the fabric, [`MadFilter::examine`] looks inside, knowing the sender's port: an address or
//! partition in there must be the sender's own.
//!
//! Refused packets are counted by reason and remembered; the log shows some of them.

mod contents;
mod image;
mod rate;
mod refusal;
#[cfg(test)]
mod tests;

use std::time::Duration;

use fabric::SmpAccess;
use hca::VfId;
use parking_lot::Mutex;
use wire::mad::Method;
use wire::{MadPacket, Qpn};

use crate::layout::PlacedVf;
use crate::model::{GmpClass, MadRate, MadRules, Model, View};
pub use contents::Own;
pub(crate) use contents::{examine, hide_m_key};
pub(crate) use image::FilterImageV1;
use rate::Bucket;
use refusal::Refusals;
pub use refusal::{Reason, Refusal};

/// Packets of one guest that may wait to enter the fabric; more are dropped, as a full receive
/// queue of an agent drops them.
const MAX_WAITING: usize = 256;
/// Refusals of one guest that the log gets.
const LOG_RATE: MadRate = MadRate {
    per_second: 1,
    burst: 5,
};

/// The filter's report about a guest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FilterReport {
    /// Packets let pass.
    pub passed: u64,
    /// Counts of refused packets, by reason.
    pub refused: Vec<(Reason, u64)>,
    /// The last ones refused, oldest first.
    pub last: Vec<Refusal>,
}

/// One guest's rules and what became of its packets.
#[derive(Debug)]
struct Guest {
    name: String,
    smp: SmpAccess,
    /// Its view of the subnet, in which it is told what it cannot set.
    view: View,
    /// Whether its cluster is in full mode: subnet management goes no further than the cluster.
    in_full_mode: bool,
    rules: MadRules,
    all: Option<Bucket>,
    classes: Vec<(GmpClass, Bucket)>,
    waiting: usize,
    passed: u64,
    refusals: Refusals,
    log: Bucket,
    unlogged: u64,
}

/// A finding about a guest by a step of the subnet, for the filter's accounts.
#[derive(Debug)]
pub(crate) enum Finding {
    /// The contents of a packet are its sender's to say.
    Passed,
    /// A packet is refused.
    Refused(Refusal),
    /// The VM that is configured at this VF has its addresses here: its rules hold from now on.
    Occupant(usize),
}

/// The filter. Guests are numbered as [`VfId`] numbers them; each has a lock of its own, under which
/// nobody waits for another.
#[derive(Debug)]
pub struct MadFilter {
    guests: Vec<Mutex<Guest>>,
}

impl Guest {
    fn new(name: &str, smp: SmpAccess, view: View, rules: MadRules) -> Self {
        Self {
            name: name.to_owned(),
            smp,
            view,
            in_full_mode: false,
            all: rules.rate.map(Bucket::new),
            classes: rules
                .class_rates
                .iter()
                .map(|&(class, rate)| (class, Bucket::new(rate)))
                .collect(),
            rules,
            waiting: 0,
            passed: 0,
            refusals: Refusals::default(),
            log: Bucket::new(LOG_RATE),
            unlogged: 0,
        }
    }

    /// Whether it may manage all that its packets reach.
    fn manages(&self) -> bool {
        self.smp == SmpAccess::Fabric || self.in_full_mode
    }

    fn judge(&mut self, now: Duration, packet: &MadPacket) -> Result<(), Reason> {
        let header = packet.header();
        let class = header.class();
        // Rates first: what comes too fast costs nobody a closer look.
        if !self.all.as_mut().is_none_or(|bucket| bucket.take(now)) {
            return Err(Reason::Rate);
        }
        if packet.src_qp == Qpn::QP0 || packet.dst_qp == Qpn::QP0 {
            // How far they go, the fabric knows; this is what can be told apart without it.
            let allowed = class.is_subnet_management()
                && match self.smp {
                    SmpAccess::Deny => false,
                    SmpAccess::OwnPort if self.in_full_mode => true,
                    SmpAccess::OwnPort if self.view != View::OwnPort => {
                        matches!(header.method(), Method::GET | Method::SET)
                    }
                    SmpAccess::OwnPort => header.method() == Method::GET,
                    SmpAccess::Fabric => true,
                };
            return self.queue(allowed.then_some(()).ok_or(Reason::Smp));
        }
        let Some(class) = GmpClass::of(class) else {
            return Err(Reason::Class);
        };
        let method = header.method();
        if !self.manages() && only_for_managers(class, method) {
            return Err(Reason::Manager);
        }
        // Answers go to who asked; a port's own agents are its guest's to ask.
        let own = packet.dlid == packet.slid;
        if !(own || method.is_response() || self.rules.classes.contains(class)) {
            return Err(Reason::Class);
        }
        let bucket = self.classes.iter_mut().find(|(of, _)| *of == class);
        if !bucket.is_none_or(|(_, bucket)| bucket.take(now)) {
            return Err(Reason::Rate);
        }
        self.queue(Ok(()))
    }

    fn queue(&mut self, verdict: Result<(), Reason>) -> Result<(), Reason> {
        verdict?;
        if self.waiting >= MAX_WAITING {
            return Err(Reason::Queue);
        }
        self.waiting += 1;
        Ok(())
    }

    fn refuse(&mut self, refusal: Refusal) {
        if self.log.take(refusal.at) {
            let more = std::mem::take(&mut self.unlogged);
            tracing::warn!(
                vf = self.name,
                reason = refusal.reason.name(),
                unlogged_before = more,
                "management packet refused: {refusal}"
            );
        } else {
            self.unlogged += 1;
        }
        self.refusals.add(refusal);
    }
}

/// Whether only the subnet's manager may send this: its answers to questions of the subnet
/// administration, and reports of events.
fn only_for_managers(class: GmpClass, method: Method) -> bool {
    let answers = class == GmpClass::SubnAdm && method.is_response();
    // A subscriber acknowledges a report; that answer belongs to it.
    answers && method != Method::REPORT_RESPONSE
        || matches!(method, Method::REPORT | Method::TRAP | Method::TRAP_REPRESS)
}

/// Whether only a subnet's manager may send this packet.
pub(crate) fn is_managers(packet: &MadPacket) -> bool {
    let header = packet.header();
    let class = GmpClass::of(header.class()).filter(|_| !packet.is_smp());
    class.is_some_and(|class| only_for_managers(class, header.method()))
}

impl MadFilter {
    /// The filter of this model's VFs.
    pub fn new(model: &Model) -> Self {
        let guests = model
            .vfs()
            .map(|(_, vf)| {
                let view = model.view(vf);
                Mutex::new(Guest::new(&vf.name, vf.smp, view, vf.mads.clone()))
            })
            .collect();
        Self { guests }
    }

    /// The filter of one guest whose VF is in no model: it has the number 0.
    pub fn of_one(name: &str, smp: SmpAccess, rules: MadRules) -> Self {
        Self {
            guests: vec![Mutex::new(Guest::new(name, smp, View::OwnPort, rules))],
        }
    }

    /// Whether a packet may be sent that waits for nobody; what its guest has no claim to is taken out of it.
    pub fn lets_pass(
        &self,
        now: Duration,
        vf: VfId,
        packet: &mut MadPacket,
        own: &Own<'_>,
    ) -> bool {
        let admitted = self.admit(now, vf, packet);
        if admitted {
            self.taken(vf);
        }
        admitted && self.examine(now, vf, packet, own)
    }

    /// Whether a packet that a guest sends may wait for `MadFilter::examine`; if so,
    /// `MadFilter::taken` must follow when it no longer waits.
    pub fn admit(&self, now: Duration, vf: VfId, packet: &MadPacket) -> bool {
        let Some(guest) = self.guest(vf) else {
            return false;
        };
        let mut guest = guest.lock();
        match guest.judge(now, packet) {
            Ok(()) => true,
            Err(reason) => {
                guest.refuse(Refusal::new(now, reason, packet));
                false
            }
        }
    }

    /// Whether a guest may use its own port's agents now, as by MAD_IFC.
    pub fn admit_local(&self, now: Duration, vf: VfId, mad: &[u8; 256]) -> bool {
        let packet = MadPacket::smp(wire::Lid::NONE, wire::Lid::NONE, *mad);
        let Some(guest) = self.guest(vf) else {
            return false;
        };
        let mut guest = guest.lock();
        if !guest.all.as_mut().is_none_or(|bucket| bucket.take(now)) {
            guest.refuse(Refusal::new(now, Reason::Rate, &packet));
            return false;
        }
        let header = packet.header();
        let denied = header.class().is_subnet_management()
            && match guest.smp {
                SmpAccess::Deny => true,
                SmpAccess::OwnPort => header.method() == Method::SET && guest.view != View::Full,
                SmpAccess::Fabric => false,
            };
        // It gets the agent's answer, which is a refusal.
        if denied {
            guest.refuse(Refusal::new(now, Reason::Smp, &packet));
        }
        true
    }

    /// An admitted packet waits no longer.
    pub fn taken(&self, vf: VfId) {
        if let Some(guest) = self.guest(vf) {
            let mut guest = guest.lock();
            guest.waiting = guest.waiting.saturating_sub(1);
        }
    }

    /// Looks inside a packet that is about to enter the fabric, and takes out of it what a guest
    /// has no claim to. False: it must not enter.
    fn examine(&self, now: Duration, vf: VfId, packet: &mut MadPacket, own: &Own<'_>) -> bool {
        let Some(guest) = self.guest(vf) else {
            return false;
        };
        let mut guest = guest.lock();
        let trusted = guest.smp == SmpAccess::Fabric;
        match contents::examine(packet, own, trusted) {
            Ok(()) => {
                guest.passed = guest.passed.saturating_add(1);
                true
            }
            Err(reason) => {
                guest.refuse(Refusal::new(now, reason, packet));
                false
            }
        }
    }

    /// Says whether a guest's cluster is in full mode.
    pub(crate) fn set_full_mode(&self, vf: VfId, is: bool) {
        if let Some(guest) = self.guest(vf) {
            guest.lock().in_full_mode = is;
        }
    }

    /// Notes that a packet was refused elsewhere.
    pub fn refuse(&self, now: Duration, vf: VfId, reason: Reason, packet: &MadPacket) {
        if let Some(guest) = self.guest(vf) {
            guest.lock().refuse(Refusal::new(now, reason, packet));
        }
    }

    /// Takes out of an answer what its guest has no claim to: a port's M_Key.
    pub fn clean(&self, vf: VfId, mad: &mut [u8; 256]) {
        let trusted = self
            .guest(vf)
            .is_some_and(|guest| guest.lock().smp == SmpAccess::Fabric);
        if !trusted {
            contents::hide_m_key(mad);
        }
    }

    /// Enters a finding about a guest.
    pub(crate) fn enter(&self, places: &[PlacedVf], vf: VfId, finding: Finding) {
        let Some(guest) = self.guest(vf) else { return };
        let mut guest = guest.lock();
        match finding {
            Finding::Passed => guest.passed = guest.passed.saturating_add(1),
            Finding::Refused(refusal) => guest.refuse(refusal),
            Finding::Occupant(at) => {
                let place = &places[at];
                if guest.name != place.name {
                    let (waiting, full) = (guest.waiting, guest.in_full_mode);
                    *guest = Guest::new(&place.name, place.smp, place.view, place.mads.clone());
                    (guest.waiting, guest.in_full_mode) = (waiting, full);
                }
            }
        }
    }

    /// The reach of a guest's subnet management packets.
    pub fn smp_access(&self, vf: VfId) -> SmpAccess {
        self.guest(vf)
            .map_or(SmpAccess::Deny, |guest| guest.lock().smp)
    }

    /// Whether a guest may send packets of a class to other ports.
    pub fn passes(&self, vf: VfId, class: GmpClass) -> bool {
        self.guest(vf)
            .is_some_and(|guest| guest.lock().rules.classes.contains(class))
    }

    /// The report about a guest's packets.
    pub fn report(&self, vf: VfId) -> FilterReport {
        let Some(guest) = self.guest(vf) else {
            return FilterReport::default();
        };
        let guest = guest.lock();
        FilterReport {
            passed: guest.passed,
            refused: guest.refusals.counts().collect(),
            last: guest.refusals.last().cloned().collect(),
        }
    }

    fn guest(&self, vf: VfId) -> Option<&Mutex<Guest>> {
        self.guests.get(usize::from(vf.0))
    }
}
