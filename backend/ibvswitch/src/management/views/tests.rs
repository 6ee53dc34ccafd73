//! Views of made-up subnets, looked at as a guest can: by packets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;
use wire::attribute::{LinearBlock, NodeInfo, NodeType, PKeyBlock, PortInfo};
use wire::mad::{AttributeId, Status};
use wire::smp::{DATA, Destination, Request, Route, Smp};
use wire::{PortState, Qpn, Sl};

use super::*;
use crate::config::Directories;
use crate::topology::Plan;

fn parse(text: &str) -> Config {
    let dirs = Directories {
        chosen: None,
        fallback: Path::new("/run/ibvswitch"),
    };
    Config::parse("f", text, dirs).unwrap_or_else(|problems| panic!("{text}\n{problems:?}"))
}

/// A subnet in operation, all VMs running.
fn subnet(text: &str) -> std::sync::Arc<Management> {
    let config = parse(text);
    let plan = Plan::new(&config);
    let management = Management::new(&config, &plan).expect("is right");
    management.bring_up();
    for index in 0..management.ports.len() {
        management.change_presence(VfId(index as u16), true);
    }
    management.bring_up();
    management
}

/// The answer to a question that a guest sends from its queue pair 0.
fn ask(
    management: &Management,
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
    let answers = management.send(VfId(vf as u16), packet);
    let [answer] = &answers[..] else {
        assert_eq!(answers, []);
        return None;
    };
    let smp = Smp::new_checked(&answer.mad[..]).expect("is one");
    assert_eq!(smp.mad().method(), Method::GET_RESPONSE);
    Some((smp.mad().status(), *smp.data()))
}

fn get(
    management: &Management,
    vf: usize,
    to: &Destination,
    attribute: AttributeId,
    modifier: u32,
) -> Option<[u8; DATA]> {
    let (status, data) = ask(management, vf, to, Method::GET, attribute, modifier)?;
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
fn discover(management: &Management, vf: usize) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    let mut waiting = vec![Vec::new()];
    while let Some(route) = waiting.pop() {
        let to = directed(&route);
        let Some(data) = get(management, vf, &to, AttributeId::NODE_INFO, 0) else {
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
            let data = get(management, vf, &to, AttributeId::PORT_INFO, port.into());
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

/// What a cluster's VMs are known by.
struct Own {
    guids: BTreeSet<Guid>,
    lids: BTreeSet<Lid>,
    pkeys: BTreeSet<u16>,
}

fn own(config: &Config, cluster: usize) -> Own {
    let vms = || {
        let vfs = config.vfs().map(|(_, vf)| vf);
        vfs.filter(move |vf| vf.cluster.is_some_and(|(of, _)| of == cluster))
    };
    let pkeys = vms().flat_map(|vf| match vf.virtual_pkeys.is_empty() {
        true => vf.pkeys.clone(),
        false => vf.virtual_pkeys.clone(),
    });
    Own {
        guids: vms().map(|vf| vf.guid).collect(),
        lids: vms()
            .filter_map(|vf| vf.cluster.map(|(_, lid)| lid))
            .chain([config.clusters[cluster].sm_lid])
            .collect(),
        // What every node is a member of from the start.
        pkeys: pkeys.map(|pkey| pkey.value()).chain([0xffff]).collect(),
    }
}

/// Looks at everything in sight of a VF, whatever attribute and modifier, for what is another's.
fn look_for_strangers(management: &Management, config: &Config, vf: usize, cluster: usize) {
    let own = own(config, cluster);
    let strangers: BTreeSet<[u8; 8]> = {
        let state = management.state.read();
        let nodes = state.fabric.nodes().flat_map(|node| {
            let ports = (0..=1).map(move |port| PortRef { node, port });
            ports.filter_map(|port| state.fabric.node_info(port))
        });
        let guids = nodes.flat_map(|info| [info.node_guid, info.port_guid, info.system_image_guid]);
        let manager = state.fabric.node_info(state.subnets[0].port);
        let manager = manager.expect("is there").port_guid;
        let guids = guids.filter(|guid| !own.guids.contains(guid) && *guid != manager);
        guids.map(|guid| guid.value().to_be_bytes()).collect()
    };
    let found = discover(management, vf);
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
            let manager = config.clusters[cluster].sm_lid;
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
                let Some(data) = get(management, vf, &to, attribute, modifier) else {
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
        let answer = get(management, vf, &to, AttributeId::NODE_INFO, 0);
        if let Some(data) = answer {
            let guid = NodeInfo::parse(&data).expect("is right").node_guid;
            assert!(
                found.iter().any(|node| node.info.node_guid == guid),
                "LID {lid}"
            );
        }
    }
}

/// Between any two VMs the way that the view shows is the one that packets take.
fn compare_ways(management: &Management, config: &Config, cluster: usize) {
    let members: Vec<(usize, Lid)> = config
        .vfs()
        .enumerate()
        .filter_map(|(index, (_, vf))| {
            let (of, lid) = vf.cluster?;
            (of == cluster).then_some((index, lid))
        })
        .collect();
    for &(from, _) in &members {
        for &(to, lid) in members.iter().filter(|(to, _)| *to != from) {
            let state = &*management.state.read();
            let port = management.ports[from];
            let (physical, _) =
                state
                    .shared
                    .address(VfId(to as u16), &state.fabric, management.ports[to]);
            let way = state.fabric.trace(port, physical, Sl::default(), None);
            let way = way.expect("is routed");
            let ports: Vec<u8> = way.iter().map(|(port, _)| port.port).collect();
            let guids = way.iter().map(|(port, _)| {
                let info = state.fabric.node_info(*port);
                info.expect("is there").node_guid
            });
            let guids: Vec<Guid> = guids.collect();
            let views = &management.views;
            views.renew(cluster, &state.scene(&management.ports));
            let names = {
                let views = views.views.lock();
                let view = views[cluster].as_ref();
                view.expect("a view").names.given.clone()
            };
            let compare = |mirror: &mut Mirror, host| {
                let start = mirror.host(host).expect("is there");
                let seen = mirror.fabric().trace(start, lid, Sl::default(), None);
                let seen = seen.expect("is routed in the view");
                let seen_ports: Vec<u8> = seen.iter().map(|(port, _)| port.port).collect();
                assert_eq!(ports, seen_ports, "from {from} to LID {lid}");
                for (physical, (port, _)) in guids.iter().zip(&seen).skip(1) {
                    let shown = mirror.fabric().node_info(*port).expect("is there");
                    assert_eq!(shown.node_guid, names[physical].guid);
                }
            };
            let asked = views.ask(cluster, VfId(from as u16), compare);
            asked.expect("a view");
        }
    }
}

/// `switches` switches with cables among them, VMs of three clusters spread over hypervisors, and
/// VMs of none. Clusters 0 and 1 have views.
fn config(
    switches: usize,
    cables: &[(usize, usize)],
    hypervisors: &[usize],
    vms: &[(usize, usize)],
    head: &str,
) -> String {
    let mut text = head.to_owned();
    for (cluster, view) in [(0, "mirror"), (1, "mirror"), (2, "own-port")] {
        text += &format!("[[cluster]]\nname = \"c{cluster}\"\nview = \"{view}\"\n");
        text += ["sm_lid = 9\n", "", ""][cluster];
    }
    text += "[partitions]\np0 = 0x1111\np1 = 0x2222\np2 = 0x3333\np3 = 0x4444\n";
    for switch in 0..switches {
        text += &format!("[[switch]]\nname = \"s{switch}\"\n");
    }
    // A tree, so that all are connected, and more.
    let tree = (1..switches).map(|switch| (switch / 2, switch));
    let more = cables.iter().map(|&(a, b)| (a % switches, b % switches));
    for (a, b) in tree.chain(more.filter(|(a, b)| a != b)) {
        text += &format!("[[link]]\nfrom = \"s{a}\"\nto = \"s{b}\"\n");
    }
    for (hypervisor, switch) in hypervisors.iter().enumerate() {
        let switch = switch % switches;
        text += &format!("[[hypervisor]]\nname = \"h{hypervisor}\"\nswitch = \"s{switch}\"\n");
        let here = vms.iter().enumerate();
        for (vm, &(_, cluster)) in here.filter(|(_, vm)| vm.0 % hypervisors.len() == hypervisor) {
            text += &format!("[[hypervisor.vf]]\nname = \"v{vm}\"\npkeys = [\"p{cluster}\"]\n");
            if cluster < 3 {
                text += &format!("cluster = \"c{cluster}\"\nvirtual_pkeys = [0x8777]\n");
            }
        }
    }
    text
}

/// The first VF of a cluster that may ask.
fn asker(config: &Config, cluster: usize) -> Option<usize> {
    config.vfs().position(|(_, vf)| {
        let of = vf.cluster.map(|(of, _)| of);
        of == Some(cluster) && vf.smp != fabric::SmpAccess::Deny
    })
}

fn examine(text: &str) {
    let config = parse(text);
    let management = subnet(text);
    for cluster in [0, 1] {
        if let Some(vf) = asker(&config, cluster) {
            compare_ways(&management, &config, cluster);
            look_for_strangers(&management, &config, vf, cluster);
        }
    }
    if let Some(vf) = asker(&config, 2) {
        let neighbour = ask(
            &management,
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
        head in prop::sample::select(vec![
            "",
            "[sm]\nrouting = \"updn\"\n",
            "[sm]\nlmc = 2\nm_key = \"per-node\"\nenforce_partitions = true\n",
            "[fabric]\nmodel = \"vswitch-dynamic\"\n",
        ]),
    ) {
        examine(&config(switches, &cables, &hypervisors, &vms, head));
    }
}

/// Two spines reach each other over the leaves of others, which the view leaves out.
#[test]
fn tables_lead_to_nobody_elses_switches() {
    let mut text = "[sm]\nswitch = \"l1\"\n[[cluster]]\nname = \"c\"\nview = \"mirror\"\n\
                    [[switch]]\nname = \"s1\"\n[[switch]]\nname = \"s2\"\n"
        .to_owned();
    for leaf in ["other1", "other2", "other3", "l1", "l2"] {
        text += &format!("[[switch]]\nname = \"{leaf}\"\n");
        for spine in ["s1", "s2"] {
            text += &format!("[[link]]\nfrom = \"{leaf}\"\nto = \"{spine}\"\n");
        }
        text += &format!("[[hypervisor]]\nname = \"{leaf}-h\"\nswitch = \"{leaf}\"\n");
        text += &format!("[[hypervisor.vf]]\nname = \"{leaf}-vm\"\n");
        if leaf.starts_with('l') {
            text += "cluster = \"c\"\n";
        }
    }
    let management = subnet(&text);
    look_for_strangers(&management, &parse(&text), 3, 0);
    let found = discover(&management, 3);
    let switches = found
        .iter()
        .filter(|node| node.info.node_type == NodeType::Switch);
    assert_eq!(switches.count(), 2 + 2 + 2, "spines, leaves, vSwitches");
}

/// In a ring of six with one root, up*/down* goes the long way from 2 to 4, since 3 is below both.
#[test]
fn ways_that_are_not_the_shortest_are_shown() {
    let ring: String = (0..6)
        .map(|at| {
            let next = (at + 1) % 6;
            format!("[[switch]]\nname = \"s{at}\"\n[[link]]\nfrom = \"s{at}\"\nto = \"s{next}\"\n")
        })
        .collect();
    let root = derive_guid("switch", "s0");
    let text = format!(
        "[sm]\nrouting = \"updn\"\nroots = [\"{root}\"]\nswitch = \"s3\"\n\
         [[cluster]]\nname = \"c\"\nview = \"mirror\"\n{ring}\
         [[hypervisor]]\nname = \"h1\"\nswitch = \"s2\"\n\
         [[hypervisor.vf]]\nname = \"a\"\ncluster = \"c\"\n\
         [[hypervisor]]\nname = \"h2\"\nswitch = \"s4\"\n\
         [[hypervisor.vf]]\nname = \"b\"\ncluster = \"c\"\n"
    );
    let management = subnet(&text);
    compare_ways(&management, &parse(&text), 0);
    let found = discover(&management, 0);
    let switches = found
        .iter()
        .filter(|node| node.info.node_type == NodeType::Switch);
    assert_eq!(switches.count(), 6 + 2);
}

/// Where some VMs share ports, the adapters of those are switches in the view.
#[test]
fn vms_at_shared_ports_are_seen_apart() {
    let text = "[fabric]\nmodel = \"vswitch-hybrid\"\n[sm]\nlmc = 2\n\
                [[cluster]]\nname = \"c\"\nview = \"mirror\"\n\
                [partitions]\np = 0x1111\nq = 0x2222\n\
                [[hypervisor]]\nname = \"h1\"\n\
                [[hypervisor.vf]]\nname = \"a\"\ncluster = \"c\"\npkeys = [\"p\"]\n\
                [[hypervisor.vf]]\nname = \"b\"\ncluster = \"c\"\npkeys = [\"p\"]\naddress = \"shared\"\n\
                [[hypervisor.vf]]\nname = \"stranger\"\npkeys = [\"q\"]\naddress = \"shared\"\n\
                [[hypervisor]]\nname = \"h2\"\naddress = \"shared\"\n\
                [[hypervisor.vf]]\nname = \"d\"\ncluster = \"c\"\npkeys = [\"p\"]\n\
                [[hypervisor.vf]]\nname = \"e\"\ncluster = \"c\"\npkeys = [\"p\"]\n";
    let config = parse(text);
    let management = subnet(text);
    let found = discover(&management, 0);
    let adapters = found
        .iter()
        .filter(|node| node.info.node_type != NodeType::Switch);
    let lids: BTreeSet<Lid> = adapters.map(|node| node.ports[&1].lid).collect();
    assert_eq!(lids, own(&config, 0).lids);
    // The switch, two vSwitches, two adapters.
    assert_eq!(found.len() - lids.len(), 5);
    look_for_strangers(&management, &config, 0, 0);
    let look = |mirror: &mut Mirror, host| {
        let from = mirror.host(host).expect("is there");
        for lid in lids.iter().filter(|lid| lid.value() > 1) {
            let route = mirror.fabric().resolve(from, *lid, Sl::default(), None);
            let end =
                route.map(|route| mirror.fabric().port_info(route.port).expect("is there").lid);
            assert_eq!(end, Ok(*lid));
        }
    };
    management.views.ask(0, VfId(0), look).expect("a view");
}

/// Two leaves and two spines, a VM of the cluster at each leaf, and a stranger.
const CHANGING: &str = "[fabric]\nmodel = \"vswitch-dynamic\"\n\
    [[cluster]]\nname = \"c\"\nview = \"mirror\"\n\
    [[switch]]\nname = \"l1\"\n[[switch]]\nname = \"l2\"\n\
    [[switch]]\nname = \"s1\"\n[[switch]]\nname = \"s2\"\n\
    [[link]]\nfrom = \"l1\"\nto = \"s1\"\n[[link]]\nfrom = \"l1\"\nto = \"s2\"\n\
    [[link]]\nfrom = \"l2\"\nto = \"s1\"\n[[link]]\nfrom = \"l2\"\nto = \"s2\"\n\
    [[hypervisor]]\nname = \"h1\"\nswitch = \"l1\"\n\
    [[hypervisor.vf]]\nname = \"a\"\ncluster = \"c\"\n\
    [[hypervisor.vf]]\nname = \"stranger\"\n\
    [[hypervisor]]\nname = \"h2\"\nswitch = \"l2\"\n\
    [[hypervisor.vf]]\nname = \"b\"\ncluster = \"c\"\n";

#[test]
fn changes_show_at_the_next_question() {
    let management = subnet(CHANGING);
    let nodes = || {
        let found = discover(&management, 0);
        let is_switch = |node: &&Found| node.info.node_type == NodeType::Switch;
        let switches = found.iter().filter(is_switch).count();
        (switches, found.len() - switches)
    };
    // A minute, in which the manager waits for answers in vain, and then sweeps.
    let mut now = Duration::ZERO;
    let mut settle = || {
        let end = now + Duration::from_secs(60);
        while now < end {
            let (_, next) = management.settle(now);
            now = next
                .unwrap_or(end)
                .clamp(now + Duration::from_millis(1), end);
        }
    };
    // The manager's host, too.
    assert_eq!(nodes(), (6, 3));
    // A spine that leads nowhere gives no choice.
    let spine = {
        let state = &mut *management.state.write();
        let port = *management.names.get("s2").expect("is there");
        assert!(state.fabric.set_cable(PortRef { port: 1, ..port }, false));
        port
    };
    settle();
    assert_eq!(nodes(), (5, 3));
    management.with(|state| state.fabric.set_cable(PortRef { port: 1, ..spine }, true));
    settle();
    assert_eq!(nodes(), (6, 3));
    // A VM that ends takes the ways to it along.
    management.change_presence(VfId(2), false);
    settle();
    assert_eq!(nodes(), (2, 2));
    management.change_presence(VfId(2), true);
    settle();
    assert_eq!(nodes(), (6, 3));
    // Names stay.
    let guids = || -> BTreeSet<Guid> {
        let found = discover(&management, 0);
        found.iter().map(|node| node.info.node_guid).collect()
    };
    assert_eq!(guids(), guids());
}

#[test]
fn nothing_can_be_set_and_who_tries_is_told() {
    let management = subnet(CHANGING);
    let before = management.proxy_report(VfId(0)).refused;
    for route in [&[][..], &[1], &[1, 1]] {
        let answer = ask(
            &management,
            0,
            &directed(route),
            Method::SET,
            AttributeId::PORT_INFO,
            1,
        );
        let status = answer.map(|(status, _)| status);
        assert_eq!(status, Some(Status::UNSUPPORTED_ATTRIBUTE));
    }
    let after = management.proxy_report(VfId(0)).refused;
    assert_eq!((before, after), (vec![], vec![(Reason::Smp, 3)]));
}

#[test]
fn views_take_their_share_of_the_time_and_no_more() {
    let mut pace = Pace::new();
    assert!(pace.permits());
    pace.spent += Pace::BURST + Duration::from_secs(3600);
    assert!(!pace.permits());
    pace.at -= Duration::from_secs(3600) * Pace::SHARE + Duration::from_secs(1);
    assert!(pace.permits());
}
