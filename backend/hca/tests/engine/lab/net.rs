//! The laboratory's subnet: paths that can be cut, take time, or lose packets.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use hca::transport::{Links, Load, Passed};
use hca::{End, Heading, LinkId, NoRoute, PathId, Route, Shares, Subnet, VfId};
use testing::Random;
use wire::{Lid, MadPacket, Mtu, PKey, Sl, Vl};

use super::queue_format::locked;

/// State of the laboratory's subnet.
#[derive(Debug, Default)]
pub struct NetState {
    pub lids: HashMap<Lid, VfId>,
    /// LIDs of other engines, by the link that leads there.
    pub beyond: HashMap<Lid, LinkId>,
    /// Ways that lose everything.
    pub cut: HashSet<(VfId, VfId)>,
    /// Largest packet payload on every way.
    pub mtu: Option<Mtu>,
    pub groups: HashMap<Lid, Vec<VfId>>,
    pub mads: Vec<(VfId, MadPacket)>,
    /// Questions asked.
    pub resolved: usize,
    /// Delay of the way from one function to another, in nanoseconds.
    pub delays: HashMap<(VfId, VfId), u64>,
    /// Ways that lose packets.
    pub losses: HashMap<(VfId, VfId), Loss>,
    /// Time of a byte on the line over which all ways lead; `None` without one.
    pub line: Option<u64>,
}

impl NetState {
    /// Service levels are lanes.
    fn shares(&self, sl: Sl) -> Option<Shares> {
        self.line.map(|_| Shares {
            way: 0,
            end: 0,
            lane: Vl::new(sl.value()),
            rate: u64::MAX,
        })
    }
}

/// Packets that a way loses.
#[derive(Debug, Clone)]
pub enum Loss {
    /// These of the next ones: true is lost. None of those after them.
    Of(VecDeque<bool>),
    /// So many of a hundred, by this generator.
    Percent(u64, Random),
}

impl Loss {
    /// As in `"..x."`, where the third packet is lost.
    pub fn of(script: &str) -> Self {
        Self::Of(script.chars().map(|packet| packet == 'x').collect())
    }

    /// So many of a hundred.
    pub fn percent(percent: u64, seed: u64) -> Self {
        Self::Percent(percent, Random::new(seed))
    }

    fn next(&mut self) -> bool {
        match self {
            Self::Of(packets) => packets.pop_front().unwrap_or(false),
            Self::Percent(percent, random) => random.number() % 100 < *percent,
        }
    }
}

/// The number of the path from one function to another.
fn path(from: VfId, to: VfId) -> PathId {
    PathId::new(1 + usize::from(from.0) * 16 + usize::from(to.0))
}

/// A line over which all ways lead, where they share one.
#[derive(Debug)]
pub struct Line {
    /// Time of a byte, in nanoseconds.
    pub byte: u64,
    free: u64,
    frames: VecDeque<Passed>,
}

impl Line {
    pub fn new(byte: u64) -> Self {
        let frames = VecDeque::new();
        Self {
            byte,
            free: 0,
            frames,
        }
    }
}

impl Links for Line {
    fn enter(&mut self, now: u64, load: Load) {
        let bytes = u64::from(load.packets - 1) * u64::from(load.full) + u64::from(load.last);
        self.free = self.free.max(now) + bytes * self.byte;
        self.frames.push_back(Passed {
            token: load.token,
            end: 0,
            at: self.free,
            done: true,
            marked: false,
        });
    }

    fn leave(&mut self, now: u64) -> Option<Passed> {
        self.frames.pop_front_if(|first| first.at <= now)
    }

    fn deadline(&self) -> Option<u64> {
        self.frames.front().map(|first| first.at)
    }
}

/// The laboratory's subnet.
#[derive(Debug, Clone, Default)]
pub struct Net {
    state: Arc<Mutex<NetState>>,
    generation: Arc<AtomicU64>,
}

impl Net {
    pub fn look(&self) -> MutexGuard<'_, NetState> {
        locked(&self.state)
    }

    /// Changes the subnet; the generation moves with it.
    pub fn change(&self, change: impl FnOnce(&mut NetState)) {
        change(&mut self.look());
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Cuts the way from one function to another.
    pub fn cut(&self, from: VfId, to: VfId) {
        self.change(|net| {
            net.cut.insert((from, to));
        });
    }

    pub fn restore(&self) {
        self.change(|net| net.cut.clear());
    }
}

impl Subnet for Net {
    fn generation(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.generation)
    }

    fn links(&self) -> Option<Box<dyn Links>> {
        let byte = self.look().line?;
        Some(Box::new(Line::new(byte)))
    }

    fn resolve(&mut self, from: VfId, heading: &Heading) -> Result<Route, NoRoute> {
        let dlid = heading.dlid;
        let mut net = self.look();
        net.resolved += 1;
        if let Some(&link) = net.beyond.get(&dlid) {
            return Ok(Route::clean(End::Away(link), Mtu::B4096));
        }
        let to = *net.lids.get(&dlid).ok_or(NoRoute::Dropped)?;
        if net.cut.contains(&(from, to)) {
            return Err(NoRoute::Dropped);
        }
        let mtu = net.mtu.unwrap_or(Mtu::B4096);
        Ok(Route {
            path: path(from, to),
            faulty: net.losses.contains_key(&(from, to)),
            delay: net.delays.get(&(from, to)).copied().unwrap_or(0),
            shares: net.shares(heading.sl),
            ..Route::clean(End::Here(to), mtu)
        })
    }

    fn resolve_multicast(&mut self, from: VfId, mlid: Lid, sl: Sl, _: PKey) -> Vec<Route> {
        let mut net = self.look();
        net.resolved += 1;
        let mtu = net.mtu.unwrap_or(Mtu::B4096);
        let members = net.groups.get(&mlid).cloned().unwrap_or_default();
        let faulty = net.losses.keys().any(|(of, _)| *of == from);
        let shares = net.shares(sl);
        members
            .into_iter()
            .filter(|&to| !net.cut.contains(&(from, to)))
            .map(|to| Route {
                path: path(from, from),
                faulty,
                shares,
                ..Route::clean(End::Here(to), mtu)
            })
            .collect()
    }

    fn lose(&mut self, on: PathId, packets: u64, _: u64) -> Option<u64> {
        let mut net = self.look();
        let mut losses = net.losses.iter_mut();
        let loss = losses.find(|((from, to), _)| path(*from, *to) == on);
        let (_, loss) = loss.expect("asked of ways that lose packets");
        (0..packets).find(|_| loss.next())
    }

    fn lose_multicast(&mut self, on: PathId, _: u64) -> Option<Vec<VfId>> {
        let net = &mut *self.look();
        let mut members: Vec<VfId> = net.groups.values().flatten().copied().collect();
        let before = members.len();
        members.retain(|&to| {
            let mut losses = net.losses.iter_mut();
            let loss = losses.find(|((from, at), _)| path(*from, *from) == on && *at == to);
            loss.is_none_or(|(_, loss)| !loss.next())
        });
        (members.len() < before).then_some(members)
    }

    fn send_mad(&mut self, from: VfId, datagram: MadPacket) {
        self.look().mads.push((from, datagram));
    }
}
