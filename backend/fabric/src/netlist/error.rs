//! Errors, and the lines that they name.

use std::fmt;
use std::sync::Arc;

use super::text::shown;
use crate::nodes::topology::TopologyError;

/// The longest listing that is read, in bytes: many times the largest subnet's.
pub const NETLIST_MAX: usize = 256 << 20;

/// A line of a listing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Name of an included file.
    pub file: Option<Arc<str>>,
    /// The line, counted from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "`{}` line {}", shown(file), self.line),
            None => write!(f, "line {}", self.line),
        }
    }
}

/// Why a text is no topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetlistError {
    /// A line is wrong.
    #[error("{at}: {what}")]
    Line {
        /// The line.
        at: Place,
        /// The error, and its remedy.
        what: String,
    },
    /// The text is too long.
    #[error("more than {NETLIST_MAX} bytes; a subnet has less")]
    TooLong,
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// The file is something else.
    #[error("{0}")]
    OtherForm(&'static str),
    /// There is no node in it.
    #[error("there is no node; begin one with a line such as `Switch 36 \"name\"`{0}")]
    Empty(String),
    /// The nodes and cables make no fabric.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

pub(super) fn error<T>(at: &Place, what: impl Into<String>) -> Result<T, NetlistError> {
    let (at, what) = (at.clone(), what.into());
    Err(NetlistError::Line { at, what })
}
