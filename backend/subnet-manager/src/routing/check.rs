//! Whether forwarding tables do what they should, found by walking them.

pub(super) mod transition;

use std::collections::BTreeSet;
use std::fmt;

use wire::Lid;
use wire::attribute::LinearBlock;

use super::lanes::dependency::{Cables, NOWHERE};
use super::lanes::ports::PortLanes;
use super::{Graph, Routing, ServiceLevels};

/// A path that does not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// A switch drops the LID.
    Dropped,
    /// A switch sends the LID to a port where it is not.
    WrongPort,
    /// The tables send the LID round in a circle.
    Circle,
}

/// Where a path does not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The fault.
    pub what: Break,
    /// The switch where it is, or where the path that comes to it begins, as an index of
    /// [`Graph::switches`].
    pub switch: usize,
    /// The LID.
    pub lid: Lid,
}

/// Channels that wait for each other in a circle on one virtual lane, or on several where lanes depend on ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circle {
    /// The lane, that of the first channel.
    pub lane: u8,
    /// The channels in order: switch, as an index of [`Graph::switches`], and port of it.
    pub channels: Vec<(usize, u8)>,
}

/// Number of paths from one adapter to another over the directions of the cables between switches.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Loads {
    /// The most on one.
    pub maximum: u64,
    /// The fewest on one.
    pub minimum: u64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
}

/// Result of walking the tables.
///
/// Paths begin at switches. Between two switches that have no adapters only management would
/// travel, on a lane of its own: these paths are walked, but not held against an engine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// Paths that arrive.
    pub arriving: u64,
    /// Paths that do not.
    pub failing: u64,
    /// The first of these.
    pub faults: Vec<Fault>,
    /// Paths between switches without adapters that do not arrive.
    pub between_switches: u64,
    /// A path, also between such switches, that goes round in a circle: the switch, and the LID.
    pub endless: Option<(usize, Lid)>,
    /// Paths that cross more links than they must.
    pub detours: u64,
    /// Paths by the number of links between switches that they cross.
    pub hops: Vec<u64>,
    /// Pairs of switches between which not all paths, there and back, have one service level: what
    /// answers on the level of the question is then on a lane that is not its own.
    pub one_way: u64,
    /// Lanes in use.
    pub lanes: u8,
    /// A circle of channels, where there is one: packets may wait for each other for ever.
    pub circle: Option<Circle>,
    /// Paths per direction of a cable.
    pub loads: Loads,
}

const FAULTS: usize = 16;
/// LIDs of which the ports are gathered at once.
const TOGETHER: usize = 64;
const UNKNOWN: u32 = u32::MAX;
const LOST: u32 = u32::MAX - 1;

impl Verdict {
    /// Walks the tables from every switch to every LID.
    pub fn new(graph: &Graph, routing: &Routing) -> Self {
        Walker::new(graph, routing, spread(&[&routing.levels])).walk()
    }

    /// Whether every path arrives.
    pub fn is_connected(&self) -> bool {
        self.failing == 0
    }

    /// Whether every path is a shortest one.
    pub fn is_shortest(&self) -> bool {
        self.is_connected() && self.detours == 0
    }

    /// Whether no packets can wait for each other for ever, answers on the service level of the
    /// question included.
    pub fn is_free_of_deadlock(&self) -> bool {
        self.circle.is_none() && self.one_way == 0
    }

    /// The mean number of links between switches that a path crosses.
    pub fn mean_hops(&self) -> f64 {
        let links = (0u64..).zip(&self.hops).map(|(hops, paths)| hops * paths);
        links.sum::<u64>() as f64 / self.arriving.max(1) as f64
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            arriving,
            failing,
            detours,
            lanes,
            loads,
            ..
        } = self;
        write!(
            f,
            "{arriving} paths arrive, {failing} do not, {detours} are detours; {:.2} links on \
             average; {lanes} lanes, {}; {} to {} paths per link, {:.1} on average",
            self.mean_hops(),
            match &self.circle {
                None => "no deadlock".to_owned(),
                Some(circle) => format!("a circle of {} channels", circle.channels.len()),
            },
            loads.minimum,
            loads.maximum,
            loads.mean,
        )
    }
}

/// Whether packets can wait for each other for ever while tables change from one routing to another:
/// every switch sends every LID the old way or the new one, in any mixture. Only where both are free
/// of deadlock can the change be.
///
/// LIDs are where `graph` has them, before the change.
pub fn transition(graph: &Graph, old: &Routing, new: &Routing) -> Option<Circle> {
    let both = [&old.levels, &new.levels];
    let both = if both[0] == both[1] {
        &both[..1]
    } else {
        &both
    };
    let mut walker = Walker::new(graph, old, spread(both));
    walker.verdict.lanes = walker.verdict.lanes.max(new.levels.lanes());
    let mut changed = BTreeSet::new();
    for (old, new) in old.tables.iter().zip(&new.tables) {
        for lid in 1..=graph.top().value() {
            if old.port(Lid::new(lid)) != new.port(Lid::new(lid)) {
                changed.insert(lid);
            }
        }
    }
    for lid in changed {
        let lid = Lid::new(lid);
        let mut masks = 0;
        for (levels, switch) in both
            .iter()
            .flat_map(|it| (0..old.tables.len()).map(move |at| (it, at)))
        {
            masks |= levels.mask(switch, lid);
        }
        // The channels by which a switch may send.
        let ways = |walker: &Walker<'_>, at: usize| {
            let ports = [old, new].map(|routing| routing.tables.get(at).map(|t| t.port(lid)));
            let channel = |port: Option<u8>| walker.cables.begins[at][usize::from(port?)].into();
            let [one, other]: [Option<u32>; 2] = ports.map(channel);
            let ways = [one, other.filter(|_| other != one)].into_iter().flatten();
            ways.filter(|&channel| channel != NOWHERE)
                .map(|channel| channel as usize)
                .collect::<Vec<usize>>()
        };
        let mut into = vec![Vec::new(); graph.switches.len()];
        for at in 0..graph.switches.len() {
            for channel in ways(&walker, at) {
                into[walker.cables.ends[channel].1 as usize].push(walker.cables.arrival(channel));
            }
        }
        for (at, arrivals) in into.iter().enumerate() {
            for before in ways(&walker, at) {
                let to = walker.cables.ends[before].1 as usize;
                for after in ways(&walker, to) {
                    for &entered in arrivals.iter().chain([&0]) {
                        for (one, other) in both
                            .iter()
                            .flat_map(|one| both.iter().map(move |other| (one, other)))
                        {
                            walker.hold([one, other], (at, entered), [before, after], masks);
                        }
                    }
                }
            }
        }
    }
    walker.walk().circle
}

/// A circle of channels that `new` makes and `old` does not, both of this graph. Circles that `old` has are not looked at.
pub(crate) fn added_circle(graph: &Graph, old: &Routing, new: &Routing) -> Option<Circle> {
    let spread = spread(&[&old.levels, &new.levels]);
    let mut walker = Walker::new(graph, new, spread);
    walker.walk_everywhere();
    let circle = walker.circle()?;
    let mut before = Walker::new(graph, old, spread);
    before.walk_everywhere();
    match before.circle() {
        None => Some(circle),
        Some(_) => walker.circle_beyond(&before.lanes),
    }
}

/// Lanes that are channels of their own, since a packet may change its lane; `None` where none does.
fn spread(levels: &[&ServiceLevels]) -> Option<u8> {
    let by_ports = levels.iter().any(|levels| levels.port_lanes().is_some());
    let lanes = levels.iter().map(|levels| levels.lanes()).max();
    lanes.filter(|_| by_ports)
}

/// The lane of a level at a switch, from one port to another.
fn lane(levels: &ServiceLevels, switch: usize, [from, to]: [u8; 2], level: u8) -> u8 {
    levels.port_lanes().map_or(level, |ports| {
        let [from, to] = [from, to].map(|port| ports.class(switch, port));
        ports.lane(from, to, level)
    })
}

struct Walker<'a> {
    graph: &'a Graph,
    routing: &'a Routing,
    cables: Cables,
    /// Channels of a direction of a cable, one for each lane, if packets change lanes.
    spread: Option<u8>,
    adapters: Vec<u64>,
    /// By dependency: the lanes on which there is one, or bit 0 where channels have a lane of their own.
    lanes: Vec<u16>,
    loads: Vec<u64>,
    verdict: Verdict,
}

impl<'a> Walker<'a> {
    fn new(graph: &'a Graph, routing: &'a Routing, spread: Option<u8>) -> Self {
        let cables = Cables::with_lanes(graph, spread.unwrap_or(1));
        let mut adapters = vec![0; graph.switches.len()];
        for endpoint in graph.endpoints.iter().filter(|endpoint| endpoint.port != 0) {
            adapters[endpoint.switch] += 1;
        }
        Self {
            lanes: vec![0; cables.channels.dependencies()],
            loads: vec![0; cables.channels.channels()],
            graph,
            routing,
            cables,
            spread,
            adapters,
            verdict: Verdict {
                lanes: routing.levels.lanes(),
                ..Verdict::default()
            },
        }
    }

    fn walk(mut self) -> Verdict {
        let at = self.walk_everywhere();
        self.verdict.one_way = self.one_way(&at);
        // All lanes of a cable together, in the place of the first.
        let loads = { self.loads.iter() }.step_by(self.spread.unwrap_or(1).into());
        let count = loads.len().max(1) as f64;
        let sum: u64 = loads.clone().sum();
        let mean = sum as f64 / count;
        let squares = loads.clone().map(|&load| (load as f64 - mean).powi(2));
        self.verdict.loads = Loads {
            maximum: loads.clone().copied().max().unwrap_or(0),
            minimum: loads.clone().copied().min().unwrap_or(0),
            mean,
            deviation: (squares.sum::<f64>() / count).sqrt(),
        };
        self.verdict.circle = self.circle();
        self.verdict
    }

    /// Walks all paths. Returns the LIDs at each switch, with their ports.
    fn walk_everywhere(&mut self) -> Vec<Vec<(Lid, u8)>> {
        let mut at = vec![Vec::new(); self.graph.switches.len()];
        for endpoint in &self.graph.endpoints {
            at[endpoint.switch].push((endpoint.lid, endpoint.port));
        }
        let mut columns = Vec::new();
        for (switch, endpoints) in at.iter().enumerate() {
            if endpoints.is_empty() {
                continue;
            }
            let shortest = self.graph.distances(switch);
            for endpoints in endpoints.chunks(TOGETHER) {
                // All tables' ports for a LID side by side: in the tables they are far apart.
                columns.clear();
                columns.resize(
                    endpoints.len() * self.graph.switches.len(),
                    LinearBlock::DROP,
                );
                for (at, table) in self.routing.tables.iter().enumerate() {
                    let column = columns
                        .iter_mut()
                        .skip(at)
                        .step_by(self.graph.switches.len());
                    for (entry, &(lid, _)) in column.zip(endpoints) {
                        *entry = table.port(lid);
                    }
                }
                let columns = columns.chunks(self.graph.switches.len());
                for (&(lid, port), column) in endpoints.iter().zip(columns) {
                    self.walk_to(switch, lid, port, column, &shortest);
                }
            }
        }
        at
    }

    /// Lanes whose channels are looked at by themselves.
    fn layers(&self) -> std::ops::Range<u8> {
        0..self.spread.map_or(self.verdict.lanes, |_| 1)
    }

    /// A circle of channels.
    fn circle(&self) -> Option<Circle> {
        self.layers().find_map(|lane| {
            let held = |dependency: usize| self.lanes[dependency] & 1 << lane != 0;
            let circle = self.cables.channels.circle(held)?;
            Some(self.named(lane, circle))
        })
    }

    /// A circle by way of a dependency that is not among these.
    fn circle_beyond(&self, before: &[u16]) -> Option<Circle> {
        let channels = &self.cables.channels;
        self.layers().find_map(|lane| {
            let held = |dependency: usize| self.lanes[dependency] & 1 << lane != 0;
            let circle = (0..channels.channels()).find_map(|channel| {
                let is_new = |dependency| before[dependency] & 1 << lane == 0;
                let mut onward = channels.onward(channel);
                onward.find_map(|after| {
                    let dependency = channels.dependency(channel, after);
                    let is_added = held(dependency) && is_new(dependency);
                    is_added.then(|| channels.way(after, channel, held))?
                })
            })?;
            Some(self.named(lane, circle))
        })
    }

    fn named(&self, lane: u8, circle: Vec<usize>) -> Circle {
        let of_first = |spread: u8| circle.first().map_or(0, |&at| at % usize::from(spread)) as u8;
        let lane = self.spread.map_or(lane, of_first);
        let channels = circle.into_iter().map(|channel| self.cables.port(channel));
        Circle {
            lane,
            channels: channels.collect(),
        }
    }

    /// Notes that packets of these levels, which come to a switch by the port `entered`, go by one channel and then by
    /// another: the first has its lane by the levels of one routing, the second by those of another.
    fn hold(
        &mut self,
        [one, other]: [&ServiceLevels; 2],
        (at, entered): (usize, u8),
        [before, after]: [usize; 2],
        levels: u16,
    ) {
        let Some(spread) = self.spread else {
            self.lanes[self.cables.channels.dependency(before, after)] |= levels;
            return;
        };
        let (to, arrival) = (self.cables.ends[before].1, self.cables.arrival(before));
        let to = to as usize;
        let outs = [before, after].map(|channel| self.cables.port(channel).1);
        for level in (0..16).filter(|level| levels >> level & 1 == 1) {
            let first = lane(one, at, [entered, outs[0]], level);
            let second = lane(other, to, [arrival, outs[1]], level);
            if first.max(second) < spread {
                let [before, after] = [(before, first), (after, second)]
                    .map(|(channel, lane)| channel + usize::from(lane));
                self.lanes[self.cables.channels.dependency(before, after)] |= 1;
            }
        }
    }

    /// Pairs of switches whose paths, there and back, have several service levels.
    fn one_way(&self, at: &[Vec<(Lid, u8)>]) -> u64 {
        let levels = &self.routing.levels;
        if levels.count() < 2 {
            return 0;
        }
        let used = |from: usize, to: usize| {
            let lids = at[to].iter();
            lids.fold(0u16, |used, &(lid, _)| {
                used | 1 << levels.level(from, lid).value()
            })
        };
        let pairs = (0..at.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
        let mixed =
            pairs.filter(|&(one, other)| (used(one, other) | used(other, one)).count_ones() > 1);
        mixed.count() as u64
    }

    /// Walks to a LID at a switch's port, given every switch's port for it.
    fn walk_to(&mut self, target: usize, lid: Lid, port: u8, out: &[u8], shortest: &[Option<u32>]) {
        let switches = self.graph.switches.len();
        let mut next = vec![NOWHERE; switches];
        let mut hops = vec![UNKNOWN; switches];
        let mut breaks = vec![None; switches];
        match out[target] {
            found if found == port => hops[target] = 0,
            LinearBlock::DROP => (hops[target], breaks[target]) = (LOST, Some(Break::Dropped)),
            _ => (hops[target], breaks[target]) = (LOST, Some(Break::WrongPort)),
        }
        // A switch comes later than the one that it sends to.
        let mut order = Vec::with_capacity(switches);
        if hops[target] == 0 {
            order.push(target);
        }
        let mut path = Vec::new();
        let mut on_path = vec![false; switches];
        for start in 0..switches {
            let mut at = start;
            while hops[at] == UNKNOWN && !on_path[at] {
                on_path[at] = true;
                path.push(at);
                let channel = self.cables.begins[at][usize::from(out[at])];
                if channel == NOWHERE {
                    hops[at] = LOST;
                    breaks[at] = Some(match out[at] {
                        LinearBlock::DROP => Break::Dropped,
                        _ => Break::WrongPort,
                    });
                    break;
                }
                next[at] = channel;
                at = self.cables.ends[channel as usize].1 as usize;
            }
            if hops[at] == UNKNOWN {
                hops[at] = LOST;
                breaks[at] = Some(Break::Circle);
            }
            let mut reached = hops[at];
            let mut why = breaks[at];
            while let Some(back) = path.pop() {
                on_path[back] = false;
                if hops[back] == UNKNOWN {
                    hops[back] = if reached == LOST { LOST } else { reached + 1 };
                    if hops[back] != LOST {
                        order.push(back);
                    }
                }
                (reached, why) = (hops[back], why.or(breaks[back]));
                if reached == LOST {
                    breaks[back] = why;
                }
            }
        }
        let to_adapter = port != 0;
        for at in 0..switches {
            if breaks[at] == Some(Break::Circle) {
                self.verdict.endless.get_or_insert((at, lid));
            }
            if !to_adapter && self.adapters[at] == 0 {
                self.verdict.between_switches += u64::from(hops[at] == LOST);
                continue;
            }
            match hops[at] {
                LOST => {
                    self.verdict.failing += 1;
                    if self.verdict.faults.len() < FAULTS {
                        self.verdict.faults.push(Fault {
                            what: breaks[at].unwrap_or(Break::Dropped),
                            switch: at,
                            lid,
                        });
                    }
                }
                hops => {
                    self.verdict.arriving += 1;
                    self.verdict.detours += u64::from(shortest[at].is_some_and(|s| s < hops));
                    let index = hops as usize;
                    if self.verdict.hops.len() <= index {
                        self.verdict.hops.resize(index + 1, 0);
                    }
                    self.verdict.hops[index] += 1;
                }
            }
        }
        // From the ends of the tree inwards: what comes through each switch, and on which lanes.
        let mut flow = self.adapters.clone();
        let levels = &self.routing.levels;
        let classes = levels.port_lanes().map_or(1, PortLanes::classes);
        // By switch, and by the class of the port that packets come in by: their levels, and such a port.
        let mut coming = vec![(0u16, 0u8); switches * classes];
        for at in order.into_iter().rev() {
            if self.adapters[at] > 0 || to_adapter {
                coming[at * classes].0 |= levels.mask(at, lid);
            }
            let channel = next[at];
            if channel == NOWHERE || at == target {
                continue;
            }
            let channel = channel as usize;
            let to = self.cables.ends[channel].1 as usize;
            flow[to] += flow[at];
            if to_adapter {
                self.loads[channel] += flow[at];
            }
            let arrival = self.cables.arrival(channel);
            let class = levels
                .port_lanes()
                .map_or(0, |ports| ports.class(to, arrival));
            for from in 0..classes {
                let (mask, entered) = coming[at * classes + from];
                if mask == 0 {
                    continue;
                }
                let of_class = &mut coming[to * classes + class];
                *of_class = (of_class.0 | mask, arrival);
                if to != target && next[to] != NOWHERE {
                    let channels = [channel, next[to] as usize];
                    self.hold([levels, levels], (at, entered), channels, mask);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::Guid;

    use super::super::tests::fat_tree;
    use super::super::{Endpoint, ForwardingTable, MinHop, RoutingEngine, Trunk, Vertex};
    use super::*;

    fn routed() -> (Graph, Routing) {
        let graph = fat_tree();
        let routing = MinHop.route(&graph).unwrap();
        (graph, routing)
    }

    #[test]
    fn sound_tables() {
        let (graph, routing) = routed();
        let verdict = Verdict::new(&graph, &routing);
        assert!(verdict.is_shortest() && verdict.is_free_of_deadlock());
        // 4 switches to 4 hosts, 2 leaves to 4 switches.
        assert_eq!(verdict.arriving, 4 * 4 + 2 * 4);
        // Two hosts of a leaf send to each of two hosts of the other by its own spine.
        let loads = verdict.loads;
        assert_eq!((loads.minimum, loads.maximum, loads.mean), (2, 2, 2.0));
        assert_eq!(loads.deviation, 0.0);
        // To each host 0 from its leaf, 1 from the spines, 2 from the other leaf; to the switches
        // from the leaves alone.
        assert_eq!(verdict.hops, [4 + 2, 8 + 4, 4 + 2]);
    }

    #[test]
    fn a_lid_dropped() {
        let (graph, mut routing) = routed();
        let lid = Lid::new(7);
        let spine = match routing.tables[0].port(lid) {
            3 => 2,
            _ => 3,
        };
        routing.tables[spine].set(lid, LinearBlock::DROP);
        let verdict = Verdict::new(&graph, &routing);
        // The spine itself and the leaf before it.
        assert_eq!(verdict.failing, 2);
        assert!(!verdict.is_connected());
        assert_eq!(verdict.faults[1].what, Break::Dropped);
        assert_eq!(verdict.faults[1].switch, spine);
    }

    #[test]
    fn a_lid_sent_to_the_wrong_host() {
        let (graph, mut routing) = routed();
        routing.tables[1].set(Lid::new(7), 2);
        let verdict = Verdict::new(&graph, &routing);
        assert_eq!(verdict.failing, 4);
        assert!(verdict.faults.iter().all(|f| f.what == Break::WrongPort));
    }

    #[test]
    fn a_circle() {
        let (graph, mut routing) = routed();
        let lid = Lid::new(7);
        // Both spines send it back to where it comes from.
        routing.tables[2].set(lid, 1);
        routing.tables[3].set(lid, 1);
        let verdict = Verdict::new(&graph, &routing);
        assert_eq!(verdict.failing, 3);
        assert!(verdict.faults.iter().all(|f| f.what == Break::Circle));
    }

    #[test]
    fn a_detour() {
        let (graph, mut routing) = routed();
        // From spine 2 to host 5 by leaf 1 and spine 3.
        let lid = Lid::new(5);
        routing.tables[0].set(lid, 1);
        routing.tables[1].set(lid, 4);
        routing.tables[2].set(lid, 2);
        routing.tables[3].set(lid, 1);
        let verdict = Verdict::new(&graph, &routing);
        assert!(verdict.is_connected() && !verdict.is_shortest());
        assert_eq!(verdict.detours, 1);
    }

    /// Two rings of four switches, joined by a cable at the first of each, with a host at each switch. Packets stay on the
    /// line from the first to the last of a ring, or go round.
    fn rings(round: [bool; 2]) -> (Graph, Routing) {
        let mut graph = Graph::default();
        for at in 0..8 {
            let (ring, place) = (at / 4 * 4, at % 4);
            let trunk = |port, to, to_port| Trunk { port, to, to_port };
            let next = trunk(1, ring + (place + 1) % 4, 2);
            let before = trunk(2, ring + (place + 3) % 4, 1);
            let bridge = (place == 0).then(|| trunk(3, 4 - ring, 3));
            graph.switches.push(Vertex {
                guid: Guid::new(at as u64 + 1),
                ports: 4,
                trunks: [next, before].into_iter().chain(bridge).collect(),
            });
            graph.endpoints.push(Endpoint {
                lid: Lid::new(at as u16 + 1),
                guid: Guid::new(at as u64 + 1),
                switch: at,
                port: 4,
            });
        }
        let port = |at: usize, to: usize| match (at / 4, to / 4) {
            (one, other) if one != other && at.is_multiple_of(4) => 3,
            (one, other) if one != other => 2,
            _ if at == to => 4,
            (ring, _) if round[ring] || at < to => 1,
            _ => 2,
        };
        let tables = (0..8).map(|at| {
            let mut table = ForwardingTable::new(graph.top());
            for end in &graph.endpoints {
                table.set(end.lid, port(at, end.switch));
            }
            table
        });
        let tables: Vec<ForwardingTable> = tables.collect();
        (graph, tables.into())
    }

    #[test]
    fn circles_that_are_new() {
        let (graph, line) = rings([false, false]);
        let [one, other, both] =
            [[true, false], [false, true], [true, true]].map(|round| rings(round).1);
        assert!(Verdict::new(&graph, &both).is_connected());
        let found = |old, new| {
            let circle = added_circle(&graph, old, new)?;
            let mut switches: Vec<usize> = circle.channels.iter().map(|at| at.0).collect();
            switches.sort_unstable();
            Some(switches)
        };
        assert_eq!(found(&line, &line), None);
        assert_eq!(found(&line, &one), Some(vec![0, 1, 2, 3]));
        assert_eq!(found(&one, &both), Some(vec![4, 5, 6, 7]));
        assert_eq!(found(&other, &both), Some(vec![0, 1, 2, 3]));
        assert_eq!(found(&both, &both), None);
        assert_eq!(found(&one, &line), None);
    }
}
