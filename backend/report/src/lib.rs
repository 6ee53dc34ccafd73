//! The state of a daemon for people and other programs: a picture of the subnet, metrics, and tables of text.
//!
//! Input is the plain data of the control socket, so this crate needs no daemon.

#![forbid(unsafe_code)]

pub mod metrics;
pub mod picture;
mod table;

pub use table::table;
