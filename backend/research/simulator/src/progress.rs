//! Progress of an experiment.

/// A part of an experiment that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'a> {
    /// Current step, such as `random start, consolidate, 50 %`.
    pub what: &'a str,
    /// Parts that are done.
    pub done: usize,
    /// All parts.
    pub of: usize,
}

/// Is told of every part of an experiment that is done, from whatever thread has done it.
pub type Progress<'a> = &'a (dyn Fn(Step<'_>) + Sync);

/// Tells nobody.
pub fn silent(_: Step<'_>) {}
