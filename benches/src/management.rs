//! Subnet managers, routing and migrations, in subnets of any size.

pub mod migration;
pub mod opensm;
pub mod reconfiguration;
pub mod routing;
pub mod sa;
pub mod sm;
pub mod study;
