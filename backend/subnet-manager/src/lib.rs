//! Subnet management: subnet manager, subnet administration, routing.
//!
//! A [`SubnetManager`] discovers a subnet, gives its ports LIDs and partitions, fills the switches'
//! forwarding tables and brings the ports to Active. It does so by subnet management packets alone,
//! through a [`Transport`]: the subnet may be one in this process or another one, and another
//! subnet manager may take this one's place.
//!
//! The manager knows no threads and no clock: its owner calls [`SubnetManager::poll`] with the time
//! whenever a packet came or the time that the last call returned has come.
//!
//! # Sweeps
//!
//! A *full sweep* discovers everything, decides who is master (`mastery`: SMInfo and IBA 14.4), and takes the steps of
//! `configuration`. Each step sends only the difference from the state that ports show or switches are known to hold. A block
//! without an answer counts as unknown. A cable becomes a link only if both ends agree on it. A *light sweep* asks switches
//! for their change bit. A trap (`traps`) causes one of its sender, at most every quarter of a second. A request without
//! an answer makes the next light sweep a full one.
//!
//! Ports keep their LIDs when the subnet is taken over from another manager; all that the other manager wrote is written anew.
//! Routing keeps every path that is still one of the best (`RoutingEngine::reroute`). With management keys, each request
//! carries the key of the port that answered last at the end of its route (`keys`).
//!
//! # Subnet administration
//!
//! It answers at queue pair 1 of the manager's port (`sa`), from a *directory*: the subnet after the last sweep or migration, by
//! LID and GUID. The source LID, which the asking port has stamped, identifies the asker. Records go to ports that share a
//! partition with the record's port; the manager's own port gets all of them.
//!
//! A policy (`config::policy`) gives each request for paths a level: its service level, limits and partitions.
//!
//! Multicast groups keep members by port GUID, so that membership moves with a VM. One spanning tree is made, from a switch
//! in the middle; a group's tree is the least part of it that joins its members. Between sweeps the manager writes only the
//! blocks that differ. Long answers go in segments: at most 64 at a time, and eight transfers to one port.
//!
//! # Migration
//!
//! Entry 0 of GUIDInfo, set at the destination, is the migration; all packets before it prepare it. The other place gets
//! an unused identity, so that at any time identities are a permutation over places. A manager that sweeps in between may
//! find a GUID twice; it belongs to the place with a LID, since the source gives up its LID first. There are three ways
//! (`Move`): by this manager's packets, by an exchange of nodes under another manager, and by GUIDs that go from one shared port
//! to another.

#![forbid(unsafe_code)]

mod config;
mod congestion;
mod keys;
mod lids;
mod manager;
mod migration;
mod model;
mod multicast;
pub mod persistence;
mod requests;
pub mod rmpp;
pub mod routing;
mod sa;
mod tables;

pub use config::cluster_levels::{ClusterLevelError, ClusterLevels, ClusterShare, LevelsOfCluster};
pub use config::congestion::CongestionControl;
pub use config::node_names::NodeNames;
pub use config::partitions::{FILE_MAX, Mistake, Partitions};
pub use config::policy::Policy;
pub use config::preset_group::PresetGroup;
pub use config::quality::{
    Arbitration, PortKind, PortQuality, QualityError, check_levels, parse_lanes,
};
pub use config::{Config, ConfigError, Files, VirtualPorts};
pub use keys::{KeyPolicy, ManagementKeys};
pub use manager::{
    Balance, ClusterRefusal, ClusterState, Clusters, Dump, Report, SubnetManager, Ticket,
};
pub use migration::{
    Arrival, Deadlock, LinkCircle, Method, Migration, MigrationError, Moved, NotFewest, Packets,
    SwitchPackets, Target, Wait,
};
pub use routing::{
    ClusterTables, Endpoint, ForwardingTable, Graph, IdleEntry, IdleReason, MinHop, Routing,
    RoutingEngine, RoutingError, ServiceLevels, Trunk, UpDown, Vertex,
};
pub use sa::{PathCache, PathChange};
pub use wire::Transport;
