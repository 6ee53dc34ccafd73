//! Fat-trees: levels, the switches above and below each one, and their tuples.

use std::cmp::Reverse;
use std::collections::{HashSet, VecDeque};

use super::skeleton::Skeleton;
use super::{Graph, Vertex};

/// The levels of switches that OpenSM's fat-tree routing takes.
const MAX_LEVELS: usize = 8;
/// Remedy where adapters on spines are taken for compute nodes.
pub(super) const NAME_COMPUTE_NODES: &str =
    "; where adapters are on spines, name the ports of compute nodes in sm.cn_guid_file";

/// The cables between a switch and one above or below it.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// The vertex at the other end.
    pub(super) to: u32,
    /// Its arcs, by rising port.
    pub(super) arcs: Vec<u32>,
}

/// A fat-tree: vertices in levels, cables between neighbouring levels only.
///
/// Level 0 are the roots. A vertex has a tuple: its level, and a digit for every level below the
/// roots, so that neighbours on levels l and l + 1 agree in all digits but digit l + 1. They are
/// given as OpenSM's fat-tree routing gives them, and put the vertices into an order.
#[derive(Debug)]
pub(super) struct Tree {
    /// By vertex, from the roots' 0.
    pub(super) level: Vec<u8>,
    /// The level of the vertices with adapters, and of those like them that have none.
    pub(super) leaf_level: u8,
    /// By vertex.
    pub(super) tuple: Vec<Vec<u16>>,
    /// Towards the roots, by vertex, by rising tuple.
    pub(super) up: Vec<Vec<Group>>,
    /// Away from the roots, by vertex, by rising tuple.
    pub(super) down: Vec<Vec<Group>>,
    /// The vertices on the level of those with adapters, by rising tuple.
    pub(super) leaves: Vec<usize>,
}

/// The trees that a graph may be: for each what its vertices are, or what shows that it is none. The
/// first is where all switches with adapters are leaves.
///
/// An adapter may be on a switch above the leaves, as a subnet manager's host on a spine. Structure
/// alone cannot tell it from a leaf, nor a vSwitch from a leaf that has lost cables; numbers of
/// adapters can, or [`Roles`](super::Roles). So of two switches that are cabled to each other the one with more is taken to
/// be the leaf: first by the adapters on it, then by those on vSwitches below it, too.
pub(super) fn trees(graph: &Graph) -> impl Iterator<Item = Result<(Skeleton, Tree), String>> {
    let count = graph.switches.len();
    let is_single = |at: usize| graph.switches[at].trunks.len() < 2;
    let mut own = vec![0; count];
    for endpoint in &graph.endpoints {
        let is_compute = endpoint.port != 0 && graph.roles.is_compute(endpoint.guid);
        own[endpoint.switch] += usize::from(is_compute);
    }
    let with_below: Vec<usize> = (0..count)
        .map(|at| {
            let trunks = graph.switches[at].trunks.iter();
            let below = trunks.filter(|trunk| is_single(trunk.to));
            own[at] + below.map(|trunk| own[trunk.to]).sum::<usize>()
        })
        .collect();
    let upper = |weights: &[usize]| {
        let has_some = |&at: &usize| !is_single(at) && weights[at] > 0;
        let mut order: Vec<usize> = (0..count).filter(has_some).collect();
        // Of equals a leaf has its adapters on vSwitches.
        let rank = |at: usize| (Reverse(weights[at]), own[at]);
        order.sort_by_key(|&at| rank(at));
        let mut upper = vec![false; count];
        for at in order {
            if upper[at] {
                continue;
            }
            for trunk in &graph.switches[at].trunks {
                upper[trunk.to] |= has_some(&trunk.to) && rank(at) < rank(trunk.to);
            }
        }
        upper
    };
    let roles = &graph.roles;
    let mut guesses = if roles.roots.is_empty() {
        vec![vec![false; count], upper(&own), upper(&with_below)]
    } else {
        let is_root = |it: &Vertex| roles.compute.is_none() && roles.roots.contains(&it.guid);
        vec![graph.switches.iter().map(is_root).collect()]
    };
    guesses.dedup();
    guesses.into_iter().map(move |upper| {
        let skeleton = Skeleton::below(graph, &upper);
        let tree = Tree::new(graph, &skeleton)?;
        Ok((skeleton, tree))
    })
}

impl Tree {
    /// The tree that a graph is.
    ///
    /// # Errors
    /// What shows that it is none.
    pub(super) fn new(graph: &Graph, skeleton: &Skeleton) -> Result<Self, String> {
        let count = skeleton.len();
        let name = |vertex: usize| graph.switches[skeleton.switches[vertex]].guid;
        let has_roots = !graph.roles.roots.is_empty();
        if skeleton.adapters.iter().all(|&count| count == 0) {
            return Err(match graph.roles.compute {
                Some(_) => "the subnet has no compute node of sm.cn_guid_file",
                None => "there are no channel adapters",
            }
            .to_owned());
        }
        // How far it is to a leaf.
        let mut height = distances(skeleton, |vertex| {
            if has_roots {
                graph.roles.roots.contains(&name(vertex))
            } else {
                skeleton.adapters[vertex] > 0 || is_empty_leaf(skeleton, vertex)
            }
        });
        if has_roots && !height.contains(&0) {
            return Err("none of the switches named as roots is in it".to_owned());
        }
        if let Some(alone) = height.iter().position(|&height| height == u32::MAX) {
            return Err(format!("switch {} is connected to no other", name(alone)));
        }
        if has_roots {
            turn(&mut height, graph, skeleton)?;
        }
        let top = height.iter().copied().max().unwrap_or(0);
        if top as usize >= MAX_LEVELS {
            return Err(format!(
                "{} levels of switches, at most {MAX_LEVELS} are routed",
                top + 1
            ));
        }
        for (at, &own) in height.iter().enumerate() {
            let arcs = &skeleton.arcs[skeleton.arcs_of(at)];
            if let Some(arc) = arcs.iter().find(|arc| height[arc.to as usize] == own) {
                let is_guess = !has_roots && own == 0 && !graph.roles.tell_compute();
                return Err(format!(
                    "switches {} and {} are cabled to each other though both are {own} links from \
                     the {}; a fat-tree has no such cables{}",
                    name(at),
                    name(arc.to as usize),
                    if has_roots {
                        "leaves"
                    } else {
                        "nearest adapter"
                    },
                    if is_guess { NAME_COMPUTE_NODES } else { "" },
                ));
            }
        }
        let level: Vec<u8> = height.iter().map(|&height| (top - height) as u8).collect();
        let mut up = vec![Vec::new(); count];
        let mut down = vec![Vec::new(); count];
        for at in 0..count {
            let mut groups: Vec<Group> = Vec::new();
            for index in skeleton.arcs_of(at) {
                let to = skeleton.arcs[index].to;
                match groups.iter_mut().find(|group| group.to == to) {
                    Some(group) => group.arcs.push(index as u32),
                    None => groups.push(Group {
                        to,
                        arcs: vec![index as u32],
                    }),
                }
            }
            (up[at], down[at]) = groups
                .into_iter()
                .partition(|group| level[group.to as usize] < level[at]);
        }
        let mut tree = Self {
            leaf_level: top as u8,
            leaves: (0..count).filter(|&at| height[at] == 0).collect(),
            tuple: vec![Vec::new(); count],
            level,
            up,
            down,
        };
        tree.index();
        Ok(tree)
    }

    /// Gives the tuples: breadth first from the first leaf, each vertex taking its neighbour's with
    /// the digit between their levels changed to the first that is free.
    fn index(&mut self) {
        let mut taken: HashSet<Vec<u16>> = HashSet::new();
        let mut queue = VecDeque::new();
        let digits = usize::from(self.leaf_level) + 1;
        // A tree in parts never gets here, but every vertex must have a tuple.
        let starts: Vec<usize> = self.leaves.clone();
        for start in starts {
            if !self.tuple[start].is_empty() {
                continue;
            }
            let mut first = vec![0; digits];
            first[0] = u16::from(self.level[start]);
            let first = Self::free(&mut taken, first, digits - 1);
            self.tuple[start] = first;
            queue.push_back(start);
            while let Some(at) = queue.pop_front() {
                let own = u16::from(self.level[at]);
                let below = self.down[at]
                    .iter()
                    .map(|group| (group.to, own + 1, own + 1));
                let above = self.up[at].iter();
                let above = above.map(|group| (group.to, own.wrapping_sub(1), own));
                for (to, level, digit) in below.chain(above).collect::<Vec<_>>() {
                    let to = to as usize;
                    if !self.tuple[to].is_empty() {
                        continue;
                    }
                    let mut tuple = self.tuple[at].clone();
                    tuple[0] = level;
                    self.tuple[to] = Self::free(&mut taken, tuple, usize::from(digit));
                    queue.push_back(to);
                }
            }
        }
        let tuple = &self.tuple;
        for groups in self.up.iter_mut().chain(&mut self.down) {
            groups.sort_by(|a, b| tuple[a.to as usize].cmp(&tuple[b.to as usize]));
        }
        self.leaves.sort_by(|&a, &b| tuple[a].cmp(&tuple[b]));
    }

    /// Whether every leaf is reached from every other by going up and then down.
    pub(super) fn is_joined(&self) -> bool {
        self.leaves.iter().all(|&leaf| {
            let mut known = vec![false; self.level.len()];
            let mut side = vec![leaf];
            known[leaf] = true;
            for groups in [&self.up, &self.down] {
                // The loop looks at appended nodes, too.
                let mut next = 0;
                while let Some(&at) = side.get(next) {
                    next += 1;
                    for group in &groups[at] {
                        let to = group.to as usize;
                        if !std::mem::replace(&mut known[to], true) {
                            side.push(to);
                        }
                    }
                }
            }
            self.leaves.iter().all(|&leaf| known[leaf])
        })
    }

    fn free(taken: &mut HashSet<Vec<u16>>, mut tuple: Vec<u16>, digit: usize) -> Vec<u16> {
        if digit > 0 {
            tuple[digit] = 0;
        }
        while !taken.insert(tuple.clone()) {
            tuple[digit] += 1;
        }
        tuple
    }
}

/// Links from each vertex to the nearest start; `u32::MAX` where no way leads there.
fn distances(skeleton: &Skeleton, is_start: impl Fn(usize) -> bool) -> Vec<u32> {
    let mut queue: VecDeque<usize> = (0..skeleton.len()).filter(|&at| is_start(at)).collect();
    let mut distances = vec![u32::MAX; skeleton.len()];
    for &start in &queue {
        distances[start] = 0;
    }
    while let Some(at) = queue.pop_front() {
        let next = distances[at] + 1;
        for arc in &skeleton.arcs[skeleton.arcs_of(at)] {
            let known = &mut distances[arc.to as usize];
            if *known == u32::MAX {
                *known = next;
                queue.push_back(arc.to as usize);
            }
        }
    }
    distances
}

/// Turns distances from the roots into those from the leaves, the lowest switches with compute nodes.
fn turn(distances: &mut [u32], graph: &Graph, skeleton: &Skeleton) -> Result<(), String> {
    let name = |vertex: usize| graph.switches[skeleton.switches[vertex]].guid;
    let hosts = (0..distances.len()).filter(|&at| skeleton.adapters[at] > 0);
    let leaf = hosts.clone().max_by_key(|&at| distances[at]);
    let leaf = leaf.unwrap_or_default();
    let lowest = distances[leaf];
    let mut hosts = hosts.filter(|_| graph.roles.compute.is_some());
    if let Some(other) = hosts.find(|&at| distances[at] != lowest) {
        return Err(format!(
            "switches {} and {} have compute nodes, but are {lowest} and {} links from the nearest root; write roots \
             that all of them are as far from",
            name(leaf),
            name(other),
            distances[other],
        ));
    }
    if let Some(below) = distances.iter().position(|&distance| distance > lowest) {
        return Err(format!(
            "switch {} is farther from the roots than all switches with compute nodes",
            name(below)
        ));
    }
    for distance in distances {
        *distance = lowest - *distance;
    }
    Ok(())
}

/// Whether a vertex has no adapters, but is cabled as one that has: to some of the switches that this
/// one is cabled to and to no others. By the distance to adapters it would seem to be high up.
fn is_empty_leaf(skeleton: &Skeleton, vertex: usize) -> bool {
    let neighbours = |at: usize| {
        let arcs = skeleton.arcs_of(at);
        skeleton.arcs[arcs].iter().map(|arc| arc.to)
    };
    let own: HashSet<u32> = neighbours(vertex).collect();
    let Some(&above) = own.iter().min() else {
        return false;
    };
    if own.iter().any(|&at| skeleton.adapters[at as usize] > 0) {
        return false;
    }
    let leaves: HashSet<u32> = neighbours(above as usize)
        .filter(|&leaf| skeleton.adapters[leaf as usize] > 0)
        .collect();
    leaves.into_iter().any(|leaf| {
        let theirs: HashSet<u32> = neighbours(leaf as usize).collect();
        own.is_subset(&theirs)
    })
}
