//! Architectures of Debian that guests have.

use std::fmt;

/// An architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Processors with 64 bits.
    Amd64,
    /// Processors with 32 bits.
    I386,
}

impl Architecture {
    /// The path for this architecture, from one that may have the folder of libraries of amd64 in it.
    #[must_use]
    pub fn path(self, amd64: &str) -> String {
        match self {
            Self::Amd64 => amd64.to_owned(),
            Self::I386 => amd64.replace("x86_64-linux-gnu", "i386-linux-gnu"),
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amd64 => "amd64",
            Self::I386 => "i386",
        })
    }
}
