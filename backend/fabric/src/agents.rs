//! Agents: what answers management packets in every node, and the traps that nodes send.

pub(crate) mod congestion;
pub(crate) mod data_by_sl;
pub(crate) mod directed;
pub(crate) mod performance;
pub(crate) mod samples;
pub(crate) mod sma;
pub(crate) mod trap;
pub(crate) mod vendor;
