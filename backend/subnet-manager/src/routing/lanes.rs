//! Virtual lanes: which paths may share one without a deadlock.

pub(super) mod acyclic;
pub(super) mod dependency;
pub(super) mod layer;
pub(super) mod levels;
pub(super) mod ports;
