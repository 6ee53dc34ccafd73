//! Links that are changed on command, as they go over the control socket.

use serde::{Deserialize, Serialize};

use super::LinkEnd;

/// A change of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkRequest {
    /// Name of the node at one of its ends, or its node GUID.
    pub node: String,
    /// Number of the port there.
    pub port: u8,
    /// The change.
    pub action: LinkAction,
}

/// A change of a link.
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
        /// Ports that get none.
        direction: StallDirection,
    },
    /// Put the cable back in, and let nothing be wrong with it.
    Restore,
}

/// In which direction of a link data is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum StallDirection {
    /// Packets from the named port.
    Out,
    /// Packets from the port at the other end.
    In,
    /// Both.
    Both,
    /// None.
    Off,
}

/// State of a link.
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
    /// Direction in which data is stuck, seen from the port that the request names.
    pub stalled: StallDirection,
}
