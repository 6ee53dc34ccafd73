//! Links that share their bandwidth among lanes: frames wait for their turn.

use std::collections::HashMap;

use wire::Vl;

use crate::objects::ids::VfId;
use crate::path::{Route, Shares};
use crate::transport::endpoint::links::{Links, Load, Passed};
use crate::transport::endpoint::{Destination, Endpoint, Outside, Transmit, Wire};
use crate::transport::frame::Frame;

/// Bytes that a function may have waiting at links in one lane, and still send.
const BACKLOG: u32 = 256 << 10;

impl Load {
    pub(crate) fn new(way: u32, token: u64, frame: &Frame) -> Self {
        let packets = frame.packets();
        let payload = frame.payload.len() as u32;
        let headers = 4 * frame.words() as u32 - payload / 4 * 4;
        let header = headers / packets;
        let before = (packets - 1) * frame.mtu.bytes();
        Self {
            way,
            token,
            packets,
            full: frame.mtu.bytes() + header,
            last: payload - before + header,
            header: (frame.address.slid, frame.address.dlid, frame.address.sl),
        }
    }
}

/// Keeps frames for as long as they wait at links ([`Route::shares`]).
#[derive(Debug)]
pub struct Shared<E> {
    next: E,
    links: Box<dyn Links>,
    waiting: HashMap<u64, (Transmit, u32)>,
    entered: u64,
    /// Bytes of those that somebody decided to send.
    backlog: HashMap<(VfId, Vl), u32>,
}

impl<E: Wire> Shared<E> {
    /// Frames that have passed `links` go on to `next`.
    pub fn new(links: Box<dyn Links>, next: E) -> Self {
        Self {
            next,
            links,
            waiting: HashMap::new(),
            entered: 0,
            backlog: HashMap::new(),
        }
    }

    /// A frame has passed its last link, or one of its last.
    fn pass(&mut self, passed: Passed) {
        let Passed {
            token,
            end,
            at,
            done,
            marked,
        } = passed;
        let Some((frame, _)) = self.waiting.get(&token) else {
            return;
        };
        let part = match &frame.to {
            Destination::Group(routes, group, cluster) => {
                let is_there = |route: &&Route| route.shares.is_some_and(|it| it.end == end);
                let routes = routes.iter().filter(is_there).copied().collect();
                let mut part = frame.with(frame.frame.clone());
                part.to = Destination::Group(routes, *group, *cluster);
                Some(part)
            }
            _ => None,
        };
        let whole = if done { self.forget(token) } else { None };
        if let Some(mut frame) = part.or(whole) {
            frame.frame.marked |= marked;
            self.next.carry(frame, at);
        }
    }

    fn forget(&mut self, token: u64) -> Option<Transmit> {
        let (frame, bytes) = self.waiting.remove(&token)?;
        if let Some(Shares { lane, .. }) = frame.route.shares
            && let Some(backlog) = self.backlog.get_mut(&(frame.from, lane))
        {
            *backlog -= bytes;
            if *backlog == 0 {
                self.backlog.remove(&(frame.from, lane));
            }
        }
        Some(frame)
    }
}

impl<E: Wire> Endpoint for Shared<E> {
    fn lends(&self, route: &Route) -> bool {
        route.shares.is_none() && self.next.lends(route)
    }

    fn transmit(&mut self, frame: Transmit, outside: &mut Outside<'_>) {
        let Some(Shares { way, lane, .. }) = frame.route.shares else {
            return self.next.carry(frame, outside.now);
        };
        self.entered += 1;
        let token = self.entered;
        let load = Load::new(way, token, &frame.frame);
        // Answers do not wait for room, so nobody waits for theirs.
        let bytes = if frame.frame.is_request() {
            load.bytes()
        } else {
            0
        };
        if bytes > 0 {
            *self.backlog.entry((frame.from, lane)).or_default() += bytes;
        }
        self.waiting.insert(token, (frame, bytes));
        self.links.enter(outside.now, load);
    }

    fn receive(&mut self, now: u64) -> Option<Transmit> {
        while let Some(passed) = self.links.leave(now) {
            self.pass(passed);
        }
        self.next.receive(now)
    }

    fn deadline(&self) -> Option<u64> {
        let links = self.links.deadline();
        links.into_iter().chain(self.next.deadline()).min()
    }

    fn carries(&self, from: VfId, to: VfId) -> bool {
        let mut waiting = self.waiting.values();
        self.next.carries(from, to) || waiting.any(|(frame, _)| frame.is_between(from, to))
    }

    fn announce(&mut self) {
        self.next.announce();
    }

    fn has_room(&mut self, from: VfId, route: &Route) -> bool {
        let backlog = route
            .shares
            .and_then(|it| self.backlog.get(&(from, it.lane)));
        backlog.is_none_or(|&backlog| backlog < BACKLOG) && self.next.has_room(from, route)
    }
}
