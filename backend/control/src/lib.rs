//! Messages of the control socket, and their client.
//!
//! The socket carries JSON lines: one request and one response per line. `ibvswitch status` and the other commands
//! that ask a running daemon use [`Client`].

#![forbid(unsafe_code)]

mod capture;
mod client;
mod counters;
mod doorbells;
mod firmware;
mod link;
mod live;
mod message;
mod migration;
mod passthrough;
mod placement;
mod sandbox;
mod sm;
mod upgrade;

pub use capture::{Summary, Wish};
pub use client::{Client, ClientError};
pub use counters::{CountersReport, Forwarding, NodeCounters, PORT_ERRORS, PortCounts, Smps};
pub use doorbells::Doorbells;
pub use firmware::{FirmwareReport, FirmwareRequest};
pub use link::{LinkAction, LinkReport, LinkRequest, StallDirection};
pub use live::{LiveDone, LiveMigration, LiveMove, LivePlaces, LiveRequest, LiveSaved, LiveStep};
pub use message::{
    Adapter, AdapterPort, ClusterState, Counters, ErrorKind, FabricStatus, Link, LinkEnd,
    MAD_REFUSALS, Mads, ManagerPlace, Node, NodeKind, Objects, RefusedMad, Request, Response,
    Retries, Status, SubnetName, SubnetStatus, Topology, VfStatus,
};
pub use migration::{
    Deadlock, Method, Migrated, MigrationRequest, MigrationsReport, MigrationsRequest, Move,
    MoveOutcome, Packets, Place, StepPackets, SwitchPackets, Transition, Waited, allowed,
};
pub use passthrough::{CommandCounts, Datagrams, Elsewhere, PassedVf};
pub use placement::{EngineCalls, EngineStatus, PinRequest, PinSuggestion, Pinned, Placement};
pub use sandbox::{Landlock, Sandbox};
pub use sm::{
    Balance, ExtendedLids, LidsByPaths, OtherManager, Partition, SmAction, SmRequests, SmStatus,
    SmTraps,
};
pub use upgrade::{UpgradeRequest, Upgraded};

/// The most bytes of one line, its newline included. A status line has about 1 KiB for each VF.
pub const LINE_MAX: usize = 64 * 1024 * 1024;

/// The most bytes of one request, its newline included.
pub const REQUEST_MAX: usize = 64 * 1024;

/// The most clients whose requests are served at one time. Further ones wait, and take the place of one that does not
/// take its answer.
pub const CLIENTS_MAX: usize = 16;

/// The most captures at one time: others find places beside them.
pub const CAPTURES_MAX: usize = 12;
