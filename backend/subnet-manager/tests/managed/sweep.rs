//! A subnet manager brings up fabrics, by packets alone.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::guests::Bed;
use crate::harness::{Link, Managed};
use fabric::{Fabric, LinkRate, NodeSpec, Owner, PortEvent, SmpAccess, Topology};
use ibvswitch_subnet_manager::{Arbitration, Config, MinHop, SubnetManager, Transport};
use topologies::Hypervisors;
use wire::attribute::{NodeInfo, SlToVl, VlArbitration, VlWeight};
use wire::mad::{AttributeId, Method, Status};
use wire::sa::{PathRecord, Rate};
use wire::smp::{Destination, Request, Route, Smp};
use wire::{Gid, Guid, Lid, MadPacket, PKey, PortState, Sl, Vl};

#[test]
fn the_default_topology() {
    let (mut managed, layout) = Managed::hypervisors(2, 3, Config::default());
    let vf = managed
        .link
        .fabric
        .port_by_guid(layout.vf_guid(1, 2))
        .unwrap();
    managed
        .link
        .fabric
        .set_owner(vf, Owner::Consumer, SmpAccess::OwnPort);
    managed.settle();
    managed.all_active_and_reachable();

    let report = managed.manager.report().clone();
    assert_eq!(report.errors, Vec::<String>::new());
    assert_eq!((report.switches, report.adapters), (3, 7));
    assert_eq!(report.active, 10);

    let fabric = &managed.link.fabric;
    let own = fabric.port_info(managed.link.station.port).unwrap();
    assert_eq!(own.lid, Lid::new(1), "the manager comes first");
    let info = fabric.port_info(vf).unwrap();
    assert_eq!(info.master_sm_lid, Lid::new(1));
    assert_eq!(info.gid_prefix, Gid::DEFAULT_PREFIX);
    assert_eq!(
        fabric.pkeys(vf).unwrap()[..2],
        [PKey::DEFAULT_FULL, PKey::INVALID]
    );

    let events = managed.events(vf);
    for event in [
        PortEvent::LidChange,
        PortEvent::SmChange,
        PortEvent::StateChange(PortState::Armed),
        PortEvent::StateChange(PortState::Active),
        PortEvent::ClientReregister,
    ] {
        assert!(events.contains(&event), "{event:?} is not in {events:?}");
    }
}

/// As on Quantum-2, and with agents from before extended speeds, which refuse a modifier that they do not know.
#[test]
fn extended_speeds_are_asked_for() {
    struct Old<'a>(&'a mut Link);
    impl Transport for Old<'_> {
        fn send(&mut self, packet: MadPacket) {
            self.0.send(packet);
        }
        fn receive(&mut self) -> Option<MadPacket> {
            let mut packet = self.0.receive()?;
            let mut smp = Smp::new_checked(&mut packet.mad[..]).ok()?;
            let mad = smp.mad();
            if mad.attribute() == AttributeId::PORT_INFO && mad.modifier() >> 31 == 1 {
                smp.data_mut().fill(0);
                smp.mad_mut().set_status(Status::INVALID_FIELD);
            }
            Some(packet)
        }
    }
    let layout = Hypervisors::new(2, 2).unwrap();
    let mut topology = layout.topology().clone();
    topology.make_strict();
    let fabric = Fabric::new(&topology).unwrap();
    let mut managed = Managed::new(fabric, layout.manager_guid(), Config::default());
    managed.settle();
    managed.all_active_and_reachable();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    let vf = managed
        .link
        .fabric
        .port_by_guid(layout.vf_guid(1, 0))
        .unwrap();
    let mut bed = Bed::of(managed, vec![vf]);
    let wanted = PathRecord {
        slid: bed.lid(0),
        dlid: Lid::new(1),
        ..PathRecord::default()
    };
    let path = bed
        .get(0, PathRecord::SLID | PathRecord::DLID, &wanted)
        .unwrap();
    let info = bed.info(0);
    let rate = Rate::of_link(
        info.active_width().unwrap(),
        info.active_speed().unwrap(),
        info.active_speed_ext().unwrap(),
    );
    assert_eq!(path.rate, rate.0);

    let (mut managed, _) = Managed::hypervisors(1, 1, Config::default());
    for _ in 0..1000 {
        let next = managed
            .manager
            .poll(managed.now, &mut Old(&mut managed.link));
        if managed.manager.is_up() {
            break;
        }
        managed.now = next.unwrap();
    }
    managed.all_active_and_reachable();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
}

/// Counts of packets: what a bring-up costs a vSwitch and a virtual function.
#[test]
fn what_a_sweep_costs() {
    let (mut managed, layout) = Managed::hypervisors(1, 2, Config::default());
    managed.settle();
    let fabric = &managed.link.fabric;
    let node = |guid: Guid| fabric.port_by_guid(guid).unwrap().node;
    let of = |guid: Guid, method, attribute| {
        let counts = fabric.smp_counts(node(guid)).unwrap();
        counts.answered_of(method, attribute)
    };
    let vf = layout.vf_guid(0, 0);
    assert_eq!(of(vf, Method::GET, AttributeId::NODE_INFO), 1);
    assert_eq!(of(vf, Method::GET, AttributeId::NODE_DESCRIPTION), 1);
    assert_eq!(of(vf, Method::GET, AttributeId::PORT_INFO), 1);
    assert_eq!(of(vf, Method::GET, AttributeId::P_KEY_TABLE), 4);
    assert_eq!(
        of(vf, Method::SET, AttributeId::P_KEY_TABLE),
        0,
        "right from the start"
    );
    // LID; Armed; Active.
    assert_eq!(of(vf, Method::SET, AttributeId::PORT_INFO), 3);

    let vswitch = Guid::new(0x0002_c903_0000_0100);
    assert_eq!(of(vswitch, Method::GET, AttributeId::PORT_INFO), 4);
    assert_eq!(of(vswitch, Method::SET, AttributeId::LINEAR_FORWARDING), 1);
    assert_eq!(
        of(vswitch, Method::SET, AttributeId::MULTICAST_FORWARDING),
        1
    );
    // The manager's own count agrees with what all the nodes answered.
    let answered: u64 = fabric
        .nodes()
        .flat_map(|node| fabric.smp_counts(node).unwrap().answered())
        .map(|(_, _, count)| count)
        .sum();
    assert_eq!(managed.manager.report().packets, answered);
}

#[test]
fn a_second_sweep_sets_nothing() {
    let (mut managed, _) = Managed::hypervisors(2, 2, Config::default());
    managed.settle();
    let generation = |managed: &Managed| managed.link.fabric.generation();
    let before = generation(&managed);
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(managed.manager.report().sweeps, 2);
    assert_eq!(managed.manager.report().sets, 0);
    assert_eq!(generation(&managed), before);
}

#[test]
fn light_sweeps_see_links_come_and_go() {
    let (mut managed, layout) = Managed::hypervisors(2, 1, Config::default());
    managed.settle();
    managed.pass_interval();
    assert_eq!(managed.manager.report().sweeps, 1, "nothing changed");

    let vf = managed
        .link
        .fabric
        .port_by_guid(layout.vf_guid(1, 0))
        .unwrap();
    let lid = managed.link.fabric.port_info(vf).unwrap().lid;
    managed.link.fabric.set_cable(vf, false);
    managed.pass_interval();
    managed.settle();
    assert_eq!(managed.manager.report().adapters, 2);
    let from = managed.link.station.port;
    assert!(
        managed
            .link
            .fabric
            .resolve(from, lid, Sl::default(), None)
            .is_err()
    );

    managed.link.fabric.set_cable(vf, true);
    managed.pass_interval();
    managed.settle();
    managed.all_active_and_reachable();
    assert_eq!(managed.link.fabric.port_info(vf).unwrap().lid, lid, "kept");
}

#[test]
fn lost_packets_are_sent_again() {
    let (mut managed, _) = Managed::hypervisors(1, 1, Config::default());
    managed.link.lose = 3;
    managed.settle();
    managed.all_active_and_reachable();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
}

#[test]
fn pinned_and_known_lids() {
    let (layout_vf, other) = (0x0002_c903_0000_0101, 0x0002_c903_0000_0201);
    let config = Config {
        pinned_lids: BTreeMap::from([(Guid::new(layout_vf), Lid::new(0xbfff))]),
        known_lids: BTreeMap::from([(Guid::new(other), (Lid::new(77), 0))]),
        ..Config::default()
    };
    let (mut managed, _) = Managed::hypervisors(2, 1, config);
    managed.settle();
    managed.all_active_and_reachable();
    assert_eq!(
        managed.manager.lids()[&Guid::new(layout_vf)],
        Lid::new(0xbfff)
    );
    assert_eq!(managed.manager.lids()[&Guid::new(other)], Lid::new(77));
    // The highest LID decides how many blocks there are, not the number of LIDs.
    let switch = managed
        .link
        .fabric
        .port_by_guid(Guid::new(0x0002_c903_0100_0000))
        .unwrap();
    let counts = managed.link.fabric.smp_counts(switch.node).unwrap();
    assert_eq!(
        counts.answered_of(Method::SET, AttributeId::LINEAR_FORWARDING),
        768
    );
}

#[test]
fn partitions_change_while_ports_are_active() {
    let guid = Guid::new(0x0002_c903_0000_0101);
    let config = Config {
        partitions: BTreeMap::from([(guid, vec![PKey::new(0x8001), PKey::DEFAULT_LIMITED])]),
        ..Config::default()
    };
    let (mut managed, _) = Managed::hypervisors(1, 1, config);
    managed.settle();
    let vf = managed.link.fabric.port_by_guid(guid).unwrap();
    assert_eq!(
        managed.link.fabric.pkeys(vf).unwrap()[..3],
        [PKey::new(0x8001), PKey::DEFAULT_LIMITED, PKey::INVALID]
    );
    managed
        .link
        .fabric
        .set_owner(vf, Owner::Consumer, SmpAccess::OwnPort);
    managed
        .manager
        .set_partitions(guid, vec![PKey::new(0x8002)]);
    managed.settle();
    assert_eq!(
        managed.link.fabric.pkeys(vf).unwrap()[..2],
        [PKey::new(0x8002), PKey::INVALID]
    );
    assert_eq!(managed.events(vf), [PortEvent::PkeyChange]);
    assert_eq!(managed.manager.report().sets, 1);
}

#[test]
fn lanes() {
    let config = Config {
        sl_to_vl: Some(SlToVl::modulo(4)),
        ..Config::default()
    };
    let (mut managed, layout) = Managed::hypervisors(2, 1, config);
    managed.settle();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    let fabric = &managed.link.fabric;
    let from = fabric.port_by_guid(layout.vf_guid(0, 0)).unwrap();
    let to = fabric.port_by_guid(layout.vf_guid(1, 0)).unwrap();
    let lid = fabric.port_info(to).unwrap().lid;
    let route = fabric.resolve(from, lid, Sl::new(6), None).unwrap();
    assert_eq!(route.vl.value(), 2);
}

#[test]
fn two_adapters_without_a_switch() {
    let mut topology = Topology::new();
    let adapter = |guid| NodeSpec::channel_adapter(Guid::new(guid), Guid::new(guid), "");
    let a = topology.add(adapter(1));
    let b = topology.add(adapter(2));
    topology.link((a, 1), (b, 1), LinkRate::default());
    let fabric = Fabric::new(&topology).unwrap();
    let mut managed = Managed::new(fabric, Guid::new(1), Config::default());
    managed.settle();
    managed.all_active_and_reachable();
}

/// A ring of switches, so that discovery meets nodes it knows and trees must cut circles.
#[test]
fn a_ring() {
    let mut topology = Topology::new();
    let switches: Vec<_> = (0..5)
        .map(|i| topology.add(NodeSpec::switch(Guid::new(0x10 + i), 4, "")))
        .collect();
    for (i, &switch) in switches.iter().enumerate() {
        let next = switches[(i + 1) % switches.len()];
        topology.link((switch, 1), (next, 2), LinkRate::default());
        let guid = Guid::new(0x20 + i as u64);
        let adapter = topology.add(NodeSpec::channel_adapter(guid, guid, ""));
        topology.link((switch, 3), (adapter, 1), LinkRate::default());
    }
    let fabric = Fabric::new(&topology).unwrap();
    let mut managed = Managed::new(fabric, Guid::new(0x20), Config::default());
    managed.settle();
    managed.all_active_and_reachable();
    let fabric = &managed.link.fabric;
    let from = managed.link.station.port;
    // The tables that a switch holds never send a LID round the ring.
    let longest = managed
        .end_ports()
        .iter()
        .map(|&to| fabric.port_info(to).unwrap().lid)
        .map(|lid| fabric.resolve(from, lid, Sl::default(), None).unwrap().hops)
        .max();
    assert_eq!(longest, Some(4));
}

#[test]
fn the_largest_default_topology() {
    let (mut managed, layout) = Managed::hypervisors(60, 15, Config::default());
    managed.settle();
    let report = managed.manager.report();
    assert_eq!(report.errors, Vec::<String>::new());
    assert_eq!(report.active, 61 + 900 + 1);
    let fabric = &managed.link.fabric;
    let from = fabric.port_by_guid(layout.vf_guid(0, 0)).unwrap();
    let to = fabric.port_by_guid(layout.vf_guid(59, 14)).unwrap();
    let lid = fabric.port_info(to).unwrap().lid;
    let route = fabric.resolve(from, lid, Sl::default(), None).unwrap();
    assert_eq!((route.port, route.hops), (to, 4));
}

/// Another manager takes over with empty hands: LIDs stay where they are, and guests register with it once.
#[test]
fn a_restarted_manager_keeps_lids() {
    let (mut managed, layout) = Managed::hypervisors(2, 2, Config::default());
    let vf = managed.link.fabric.port_by_guid(layout.vf_guid(1, 1));
    let vf = vf.unwrap();
    let fabric = &mut managed.link.fabric;
    fabric.set_owner(vf, Owner::Consumer, SmpAccess::OwnPort);
    managed.settle();
    let before = managed.manager.lids().clone();
    let old = managed.link.fabric.generation();
    managed.manager = SubnetManager::new(Config::default(), Box::new(MinHop)).unwrap();
    managed.settle();
    assert_eq!(managed.manager.lids(), &before);
    let now = managed.link.fabric.generation();
    assert_eq!(now, old, "no path changed");
    assert!(before.contains_key(&layout.vf_guid(1, 1)));
    let mut registrations = || {
        managed.manager.request_sweep();
        managed.settle();
        let events = managed.events(vf);
        let is_one = |event: &&PortEvent| **event == PortEvent::ClientReregister;
        events.iter().filter(is_one).count()
    };
    assert_eq!([registrations(), registrations()], [2, 2]);
}

#[test]
fn time_without_anything_to_do() {
    let config = Config {
        sweep_interval: Duration::ZERO,
        ..Config::default()
    };
    let (mut managed, _) = Managed::hypervisors(1, 1, config);
    managed.settle();
    assert_eq!(managed.manager.poll(managed.now, &mut managed.link), None);
}

/// Nodes say that they have another GUID than they have.
struct Impostor<'a> {
    link: &'a mut Link,
    is: Guid,
    says: Guid,
}

impl Transport for Impostor<'_> {
    fn send(&mut self, packet: MadPacket) {
        self.link.send(packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        let mut packet = self.link.receive()?;
        let is_node_info = packet.header().attribute() == AttributeId::NODE_INFO;
        if let Ok(mut smp) = Smp::new_checked(&mut packet.mad[..])
            && is_node_info
            && let Ok(info) = NodeInfo::parse(smp.data())
            && info.node_guid == self.is
        {
            NodeInfo {
                node_guid: self.says,
                port_guid: self.says,
                ..info
            }
            .emit(smp.data_mut());
        }
        Some(packet)
    }
}

/// Three switches in a row, each with an adapter; the last one, or its adapter, has the GUID of the
/// one before.
#[test]
fn two_nodes_with_one_guid() {
    for (is, says) in [(3, 2), (12, 11)] {
        let mut topology = Topology::new();
        let switches =
            [1, 2, 3].map(|guid| topology.add(NodeSpec::switch(Guid::new(guid), 4, "switch")));
        for pair in switches.windows(2) {
            topology.link((pair[0], 1), (pair[1], 2), LinkRate::default());
        }
        for (&switch, guid) in switches.iter().zip([10, 11, 12]) {
            let guid = Guid::new(guid);
            let adapter = topology.add(NodeSpec::channel_adapter(guid, guid, ""));
            topology.link((switch, 3), (adapter, 1), LinkRate::default());
        }
        let fabric = Fabric::new(&topology).unwrap();
        let mut managed = Managed::new(fabric, Guid::new(10), Config::default());
        let mut now = Duration::ZERO;
        while managed.manager.report().sweeps == 0 {
            let mut impostor = Impostor {
                link: &mut managed.link,
                is: Guid::new(is),
                says: Guid::new(says),
            };
            now = managed.manager.poll(now, &mut impostor).unwrap();
        }
        let errors = &managed.manager.report().errors;
        let expected = format!("two nodes have the GUID {}, one at ", Guid::new(says));
        assert!(
            errors.iter().any(|error| error.starts_with(&expected)),
            "{errors:?}"
        );
        // The rest is managed.
        let fabric = &managed.link.fabric;
        let to = fabric.port_by_guid(Guid::new(11)).unwrap();
        let lid = fabric.port_info(to).unwrap().lid;
        let route = fabric.resolve(managed.link.station.port, lid, Sl::default(), None);
        assert_eq!(route.unwrap().port, to);
    }
}

/// Lanes, weights and limit are where the agents keep them, and are set once.
#[test]
fn quality_of_service() {
    let weight = |vl, weight| VlWeight {
        vl: Vl::new(vl),
        weight,
    };
    let config = Config {
        sl_to_vl: Some(SlToVl::modulo(2)),
        max_lanes: Some(2),
        arbitration: Some(Arbitration::parse(7, "1:20", "0:4,1:8").unwrap()),
        ..Config::default()
    };
    let (mut managed, layout) = Managed::hypervisors(2, 1, config);
    managed.settle();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    let fabric = &mut managed.link.fabric;
    let vf = fabric.port_by_guid(layout.vf_guid(0, 0)).unwrap();
    let facing = fabric.peer(vf).unwrap();
    for port in [vf, facing] {
        let info = fabric.port_info(port).unwrap();
        assert_eq!((info.operational_vls, info.vl_high_limit), (2, 7), "{port}");
        let [low, high] = [1u32, 3].map(|half| {
            let number = if port == vf { 0 } else { u32::from(port.port) };
            let request = Request {
                destination: Destination::Directed(Route::default()),
                method: Method::GET,
                attribute: AttributeId::VL_ARBITRATION,
                modifier: half << 16 | number,
                transaction: 1,
                m_key: 0,
                data: [0; 64],
            };
            let answer = fabric.local_mad(port, &request.to_bytes()).unwrap();
            let smp = Smp::new_checked(&answer[..]).unwrap();
            VlArbitration::parse(smp.data())
        });
        assert_eq!(low.0[..3], [weight(0, 4), weight(1, 8), weight(0, 0)]);
        assert_eq!(high.0[..2], [weight(1, 20), weight(0, 0)]);
    }
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(managed.manager.report().sets, 0);
}
