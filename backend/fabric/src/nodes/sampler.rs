//! The samples that a node takes of its counters.

use wire::performance::PortSamplesControl;

/// Counters that a node has, each for any of the five quantities that every node can count.
pub(crate) const COUNTERS: usize = 5;

/// Progress of a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Done,
    Starting,
    Sampling,
}

/// A node's one sampling mechanism.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sampler {
    pub(crate) stage: Stage,
    pub(crate) asked: PortSamplesControl,
    /// Totals when the interval began; once it is over, what has passed in it.
    pub(crate) counters: [u64; COUNTERS],
}
