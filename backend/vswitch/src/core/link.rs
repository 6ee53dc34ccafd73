//! Links that go down and up, lose and delay, on command.

use std::time::Duration;

use fabric::{Fabric, LinkFault, PortRef, Stalled};
use wire::{PhysicalState, PortState};

use crate::names::NameError;
use crate::plan::Plan;

/// The slowest link: subnet managers give up before.
const DELAY_MAX: Duration = Duration::from_secs(10);
const MILLION: u32 = 1_000_000;

/// Why a link stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The name is no node's.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The node has no such port, or nothing is plugged in there.
    #[error("no cable is at port {port} of `{node}`; `ibvswitch topology` shows the links")]
    NoCable {
        /// The node.
        node: String,
        /// The port.
        port: u8,
    },
    /// More than all packets.
    #[error("{0} packets of a million are more than all; give 0 to 1000000")]
    TooMany(u32),
    /// Slower than a link may be.
    #[error("{0} µs are too slow; give at most 10 s, which is 10000000")]
    TooSlow(u64),
}

/// An action on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// Delay packets, each way; for no time not at all.
    Delay(Duration),
    /// Have the receiver's buffers overrun at one packet of so many; 0 for none.
    Overrun(u32),
    /// Let no credits arrive, as seen from the port that is named.
    Stall(Stalled),
    /// Put the cable back in, and let nothing be wrong with it.
    Restore,
}

/// The status of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkStatus {
    /// The end that was named.
    pub port: PortRef,
    /// The other end.
    pub peer: PortRef,
    /// Whether the cable is in.
    pub cable: bool,
    /// State of the port that was named.
    pub state: PortState,
    /// Its physical state.
    pub physical_state: PhysicalState,
    /// The faults of the link.
    pub fault: LinkFault,
}

/// Does something with the link at a port of the node with this name or GUID, and tells how the link
/// is then.
///
/// # Errors
/// [`LinkError`]; nothing has changed then.
pub(crate) fn change(
    fabric: &mut Fabric,
    plan: &Plan,
    (node, port): (&str, u8),
    action: LinkAction,
) -> Result<LinkStatus, LinkError> {
    let id = plan.node(fabric, node)?;
    let at = PortRef { node: id, port };
    let peer = fabric.peer(at).ok_or_else(|| LinkError::NoCable {
        node: node.to_owned(),
        port,
    })?;
    act(fabric, at, action)?;
    let info = fabric.port_info(at).unwrap_or_default();
    Ok(LinkStatus {
        port: at,
        peer,
        cable: fabric.has_cable(at),
        state: info.port_state,
        physical_state: info.port_physical_state,
        fault: fabric.link_fault(at).unwrap_or_default(),
    })
}

fn act(fabric: &mut Fabric, at: PortRef, action: LinkAction) -> Result<(), LinkError> {
    let mut fault = fabric.link_fault(at).unwrap_or_default();
    match action {
        LinkAction::Show => return Ok(()),
        LinkAction::Down | LinkAction::Up => {
            fabric.set_cable(at, action == LinkAction::Up);
            return Ok(());
        }
        LinkAction::Drop { per_million, .. } if per_million > MILLION => {
            return Err(LinkError::TooMany(per_million));
        }
        LinkAction::Drop { per_million, seed } => {
            fault.loss_ppm = per_million;
            fault.seed = seed;
        }
        LinkAction::Delay(delay) if delay > DELAY_MAX => {
            return Err(LinkError::TooSlow(delay.as_micros() as u64));
        }
        LinkAction::Delay(delay) => fault.delay = delay,
        LinkAction::Overrun(every) => fault.overrun_every = every,
        LinkAction::Stall(stalled) => fault.stalled = stalled,
        LinkAction::Restore => {
            fault = LinkFault::default();
            fabric.set_cable(at, true);
        }
    }
    fabric.set_link_fault(at, (!fault.is_harmless()).then_some(fault));
    Ok(())
}
