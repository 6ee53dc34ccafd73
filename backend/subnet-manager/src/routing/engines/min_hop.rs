//! Shortest paths.

use crate::routing::balance::{FAR, Trunks, Ways, distances, spread};
use crate::routing::{ForwardingTable, Graph, Routing, RoutingEngine, RoutingError};

/// Every LID by a shortest path; among the ports on shortest paths the one that the fewest adapters'
/// LIDs use so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct MinHop;

impl MinHop {
    fn tables(graph: &Graph, before: Option<(&Graph, &[ForwardingTable])>) -> Routing {
        let trunks = Trunks::new(graph);
        let (mut found, mut queue) = (Vec::new(), Vec::new());
        let ways = |target: usize, ways: &mut Ways| {
            distances(&trunks, target, &mut found, &mut queue);
            for (switch, &distance) in found.iter().enumerate() {
                // FAR, too, is no neighbour's distance and one.
                let shorter =
                    |&(to, _): &(usize, u8)| found[to] != FAR && found[to] + 1 == distance;
                let ports = trunks.of(switch).filter(shorter);
                ways.next(ports.map(|(_, port)| port));
            }
        };
        spread(graph, before, ways).into()
    }
}

impl RoutingEngine for MinHop {
    fn name(&self) -> &'static str {
        "minhop"
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        Ok(Self::tables(graph, None))
    }

    fn reroute(
        &self,
        graph: &Graph,
        before: (&Graph, &[ForwardingTable]),
    ) -> Result<Routing, RoutingError> {
        Ok(Self::tables(graph, Some(before)))
    }
}
