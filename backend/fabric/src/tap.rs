//! Seeing management packets pass.

use std::collections::HashSet;

use crate::nodes::topology::PortRef;

/// Ports whose packets are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tap {
    /// Every port's: a packet shows twice per link, sent at one end and received at the other.
    All,
    /// The packets of these ports.
    Ports(HashSet<PortRef>),
}

/// Direction of a packet through a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Out, onto the link.
    Sent,
    /// In, from the link.
    Received,
}
