//! The daemon's sandbox.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Degree to which the kernel confines a process to files and peers that the process has named (Landlock).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Landlock {
    /// In all that was asked for.
    Full,
    /// In what a kernel of this age knows.
    Partial,
    /// Not at all.
    #[default]
    None,
}

/// The sandbox of the daemon's process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Files, network and signals.
    pub landlock: Landlock,
    /// Whether system calls are filtered.
    pub seccomp: bool,
}

impl Sandbox {
    /// Returns what the sandbox lacks, and the probable reason.
    #[must_use]
    pub fn lacks(&self) -> Option<&'static str> {
        Some(match (self.landlock, self.seccomp) {
            (Landlock::Full, true) => return None,
            (Landlock::Partial, true) => "a kernel of 6.12 or later would confine it further",
            (Landlock::None, true) => {
                "files are not confined: the kernel has no Landlock, or it is not among those of its `lsm=`"
            }
            (_, false) => "system calls are not filtered",
        })
    }
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let landlock = match self.landlock {
            Landlock::Full => Some("Landlock"),
            Landlock::Partial => Some("Landlock in part"),
            Landlock::None => None,
        };
        let seccomp = self.seccomp.then_some("seccomp");
        match (landlock, seccomp) {
            (Some(landlock), Some(seccomp)) => write!(f, "{landlock}, {seccomp}"),
            (Some(one), None) | (None, Some(one)) => f.write_str(one),
            (None, None) => f.write_str("none"),
        }
    }
}
