//! The subnet manager as a program of its own: `subnet-manager` behind a port.
//!
//! The port is an adapter's, by the kernel's MAD device, or a simulated one, by ibsim's protocol ([`port`]). [`service`] has
//! the manager work there until a signal; [`rehearsal`] lets nothing be changed. [`settings`] are OpenSM's, and so are the
//! forms of files that it writes ([`dump_files`]). A second program answers path queries of its host out of a cache
//! ([`path_service`]).

pub mod cli;
pub mod dump_files;
pub mod path_service;
pub mod port;
pub mod rehearsal;
pub mod service;
pub mod settings;
