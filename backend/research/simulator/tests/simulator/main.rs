//! Simulations and studies of large subnets.

#[path = "../../../../ibvswitch/tests/page/mod.rs"]
mod page;

mod cli;
mod documentation;
mod engines;
mod opensm;
mod reconfiguration;
mod studies;
