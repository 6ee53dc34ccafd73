//! Delay on the way to an endpoint.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;

use crate::objects::ids::VfId;
use crate::path::{End, Route};
use crate::transport::endpoint::{Destination, Endpoint, Outside, Transmit, Wire};

/// Lets frames arrive as late as the links on the way are slow ([`Route::delay`]), and none before
/// those that left before it for the same port.
#[derive(Debug, Default)]
pub struct Delayed<E> {
    next: E,
    /// By arrival, and in the order in which they left.
    waiting: BTreeMap<(u64, u64), Transmit>,
    left: u64,
    /// When the last of those arrives that are on their way from a function to an end.
    last: HashMap<(VfId, End), u64>,
}

impl<E: Wire> Delayed<E> {
    /// Frames that have arrived go on to `next`.
    pub fn new(next: E) -> Self {
        Self {
            next,
            waiting: BTreeMap::new(),
            left: 0,
            last: HashMap::new(),
        }
    }

    fn wait(&mut self, frame: Transmit, to: End, now: u64) {
        let pair = (frame.from, to);
        let earlier = self.last.get(&pair);
        if frame.route.delay == 0 && earlier.is_none() {
            return self.next.carry(frame, now);
        }
        let arrives = now + frame.route.delay;
        let arrives = arrives.max(earlier.copied().unwrap_or(0));
        self.last.insert(pair, arrives);
        self.left += 1;
        self.waiting.insert((arrives, self.left), frame);
    }
}

impl<E: Wire> Wire for Delayed<E> {
    fn carry(&mut self, frame: Transmit, at: u64) {
        let Destination::Group(routes, group, cluster) = &frame.to else {
            let to = frame.route.end;
            return self.wait(frame, to, at);
        };
        for route in routes {
            let to = Destination::Group(vec![*route], *group, *cluster);
            let mut one = frame.with(frame.frame.clone());
            (one.to, one.route) = (to, *route);
            self.wait(one, route.end, at);
        }
    }
}

impl<E: Wire> Endpoint for Delayed<E> {
    fn transmit(&mut self, frame: Transmit, outside: &mut Outside<'_>) {
        self.carry(frame, outside.now);
    }

    fn receive(&mut self, now: u64) -> Option<Transmit> {
        loop {
            if self.waiting.is_empty() {
                return self.next.receive(now);
            }
            if let Some(frame) = self.next.receive(now) {
                return Some(frame);
            }
            let first = self.waiting.first_entry();
            let due = first.filter(|entry| entry.key().0 <= now)?;
            let (&(arrived, _), to) = (due.key(), due.get().route.end);
            let frame = due.remove();
            let pair = (frame.from, to);
            if self.last.get(&pair) == Some(&arrived) {
                self.last.remove(&pair);
            }
            self.next.carry(frame, now);
        }
    }

    fn carries(&self, from: VfId, to: VfId) -> bool {
        self.next.carries(from, to) || { self.last.keys() }
            .any(|&(by, end)| by == from || end == End::Here(to))
    }

    fn announce(&mut self) {
        self.next.announce();
    }

    fn has_room(&mut self, from: VfId, route: &Route) -> bool {
        self.next.has_room(from, route)
    }

    fn lends(&self, route: &Route) -> bool {
        route.delay == 0 && self.next.lends(route)
    }

    fn deadline(&self) -> Option<u64> {
        let first = self.waiting.first_key_value();
        let first = first.map(|(&(at, _), _)| at);
        first.into_iter().chain(self.next.deadline()).min()
    }
}
