//! A vhost-user-net port of an InfiniBand subnet, for guests without an InfiniBand driver: the guest's
//! stock virtio-net driver speaks Ethernet, the port speaks IP over InfiniBand (RFC 4391) with everybody
//! else, as an unreliable datagram queue pair of its own.
//!
//! * [`session`] is the vhost-user protocol: messages, memory tables, rings that start and stop.
//! * [`ring`] is a split virtqueue in the guest's [`memory`], of which nothing is believed.
//! * [`port`] is the port as a state machine: frames and datagrams in, frames and datagrams out. It joins
//!   the broadcast group, resolves neighbours by path records, and has [`translate`] rewrite addresses.
//! * [`server`] is the thread of a port: it serves one client after the other on a socket, and carries
//!   between rings, port, and the subnet, which it knows as [`server::Outside`].
//!
//! # What a client or guest can do
//! It is not trusted. A message is read as long as its header says, up to a fixed limit, and file
//! descriptors that it should not have end the connection. Descriptors are copied once, then checked, then
//! used; a ring that makes no sense ends the connection too, which the guest sees as a carrier that is
//! lost. A guest has one address: frames from another are dropped. Its tables of neighbours, paths and
//! groups are bounded.

#![forbid(unsafe_code)]

pub mod frames;
pub mod memory;
pub mod message;
pub mod net_header;
pub mod port;
pub mod ring;
pub mod server;
pub mod session;
pub mod translate;
