//! Traps of agents.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tracing::{debug, warn};
use wire::attribute::{Notice, PortInfo, SmState, Trap};
use wire::mad::{AttributeId, Method};
use wire::smp::{DATA, Smp};
use wire::{Lid, MadPacket};

use super::{Phase, Purpose, SubnetManager, virtualization};
use crate::model::At;
use wire::Transport;

/// Nodes to be looked at because of traps.
#[derive(Debug, Default)]
pub(super) struct Traps {
    counts: BTreeMap<u16, u64>,
    /// Switches with ports that changed state.
    switches: BTreeSet<Lid>,
    /// Ports of which something else changed.
    ports: BTreeSet<Lid>,
    /// The result differs from the answers of the subnet administration.
    pub(super) news: bool,
    /// When they were looked at last: nobody keeps the manager sweeping by traps.
    looked: Option<Duration>,
}

impl Traps {
    pub(super) fn counts(&self) -> impl Iterator<Item = (u16, u64)> {
        self.counts.iter().map(|(&number, &count)| (number, count))
    }

    /// When to look at what traps told of.
    pub(super) fn due(&self, interval: Duration) -> Option<Duration> {
        let any = !self.switches.is_empty() || !self.ports.is_empty();
        any.then(|| {
            self.looked
                .map_or(Duration::ZERO, |looked| looked + interval)
        })
    }

    /// A full sweep begins: it sees all that traps told of so far.
    pub(super) fn swept(&mut self, now: Duration) {
        self.switches.clear();
        self.ports.clear();
        self.looked = Some(now);
    }
}

impl SubnetManager {
    /// Acknowledges a trap and notes what it tells of.
    pub(super) fn take_trap(&mut self, packet: &MadPacket, transport: &mut impl Transport) {
        if self.state() != SmState::Master {
            // It is the master's to acknowledge.
            return;
        }
        let mut reply = packet.reply();
        let Ok(mut smp) = Smp::new_checked(&mut reply.mad[..]) else {
            return;
        };
        let (Ok(notice), Ok(trap)) = (Notice::parse(smp.data()), Trap::parse(smp.data())) else {
            return;
        };
        let data = *smp.data();
        smp.mad_mut().set_method(Method::TRAP_REPRESS);
        // The sender acts on nothing that lacks the key.
        let at = self.known.subnet.port_of(packet.slid);
        let key = at.map_or(0, |at| self.known.keys.of(self.known.subnet.key_holder(at)));
        smp.set_m_key(key);
        transport.send(reply);
        let issuer = packet.slid;
        debug!(trap = notice.trap_number, %issuer, "trap");
        // A number is a guest's or a vendor's to choose.
        if trap.is_some() {
            *self.traps.counts.entry(notice.trap_number).or_default() += 1;
        }
        let now = self.now;
        let (administration, view) = self.administration();
        administration.trap(&data, &view, now, transport);
        match trap {
            // The details could name any switch: who sends it is the one to look at.
            Some(Trap::LinkStateChange(_)) => {
                self.traps.switches.insert(issuer);
            }
            Some(Trap::LocalChange(_) | Trap::SystemImageChange(_) | Trap::VPortStateChange(_)) => {
                self.traps.ports.insert(issuer);
            }
            Some(
                Trap::LinkIntegrity(at) | Trap::BufferOverrun(at) | Trap::FlowControlWatchdog(at),
            ) => {
                warn!(trap = notice.trap_number, lid = %at.lid, port = at.port, "a link has errors");
            }
            Some(Trap::BadMKey(violation, _)) => {
                let attribute = violation.attribute;
                warn!(%issuer, from = %violation.lid, %attribute, "a wrong M_Key");
            }
            _ => {}
        }
    }

    /// Looks at what traps told of, when enough time has passed since the last time.
    pub(super) fn look_after_traps(&mut self) -> bool {
        let due = self.traps.due(self.known.config.trap_interval);
        if due.is_none_or(|due| due > self.now) {
            return false;
        }
        self.traps.looked = Some(self.now);
        let switches = std::mem::take(&mut self.traps.switches);
        let ports = std::mem::take(&mut self.traps.ports);
        let by_lid: BTreeMap<Lid, At> = self
            .known
            .subnet
            .ports()
            .filter(|(_, port)| !port.guid.is_none())
            .filter_map(|(at, port)| Some((port.info?.lid, at)))
            .filter(|(lid, _)| switches.contains(lid) || ports.contains(lid))
            .collect();
        self.phase = Phase::LightSweep;
        for lid in switches {
            match by_lid
                .get(&lid)
                .map(|&(node, _)| &self.known.subnet.nodes[node])
            {
                Some(node) if node.is_switch() => {
                    if let Some(route) = node.route().cloned() {
                        self.get(route, AttributeId::SWITCH_INFO, 0, Purpose::LightSwitch);
                    }
                }
                // Not a switch that this manager knows: the subnet is not what it thinks.
                _ => self.sweeps.changed = true,
            }
        }
        for lid in ports {
            let Some(&at) = by_lid.get(&lid) else {
                self.sweeps.changed = true;
                continue;
            };
            let (node, number) = at;
            if let Some(route) = self.known.subnet.port(at).map(|port| port.route.clone()) {
                let purpose = Purpose::NodeDescription(node);
                self.get(route.clone(), AttributeId::NODE_DESCRIPTION, 0, purpose);
                let purpose = Purpose::ChangedPort(at);
                self.get(
                    route.clone(),
                    AttributeId::PORT_INFO,
                    u32::from(number),
                    purpose,
                );
                virtualization::ask_change(self, at, route);
            }
        }
        true
    }

    /// The capability mask of a port may have changed: whether a manager is there.
    pub(super) fn take_changed_port(&mut self, at: At, data: &[u8; DATA]) {
        let Ok(info) = PortInfo::parse(data) else {
            return;
        };
        if let Some(port) = self.known.subnet.port_mut(at)
            && let Some(known) = &mut port.info
        {
            let former = std::mem::replace(&mut known.capability_mask, info.capability_mask);
            self.traps.news |= former != info.capability_mask;
        }
        self.ask_manager(at);
    }
}
