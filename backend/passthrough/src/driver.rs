//! The VF's driver, which the daemon is: its queues, its pages and its memory.

pub mod adapter;
pub(crate) mod commands;
pub(crate) mod events;
pub(crate) mod firmware;
pub mod survey;
pub mod window;
