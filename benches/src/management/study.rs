//! All that is published of one tree: VMs that move, and what becomes of the bisection bandwidth.

use std::error::Error;
use std::io;
use std::time::Instant;

use simulator::migration::{self, DRAWS, TREES};

use crate::{BenchError, Context, Effort, Measurement, Result};

fn failed<E: Into<Box<dyn Error + Send + Sync>>>(error: E) -> BenchError {
    BenchError::System {
        what: "simulate migrations",
        source: io::Error::other(error),
    }
}

/// Measures the time for the 21 simulations of the largest tree of "Efficient Routing and
/// Reconfiguration in Virtualized HPC Environments with vSwitch-enabled Lossless Networks", 1024
/// hypervisors, with 10 000 draws at each of the snapshots; on all processors.
///
/// # Errors
/// [`BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let full = context.effort == Effort::FULL;
    let (tree, draws) = if full {
        (TREES[TREES.len() - 1], DRAWS)
    } else {
        (TREES[0], 10)
    };
    let tree = tree.parse().map_err(failed)?;
    let studies = migration::studies(&tree, draws, 1);
    let start = Instant::now();
    migration::run(&studies, &simulator::silent).map_err(failed)?;
    Ok(vec![Measurement {
        name: "study_1024_s",
        value: start.elapsed().as_secs_f64(),
        unit: "s",
        reference: None,
    }])
}
