//! Beyond the subnet manager's LID assignment: the integer program, and paths that one LID per destination suffices for.
//!
//! The model, the heuristics and the path schemes of "LID Assignment in InfiniBand Networks" (Nienaber, Yuan, Duan) are
//! the subnet manager's ([`subnet_manager::routing::multipath`]); they are here under shorter names.

#![forbid(unsafe_code)]

mod exact;
mod single;

pub use exact::{ExactError, Formulation, fewest_lids, optimum};
pub use subnet_manager::routing::multipath::{
    Assignment, Elsewhere, EquivalentPaths, Heuristic, Kind, Link, LinkId, Network, NodeIndex,
    Path, PathError, SplitGraph, Violation, charged,
};

/// Path computation.
pub mod paths {
    pub use crate::single::SingleLid;
    pub use subnet_manager::routing::multipath::paths::*;
}
