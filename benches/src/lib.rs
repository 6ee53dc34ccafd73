//! Costs of the device, compared with the limits of the machine.
//!
//! Each suite is a module. A suite starts a daemon in this process, opens two
//! VFs with the user-space driver and moves data from one to the other, with
//! the engine's thread on one processor and the driver's on another. What it
//! measures, it sets against a [`reference`](mod@reference) measured in the same run on the
//! same two processors: a bare cache line that travels between them, a bare
//! ring of 64-byte slots, a plain copy between the same two mappings. Such
//! ratios hold across machines; times do not.
//!
//! Every time is that of a batch of operations, a few microseconds to a few
//! hundred, and the result is the median of batches: on a machine with other
//! things to do, a batch that was interrupted is an outlier and does not count.
//! Payload is checked, outside of what is timed.
//!
//! `ibvswitch bench` runs them all; [`cli`] has the command line.

#![forbid(unsafe_code)]

pub mod cli;
mod context;
pub mod daemons;
pub mod data_path;
mod effort;
mod error;
pub mod exhaustion;
pub mod footprint;
pub mod management;
pub mod neighbours;
pub mod passthrough;
pub mod reference;
mod report;
mod suite;

pub use context::{Context, Tell};
pub use daemons::connection::Connected;
pub use daemons::lab::{Daemon, Peer, configuration};
pub use daemons::processors::{Pinned, Processors};
pub use effort::Effort;
pub use error::{BenchError, Result};
pub use report::{Measurement, Reference, Report, Run};
pub use suite::Suite;
