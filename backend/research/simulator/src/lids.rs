//! The experiments of "LID Assignment in InfiniBand Networks" (Nienaber, Yuan, Duan).
//!
//! Numbers of LIDs are totals over all machines, each rounded up to a power of two as the LMC asks,
//! and means over random networks. [`papers`] puts them beside the published ones; [`survey()`] is the
//! same for a network of one's own choice.

mod broken;
mod claims;
mod optima;
pub mod papers;
mod paths;
pub mod published;
mod survey;
mod topology;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lid_assignment::paths::NotConnected;
use lid_assignment::{Network, NodeIndex};
use rand::RngExt as _;
use rayon::prelude::*;
use serde::Serialize;

use crate::generator;
use crate::progress::{Progress, Step};
pub use broken::{BrokenLids, broken};
pub use optima::{OptimumLids, Selected, optima};
pub use paths::Scheme;
pub use survey::{MethodLids, Survey, survey};
pub use topology::{Regular, TopologyError, dimension_order, irregular, m_port_n_tree, torus};

/// Machines and switches of a random irregular network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Machines, plugged into switches at random.
    pub machines: usize,
    /// Switches.
    pub switches: usize,
    /// Cables between switches at a switch, on average.
    pub degree: usize,
}

impl Setting {
    /// The paper's average nodal degree.
    pub const DEGREE: usize = 8;

    /// A network of the paper's degree.
    #[must_use]
    pub fn new(machines: usize, switches: usize) -> Self {
        Self {
            machines,
            switches,
            degree: Self::DEGREE,
        }
    }

    /// As the paper writes it: machines/switches.
    #[must_use]
    pub fn name(self) -> String {
        format!("{}/{}", self.machines, self.switches)
    }

    /// A random network, and the root of its up*/down* order.
    fn instance(self, effort: Effort, number: usize) -> Result<Instance, LidsError> {
        let mut random = generator(effort.seed, number as u64);
        let network = irregular(self.machines, self.switches, self.degree, &mut random)?;
        let switches: Vec<NodeIndex> = network.switches().collect();
        let root = switches[random.random_range(0..switches.len())];
        Ok(Instance { network, root })
    }
}

/// A network to route.
struct Instance {
    network: Network,
    root: NodeIndex,
}

/// Number and seed of random networks, and time limit of the solver for a problem.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Effort {
    /// Random networks; the paper took 32.
    pub instances: usize,
    /// Decides all random numbers.
    pub seed: u64,
    /// For one integer program; the paper allowed four hours.
    pub limit: Duration,
}

impl Default for Effort {
    /// As many networks as in the paper.
    fn default() -> Self {
        Self {
            instances: 32,
            seed: 1,
            limit: Duration::from_secs(60),
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum LidsError {
    /// No network, no mean.
    #[error("0 random networks: take at least 1")]
    NoInstances,
    /// The network is impossible.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// It is in parts.
    #[error(transparent)]
    NotConnected(#[from] NotConnected),
}

/// `one` of every network of every setting, by setting.
fn of_all<T: Send>(
    settings: &[Setting],
    effort: Effort,
    progress: Progress<'_>,
    one: impl Fn(&Instance) -> Result<T, LidsError> + Sync,
) -> Result<Vec<Vec<T>>, LidsError> {
    if effort.instances == 0 {
        return Err(LidsError::NoInstances);
    }
    let of = settings.len() * effort.instances;
    let done = AtomicUsize::new(0);
    let work = |index: usize| {
        // The large settings first, so that no thread is left alone with one at the end.
        let setting = settings[settings.len() - 1 - index / effort.instances];
        let result = one(&setting.instance(effort, index % effort.instances)?)?;
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        let what = &setting.name();
        progress(Step { what, done, of });
        Ok(result)
    };
    let all = (0..of)
        .into_par_iter()
        .with_max_len(1)
        .map(work)
        .collect::<Result<Vec<T>, LidsError>>()?;
    let mut rest = all.into_iter();
    let mut by_setting: Vec<Vec<T>> = settings
        .iter()
        .map(|_| rest.by_ref().take(effort.instances).collect())
        .collect();
    by_setting.reverse();
    Ok(by_setting)
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}
