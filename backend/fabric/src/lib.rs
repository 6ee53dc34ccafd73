//! The subnet as a state machine: switches, links, ports and their management agents.
//!
//! A [`Topology`] says which nodes there are and how they are cabled; a [`Fabric`] is that subnet in
//! operation. It knows no threads, sockets or clock: [`Fabric::inject`] puts a management packet on
//! the wire at a port, [`Fabric::step`] moves one packet by one hop, [`Fabric::poll_output`] hands
//! out what reached the owner of a port and what happened to that port.
//!
//! * Every node answers subnet management packets, with a directed route or routed by LID, and
//!   performance management packets, as hardware does. Nothing here assigns a LID or fills a
//!   forwarding table: that is a subnet manager's work, done by packets.
//! * Payload does not travel through here packet by packet. The data plane asks
//!   [`Nodes::resolve`] once per path, keeps the answer as long as [`Nodes::generation`] stands
//!   still, and counts in [`PortCounters`] what it moved.
//! * A vSwitch is a switch like any other: one per hypervisor, with one uplink, the hypervisor's
//!   virtual functions being channel adapters behind it.
//!
//! ```
//! use ibvswitch_fabric::Fabric;
//! use topologies::Hypervisors;
//! let layout = Hypervisors::new(2, 4).unwrap();
//! let fabric = Fabric::new(layout.topology()).unwrap();
//! let vf = fabric.port_by_guid(layout.vf_guid(0, 0)).unwrap();
//! assert_eq!(fabric.port_info(vf).unwrap().port_state, wire::PortState::Initialize);
//! ```
//!
//! # Snapshots
//!
//! [`Nodes`] is all that paths and ports are found in. A copy of it is a snapshot: both share nodes, ports and tables until one
//! of them changes. A copy costs a pointer for every 64 nodes; the first change of a node after it costs 64 pointers, the
//! node's ports as pointers, and the port, or the 1 KiB of a table, that changes. Counters are in ledgers apart from
//! `Nodes`, so that a packet that passes changes no snapshot. The *revision* rises with every change of `Nodes`, the *generation*
//! with changes of paths.
//!
//! Credits always arrive in time and buffers have room, unless a fault is set on a link. Then a port keeps management
//! packets for their time (`credits`), and for data it is the end of the path. Lost data is counted at the port that drops it:
//! PortXmitConstraintErrors, PortXmitDiscards or PortRcvSwitchRelayErrors. Dropped copies of multicast packets are not
//! counted.

#![forbid(unsafe_code)]

mod agents;
mod fabric;
mod links;
mod netlist;
mod nodes;
mod output;
mod packet;
mod paths;
mod station;
mod tap;
mod timers;
mod transit;
mod view_fabric;

pub use agents::sma::virtualization::VPortOwner;
pub use agents::trap::LostHeader;
pub use fabric::Fabric;
pub use fabric::image::CountersImageV1;
pub use links::arbitration::{Arbiter, Flow};
pub use links::fault::{LinkFault, Stalled};
pub use links::marks::{Marking, Marks};
pub use links::queues::{Arrived, Hop, Load, Queues, Shared};
pub use links::rate::LinkRate;
pub use netlist::{Listing, NETLIST_MAX, NetlistError};
pub use nodes::Nodes;
pub use nodes::congestion::AdapterCongestion;
pub use nodes::counters::{PortCounters, SmpCounts};
pub use nodes::forwarding::MULTICAST_LIDS;
pub use nodes::owner::{Owner, SmpAccess};
pub use nodes::report::{ForwardingSummary, PortTotals};
pub use nodes::topology::{NodeId, NodeSpec, PortRef, Topology, TopologyError, VPortSpec};
pub use nodes::vport::{VPort, VPorts};
pub use output::{Output, PortEvent};
pub use paths::route::{NoRoute, Route};
pub use paths::router::{Crossing, GlobalAddress, Routed};
pub use station::{Connected, Station};
pub use tap::{Direction, Tap};
pub use transit::Injected;
pub use view_fabric::{Division, ViewFabric, ViewHost, ViewManager, ViewName};
