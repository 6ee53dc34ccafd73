//! Virtual machines that move over a fat-tree, one after the other, and what becomes of its routing.
//!
//! The simulator of "Efficient Routing and Reconfiguration in Virtualized HPC Environments with
//! vSwitch-enabled Lossless Networks" (section 7), with dynamic LIDs: only machines that run have one.

mod placement;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use serde::{Serialize, Serializer};
use subnet_manager::routing::reconfiguration::{
    Exchange, FatTreeMinimum, apply, iterative, rounds,
};
use subnet_manager::routing::{Transitions, VSwitchFatTree};
use subnet_manager::{Endpoint, ForwardingTable, Graph, RoutingEngine, RoutingError};
use topologies::{FatTree, Hosts};
use wire::{Guid, Lid};

use self::placement::{Move, Placement};
pub use self::placement::{Pattern, Start};
use crate::network::{TooManyLids, graph};
use crate::progress::{Progress, Step};
use crate::quality::{Bandwidth, QualityError, Traffic, effective_bandwidth};
use crate::random::generator;

/// The fat-trees of the paper, 32 to 1024 hypervisors.
pub const TREES: [&str; 6] = [
    "XGFT(2;8,4;4,1)",
    "XGFT(2;8,8;8,1)",
    "XGFT(3;8,4,4;4,4,1)",
    "XGFT(2;16,16;16,1)",
    "XGFT(3;8,8,8;8,8,1)",
    "XGFT(3;16,8,8;8,8,1)",
];

/// Virtual functions of each hypervisor of the paper.
pub const FUNCTIONS: u8 = 4;

/// Draws of each bisection bandwidth of the paper.
pub const DRAWS: usize = 10_000;

/// Method that chooses the switches that a move changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// As few as FTreeMinRC can.
    Minimal,
    /// All whose tables differ, as the iterative method does.
    Iterative,
}

/// Parameters of a simulation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Study {
    /// The fat-tree.
    #[serde(serialize_with = "as_text")]
    pub tree: FatTree,
    /// Virtual functions of a hypervisor.
    pub functions: u8,
    /// Machines, in percent of all virtual functions: 1 to 99.
    pub population: u8,
    /// Where they are at first.
    pub start: Start,
    /// Where they move to.
    pub pattern: Pattern,
    /// Method of the moves.
    pub method: Method,
    /// Traffic between VMs when the bandwidth is computed.
    pub traffic: Traffic,
    /// Draws of each bisection bandwidth.
    pub draws: usize,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl fmt::Display for Study {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tree,
            population,
            start,
            pattern,
            ..
        } = self;
        write!(f, "{tree}, {population} %, {start}, {pattern}")
    }
}

fn as_text<S: Serializer>(tree: &FatTree, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(tree)
}

/// The subnet after a tenth of the moves, and so on; and before all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Snapshot {
    /// Moves so far.
    pub moves: usize,
    /// Effective bandwidth with the tables that moves have left.
    pub migrated: Bandwidth,
    /// With those that vSwitchFatTree computes for where the machines are.
    pub fresh: Bandwidth,
}

/// Switches that moves have changed, vSwitches not among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Switches {
    /// The mean.
    pub mean: f64,
    /// The most in one move.
    pub maximum: usize,
}

/// Results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Parameters of the simulation.
    pub study: Study,
    /// Switches of the tree, vSwitches not among them.
    pub switches: usize,
    /// Machines that ran.
    pub machines: usize,
    /// Moves that were made.
    pub moves: usize,
    /// Eleven of them, or fewer when there are fewer than ten moves.
    pub snapshots: Vec<Snapshot>,
    /// Changed by FTreeMinRC.
    pub minimal: Switches,
    /// Changed by the iterative method, on the same tables.
    pub iterative: Switches,
    /// Moves in the middle of which packets could wait for each other for ever, unless the machine's
    /// LID is dropped first.
    pub risky: usize,
    /// Rounds that would do for all moves if those that touch no switch in common were made at the
    /// same time.
    pub rounds: usize,
}

impl Outcome {
    /// Returns the improvement of the effective bandwidth by a fresh routing at the end, relative to the
    /// bandwidth after the moves: 0 for none, 1 for twice as much. The measure of the paper's section 7.
    pub fn improvement(&self) -> f64 {
        self.snapshots.last().map_or(0.0, Snapshot::improvement)
    }
}

impl Snapshot {
    /// Returns the improvement of the effective bandwidth by fresh tables, relative to the bandwidth after the
    /// moves; below 0 the fresh tables are worse.
    pub fn improvement(&self) -> f64 {
        self.fresh.mean / self.migrated.mean - 1.0
    }
}

/// Why a study cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StudyError {
    /// All virtual functions taken, or none.
    #[error("population of {0} %; give 1 to 99, so that there is a machine and room to move")]
    Population(u8),
    /// No virtual functions, or more than a vSwitch has ports for.
    #[error("{0} virtual functions of a hypervisor; give 1 to 253")]
    Functions(u8),
    /// Too large.
    #[error(transparent)]
    TooManyLids(#[from] TooManyLids),
    /// Not routed.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// Bandwidth of nothing.
    #[error("{machines} machines on {hosts} hypervisors: {source}")]
    Quality {
        /// Machines.
        machines: usize,
        /// Hypervisors.
        hosts: usize,
        /// The error.
        source: QualityError,
    },
}

/// The simulations of the paper for one fat-tree: 25, 50 and 75 % of the functions taken, from either
/// start by every pattern, but for uniform to uniform. 21 in all.
pub fn studies(tree: &FatTree, draws: usize, seed: u64) -> Vec<Study> {
    let mut studies = Vec::new();
    for population in [25, 50, 75] {
        for (start, pattern) in [
            (Start::Uniform, Pattern::Random),
            (Start::Uniform, Pattern::Consolidate),
            (Start::Uniform, Pattern::Grouping),
            (Start::Random, Pattern::Random),
            (Start::Random, Pattern::Consolidate),
            (Start::Random, Pattern::Grouping),
            (Start::Random, Pattern::ToUniform),
        ] {
            studies.push(Study {
                tree: tree.clone(),
                functions: FUNCTIONS,
                population,
                start,
                pattern,
                method: Method::Minimal,
                traffic: Traffic::Bisection,
                draws,
                seed,
            });
        }
    }
    studies
}

const SNAPSHOTS: usize = 11;

/// Runs studies, several at a time; outcomes are in their order. A snapshot is a step.
///
/// # Errors
/// The first [`StudyError`].
pub fn run(studies: &[Study], progress: Progress<'_>) -> Result<Vec<Outcome>, StudyError> {
    let done = AtomicUsize::new(0);
    let of = SNAPSHOTS * studies.len();
    studies
        .par_iter()
        .map(|study| {
            let what = study.to_string();
            let advance = |snapshots| {
                let done = done.fetch_add(snapshots, Ordering::Relaxed) + snapshots;
                let what = &what;
                progress(Step { what, done, of });
            };
            let outcome = study.simulate(&|| advance(1))?;
            // Fewer than ten moves.
            let missing = SNAPSHOTS - outcome.snapshots.len();
            if missing > 0 {
                advance(missing);
            }
            Ok(outcome)
        })
        .collect()
}

impl Study {
    /// Runs it.
    ///
    /// # Errors
    /// [`StudyError`].
    pub fn run(&self) -> Result<Outcome, StudyError> {
        self.simulate(&|| ())
    }

    fn simulate(&self, looked: &(dyn Fn() + Sync)) -> Result<Outcome, StudyError> {
        if !(1..=99).contains(&self.population) {
            return Err(StudyError::Population(self.population));
        }
        // One port of 254 is the uplink.
        if !(1..=253).contains(&self.functions) {
            return Err(StudyError::Functions(self.functions));
        }
        let mut random = generator(self.seed, u64::MAX);
        let (hosts, capacity) = (self.tree.hosts(), usize::from(self.functions));
        let machines = (hosts * capacity * usize::from(self.population) / 100).max(1);
        let mut placement = Placement::new(self.start, machines, hosts, capacity, &mut random);
        let mut subnet = Simulated::new(self, &placement)?;
        let moves = placement.follow(self.pattern, &mut random);
        let graph = subnet.graph();
        subnet.tables = VSwitchFatTree.route(&graph)?.tables;
        let mut transitions = Transitions::new(&graph, &subnet.tables);
        let mut outcome = Outcome {
            study: self.clone(),
            switches: self.tree.switches(),
            machines,
            moves: moves.len(),
            snapshots: vec![subnet.look(self, 0)?],
            minimal: Switches::default(),
            iterative: Switches::default(),
            risky: 0,
            rounds: 0,
        };
        looked();
        let mut touched = Vec::with_capacity(moves.len());
        for (made, &step) in (1..).zip(&moves) {
            touched.push(subnet.migrate(step, self.method, &mut transitions, &mut outcome));
            if made * (SNAPSHOTS - 1) / moves.len() > (made - 1) * (SNAPSHOTS - 1) / moves.len() {
                outcome.snapshots.push(subnet.look(self, made)?);
                looked();
            }
        }
        for switches in [&mut outcome.minimal, &mut outcome.iterative] {
            switches.mean /= moves.len().max(1) as f64;
        }
        outcome.rounds = rounds(touched).len();
        Ok(outcome)
    }
}

/// A virtual machine's place.
#[derive(Debug, Clone, Copy)]
struct Machine {
    host: usize,
    /// The port of the vSwitch there.
    port: u8,
}

struct Simulated {
    /// Switches and their LIDs, and those of hypervisors.
    empty: Graph,
    /// By switch: whether it is a vSwitch.
    is_vswitch: Vec<bool>,
    /// By hypervisor: its vSwitch and LID.
    hosts: Vec<(usize, Lid)>,
    /// By hypervisor: ports of functions that no machine has.
    free: Vec<Vec<u8>>,
    machines: Vec<Machine>,
    first_lid: u16,
    minimum: FatTreeMinimum,
    tables: Vec<ForwardingTable>,
}

impl Simulated {
    fn new(study: &Study, placement: &Placement) -> Result<Self, StudyError> {
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
        let mut subnet = Self {
            first_lid: empty.endpoints.len() as u16 + 1,
            free: vec![(2..=functions + 1).rev().collect(); hosts.len()],
            machines: Vec::new(),
            tables: Vec::new(),
            is_vswitch,
            empty,
            hosts,
            minimum,
        };
        for &host in &placement.host {
            let port = subnet.take_port(host);
            subnet.machines.push(Machine { host, port });
        }
        Ok(subnet)
    }

    fn lid(&self, machine: usize) -> Lid {
        Lid::new(self.first_lid + machine as u16)
    }

    /// A free port of a vSwitch. There is one wherever a placement has a machine.
    fn take_port(&mut self, host: usize) -> u8 {
        self.free[host].pop().unwrap_or_default()
    }

    /// The graph with the machines that run.
    fn graph(&self) -> Graph {
        let mut graph = self.empty.clone();
        let machines = self.machines.iter().enumerate();
        graph
            .endpoints
            .extend(machines.map(|(number, machine)| Endpoint {
                lid: self.lid(number),
                guid: Guid::new(number as u64),
                switch: self.hosts[machine.host].0,
                port: machine.port,
            }));
        graph
    }

    fn exchange(&self, step: Move) -> Exchange {
        Exchange::Copy {
            lid: self.lid(step.machine),
            hypervisor: self.hosts[step.to].1,
        }
    }

    /// Moves a machine; the answer is what [`rounds`] needs to know of it.
    fn migrate(
        &mut self,
        step: Move,
        method: Method,
        transitions: &mut Transitions,
        outcome: &mut Outcome,
    ) -> (Exchange, Vec<usize>) {
        let exchange = self.exchange(step);
        let [source, target] = [step.from, step.to].map(|host| self.hosts[host].0);
        let all = iterative(&self.tables, exchange);
        let few = self.minimum.plan(&self.tables, exchange, source, target);
        let physical = |switch: usize| !self.is_vswitch[switch];
        for (switches, plan) in [(&mut outcome.minimal, &few), (&mut outcome.iterative, &all)] {
            let count = plan.iter().filter(|update| physical(update.switch)).count();
            switches.mean += count as f64;
            switches.maximum = switches.maximum.max(count);
        }
        let (plan, touched) = match method {
            Method::Minimal => (few, self.minimum.touched(source, target)),
            Method::Iterative => {
                let changed = all.iter().map(|update| update.switch);
                let touched = changed.chain([source, target]).collect();
                (all, touched)
            }
        };
        let transition = transitions.follow(&self.tables, exchange, &plan);
        outcome.risky += usize::from(transition.mixed.is_some());
        apply(&mut self.tables, &plan);
        let port = self.take_port(step.to);
        // Where the hypervisor's own LID ends, the machine's goes on to its function.
        self.tables[target].set(exchange.lid(), port);
        let left = self.machines[step.machine].port;
        self.free[step.from].push(left);
        self.machines[step.machine] = Machine {
            host: step.to,
            port,
        };
        (exchange, touched)
    }

    fn look(&self, study: &Study, moves: usize) -> Result<Snapshot, StudyError> {
        let graph = self.graph();
        let lids: Vec<Lid> = (0..self.machines.len()).map(|at| self.lid(at)).collect();
        let fresh = VSwitchFatTree.route(&graph)?.tables;
        let found = effective_bandwidth(
            &graph,
            &[&self.tables, &fresh],
            &lids,
            study.traffic,
            study.draws,
            study.seed,
        );
        let found = found.map_err(|source| StudyError::Quality {
            machines: self.machines.len(),
            hosts: self.hosts.len(),
            source,
        })?;
        Ok(Snapshot {
            moves,
            migrated: found[0],
            fresh: found[1],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(tree: &str, population: u8, start: Start, pattern: Pattern) -> Study {
        Study {
            tree: tree.parse().unwrap(),
            functions: 4,
            population,
            start,
            pattern,
            method: Method::Minimal,
            traffic: Traffic::Bisection,
            draws: 200,
            seed: 5,
        }
    }

    /// In three levels: as `tests/studies.rs` has it for the published trees of two.
    #[test]
    fn three_levels() {
        for (start, pattern) in [
            (Start::Uniform, Pattern::Consolidate),
            (Start::Random, Pattern::ToUniform),
        ] {
            let outcome = study("XGFT(3;4,4,4;4,4,1)", 25, start, pattern)
                .run()
                .unwrap();
            assert!(outcome.minimal.mean < outcome.iterative.mean);
            assert!(outcome.minimal.maximum <= outcome.iterative.maximum);
            // Two leaves, what is above each of them, and all roots.
            assert!(outcome.minimal.maximum <= 2 + 2 * 4 + 16);
            assert!(outcome.risky > 0 && outcome.rounds <= outcome.moves);
            assert!(outcome.snapshots.len() >= 10);
            let first = outcome.snapshots[0];
            assert_eq!(first.migrated, first.fresh, "nothing has moved");
            for snapshot in &outcome.snapshots {
                let (migrated, fresh) = (snapshot.migrated.mean, snapshot.fresh.mean);
                assert!(migrated <= fresh * 1.05, "{snapshot:?}");
                assert!(migrated >= fresh * 0.80, "{snapshot:?}");
            }
        }
    }

    /// FTreeMinRC loses bandwidth at the switches that it leaves alone.
    #[test]
    fn changing_all_switches_loses_less() {
        let mut study = study("XGFT(3;4,4,4;4,4,1)", 75, Start::Random, Pattern::Grouping);
        let few = study.run().unwrap();
        study.method = Method::Iterative;
        let all = study.run().unwrap();
        assert!(
            all.improvement() < few.improvement() / 2.0,
            "{all:?} {few:?}"
        );
        assert!(all.rounds >= few.rounds);
        assert_eq!(all.snapshots[0], few.snapshots[0]);
    }

    #[test]
    fn studies_that_cannot_be() {
        let mut study = study("XGFT(2;2,2;2,1)", 100, Start::Uniform, Pattern::Random);
        assert_eq!(study.run(), Err(StudyError::Population(100)));
        study.population = 50;
        for functions in [0, 254] {
            study.functions = functions;
            assert_eq!(study.run(), Err(StudyError::Functions(functions)));
        }
        study.functions = 1;
        study.population = 25;
        assert_eq!(
            study.run().unwrap_err().to_string(),
            "1 machines on 4 hypervisors: 1 LIDs cannot send to each other; name at least 2"
        );
        study.population = 50;
        study.draws = 0;
        let error = study.run().unwrap_err().to_string();
        assert!(error.ends_with("ask for at least 1"), "{error}");
    }
}
