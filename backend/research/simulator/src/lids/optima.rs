//! Heuristics beside the optimum.

use lid_assignment::{EquivalentPaths, ExactError, Heuristic, charged, fewest_lids};
use rayon::prelude::*;
use serde::Serialize;

use super::paths::Routed;
use super::{Effort, LidsError, Scheme, Setting, mean, of_all};
use crate::progress::Progress;

/// A row of tables III to V.
#[derive(Debug, Clone, Serialize)]
pub struct OptimumLids {
    /// The networks.
    pub setting: Setting,
    /// Networks solved within the limit; the paper replaced the others, here the means below are
    /// over fewer.
    pub solved: usize,
    /// Mean total LIDs of the networks that were solved; `None` where none was.
    pub selected: Option<Selected>,
    /// Greedy over all networks, solved or not.
    pub greedy: f64,
    /// color/L over all.
    pub color_largest: f64,
    /// color/L by degrees of the whole split graph, over all.
    pub color_whole: f64,
}

/// Mean total LIDs of networks whose optimum is known.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Selected {
    /// The optimum.
    pub optimum: f64,
    /// Greedy.
    pub greedy: f64,
    /// color/L.
    pub color_largest: f64,
    /// color/L by degrees of the whole split graph.
    pub color_whole: f64,
}

/// LIDs of one network.
pub(super) struct Found {
    pub(super) greedy: f64,
    pub(super) color_largest: f64,
    pub(super) color_whole: f64,
    /// `None` when the solver needed more time than it was given.
    pub(super) optimum: Option<f64>,
}

impl Found {
    pub(super) fn new(routed: &Routed<'_>, effort: Effort) -> Self {
        let best: Result<Vec<usize>, ExactError> = routed
            .destinations
            .par_iter()
            .map(|paths| {
                let classes = EquivalentPaths::new(routed.network, paths);
                let graph = classes.graph(routed.network);
                let paths = classes.paths();
                let known = [Heuristic::ColorLargest, Heuristic::ColorLargestWhole]
                    .map(|heuristic| heuristic.assign_graph(routed.network, paths, &graph));
                let [figure, whole] = known;
                let fewer = whole.configurations() < figure.configurations();
                let known = if fewer { whole } else { figure };
                let best = fewest_lids(&graph, &known, effort.limit)?;
                Ok(charged(best.configurations()))
            })
            .collect();
        let [greedy, color_largest, color_whole] = routed.lids([
            Heuristic::Greedy,
            Heuristic::ColorLargest,
            Heuristic::ColorLargestWhole,
        ]);
        Self {
            greedy,
            color_largest,
            color_whole,
            optimum: best.ok().map(|lids| lids.iter().sum::<usize>() as f64),
        }
    }
}

/// Heuristics beside the optimum, for tables III to V.
///
/// # Errors
/// [`LidsError`].
pub fn optima(
    settings: &[Setting],
    scheme: Scheme,
    effort: Effort,
    progress: Progress<'_>,
) -> Result<Vec<OptimumLids>, LidsError> {
    let all = of_all(settings, effort, progress, |instance| {
        Ok(Found::new(&Routed::new(instance, scheme)?, effort))
    })?;
    let row = |(&setting, found): (&Setting, Vec<Found>)| {
        let all = |lids: fn(&Found) -> f64| mean(found.iter().map(lids));
        let greedy = all(|found| found.greedy);
        let color_largest = all(|found| found.color_largest);
        let color_whole = all(|found| found.color_whole);
        let solved: Vec<Found> = found
            .into_iter()
            .filter(|found| found.optimum.is_some())
            .collect();
        let of = |lids: fn(&Found) -> f64| mean(solved.iter().map(lids));
        let selected = (!solved.is_empty()).then(|| Selected {
            optimum: of(|found| found.optimum.unwrap_or_default()),
            greedy: of(|found| found.greedy),
            color_largest: of(|found| found.color_largest),
            color_whole: of(|found| found.color_whole),
        });
        OptimumLids {
            setting,
            solved: solved.len(),
            selected,
            greedy,
            color_largest,
            color_whole,
        }
    };
    Ok(settings.iter().zip(all).map(row).collect())
}
