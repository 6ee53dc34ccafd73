//! Virtual machines that move over a fat-tree, one after the other, and what becomes of its routing.
//!
//! The simulator of "Efficient Routing and Reconfiguration in Virtualized HPC Environments with
//! vSwitch-enabled Lossless Networks" (section 7), with dynamic LIDs: only machines that run have one.

use fabric::{FatTree, Hosts};
use rand::RngExt;
use rand::seq::SliceRandom;
use subnet::routing::VSwitchFatTree;
use subnet::routing::reconfiguration::{Exchange, FatTreeMinimum, apply, iterative};
use subnet::{Endpoint, ForwardingTable, Graph, RoutingEngine, RoutingError};
use wire::Lid;

use crate::network::{TooManyLids, graph};
use crate::quality::bisection_bandwidth;
use crate::random::generator;

/// Where machines are at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// As many on every hypervisor, but for one.
    Uniform,
    /// Anywhere that there is room.
    Random,
}

/// Where machines move to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Twice as many moves as hypervisors, of any machine to any with room.
    Random,
    /// All on the first hypervisors, as few as hold them.
    Consolidate,
    /// Two random groups, half of all each, from the first and from the middle hypervisor on.
    Grouping,
    /// As many on every hypervisor, but for one.
    ToUniform,
}

/// What to simulate.
#[derive(Debug, Clone)]
pub struct Study {
    /// The fat-tree.
    pub tree: FatTree,
    /// Virtual functions of a hypervisor.
    pub functions: u8,
    /// Machines, in percent of all virtual functions: 1 to 99.
    pub population: u8,
    /// Where they are at first.
    pub start: Start,
    /// Where they move to.
    pub pattern: Pattern,
    /// Draws of each bisection bandwidth.
    pub draws: u64,
    /// What decides everything random.
    pub seed: u64,
}

/// The subnet after a tenth of the moves, and so on; and before all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snapshot {
    /// Moves so far.
    pub moves: usize,
    /// Effective bisection bandwidth with the tables of FTreeMinRC.
    pub minimal: f64,
    /// With those that vSwitchFatTree computes for where the machines are.
    pub fresh: f64,
}

/// Switches that moves have changed, vSwitches not among them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Switches {
    /// The mean.
    pub mean: f64,
    /// The most in one move.
    pub maximum: usize,
}

/// What came out.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Eleven of them, or fewer when there are fewer than ten moves.
    pub snapshots: Vec<Snapshot>,
    /// By FTreeMinRC.
    pub minimal: Switches,
    /// By the iterative method, on the same tables.
    pub iterative: Switches,
}

/// Why a study cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StudyError {
    /// All virtual functions taken, or none.
    #[error("population of {0} %; give 1 to 99, so that there is a machine and room to move")]
    Population(u8),
    /// Too large.
    #[error(transparent)]
    TooManyLids(#[from] TooManyLids),
    /// Not routed.
    #[error(transparent)]
    Routing(#[from] RoutingError),
}

impl Study {
    /// Runs it.
    ///
    /// # Errors
    /// [`StudyError`].
    pub fn run(&self) -> Result<Outcome, StudyError> {
        if !(1..=99).contains(&self.population) {
            return Err(StudyError::Population(self.population));
        }
        let mut random = generator(self.seed, 0);
        let mut subnet = Simulated::new(self)?;
        let (hosts, capacity) = (subnet.hosts.len(), usize::from(self.functions));
        let machines = (hosts * capacity * usize::from(self.population) / 100).max(1);
        let slots = |host: usize| (0..capacity).map(move |_| host);
        let mut start: Vec<usize> = match self.start {
            Start::Uniform => (0..machines).map(|machine| machine % hosts).collect(),
            Start::Random => (0..hosts).flat_map(slots).collect(),
        };
        if self.start == Start::Random {
            start.shuffle(&mut random);
            start.truncate(machines);
        }
        for &host in &start {
            subnet.boot(host);
        }
        let mut targets: Vec<(usize, usize)> = Vec::new();
        let mut order: Vec<usize> = (0..machines).collect();
        match self.pattern {
            Pattern::Random => targets.extend((0..2 * hosts).map(|_| {
                // Where there is room is known when it is time.
                (random.random_range(0..machines), usize::MAX)
            })),
            Pattern::Consolidate => {
                targets.extend(order.iter().map(|&machine| (machine, machine / capacity)));
            }
            Pattern::ToUniform => {
                targets.extend(order.iter().map(|&machine| (machine, machine % hosts)));
            }
            Pattern::Grouping => {
                order.shuffle(&mut random);
                let (first, second) = order.split_at(machines / 2);
                let group = |from: usize, group: &[usize]| -> Vec<(usize, usize)> {
                    let places = group.iter().enumerate();
                    places
                        .map(|(at, &machine)| (machine, (from + at / capacity) % hosts))
                        .collect()
                };
                targets.extend(group(0, first));
                targets.extend(group(hosts / 2, second));
            }
        }
        subnet.tables = VSwitchFatTree.route(&subnet.graph())?.tables;
        let mut outcome = Outcome {
            snapshots: vec![subnet.look(self, 0)?],
            minimal: Switches::default(),
            iterative: Switches::default(),
        };
        let all = targets.len();
        let mut moves = 0;
        for (index, (machine, wanted)) in targets.into_iter().enumerate() {
            let room = |host: usize| subnet.used[host] < capacity;
            let to = match wanted {
                usize::MAX => {
                    let open: Vec<usize> = (0..hosts).filter(|&host| room(host)).collect();
                    open[random.random_range(0..open.len())]
                }
                wanted => wanted,
            };
            if subnet.machines[machine].0 != to {
                // Somebody who is in the way goes where the machine comes from: two moves.
                if !room(to) {
                    let open = (0..hosts).find(|&host| room(host));
                    let mut others = subnet.machines.iter();
                    let other = others.rposition(|&(host, _)| host == to);
                    if let (Some(open), Some(other)) = (open, other) {
                        subnet.migrate(other, open, &mut outcome);
                        moves += 1;
                    }
                }
                subnet.migrate(machine, to, &mut outcome);
                moves += 1;
            }
            if (index + 1) * 10 / all > index * 10 / all {
                outcome.snapshots.push(subnet.look(self, moves)?);
            }
        }
        for switches in [&mut outcome.minimal, &mut outcome.iterative] {
            switches.mean /= moves.max(1) as f64;
        }
        Ok(outcome)
    }
}

struct Simulated {
    /// Switches and their LIDs, and those of hypervisors.
    empty: Graph,
    /// By hypervisor: its vSwitch and LID.
    hosts: Vec<(usize, Lid)>,
    /// By hypervisor: machines on it.
    used: Vec<usize>,
    /// By machine: its hypervisor, and the port of the vSwitch there.
    machines: Vec<(usize, u8)>,
    first_lid: u16,
    minimum: FatTreeMinimum,
    tables: Vec<ForwardingTable>,
    functions: u8,
}

impl Simulated {
    fn new(study: &Study) -> Result<Self, StudyError> {
        let functions = study.functions;
        let topology = study.tree.topology(Hosts::Hypervisors { functions });
        let full = graph(&topology)?;
        let minimum = FatTreeMinimum::new(&full)?;
        let mut is_vswitch = vec![false; full.switches.len()];
        for endpoint in full.endpoints.iter().filter(|endpoint| endpoint.port != 0) {
            is_vswitch[endpoint.switch] = true;
        }
        let mut empty = full;
        empty.endpoints.retain(|endpoint| endpoint.port == 0);
        for (lid, endpoint) in (1..).zip(&mut empty.endpoints) {
            endpoint.lid = Lid::new(lid);
        }
        let hosts: Vec<_> = empty
            .endpoints
            .iter()
            .filter(|endpoint| is_vswitch[endpoint.switch])
            .map(|endpoint| (endpoint.switch, endpoint.lid))
            .collect();
        Ok(Self {
            first_lid: empty.endpoints.len() as u16 + 1,
            used: vec![0; hosts.len()],
            machines: Vec::new(),
            tables: Vec::new(),
            functions,
            empty,
            hosts,
            minimum,
        })
    }

    fn lid(&self, machine: usize) -> Lid {
        Lid::new(self.first_lid + machine as u16)
    }

    /// A free port of a vSwitch.
    fn free(&self, host: usize) -> u8 {
        let taken = |port: u8| self.machines.contains(&(host, port));
        (2..=self.functions + 1)
            .find(|&port| !taken(port))
            .unwrap_or(2)
    }

    fn boot(&mut self, host: usize) {
        let port = self.free(host);
        self.machines.push((host, port));
        self.used[host] += 1;
    }

    /// The graph with the machines that run.
    fn graph(&self) -> Graph {
        let mut graph = self.empty.clone();
        let machines = self.machines.iter().enumerate();
        graph
            .endpoints
            .extend(machines.map(|(machine, &(host, port))| Endpoint {
                lid: self.lid(machine),
                switch: self.hosts[host].0,
                port,
            }));
        graph
    }

    fn migrate(&mut self, machine: usize, to: usize, outcome: &mut Outcome) {
        let (from, _) = self.machines[machine];
        let exchange = Exchange::Copy {
            lid: self.lid(machine),
            hypervisor: self.hosts[to].1,
        };
        let (source, target) = (self.hosts[from].0, self.hosts[to].0);
        let plan = self.minimum.plan(&self.tables, exchange, source, target);
        let all = iterative(&self.tables, exchange);
        for (switches, updates) in [
            (&mut outcome.minimal, &plan),
            (&mut outcome.iterative, &all),
        ] {
            let physical =
                |switch: usize| !self.hosts.iter().any(|&(vswitch, _)| vswitch == switch);
            let count = updates
                .iter()
                .filter(|update| physical(update.switch))
                .count();
            switches.mean += count as f64;
            switches.maximum = switches.maximum.max(count);
        }
        apply(&mut self.tables, &plan);
        let port = self.free(to);
        // Where the hypervisor's own LID ends, the machine's goes on to its function.
        self.tables[target].set(exchange.lid(), port);
        self.machines[machine] = (to, port);
        self.used[from] -= 1;
        self.used[to] += 1;
    }

    fn look(&self, study: &Study, moves: usize) -> Result<Snapshot, StudyError> {
        let graph = self.graph();
        let lids: Vec<Lid> = (0..self.machines.len()).map(|at| self.lid(at)).collect();
        let fresh = VSwitchFatTree.route(&graph)?.tables;
        // The same draws for both.
        let bandwidth = |tables: &[ForwardingTable]| {
            bisection_bandwidth(&graph, tables, &lids, study.draws, study.seed)
        };
        Ok(Snapshot {
            moves,
            minimal: bandwidth(&self.tables),
            fresh: bandwidth(&fresh),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(tree: &str, population: u8, start: Start, pattern: Pattern) -> Outcome {
        let study = Study {
            tree: tree.parse().unwrap(),
            functions: 4,
            population,
            start,
            pattern,
            draws: 200,
            seed: 5,
        };
        let outcome = study.run().unwrap();
        println!("{tree} {population} {start:?} {pattern:?}: {outcome:?}");
        assert_eq!(outcome, study.run().unwrap(), "the same again");
        outcome
    }

    /// Section 7: FTreeMinRC changes fewer switches than the iterative method, in the mean and at
    /// most; a fresh routing is never worse, beyond what draws differ; the loss stays small.
    #[test]
    fn the_published_findings() {
        for (start, pattern) in [
            (Start::Uniform, Pattern::Random),
            (Start::Random, Pattern::ToUniform),
            (Start::Random, Pattern::Consolidate),
            (Start::Uniform, Pattern::Grouping),
        ] {
            for (tree, population) in [("XGFT(2;8,4;4,1)", 50), ("XGFT(3;4,4,4;4,4,1)", 25)] {
                let outcome = study(tree, population, start, pattern);
                assert!(outcome.minimal.mean < outcome.iterative.mean);
                assert!(outcome.minimal.maximum <= outcome.iterative.maximum);
                assert!(outcome.snapshots.len() >= 10);
                let first = outcome.snapshots[0];
                assert_eq!(first.minimal, first.fresh, "nothing has moved");
                for snapshot in &outcome.snapshots {
                    assert!(snapshot.minimal <= snapshot.fresh * 1.05, "{snapshot:?}");
                    assert!(snapshot.minimal >= snapshot.fresh * 0.75, "{snapshot:?}");
                }
            }
        }
    }

    #[test]
    fn no_room() {
        let study = Study {
            tree: "XGFT(2;2,2;2,1)".parse().unwrap(),
            functions: 2,
            population: 100,
            start: Start::Uniform,
            pattern: Pattern::Random,
            draws: 1,
            seed: 0,
        };
        assert_eq!(study.run(), Err(StudyError::Population(100)));
    }
}
