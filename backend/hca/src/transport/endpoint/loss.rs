//! Loss of packets on the way to an endpoint.

use std::fmt::Debug;

use crate::objects::ids::VfId;
use crate::path::Route;
use crate::transport::endpoint::{Destination, Endpoint, Outside, Transmit};

/// Loses packets where links on the way do ([`Route::faulty`]). The packets of a frame that arrive go on in as many
/// frames as there are gaps.
#[derive(Debug)]
pub struct Lossy<E>(pub E);

impl<E: Endpoint> Endpoint for Lossy<E> {
    fn transmit(&mut self, mut frame: Transmit, outside: &mut Outside<'_>) {
        if !frame.route.faulty {
            return self.0.transmit(frame, outside);
        }
        let packets = frame.frame.packets();
        let words = frame.frame.words().div_ceil(u64::from(packets));
        let path = frame.route.path;
        if let Destination::Group(routes, ..) = &mut frame.to {
            match outside.subnet.lose_multicast(path, words) {
                None => outside.traffic.add(path, words, 1),
                Some(reached) => {
                    let reached = |to: VfId| reached.contains(&to);
                    routes.retain(|route| route.here().is_some_and(reached));
                }
            }
            return self.0.transmit(frame, outside);
        }
        let mut at = 0;
        while at < packets {
            let left = packets - at;
            let lost = outside.subnet.lose(path, left.into(), words);
            let arrived = lost.map_or(left, |before| before.min(u64::from(left)) as u32);
            if frame.frame.is_counted() {
                let arrived = u64::from(arrived);
                outside.traffic.add(path, arrived * words, arrived);
            }
            if arrived == packets {
                return self.0.transmit(frame, outside);
            }
            if arrived > 0 {
                let part = frame.frame.part(at..at + arrived);
                self.0.transmit(frame.with(part), outside);
            }
            at += arrived + 1;
        }
    }

    fn receive(&mut self, now: u64) -> Option<Transmit> {
        self.0.receive(now)
    }

    fn deadline(&self) -> Option<u64> {
        self.0.deadline()
    }

    fn carries(&self, from: VfId, to: VfId) -> bool {
        self.0.carries(from, to)
    }

    fn announce(&mut self) {
        self.0.announce();
    }

    fn has_room(&mut self, from: VfId, route: &Route) -> bool {
        self.0.has_room(from, route)
    }

    fn lends(&self, route: &Route) -> bool {
        !route.faulty && self.0.lends(route)
    }
}
