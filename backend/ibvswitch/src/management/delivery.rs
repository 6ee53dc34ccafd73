//! What the fabric has for the guests.

use std::sync::Arc;

use fabric::{Fabric, PortEvent, PortRef};
use hca::{Event, Face, PortChange, PortView, VfId};
use wire::{MadPacket, PortState};

use super::datagram::datagram;
use super::hosts::Mailbox;
use crate::engine::SharedEngine;

/// What guests get in one go, with others at the engine between.
const AT_A_TIME: usize = 16;

/// Something for a guest, or for a program of the host.
#[derive(Debug)]
pub(super) enum Delivery {
    Packet(VfId, Box<MadPacket>),
    Change(VfId, PortEvent, PortView),
    Host(Arc<dyn Mailbox>),
}

impl Delivery {
    /// Whether it has this mailbox sent.
    pub(super) fn is_for(&self, mailbox: &Arc<dyn Mailbox>) -> bool {
        matches!(self, Self::Host(own) if Arc::ptr_eq(own, mailbox))
    }
}

/// Hands everything out; returns what functions have no queue pair for.
pub(super) fn deliver<F: Face>(
    engine: &SharedEngine<F>,
    deliveries: Vec<Delivery>,
) -> Vec<(VfId, Box<MadPacket>)> {
    let mut unclaimed = Vec::new();
    let (hosts, guests): (Vec<_>, Vec<_>) = deliveries
        .into_iter()
        .partition(|delivery| matches!(delivery, Delivery::Host(_)));
    for host in hosts {
        if let Delivery::Host(mailbox) = host {
            mailbox.flush();
        }
    }
    let mut guests = guests.into_iter().peekable();
    while guests.peek().is_some() {
        engine.with(|engine| {
            for delivery in guests.by_ref().take(AT_A_TIME) {
                match delivery {
                    Delivery::Packet(vf, packet) => {
                        if !engine.deliver_mad(vf, &datagram(&packet)) {
                            unclaimed.push((vf, packet));
                        }
                    }
                    Delivery::Change(vf, event, view) => {
                        let (was, is) = (engine.port(vf).active, view.active);
                        engine.set_port(vf, view);
                        for change in changes(event, was, is) {
                            engine.notify(vf, Event::Port(change));
                        }
                    }
                    Delivery::Host(_) => {}
                }
            }
        });
    }
    unclaimed
}

/// What a function is told. Where functions share a port, one is up when the port is and its GUID is
/// there, so that it may come up or go down by either.
fn changes(event: PortEvent, was_active: bool, is_active: bool) -> Vec<PortChange> {
    let told = match (port_change(event), was_active, is_active) {
        (Some(PortChange::Active), _, false) => Some(PortChange::Initialize),
        (told, _, _) => told,
    };
    let besides = match (event, was_active, is_active) {
        (PortEvent::GidChange, false, true) => Some(PortChange::Active),
        (PortEvent::GidChange, true, false) => Some(PortChange::Down),
        _ => None,
    };
    told.into_iter().chain(besides).collect()
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

pub(super) fn port_view(fabric: &Fabric, port: PortRef) -> PortView {
    let info = fabric.port_info(port).unwrap_or_default();
    PortView {
        lid: info.lid,
        lmc: info.lmc,
        active: info.port_state == PortState::Active,
        pkeys: fabric.pkeys(port).unwrap_or_default().to_vec(),
        gids: fabric.gids(port).collect(),
        ..PortView::default()
    }
}
