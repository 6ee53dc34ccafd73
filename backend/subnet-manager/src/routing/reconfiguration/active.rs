//! Active routes: which switches carry how many of them, so that those are told first.

use super::super::{Endpoint, Graph};

/// Counts the routes of live ports through switches.
#[derive(Debug)]
pub struct ActiveRoutes<'a> {
    graph: &'a Graph,
    /// By switch: live LIDs at it.
    live: Vec<u32>,
    /// By switch: the one that a LID is sent to.
    next: Vec<Option<usize>>,
    /// By switch: those that send the LID to it and are not counted yet.
    open: Vec<u32>,
    routes: Vec<u32>,
}

impl<'a> ActiveRoutes<'a> {
    /// Counts the live LIDs at each switch.
    pub fn live(graph: &Graph, is_live: impl Fn(&Endpoint) -> bool) -> Vec<u32> {
        let mut live = vec![0; graph.switches.len()];
        for end in &graph.endpoints {
            live[end.switch] += u32::from(is_live(end));
        }
        live
    }

    /// Counts routes of so many live LIDs at each switch.
    pub fn new(graph: &'a Graph, live: Vec<u32>) -> Self {
        Self {
            next: Vec::with_capacity(live.len()),
            open: Vec::with_capacity(live.len()),
            routes: Vec::with_capacity(live.len()),
            graph,
            live,
        }
    }

    /// The number of routes from live ports to a LID that cross each switch, where every switch sends it by this port.
    pub fn to(&mut self, port: impl Fn(usize) -> u8) -> &[u32] {
        let Self {
            graph,
            live,
            next,
            open,
            routes,
        } = self;
        let switches = graph.switches.iter().enumerate();
        next.clear();
        next.extend(switches.map(|(at, _)| graph.neighbour(at, port(at))));
        open.clear();
        open.resize(next.len(), 0);
        for &to in next.iter().flatten() {
            open[to] += 1;
        }
        routes.clone_from(live);
        for start in 0..next.len() {
            // Each is counted when all that send to it are; those on a circle never.
            let mut at = start;
            while open[at] == 0 {
                open[at] = u32::MAX;
                let Some(to) = next[at] else {
                    break;
                };
                routes[to] = routes[to].saturating_add(routes[at]);
                open[to] = open[to].saturating_sub(1);
                at = to;
            }
        }
        routes
    }
}

#[cfg(test)]
mod tests {
    use wire::Lid;

    use super::super::super::tests::fat_tree;
    use super::super::super::{MinHop, RoutingEngine};
    use super::*;

    #[test]
    fn routes_of_live_ports() {
        let graph = fat_tree();
        let tables = MinHop.route(&graph).unwrap().tables;
        let is_live = |end: &Endpoint| end.port != 0 && end.lid != Lid::new(6);
        let mut routes = ActiveRoutes::new(&graph, ActiveRoutes::live(&graph, is_live));
        let to = Lid::new(7);
        let port = |at: usize| tables[at].port(to);
        let spine = graph.neighbour(0, port(0)).unwrap();
        let counts = routes.to(port);
        // From the host 5; and at the leaf the hosts 7 and 8 besides.
        assert_eq!([counts[0], counts[1], counts[spine]], [1, 3, 1]);
        assert_eq!(counts[5 - spine], 0);
        // A circle has no end.
        let circle = |at: usize| [port(0), 3, 1, 1][at];
        assert_eq!(ActiveRoutes::new(&graph, vec![1; 4]).to(circle).len(), 4);
    }
}
