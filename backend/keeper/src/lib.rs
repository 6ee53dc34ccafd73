//! A small process that keeps the virtual machines of a daemon that dies.
//!
//! QEMU does not connect to a vfio-user server a second time, and ends when it loses the server at the
//! wrong moment. So somebody other than the daemon has a copy of each connection: the *keeper*. It has as well
//! what QEMU says only once (memory, eventfds), the memory that guests have mapped, and the listening
//! sockets. It knows nothing of InfiniBand, takes no part while the daemon lives, and is told only of what is
//! rare.
//!
//! When the daemon dies, the keeper answers QEMU in its place: the device is there, and has failed. When the
//! daemon is there again, it is handed everything, and serves on a device that was reset. The guest's driver
//! sees a device that failed and came back, and does what it does then.
//!
//! Three processes, then:
//! * [`supervisor`]: starts the other two, and the daemon again whenever it dies.
//! * [`run`]: the keeper. It is told of every new daemon by the supervisor.
//! * the daemon, with a [`Keeper`] as its end of the connection to the keeper, and a [`Kept`] per device.
//!
//! # Protocol
//!
//! The daemon tells the keeper, over a pair of sockets for each VF ([`Kept`]), all that a successor needs: the connection,
//! VERSION, DMA_MAP and SET_IRQS with descriptors, and the device's registers after each change. A request with a reply
//! is noted in shared memory before it is taken from the socket, by one recvmsg(2). When the last thread of the daemon is
//! gone, the keeper sees its pairs close, and answers a noted request if it is still in the socket. A second reply would be
//! an error without payload, which QEMU ignores.
//!
//! The device then shows `nic_interface` disabled and a health counter that runs: mlx5 waits. The new daemon opens its VFs by
//! name, replays the messages, and serves the same socket; the driver begins anew. Within 45 s of a recovery the client is
//! not handed over, because a driver gives up after a second failure within 30 s.

mod channel;
mod client;
mod daemon;
mod keeper;
mod mark;
mod note;
mod sandbox;
mod slot;
pub mod supervisor;

pub use client::Client;
pub use daemon::{Keeper, Kept, Notes};
pub use keeper::run;
