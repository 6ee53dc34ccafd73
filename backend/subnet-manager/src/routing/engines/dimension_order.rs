//! Dimension-order routing for tori and meshes.

use std::collections::VecDeque;

use wire::attribute::LinearBlock;

use crate::routing::lanes::levels::ServiceLevels;
use crate::routing::skeleton::Skeleton;
use crate::routing::{Graph, Routing, RoutingEngine, RoutingError};

/// Dimension-order routing: first along dimension 0 the shorter way round, then along dimension 1,
/// and so on.
///
/// In dimension d, from 0, port 2d + 1 of every switch leads to port 2d + 2 of the next one. A path over the cable
/// that closes a ring has a service level of its own: that breaks the rings up, and 2 to the power of the rings
/// lanes are needed. Rings of up to three switches need none, since nobody goes farther than one link. A path and
/// the path back take the same side of a ring, so that they share a level: in rings of an even number of switches
/// the links are not used alike.
///
/// Every cable must be there: with one broken there is no other path in order.
#[derive(Debug, Clone, Copy, Default)]
pub struct DimensionOrder;

/// Lanes that most adapters have.
const LANES: usize = 8;

impl RoutingEngine for DimensionOrder {
    fn name(&self) -> &'static str {
        "dor"
    }

    fn is_layered(&self) -> bool {
        true
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        let skeleton = Skeleton::new(graph);
        let error = |reason| RoutingError {
            engine: self.name(),
            reason,
        };
        let grid = Grid::new(graph, &skeleton).map_err(error)?;
        let count = skeleton.len();
        let rings: Vec<usize> = (0..grid.sizes.len())
            .filter(|&dimension| grid.closed[dimension] && grid.sizes[dimension] > 3)
            .collect();
        if 1 << rings.len().min(8) > LANES {
            return Err(error(format!(
                "{} rings need {} virtual lanes, {LANES} are there; use dfsssp or lash",
                rings.len(),
                1 << rings.len().min(8)
            )));
        }
        let mut columns = skeleton.columns();
        let mut levels = vec![0u8; count * count];
        for target in 0..count {
            for at in 0..count {
                for (bit, &dimension) in rings.iter().enumerate() {
                    let crosses = grid.crosses(at, target, dimension);
                    levels[at * count + target] |= u8::from(crosses) << bit;
                }
            }
            let ports: Vec<u8> = (0..count)
                .map(|at| grid.port(at, target).unwrap_or(LinearBlock::DROP))
                .collect();
            for lid in &skeleton.targets[target] {
                let column = columns.column(lid.lid);
                column.copy_from_slice(&ports);
                column[target] = lid.port;
            }
        }
        Ok(Routing {
            tables: skeleton.unfold(graph, columns.into_tables()),
            levels: ServiceLevels::between(graph, &skeleton, levels),
        })
    }
}

/// A torus or mesh and the place of every vertex in it.
pub(super) struct Grid {
    pub(super) sizes: Vec<u32>,
    /// Whether the dimension is a ring.
    pub(super) closed: Vec<bool>,
    /// By vertex, then by dimension.
    pub(super) place: Vec<Vec<u32>>,
}

impl Grid {
    fn new(graph: &Graph, skeleton: &Skeleton) -> Result<Self, String> {
        let name = |vertex: usize| graph.switches[skeleton.switches[vertex]].guid;
        let ports = skeleton.arcs.iter().map(|arc| arc.port);
        let dimensions = usize::from(ports.max().unwrap_or(0)).div_ceil(2);
        let neighbour = |at: usize, port: usize| {
            let arcs = &skeleton.arcs[skeleton.arcs_of(at)];
            let arc = arcs.iter().find(|arc| usize::from(arc.port) == port)?;
            Some((arc.to as usize, skeleton.arcs[arc.back as usize].port))
        };
        if skeleton.len() == 0 {
            return Err("there are no switches".to_owned());
        }
        let mut sizes = Vec::new();
        let mut closed = Vec::new();
        let mut origin = Vec::new();
        for dimension in 0..dimensions {
            let walk = |port: usize| {
                let mut at = 0;
                let mut steps = 0;
                while let Some((to, _)) = neighbour(at, port) {
                    steps += 1;
                    at = to;
                    if at == 0 || steps as usize > skeleton.len() {
                        break;
                    }
                }
                (steps, steps > 0 && at == 0)
            };
            let (forward, is_ring) = walk(2 * dimension + 1);
            let (backward, _) = if is_ring {
                (0, true)
            } else {
                walk(2 * dimension + 2)
            };
            sizes.push(if is_ring {
                forward
            } else {
                forward + backward + 1
            });
            closed.push(is_ring);
            origin.push(backward);
        }
        let switches = sizes
            .iter()
            .try_fold(1u64, |product, &size| product.checked_mul(u64::from(size)));
        if switches != Some(skeleton.len() as u64) {
            let shape: Vec<_> = sizes.iter().map(u32::to_string).collect();
            return Err(format!(
                "{} switches do not make a grid of {}, which the cables of switch {} show; use \
                 dfsssp or lash",
                skeleton.len(),
                shape.join(" by "),
                name(0),
            ));
        }
        let mut grid = Self {
            sizes,
            closed,
            place: vec![Vec::new(); skeleton.len()],
        };
        grid.place[0] = origin;
        let mut queue = VecDeque::from([0]);
        while let Some(at) = queue.pop_front() {
            for dimension in 0..dimensions {
                for (up, port) in [(true, 2 * dimension + 1), (false, 2 * dimension + 2)] {
                    let own = &grid.place[at];
                    let expected = grid.step(own, dimension, up);
                    let found = neighbour(at, port);
                    let back = if up { port + 1 } else { port - 1 };
                    let fits = match (&expected, found) {
                        (None, None) => continue,
                        (Some(expected), Some((to, to_port))) => {
                            let known = &grid.place[to];
                            usize::from(to_port) == back && (known.is_empty() || known == expected)
                        }
                        _ => false,
                    };
                    let (Some(expected), Some((to, _)), true) = (expected, found, fits) else {
                        return Err(format!(
                            "switch {} port {port} does not lead to port {back} of its neighbour \
                             in dimension {dimension}; mend the cable, or use dfsssp or lash",
                            name(at),
                        ));
                    };
                    if grid.place[to].is_empty() {
                        grid.place[to] = expected;
                        queue.push_back(to);
                    }
                }
            }
        }
        match grid.place.iter().position(Vec::is_empty) {
            Some(vertex) => Err(format!("switch {} is connected to no other", name(vertex))),
            None => Ok(grid),
        }
    }

    /// The place one step on, if there is one.
    fn step(&self, from: &[u32], dimension: usize, up: bool) -> Option<Vec<u32>> {
        let (own, size) = (from[dimension], self.sizes[dimension]);
        let next = match (up, self.closed[dimension]) {
            (true, true) => (own + 1) % size,
            (false, true) => (own + size - 1) % size,
            (true, false) => Some(own + 1).filter(|&next| next < size)?,
            (false, false) => own.checked_sub(1)?,
        };
        let mut place = from.to_vec();
        place[dimension] = next;
        Some(place)
    }

    /// Whether to go up in a dimension, and how many links; `None` when already there.
    pub(super) fn way(&self, at: usize, target: usize, dimension: usize) -> Option<(bool, u32)> {
        let (from, to) = (self.place[at][dimension], self.place[target][dimension]);
        if from == to {
            return None;
        }
        let size = self.sizes[dimension];
        if !self.closed[dimension] {
            return Some((to > from, to.abs_diff(from)));
        }
        let up = (to + size - from) % size;
        let down = size - up;
        // Half way round, pairs take turns, and the way back is the way there: by what is the same
        // at both ends, and all along the dimension.
        let later = |vertex: usize| self.place[vertex][dimension + 1..].iter().sum::<u32>();
        let lower = from.min(to);
        let direct = (lower + later(at) + later(target)).is_multiple_of(2);
        let half = direct == (from == lower);
        Some(match up.cmp(&down) {
            std::cmp::Ordering::Less => (true, up),
            std::cmp::Ordering::Greater => (false, down),
            std::cmp::Ordering::Equal => (half, up),
        })
    }

    fn port(&self, at: usize, target: usize) -> Option<u8> {
        (0..self.sizes.len()).find_map(|dimension| {
            let (up, _) = self.way(at, target, dimension)?;
            Some(2 * dimension as u8 + if up { 1 } else { 2 })
        })
    }

    /// Whether the path crosses the cable that closes the ring.
    pub(super) fn crosses(&self, at: usize, target: usize, dimension: usize) -> bool {
        let from = self.place[at][dimension];
        match self.way(at, target, dimension) {
            None => false,
            Some((true, links)) => from + links >= self.sizes[dimension],
            Some((false, links)) => from < links,
        }
    }
}
