//! Simulations and studies of large subnets.

#[path = "../../../../ibvswitch/tests/page/mod.rs"]
mod page;

mod cli;
mod documentation;
mod engines;
mod opensm;
mod port_lanes;
mod reconfiguration;
mod studies;
