//! The clock, the keys and the settings that whoever embeds a vSwitch brings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use fabric::TopologyError;
use hca::Clock;
use subnet_manager::RoutingEngine;
use wire::{Guid, Lid};

use crate::manager_settings::{self as settings, SettingsFiles};
use crate::model::Manager;

/// Why there is no subnet.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The nodes do not make a fabric.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The settings of a subnet manager are wrong.
    #[error(transparent)]
    Manager(#[from] subnet_manager::ConfigError),
}

/// Computes the paths of a subnet manager with these settings.
pub type Routing = Box<dyn Fn(&Manager) -> Box<dyn RoutingEngine>>;

/// Clock, keys and settings, which a vSwitch does not make itself.
pub struct Environment {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Draws management keys: numbers that nobody can guess.
    pub keys: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Contents of files.
    pub files: SettingsFiles,
    /// By subnet, the LIDs of an earlier life.
    pub known_lids: Vec<BTreeMap<Guid, (Lid, u8)>>,
    /// VMs that run from the beginning, where VMs have LIDs only then.
    pub running: BTreeSet<Guid>,
    /// The routing engines.
    pub routing: Routing,
}

impl Environment {
    /// Nothing is remembered, there are no files, and all management keys are the same.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            keys: Arc::new(|| 1),
            files: SettingsFiles::default(),
            known_lids: Vec::new(),
            running: BTreeSet::new(),
            routing: Box::new(settings::routing),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
