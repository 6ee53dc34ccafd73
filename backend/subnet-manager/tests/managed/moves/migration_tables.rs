//! The tables of *Towards the InfiniBand SR-IOV vSwitch Architecture*: packets of a migration in fat
//! trees.

use fabric::{Fabric, LinkRate, NodeId, NodeSpec, Topology};
use ibvswitch_subnet_manager::{Config, Method, Migration, Target};

use crate::cloud::*;
use crate::harness::Managed;

/// Nodes straight at the leaves of a fat tree of 36-port switches, as the tables of *Towards the
/// InfiniBand SR-IOV vSwitch Architecture* count them: `leaves` leaves with 18 nodes and 18 links
/// up in each of `pods` pods.
fn fat_tree(pods: usize, leaves: usize) -> Topology {
    const HALF: usize = 18;
    let mut topology = Topology::new();
    let rate = LinkRate::default();
    let mut switches = 0;
    let mut switch = |topology: &mut Topology| {
        let spec = NodeSpec::switch(switch_guid(switches), 36, &format!("switch {switches}"));
        switches += 1;
        topology.add(spec)
    };
    let mut nodes = 0;
    let mut middles: Vec<Vec<NodeId>> = Vec::new();
    for _ in 0..pods {
        let spines: Vec<NodeId> = (0..HALF).map(|_| switch(&mut topology)).collect();
        for leaf in 0..leaves {
            let here = switch(&mut topology);
            for (port, &spine) in spines.iter().enumerate() {
                let spec = NodeSpec::virtual_function(node_guid(nodes), &format!("node {nodes}"));
                nodes += 1;
                let node = topology.add(spec);
                topology.link((here, 1 + port as u8), (node, 1), rate);
                let up = (here, (1 + HALF + port) as u8);
                topology.link(up, (spine, 1 + leaf as u8), rate);
            }
        }
        middles.push(spines);
    }
    if pods > 1 {
        for group in 0..HALF {
            for number in 0..HALF {
                let top = switch(&mut topology);
                for (pod, spines) in middles.iter().enumerate() {
                    let down = (spines[group], (1 + HALF + number) as u8);
                    topology.link(down, (top, 1 + pod as u8), rate);
                }
            }
        }
    }
    topology
}

/// The paper's table: nodes, switches, LIDs, blocks, packets of a full reconfiguration, and most
/// packets of a swap.
fn table(pods: usize, leaves: usize, row: [u64; 5]) {
    let [nodes, switches, lids, blocks, full] = row;
    let nodes_of_leaf = 18;
    let spare = |number: &usize| number % 2 == 1;
    let config = Config {
        spare_functions: (0..nodes as usize).filter(spare).map(node_guid).collect(),
        ..Config::default()
    };
    let fabric = Fabric::new(&fat_tree(pods, leaves)).unwrap();
    let mut managed = Managed::new(fabric, node_guid(0), config);
    managed.settle();
    let report = managed.manager.report();
    assert_eq!(
        (report.adapters as u64, report.switches as u64),
        (nodes, switches)
    );
    assert_eq!(managed.manager.lids().len() as u64, lids);

    let mut go = |vm: usize, to: usize, method| {
        let migration = Migration {
            method,
            every_switch: true,
            ..Migration::new(node_guid(vm), Target::Function(node_guid(to)))
        };
        managed.migrate(migration).unwrap()
    };
    // Neighbours at one leaf; their LIDs are next to each other.
    let near = go(2, 3, None);
    assert_eq!((near.switches.sent, near.vswitches.sent), (1, 0));
    // From the first leaf to the last one, and every few leaves between.
    let mut most = 0;
    for leaf in (1..pods * leaves).step_by((pods * leaves / 8).max(1)) {
        let moved = go(4 + 2 * (leaf % 3), leaf * nodes_of_leaf + 1, None);
        assert!(moved.switches.sent <= 2 * switches);
        let most_at_one = moved
            .per_switch
            .iter()
            .map(|switch| switch.packets.sent)
            .max();
        assert!(most_at_one <= Some(2));
        most = most.max(moved.switches.sent);
        let moved = go(
            4 + 2 * (leaf % 3),
            moved.from.value() as usize - NODE as usize - 1,
            None,
        );
        assert!(moved.switches.sent <= 2 * switches);
    }
    assert!(
        most > switches,
        "LIDs of far leaves are in different blocks"
    );
    let everything = go(2, 2, Some(Method::Full));
    assert_eq!(everything.switches.sent, full);
    assert_eq!(everything.switches.sent, blocks * switches);
}

#[test]
fn table_of_324_nodes() {
    table(1, 18, [324, 36, 360, 6, 216]);
}

#[test]
fn table_of_648_nodes() {
    table(1, 36, [648, 54, 702, 11, 594]);
}

#[test]
#[ignore = "minutes without optimization"]
fn table_of_5832_nodes() {
    table(18, 18, [5832, 972, 6804, 107, 104_004]);
}
