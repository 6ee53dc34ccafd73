//! The outputs of a vSwitch.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fabric::{Direction, PortEvent, PortRef};
use hca::{PortChange, PortView, VfId};
use wire::{Guid, Lid, MadPacket, PortState};

use super::hosts::Mailbox;
use super::migration::error::MigrateError;
use super::migration::report::Migrated;
use crate::filter::Finding;

/// Something for a guest.
#[derive(Debug)]
pub enum ForGuest {
    /// A management packet, as the guest is to see it. Where the function has no queue pair for it,
    /// it goes back as [`Input::Unclaimed`](crate::Input::Unclaimed).
    Packet(VfId, Box<MadPacket>),
    /// Something has happened at its port, which is like this now; [`changes`] says of what the guest is
    /// told.
    Port(VfId, PortEvent, PortView),
}

/// Something for anybody but guests.
#[derive(Debug)]
pub enum Output {
    /// A program of the host has packets, which are to be sent.
    Flush(Arc<dyn Mailbox>),
    /// A packet has passed a port that [`VSwitch::set_tap`](crate::VSwitch::set_tap) names.
    Tapped {
        /// The port.
        port: PortRef,
        /// The direction.
        direction: Direction,
        /// The packet.
        packet: Box<MadPacket>,
    },
    /// A move has ended that [`VSwitch::migrate`](crate::VSwitch::migrate) has begun.
    Moved {
        /// As of [`MoveRequest::tag`](crate::MoveRequest::tag).
        tag: u64,
        /// The result.
        outcome: Result<Migrated, MigrateError>,
    },
    /// A sweep has ended that [`VSwitch::sweep`](crate::VSwitch::sweep) has asked for by this tag.
    Swept(u64),
    /// An embedded subnet manager has given other LIDs than before, to be known in another life
    /// ([`Environment::known_lids`](crate::Environment::known_lids)).
    Lids {
        /// Index of the subnet.
        subnet: usize,
        /// The base LIDs by port GUID, each with its LID mask control.
        lids: BTreeMap<Guid, (Lid, u8)>,
    },
}

/// Outputs that wait to be carried out.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    guests: VecDeque<ForGuest>,
    others: VecDeque<Output>,
    /// Packets for programs of the host, before they are anybody's.
    mail: Vec<(Arc<dyn Mailbox>, Box<MadPacket>)>,
    /// For the filter's accounts.
    findings: Vec<(VfId, Finding)>,
    /// There is something to do that may not be done by who moves packets now.
    unfinished: bool,
}

impl Outputs {
    pub(crate) fn put(&mut self, output: Output) {
        self.others.push_back(output);
    }

    /// Has a program of the host get a packet.
    pub(crate) fn mail(&mut self, mailbox: Arc<dyn Mailbox>, packet: Box<MadPacket>) {
        self.mail.push((mailbox, packet));
    }

    /// Enters a finding about a guest in the filter's accounts.
    pub(crate) fn find(&mut self, vf: VfId, finding: Finding) {
        self.findings.push((vf, finding));
    }

    /// The findings about guests so far.
    pub(crate) fn take_findings(&mut self) -> Vec<(VfId, Finding)> {
        std::mem::take(&mut self.findings)
    }

    /// Asks for another turn, whoever has this one.
    pub(crate) fn ask_for_turn(&mut self) {
        self.unfinished = true;
    }

    /// Whether another turn was asked for.
    pub(crate) fn take_unfinished(&mut self) -> bool {
        std::mem::take(&mut self.unfinished)
    }

    /// Puts the mail into the mailboxes.
    pub(crate) fn deliver_mail(&self) {
        for (mailbox, packet) in &self.mail {
            mailbox.put(packet);
        }
    }

    /// Whether there is something for guests, programs or others.
    pub(crate) fn is_empty(&self) -> bool {
        self.guests.is_empty() && self.others.is_empty() && self.mail.is_empty()
    }

    /// Takes over what another one has for guests, programs and others.
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.guests.append(&mut other.guests);
        self.others.append(&mut other.others);
        for (mailbox, _) in other.mail.drain(..) {
            self.flush(mailbox);
        }
    }

    /// Once for all packets in a row that a mailbox was given.
    fn flush(&mut self, mailbox: Arc<dyn Mailbox>) {
        let is_same =
            |last: &Output| matches!(last, Output::Flush(own) if Arc::ptr_eq(own, &mailbox));
        if !self.others.back().is_some_and(is_same) {
            self.put(Output::Flush(mailbox));
        }
    }

    pub(crate) fn put_guest(&mut self, output: ForGuest) {
        self.guests.push_back(output);
    }

    pub(crate) fn poll(&mut self) -> Option<Output> {
        self.others.pop_front()
    }

    pub(crate) fn has_guest(&self) -> bool {
        !self.guests.is_empty()
    }

    pub(crate) fn poll_guest(&mut self) -> Option<ForGuest> {
        self.guests.pop_front()
    }
}

/// The changes that a function is told. Where functions share a port, one is up when the port is and its GUID is
/// there, so that it may come up or go down by either.
#[must_use]
pub fn changes(event: PortEvent, was_active: bool, is_active: bool) -> Vec<PortChange> {
    let change = match (port_change(event), was_active, is_active) {
        (Some(PortChange::Active), _, false) => Some(PortChange::Initialize),
        (change, _, _) => change,
    };
    let besides = match (event, was_active, is_active) {
        (PortEvent::GidChange, false, true) => Some(PortChange::Active),
        (PortEvent::GidChange, true, false) => Some(PortChange::Down),
        _ => None,
    };
    change.into_iter().chain(besides).collect()
}

fn port_change(event: PortEvent) -> Option<PortChange> {
    match event {
        PortEvent::StateChange(PortState::Active) => Some(PortChange::Active),
        PortEvent::StateChange(PortState::Down) => Some(PortChange::Down),
        PortEvent::StateChange(PortState::Initialize) => Some(PortChange::Initialize),
        PortEvent::StateChange(_) => None,
        PortEvent::LidChange => Some(PortChange::Lid),
        PortEvent::PkeyChange => Some(PortChange::Pkey),
        PortEvent::GidChange => Some(PortChange::Guid),
        // The device has no event of its own for another subnet manager; this
        // one makes drivers look for it again.
        PortEvent::SmChange | PortEvent::ClientReregister => Some(PortChange::ClientReregister),
    }
}
