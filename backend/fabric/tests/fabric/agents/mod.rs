//! Nodes answer management packets as hardware does.

mod congestion;
mod data_by_sl;
mod samples;
mod vendor;
mod vports;

use crate::common::{ALL_EXTERNAL, Host, OWN, SWITCH, VF, VSWITCH, request};
use ibvswitch_fabric::{Injected, NoRoute, Output, Owner, PortEvent, SmpAccess};
use wire::attribute::{
    CapabilityMask, GuidInfo, MulticastBlock, NodeDescription, NodeInfo, NodeType, PKeyBlock,
    SlToVl, SwitchInfo, VlArbitration,
};
use wire::mad::{AttributeId, Class, Mad, Method, SIZE, Status};
use wire::performance::{self, PortCounters, PortCountersExtended};
use wire::smp::{DATA, Destination, Request, Smp};
use wire::{Guid, Lid, MadPacket, Mtu, PKey, PhysicalState, PortState, QKey, Qpn, Sl, Vl};

#[test]
fn who_is_there() {
    let mut host = Host::new();
    let expected = [
        (OWN, NodeType::ChannelAdapter, 1, 1, "subnet manager"),
        (SWITCH, NodeType::Switch, 2, 2, "switch"),
        (VSWITCH, NodeType::Switch, 3, 1, "hypervisor 1 vSwitch"),
        (VF, NodeType::ChannelAdapter, 1, 1, "hypervisor 1 VF 1"),
    ];
    for (route, kind, ports, local, text) in expected {
        let (status, data) = host.get(route, AttributeId::NODE_INFO, 0);
        assert_eq!(status, Status::OK);
        let info = NodeInfo::parse(&data).unwrap();
        assert_eq!(info.node_type, kind, "{text}");
        assert_eq!(info.num_ports, ports, "{text}");
        assert_eq!(info.local_port_num, local, "{text}");
        let (_, data) = host.get(route, AttributeId::NODE_DESCRIPTION, 0);
        assert_eq!(NodeDescription::from_bytes(data).text(), Some(text));
    }
    let (_, data) = host.get(VF, AttributeId::NODE_INFO, 0);
    let info = NodeInfo::parse(&data).unwrap();
    assert_eq!(info.port_guid, host.layout.vf_guid(0, 0));
}

#[test]
fn what_is_not_supported() {
    let mut host = Host::new();
    let status = |host: &mut Host, method, attribute, route: &[u8]| {
        let asked = request(route, method, attribute, 0, [0; DATA]);
        host.ask(&asked).map(|(status, _)| status)
    };
    let unsupported = Some(Status::UNSUPPORTED_ATTRIBUTE);
    for attribute in [
        AttributeId::VENDOR_DIAG,
        AttributeId::LED_INFO,
        AttributeId::RANDOM_FORWARDING,
        AttributeId::SM_INFO,
        AttributeId::CLASS_PORT_INFO,
    ] {
        assert_eq!(
            status(&mut host, Method::GET, attribute, SWITCH),
            unsupported
        );
    }
    for attribute in [
        AttributeId::SWITCH_INFO,
        AttributeId::LINEAR_FORWARDING,
        AttributeId::MULTICAST_FORWARDING,
    ] {
        assert_eq!(status(&mut host, Method::GET, attribute, VF), unsupported);
    }
    for attribute in [AttributeId::NODE_INFO, AttributeId::NODE_DESCRIPTION] {
        assert_eq!(status(&mut host, Method::SET, attribute, VF), unsupported);
    }
    // Nobody answers what is no request to an agent.
    for method in [
        Method::SEND,
        Method::TRAP_REPRESS,
        Method::REPORT,
        Method(0x55),
    ] {
        assert_eq!(status(&mut host, method, AttributeId::NODE_INFO, VF), None);
    }
}

#[test]
fn another_class_version() {
    let mut host = Host::new();
    let mut bytes = request(VF, Method::GET, AttributeId::NODE_INFO, 0, [0; DATA]).to_bytes();
    bytes[2] = 9;
    let packet = MadPacket::smp(Lid::NONE, Lid::PERMISSIVE, bytes);
    host.fabric.inject(host.port, packet);
    let answer = host.received().pop().unwrap();
    assert_eq!(answer.header().status(), Status::BAD_VERSION);
}

#[test]
fn modifiers_out_of_range() {
    let mut host = Host::new();
    for (route, attribute, modifier) in [
        (SWITCH, AttributeId::PORT_INFO, 3),
        (VF, AttributeId::PORT_INFO, 2),
        (VF, AttributeId::P_KEY_TABLE, 4),
        (SWITCH, AttributeId::P_KEY_TABLE, 9 << 16),
        (SWITCH, AttributeId::P_KEY_TABLE, u32::MAX),
        (VF, AttributeId::GUID_INFO, 1),
        (SWITCH, AttributeId::LINEAR_FORWARDING, 768),
        (SWITCH, AttributeId::MULTICAST_FORWARDING, 0x1000_0000),
        (SWITCH, AttributeId::MULTICAST_FORWARDING, 0x1ff),
        (SWITCH, AttributeId::SL_TO_VL, 0x0900),
        (VF, AttributeId::VL_ARBITRATION, 0),
        (VF, AttributeId::VL_ARBITRATION, 2 << 16),
        (VF, AttributeId::VL_ARBITRATION, 5 << 16),
    ] {
        let (status, _) = host.get(route, attribute, modifier);
        assert_eq!(status, Status::INVALID_FIELD, "{attribute} {modifier:x}");
    }
}

/// As Quantum-2: who does not say that extended speeds are known to it sees none, and sets none.
#[test]
fn strict_switches_tell_extended_speeds_to_those_who_know_them() {
    let mut host = Host::new();
    let mut topology = host.layout.topology().clone();
    topology.make_strict();
    host.fabric = ibvswitch_fabric::Fabric::new(&topology).unwrap();
    host.fabric
        .set_owner(host.port, Owner::Consumer, SmpAccess::Fabric);
    let known = wire::attribute::PortInfo::SPEEDS_REQUESTED;
    let read = |host: &mut Host, modifier| {
        let (status, data) = host.get(SWITCH, AttributeId::PORT_INFO, modifier);
        assert_eq!(status, Status::OK);
        wire::attribute::PortInfo::parse(&data).unwrap()
    };
    let told = read(&mut host, known | 1);
    assert_ne!(told.link_speed_ext_active, 0);
    let mut hidden = read(&mut host, 1);
    assert_eq!(
        (
            hidden.link_speed_ext_active,
            hidden.link_speed_ext_supported
        ),
        (0, 0)
    );
    assert_eq!(hidden.link_speed_active, told.link_speed_active);
    hidden.link_speed_ext_enabled = 1;
    hidden.port_state = PortState::NoChange;
    let (status, _) = host.set(SWITCH, AttributeId::PORT_INFO, 1, hidden.to_bytes());
    assert_eq!(status, Status::OK);
    assert_eq!(read(&mut host, known | 1), told);
    let (status, _) = host.get(SWITCH, AttributeId::PORT_INFO, 0x101);
    assert_eq!(status, Status::INVALID_FIELD);
    assert_ne!(host.port_info(VF, 1).link_speed_ext_active, 0, "an adapter");
}

#[test]
fn what_is_set_can_be_read() {
    let mut host = Host::new();
    let mut keys = PKeyBlock::default();
    keys.0[..2].copy_from_slice(&[PKey::new(0x8001), PKey::DEFAULT_LIMITED]);
    let guids = GuidInfo {
        guid0: Guid::new(0xdead),
        guid3: Guid::new(0x1234),
        ..GuidInfo::default()
    };
    let mut mask = MulticastBlock::default();
    mask.0[31] = 6;
    let arbitration = {
        let mut table = VlArbitration::default();
        table.0[7].weight = 9;
        table
    };
    for (route, attribute, modifier, data) in [
        (VF, AttributeId::P_KEY_TABLE, 1, keys.to_bytes()),
        (SWITCH, AttributeId::P_KEY_TABLE, 1 << 16, keys.to_bytes()),
        (VF, AttributeId::SL_TO_VL, 0, SlToVl::modulo(4).to_bytes()),
        (
            SWITCH,
            AttributeId::SL_TO_VL,
            0x0102,
            SlToVl::modulo(2).to_bytes(),
        ),
        (
            SWITCH,
            AttributeId::MULTICAST_FORWARDING,
            3,
            mask.to_bytes(),
        ),
        (
            VF,
            AttributeId::VL_ARBITRATION,
            1 << 16,
            arbitration.to_bytes(),
        ),
        (
            SWITCH,
            AttributeId::VL_ARBITRATION,
            3 << 16 | 2,
            arbitration.to_bytes(),
        ),
    ] {
        assert_eq!(
            host.set(route, attribute, modifier, data),
            (Status::OK, data)
        );
        assert_eq!(host.get(route, attribute, modifier), (Status::OK, data));
    }
    let mut data = [0; DATA];
    guids.emit(&mut data);
    host.set(OWN, AttributeId::GUID_INFO, 0, data);
    let (_, data) = host.get(OWN, AttributeId::GUID_INFO, 0);
    let guids = GuidInfo::parse(&data).unwrap();
    assert_eq!(guids.guid0, host.layout.manager_guid(), "read-only");
    assert_eq!(guids.guid3, Guid::new(0x1234));
}

/// The port of a virtual function takes the GUID of the VM that it is to serve; others keep theirs.
#[test]
fn the_guid_of_a_virtual_function() {
    let mut host = Host::new();
    let vm = Guid::new(0x0002_c903_00aa_0001);
    let mut data = [0; DATA];
    GuidInfo::from_entries([vm, vm, vm, vm, vm, vm, vm, vm]).emit(&mut data);
    let before = host.layout.vf_guid(0, 0);
    for (route, moves) in [(VF, true), (OWN, false), (SWITCH, false), (VSWITCH, false)] {
        let (status, answer) = host.set(route, AttributeId::GUID_INFO, 0, data);
        assert_eq!(status, Status::OK);
        let answer = GuidInfo::parse(&answer).unwrap();
        assert_eq!(answer.guid0 == vm, moves, "{route:?}");
        let (_, info) = host.get(route, AttributeId::NODE_INFO, 0);
        let info = NodeInfo::parse(&info).unwrap();
        assert_eq!(info.port_guid == vm, moves, "{route:?}");
        if moves {
            assert_eq!(info.node_guid, before, "the node stays what it is");
        }
    }
    let port = host.fabric.port_by_guid(vm).unwrap();
    assert_eq!(host.fabric.node_info(port).unwrap().node_guid, before);
    assert_eq!(host.fabric.guids(port).unwrap()[0], vm);
}

/// One packet for all pairs of ports, as OpenSM's `use_optimized_slvl` sends it.
#[test]
fn lanes_of_all_ports_together() {
    let mut host = Host::new();
    let tables = |host: &mut Host| -> Vec<(u32, u32, SlToVl)> {
        let pairs = (0..4).flat_map(|from| (1..4).map(move |to| (from, to)));
        pairs
            .map(|(from, to)| {
                let modifier = from << 8 | to;
                let (_, data) = host.get(VSWITCH, AttributeId::SL_TO_VL, modifier);
                (from, to, SlToVl::parse(&data))
            })
            .collect()
    };
    let [all, to2, from3, one] = [8, 4, 2, 3].map(SlToVl::modulo);
    for (modifier, table) in [
        (0x3_0000, all),
        (0x2_0002, to2),
        (0x1_0300, from3),
        (0x0_0101, one),
    ] {
        let (status, _) = host.set(VSWITCH, AttributeId::SL_TO_VL, modifier, table.to_bytes());
        assert_eq!(status, Status::OK, "{modifier:x}");
    }
    for (from, to, table) in tables(&mut host) {
        let expected = match (from, to) {
            (1, 1) => one,
            (3, _) => from3,
            (_, 2) => to2,
            _ => all,
        };
        assert_eq!(table, expected, "{from} to {to}");
    }
    let (_, data) = host.get(VSWITCH, AttributeId::SWITCH_INFO, 0);
    assert_eq!(SwitchInfo::parse(&data).unwrap().optimized_sl_to_vl, 1);
    let (status, _) = host.get(VSWITCH, AttributeId::SL_TO_VL, 0x4_0000);
    assert_eq!(status, Status::INVALID_FIELD);
}

#[test]
fn port_states() {
    let mut host = Host::new();
    let state = |state| move |info: &mut wire::attribute::PortInfo| info.port_state = state;
    assert_eq!(host.port_info(VF, 1).port_state, PortState::Initialize);
    for wrong in [PortState::Active, PortState::Initialize] {
        let status = host.change_port(VF, 1, state(wrong));
        assert_eq!(status, Status::INVALID_FIELD, "Initialize to {wrong}");
    }
    for right in [
        PortState::Armed,
        PortState::Armed,
        PortState::Active,
        PortState::Active,
    ] {
        assert_eq!(host.change_port(VF, 1, state(right)), Status::OK);
        assert_eq!(host.port_info(VF, 1).port_state, right);
    }
    assert_eq!(
        host.change_port(VF, 1, state(PortState::Armed)),
        Status::INVALID_FIELD
    );

    // Down and up again: both ends begin anew, and the switch at the other end has seen it.
    host.change_port(VSWITCH, 2, state(PortState::Armed));
    let status = host.change_port(VF, 1, state(PortState::Down));
    assert_eq!(status, Status::OK);
    assert_eq!(host.port_info(VF, 1).port_state, PortState::Initialize);
    assert_eq!(host.port_info(VSWITCH, 2).port_state, PortState::Initialize);
    let (_, data) = host.get(VSWITCH, AttributeId::SWITCH_INFO, 0);
    assert!(SwitchInfo::parse(&data).unwrap().port_state_change);

    // Switched off at the switch's end: the adapter is cut off.
    let status = host.change_port(VSWITCH, 2, |info| {
        info.port_state = PortState::Down;
        info.port_physical_state = PhysicalState::Disabled;
    });
    assert_eq!(status, Status::OK);
    let vf = host.fabric.port_info(host.vf(0)).unwrap();
    assert_eq!(vf.port_state, PortState::Down);
    assert_eq!(vf.port_physical_state, PhysicalState::Polling);
    let asked = request(VF, Method::GET, AttributeId::NODE_INFO, 0, [0; DATA]);
    assert_eq!(host.ask(&asked), None);
    let status = host.change_port(VSWITCH, 2, |info| {
        info.port_physical_state = PhysicalState::Polling;
    });
    assert_eq!(status, Status::OK);
    assert_eq!(host.port_info(VF, 1).port_state, PortState::Initialize);
}

#[test]
fn the_change_bit() {
    let mut host = Host::new();
    host.bring_up();
    let changed = |host: &mut Host| {
        let (_, data) = host.get(VSWITCH, AttributeId::SWITCH_INFO, 0);
        SwitchInfo::parse(&data).unwrap().port_state_change
    };
    assert!(changed(&mut host), "since the links trained");
    let (_, mut data) = host.get(VSWITCH, AttributeId::SWITCH_INFO, 0);
    let mut info = SwitchInfo::parse(&data).unwrap();
    info.port_state_change = false;
    info.emit(&mut data);
    host.set(VSWITCH, AttributeId::SWITCH_INFO, 0, data);
    assert!(changed(&mut host), "0 leaves it");
    info.port_state_change = true;
    info.emit(&mut data);
    host.set(VSWITCH, AttributeId::SWITCH_INFO, 0, data);
    assert!(!changed(&mut host), "1 clears it");
    host.fabric.set_cable(host.vf(1), false);
    assert!(changed(&mut host));
}

#[test]
fn impossible_port_infos_change_nothing() {
    let mut host = Host::new();
    let before = host.port_info(VF, 1);
    type Change = fn(&mut wire::attribute::PortInfo);
    let wrong: [Change; 7] = [
        |info| info.lid = Lid::new(0xc000),
        |info| info.master_sm_lid = Lid::PERMISSIVE,
        |info| info.neighbor_mtu = 6,
        |info| info.operational_vls = 5,
        |info| info.link_width_enabled = 8,
        |info| info.link_speed_enabled = 8,
        |info| info.link_down_default_state = 3,
    ];
    for change in wrong {
        let status = host.change_port(VF, 1, |info| {
            info.subnet_timeout = 3;
            change(info);
        });
        assert_eq!(status, Status::INVALID_FIELD);
        assert_eq!(host.port_info(VF, 1), before);
    }
    // A reserved state, which no structure of ours can hold.
    let (_, mut data) = host.get(VF, AttributeId::PORT_INFO, 1);
    data[32] |= 0x0f;
    let (status, _) = host.set(VF, AttributeId::PORT_INFO, 1, data);
    assert_eq!(status, Status::INVALID_FIELD);
    // A switch's base port 0 has one LID.
    let status = host.change_port(SWITCH, 0, |info| info.lmc = 1);
    assert_eq!(status, Status::INVALID_FIELD);
}

#[test]
fn events_at_a_port() {
    let mut host = Host::new();
    let vf = host.vf(0);
    host.fabric
        .set_owner(vf, Owner::Consumer, SmpAccess::OwnPort);
    host.change_port(VF, 1, |info| {
        info.lid = Lid::new(9);
        info.master_sm_lid = Lid::new(1);
        info.gid_prefix = 0xfec0_0000_0000_0000;
        info.port_state = PortState::Armed;
        info.client_reregister = true;
    });
    host.fabric.set_cable(vf, false);
    host.fabric.set_cable(vf, true);
    host.received();
    let events: Vec<_> = host
        .events
        .iter()
        .filter(|(port, _)| *port == vf)
        .map(|&(_, event)| event)
        .collect();
    assert_eq!(
        events,
        [
            PortEvent::LidChange,
            PortEvent::SmChange,
            PortEvent::GidChange,
            PortEvent::StateChange(PortState::Armed),
            PortEvent::ClientReregister,
            PortEvent::StateChange(PortState::Down),
            PortEvent::StateChange(PortState::Initialize),
        ]
    );
    let gids: Vec<_> = host.fabric.gids(vf).collect();
    assert_eq!(gids[0].prefix(), 0xfec0_0000_0000_0000);
    assert_eq!(gids.len(), 8);
}

#[test]
fn routed_by_lid() {
    let mut host = Host::new();
    host.bring_up();
    for (lid, ports) in [(1, 1), (2, 2), (3, 3), (4, 1), (5, 1)] {
        let asked = Request {
            destination: Destination::Lid(Lid::new(lid)),
            ..request(OWN, Method::GET, AttributeId::NODE_INFO, 0, [0; DATA])
        };
        let (status, data) = host.ask(&asked).unwrap();
        assert_eq!(status, Status::OK);
        assert_eq!(NodeInfo::parse(&data).unwrap().num_ports, ports);
    }
    let lost = Request {
        destination: Destination::Lid(Lid::new(6)),
        ..request(OWN, Method::GET, AttributeId::NODE_INFO, 0, [0; DATA])
    };
    assert_eq!(host.ask(&lost), None);
}

/// By LID to the vSwitch, from there one hop on, as `smpquery -C` asks.
#[test]
fn combined_routes() {
    let mut host = Host::new();
    host.bring_up();
    let mut bytes = request(&[3], Method::GET, AttributeId::NODE_INFO, 0, [0; DATA]).to_bytes();
    bytes[32..34].copy_from_slice(&1u16.to_be_bytes());
    host.fabric
        .inject(host.port, MadPacket::smp(Lid::NONE, Lid::new(3), bytes));
    let answer = host.received().pop().unwrap();
    let smp = Smp::new_checked(&answer.mad[..]).unwrap();
    let info = NodeInfo::parse(smp.data()).unwrap();
    assert_eq!(info.node_guid, host.layout.vf_guid(0, 1));

    // The other way round: a directed route to the switch, then by LID to the second function.
    let mut bytes = request(&[1], Method::GET, AttributeId::NODE_INFO, 0, [0; DATA]).to_bytes();
    bytes[34..36].copy_from_slice(&5u16.to_be_bytes());
    host.fabric
        .inject(host.port, MadPacket::smp(Lid::NONE, Lid::PERMISSIVE, bytes));
    let answer = host.received().pop().unwrap();
    let smp = Smp::new_checked(&answer.mad[..]).unwrap();
    let info = NodeInfo::parse(smp.data()).unwrap();
    assert_eq!(info.node_guid, host.layout.vf_guid(0, 1));
}

#[test]
fn sminfo_is_for_the_manager() {
    let mut host = Host::new();
    host.fabric
        .set_capabilities(host.port, CapabilityMask::IS_SM, CapabilityMask::default());
    let asked = request(OWN, Method::GET, AttributeId::SM_INFO, 0, [0; DATA]);
    let packet = MadPacket::smp(Lid::NONE, Lid::PERMISSIVE, asked.to_bytes());
    host.fabric.inject(host.port, packet);
    let delivered = host.received();
    assert_eq!(delivered.len(), 1);
    assert_eq!(delivered[0].header().method(), Method::GET);
}

#[test]
fn paths() {
    let mut host = Host::new();
    let (a, b) = (host.vf(0), host.vf(1));
    let sl = Sl::default();
    let generation = |host: &Host| host.fabric.generation();
    assert_eq!(
        host.fabric.resolve(a, Lid::new(5), sl, None),
        Err(NoRoute::NotActive(a))
    );
    host.bring_up();
    let before = generation(&host);
    let route = host.fabric.resolve(a, Lid::new(5), sl, None).unwrap();
    assert_eq!((route.port, route.mtu, route.hops), (b, Mtu::B4096, 2));
    let route = host.fabric.resolve(a, Lid::new(4), sl, None).unwrap();
    assert_eq!((route.port, route.hops), (a, 0));
    let route = host.fabric.resolve(a, Lid::new(1), sl, None).unwrap();
    assert_eq!((route.port, route.hops), (host.port, 3));
    assert!(host.fabric.resolve(a, Lid::new(6), sl, None).is_err());
    assert!(host.fabric.resolve(a, Lid::new(0xc000), sl, None).is_err());
    assert_eq!(generation(&host), before, "asking changes nothing");

    // A smaller MTU on one link.
    host.change_port(VSWITCH, 3, |info| info.neighbor_mtu = Mtu::B1024.code());
    assert!(generation(&host) > before);
    let route = host.fabric.resolve(a, Lid::new(5), sl, None).unwrap();
    assert_eq!(route.mtu, Mtu::B1024);

    // A service level that is dropped.
    let mut table = SlToVl::default();
    table.0[3] = Vl::MANAGEMENT;
    host.set(VSWITCH, AttributeId::SL_TO_VL, 0x0203, table.to_bytes());
    assert!(matches!(
        host.fabric.resolve(a, Lid::new(5), Sl::new(3), None),
        Err(NoRoute::Lane(_))
    ));

    // Partition enforcement at the port towards the second function.
    let key = PKey::new(0x8001);
    host.change_port(VSWITCH, 3, |info| {
        info.partition_enforcement_outbound = true
    });
    let with_key = |host: &Host| host.fabric.resolve(a, Lid::new(5), sl, Some(key));
    assert!(matches!(with_key(&host), Err(NoRoute::Partition(_))));
    let mut keys = PKeyBlock::default();
    keys.0[0] = PKey::new(0x0001);
    host.set(VSWITCH, AttributeId::P_KEY_TABLE, 3 << 16, keys.to_bytes());
    assert!(with_key(&host).is_ok());

    // Tables that make a circle.
    let mut block = wire::attribute::LinearBlock::default();
    block.0[5] = 1;
    host.set(VSWITCH, AttributeId::LINEAR_FORWARDING, 0, block.0);
    assert!(matches!(
        host.fabric.resolve(a, Lid::new(5), sl, None),
        Err(NoRoute::Circle(_))
    ));
    let packet = MadPacket::gmp(Lid::NONE, Lid::new(5), sl, PKey::DEFAULT_FULL, [0; SIZE]);
    host.fabric.inject(a, packet);
    host.fabric.run();

    host.fabric.set_cable(b, false);
    assert!(host.fabric.resolve(a, Lid::new(4), sl, None).is_ok());
}

fn performance_request(method: Method, attribute: AttributeId, data: &[u8]) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    let mut mad = Mad::new_checked(&mut bytes[..]).unwrap();
    mad.set_class(Class::PERFORMANCE);
    mad.set_method(method);
    mad.set_attribute(attribute, 0);
    bytes[performance::DATA][..data.len()].copy_from_slice(data);
    bytes
}

#[test]
fn counters_of_the_data_plane() {
    let mut host = Host::new();
    let vf = host.vf(0);
    let counters = host.fabric.counters(vf).unwrap().clone();
    counters.sent(Sl::default(), 3, 30);
    counters.received(Sl::default(), 2, 5_000_000_000);
    counters.received_multicast(Sl::default(), 1, 7);
    let read = |host: &mut Host, method, select| {
        let asked = PortCounters {
            port_select: 1,
            counter_select: select,
            ..PortCounters::default()
        };
        let bytes = performance_request(method, performance::PORT_COUNTERS, &asked.to_bytes());
        let answer = host.fabric.local_mad(vf, &bytes).unwrap();
        let mad = Mad::new_checked(&answer[..]).unwrap();
        assert_eq!(
            (mad.method(), mad.status()),
            (Method::GET_RESPONSE, Status::OK)
        );
        PortCounters::parse(&answer[performance::DATA]).unwrap()
    };
    let before = read(&mut host, Method::GET, 0xffff);
    assert_eq!((before.xmit_packets, before.xmit_data), (3, 30));
    assert_eq!(before.rcv_packets, 3);
    assert_eq!(before.rcv_data, u32::MAX, "stops at the highest value");

    // Bit 12 is PortXmitData.
    let after = read(&mut host, Method::SET, 1 << 12);
    assert_eq!((after.xmit_packets, after.xmit_data), (3, 0));
    counters.sent(Sl::default(), 1, 4);
    let after = read(&mut host, Method::GET, 0);
    assert_eq!((after.xmit_packets, after.xmit_data), (4, 4));

    // The extended counters are counters of their own.
    let asked = PortCountersExtended {
        port_select: 1,
        ..PortCountersExtended::default()
    };
    let attribute = performance::PORT_COUNTERS_EXTENDED;
    let bytes = performance_request(Method::GET, attribute, &asked.to_bytes());
    let answer = host.fabric.local_mad(vf, &bytes).unwrap();
    let extended = PortCountersExtended::parse(&answer[performance::DATA]).unwrap();
    assert_eq!(extended.xmit_data, 34);
    assert_eq!(extended.rcv_data, 5_000_000_007);
    assert_eq!(extended.unicast_rcv_packets, 2);
    assert_eq!(extended.multicast_rcv_packets, 1);
}

#[test]
fn performance_over_the_fabric() {
    let mut host = Host::new();
    host.bring_up();
    let ask = |host: &mut Host, lid, qkey, attribute, data: &[u8]| {
        let bytes = performance_request(Method::GET, attribute, data);
        let (dlid, key) = (Lid::new(lid), PKey::DEFAULT_FULL);
        let mut packet = MadPacket::gmp(Lid::NONE, dlid, Sl::default(), key, bytes);
        packet.qkey = qkey;
        // Any queue pair may ask.
        packet.src_qp = Qpn::new(77);
        assert_eq!(host.fabric.inject(host.port, packet), Injected::Sent);
        let answer = host.received().pop();
        if let Some(answer) = &answer {
            assert_eq!((answer.slid, answer.dlid), (dlid, Lid::new(1)));
            assert_eq!((answer.src_qp, answer.dst_qp), (Qpn::QP1, Qpn::new(77)));
        }
        answer.map(|answer| (answer.header().status(), answer.mad))
    };
    let all = PortCounters {
        port_select: 255,
        ..PortCounters::default()
    };
    let all = all.to_bytes();
    let counters = performance::PORT_COUNTERS;
    let (status, mad) = ask(&mut host, 3, QKey::QP1, counters, &all).unwrap();
    assert_eq!(status, Status::OK);
    let sum = PortCounters::parse(&mad[performance::DATA]).unwrap();
    assert!(sum.rcv_packets > 0, "the packets of the bring-up");
    assert_eq!(sum.rcv_data, sum.rcv_packets * 72);

    let (status, _) = ask(&mut host, 4, QKey::QP1, counters, &all).unwrap();
    assert_eq!(
        status,
        Status::INVALID_FIELD,
        "an adapter's ports one by one"
    );
    let (status, _) = ask(&mut host, 4, QKey::QP1, AttributeId(0x17), &[]).unwrap();
    assert_eq!(status, Status::UNSUPPORTED_ATTRIBUTE);
    assert_eq!(ask(&mut host, 4, QKey::new(5), counters, &all), None);

    // Where a guest has the queue pairs, the guest's agent gets the packet.
    let vf = host.vf(0);
    host.fabric
        .set_owner(vf, Owner::Consumer, SmpAccess::OwnPort);
    let bytes = performance_request(Method::GET, counters, &all);
    let packet = MadPacket::gmp(
        Lid::NONE,
        Lid::new(4),
        Sl::default(),
        PKey::DEFAULT_FULL,
        bytes,
    );
    host.fabric.inject(host.port, packet);
    host.fabric.run();
    match host.fabric.poll_output() {
        Some(Output::Deliver { port, packet }) => {
            assert_eq!(port, vf);
            assert_eq!(packet.slid, Lid::new(1), "stamped by the sender's port");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn data_needs_active_ports() {
    let mut host = Host::new();
    host.bring_up();
    let (route, port) = ALL_EXTERNAL[1];
    host.change_port(route, port, |info| info.port_state = PortState::Down);
    let bytes = performance_request(Method::GET, AttributeId::CLASS_PORT_INFO, &[]);
    let dlid = Lid::new(4);
    let packet = MadPacket::gmp(Lid::NONE, dlid, Sl::default(), PKey::DEFAULT_FULL, bytes);
    host.fabric.inject(host.port, packet);
    assert_eq!(host.received(), []);
}

#[test]
fn a_guest_reads_its_own_port_only() {
    let mut host = Host::new();
    host.bring_up();
    let vf = host.vf(0);
    host.fabric
        .set_owner(vf, Owner::Consumer, SmpAccess::OwnPort);
    let local = |host: &mut Host, method| {
        let asked = request(OWN, method, AttributeId::PORT_INFO, 1, [0; DATA]);
        let answer = host.fabric.local_mad(vf, &asked.to_bytes()).unwrap();
        Mad::new_checked(answer).unwrap().status()
    };
    assert_eq!(local(&mut host, Method::GET), Status::OK);
    assert_eq!(local(&mut host, Method::SET), Status::UNSUPPORTED_ATTRIBUTE);
    host.fabric.set_owner(vf, Owner::Consumer, SmpAccess::Deny);
    assert_eq!(local(&mut host, Method::GET), Status::UNSUPPORTED_ATTRIBUTE);

    let asked = request(&[1, 1], Method::GET, AttributeId::NODE_INFO, 0, [0; DATA]);
    let packet = MadPacket::smp(Lid::NONE, Lid::PERMISSIVE, asked.to_bytes());
    assert_eq!(host.fabric.inject(vf, packet), Injected::Denied);
    // Its own port it may ask by LID as well, but not change.
    host.fabric
        .set_owner(vf, Owner::Consumer, SmpAccess::OwnPort);
    for (method, injected, answers) in [
        (Method::GET, Injected::Sent, 1),
        (Method::SET, Injected::Denied, 0),
    ] {
        let asked = Request {
            destination: Destination::Lid(Lid::new(4)),
            ..request(OWN, method, AttributeId::PORT_INFO, 1, [0; DATA])
        };
        let packet = MadPacket::smp(Lid::NONE, Lid::new(4), asked.to_bytes());
        assert_eq!(host.fabric.inject(vf, packet), injected);
        host.fabric.run();
        let outputs = std::iter::from_fn(|| host.fabric.poll_output());
        let delivered = outputs.filter(|output| matches!(output, Output::Deliver { .. }));
        assert_eq!(delivered.count(), answers);
    }
    // Nor by another queue pair, nor from queue pair 0 to another one.
    let mut packet = MadPacket::smp(Lid::NONE, Lid::new(3), asked.to_bytes());
    packet.src_qp = Qpn::QP1;
    assert_eq!(host.fabric.inject(vf, packet), Injected::Denied);
}

/// A guest's kernel takes the first step of a directed route itself.
#[test]
fn a_route_that_has_begun() {
    let mut host = Host::new();
    let mut bytes = request(&[1, 1], Method::GET, AttributeId::NODE_INFO, 0, [0; DATA]).to_bytes();
    bytes[6] = 1;
    let packet = MadPacket::smp(Lid::PERMISSIVE, Lid::PERMISSIVE, bytes);
    host.fabric.inject(host.port, packet);
    let answer = host.received().pop().unwrap();
    assert_eq!(answer.header().status(), Status::OK);
}

#[test]
fn packets_are_counted() {
    let mut host = Host::new();
    host.get(VF, AttributeId::NODE_INFO, 0);
    host.get(VF, AttributeId::NODE_INFO, 0);
    let counts = host.fabric.smp_counts(host.vf(0).node).unwrap();
    assert_eq!(counts.answered_of(Method::GET, AttributeId::NODE_INFO), 2);
    // Two there and two back, at each of the two switches.
    let vswitch = host.fabric.peer(host.vf(0)).unwrap().node;
    assert_eq!(host.fabric.smp_counts(vswitch).unwrap().forwarded(), 4);
    let asked = request(&[1, 9], Method::GET, AttributeId::NODE_INFO, 0, [0; DATA]);
    assert_eq!(host.ask(&asked), None);
    let switch = host.fabric.peer(host.port).unwrap().node;
    assert_eq!(host.fabric.smp_counts(switch).unwrap().dropped(), 1);
}
