//! vfio-user, both sides: framing, DMA maps, regions, interrupts, reset, loss of the other side.
//!
//! [vfio-user] moves the interface of Linux VFIO over a UNIX socket, so that a
//! process can serve a PCI device to a virtual machine monitor. This crate is
//! the server's side of it, as QEMU's `vfio-user-pci` speaks it, and the
//! [`client`]'s, for whoever drives a device that another process serves. It
//! knows nothing of what the device does.
//!
//! * A device implements [`Device`]; one [`Server`] serves it on one socket,
//!   one client at a time, from one thread.
//! * Guest memory arrives as [`Mapping`]s, which the device keeps in a
//!   [`DmaTable`] wherever its data path can reach it.
//! * Interrupts leave through [`Interrupts`], from any thread.
//!
//! ```no_run
//! use ibvswitch_vfio_user::testing::Dummy;
//! use ibvswitch_vfio_user::{Server, Stop};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut device = Dummy::new()?;
//! let stop = Stop::new()?;
//! Server::bind("/run/user/1000/vf0.sock")?.run(&mut device, &stop)?;
//! # Ok(())
//! # }
//! ```
//! and QEMU gets `-device
//! '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"/run/user/1000/vf0.sock"}}'`
//! and shared memory (`memory-backend-memfd,share=on`).
//!
//! # What a client can do to the server
//! The client is not trusted. Every message is read exactly as long as its
//! header says, up to a fixed limit; file descriptors belong to the message
//! they came with; a malformed message gets an error reply and leaves the
//! stream in step, or ends that client. Memory that its owner truncates turns
//! into zeros instead of a crash ([`memory`]).
//!
//! [vfio-user]: https://www.qemu.org/docs/master/interop/vfio-user.html

mod connection;
mod device;
mod dma;
mod end;
mod heap;
mod irq;
pub mod message;
mod message_log;
mod migration;
mod region;
mod server;

pub mod client;
pub mod testing;

pub use connection::serve;
pub use device::{Device, Effect, Migration};
pub use dma::{
    DmaError, DmaTable, DmaView, Lookup, MAX_DMA_MAPS, Mapping, PAGE_SIZE, Protection, SharedView,
};
pub use end::End;
pub use heap::release_heap;
pub use irq::{Interrupts, IrqInfo};
pub use message::{Command, Header, MAX_DATA_XFER_SIZE, MAX_MSG_FDS, NUM_IRQS, NUM_REGIONS};
pub use message_log::{Message, MessageLog, Part, Resumed, StandIn};
pub use migration::{MAX_BITMAP_SIZE, MigrationState};
pub use nix::errno::Errno;
pub use region::{Region, SparseArea};
pub use server::Server;
pub use vmm_socket::{
    BindError, Journal, MappedFile, MemoryLimits, SharedMemory, Stop, memory, remedy,
};
