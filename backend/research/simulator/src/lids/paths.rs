//! Paths of a network, by destination.

use lid_assignment::paths::{
    CANDIDATES, DestinationRenaming, Legality, NotConnected, PathSelection, ShortestWidest,
    SingleLid, UpDown, maximum_load,
};
use lid_assignment::{EquivalentPaths, Heuristic, Network, Path, charged};
use rayon::prelude::*;
use serde::Serialize;

use super::Instance;

/// Methods to compute paths, all under up*/down*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Shortest-widest.
    ShortestWidest,
    /// Path selection.
    PathSelection,
    /// One LID per destination.
    SingleLid,
    /// Destination renaming. The LIDs of the scheme are those of [`Heuristic::Greedy`].
    DestinationRenaming,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::ShortestWidest,
        Self::PathSelection,
        Self::SingleLid,
        Self::DestinationRenaming,
    ];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ShortestWidest => "shortest-widest",
            Self::PathSelection => "path selection",
            Self::SingleLid => "one LID each",
            Self::DestinationRenaming => "destination renaming",
        }
    }
}

/// The paths of all pairs.
pub(super) struct Routed<'a> {
    pub(super) network: &'a Network,
    /// The largest load of a link, when every machine sends 1 in all.
    pub(super) load: f64,
    pub(super) destinations: Vec<Vec<Path>>,
}

impl<'a> Routed<'a> {
    pub(super) fn new(instance: &'a Instance, scheme: Scheme) -> Result<Self, NotConnected> {
        let network = &instance.network;
        let order = UpDown::new(network, instance.root)?;
        let legality = Legality::UpDown(&order);
        let candidates = CANDIDATES;
        let paths = match scheme {
            Scheme::ShortestWidest => ShortestWidest { legality }.paths(network),
            Scheme::PathSelection => PathSelection {
                legality,
                candidates,
            }
            .paths(network),
            Scheme::SingleLid => SingleLid { order: &order }.paths(network),
            Scheme::DestinationRenaming => {
                let renamed = DestinationRenaming { order: &order }.route(network)?;
                Ok(renamed.into_iter().flat_map(|to| to.paths).collect())
            }
        }?;
        Ok(Self::of(network, paths))
    }

    pub(super) fn of(network: &'a Network, paths: Vec<Path>) -> Self {
        let load = maximum_load(network, &paths);
        let mut destinations: Vec<Vec<Path>> = network.nodes().map(|_| Vec::new()).collect();
        for path in paths {
            destinations[network.destination(&path).0 as usize].push(path);
        }
        destinations.retain(|paths| !paths.is_empty());
        Self {
            network,
            load,
            destinations,
        }
    }

    /// All LIDs that each of these heuristics needs.
    pub(super) fn lids<const N: usize>(&self, heuristics: [Heuristic; N]) -> [f64; N] {
        let needs = |paths: &Vec<Path>| {
            let classes = EquivalentPaths::new(self.network, paths);
            let graph = classes.graph(self.network);
            heuristics.map(|heuristic| {
                let assignment = heuristic.assign_graph(self.network, classes.paths(), &graph);
                charged(assignment.configurations())
            })
        };
        let sum = |a: [usize; N], b: [usize; N]| std::array::from_fn(|at| a[at] + b[at]);
        let lids = self.destinations.par_iter().map(needs);
        lids.reduce(|| [0; N], sum).map(|lids| lids as f64)
    }
}
