//! Engines of one program, each on a thread of its own, joined with each other: from each to each other
//! one leads a ring.
//!
//! A ring holds [`RING`] frames. Where it is full, those who are about to ask for something wait
//! ([`Endpoint::has_room`]); answers, and datagrams for groups, wait beside it. Each function's frames on their way
//! are bounded, so these are.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering, fence};
use std::task::Waker;

use rtrb::{Consumer, Producer, PushError, RingBuffer};

use crate::objects::counters::TrafficCounters;
use crate::objects::ids::VfId;
use crate::path::Route;
use crate::transport::endpoint::{Destination, Endpoint, Outside, Transmit, Wire};

/// Frames that a ring holds.
pub const RING: usize = 256;
/// Frames of a batch: word of them is left once, and once is looked whether their sender waits for room.
const BATCH: usize = 32;

/// Where a function lives.
#[derive(Debug)]
struct Home {
    engine: AtomicU16,
    /// It takes trains as they are.
    trains: AtomicBool,
}

/// Engine of each function.
#[derive(Debug)]
pub struct Homes(Box<[Home]>);

impl Homes {
    /// Takes the number of each function's engine, in the order of functions.
    #[must_use]
    pub fn new(engines: impl IntoIterator<Item = u16>) -> Arc<Self> {
        let home = |engine| Home {
            engine: AtomicU16::new(engine),
            trains: AtomicBool::new(false),
        };
        Arc::new(Self(engines.into_iter().map(home).collect()))
    }

    /// The number of a function's engine; 0 where there is no such function.
    #[inline]
    #[must_use]
    pub fn of(&self, vf: VfId) -> usize {
        let home = self.0.get(usize::from(vf.0));
        home.map_or(0, |home| usize::from(home.engine.load(Ordering::Acquire)))
    }

    /// Whether a function takes trains of datagrams as they are. A train that has left for a function that does not
    /// take trains any more is dropped.
    #[must_use]
    pub fn takes_trains(&self, vf: VfId) -> bool {
        let home = self.0.get(usize::from(vf.0));
        home.is_some_and(|home| home.trains.load(Ordering::Relaxed))
    }

    pub(crate) fn set_takes_trains(&self, vf: VfId, takes: bool) {
        if let Some(home) = self.0.get(usize::from(vf.0)) {
            home.trains.store(takes, Ordering::Relaxed);
        }
    }

    /// Moves a function to another engine. The caller holds all engines.
    pub fn set(&self, vf: VfId, engine: u16) {
        if let Some(home) = self.0.get(usize::from(vf.0)) {
            home.engine.store(engine, Ordering::Release);
        }
    }
}

/// Where others leave word that there is something for an engine.
#[derive(Debug, Default)]
pub struct Door {
    mail: AtomicBool,
    asleep: AtomicBool,
}

impl Door {
    /// Whether there is something, which [`crate::Engine::wake`] takes note of.
    #[inline]
    #[must_use]
    pub fn has_mail(&self) -> bool {
        self.mail.load(Ordering::Relaxed)
    }

    /// The engine's thread is about to sleep, or not any more. While it sleeps, who brings something
    /// calls it. True when there is something already.
    pub fn sleep(&self, asleep: bool) -> bool {
        self.asleep.store(asleep, Ordering::Relaxed);
        // Either who brings something sees that it has to call, or it is seen here.
        fence(Ordering::SeqCst);
        self.has_mail()
    }

    /// Leaves word. Whether the engine has to be called.
    fn knock(&self) -> bool {
        self.mail.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed)
    }
}

/// Traffic of functions with other engines, in units of four octets, by function and engine.
#[derive(Debug)]
pub struct Crossings {
    engines: usize,
    words: Box<[AtomicU64]>,
    /// Frames to all other engines, and their length.
    sent: [AtomicU64; 2],
}

impl Crossings {
    fn new(functions: usize, engines: usize) -> Arc<Self> {
        let words = (0..functions * engines).map(|_| AtomicU64::new(0));
        Arc::new(Self {
            engines,
            words: words.collect(),
            sent: Default::default(),
        })
    }

    fn at(&self, vf: VfId, engine: usize) -> Option<&AtomicU64> {
        self.words.get(usize::from(vf.0) * self.engines + engine)
    }

    fn count(&self, vf: VfId, engine: usize, words: u64) {
        if let Some(counter) = self.at(vf, engine) {
            TrafficCounters::add(counter, words);
        }
    }

    /// Number of frames that the engine that counts here has sent to others, and their length in units of four
    /// octets.
    #[must_use]
    pub fn sent(&self) -> [u64; 2] {
        self.sent.each_ref().map(|it| it.load(Ordering::Relaxed))
    }

    /// Traffic of a function with those of another engine, while it lived in the one that counts here.
    #[must_use]
    pub fn read(&self, vf: VfId, engine: usize) -> u64 {
        let counter = self.at(vf, engine);
        counter.map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

/// Another engine.
struct Peer {
    out: Producer<Transmit>,
    /// Frames for which there was no room, and whose sender cannot wait.
    backlog: VecDeque<Transmit>,
    /// Somebody here waits for room.
    waits: bool,
    /// The same, for who takes out there.
    wanted: Arc<AtomicBool>,
    back: Consumer<Transmit>,
    /// Somebody there waits for room on the way here.
    wanted_there: Arc<AtomicBool>,
    /// Frames that have gone there since word was left.
    unannounced: usize,
    /// Frames that were taken since the look whether somebody there waits for room.
    taken: usize,
    /// Calls it when it sleeps.
    waker: Waker,
}

/// The end of an engine where its functions' frames leave for others' and theirs arrive.
pub struct Mesh {
    own: usize,
    homes: Arc<Homes>,
    doors: Arc<[Door]>,
    /// Frames from here to here.
    here: VecDeque<Transmit>,
    /// By number; `None` in place of this one.
    peers: Vec<Option<Peer>>,
    /// Number of engines; the members behind them are ports without an engine.
    engines: usize,
    /// The engine whose ring is looked at first.
    turn: usize,
    crossings: Arc<Crossings>,
    /// Word of frames is left by [`Endpoint::announce`], or when there is a batch.
    announces_late: bool,
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mesh")
            .field("own", &self.own)
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

impl Mesh {
    /// The ends of so many engines, for as many functions as have homes. `waker(a, b)` is who calls
    /// engine `b` when it sleeps and `a` has something for it; it is called by who has engine `a`.
    pub fn all(
        engines: usize,
        homes: &Arc<Homes>,
        mut waker: impl FnMut(usize, usize) -> Waker,
    ) -> Vec<Self> {
        let doors: Arc<[Door]> = (0..engines).map(|_| Door::default()).collect();
        let mut meshes: Vec<Self> = (0..engines)
            .map(|own| Self {
                own,
                homes: Arc::clone(homes),
                doors: Arc::clone(&doors),
                here: VecDeque::new(),
                peers: (0..engines).map(|_| None).collect(),
                engines,
                turn: 0,
                crossings: Crossings::new(homes.0.len(), engines),
                announces_late: false,
            })
            .collect();
        for a in 0..engines {
            for b in a + 1..engines {
                let (there, arrives_there) = RingBuffer::new(RING);
                let (back, arrives_back) = RingBuffer::new(RING);
                let wanted: [Arc<AtomicBool>; 2] = Default::default();
                let peer = |out, consumer, at: usize, waker| Peer {
                    out,
                    backlog: VecDeque::new(),
                    waits: false,
                    wanted: Arc::clone(&wanted[at]),
                    back: consumer,
                    wanted_there: Arc::clone(&wanted[1 - at]),
                    unannounced: 0,
                    taken: 0,
                    waker,
                };
                meshes[a].peers[b] = Some(peer(there, arrives_back, 0, waker(a, b)));
                meshes[b].peers[a] = Some(peer(back, arrives_there, 1, waker(b, a)));
            }
        }
        meshes
    }

    /// The first so many are engines, the others ports: what goes to a port is on its way no more.
    pub const fn set_engines(&mut self, count: usize) {
        self.engines = count;
    }

    /// Leaves word of frames for others once for several, by [`Endpoint::announce`].
    pub(crate) const fn announce_late(&mut self) {
        self.announces_late = true;
    }

    /// Whether a function lives in this engine.
    #[must_use]
    pub fn is_home(&self, vf: VfId) -> bool {
        self.homes.of(vf) == self.own
    }

    /// Where all functions live.
    pub(crate) fn homes(&self) -> Arc<Homes> {
        Arc::clone(&self.homes)
    }

    /// Where others leave word for this engine.
    #[must_use]
    pub fn door(&self) -> MyDoor {
        MyDoor(Arc::clone(&self.doors), self.own)
    }

    /// The counters of this mesh.
    #[must_use]
    pub fn crossings(&self) -> Arc<Crossings> {
        Arc::clone(&self.crossings)
    }

    /// Puts a frame into the ring to another engine.
    fn send(&mut self, to: usize, frame: Transmit) {
        let words = frame.frame.words();
        self.crossings.count(frame.from, to, words);
        let [frames, length] = &self.crossings.sent;
        TrafficCounters::add(frames, 1);
        TrafficCounters::add(length, words);
        let Some(Some(peer)) = self.peers.get_mut(to) else {
            return;
        };
        if !peer.backlog.is_empty() {
            peer.backlog.push_back(frame);
            return peer.flush(&self.doors[to]);
        }
        match peer.out.push(frame) {
            Ok(()) => peer.unannounced += 1,
            Err(PushError::Full(frame)) => {
                peer.backlog.push_back(frame);
                return peer.flush(&self.doors[to]);
            }
        }
        if !self.announces_late || peer.unannounced >= BATCH {
            peer.announce(&self.doors[to]);
        }
    }

    /// Whether all of a frame is for functions of this engine.
    fn ends_here(&self, frame: &Transmit) -> bool {
        match &frame.to {
            Destination::Function(to) => self.homes.of(*to) == self.own,
            Destination::Group(routes, ..) => routes
                .iter()
                .filter_map(|route| route.here())
                .all(|to| self.homes.of(to) == self.own),
            Destination::Away => true,
        }
    }

    /// The next frame of another engine's.
    fn next_from_others(&mut self) -> Option<Transmit> {
        let engines = self.peers.len();
        for _ in 0..engines {
            let at = self.turn;
            self.turn = (self.turn + 1) % engines;
            if let Some(peer) = &mut self.peers[at]
                && let Ok(frame) = peer.back.pop()
            {
                peer.taken += 1;
                if peer.taken >= BATCH || peer.back.is_empty() {
                    peer.invite(&self.doors[at]);
                }
                if let Destination::Function(to) = frame.to {
                    self.crossings.count(to, at, frame.frame.words());
                }
                return Some(frame);
            }
        }
        None
    }
}

impl Peer {
    /// Moves on what waits beside the ring.
    fn flush(&mut self, door: &Door) {
        let mut moved = false;
        while let Some(frame) = self.backlog.pop_front() {
            match self.out.push(frame) {
                Ok(()) => moved = true,
                Err(PushError::Full(frame)) => {
                    self.backlog.push_front(frame);
                    if self.is_full() {
                        break;
                    }
                }
            }
        }
        if moved {
            self.announce(door);
        }
    }

    /// Leaves word of the frames in the ring.
    fn announce(&mut self, door: &Door) {
        self.unannounced = 0;
        if door.knock() {
            self.waker.wake_by_ref();
        }
    }

    /// Has a sender go on that waits for room.
    fn invite(&mut self, door: &Door) {
        self.taken = 0;
        // A sender that found the ring full looks once more after having said so.
        fence(Ordering::SeqCst);
        if self.wanted_there.load(Ordering::Relaxed)
            && self.wanted_there.swap(false, Ordering::Relaxed)
            && door.knock()
        {
            self.waker.wake_by_ref();
        }
    }

    /// Whether there is no room in the ring. If so, who takes out says when there is.
    fn is_full(&self) -> bool {
        if !self.out.is_full() {
            return false;
        }
        self.wanted.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.out.is_full()
    }
}

/// The door of an engine.
#[derive(Debug, Clone)]
pub struct MyDoor(Arc<[Door]>, usize);

impl std::ops::Deref for MyDoor {
    type Target = Door;

    #[inline]
    fn deref(&self) -> &Door {
        &self.0[self.1]
    }
}

impl Wire for Mesh {
    fn carry(&mut self, mut frame: Transmit, _: u64) {
        let Destination::Group(routes, group, cluster) = &mut frame.to else {
            let home = match frame.to {
                Destination::Function(to) => self.homes.of(to),
                _ => self.own,
            };
            if home == self.own {
                self.here.push_back(frame);
            } else {
                self.send(home, frame);
            }
            return;
        };
        let (routes, group, cluster) = (std::mem::take(routes), *group, *cluster);
        let home = |route: &Route| route.here().map_or(self.own, |to| self.homes.of(to));
        let parts: Vec<Vec<_>> = (0..self.peers.len())
            .map(|engine| {
                let routes = routes.iter().copied();
                routes.filter(|route| home(route) == engine).collect()
            })
            .collect();
        for (engine, routes) in parts.into_iter().enumerate() {
            if routes.is_empty() {
                continue;
            }
            let mut part = frame.with(frame.frame.clone());
            part.to = Destination::Group(routes, group, cluster);
            if engine == self.own {
                self.here.push_back(part);
            } else {
                self.send(engine, part);
            }
        }
    }
}

impl Endpoint for Mesh {
    fn transmit(&mut self, frame: Transmit, outside: &mut Outside<'_>) {
        self.carry(frame, outside.now);
    }

    fn receive(&mut self, now: u64) -> Option<Transmit> {
        for (engine, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if !peer.backlog.is_empty() {
                peer.flush(&self.doors[engine]);
            }
            peer.waits = false;
        }
        loop {
            let next = match self.here.pop_front() {
                None => self.next_from_others(),
                next => next,
            };
            match next {
                // Its function has moved.
                Some(frame) if !self.ends_here(&frame) => self.carry(frame, now),
                next => return next,
            }
        }
    }

    fn deadline(&self) -> Option<u64> {
        let door = &self.doors[self.own];
        if door.has_mail() {
            // Before the rings are looked at: who brings something from now on leaves word anew.
            door.mail.swap(false, Ordering::AcqRel);
        }
        let mut peers = self.peers.iter().flatten();
        let due = !self.here.is_empty()
            || peers.any(|peer| {
                let waits = peer.waits || !peer.backlog.is_empty();
                !peer.back.is_empty() || (waits && !peer.is_full())
            });
        due.then_some(0)
    }

    fn carries(&self, from: VfId, to: VfId) -> bool {
        let (leaves, home) = (self.is_home(from), self.homes.of(to));
        self.here.iter().any(|frame| frame.is_between(from, to)) || {
            self.peers.iter().take(self.engines).enumerate()
        }
        .any(|(engine, peer)| {
            peer.as_ref().is_some_and(|peer| {
                let in_ring = (leaves || engine == home) && peer.out.slots() < RING;
                in_ring || peer.backlog.iter().any(|frame| frame.is_between(from, to))
            })
        })
    }

    fn has_room(&mut self, _: VfId, route: &Route) -> bool {
        let Some(to) = route.here() else { return true };
        let home = self.homes.of(to);
        let Some(Some(peer)) = self.peers.get_mut(home) else {
            return true;
        };
        let room = peer.backlog.is_empty() && !peer.is_full();
        peer.waits |= !room;
        room
    }

    fn announce(&mut self) {
        for (engine, peer) in self.peers.iter_mut().enumerate() {
            if let Some(peer) = peer
                && peer.unannounced > 0
            {
                peer.announce(&self.doors[engine]);
            }
        }
    }

    fn lends(&self, route: &Route) -> bool {
        let home = route.here().map(|to| self.homes.of(to));
        home.is_some_and(|home| matches!(self.peers.get(home), Some(Some(_))))
    }
}
