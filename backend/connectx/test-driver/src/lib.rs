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

pub mod bits;
mod error;
pub mod exhaustion;
mod function;
mod memory;
mod memory_key;
pub mod pattern;
mod queue;
mod wait;

pub use error::{Error, Result};
pub use function::command::{ENTRY, MAILBOX_DATA, MAILBOX_STRIDE, Mailboxes, request};
pub use function::device::{BAR0, Device, Options, initialization};
pub use function::device_memory::DeviceMemory;
pub use function::event::{Event, EventType};
pub use function::opcode::{Opcode, Status};
pub use function::pause::Paused;
pub use function::pci::CONFIG;
pub use function::port::Port;
pub use function::uar::Uar;
pub use memory::{Buffer, Memory, PAGE};
pub use memory_key::key_update::{KeyChange, KeyUpdate, PRESENT, PageList};
pub use memory_key::paging::PageFault;
pub use memory_key::region::{Access, Klm, MemoryRegion, ProtectionDomain, XrcDomain};
pub use memory_key::signature::{SignatureForm, SignatureValue};
pub use queue::completion::{CompletionQueue, Cqe, CqeKind, Syndrome};
pub use queue::dynamic::{DynamicTarget, TargetConfig};
pub use queue::network::{
    FlowTable, Next, PlainQueue, QueueTable, Tir, Tis, TransportDomain, send_queue,
};
pub use queue::queue_pair::{Config, Connection, QueuePair, Receive, Transport};
pub use queue::request::{
    AddressVector, Atomic, Data, MAX_SEGMENTS, Packet, Piece, Remote, SendOpcode, SendRequest,
};
pub use queue::segment::Sge;
pub use queue::shared_receive::SharedReceiveQueue;
pub use queue::tags::{TagChange, TagEvent, TagOperation, eager_header, rendezvous_header};
