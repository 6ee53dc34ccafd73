//! Large subnets in memory: experiments with routing, LIDs and virtual machines that come and go.
//!
//! Every experiment is a function of its parameters and a seed: the same seed gives the same numbers, but for times, on
//! any machine and with any number of threads. Those in [`managed`] have subnet managers send their packets through a
//! fabric in memory; no other experiment sends a packet.
//!
//! The program `ibvswitch-simulate` runs them ([`cli`]) and draws what they find ([`plot`]).

#![forbid(unsafe_code)]

pub mod capacity;
pub mod cli;
mod comparison;
pub mod lids;
pub mod managed;
pub mod migration;
mod network;
pub mod opensm;
pub mod papers;
pub mod plot;
mod progress;
pub mod quality;
mod random;
pub mod routing;

pub use comparison::{Column, Comparison, Row, Value};
pub use network::shape::{InParts, Shape, ShapeError, connected};
pub use network::{TooManyLids, graph, with_hypervisors, without_aggregation_nodes};
pub use progress::{Progress, Step, silent};
pub use random::generator;
