//! Links and switches fail and come back: every pair that can reaches each other by what is left,
//! nobody's LID changes, and in the end everything is as in the beginning.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{Fabric, NodeId, PortRef, Topology};
use ibvswitch_subnet_manager::{Config, RoutingEngine};
use testing::Random;
use topologies::{Hosts, Torus};
use wire::attribute::NodeType;
use wire::mad::{AttributeId, Method};
use wire::{Guid, Lid};

use crate::cloud::seed;
use crate::guests::Bed;
use crate::routes::routing::{bed, bed_with, checked, dragonfly, engines, irregular, torus, tree};

/// Switches of each topology that fail, one after the other.
const SWITCHES: usize = 2;

fn engine(name: &str) -> Box<dyn RoutingEngine> {
    let mut engines = engines().into_iter();
    engines.find(|engine| engine.name() == name).unwrap()
}

fn names() -> Vec<&'static str> {
    engines().iter().map(|engine| engine.name()).collect()
}

fn sweep(bed: &mut Bed) {
    bed.managed.manager.request_sweep();
    bed.managed.settle();
    bed.managed.link.station.others.clear();
}

/// All guests reach each other, by the engine or, where that says why not, by another; whether that.
fn check(bed: &mut Bed, what: &str, name: &str) -> bool {
    let manager = &bed.managed.manager;
    let what = format!("{name}, {what}, routed by {:?}", manager.routed_by());
    let falls_back = manager.routed_by() != Some(name);
    let errors = &manager.report().errors;
    if falls_back {
        assert_eq!(errors.len(), 1, "{what}: {errors:?}");
        let start = format!("{name} cannot route this subnet: ");
        assert!(errors[0].starts_with(&start), "{what}: {errors:?}");
        assert!(
            errors[0].ends_with("; minhop does it instead"),
            "{what}: {errors:?}"
        );
    } else {
        assert_eq!(*errors, Vec::<String>::new(), "{what}")
    }
    checked(bed, &what, name != "minhop" && !falls_back);
    falls_back
}

#[test]
fn a_cable() {
    for name in names() {
        let topology = match name {
            "ftree" | "vswitch-ftree" => tree(),
            "dor" | "torus-2QoS" => torus(&[4, 3]),
            "dragonfly" => dragonfly(),
            _ => irregular(5),
        };
        let mut bed = bed(&topology, engine(name));
        let lids = bed.managed.manager.lids().clone();
        let tables = tables(&bed.managed.link.fabric);
        assert!(!check(&mut bed, "whole", name));
        let trunk = spare_trunk(&bed.managed.link.fabric);
        bed.managed.link.fabric.set_cable(trunk, false);
        sweep(&mut bed);
        // A torus that lacks a cable is none to "dor".
        assert_eq!(check(&mut bed, "a cable less", name), name == "dor");
        bed.managed.link.fabric.set_cable(trunk, true);
        sweep(&mut bed);
        assert!(!check(&mut bed, "the cable again", name));
        assert_eq!(*bed.managed.manager.lids(), lids, "{name}");
        assert_eq!(self::tables(&bed.managed.link.fabric), tables, "{name}");
    }
}

/// Switches with VMs and without, where the others stay connected: their VMs are gone, all others
/// reach each other.
#[test]
fn a_switch() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mesh = Torus::mesh(&[3, 3], 1).unwrap();
    let topologies: [(&str, Topology); 6] = [
        ("dragonfly", dragonfly()),
        ("torus", torus(&[4, 3])),
        ("mesh", mesh.topology(Hosts::Adapters)),
        ("irregular", irregular(5)),
        ("sparse", irregular(9)),
        ("tree", tree()),
    ];
    // Failures by engine: routed by it, or by minhop.
    let mut seen: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for name in names() {
        for (what, topology) in &topologies {
            // What an engine cannot route in the first place is another test's.
            let fits = match name {
                "ftree" | "vswitch-ftree" => *what == "tree",
                "dor" => matches!(*what, "torus" | "mesh"),
                "torus-2QoS" => *what == "torus",
                "dragonfly" => *what == "dragonfly",
                _ => *what != "dragonfly",
            };
            if !fits {
                continue;
            }
            let mut bed = bed(topology, engine(name));
            let lids = bed.managed.manager.lids().clone();
            let before = tables(&bed.managed.link.fabric);
            assert!(!check(&mut bed, what, name));
            let mut spares = spare_switches(&bed);
            for _ in 0..SWITCHES {
                let switch = spares.swap_remove(random.below(spares.len()));
                let what = format!("{what} without {switch:?}");
                let falls_back = without(&mut bed, switch, &what, name, &lids);
                seen.entry(name).or_default()[usize::from(falls_back)] += 1;
                assert!(!check(&mut bed, &format!("{what}, with it again"), name));
                assert_eq!(*bed.managed.manager.lids(), lids, "{name}, {what}");
                let after = tables(&bed.managed.link.fabric);
                assert_eq!(after, before, "{name}, {what}: tables, with it again");
            }
        }
    }
    println!("{seen:?}");
    for (name, [routed, fell_back]) in seen {
        match name {
            // A grid with a hole is none.
            "dor" => assert_eq!(routed, 0),
            _ => assert_eq!(fell_back, 0, "{name}"),
        }
    }
}

/// With the cache of paths no switch is told of hosts and leaf switches that go and come back, but a cable that
/// is lost counts.
#[test]
fn hosts_and_leaves_that_boot() {
    for name in names() {
        let topology = match name {
            "dor" | "torus-2QoS" => torus(&[4, 3]),
            "dragonfly" => dragonfly(),
            _ => tree(),
        };
        let config = Config {
            ucast_cache: true,
            ..Config::default()
        };
        let mut bed = bed_with(&topology, engine(name), config);
        let whole = tables(&bed.managed.link.fabric);
        let told = linear_sets(&bed);
        let host = bed.ports[bed.ports.len() - 1];
        let above = bed.managed.link.fabric.peer(host).unwrap();
        let is_vswitch = leads_to_adapters(&bed.managed.link.fabric, host);
        let host = if is_vswitch { above.node } else { host.node };
        let leaf = spare_switches(&bed).into_iter();
        let mut leaves = leaf.filter(|&leaf| !below(&bed.managed.link.fabric, leaf).is_empty());
        // In these, paths of others cross each switch.
        let crossed = ["dor", "torus-2QoS", "dragonfly"];
        let leaf = leaves.next().filter(|_| !crossed.contains(&name));
        for node in [Some(host), leaf].into_iter().flatten() {
            let cables: Vec<PortRef> = ports_of(&bed.managed.link.fabric, node).collect();
            for is_up in [false, true] {
                for &cable in &cables {
                    bed.managed.link.fabric.set_cable(cable, is_up);
                }
                sweep(&mut bed);
                assert_eq!(bed.managed.manager.routed_by(), Some(name));
                assert_eq!(linear_sets(&bed), told, "{name}: {node:?} is up: {is_up}");
            }
            assert_eq!(tables(&bed.managed.link.fabric), whole, "{name}");
            assert!(!check(&mut bed, "all there again", name));
        }
        let trunk = spare_trunk(&bed.managed.link.fabric);
        bed.managed.link.fabric.set_cable(trunk, false);
        sweep(&mut bed);
        check(&mut bed, "a cable less", name);
        assert!(linear_sets(&bed) > told, "{name}");
    }
}

/// Blocks of forwarding tables that switches were told.
fn linear_sets(bed: &Bed) -> u64 {
    let fabric = &bed.managed.link.fabric;
    let counts = fabric.nodes().filter_map(|node| fabric.smp_counts(node));
    counts
        .map(|counts| counts.answered_of(Method::SET, AttributeId::LINEAR_FORWARDING))
        .sum()
}

/// A switch fails and comes back; whether the engine could not route what was left.
fn without(
    bed: &mut Bed,
    switch: NodeId,
    what: &str,
    name: &str,
    lids: &BTreeMap<Guid, Lid>,
) -> bool {
    let found = bed.managed.manager.report().switches;
    let lost: BTreeSet<NodeId> = below(&bed.managed.link.fabric, switch);
    let cables: Vec<PortRef> = ports_of(&bed.managed.link.fabric, switch).collect();
    for &port in &cables {
        bed.managed.link.fabric.set_cable(port, false);
    }
    sweep(bed);
    let switches = lost
        .iter()
        .filter(|&&node| is_switch(&bed.managed.link.fabric, node));
    assert_eq!(
        bed.managed.manager.report().switches,
        found - 1 - switches.count(),
        "{name}, {what}"
    );
    assert_eq!(bed.managed.manager.lids(), lids, "{name}, {what}");
    // Those that are left are told of each other, and of nobody else.
    let left: Vec<PortRef> = bed
        .ports
        .iter()
        .copied()
        .filter(|port| !lost.contains(&port.node))
        .collect();
    let all = std::mem::replace(&mut bed.ports, left);
    let falls_back = check(bed, what, name);
    let fabric = &bed.managed.link.fabric;
    for gone in all.iter().filter(|port| lost.contains(&port.node)) {
        let lid = lids[&fabric.guids(*gone).unwrap()[0]];
        for &from in &bed.ports {
            let route = fabric.resolve(from, lid, wire::Sl::default(), None);
            assert!(route.is_err(), "{name}, {what}: {gone} is gone");
        }
    }
    bed.ports = all;
    for port in cables {
        bed.managed.link.fabric.set_cable(port, true);
    }
    sweep(bed);
    falls_back
}

/// Forwarding tables of all switches.
pub fn tables(fabric: &Fabric) -> BTreeMap<NodeId, Vec<Option<u8>>> {
    let lids = || (1..512).map(Lid::new);
    let switches = fabric.nodes().filter(|&node| is_switch(fabric, node));
    switches
        .map(|node| {
            (
                node,
                lids().map(|lid| fabric.forwarding(node, lid)).collect(),
            )
        })
        .collect()
}

pub fn is_switch(fabric: &Fabric, node: NodeId) -> bool {
    let info = fabric.node_info(PortRef { node, port: 1 });
    info.is_some_and(|info| info.node_type == NodeType::Switch)
}

pub fn ports_of(fabric: &Fabric, node: NodeId) -> impl Iterator<Item = PortRef> + use<> {
    let info = fabric.node_info(PortRef { node, port: 1 });
    (1..=info.map_or(0, |info| info.num_ports)).map(move |port| PortRef { node, port })
}

/// Whether adapters are at the node at the other end: it is one, or a vSwitch, which has two ports.
fn leads_to_adapters(fabric: &Fabric, port: PortRef) -> bool {
    let peer = fabric.peer(port).and_then(|peer| fabric.node_info(peer));
    peer.is_none_or(|peer| peer.num_ports <= 2)
}

/// Ports of a switch with cables to others, vSwitches left out.
fn trunks(fabric: &Fabric, node: NodeId) -> Vec<PortRef> {
    let ports = ports_of(fabric, node);
    ports
        .filter(|&port| !leads_to_adapters(fabric, port))
        .collect()
}

/// A cable between switches that have others.
pub fn spare_trunk(fabric: &Fabric) -> PortRef {
    let mut all = fabric
        .nodes()
        .filter(|&node| ports_of(fabric, node).count() > 2);
    let rich = |node| trunks(fabric, node).len() > 2;
    all.find_map(|node| {
        let mut ports = trunks(fabric, node).into_iter().filter(|_| rich(node));
        ports.find(|&port| rich(fabric.peer(port).unwrap().node))
    })
    .unwrap()
}

/// vSwitches and adapters that hang at a switch.
fn below(fabric: &Fabric, switch: NodeId) -> BTreeSet<NodeId> {
    let mut below = BTreeSet::new();
    for port in ports_of(fabric, switch).filter(|&port| leads_to_adapters(fabric, port)) {
        let Some(peer) = fabric.peer(port) else {
            continue;
        };
        below.insert(peer.node);
        let beyond = ports_of(fabric, peer.node).filter_map(|port| fabric.peer(port));
        below.extend(beyond.map(|port| port.node).filter(|&node| node != switch));
    }
    below
}

/// Switches without which all others still reach each other, the manager's not among them.
fn spare_switches(bed: &Bed) -> Vec<NodeId> {
    let fabric = &bed.managed.link.fabric;
    let all: BTreeSet<NodeId> = fabric
        .nodes()
        .filter(|&node| is_switch(fabric, node) && ports_of(fabric, node).count() > 2)
        .collect();
    let stays_connected = |without: NodeId| {
        let mut reached = BTreeSet::from([without]);
        let mut next: Vec<NodeId> = all
            .iter()
            .copied()
            .filter(|&node| node != without)
            .take(1)
            .collect();
        while let Some(node) = next.pop() {
            if reached.insert(node) {
                let ports = trunks(fabric, node).into_iter();
                next.extend(ports.filter_map(|port| Some(fabric.peer(port)?.node)));
            }
        }
        reached == all
    };
    all.iter()
        .copied()
        .filter(|&node| stays_connected(node))
        .filter(|&node| !below(fabric, node).contains(&bed.managed.link.station.port.node))
        .collect()
}
