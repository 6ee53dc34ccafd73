//! Placement of clusters: the heuristic beside a 0-1 program that proves the fewest cables between VMs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use config::cluster::network::{Host, Network};
use config::cluster::placement::{Counts, Demand, Limits, Present, cost, place};
use microlp::{ComparisonOp, Error, OptimizationDirection, Problem, SolveOutcome, Variable};
use rand::RngExt;
use serde::Serialize;

use crate::random::generator;

/// The most VMs that a host of an instance has room for.
const ROOM_MAX: u64 = 3;

/// Outcomes of all instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Outcomes {
    /// Instances.
    pub instances: u64,
    /// Placed by both, with as few cables.
    pub optimal: u64,
    /// Placed by both, the heuristic with more cables.
    pub worse: u64,
    /// Refused by both.
    pub refused: u64,
    /// Refused by the heuristic alone.
    pub missed: u64,
    /// Not decided by the program in time.
    pub undecided: u64,
    /// Mean of the heuristic's cables over the fewest, less 1, in percent, over those placed by both.
    pub mean_gap_percent: f64,
    /// The greatest of these.
    pub longest_gap_percent: f64,
    /// Mean time of the heuristic, in microseconds.
    pub heuristic_us: f64,
    /// Mean time of the program, in microseconds.
    pub program_us: f64,
}

/// An instance: two levels of switches, some clusters, and a demand.
struct Instance {
    network: Network,
    others: Vec<Present>,
    demand: Demand,
}

impl Instance {
    fn new(seed: u64, number: u64) -> Self {
        let mut random = generator(seed, number);
        let leaves = random.random_range(2..=4);
        let spines = random.random_range(1..=2);
        let switches = (0..leaves + spines).map(|at| format!("sw{at}")).collect();
        // Some cables are missing, so that leaves are not all alike.
        let pairs =
            (0..leaves).flat_map(|leaf| (leaves..leaves + spines).map(move |it| (leaf, it)));
        let mut cables: Vec<(usize, usize)> = pairs.collect();
        cables.retain(|&(_, spine)| spine == leaves || random.random_bool(0.7));
        let per_leaf = random.random_range(1..=2);
        let hosts = (0..leaves * per_leaf).map(|at| Host {
            name: format!("hv{at}"),
            switch: at / per_leaf,
            vfs: random.random_range(0..=ROOM_MAX),
            processors: None,
            memory: None,
        });
        let hosts: Vec<Host> = hosts.collect();
        let room: u64 = hosts.iter().map(|host| host.vfs).sum();
        let others = (0..random.random_range(0..4)).map(|_| Present {
            hosts: (0..random.random_range(1..=3))
                .map(|_| random.random_range(0..hosts.len()))
                .collect(),
            exclusive_switches: random.random_bool(0.1),
        });
        let others = others.collect();
        let demand = Demand {
            vms: random.random_range(1..=room.clamp(1, 9)),
            per_host: random.random_bool(0.3).then(|| random.random_range(1..=2)),
            per_cable: random.random_range(1..=4),
            ..Demand::default()
        };
        Self {
            network: Network::new(switches, cables, hosts),
            others,
            demand,
        }
    }

    /// The fewest cables, by the 0-1 program: a variable for each VM that a host may have, the first ones first; one for each
    /// pair of VMs on different hosts, 1 where both are there. `Ok(None)`: there is no placement; `Err`: not decided in time.
    fn optimum(&self, limit: Duration) -> Result<Option<u64>, ()> {
        let none = Counts::new();
        let Ok(limits) = Limits::new(&self.network, &self.demand, &none, &self.others) else {
            return Ok(None);
        };
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        problem.set_time_limit(limit);
        let places: Vec<Vec<Variable>> = { limits.room().iter() }
            .map(|&room| {
                let room = room.min(self.demand.vms);
                (0..room).map(|_| problem.add_binary_var(0.0)).collect()
            })
            .collect();
        let all = places.iter().flatten().map(|&place| (place, 1.0));
        let all: Vec<(Variable, f64)> = all.collect();
        problem.add_constraint(all, ComparisonOp::Eq, self.demand.vms as f64);
        for host in &places {
            for pair in host.windows(2) {
                problem.add_constraint([(pair[0], 1.0), (pair[1], -1.0)], ComparisonOp::Ge, 0.0);
            }
        }
        for (a, of_a) in places.iter().enumerate() {
            for (b, of_b) in places.iter().enumerate().skip(a + 1) {
                let (Some(&first), Some(&other)) = (of_a.first(), of_b.first()) else {
                    continue;
                };
                let far = self.network.between(a, b).filter(|_| limits.fits(a, b));
                let Some(far) = far else {
                    problem.add_constraint([(first, 1.0), (other, 1.0)], ComparisonOp::Le, 1.0);
                    continue;
                };
                for &x in of_a {
                    for &y in of_b {
                        let both = problem.add_var(f64::from(far), (0.0, 1.0));
                        let sum = [(x, 1.0), (y, 1.0), (both, -1.0)];
                        problem.add_constraint(sum, ComparisonOp::Le, 1.0);
                    }
                }
            }
        }
        match problem.solve() {
            Err(Error::Infeasible) => Ok(None),
            Ok(SolveOutcome::Solution(solution)) => {
                let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
                for (host, variables) in places.iter().enumerate() {
                    let there = variables.iter().filter(|&&it| solution.var_value(it) > 0.5);
                    counts.insert(host, there.count() as u64);
                }
                Ok(Some(cost(&self.network, &counts)))
            }
            _ => Err(()),
        }
    }
}

/// Compares both on instances that a seed decides; `limit` is the time for each program.
#[must_use]
pub fn compare(instances: u64, seed: u64, limit: Duration) -> Outcomes {
    let mut outcomes = Outcomes {
        instances,
        ..Outcomes::default()
    };
    let mut gaps = 0.0;
    for number in 0..instances {
        let instance = Instance::new(seed, number);
        let began = Instant::now();
        let none = Counts::new();
        let placed = place(&instance.network, &instance.demand, &none, &instance.others);
        outcomes.heuristic_us += began.elapsed().as_secs_f64() * 1e6;
        let placed = placed.ok().map(|counts| cost(&instance.network, &counts));
        let began = Instant::now();
        let fewest = instance.optimum(limit);
        outcomes.program_us += began.elapsed().as_secs_f64() * 1e6;
        match (placed, fewest) {
            (_, Err(())) => outcomes.undecided += 1,
            (None, Ok(None)) => outcomes.refused += 1,
            (None, Ok(Some(_))) => outcomes.missed += 1,
            (Some(cables), Ok(fewest)) => {
                let fewest = fewest.unwrap_or(u64::MAX);
                if cables == fewest {
                    outcomes.optimal += 1;
                } else {
                    outcomes.worse += 1;
                }
                let gap = (cables as f64 / fewest.max(1) as f64 - 1.0).max(0.0) * 100.0;
                gaps += gap;
                outcomes.longest_gap_percent = outcomes.longest_gap_percent.max(gap);
            }
        }
    }
    let count = instances.max(1) as f64;
    outcomes.heuristic_us /= count;
    outcomes.program_us /= count;
    outcomes.mean_gap_percent = gaps / (outcomes.optimal + outcomes.worse).max(1) as f64;
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The heuristic is near the proved optimum, and never below it.
    #[test]
    fn the_heuristic_is_near_the_optimum() {
        let outcomes = compare(60, 7, Duration::from_secs(20));
        assert_eq!(outcomes.undecided, 0);
        assert!(outcomes.optimal >= 25, "{outcomes:?}");
        assert!(outcomes.worse <= 3 && outcomes.missed <= 2, "{outcomes:?}");
        assert!(outcomes.mean_gap_percent < 2.0, "{outcomes:?}");
    }
}
