//! Seeing management packets pass.

use std::collections::HashSet;

use crate::nodes::topology::PortRef;

/// Which ports' packets to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tap {
    /// Every port's: a packet shows twice per link, sent at one end and received at the other.
    All,
    /// The packets of these ports.
    Ports(HashSet<PortRef>),
}

/// Which way a packet passed a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Out, onto the link.
    Sent,
    /// In, from the link.
    Received,
}
