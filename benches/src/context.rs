//! The parameters and the receiver of a suite.

use std::path::PathBuf;

use crate::neighbours::Attack;
use crate::{Effort, Measurement, Processors, Result};

/// Parameters of a suite.
#[derive(Debug, Clone)]
pub struct Context {
    /// Where to run.
    pub processors: Processors,
    /// Duration of measurements.
    pub effort: Effort,
    /// Attacks to measure, of [`Suite::Neighbours`](crate::Suite::Neighbours); all where there is none.
    pub attacks: Vec<Attack>,
    /// Whether the attacker's VF of [`Suite::Neighbours`](crate::Suite::Neighbours) has an engine of its own.
    pub apart: bool,
    /// VFs to measure, of [`Suite::Passthrough`](crate::Suite::Passthrough), as in a configuration; those of a daemon
    /// of its own where there is none.
    pub devices: Vec<String>,
    /// Whether VFs of this host's adapter are measured without a daemon before them, too.
    pub plain: bool,
    /// This program, to start once more as a daemon.
    pub program: PathBuf,
}

/// Receiver of results.
pub type Tell<'a> = &'a mut dyn FnMut(Measurement) -> Result<()>;
