//! Shortest paths that spread over the links: each goes where the fewest went before.

use super::skeleton::Skeleton;

/// No arc: at the vertex that paths lead to, or where there is no way.
pub(super) const NONE: u32 = u32::MAX;

/// Finds, vertex by vertex, the shortest paths to it whose links carry the fewest paths so far.
///
/// The same as Dijkstra's algorithm with a weight per link that starts above whatever all paths
/// together can add, as in "Deadlock-Free Oblivious Routing for Arbitrary Topologies" (Domke,
/// Hoefler, Nagel): then only shortest paths count, and they can be found by rising distance.
#[derive(Debug)]
pub(super) struct Spread<'a> {
    skeleton: &'a Skeleton,
    /// By arc: adapters' paths that cross it.
    load: Vec<u64>,
    distance: Vec<u32>,
    /// Vertices by rising distance.
    pub(super) order: Vec<u32>,
    /// By place in `order`: where its arcs that lead closer begin in `closer`.
    first: Vec<u32>,
    closer: Vec<u32>,
    cost: Vec<u64>,
    flow: Vec<u64>,
    /// By vertex: the arc by which it sends.
    pub(super) next: Vec<u32>,
}

impl<'a> Spread<'a> {
    pub(super) fn new(skeleton: &'a Skeleton) -> Self {
        Self {
            skeleton,
            load: vec![0; skeleton.arcs.len()],
            distance: Vec::new(),
            order: Vec::new(),
            first: Vec::new(),
            closer: Vec::new(),
            cost: vec![0; skeleton.len()],
            flow: vec![0; skeleton.len()],
            next: vec![NONE; skeleton.len()],
        }
    }

    /// Turns to another vertex to find paths to.
    pub(super) fn aim(&mut self, target: usize) {
        let skeleton = self.skeleton;
        skeleton.distances(target, &mut self.distance, &mut self.order);
        self.first.clear();
        self.closer.clear();
        for &at in &self.order {
            self.first.push(self.closer.len() as u32);
            let own = self.distance[at as usize];
            for index in skeleton.arcs_of(at as usize) {
                let to = skeleton.arcs[index].to as usize;
                // A distance of its own is none less than that of any vertex without a way.
                if self.distance[to] < own {
                    self.closer.push(index as u32);
                }
            }
        }
        self.first.push(self.closer.len() as u32);
        self.next.fill(NONE);
    }

    /// Finds a path from every vertex.
    pub(super) fn find(&mut self) {
        let places = self.order.iter().zip(self.first.windows(2));
        for (&at, range) in places {
            let mut best = u64::MAX;
            let mut next = NONE;
            for &arc in &self.closer[range[0] as usize..range[1] as usize] {
                let to = self.skeleton.arcs[arc as usize].to as usize;
                let cost = self.cost[to] + self.load[arc as usize];
                if cost < best {
                    (best, next) = (cost, arc);
                }
            }
            self.next[at as usize] = next;
            self.cost[at as usize] = if next == NONE { 0 } else { best };
        }
    }

    /// Counts the paths found: one from every adapter, times `weight`.
    pub(super) fn count(&mut self, weight: u64) {
        for (flow, &adapters) in self.flow.iter_mut().zip(&self.skeleton.adapters) {
            *flow = u64::from(adapters);
        }
        for &at in self.order.iter().rev() {
            let arc = self.next[at as usize];
            let flow = self.flow[at as usize];
            if arc != NONE && flow > 0 {
                self.load[arc as usize] += flow * weight;
                self.flow[self.skeleton.arcs[arc as usize].to as usize] += flow;
            }
        }
    }
}
