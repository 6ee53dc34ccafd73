//! Tools to serve a virtual machine monitor over a UNIX socket, whatever the protocol: the socket that it
//! connects to ([`Listener`]), messages with their file descriptors ([`socket`]), memory that its owner may
//! truncate ([`memory`]), eventfds that may be full ([`Signaller`]), descriptors that one program leaves to
//! the next ([`inheritance`]), bounds on what clients cause ([`Journal`], [`Pace`]), and threads that get a processor
//! soon ([`shorten_slice`]).
//!
//! The other side is not trusted. A message is read exactly as long as its header says; file descriptors
//! belong to the message that they came with, and those that nobody expects are closed; memory that its
//! owner truncates turns into zeros instead of a crash; to signal an eventfd never waits.

mod eventfd;
pub mod inheritance;
mod journal;
mod listener;
pub mod memory;
mod sigbus;
mod slice;
pub mod socket;

pub use eventfd::Signaller;
pub use journal::{Journal, Omitted, Pace};
pub use listener::{BindError, Listener, Stop, remedy};
pub use memory::{Files, MapError, MappedFile, MemoryLimits, SharedMemory};
pub use slice::shorten_slice;
pub use socket::MAX_FDS;
