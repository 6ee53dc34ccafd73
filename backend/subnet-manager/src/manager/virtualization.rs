//! Virtual ports: what several functions of an adapter are at its one port, in the form of NVIDIA's adapters.
//!
//! A port that announces virtual ports is asked for them while the subnet is discovered. Where this manager is the master,
//! it enables virtualization, reads the states, and of each virtual port that is not Down its properties. Then virtual
//! ports get partitions and LIDs with all other ports, and are brought up with them. Once a port's bit of change is
//! set, or a trap tells of it, the next sweep looks at its virtual ports anew.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use wire::attribute::{
    CapabilityMask, NodeDescription, NodeType, PKeyBlock, PortInfo, VNodeInfo, VPortInfo,
    VPortStates, VirtualizationInfo, vport_block,
};
use wire::mad::{AttributeId, Method};
use wire::smp::{DATA, Request, Route};
use wire::{Guid, Lid, PKey, PortState};

use super::{Knowledge, Purpose, SubnetManager};
use crate::config::VirtualPorts;
use crate::config::partitions::Candidate;
use crate::lids;
use crate::model::{At, VPort};
use crate::requests::Failure;
use crate::sa::Aliases;

/// Virtual ports of one port that are managed. A port that tells of more lies, or is larger than any adapter on sale.
const MAX_VPORTS: u16 = 1024;
/// The revision of virtualization that this manager handles.
const REVISION: u8 = 0;
/// Blocks of a P_Key table that are written.
const MAX_PKEY_BLOCKS: u16 = 8;

/// Whether a port says that it can have virtual ports.
pub(super) fn is_announced(info: &PortInfo) -> bool {
    let second = info
        .capability_mask
        .contains(CapabilityMask::CAPABILITY_MASK2);
    second && info.capability_mask2 & PortInfo::VIRTUALIZATION != 0
}

/// A virtual port that was found.
fn vport_mut(known: &mut Knowledge, at: At, index: u16) -> Option<&mut VPort> {
    known.subnet.port_mut(at)?.vports.get_mut(&index)
}

/// All virtual ports, with the physical port and the index of each.
pub(super) fn vports(known: &Knowledge) -> impl Iterator<Item = (At, u16, &VPort)> {
    let ports = known.subnet.ports();
    ports.flat_map(|(at, port)| {
        let vports = port.vports.iter();
        vports.map(move |(&index, vport)| (at, index, vport))
    })
}

pub(super) fn take_vnode(known: &mut Knowledge, at: At, index: u16, data: &[u8; DATA]) {
    let info = VNodeInfo::parse(data);
    if let (Ok(info), Some(vport)) = (info, vport_mut(known, at, index)) {
        vport.node = info;
    }
}

pub(super) fn take_description(known: &mut Knowledge, at: At, index: u16, data: &[u8; DATA]) {
    if let Some(vport) = vport_mut(known, at, index) {
        vport.description = NodeDescription::from_bytes(*data);
    }
}

/// The virtual port with this GUID.
pub(super) fn with_guid(known: &Knowledge, guid: Guid) -> Option<(At, u16, &VPort)> {
    vports(known).find(|(_, _, vport)| vport.info.port_guid == guid)
}

/// The P_Key table that a virtual port is to have: its own partitions, and those of its alias GUIDs.
pub(super) fn pkeys(known: &Knowledge, aliases: &Aliases, vport: &VPort) -> Vec<PKey> {
    let guid = vport.info.port_guid;
    let mut table = known.config.pkeys(&Candidate {
        guid,
        kind: NodeType::ChannelAdapter,
        is_own: false,
    });
    known.join_partitions(&mut table, aliases, guid);
    table
}

/// The virtual ports that are to have a LID of their own.
pub(super) fn candidates(known: &Knowledge) -> impl Iterator<Item = lids::Candidate> {
    let vports = vports(known).map(|(_, _, vport)| vport.info);
    let wanted = vports.filter(|info| info.lid_required && known.has_lid(info.port_guid));
    wanted.map(|info| lids::Candidate {
        guid: info.port_guid,
        current: info.lid,
        lmc: 0,
    })
}

/// Asks a port that announces virtual ports for them.
pub(super) fn ask(manager: &mut SubnetManager, at: At, route: Route) {
    if manager.known.config.virtual_ports != VirtualPorts::Ignored {
        let purpose = Purpose::Virtualization(at);
        manager.get(route, AttributeId::VIRTUALIZATION_INFO, 0, purpose);
    }
}

pub(super) fn take_virtualization(
    manager: &mut SubnetManager,
    request: &Request,
    at: At,
    data: &[u8; DATA],
) {
    let Ok(info) = VirtualizationInfo::parse(data) else {
        return;
    };
    let Some(port) = manager.known.subnet.port_mut(at) else {
        return;
    };
    let guid = port.guid;
    if info.virtualization_revision != REVISION {
        manager.sweeps.error(format!(
            "port {guid} has revision {} of virtualization, and this manager knows {REVISION}; \
             its virtual ports stay Down",
            info.virtualization_revision
        ));
        return;
    }
    port.virtualization = Some(info);
    let enabled = manager.known.config.virtual_ports == VirtualPorts::Enabled;
    if request.method == Method::SET && enabled {
        read_vport_states(manager, at);
    }
}

/// Has ports use their virtual ports or not, and forget that something changed: all is looked at after that.
pub(super) fn enable(manager: &mut SubnetManager) {
    let found: Vec<(At, Route, VirtualizationInfo)> = { manager.known.subnet.ports() }
        .filter_map(|(at, port)| Some((at, port.route.clone(), port.virtualization?)))
        .collect();
    let enabled = manager.known.config.virtual_ports == VirtualPorts::Enabled;
    for (at, route, info) in found {
        if info.virtualization_enable == enabled && !info.vport_state_change {
            if enabled {
                read_vport_states(manager, at);
            }
            continue;
        }
        let wanted = VirtualizationInfo {
            virtualization_enable: enabled,
            vport_state_change: true,
            client_reregister: false,
            ..info
        };
        let purpose = Purpose::Virtualization(at);
        let attribute = AttributeId::VIRTUALIZATION_INFO;
        manager.set(route, attribute, 0, wanted.to_bytes(), purpose);
    }
}

fn read_vport_states(manager: &mut SubnetManager, at: At) {
    let Some((port, info)) =
        { manager.known.subnet.port(at) }.and_then(|port| Some((port, port.virtualization?)))
    else {
        return;
    };
    let (guid, route) = (port.guid, port.route.clone());
    let VirtualizationInfo {
        vport_cap,
        vport_index_top,
        ..
    } = info;
    if !info.virtualization_enable {
        manager.sweeps.error(format!(
            "port {guid} does not enable virtualization; its virtual ports stay Down"
        ));
        return;
    }
    if vport_index_top > vport_cap {
        manager.sweeps.error(format!(
            "port {guid} uses virtual port {vport_index_top} and has {vport_cap}; those beyond are left out"
        ));
    }
    let top = vport_index_top.min(vport_cap);
    if top > MAX_VPORTS {
        manager.sweeps.error(format!(
            "port {guid} has {top} virtual ports; the first {MAX_VPORTS} are managed"
        ));
    }
    let blocks = top.min(MAX_VPORTS) / VPortStates::ENTRIES as u16;
    for block in 0..=blocks {
        let purpose = Purpose::VPortStates(at, block);
        let attribute = AttributeId::VPORT_STATE;
        manager.get(route.clone(), attribute, u32::from(block), purpose);
    }
}

pub(super) fn take_vport_states(
    manager: &mut SubnetManager,
    at: At,
    block: u16,
    data: &[u8; DATA],
) {
    let Some((port, info)) =
        { manager.known.subnet.port(at) }.and_then(|port| Some((port, port.virtualization?)))
    else {
        return;
    };
    let route = port.route.clone();
    let top = info.vport_index_top.min(info.vport_cap).min(MAX_VPORTS);
    let states = VPortStates::parse(data);
    let first = usize::from(block) * VPortStates::ENTRIES;
    for entry in 0..VPortStates::ENTRIES {
        let index = (first + entry) as u16;
        let up = states.state(entry) >= Some(PortState::Initialize);
        if up && (1..=top).contains(&index) {
            let purpose = Purpose::VPort(at, index);
            let modifier = u32::from(index);
            manager.get(route.clone(), AttributeId::VPORT_INFO, modifier, purpose);
        }
    }
}

pub(super) fn take_vport(
    manager: &mut SubnetManager,
    request: &Request,
    at: At,
    index: u16,
    data: &[u8; DATA],
) {
    let Some(port) = manager.known.subnet.port(at) else {
        return;
    };
    let (guid, route) = (port.guid, port.route.clone());
    let info = match VPortInfo::parse(data) {
        Ok(info) => info,
        Err(error) => {
            manager.sweeps.error(format!(
                "virtual port {index} of port {guid} is left out: {error}"
            ));
            return;
        }
    };
    if request.method == Method::SET {
        if let Some(vport) = vport_mut(&mut manager.known, at, index) {
            vport.info = info;
        }
        return;
    }
    if info.port_guid.is_none() {
        manager.sweeps.error(format!(
            "virtual port {index} of port {guid} has no GUID; it stays down until its hypervisor gives it one"
        ));
        return;
    }
    if info.port_state < PortState::Initialize {
        // It has gone since its state was read; the bit of change tells the next sweep.
        return;
    }
    if info.port_state == PortState::Initialize {
        let node = manager.known.subnet.nodes[at.0].info.node_guid;
        manager.known.tables.forget_vport(node, at.1, index);
    }
    if let Some(port) = manager.known.subnet.port_mut(at) {
        // What it is to be taken for until it has told.
        let node = VNodeInfo {
            partition_cap: PKeyBlock::ENTRIES as u16,
            ..VNodeInfo::default()
        };
        port.vports.insert(
            index,
            VPort {
                info,
                node,
                description: NodeDescription::default(),
            },
        );
    }
    let modifier = u32::from(index);
    let purpose = Purpose::VNode(at, index);
    manager.get(route.clone(), AttributeId::VNODE_INFO, modifier, purpose);
    let purpose = Purpose::VNodeDescription(at, index);
    manager.get(route, AttributeId::VNODE_DESCRIPTION, modifier, purpose);
}

/// Leaves out virtual ports with the GUID of another port.
pub(super) fn check(manager: &mut SubnetManager) {
    let ports = manager.known.subnet.ports();
    let mut holders: BTreeMap<Guid, String> = ports
        .filter(|(_, port)| !port.guid.is_none())
        .map(|(_, port)| (port.guid, format!("port {}", port.guid)))
        .collect();
    let mut twice: BTreeMap<At, Vec<(u16, String)>> = BTreeMap::new();
    for (at, index, vport) in vports(&manager.known) {
        let of = manager.known.subnet.port(at).map(|port| port.guid);
        let name = format!("virtual port {index} of port {}", of.unwrap_or_default());
        let guid = vport.info.port_guid;
        match holders.entry(guid) {
            Entry::Vacant(place) => {
                place.insert(name);
            }
            Entry::Occupied(holder) => {
                let what = format!("{name} has the GUID {guid} of {}", holder.get());
                twice.entry(at).or_default().push((index, what));
            }
        }
    }
    for (at, vports) in twice {
        // One error for each port: one that lies is not to crowd the others out of the report.
        let more = match vports.len() {
            1 => String::new(),
            all => format!(", and {} more at this port have others' GUIDs", all - 1),
        };
        let what = vports.first().map_or("", |(_, what)| what);
        manager.sweeps.error(format!(
            "{what}{more}; the second one stays down until it gets a GUID of its own"
        ));
        if let Some(port) = manager.known.subnet.port_mut(at) {
            port.vports
                .retain(|index, _| !vports.iter().any(|(twice, _)| twice == index));
        }
    }
}

/// Gives virtual ports their partitions.
pub(super) fn set_partitions(manager: &mut SubnetManager) {
    let wanted: Vec<(At, u16, u16, Guid, Vec<PKey>)> = { vports(&manager.known) }
        .map(|(at, index, vport)| {
            let keys = pkeys(&manager.known, manager.administration.aliases(), vport);
            (
                at,
                index,
                vport.node.partition_cap,
                vport.info.port_guid,
                keys,
            )
        })
        .collect();
    for (at, index, cap, guid, keys) in wanted {
        let room = usize::from(cap);
        if keys.len() > room {
            manager.sweeps.error(format!(
                "virtual port {guid} takes {room} P_Keys and is to have {}; the last ones are left out",
                keys.len()
            ));
        }
        let blocks = cap.div_ceil(PKeyBlock::ENTRIES as u16).min(MAX_PKEY_BLOCKS);
        for number in 0..blocks {
            let first = usize::from(number) * PKeyBlock::ENTRIES;
            let mut block = PKeyBlock::default();
            let keys = keys.iter().take(room).skip(first);
            for (entry, &key) in block.0.iter_mut().zip(keys) {
                *entry = key;
            }
            set_block(manager, at, vport_block(index, number), &block);
        }
    }
}

fn set_block(manager: &mut SubnetManager, at: At, modifier: u32, block: &PKeyBlock) {
    let Some(route) = manager.known.subnet.port(at).map(|port| port.route.clone()) else {
        return;
    };
    let attribute = AttributeId::VPORT_P_KEY_TABLE;
    let node = manager.known.subnet.nodes[at.0].info.node_guid;
    let (place, data) = ((at.1, attribute, modifier), block.to_bytes());
    if manager.known.tables.setting_differs(node, place, &data) {
        manager.known.tables.writes_setting(node, place);
        let purpose = Purpose::Setting { node, place };
        manager.set(route, attribute, modifier, data, purpose);
    }
}

/// Gives virtual ports that require one their LID.
pub(super) fn set_lids(manager: &mut SubnetManager) {
    let changed: Vec<(At, u16, VPortInfo)> = { vports(&manager.known) }
        .filter_map(|(at, index, vport)| {
            let wanted = wanted_vport(manager, &vport.info);
            let forgotten = manager.sweeps.is_first() && wanted.port_state == PortState::Active;
            (forgotten || wanted.lid != vport.info.lid).then_some((at, index, wanted))
        })
        .collect();
    for (at, index, wanted) in changed {
        let reregister = wanted.port_state == PortState::Active;
        set_vport(manager, at, index, &wanted, PortState::NoChange, reregister);
    }
}

fn wanted_vport(manager: &SubnetManager, info: &VPortInfo) -> VPortInfo {
    let own = info
        .lid_required
        .then(|| manager.known.lid_of(info.port_guid));
    VPortInfo {
        lid: own.unwrap_or(Lid::NONE),
        ..*info
    }
}

/// Takes virtual ports that are in one state to the next one. One without the LID that it requires stays where it is.
pub(super) fn set_states(manager: &mut SubnetManager, from: PortState, to: PortState) {
    let ready: Vec<(At, u16, VPortInfo)> = { vports(&manager.known) }
        .filter(|(_, _, vport)| vport.info.port_state == from)
        .map(|(at, index, vport)| (at, index, wanted_vport(manager, &vport.info)))
        .filter(|(_, _, wanted)| !wanted.lid_required || wanted.lid.is_unicast())
        .collect();
    for (at, index, wanted) in ready {
        set_vport(manager, at, index, &wanted, to, to == PortState::Active);
    }
}

fn set_vport(
    manager: &mut SubnetManager,
    at: At,
    index: u16,
    wanted: &VPortInfo,
    state: PortState,
    client_reregister: bool,
) {
    let Some(route) = manager.known.subnet.port(at).map(|port| port.route.clone()) else {
        return;
    };
    let request = VPortInfo {
        port_state: state,
        client_reregister,
        ..*wanted
    };
    let modifier = u32::from(index);
    let attribute = AttributeId::VPORT_INFO;
    let purpose = Purpose::VPort(at, index);
    manager.set(route, attribute, modifier, request.to_bytes(), purpose);
}

/// Asks all ports with virtual ports whether one has changed.
pub(super) fn ask_all(manager: &mut SubnetManager) {
    let ports: Vec<(At, Route)> = { manager.known.subnet.ports() }
        .filter(|(_, port)| port.virtualization.is_some())
        .map(|(at, port)| (at, port.route.clone()))
        .collect();
    for (at, route) in ports {
        ask_change(manager, at, route);
    }
}

/// Asks a port whether one of its virtual ports has changed, if it has such.
pub(super) fn ask_change(manager: &mut SubnetManager, at: At, route: Route) {
    let known = manager.known.subnet.port(at);
    if known.is_some_and(|port| port.virtualization.is_some()) {
        let purpose = Purpose::LightVirtualization(at);
        manager.get(route, AttributeId::VIRTUALIZATION_INFO, 0, purpose);
    }
}

pub(super) fn take_vport_change(manager: &mut SubnetManager, at: At, data: &[u8; DATA]) {
    let known = manager.known.subnet.port(at);
    let enabled = known.is_some_and(|port| {
        let known = port.virtualization;
        known.is_some_and(|known| known.virtualization_enable)
    });
    match VirtualizationInfo::parse(data) {
        Ok(info) if !info.vport_state_change && info.virtualization_enable == enabled => {}
        _ => manager.sweeps.changed = true,
    }
}

/// A port that announces virtual ports does not answer for them as it should: they are not managed, the port is.
pub(super) fn failed(
    manager: &mut SubnetManager,
    at: At,
    purpose: Purpose,
    request: &Request,
    failure: Failure,
) {
    let Some(port) = manager.known.subnet.port_mut(at) else {
        return;
    };
    let guid = port.guid;
    match purpose {
        Purpose::VPort(_, index)
        | Purpose::VNode(_, index)
        | Purpose::VNodeDescription(_, index) => {
            port.vports.remove(&index);
        }
        Purpose::LightVirtualization(_) => {
            manager.sweeps.changed = true;
            return;
        }
        _ => port.virtualization = None,
    }
    let (method, attribute, modifier) = (request.method, request.attribute, request.modifier);
    let what = match failure {
        Failure::TimedOut => "no answer".to_owned(),
        Failure::Refused(status) => status.to_string(),
    };
    manager.sweeps.error(format!(
        "port {guid} announces virtual ports; {method}({attribute}) 0x{modifier:x}: {what}; \
         these virtual ports stay down"
    ));
}
