//! Routing of tori with two classes of service, around cables and switches that have failed.

mod holes;

use std::sync::{Mutex, PoisonError};

use wire::attribute::{LinearBlock, SlToVl};
use wire::{Guid, Vl};

use crate::routing::engines::dimension_order::Grid;
use crate::routing::lanes::levels::ServiceLevels;
use crate::routing::lanes::ports::PortLanes;
use crate::routing::skeleton::Skeleton;
use crate::routing::{Graph, Routing, RoutingEngine, RoutingError, Verdict};
use holes::{Known, Neighbours, grid, neighbours};

/// Routing as OpenSM's `torus-2QoS`, of tori and meshes of one to three dimensions that are cabled as for
/// [`DimensionOrder`](super::dimension_order::DimensionOrder).
///
/// A path goes along one dimension after the other. Bit d of its service level says that it crosses the cable that closes
/// its ring of dimension d, and a port of that dimension has its lane by that bit: two lanes, whatever number of rings.
/// Where a cable of a ring is missing, paths go the other way round: the ring is none any more, and levels stay. Where the
/// switch is missing at which a path was to turn, it turns a switch earlier, goes one link on in the next dimension, and
/// turns back: the link after that turn, from a later dimension to an earlier one, is on two lanes more. Other paths stay.
///
/// With eight data lanes bit 3 of the level, which whoever asks for a path chooses, says which half of them it takes: two
/// classes of service.
///
/// Whether failures leave paths that wait for each other, [`Verdict`] says, and the engine refuses such a grid.
#[derive(Debug)]
pub struct TorusTwoQos {
    /// Virtual lanes that may be used, 1 to 15.
    lanes: u8,
    known: Mutex<Known>,
}

impl TorusTwoQos {
    /// With so many lanes.
    #[must_use]
    pub fn new(lanes: u8) -> Self {
        Self {
            lanes,
            known: Mutex::default(),
        }
    }
}

impl Default for TorusTwoQos {
    /// The 8 lanes that most adapters have.
    fn default() -> Self {
        Self::new(8)
    }
}

/// Bit of a service level that says which class of service a path is of.
const CLASS: u8 = 3;
/// The same as a mask.
pub(in crate::routing) const FREE: u8 = 1 << CLASS;
/// Lanes of a class: for both sides of where a ring is closed, and again for links after a turn back.
const LANES_OF_CLASS: u8 = 4;

impl RoutingEngine for TorusTwoQos {
    fn name(&self) -> &'static str {
        "torus-2QoS"
    }

    fn is_layered(&self) -> bool {
        true
    }

    fn has_port_lanes(&self) -> bool {
        true
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        self.routed(graph).map_err(|reason| RoutingError {
            engine: self.name(),
            reason,
        })
    }
}

impl TorusTwoQos {
    fn routed(&self, graph: &Graph) -> Result<Routing, String> {
        let skeleton = Skeleton::new(graph);
        let count = skeleton.len();
        if count == 0 {
            return Err("there are no switches".to_owned());
        }
        let names = skeleton.switches.iter().map(|&at| graph.switches[at].guid);
        let names: Vec<Guid> = names.collect();
        let neighbours = neighbours(graph, &skeleton)?;
        let mut grid = grid(&skeleton, &graph.switches, &neighbours)?;
        // It is whole after each change, whoever panicked.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.align(&mut grid, &names);
        drop(known);
        let lanes = self.lanes.min(graph.lanes.unwrap_or(self.lanes));
        let rings = (0..grid.sizes.len()).filter(|&dimension| grid.closed[dimension]);
        let rings: Vec<usize> = rings.collect();
        // In rings of three nobody goes farther than one link.
        if lanes < 2 && rings.iter().any(|&dimension| grid.sizes[dimension] > 3) {
            return Err(format!(
                "its rings need 2 data lanes, and links have {lanes}; allow more, or use nue"
            ));
        }
        let holed = Holed::new(&grid, &neighbours);
        let mut columns = skeleton.columns();
        let mut levels = vec![0u8; count * count];
        for target in 0..count {
            let mut ports = vec![LinearBlock::DROP; count];
            for at in (0..count).filter(|&at| at != target) {
                for &dimension in &rings {
                    let crosses = grid.crosses(at, target, dimension);
                    levels[at * count + target] |= u8::from(crosses) << dimension;
                }
                let (dimension, up) = holed.step(at, target).ok_or_else(|| {
                    format!(
                        "switch {} does not reach switch {} in order, since cables or switches are missing; mend them, \
                         or use nue",
                        names[at], names[target]
                    )
                })?;
                ports[at] = 2 * dimension as u8 + if up { 1 } else { 2 };
            }
            for lid in &skeleton.targets[target] {
                let column = columns.column(lid.lid);
                column.copy_from_slice(&ports);
                column[target] = lid.port;
            }
        }
        let (ports, free) = port_lanes(graph, &skeleton, grid.sizes.len(), lanes);
        let routing = Routing {
            tables: skeleton.unfold(graph, columns.into_tables()),
            levels: ServiceLevels::between(graph, &skeleton, levels).on(ports, free),
        };
        if !holed.is_whole() {
            let verdict = Verdict::new(graph, &routing);
            if !verdict.is_connected() || verdict.endless.is_some() {
                return Err("cables or switches are missing, and what is left has no paths in order; mend them, or use \
                            nue"
                    .to_owned());
            }
            if let Some((switch, port)) =
                { verdict.circle }.and_then(|it| it.channels.first().copied())
            {
                return Err(format!(
                    "cables or switches are missing, and paths around them on {lanes} data lanes could wait for each \
                     other for ever, as at port {port} of switch {}; mend them, or use nue",
                    graph.switches[switch].guid
                ));
            }
        }
        Ok(routing)
    }
}

/// The lanes of ports, and the bits of levels that are free.
fn port_lanes(graph: &Graph, skeleton: &Skeleton, dimensions: usize, lanes: u8) -> (PortLanes, u8) {
    let mut classes = vec![Box::default(); graph.switches.len()];
    for (vertex, &switch) in skeleton.switches.iter().enumerate() {
        let mut of = vec![0; usize::from(graph.switches[switch].ports) + 1];
        for arc in &skeleton.arcs[skeleton.arcs_of(vertex)] {
            if let Some(entry) = of.get_mut(usize::from(arc.port)) {
                *entry = arc.port.div_ceil(2);
            }
        }
        classes[switch] = of.into();
    }
    // As many as are a power of two, up to two classes.
    let used = [2 * LANES_OF_CLASS, LANES_OF_CLASS, 2, 1];
    let used = used.into_iter().find(|&used| used <= lanes).unwrap_or(1);
    let has_classes = used > LANES_OF_CLASS;
    let table = |from: u8, to: u8| {
        SlToVl(std::array::from_fn(|level| {
            let class = u8::from(has_classes) & (level >> CLASS) as u8;
            let lane = match to.checked_sub(1) {
                None => class,
                Some(dimension) => {
                    let closes = (level >> dimension) as u8 & 1;
                    let turns_back = u8::from(from > to);
                    class * LANES_OF_CLASS + (closes | turns_back << 1)
                }
            };
            Vl::new(lane & (used - 1))
        }))
    };
    let ports = PortLanes::new(classes, dimensions as u8 + 1, used, table);
    (ports, if has_classes { FREE } else { 0 })
}

/// A grid and what of it is there.
struct Holed<'a> {
    grid: &'a Grid,
    /// By vertex, dimension and direction: links that can be gone without a break, as many as the ring has at most.
    reach: Vec<Vec<[u32; 2]>>,
}

impl<'a> Holed<'a> {
    fn new(grid: &'a Grid, neighbours: &Neighbours) -> Self {
        let count = neighbours.len();
        let mut reach = vec![vec![[0; 2]; grid.sizes.len()]; count];
        for dimension in 0..grid.sizes.len() {
            for up in [0, 1] {
                for start in 0..count {
                    // From where a line begins, or anywhere in a ring.
                    let mut line = vec![start];
                    let mut at = start;
                    while let Some(next) =
                        neighbours[at][dimension][up].filter(|_| reach[at][dimension][up] == 0)
                    {
                        at = next;
                        if at == start {
                            break;
                        }
                        line.push(at);
                    }
                    if at == start && line.len() > 1 {
                        for &of_ring in &line {
                            reach[of_ring][dimension][up] = grid.sizes[dimension];
                        }
                        continue;
                    }
                    for pair in line.windows(2).rev() {
                        reach[pair[0]][dimension][up] = reach[pair[1]][dimension][up] + 1;
                    }
                }
            }
        }
        Self { grid, reach }
    }

    fn is_whole(&self) -> bool {
        let product: u64 = self
            .grid
            .sizes
            .iter()
            .map(|&size| u64::from(size))
            .product();
        let whole = |at: usize, dimension: usize| {
            let (size, place) = (self.grid.sizes[dimension], self.grid.place[at][dimension]);
            let expected = if self.grid.closed[dimension] {
                [size; 2]
            } else {
                [place, size - 1 - place]
            };
            self.reach[at][dimension] == expected
        };
        let mut all =
            (0..self.reach.len()).flat_map(|at| (0..self.grid.sizes.len()).map(move |d| (at, d)));
        product == self.reach.len() as u64 && all.all(|(at, dimension)| whole(at, dimension))
    }

    /// The dimension and the direction of the next link to a vertex.
    fn step(&self, at: usize, target: usize) -> Option<(usize, bool)> {
        let ways = |dimension: usize| {
            let (up, links) = self.grid.way(at, target, dimension)?;
            let others = self.grid.closed[dimension].then(|| self.grid.sizes[dimension] - links);
            Some([Some((up, links)), others.map(|links| (!up, links))])
        };
        let mut differ = (0..self.grid.sizes.len()).filter_map(|at| Some((at, ways(at)?)));
        let (dimension, own) = differ.next()?;
        let goes = |dimension: usize, (up, links): (bool, u32)| {
            self.reach[at][dimension][usize::from(up)] >= links
        };
        let found = own.into_iter().flatten().find(|&way| goes(dimension, way));
        if let Some((up, _)) = found {
            return Some((dimension, up));
        }
        // To before the switch where it was to turn.
        let (up, links) =
            { own.into_iter().flatten() }.find(|&(up, links)| goes(dimension, (up, links - 1)))?;
        if links > 1 {
            return Some((dimension, up));
        }
        let (dimension, next) = differ.next()?;
        let mut next = next.into_iter().flatten();
        let (up, _) = next.find(|&(up, _)| goes(dimension, (up, 1)))?;
        Some((dimension, up))
    }
}
