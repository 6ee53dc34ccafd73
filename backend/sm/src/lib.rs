//! The subnet manager as a program of its own: `subnet-manager` behind a port.
//!
//! The port is one of a subnet of ibsim's protocol ([`port`]). [`service`] has the manager work there until a signal.

#![forbid(unsafe_code)]

pub mod cli;
pub mod port;
pub mod service;
