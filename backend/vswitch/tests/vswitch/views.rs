//! Views of made-up subnets, looked at as a guest can: by packets.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use fabric::PortRef;
use hca::VfId;
use ibvswitch_vswitch::model::{AddressModel, Model};
use ibvswitch_vswitch::model::{KeyChoice, RoutingChoice, Vf, View, derive_guid};
use ibvswitch_vswitch::{Input, LinkAction, Reason};
use proptest::prelude::*;
use wire::attribute::{LinearBlock, NodeInfo, NodeType, PKeyBlock, PortInfo};
use wire::mad::{AttributeId, Method, Status};
use wire::smp::{DATA, Destination, Request, Route, Smp};
use wire::{Guid, Lid, MadPacket, PKey, PortState, Qpn, Sl};

use crate::lab::Lab;

/// The answer to a question that a guest sends from its queue pair 0.
fn ask(
    lab: &Lab,
    vf: usize,
    to: &Destination,
    method: Method,
    attribute: AttributeId,
    modifier: u32,
) -> Option<(Status, [u8; DATA])> {
    let request = Request {
        destination: to.clone(),
        method,
        attribute,
        modifier,
        transaction: 7,
        m_key: 0,
        data: [0; DATA],
    };
    let packet = MadPacket::smp(Lid::NONE, request.dlid(), request.to_bytes());
    assert_eq!((packet.src_qp, packet.dst_qp), (Qpn::QP0, Qpn::QP0));
    let answers = lab.send(vf, packet);
    let [answer] = &answers[..] else {
        assert_eq!(answers, []);
        return None;
    };
    let smp = Smp::new_checked(&answer.mad[..]).expect("is one");
    assert_eq!(smp.mad().method(), Method::GET_RESPONSE);
    Some((smp.mad().status(), *smp.data()))
}

fn get(
    lab: &Lab,
    vf: usize,
    to: &Destination,
    attribute: AttributeId,
    modifier: u32,
) -> Option<[u8; DATA]> {
    let (status, data) = ask(lab, vf, to, Method::GET, attribute, modifier)?;
    status.is_ok().then_some(data)
}

fn directed(route: &[u8]) -> Destination {
    Destination::Directed(Route::new(route).expect("is short"))
}

/// A node as somebody finds it: a route to it, what it is, and its ports.
struct Found {
    route: Vec<u8>,
    info: NodeInfo,
    ports: BTreeMap<u8, PortInfo>,
}

/// All nodes that a guest can find, as a discovering manager finds them.
fn discover(lab: &Lab, vf: usize) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    let mut waiting = vec![Vec::new()];
    while let Some(route) = waiting.pop() {
        let to = directed(&route);
        let Some(data) = get(lab, vf, &to, AttributeId::NODE_INFO, 0) else {
            continue;
        };
        let info = NodeInfo::parse(&data).expect("is right");
        if { &found }
            .iter()
            .any(|it| it.info.node_guid == info.node_guid)
        {
            continue;
        }
        let is_switch = info.node_type == NodeType::Switch;
        let numbers = u8::from(!is_switch)..=info.num_ports;
        let ports = numbers.map(|port| {
            let data = get(lab, vf, &to, AttributeId::PORT_INFO, port.into());
            let data = data.expect("has such a port");
            (port, PortInfo::parse(&data).expect("is right"))
        });
        let ports: BTreeMap<u8, PortInfo> = ports.collect();
        for (&port, of) in &ports {
            if port != 0 && (is_switch || route.is_empty()) && of.port_state != PortState::Down {
                waiting.push([&route[..], &[port]].concat());
            }
        }
        found.push(Found { route, info, ports });
    }
    found
}

/// Identifiers of a cluster's VMs.
struct Own {
    guids: BTreeSet<Guid>,
    lids: BTreeSet<Lid>,
    pkeys: BTreeSet<u16>,
}

fn own(model: &Model, cluster: usize) -> Own {
    let vms = || {
        let vfs = model.vfs().map(|(_, vf)| vf);
        vfs.filter(move |vf| vf.cluster.is_some_and(|(of, _)| of == cluster))
    };
    let pkeys = vms().flat_map(|vf| {
        if vf.virtual_pkeys.is_empty() {
            vf.pkeys.clone()
        } else {
            vf.virtual_pkeys.clone()
        }
    });
    Own {
        guids: vms().map(|vf| vf.guid).collect(),
        lids: vms()
            .filter_map(|vf| vf.cluster.map(|(_, lid)| lid))
            .chain([model.clusters[cluster].sm_lid])
            .collect(),
        // What every node is a member of from the start.
        pkeys: pkeys.map(|pkey| pkey.value()).chain([0xffff]).collect(),
    }
}

/// Looks at everything in sight of a VF, whatever attribute and modifier, for what is another's.
fn look_for_strangers(lab: &Lab, model: &Model, vf: usize, cluster: usize) {
    let own = own(model, cluster);
    let strangers: BTreeSet<[u8; 8]> = lab.vswitch.inspect(|fabric| {
        let nodes = fabric.nodes().flat_map(|node| {
            let ports = (0..=1).map(move |port| PortRef { node, port });
            ports.filter_map(|port| fabric.node_info(port))
        });
        let guids = nodes.flat_map(|info| [info.node_guid, info.port_guid, info.system_image_guid]);
        let manager = fabric.node_info(lab.vswitch.manager_ports()[0]);
        let manager = manager.expect("is there").port_guid;
        let guids = guids.filter(|guid| !own.guids.contains(guid) && *guid != manager);
        guids.map(|guid| guid.value().to_be_bytes()).collect()
    });
    let found = discover(lab, vf);
    let lids: BTreeSet<Lid> = found
        .iter()
        .flat_map(|node| node.ports.values().map(|port| port.lid))
        .collect();
    let adapters = found
        .iter()
        .filter(|node| node.info.node_type != NodeType::Switch);
    for adapter in adapters {
        let lid = adapter.ports[&1].lid;
        assert!(own.lids.contains(&lid), "an adapter with LID {lid}");
    }
    for node in &found {
        let to = directed(&node.route);
        for port in node.ports.values() {
            let manager = model.clusters[cluster].sm_lid;
            assert!(
                [manager, Lid::NONE].contains(&port.master_sm_lid),
                "{port:?}"
            );
            assert_eq!((port.m_key, port.lmc), (0, 0));
        }
        let attributes = (0..0x40).chain([0xff00, 0xff10, 0xff30]).map(AttributeId);
        for attribute in attributes {
            let last = node.info.num_ports;
            let modifiers: Vec<u32> = match attribute {
                AttributeId::LINEAR_FORWARDING => (0..768).chain([1024, 4095]).collect(),
                AttributeId::MULTICAST_FORWARDING => (0..32).collect(),
                AttributeId::P_KEY_TABLE => (0..=last)
                    .flat_map(|port| (0..4).map(move |block| u32::from(port) << 16 | block))
                    .collect(),
                AttributeId::VL_ARBITRATION => (0..=last)
                    .flat_map(|port| (1..5).map(move |half| half << 16 | u32::from(port)))
                    .collect(),
                AttributeId::SL_TO_VL => (0..=last).map(|port| 0x100 | u32::from(port)).collect(),
                _ => (0..=u32::from(last) + 1).collect(),
            };
            for modifier in modifiers {
                let Some(data) = get(lab, vf, &to, attribute, modifier) else {
                    continue;
                };
                for window in data.windows(8) {
                    let stranger = strangers.contains(window);
                    assert!(
                        !stranger,
                        "{attribute} {modifier} at {:?}: {data:x?}",
                        node.route
                    );
                }
                match attribute {
                    AttributeId::LINEAR_FORWARDING if modifier < 768 => {
                        for (lid, port) in (64 * modifier as u16..).zip(data) {
                            let known = lids.contains(&Lid::new(lid));
                            assert!(known || port == LinearBlock::DROP, "LID {lid}");
                            let way = node.ports.get(&port);
                            let leads_out = way.is_some_and(|it| it.port_state == PortState::Down);
                            assert!(!leads_out, "LID {lid} by {port} at {:?}", node.route);
                        }
                    }
                    AttributeId::MULTICAST_FORWARDING => assert_eq!(data, [0; DATA]),
                    AttributeId::P_KEY_TABLE => {
                        let keys = PKeyBlock::parse(&data).0.map(PKey::value);
                        for key in keys.into_iter().filter(|key| *key != 0) {
                            assert!(own.pkeys.contains(&key), "P_Key {key:x}");
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    // Nobody else answers, by whatever LID that there may be here.
    for lid in (0..512)
        .chain(0xbf00..=0xc100)
        .chain([0xffff])
        .map(Lid::new)
    {
        let to = Destination::Lid(lid);
        let answer = get(lab, vf, &to, AttributeId::NODE_INFO, 0);
        if let Some(data) = answer {
            let guid = NodeInfo::parse(&data).expect("is right").node_guid;
            assert!(
                found.iter().any(|node| node.info.node_guid == guid),
                "LID {lid}"
            );
        }
    }
}

/// The way that the tables of a guest's view give packets for a LID: the ports by which they leave nodes,
/// the node GUIDs of these, and the information of the port where they arrive.
fn way(lab: &Lab, vf: usize, lid: Lid) -> (Vec<u8>, Vec<Guid>, PortInfo) {
    let (mut route, mut ports, mut guids) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let to = directed(&route);
        let read = |attribute, modifier| get(lab, vf, &to, attribute, modifier);
        let node = read(AttributeId::NODE_INFO, 0).expect("is there");
        let node = NodeInfo::parse(&node).expect("is right");
        let port = if node.node_type == NodeType::Switch {
            let block = u32::from(lid.value() / 64);
            let table = read(AttributeId::LINEAR_FORWARDING, block).expect("is there");
            table[usize::from(lid.value() % 64)]
        } else if route.is_empty() {
            1
        } else {
            let port = node.local_port_num.into();
            let info = read(AttributeId::PORT_INFO, port).expect("is there");
            return (ports, guids, PortInfo::parse(&info).expect("is right"));
        };
        assert!(route.len() < 32, "LID {lid} by {ports:?}");
        route.push(port);
        ports.push(port);
        guids.push(node.node_guid);
    }
}

/// Between any two VMs the way that the view shows is the one that packets take, and each switch has a
/// name of its own.
fn compare_ways(lab: &Lab, model: &Model, cluster: usize) {
    let members: Vec<(usize, Lid)> = model
        .vfs()
        .enumerate()
        .filter_map(|(index, (_, vf))| {
            let (of, lid) = vf.cluster?;
            (of == cluster).then_some((index, lid))
        })
        .collect();
    let mut names: HashMap<Guid, Guid> = HashMap::new();
    for &(from, _) in &members {
        for &(to, lid) in members.iter().filter(|(to, _)| *to != from) {
            let physical = lab.vswitch.physical_lid(VfId(to as u16));
            let port = lab.vswitch.port(VfId(from as u16)).expect("is there");
            let (ports, guids): (Vec<u8>, Vec<Guid>) = lab.vswitch.inspect(|fabric| {
                let way = fabric.trace(port, physical, Sl::default(), None);
                let way = way.expect("is routed").into_iter();
                way.map(|(port, _)| {
                    let info = fabric.node_info(port).expect("is there");
                    (port.port, info.node_guid)
                })
                .unzip()
            });
            let (seen_ports, seen_guids, end) = way(lab, from, lid);
            assert_eq!(ports, seen_ports, "from {from} to LID {lid}");
            assert_eq!(end.lid, lid);
            for (&physical, &seen) in guids.iter().zip(&seen_guids).skip(1) {
                assert_ne!(physical, seen);
                assert_eq!(*names.entry(physical).or_insert(seen), seen);
            }
        }
    }
    let different: BTreeSet<&Guid> = names.values().collect();
    assert_eq!(different.len(), names.len());
}

/// `switches` switches with cables among them, VMs of three clusters spread over hypervisors, and
/// VMs of none. Clusters 0 and 1 have views.
fn made_up(
    switches: usize,
    cables: &[(usize, usize)],
    hypervisors: &[usize],
    vms: &[(usize, usize)],
) -> Model {
    let names: Vec<String> = (0..switches).map(|switch| format!("s{switch}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut model = Model::new(&names);
    let views = [
        (9, View::Mirror),
        (0xbfff, View::Mirror),
        (77, View::OwnPort),
    ];
    for (cluster, (sm_lid, view)) in views.into_iter().enumerate() {
        model.add_cluster(&format!("c{cluster}"), Lid::new(sm_lid), view);
    }
    // A tree, so that all are connected, and more.
    let tree = (1..switches).map(|switch| (switch / 2, switch));
    let more = cables.iter().map(|&(a, b)| (a % switches, b % switches));
    for (a, b) in tree.chain(more.filter(|(a, b)| a != b)) {
        model.add_cable(a, b);
    }
    for (hypervisor, switch) in hypervisors.iter().enumerate() {
        let here = vms.iter().enumerate();
        let here = here.filter(|(_, vm)| vm.0 % hypervisors.len() == hypervisor);
        let vf = |(at, &(_, cluster)): (usize, &(usize, usize))| {
            let vf = Vf {
                pkeys: vec![PKey::new([0x9111, 0xa222, 0xb333, 0xc444][cluster])],
                ..Vf::new(&format!("v{at}"))
            };
            if cluster < 3 {
                Vf {
                    virtual_pkeys: vec![PKey::new(0x8777)],
                    // Not that of a manager.
                    ..vf.in_cluster(cluster, 10 + at as u16)
                }
            } else {
                vf
            }
        };
        let name = format!("h{hypervisor}");
        model.add_hypervisor(&name, switch % switches, here.map(vf).collect());
    }
    model
}

/// The first VF of a cluster that may ask.
fn asker(model: &Model, cluster: usize) -> Option<usize> {
    model.vfs().position(|(_, vf)| {
        let of = vf.cluster.map(|(of, _)| of);
        of == Some(cluster) && vf.smp != fabric::SmpAccess::Deny
    })
}

fn examine(model: &Model) {
    let lab = Lab::new(model);
    for cluster in [0, 1] {
        if let Some(vf) = asker(model, cluster) {
            compare_ways(&lab, model, cluster);
            look_for_strangers(&lab, model, vf, cluster);
        }
    }
    if let Some(vf) = asker(model, 2) {
        let neighbour = ask(
            &lab,
            vf,
            &directed(&[1]),
            Method::GET,
            AttributeId::NODE_INFO,
            0,
        );
        assert_eq!(neighbour, None, "a cluster without a view");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn nobody_elses_and_the_ways_there_are(
        switches in 1_usize..7,
        cables in prop::collection::vec((0_usize..7, 0_usize..7), 0..8),
        hypervisors in prop::collection::vec(0_usize..7, 1..5),
        vms in prop::collection::vec((0_usize..5, 0_usize..4), 2..9),
        managed in 0..4,
    ) {
        let mut model = made_up(switches, &cables, &hypervisors, &vms);
        match managed {
            0 => model.manager.routing = RoutingChoice::UpDown,
            1 => {
                model.manager.lmc = 2;
                model.manager.m_key = KeyChoice::PerNode;
                model.manager.enforce_partitions = true;
            }
            2 => model.fabric.model = AddressModel::Dynamic,
            _ => {}
        }
        examine(&model);
    }
}

/// Two spines reach each other over the leaves of others, which the view leaves out.
#[test]
fn tables_lead_to_nobody_elses_switches() {
    let leaves = ["other1", "other2", "other3", "l1", "l2"];
    let mut model = Model::new(&["s1", "s2", "other1", "other2", "other3", "l1", "l2"]);
    model.subnets[0].manager.switch = 5;
    model.add_cluster("c", Lid::new(1), View::Mirror);
    for (at, leaf) in leaves.into_iter().enumerate() {
        model.add_cable(2 + at, 0);
        model.add_cable(2 + at, 1);
        let vf = Vf::new(&format!("{leaf}-vm"));
        let vf = if leaf.starts_with('l') {
            vf.in_cluster(0, 2 + at as u16)
        } else {
            vf
        };
        model.add_hypervisor(&format!("{leaf}-h"), 2 + at, vec![vf]);
    }
    let lab = Lab::new(&model);
    look_for_strangers(&lab, &model, 3, 0);
    let found = discover(&lab, 3);
    let switches = found
        .iter()
        .filter(|node| node.info.node_type == NodeType::Switch);
    assert_eq!(switches.count(), 2 + 2 + 2, "spines, leaves, vSwitches");
}

/// In a ring of six with one root, up*/down* goes the long way from 2 to 4, since 3 is below both.
#[test]
fn ways_that_are_not_the_shortest_are_shown() {
    let mut model = Model::new(&["s0", "s1", "s2", "s3", "s4", "s5"]);
    for at in 0..6 {
        model.add_cable(at, (at + 1) % 6);
    }
    model.manager.routing = RoutingChoice::UpDown;
    model.manager.roots = vec![derive_guid("switch", "s0")];
    model.subnets[0].manager.switch = 3;
    model.add_cluster("c", Lid::new(1), View::Mirror);
    model.add_hypervisor("h1", 2, vec![Vf::new("a").in_cluster(0, 2)]);
    model.add_hypervisor("h2", 4, vec![Vf::new("b").in_cluster(0, 3)]);
    let lab = Lab::new(&model);
    compare_ways(&lab, &model, 0);
    let found = discover(&lab, 0);
    let switches = found
        .iter()
        .filter(|node| node.info.node_type == NodeType::Switch);
    assert_eq!(switches.count(), 6 + 2);
}

/// Where some VMs share ports, the adapters of those are switches in the view.
#[test]
fn vms_at_shared_ports_are_seen_apart() {
    let with = |vf: Vf, pkey| Vf {
        pkeys: vec![PKey::new(pkey)],
        ..vf
    };
    let [p, q] = [0x9111, 0xa222];
    let mut model = Model::new(&["sw1"]);
    model.fabric.model = AddressModel::Hybrid;
    model.manager.lmc = 2;
    model.add_cluster("c", Lid::new(1), View::Mirror);
    let vfs = vec![
        with(Vf::new("a").in_cluster(0, 2), p),
        with(Vf::new("b").shared().in_cluster(0, 3), p),
        with(Vf::new("stranger").shared(), q),
    ];
    model.add_hypervisor("h1", 0, vfs);
    let vfs = vec![
        with(Vf::new("d").shared().in_cluster(0, 4), p),
        with(Vf::new("e").shared().in_cluster(0, 5), p),
    ];
    model.add_hypervisor("h2", 0, vfs);
    let lab = Lab::new(&model);
    let found = discover(&lab, 0);
    let adapters = found
        .iter()
        .filter(|node| node.info.node_type != NodeType::Switch);
    let lids: BTreeSet<Lid> = adapters.map(|node| node.ports[&1].lid).collect();
    assert_eq!(lids, own(&model, 0).lids);
    // The switch, two vSwitches, two adapters.
    assert_eq!(found.len() - lids.len(), 5);
    look_for_strangers(&lab, &model, 0, 0);
    for &lid in lids.iter().filter(|lid| lid.value() > 1) {
        let (.., end) = way(&lab, 0, lid);
        assert_eq!(end.lid, lid);
    }
}

/// Two leaves and two spines, a VM of the cluster at each leaf, and a stranger.
fn changing() -> Model {
    let mut model = Model::new(&["l1", "l2", "s1", "s2"]);
    model.fabric.model = AddressModel::Dynamic;
    model.add_cluster("c", Lid::new(1), View::Mirror);
    for (leaf, spine) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        model.add_cable(leaf, spine);
    }
    let vfs = vec![Vf::new("a").in_cluster(0, 2), Vf::new("stranger")];
    model.add_hypervisor("h1", 0, vfs);
    model.add_hypervisor("h2", 1, vec![Vf::new("b").in_cluster(0, 3)]);
    model
}

#[test]
fn changes_show_at_the_next_question() {
    let lab = Lab::new(&changing());
    let nodes = || {
        let found = discover(&lab, 0);
        let is_switch = |node: &&Found| node.info.node_type == NodeType::Switch;
        let switches = found.iter().filter(is_switch).count();
        (switches, found.len() - switches)
    };
    // A minute, in which the manager waits for answers in vain, and then sweeps.
    let settle = || lab.pass(Duration::from_secs(60));
    let spine = |action| {
        let changed = lab.vswitch.change_link(&lab.plan, ("s2", 1), action);
        changed.expect("is there");
    };
    // The manager's host, too.
    assert_eq!(nodes(), (6, 3));
    // A spine that leads nowhere gives no choice.
    spine(LinkAction::Down);
    settle();
    assert_eq!(nodes(), (5, 3));
    spine(LinkAction::Up);
    settle();
    assert_eq!(nodes(), (6, 3));
    // A VM that ends takes the ways to it along.
    lab.vswitch.handle(Input::Presence(VfId(2), false));
    settle();
    assert_eq!(nodes(), (2, 2));
    lab.vswitch.handle(Input::Presence(VfId(2), true));
    settle();
    assert_eq!(nodes(), (6, 3));
    // Names stay.
    let guids = || -> BTreeSet<Guid> {
        let found = discover(&lab, 0);
        found.iter().map(|node| node.info.node_guid).collect()
    };
    assert_eq!(guids(), guids());
}

#[test]
fn nothing_can_be_set_and_who_tries_is_told() {
    let lab = Lab::new(&changing());
    let before = lab.vswitch.filter_report(VfId(0)).refused;
    for route in [&[][..], &[1], &[1, 1]] {
        let answer = ask(
            &lab,
            0,
            &directed(route),
            Method::SET,
            AttributeId::PORT_INFO,
            1,
        );
        let status = answer.map(|(status, _)| status);
        assert_eq!(status, Some(Status::UNSUPPORTED_ATTRIBUTE));
    }
    let after = lab.vswitch.filter_report(VfId(0)).refused;
    assert_eq!((before, after), (vec![], vec![(Reason::Smp, 3)]));
}
