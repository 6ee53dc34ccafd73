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
//!
//! # The port in the subnet
//!
//! To the vSwitch a port is a VF like others: a place with a node, a GUID, a LID and P_Keys. Its data goes by a `Station`
//! (`hca::transport`), an end of the mesh between engines with the same decorators; the port's thread has it. A frame may be
//! a *train* (`wire::ipoib::Train`): a long TCP segment that stands for several datagrams. It stays whole if it ends at a
//! station whose guest takes trains and no decorator needs packets; else the port cuts it. The port's agents answer for the
//! guest, and its registrations end with the guest. `port::claims` checks a guest's claim to an IP address if the
//! configuration asks for it. A port has no image: QEMU moves the rings, and the port learns neighbours and paths anew.

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
