//! Links that are changed on command, as they go over the control socket.

use std::time::Duration;

use fabric::{Fabric, Stalled};
use serde::{Deserialize, Serialize};
use vswitch::{LinkStatus, Plan};

use super::LinkEnd;

/// What to do with a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkRequest {
    /// Name of the node at one of its ends, or its node GUID.
    pub node: String,
    /// Number of the port there.
    pub port: u8,
    /// What.
    pub action: LinkAction,
}

/// What to do with a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkAction {
    /// Tell how it is.
    Show,
    /// Pull the cable out.
    Down,
    /// Put it back in.
    Up,
    /// Lose packets at random.
    Drop {
        /// So many of a million; 0 for none.
        per_million: u32,
        /// Where the random numbers begin.
        seed: u64,
    },
    /// Delay packets.
    Delay {
        /// Microseconds each way; 0 for not at all.
        microseconds: u64,
    },
    /// Have the receiver's buffers overrun.
    Overrun {
        /// At one packet of so many; 0 for none.
        every: u32,
    },
    /// Let no credits arrive.
    Stall {
        /// Which ports get none.
        direction: StallDirection,
    },
    /// Put the cable back in, and let nothing be wrong with it.
    Restore,
}

/// In which direction of a link data is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum StallDirection {
    /// What the port that is named would send.
    Out,
    /// What the port at the other end would send.
    In,
    /// Both.
    Both,
    /// None.
    Off,
}

/// How a link is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// The end that was named.
    pub port: LinkEnd,
    /// The other end.
    pub peer: LinkEnd,
    /// Whether the cable is in.
    pub cable: bool,
    /// State of the port that was named, as `ibstat` names it.
    pub state: String,
    /// Its physical state, as `ibstat` names it.
    pub physical_state: String,
    /// Packets that the link loses, of a million.
    pub lost_per_million: u32,
    /// Microseconds that a packet takes over it.
    pub delay_us: u64,
    /// One packet of so many overruns the receiver's buffers; 0 for none.
    pub overrun_every: u32,
    /// Which way data is stuck, seen from the port that was named.
    pub stalled: StallDirection,
}

impl From<StallDirection> for Stalled {
    fn from(direction: StallDirection) -> Self {
        match direction {
            StallDirection::Out => Self::Outbound,
            StallDirection::In => Self::Inbound,
            StallDirection::Both => Self::Both,
            StallDirection::Off => Self::No,
        }
    }
}

impl From<Stalled> for StallDirection {
    fn from(stalled: Stalled) -> Self {
        match stalled {
            Stalled::No => Self::Off,
            Stalled::Outbound => Self::Out,
            Stalled::Inbound => Self::In,
            Stalled::Both => Self::Both,
        }
    }
}

impl From<LinkAction> for vswitch::LinkAction {
    fn from(action: LinkAction) -> Self {
        match action {
            LinkAction::Show => Self::Show,
            LinkAction::Down => Self::Down,
            LinkAction::Up => Self::Up,
            LinkAction::Drop { per_million, seed } => Self::Drop { per_million, seed },
            LinkAction::Delay { microseconds } => Self::Delay(Duration::from_micros(microseconds)),
            LinkAction::Overrun { every } => Self::Overrun(every),
            LinkAction::Stall { direction } => Self::Stall(direction.into()),
            LinkAction::Restore => Self::Restore,
        }
    }
}

impl LinkReport {
    /// A link of `plan`, which is `fabric` in operation.
    pub fn new(plan: &Plan, fabric: &Fabric, status: &LinkStatus) -> Self {
        let fault = status.fault;
        Self {
            port: LinkEnd::new(plan, fabric, status.port),
            peer: LinkEnd::new(plan, fabric, status.peer),
            cable: status.cable,
            state: status.state.to_string(),
            physical_state: status.physical_state.to_string(),
            lost_per_million: fault.loss_ppm,
            delay_us: fault.delay.as_micros() as u64,
            overrun_every: fault.overrun_every,
            stalled: fault.stalled.into(),
        }
    }
}
