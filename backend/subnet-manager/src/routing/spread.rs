//! Shortest paths that spread over the links: each goes where the fewest went before.

use wire::attribute::LinearBlock;

use super::skeleton::Skeleton;

/// No arc: at the vertex that paths lead to, or where there is no way.
pub(super) const NONE: u32 = u32::MAX;

/// An arc that leads closer to the vertex that is aimed at.
#[derive(Debug, Clone, Copy)]
struct Closer {
    arc: u32,
    /// Where it leads to.
    to: u32,
    /// Adapters' paths that cross it.
    load: u64,
}

/// Finds, vertex by vertex, the shortest paths to it whose links carry the fewest paths so far.
///
/// The same as Dijkstra's algorithm with a weight per link that starts above whatever all paths
/// together can add, as in "Deadlock-Free Oblivious Routing for Arbitrary Topologies" (Domke,
/// Hoefler, Nagel): then only shortest paths count, and they can be found by rising distance.
#[derive(Debug)]
pub(super) struct Spread<'a> {
    skeleton: &'a Skeleton,
    /// By arc: adapters' paths that cross it, but for those in `closer`.
    load: Vec<u64>,
    distance: Vec<u32>,
    /// Vertices by rising distance.
    pub(super) order: Vec<u32>,
    /// By place in `order`: where its arcs that lead closer begin in `closer`.
    first: Vec<u32>,
    closer: Vec<Closer>,
    /// By place in `order`: which of `closer` is taken.
    taken: Vec<u32>,
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
            distance: vec![u32::MAX; skeleton.len()],
            order: Vec::new(),
            first: Vec::new(),
            closer: Vec::new(),
            taken: Vec::new(),
            cost: vec![0; skeleton.len()],
            flow: vec![0; skeleton.len()],
            next: vec![NONE; skeleton.len()],
        }
    }

    /// Turns to another vertex to find paths to.
    pub(super) fn aim(&mut self, target: usize) {
        for closer in &self.closer {
            self.load[closer.arc as usize] = closer.load;
        }
        let skeleton = self.skeleton;
        self.distance.fill(u32::MAX);
        self.distance[target] = 0;
        self.order.clear();
        self.order.push(target as u32);
        self.first.clear();
        self.closer.clear();
        let mut reached = 0;
        while let Some(&at) = self.order.get(reached) {
            reached += 1;
            self.first.push(self.closer.len() as u32);
            let own = self.distance[at as usize];
            let arcs = skeleton.arcs_of(at as usize);
            for (arc, &to) in arcs.clone().zip(&skeleton.heads()[arcs]) {
                let distance = &mut self.distance[to as usize];
                // Whatever is closer was reached before.
                if *distance < own {
                    self.closer.push(Closer {
                        arc: arc as u32,
                        to,
                        load: self.load[arc],
                    });
                } else if *distance == u32::MAX {
                    *distance = own + 1;
                    self.order.push(to);
                }
            }
        }
        self.first.push(self.closer.len() as u32);
        self.taken.resize(self.order.len(), NONE);
        self.next.fill(NONE);
    }

    /// Finds a path from every vertex.
    pub(super) fn find(&mut self) {
        let places = self.order.iter().zip(self.first.windows(2));
        for ((&at, range), taken) in places.zip(&mut self.taken) {
            let mut best = u64::MAX;
            let mut found = None;
            let range = range[0]..range[1];
            for (index, closer) in range.clone().zip(&self.closer[range.start as usize..]) {
                let cost = self.cost[closer.to as usize] + closer.load;
                if cost < best {
                    (best, found) = (cost, Some((index, closer.arc)));
                }
            }
            let (index, arc) = found.unwrap_or((NONE, NONE));
            *taken = index;
            self.next[at as usize] = arc;
            self.cost[at as usize] = if arc == NONE { 0 } else { best };
        }
    }

    /// Counts the paths found: one from every adapter, times `weight`.
    pub(super) fn count(&mut self, weight: u64) {
        for (flow, &adapters) in self.flow.iter_mut().zip(&self.skeleton.adapters) {
            *flow = u64::from(adapters);
        }
        for (&at, &taken) in self.order.iter().zip(&self.taken).rev() {
            let flow = self.flow[at as usize];
            if taken != NONE && flow > 0 {
                let closer = &mut self.closer[taken as usize];
                closer.load += flow * weight;
                self.flow[closer.to as usize] += flow;
            }
        }
    }

    /// Fills in the ports by which vertices send; not that of the vertex aimed at.
    pub(super) fn fill(&self, column: &mut [u8]) {
        for (port, &arc) in column.iter_mut().zip(&self.next) {
            let arc = self.skeleton.arcs.get(arc as usize);
            *port = arc.map_or(LinearBlock::DROP, |arc| arc.port);
        }
    }
}
