//! Packets of the data plane that wait at links for their turn, where links share their bandwidth among
//! lanes.
//!
//! [`Queues`] imitates links packet by packet: each sends one packet at a time, at its rate, from the lane
//! that its [`Arbiter`] chooses, and a packet is at the next link when its last byte is. Switches have room
//! for whatever waits there. Nobody sleeps here: who asks says what time it is, and what happened until
//! then, happens.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use wire::{Lid, Sl, Vl};

use super::arbitration::{Arbiter, LANES};
use super::marks::{Marking, Marks};
use crate::nodes::Nodes;
use crate::nodes::topology::PortRef;

/// Ways that are told apart. Those beyond are not imitated.
const WAYS: usize = 1 << 20;
/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// A link of a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The port by which packets leave for it.
    pub port: PortRef,
    /// Their lane.
    pub lane: Vl,
    /// Link of the way that they come from; `None` at the sender's own.
    pub after: Option<u16>,
}

/// A link as those who share it see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    /// Bytes per second.
    pub rate: u64,
    /// Arbiter of the lanes.
    pub arbiter: Arbiter,
    /// Rule for marking packets that wait here; `None`: none are marked.
    pub marking: Option<Marking>,
}

/// Packets in a row that go the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Owner of the packets, which asks for them when they arrive, see [`Queues::next`].
    pub owner: u16,
    /// The owner's token.
    pub token: u64,
    /// The way, see [`Queues::way`].
    pub way: u32,
    /// Number of packets, at least one.
    pub packets: u32,
    /// Length of all but the last one in bytes, headers and check sums included.
    pub full: u32,
    /// Length of the last one.
    pub last: u32,
    /// Source and destination LID, and service level, for the logs of switches.
    pub header: (Lid, Lid, Sl),
}

/// A load has passed a way's last link, or one of its last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Its owner's token.
    pub token: u64,
    /// The link: which of the way's.
    pub hop: u16,
    /// When its last byte was there, in nanoseconds.
    pub at: u64,
    /// It will not arrive anywhere else.
    pub done: bool,
    /// A switch on its way has marked one of its packets: it has met congestion.
    pub marked: bool,
}

/// A link of a way, as it is imitated.
#[derive(Debug)]
struct Stage {
    link: u32,
    lane: usize,
    /// The links beyond it.
    next: Box<[u16]>,
}

#[derive(Debug)]
struct Way {
    stages: Box<[Stage]>,
    /// Number of them that are a last one.
    ends: u16,
}

/// Packets of a load that wait in a lane, one behind the other.
#[derive(Debug)]
struct Run {
    load: u32,
    stage: u16,
    /// The first of them.
    packet: u32,
    count: u32,
}

/// A packet on a link.
#[derive(Debug, Clone, Copy)]
struct Passing {
    load: u32,
    stage: u16,
    packet: u32,
}

#[derive(Debug)]
struct Link {
    /// The port by which packets leave for it.
    port: PortRef,
    shared: Shared,
    /// The arbiter at work.
    arbiter: Arbiter,
    lanes: [VecDeque<Run>; LANES],
    /// Lengths of the lanes' first packets.
    heads: [Option<u32>; LANES],
    /// Bytes that wait in the lanes.
    waiting: [u64; LANES],
    /// Packets of the lanes that might have been marked since one was.
    passed: [u32; LANES],
    passing: Option<Passing>,
    /// Billionths of a byte that the last packet's time was rounded down by.
    rest: u64,
}

#[derive(Debug)]
struct UnderWay {
    load: Load,
    marked: bool,
    /// Last links that it has not passed.
    ends_left: u16,
}

/// Packets that wait at links.
#[derive(Debug, Default)]
pub struct Queues {
    links: Vec<Link>,
    by_port: HashMap<PortRef, u32>,
    ways: Vec<Way>,
    numbers: HashMap<Box<[Hop]>, u32>,
    loads: Vec<Option<UnderWay>>,
    free: Vec<u32>,
    /// By owner, how many loads it has on their way.
    under_way: Vec<u32>,
    /// When which link has passed a packet on: with a number, so that of two at a time the one comes first
    /// that began first.
    events: BinaryHeap<Reverse<(u64, u64, u32)>>,
    begun: u64,
    /// By owner.
    arrived: Vec<VecDeque<Arrived>>,
    /// Packets that switches have marked.
    marks: Marks,
}

impl Load {
    fn bytes(&self, packet: u32) -> u32 {
        if packet + 1 == self.packets {
            self.last
        } else {
            self.full
        }
    }

    /// Bytes of so many packets from this one on.
    fn sum(&self, packet: u32, count: u32) -> u64 {
        let with_last = packet + count == self.packets;
        let full = u64::from(count - u32::from(with_last)) * u64::from(self.full);
        full + if with_last { u64::from(self.last) } else { 0 }
    }
}

impl Link {
    fn new(port: PortRef, shared: Shared) -> Self {
        Self {
            port,
            arbiter: shared.arbiter.clone(),
            shared,
            lanes: Default::default(),
            heads: [None; LANES],
            waiting: [0; LANES],
            passed: [0; LANES],
            passing: None,
            rest: 0,
        }
    }

    /// Time of so many bytes on the link, in nanoseconds.
    fn time(&mut self, bytes: u32) -> u64 {
        let rate = self.shared.rate.max(1);
        let parts = u64::from(bytes) * SECOND + self.rest;
        self.rest = parts % rate;
        parts / rate
    }

    fn see_head(&mut self, lane: usize, loads: &[Option<UnderWay>]) {
        self.heads[lane] = self.lanes[lane].front().and_then(|run| {
            let load = loads.get(run.load as usize)?.as_ref()?;
            Some(load.load.bytes(run.packet))
        });
    }

    /// Whether a packet that is taken from a lane is to be marked.
    fn marks(&mut self, lane: usize, bytes: u32) -> bool {
        let Some(marking) = &self.shared.marking else {
            return false;
        };
        if self.waiting[lane] < marking.threshold || bytes < marking.packet_size {
            return false;
        }
        let passed = &mut self.passed[lane];
        let marks = *passed >= u32::from(marking.rate);
        *passed = if marks { 0 } else { *passed + 1 };
        marks
    }

    /// Takes the next packet to send from its lane: which, its length, and whether it is to be marked.
    fn take(&mut self, loads: &[Option<UnderWay>]) -> Option<(Passing, u32, bool)> {
        // A packet in a lane that the tables do not have any more goes when nothing else does.
        let lane = match self.arbiter.next(&self.heads) {
            Some(vl) => usize::from(vl.value()),
            None => self.heads.iter().position(Option::is_some)?,
        };
        let bytes = self.heads[lane]?;
        let marks = self.marks(lane, bytes);
        self.waiting[lane] = self.waiting[lane].saturating_sub(u64::from(bytes));
        let run = self.lanes[lane].front_mut()?;
        let passing = Passing {
            load: run.load,
            stage: run.stage,
            packet: run.packet,
        };
        run.packet += 1;
        run.count -= 1;
        if run.count == 0 {
            self.lanes[lane].pop_front();
        }
        self.see_head(lane, loads);
        Some((passing, bytes, marks))
    }
}

impl Queues {
    /// The number of the way over these links, of which a link comes after the one it is reached from.
    /// `shared` says what a link is like, now. `None`: there are too many ways, or a link is unknown.
    pub fn way(
        &mut self,
        hops: &[Hop],
        mut shared: impl FnMut(PortRef) -> Option<Shared>,
    ) -> Option<u32> {
        for hop in hops {
            self.see_link(hop.port, shared(hop.port)?);
        }
        if let Some(&number) = self.numbers.get(hops) {
            return Some(number);
        }
        if hops.is_empty() || self.ways.len() >= WAYS {
            return None;
        }
        let stages: Box<[Stage]> = { hops.iter().enumerate() }
            .map(|(at, hop)| {
                let behind =
                    { hops.iter().enumerate() }.filter(|(_, hop)| hop.after == Some(at as u16));
                Stage {
                    link: self.by_port[&hop.port],
                    lane: usize::from(hop.lane.value()),
                    next: behind.map(|(next, _)| next as u16).collect(),
                }
            })
            .collect();
        let ends = stages.iter().filter(|stage| stage.next.is_empty()).count() as u16;
        let number = self.ways.len() as u32;
        self.ways.push(Way { stages, ends });
        self.numbers.insert(hops.into(), number);
        Some(number)
    }

    fn see_link(&mut self, port: PortRef, shared: Shared) {
        match self.by_port.get(&port) {
            None => {
                self.by_port.insert(port, self.links.len() as u32);
                self.links.push(Link::new(port, shared));
            }
            Some(&link) => {
                let link = &mut self.links[link as usize];
                if link.shared != shared {
                    link.arbiter = shared.arbiter.clone();
                    link.shared = shared;
                }
            }
        }
    }

    /// A load leaves its sender, at this time in nanoseconds, which is not before that of the last call.
    ///
    /// # Panics
    /// When there is no such way.
    pub fn enter(&mut self, now: u64, load: Load) {
        self.advance(now);
        let owner = usize::from(load.owner);
        if self.arrived.len() <= owner {
            self.arrived.resize_with(owner + 1, VecDeque::new);
            self.under_way.resize(owner + 1, 0);
        }
        self.under_way[owner] += 1;
        let ends_left = self.ways[load.way as usize].ends;
        let entry = Some(UnderWay {
            load,
            marked: false,
            ends_left,
        });
        let at = match self.free.pop() {
            Some(at) => {
                self.loads[at as usize] = entry;
                at
            }
            None => {
                self.loads.push(entry);
                self.loads.len() as u32 - 1
            }
        };
        let run = Run {
            load: at,
            stage: 0,
            packet: 0,
            count: load.packets,
        };
        self.queue(now, load.way, run);
    }

    /// The next of an owner's loads that has arrived somewhere until now.
    pub fn next(&mut self, owner: u16, now: u64) -> Option<Arrived> {
        loop {
            let arrived = self.arrived.get_mut(usize::from(owner));
            if let Some(arrived) = arrived.and_then(VecDeque::pop_front) {
                return Some(arrived);
            }
            self.step(now)?;
        }
    }

    /// When one of an owner's loads may have arrived: it has not before.
    #[must_use]
    pub fn deadline(&self, owner: u16) -> Option<u64> {
        let at = usize::from(owner);
        let here = self.arrived.get(at).and_then(VecDeque::front);
        if let Some(arrived) = here {
            return Some(arrived.at);
        }
        let Reverse((at, ..)) = self
            .events
            .peek()
            .filter(|_| self.under_way.get(at) > Some(&0))?;
        Some(*at)
    }

    /// Packets that switches have marked since the last call.
    pub fn take_marks(&mut self) -> Marks {
        std::mem::take(&mut self.marks)
    }

    fn advance(&mut self, now: u64) {
        while self.step(now).is_some() {}
    }

    /// The next packet that has passed a link until now.
    fn step(&mut self, now: u64) -> Option<()> {
        let &Reverse((at, _, link)) = self.events.peek().filter(|event| event.0.0 <= now)?;
        self.events.pop();
        let passed = self.links[link as usize].passing.take();
        self.begin(at, link);
        let Passing {
            load,
            stage,
            packet,
        } = passed?;
        let under_way = self.loads[load as usize].as_mut()?;
        let (owner, way) = (usize::from(under_way.load.owner), under_way.load.way);
        let beyond = self.ways[way as usize].stages[usize::from(stage)]
            .next
            .len();
        if beyond == 0 && packet + 1 == under_way.load.packets {
            under_way.ends_left -= 1;
            let done = under_way.ends_left == 0;
            self.arrived[owner].push_back(Arrived {
                token: under_way.load.token,
                hop: stage,
                at,
                done,
                marked: under_way.marked,
            });
            if done {
                self.under_way[owner] -= 1;
                self.loads[load as usize] = None;
                self.free.push(load);
            }
        }
        for branch in 0..beyond {
            let run = Run {
                load,
                stage: self.ways[way as usize].stages[usize::from(stage)].next[branch],
                packet,
                count: 1,
            };
            self.queue(at, way, run);
        }
        Some(())
    }

    /// Packets have come to a link.
    fn queue(&mut self, now: u64, way: u32, run: Run) {
        let &Stage { link, lane, .. } = &self.ways[way as usize].stages[usize::from(run.stage)];
        let state = &mut self.links[link as usize];
        if let Some(of) = &self.loads[run.load as usize] {
            state.waiting[lane] += of.load.sum(run.packet, run.count);
        }
        match state.lanes[lane].back_mut() {
            Some(back)
                if (back.load, back.stage, back.packet + back.count)
                    == (run.load, run.stage, run.packet) =>
            {
                back.count += run.count;
            }
            _ => state.lanes[lane].push_back(run),
        }
        state.see_head(lane, &self.loads);
        if state.passing.is_none() {
            state.rest = 0;
            self.begin(now, link);
        }
    }

    /// A link begins with its next packet, if one waits.
    fn begin(&mut self, now: u64, link: u32) {
        let state = &mut self.links[link as usize];
        if let Some((passing, bytes, marks)) = state.take(&self.loads) {
            if marks && let Some(Some(of)) = self.loads.get_mut(passing.load as usize) {
                of.marked = true;
                self.marks.add(state.port, of.load.header, now);
            }
            state.passing = Some(passing);
            let end = now + state.time(bytes);
            self.begun += 1;
            self.events.push(Reverse((end, self.begun, link)));
        }
    }
}

impl Nodes {
    /// The links by which packets of a service level leave nodes, with their lanes: of a path, or of a
    /// multicast packet's copies, those nearer to the sender first. `None` where they get no further.
    pub fn hops(&self, left_by: &[PortRef], sl: Sl) -> Option<Vec<Hop>> {
        let mut hops: Vec<Hop> = Vec::with_capacity(left_by.len());
        for &port in left_by {
            let after = hops.iter().position(|before| {
                let there = self.peer(before.port);
                there.is_some_and(|there| there.node == port.node)
            });
            let from = match after.and_then(|after| self.peer(hops[after].port)) {
                Some(entry) if self.switch(port.node).is_some() => entry.port,
                _ => 0,
            };
            hops.push(Hop {
                port,
                lane: self.port(port)?.lane(from, sl)?,
                after: after.map(|after| after as u16),
            });
        }
        Some(hops)
    }

    /// The link at a port, as those who share it see it; `None` without one.
    pub fn shared_link(&self, port: PortRef) -> Option<Shared> {
        Some(Shared {
            rate: self.link_rate(port)?.bytes_per_second() as u64,
            arbiter: self.arbiter(port)?,
            marking: self.marking(port),
        })
    }
}
