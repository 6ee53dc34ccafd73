//! The data path between two ports: time, rate, and what features cost.

pub mod bandwidth;
pub(crate) mod bulk;
pub(crate) mod dirty_log;
pub mod engines;
pub mod idle;
pub mod latency;
pub(crate) mod on_demand;
pub mod rate;
pub mod registration;
pub(crate) mod signatures;
pub(crate) mod tags;
pub mod vhost;
