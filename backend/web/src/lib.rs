//! One page that shows a running daemon, as a process of its own beside it.
//!
//! The page asks nothing of the daemon that commands do not ask: all comes by the control socket. It changes something
//! only where it was started so ([`cli`]), and only for those who have its token ([`guard`]). Browsers get it whole from
//! here: there are no resources of others.

#![forbid(unsafe_code)]

mod address;
pub mod cli;
mod clusters;
mod daemon;
pub mod download;
pub mod guard;
mod listener;
mod page;
pub mod server;
mod snapshot;
mod tls;
