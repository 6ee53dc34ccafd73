//! Up*/down*: no packet goes up again after it has gone down.

use std::collections::{BTreeSet, VecDeque};

use wire::Guid;

use crate::routing::balance::{FAR, Trunks, Ways, distances, spread};
use crate::routing::{ForwardingTable, Graph, Routing, RoutingEngine, RoutingError};

/// Up*/down* as OpenSM's `updn`: switches are ranked by their distance from the roots, every link
/// leads up towards the lower rank (of equals, the lower GUID), and a path goes up, then down, and
/// never up again. So no circle of links waits for itself, whatever the topology.
///
/// A switch that can reach a LID by going down does so, even where going up would be shorter: a
/// packet that came to it from above may go nowhere else.
///
/// Where no such path leads, as between two roots, the shortest one is taken if one of its ends is a
/// switch: what a switch itself sends and gets are management packets, which have a lane of their
/// own. Between adapters that is an error.
#[derive(Debug, Clone, Default)]
pub struct UpDown {
    roots: BTreeSet<Guid>,
}

impl UpDown {
    /// With these switches as roots besides those of [`Roles`](crate::routing::Roles); with none, they are found: the switches that nearly all
    /// adapters are equally far from, and if there are none, the one in the middle.
    pub fn new(roots: impl IntoIterator<Item = Guid>) -> Self {
        Self {
            roots: roots.into_iter().collect(),
        }
    }

    /// The roots in this graph.
    ///
    /// # Errors
    /// [`RoutingError`] when none of the switches named as roots is in it.
    pub fn roots(&self, graph: &Graph) -> Result<Vec<usize>, RoutingError> {
        let roots = &self.roots | &graph.roles.roots;
        if roots.is_empty() {
            return Ok(find_roots(graph));
        }
        let switches = graph.switches.iter().enumerate();
        let named = switches.filter(|(_, vertex)| roots.contains(&vertex.guid));
        let roots: Vec<usize> = named.map(|(index, _)| index).collect();
        if roots.is_empty() {
            return Err(RoutingError {
                engine: self.name(),
                reason: "none of the switches named as roots is in it".to_owned(),
            });
        }
        Ok(roots)
    }

    fn tables(
        &self,
        graph: &Graph,
        before: Option<(&Graph, &[ForwardingTable])>,
    ) -> Result<Routing, RoutingError> {
        let trunks = Trunks::new(graph);
        let order = Order::new(graph, &trunks, &self.roots(graph)?);
        let mut leaf = vec![false; graph.switches.len()];
        for endpoint in graph.endpoints.iter().filter(|one| one.port != 0) {
            leaf[endpoint.switch] = true;
        }
        let mut search = Search::default();
        let mut illegal = None;
        let ways = |target: usize, ways: &mut Ways| {
            search.ways(&trunks, &order, target, ways);
            if leaf[target] {
                let pairs = search.illegal.iter().filter(|&&switch| leaf[switch]);
                illegal = illegal.or(pairs.map(|&switch| (switch, target)).next());
            }
        };
        let tables = spread(graph, before, ways);
        match illegal {
            None => Ok(tables.into()),
            Some((from, to)) => {
                let [from, to] = [from, to].map(|switch| graph.switches[switch].guid);
                Err(RoutingError {
                    engine: self.name(),
                    reason: format!(
                        "no path from switch {from} to switch {to} goes up and then down; name \
                         other roots"
                    ),
                })
            }
        }
    }
}

impl RoutingEngine for UpDown {
    fn name(&self) -> &'static str {
        "updn"
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        self.tables(graph, None)
    }

    fn reroute(
        &self,
        graph: &Graph,
        before: (&Graph, &[ForwardingTable]),
    ) -> Result<Routing, RoutingError> {
        // Only where no link changes its direction.
        let order = |graph: &Graph| {
            let trunks = Trunks::new(graph);
            let roots = self.roots(graph).ok()?;
            Some(Order::new(graph, &trunks, &roots))
        };
        let same = order(graph).is_some_and(|now| Some(now) == order(before.0));
        self.tables(graph, same.then_some(before))
    }
}

/// OpenSM's thresholds of `updn_find_root_nodes_by_min_hop`: a root has more than 90 % of the
/// adapters at one distance, and at no other more than 5 %.
const MAJORITY: f64 = 0.9;
const MINORITY: f64 = 0.05;

fn find_roots(graph: &Graph) -> Vec<usize> {
    let trunks = Trunks::new(graph);
    let mut adapters = vec![0u32; graph.switches.len()];
    for endpoint in graph.endpoints.iter().filter(|one| one.port != 0) {
        adapters[endpoint.switch] += 1;
    }
    let total = f64::from(adapters.iter().sum::<u32>());
    let (mut found, mut queue) = (Vec::new(), Vec::new());
    let mut roots = Vec::new();
    let mut centre = None;
    for switch in 0..graph.switches.len() {
        distances(&trunks, switch, &mut found, &mut queue);
        let mut at = Vec::new();
        for (&distance, &adapters) in found.iter().zip(&adapters) {
            if distance != FAR && adapters > 0 {
                let distance = distance as usize;
                at.resize(at.len().max(distance + 1), 0);
                at[distance] += adapters;
            }
        }
        let more = |share: f64| {
            let counts = at.iter().map(|&count| f64::from(count));
            counts.filter(|&count| count > share * total).count()
        };
        if total > 0.0 && more(MAJORITY) == 1 && more(MINORITY) == 1 && adapters[switch] == 0 {
            roots.push(switch);
        }
        let reached = found.iter().filter(|&&distance| distance != FAR);
        let sum: u64 = reached.clone().map(|&distance| u64::from(distance)).sum();
        let rank = (found.len() - reached.count(), sum, switch);
        centre = centre.into_iter().chain([rank]).min();
    }
    if roots.is_empty() {
        roots.extend(centre.map(|(_, _, switch)| switch));
    }
    roots
}

/// Order of two switches: the one with the lesser entry is above the other. Indexes follow GUIDs.
#[derive(Debug, PartialEq, Eq)]
struct Order {
    rank: Vec<(u32, usize)>,
    /// The switches from above to below.
    sorted: Vec<usize>,
}

impl Order {
    fn new(graph: &Graph, trunks: &Trunks, roots: &[usize]) -> Self {
        let mut level = vec![FAR; graph.switches.len()];
        let mut from = |sources: &[usize]| {
            let mut queue: Vec<usize> = sources.to_vec();
            queue.retain(|&source| level[source] == FAR);
            for &source in &queue {
                level[source] = 0;
            }
            let mut next = 0;
            while let Some(&at) = queue.get(next) {
                next += 1;
                for (neighbour, _) in trunks.of(at) {
                    if level[neighbour] == FAR {
                        level[neighbour] = level[at] + 1;
                        queue.push(neighbour);
                    }
                }
            }
        };
        from(roots);
        // Parts that no root reaches have the first of their switches for a root.
        for switch in 0..graph.switches.len() {
            from(&[switch]);
        }
        let rank: Vec<_> = level.into_iter().zip(0..).collect();
        let mut sorted: Vec<usize> = (0..rank.len()).collect();
        sorted.sort_unstable_by_key(|&switch| rank[switch]);
        Self { rank, sorted }
    }

    /// Whether the way from `from` to `to` leads up.
    fn is_up(&self, from: usize, to: usize) -> bool {
        self.rank[to] < self.rank[from]
    }
}

#[derive(Debug, Default)]
struct Search {
    /// Links to the target when only going down.
    down: Vec<u32>,
    /// Links to the target by the way that is taken.
    taken: Vec<u32>,
    queue: Vec<usize>,
    /// Switches that reach the target, and not by a path that goes up and then down.
    illegal: Vec<usize>,
}

impl Search {
    fn ways(&mut self, trunks: &Trunks, order: &Order, target: usize, ways: &mut Ways) {
        let Self {
            down,
            taken,
            queue,
            illegal,
        } = self;
        down.clear();
        down.resize(trunks.len(), FAR);
        down[target] = 0;
        queue.clear();
        queue.push(target);
        let mut next = 0;
        while let Some(&at) = queue.get(next) {
            next += 1;
            for (above, _) in trunks.of(at) {
                if order.is_up(at, above) && down[above] == FAR {
                    down[above] = down[at] + 1;
                    queue.push(above);
                }
            }
        }
        taken.clone_from(down);
        // Those above are known before those below.
        for &switch in &order.sorted {
            if down[switch] == FAR {
                let up = trunks.of(switch).filter(|&(to, _)| order.is_up(switch, to));
                let least = up.map(|(to, _)| taken[to]).min().unwrap_or(FAR);
                taken[switch] = least.saturating_add(1);
            }
        }
        illegal.clear();
        queue.clear();
        queue.extend((0..trunks.len()).filter(|&switch| taken[switch] != FAR));
        if queue.len() < trunks.len() {
            queue.sort_by_key(|&switch| taken[switch]);
            relax(trunks, taken, queue, illegal);
        }
        let mut beyond = illegal.iter().copied().peekable();
        for switch in 0..trunks.len() {
            let any = beyond.next_if_eq(&switch).is_some();
            let goes_down = down[switch] != FAR;
            let good = |&(to, _): &(usize, u8)| {
                if goes_down {
                    order.is_up(to, switch) && down[to] != FAR && down[to] + 1 == down[switch]
                } else {
                    let nearer = taken[to] != FAR && taken[to] + 1 == taken[switch];
                    nearer && (any || order.is_up(switch, to))
                }
            };
            let ports = trunks.of(switch).filter(good);
            ways.next(ports.map(|(_, port)| port));
        }
    }
}

/// Gives the switches that are [`FAR`] their distance by way of those that are not; they are in
/// `queue`, nearest first. Notes the former by rising index.
fn relax(trunks: &Trunks, taken: &mut [u32], queue: &[usize], illegal: &mut Vec<usize>) {
    let mut next = 0;
    let mut later = VecDeque::new();
    loop {
        // Two queues, each in order, make one.
        let at = match (queue.get(next), later.front()) {
            (Some(&one), Some(&other)) if taken[one] > taken[other] => later.pop_front(),
            (Some(&one), _) => {
                next += 1;
                Some(one)
            }
            (None, _) => later.pop_front(),
        };
        let Some(at) = at else {
            break;
        };
        for (neighbour, _) in trunks.of(at) {
            if taken[neighbour] == FAR {
                taken[neighbour] = taken[at] + 1;
                later.push_back(neighbour);
                illegal.push(neighbour);
            }
        }
    }
    illegal.sort_unstable();
}
