//! The data plane: paths for the engine, and what it counts.

mod congestion;
mod path_counters;
mod port_counters;
mod routes;
mod shared_links;

pub(crate) use congestion::Held;
pub(crate) use path_counters::{PathCounters, PathNumbers};
pub(crate) use port_counters::PortCounters;
pub(crate) use routes::EngineSubnet;
pub(crate) use shared_links::SharedLinks;
