//! Duration of measurements.

/// Counts of what is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Rounds of a suite; device and reference take turns within each.
    pub rounds: usize,
    /// Batches of a round.
    pub batches: usize,
    /// Idle queue pairs that should make no difference.
    pub idle_queue_pairs: usize,
    /// Bytes to register.
    pub registered: usize,
}

impl Effort {
    /// For figures.
    pub const FULL: Self = Self {
        rounds: 15,
        batches: 200,
        idle_queue_pairs: 10_000,
        registered: 1 << 30,
    };

    /// For a look whether everything works; the figures mean nothing.
    pub const SMOKE: Self = Self {
        rounds: 1,
        batches: 2,
        idle_queue_pairs: 20,
        registered: 4 << 20,
    };
}
