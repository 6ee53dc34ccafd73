//! OpenSM's routing engines and ours on the same subnets: OpenSM configures a simulated one, and what
//! it has written into the switches is walked as ours is.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabric::{LinkRate, NodeSpec, Topology};
use ibvswitch_simulator::opensm;
use subnet_manager::RoutingEngine;
use subnet_manager::routing::{
    Dfsssp, DimensionOrder, FatTree as FatTreeRouting, Lash, MinHop, Nue, Roles, TorusTwoQos,
    UpDown, VSwitchFatTree, Verdict,
};
use topologies::{FatTree, Hosts, Irregular, Torus, break_cables};
use wire::Guid;

/// Both engines reach the same over as many links, and ours spreads the paths at least as well. Lanes
/// are not compared: the dump tells nothing of OpenSM's service levels.
fn compare(topology: &Topology, engines: &[(&str, &dyn RoutingEngine)]) {
    for &(name, engine) in engines {
        let routed = opensm::route(topology, name, &Roles::default()).unwrap();
        assert_eq!(routed.used, name, "OpenSM fell back");
        let theirs = Verdict::new(&routed.graph, &routed.routing);
        let ours = Verdict::new(&routed.graph, &engine.route(&routed.graph).unwrap());
        println!("{name}\n  OpenSM: {theirs}\n  ours:   {ours}");
        assert!(theirs.is_connected(), "{name}: {:?}", theirs.faults);
        assert!(ours.is_connected(), "{name}: {:?}", ours.faults);
        assert_eq!(ours.hops, theirs.hops, "{name}");
        assert!(ours.loads.maximum <= theirs.loads.maximum, "{name}");
    }
}

#[test]
fn a_fat_tree_of_324_nodes() {
    let tree: FatTree = "XGFT(2;18,18;18,1)".parse().unwrap();
    compare(
        &tree.topology(Hosts::Adapters),
        &[
            ("minhop", &MinHop),
            ("updn", &UpDown::default()),
            ("ftree", &FatTreeRouting),
            ("dfsssp", &Dfsssp::default()),
            ("lash", &Lash::default()),
        ],
    );
}

#[test]
fn a_fat_tree_of_three_levels() {
    let tree: FatTree = "XGFT(3;8,4,4;4,4,1)".parse().unwrap();
    compare(
        &tree.topology(Hosts::Adapters),
        &[
            ("minhop", &MinHop),
            ("updn", &UpDown::default()),
            ("ftree", &FatTreeRouting),
            ("dfsssp", &Dfsssp::default()),
            ("lash", &Lash::default()),
        ],
    );
}

#[test]
fn a_torus() {
    let torus = Torus::new(&[4, 4], 2).unwrap();
    compare(
        &torus.topology(Hosts::Adapters),
        &[
            ("minhop", &MinHop),
            ("dfsssp", &Dfsssp::default()),
            ("lash", &Lash::default()),
            ("dor", &DimensionOrder),
        ],
    );
}

/// Whole, and around a switch that has failed: OpenSM's paths are as long, and the tables of lanes the same between cables of
/// switches.
#[test]
fn tori_in_two_classes() {
    let less = |topology: &Topology, switch: usize| {
        let guid = topology.nodes()[switch].guid;
        let gone = |at: usize| {
            let at_it = |&&(a, b, _): &&(_, _, _)| {
                let (a, b): (fabric::PortRef, fabric::PortRef) = (a, b);
                [a, b].iter().any(|end| end.node.index() == at)
                    && [a, b]
                        .iter()
                        .any(|end| topology.nodes()[end.node.index()].guid == guid)
            };
            let is_host = topology.nodes()[at].kind == wire::attribute::NodeType::ChannelAdapter;
            at == switch || is_host && topology.links().iter().any(|link| at_it(&link))
        };
        let mut left = Topology::new();
        let nodes = topology.nodes().iter().enumerate();
        let places: Vec<_> = nodes
            .map(|(at, node)| (!gone(at)).then(|| left.add(node.clone())))
            .collect();
        for &(a, b, rate) in topology.links() {
            if let (Some(one), Some(other)) = (places[a.node.index()], places[b.node.index()]) {
                left.link((one, a.port), (other, b.port), rate);
            }
        }
        left
    };
    for (shape, failed) in [
        (&[5, 5][..], None),
        (&[5, 5], Some(7)),
        (&[3, 5, 3], Some(20)),
    ] {
        let torus = Torus::new(shape, 1).unwrap().topology(Hosts::Adapters);
        let topology = failed.map_or_else(|| torus.clone(), |switch| less(&torus, switch));
        let what = format!("{shape:?} less {failed:?}");
        let routed = opensm::route(&topology, "torus-2QoS", &Roles::default()).unwrap();
        assert_eq!(routed.used, "torus-2QoS", "{what}: OpenSM fell back");
        let theirs = Verdict::new(&routed.graph, &routed.routing);
        let ours = TorusTwoQos::default().route(&routed.graph).unwrap();
        let ours = Verdict::new(&routed.graph, &ours);
        println!("{what}\n  OpenSM: {theirs}\n  ours:   {ours}");
        assert!(ours.is_free_of_deadlock());
        assert_eq!(
            (ours.arriving, &ours.hops),
            (theirs.arriving, &theirs.hops),
            "{what}"
        );
        println!("{}", routed.lanes.unwrap());
    }
}

/// OpenSM's takes one lane unless it is told otherwise.
#[test]
fn nue_on_one_lane() {
    let torus = |shape: &[u32], broken| {
        let torus = Torus::new(shape, 2).unwrap().topology(Hosts::Adapters);
        break_cables(torus, broken, 7).unwrap()
    };
    let irregular = |switches, degree| {
        let network = Irregular::new(switches, degree, 60, 1).unwrap();
        network.topology(Hosts::Adapters)
    };
    for topology in [
        torus(&[5], 0),
        torus(&[4, 4], 0),
        torus(&[6, 6], 3),
        torus(&[4, 4, 4], 0),
        irregular(24, 4),
        irregular(24, 9),
    ] {
        let routed = opensm::route(&topology, "nue", &Roles::default()).unwrap();
        assert_eq!(routed.used, "nue");
        let theirs = Verdict::new(&routed.graph, &routed.routing);
        let ours = Nue { lanes: 1 }.route(&routed.graph).unwrap();
        let ours = Verdict::new(&routed.graph, &ours);
        println!("  OpenSM: {theirs}\n  ours:   {ours}");
        for verdict in [&theirs, &ours] {
            assert!(verdict.is_connected(), "{:?}", verdict.faults);
        }
        assert!(ours.is_free_of_deadlock(), "{ours}");
        assert!(ours.mean_hops() < 1.05 * theirs.mean_hops());
    }
}

/// An adapter at each switch, spines too, as aggregation nodes are.
#[test]
fn a_fat_tree_with_adapters_at_spines() {
    const SPINES: u8 = 4;
    const LEAVES: u8 = 8;
    let mut topology = Topology::new();
    let mut switches = 0x100..;
    let mut add_switch = |topology: &mut Topology| {
        let guid = Guid::new(switches.next().unwrap());
        (topology.add(NodeSpec::switch(guid, 16, "switch")), guid)
    };
    let mut hosts = (0x1000..).step_by(0x10).map(Guid::new);
    let mut add_host = |topology: &mut Topology, at| {
        let guid = hosts.next().unwrap();
        let host = topology.add(NodeSpec::channel_adapter(guid, guid, "host"));
        topology.link((host, 1), at, LinkRate::default());
        guid
    };
    let spines: Vec<_> = (0..SPINES).map(|_| add_switch(&mut topology)).collect();
    let mut compute = BTreeSet::new();
    for leaf in 1..=LEAVES {
        let (at, _) = add_switch(&mut topology);
        for (port, &(spine, _)) in (10..).zip(&spines) {
            topology.link((at, port), (spine, leaf), LinkRate::default());
        }
        compute.extend((1..=SPINES).map(|port| add_host(&mut topology, (at, port))));
        add_host(&mut topology, (at, 16));
    }
    for &(spine, _) in &spines {
        add_host(&mut topology, (spine, 16));
    }
    let roots = spines.iter().map(|&(_, guid)| guid).collect();
    for roots in [BTreeSet::new(), roots] {
        let roles = Roles {
            roots,
            compute: Some(compute.clone()),
            ..Roles::default()
        };
        let mut routed = opensm::route(&topology, "ftree", &roles).unwrap();
        // OpenSM needs both files.
        let by_ftree = !roles.roots.is_empty();
        assert_eq!(routed.used, if by_ftree { "ftree" } else { "minhop" });
        let theirs = Verdict::new(&routed.graph, &routed.routing);
        routed.graph.roles = Arc::new(roles);
        for engine in [&FatTreeRouting as &dyn RoutingEngine, &VSwitchFatTree] {
            let ours = Verdict::new(&routed.graph, &engine.route(&routed.graph).unwrap());
            println!("  OpenSM: {theirs}\n  ours:   {ours}");
            assert!(ours.is_shortest(), "{:?}", ours.faults);
            assert!(ours.is_free_of_deadlock());
            if by_ftree {
                // OpenSM has no way between spines, neither to their adapters nor to themselves.
                let between = u64::from(SPINES) * u64::from(SPINES - 1);
                assert_eq!(ours.arriving, theirs.arriving + 2 * between);
                let most = theirs.loads.maximum + u64::from(SPINES - 1);
                assert!(ours.loads.maximum <= most);
            }
        }
    }
}
