//! Paths of all pairs of adapters' ports in a subnet, and the LIDs by which they are taken.

use std::collections::HashMap;

use wire::attribute::LinearBlock;
use wire::{Guid, Lid};

use super::choice::{LidChoice, Multipath};
use super::conflict::SplitGraph;
use super::equivalent_paths::EquivalentPaths;
use super::exact::{charged, fewest};
use super::labels::Labels;
use super::network::{LinkId, Network, Path};
use super::paths::{Legality, LinkLoads, NotConnected};
use super::wires::{Destination, End, Ports, Wires, disconnected, ends};
use super::{Assignment, Heuristic};
use crate::routing::{ForwardingTable, Graph, RoutingError, Trunk, Vertex};

/// LIDs of a port at most: its LID mask control has 3 bits (IBA 4.1.3).
const MAX_LIDS: usize = 128;
const MAX_LMC: u8 = 7;

/// The links of a path, and the offset of its LID.
type Taken = (Vec<LinkId>, u8);

/// Numbers of LIDs and paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LidUsage {
    /// Adapters' ports.
    pub ports: usize,
    /// Paths from each of them to each other one.
    pub paths: usize,
    /// LIDs that the ports have, a power of two each.
    pub lids: usize,
    /// LIDs that they would have with one for each path, rounded likewise.
    pub one_each: usize,
    /// Paths for which there was no LID: they follow those of the base LID.
    pub following: usize,
    /// Ports for which fewer LIDs may do: the search was ended.
    pub undecided: usize,
}

/// Paths of all pairs of adapters' ports, and the LIDs by which they are taken.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    switches: Vec<Vertex>,
    /// By rising GUID.
    ends: Vec<End>,
    /// In the order of the ends.
    destinations: Vec<Destination>,
    /// The ways to each switch.
    to_switches: Vec<Ports>,
    following: usize,
    undecided: usize,
}

/// The configurations of the paths to one port, and whether fewer may do.
fn assign(network: &Network, paths: &[Path], choice: LidChoice) -> (Assignment, bool) {
    let heuristic = choice.heuristic().unwrap_or(Heuristic::Greedy);
    if choice != LidChoice::Optimal {
        return (heuristic.assign(network, paths), false);
    }
    let classes = EquivalentPaths::new(network, paths);
    let graph: SplitGraph = classes.graph(network);
    let known = heuristic.assign_graph(network, classes.paths(), &graph);
    match fewest(&graph, &known) {
        Ok(fewest) => (classes.spread(&fewest), false),
        Err(_) => (classes.spread(&known), true),
    }
}

impl Plan {
    fn error(choice: Multipath) -> impl Fn(String) -> RoutingError {
        let engine = choice.name();
        move |reason| RoutingError { engine, reason }
    }

    /// The paths in this graph, whose LIDs do not matter, with as many LIDs for each port as its paths need, or as
    /// the LID mask control allows that it has already.
    ///
    /// # Errors
    /// [`RoutingError`]: too many ports, LIDs or no legal path.
    pub fn new(
        graph: &Graph,
        choice: Multipath,
        mask: impl Fn(Guid) -> Option<u8>,
    ) -> Result<Self, RoutingError> {
        let error = Self::error(choice);
        let wires = Wires::new(graph).map_err(&error)?;
        let found = wires.paths(choice);
        let apart = |it: NotConnected| error(disconnected(graph, &wires.ends, it.from, it.to));
        let found = found.map_err(apart)?;
        let mut loads = LinkLoads::new(&wires.network);
        for path in found.iter().flat_map(|(paths, _)| paths) {
            loads.add(path.links());
        }
        let mut plan = Self {
            switches: graph.switches.clone(),
            to_switches: wires.to_switches(),
            ..Self::default()
        };
        let mut total = 0;
        for (to, (paths, known)) in found.into_iter().enumerate() {
            let (assignment, undecided) = match known {
                Some(assignment) => (assignment, false),
                None => assign(&wires.network, &paths, choice.lids),
            };
            plan.undecided += usize::from(undecided);
            let guid = wires.ends[to].guid;
            let mut destination = wires.ways(to, &paths, &assignment, &mut loads);
            let needed = destination.ways.len();
            match mask(guid) {
                Some(mask) => plan.following += destination.shorten(1 << mask.min(MAX_LMC)),
                None if needed > MAX_LIDS => {
                    return Err(error(format!(
                        "the paths to port {guid} need {needed} LIDs, and a port has at most {MAX_LIDS}; have sm.lids \
                         left out"
                    )));
                }
                None => {}
            }
            total += charged(destination.ways.len());
            plan.destinations.push(destination);
        }
        let room = usize::from(Lid::UNICAST_LAST.value()) - graph.switches.len();
        if total > room {
            return Err(error(format!(
                "its paths need {total} LIDs, and there are {room} besides the switches'; have sm.lids left out"
            )));
        }
        plan.ends = wires.ends;
        Ok(plan)
    }

    /// As [`Plan::new`] for a subnet that has changed. Without a new cable or switch, the paths that lead along cables
    /// that are left stay as they are, and others are found for the rest, as in section VI; each by the first LID of its
    /// destination by which one of the shortest can be taken.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn again(
        &self,
        graph: &Graph,
        choice: Multipath,
        mask: impl Fn(Guid) -> Option<u8>,
    ) -> Result<Self, RoutingError> {
        let Some(places) = self.places(graph) else {
            return Self::new(graph, choice, mask);
        };
        let error = Self::error(choice);
        let wires = Wires::new(graph).map_err(&error)?;
        let (network, legality) = (&wires.network, Legality::UpDown(&wires.order));
        let old: Vec<Option<usize>> = wires
            .ends
            .iter()
            .map(|end| self.end_at(graph, end))
            .collect();
        let mut loads = LinkLoads::new(network);
        let mut kept: Vec<Vec<Option<Taken>>> = Vec::new();
        for to in 0..wires.ends.len() {
            let path = |from: usize| {
                let (from_old, to_old) = (old[from]?, old[to]?);
                let (links, offset) = self.walk(&wires, &places, (from, from_old), (to, to_old))?;
                (from != to && legality.allows(network, &links)).then_some((links, offset))
            };
            let paths: Vec<_> = (0..wires.ends.len()).map(path).collect();
            for (links, _) in paths.iter().flatten() {
                loads.add(links);
            }
            kept.push(paths);
        }
        let mut plan = Self {
            switches: graph.switches.clone(),
            to_switches: wires.to_switches(),
            undecided: self.undecided,
            ..Self::default()
        };
        for (to, paths) in kept.into_iter().enumerate() {
            let distances = legality.distances(network, wires.machine(to));
            let held = mask(wires.ends[to].guid);
            let limit = held.map_or(MAX_LIDS, |mask| 1 << mask.min(MAX_LMC));
            let mut labels = Labels::new(&wires, to, limit);
            for (from, path) in paths.iter().enumerate() {
                if let Some((links, offset)) = path {
                    labels.enter(from, links, usize::from(*offset));
                }
            }
            for (from, _) in paths.iter().enumerate().filter(|(_, path)| path.is_none()) {
                if from != to && !labels.find(from, &distances, &mut loads) {
                    let [from, to] = [from, to].map(|end| wires.machine(end));
                    return Err(error(disconnected(graph, &wires.ends, from, to)));
                }
            }
            plan.following += labels.following;
            plan.destinations.push(labels.finish(&mut loads));
        }
        plan.ends = wires.ends;
        Ok(plan)
    }

    /// The switches of a graph by the index that they had; `None` if one has come, or a cable.
    fn places(&self, graph: &Graph) -> Option<Vec<Option<usize>>> {
        let mut places = vec![None; self.switches.len()];
        for (at, switch) in graph.switches.iter().enumerate() {
            let old = { self.switches.iter() }.position(|old| old.guid == switch.guid)?;
            places[old] = Some(at);
        }
        for (old, place) in self.switches.iter().zip(&places) {
            let Some(switch) = place.map(|place| &graph.switches[place]) else {
                continue;
            };
            let was_there = |trunk: &Trunk| {
                let same = |old: &&Trunk| (old.port, old.to_port) == (trunk.port, trunk.to_port);
                let old = old.trunks.iter().find(same);
                old.is_some_and(|old| places[old.to] == Some(trunk.to))
            };
            if !switch.trunks.iter().all(was_there) {
                return None;
            }
        }
        Some(places)
    }

    /// The end that a port was, if it was at the same place.
    fn end_at(&self, graph: &Graph, end: &End) -> Option<usize> {
        let old = self.end(end.guid)?;
        let is_same = self.switches[self.ends[old].switch].guid == graph.switches[end.switch].guid
            && self.ends[old].port == end.port;
        is_same.then_some(old)
    }

    /// The links of a path in the graph of now, and the offset of its LID.
    fn walk(
        &self,
        wires: &Wires,
        places: &[Option<usize>],
        (from, from_old): (usize, usize),
        (to, to_old): (usize, usize),
    ) -> Option<Taken> {
        let destination = &self.destinations[to_old];
        let offset = destination.offsets[from_old];
        let ways = destination.ways.get(usize::from(offset))?;
        let mut links = wires.network.outgoing(wires.machine(from)).to_vec();
        let mut at = self.ends[from_old].switch;
        for _ in 0..self.switches.len() {
            let link = *wires.links.get(&(places[at]?, ways[at]))?;
            links.push(link);
            let next = wires.network.link(link).to;
            if next == wires.machine(to) {
                return Some((links, offset));
            }
            let trunks = self.switches[at].trunks.iter();
            let trunk = { trunks }.find(|trunk| trunk.port == ways[at])?;
            at = trunk.to;
        }
        None
    }

    fn end(&self, guid: Guid) -> Option<usize> {
        self.ends.binary_search_by_key(&guid, |end| end.guid).ok()
    }

    /// Whether the paths are those of this graph, or of one that has more adapters.
    pub fn fits(&self, graph: &Graph) -> bool {
        let there = |end: &End| self.end(end.guid).is_some_and(|at| self.ends[at] == *end);
        self.switches == graph.switches && ends(graph).iter().all(there)
    }

    /// The LID mask control that a port needs.
    pub fn mask(&self, guid: Guid) -> Option<u8> {
        let needed = self.destinations[self.end(guid)?].ways.len();
        Some((charged(needed).trailing_zeros() as u8).min(MAX_LMC))
    }

    /// The offset from its base LID by which a port is reached from another one.
    pub fn offset(&self, from: Guid, to: Guid) -> u8 {
        let ends = [from, to].map(|guid| self.end(guid));
        let [Some(from), Some(to)] = ends else {
            return 0;
        };
        self.destinations[to].offsets[from]
    }

    /// The tables of the switches of a graph that the plan fits. LIDs that no path needs go the base LID's way.
    pub fn tables(&self, graph: &Graph) -> Vec<ForwardingTable> {
        let mut tables = vec![ForwardingTable::new(graph.top()); graph.switches.len()];
        let mut bases: HashMap<Guid, Lid> = HashMap::new();
        for endpoint in &graph.endpoints {
            let base = *bases.entry(endpoint.guid).or_insert(endpoint.lid);
            let ways = match (endpoint.port, self.end(endpoint.guid)) {
                (0, _) => Some(&self.to_switches[endpoint.switch]),
                (_, Some(end)) => {
                    let ways = &self.destinations[end].ways;
                    let offset = usize::from(endpoint.lid.value() - base.value());
                    ways.get(offset).or(ways.first())
                }
                (_, None) => None,
            };
            for (at, table) in tables.iter_mut().enumerate() {
                let port = match (endpoint.port, ways) {
                    (0, _) if at == endpoint.switch => 0,
                    (_, Some(ways)) => ways[at],
                    (_, None) => LinearBlock::DROP,
                };
                table.set(endpoint.lid, port);
            }
        }
        tables
    }

    /// Numbers of LIDs, where ports have these LID mask controls.
    pub fn usage(&self, mask: impl Fn(Guid) -> u8) -> LidUsage {
        let ports = self.ends.len();
        let others = ports.saturating_sub(1);
        LidUsage {
            ports,
            paths: ports * others,
            lids: self.ends.iter().map(|end| 1 << mask(end.guid)).sum(),
            one_each: ports * charged(others),
            following: self.following,
            undecided: self.undecided,
        }
    }
}

#[cfg(test)]
mod tests;
