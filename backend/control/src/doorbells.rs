//! The way of doorbells to an engine.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The way of a VF's doorbells to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doorbells {
    /// Each doorbell is a write that leaves the guest: nothing spins.
    #[default]
    Trap,
    /// The guest writes memory and the engine watches doorbell records: one processor spins.
    Poll,
    /// As `poll` while there is traffic, as `trap` when there is none.
    Adaptive,
}

impl Doorbells {
    /// All modes with their names in the configuration, and what leaves the choice to the daemon.
    pub const NAMES: [(&'static str, Option<Self>); 4] = [
        ("auto", None),
        ("trap", Some(Self::Trap)),
        ("poll", Some(Self::Poll)),
        ("adaptive", Some(Self::Adaptive)),
    ];
}

impl fmt::Display for Doorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Trap => "trap",
            Self::Poll => "poll",
            Self::Adaptive => "adaptive",
        })
    }
}
