//! VMs that move while they run.

mod failures;
mod ports;
mod states;
mod steps;
