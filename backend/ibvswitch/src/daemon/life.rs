//! A daemon from its start to its end: configuration, sockets, sandbox, threads, and answers to the control
//! socket.

pub mod abort;
pub mod assembly;
pub mod limits;
pub mod logging;
pub mod run;
pub mod sandbox;
pub mod sockets;
mod status_source;
