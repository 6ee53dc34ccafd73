//! The daemon's threads and what they share.

pub mod management;
pub mod manager_files;
pub mod port;
