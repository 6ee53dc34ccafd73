//! Routing engines on the topologies they are for, and on others.

use fabric::Topology;
use ibvswitch_simulator::{graph, with_hypervisors};
use subnet_manager::routing::{
    Dfsssp, DimensionOrder, FatTree as FatTreeRouting, Lash, Nue, VSwitchFatTree, Verdict,
};
use subnet_manager::{Graph, MinHop, RoutingEngine};
use topologies::{FatTree, Hosts, Irregular, Torus, break_cables};

pub fn tree(text: &str, hosts: Hosts) -> Graph {
    let tree: FatTree = text.parse().unwrap();
    graph(&tree.topology(hosts)).unwrap()
}

pub fn of(topology: Topology) -> Graph {
    graph(&topology).unwrap()
}

pub fn checked(engine: &dyn RoutingEngine, graph: &Graph, what: &str) -> Verdict {
    let routing = engine.route(graph).unwrap();
    let verdict = Verdict::new(graph, &routing);
    println!("{what}, {}: {verdict}", engine.name());
    assert!(verdict.is_connected(), "{what} {:?}", verdict.faults);
    assert_eq!(engine.route(graph).unwrap(), routing, "the same again");
    verdict
}

const TREES: [&str; 8] = [
    "XGFT(1;9;1)",
    "XGFT(2;8,4;4,1)",
    "XGFT(2;18,18;18,1)",
    "XGFT(3;8,4,4;4,4,1)",
    "XGFT(4;2,2,2,2;2,2,2,1)",
    "XGFT(3;4,3,2;2,3,1)",
    "PGFT(2;6,18;3,1;6,1)",
    "PGFT(3;4,4,4;2,4,1;2,1,1)",
];

#[test]
fn fat_trees() {
    for text in TREES {
        for hosts in [Hosts::Adapters, Hosts::Hypervisors { functions: 3 }] {
            let graph = tree(text, hosts);
            let minhop = checked(&MinHop, &graph, text);
            let plain = checked(&FatTreeRouting, &graph, text);
            let weighed = checked(&VSwitchFatTree, &graph, text);
            let spread = checked(&Dfsssp::default(), &graph, text);
            let layered = checked(&Lash::default(), &graph, text);
            let nue = checked(&Nue::default(), &graph, text);
            for verdict in [&plain, &weighed, &spread, &layered, &nue] {
                assert!(verdict.is_shortest() && verdict.is_free_of_deadlock());
                assert_eq!(verdict.lanes, 1);
                assert_eq!(verdict.hops, minhop.hops);
            }
            assert!(plain.loads.maximum <= minhop.loads.maximum);
            assert!(weighed.loads.maximum <= minhop.loads.maximum);
        }
    }
}

#[test]
fn one_machine_each_is_plain_fat_tree_routing() {
    for text in TREES {
        for hosts in [Hosts::Adapters, Hosts::Hypervisors { functions: 1 }] {
            let graph = tree(text, hosts);
            let plain = FatTreeRouting.route(&graph).unwrap();
            assert!(plain == VSwitchFatTree.route(&graph).unwrap(), "{text}");
        }
    }
}

/// A whole tree is balanced to the last path: as many go down every cable of a level.
#[test]
fn full_trees_are_balanced() {
    for (text, paths) in [
        ("XGFT(2;18,18;18,1)", 306),
        ("XGFT(3;8,4,4;4,4,1)", 128 - 4),
    ] {
        let verdict = checked(&FatTreeRouting, &tree(text, Hosts::Adapters), text);
        assert_eq!(verdict.loads.maximum, paths, "{text}");
    }
}

/// A destination has one LID, so a leaf that has lost one of its 6 uplinks gets two of its 6 adapters' paths by one
/// of the others: twice the mean is the least that can be. It was 2.9 times before leaves shared what they had lost.
#[test]
fn trees_with_broken_cables_are_balanced() {
    let tree: FatTree = "XGFT(3;12,6,6;6,6,1)".parse().unwrap();
    for seed in [1, 2, 3] {
        let whole = tree.topology(Hosts::Adapters);
        let graph = of(break_cables(whole, 9, seed).unwrap());
        let verdict = Verdict::new(&graph, &FatTreeRouting.route(&graph).unwrap());
        println!("seed {seed}: {verdict}");
        assert!(verdict.is_free_of_deadlock());
        let loads = &verdict.loads;
        assert!(loads.maximum as f64 <= 2.3 * loads.mean, "seed {seed}");
    }
}

#[test]
fn tori() {
    for (shape, hosts) in [(&[4, 4][..], 2), (&[5, 5], 1), (&[3, 4, 5], 1), (&[8], 3)] {
        for broken in [0, 2] {
            let torus = Torus::new(shape, hosts).unwrap();
            let broken = broken.min(if shape.len() == 1 { 1 } else { 2 });
            let torus = torus.topology(Hosts::Adapters);
            let graph = of(break_cables(torus, broken, 7).unwrap());
            let what = format!("{shape:?} less {broken}");
            let minhop = checked(&MinHop, &graph, &what);
            for engine in [&Dfsssp::default() as &dyn RoutingEngine, &Lash::default()] {
                let verdict = checked(engine, &graph, &what);
                assert!(verdict.is_shortest() && verdict.is_free_of_deadlock());
                assert_eq!(verdict.hops, minhop.hops);
            }
            // A ring with a cable broken is a mesh.
            if broken == 0 || shape.len() == 1 {
                let verdict = checked(&DimensionOrder, &graph, &what);
                assert!(verdict.is_shortest() && verdict.is_free_of_deadlock());
                assert_eq!(verdict.hops, minhop.hops);
                // In even rings there and back by the same side, which min-hop need not.
                let even = shape.iter().any(|size| size % 2 == 0);
                let allowed = if even { 3 } else { 2 } * minhop.loads.maximum / 2;
                assert!(verdict.loads.maximum <= allowed, "{what}");
            } else {
                let error = DimensionOrder.route(&graph).unwrap_err().to_string();
                assert!(error.contains("use dfsssp or lash"), "{error}");
            }
            assert!(FatTreeRouting.route(&graph).is_err());
        }
    }
}

#[test]
fn irregular() {
    for seed in 0..8 {
        let network = Irregular::new(24, 4, 60, seed).unwrap();
        let graph = of(network.topology(Hosts::Hypervisors { functions: 2 }));
        let what = format!("seed {seed}");
        let minhop = checked(&MinHop, &graph, &what);
        for engine in [&Dfsssp::default() as &dyn RoutingEngine, &Lash::default()] {
            let verdict = checked(engine, &graph, &what);
            assert!(verdict.is_shortest() && verdict.is_free_of_deadlock());
            assert_eq!(verdict.hops, minhop.hops);
            // Without lanes of its own the same paths could deadlock.
            assert!(verdict.lanes > 1);
            let mut routing = engine.route(&graph).unwrap();
            routing.levels = subnet_manager::ServiceLevels::uniform();
            assert!(!Verdict::new(&graph, &routing).is_free_of_deadlock());
        }
        let error = Dfsssp { lanes: 1 }.route(&graph).unwrap_err();
        assert!(error.to_string().contains("1 virtual lanes do not suffice"));
    }
}

/// Any number of lanes, any topology: everything is reached, nothing can deadlock, and more lanes make
/// fewer detours.
#[test]
fn nue_on_any_lanes() {
    let torus = |shape: &[u32], broken| {
        let torus = Torus::new(shape, 2).unwrap().topology(Hosts::Adapters);
        of(break_cables(torus, broken, 7).unwrap())
    };
    let irregular = |switches, degree, seed| {
        let network = Irregular::new(switches, degree, 60, seed).unwrap();
        of(network.topology(Hosts::Hypervisors { functions: 2 }))
    };
    let tree = |text| tree(text, Hosts::Adapters);
    for (graph, what) in [
        (torus(&[5], 0), "a ring of 5"),
        (torus(&[8], 0), "a ring of 8"),
        (torus(&[5, 5], 0), "5 by 5"),
        (torus(&[6, 6], 3), "6 by 6 with 3 cables broken"),
        (torus(&[4, 4, 4], 0), "4 by 4 by 4"),
        (irregular(24, 4, 1), "24 switches with 4 cables each"),
        (irregular(24, 9, 2), "24 switches with 9 cables each"),
        (irregular(64, 3, 3), "64 switches with 3 cables each"),
        (tree("XGFT(3;4,3,2;2,3,1)"), "a tree"),
    ] {
        let minhop = checked(&MinHop, &graph, what);
        let mut detours = u64::MAX;
        for lanes in [1, 2, 4, 8] {
            let verdict = checked(&Nue { lanes }, &graph, &format!("{what}, {lanes} lanes"));
            assert!(verdict.is_free_of_deadlock(), "{what}: {verdict}");
            assert!(verdict.lanes <= lanes);
            if lanes == 1 {
                assert!(verdict.mean_hops() < 1.15 * minhop.mean_hops(), "{what}");
            }
            assert_eq!(verdict.arriving, minhop.arriving);
            detours = verdict.detours;
        }
        assert_eq!(detours, 0, "{what}");
        let mut few = graph.clone();
        few.lanes = Some(2);
        let routing = Nue::default().route(&few).unwrap();
        assert!(routing.levels.count() <= 2);
    }
}

/// Leaves without a single adapter are leaves all the same.
#[test]
fn a_fat_tree_that_is_not_full() {
    let tree: FatTree = "XGFT(3;4,4,4;4,4,1)".parse().unwrap();
    let full = graph(&tree.topology(Hosts::Adapters)).unwrap();
    for hosts in [64, 60, 55, 17] {
        let graph = with_hypervisors(&full, hosts, 2).unwrap();
        for engine in [&FatTreeRouting as &dyn RoutingEngine, &VSwitchFatTree] {
            let verdict = checked(engine, &graph, &format!("{hosts} hosts"));
            assert!(verdict.is_shortest() && verdict.is_free_of_deadlock());
        }
    }
}

/// A mesh needs one lane, a torus one more for every ring.
#[test]
fn lanes_of_dimension_order() {
    let lanes = |torus: Torus| {
        let graph = of(torus.topology(Hosts::Adapters));
        let verdict = checked(&DimensionOrder, &graph, "grid");
        assert!(verdict.is_shortest() && verdict.is_free_of_deadlock());
        verdict.lanes
    };
    assert_eq!(lanes(Torus::mesh(&[4, 5, 3], 1).unwrap()), 1);
    assert_eq!(lanes(Torus::new(&[3, 3, 3], 1).unwrap()), 1);
    assert_eq!(lanes(Torus::new(&[6, 3], 1).unwrap()), 2);
    assert_eq!(lanes(Torus::new(&[6, 5], 1).unwrap()), 4);
    assert_eq!(lanes(Torus::new(&[4, 4, 4], 1).unwrap()), 8);
    let graph = of(Torus::new(&[4, 4, 4, 4], 1)
        .unwrap()
        .topology(Hosts::Adapters));
    let error = DimensionOrder.route(&graph).unwrap_err().to_string();
    assert_eq!(
        error,
        "dor cannot route this subnet: 4 rings need 16 virtual lanes, 8 are there; use dfsssp or lash"
    );
    let graph = tree("XGFT(2;4,4;4,1)", Hosts::Adapters);
    assert!(DimensionOrder.route(&graph).is_err());
}
