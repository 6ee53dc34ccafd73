//! Congestion control of the nodes that a sweep has found.

use std::time::Duration;

use wire::attribute::SmState;

use super::SubnetManager;
use crate::congestion::{Patience, Target};
use crate::requests::Transport;

/// A sweep has ended: all switches and adapters get their settings.
pub(super) fn swept(manager: &mut SubnetManager) {
    let known = &manager.known;
    let Some(control) = &known.config.congestion else {
        return;
    };
    let ports = known.subnet.end_ports().into_iter();
    let targets = ports.filter_map(|at| {
        let port = known.subnet.port(at)?;
        let lid = port.info?.lid;
        Some(Target {
            guid: port.guid,
            lid,
            sl: known.manager_level(port.guid),
            is_switch: known.subnet.nodes[at.0].is_switch(),
        })
        .filter(|_| lid.is_unicast())
    });
    manager.congestion.swept(control, targets);
}

/// Sends the datagrams that may be sent. Returns when to ask again.
pub(super) fn poll(
    manager: &mut SubnetManager,
    transport: &mut impl Transport,
) -> Option<Duration> {
    let config = &manager.known.config;
    let control = config.congestion.as_ref()?;
    if manager.state() != SmState::Master {
        manager.congestion.clear();
        return None;
    }
    let patience = Patience {
        timeout: config.timeout,
        retries: config.retries,
    };
    let congestion = &mut manager.congestion;
    let due = congestion.poll(control, patience, manager.now, transport);
    for error in manager.congestion.take_errors() {
        manager.sweeps.error(error);
    }
    due
}
