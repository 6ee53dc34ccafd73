//! Virtual InfiniBand HCAs for QEMU guests: the program's parts, as a library.

#![forbid(unsafe_code)]

pub mod budget;
pub mod capture;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod doctor;
pub mod finding;
pub mod host;
pub mod metrics;
pub mod monitor;
pub mod picture;
pub mod qemu;
mod status;
mod table;
