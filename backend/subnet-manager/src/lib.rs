//! Subnet management: subnet manager, subnet administration, routing.
//!
//! A [`SubnetManager`] discovers a subnet, gives its ports LIDs and partitions, fills the switches'
//! forwarding tables and brings the ports to Active. It does so by subnet management packets alone,
//! through a [`Transport`]: the subnet may be one in this process or another one, and another
//! subnet manager may take this one's place.
//!
//! The manager knows no threads and no clock: its owner calls [`SubnetManager::poll`] with the time
//! whenever a packet came or the time that the last call returned has come.

#![forbid(unsafe_code)]

mod config;
mod keys;
mod lids;
mod manager;
mod migration;
mod model;
mod multicast;
mod partitions;
pub mod persistence;
mod preset_group;
mod quality;
mod requests;
pub mod rmpp;
pub mod routing;
mod sa;
mod tables;

pub use config::{Config, ConfigError};
pub use keys::{KeyPolicy, ManagementKeys};
pub use manager::{Balance, Report, SubnetManager, Ticket};
pub use migration::{
    Arrival, Deadlock, LinkCircle, Method, Migration, MigrationError, Moved, NotFewest, Packets,
    SwitchPackets, Target, Wait,
};
pub use partitions::{FILE_MAX, Mistake, Partitions};
pub use preset_group::PresetGroup;
pub use quality::{Arbitration, QualityError, parse_lanes};
pub use requests::Transport;
pub use routing::{
    Endpoint, ForwardingTable, Graph, MinHop, Routing, RoutingEngine, RoutingError, ServiceLevels,
    Trunk, UpDown, Vertex,
};
