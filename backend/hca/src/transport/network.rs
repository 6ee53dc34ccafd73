//! The way of what leaves an engine: routes through the subnet, and where frames leave and arrive.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::{Gid, PKey, Qpn, Sl};

use crate::engine::scheduler::Clock;
use crate::objects::Objects;
use crate::objects::counters::TrafficCounters;
use crate::objects::counters::traffic::PathTraffic;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::qp::Qp;
use crate::objects::qp::attributes::{AddressPath, Transport};
use crate::objects::vf::Vf;
use crate::objects::vf::route_cache::{CachedFanout, CachedRoute, FANOUT_CACHE, ROUTE_CACHE};
use crate::objects::work::AddressVector;
use crate::path::{End, Heading, NoRoute, Route, Subnet};
use crate::queue_format::QueueFormat;
use crate::transport::endpoint::{Destination, InFlight, Outside, Transmit};
use crate::transport::frame::{Content, Frame};
use crate::transport::room::BYTES_PER_SLOT;
use crate::transport::{Endpoint, Exits, Room};

/// The subnet, as an engine knows it, and the exits to it.
#[derive(Debug)]
pub(crate) struct Network<F: QueueFormat> {
    pub subnet: Box<dyn Subnet>,
    pub generation: Arc<AtomicU64>,
    pub traffic: Arc<PathTraffic>,
    /// Number of times that connections have looked their peers up.
    pub lookups: u64,
    pub exits: Exits,
    pub clock: Arc<dyn Clock>,
    format: PhantomData<F>,
}

impl<F: QueueFormat> Network<F> {
    pub fn new(subnet: Box<dyn Subnet>, clock: Arc<dyn Clock>) -> Self {
        Self {
            generation: subnet.generation(),
            traffic: subnet.traffic(),
            lookups: 0,
            exits: Exits::new(subnet.links()),
            clock,
            subnet,
            format: PhantomData,
        }
    }

    /// The way to a queue pair's peer; the subnet is asked when something
    /// changed in it, or at the queue pair or the port.
    pub fn connection_route(
        &mut self,
        vfs: &[Vf<F>],
        qp: &mut Qp<F>,
        path: AddressPath,
        generation: u64,
    ) -> Option<Route> {
        let from = qp.core.vf;
        let port = &vfs[usize::from(from.0)].port;
        let pkey = port.pkey(qp.core.attr.pkey_index);
        if !port.active || !pkey.is_valid() {
            return None;
        }
        let heading = Heading::new(path.dlid, path.sl, pkey, path.global);
        if let Some(cached) = qp.req.found.route
            && cached.holds(&heading, generation)
        {
            return cached.route.ok();
        }
        let route = self.subnet.resolve(from, &heading);
        qp.req.found.resolved(CachedRoute {
            heading,
            generation,
            route,
        });
        route.ok()
    }

    /// Route of a datagram, from the function's small cache if it still holds.
    pub fn datagram_route(
        &mut self,
        objects: &mut Objects<F>,
        from: VfId,
        address: &AddressVector,
        pkey: PKey,
    ) -> Result<Route, NoRoute> {
        let generation = self.generation.load(Ordering::Acquire);
        let heading = Heading::new(address.dlid, address.sl, pkey, address.global);
        // Many are behind one router.
        let beyond = address
            .global
            .map_or(0, |global| global.dgid.to_bits() as u16);
        let slot = usize::from(u16::from(address.dlid) ^ beyond) % ROUTE_CACHE;
        if let Some(cached) = objects.vf(from).ways.routes[slot]
            && cached.holds(&heading, generation)
        {
            return cached.route;
        }
        let route = self.subnet.resolve(from, &heading);
        objects.vf_mut(from).ways.routes[slot] = Some(CachedRoute {
            heading,
            generation,
            route,
        });
        route
    }

    /// When the way of a datagram has room for it.
    #[cold]
    pub fn datagram_room(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        address: &AddressVector,
    ) -> Room {
        let Some(Qp { core, .. }) = objects.qps.get(index.0) else {
            return Room::Now;
        };
        let core = match core.transport {
            Transport::SendQueue => match objects.underlay(core) {
                Some((_, underlay)) => &underlay.core,
                None => return Room::Now,
            },
            _ => core,
        };
        let (from, qpn) = (core.vf, core.source_qpn);
        let to_agent = address.dest_qp <= Qpn::QP1;
        let port = &objects.vf(from).port;
        let (pkey, sl) = (
            port.pkey(core.attr.pkey_index),
            port.service_levels.admit(address.sl),
        );
        let Some(sl) = sl.filter(|_| port.active && !to_agent && !address.dlid.is_multicast())
        else {
            return Room::Now;
        };
        match self.datagram_route(objects, from, &AddressVector { sl, ..*address }, pkey) {
            Ok(route) => self.room(objects, from, qpn, sl, &route),
            Err(_) => Room::Now,
        }
    }

    /// Finds out anew where a connection leads, if that may have changed.
    #[cold]
    pub fn find_other_end(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        let generation = self.generation.load(Ordering::Acquire);
        if let Some(qp) = objects.qps.get_mut(index.0)
            && let Some(path) = qp.core.attr.path
        {
            let _ = self.connection_route(&objects.vfs, qp, path, generation);
        }
    }

    /// Whether a connection sends nothing, since the function at the other end rests.
    pub fn waits_with_frames(&mut self, objects: &mut Objects<F>, index: QpIndex) -> bool {
        if !objects.other_end_rests(index) {
            return false;
        }
        // The function may have come to be elsewhere.
        self.find_other_end(objects, index);
        objects.other_end_rests(index)
    }

    /// A queue pair waits for the function at the other end of its connection, which rests.
    #[cold]
    pub fn wait_for_rest(&mut self, objects: &Objects<F>, index: QpIndex) {
        if let Some(qp) = objects.qps.get(index.0) {
            self.exits.rests.waiting.insert((qp.core.vf, index.0));
        }
    }

    /// When there is room on the way for a frame of a connection.
    pub fn room_to_send(&mut self, objects: &Objects<F>, index: QpIndex) -> Room {
        let Some(Qp { core, req, .. }) = objects.qps.get(index.0) else {
            return Room::Now;
        };
        let (from, qpn) = (core.vf, core.qpn);
        let route = req.found.route.and_then(|found| found.route.ok());
        let Some((route, path)) = route.zip(core.attr.path) else {
            return Room::Now;
        };
        self.room(objects, from, qpn, path.sl, &route)
    }

    /// When there is room for a frame on a way, for a queue pair on a service level.
    pub fn room(
        &mut self,
        objects: &Objects<F>,
        from: VfId,
        qpn: Qpn,
        sl: Sl,
        route: &Route,
    ) -> Room {
        if !self.has_room(objects, from, route) {
            return Room::Unknown;
        }
        let until = self.held_until(from, qpn, sl, route);
        until.map_or(Room::Now, Room::Then)
    }

    /// Whether there is room for a frame on a way.
    pub fn has_room(&mut self, objects: &Objects<F>, from: VfId, route: &Route) -> bool {
        match route.here() {
            Some(to) if route.shares.is_some() || objects.vf(to).elsewhere => {
                self.exits.endpoint.has_room(from, route)
            }
            _ => true,
        }
    }

    /// Whether frames of a connection may lend their payload, as far as its way is known.
    pub fn lends(&self, objects: &Objects<F>, index: QpIndex) -> bool {
        let found = objects.qps.get(index.0);
        let found = found.and_then(|qp| qp.req.found.route);
        found.is_some_and(|found| {
            found.generation == self.generation.load(Ordering::Acquire)
                && (found.route).is_ok_and(|route| self.exits.endpoint.lends(&route))
        })
    }

    /// Sends a frame of a connection. An answer may have `reserved` room.
    pub fn transmit(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        mut frame: Frame,
        reserved: Option<Arc<InFlight>>,
    ) {
        let generation = self.generation.load(Ordering::Acquire);
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return;
        };
        frame.migrated = !qp.core.attr.is_armed();
        let (from, dest_qp) = (qp.core.vf, qp.core.attr.dest_qp);
        let Some(path) = qp.core.attr.path else {
            return;
        };
        let route = self.connection_route(&objects.vfs, qp, path, generation);
        let counted = frame.is_counted();
        let (words, packets) = (frame.words(), u64::from(frame.packets()));
        let Some(route) = route else {
            if let Some(CachedRoute {
                route: Err(reason @ (NoRoute::Lost(lost) | NoRoute::Held(lost))),
                ..
            }) = qp.req.found.route
                && objects.vf(from).port.active
                && counted
            {
                if matches!(reason, NoRoute::Lost(_)) {
                    objects.vf(from).counters.sent(path.sl, words, packets);
                }
                self.traffic.add(lost, words, packets);
            }
            return;
        };
        if frame.is_request() {
            self.hold_back(from, qp.core.qpn, &route, &frame);
        }
        self.emit(objects, (from, &path, dest_qp), route, frame, reserved);
    }

    /// Sends a frame over a way that has been found, to a queue pair.
    pub fn emit(
        &mut self,
        objects: &Objects<F>,
        (from, path, dest_qp): (VfId, &AddressPath, Qpn),
        route: Route,
        mut frame: Frame,
        reserved: Option<Arc<InFlight>>,
    ) {
        let counted = frame.is_counted();
        let (words, packets) = (frame.words(), u64::from(frame.packets()));
        let dgid = path.global.map(|global| global.dgid);
        if !self.exits.endpoint.lends(&route) {
            frame.take_along();
        }
        let longest = frame.len().min(frame.mtu.bytes());
        let to = match route.end {
            // The engine knows the receiver among those at the port.
            End::Here(port) if objects.vf(port).elsewhere => Some(Destination::Function(port)),
            End::Here(port) => objects
                .function_at(port, dgid, dest_qp)
                .map(Destination::Function),
            End::Away(_) => Some(Destination::Away),
        };
        let Some(to) = to else { return };
        // Packets that the way is too narrow for get lost on it.
        if longest <= route.mtu.bytes() {
            let vf = objects.vf(from);
            // The requester has reserved the bytes of an answer. Small frames are counted with their requests.
            let bytes = match &frame.content {
                Content::Read(target) => target.length as usize,
                _ => frame.payload.len(),
            };
            let in_flight = match bytes / BYTES_PER_SLOT {
                0 => None,
                _ if reserved.is_some() => reserved,
                // Those of connections that wait for no answer; and who asked from outside the program has set
                // nothing apart.
                _ if vf.is_full() => {
                    return TrafficCounters::add(&vf.counters.xmit_discards, 1);
                }
                things => Some(InFlight::new(&vf.in_flight, things as u32)),
            };
            if counted {
                vf.counters.sent(path.sl, words, packets);
            }
            self.send_routed(objects, from, to, route, frame, in_flight);
        }
    }

    /// Sends a frame that has a way.
    pub fn send_routed(
        &mut self,
        objects: &Objects<F>,
        from: VfId,
        to: Destination,
        route: Route,
        frame: Frame,
        in_flight: Option<Arc<InFlight>>,
    ) {
        let vf = objects.vf(from);
        let dest = match to {
            Destination::Function(to) => objects.vf(to).port.path_bits(frame.address.dlid),
            Destination::Group(..) | Destination::Away => 0,
        };
        let path_bits = [vf.port.path_bits(frame.address.slid), dest];
        if frame.is_counted() && !route.faulty {
            let packets = frame.packets().into();
            self.traffic.add(route.path, frame.words(), packets);
        }
        let transmit = Transmit {
            from,
            to,
            route,
            path_bits,
            frame,
            in_flight,
        };
        let mut outside = Outside {
            now: self.clock.now(),
            subnet: &mut *self.subnet,
            traffic: &self.traffic,
        };
        self.exits.transmit(transmit, &mut outside);
    }

    /// Shows a multicast frame at all functions of a port that hear it.
    pub fn show_at_port(
        &mut self,
        objects: &Objects<F>,
        (from, port): (VfId, VfId),
        cluster: Option<u16>,
        path_bits: [u8; 2],
        frame: &Frame,
    ) {
        if !self.exits.are_watched() {
            return;
        }
        let mut at = 0;
        while let Some(function) = objects.sharer(port, at) {
            at += 1;
            if function != from && objects.vf(function).port.cluster == cluster {
                self.exits
                    .endpoint
                    .show_multicast(frame, from, function, path_bits);
            }
        }
    }

    /// Slot of the cache that holds where a multicast packet goes.
    pub fn fan_out(
        &mut self,
        objects: &mut Objects<F>,
        from: VfId,
        address: &AddressVector,
        mgid: Gid,
        pkey: PKey,
    ) -> usize {
        let generation = self.generation.load(Ordering::Acquire);
        let (mlid, sl) = (address.dlid, address.sl);
        let slot = usize::from(u16::from(mlid)) % FANOUT_CACHE;
        let holds = objects.vf(from).ways.fanouts[slot]
            .as_ref()
            .is_some_and(|cached| {
                cached.mlid == mlid
                    && cached.mgid == mgid
                    && cached.pkey == pkey
                    && cached.sl == sl
                    && cached.generation == generation
            });
        if !holds {
            let here = self.subnet.group_lid(from, mgid, mlid);
            let routes = self.subnet.resolve_multicast(from, here, sl, pkey);
            objects.vf_mut(from).ways.fanouts[slot] = Some(CachedFanout {
                mgid,
                mlid,
                here,
                pkey,
                sl,
                generation,
                routes,
            });
        }
        slot
    }
}
