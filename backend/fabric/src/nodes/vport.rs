//! Virtual ports: what an adapter's port is to several functions at once, in the form that NVIDIA's adapters have.
//!
//! Virtual port 0 is the physical port. Each of the others is one function's: its owner, the hypervisor, gives it a GUID,
//! and with that it is enabled. The subnet manager gives it partitions and, where it requires one, a LID, and brings it up.

use std::sync::Arc;

use wire::attribute::PortInfo;
use wire::{Guid, Lid, PKey, PortState};

use crate::nodes::Nodes;
use crate::nodes::topology::{PortRef, VPortSpec};

/// GUIDs that a virtual port can hold: one block.
const GUID_CAP: usize = 8;

/// A virtual port at present.
#[derive(Debug, Clone)]
pub struct VPort {
    pub(crate) spec: VPortSpec,
    pub(crate) state: PortState,
    pub(crate) lid: Lid,
    pub(crate) guids: [Guid; GUID_CAP],
    pub(crate) pkeys: Vec<PKey>,
}

impl VPort {
    fn new(spec: &VPortSpec, pkeys: u16) -> Self {
        let mut port = Self {
            spec: spec.clone(),
            state: PortState::Down,
            lid: Lid::NONE,
            guids: [Guid::NONE; GUID_CAP],
            pkeys: vec![PKey::INVALID; usize::from(pkeys)],
        };
        port.reset();
        port
    }

    /// Forgets what a subnet manager has set.
    pub(crate) fn reset(&mut self) {
        self.lid = Lid::NONE;
        self.guids = [Guid::NONE; GUID_CAP];
        self.guids[0] = self.spec.guid;
        self.pkeys.fill(PKey::INVALID);
        if let Some(first) = self.pkeys.first_mut() {
            *first = PKey::DEFAULT_FULL;
        }
    }

    /// Whether its owner has enabled it.
    pub fn is_enabled(&self) -> bool {
        !self.spec.guid.is_none()
    }

    /// GUID of the port; none while it is not enabled.
    pub fn guid(&self) -> Guid {
        self.spec.guid
    }

    /// Logical state.
    pub fn state(&self) -> PortState {
        self.state
    }

    /// Whether it is to have a LID of its own.
    pub fn requires_lid(&self) -> bool {
        self.spec.lid_required
    }

    /// Its own LID; none where it requires none, or has got none yet.
    pub fn lid(&self) -> Lid {
        self.lid
    }

    /// Its table of GUIDs: its own first, then those that a subnet manager has given it besides.
    pub fn guids(&self) -> &[Guid] {
        &self.guids
    }

    /// Its P_Key table.
    pub fn pkeys(&self) -> &[PKey] {
        &self.pkeys
    }
}

/// The virtual ports of a port, from index 1 on: 0 is the port itself.
#[derive(Debug, Clone)]
pub struct VPorts {
    pub(crate) enabled: bool,
    /// A state changed since the subnet manager looked last.
    pub(crate) changed: bool,
    pub(crate) ports: Vec<VPort>,
}

impl VPorts {
    pub(crate) fn new(specs: &[VPortSpec], pkeys: u16) -> Self {
        Self {
            enabled: false,
            changed: false,
            ports: specs.iter().map(|spec| VPort::new(spec, pkeys)).collect(),
        }
    }

    /// The virtual ports of a port; `None` where it can have none.
    pub fn at(nodes: &Nodes, port: PortRef) -> Option<&Self> {
        nodes.port(port)?.virtual_ports.as_deref()
    }

    pub(crate) fn at_mut(nodes: &mut Nodes, port: PortRef) -> Option<&mut Self> {
        // Not for those who only look: a port that changes is copied.
        Self::at(nodes, port)?;
        let ports = nodes.port_mut(port)?.virtual_ports.as_mut()?;
        Some(Arc::make_mut(ports))
    }

    /// Whether a subnet manager has enabled virtualization.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The highest index.
    pub fn cap(&self) -> u16 {
        self.ports.len() as u16
    }

    /// The highest index of an enabled port; 0 is always enabled.
    pub(crate) fn top(&self) -> u16 {
        let last = self.ports.iter().rposition(VPort::is_enabled);
        last.map_or(0, |at| at as u16 + 1)
    }

    /// A virtual port; `None` of index 0, which is the physical port.
    pub fn port(&self, index: u16) -> Option<&VPort> {
        self.ports.get(usize::from(index).checked_sub(1)?)
    }

    pub(crate) fn port_mut(&mut self, index: u16) -> Option<&mut VPort> {
        self.ports.get_mut(usize::from(index).checked_sub(1)?)
    }

    /// The state in which a port is that nobody has brought up, at a physical port in this one.
    pub(crate) fn rest(&self, port: &VPort, physical: PortState) -> PortState {
        let linked = physical >= PortState::Initialize;
        if self.enabled && linked && port.is_enabled() {
            PortState::Initialize
        } else {
            PortState::Down
        }
    }

    /// Has all ports begin anew where the physical port comes up or goes down. Returns those that changed, and their states.
    pub(crate) fn follow(&mut self, physical: PortState) -> Vec<(u16, PortState)> {
        let mut changed = Vec::new();
        for index in 1..=self.cap() {
            let Some(rest) = self.port(index).map(|port| self.rest(port, physical)) else {
                continue;
            };
            if let Some(port) = self.port_mut(index).filter(|port| port.state != rest) {
                port.state = rest;
                changed.push((index, rest));
            }
        }
        self.changed |= !changed.is_empty();
        changed
    }

    /// Changes a port for its owner: what a subnet manager has set is gone. Returns the state in which it is then.
    pub(crate) fn begin_anew(
        &mut self,
        index: u16,
        physical: PortState,
        change: impl FnOnce(&mut VPortSpec),
    ) -> PortState {
        if let Some(port) = self.port_mut(index) {
            change(&mut port.spec);
            port.reset();
        }
        let rest = self.port(index).map(|port| self.rest(port, physical));
        let state = rest.unwrap_or_default();
        if let Some(port) = self.port_mut(index) {
            port.state = state;
            self.changed = true;
        }
        state
    }
}

/// Has a port say that it can have virtual ports.
pub(crate) fn show(info: &mut PortInfo) {
    use wire::attribute::CapabilityMask;
    info.capability_mask = info.capability_mask.with(CapabilityMask::CAPABILITY_MASK2);
    info.capability_mask2 |= PortInfo::VIRTUALIZATION;
}
