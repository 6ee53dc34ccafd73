//! Links: how they come up and go down.

use wire::attribute::{CapabilityMask, PortInfo};
use wire::{LinkSpeedExt, LinkWidth, PhysicalState, PortState};

use super::rate::LinkRate;

use crate::agents::sma::virtualization;
use crate::fabric::Fabric;
use crate::nodes::Nodes;
use crate::nodes::counters::Counter;
use crate::nodes::topology::PortRef;
use crate::output::PortEvent;

/// All codes up to this one: what a port of this rate supports.
const fn up_to(code: u8) -> u8 {
    (code << 1).wrapping_sub(1)
}

/// Has the agent of a port say that PortInfo tells the newest speeds, too.
fn show_newest_speeds(nodes: &mut Nodes, at: PortRef) {
    let agent = nodes
        .node(at.node)
        .map(|node| node.management_port(at.port));
    let agent = PortRef {
        port: agent.unwrap_or_default(),
        ..at
    };
    if let Some(port) = nodes.port_mut(agent) {
        let info = &mut port.info;
        info.capability_mask = info.capability_mask.with(CapabilityMask::CAPABILITY_MASK2);
        info.capability_mask2 |= PortInfo::EXTENDED_SPEEDS_2;
    }
}

impl Nodes {
    /// Whether there is a cable at a port, and it is whole.
    pub fn has_cable(&self, port: PortRef) -> bool {
        self.port(port)
            .is_some_and(|port| port.peer.is_some() && !port.severed)
    }
}

impl Fabric {
    /// Breaks or mends the cable at a port, as pulling it out at either end does.
    ///
    /// Returns whether there is a cable at all.
    pub fn set_cable(&mut self, port: PortRef, whole: bool) -> bool {
        let Some(peer) = self.port(port).and_then(|port| port.peer) else {
            return false;
        };
        if whole && self.has_cable(port) {
            // A link that is up is not to train anew.
            return true;
        }
        // A port that a subnet manager takes down by a packet is no failure, and not counted as one (IBA 16.1.3.5).
        let failed = !whole && self.port(port).is_some_and(|port| port.is_linked());
        for end in [port, peer] {
            if let Some(end) = self.nodes.port_mut(end) {
                end.severed = !whole;
            }
            if failed {
                self.ledgers.count(end, Counter::LinkDowned, 1);
            }
        }
        if whole {
            self.train(port);
        } else {
            self.take_down(port, PhysicalState::Polling);
        }
        true
    }

    /// Lays a cable while the fabric is built.
    pub(crate) fn connect(&mut self, a: PortRef, b: PortRef, rate: LinkRate) {
        for (end, peer) in [(a, b), (b, a)] {
            let Some(port) = self.nodes.port_mut(end) else {
                continue;
            };
            port.peer = Some(peer);
            let info = &mut port.info;
            info.link_width_supported = rate.width.code() | LinkWidth::X1.code();
            info.link_width_enabled = info.link_width_supported;
            info.link_width_active = rate.width.code();
            info.link_speed_supported = up_to(rate.speed.code());
            info.link_speed_enabled = info.link_speed_supported;
            info.link_speed_active = rate.speed.code();
            info.set_speed_ext(rate.extended);
            port.fdr10 = rate.fdr10;
            if rate.extended == LinkSpeedExt::Xdr {
                show_newest_speeds(&mut self.nodes, end);
            }
        }
        self.train(a);
    }

    /// Brings the link at a port to Initialize, if there is a whole cable and neither end is
    /// switched off or asleep.
    pub(crate) fn train(&mut self, port: PortRef) {
        let Some(peer) = self.port(port).and_then(|port| port.peer) else {
            return;
        };
        let ready = |end| {
            self.port(end).is_some_and(|port| {
                !port.severed
                    && !matches!(
                        port.info.port_physical_state,
                        PhysicalState::Disabled | PhysicalState::Sleep
                    )
            })
        };
        if !(ready(port) && ready(peer)) {
            return;
        }
        for end in [port, peer] {
            self.set_state(end, PhysicalState::LinkUp, PortState::Initialize);
        }
    }

    /// Takes the link at a port down: this end goes to `physical`, the other one looks for it.
    pub(crate) fn take_down(&mut self, port: PortRef, physical: PhysicalState) {
        let was_up = self.port(port).is_some_and(|port| port.is_linked());
        let peer = self.port(port).and_then(|port| port.peer);
        self.set_state(port, physical, PortState::Down);
        if let (Some(peer), true) = (peer, was_up) {
            self.set_state(peer, PhysicalState::Polling, PortState::Down);
        }
    }

    pub(crate) fn set_state(&mut self, at: PortRef, physical: PhysicalState, state: PortState) {
        let Some(before) = self.port(at).map(|port| port.info) else {
            return;
        };
        let states = (before.port_physical_state, before.port_state);
        if states != (physical, state)
            && let Some(port) = self.nodes.port_mut(at)
        {
            port.info.port_physical_state = physical;
            port.info.port_state = state;
        }
        if before.port_state == state {
            return;
        }
        self.nodes.path_changed();
        self.tell(at, PortEvent::StateChange(state));
        if matches!(state, PortState::Down | PortState::Initialize) {
            virtualization::follow(self, at, state);
        }
        // A change by a subnet manager is no news to it (IBA 14.2.5.4).
        let by_link = matches!(state, PortState::Down | PortState::Initialize);
        if by_link {
            self.credits_begin(at);
        }
        if by_link && let Some(switch) = self.nodes.switch_mut(at.node) {
            switch.info.port_state_change = true;
            self.link_state_changed(at);
        }
    }
}
