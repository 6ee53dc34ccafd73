//! LIDs of a regular topology of which cables are broken.

use lid_assignment::LinkId;
use lid_assignment::paths::repair;
use rand::RngExt as _;
use rayon::prelude::*;
use serde::Serialize;

use super::optima::Found;
use super::paths::Routed;
use super::topology::Regular;
use super::{Effort, LidsError, mean};
use crate::generator;

/// A point of figures 10 and 11: mean total LIDs after some cables of a regular topology broke.
#[derive(Debug, Clone, Serialize)]
pub struct BrokenLids {
    /// The topology.
    pub topology: &'static str,
    /// Its machines.
    pub machines: usize,
    /// Cables that broke.
    pub cables: usize,
    /// Mean total LIDs with greedy.
    pub greedy: f64,
    /// With color/L.
    pub color_largest: f64,
    /// With color/L by degrees of the whole split graph.
    pub color_whole: f64,
    /// The optimum, where every problem was solved in time.
    pub optimum: Option<f64>,
}

/// LIDs of a regular topology of which so many cables between switches, chosen at random, are
/// broken. One that has fewer loses all.
///
/// # Errors
/// [`LidsError`]: what is left may be in parts.
pub fn broken(topology: &Regular, cables: usize, effort: Effort) -> Result<BrokenLids, LidsError> {
    if effort.instances == 0 {
        return Err(LidsError::NoInstances);
    }
    let network = &topology.network;
    let trunks: Vec<LinkId> = network
        .links()
        .step_by(2)
        .filter(|&link| topology.is_trunk(link))
        .collect();
    let one = |number: usize| -> Result<Found, LidsError> {
        let mut random = generator(effort.seed, number as u64);
        let mut left = trunks.clone();
        let cut: Vec<LinkId> = (0..cables.min(left.len()))
            .map(|_| left.swap_remove(random.random_range(0..left.len())))
            .collect();
        let paths = repair(network, &topology.paths, &cut)?;
        Ok(Found::new(&Routed::of(network, paths), effort))
    };
    let all = (0..effort.instances)
        .into_par_iter()
        .map(one)
        .collect::<Result<Vec<Found>, _>>()?;
    let optima: Option<Vec<f64>> = all.iter().map(|found| found.optimum).collect();
    Ok(BrokenLids {
        topology: topology.name,
        machines: network.machines().count(),
        cables,
        greedy: mean(all.iter().map(|found| found.greedy)),
        color_largest: mean(all.iter().map(|found| found.color_largest)),
        color_whole: mean(all.iter().map(|found| found.color_whole)),
        optimum: optima.map(|optima| mean(optima.into_iter())),
    })
}
