//! Whether packets can wait for each other for ever while the tables change.

use super::super::SubnetManager;
use super::plan::{Plan, place};
use crate::migration::{Moved, Transition};
use crate::routing::{Circle, Graph, Routing, Verdict, transition};
use crate::sa::Paths;

impl SubnetManager {
    /// What the change of a plan's blocks may lead to.
    pub(super) fn transition_to(&self, plan: &Plan, moved: &Moved, drop_first: bool) -> Transition {
        if moved.virtual_lid.is_some() {
            // The tables of vLIDs are not among the paths that are judged.
            return Transition::Unknown;
        }
        let graph = &self.paths.graph;
        let old = routing(&self.paths);
        // Nobody sends to the LID that is exchanged for the VM's: no VM has it.
        let lids = self.lids_of(moved.vm);
        let mut new = old.clone();
        for (node, new) in self.paths.nodes.iter().zip(&mut new.tables) {
            for lid in lids.clone() {
                let (number, entry) = place(lid);
                let blocks = plan.blocks.get(node);
                if let Some(block) = blocks.and_then(|blocks| blocks.get(&number)) {
                    new.set(lid, block.0[entry]);
                }
            }
        }
        let Some((node, port)) = self.edge(plan.to) else {
            return Transition::Unknown;
        };
        let mut nodes = self.paths.nodes.iter();
        let Some(switch) = nodes.position(|&other| other == node) else {
            return Transition::Unknown;
        };
        let mut moved_graph = graph.clone();
        for lid in lids {
            new.levels.moved(lid, switch);
            let mut endpoints = moved_graph.endpoints.iter_mut();
            if let Some(endpoint) = endpoints.find(|endpoint| endpoint.lid == lid) {
                (endpoint.switch, endpoint.port) = (switch, port);
            }
        }
        judge(graph, &old, || match drop_first {
            // Whoever sends the LID on does so the old way, and after that the new one.
            true => Verdict::new(&moved_graph, &new).circle,
            false => transition(graph, &old, &new),
        })
    }

    /// What the change from paths to others of the same switches may lead to.
    pub(super) fn transition_between(&self, old: &Paths, new: &Paths) -> Transition {
        let (before, after) = (routing(old), routing(new));
        match old.nodes == new.nodes {
            true => judge(&old.graph, &before, || {
                transition(&old.graph, &before, &after)
            }),
            false => Transition::Unknown,
        }
    }
}

fn routing(paths: &Paths) -> Routing {
    Routing {
        tables: paths.tables.clone(),
        levels: paths.levels.clone(),
    }
}

fn judge(graph: &Graph, old: &Routing, change: impl FnOnce() -> Option<Circle>) -> Transition {
    let named = |circle: Circle| {
        let channels = circle.channels.into_iter();
        let named = channels.map(|(switch, port)| (graph.switches[switch].guid, port));
        (circle.lane, named.collect())
    };
    if let Some(circle) = Verdict::new(graph, old).circle {
        let (lane, channels) = named(circle);
        return Transition::Standing { lane, channels };
    }
    match change() {
        None => Transition::Free,
        Some(circle) => {
            let (lane, channels) = named(circle);
            Transition::Possible { lane, channels }
        }
    }
}
