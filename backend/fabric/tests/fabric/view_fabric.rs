//! View fabrics: the part of a subnet that they show, and the names in them.

use std::collections::BTreeMap;

use crate::common::Host;
use ibvswitch_fabric::{
    Fabric, LinkRate, NodeSpec, PortRef, Topology, ViewFabric, ViewHost, ViewManager, ViewName,
};
use proptest::prelude::*;
use wire::attribute::{
    LinearBlock, NodeDescription, NodeInfo, NodeType, PKeyBlock, PortInfo, SwitchInfo,
};
use wire::mad::{AttributeId, Method, Status};
use wire::smp::{DATA, Destination, Request, Route, Smp};
use wire::{Guid, Lid, MadPacket, PKey, PortState};

fn name(lid: u16, guid: u64, text: &str) -> ViewName {
    ViewName {
        lid: Lid::new(lid),
        guid: Guid::new(guid),
        description: NodeDescription::new(text),
    }
}

/// A member that the subnet reaches by `physical`.
fn member(port: PortRef, physical: u16, name: ViewName) -> ViewHost {
    ViewHost {
        port,
        entry: None,
        physical: Lid::new(physical),
        name,
        pkeys: vec![PKey::new(0x8005)],
        member: true,
    }
}

fn ask(
    view_fabric: &mut ViewFabric,
    host: usize,
    destination: Destination,
    method: Method,
    attribute: AttributeId,
    modifier: u32,
) -> Option<(Status, [u8; DATA])> {
    let request = Request {
        destination,
        method,
        attribute,
        modifier,
        transaction: 0x1234,
        m_key: 0,
        data: [0x55; DATA],
    };
    let packet = MadPacket::smp(Lid::NONE, request.dlid(), request.to_bytes());
    let answer = view_fabric.ask(host, &packet, None)?;
    let smp = Smp::new_checked(&answer.mad[..]).unwrap();
    assert_eq!(smp.mad().method(), Method::GET_RESPONSE);
    assert_eq!(smp.mad().transaction(), 0x1234);
    Some((smp.mad().status(), *smp.data()))
}

fn directed(route: &[u8]) -> Destination {
    Destination::Directed(Route::new(route).unwrap())
}

fn get(
    view_fabric: &mut ViewFabric,
    destination: Destination,
    attribute: AttributeId,
    modifier: u32,
) -> [u8; DATA] {
    let answer = ask(
        view_fabric,
        0,
        destination,
        Method::GET,
        attribute,
        modifier,
    );
    let (status, data) = answer.expect("an answer");
    assert_eq!(status, Status::OK);
    data
}

fn port_info(view_fabric: &mut ViewFabric, route: &[u8], port: u32) -> PortInfo {
    let data = get(view_fabric, directed(route), AttributeId::PORT_INFO, port);
    PortInfo::parse(&data).unwrap()
}

/// The case of *Towards Virtual InfiniBand Clusters with Network and Performance Isolation*, Fig. 3.3:
/// nodes 1 to 4, for which the switches A, D, E and F would suffice, and to which B and C are of use
/// since they are other ways from 1 to 3 and to 4. The switches of others are of none.
#[test]
fn switches_that_give_a_choice_of_ways_are_shown() {
    let mut topology = Topology::new();
    let mut nodes = BTreeMap::new();
    for (index, letter) in "ABCDEFGHI".chars().enumerate() {
        let guid = Guid::new(0x100 + index as u64);
        let node = topology.add(NodeSpec::switch(guid, 8, &letter.to_string()));
        nodes.insert(letter, (node, 0));
    }
    let mut next = |letter| {
        let (node, port) = nodes.get_mut(&letter).unwrap();
        *port += 1;
        (*node, *port)
    };
    // D, E and F have nodes; A joins them all, B and C two each. G to I are somebody else's.
    for cable in [
        "AD", "AE", "AF", "BD", "BE", "CD", "CF", "GH", "AG", "HI", "IB",
    ] {
        let mut letters = cable.chars();
        let ends = [letters.next().unwrap(), letters.next().unwrap()].map(&mut next);
        topology.link(ends[0], ends[1], LinkRate::default());
    }
    let mut hosts = Vec::new();
    for (number, letter) in [(1, 'D'), (2, 'D'), (3, 'E'), (4, 'F'), (5, 'H')] {
        let guid = Guid::new(number);
        let node = topology.add(NodeSpec::channel_adapter(guid, guid, ""));
        topology.link((node, 1), next(letter), LinkRate::default());
        if number < 5 {
            let port = PortRef { node, port: 1 };
            hosts.push(member(port, 0, name(0, number, "")));
        }
    }
    let fabric = Fabric::new(&topology).unwrap();
    let shown = |hosts: &[ViewHost]| {
        let mut letters = String::new();
        let view_fabric = fabric.view_fabric(hosts, ViewManager::default(), |port| {
            let node = &topology.nodes()[port.node.index()];
            letters.push_str(&node.description.to_string());
            name(0, node.guid.value(), "")
        });
        view_fabric.unwrap();
        letters
    };
    assert_eq!(shown(&hosts), "ABCDEF");
    assert_eq!(shown(&hosts[..2]), "D", "on one switch");
    assert_eq!(shown(&hosts[1..3]), "ABDE");
    assert_eq!(shown(&hosts[2..]), "AEF");
    assert_eq!(shown(&hosts[..1]), "D");
    assert_eq!(shown(&[]), "");
}

/// A fabric with a manager, LID 1, a switch, 2, a vSwitch, 3, and VFs 4 and 5, of which the view fabric
/// shows the first as LID 7 and the manager as 9.
fn shown() -> (Host, ViewFabric) {
    let mut host = Host::new();
    host.bring_up();
    let hosts = [
        member(host.vf(0), 4, name(7, 0x7777, "first")),
        ViewHost {
            member: false,
            ..member(host.port, 1, name(9, 0x9999, "manager"))
        },
    ];
    let manager = ViewManager {
        physical: Lid::new(1),
        lid: Lid::new(9),
    };
    let mut lid = 99;
    let view_fabric = host.fabric.view_fabric(&hosts, manager, |_| {
        lid += 1;
        name(lid, 0x5000 + u64::from(lid), "switch")
    });
    (host, view_fabric.unwrap())
}

#[test]
fn a_member_sees_what_is_its_own_and_the_way_to_the_manager() {
    let (_, mut view_fabric) = shown();
    let view_fabric = &mut view_fabric;
    // Itself, the vSwitch, the switch, the manager's host.
    let routes: [(&[u8], NodeType, u64); 4] = [
        (&[], NodeType::ChannelAdapter, 0x7777),
        (&[1], NodeType::Switch, 0x5000 + 101),
        (&[1, 1], NodeType::Switch, 0x5000 + 100),
        (&[1, 1, 2], NodeType::ChannelAdapter, 0x9999),
    ];
    for (route, kind, guid) in routes {
        let data = get(view_fabric, directed(route), AttributeId::NODE_INFO, 0);
        let info = NodeInfo::parse(&data).unwrap();
        let guids = [info.node_guid, info.port_guid, info.system_image_guid];
        assert_eq!((info.node_type, guids), (kind, [Guid::new(guid); 3]));
    }
    // By LID, too, and by a route that begins where a LID leads.
    for (lid, guid) in [
        (7, 0x7777),
        (9, 0x9999),
        (100, 0x5000 + 100),
        (101, 0x5000 + 101),
    ] {
        let to = Destination::Lid(Lid::new(lid));
        let data = get(view_fabric, to, AttributeId::NODE_INFO, 0);
        assert_eq!(NodeInfo::parse(&data).unwrap().node_guid, Guid::new(guid));
    }
    let own = port_info(view_fabric, &[], 1);
    assert_eq!((own.lid, own.lmc), (Lid::new(7), 0));
    let keys = get(view_fabric, directed(&[]), AttributeId::P_KEY_TABLE, 0);
    let keys = PKeyBlock::parse(&keys).0;
    assert_eq!(keys[0], PKey::new(0x8005));
    assert!(keys[1..].iter().all(|key| *key == PKey::INVALID));
    // The vSwitch: uplink, its own VF, that of another.
    let states = [1, 2, 3].map(|port| port_info(view_fabric, &[1], port).port_state);
    assert_eq!(states[2], PortState::Down);
    assert!(
        states[..2].iter().all(|state| *state != PortState::Down),
        "{states:?}"
    );
    // Only LIDs of the view fabric are in its tables.
    for (route, ways) in [
        (&[1][..], [(7, 2), (9, 1), (100, 1), (101, 0)]),
        (&[1, 1], [(7, 1), (9, 2), (100, 0), (101, 1)]),
    ] {
        for block in 0..4 {
            let data = get(
                view_fabric,
                directed(route),
                AttributeId::LINEAR_FORWARDING,
                block,
            );
            for (lid, &port) in (64 * block as u16..).zip(&data) {
                let way = ways.iter().find(|way| way.0 == lid);
                let expected = way.map_or(LinearBlock::DROP, |way| way.1);
                assert_eq!(port, expected, "LID {lid} at {route:?}");
            }
        }
        let data = get(view_fabric, directed(route), AttributeId::SWITCH_INFO, 0);
        assert_eq!(SwitchInfo::parse(&data).unwrap().linear_fdb_top, 101);
    }
}

#[test]
fn what_is_not_shown_does_not_answer_and_nothing_can_be_set() {
    let (_, mut view_fabric) = shown();
    let mut answer = |to, method, attribute| ask(&mut view_fabric, 0, to, method, attribute, 0);
    let nowhere = [
        directed(&[1, 3]),
        directed(&[1, 1, 3]),
        Destination::Lid(Lid::new(4)),
    ];
    for to in nowhere {
        for method in [Method::GET, Method::SET] {
            assert_eq!(
                answer(to.clone(), method, AttributeId::NODE_INFO),
                None,
                "{to:?}"
            );
        }
    }
    for to in [directed(&[]), directed(&[1]), Destination::Lid(Lid::new(9))] {
        let set = answer(to.clone(), Method::SET, AttributeId::PORT_INFO);
        assert_eq!(
            set,
            Some((Status::UNSUPPORTED_ATTRIBUTE, [0x55; DATA])),
            "{to:?}"
        );
        let get = answer(to, Method::GET, AttributeId::SM_INFO);
        assert_eq!(
            get.map(|(status, _)| status),
            Some(Status::UNSUPPORTED_ATTRIBUTE)
        );
    }
    for method in [Method::TRAP, Method::GET_RESPONSE, Method::TRAP_REPRESS] {
        assert_eq!(answer(directed(&[1]), method, AttributeId::NOTICE), None);
    }
}

/// An adapter that several share is shown as a switch, port 1 of which leads out.
#[test]
fn hosts_at_one_port_are_shown_apart() {
    let mut topology = Topology::new();
    let switch = topology.add(NodeSpec::switch(Guid::new(1), 4, ""));
    let mut adapters = [2, 3].map(|guid| {
        let node = topology.add(NodeSpec::shared_port(Guid::new(guid), 4, ""));
        topology.link((switch, guid as u8), (node, 1), LinkRate::default());
        PortRef { node, port: 1 }
    });
    adapters.sort_unstable();
    let fabric = Fabric::new(&topology).unwrap();
    let host = |adapter: usize, entry: u8, lid: u16| ViewHost {
        entry: Some(entry),
        ..member(adapters[adapter], 0, name(lid, u64::from(lid), ""))
    };
    let hosts = [host(0, 1, 11), host(0, 3, 13), host(1, 4, 24)];
    let mut guid = 0x100;
    let view_fabric = fabric.view_fabric(&hosts, ViewManager::default(), |_| {
        guid += 1;
        name(0, guid, "")
    });
    let mut view_fabric = view_fabric.unwrap();
    let mut guid = |route: &[u8]| {
        let data = ask(
            &mut view_fabric,
            0,
            directed(route),
            Method::GET,
            AttributeId::NODE_INFO,
            0,
        )?;
        let info = NodeInfo::parse(&data.1).unwrap();
        Some(info.node_guid.value())
    };
    assert_eq!(guid(&[]), Some(11));
    assert_eq!(guid(&[1]), Some(0x102), "its own adapter");
    assert_eq!([guid(&[1, 2]), guid(&[1, 4])], [Some(11), Some(13)]);
    assert_eq!([guid(&[1, 3]), guid(&[1, 5])], [None; 2], "nobody's");
    assert_eq!(guid(&[1, 1]), Some(0x101), "the switch");
    assert_eq!(
        [guid(&[1, 1, 2]), guid(&[1, 1, 3])],
        [Some(0x102), Some(0x103)]
    );
    assert_eq!(guid(&[1, 1, 3, 5]), Some(24));
}

proptest! {
    /// Whatever a host sends, well formed or not: what comes back names nobody whom it may not know.
    #[test]
    fn no_packet_brings_up_a_stranger(
        packets in prop::collection::vec((any::<[u8; 32]>(), any::<[u8; 32]>(), 0_u16..0x40), 64),
        lids in prop::collection::vec(prop_oneof![0_u16..16, 90_u16..110, any::<u16>()], 64),
    ) {
        let (host, mut view_fabric) = shown();
        let names = [host.vf(1), host.port].map(|port| host.fabric.node_info(port).unwrap());
        let strangers = names.map(|info| info.node_guid.value().to_be_bytes());
        for ((head, route, attribute), lid) in packets.into_iter().zip(lids) {
            let mut mad = [0; 256];
            mad[..32].copy_from_slice(&head);
            mad[128..160].copy_from_slice(&route.map(|port| port % 5));
            mad[32..36].copy_from_slice(&[0xff; 4]);
            // Most are questions of a class that agents answer.
            mad[..2].copy_from_slice(&[1, if head[0] & 1 == 0 { 0x81 } else { 0x01 }]);
            mad[2] = head[2] % 2;
            mad[3] = head[3] % 4;
            mad[4] &= 0x80;
            mad[6] %= 3;
            mad[7] %= 6;
            mad[16..18].copy_from_slice(&attribute.to_be_bytes());
            mad[20..23].fill(0);
            let packet = MadPacket::smp(Lid::NONE, Lid::new(lid), mad);
            let local = view_fabric.ask_local(0, &mad);
            let answer = view_fabric.ask(0, &packet, None).map(|answer| answer.mad);
            for answer in answer.into_iter().chain(local) {
                let named = answer[64..].windows(8).any(|it| strangers.iter().any(|of| of == it));
                prop_assert!(!named, "{mad:x?}: {answer:x?}");
            }
        }
    }
}
