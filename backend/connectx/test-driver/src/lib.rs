//! A small user-space mlx5 driver over vfio-user, for tests and benches.
//!
//! It initializes a ConnectX virtual function in the stock Linux driver's order, creates queues, posts work and polls
//! for completions, all in one process with nothing between it and the device's socket. The definitions of the
//! interface are its own, from the kernel's headers: it shares no code with the device, so that each checks the
//! other.
//!
//! * [`Device`] is an open device; it is shared by cloning.
//! * [`Buffer`]s are memory that the device reaches; [`MemoryRegion`]s make
//!   them known to it.
//! * [`QueuePair`], [`SharedReceiveQueue`] and [`CompletionQueue`] are what
//!   applications use. Posting and polling allocate nothing.
//! * [`pattern`] fills payload and checks it.
//! * What begins with `raw` writes what no driver would, for tests of faults.
//!
//! ```no_run
//! # use ibvswitch_test_driver as test_driver;
//! use test_driver::{Access, CompletionQueue, Config, Connection, Data, Device, MemoryRegion};
//! use test_driver::{ProtectionDomain, QueuePair, Remote, SendRequest, Transport, Uar, pattern};
//!
//! # fn main() -> test_driver::Result<()> {
//! let device = Device::open("/run/ibvswitch/vm1.sock")?;
//! let lid = device.wait_active()?.lid;
//! let (pd, uar) = (ProtectionDomain::new(&device)?, Uar::new(&device)?);
//! let mut cq = CompletionQueue::new(&device, &uar, 6, 0)?;
//! let buffer = device.allocate_pages(8192)?;
//! let region = MemoryRegion::new(&pd, &buffer, Access::ALL)?;
//!
//! // A connection with itself.
//! let mut qp = QueuePair::new(&Config::new(Transport::Rc, &pd, &uar, &cq))?;
//! qp.connect(Access::ALL, &Connection::to(lid, qp.number()))?;
//! let remote = Remote { addr: region.start() + 4096, key: region.key() };
//! qp.post_send(&SendRequest::write(remote, Data::Inline(b"payload")))?;
//! let entry = cq.wait()?;
//! assert!(entry.is_ok());
//! qp.complete(&entry);
//! # Ok(())
//! # }
//! ```

mod bar;
pub mod bits;
mod command;
mod completion;
mod device;
mod device_memory;
mod dynamic;
mod error;
mod event;
mod firmware;
pub mod hoard;
mod key_update;
mod memory;
mod network;
mod opcode;
mod paging;
pub mod pattern;
mod pci;
mod port;
mod queue_pair;
mod region;
mod request;
mod rest;
mod segment;
mod shared;
mod signature;
mod tags;
mod uar;
mod wait;

pub use command::{ENTRY, MAILBOX_DATA, MAILBOX_STRIDE, Mailboxes, request};
pub use completion::{CompletionQueue, Cqe, CqeKind, Syndrome};
pub use device::{BAR0, Device, Options, initialization};
pub use device_memory::DeviceMemory;
pub use dynamic::{DynamicTarget, TargetConfig};
pub use error::{Error, Result};
pub use event::{Event, EventType};
pub use key_update::{KeyChange, KeyUpdate, PRESENT, PageList};
pub use memory::{Buffer, Memory, PAGE};
pub use network::{FlowTable, Next, PlainQueue, QueueTable, Tir, Tis, TransportDomain, send_queue};
pub use opcode::{Opcode, Status};
pub use paging::PageFault;
pub use pci::CONFIG;
pub use port::Port;
pub use queue_pair::{Config, Connection, QueuePair, Receive, Transport};
pub use region::{Access, Klm, MemoryRegion, ProtectionDomain, XrcDomain};
pub use request::{
    AddressVector, Atomic, Data, MAX_SEGMENTS, Packet, Piece, Remote, SendOpcode, SendRequest,
};
pub use rest::Paused;
pub use segment::Sge;
pub use shared::SharedReceiveQueue;
pub use signature::{SignatureForm, SignatureValue};
pub use tags::{TagChange, TagEvent, TagOperation, eager_header, rendezvous_header};
pub use uar::Uar;
