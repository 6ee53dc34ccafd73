//! A graph as a network, and the ways through it.

use std::collections::{BTreeMap, HashMap};

use wire::Guid;
use wire::attribute::LinearBlock;

use super::Assignment;
use super::choice::{LidChoice, Multipath, PathChoice};
use super::network::{LinkId, Network, NodeIndex, Path};
use super::paths::{
    CANDIDATES, DestinationRenaming, Legality, LinkLoads, NotConnected, PathSelection,
    ShortestWidest, UpDown,
};
use super::tree::Tree;
use crate::routing::engines::up_down;
use crate::routing::{Graph, Trunk};

/// Ports with paths of their own to each other at most: there are as many paths as pairs, and the manager waits for all.
const MAX_ENDS: usize = 512;

/// A port of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) guid: Guid,
    pub(super) switch: usize,
    pub(super) port: u8,
}

/// The port by which each switch forwards a LID.
pub(super) type Ports = Box<[u8]>;

/// The paths to an adapter's port, and their configurations where the scheme has them.
pub(super) type Routed = (Vec<Path>, Option<Assignment>);

/// The ways to an adapter's port.
#[derive(Debug, Clone, Default)]
pub(super) struct Destination {
    /// By offset from its base LID. The first is complete.
    pub(super) ways: Vec<Ports>,
    /// By source: the offset of the LID that its path is taken by.
    pub(super) offsets: Vec<u8>,
}

/// The graph as a network: first the switches, then the adapters' ports.
pub(super) struct Wires {
    pub(super) network: Network,
    pub(super) order: UpDown,
    pub(super) ends: Vec<End>,
    /// By link: the port that it leaves a switch by.
    pub(super) ports: Vec<u8>,
    /// The link at a port of a switch.
    pub(super) links: HashMap<(usize, u8), LinkId>,
}

pub(super) fn ends(graph: &Graph) -> Vec<End> {
    let mut ends: BTreeMap<Guid, End> = BTreeMap::new();
    for endpoint in graph.endpoints.iter().filter(|endpoint| endpoint.port != 0) {
        ends.entry(endpoint.guid).or_insert(End {
            guid: endpoint.guid,
            switch: endpoint.switch,
            port: endpoint.port,
        });
    }
    ends.into_values().collect()
}

impl Wires {
    pub(super) fn new(graph: &Graph) -> Result<Self, String> {
        let ends = ends(graph);
        if ends.len() > MAX_ENDS {
            return Err(format!(
                "{} adapters' ports have LIDs, and LIDs by paths are for up to {MAX_ENDS}; have sm.lids left out",
                ends.len()
            ));
        }
        let mut network = Network::default();
        for _ in &graph.switches {
            network.add_switch();
        }
        let node = |at: usize| NodeIndex(at as u32);
        let (mut ports, mut links) = (Vec::new(), HashMap::new());
        for (at, vertex) in graph.switches.iter().enumerate() {
            // From one end; a cable from a switch to itself leads nowhere.
            let lower = |trunk: &&Trunk| trunk.to > at;
            for trunk in vertex.trunks.iter().filter(lower) {
                let link = network.cable(node(at), node(trunk.to));
                ports.extend([trunk.port, trunk.to_port]);
                links.insert((at, trunk.port), link);
                links.insert((trunk.to, trunk.to_port), link.reverse());
            }
        }
        for end in &ends {
            let machine = network.add_machine();
            let link = network.cable(machine, node(end.switch));
            ports.extend([0, end.port]);
            links.insert((end.switch, end.port), link.reverse());
        }
        let roots = up_down::UpDown::default().roots(graph);
        let roots = roots.map_err(|error| error.reason)?;
        let roots: Vec<NodeIndex> = roots.into_iter().map(node).collect();
        if roots.is_empty() {
            return Err("it has no switch".to_owned());
        }
        let apart = |NotConnected { from, to }| disconnected(graph, &ends, from, to);
        let order = UpDown::with_roots(&network, &roots).map_err(apart)?;
        Ok(Self {
            network,
            order,
            ends,
            ports,
            links,
        })
    }

    pub(super) fn machine(&self, end: usize) -> NodeIndex {
        NodeIndex((self.network.nodes().len() - self.ends.len() + end) as u32)
    }

    pub(super) fn end(&self, machine: NodeIndex) -> usize {
        machine.0 as usize + self.ends.len() - self.network.nodes().len()
    }

    pub(super) fn ports(&self, tree: &Tree) -> Ports {
        let port = |switch| tree.link(switch).map(|link| self.ports[link.0 as usize]);
        let ports = self.network.switches().map(port);
        ports
            .map(|port| port.unwrap_or(LinearBlock::DROP))
            .collect()
    }

    /// All paths of a scheme, by destination.
    pub(super) fn paths(&self, choice: Multipath) -> Result<Vec<Routed>, NotConnected> {
        let (network, order) = (&self.network, &self.order);
        if choice.lids == LidChoice::Renaming {
            let renamed = DestinationRenaming { order }.route(network)?;
            let parts = renamed.into_iter().map(|to| (to.paths, Some(to.lids)));
            return Ok(parts.collect());
        }
        let legality = Legality::UpDown(order);
        let paths = match choice.paths {
            PathChoice::ShortestWidest => ShortestWidest { legality }.paths(network)?,
            PathChoice::PathSelection => {
                let candidates = CANDIDATES;
                PathSelection {
                    legality,
                    candidates,
                }
                .paths(network)?
            }
        };
        let mut found = vec![(Vec::new(), None); self.ends.len()];
        for path in paths {
            let to = self.end(network.destination(&path));
            found[to].0.push(path);
        }
        Ok(found)
    }

    /// The ways to a port by each of its LIDs. One of them is to be complete, and comes first: a further one where none
    /// can be. The others are in the order of the number of their paths, and lead from as many switches as they can.
    pub(super) fn ways(
        &self,
        to: usize,
        paths: &[Path],
        assignment: &Assignment,
        loads: &mut LinkLoads,
    ) -> Destination {
        let machine = self.machine(to);
        let members = assignment.members();
        let mut trees: Vec<(Tree, &Vec<usize>, bool)> = { members.iter() }
            .map(|members| {
                let along = members.iter().map(|&path| &paths[path]);
                let mut tree = Tree::along(&self.network, along);
                let complete = tree.complete(&self.network, &self.order, machine, loads);
                (tree, members, complete)
            })
            .collect();
        trees.sort_by_key(|(_, members, _)| std::cmp::Reverse(members.len()));
        let base = trees.iter().position(|(_, _, complete)| *complete);
        let none = Vec::new();
        let base = base.map_or_else(
            || (self.complete(machine, loads), &none, true),
            |base| trees.remove(base),
        );
        trees.insert(0, base);
        let mut destination = Destination {
            ways: trees.iter().map(|(tree, ..)| self.ports(tree)).collect(),
            offsets: vec![0; self.ends.len()],
        };
        for (offset, (_, members, _)) in trees.iter().enumerate() {
            for &path in *members {
                let from = self.end(self.network.source(&paths[path]));
                // Those beyond what a port can have are refused later.
                destination.offsets[from] = offset as u8;
            }
        }
        destination
    }

    /// Ways from everywhere.
    pub(super) fn complete(&self, to: NodeIndex, loads: &mut LinkLoads) -> Tree {
        let mut tree = Tree::new(&self.network);
        tree.complete(&self.network, &self.order, to, loads);
        tree
    }

    pub(super) fn to_switches(&self) -> Vec<Ports> {
        let mut loads = LinkLoads::new(&self.network);
        let switches = self.network.switches();
        switches
            .map(|switch| self.ports(&self.complete(switch, &mut loads)))
            .collect()
    }
}

pub(super) fn disconnected(graph: &Graph, ends: &[End], from: NodeIndex, to: NodeIndex) -> String {
    let name = |node: NodeIndex| {
        let at = node.0 as usize;
        match graph.switches.get(at) {
            Some(switch) => format!("switch {}", switch.guid),
            None => format!("port {}", ends[at - graph.switches.len()].guid),
        }
    };
    format!(
        "no path from {} to {} goes up and then down; mend a cable, or name other roots",
        name(from),
        name(to)
    )
}

impl Destination {
    /// Has no more than so many LIDs: further paths follow the base LID's. Returns how many.
    pub(super) fn shorten(&mut self, limit: usize) -> usize {
        self.ways.truncate(limit);
        let beyond = |offset: &&mut u8| usize::from(**offset) >= limit;
        let beyond = self.offsets.iter_mut().filter(beyond);
        beyond.map(|offset| *offset = 0).count()
    }
}
