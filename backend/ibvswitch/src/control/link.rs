//! Links of a fabric, as the control socket tells them.

use std::time::Duration;

use fabric::{Fabric, Stalled};
use vswitch::{LinkStatus, Plan};

use super::topology::link_end;
use super::{LinkAction, LinkReport, StallDirection};

fn stalled(direction: StallDirection) -> Stalled {
    match direction {
        StallDirection::Out => Stalled::Outbound,
        StallDirection::In => Stalled::Inbound,
        StallDirection::Both => Stalled::Both,
        StallDirection::Off => Stalled::No,
    }
}

fn stall_direction(stalled: Stalled) -> StallDirection {
    match stalled {
        Stalled::No => StallDirection::Off,
        Stalled::Outbound => StallDirection::Out,
        Stalled::Inbound => StallDirection::In,
        Stalled::Both => StallDirection::Both,
    }
}

/// An action on a link, for the vSwitch.
pub(crate) fn link_action(action: LinkAction) -> vswitch::LinkAction {
    match action {
        LinkAction::Show => vswitch::LinkAction::Show,
        LinkAction::Down => vswitch::LinkAction::Down,
        LinkAction::Up => vswitch::LinkAction::Up,
        LinkAction::Drop { per_million, seed } => vswitch::LinkAction::Drop { per_million, seed },
        LinkAction::Delay { microseconds } => {
            vswitch::LinkAction::Delay(Duration::from_micros(microseconds))
        }
        LinkAction::Overrun { every } => vswitch::LinkAction::Overrun(every),
        LinkAction::Stall { direction } => vswitch::LinkAction::Stall(stalled(direction)),
        LinkAction::Restore => vswitch::LinkAction::Restore,
    }
}

/// A link of `plan`, which is `fabric` in operation.
pub(crate) fn link_report(plan: &Plan, fabric: &Fabric, status: &LinkStatus) -> LinkReport {
    let fault = status.fault;
    LinkReport {
        port: link_end(plan, fabric, status.port),
        peer: link_end(plan, fabric, status.peer),
        cable: status.cable,
        state: status.state.to_string(),
        physical_state: status.physical_state.to_string(),
        lost_per_million: fault.loss_ppm,
        delay_us: fault.delay.as_micros() as u64,
        overrun_every: fault.overrun_every,
        stalled: stall_direction(fault.stalled),
    }
}
