//! Requests on their way: the purpose of each.

use wire::Guid;
use wire::mad::AttributeId;

use crate::model::At;

/// Names a migration, a start or an end that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(super) u64);

/// Purpose of a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    NodeInfo {
        from: Option<At>,
    },
    NodeDescription(usize),
    SwitchInfo(usize),
    PortInfo(At),
    /// As [`Purpose::PortInfo`], between sweeps.
    ChangedPort(At),
    SmInfo(At),
    Partitions(At, u16),
    Enforcement {
        switch: Guid,
        place: (u8, u16),
    },
    /// A table of a port that is not read.
    Setting {
        node: Guid,
        place: (u8, AttributeId, u32),
    },
    Identity(At, Guid),
    /// Whether a node speaks the extended LID space.
    Extension(usize),
    /// Whether a port has virtual ports in use.
    Virtualization(At),
    /// A block of the states of virtual ports.
    VPortStates(At, u16),
    VPort(At, u16),
    VNode(At, u16),
    VNodeDescription(At, u16),
    /// As [`Purpose::Virtualization`], between sweeps.
    LightVirtualization(At),
    Linear {
        switch: Guid,
        number: u16,
    },
    Multicast {
        switch: Guid,
        at: (u16, u8),
    },
    LightSwitch,
    LightPort,
    /// A standby asks whether the master is alive.
    Poll,
    Handover,
    Acknowledge,
}

/// A request's purpose, and the migration that it is part of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Errand {
    pub(super) purpose: Purpose,
    pub(super) migration: Option<Ticket>,
}

impl From<Purpose> for Errand {
    fn from(purpose: Purpose) -> Self {
        Self {
            purpose,
            migration: None,
        }
    }
}
