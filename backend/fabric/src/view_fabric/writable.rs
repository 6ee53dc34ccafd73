//! View fabrics that their tenants manage.
//!
//! Such a fabric begins as switches and adapters leave the factory: without LIDs, tables and keys, its links
//! in Initialize. Its agents take what the tenant's subnet manager sets. When the subnet has changed the fabric is
//! made anew, and takes over from the former one all that its nodes know. Links that have come or gone change the
//! state of the ports at their ends, and switches there tell the tenant's manager (trap 128).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wire::attribute::{CapabilityMask, Notice, PortInfo};
use wire::{Guid, Lid, PortState};

use super::{Draft, ShownSwitch, ViewFabric, ViewHost, ViewManager, ViewName};
use crate::fabric::Fabric;
use crate::nodes::Nodes;
use crate::nodes::counters::PortCounters;
use crate::nodes::node::Port;
use crate::nodes::owner::{Owner, SmpAccess};
use crate::nodes::topology::{NodeId, PortRef, TopologyError};
use crate::output::PortEvent;

impl ViewFabric {
    /// A view fabric of `subnet` that the tenant's subnet manager manages. It takes over all that it can from the one
    /// `before`. Names are as of [`Nodes::view_fabric`]; their LIDs have no meaning.
    ///
    /// # Errors
    /// [`TopologyError::DuplicateGuid`] when two names have the same GUID.
    pub fn writable(
        subnet: &Nodes,
        hosts: &[ViewHost],
        before: Option<&Self>,
        name: impl FnMut(PortRef) -> ViewName,
    ) -> Result<Self, TopologyError> {
        let mut draft = Draft::new(subnet, hosts, ViewManager::default());
        draft.add_nodes(name);
        draft.add_links(|end| subnet.port(end).is_some_and(Port::is_linked));
        draft.finish_writable(before)
    }

    /// Has ports of switches with a cable count data where `counters` says, which is asked for ports of the subnet.
    pub fn share_counters(&mut self, counters: impl Fn(PortRef) -> Arc<PortCounters>) {
        for switch in &self.switches {
            let ports = self
                .fabric
                .node(switch.node)
                .map_or(0, |node| node.spec.ports);
            for number in 1..=ports {
                let place = |node| PortRef { node, port: number };
                let port = self.fabric.nodes.port_mut(place(switch.node));
                if let Some(port) = port.filter(|port| port.peer.is_some()) {
                    port.counters = counters(place(switch.physical)).into();
                }
            }
        }
    }

    /// Has switches refuse entries for these LIDs that lead out by these ports, and no others, when they are set again: they
    /// are named by their node GUIDs in the subnet. They say then that their state has changed, so that the tenant's subnet
    /// manager sets their tables again and hears of it.
    pub fn refuse_entries(&mut self, lids: &[Lid], channels: &[(Guid, u8)]) {
        for &ShownSwitch { guid, node, .. } in &self.switches {
            let Some(switch) = self.fabric.switch(node) else {
                continue;
            };
            let entries = lids.iter().map(|&lid| (lid, switch.linear.port(lid)));
            let refused: BTreeMap<Lid, u8> = entries
                .filter(|&(_, port)| channels.contains(&(guid, port)))
                .collect();
            let tells = !refused.is_empty();
            if !tells && switch.refused.is_empty() {
                continue;
            }
            if let Some(switch) = self.fabric.nodes.switch_mut(node) {
                switch.refused = Arc::new(refused);
                switch.info.port_state_change |= tells;
            }
            if tells {
                self.fabric.link_state_changed(PortRef { node, port: 0 });
            }
        }
    }

    /// The content of the view fabric, to be managed.
    pub fn fabric_mut(&mut self) -> &mut Fabric {
        &mut self.fabric
    }
}

/// The properties of a port that are its hardware's.
fn equip(port: &mut Port, physical: &PortInfo) {
    port.info = PortInfo {
        link_width_enabled: physical.link_width_enabled,
        link_width_supported: physical.link_width_supported,
        link_width_active: physical.link_width_active,
        link_speed_enabled: physical.link_speed_enabled,
        link_speed_supported: physical.link_speed_supported,
        link_speed_active: physical.link_speed_active,
        link_speed_ext_enabled: physical.link_speed_ext_enabled,
        link_speed_ext_supported: physical.link_speed_ext_supported,
        link_speed_ext_active: physical.link_speed_ext_active,
        link_speed_ext2_enabled: physical.link_speed_ext2_enabled,
        link_speed_ext2_supported: physical.link_speed_ext2_supported,
        link_speed_ext2_active: physical.link_speed_ext2_active,
        mtu_cap: physical.mtu_cap,
        vl_cap: physical.vl_cap,
        ..port.info
    };
}

/// The node and port at the other end of the link at a port.
fn far_end(nodes: &Nodes, port: PortRef) -> Option<(Guid, u8)> {
    let peer = nodes.peer(port)?;
    Some((nodes.node(peer.node)?.spec.guid, peer.port))
}

impl Draft<'_> {
    fn finish_writable(self, before: Option<&ViewFabric>) -> Result<ViewFabric, TopologyError> {
        let mut fabric = Fabric::new(&self.topology)?;
        for (end, here) in self.ends() {
            if let (Some(physical), Some(port)) =
                (self.subnet.port(end), fabric.nodes.port_mut(here))
            {
                equip(port, &physical.info);
            }
        }
        for (host, &at) in self.hosts.iter().zip(&self.ports) {
            fabric.set_owner(at, Owner::Consumer, SmpAccess::Fabric);
            let inside = fabric.peer(at).filter(|_| host.entry.is_some());
            for end in inside.into_iter().chain([at]) {
                if let (Some(physical), Some(port)) =
                    (self.subnet.port(host.port), fabric.nodes.port_mut(end))
                {
                    equip(port, &physical.info);
                }
            }
            if let (Some(physical), Some(port)) =
                (self.subnet.port(host.port), fabric.nodes.port_mut(at))
            {
                let mask = physical.info.capability_mask;
                port.info.capability_mask = mask.without(CapabilityMask::IS_SM);
            }
        }
        fabric.outputs.clear();
        if let Some(before) = before {
            take_over(&mut fabric, &before.fabric);
        }
        Ok(self.done(fabric))
    }
}

/// Has the nodes of a fabric know all that they knew in the one before.
fn take_over(fabric: &mut Fabric, before: &Fabric) {
    fabric.set_clock(before.timers.now());
    fabric.last_transaction = before.last_transaction;
    let former: HashMap<Guid, NodeId> = { before.nodes() }
        .filter_map(|id| Some((before.node(id)?.spec.guid, id)))
        .collect();
    let mut news = Vec::new();
    for node in fabric.nodes() {
        let Some(spec) = fabric.node(node).map(|node| node.spec.clone()) else {
            continue;
        };
        let alike = former.get(&spec.guid).copied().filter(|&former| {
            let former = before.node(former).map(|node| &node.spec);
            former.is_some_and(|it| (it.kind, it.ports) == (spec.kind, spec.ports))
        });
        let Some(former) = alike else { continue };
        let first = fabric.node(node).map_or(0, |node| node.first_port());
        let mut changed = is_told(before, former);
        for port in first..=spec.ports {
            let [here, there] = [node, former].map(|node| PortRef { node, port });
            let same = far_end(fabric, here) == far_end(before, there);
            let Some(known) = before.port(there) else {
                continue;
            };
            if let Some(port) = fabric.nodes.port_mut(here) {
                take_over_port(port, known, same);
            }
            let ledgers = (fabric.ledgers.port_mut(here), before.ledgers.port(there));
            if let (Some(ledger), Some(known)) = ledgers {
                ledger.passed = known.passed;
                ledger.management = known.management;
                ledger.base_lines.clone_from(&known.base_lines);
            }
            if !same {
                changed = true;
                news.push(here);
            }
        }
        if let (Some(known), Some(switch)) = (before.switch(former), fabric.nodes.switch_mut(node))
        {
            *switch = known.clone();
            switch.info.port_state_change |= changed;
            if changed {
                news.push(PortRef { node, port: 0 });
            }
        }
    }
    for at in news {
        if at.port == 0 {
            fabric.link_state_changed(at);
        } else {
            let state = fabric.port(at).map(Port::state);
            fabric.tell(at, PortEvent::StateChange(state.unwrap_or(PortState::Down)));
        }
    }
}

/// Whether a switch has told its manager of links, and the manager has not acknowledged it.
fn is_told(fabric: &Fabric, node: NodeId) -> bool {
    let ledger = fabric.ledgers.port(PortRef { node, port: 0 });
    let mut told = ledger.into_iter().flat_map(|ledger| &ledger.told);
    told.any(|told| told.number == Notice::LINK_STATE_CHANGE && told.notice.is_some())
}

/// Has a port know what it knew; with another link than before, all but the link's state.
fn take_over_port(port: &mut Port, known: &Port, same: bool) {
    let new = port.info;
    let (peer, owner, access) = (port.peer, port.owner, port.access);
    *port = known.clone();
    (port.peer, port.owner, port.access) = (peer, owner, access);
    if !same {
        port.info.port_state = new.port_state;
        port.info.port_physical_state = new.port_physical_state;
    }
    // The driver has these; the rest is the manager's.
    let manages = port.info.capability_mask.contains(CapabilityMask::IS_SM);
    port.info.capability_mask = new.capability_mask;
    if manages {
        port.info.capability_mask = new.capability_mask.with(CapabilityMask::IS_SM);
    }
}
