//! Routing engines, held against walks through their tables.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use fabric::Fabric;
use ibvswitch_subnet_manager::{
    Endpoint, ForwardingTable, Graph, MinHop, RoutingEngine, Trunk, UpDown, Vertex,
};
use proptest::prelude::*;
use topologies::{FatTree, Hosts};
use wire::attribute::NodeType;
use wire::{Guid, Lid};

/// Switches with these links between them and as many adapters each; LIDs in order.
fn graph(switches: usize, links: &[(usize, usize)], adapters: u8) -> Graph {
    let mut vertices: Vec<Vertex> = (0..switches)
        .map(|index| Vertex {
            guid: Guid::new(index as u64 + 1),
            ports: 254,
            trunks: Vec::new(),
        })
        .collect();
    for &(a, b) in links {
        let port = |vertex: &Vertex| adapters + 1 + vertex.trunks.len() as u8;
        let (at_a, at_b) = (port(&vertices[a]), port(&vertices[b]));
        vertices[a].trunks.push(Trunk {
            port: at_a,
            to: b,
            to_port: at_b,
        });
        vertices[b].trunks.push(Trunk {
            port: at_b,
            to: a,
            to_port: at_a,
        });
    }
    let places = (0..switches).flat_map(|switch| (0..=adapters).map(move |port| (switch, port)));
    let endpoints = (1..).zip(places).map(|(lid, (switch, port))| Endpoint {
        lid: Lid::new(lid),
        guid: Guid::new(u64::from(lid)),
        switch,
        port,
    });
    Graph {
        switches: vertices,
        endpoints: endpoints.collect(),
        ..Graph::default()
    }
}

fn of_tree(tree: &FatTree) -> Graph {
    let topology = tree.topology(Hosts::Adapters);
    let ids = Fabric::new(&topology).unwrap().nodes();
    let nodes = ids.zip(topology.nodes());
    let mut indexes = HashMap::new();
    let mut graph = Graph::default();
    for (node, spec) in nodes.filter(|(_, spec)| spec.kind == NodeType::Switch) {
        indexes.insert(node, graph.switches.len());
        graph.switches.push(Vertex {
            guid: spec.guid,
            ports: spec.ports,
            trunks: Vec::new(),
        });
    }
    let mut places: Vec<(usize, u8)> = (0..graph.switches.len()).map(|at| (at, 0)).collect();
    for &(a, b, _) in topology.links() {
        for ((at, port), (to, to_port)) in [
            ((a.node, a.port), (b.node, b.port)),
            ((b.node, b.port), (a.node, a.port)),
        ] {
            match (indexes.get(&at), indexes.get(&to)) {
                (Some(&at), Some(&to)) => {
                    graph.switches[at].trunks.push(Trunk { port, to, to_port })
                }
                (Some(&at), None) => places.push((at, port)),
                _ => {}
            }
        }
    }
    for vertex in &mut graph.switches {
        vertex.trunks.sort_by_key(|trunk| trunk.port);
    }
    graph.endpoints = (1..)
        .zip(places)
        .map(|(lid, (switch, port))| Endpoint {
            lid: Lid::new(lid),
            guid: Guid::new(u64::from(lid)),
            switch,
            port,
        })
        .collect();
    graph
}

/// The switches that a packet passes, by the tables.
fn walk(graph: &Graph, tables: &[ForwardingTable], from: usize, to: &Endpoint) -> Vec<(usize, u8)> {
    let mut at = from;
    let mut hops = Vec::new();
    while at != to.switch {
        let port = tables[at].port(to.lid);
        hops.push((at, port));
        assert!(hops.len() <= graph.switches.len(), "a loop: {hops:?}");
        let mut trunks = graph.switches[at].trunks.iter();
        at = trunks
            .find(|trunk| trunk.port == port)
            .unwrap_or_else(|| panic!("LID {} is sent nowhere by {at}, port {port}", to.lid))
            .to;
    }
    assert_eq!(tables[at].port(to.lid), to.port);
    hops
}

/// Links from every switch to one.
fn distances(graph: &Graph, to: usize) -> Vec<usize> {
    let mut found = vec![usize::MAX; graph.switches.len()];
    found[to] = 0;
    let mut queue = VecDeque::from([to]);
    while let Some(at) = queue.pop_front() {
        for trunk in &graph.switches[at].trunks {
            if found[trunk.to] == usize::MAX {
                found[trunk.to] = found[at] + 1;
                queue.push_back(trunk.to);
            }
        }
    }
    found
}

/// The switches that adapters are at: where packets begin.
fn leaves(graph: &Graph) -> Vec<usize> {
    let lids = graph.endpoints.iter().filter(|one| one.port != 0);
    let leaves: BTreeSet<_> = lids.map(|one| one.switch).collect();
    leaves.into_iter().collect()
}

/// Whether a packet that holds one link and waits for the next may wait for itself.
fn may_deadlock(graph: &Graph, tables: &[ForwardingTable]) -> bool {
    let mut next: BTreeMap<(usize, u8), HashSet<(usize, u8)>> = BTreeMap::new();
    for to in &graph.endpoints {
        for from in leaves(graph) {
            for pair in walk(graph, tables, from, to).windows(2) {
                next.entry(pair[0]).or_default().insert(pair[1]);
            }
        }
    }
    // What is left after all links are taken away that wait for none.
    loop {
        let before = next.len();
        let waiting: HashSet<_> = next.keys().copied().collect();
        next.retain(|_, others| others.iter().any(|other| waiting.contains(other)));
        if next.is_empty() || next.len() == before {
            return !next.is_empty();
        }
    }
}

/// Checks that every LID is reached from every switch with adapters, and returns the paths' lengths.
fn lengths(graph: &Graph, tables: &[ForwardingTable]) -> Vec<(usize, usize, usize)> {
    let mut lengths = Vec::new();
    for to in &graph.endpoints {
        for from in leaves(graph) {
            lengths.push((from, to.switch, walk(graph, tables, from, to).len()));
        }
    }
    lengths
}

fn shortest(graph: &Graph, tables: &[ForwardingTable]) {
    let all: Vec<_> = (0..graph.switches.len())
        .map(|to| distances(graph, to))
        .collect();
    for (from, to, length) in lengths(graph, tables) {
        assert_eq!(length, all[to][from], "{from} to {to}");
    }
}

/// The most and the least adapters' LIDs that the trunks of a switch to others of one kind carry.
fn spread(graph: &Graph, tables: &[ForwardingTable], switch: usize) -> (usize, usize) {
    let trunks = graph.switches[switch].trunks.iter();
    let counts: Vec<usize> = trunks
        .map(|trunk| {
            let lids = graph.endpoints.iter().filter(|one| one.port != 0);
            lids.filter(|one| tables[switch].port(one.lid) == trunk.port)
                .count()
        })
        .collect();
    let least = counts.iter().min().copied().unwrap_or(0);
    (least, counts.iter().max().copied().unwrap_or(0))
}

#[test]
fn a_fat_tree_is_used_evenly() {
    let tree: FatTree = "XGFT(2;18,18;18,1)".parse().unwrap();
    let graph = of_tree(&tree);
    assert_eq!((graph.switches.len(), graph.endpoints.len()), (36, 360));
    for engine in [&MinHop as &dyn RoutingEngine, &UpDown::default()] {
        let tables = engine.route(&graph).unwrap().tables;
        shortest(&graph, &tables);
        assert!(!may_deadlock(&graph, &tables), "{}", engine.name());
        for switch in 0..graph.switches.len() {
            let (least, most) = spread(&graph, &tables, switch);
            // 306 LIDs of other leaves by 18 trunks up; 18 LIDs by each trunk down.
            assert!(
                (17..=18).contains(&least) && most == least,
                "{least} {most}"
            );
        }
    }
    let roots = UpDown::default().roots(&graph).unwrap();
    let adapters = leaves(&graph);
    let spines: Vec<_> = (0..36).filter(|at| !adapters.contains(at)).collect();
    assert_eq!(roots, spines, "found as OpenSM finds them");
}

#[test]
fn a_ring_may_deadlock_on_shortest_paths_and_not_up_and_down() {
    let ring: Vec<_> = (0..6).map(|i| (i, (i + 1) % 6)).collect();
    let graph = graph(6, &ring, 2);
    let tables = MinHop.route(&graph).unwrap().tables;
    assert!(may_deadlock(&graph, &tables));
    let tables = UpDown::default().route(&graph).unwrap().tables;
    assert!(!may_deadlock(&graph, &tables));
    lengths(&graph, &tables);
}

#[test]
fn roots_by_name() {
    let graph = graph(4, &[(0, 1), (1, 2), (2, 3), (3, 0)], 1);
    let engine = UpDown::new([Guid::new(3)]);
    assert_eq!(engine.roots(&graph).unwrap(), [2]);
    // Nothing goes by way of switch 0, the lowest: it would go down to it and up again.
    let tables = engine.route(&graph).unwrap().tables;
    let to = graph.endpoints.iter().find(|one| one.switch == 3).unwrap();
    let hops = walk(&graph, &tables, 1, to);
    assert_eq!(hops.iter().map(|&(at, _)| at).collect::<Vec<_>>(), [1, 2]);
    // Adapters at two roots that only meet below.
    let between = UpDown::new([Guid::new(1), Guid::new(3)])
        .route(&graph)
        .unwrap_err();
    assert_eq!(
        between.to_string(),
        "updn cannot route this subnet: no path from switch 0000:0000:0000:0003 to switch \
         0000:0000:0000:0001 goes up and then down; name other roots"
    );
    let error = UpDown::new([Guid::new(99)]).route(&graph).unwrap_err();
    assert_eq!(
        error.to_string(),
        "updn cannot route this subnet: none of the switches named as roots is in it"
    );
}

#[test]
fn what_is_good_stays() {
    let tree: FatTree = "XGFT(2;4,4;4,1)".parse().unwrap();
    let graph = of_tree(&tree);
    // Found anew, the roots would be others: a spine without one of its links is none.
    let roots = UpDown::default().roots(&graph).unwrap();
    let up_down = UpDown::new(roots.iter().map(|&root| graph.switches[root].guid));
    for engine in [&MinHop as &dyn RoutingEngine, &up_down] {
        let tables = engine.route(&graph).unwrap().tables;
        let again = engine.reroute(&graph, (&graph, &tables)).unwrap().tables;
        assert_eq!(again, tables);
        // An adapter goes: nobody else's path changes.
        let mut fewer = graph.clone();
        let gone = fewer.endpoints.remove(12);
        assert_ne!(gone.port, 0);
        let after = engine.reroute(&fewer, (&graph, &tables)).unwrap().tables;
        for endpoint in &fewer.endpoints {
            for (old, new) in tables.iter().zip(&after) {
                assert_eq!(old.port(endpoint.lid), new.port(endpoint.lid));
            }
        }
        // A link goes: only what used it changes.
        let mut cut = graph.clone();
        let leaf = gone.switch;
        let trunk = cut.switches[leaf].trunks.remove(0);
        let back = |other: &Trunk| other.port != trunk.to_port;
        cut.switches[trunk.to].trunks.retain(back);
        let after = engine.reroute(&cut, (&graph, &tables)).unwrap().tables;
        lengths(&cut, &after);
        assert!(!may_deadlock(&cut, &after));
        let others = |one: &&Endpoint| one.switch != leaf && one.port != 0;
        for endpoint in cut.endpoints.iter().filter(others) {
            for (switch, (old, new)) in tables.iter().zip(&after).enumerate() {
                let (old, new) = (old.port(endpoint.lid), new.port(endpoint.lid));
                assert!(old == new || (switch, old) == (leaf, trunk.port));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Connected graphs of any shape, with parallel links.
    #[test]
    fn any_graph(
        parents in prop::collection::vec(any::<prop::sample::Index>(), 1..14),
        more in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..16),
    ) {
        let switches = parents.len() + 1;
        let mut links: Vec<_> = (1..switches).map(|at| (parents[at - 1].index(at), at)).collect();
        links.extend(more.iter().map(|(a, b)| (a.index(switches), b.index(switches))));
        links.retain(|(a, b)| a != b);
        let graph = graph(switches, &links, 2);
        shortest(&graph, &MinHop.route(&graph).unwrap().tables);
        let tables = UpDown::default().route(&graph).unwrap().tables;
        lengths(&graph, &tables);
        prop_assert!(!may_deadlock(&graph, &tables));
        // And from what another engine left.
        let other = MinHop.route(&graph).unwrap().tables;
        let tables = UpDown::default().reroute(&graph, (&graph, &other)).unwrap().tables;
        prop_assert!(!may_deadlock(&graph, &tables));
    }
}
