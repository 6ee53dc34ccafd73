//! Virtual InfiniBand HCAs for QEMU guests: the program's parts, as a library.

#![forbid(unsafe_code)]

pub mod afterwards;
pub mod assembly;
pub mod budget;
pub mod capture;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod device;
pub mod dma;
pub mod engine;
pub mod external;
pub mod failures;
pub mod limits;
pub mod logging;
pub mod metrics;
pub mod picture;
pub mod qemu;
pub mod run;
pub mod sockets;
mod status;
mod table;
pub mod vf_host;
