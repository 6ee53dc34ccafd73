//! VFs as drivers in user space find them: each test has a daemon, and drivers on its sockets.

#[path = "../administration/mod.rs"]
mod administration;
#[macro_use]
#[path = "../daemon/mod.rs"]
mod daemon;
#[path = "../programs/mod.rs"]
mod programs;

mod clusters;
mod ethernet;
mod function;
mod life;
mod live;
mod management;
mod passthrough;
mod transport;
