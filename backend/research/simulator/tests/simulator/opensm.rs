//! OpenSM's routing engines and ours on the same subnets: OpenSM configures a simulated one, and what
//! it has written into the switches is walked as ours is.

use fabric::Topology;
use ibvswitch_simulator::opensm;
use subnet_manager::RoutingEngine;
use subnet_manager::routing::{
    Dfsssp, DimensionOrder, FatTree as FatTreeRouting, Lash, MinHop, UpDown, Verdict,
};
use topologies::{FatTree, Hosts, Torus};

/// Both engines reach the same over as many links, and ours spreads the paths at least as well. Lanes
/// are not compared: the dump tells nothing of OpenSM's service levels.
fn compare(topology: &Topology, engines: &[(&str, &dyn RoutingEngine)]) {
    for &(name, engine) in engines {
        let routed = opensm::route(topology, name).unwrap();
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
