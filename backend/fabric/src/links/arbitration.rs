//! Arbitration of lanes on a link (IBA 7.6.9): the arbiter itself, packet by packet, and the resulting bandwidths.
//!
//! The bandwidths slow no transfer down: with them a quality of service can be judged before it is used. Where
//! transfers share links, the module `queues` has the arbiter decide.

use std::collections::BTreeMap;

use wire::attribute::{PortInfo, VlArbitration};
use wire::{Lid, PKey, Sl, Vl};

use crate::links::rate::LinkRate;
use crate::nodes::Nodes;
use crate::nodes::node::{HIGH_PRIORITY, LOW_PRIORITY};
use crate::nodes::topology::PortRef;
use crate::paths::route::NoRoute;

/// Lanes there can be, that of management among them.
pub(super) const LANES: usize = 16;
/// Bytes of a unit of weight.
const WEIGHT: u32 = 64;
/// Bytes of a unit of the limit of high priority.
const LIMIT: u64 = 4096;
/// The limit that is none.
const UNLIMITED: u8 = 255;

/// An entry of a table: a lane, and the bytes it may send at a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    lane: usize,
    bytes: u32,
}

/// A table, and where the arbiter is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Table {
    turns: Vec<Turn>,
    at: usize,
    left: i64,
}

impl Table {
    fn new(turns: Vec<Turn>) -> Self {
        let left = turns.first().map_or(0, |turn| i64::from(turn.bytes));
        Self { turns, at: 0, left }
    }

    /// Chooses the next among the lanes that have a packet: the lane stays until it has used up its weight or has
    /// nothing to send.
    fn next(&mut self, waiting: &[Option<u32>; LANES]) -> Option<(usize, u32)> {
        // The entry where the arbiter stands comes once more at the end, with its weight anew.
        for _ in 0..=self.turns.len() {
            let turn = *self.turns.get(self.at)?;
            match waiting[turn.lane] {
                Some(bytes) if self.left > 0 => {
                    self.left -= i64::from(bytes.next_multiple_of(WEIGHT));
                    return Some((turn.lane, bytes));
                }
                _ => {
                    self.at = (self.at + 1) % self.turns.len();
                    self.left = i64::from(self.turns[self.at].bytes);
                }
            }
        }
        None
    }

    /// Bytes per round of a lane, when all packets have this length: a packet is sent whole if any
    /// weight is left.
    fn per_round(&self, packet: u32) -> [f64; LANES] {
        let mut bytes = [0.0; LANES];
        for turn in &self.turns {
            let counted = packet.next_multiple_of(WEIGHT);
            let packets = turn.bytes.div_ceil(counted);
            bytes[turn.lane] += f64::from(packets) * f64::from(packet);
        }
        bytes
    }

    /// Divides a bandwidth among the lanes that want some of it, in proportion to their weights. The part that a
    /// lane does not want goes to the others.
    fn share(&self, bandwidth: f64, wanted: &[f64; LANES], packet: u32) -> [f64; LANES] {
        let weights = self.per_round(packet);
        let mut given = [0.0; LANES];
        let mut left = bandwidth;
        let mut open: Vec<usize> = (0..LANES)
            .filter(|&lane| weights[lane] > 0.0 && wanted[lane] > 0.0)
            .collect();
        while !open.is_empty() {
            let sum: f64 = open.iter().map(|&lane| weights[lane]).sum();
            let fair = |lane: usize| left * weights[lane] / sum;
            let (content, hungry): (Vec<_>, Vec<_>) =
                open.iter().partition(|&&lane| wanted[lane] <= fair(lane));
            if content.is_empty() {
                for lane in hungry {
                    given[lane] = fair(lane);
                }
                break;
            }
            for lane in content {
                given[lane] = wanted[lane];
                left -= wanted[lane];
            }
            open = hungry;
        }
        given
    }
}

/// The arbiter of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arbiter {
    high: Table,
    low: Table,
    /// Bytes from the high-priority table before the other one has its chance; `None` for any
    /// number.
    limit: Option<u64>,
    /// The rest of them.
    left: u64,
}

impl Arbiter {
    /// The arbiter with these tables, for `lanes` data lanes. `high_limit` is PortInfo's
    /// VLHighLimit: units of 4096 bytes, 255 for no limit, 0 for one packet.
    ///
    /// With both tables empty the lanes take turns.
    pub fn new(high: &[VlArbitration], low: &[VlArbitration], high_limit: u8, lanes: u8) -> Self {
        let turns = |halves: &[VlArbitration]| -> Vec<Turn> {
            let entries = halves.iter().flat_map(|half| half.0);
            entries
                .filter(|entry| entry.weight > 0 && entry.vl.value() < lanes.min(15))
                .map(|entry| Turn {
                    lane: usize::from(entry.vl.value()),
                    bytes: u32::from(entry.weight) * WEIGHT,
                })
                .collect()
        };
        let (high, mut low) = (turns(high), turns(low));
        if high.is_empty() && low.is_empty() {
            low = (0..usize::from(lanes.min(15)))
                .map(|lane| Turn { lane, bytes: 1 })
                .collect();
        }
        let limit = (high_limit != UNLIMITED).then_some(u64::from(high_limit) * LIMIT);
        Self {
            high: Table::new(high),
            low: Table::new(low),
            limit,
            left: limit.unwrap_or(0).max(1),
        }
    }

    /// Whether a lane ever sends: it is in a table, with a weight.
    #[must_use]
    pub fn serves(&self, lane: Vl) -> bool {
        let lane = usize::from(lane.value());
        let mut turns = self.high.turns.iter().chain(&self.low.turns);
        turns.any(|turn| turn.lane == lane)
    }

    /// The lane that sends next, when the first packets that wait in the lanes have these lengths
    /// in bytes. `None`: nothing waits that the tables let through.
    pub fn next(&mut self, waiting: &[Option<u32>; LANES]) -> Option<Vl> {
        if waiting[usize::from(Vl::MANAGEMENT.value())].is_some() {
            return Some(Vl::MANAGEMENT);
        }
        if self.limit.is_some()
            && self.left == 0
            && let Some((lane, _)) = self.low.next(waiting)
        {
            self.left = self.limit.unwrap_or(0).max(1);
            return Some(Vl::new(lane as u8));
        }
        if let Some((lane, bytes)) = self.high.next(waiting) {
            self.left = self.left.saturating_sub(u64::from(bytes));
            return Some(Vl::new(lane as u8));
        }
        let (lane, _) = self.low.next(waiting)?;
        self.left = self.limit.unwrap_or(0).max(1);
        Some(Vl::new(lane as u8))
    }

    /// Bandwidth of each lane of a link when the lanes want this much, by lane; the unit is the caller's. All
    /// packets have `packet` bytes.
    pub fn share(&self, bandwidth: f64, wanted: &[f64; LANES], packet: u32) -> [f64; LANES] {
        let management = usize::from(Vl::MANAGEMENT.value());
        let packet = packet.max(1);
        let first = wanted[management].clamp(0.0, bandwidth);
        let left = bandwidth - first;
        let unlimited = self.high.share(left, wanted, packet);
        let high: f64 = unlimited.iter().sum();
        let rest: [f64; LANES] = std::array::from_fn(|lane| wanted[lane] - unlimited[lane]);
        let low: f64 = self.low.share(left, &rest, packet).iter().sum();
        // The part that the limit of the high-priority table leaves to the other table, if that wants it.
        let kept = self.limit.map_or(0.0, |limit| {
            let packet = f64::from(packet);
            let burst = (limit.max(1) as f64 / packet).ceil() * packet;
            left * packet / (burst + packet)
        });
        let high = high.min(left - low.min(kept));
        let mut given = self.high.share(high, wanted, packet);
        let rest: [f64; LANES] = std::array::from_fn(|lane| wanted[lane] - given[lane]);
        let low = self.low.share(left - high, &rest, packet);
        for (given, low) in given.iter_mut().zip(low) {
            *given += low;
        }
        given[management] = first;
        given
    }
}

/// A stream of packets from a port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flow {
    /// Where it begins.
    pub from: PortRef,
    /// Where it goes.
    pub dlid: Lid,
    /// Its service level.
    pub sl: Sl,
    /// Its partition.
    pub pkey: PKey,
    /// Bytes per second that it would take.
    pub wanted: f64,
}

/// A place where flows meet: a port that sends, and the lane.
type Place = (PortRef, Vl);

/// Rounds in which the flows of a subnet settle: each settles those of one more bottleneck.
const ROUNDS: usize = 64;

impl Nodes {
    /// The arbiter of the link that leaves by a port.
    pub fn arbiter(&self, port: PortRef) -> Option<Arbiter> {
        let port = self.port(port)?;
        let [low, high] = [LOW_PRIORITY, HIGH_PRIORITY].map(|half| port.arbitration(half));
        let lanes = PortInfo::lanes(port.info.operational_vls);
        let limit = port.info.vl_high_limit;
        Some(Arbiter::new(&[high], &[low], limit, lanes))
    }

    /// Bytes per second that flows get of the links they cross, in their order: what the arbiters
    /// give their lanes, within a lane in equal parts, and what a flow cannot use elsewhere is left
    /// to the others. All packets have `packet` bytes.
    pub fn bandwidth(&self, flows: &[Flow], packet: u32) -> Vec<Result<f64, NoRoute>> {
        let paths: Vec<Result<Vec<Place>, NoRoute>> = flows
            .iter()
            .map(|flow| self.trace(flow.from, flow.dlid, flow.sl, Some(flow.pkey)))
            .collect();
        // Links in the order in which packets come to them: what does not pass one is not there to
        // crowd the next.
        let mut hops: BTreeMap<PortRef, usize> = BTreeMap::new();
        for path in paths.iter().flatten() {
            for (hop, &(port, _)) in path.iter().enumerate() {
                let latest = hops.entry(port).or_default();
                *latest = hop.max(*latest);
            }
        }
        let mut ports: Vec<PortRef> = hops.keys().copied().collect();
        ports.sort_by_key(|port| hops[port]);
        // The share that each place gives each flow that crosses it; nothing is scarce to begin with.
        let mut given: Vec<Vec<f64>> = paths
            .iter()
            .zip(flows)
            .map(|(path, flow)| vec![flow.wanted; path.as_ref().map_or(0, Vec::len)])
            .collect();
        for _ in 0..ROUNDS {
            let before = given.clone();
            for &port in &ports {
                self.settle_link(port, packet, &paths, flows, &mut given);
            }
            let change = |(new, old): (&Vec<f64>, &Vec<f64>)| {
                let mut pairs = new.iter().zip(old);
                pairs.any(|(new, old)| (new - old).abs() > 1e-9 * old.abs().max(1.0))
            };
            if !given.iter().zip(&before).any(change) {
                break;
            }
        }
        paths
            .into_iter()
            .zip(flows.iter().zip(given))
            .map(|(path, (flow, given))| {
                path.map(|_| given.into_iter().fold(flow.wanted, f64::min))
            })
            .collect()
    }

    /// Divides the link at a port among the flows that cross it, when each takes of it no more than the other links
    /// of its path give it.
    fn settle_link(
        &self,
        port: PortRef,
        packet: u32,
        paths: &[Result<Vec<Place>, NoRoute>],
        flows: &[Flow],
        given: &mut [Vec<f64>],
    ) {
        let (Some(arbiter), Some(rate)) = (self.arbiter(port), self.link_rate(port)) else {
            return;
        };
        // Flow, where on its path, lane, what it can use.
        let crossing: Vec<(usize, usize, usize, f64)> = paths
            .iter()
            .enumerate()
            .flat_map(|(flow, path)| {
                let places = path.iter().flatten().enumerate();
                places.map(move |(hop, &place)| (flow, hop, place))
            })
            .filter(|&(_, _, (at, _))| at == port)
            .map(|(flow, hop, (_, vl))| {
                let elsewhere = given[flow].iter().enumerate();
                let others = elsewhere.filter(|&(other, _)| other != hop);
                let wanted = others.fold(flows[flow].wanted, |least, (_, &most)| least.min(most));
                (flow, hop, usize::from(vl.value()), wanted)
            })
            .collect();
        let mut wanted = [0.0; LANES];
        for &(_, _, lane, want) in &crossing {
            wanted[lane] += want;
        }
        let bandwidth = rate.bytes_per_second();
        for lane in 0..LANES {
            let mut waiting: Vec<_> = crossing.iter().filter(|flow| flow.2 == lane).collect();
            waiting.sort_by(|a, b| a.3.total_cmp(&b.3));
            // The share that the lane could have, not its present use: another link may come to give its flows more.
            let mut all = wanted;
            all[lane] = bandwidth;
            let mut left = arbiter.share(bandwidth, &all, packet)[lane];
            for (served, &&(flow, hop, _, want)) in waiting.iter().enumerate() {
                let fair = left / (waiting.len() - served) as f64;
                given[flow][hop] = fair;
                left -= want.min(fair);
            }
        }
    }

    /// Width and speed of the link at a port; `None` without one.
    pub fn link_rate(&self, port: PortRef) -> Option<LinkRate> {
        let port = self.port(port).filter(|port| port.is_linked())?;
        Some(LinkRate {
            width: port.info.active_width()?,
            speed: port.info.active_speed()?,
            extended: port.info.active_speed_ext()?,
            fdr10: port.is_fdr10(),
        })
    }
}
