//! The result of a move.

use std::collections::HashMap;
use std::time::Duration;

use subnet_manager::Moved;
use wire::{ExtendedLid, Guid, Lid};

use crate::layout::Place;

/// A VM that has moved.
#[derive(Debug, Clone)]
pub struct Migrated {
    /// The VM.
    pub vm: String,
    /// Its GUID, before and after.
    pub guid: Guid,
    /// Where it was.
    pub from: Place,
    /// Where it is.
    pub to: Place,
    /// Its LID.
    pub lid: ExtendedLid,
    /// Its LID before, where that is another one.
    pub former_lid: Option<Lid>,
    /// In which way it has moved.
    pub how: How,
}

/// In which way a VM has moved.
#[derive(Debug, Clone)]
pub enum How {
    /// The embedded subnet manager has moved it.
    Manager {
        /// Its costs.
        moved: Box<Moved>,
        /// The names of the switches and VMs in there.
        names: HashMap<Guid, String>,
    },
    /// It shares a port, and its GUID is at another one now.
    Guid,
    /// Its node has changed places with a spare one's.
    Exchange {
        /// The time until the subnet manager had made its port Active.
        active_after: Duration,
    },
}
