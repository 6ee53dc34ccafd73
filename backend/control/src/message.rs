//! Messages of the control socket, which `--json` prints.
//!
//! LIDs are numbers; GUIDs and P_Keys are the strings that InfiniBand tools print.

mod error;
mod status;
mod topology;
mod vf;

use serde::{Deserialize, Serialize};

use super::{
    CountersReport, EngineCalls, FirmwareReport, FirmwareRequest, LinkReport, LinkRequest,
    LiveDone, LiveRequest, LiveStep, Migrated, MigrationRequest, MigrationsReport,
    MigrationsRequest, PinRequest, Pinned, SmAction, SmStatus, UpgradeRequest, Wish,
};

pub use error::ErrorKind;
pub use status::{ClusterState, FabricStatus, ManagerPlace, Status, SubnetStatus};
pub use topology::{Adapter, AdapterPort, Link, LinkEnd, Node, NodeKind, SubnetName, Topology};
pub use vf::{Counters, MAD_REFUSALS, Mads, Objects, RefusedMad, Retries, VfStatus};

/// A request: one line, such as `{"request":"status"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The state of the daemon and its VFs: answered with [`Response::Status`].
    Status {},
    /// The nodes and links of the subnet: answered with [`Response::Topology`].
    Topology {},
    /// Asks something of the embedded subnet manager: answered with [`Response::Sm`], or where it
    /// concerns those of several subnets, with [`Response::Sms`].
    Sm {
        /// The action.
        action: SmAction,
        /// The subnet of the manager that is asked. Without it all managers are asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subnet: Option<String>,
    },
    /// Moves a VM: answered with [`Response::Migrated`] when it has moved.
    Migrate(MigrationRequest),
    /// Moves several VMs: answered with [`Response::Migrations`] when each has moved, or will not.
    MigrateAll(MigrationsRequest),
    /// Begins to move a VM that runs: answered with [`Response::Live`]. It lasts as long as the connection.
    Live(LiveRequest),
    /// The next step of the move that this connection carries: answered with [`Response::Live`].
    LiveStep {
        /// The step.
        step: LiveStep,
    },
    /// Waits until no move of a VM that runs is under way: answered with [`Response::LiveSettled`].
    LiveSettle {
        /// The VM.
        vm: String,
    },
    /// Moves a VF to another engine: answered with [`Response::Pinned`].
    Pin(PinRequest),
    /// Times of the engines' calls since the last such request: answered with [`Response::EngineCalls`].
    EngineCalls {},
    /// Has another program take the daemon's place: not answered, but for the reason if it does not. The
    /// connection ends when it does.
    Upgrade(UpgradeRequest),
    /// Changes a link, or shows it: answered with [`Response::Link`].
    Link(LinkRequest),
    /// Changes how the firmware of a VF behaves, or shows it: answered with [`Response::Firmware`].
    Firmware(FirmwareRequest),
    /// The topology as `ibnetdiscover` prints it: answered with [`Response::Netlist`].
    Netlist {},
    /// Counters of nodes and ports: answered with [`Response::Counters`].
    Counters {
        /// The one node, by name or GUID; all nodes without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<String>,
    },
    /// Where programs of the host attach: answered with [`Response::External`].
    External {
        /// The node that one is to attach to, by name or GUID; the subnet manager's host without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
    },
    /// A capture: answered with [`Response::Capture`], after which the connection carries it.
    Capture(Wish),
}

/// A response: one line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "kebab-case")]
pub enum Response {
    /// To [`Request::Status`].
    Status(Status),
    /// To [`Request::Topology`].
    Topology(Topology),
    /// To [`Request::Sm`].
    Sm(SmStatus),
    /// To [`Request::Sm`] of several subnets.
    Sms {
        /// The managers.
        managers: Vec<SmStatus>,
    },
    /// To [`Request::Migrate`].
    Migrated(Migrated),
    /// To [`Request::MigrateAll`].
    Migrations(MigrationsReport),
    /// To [`Request::Live`] and [`Request::LiveStep`].
    Live(LiveDone),
    /// To [`Request::LiveSettle`].
    LiveSettled {},
    /// To [`Request::Pin`].
    Pinned(Pinned),
    /// To [`Request::EngineCalls`].
    EngineCalls(EngineCalls),
    /// To [`Request::Link`].
    Link(LinkReport),
    /// To [`Request::Firmware`].
    Firmware(FirmwareReport),
    /// To [`Request::Netlist`].
    Netlist {
        /// The text.
        text: String,
    },
    /// To [`Request::Counters`].
    Counters(CountersReport),
    /// To [`Request::External`].
    External {
        /// Beginning of the sockets' names, in the abstract namespace.
        socket: String,
        /// Name of the node that the program would attach to.
        node: String,
    },
    /// To [`Request::Capture`]: what follows is no line, but the capture.
    Capture {},
    /// The request was not carried out.
    Error {
        /// Kind of the error, for programs.
        kind: ErrorKind,
        /// The error and its remedy, for people.
        message: String,
    },
}
