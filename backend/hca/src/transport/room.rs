//! Whether there is room for what is to be sent.

use wire::{Qpn, Sl};

use super::endpoint::Endpoint;
use crate::engine::Engine;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::qp::Qp;
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
            Some(to) if route.shares.is_some() || self.vf(to).elsewhere => {
                self.exits.endpoint.has_room(from, route)
            }
            _ => true,
        }
    }
}
