//! Whether packets can wait for each other for ever while the tables change.

use wire::Lid;

use super::super::SubnetManager;
use super::plan::{Plan, place};
use crate::migration::{Moved, Transition};
use crate::routing::{Circle, Graph, Routing, Verdict, transition};
use crate::sa::Paths;

impl SubnetManager {
    /// What the change of a plan's blocks may lead to.
    pub(super) fn transition_to(&self, plan: &Plan, moved: &Moved, drop_first: bool) -> Transition {
        let graph = &self.paths.graph;
        let old = routing(&self.paths);
        let mut new = old.clone();
        for (&node, table) in self.paths.nodes.iter().zip(&mut new.tables) {
            for (&number, block) in plan.blocks.get(&node).into_iter().flatten() {
                table.set_block(number, block);
            }
        }
        let switch = |at| {
            let (node, _) = self.edge(at)?;
            self.paths.nodes.iter().position(|&other| other == node)
        };
        for (lid, at) in [(moved.lid, plan.to), (self.lid_of(plan.spare), plan.from)] {
            if let Some(switch) = switch(at).filter(|_| lid.is_unicast()) {
                new.levels.moved(lid, switch);
            }
        }
        if !drop_first {
            return judge(graph, &old, &[(&old, &new)]);
        }
        // The LID is nowhere in between, in the switches that change.
        let mut dropped = old.clone();
        for (node, table) in self.paths.nodes.iter().zip(&mut dropped.tables) {
            let (number, _) = place(moved.lid);
            if plan
                .blocks
                .get(node)
                .is_some_and(|blocks| blocks.contains_key(&number))
            {
                table.set(moved.lid, wire::attribute::LinearBlock::DROP);
            }
        }
        judge(graph, &old, &[(&old, &dropped), (&dropped, &new)])
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
