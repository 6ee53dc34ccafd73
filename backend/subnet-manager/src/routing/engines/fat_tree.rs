//! Routing for fat-trees: as OpenSM's, and with the weight that virtual machines give to links.

use std::ops::Range;

use wire::attribute::LinearBlock;

use crate::routing::columns::Columns;
use crate::routing::reconfiguration::{Before, keep, keep_absent};
use crate::routing::skeleton::{Skeleton, Target};
use crate::routing::tree::{self, NAME_COMPUTE_NODES, Tree, trees};
use crate::routing::{Graph, Routing, RoutingEngine, RoutingError};

/// Fat-tree routing as OpenSM's, from each leaf in order: each adapter's down-route takes the least-used cable; so do
/// the up-routes to it.
///
/// It differs from OpenSM's in four points. Of cables that are used as little, it takes the one from the switch with
/// the fewest down-routes, so that trees with fewer adapters than uplinks are balanced, too. A tree that has lost
/// cables is still routed as a tree, as long as every adapter can be reached by going up and then down. A subnet with
/// cables between switches of a level is no fat-tree. A single switch is one. Adapters that are no compute nodes (`Roles`) reach
/// each other from any level, by a way down and up again if there is no other.
///
/// When cables, switches or LIDs come or go, the entries stay that still lead by a shortest way: as few switches change
/// as can.
#[derive(Debug, Clone, Copy, Default)]
pub struct FatTree;

/// Fat-tree routing for vSwitches: a virtual machine weighs the less the more of them share its
/// vSwitch's uplink ("Efficient Routing and Reconfiguration in Virtualized HPC Environments with
/// vSwitch-enabled Lossless Networks", section 5). With one on each it is [`FatTree`].
#[derive(Debug, Clone, Copy, Default)]
pub struct VSwitchFatTree;

impl RoutingEngine for FatTree {
    fn name(&self) -> &'static str {
        "ftree"
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        route(self.name(), graph, None, alike)
    }

    fn reroute(&self, graph: &Graph, before: Before<'_>) -> Result<Routing, RoutingError> {
        route(self.name(), graph, Some(before), alike)
    }
}

fn alike(targets: &[Target]) -> Vec<(Target, u64)> {
    targets.iter().map(|&target| (target, WHOLE)).collect()
}

impl RoutingEngine for VSwitchFatTree {
    fn name(&self) -> &'static str {
        "vswitch-ftree"
    }

    fn route(&self, graph: &Graph) -> Result<Routing, RoutingError> {
        route(self.name(), graph, None, by_vswitch)
    }

    fn reroute(&self, graph: &Graph, before: Before<'_>) -> Result<Routing, RoutingError> {
        route(self.name(), graph, Some(before), by_vswitch)
    }
}

fn by_vswitch(targets: &[Target]) -> Vec<(Target, u64)> {
    let sharing = |port| targets.iter().filter(|other| other.port == port).count();
    let mut weighed: Vec<_> = targets
        .chunk_by(|a, b| a.port == b.port)
        .flat_map(|machines| {
            let count = sharing(machines[0].port);
            machines.iter().map(move |&machine| (count, machine))
        })
        .collect();
    // Those of the emptiest vSwitches first; ports and LIDs are in order already.
    weighed.sort_by_key(|&(count, _)| count);
    let weigh = |(count, machine)| (machine, WHOLE / count as u64);
    weighed.into_iter().map(weigh).collect()
}

/// The weight of an uplink: divides evenly among up to 16 machines.
const WHOLE: u64 = 720_720;

/// No adapter, in the place of a missing one.
const DUMMY: Option<Target> = None;

fn route(
    engine: &'static str,
    graph: &Graph,
    before: Option<Before<'_>>,
    weigh: impl Fn(&[Target]) -> Vec<(Target, u64)>,
) -> Result<Routing, RoutingError> {
    let mut error = None;
    for tree in trees(graph) {
        let routed =
            tree.and_then(|(skeleton, tree)| route_tree(graph, (&skeleton, &tree), before, &weigh));
        match routed {
            Ok(routing) => return Ok(routing),
            // The error with adapters on leaves alone is the plainest.
            Err(reason) => error = error.or(Some(reason)),
        }
    }
    let reason = error.unwrap_or_default();
    Err(RoutingError { engine, reason })
}

fn route_tree(
    graph: &Graph,
    (skeleton, tree): (&Skeleton, &Tree),
    before: Option<Before<'_>>,
    weigh: &impl Fn(&[Target]) -> Vec<(Target, u64)>,
) -> Result<Routing, String> {
    let mut router = Router::new(graph, skeleton, tree);
    let machines: Vec<Vec<(Target, u64)>> = tree
        .leaves
        .iter()
        .map(|&leaf| {
            let targets = skeleton.targets[leaf].iter();
            let adapters: Vec<_> = targets.filter(|target| target.compute).copied().collect();
            weigh(&adapters)
        })
        .collect();
    let weight = |machines: &Vec<(Target, u64)>| machines.iter().map(|&(_, weight)| weight).sum();
    let heaviest: u64 = machines.iter().map(weight).max().unwrap_or(0);
    for (&leaf, machines) in tree.leaves.iter().zip(&machines) {
        for &(machine, weight) in machines {
            router.route(leaf, Some(machine), weight, true);
        }
        // Leaves that lack adapters would shift the order of the next ones.
        let missing = heaviest - weight(machines);
        for _ in 0..(missing + WHOLE / 2) / WHOLE {
            router.route(leaf, DUMMY, WHOLE, true);
        }
    }
    // The LIDs of vSwitches weigh as much as each other, those of switches nothing.
    for &leaf in &tree.leaves {
        for &target in &skeleton.targets[leaf] {
            if !target.adapter && target.port != 0 {
                router.route(leaf, Some(target), WHOLE, true);
            }
        }
    }
    for vertex in 0..skeleton.len() {
        for &target in &skeleton.targets[vertex] {
            let upper = tree.level[vertex] != tree.leaf_level;
            if !target.adapter && (upper || target.port == 0) {
                router.route(vertex, Some(target), 0, false);
            }
        }
    }
    // Last, so that the others are routed as without them.
    for vertex in 0..skeleton.len() {
        let upper = tree.level[vertex] != tree.leaf_level;
        for &target in &skeleton.targets[vertex] {
            if target.adapter && (upper || !target.compute) {
                router.route(vertex, Some(target), WHOLE, true);
            }
        }
    }
    if let Some((vertex, lid)) = router.unreached {
        let guid = graph.switches[skeleton.switches[vertex]].guid;
        return Err(format!(
            "from switch {guid} LID {lid} cannot be reached by going up and then down; the tree \
             has lost too many cables, or has adapters on roots that lack a way to each other{}",
            if router.hosts.is_empty() {
                ""
            } else {
                NAME_COMPUTE_NODES
            },
        ));
    }
    let mut tables = router.columns.into_tables();
    if let Some(before) = before {
        keep(graph, (skeleton, tree), before, &mut tables);
    }
    let mut tables = skeleton.unfold(graph, tables);
    if let Some(before) = before {
        keep_absent(graph, before, &mut tables);
    }
    Ok(tables.into())
}

/// The cables between two vertices, seen from the upper one or from the lower one.
#[derive(Debug, Clone)]
struct Group {
    /// The vertex at the far end.
    to: u32,
    /// Its cables, as indices of [`Side::cables`].
    first: u32,
    count: u32,
}

#[derive(Debug, Clone, Copy)]
struct Cable {
    /// The port at the far end.
    far: u8,
    /// Load down by it, counted at its lower end, or up by it, counted at its upper end.
    weight: u64,
}

/// The cables of all vertices up, or those down, in one place: what every LID runs through.
#[derive(Debug, Default)]
struct Side {
    /// Where the groups of each vertex begin, and where the last ones end.
    first: Vec<u32>,
    groups: Vec<Group>,
    cables: Vec<Cable>,
}

impl Side {
    fn new(skeleton: &Skeleton, groups: &[Vec<tree::Group>]) -> Self {
        let mut side = Self::default();
        for groups in groups {
            side.first.push(side.groups.len() as u32);
            for group in groups {
                side.groups.push(Group {
                    to: group.to,
                    first: side.cables.len() as u32,
                    count: group.arcs.len() as u32,
                });
                let backs = group
                    .arcs
                    .iter()
                    .map(|&arc| skeleton.arcs[arc as usize].back);
                let far = backs.map(|back| skeleton.arcs[back as usize].port);
                side.cables.extend(far.map(|far| Cable { far, weight: 0 }));
            }
        }
        side.first.push(side.groups.len() as u32);
        side
    }

    /// The groups of a vertex, as indices of [`Side::groups`].
    fn of(&self, vertex: usize) -> Range<usize> {
        self.first[vertex] as usize..self.first[vertex + 1] as usize
    }

    /// The first of a group's cables that carry the fewest paths.
    fn lightest(&self, group: usize) -> usize {
        let Group { first, count, .. } = self.groups[group];
        let cables = first as usize..(first + count) as usize;
        let start = cables.start;
        match count {
            1 => start,
            _ => cables
                .min_by_key(|&cable| self.cables[cable].weight)
                .unwrap_or(start),
        }
    }
}

const NOT_REACHED: u8 = u8::MAX;

/// Takes one LID after the other up to the roots and down again to everyone else.
struct Router<'a> {
    tree: &'a Tree,
    up: Side,
    /// By group up: what goes down by its cables.
    coming: Vec<u64>,
    down: Side,
    /// Whether a vertex is a leaf with adapters.
    populated: Vec<bool>,
    /// Vertices above the leaves that have adapters.
    hosts: Vec<usize>,
    /// Compute nodes are known: the hosts need no way to each other by going up and then down.
    compute_known: bool,
    /// Load down from each vertex.
    falling: Vec<u64>,
    columns: Columns,
    /// By vertex: the port for the LID that is being routed.
    ports: Vec<u8>,
    /// By vertex: links to it.
    hops: Vec<u8>,
    /// By level: vertices that do not reach it yet.
    unrouted: Vec<usize>,
    /// Vertices by level.
    sizes: Vec<usize>,
    /// LIDs routed so far.
    turn: u32,
    /// A vertex with adapters, or a leaf, that does not reach an adapter's LID.
    unreached: Option<(usize, u16)>,
    siblings: Siblings,
}

/// The cables up by which LIDs of one adapter's port go down: each by others, as long as there are
/// more.
#[derive(Default)]
struct Siblings {
    home: Option<(u32, u8)>,
    leaf: usize,
    /// By group of cables from the leaf up: how many come by it.
    used: Vec<u16>,
}

impl<'a> Router<'a> {
    fn new(graph: &Graph, skeleton: &Skeleton, tree: &'a Tree) -> Self {
        let mut sizes = vec![0; usize::from(tree.leaf_level) + 1];
        for &level in &tree.level {
            sizes[usize::from(level)] += 1;
        }
        let up = Side::new(skeleton, &tree.up);
        let is_host = |&vertex: &usize| {
            let mut targets = skeleton.targets[vertex].iter();
            tree.level[vertex] != tree.leaf_level && targets.any(|target| target.adapter)
        };
        Self {
            hosts: (0..skeleton.len()).filter(is_host).collect(),
            compute_known: graph.roles.tell_compute(),
            coming: vec![0; up.groups.len()],
            up,
            down: Side::new(skeleton, &tree.down),
            populated: skeleton.adapters.iter().map(|&count| count > 0).collect(),
            falling: vec![0; skeleton.len()],
            columns: skeleton.columns(),
            ports: vec![LinearBlock::DROP; skeleton.len()],
            hops: vec![NOT_REACHED; skeleton.len()],
            unrouted: sizes.clone(),
            sizes,
            turn: 0,
            unreached: None,
            siblings: Siblings::default(),
            tree,
        }
    }

    /// Routes a LID at a vertex, or nothing for a dummy, whose weight alone counts.
    fn route(&mut self, vertex: usize, target: Option<Target>, weight: u64, main: bool) {
        let home = target.map(|target| target.home);
        if home.is_none() || home != self.siblings.home {
            self.siblings.home = home;
            self.siblings.leaf = vertex;
            self.siblings.used.clear();
            self.siblings.used.resize(self.up.of(vertex).len(), 0);
        }
        self.hops.fill(NOT_REACHED);
        self.ports.fill(LinearBlock::DROP);
        self.unrouted.clone_from(&self.sizes);
        self.turn = self.turn.wrapping_add(1);
        self.set(vertex, target.map_or(0, |target| target.port), 0);
        self.climb(vertex, usize::MAX, weight, main);
        let Some(target) = target else {
            return;
        };
        if target.adapter && self.unreached.is_none() {
            let leaves = match self.unrouted[usize::from(self.tree.leaf_level)] {
                0 => &[][..],
                _ => &self.tree.leaves,
            };
            let optional = self.compute_known && !target.compute;
            let hosts = if optional { &[][..] } else { &self.hosts };
            let mut all = leaves.iter().chain(hosts);
            let lost = all.find(|&&vertex| self.hops[vertex] == NOT_REACHED);
            self.unreached = lost.map(|&vertex| (vertex, target.lid.value()));
        }
        if !self.hosts.is_empty() && self.tree.level[vertex] != self.tree.leaf_level {
            self.connect();
        }
        self.columns.column(target.lid).copy_from_slice(&self.ports);
    }

    /// Has vertices that do not reach the LID by going up and then down reach it by way of others: what
    /// a subnet manager's host on a root and the other roots have to say to each other. No data comes
    /// this way, so nobody waits for it.
    fn connect(&mut self) {
        let reaches = |&vertex: &usize| self.hops[vertex] != NOT_REACHED;
        let mut queue: Vec<usize> = (0..self.hops.len()).filter(reaches).collect();
        queue.sort_by_key(|&vertex| self.hops[vertex]);
        let mut next = 0;
        while let Some(&at) = queue.get(next) {
            next += 1;
            let hops = self.hops[at] + 1;
            let around: Vec<(usize, u8)> = [&self.up, &self.down]
                .into_iter()
                .flat_map(|side| {
                    let cable = |group| &side.cables[side.lightest(group)];
                    let to = |group: usize| side.groups[group].to as usize;
                    side.of(at).map(move |group| (to(group), cable(group).far))
                })
                .collect();
            for (to, port) in around {
                if self.hops[to] == NOT_REACHED {
                    self.set(to, port, hops);
                    queue.push(to);
                }
            }
        }
    }

    fn set(&mut self, vertex: usize, port: u8, hops: u8) {
        if self.hops[vertex] == NOT_REACHED {
            self.unrouted[usize::from(self.tree.level[vertex])] -= 1;
        }
        self.hops[vertex] = hops;
        self.ports[vertex] = port;
    }

    /// From a vertex that reaches the LID: how those above it get down to it.
    fn climb(&mut self, at: usize, from: usize, weight: u64, main: bool) {
        self.descend(at, from, weight);
        let groups = self.up.of(at);
        let hops = self.hops[at] + 1;
        let mut chosen = usize::MAX;
        if main && !groups.is_empty() {
            let siblings = &mut self.siblings;
            let at_leaf = at == siblings.leaf;
            let least = groups.clone().min_by_key(|&index| {
                let used = siblings.used.get(index - groups.start).filter(|_| at_leaf);
                let to = self.up.groups[index].to as usize;
                (used, self.coming[index], self.falling[to])
            });
            chosen = least.unwrap_or(groups.start);
            let place = chosen - groups.start;
            if let Some(used) = siblings.used.get_mut(place).filter(|_| at_leaf) {
                *used += 1;
            }
            let to = self.up.groups[chosen].to as usize;
            self.coming[chosen] += weight;
            self.falling[to] += weight;
            let cable = self.up.lightest(chosen);
            let cable = &mut self.up.cables[cable];
            cable.weight += weight;
            if hops < self.hops[to] {
                let port = cable.far;
                self.set(to, port, hops);
                self.climb(to, at, weight, true);
            }
        }
        // The others only need to know the way; nothing is counted on it.
        let others = groups.filter(|&index| index != chosen);
        if self.unserved() == 0 {
            others.for_each(|index| self.climb_beside(at, index));
            return;
        }
        // Cables are lost, and leaves that the chosen way does not serve come by another one: for each LID by a
        // different one, so that those of a leaf share what it has lost.
        let mut others: Vec<usize> = others.collect();
        if !others.is_empty() {
            let turn = self.turn.wrapping_mul(0x9e37_79b9) >> 8;
            let first = turn as usize % others.len();
            others.rotate_left(first);
            others.sort_by_key(|&index| self.coming[index] / WHOLE);
        }
        others
            .into_iter()
            .for_each(|index| self.climb_beside(at, index));
    }

    /// Climbs by a group that is not the chosen one.
    fn climb_beside(&mut self, at: usize, index: usize) {
        let to = self.up.groups[index].to as usize;
        let hops = self.hops[at] + 1;
        if hops < self.hops[to] {
            let cable = self.up.lightest(index);
            self.set(to, self.up.cables[cable].far, hops);
            let before = self.unserved();
            self.climb(to, at, 0, false);
            let served = (before - self.unserved()) as u64;
            self.coming[index] += WHOLE * served / self.tree.leaves.len() as u64;
        }
    }

    /// Leaves that do not reach the LID yet.
    fn unserved(&self) -> usize {
        self.unrouted[usize::from(self.tree.leaf_level)]
    }

    /// From a vertex that reaches the LID: how those below it get up to it. Returns whether any
    /// adapters do so by way of it.
    fn descend(&mut self, at: usize, from: usize, weight: u64) -> bool {
        let level = usize::from(self.tree.level[at]);
        if level >= usize::from(self.tree.leaf_level) {
            return self.populated[at];
        }
        let mut created = false;
        let hops = self.hops[at] + 1;
        for index in self.down.of(at) {
            // The other switches reach it by a path as short: tables once set are changed for shorter ones only, and
            // those come first.
            if self.unrouted[level + 1] == 0 {
                break;
            }
            let to = self.down.groups[index].to as usize;
            if to == from || hops >= self.hops[to] {
                continue;
            }
            let cable = self.down.lightest(index);
            let port = self.down.cables[cable].far;
            self.set(to, port, hops);
            if self.descend(to, usize::MAX, weight) {
                created = true;
                self.down.cables[cable].weight += weight;
            }
        }
        created
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use wire::{Guid, Lid};

    use super::*;
    use crate::routing::tests::fat_tree;
    use crate::routing::{Endpoint, Roles, Trunk, Verdict, Vertex};

    #[test]
    fn a_small_tree() {
        let graph = fat_tree();
        for engine in [&FatTree as &dyn RoutingEngine, &VSwitchFatTree] {
            let routing = engine.route(&graph).unwrap();
            let verdict = Verdict::new(&graph, &routing);
            assert!(verdict.is_shortest() && verdict.is_free_of_deadlock());
            assert_eq!((verdict.loads.minimum, verdict.loads.maximum), (2, 2));
        }
    }

    /// Fig. 2 of the paper: roots R1 and R2, leaves L1 and L2; vSw1 (VM1, VM2) and vSw2 (VM3, VM4)
    /// at L1, vSw3 (VM5 to VM7) and vSw4 (VM8) at L2. LIDs: VMs 1 to 8, vSwitches 11 to 14, switches
    /// 21 to 24.
    fn example() -> Graph {
        let trunk = |port, to, to_port| Trunk { port, to, to_port };
        let vertex = |guid, trunks: &[Trunk]| Vertex {
            guid: Guid::new(guid),
            ports: 8,
            trunks: trunks.to_vec(),
        };
        let endpoint = |lid, switch, port| Endpoint {
            lid: Lid::new(lid),
            guid: Guid::new(u64::from(lid)),
            switch,
            port,
        };
        Graph {
            switches: vec![
                vertex(1, &[trunk(1, 2, 3), trunk(2, 3, 3)]),
                vertex(2, &[trunk(1, 2, 4), trunk(2, 3, 4)]),
                vertex(
                    3,
                    &[
                        trunk(1, 4, 1),
                        trunk(2, 5, 1),
                        trunk(3, 0, 1),
                        trunk(4, 1, 1),
                    ],
                ),
                vertex(
                    4,
                    &[
                        trunk(1, 6, 1),
                        trunk(2, 7, 1),
                        trunk(3, 0, 2),
                        trunk(4, 1, 2),
                    ],
                ),
                vertex(5, &[trunk(1, 2, 1)]),
                vertex(6, &[trunk(1, 2, 2)]),
                vertex(7, &[trunk(1, 3, 1)]),
                vertex(8, &[trunk(1, 3, 2)]),
            ],
            endpoints: vec![
                endpoint(1, 4, 2),
                endpoint(2, 4, 3),
                endpoint(3, 5, 2),
                endpoint(4, 5, 3),
                endpoint(5, 6, 2),
                endpoint(6, 6, 3),
                endpoint(7, 6, 4),
                endpoint(8, 7, 2),
                endpoint(11, 4, 0),
                endpoint(12, 5, 0),
                endpoint(13, 6, 0),
                endpoint(14, 7, 0),
                endpoint(21, 0, 0),
                endpoint(22, 1, 0),
                endpoint(23, 2, 0),
                endpoint(24, 3, 0),
            ],
            ..Graph::default()
        }
    }

    #[test]
    fn the_worked_example() {
        let graph = example();
        let routing = VSwitchFatTree.route(&graph).unwrap();
        let verdict = Verdict::new(&graph, &routing);
        assert!(verdict.is_connected(), "{:?}", verdict.faults);
        assert!(verdict.is_shortest() && verdict.is_free_of_deadlock());
        // The root by which the other leaf sends to a VM.
        let by = |leaf: usize, vm| match routing.tables[leaf].port(Lid::new(vm)) {
            3 => "R1",
            4 => "R2",
            port => panic!("VM{vm} by port {port}"),
        };
        assert_eq!([1, 2, 3, 4].map(|vm| by(3, vm)), ["R1", "R2", "R1", "R2"]);
        assert_eq!([8, 5, 6, 7].map(|vm| by(2, vm)), ["R1", "R2", "R2", "R2"]);
        // At the vSwitches: their own to their ports, the rest up.
        assert_eq!(routing.tables[4].port(Lid::new(2)), 3);
        assert_eq!(routing.tables[4].port(Lid::new(11)), 0);
        assert_eq!(routing.tables[4].port(Lid::new(8)), 1);
        // Plain fat-tree routing counts VMs, not vSwitches.
        let plain = FatTree.route(&graph).unwrap();
        let port = |vm| plain.tables[2].port(Lid::new(vm));
        assert_eq!([port(5), port(6), port(7), port(8)], [3, 4, 3, 4]);
    }

    #[test]
    fn a_tree_that_is_none() {
        let mut graph = fat_tree();
        graph.switches[0].trunks.push(Trunk {
            port: 9,
            to: 1,
            to_port: 9,
        });
        graph.switches[1].trunks.push(Trunk {
            port: 9,
            to: 0,
            to_port: 9,
        });
        let error = FatTree.route(&graph).unwrap_err().to_string();
        assert_eq!(
            error,
            "ftree cannot route this subnet: switches 0000:0000:0000:0001 and 0000:0000:0000:0002 \
             are cabled to each other though both are 0 links from the nearest adapter; a fat-tree \
             has no such cables; where adapters are on spines, name the ports of compute nodes in sm.cn_guid_file"
        );
        let empty = FatTree.route(&Graph::default()).unwrap_err();
        assert!(empty.to_string().contains("no channel adapters"));
    }

    /// The first spine of a tree has an adapter, such as a subnet manager's host: everybody reaches it,
    /// and all others are routed as without.
    #[test]
    fn an_adapter_on_a_spine() {
        for (without, spine) in [(fat_tree(), 2), (example(), 0)] {
            let mut graph = without.clone();
            graph.endpoints.push(Endpoint {
                lid: Lid::new(50),
                guid: Guid::new(50),
                switch: spine,
                port: 7,
            });
            for engine in [&FatTree as &dyn RoutingEngine, &VSwitchFatTree] {
                let routing = engine.route(&graph).unwrap();
                let verdict = Verdict::new(&graph, &routing);
                assert!(verdict.is_connected(), "{:?}", verdict.faults);
                assert!(verdict.is_shortest() && verdict.is_free_of_deadlock());
                let expected = engine.route(&without).unwrap();
                for (table, expected) in routing.tables.iter().zip(&expected.tables) {
                    let lids = without.endpoints.iter().map(|endpoint| endpoint.lid);
                    for lid in lids.filter(|&lid| expected.port(lid) != LinearBlock::DROP) {
                        assert_eq!(table.port(lid), expected.port(lid), "{lid}");
                    }
                }
            }
        }
    }

    /// Two of them, on spines that have no way to each other but down and up again: that is no tree.
    #[test]
    fn adapters_on_two_spines() {
        let mut graph = fat_tree();
        for (lid, switch) in [(50, 2), (51, 3)] {
            graph.endpoints.push(Endpoint {
                lid: Lid::new(lid),
                guid: Guid::new(u64::from(lid)),
                switch,
                port: 7,
            });
        }
        let error = FatTree.route(&graph).unwrap_err().to_string();
        assert!(error.ends_with(NAME_COMPUTE_NODES), "{error}");
        // Once somebody says that they are no compute nodes, they reach each other as well as they can.
        let spines = BTreeSet::from([50, 51].map(Guid::new));
        let hosts = BTreeSet::from([5, 6, 7, 8].map(Guid::new));
        let roots = BTreeSet::from([3, 4].map(Guid::new));
        let io = Roles {
            io: spines,
            ..Roles::default()
        };
        let compute = Roles {
            compute: Some(hosts),
            ..Roles::default()
        };
        let rooted = Roles {
            roots,
            ..compute.clone()
        };
        let without = FatTree.route(&fat_tree()).unwrap();
        for roles in [io, compute, rooted] {
            graph.roles = Arc::new(roles);
            for engine in [&FatTree as &dyn RoutingEngine, &VSwitchFatTree] {
                let routing = engine.route(&graph).unwrap();
                let verdict = Verdict::new(&graph, &routing);
                assert!(verdict.is_shortest(), "{:?}", verdict.faults);
                for (table, expected) in routing.tables.iter().zip(&without.tables) {
                    for lid in 5..=8 {
                        assert_eq!(table.port(Lid::new(lid)), expected.port(Lid::new(lid)));
                    }
                }
            }
        }
    }

    #[test]
    fn roles_that_do_not_fit() {
        let error = |roles| {
            let roles = Arc::new(roles);
            let graph = Graph {
                roles,
                ..fat_tree()
            };
            FatTree.route(&graph).unwrap_err().reason
        };
        let none = BTreeSet::from([Guid::new(0x99)]);
        let roots = none.clone();
        let text = error(Roles {
            roots,
            ..Roles::default()
        });
        assert_eq!(text, "none of the switches named as roots is in it");
        let compute = Some(none);
        let text = error(Roles {
            compute,
            ..Roles::default()
        });
        assert_eq!(text, "the subnet has no compute node of sm.cn_guid_file");
        // A leaf is none.
        let roots = BTreeSet::from([Guid::new(1)]);
        let compute = Some(BTreeSet::from([Guid::new(5), Guid::new(7)]));
        let text = error(Roles {
            roots,
            compute,
            ..Roles::default()
        });
        assert_eq!(
            text,
            "switches 0000:0000:0000:0002 and 0000:0000:0000:0001 have compute nodes, but are 2 and 0 links from the \
             nearest root; write roots that all of them are as far from"
        );
    }

    #[test]
    fn a_tree_with_a_cable_lost() {
        let mut graph = fat_tree();
        graph.switches[0].trunks.pop();
        graph.switches[3].trunks.remove(0);
        let routing = FatTree.route(&graph).unwrap();
        let verdict = Verdict::new(&graph, &routing);
        assert!(verdict.is_free_of_deadlock());
        // The spine that has lost it cannot reach the leaf by going down.
        assert!(verdict.faults.iter().all(|fault| fault.switch == 3));
    }
}
