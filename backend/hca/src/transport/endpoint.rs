//! The end of a port towards the subnet, where frames leave and arrive. Each imperfection of links is a decorator
//! of it.

pub(crate) mod capture;
pub(crate) mod delay;
pub(crate) mod exits;
pub(crate) mod injection;
pub(crate) mod links;
pub(crate) mod loss;
pub(crate) mod mesh;
pub(crate) mod share;
pub(crate) mod single;
pub(crate) mod station;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use wire::Gid;

use super::frame::Frame;
use crate::objects::counters::traffic::PathTraffic;
use crate::objects::ids::VfId;
use crate::path::{End, Route, Subnet};

/// Where a frame goes.
#[derive(Debug, Clone)]
pub enum Destination {
    /// To a function; of those that share its port with it, to the one that the frame is for.
    Function(VfId),
    /// To the members of a multicast group at these ports, in the virtual cluster of the sender.
    Group(Vec<Route>, Gid, Option<u16>),
    /// Elsewhere: its address says where.
    Away,
}

/// A frame on its way.
#[derive(Debug, Clone)]
pub struct Transmit {
    /// The function that sends it.
    pub from: VfId,
    /// Where it goes.
    pub to: Destination,
    /// The way. Of a multicast frame, one of the ways.
    pub route: Route,
    /// Low bits by which source and destination LID differ from the ports' base LIDs.
    pub path_bits: [u8; 2],
    /// The frame.
    pub frame: Frame,
    /// Slots of its sender's share that it holds until nothing is left of it.
    pub(crate) in_flight: Option<Arc<InFlight>>,
}

impl Transmit {
    /// A frame that has come from another engine for a function of this one.
    #[must_use]
    pub fn arrival(to: VfId, frame: Frame) -> Self {
        let route = Route::clean(End::Here(to), frame.mtu);
        Self {
            from: to,
            to: Destination::Function(to),
            route,
            path_bits: [0; 2],
            frame,
            in_flight: None,
        }
    }

    /// Whether it is on its way from this function, or to this port.
    pub(crate) fn is_between(&self, from: VfId, port: VfId) -> bool {
        if self.from == from {
            return true;
        }
        match &self.to {
            Destination::Function(to) => *to == port || self.route.here() == Some(port),
            Destination::Group(routes, ..) => routes.iter().any(|way| way.here() == Some(port)),
            Destination::Away => false,
        }
    }

    /// The same with another frame.
    pub(crate) fn with(&self, frame: Frame) -> Self {
        Self {
            from: self.from,
            to: self.to.clone(),
            route: self.route,
            path_bits: self.path_bits,
            frame,
            in_flight: self.in_flight.clone(),
        }
    }
}

/// Slots of a function's share that frames on their way hold.
#[derive(Debug)]
pub(crate) struct InFlight {
    share: Arc<AtomicU32>,
    things: u32,
}

impl InFlight {
    pub fn new(share: &Arc<AtomicU32>, things: u32) -> Arc<Self> {
        share.fetch_add(things, Ordering::Relaxed);
        Arc::new(Self {
            share: Arc::clone(share),
            things,
        })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.share.fetch_sub(self.things, Ordering::Relaxed);
    }
}

/// The subnet around an endpoint.
pub struct Outside<'a> {
    /// In the clock's nanoseconds.
    pub now: u64,
    /// The subnet.
    pub subnet: &'a mut dyn Subnet,
    /// Where it counts what passes.
    pub traffic: &'a PathTraffic,
}

impl Debug for Outside<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outside")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// Where frames leave and arrive.
pub trait Endpoint: Debug + Send {
    /// A frame leaves.
    fn transmit(&mut self, frame: Transmit, outside: &mut Outside<'_>);

    /// The next frame that has arrived.
    fn receive(&mut self, now: u64) -> Option<Transmit>;

    /// When the next one arrives, if it is known; a time in the past where one has, or where there is
    /// room now that somebody has asked for.
    fn deadline(&self) -> Option<u64>;

    /// Whether frames are on their way from a function, or to a port.
    fn carries(&self, from: VfId, to: VfId) -> bool;

    /// Whether there is room for a function's frame on a way. A sender without room may ask again when something
    /// arrives.
    fn has_room(&mut self, _from: VfId, _route: &Route) -> bool {
        true
    }

    /// Wakes the receivers of the frames that have left: an endpoint may wake them once for several.
    fn announce(&mut self) {}

    /// Whether frames on a way may lend their payload: they go to another engine of the program, and nobody
    /// needs their bytes on the way.
    fn lends(&self, _route: &Route) -> bool {
        false
    }
}

/// Where frames come to that have passed all links.
pub trait Wire: Endpoint {
    /// A frame has passed them at this time.
    fn carry(&mut self, frame: Transmit, at: u64);
}

impl Endpoint for Box<dyn Endpoint> {
    fn transmit(&mut self, frame: Transmit, outside: &mut Outside<'_>) {
        (**self).transmit(frame, outside);
    }

    fn receive(&mut self, now: u64) -> Option<Transmit> {
        (**self).receive(now)
    }

    fn deadline(&self) -> Option<u64> {
        (**self).deadline()
    }

    fn carries(&self, from: VfId, to: VfId) -> bool {
        (**self).carries(from, to)
    }

    fn announce(&mut self) {
        (**self).announce();
    }

    fn has_room(&mut self, from: VfId, route: &Route) -> bool {
        (**self).has_room(from, route)
    }

    fn lends(&self, route: &Route) -> bool {
        (**self).lends(route)
    }
}

/// A perfect wire from an engine to itself.
#[derive(Debug, Default)]
pub struct Loopback(VecDeque<Transmit>);

impl Wire for Loopback {
    fn carry(&mut self, frame: Transmit, _: u64) {
        self.0.push_back(frame);
    }
}

impl Endpoint for Loopback {
    fn transmit(&mut self, frame: Transmit, outside: &mut Outside<'_>) {
        self.carry(frame, outside.now);
    }

    fn receive(&mut self, _: u64) -> Option<Transmit> {
        self.0.pop_front()
    }

    fn deadline(&self) -> Option<u64> {
        (!self.0.is_empty()).then_some(0)
    }

    fn carries(&self, from: VfId, to: VfId) -> bool {
        self.0.iter().any(|frame| frame.is_between(from, to))
    }
}
