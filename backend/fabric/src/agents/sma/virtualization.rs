//! Attributes of virtual ports.

use wire::attribute::{
    GuidInfo, PKeyBlock, PortInfo, Trap, VNodeInfo, VPortInfo, VPortStateChange, VPortStates,
    VirtualizationInfo, select_vport_block,
};
use wire::mad::{AttributeId, Status};
use wire::smp::DATA;
use wire::{Guid, Lid, PortState};

use super::Asked;
use crate::fabric::Fabric;
use crate::nodes::node::Port;
use crate::nodes::owner::Owner;
use crate::nodes::topology::PortRef;
use crate::nodes::vport::{VPort, VPorts};
use crate::output::{Output, PortEvent};

const INVALID: Status = Status::INVALID_FIELD;
/// Entries of the table of GUIDs, as VPortInfo tells them.
const GUID_CAP: u8 = GuidInfo::ENTRIES as u8;

/// The next state of a virtual port that a Set asks for.
fn transition(before: PortState, wanted: PortState) -> Result<PortState, Status> {
    use PortState as S;
    match (before, wanted) {
        (before, S::NoChange) => Ok(before),
        (_, S::Down) => Ok(S::Down),
        (S::Initialize | S::Armed, S::Armed) => Ok(S::Armed),
        (S::Armed | S::Active, S::Active) => Ok(S::Active),
        _ => Err(INVALID),
    }
}

/// An agent with a request for one of these attributes.
struct Agent<'a> {
    fabric: &'a mut Fabric,
    asked: Asked,
    at: PortRef,
}

/// Whether an attribute is of virtual ports.
pub(super) const fn is_of_vports(attribute: AttributeId) -> bool {
    AttributeId::VIRTUALIZATION_INFO.0 <= attribute.0
        && attribute.0 <= AttributeId::VPORT_P_KEY_TABLE.0
}

/// Answers a request for one of these attributes.
pub(super) fn answer(
    fabric: &mut Fabric,
    asked: Asked,
    attribute: AttributeId,
    data: &mut [u8; DATA],
) -> Result<(), Status> {
    let at = asked.port(asked.ingress);
    Agent { fabric, asked, at }.attribute(attribute, data)
}

impl Agent<'_> {
    /// The answer to a request for one of these attributes.
    fn attribute(&mut self, attribute: AttributeId, data: &mut [u8; DATA]) -> Result<(), Status> {
        match attribute {
            AttributeId::VIRTUALIZATION_INFO => self.virtualization_info(data),
            AttributeId::VPORT_INFO => self.vport_info(data),
            AttributeId::VNODE_INFO => self.vnode_info(data),
            AttributeId::VPORT_STATE => self.vport_states(data),
            AttributeId::VNODE_DESCRIPTION => self.vnode_description(data),
            AttributeId::VPORT_GUID_INFO => self.vport_guid_info(data),
            _ => self.vport_pkey_table(data),
        }
    }

    /// The virtual ports of the port that is self.asked.
    fn vports(&self) -> Result<&VPorts, Status> {
        VPorts::at(&self.fabric.nodes, self.at).ok_or(Status::UNSUPPORTED_ATTRIBUTE)
    }

    /// The state of the physical port.
    fn physical(&self) -> PortState {
        physical(self.fabric, self.at)
    }

    /// The index of the virtual port that a modifier means.
    fn vport_index(&self, modifier: u32) -> Result<u16, Status> {
        let cap = self.vports()?.cap();
        let index = u16::try_from(modifier).map_err(|_| INVALID)?;
        (index <= cap).then_some(index).ok_or(INVALID)
    }

    fn virtualization_info(&mut self, data: &mut [u8; DATA]) -> Result<(), Status> {
        let before = self.vports()?;
        let (cap, top) = (before.cap(), before.top());
        let (mut enabled, mut changed) = (before.enabled, before.changed);
        let was = enabled;
        if self.asked.modifier != 0 {
            return Err(INVALID);
        }
        let wanted = VirtualizationInfo::parse(data).map_err(|_| INVALID)?;
        if self.asked.set {
            enabled = wanted.virtualization_enable;
            changed &= !wanted.vport_state_change;
            let physical = self.physical();
            if let Some(virtualization) = VPorts::at_mut(&mut self.fabric.nodes, self.at) {
                virtualization.enabled = enabled;
                virtualization.changed = changed;
            }
            if enabled != was {
                follow(self.fabric, self.at, physical);
                self.fabric.nodes.path_changed();
                // The manager that asked for it knows.
                if let Some(virtualization) = VPorts::at_mut(&mut self.fabric.nodes, self.at) {
                    virtualization.changed = false;
                }
                changed = false;
            }
            if wanted.client_reregister {
                for index in 1..=cap {
                    tell(self.fabric, self.at, index, PortEvent::ClientReregister);
                }
            }
        }
        *data = VirtualizationInfo {
            vport_cap: cap,
            vport_index_top: top,
            virtualization_enable: enabled,
            vport_state_change: changed,
            ..VirtualizationInfo::default()
        }
        .to_bytes();
        Ok(())
    }

    fn vport_info(&mut self, data: &mut [u8; DATA]) -> Result<(), Status> {
        let index = self.vport_index(self.asked.modifier)?;
        let mut outcome = Ok(());
        if self.asked.set {
            outcome = VPortInfo::parse(data)
                .map_err(|_| INVALID)
                .and_then(|wanted| self.set_vport_info(index, &wanted));
        }
        let physical = self.fabric.port(self.at).ok_or(INVALID)?;
        let info = match physical
            .virtual_ports
            .as_ref()
            .and_then(|it| it.port(index))
        {
            Some(port) => VPortInfo {
                port_state: port.state,
                lid_required: port.spec.lid_required,
                guid_cap: GUID_CAP,
                lid: port.lid,
                port_guid: port.spec.guid,
                ..VPortInfo::default()
            },
            None => of_physical(physical.guid, &physical.info),
        };
        *data = info.to_bytes();
        outcome
    }

    fn set_vport_info(&mut self, index: u16, wanted: &VPortInfo) -> Result<(), Status> {
        if index == 0 {
            // The physical port is set by its own attributes.
            let same = matches!(wanted.port_state, PortState::NoChange | PortState::Active);
            return same.then_some(()).ok_or(INVALID);
        }
        let virtualization = VPorts::at(&self.fabric.nodes, self.at).ok_or(INVALID)?;
        let port = virtualization.port(index).ok_or(INVALID)?;
        let mut state = transition(port.state, wanted.port_state)?;
        if state == PortState::Down {
            let physical = self.physical();
            state = virtualization.rest(port, physical);
        }
        let before = (port.state, port.lid);
        let lid = if port.spec.lid_required {
            wanted.lid
        } else {
            Lid::NONE
        };
        let may = virtualization.enabled && port.is_enabled();
        if !may || lid != wanted.lid || !(lid.is_unicast() || lid == Lid::NONE) {
            return Err(INVALID);
        }
        if before != (state, lid) {
            let virtualization = VPorts::at_mut(&mut self.fabric.nodes, self.at);
            if let Some(port) = virtualization.and_then(|it| it.port_mut(index)) {
                (port.state, port.lid) = (state, lid);
            }
            self.fabric.nodes.path_changed();
        }
        if before.1 != lid {
            tell(self.fabric, self.at, index, PortEvent::LidChange);
        }
        if before.0 != state {
            tell(self.fabric, self.at, index, PortEvent::StateChange(state));
        }
        if wanted.client_reregister {
            tell(self.fabric, self.at, index, PortEvent::ClientReregister);
        }
        Ok(())
    }

    fn vnode_info(&mut self, data: &mut [u8; DATA]) -> Result<(), Status> {
        let index = self.vport_index(self.asked.modifier)?;
        let Self { asked, at, .. } = *self;
        self.fabric.read_only(asked, data, |fabric, _| {
            let node = fabric.node(asked.node)?;
            let info = VNodeInfo {
                partition_cap: node.spec.partition_cap,
                local_port_num: 1,
                num_ports: 1,
                node_guid: match VPorts::at(&fabric.nodes, at).and_then(|it| it.port(index)) {
                    Some(port) => port.spec.node_guid,
                    None => node.spec.guid,
                },
            };
            Some(info.to_bytes())
        })
    }

    fn vnode_description(&mut self, data: &mut [u8; DATA]) -> Result<(), Status> {
        let index = self.vport_index(self.asked.modifier)?;
        let Self { asked, at, .. } = *self;
        self.fabric.read_only(asked, data, |fabric, _| {
            let text = match VPorts::at(&fabric.nodes, at).and_then(|it| it.port(index)) {
                Some(port) => port.spec.description,
                None => fabric.node(asked.node)?.description,
            };
            Some(text.to_bytes())
        })
    }

    fn vport_states(&mut self, data: &mut [u8; DATA]) -> Result<(), Status> {
        let cap = self.vports()?.cap();
        let first = self.asked.modifier as usize;
        let first = first.checked_mul(VPortStates::ENTRIES).ok_or(INVALID)?;
        if first > usize::from(cap) {
            return Err(INVALID);
        }
        let Self { asked, at, .. } = *self;
        self.fabric.read_only(asked, data, |fabric, _| {
            let physical = fabric.port(at)?;
            let virtualization = VPorts::at(&fabric.nodes, at)?;
            let mut block = VPortStates::default();
            for entry in 0..VPortStates::ENTRIES {
                let state = match first + entry {
                    0 => Some(physical.info.port_state),
                    index => virtualization.ports.get(index - 1).map(VPort::state),
                };
                if let Some(state) = state {
                    block.set(entry, state);
                }
            }
            Some(block.to_bytes())
        })
    }

    /// The virtual port whose table is asked, and the first entry of the block. The tables of index 0 are the physical port's.
    fn vport_table(&mut self, entries: usize) -> Result<(u16, usize), Status> {
        let (index, block) = select_vport_block(self.asked.modifier);
        let index = self.vport_index(index.into())?;
        self.asked.modifier = block.into();
        Ok((index, usize::from(block) * entries))
    }

    fn vport_guid_info(&mut self, data: &mut [u8; DATA]) -> Result<(), Status> {
        let (index, first) = self.vport_table(GuidInfo::ENTRIES)?;
        if index == 0 {
            return self.fabric.guid_info(self.asked, data);
        }
        let virtualization = VPorts::at(&self.fabric.nodes, self.at).ok_or(INVALID)?;
        let port = virtualization.port(index).ok_or(INVALID)?;
        let (mut entries, own) = (port.guids, port.spec.guid);
        if first != 0 || self.asked.set && !port.is_enabled() {
            return Err(INVALID);
        }
        if self.asked.set {
            // The port's own GUID is its owner's to change.
            let mut wanted = GuidInfo::parse(data).map_err(|_| INVALID)?.entries();
            wanted[0] = own;
            if wanted != entries {
                entries = wanted;
                let virtualization = VPorts::at_mut(&mut self.fabric.nodes, self.at);
                if let Some(port) = virtualization.and_then(|it| it.port_mut(index)) {
                    port.guids = entries;
                }
                tell(self.fabric, self.at, index, PortEvent::GidChange);
            }
        }
        GuidInfo::from_entries(entries).emit(data);
        Ok(())
    }

    fn vport_pkey_table(&mut self, data: &mut [u8; DATA]) -> Result<(), Status> {
        let (index, first) = self.vport_table(PKeyBlock::ENTRIES)?;
        if index == 0 {
            return self.fabric.pkey_table(self.asked, data);
        }
        let virtualization = VPorts::at(&self.fabric.nodes, self.at).ok_or(INVALID)?;
        let port = virtualization.port(index).ok_or(INVALID)?;
        let end = port.pkeys.len().min(first + PKeyBlock::ENTRIES);
        let held = port.pkeys.get(first..end).filter(|held| !held.is_empty());
        let held = held.ok_or(INVALID)?;
        if self.asked.set && !port.is_enabled() {
            return Err(INVALID);
        }
        let room = held.len();
        let mut block = PKeyBlock::default();
        block.0[..room].copy_from_slice(held);
        if self.asked.set {
            let wanted = PKeyBlock::parse(data);
            if block.0[..room] != wanted.0[..room] {
                block.0[..room].copy_from_slice(&wanted.0[..room]);
                let virtualization = VPorts::at_mut(&mut self.fabric.nodes, self.at);
                if let Some(port) = virtualization.and_then(|it| it.port_mut(index)) {
                    port.pkeys[first..end].copy_from_slice(&block.0[..room]);
                }
                self.fabric.nodes.path_changed();
                tell(self.fabric, self.at, index, PortEvent::PkeyChange);
            }
        }
        *data = block.to_bytes();
        Ok(())
    }
}

/// The state of a physical port.
fn physical(fabric: &Fabric, at: PortRef) -> PortState {
    fabric.port(at).map_or(PortState::Down, Port::state)
}

/// The physical port came up or went down: virtual ports begin anew.
pub(crate) fn follow(fabric: &mut Fabric, at: PortRef, physical: PortState) {
    let Some(vports) = VPorts::at_mut(&mut fabric.nodes, at) else {
        return;
    };
    for (index, state) in vports.follow(physical) {
        tell(fabric, at, index, PortEvent::StateChange(state));
    }
}

/// The owner of a port with virtual ports: the hypervisor, which says whose they are.
#[derive(Debug)]
pub struct VPortOwner<'a> {
    fabric: &'a mut Fabric,
    port: PortRef,
}

impl<'a> VPortOwner<'a> {
    /// The owner of this port.
    pub fn new(fabric: &'a mut Fabric, port: PortRef) -> Self {
        Self { fabric, port }
    }

    /// Gives a virtual port this GUID in place of the former one, and a LID of its own or none. It begins anew, unless the GUID
    /// is the same. False where there is no such virtual port.
    pub fn set(&mut self, index: u16, guid: Guid, lid_required: bool) -> bool {
        let Self { fabric, port } = self;
        let (at, physical) = (*port, physical(fabric, *port));
        let known = VPorts::at(&fabric.nodes, at).and_then(|it| it.port(index));
        match known.map(VPort::guid) {
            None => return false,
            Some(former) if former == guid => return true,
            Some(_) => {}
        }
        let Some(vports) = VPorts::at_mut(&mut fabric.nodes, at) else {
            return false;
        };
        let state = vports.begin_anew(index, physical, |spec| {
            (spec.guid, spec.lid_required) = (guid, lid_required);
        });
        let enabled = vports.is_enabled();
        fabric.nodes.path_changed();
        tell(fabric, at, index, PortEvent::GidChange);
        tell(fabric, at, index, PortEvent::StateChange(state));
        if enabled {
            let lid = fabric.port(at).map_or(Lid::NONE, |port| port.info.lid);
            fabric.raise(at, &Trap::VPortStateChange(VPortStateChange { lid }));
        }
        true
    }
}

fn tell(fabric: &mut Fabric, port: PortRef, index: u16, event: PortEvent) {
    let owner = fabric.port(port).map(|port| port.owner);
    if owner == Some(Owner::Consumer) {
        let event = Output::VPortEvent { port, index, event };
        fabric.outputs.push_back(event);
    }
}

/// Virtual port 0: the physical port.
fn of_physical(guid: Guid, info: &PortInfo) -> VPortInfo {
    VPortInfo {
        port_state: info.port_state,
        guid_cap: info.guid_cap,
        port_guid: guid,
        p_key_violations: info.p_key_violations,
        q_key_violations: info.q_key_violations,
        ..VPortInfo::default()
    }
}
