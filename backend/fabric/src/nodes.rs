//! Nodes: which there are, what they know of themselves, and what they count.

pub(crate) mod counters;
pub(crate) mod forwarding;
pub(crate) mod node;
pub(crate) mod report;
pub(crate) mod topology;
