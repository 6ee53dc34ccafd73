//! Random numbers, waiting, payload and texts of configurations, for tests, benches, fuzz targets and the
//! demo. The daemon is built without it.

mod configuration;
mod random;
mod wait;

pub use configuration::{Configuration, Toml};
pub use random::{Random, payload, seed};
pub use wait::wait_until;
