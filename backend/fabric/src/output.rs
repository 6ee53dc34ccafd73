//! Output of the fabric: packets for consumers, events at ports, what a tap shows.

use wire::{MadPacket, PortState};

use crate::nodes::topology::PortRef;
use crate::tap::Direction;

/// An event at a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortEvent {
    /// The logical state is now this one.
    StateChange(PortState),
    /// The base LID or the LID mask control changed.
    LidChange,
    /// The P_Key table changed.
    PkeyChange,
    /// LID or service level of the subnet manager changed.
    SmChange,
    /// The subnet manager asks clients to register again.
    ClientReregister,
    /// GID prefix or GUID table changed.
    GidChange,
}

/// Output of the fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A packet for a queue pair of this port.
    Deliver {
        /// The port.
        port: PortRef,
        /// The packet.
        packet: Box<MadPacket>,
    },
    /// Something happened at this port.
    Event {
        /// The port.
        port: PortRef,
        /// The event.
        event: PortEvent,
    },
    /// Something happened at a virtual port of this port.
    VPortEvent {
        /// The physical port.
        port: PortRef,
        /// Index of the virtual port.
        index: u16,
        /// The event.
        event: PortEvent,
    },
    /// A packet passes this port, and [`Fabric::set_tap`](crate::Fabric::set_tap) asked to see it.
    Tapped {
        /// The port.
        port: PortRef,
        /// Direction of the packet.
        direction: Direction,
        /// The packet, as it is on the link.
        packet: Box<MadPacket>,
    },
}
