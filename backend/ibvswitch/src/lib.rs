//! Virtual InfiniBand HCAs for QEMU guests: the program's parts, as a library.

pub mod config;
