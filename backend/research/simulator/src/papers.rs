//! Every published table and figure that experiments here can be put beside.
//!
//! Those of "Towards the InfiniBand SR-IOV vSwitch Architecture" and "Efficient Routing and
//! Reconfiguration in Virtualized HPC Environments with vSwitch-enabled Lossless Networks" are made
//! here, those of "LID Assignment in InfiniBand Networks" by [`crate::lids::papers`].

mod queries;
mod reconfiguration;
mod studies;

use std::time::Duration;

use serde::Serialize;
use subnet_manager::{Graph, RoutingError};
use topologies::{FatTree, FatTreeError, Hosts};

use crate::comparison::Comparison;
use crate::lids::papers::Experiment as LidsExperiment;
use crate::lids::{self, LidsError};
use crate::managed::flood::FloodError;
use crate::migration::{self, StudyError};
use crate::network::{TooManyLids, graph};
use crate::progress::Progress;

/// Experiment that makes one or several tables and figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Experiment {
    /// Packets of a reconfiguration, and the example of twelve switches.
    Packets,
    /// Times to compute forwarding tables.
    Routing,
    /// Times to mark the switches of a migration.
    Marking,
    /// Figure 8: switches that migrations change, and the bandwidth that they leave.
    Migration,
    /// Tables I, II and VI of LID assignment.
    LidsHeuristics,
    /// Tables III to V.
    LidsOptima,
    /// Figures 10 and 11.
    LidsBroken,
    /// Queries to the subnet administration: the flooder, and the cache.
    Queries,
    /// Tables of the thesis on virtual clusters.
    Thesis,
}

/// Extent of the experiments, and time limits.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Trees of up to so many nodes.
    pub nodes: usize,
    /// Trees of up to so many hypervisors for migrations.
    pub hypervisors: usize,
    /// Draws of a bisection bandwidth.
    pub draws: usize,
    /// Random networks up to so many machines.
    pub machines: usize,
    /// Length of a round of path queries.
    pub flood_round: Duration,
    /// Number of networks, seed, and time limit of the solver.
    pub lids: lids::Effort,
}

impl Effort {
    /// As much as was published, but for the time of the solver.
    #[must_use]
    pub fn full(seed: u64) -> Self {
        Self {
            nodes: usize::MAX,
            hypervisors: usize::MAX,
            draws: migration::DRAWS,
            machines: usize::MAX,
            flood_round: Duration::from_millis(500),
            lids: lids::Effort {
                seed,
                ..lids::Effort::default()
            },
        }
    }

    /// A part of it, in a minute or two.
    #[must_use]
    pub fn quick(seed: u64) -> Self {
        Self {
            nodes: 648,
            hypervisors: 128,
            draws: 1000,
            machines: 128,
            flood_round: Duration::from_millis(100),
            lids: lids::Effort {
                instances: 4,
                seed,
                limit: Duration::from_secs(1),
            },
        }
    }
}

/// Results of an experiment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Findings {
    /// Tables and figures, published beside measured.
    pub comparisons: Vec<Comparison>,
    /// The simulations that figure 8 is made of.
    pub simulations: Vec<migration::Outcome>,
}

/// Why there is no comparison.
#[derive(Debug, thiserror::Error)]
pub enum PapersError {
    /// No such tree.
    #[error(transparent)]
    FatTree(#[from] FatTreeError),
    /// Too large.
    #[error(transparent)]
    TooManyLids(#[from] TooManyLids),
    /// Not routed.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// Nothing moved.
    #[error(transparent)]
    Migration(#[from] StudyError),
    /// No queries.
    #[error(transparent)]
    Flood(#[from] FloodError),
    /// No LIDs.
    #[error(transparent)]
    Lids(#[from] LidsError),
}

impl Experiment {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Packets,
        Self::Routing,
        Self::Marking,
        Self::Migration,
        Self::LidsHeuristics,
        Self::LidsOptima,
        Self::LidsBroken,
        Self::Queries,
        Self::Thesis,
    ];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Routing => "routing",
            Self::Marking => "marking",
            Self::Migration => "migration",
            Self::LidsHeuristics => "lids-heuristics",
            Self::LidsOptima => "lids-optima",
            Self::LidsBroken => "lids-broken",
            Self::Queries => "queries",
            Self::Thesis => "thesis",
        }
    }

    /// Makes it.
    ///
    /// # Errors
    /// [`PapersError`].
    pub fn run(self, effort: Effort, progress: Progress<'_>) -> Result<Findings, PapersError> {
        let comparisons = match self {
            Self::Packets => vec![
                reconfiguration::packets(effort, progress)?,
                reconfiguration::example()?,
            ],
            Self::Routing => vec![reconfiguration::routing_times(effort, progress)?],
            Self::Marking => vec![reconfiguration::marking_times(effort, progress)?],
            Self::Migration => return studies::figure_8(effort, progress),
            Self::Queries => vec![queries::flood(effort, progress)?, queries::cache()],
            Self::Thesis => vec![queries::thesis()],
            Self::LidsHeuristics => {
                LidsExperiment::Heuristics.run(effort.machines, effort.lids, progress)?
            }
            Self::LidsOptima => {
                LidsExperiment::Optima.run(effort.machines, effort.lids, progress)?
            }
            Self::LidsBroken => {
                LidsExperiment::Broken.run(effort.machines, effort.lids, progress)?
            }
        };
        Ok(Findings {
            comparisons,
            simulations: Vec::new(),
        })
    }
}

/// The graph of a fat-tree with adapters.
fn tree(text: &str) -> Result<Graph, PapersError> {
    let tree: FatTree = text.parse()?;
    Ok(graph(&tree.topology(Hosts::Adapters))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Value, silent};

    fn run(experiment: Experiment) -> Findings {
        let effort = Effort {
            nodes: 324,
            hypervisors: 32,
            draws: 20,
            ..Effort::quick(1)
        };
        experiment.run(effort, &silent).unwrap()
    }

    #[test]
    fn packets_are_as_published() {
        let findings = run(Experiment::Packets);
        let [table, example] = &findings.comparisons[..] else {
            panic!("two tables");
        };
        assert_eq!(table.rows.len(), 1);
        for row in [table, example].into_iter().flat_map(|table| &table.rows) {
            for value in &row.values {
                assert_eq!(value.measured, value.published, "{row:?}");
            }
        }
    }

    #[test]
    fn times_are_there() {
        for experiment in [Experiment::Routing, Experiment::Marking] {
            for table in run(experiment).comparisons {
                for row in &table.rows {
                    assert_eq!(row.values.len(), table.columns.len());
                    let positive = |value: &Value| value.measured.is_some_and(|value| value > 0.0);
                    assert!(row.values.iter().all(positive), "{row:?}");
                }
            }
        }
    }

    #[test]
    fn figure_8_of_the_smallest_tree() {
        let findings = run(Experiment::Migration);
        assert_eq!(findings.simulations.len(), 21);
        let [switches, bandwidth] = &findings.comparisons[..] else {
            panic!("two figures");
        };
        let of = |at: usize| switches.rows[0].values[at].measured.unwrap();
        assert!(of(0) < of(1) && of(2) <= of(3), "{switches:?}");
        assert_eq!(bandwidth.rows.len(), 7);
    }
}
