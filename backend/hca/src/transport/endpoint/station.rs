//! A function that lives in no engine: whoever has it sends and receives its datagrams by himself. To
//! everybody else it is a function like all others, in a home of its own ([`Mesh`](super::Mesh)).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::{Gid, Lid, MadPacket, PKey, Sl};

use crate::objects::counters::TrafficCounters;
use crate::objects::ids::VfId;
use crate::objects::vf::port::PortView;
use crate::path::{Envelope, Heading, NoRoute, Route, Subnet, WrongKey};
use crate::transport::Mesh;
use crate::transport::endpoint::capture::{Captured, Watch};
use crate::transport::endpoint::exits::over;
use crate::transport::endpoint::mesh::Homes;
use crate::transport::endpoint::{Destination, Endpoint, Outside, Transmit};
use crate::transport::frame::{Content, Frame};

/// Ways that are kept.
const WAYS: usize = 1024;

/// Key of a unicast route.
type Aim = (Heading, Option<Gid>);
/// Key of a multicast route.
type Fan = (Lid, Sl, PKey);

/// A function that lives in no engine.
#[derive(Debug)]
pub struct Station {
    vf: VfId,
    port: PortView,
    subnet: Box<dyn Subnet>,
    traffic: Arc<crate::PathTraffic>,
    generation: Arc<AtomicU64>,
    counters: Arc<TrafficCounters>,
    endpoint: Captured<Box<dyn Endpoint>>,
    homes: Arc<Homes>,
    /// Generation of the ways below.
    seen: u64,
    ways: HashMap<Aim, Result<Route, NoRoute>>,
    /// The one that was asked for last: most frames go the same.
    last: Option<(Aim, Result<Route, NoRoute>)>,
    fans: HashMap<Fan, Vec<Route>>,
}

impl Station {
    /// The function `vf`, of which the home is that of `mesh`. It counts in `counters`.
    #[must_use]
    pub fn new(
        vf: VfId,
        subnet: Box<dyn Subnet>,
        mut mesh: Mesh,
        counters: Arc<TrafficCounters>,
    ) -> Self {
        mesh.announce_late();
        Self {
            vf,
            port: PortView::default(),
            traffic: subnet.traffic(),
            generation: subnet.generation(),
            homes: mesh.homes(),
            endpoint: Captured {
                next: over(subnet.links(), mesh),
                watch: None,
            },
            subnet,
            counters,
            seen: 0,
            ways: HashMap::new(),
            last: None,
            fans: HashMap::new(),
        }
    }

    /// Takes over what management changed at its port.
    pub fn set_port(&mut self, port: PortView) {
        self.port = port;
        self.ways.clear();
        self.last = None;
        self.fans.clear();
    }

    /// The generation of the subnet.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Has datagrams watched from now on, or not any more.
    pub fn set_watch(&mut self, watch: Option<Box<dyn Watch>>) {
        self.endpoint.watch = watch;
    }

    /// Sends a management datagram.
    pub fn send_mad(&mut self, packet: MadPacket) {
        self.subnet.send_mad(self.vf, packet);
    }

    /// Whether trains of datagrams may come as they are from now on.
    pub fn set_takes_trains(&mut self, takes: bool) {
        self.homes.set_takes_trains(self.vf, takes);
    }

    /// Whether a train may leave as it is: it goes to one who takes such, and no link on the way does
    /// anything to single packets. Otherwise its datagrams are to be sent.
    pub fn passes_whole(&mut self, frame: &Frame) -> bool {
        let address = frame.address;
        if address.dlid.is_multicast() {
            return false;
        }
        self.forget_old_ways();
        let global = address.global.map(|(global, _)| global);
        let heading = Heading::new(address.dlid, address.sl, address.pkey, global);
        let Ok(route) = self.way(heading, global.map(|global| global.dgid)) else {
            return false;
        };
        let does_nothing =
            !route.faulty && route.delay == 0 && route.shares.is_none() && route.crossing.is_none();
        let takes = |to| self.homes.takes_trains(to);
        does_nothing && route.here().is_some_and(takes)
    }

    /// Sends a datagram, or a train of them that [passes whole](Self::passes_whole). It is returned where there is no
    /// room for it: then the one who has the station is woken when there is. Its receiver is woken by
    /// [`Station::announce`] at the latest.
    pub fn send(&mut self, now: u64, frame: Frame) -> Option<Frame> {
        let address = frame.address;
        if !self.port.active
            || !address.pkey.is_valid()
            || self.port.service_levels.admit(address.sl) != Some(address.sl)
        {
            TrafficCounters::add(&self.counters.xmit_discards, 1);
            return None;
        }
        self.forget_old_ways();
        if address.dlid.is_multicast() {
            self.send_to_group(now, frame);
            return None;
        }
        let global = address.global.map(|(global, _)| global);
        let heading = Heading::new(address.dlid, address.sl, address.pkey, global);
        let (words, packets) = (frame.words(), frame.packets().into());
        let longest = (frame.train).map_or(frame.len(), |train| train.longest());
        let fits = |route: &Route| longest <= route.mtu.bytes();
        match self.way(heading, global.map(|global| global.dgid)) {
            Ok(route) if !self.endpoint.has_room(self.vf, &route) => return Some(frame),
            Ok(route) if fits(&route) => {
                self.counters.sent(address.sl, words, packets);
                match route.here() {
                    Some(to) => self.send_routed(now, Destination::Function(to), route, frame),
                    None => TrafficCounters::add(&self.counters.xmit_discards, 1),
                }
            }
            Err(NoRoute::Held(path)) => self.traffic.add(path, words, packets),
            Err(NoRoute::Lost(path)) => {
                self.counters.sent(address.sl, words, packets);
                self.traffic.add(path, words, packets);
            }
            _ => {
                self.counters.sent(address.sl, words, packets);
                TrafficCounters::add(&self.counters.xmit_discards, 1);
            }
        }
        None
    }

    fn forget_old_ways(&mut self) {
        let generation = self.generation();
        if self.seen != generation {
            self.seen = generation;
            self.ways.clear();
            self.last = None;
            self.fans.clear();
        }
    }

    fn way(&mut self, heading: Heading, dgid: Option<Gid>) -> Result<Route, NoRoute> {
        let aim = (heading, dgid);
        if let Some((_, way)) = self.last.filter(|(last, _)| *last == aim) {
            return way;
        }
        if self.ways.len() >= WAYS {
            self.ways.clear();
        }
        let (vf, subnet) = (self.vf, &mut self.subnet);
        let way = self.ways.entry(aim);
        let way = *way.or_insert_with(|| subnet.resolve(vf, &heading));
        self.last = Some((aim, way));
        way
    }

    fn send_to_group(&mut self, now: u64, frame: Frame) {
        let address = frame.address;
        let Some((global, _)) = address.global else {
            return TrafficCounters::add(&self.counters.xmit_discards, 1);
        };
        self.counters.sent(address.sl, frame.words(), 1);
        self.counters.sent_to_group(address.sl);
        if self.fans.len() >= WAYS {
            self.fans.clear();
        }
        let fan = (address.dlid, address.sl, address.pkey);
        let (vf, subnet) = (self.vf, &mut self.subnet);
        let routes = { self.fans.entry(fan) }
            .or_insert_with(|| subnet.resolve_multicast(vf, fan.0, fan.1, fan.2));
        let fits = |route: &&Route| frame.payload.len() <= route.mtu.bytes() as usize;
        let endpoint = &mut self.endpoint;
        let own = |route: &Route| route.here().is_none_or(|to| to == vf);
        let routes: Vec<Route> = { routes.iter().filter(fits) }
            .filter(|route| !own(route) && endpoint.has_room(vf, route))
            .copied()
            .collect();
        if let Some(&first) = routes.first() {
            let to = Destination::Group(routes, global.dgid, self.port.cluster);
            self.send_routed(now, to, first, frame);
        }
    }

    fn send_routed(&mut self, now: u64, to: Destination, route: Route, frame: Frame) {
        if !route.faulty {
            let packets = frame.packets().into();
            self.traffic.add(route.path, frame.words(), packets);
        }
        let path_bits = [self.port.path_bits(frame.address.slid), 0];
        let transmit = Transmit {
            from: self.vf,
            to,
            route,
            path_bits,
            frame,
            in_flight: None,
        };
        let mut outside = Outside {
            now,
            subnet: &mut *self.subnet,
            traffic: &self.traffic,
        };
        self.endpoint.transmit(transmit, &mut outside);
    }

    /// Wakes the receivers of the datagrams that were sent.
    pub fn announce(&mut self) {
        self.endpoint.announce();
    }

    /// The next datagram that has arrived.
    pub fn receive(&mut self, now: u64) -> Option<Frame> {
        loop {
            let mut transmit = self.endpoint.receive(now)?;
            let (from, path_bits) = (transmit.from, transmit.path_bits);
            let frame = &mut transmit.frame;
            if let Some(crossing) = &transmit.route.crossing {
                frame.cross(crossing);
            }
            match transmit.to {
                Destination::Function(_) => {
                    self.endpoint.show_arrival(frame, from, self.vf, path_bits);
                }
                Destination::Group(_, _, cluster) if cluster == self.port.cluster => {
                    self.endpoint
                        .show_multicast(frame, from, self.vf, path_bits);
                    self.counters.received_for_group(frame.address.sl);
                }
                Destination::Group(..) | Destination::Away => continue,
            }
            if self.admits(frame) {
                self.counters
                    .received(frame.address.sl, frame.words(), frame.packets().into());
                return Some(transmit.frame);
            }
        }
    }

    /// Whether a frame is a datagram of a partition that the port is in.
    fn admits(&mut self, frame: &Frame) -> bool {
        let address = &frame.address;
        let Content::Datagram { source, .. } = frame.content else {
            return false;
        };
        if !frame.is_well_formed() || !self.port.active {
            return false;
        }
        if address.pkey.matches(self.port.pkey(0)) {
            return true;
        }
        TrafficCounters::add(&self.counters.pkey_violations, 1);
        let envelope = Envelope {
            slid: address.slid,
            dlid: address.dlid,
            sl: address.sl,
            src_qp: source,
            dest_qp: address.dest_qp,
        };
        let key = WrongKey::Partition(address.pkey);
        self.subnet.wrong_key(self.vf, key, &envelope);
        false
    }

    /// When the next datagram arrives, if it is known; a time in the past where one has.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        self.endpoint.deadline()
    }
}
