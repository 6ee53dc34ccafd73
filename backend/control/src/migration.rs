//! Migrations over the control socket.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A VM that is to move, and its destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigrationRequest {
    /// The VM: the name of the VF that is configured for it.
    pub vm: String,
    /// Name of the destination's hypervisor.
    pub to: String,
    /// The VF there; a free one if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<String>,
    /// Method by which forwarding tables follow; if left out, the one that the destination allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Has switches drop packets to the VM before they are changed.
    #[serde(default)]
    pub drop_first: bool,
    /// Changes every switch whose entries differ, not the fewest.
    #[serde(default)]
    pub every_switch: bool,
    /// Reaches switches by their LIDs.
    #[serde(default)]
    pub destination_routed: bool,
    /// Time limit of another subnet manager, in seconds, if one manages the subnet: 30 if left out, at most 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<u16>,
}

/// VMs that are to move, at the same time where they can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigrationsRequest {
    /// The moves. Their places at the destination are taken in this order.
    pub moves: Vec<Move>,
    /// As of [`MigrationRequest::method`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// As of [`MigrationRequest::drop_first`].
    #[serde(default)]
    pub drop_first: bool,
    /// As of [`MigrationRequest::every_switch`].
    #[serde(default)]
    pub every_switch: bool,
    /// As of [`MigrationRequest::destination_routed`].
    #[serde(default)]
    pub destination_routed: bool,
    /// As of [`MigrationRequest::wait_s`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<u16>,
}

/// One of several moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// The VM: the name of the VF that is configured for it.
    pub vm: String,
    /// Name of the destination's hypervisor.
    pub to: String,
}

/// Returns the time that [`MigrationRequest::wait_s`] allows.
#[must_use]
pub fn allowed(wait_s: Option<u16>) -> Duration {
    Duration::from_secs(wait_s.unwrap_or(30).min(600).into())
}

impl MigrationsRequest {
    /// Each move by itself.
    pub fn requests(&self) -> impl Iterator<Item = MigrationRequest> + '_ {
        self.moves.iter().map(|each| MigrationRequest {
            vm: each.vm.clone(),
            to: each.to.clone(),
            vf: None,
            method: self.method,
            drop_first: self.drop_first,
            every_switch: self.every_switch,
            destination_routed: self.destination_routed,
            wait_s: self.wait_s,
        })
    }
}

/// Change of forwarding tables for a VM that moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// The entries of the VM's LID and of the destination's are exchanged.
    Swap,
    /// The VM's LID gets the entry of the destination's hypervisor.
    Copy,
    /// All paths are computed anew and all tables sent.
    Full,
}

/// A migration that has been done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migrated {
    /// The VM.
    pub vm: String,
    /// Its LID; beyond 65 535 one of 18 bits.
    pub lid: u32,
    /// Its LID before, where that is another one: a VM that shares a LID takes that of its
    /// destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_lid: Option<u16>,
    /// Its GUID, before and after.
    pub guid: String,
    /// Where it was.
    pub from: Place,
    /// Where it is.
    pub to: Place,
    /// Method by which forwarding tables followed. `None` for a VM that shares a LID, and if another subnet manager
    /// changed the tables: then the packets below are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Subnet management packets to the two VFs.
    pub functions: Packets,
    /// To switches, so that they drop packets to the VM first.
    pub drops: Packets,
    /// Forwarding table blocks to vSwitches.
    pub vswitches: Packets,
    /// Forwarding table blocks to other switches.
    pub switches: Packets,
    /// All that was sent to each switch.
    pub per_switch: Vec<SwitchPackets>,
    /// Whether packets could wait for each other for ever while tables changed: for this VM and all
    /// that moved at the same time.
    pub transition: Option<Transition>,
    /// Round of this move among several, from 1; moves of one round were made at the same time. `None` if no
    /// forwarding table changed here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u64>,
    /// Why not a round earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
    /// Why not as few switches changed as can be, unless that was asked for: then all changed that send
    /// the LIDs different ways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_fewest: Option<String>,
    /// Where another subnet manager manages the subnet: how long it took, in milliseconds, until it
    /// had made the VM's port Active at its new place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_after_ms: Option<u64>,
}

/// Reason of a move's wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "for", rename_all = "kebab-case")]
pub enum Waited {
    /// A switch that another VM's move changed.
    Switch {
        /// The switch.
        switch: String,
        /// The VM of that move.
        vm: String,
    },
    /// The place that another VM had.
    Place {
        /// The other VM.
        vm: String,
    },
    /// Another move of the same VM.
    Itself,
    /// Something that is done alone.
    Turn,
}

/// Outcomes of several moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationsReport {
    /// Each of them, as they were asked for.
    pub moves: Vec<MoveOutcome>,
    /// Packets of all that were made, by step.
    pub packets: StepPackets,
}

/// Outcome of one of several moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum MoveOutcome {
    /// It was made.
    Moved(Box<Migrated>),
    /// It was not.
    Failed {
        /// The VM.
        vm: String,
        /// Name of the hypervisor that it was to go to.
        to: String,
        /// The round in which packets of it were sent, if any were.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        round: Option<u64>,
        /// Why, and what to do.
        error: String,
    },
}

/// Packets by step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepPackets {
    /// As of [`Migrated::functions`].
    pub functions: Packets,
    /// As of [`Migrated::drops`].
    pub drops: Packets,
    /// As of [`Migrated::vswitches`].
    pub vswitches: Packets,
    /// As of [`Migrated::switches`].
    pub switches: Packets,
}

impl StepPackets {
    /// Adds those of a move.
    pub fn add(&mut self, migrated: &Migrated) {
        for (sum, packets) in [
            (&mut self.functions, migrated.functions),
            (&mut self.drops, migrated.drops),
            (&mut self.vswitches, migrated.vswitches),
            (&mut self.switches, migrated.switches),
        ] {
            sum.sent += packets.sent;
            sum.updated += packets.updated;
        }
    }
}

/// Whether packets could wait for each other for ever while tables changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// Whether they could.
    pub deadlock: Deadlock,
    /// The virtual lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<u8>,
    /// The links that would wait for each other: a switch's name and the port by which it sends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub circle: Vec<(String, u8)>,
}

/// Whether packets can wait for each other for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Deadlock {
    /// They cannot.
    None,
    /// While some switches have old tables and others new ones.
    Possible,
    /// With the new tables, from now on.
    Lasting,
    /// At any time, as paths are.
    Standing,
    /// The subnet has changed meanwhile.
    Unknown,
}

/// A VF on a hypervisor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The VF.
    pub vf: String,
    /// Its hypervisor.
    pub hypervisor: String,
    /// Its vfio-user socket.
    pub socket: String,
}

/// Packets sent, repetitions included, and how many were confirmed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packets {
    /// Sent.
    pub sent: u64,
    /// Confirmed.
    pub updated: u64,
}

/// Packets to one switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchPackets {
    /// Its name.
    pub name: String,
    /// Whether it is a hypervisor's.
    pub vswitch: bool,
    /// Packets.
    #[serde(flatten)]
    pub packets: Packets,
}
