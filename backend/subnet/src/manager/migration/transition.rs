//! Whether packets can wait for each other for ever while the tables change.

use wire::Lid;
use wire::attribute::LinearBlock;

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
        let (mut new, mut dropped) = (old.clone(), old.clone());
        let tables = new.tables.iter_mut().zip(&mut dropped.tables);
        for (node, (new, dropped)) in self.paths.nodes.iter().zip(tables) {
            for lid in lids.clone() {
                let (number, entry) = place(lid);
                let blocks = plan.blocks.get(node);
                if let Some(block) = blocks.and_then(|blocks| blocks.get(&number)) {
                    new.set(lid, block.0[entry]);
                    dropped.set(lid, LinearBlock::DROP);
                }
            }
        }
        let to = self.edge(plan.to).map(|(node, _)| node);
        if let Some(switch) = self.paths.nodes.iter().position(|&node| Some(node) == to) {
            for lid in lids {
                new.levels.moved(lid, switch);
            }
        }
        match drop_first {
            false => judge(graph, &old, &[(&old, &new)]),
            true => judge(graph, &old, &[(&old, &dropped), (&dropped, &new)]),
        }
    }

    /// What the change from paths to others of the same switches may lead to.
    pub(super) fn transition_between(&self, old: &Paths, new: &Paths) -> Transition {
        let (before, after) = (routing(old), routing(new));
        match old.nodes == new.nodes {
            true => judge(&old.graph, &before, &[(&before, &after)]),
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

fn judge(graph: &Graph, old: &Routing, changes: &[(&Routing, &Routing)]) -> Transition {
    let named = |circle: Circle| {
        let channels = circle.channels.into_iter();
        let named = channels.map(|(switch, port)| (graph.switches[switch].guid, port));
        (circle.lane, named.collect())
    };
    if graph.top() == Lid::NONE {
        return Transition::Unknown;
    }
    if let Some(circle) = Verdict::new(graph, old).circle {
        let (lane, channels) = named(circle);
        return Transition::Standing { lane, channels };
    }
    let mut changes = changes.iter();
    match changes.find_map(|(old, new)| transition(graph, old, new)) {
        None => Transition::Free,
        Some(circle) => {
            let (lane, channels) = named(circle);
            Transition::Possible { lane, channels }
        }
    }
}
