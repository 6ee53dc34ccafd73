//! Virtual InfiniBand HCAs for QEMU guests: the program's parts, as a library.

pub mod cli;
pub mod config;
pub mod control;
pub mod logging;
pub mod qemu;
pub mod run;
pub mod sockets;
pub mod status;
pub mod topology;
