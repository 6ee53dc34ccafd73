//! Seeing management packets pass.

use std::collections::HashSet;

use wire::MadPacket;

use crate::fabric::{Fabric, Output};
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

impl Fabric {
    /// Has every management packet that crosses the link at certain ports shown as
    /// [`Output::Tapped`]; `None` for no more. What a node sends to itself crosses no link.
    pub fn set_tap(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    pub(crate) fn show(&mut self, port: PortRef, direction: Direction, packet: &MadPacket) {
        let wanted = match &self.tap {
            None => false,
            Some(Tap::All) => true,
            Some(Tap::Ports(ports)) => ports.contains(&port),
        };
        if wanted {
            self.outputs.push_back(Output::Tapped {
                port,
                direction,
                packet: Box::new(packet.clone()),
            });
        }
    }
}
