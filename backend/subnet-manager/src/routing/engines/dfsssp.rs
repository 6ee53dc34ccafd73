//! Deadlock-free single-source shortest-path routing.

use std::ops::Range;

use fixedbitset::FixedBitSet;

use crate::routing::lanes::dependency::Channels;
use crate::routing::lanes::levels::ServiceLevels;
use crate::routing::skeleton::Skeleton;
use crate::routing::spread::{NONE, Spread};
use crate::routing::{ForwardingTable, Graph, Routing, RoutingEngine, RoutingError};

/// Shortest paths that spread over the links, and over virtual lanes so that no packets can wait for
/// each other in a circle ("Deadlock-Free Oblivious Routing for Arbitrary Topologies", Domke,
/// Hoefler, Nagel).
///
/// All paths begin on lane 0. As long as its channels depend on each other in a circle, the paths
/// that make the circle's rarest dependency move to the next lane, and so on. Paths between switches
/// that have no adapters are not among them.
///
/// Different from OpenSM's: what moves are all paths between two switches, there and back, so that
/// an answer has the lane of the question.
#[derive(Debug, Clone, Copy)]
pub struct Dfsssp {
    /// Virtual lanes that may be used, 1 to 15.
    pub lanes: u8,
}

impl Default for Dfsssp {
    /// The 8 lanes that most adapters have.
    fn default() -> Self {
        Self { lanes: 8 }
    }
}

impl RoutingEngine for Dfsssp {
    fn name(&self) -> &'static str {
        "dfsssp"
    }

    fn is_layered(&self) -> bool {
        true
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        let skeleton = Skeleton::new(graph);
        let mut columns = skeleton.columns();
        let mut dependencies = Dependencies::new(&skeleton);
        let mut spread = Spread::new(&skeleton);
        // The vertices with most adapters first, while the links are free.
        let mut order: Vec<usize> = (0..skeleton.len()).collect();
        order.sort_by_key(|&vertex| std::cmp::Reverse(skeleton.adapters[vertex]));
        let mut lids = Vec::new();
        for vertex in order {
            let targets = &skeleton.targets[vertex];
            if targets.is_empty() {
                continue;
            }
            spread.aim(vertex);
            for target in targets {
                spread.find();
                if target.adapter {
                    spread.count(1);
                }
                let column = columns.column(target.lid);
                spread.fill(column);
                column[vertex] = target.port;
                let destination = Destination {
                    lid: usize::from(target.lid.value()),
                    vertex: vertex as u32,
                    adapter: target.adapter,
                };
                dependencies.add(&skeleton, &spread, &destination);
                lids.push(destination);
            }
        }
        let tables = columns.into_tables();
        let levels = if dependencies.are_free_of_circles() {
            None
        } else {
            let layers = Layers::new(&skeleton, &tables, &lids, dependencies.channels);
            let levels = layers.spread(self.lanes.clamp(1, 15));
            Some(levels.map_err(|reason| RoutingError {
                engine: self.name(),
                reason,
            })?)
        };
        let levels = levels.map_or_else(ServiceLevels::uniform, |levels| {
            ServiceLevels::between(graph, &skeleton, levels)
        });
        Ok(Routing {
            tables: skeleton.unfold(graph, tables),
            levels,
        })
    }
}

/// A LID that paths lead to.
struct Destination {
    lid: usize,
    vertex: u32,
    adapter: bool,
}

impl Destination {
    /// Whether a path from a vertex is among those that must not deadlock.
    fn counts(&self, skeleton: &Skeleton, from: usize) -> bool {
        self.adapter || skeleton.adapters[from] > 0
    }
}

/// The dependencies that all paths make together. How many paths make each is not noted: few
/// topologies need to know, and a bit for each stays in a cache where a number does not.
struct Dependencies {
    channels: Channels,
    held: FixedBitSet,
    /// By vertex: whether a path to one destination goes by it.
    passing: Vec<bool>,
}

impl Dependencies {
    fn new(skeleton: &Skeleton) -> Self {
        let channels = channels(skeleton);
        Self {
            held: FixedBitSet::with_capacity(channels.dependencies()),
            passing: vec![false; skeleton.len()],
            channels,
        }
    }

    /// Adds those of the paths found.
    fn add(&mut self, skeleton: &Skeleton, found: &Spread<'_>, destination: &Destination) {
        for (at, passing) in self.passing.iter_mut().enumerate() {
            *passing = destination.counts(skeleton, at);
        }
        for &at in found.order.iter().rev() {
            let arc = found.next[at as usize];
            if arc == NONE || !self.passing[at as usize] {
                continue;
            }
            let to = skeleton.heads()[arc as usize] as usize;
            self.passing[to] = true;
            let after = found.next[to];
            if after != NONE {
                let dependency = self.channels.dependency(arc as usize, after as usize);
                self.held.insert(dependency);
            }
        }
    }

    fn are_free_of_circles(&self) -> bool {
        self.channels.circle(|at| self.held[at]).is_none()
    }
}

/// The channels of a skeleton.
pub(in crate::routing) fn channels(skeleton: &Skeleton) -> Channels {
    let mut first = vec![0];
    first.extend((0..skeleton.len()).map(|vertex| skeleton.arcs_of(vertex).end as u32));
    let to = skeleton.arcs.iter().map(|arc| arc.to).collect();
    Channels::new(first, to, |arc| skeleton.arcs[arc].back as usize)
}

struct Layers<'a> {
    skeleton: &'a Skeleton,
    tables: &'a [ForwardingTable],
    destinations: &'a [Destination],
    /// By vertex: where its LIDs are among the destinations.
    of: Vec<Range<usize>>,
    channels: Channels,
    /// By vertex and port: the arc.
    arc: Vec<[u32; 256]>,
}

/// Paths by dependency, on one lane.
type Counts = Vec<u32>;

impl<'a> Layers<'a> {
    fn new(
        skeleton: &'a Skeleton,
        tables: &'a [ForwardingTable],
        destinations: &'a [Destination],
        channels: Channels,
    ) -> Self {
        let mut arc = vec![[NONE; 256]; skeleton.len()];
        for (vertex, arcs) in arc.iter_mut().enumerate() {
            for index in skeleton.arcs_of(vertex) {
                arcs[usize::from(skeleton.arcs[index].port)] = index as u32;
            }
        }
        let mut of = vec![0..0; skeleton.len()];
        let mut first = 0;
        for group in destinations.chunk_by(|a, b| a.vertex == b.vertex) {
            of[group[0].vertex as usize] = first..first + group.len();
            first += group.len();
        }
        Self {
            channels,
            skeleton,
            tables,
            destinations,
            of,
            arc,
        }
    }

    fn next(&self, at: usize, destination: &Destination) -> u32 {
        if at == destination.vertex as usize {
            return NONE;
        }
        self.arc[at][usize::from(self.tables[at].0[destination.lid])]
    }

    fn to(&self, arc: u32) -> usize {
        self.skeleton.arcs[arc as usize].to as usize
    }

    /// Number of paths that make each dependency.
    fn all(&self) -> Counts {
        let mut counts = vec![0; self.channels.dependencies()];
        for destination in self.destinations {
            for from in 0..self.skeleton.len() {
                self.follow(from, destination, |dependency| counts[dependency] += 1);
            }
        }
        counts
    }

    /// The lane of every path, by its two vertices.
    fn spread(&self, lanes: u8) -> Result<Vec<u8>, String> {
        let mut counts = self.all();
        let mut levels = vec![0u8; self.skeleton.len() * self.skeleton.len()];
        for lane in 0..lanes {
            if lane + 1 == lanes {
                return match self.channels.circle(|at| counts[at] > 0) {
                    None => Ok(levels),
                    Some(_) => Err(format!(
                        "{lanes} virtual lanes do not suffice to keep its paths from waiting for \
                         each other; allow more"
                    )),
                };
            }
            let mut above = vec![0; counts.len()];
            let moved = self.break_circles(lane, &mut counts, &mut above, &mut levels);
            if !moved {
                return Ok(levels);
            }
            counts = above;
        }
        Ok(levels)
    }

    /// Moves paths from a lane to the next until no circle is left; false if there was none.
    ///
    /// One search through the channels: what has been left behind cannot become part of a circle,
    /// since dependencies only vanish.
    fn break_circles(
        &self,
        lane: u8,
        counts: &mut Counts,
        above: &mut Counts,
        levels: &mut [u8],
    ) -> bool {
        const NEW: u32 = u32::MAX;
        const DONE: u32 = u32::MAX - 1;
        let mut moved = false;
        // NEW, DONE, or the place on the path.
        let mut state = vec![NEW; self.channels.channels()];
        let mut path: Vec<(usize, usize)> = Vec::new();
        for start in 0..self.channels.channels() {
            if state[start] != NEW {
                continue;
            }
            state[start] = 0;
            path.push((start, self.channels.onward(start).start));
            while let Some(&(channel, next)) = path.last() {
                let end = self.channels.onward(channel).end;
                let found = (next..end).find(|&after| {
                    state[after] != DONE && counts[self.channels.dependency(channel, after)] > 0
                });
                let Some(after) = found else {
                    state[channel] = DONE;
                    path.pop();
                    continue;
                };
                if state[after] == NEW {
                    if let Some(last) = path.last_mut() {
                        last.1 = after + 1;
                    }
                    state[after] = path.len() as u32;
                    path.push((after, self.channels.onward(after).start));
                    continue;
                }
                // A circle: from `after` along the path to `channel` and back.
                let from = state[after] as usize;
                let ring: Vec<usize> = path[from..].iter().map(|&(channel, _)| channel).collect();
                let link = |at: usize| (ring[at], ring[(at + 1) % ring.len()]);
                let rarest = (0..ring.len()).min_by_key(|&at| {
                    let (before, after) = link(at);
                    counts[self.channels.dependency(before, after)]
                });
                let (before, after) = link(rarest.unwrap_or(0));
                self.lift(lane, before, after, counts, above, levels);
                moved = true;
                // Back to before the first dependency that is gone: others along the path may be, too.
                let gone = (1..path.len()).find(|&at| {
                    let (before, after) = (path[at - 1].0, path[at].0);
                    counts[self.channels.dependency(before, after)] == 0
                });
                let keep = gone.unwrap_or(path.len());
                for &(channel, _) in &path[keep..] {
                    state[channel] = NEW;
                }
                path.truncate(keep);
                // Edges that were passed over as open or done need not be looked at again, but those that are new
                // again must be.
                if let Some(last) = path.last_mut() {
                    last.1 = self.channels.onward(last.0).start;
                }
            }
        }
        moved
    }

    /// Moves all paths that make a dependency to the next lane, each with all others between its two
    /// vertices.
    fn lift(
        &self,
        lane: u8,
        before: usize,
        after: usize,
        counts: &mut Counts,
        above: &mut Counts,
        levels: &mut [u8],
    ) {
        let via = self.skeleton.arcs[self.skeleton.arcs[before].back as usize].to as usize;
        let vertices = self.skeleton.len();
        let mut upstream = Vec::new();
        for destination in self.destinations {
            if self.next(via, destination) != before as u32
                || self.next(self.to(before as u32), destination) != after as u32
            {
                continue;
            }
            let target = destination.vertex as usize;
            upstream.clear();
            upstream.push(via);
            while let Some(at) = upstream.pop() {
                for arc in self.skeleton.arcs_of(at) {
                    let arc = self.skeleton.arcs[arc];
                    if self.next(arc.to as usize, destination) == arc.back {
                        upstream.push(arc.to as usize);
                    }
                }
                if levels[at * vertices + target] != lane || !destination.counts(self.skeleton, at)
                {
                    continue;
                }
                for (from, to) in [(at, target), (target, at)] {
                    levels[from * vertices + to] = lane + 1;
                    for destination in &self.destinations[self.of[to].clone()] {
                        self.follow(from, destination, |dependency| {
                            counts[dependency] -= 1;
                            above[dependency] += 1;
                        });
                    }
                }
            }
        }
    }

    /// The dependencies of one path.
    fn follow(&self, from: usize, destination: &Destination, mut each: impl FnMut(usize)) {
        if !destination.counts(self.skeleton, from) {
            return;
        }
        let mut arc = self.next(from, destination);
        while arc != NONE {
            let after = self.next(self.to(arc), destination);
            if after == NONE {
                break;
            }
            each(self.channels.dependency(arc as usize, after as usize));
            arc = after;
        }
    }
}
