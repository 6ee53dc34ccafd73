//! Random numbers, waiting, payload and configurations, for tests alone: a development dependency of other crates.

mod configuration;
mod random;
mod wait;

pub use configuration::hypervisors;
pub use random::{Random, payload, seed};
pub use wait::wait_until;
