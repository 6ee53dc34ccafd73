//! The answer of `resolve` agrees with the way of a packet, whatever state the fabric is in, and stays true as long
//! as the generation stands still.

use std::time::Duration;

use crate::common::{ALL_EXTERNAL, Host, SWITCH, VF, VSWITCH};
use ibvswitch_fabric::{
    LinkFault, NoRoute, Nodes, Output, Owner, PortRef, Route, SmpAccess, Stalled,
};
use proptest::prelude::*;
use wire::attribute::{LinearBlock, MulticastBlock, PKeyBlock, PortInfo, SlToVl, SwitchInfo};
use wire::mad::{AttributeId, Method, SIZE};
use wire::smp::DATA;
use wire::{Lid, MadPacket, PKey, PortState, Sl, Vl};

/// A change that a subnet manager, or somebody at the cables, may make.
#[derive(Debug, Clone)]
enum Change {
    Cable(usize, bool),
    State(usize, PortState),
    Lid(u16, u8),
    Forwarding(bool, usize, u8),
    Lane(bool, u8, u8, u8),
    Partition(bool, u8, u16, bool),
    Member(bool, u16),
    Group(bool, u16),
}

fn change() -> impl Strategy<Value = Change> {
    let end = 0..ALL_EXTERNAL.len();
    let state = prop::sample::select(vec![PortState::Down, PortState::Armed, PortState::Active]);
    let key = prop::sample::select(vec![0x7fffu16, 0xffff, 0x8001]);
    let lane = prop::sample::select(vec![0u8, 1, 15]);
    let vswitch = any::<bool>;
    prop_oneof![
        (0usize..3, any::<bool>()).prop_map(|(end, whole)| Change::Cable(end, whole)),
        (end, state).prop_map(|(end, state)| Change::State(end, state)),
        (1u16..8, 0u8..2).prop_map(|(lid, lmc)| Change::Lid(lid, lmc)),
        (vswitch(), 1usize..8, 0u8..5).prop_map(|(v, lid, port)| Change::Forwarding(v, lid, port)),
        (vswitch(), 0u8..4, 0u8..4, lane)
            .prop_map(|(v, from, to, vl)| { Change::Lane(v, from, to, vl) }),
        (vswitch(), 1u8..4, key, any::<bool>())
            .prop_map(|(v, port, key, inbound)| { Change::Partition(v, port, key, inbound) }),
        (
            any::<bool>(),
            prop::sample::select(vec![0x7fffu16, 0xffff, 0x8001, 0x0001])
        )
            .prop_map(|(second, key)| Change::Member(second, key)),
        (vswitch(), 0u16..16).prop_map(|(v, ports)| Change::Group(v, ports)),
    ]
}

/// Makes a change. What lies beyond a broken cable does not hear of it: a state like any other.
fn apply(host: &mut Host, change: &Change) {
    let switch = |vswitch| if vswitch { VSWITCH } else { SWITCH };
    match *change {
        Change::Cable(end, whole) => {
            let (a, b) = (host.vf(0), host.vf(1));
            let node = host.fabric.peer(a).unwrap().node;
            let uplink = PortRef { node, port: 1 };
            host.fabric.set_cable([a, b, uplink][end], whole);
        }
        Change::State(end, state) => {
            let (route, port) = ALL_EXTERNAL[end];
            change_port(host, route, port, |info| info.port_state = state);
        }
        Change::Lid(lid, lmc) => change_port(host, VF, 1, |info| {
            info.lid = Lid::new(lid);
            info.lmc = lmc;
        }),
        Change::Forwarding(vswitch, lid, port) => {
            let mut block = LinearBlock::default();
            let ports = [[2, 0, 1, 1, 1], [1, 1, 0, 2, 3]][usize::from(vswitch)];
            block.0[1..6].copy_from_slice(&ports);
            block.0[lid] = port;
            let attribute = AttributeId::LINEAR_FORWARDING;
            set(host, switch(vswitch), attribute, 0, block.0);
        }
        Change::Lane(vswitch, from, to, vl) => {
            let mut table = SlToVl::default();
            table.0[0] = Vl::new(vl);
            let modifier = u32::from(from) << 8 | u32::from(to);
            let attribute = AttributeId::SL_TO_VL;
            set(host, switch(vswitch), attribute, modifier, table.to_bytes());
        }
        Change::Member(second, key) => {
            let mut keys = PKeyBlock::default();
            keys.0[0] = PKey::new(key);
            let route: &[u8] = if second { &[1, 1, 3] } else { VF };
            let attribute = AttributeId::P_KEY_TABLE;
            set(host, route, attribute, 0, keys.to_bytes());
        }
        Change::Group(vswitch, ports) => {
            let mut block = MulticastBlock::default();
            block.0[0] = ports;
            let attribute = AttributeId::MULTICAST_FORWARDING;
            set(host, switch(vswitch), attribute, 0, block.to_bytes());
        }
        Change::Partition(vswitch, port, key, inbound) => {
            let mut keys = PKeyBlock::default();
            keys.0[0] = PKey::new(key);
            let (route, modifier) = (switch(vswitch), u32::from(port) << 16);
            let attribute = AttributeId::P_KEY_TABLE;
            set(host, route, attribute, modifier, keys.to_bytes());
            change_port(host, route, port, |info| {
                info.partition_enforcement_inbound = inbound;
                info.partition_enforcement_outbound = !inbound;
            });
        }
    }
}

fn set(
    host: &mut Host,
    route: &[u8],
    attribute: AttributeId,
    modifier: u32,
    data: [u8; DATA],
) -> Option<[u8; DATA]> {
    let asked = crate::common::request(route, Method::SET, attribute, modifier, data);
    host.ask(&asked).map(|(_, data)| data)
}

fn change_port(host: &mut Host, route: &[u8], port: u8, change: impl Fn(&mut PortInfo)) {
    let (attribute, modifier) = (AttributeId::PORT_INFO, u32::from(port));
    let asked = crate::common::request(route, Method::GET, attribute, modifier, [0; DATA]);
    if let Some((_, mut data)) = host.ask(&asked)
        && let Ok(mut info) = PortInfo::parse(&data)
    {
        info.port_state = PortState::NoChange;
        change(&mut info);
        info.emit(&mut data);
        set(host, route, attribute, modifier, data);
    }
}

/// A change of paths, by packets or by those who have the fabric in hand.
#[derive(Debug, Clone)]
enum Step {
    Packets(Change),
    Fault(usize, Option<LinkFault>),
    /// The last LID that a switch forwards.
    Top(bool, u16),
    Exchange,
    Forget(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let stalled = vec![
        Stalled::No,
        Stalled::Outbound,
        Stalled::Inbound,
        Stalled::Both,
    ];
    let fault = (0u64..3, prop::sample::select(stalled)).prop_map(|(delay, stalled)| LinkFault {
        delay: Duration::from_micros(delay),
        stalled,
        ..LinkFault::default()
    });
    let fault = prop::option::of(fault);
    prop_oneof![
        6 => change().prop_map(Step::Packets),
        2 => (0usize..3, fault).prop_map(|(at, fault)| Step::Fault(at, fault)),
        1 => (any::<bool>(), 0u16..8).prop_map(|(vswitch, top)| Step::Top(vswitch, top)),
        1 => Just(Step::Exchange),
        1 => any::<bool>().prop_map(Step::Forget),
    ]
}

fn take(host: &mut Host, step: &Step) {
    let functions = [host.vf(0), host.vf(1)];
    match step {
        Step::Packets(change) => apply(host, change),
        Step::Fault(at, fault) => {
            let at = [host.port, functions[0], functions[1]][*at];
            host.fabric.set_link_fault(at, *fault);
        }
        Step::Top(vswitch, top) => {
            let route = if *vswitch { VSWITCH } else { SWITCH };
            let attribute = AttributeId::SWITCH_INFO;
            let asked = crate::common::request(route, Method::GET, attribute, 0, [0; DATA]);
            // Nobody answers beyond a broken cable.
            if let Some((_, mut data)) = host.ask(&asked)
                && let Ok(mut info) = SwitchInfo::parse(&data)
            {
                info.linear_fdb_top = *top;
                info.emit(&mut data);
                set(host, route, attribute, 0, data);
            }
        }
        Step::Exchange => assert!(host.fabric.exchange(functions[0], functions[1])),
        Step::Forget(second) => host.fabric.forget_subnet(functions[usize::from(*second)]),
    }
}

/// A path, and a tree: all that is found of them.
type Found = (Vec<PortRef>, Result<Route, NoRoute>);
type Tree = (Vec<(PortRef, Vl)>, Vec<Route>);

/// Every path that anybody could ask for.
fn all_paths(nodes: &Nodes) -> (Vec<Found>, Vec<Tree>) {
    let (mut paths, mut trees) = (Vec::new(), Vec::new());
    for from in nodes.nodes().map(|node| PortRef { node, port: 1 }) {
        for (key, sl) in [(0x7fff, 0), (0xffff, 0), (0x8001, 0), (0xffff, 3)] {
            let (key, sl) = (Some(PKey::new(key)), Sl::new(sl));
            let lids = (0..9).map(|lid| Lid::new(lid).into());
            paths.extend(lids.map(|lid| nodes.follow(from, lid, sl, key)));
            let group = Lid::MULTICAST_FIRST;
            let tree = nodes.trace_multicast(from, group, sl, key);
            let reached = nodes.resolve_multicast(from, group, sl, key);
            trees.push((tree, reached));
        }
    }
    (paths, trees)
}

/// All that can be asked about ports and nodes.
fn all_ports(nodes: &Nodes) -> Vec<impl PartialEq + std::fmt::Debug + use<>> {
    let ports = nodes
        .nodes()
        .flat_map(|node| (0..4).map(move |port| PortRef { node, port }));
    let asked = |port| {
        let tables = (nodes.guids(port), nodes.pkeys(port));
        (
            nodes.port_info(port),
            nodes.node_info(port),
            nodes.node_description(port.node),
            (tables.0.map(<[_]>::to_vec), tables.1.map(<[_]>::to_vec)),
            (
                nodes.virtual_lid(port),
                nodes.peer(port),
                nodes.link_fault(port),
            ),
        )
    };
    ports.map(asked).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The data plane keeps paths until the generation rises, and finds them in a snapshot, in which
    /// nothing changes any more.
    #[test]
    fn paths_last_as_long_as_their_generation(steps in prop::collection::vec(step(), 0..24)) {
        let mut host = Host::new();
        host.bring_up();
        let mut kept = (host.fabric.generation(), all_paths(&host.fabric));
        let mut snapshots: Vec<(Nodes, _)> = Vec::new();
        for step in &steps {
            let snapshot: Nodes = (*host.fabric).clone();
            snapshots.push((snapshot, all_ports(&host.fabric)));
            take(&mut host, step);
            host.fabric.run();
            let now = (host.fabric.generation(), all_paths(&host.fabric));
            if kept.0 == now.0 {
                prop_assert_eq!(&kept.1, &now.1, "after {:?}", step);
            }
            let (snapshot, ports) = &snapshots[snapshots.len() - 1];
            prop_assert_eq!(&kept.1, &all_paths(snapshot), "before {:?}", step);
            if snapshot.revision() == host.fabric.revision() {
                prop_assert_eq!(ports, &all_ports(&host.fabric), "after {:?}", step);
            }
            kept = now;
        }
        for (snapshot, ports) in &snapshots {
            prop_assert_eq!(ports, &all_ports(snapshot));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn resolved_as_walked(changes in prop::collection::vec(change(), 0..12)) {
        let mut host = Host::new();
        host.bring_up();
        for change in &changes {
            apply(&mut host, change);
        }
        let adapters = [host.port, host.vf(0), host.vf(1)];
        for port in adapters {
            host.fabric.set_owner(port, Owner::Consumer, SmpAccess::OwnPort);
        }
        while host.fabric.poll_output().is_some() {}
        // Packets that pass change no path.
        let snapshot: Nodes = (*host.fabric).clone();
        for from in adapters {
            // Which key a packet has says the sender's table.
            let key = host.fabric.pkeys(from).unwrap()[0];
            let takes = |host: &Host, port: PortRef| {
                let keys = host.fabric.pkeys(port).unwrap();
                keys.iter().any(|own| own.matches(key))
            };
            for (dlid, sl) in (0..9).flat_map(|lid| [(Lid::new(lid), 0), (Lid::new(lid), 3)]) {
                let sl = Sl::new(sl);
                let resolved = host.fabric.resolve(from, dlid, sl, Some(key));
                prop_assert_eq!(resolved, snapshot.resolve(from, dlid, sl, Some(key)));
                let packet = MadPacket::gmp(Lid::NONE, dlid, sl, key, [0; SIZE]);
                let arrived = arrivals(&mut host, from, packet);
                // A switch takes the packet in silence; an adapter checks the key itself.
                let expected = resolved
                    .ok()
                    .map(|route| route.port)
                    .filter(|&to| to.port != 0 && takes(&host, to));
                let expected: Vec<_> = expected.into_iter().collect();
                prop_assert_eq!(arrived, expected, "{} to {}: {:?}", from, dlid, resolved);
            }
            let group = Lid::MULTICAST_FIRST;
            let sl = Sl::default();
            let reached = host.fabric.resolve_multicast(from, group, sl, Some(key));
            prop_assert_eq!(&reached, &snapshot.resolve_multicast(from, group, sl, Some(key)));
            let ports = reached.iter().map(|route| route.port);
            let expected: Vec<_> = ports.filter(|&port| takes(&host, port)).collect();
            let packet = MadPacket::gmp(Lid::NONE, group, sl, key, [0; SIZE]);
            let arrived = arrivals(&mut host, from, packet);
            prop_assert_eq!(arrived, expected, "{} to the group", from);
        }
    }
}

/// The ports that a packet is delivered to.
fn arrivals(host: &mut Host, from: PortRef, packet: MadPacket) -> Vec<PortRef> {
    host.fabric.inject(from, packet);
    host.fabric.run();
    let mut arrived = Vec::new();
    while let Some(output) = host.fabric.poll_output() {
        if let Output::Deliver { port, .. } = output {
            arrived.push(port);
        }
    }
    arrived.sort();
    arrived
}
