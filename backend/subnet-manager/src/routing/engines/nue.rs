//! Routing on the dependency graph: no deadlock on any number of lanes, in any topology.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use wire::Lid;

use crate::routing::engines::dfsssp::channels;
use crate::routing::engines::lash::up_down;
use crate::routing::lanes::acyclic::AcyclicLanes;
use crate::routing::lanes::levels::ServiceLevels;
use crate::routing::skeleton::{Skeleton, Target};
use crate::routing::spread::NONE;
use crate::routing::{Graph, Routing, RoutingEngine, RoutingError};

/// Routing as Nue does ("Routing on the Dependency Graph: A New Approach to Deadlock-Free
/// High-Performance Routing", Domke, Hoefler, Matsuoka): a path is chosen link by link, and a link is
/// taken only if the channels of its lane then depend on each other in no circle. One lane is enough;
/// with more lanes fewer paths are longer than they must be.
///
/// Lane 0 has the dependencies of a spanning tree from the beginning, another lane those of the tree's paths
/// between two switches that share it. So the paths of the tree are always there, as escape paths for the
/// switches from which no other path may be taken.
///
/// Different from the paper, where a lane has the paths to some of the destinations: the path between
/// two switches and the path back have one lane, since answers have the service level of the question.
/// It is the first lane that admits the path, or later another one that admits both.
#[derive(Debug, Clone, Copy)]
pub struct Nue {
    /// Virtual lanes that may be used, 1 to 15, if links have so many.
    pub lanes: u8,
}

impl Default for Nue {
    /// The 8 lanes that most adapters have.
    fn default() -> Self {
        Self { lanes: 8 }
    }
}

impl RoutingEngine for Nue {
    fn name(&self) -> &'static str {
        "nue"
    }

    fn is_layered(&self) -> bool {
        true
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        let lanes = graph.lanes.unwrap_or(self.lanes).min(self.lanes);
        let skeleton = Skeleton::new(graph);
        let mut columns = skeleton.columns();
        let mut search = Search::new(&skeleton, lanes.clamp(1, 15));
        // The vertices with most adapters first, while the links are free.
        let mut order: Vec<usize> = (0..skeleton.len()).collect();
        order.sort_by_key(|&vertex| Reverse(search.adapters[vertex]));
        for vertex in order {
            let targets = &skeleton.targets[vertex];
            if targets.is_empty() {
                continue;
            }
            search.aim(vertex);
            for target in targets {
                search.route(target);
            }
        }
        for path in &search.paths {
            let column = columns.column(path.lid);
            for (at, entry) in column.iter_mut().enumerate() {
                if let Some(arc) = skeleton.arcs.get(path.next(&skeleton, at) as usize) {
                    *entry = arc.port;
                }
            }
            column[path.vertex] = path.port;
        }
        let levels = search.levels();
        Ok(Routing {
            tables: skeleton.unfold(graph, columns.into_tables()),
            levels: ServiceLevels::between(graph, &skeleton, levels),
        })
    }
}

/// Restarts of a search with more escape paths, until all switches take theirs.
const MAX_RESTARTS: usize = 8;

/// The lane of two vertices without a path so far.
const OPEN: u8 = u8::MAX;

/// Every lane.
const ALL: u16 = u16::MAX;

/// The paths to a LID.
struct Paths {
    lid: Lid,
    vertex: usize,
    port: u8,
    adapter: bool,
    /// By vertex: which of its arcs they take.
    next: Vec<u8>,
}

impl Paths {
    /// The arc that a vertex sends to.
    fn next(&self, skeleton: &Skeleton, at: usize) -> u32 {
        let arcs = skeleton.arcs_of(at);
        let arc = arcs.start + usize::from(self.next[at]);
        if arc < arcs.end { arc as u32 } else { NONE }
    }
}

/// An offer to a vertex, the best one first: links to the destination, paths on them, the arc.
type Offer = Reverse<(u32, u64, u32)>;

/// The paths so far, and those to one LID.
struct Search<'a> {
    skeleton: &'a Skeleton,
    /// LIDs of adapters at each vertex.
    adapters: Vec<u32>,
    lanes: AcyclicLanes,
    /// By two vertices: the lane of the paths between them.
    levels: Vec<u8>,
    paths: Vec<Paths>,
    /// By vertex: where the paths to its LIDs are.
    of: Vec<Range<usize>>,
    /// By arc: whether it is part of the spanning tree.
    tree: Vec<bool>,
    /// By arc: paths between adapters.
    load: Vec<u64>,

    /// The vertex that paths lead to.
    target: usize,
    /// The vertices that reach it, by distance, and where the arcs of each that lead closer begin.
    nearest: Vec<(u32, u32)>,
    closer: Vec<u32>,
    distance: Vec<u32>,
    /// By vertex: the arc of the spanning tree.
    escape: Vec<u32>,

    /// By vertex: the arc of the path to the LID.
    next: Vec<u32>,
    /// By vertex: the lanes that admit the path from there.
    admitted: Vec<u16>,
    cost: Vec<u64>,
    /// The vertices with a path, each after the one that it sends to.
    order: Vec<u32>,
    /// The vertices whose lane was chosen by this path, and the lane before.
    chosen: Vec<(u32, u8)>,
    flow: Vec<u64>,
}

impl<'a> Search<'a> {
    fn new(skeleton: &'a Skeleton, lanes: u8) -> Self {
        let adapters: Vec<u32> = skeleton
            .targets
            .iter()
            .map(|targets| targets.iter().filter(|target| target.adapter).count() as u32)
            .collect();
        let tree = spanning_tree(skeleton);
        let mut lanes = AcyclicLanes::new(channels(skeleton), &up_down(skeleton), lanes);
        for vertex in 0..skeleton.len() {
            let arcs = skeleton.arcs_of(vertex);
            for (before, after) in arcs.clone().flat_map(|a| arcs.clone().map(move |b| (a, b))) {
                if tree[before] && tree[after] && before != after {
                    lanes.add(0, skeleton.arcs[before].back as usize, after);
                }
            }
        }
        lanes.commit();
        let count = skeleton.len();
        Self {
            adapters,
            lanes,
            levels: vec![OPEN; count * count],
            paths: Vec::new(),
            of: vec![0..0; count],
            tree,
            load: vec![0; skeleton.arcs.len()],
            target: 0,
            nearest: Vec::new(),
            closer: Vec::new(),
            distance: Vec::new(),
            escape: Vec::new(),
            next: vec![NONE; count],
            admitted: vec![0; count],
            cost: vec![0; count],
            order: Vec::new(),
            chosen: Vec::new(),
            flow: vec![0; count],
            skeleton,
        }
    }

    /// Turns to another vertex.
    fn aim(&mut self, target: usize) {
        let skeleton = self.skeleton;
        self.target = target;
        self.of[target] = self.paths.len()..self.paths.len();
        self.nearest.clear();
        self.closer.clear();
        self.distance.clear();
        self.distance.resize(skeleton.len(), u32::MAX);
        self.distance[target] = 0;
        let mut queue = vec![target as u32];
        let mut reached = 0;
        while let Some(&at) = queue.get(reached) {
            reached += 1;
            self.nearest.push((at, self.closer.len() as u32));
            let own = self.distance[at as usize];
            let arcs = skeleton.arcs_of(at as usize);
            for (arc, &to) in arcs.clone().zip(&skeleton.heads()[arcs]) {
                let distance = &mut self.distance[to as usize];
                if *distance < own {
                    self.closer.push(arc as u32);
                } else if *distance == u32::MAX {
                    *distance = own + 1;
                    queue.push(to);
                }
            }
        }
        self.find_escapes();
    }

    /// Finds the paths to a LID of the vertex.
    fn route(&mut self, target: &Target) {
        if !self.shortest(target) {
            self.undo();
            self.detour(target);
        }
        self.lanes.commit();
        self.chosen.clear();
        let arcs = self.next.iter().enumerate();
        let next = arcs.map(|(at, &arc)| match arc {
            NONE => u8::MAX,
            arc => (arc as usize - self.skeleton.arcs_of(at).start) as u8,
        });
        self.paths.push(Paths {
            lid: target.lid,
            vertex: self.target,
            port: target.port,
            adapter: target.adapter,
            next: next.collect(),
        });
        self.of[self.target].end += 1;
        if !target.adapter {
            return;
        }
        for (flow, &adapters) in self.flow.iter_mut().zip(&self.adapters) {
            *flow = adapters.into();
        }
        for &at in self.order.iter().rev() {
            let (arc, flow) = (self.next[at as usize], self.flow[at as usize]);
            if arc != NONE {
                self.load[arc as usize] += flow;
                let to = self.head(arc);
                self.flow[to] += flow;
            }
        }
    }

    fn head(&self, arc: u32) -> usize {
        self.skeleton.heads()[arc as usize] as usize
    }

    /// No paths but the target's own.
    fn begin(&mut self) {
        self.next.fill(NONE);
        self.admitted.fill(0);
        self.admitted[self.target] = ALL;
        self.cost[self.target] = 0;
        self.order.clear();
        self.order.push(self.target as u32);
    }

    fn undo(&mut self) {
        self.lanes.undo(0);
        let count = self.skeleton.len();
        for (at, lane) in self.chosen.drain(..).rev() {
            self.levels[at as usize * count + self.target] = lane;
            self.levels[self.target * count + at as usize] = lane;
        }
    }

    /// Tries paths that are no longer than they must be; false if some vertex has none.
    fn shortest(&mut self, target: &Target) -> bool {
        self.begin();
        for place in 1..self.nearest.len() {
            let (at, first) = self.nearest[place];
            let end = self
                .nearest
                .get(place + 1)
                .map(|&(_, first)| first as usize);
            let closer = first as usize..end.unwrap_or(self.closer.len());
            let (mut best, mut arc) = (u64::MAX, NONE);
            for &other in &self.closer[closer.clone()] {
                let cost = self.offered(other);
                let is_less = cost < best;
                best = if is_less { cost } else { best };
                arc = if is_less { other } else { arc };
            }
            if arc == NONE {
                return false;
            }
            let first = self.lanes_of(at).next().unwrap_or(0);
            if self.take(arc, first, target) {
                self.cost[at as usize] = best;
                continue;
            }
            let mut offers: Vec<(u64, u32)> = self.closer[closer]
                .iter()
                .map(|&arc| (self.offered(arc), arc))
                .collect();
            offers.sort_unstable();
            let found = self.lanes_of(at).find_map(|lane| {
                let admits = |&(_, arc): &(u64, u32)| self.take(arc, lane, target);
                offers.iter().copied().find(admits)
            });
            let Some((cost, _)) = found else {
                return false;
            };
            self.cost[at as usize] = cost;
        }
        true
    }

    /// Paths on the links from the beginning of an arc to the target.
    fn offered(&self, arc: u32) -> u64 {
        self.cost[self.head(arc)] + self.load[arc as usize]
    }

    /// Finds paths that are as short as the lanes admit, and escape paths where they admit none.
    fn detour(&mut self, target: &Target) {
        let mut forced = vec![false; self.skeleton.len()];
        for restart in 0..=MAX_RESTARTS + 1 {
            self.begin();
            let mut offers = BinaryHeap::new();
            let mut links = vec![0u32; self.skeleton.len()];
            self.offer(self.target, 0, &mut offers);
            self.take_escapes(target, &forced, &mut links, &mut offers);
            while let Some(Reverse((distance, cost, arc))) = offers.pop() {
                let back = self.skeleton.arcs[arc as usize].back;
                let at = self.skeleton.arcs[back as usize].to;
                if self.is_routed(at as usize)
                    || !self.lanes_of(at).any(|lane| self.take(arc, lane, target))
                {
                    continue;
                }
                (links[at as usize], self.cost[at as usize]) = (distance, cost);
                self.offer(at as usize, distance, &mut offers);
            }
            let mut is_complete = true;
            for &(at, _) in &self.nearest {
                if self.is_routed(at as usize) {
                    continue;
                }
                is_complete = false;
                let mut at = at as usize;
                while at != self.target && !forced[at] {
                    forced[at] = true;
                    at = self.head(self.escape[at]);
                }
            }
            if is_complete {
                break;
            }
            if restart >= MAX_RESTARTS {
                forced.fill(true);
            }
            self.undo();
        }
    }

    fn is_routed(&self, at: usize) -> bool {
        self.next[at] != NONE || at == self.target
    }

    /// Offers the neighbours of a vertex with a path to go by it.
    fn offer(&self, at: usize, links: u32, offers: &mut BinaryHeap<Offer>) {
        for arc in &self.skeleton.arcs[self.skeleton.arcs_of(at)] {
            if !self.is_routed(arc.to as usize) {
                let cost = self.cost[at] + self.load[arc.back as usize];
                offers.push(Reverse((links + 1, cost, arc.back)));
            }
        }
    }

    /// Sends some vertices by their escape paths, which lead from one of them to the next.
    fn take_escapes(
        &mut self,
        target: &Target,
        forced: &[bool],
        links: &mut [u32],
        offers: &mut BinaryHeap<Offer>,
    ) {
        let mut path = Vec::new();
        for start in 0..self.skeleton.len() {
            let mut at = start;
            while forced[at] && self.escape[at] != NONE && !self.is_routed(at) {
                path.push(at);
                at = self.head(self.escape[at]);
            }
            while let Some(at) = path.pop() {
                let arc = self.escape[at];
                let to = self.head(arc);
                self.lanes_of(at as u32)
                    .any(|lane| self.take(arc, lane, target));
                links[at] = links[to] + 1;
                self.cost[at] = self.cost[to] + self.load[arc as usize];
                self.offer(at, links[at], offers);
            }
        }
    }

    fn find_escapes(&mut self) {
        self.escape.clear();
        self.escape.resize(self.skeleton.len(), NONE);
        let mut queue = VecDeque::from([self.target]);
        while let Some(at) = queue.pop_front() {
            for index in self.skeleton.arcs_of(at) {
                let arc = self.skeleton.arcs[index];
                let is_new = self.escape[arc.to as usize] == NONE && arc.to as usize != self.target;
                if self.tree[index] && is_new {
                    self.escape[arc.to as usize] = arc.back;
                    queue.push_back(arc.to as usize);
                }
            }
        }
    }

    /// The lane of a vertex and the target.
    fn level(&self, at: usize) -> u8 {
        self.levels[at * self.skeleton.len() + self.target]
    }

    fn choose(&mut self, at: usize, lane: u8) {
        let count = self.skeleton.len();
        self.chosen.push((at as u32, self.level(at)));
        self.levels[at * count + self.target] = lane;
        self.levels[self.target * count + at] = lane;
    }

    /// The lanes to try for the path of a vertex: that of the path back first.
    fn lanes_of(&self, at: u32) -> impl Iterator<Item = u8> + use<> {
        let own = Some(self.level(at as usize)).filter(|&lane| lane != OPEN);
        let others = (0..self.lanes.count()).filter(move |&lane| Some(lane) != own);
        own.into_iter().chain(others)
    }

    /// Sends the vertex at the beginning of an arc by it, if a lane admits the path.
    fn take(&mut self, arc: u32, lane: u8, target: &Target) -> bool {
        let back = self.skeleton.arcs[arc as usize].back as usize;
        let vertex = self.head(back as u32);
        // Paths between switches without adapters are not among those that must not deadlock.
        if target.adapter || self.adapters[vertex] > 0 {
            let is_new = self.level(vertex) != lane;
            let changes = self.lanes.changes();
            if is_new && !self.admits_others(vertex, lane) || !self.admit(arc, lane) {
                self.lanes.undo(changes);
                return false;
            }
            if is_new {
                self.choose(vertex, lane);
            }
            self.admitted[vertex] |= 1 << lane;
        }
        self.next[vertex] = arc;
        self.order.push(vertex as u32);
        true
    }

    /// Whether a lane admits the escape paths between a vertex and the target, and the paths that there are.
    fn admits_others(&mut self, vertex: usize, lane: u8) -> bool {
        let mut before = self.escape[vertex] as usize;
        loop {
            let (arc, at) = (self.skeleton.arcs[before], self.head(before as u32));
            if at == self.target {
                break;
            }
            let after = self.escape[at] as usize;
            let back = self.skeleton.arcs[after].back as usize;
            if !self.lanes.add(lane, before, after)
                || !self.lanes.add(lane, back, arc.back as usize)
            {
                return false;
            }
            before = after;
        }
        for (from, to) in [(vertex, self.target), (self.target, vertex)] {
            for path in &self.paths[self.of[to].clone()] {
                if !path.adapter && self.adapters[from] == 0 {
                    continue;
                }
                let mut before = path.next(self.skeleton, from);
                while before != NONE {
                    let at = self.skeleton.heads()[before as usize] as usize;
                    let after = path.next(self.skeleton, at);
                    if after != NONE && !self.lanes.add(lane, before as usize, after as usize) {
                        return false;
                    }
                    before = after;
                }
            }
        }
        true
    }

    /// Whether a lane admits a path that begins with an arc. Its dependencies are on the lane then.
    fn admit(&mut self, arc: u32, lane: u8) -> bool {
        let changes = self.lanes.changes();
        let mut before = arc;
        loop {
            let at = self.head(before);
            if at == self.target {
                break;
            }
            let after = self.next[at];
            if !self.lanes.add(lane, before as usize, after as usize) {
                self.lanes.undo(changes);
                return false;
            }
            if self.admitted[at] & 1 << lane != 0 {
                break;
            }
            before = after;
        }
        let mut at = self.head(arc);
        while self.admitted[at] & 1 << lane == 0 {
            self.admitted[at] |= 1 << lane;
            at = self.head(self.next[at]);
        }
        true
    }

    /// The lane of every path, by its two vertices.
    fn levels(self) -> Vec<u8> {
        let levels = self.levels.into_iter();
        levels
            .map(|level| if level == OPEN { 0 } else { level })
            .collect()
    }
}

/// A spanning tree from the middle of the graph, or of each part of it, by arc.
fn spanning_tree(skeleton: &Skeleton) -> Vec<bool> {
    let count = skeleton.len();
    let search = |from: usize| {
        let mut by = vec![NONE; count];
        let mut order = vec![from];
        let mut reached = 0;
        while let Some(&at) = order.get(reached) {
            reached += 1;
            for arc in &skeleton.arcs[skeleton.arcs_of(at)] {
                let to = arc.to as usize;
                if to != from && by[to] == NONE {
                    by[to] = arc.back;
                    order.push(to);
                }
            }
        }
        (order, by)
    };
    let mut tree = vec![false; skeleton.arcs.len()];
    let mut is_done = vec![false; count];
    for start in 0..count {
        if is_done[start] {
            continue;
        }
        // Half way between two vertices that are far from each other.
        let far = |from: usize| search(from).0.last().copied().unwrap_or(from);
        let one = far(start);
        let (order, by) = search(one);
        let mut path = vec![order.last().copied().unwrap_or(one)];
        while let Some(&at) = path.last().filter(|&&at| at != one) {
            path.push(skeleton.heads()[by[at] as usize] as usize);
        }
        let (order, by) = search(path[path.len() / 2]);
        for at in order {
            is_done[at] = true;
            if let Some(arc) = skeleton.arcs.get(by[at] as usize) {
                tree[by[at] as usize] = true;
                tree[arc.back as usize] = true;
            }
        }
    }
    tree
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use wire::Guid;

    use super::*;
    use crate::routing::{Endpoint, Trunk, Verdict, Vertex};

    /// Switches with cables between these, several between two of them and loops among them, and with
    /// so many adapters.
    fn network(cables: &[(usize, usize)], adapters: &[u8]) -> Graph {
        let vertex = |number| Vertex {
            guid: Guid::new(number),
            ports: 254,
            trunks: Vec::new(),
        };
        let mut switches: Vec<Vertex> = (1..).map(vertex).take(adapters.len()).collect();
        let mut ports = vec![0u8; adapters.len()];
        let mut port = |at: usize| {
            ports[at] += 1;
            ports[at]
        };
        for &(one, other) in cables {
            let ends = [(one, port(one)), (other, port(other))];
            for ((at, port), (to, to_port)) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                switches[at].trunks.push(Trunk { port, to, to_port });
            }
        }
        let mut places = Vec::new();
        for (switch, &adapters) in adapters.iter().enumerate() {
            places.push((switch, 0));
            places.extend((0..adapters).map(|_| (switch, port(switch))));
        }
        let endpoints = (1..).zip(places).map(|(lid, (switch, port))| Endpoint {
            lid: Lid::new(lid),
            guid: Guid::new(lid.into()),
            switch,
            port,
        });
        Graph {
            endpoints: endpoints.collect(),
            switches,
            ..Graph::default()
        }
    }

    proptest! {
        #[test]
        fn any_network_on_any_lanes(
            adapters in vec(0..3u8, 1..24),
            more in vec((0..24usize, 0..24usize), 0..40),
            parents in vec(0..1000usize, 24),
            lanes in 1..9u8,
        ) {
            let switches = adapters.len();
            let tree = (1..switches).map(|at| (at, parents[at] % at));
            let more = more.iter().map(|&(one, other)| (one % switches, other % switches));
            let cables: Vec<_> = tree.chain(more).collect();
            let graph = network(&cables, &adapters);
            let routing = Nue { lanes }.route(&graph).expect("is routed");
            let verdict = Verdict::new(&graph, &routing);
            prop_assert!(verdict.is_connected(), "{:?}", verdict.faults);
            prop_assert!(verdict.is_free_of_deadlock(), "{}", verdict);
            prop_assert!(verdict.lanes <= lanes);
        }
    }

    /// Nine groups of four switches, each with two cables to other groups.
    #[test]
    fn a_dragonfly() {
        let within = |group: usize| {
            (0..4).flat_map(move |one| {
                (0..one).map(move |other| (4 * group + one, 4 * group + other))
            })
        };
        let end = |group: usize, to: usize| 4 * group + (to + 8 - group) % 9 / 2;
        let between =
            (0..9).flat_map(|group| (0..group).map(move |to| (end(group, to), end(to, group))));
        let cables: Vec<_> = (0..9).flat_map(within).chain(between).collect();
        let graph = network(&cables, &[2; 36]);
        for (lanes, detours) in [(1, 1000), (2, 500), (8, 0)] {
            let routing = Nue { lanes }.route(&graph).expect("is routed");
            let verdict = Verdict::new(&graph, &routing);
            println!("{lanes} lanes: {verdict}");
            assert!(verdict.is_connected() && verdict.is_free_of_deadlock());
            assert!(verdict.detours <= detours, "{verdict}");
        }
    }

    #[test]
    fn parts_that_no_cable_joins() {
        let graph = network(&[(0, 1), (2, 3)], &[1, 1, 1, 1]);
        let routing = Nue::default().route(&graph).expect("is routed");
        let verdict = Verdict::new(&graph, &routing);
        // Within a part: two switches to four LIDs.
        assert_eq!((verdict.arriving, verdict.failing), (2 * 8, 2 * 8));
        assert!(verdict.is_free_of_deadlock());
    }
}
