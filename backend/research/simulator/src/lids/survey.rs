//! Every heuristic on random networks, with every way to compute paths.

use lid_assignment::Heuristic;
use serde::Serialize;
use wire::Lid;

use super::paths::Routed;
use super::{Effort, LidsError, Scheme, Setting, mean, of_all};
use crate::progress::Progress;

/// LIDs and load of random networks of one size.
#[derive(Debug, Clone, Serialize)]
pub struct Survey {
    /// The networks.
    pub setting: Setting,
    /// Method that computed the paths.
    pub scheme: Scheme,
    /// Mean largest load of a link when every machine sends 1 in all, in equal parts to all others.
    pub load: f64,
    /// By heuristic, in the order of [`Heuristic::ALL`].
    pub lids: [MethodLids; Heuristic::ALL.len()],
}

/// LIDs of all machines with one heuristic.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MethodLids {
    /// The heuristic.
    pub heuristic: &'static str,
    /// Mean total over the networks.
    pub mean: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
    /// Part of the unicast LIDs that the mean takes, 0 to 1; above 1 the subnet is too large.
    pub space: f64,
}

/// Computes the LIDs that the heuristics need for the paths of a scheme.
///
/// # Errors
/// [`LidsError`].
pub fn survey(
    settings: &[Setting],
    scheme: Scheme,
    effort: Effort,
    progress: Progress<'_>,
) -> Result<Vec<Survey>, LidsError> {
    let all = of_all(settings, effort, progress, |instance| {
        let routed = Routed::new(instance, scheme)?;
        Ok((routed.load, routed.lids(Heuristic::ALL)))
    })?;
    let row = |(&setting, networks): (&Setting, Vec<(f64, [f64; Heuristic::ALL.len()])>)| {
        let method = |at: usize| {
            let lids = || networks.iter().map(|(_, lids)| lids[at]);
            let mean = mean(lids());
            MethodLids {
                heuristic: Heuristic::ALL[at].name(),
                mean,
                least: lids().fold(f64::INFINITY, f64::min),
                most: lids().fold(0.0, f64::max),
                space: mean / f64::from(Lid::UNICAST_LAST.value()),
            }
        };
        Survey {
            setting,
            scheme,
            load: mean(networks.iter().map(|(load, _)| *load)),
            lids: std::array::from_fn(method),
        }
    };
    Ok(settings.iter().zip(all).map(row).collect())
}
