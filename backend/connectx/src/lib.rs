//! The ConnectX (mlx5) face of the host channel adapter: a virtual function
//! that stock drivers bind to.
//!
//! * [`Function`] is what the guest sees on the PCI bus: configuration space,
//!   MSI-X structures, initialization segment, command queue, doorbell pages.
//! * A [`Backend`] is behind it and executes its commands and doorbells.
//!   [`Software`] does so with the objects of an [`hca::Engine`], which it reaches
//!   through a [`Host`]; a backend for a real device has its place beside it.
//! * [`Mlx5`] gives the engine the formats: where queues lie in guest memory,
//!   how requests are decoded and completions and events encoded.
//! * [`Port`] is what the device asks of the subnet about its own port.
//! * [`bits`] has the layouts, apart from what they mean.
//!
//! An access from the guest goes through [`Function::read`] or
//! [`Function::write`]. Reads need no engine and no lock.
//!
//! Everything that a guest writes, to registers or to memory, is hostile until
//! it has been checked. It is copied once, its counts are held against limits
//! before they are used as such, and what is wrong with it hits the command,
//! the request or the queue that it came with.
//!
//! # Functions and backends
//!
//! A [`Function`] owns its [`Backend`]. The backend tells its configuration and registers, maps guest memory, takes
//! commands (`submit`) and gives replies (`poll_reply`; `ready` is a descriptor that tells of late ones), has the doorbell pages,
//! and can be reset. [`Software`] executes commands by an engine. The crate `passthrough` has the other backend. After a
//! function-level reset under a bound driver, the device shows itself disabled until it has a command queue, and the
//! driver recovers.
//!
//! # Network queues
//!
//! A driver of enhanced IPoIB has send and receive queues without queue pairs, and an *underlay* queue pair without queues.
//! To the engine all three are queue pairs with a half or none, so they have numbers, turns, quotas and images. For a packet
//! to the underlay the face chooses a receive queue (`QueueFormat::steer`): through flow tables (eight at most, levels rise) to a TIR,
//! and by a hash to a queue of its table.

#![forbid(unsafe_code)]

mod backend;
pub mod bits;
mod command;
mod configuration;
mod function;
mod paging;
mod port;
pub mod queue;
mod queue_format;
mod refusal;
pub mod request;
mod software;
mod state;

#[cfg(test)]
mod testing;

pub use backend::{Backend, DoorbellPages, Registers};
pub use command::function::firmware_pages::{PagesError, want_pages};
pub use command::parse_command;
pub use command::queue::event_queue::parse_event_queue;
pub use command::rule::needed_stage;
pub use configuration::{
    Configuration, Doorbells, Identity, IpOverInfiniBand, Likeness, MAX_DEVICE_MEMORY,
    TRAPPED_PAGES,
};
pub use function::absent::{Absent, Part};
pub use function::image::{FunctionImage, FunctionImageV1, RestoreError, SoftwareImageV1};
pub use function::transport::{MAX_REPLY, MAX_REQUEST};
pub use function::{Effect, Function, Region, pci, segment};
pub use port::{Port, PortAttributes};
pub use queue::event::Interrupts;
pub use queue_format::Mlx5;
pub use refusal::Refusal;
pub use software::firmware::FirmwareFaults;
pub use software::{Host, Parts, Software, Turn};
pub use state::{FunctionState, Left, Stage};
