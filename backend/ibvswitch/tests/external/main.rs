//! The daemon's subnet beside other people's programs on the host: Debian's opensm, infiniband-diags, ibsim and tshark.

#[path = "../administration/mod.rs"]
mod administration;
#[path = "../daemon/mod.rs"]
mod daemon;
#[path = "../programs/mod.rs"]
mod programs;

mod capture;
mod clusters;
mod congestion;
mod duplicates;
mod full_mode;
mod lanes;
mod links;
mod migration;
mod pairs;
mod shared_port;
mod tools;
mod virtual_ports;
