//! Whether moves of virtual machines can make packets wait for each other for ever.

use wire::Lid;

use super::Circle;
use crate::routing::lanes::dependency::{Cables, NOWHERE};
use crate::routing::reconfiguration::{Exchange, Update};
use crate::routing::{ForwardingTable, Graph};

/// Possible deadlocks while a move is made, and afterwards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transition {
    /// Channels that can wait for each other while some switches send the machine's LID the old way
    /// and others the new one. Not if all that change drop it first
    /// ([`drops`](crate::routing::reconfiguration::drops)).
    pub mixed: Option<Circle>,
    /// Channels that can when the move is made.
    pub after: Option<Circle>,
}

/// Watches moves that are made one after the other, with all paths on one virtual lane.
///
/// A move adds few dependencies between channels, and as long as there was no circle before, one
/// must go by these. [`transition`](crate::routing::transition()) compares any two routings on any number of
/// lanes, and takes as long as a walk of all paths.
#[derive(Debug)]
pub struct Transitions {
    cables: Cables,
    /// By dependency: LIDs whose packets make it.
    held: Vec<u32>,
}

/// The channel of a packet, and the one that it waits for.
type Dependency = (usize, usize);

impl Transitions {
    /// Begins with these tables of a graph's switches.
    pub fn new(graph: &Graph, tables: &[ForwardingTable]) -> Self {
        let cables = Cables::new(graph);
        let mut transitions = Self {
            held: vec![0; cables.channels.dependencies()],
            cables,
        };
        for endpoint in &graph.endpoints {
            let ports = ports(tables, endpoint.lid);
            let dependencies = transitions.dependencies(&ports, &ports);
            transitions.count(&dependencies, 1);
        }
        transitions
    }

    /// Follows `updates` to `tables`, which are as they were at the last call, and finds possible deadlocks.
    pub fn follow(
        &mut self,
        tables: &[ForwardingTable],
        exchange: Exchange,
        updates: &[Update],
    ) -> Transition {
        let changed = |lid: Lid| {
            let old = ports(tables, lid);
            let mut new = old.clone();
            for update in updates {
                let entries = update.entries.iter();
                for &(_, port) in entries.filter(|&&(other, _)| other == lid) {
                    new[update.switch] = port;
                }
            }
            (old, new)
        };
        let (old, new) = changed(exchange.lid());
        let mixture = self.dependencies(&old, &new);
        let before = self.dependencies(&old, &old);
        let after = self.dependencies(&new, &new);
        self.count(&before, -1);
        let mixed = self.add(&mixture);
        self.count(&mixture, -1);
        let mut transition = Transition {
            mixed,
            after: self.add(&after),
        };
        if let Exchange::Swap { other, .. } = exchange {
            // A function without a machine gets no packets meanwhile.
            let (old, new) = changed(other);
            let before = self.dependencies(&old, &old);
            self.count(&before, -1);
            let after = self.dependencies(&new, &new);
            transition.after = transition.after.or(self.add(&after));
        }
        transition
    }

    /// Counts dependencies; a circle that those among them make that were not there.
    fn add(&mut self, dependencies: &[Dependency]) -> Option<Circle> {
        let channels = &self.cables.channels;
        let fresh = dependencies
            .iter()
            .filter(|&&(before, after)| self.held[channels.dependency(before, after)] == 0);
        let fresh: Vec<usize> = fresh.map(|&(before, _)| before).collect();
        self.count(dependencies, 1);
        let held = |dependency: usize| self.held[dependency] > 0;
        let circle = self.cables.channels.circle_from(fresh, held)?;
        Some(Circle {
            lane: 0,
            channels: circle.into_iter().map(|at| self.cables.port(at)).collect(),
        })
    }

    fn count(&mut self, dependencies: &[Dependency], by: i32) {
        for &(before, after) in dependencies {
            let held = &mut self.held[self.cables.channels.dependency(before, after)];
            *held = held.saturating_add_signed(by);
        }
    }

    /// Dependencies of packets to a LID when each switch sends it by one port or the other.
    fn dependencies(&self, one: &[u8], other: &[u8]) -> Vec<Dependency> {
        let mut dependencies = Vec::with_capacity(one.len());
        let ways = |at: usize| {
            let [first, second] = [one[at], other[at]].map(|port| {
                let channel = self.cables.begins[at][usize::from(port)];
                (channel != NOWHERE).then_some(channel as usize)
            });
            [first, second.filter(|_| second != first)]
        };
        for at in 0..one.len() {
            for before in ways(at).into_iter().flatten() {
                let to = self.cables.ends[before].1 as usize;
                let afters = ways(to).into_iter().flatten();
                dependencies.extend(afters.map(|after| (before, after)));
            }
        }
        dependencies
    }
}

fn ports(tables: &[ForwardingTable], lid: Lid) -> Vec<u8> {
    tables.iter().map(|table| table.port(lid)).collect()
}
