//! The data path through a ConnectX VF that already is one: *passthrough*.
//!
//! A guest sees the function that it always sees ([`connectx::Function`]). Behind it, instead of an
//! engine, is a VF of this host's adapter, under the kernel's VFIO ([`Vfio`]), or one that another process
//! serves over vfio-user ([`Socket`]). [`Passthrough`] is the [`Backend`] that joins the two:
//!
//! * The daemon is the VF's only driver ([`driver::adapter`]): the command queue, one event queue, vector 0 and
//!   the pages that firmware asks for are the daemon's, in memory of its own ([`driver::window`]).
//! * A guest's command is copied, judged ([`mediation`]), and answered here, refused, or given to the VF from
//!   the daemon's mailboxes. Commands that are not on the list are refused.
//! * Where an operator says where datagrams may go, queues for datagrams are the daemon's (`shadow`).
//! * The guest's memory, the doorbell pages of its programs and its interrupt vectors from 1 on are the
//!   VF's: no thread of the daemon has a part in the data path.
//! * What the VF says in replies and events is as little trusted as what the guest says.
//!
//! # Design
//!
//! `core` has the commands under way, the guest's and the daemon's; `report` counts them; `driver::firmware` gives pages and takes
//! them back; `policy` is the operator's. Objects keep the VF's own numbers. Event queues for completions are the VF's; other event queues
//! are filled here, and an empty one at the VF holds the number. The first doorbell page traps and stands for the
//! daemon's own; later pages are the VF's. A guest that leaves objects behind has the VF reset.
//!
//! `shadow` has the queues of queue pair 1, and of datagram queue pairs if the policy restricts them: the VF's ring is in the
//! window, and request numbers stay the same, so that the VF's completions fit the guest's queue. One request is judged at
//! a time; a management packet is copied into the window, filtered, and sent by a key of the daemon's. The daemon looks at
//! doorbell records of such queue pairs (`shadow::pace`), down to once a millisecond at rest. To trap all pages would cost
//! connections of the same VF an exit for each operation. Queue pairs of connections cost nothing of this.
//!
//! `testing` has a scripted VF and an oracle of commands that may reach a VF, written a second time.
//!
//! [`Backend`]: connectx::Backend

mod backend;
pub mod cluster;
mod conclusion;
mod core;
mod doorbell;
pub mod driver;
pub mod mediation;
mod memory;
pub mod policy;
pub mod report;
mod shadow;
pub mod testing;
pub mod vf;

pub use backend::{OpenError, Parts, Passthrough};
pub use cluster::{Cluster, Membership};
pub use memory::GuestMemory;
pub use policy::{Isolation, ManagementFilter, Policy, Smp};
pub use report::Report;
pub use vf::address::PciAddress;
pub use vf::device::Device;
pub use vf::obstacle::Obstacle;
pub use vf::physical::{Physical, PhysicalError};
pub use vf::socket::Socket;
pub use vf::vfio::Vfio;
