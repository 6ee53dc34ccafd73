//! A subnet in operation.

pub(crate) mod clock;
pub(crate) mod exchange;
pub(crate) mod image;

use std::collections::VecDeque;
use std::ops::Deref;

use wire::attribute::{
    CapabilityMask, LocalChange, NodeDescription, SharedBlocks, SystemImageChange, Trap,
};
use wire::{Guid, MadPacket};

use crate::agents::performance::PerformanceAgent;
use crate::nodes::Nodes;
use crate::nodes::counters::SmpCounts;
use crate::nodes::ledger::Ledgers;
use crate::nodes::owner::{Owner, SmpAccess};
use crate::nodes::topology::{NodeId, PortRef, Topology, TopologyError};
use crate::output::{Output, PortEvent};
use crate::packet::Transit;
use crate::tap::{Direction, Tap};
use crate::timers::Timers;

/// A subnet in operation. See the [crate's description](crate).
///
/// Everything that can be asked of its [`Nodes`] can be asked of the fabric.
#[derive(Debug)]
pub struct Fabric {
    pub(crate) nodes: Nodes,
    pub(crate) ledgers: Ledgers,
    /// Blocks of its switches' tables.
    pub(crate) blocks: SharedBlocks,
    pub(crate) transit: VecDeque<Transit>,
    pub(crate) outputs: VecDeque<Output>,
    pub(crate) timers: Timers,
    pub(crate) tap: Option<Tap>,
    /// Transaction of the last trap.
    pub(crate) last_transaction: u64,
}

impl Deref for Fabric {
    type Target = Nodes;

    fn deref(&self) -> &Nodes {
        &self.nodes
    }
}

impl Fabric {
    /// The fabric of this topology. Links train at once: ports with a cable are in Initialize.
    ///
    /// # Errors
    /// What [`Topology::check`] finds.
    pub fn new(topology: &Topology) -> Result<Self, TopologyError> {
        let nodes = Nodes::new(topology)?;
        let mut fabric = Self {
            ledgers: Ledgers::new(&nodes),
            nodes,
            blocks: SharedBlocks::default(),
            transit: VecDeque::new(),
            outputs: VecDeque::new(),
            timers: Timers::default(),
            tap: None,
            last_transaction: 0,
        };
        for &(a, b, rate) in topology.links() {
            fabric.connect(a, b, rate);
        }
        Ok(fabric)
    }

    /// Changes a node's text, as the node's owner may.
    pub fn set_node_description(&mut self, node: NodeId, description: NodeDescription) {
        if self.node_description(node) == Some(description) {
            return;
        }
        if let Some(changed) = self.nodes.node_mut(node) {
            changed.description = description;
        }
        for port in self.agents(node) {
            let change = LocalChange {
                other_changes: true,
                node_description_changed: true,
                ..LocalChange::default()
            };
            self.local_change(port, change);
        }
    }

    /// Changes the GUID of the system that a node is a part of.
    pub fn set_system_image_guid(&mut self, node: NodeId, system_image_guid: Guid) {
        let Some(changed) = self.nodes.node_mut(node) else {
            return;
        };
        let before = std::mem::replace(&mut changed.system_image_guid, system_image_guid);
        if before == system_image_guid {
            return;
        }
        for port in self.agents(node) {
            let lid = self.port(port).map(|port| port.info.lid);
            let change = SystemImageChange {
                lid: lid.unwrap_or_default(),
                system_image_guid,
            };
            self.raise(port, &Trap::SystemImageChange(change));
        }
    }

    pub(crate) fn performance(&mut self) -> PerformanceAgent<'_> {
        PerformanceAgent {
            nodes: &self.nodes,
            ledgers: &mut self.ledgers,
            timers: &mut self.timers,
        }
    }

    /// Has all paths that were found before be found anew: for who gives ports other addresses than the
    /// subnet's.
    pub fn outdate_paths(&mut self) {
        self.nodes.path_changed();
    }

    /// Says who has the queue pairs of a port, and how far its subnet management packets go.
    pub fn set_owner(&mut self, port: PortRef, owner: Owner, access: SmpAccess) {
        let had = self.port(port).map(|port| (port.owner, port.access));
        if had != Some((owner, access))
            && let Some(port) = self.nodes.port_mut(port)
        {
            port.owner = owner;
            port.access = access;
        }
    }

    /// Switches capabilities of a port on (`set`) and off (`clear`), as its owner may when a
    /// manager starts or ends.
    pub fn set_capabilities(&mut self, port: PortRef, set: CapabilityMask, clear: CapabilityMask) {
        let mask = self.port(port).map(|port| port.info.capability_mask);
        let wanted = mask.map(|mask| mask.without(clear).with(set));
        if let Some(wanted) = wanted.filter(|_| wanted != mask)
            && let Some(changed) = self.nodes.port_mut(port)
        {
            changed.info.capability_mask = wanted;
            self.local_change(port, LocalChange::default());
        }
    }

    /// Subnet management packets a node has seen.
    pub fn smp_counts(&self, node: NodeId) -> Option<&SmpCounts> {
        Some(&self.ledgers.node(node)?.smps)
    }

    /// The next thing that left the fabric.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub(crate) fn tell(&mut self, port: PortRef, event: PortEvent) {
        if self
            .port(port)
            .is_some_and(|port| port.owner == Owner::Consumer)
        {
            self.outputs.push_back(Output::Event { port, event });
        }
    }

    /// Has every management packet that crosses the link at certain ports shown as [`Output::Tapped`]; `None` for
    /// no more. Packets of a node to itself cross no link.
    pub fn set_tap(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    pub(crate) fn show(&mut self, port: PortRef, direction: Direction, packet: &MadPacket) {
        let wanted = match &self.tap {
            None => false,
            Some(Tap::All) => true,
            Some(Tap::Ports(ports)) => ports.contains(&port),
        };
        if wanted {
            self.outputs.push_back(Output::Tapped {
                port,
                direction,
                packet: Box::new(packet.clone()),
            });
        }
    }
}
