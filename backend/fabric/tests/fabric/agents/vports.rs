//! Virtual ports of an adapter's port.

use ibvswitch_fabric::{
    Fabric, NodeSpec, Owner, PortEvent, PortRef, SmpAccess, Topology, VPort, VPortOwner, VPortSpec,
    VPorts,
};
use wire::attribute::{
    CapabilityMask, GuidInfo, NodeDescription, PKeyBlock, PortInfo, VNodeInfo, VPortInfo,
    VPortStates, VirtualizationInfo, vport_block,
};
use wire::mad::{AttributeId as A, Status};
use wire::{Guid, Lid, PKey, PortState as S};

use crate::common::{Host, SWITCH};

/// Route to the adapter with virtual ports.
const ADAPTER: &[u8] = &[1, 2];
const OWN_LID: u16 = 2;

fn guid(vport: u16) -> Guid {
    Guid::new(0x0002_c903_0000_0100 + u64::from(vport))
}

/// A host at port 1 of a switch, at port 2 an adapter with three virtual ports: the second requires a LID, the third is
/// not enabled.
fn host() -> (Host, PortRef) {
    let spec = |vport| VPortSpec {
        guid: if vport == 3 { Guid::NONE } else { guid(vport) },
        node_guid: guid(vport + 0x10),
        description: NodeDescription::new(&format!("VF {vport}")),
        lid_required: vport == OWN_LID,
    };
    let mut topology = Topology::new();
    let manager = topology.add(NodeSpec::channel_adapter(
        Guid::new(1),
        Guid::new(1),
        "host",
    ));
    let switch = topology.add(NodeSpec::switch(Guid::new(2), 2, "switch"));
    let vports = (1..=3).map(spec).collect();
    let adapter = topology.add(NodeSpec::virtualized(Guid::new(3), vports, "hypervisor"));
    topology.link((manager, 1), (switch, 1), Default::default());
    topology.link((adapter, 1), (switch, 2), Default::default());
    let mut host = Host::new();
    host.fabric = Fabric::new(&topology).unwrap();
    host.port = host.fabric.port_by_guid(Guid::new(1)).unwrap();
    let adapter = host.fabric.port_by_guid(Guid::new(3)).unwrap();
    for port in [host.port, adapter] {
        host.fabric
            .set_owner(port, Owner::Consumer, SmpAccess::Fabric);
    }
    (host, adapter)
}

fn virtualization(host: &mut Host, set: Option<VirtualizationInfo>) -> VirtualizationInfo {
    let (status, data) = match set {
        Some(info) => host.set(ADAPTER, A::VIRTUALIZATION_INFO, 0, info.to_bytes()),
        None => host.get(ADAPTER, A::VIRTUALIZATION_INFO, 0),
    };
    assert_eq!(status, Status::OK);
    VirtualizationInfo::parse(&data).unwrap()
}

fn enable(host: &mut Host) -> VirtualizationInfo {
    let wanted = VirtualizationInfo {
        virtualization_enable: true,
        ..VirtualizationInfo::default()
    };
    virtualization(host, Some(wanted))
}

fn vport(host: &mut Host, index: u16) -> VPortInfo {
    let (status, data) = host.get(ADAPTER, A::VPORT_INFO, index.into());
    assert_eq!(status, Status::OK);
    VPortInfo::parse(&data).unwrap()
}

fn set_vport(host: &mut Host, index: u16, change: impl Fn(&mut VPortInfo)) -> Status {
    let mut info = vport(host, index);
    info.port_state = S::NoChange;
    change(&mut info);
    host.set(ADAPTER, A::VPORT_INFO, index.into(), info.to_bytes())
        .0
}

fn states(host: &mut Host) -> [Option<S>; 5] {
    let (status, data) = host.get(ADAPTER, A::VPORT_STATE, 0);
    assert_eq!(status, Status::OK);
    let block = VPortStates::parse(&data);
    std::array::from_fn(|entry| block.state(entry))
}

fn vport_at(fabric: &Fabric, port: PortRef, index: u16) -> &VPort {
    VPorts::at(fabric, port).unwrap().port(index).unwrap()
}

fn set_owned(fabric: &mut Fabric, port: PortRef, index: u16, guid: Guid, lid: bool) -> bool {
    VPortOwner::new(fabric, port).set(index, guid, lid)
}

#[test]
fn a_port_announces_them_and_begins_without() {
    let (mut host, adapter) = host();
    let info = host.port_info(ADAPTER, 1);
    assert!(
        info.capability_mask
            .contains(CapabilityMask::CAPABILITY_MASK2)
    );
    assert_eq!(
        info.capability_mask2 & PortInfo::VIRTUALIZATION,
        PortInfo::VIRTUALIZATION
    );
    let before = virtualization(&mut host, None);
    assert_eq!((before.vport_cap, before.vport_index_top), (3, 2));
    assert!(!before.virtualization_enable);
    let init = Some(S::Initialize);
    let [down, none] = [Some(S::Down), Some(S::NoChange)];
    assert_eq!(states(&mut host), [init, down, down, down, none]);
    assert_eq!(
        set_vport(&mut host, 1, |it| it.port_state = S::Armed),
        Status::INVALID_FIELD
    );
    assert!(!VPorts::at(&host.fabric, adapter).unwrap().is_enabled());
    // What is not virtual does not know them.
    for attribute in (0xffb0..=0xffb6).map(A) {
        let (status, _) = host.get(SWITCH, attribute, 0);
        assert_eq!(status, Status::UNSUPPORTED_ATTRIBUTE);
    }
}

#[test]
fn one_comes_up_and_its_owner_takes_it_away() {
    let (mut host, adapter) = host();
    assert!(enable(&mut host).virtualization_enable);
    let init = Some(S::Initialize);
    let down = Some(S::Down);
    assert_eq!(states(&mut host)[..4], [init, init, init, down]);
    let illegal = [S::Initialize, S::Active];
    for state in illegal {
        assert_eq!(
            set_vport(&mut host, 1, |it| it.port_state = state),
            Status::INVALID_FIELD
        );
    }
    for state in [S::Armed, S::Active] {
        assert_eq!(
            set_vport(&mut host, 1, |it| it.port_state = state),
            Status::OK
        );
        assert_eq!(vport(&mut host, 1).port_state, state);
    }
    // A change that the manager made is none that it has to look at.
    assert!(!virtualization(&mut host, None).vport_state_change);
    assert!(set_owned(&mut host.fabric, adapter, 1, guid(9), true));
    let info = vport(&mut host, 1);
    assert_eq!((info.port_guid, info.port_state), (guid(9), S::Initialize));
    assert_eq!(
        vport(&mut host, 2).port_state,
        S::Initialize,
        "nobody else begins anew"
    );
    assert!(virtualization(&mut host, None).vport_state_change);
    let seen = VirtualizationInfo {
        virtualization_enable: true,
        vport_state_change: true,
        ..VirtualizationInfo::default()
    };
    assert!(!virtualization(&mut host, Some(seen)).vport_state_change);
    assert!(set_owned(&mut host.fabric, adapter, 2, Guid::NONE, true));
    assert_eq!(virtualization(&mut host, None).vport_index_top, 1);
    assert!(!set_owned(&mut host.fabric, adapter, 4, guid(9), true));
    let event = (1, PortEvent::StateChange(S::Active));
    assert!(host.vport_events.contains(&event));
    // With the link all begin anew; and without virtualization all are down.
    host.fabric.set_cable(adapter, false);
    assert_eq!(vport_at(&host.fabric, adapter, 1).state(), S::Down);
    host.fabric.set_cable(adapter, true);
    assert_eq!(states(&mut host)[1], init);
    virtualization(&mut host, Some(VirtualizationInfo::default()));
    assert_eq!(states(&mut host)[1], down);
}

#[test]
fn addresses_and_partitions() {
    let (mut host, adapter) = host();
    enable(&mut host);
    let lid = Lid::new(7);
    assert_eq!(
        set_vport(&mut host, 1, |it| it.lid = lid),
        Status::INVALID_FIELD,
        "needs none"
    );
    assert_eq!(
        set_vport(&mut host, OWN_LID, |it| it.lid = Lid::PERMISSIVE),
        Status::INVALID_FIELD
    );
    assert_eq!(set_vport(&mut host, OWN_LID, |it| it.lid = lid), Status::OK);
    assert_eq!(vport_at(&host.fabric, adapter, OWN_LID).lid(), lid);
    assert!(host.vport_events.contains(&(OWN_LID, PortEvent::LidChange)));

    let mut keys = PKeyBlock::default();
    keys.0[0] = PKey::new(0x8001);
    let modifier = vport_block(1, 0);
    let set = host.set(ADAPTER, A::VPORT_P_KEY_TABLE, modifier, keys.to_bytes());
    assert_eq!(set, (Status::OK, keys.to_bytes()));
    assert_eq!(
        host.get(ADAPTER, A::VPORT_P_KEY_TABLE, modifier).1,
        keys.to_bytes()
    );
    assert_eq!(
        host.fabric.pkeys(adapter).unwrap()[0],
        PKey::DEFAULT_FULL,
        "not the port's"
    );

    let wanted = GuidInfo {
        guid0: guid(0x77),
        guid3: guid(0x78),
        ..GuidInfo::default()
    };
    let (status, data) = host.set(ADAPTER, A::VPORT_GUID_INFO, modifier, wanted.to_bytes());
    let held = GuidInfo::parse(&data).unwrap();
    assert_eq!(
        (status, held.guid0, held.guid3),
        (Status::OK, guid(1), guid(0x78))
    );

    let (_, data) = host.get(ADAPTER, A::VNODE_INFO, 2);
    let node = VNodeInfo::parse(&data).unwrap();
    assert_eq!(
        (node.node_guid, node.num_ports, node.partition_cap),
        (guid(0x12), 1, 128)
    );
    let (_, data) = host.get(ADAPTER, A::VNODE_DESCRIPTION, 2);
    assert_eq!(NodeDescription::from_bytes(data).text(), Some("VF 2"));
    // Index 0 is the physical port.
    let (_, data) = host.get(ADAPTER, A::VPORT_INFO, 0);
    assert_eq!(VPortInfo::parse(&data).unwrap().port_guid, Guid::new(3));
    let (_, data) = host.get(ADAPTER, A::VPORT_P_KEY_TABLE, 0);
    assert_eq!(PKeyBlock::parse(&data).0[0], PKey::DEFAULT_FULL);
}

#[test]
fn what_is_not_there_is_refused() {
    let (mut host, _) = host();
    enable(&mut host);
    for (attribute, modifier) in [
        (A::VIRTUALIZATION_INFO, 1),
        (A::VPORT_INFO, 4),
        (A::VPORT_INFO, 1 << 16),
        (A::VNODE_INFO, u32::MAX),
        (A::VNODE_DESCRIPTION, 4),
        (A::VPORT_STATE, 1),
        (A::VPORT_STATE, u32::MAX),
        (A::VPORT_P_KEY_TABLE, vport_block(4, 0)),
        (A::VPORT_P_KEY_TABLE, vport_block(1, 4)),
        (A::VPORT_P_KEY_TABLE, u32::MAX),
        (A::VPORT_GUID_INFO, vport_block(1, 1)),
    ] {
        let (status, _) = host.get(ADAPTER, attribute, modifier);
        assert_eq!(status, Status::INVALID_FIELD, "{attribute} {modifier:x}");
    }
    for attribute in [A::VPORT_STATE, A::VNODE_INFO, A::VNODE_DESCRIPTION] {
        let (status, _) = host.set(ADAPTER, attribute, 0, [0; 64]);
        assert_eq!(status, Status::UNSUPPORTED_ATTRIBUTE, "{attribute}");
    }
    // A virtual port that nobody has enabled.
    let (status, _) = host.set(ADAPTER, A::VPORT_P_KEY_TABLE, vport_block(3, 0), [0; 64]);
    assert_eq!(status, Status::INVALID_FIELD);
    assert_eq!(
        set_vport(&mut host, 3, |it| it.port_state = S::Down),
        Status::INVALID_FIELD
    );
}
