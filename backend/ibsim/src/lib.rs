//! The client protocol of the InfiniBand fabric simulator ibsim: MADs as datagrams between programs of one host.
//!
//! A program attaches to the port of a node ([`Attachment`]) and sends and receives its MADs from then on. The other
//! side is ibsim, or a daemon of ours. A client asks questions on the control socket ([`protocol::Control`]) and has a
//! socket for its MADs ([`protocol::Datagram`]). All sockets are in the abstract namespace, and their names begin with
//! the same text.

#![forbid(unsafe_code)]

mod attachment;
pub mod batch;
pub mod protocol;

pub use attachment::{AttachError, Attachment};

/// Name of the control socket of a subnet whose sockets' names begin with `base`, in the abstract namespace.
/// libumad2sim counts the NUL that ends a string as part of the name.
#[must_use]
pub fn control_name(base: &str) -> String {
    format!("{base}:ctl\0")
}

/// Name of the socket that client `id` sends to.
#[must_use]
pub fn service_name(base: &str, id: u16) -> String {
    format!("{base}:out{id}\0")
}

/// Name of the socket that the client of process `pid` receives from.
#[must_use]
pub fn client_name(base: &str, pid: u32) -> String {
    format!("{base}:in{pid}\0")
}
