//! The experiments of "LID Assignment in InfiniBand Networks" (Nienaber, Yuan, Duan).
//!
//! Numbers of LIDs are totals over all machines, each rounded up to a power of two as the LMC asks,
//! and means over random networks. Published values are in [`published`].

pub mod published;
mod topology;

use std::time::Duration;

use rand::RngExt as _;
use rayon::prelude::*;
use serde::Serialize;
use subnet::assignment::{
    ExactError, Heuristic, LinkId, Network, NodeIndex, Path, SplitGraph, charged, optimum,
};
use subnet::paths::{
    CANDIDATES, Legality, NotConnected, PathSelection, ShortestWidest, SingleLid, UpDown,
    maximum_load, repair,
};

use crate::generator;
pub use topology::{Regular, TopologyError, dimension_order, irregular, m_port_n_tree, torus};

/// Machines and switches of a random irregular network of average nodal degree
/// [`Setting::DEGREE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Machines, plugged into switches at random.
    pub machines: usize,
    /// Switches.
    pub switches: usize,
}

impl Setting {
    /// Cables between switches at a switch, on average.
    pub const DEGREE: usize = 8;

    /// As the paper writes it: machines/switches.
    #[must_use]
    pub fn name(self) -> String {
        format!("{}/{}", self.machines, self.switches)
    }
}

/// How paths are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Shortest-widest under up*/down*.
    ShortestWidest,
    /// Path selection under up*/down*.
    PathSelection,
    /// One LID per destination.
    SingleLid,
}

/// How many random networks, which, and how long the solver may take for a problem.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Effort {
    /// Random networks; the paper took 32.
    pub instances: usize,
    /// Decides all random numbers.
    pub seed: u64,
    /// For one integer program; the paper allowed four hours.
    pub limit: Duration,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum LidsError {
    /// The network is impossible.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// It is in parts.
    #[error(transparent)]
    NotConnected(#[from] NotConnected),
    /// The solver did not find out in time in any network.
    #[error("no network was solved in time, of {0}; allow more time or take smaller ones")]
    AllTimedOut(usize),
}

/// The means of a setting: LIDs for each heuristic, in the order of [`Heuristic::ALL`].
#[derive(Debug, Clone, Serialize)]
pub struct HeuristicLids {
    /// The networks.
    pub setting: Setting,
    /// Mean total LIDs by heuristic.
    pub lids: [f64; 5],
}

/// The paths of a scheme, by destination.
fn paths(network: &Network, scheme: Scheme, root: NodeIndex) -> Result<Vec<Path>, NotConnected> {
    let order = UpDown::new(network, root)?;
    let legality = Legality::UpDown(&order);
    match scheme {
        Scheme::ShortestWidest => ShortestWidest { legality }.paths(network),
        Scheme::PathSelection => {
            let candidates = CANDIDATES;
            PathSelection {
                legality,
                candidates,
            }
            .paths(network)
        }
        Scheme::SingleLid => SingleLid { order: &order }.paths(network),
    }
}

fn by_destination(network: &Network, paths: Vec<Path>) -> Vec<Vec<Path>> {
    let mut of: Vec<Vec<Path>> = network.nodes().map(|_| Vec::new()).collect();
    for path in paths {
        of[network.destination(&path).0 as usize].push(path);
    }
    of.retain(|paths| !paths.is_empty());
    of
}

/// A random network and the root of its up*/down* order.
fn instance(
    setting: Setting,
    effort: Effort,
    number: usize,
) -> Result<(Network, NodeIndex), LidsError> {
    let mut random = generator(effort.seed, number as u64);
    let network = irregular(
        setting.machines,
        setting.switches,
        Setting::DEGREE,
        &mut random,
    )?;
    let switches: Vec<NodeIndex> = network.switches().collect();
    let root = switches[random.random_range(0..switches.len())];
    Ok((network, root))
}

fn total(network: &Network, destinations: &[Vec<Path>], heuristic: Heuristic) -> usize {
    let needs = |paths: &Vec<Path>| charged(heuristic.assign(network, paths).configurations());
    destinations.par_iter().map(needs).sum()
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}

/// Tables I and II: all heuristics on the paths of a scheme.
///
/// # Errors
/// [`LidsError`].
pub fn heuristics(
    setting: Setting,
    scheme: Scheme,
    effort: Effort,
) -> Result<HeuristicLids, LidsError> {
    let one = |number| -> Result<[f64; 5], LidsError> {
        let (network, root) = instance(setting, effort, number)?;
        let destinations = by_destination(&network, paths(&network, scheme, root)?);
        Ok(Heuristic::ALL.map(|heuristic| total(&network, &destinations, heuristic) as f64))
    };
    let all = (0..effort.instances)
        .into_par_iter()
        .map(one)
        .collect::<Result<Vec<_>, _>>()?;
    let lids = std::array::from_fn(|at| mean(all.iter().map(|lids| lids[at])));
    Ok(HeuristicLids { setting, lids })
}

/// A row of tables III and IV.
#[derive(Debug, Clone, Serialize)]
pub struct OptimumLids {
    /// The networks.
    pub setting: Setting,
    /// Mean total LIDs: the optimum, greedy, color/L, of the networks that were solved.
    pub optimum: f64,
    /// Greedy.
    pub greedy: f64,
    /// color/L.
    pub color_largest: f64,
    /// Greedy and color/L over all networks, solved or not: table V.
    pub unselected: (f64, f64),
    /// Networks solved within the limit.
    pub solved: usize,
}

/// Tables III to V: heuristics beside the optimum. A network of which one problem is not solved in
/// time is left out, as in the paper; the paper replaced it by another one, here the mean is over
/// fewer.
///
/// # Errors
/// [`LidsError`].
pub fn optima(setting: Setting, scheme: Scheme, effort: Effort) -> Result<OptimumLids, LidsError> {
    let one = |number| -> Result<([f64; 2], Option<f64>), LidsError> {
        let (network, root) = instance(setting, effort, number)?;
        let destinations = by_destination(&network, paths(&network, scheme, root)?);
        let greedy = total(&network, &destinations, Heuristic::Greedy);
        let colored = total(&network, &destinations, Heuristic::ColorLargest);
        let best: Result<Vec<usize>, ExactError> = destinations
            .par_iter()
            .map(|paths| {
                let graph = SplitGraph::new(&network, paths);
                let known = Heuristic::ColorLargest.assign_graph(&network, paths, &graph);
                let best = optimum(&graph, &known, effort.limit)?;
                Ok(charged(best.configurations()))
            })
            .collect();
        let best = best.ok().map(|lids| lids.iter().sum::<usize>() as f64);
        Ok(([greedy as f64, colored as f64], best))
    };
    let all = (0..effort.instances)
        .into_par_iter()
        .map(one)
        .collect::<Result<Vec<_>, _>>()?;
    let solved: Vec<([f64; 2], f64)> = all
        .iter()
        .filter_map(|(heuristics, best)| best.map(|best| (*heuristics, best)))
        .collect();
    if solved.is_empty() {
        return Err(LidsError::AllTimedOut(effort.instances));
    }
    Ok(OptimumLids {
        setting,
        optimum: mean(solved.iter().map(|(_, best)| *best)),
        greedy: mean(solved.iter().map(|(lids, _)| lids[0])),
        color_largest: mean(solved.iter().map(|(lids, _)| lids[1])),
        unselected: (
            mean(all.iter().map(|(lids, _)| lids[0])),
            mean(all.iter().map(|(lids, _)| lids[1])),
        ),
        solved: solved.len(),
    })
}

/// A row of table VI: largest link load under uniform traffic and total LIDs of three ways to route.
#[derive(Debug, Clone, Serialize)]
pub struct SchemeComparison {
    /// The networks.
    pub setting: Setting,
    /// One LID per destination.
    pub single: (f64, f64),
    /// Destination renaming: shortest-widest paths, a new LID whenever a path parts from all LIDs of
    /// its destination so far. The paper does not say more of it; its numbers of LIDs are those of
    /// greedy assignment to shortest-widest paths.
    pub renaming: (f64, f64),
    /// Path selection and color/L, the paper's proposal.
    pub separate: (f64, f64),
}

/// Table VI.
///
/// # Errors
/// [`LidsError`].
pub fn schemes(setting: Setting, effort: Effort) -> Result<SchemeComparison, LidsError> {
    const WAYS: [(Scheme, Heuristic); 3] = [
        (Scheme::SingleLid, Heuristic::Greedy),
        (Scheme::ShortestWidest, Heuristic::Greedy),
        (Scheme::PathSelection, Heuristic::ColorLargest),
    ];
    let one = |number| -> Result<[(f64, f64); 3], LidsError> {
        let (network, root) = instance(setting, effort, number)?;
        let mut results = [(0.0, 0.0); 3];
        for (result, (scheme, heuristic)) in results.iter_mut().zip(WAYS) {
            let paths = paths(&network, scheme, root)?;
            let load = maximum_load(&network, &paths);
            let destinations = by_destination(&network, paths);
            *result = (load, total(&network, &destinations, heuristic) as f64);
        }
        Ok(results)
    };
    let all = (0..effort.instances)
        .into_par_iter()
        .map(one)
        .collect::<Result<Vec<_>, _>>()?;
    let of = |way: usize| {
        (
            mean(all.iter().map(|results| results[way].0)),
            mean(all.iter().map(|results| results[way].1)),
        )
    };
    Ok(SchemeComparison {
        setting,
        single: of(0),
        renaming: of(1),
        separate: of(2),
    })
}

/// A point of figures 10 and 11: mean LIDs per destination after some cables of a regular topology
/// broke.
#[derive(Debug, Clone, Serialize)]
pub struct BrokenLids {
    /// The topology.
    pub topology: &'static str,
    /// Cables that broke.
    pub broken: usize,
    /// Mean total LIDs with greedy.
    pub greedy: f64,
    /// With color/L.
    pub color_largest: f64,
    /// The optimum, where every problem was solved in time.
    pub optimum: Option<f64>,
}

/// Figures 10 and 11: LIDs of a regular topology with broken cables.
///
/// # Errors
/// [`LidsError`].
pub fn broken(topology: &Regular, broken: usize, effort: Effort) -> Result<BrokenLids, LidsError> {
    let network = &topology.network;
    let trunks: Vec<LinkId> = network
        .links()
        .step_by(2)
        .filter(|&link| topology.is_trunk(link))
        .collect();
    let one = |number: usize| -> Result<([f64; 2], Option<f64>), LidsError> {
        let mut random = generator(effort.seed, number as u64);
        let mut left = trunks.clone();
        let cables: Vec<LinkId> = (0..broken)
            .map(|_| left.swap_remove(random.random_range(0..left.len())))
            .collect();
        let destinations = by_destination(network, repair(network, &topology.paths, &cables)?);
        let heuristics = [Heuristic::Greedy, Heuristic::ColorLargest]
            .map(|heuristic| total(network, &destinations, heuristic) as f64);
        let best = |paths: &Vec<Path>| -> Result<usize, ExactError> {
            let graph = SplitGraph::new(network, paths);
            let known = Heuristic::ColorLargest.assign_graph(network, paths, &graph);
            Ok(charged(
                optimum(&graph, &known, effort.limit)?.configurations(),
            ))
        };
        let best: Result<Vec<usize>, _> = destinations.par_iter().map(best).collect();
        let best = best.ok().map(|lids| lids.iter().sum::<usize>() as f64);
        Ok((heuristics, best))
    };
    let all = (0..effort.instances)
        .into_par_iter()
        .map(one)
        .collect::<Result<Vec<_>, _>>()?;
    let optima: Option<Vec<f64>> = all.iter().map(|(_, best)| *best).collect();
    Ok(BrokenLids {
        topology: topology.name,
        broken,
        greedy: mean(all.iter().map(|(lids, _)| lids[0])),
        color_largest: mean(all.iter().map(|(lids, _)| lids[1])),
        optimum: optima.map(|optima| mean(optima.into_iter())),
    })
}
