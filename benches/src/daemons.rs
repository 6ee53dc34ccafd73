//! Daemons that are measured, their clients, and the processors on which they run.

pub(crate) mod connection;
pub(crate) mod lab;
pub(crate) mod memory;
pub(crate) mod pace;
pub mod process;
pub(crate) mod processors;
