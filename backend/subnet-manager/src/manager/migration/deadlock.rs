//! Whether packets can wait for each other for ever while the tables change.

use super::plan::place;
use super::{Job, Running};
use crate::manager::Knowledge;
use crate::migration::{Deadlock, LinkCircle, Method};
use crate::routing::{Circle, Graph, Routing, Verdict, transition};
use crate::sa::Paths;

impl Knowledge {
    /// Finds out what the change of a round's blocks may lead to, if that is asked.
    pub(super) fn judge_round(&self, round: &mut [Running]) {
        let asks = |each: &Running| {
            each.job == Job::Move && each.asked.check_deadlock && each.moved.method != Method::Full
        };
        if round.iter().any(asks) {
            let deadlock = self.deadlock_of(round);
            for each in round.iter_mut().filter(|each| asks(each)) {
                each.moved.deadlock = Some(deadlock.clone());
            }
        }
    }

    fn deadlock_of(&self, round: &[Running]) -> Deadlock {
        if round.iter().any(|each| each.moved.virtual_lid.is_some()) {
            // The tables of vLIDs are not among the paths that are judged.
            return Deadlock::Unknown;
        }
        let before = routing(&self.paths);
        // Where the LID is dropped first, whoever sends it on does so the old way, and after that the
        // new one.
        let (dropped, others): (Vec<&Running>, Vec<&Running>) =
            round.iter().partition(|each| each.asked.drop_first);
        let (mut graph, mut old) = (self.paths.graph.clone(), before.clone());
        for each in dropped {
            if self.make(each, &mut graph, &mut old).is_none() {
                return Deadlock::Unknown;
            }
        }
        let (mut moved, mut new) = (graph.clone(), old.clone());
        for each in others {
            if self.make(each, &mut moved, &mut new).is_none() {
                return Deadlock::Unknown;
            }
        }
        judge((&self.paths.graph, &before), (&graph, &old), (&moved, &new))
    }

    /// Makes a move in tables; `None` where its destination is not among the switches. Nobody sends to
    /// the LID that is exchanged for the VM's: no VM has it.
    fn make(&self, each: &Running, graph: &mut Graph, routing: &mut Routing) -> Option<()> {
        let lids = self.lids_of(each.moved.vm);
        for (node, table) in self.paths.nodes.iter().zip(&mut routing.tables) {
            for lid in lids.clone() {
                let (number, entry) = place(lid);
                let blocks = each.plan.blocks.get(node);
                if let Some(block) = blocks.and_then(|blocks| blocks.get(&number)) {
                    table.set(lid, block.0[entry]);
                }
            }
        }
        let (node, port) = self.edge(each.plan.to)?;
        let mut nodes = self.paths.nodes.iter();
        let switch = nodes.position(|&other| other == node)?;
        for lid in lids {
            routing.levels.moved(lid, switch);
            let mut endpoints = graph.endpoints.iter_mut();
            if let Some(endpoint) = endpoints.find(|endpoint| endpoint.lid == lid) {
                (endpoint.switch, endpoint.port) = (switch, port);
            }
        }
        Some(())
    }

    /// Judges a change from paths to others of the same switches.
    pub(super) fn deadlock_between(&self, old: &Paths, new: &Paths) -> Deadlock {
        let (before, after) = (routing(old), routing(new));
        if old.nodes == new.nodes {
            let before = (&old.graph, &before);
            judge(before, before, (&new.graph, &after))
        } else {
            Deadlock::Unknown
        }
    }
}

pub(super) fn routing(paths: &Paths) -> Routing {
    Routing {
        tables: (*paths.tables).clone(),
        levels: paths.levels.clone(),
    }
}

/// Finds possible deadlocks of packets between `before` and `new`, while every switch sends as `old` or as `new`
/// has it.
fn judge(before: (&Graph, &Routing), old: (&Graph, &Routing), new: (&Graph, &Routing)) -> Deadlock {
    let named = |circle: Circle| LinkCircle {
        lane: circle.lane,
        channels: circle
            .channels
            .into_iter()
            .map(|(switch, port)| (old.0.switches[switch].guid, port))
            .collect(),
    };
    if let Some(circle) = Verdict::new(before.0, before.1).circle {
        Deadlock::Standing(named(circle))
    } else if let Some(circle) = Verdict::new(new.0, new.1).circle {
        Deadlock::Lasting(named(circle))
    } else if let Some(circle) = transition(old.0, old.1, new.1) {
        Deadlock::Possible(named(circle))
    } else {
        Deadlock::Free
    }
}
