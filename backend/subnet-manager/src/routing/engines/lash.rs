//! Layered shortest-path routing.

use super::dfsssp::channels;
use crate::routing::lanes::layer::Layer;
use crate::routing::lanes::levels::ServiceLevels;
use crate::routing::skeleton::Skeleton;
use crate::routing::spread::{NONE, Spread};
use crate::routing::{Graph, Routing, RoutingEngine, RoutingError};

/// Shortest paths between switches, each on the first virtual lane where it closes no circle of
/// channels that wait for each other ("Layered Shortest Path (LASH) Routing in Irregular System Area
/// Networks", Skeie, Lysne, Theiss).
///
/// Different from OpenSM's: among the shortest paths those are taken whose links carry the fewest
/// others, and paths between switches that have no adapters are given no lane. As with OpenSM's, a
/// path and the path back share a lane.
#[derive(Debug, Clone, Copy)]
pub struct Lash {
    /// Virtual lanes that may be used, 1 to 15.
    pub lanes: u8,
}

impl Default for Lash {
    /// The 8 lanes that most adapters have.
    fn default() -> Self {
        Self { lanes: 8 }
    }
}

impl RoutingEngine for Lash {
    fn name(&self) -> &'static str {
        "lash"
    }

    fn is_layered(&self) -> bool {
        true
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        let skeleton = Skeleton::new(graph);
        let count = skeleton.len();
        let mut columns = skeleton.columns();
        let mut spread = Spread::new(&skeleton);
        // By two vertices: the arc by which the second sends to the first. So all paths to a vertex are
        // in one place.
        let mut next = vec![NONE; count * count];
        for target in 0..count {
            let targets = &skeleton.targets[target];
            if targets.is_empty() {
                continue;
            }
            spread.aim(target);
            spread.find();
            spread.count(skeleton.adapters[target].into());
            next[target * count..][..count].copy_from_slice(&spread.next);
            for lid in targets {
                let column = columns.column(lid.lid);
                spread.fill(column);
                column[target] = lid.port;
            }
        }
        let levels = self
            .layers(&skeleton, &next)
            .map_err(|reason| RoutingError {
                engine: self.name(),
                reason,
            })?;
        Ok(Routing {
            tables: skeleton.unfold(graph, columns.into_tables()),
            levels: ServiceLevels::between(graph, &skeleton, levels),
        })
    }
}

impl Lash {
    /// The lane of every pair of vertices, the same both ways, given the next arc to each from each.
    fn layers(&self, skeleton: &Skeleton, next: &[u32]) -> Result<Vec<u8>, String> {
        let count = skeleton.len();
        let lanes = self.lanes.clamp(1, 15);
        let channels = channels(skeleton);
        let order = up_down(skeleton);
        let mut layers = vec![Layer::new(&channels, &order)];
        let mut levels = vec![0u8; count * count];
        let mut paths = [Vec::new(), Vec::new()];
        for one in 0..count {
            for other in 0..one {
                if skeleton.adapters[one] == 0 && skeleton.adapters[other] == 0 {
                    continue;
                }
                for (path, (from, to)) in paths.iter_mut().zip([(one, other), (other, one)]) {
                    path.clear();
                    let next = &next[to * count..][..count];
                    let mut arc = next[from];
                    while arc != NONE {
                        path.push(arc as usize);
                        arc = next[skeleton.heads()[arc as usize] as usize];
                    }
                }
                let found = layers
                    .iter_mut()
                    .position(|layer| layer.add(&channels, &paths));
                let lane = match found {
                    Some(lane) => lane,
                    None if layers.len() < usize::from(lanes) => {
                        let mut layer = Layer::new(&channels, &order);
                        layer.add(&channels, &paths);
                        layers.push(layer);
                        layers.len() - 1
                    }
                    None => {
                        return Err(format!(
                            "{lanes} virtual lanes do not suffice to keep its paths from waiting \
                             for each other; allow more"
                        ));
                    }
                };
                levels[one * count + other] = lane as u8;
                levels[other * count + one] = lane as u8;
            }
        }
        Ok(levels)
    }
}

/// The arcs in an order in which every path that goes up and then down leads forward, up being where
/// the adapters are not: in trees all shortest paths do.
pub(in crate::routing) fn up_down(skeleton: &Skeleton) -> Vec<u32> {
    // The vertex that is farthest from adapters is at the top, or one of those.
    let mut height = vec![u32::MAX; skeleton.len()];
    let mut reached: Vec<usize> = (0..skeleton.len())
        .filter(|&vertex| skeleton.adapters[vertex] > 0)
        .collect();
    for &vertex in &reached {
        height[vertex] = 0;
    }
    let mut next = 0;
    while let Some(&at) = reached.get(next) {
        next += 1;
        for arc in &skeleton.arcs[skeleton.arcs_of(at)] {
            let to = arc.to as usize;
            if height[to] == u32::MAX {
                height[to] = height[at] + 1;
                reached.push(to);
            }
        }
    }
    let mut order: Vec<u32> = (0..skeleton.arcs.len() as u32).collect();
    order.sort_by_key(|&arc| {
        let arc = skeleton.arcs[arc as usize];
        let to = (height[arc.to as usize], arc.to);
        let from = skeleton.arcs[arc.back as usize].to;
        let from = (height[from as usize], from);
        let height = i64::from(from.0);
        if to > from {
            (0, height, from.1)
        } else {
            (1, -height, from.1)
        }
    });
    order
}
