//! Completion queues.

use crate::engine::VfId;
use crate::face::Face;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq<F: Face> {
    pub vf: VfId,
    pub cqn: u32,
    pub ring: F::Completion,
    /// Queue pairs and XRC shared receive queues that complete here.
    pub users: u32,
    /// Overran or lost its memory; takes no more entries.
    pub failed: bool,
    /// The engine looks at its arming.
    pub watched: bool,
}

impl<F: Face> Cq<F> {
    pub const fn new(vf: VfId, cqn: u32, ring: F::Completion) -> Self {
        Self {
            vf,
            cqn,
            ring,
            users: 0,
            failed: false,
            watched: false,
        }
    }
}
