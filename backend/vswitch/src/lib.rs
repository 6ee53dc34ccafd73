//! The vSwitch: what guests may send and get, what they see of the subnet, and which VM is where. Free
//! of threads, sockets, files and configuration text: whoever embeds it brings a clock, calls
//! [`VSwitch::handle`] and [`VSwitch::poll`], and carries out what [`VSwitch::poll_output`] and
//! [`VSwitch::poll_guest`] give. [`model`] says what a fabric is to be, [`Plan`] makes nodes and cables
//! of that. `core` is the state machine, without locks; `shared` puts the locks, the snapshot and the
//! waker around it.
//!
//! # What a guest sends: `outbound`
//!
//! A management packet of a guest passes these steps, in this order; each may keep it, or answer in
//! the subnet's place. `shared/guest.rs` has steps 2 and 3, which change nothing in the subnet, and
//! `core/guest.rs` steps 4 to 8, one function each.
//!
//! 1. **Filter, by the header**: class, method, rate, and how many wait. In the engine's thread, before
//!    the queue that all guests share ([`MadFilter::admit`]).
//! 2. **Filter, by the contents**: an address or partition in it has to be the sender's own; a right to
//!    see everything is taken out.
//! 3. **View**: subnet management packets of a VM in a cluster with a view are answered from the view; in full mode they
//!    stay in the cluster's own network.
//! 4. **Tables**: acknowledgements of a table that was put together here go no further.
//! 5. **Translation**: LIDs and P_Keys of the VM's cluster become those of the wire, in the header and in each
//!    attribute. Unknown addresses do not pass.
//! 6. **Registrations**: what the packet has the subnet administration enter is noted, to be taken back
//!    when the guest is gone; a guest with too much is refused. Questions for one record and requests to
//!    join groups are noted.
//! 7. **Shared port**: the function's mark is put into the transaction; an end of a subscription that
//!    another function has, too, is answered here.
//! 8. **Fabric**: the packet leaves the port, as far as the port lets its guest's packets go.
//!
//! # What a guest gets: `inbound`
//!
//! 1. **Shared port**: which functions the packet is for; its transaction is the guest's again.
//! 2. **Registrations**: answers to what is taken back are for nobody; others say what is entered.
//! 3. **Filter**: a port's M_Key is taken out.
//! 4. **Known**: of a packet to a VM with other addresses it has to be known where addresses stand in it.
//! 5. **Tables**: segments of an answer are put together, filtered as a whole, and sent in segments of
//!    their own.
//! 6. **Events**: a report of what is none of the cluster's is acknowledged in the guest's place.
//! 7. **Translation**: LIDs and P_Keys of the wire become those of the cluster.
//! 8. **Groups**: answers to VMs that join and leave are noted.
//!
//! Data does not pass these steps. A queue pair's path is resolved once ([`VSwitch::for_engine`]), and
//! there the same translation stands.
//!
//! # Places and identities
//!
//! A VF is a *place*: an engine function and a node behind a vSwitch. A VM is an *identity*: a port GUID with its LID and P_Key
//! table. A spare VF has an identity that no VM uses. To migrate is to exchange two identities. The guest sees the port
//! GUID as its node GUID, so that its HCA stays the same; subnet management sees the place's node GUID.
//!
//! Three ways to move are one trait (`Move`: `begin`, `advance`, `due`). `by_manager` sends packets of the subnet manager. While
//! another manager has the subnet, `by_exchange` exchanges whole nodes, as if cables were plugged in elsewhere, because an
//! OpenSM that finds a known port GUID at another node keeps the first one. Moves between subnets do the same. VFs that share
//! a port are no nodes: `by_guid` takes their GUID to another port, by the subnet administration or between virtual ports.
//!
//! # Snapshots
//!
//! A change of the subnet is published in this order: a snapshot of the nodes and of the views, the generation, then
//! packets for guests and programs. So a path that was found under a generation is that generation's or later. Paths
//! and ports are read from the snapshot without a lock. The publisher frees old snapshots, never a reader.
//!
//! # Clusters and views
//!
//! `cluster` translates LIDs and P_Keys where a path is resolved, where a port is asked, and inside management packets, by a
//! list of attributes (`cluster/attributes.rs`); an unlisted attribute does not pass. All VMs of a cluster share one
//! direct-mapped table of 2^16 LIDs each way, 256 KiB at most. A datagram's completion needs no translation.
//!
//! A view is a `fabric::ViewFabric`: a fabric of its own that holds nothing unknown to the cluster, so that no question has
//! to be judged. The management thread makes it on demand when the generation has changed, within a budget of time.
//!
//! In full mode (`core/tenant.rs`) the view stays, and a manager in one of the cluster's VMs sets it up. A `Tenancy` is a snapshot
//! of it, a part of the addresses: LIDs, states and P_Keys of the VMs' ports come from there, and data passes where both the
//! cluster's network and the subnet have a path. Bodies of packets between VMs are not translated then. Service levels are the
//! cluster's own up to where a path is resolved: there the levels take their place that the subnet's manager has given the cluster.
//! Counters of switches are the view's: each path counts for its cluster, too, at the same ports (`shared/path_numbers.rs`).
//!
//! # Images
//!
//! [`VmImage`] holds a VM's registrations, budgets and counters. LID, GUID, prefix and P_Keys are in it only to be compared:
//! managers write them, images never. Registrations are repeated at the new place by packets that pass the filter.

#![forbid(unsafe_code)]

mod core;
mod environment;
mod filter;
mod layout;
mod manager_settings;
pub mod model;
mod names;
mod plan;
mod shared;
mod sharing;

pub use environment::{Environment, Error, Routing};
pub use filter::{FilterReport, MadFilter, Own, Reason, Refusal};
pub use layout::Place;
pub use manager_settings::SettingsFiles;
pub use model::Model;
pub use names::{NameError, closest, near, node_named};
pub use plan::{Cause, NodeKind, OwnLids, Plan, PlannedNode, PlannedVf, SharedPlace};
pub use shared::{Function, Input, PortFacts, VSwitch};

pub use self::core::cluster::{self, TABLE_BYTES_PER_GUEST};
pub use self::core::hosts::{HostPlace, HostPort, HostTag, Mailbox, Sent, answers};
pub use self::core::image::{VmImage, VmImageError, VmImageV1};
pub use self::core::link::{LinkAction, LinkError, LinkStatus};
pub use self::core::migration::{
    GuidMoveError, How, MigrateError, Migrated, MoveRequest, Need, NotActive,
};
pub use self::core::output::{ForGuest, Output, changes};
pub use self::core::subnets::{ClusterStatus, ExtendedLids, ManagerStatus, SmError};
