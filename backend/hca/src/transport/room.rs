//! Whether there is room for what is to be sent.

use std::sync::atomic::Ordering;

use wire::{Qpn, Sl};

use super::endpoint::Endpoint;
use crate::engine::Engine;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::qp::Qp;
use crate::objects::vf::Vf;
use crate::path::Route;
use crate::queue_format::QueueFormat;

/// When there is room for a frame on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// Now.
    Now,
    /// At this time.
    Then(u64),
    /// Later.
    Unknown,
}

/// Requests of connections that a function may have taken and not completed, and, apart from these, what
/// it may have on its way. Each holds memory of the host's. A queue pair that has nothing on its way may
/// always send one.
pub(super) const MAX_OUTSTANDING: u32 = 4096;
/// Largest part of it that one of them takes, in bytes: a datagram of a whole packet.
pub(crate) const BYTES_PER_SLOT: usize = 4096 + 512;

impl<F: QueueFormat> Vf<F> {
    /// Whether it may have one thing more.
    pub fn has_slots(&self) -> bool {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        self.taken.max(in_flight) < MAX_OUTSTANDING && self.memory.left() >= BYTES_PER_SLOT
    }

    /// Whether it has as much on its way as it may.
    pub fn is_full(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) >= MAX_OUTSTANDING
    }

    /// So many requests are not under way any more.
    pub fn release_slots(&mut self, requests: usize) {
        self.taken = self.taken.saturating_sub(requests as u32);
        (0..requests).for_each(|_| self.memory.give(BYTES_PER_SLOT));
    }
}

impl<F: QueueFormat> Engine<F> {
    /// When there is room on the way for a frame of a connection.
    pub(super) fn room_to_send(&mut self, index: QpIndex) -> Room {
        let Some(Qp { core, req, .. }) = self.objects.qps.get(index.0) else {
            return Room::Now;
        };
        let (from, qpn) = (core.vf, core.qpn);
        let route = req.found.route.and_then(|found| found.route.ok());
        let Some((route, path)) = route.zip(core.attr.path) else {
            return Room::Now;
        };
        self.room(from, qpn, path.sl, &route)
    }

    /// When there is room for a frame on a way, for a queue pair on a service level.
    pub(crate) fn room(&mut self, from: VfId, qpn: Qpn, sl: Sl, route: &Route) -> Room {
        if !self.has_room(from, route) {
            return Room::Unknown;
        }
        let until = self.held_until(from, qpn, sl, route);
        until.map_or(Room::Now, Room::Then)
    }

    /// Whether there is room for a frame on a way.
    pub(crate) fn has_room(&mut self, from: VfId, route: &Route) -> bool {
        match route.here() {
            Some(to) if route.shares.is_some() || self.objects.vf(to).elsewhere => {
                self.exits.endpoint.has_room(from, route)
            }
            _ => true,
        }
    }
}
