//! Links that go down and up, lose and delay, on command.

use std::time::Duration;

use fabric::{LinkFault, PortRef, Stalled};

use super::Management;
use crate::control::{LinkAction, LinkEnd, LinkReport, LinkRequest, StallDirection};
use crate::topology::Plan;

/// The slowest link: subnet managers give up before.
const DELAY_MAX: Duration = Duration::from_secs(10);
const MILLION: u32 = 1_000_000;

/// Why a link stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Nothing has this name.
    #[error("there is no node `{name}`; there are {}", .known.join(", "))]
    Unknown {
        /// The name.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
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

impl Management {
    /// Does something with a link, and tells how it is then.
    ///
    /// # Errors
    /// [`LinkError`]; nothing has changed then.
    pub fn change_link(&self, plan: &Plan, request: &LinkRequest) -> Result<LinkReport, LinkError> {
        let &LinkRequest {
            ref node,
            port,
            action,
        } = request;
        let report = self.with(|state| {
            let fabric = &mut state.fabric;
            let id = plan.node(fabric, node).ok_or_else(|| LinkError::Unknown {
                name: node.clone(),
                known: plan.names().map(str::to_owned).collect(),
            })?;
            let at = PortRef { node: id, port };
            let peer = fabric.peer(at).ok_or_else(|| LinkError::NoCable {
                node: node.clone(),
                port,
            })?;
            let mut fault = fabric.link_fault(at).unwrap_or_default();
            match action {
                LinkAction::Show => {}
                LinkAction::Down => {
                    fabric.set_cable(at, false);
                }
                LinkAction::Up => {
                    fabric.set_cable(at, true);
                }
                LinkAction::Drop { per_million, .. } if per_million > MILLION => {
                    return Err(LinkError::TooMany(per_million));
                }
                LinkAction::Drop { per_million, seed } => {
                    fault.loss_ppm = per_million;
                    fault.seed = seed;
                }
                LinkAction::Delay { microseconds }
                    if Duration::from_micros(microseconds) > DELAY_MAX =>
                {
                    return Err(LinkError::TooSlow(microseconds));
                }
                LinkAction::Delay { microseconds } => {
                    fault.delay = Duration::from_micros(microseconds);
                }
                LinkAction::Overrun { every } => fault.overrun_every = every,
                LinkAction::Stall { direction } => {
                    fault.stalled = match direction {
                        StallDirection::Out => Stalled::Outbound,
                        StallDirection::In => Stalled::Inbound,
                        StallDirection::Both => Stalled::Both,
                        StallDirection::Off => Stalled::No,
                    };
                }
                LinkAction::Restore => {
                    fault = LinkFault::default();
                    fabric.set_cable(at, true);
                }
            }
            if !matches!(action, LinkAction::Show | LinkAction::Down | LinkAction::Up) {
                fabric.set_link_fault(at, (!fault.is_harmless()).then_some(fault));
            }
            let end = |port: PortRef| LinkEnd {
                node: plan.name(port.node).unwrap_or_default().to_owned(),
                guid: fabric
                    .node_info(port)
                    .unwrap_or_default()
                    .node_guid
                    .to_string(),
                port: port.port,
            };
            let info = fabric.port_info(at).unwrap_or_default();
            Ok(LinkReport {
                port: end(at),
                peer: end(peer),
                cable: fabric.has_cable(at),
                state: info.port_state.to_string(),
                physical_state: info.port_physical_state.to_string(),
                lost_per_million: fault.loss_ppm,
                delay_us: fault.delay.as_micros() as u64,
                overrun_every: fault.overrun_every,
                stalled: match fault.stalled {
                    Stalled::No => StallDirection::Off,
                    Stalled::Outbound => StallDirection::Out,
                    Stalled::Inbound => StallDirection::In,
                    Stalled::Both => StallDirection::Both,
                },
            })
        });
        self.look();
        report
    }
}
