//! Plans of irregular subnets.

use std::collections::BTreeMap;

use super::super::PathChoice;
use super::*;
use crate::routing::{Endpoint, Routing, Trunk, Verdict};

/// Switches in a ring with random chords, and so many ports at each.
fn irregular(seed: u64, switches: usize, chords: usize, each: usize) -> Graph {
    let mut random = testing::Random::new(seed);
    let mut cables: Vec<(usize, usize)> =
        (0..switches).map(|at| (at, (at + 1) % switches)).collect();
    while cables.len() < switches + chords {
        let [a, b] = [(); 2].map(|()| (random.number() % switches as u64) as usize);
        if a != b {
            cables.push((a, b));
        }
    }
    let mut graph = Graph::default();
    for at in 0..switches {
        graph.switches.push(Vertex {
            guid: Guid::new(at as u64 + 1),
            ports: 64,
            trunks: Vec::new(),
        });
    }
    let mut used = vec![each as u8; switches];
    for (a, b) in cables {
        used[a] += 1;
        used[b] += 1;
        let (port, to_port) = (used[a], used[b]);
        graph.switches[a].trunks.push(Trunk {
            port,
            to: b,
            to_port,
        });
        graph.switches[b].trunks.push(Trunk {
            port: to_port,
            to: a,
            to_port: port,
        });
    }
    let ends =
        (0..switches * each).map(|end| (0x1000 + end as u64, end / each, (end % each) as u8 + 1));
    let own = (0..switches).map(|at| (at as u64 + 1, at, 0));
    for (guid, switch, port) in ends.chain(own) {
        graph.endpoints.push(Endpoint {
            lid: Lid::NONE,
            guid: Guid::new(guid),
            switch,
            port,
        });
    }
    graph
}

/// The graph with as many LIDs for each port as the plan has.
fn addressed(graph: &Graph, mask: impl Fn(Guid) -> u8) -> Graph {
    let mut next = 1u16;
    let mut found = graph.clone();
    found.endpoints.clear();
    for endpoint in &graph.endpoints {
        let count = 1u16 << mask(endpoint.guid);
        next = next.next_multiple_of(count);
        for lid in next..next + count {
            found.endpoints.push(Endpoint {
                lid: Lid::new(lid),
                ..*endpoint
            });
        }
        next += count;
    }
    found
}

fn choices() -> Vec<Multipath> {
    let lids = LidChoice::NAMES.into_iter().skip(1).map(|(_, lids)| lids);
    let both = |lids| PathChoice::NAMES.map(|(_, paths)| Multipath { lids, paths });
    lids.flat_map(both).collect()
}

/// Everybody reaches every LID, and no packets can wait for each other for ever. Returns the tables, and the numbers.
fn check(plan: &Plan, graph: &Graph, mask: impl Fn(Guid) -> u8) -> (Graph, Routing, LidUsage) {
    let graph = addressed(graph, &mask);
    assert!(plan.fits(&graph));
    let routing = Routing::from(plan.tables(&graph));
    let verdict = Verdict::new(&graph, &routing);
    assert!(
        verdict.is_connected() && verdict.circle.is_none(),
        "{verdict}"
    );
    (graph, routing, plan.usage(mask))
}

/// The switches and ports of the path of a pair, by tables that switches would hold.
fn walk(plan: &Plan, graph: &Graph, routing: &Routing, from: &End, to: &End) -> Vec<(usize, u8)> {
    let base = graph
        .endpoints
        .iter()
        .find(|endpoint| endpoint.guid == to.guid)
        .unwrap()
        .lid;
    let lid = Lid::new(base.value() + u16::from(plan.offset(from.guid, to.guid)));
    let (mut at, mut path) = (from.switch, Vec::new());
    while path.last() != Some(&(to.switch, to.port)) {
        let port = routing.tables[at].port(lid);
        path.push((at, port));
        let trunk = graph.switches[at]
            .trunks
            .iter()
            .find(|trunk| trunk.port == port);
        at = trunk.map_or(at, |trunk| trunk.to);
        assert!(path.len() <= graph.switches.len(), "{path:?}");
    }
    path
}

fn walks(
    plan: &Plan,
    graph: &Graph,
    routing: &Routing,
) -> BTreeMap<(Guid, Guid), Vec<(usize, u8)>> {
    let ends = &plan.ends;
    let pairs = ends
        .iter()
        .flat_map(|from| ends.iter().map(move |to| (from, to)));
    let apart = pairs.filter(|(from, to)| from.guid != to.guid);
    apart
        .map(|(from, to)| ((from.guid, to.guid), walk(plan, graph, routing, from, to)))
        .collect()
}

#[test]
fn tables_lead_along_the_paths() {
    let graph = irregular(2, 16, 24, 2);
    let mut needed = BTreeMap::new();
    for choice in choices() {
        let plan = Plan::new(&graph, choice, |_| None).unwrap();
        let (addressed, routing, usage) = check(&plan, &graph, |guid| plan.mask(guid).unwrap_or(0));
        assert_eq!((usage.ports, usage.paths, usage.one_each), (32, 992, 1024));
        assert!(
            (33..256).contains(&usage.lids) && usage.following == 0,
            "{usage:?}"
        );
        let wires = Wires::new(&graph).unwrap();
        let mut meant = BTreeMap::new();
        for path in wires
            .paths(choice)
            .unwrap()
            .iter()
            .flat_map(|(paths, _)| paths)
        {
            let ends = [wires.network.source(path), wires.network.destination(path)];
            let [from, to] = ends.map(|machine| wires.ends[wires.end(machine)].guid);
            let hop = |link: &LinkId| {
                (
                    wires.network.link(*link).from.0 as usize,
                    wires.ports[link.0 as usize],
                )
            };
            meant.insert((from, to), path.links()[1..].iter().map(hop).collect());
        }
        assert_eq!(walks(&plan, &addressed, &routing), meant, "{choice:?}");
        let labels = plan
            .destinations
            .iter()
            .map(|to| to.ways.len())
            .sum::<usize>();
        needed.insert((choice.paths.name(), choice.lids.name()), labels);
    }
    for paths in ["shortest-widest", "path-selection"] {
        let of = |lids| needed[&(paths, lids)];
        assert!(
            of("optimal") <= of("color") && of("color") <= of("color-smallest"),
            "{needed:?}"
        );
        assert!(of("optimal") <= of("greedy"), "{needed:?}");
    }
}

#[test]
fn what_a_lost_cable_does_not_touch_stays() {
    let graph = irregular(3, 12, 12, 2);
    for choice in choices() {
        let plan = Plan::new(&graph, choice, |_| None).unwrap();
        let mask = |guid| plan.mask(guid).unwrap_or(0);
        let (addressed, routing, _) = check(&plan, &graph, mask);
        let before = walks(&plan, &addressed, &routing);
        let mut broken = graph.clone();
        let Trunk { port, to, to_port } = broken.switches[4].trunks.remove(0);
        broken.switches[to]
            .trunks
            .retain(|trunk| trunk.port != to_port);
        assert!(!plan.fits(&broken));
        let again = plan
            .again(&broken, choice, |guid| Some(mask(guid)))
            .unwrap();
        let (addressed, routing, usage) = check(&again, &broken, mask);
        assert_eq!(usage.lids, plan.usage(mask).lids);
        let after = walks(&again, &addressed, &routing);
        let order = Wires::new(&broken).unwrap().order;
        let wires = Wires::new(&graph).unwrap();
        let same = wires.network.links().all(|link| {
            order.is_up(&wires.network, link) == wires.order.is_up(&wires.network, link)
        });
        for (pair, path) in &before {
            let is_hit = path.contains(&(4, port)) || path.contains(&(to, to_port));
            if !is_hit && same {
                assert_eq!(after[pair], *path);
                assert_eq!(again.offset(pair.0, pair.1), plan.offset(pair.0, pair.1));
            }
        }
        // The cable is back: the paths are those of the beginning.
        let back = again
            .again(&graph, choice, |guid| Some(mask(guid)))
            .unwrap();
        let (addressed, routing, usage) = check(&back, &graph, mask);
        assert_eq!(
            (walks(&back, &addressed, &routing), usage.following),
            (before, 0)
        );
    }
}

#[test]
fn fewer_lids_than_paths_need() {
    let graph = irregular(2, 16, 24, 2);
    for choice in choices() {
        let plan = Plan::new(&graph, choice, |_| Some(0)).unwrap();
        let (_, _, usage) = check(&plan, &graph, |_| 0);
        assert_eq!(usage.lids, 32);
        assert!(usage.following > 0);
    }
}

#[test]
fn refusals() {
    let choice = Multipath {
        lids: LidChoice::Color,
        ..Multipath::default()
    };
    let refused = |graph: &Graph| Plan::new(graph, choice, |_| None).unwrap_err().to_string();
    let mut apart = irregular(1, 8, 0, 1);
    for (at, switch) in apart.switches.iter_mut().enumerate() {
        switch.trunks.retain(|trunk| (trunk.to < 4) == (at < 4));
    }
    let text = refused(&apart);
    assert!(
        text.starts_with("shortest-widest cannot route this subnet: no path from "),
        "{text}"
    );
    let text = refused(&irregular(1, 8, 0, 65));
    assert!(
        text.contains("520 adapters' ports have LIDs, and LIDs by paths are for up to 512"),
        "{text}"
    );
    assert!(refused(&Graph::default()).contains("it has no switch"));
}

/// Two switches with so many cables between them, each with a leaf switch; `ends` at the first two and at the leaves.
fn between(cables: u8, ends: [u8; 4]) -> Graph {
    let mut graph = irregular(1, 4, 0, 0);
    graph.switches.iter_mut().for_each(|it| it.trunks.clear());
    let parallel = (1..=cables).map(|port| (0, 1, port));
    for (a, b, port) in parallel.chain([(0, 2, 254), (1, 3, 254)]) {
        for (at, to) in [(a, b), (b, a)] {
            let to_port = port;
            graph.switches[at].trunks.push(Trunk { port, to, to_port });
        }
    }
    for (switch, (ends, first)) in ends.into_iter().zip([cables, cables, 0, 0]).enumerate() {
        let ports = first + 1..=first + ends;
        graph.endpoints.extend(ports.map(|port| Endpoint {
            lid: Lid::NONE,
            guid: Guid::new(0x100 * (switch as u64 + 1) + u64::from(port)),
            switch,
            port,
        }));
    }
    graph
}

/// Parallel cables: a way for each source.
#[test]
fn more_lids_than_there_are() {
    let choice = Multipath {
        lids: LidChoice::Color,
        ..Multipath::default()
    };
    let port = Guid::new(0x200 + 181);
    let plan = |leaf| Plan::new(&between(180, [60, 1, leaf, 0]), choice, |_| None);
    let needs = |sources: u8| plan(sources - 60).map(|plan| plan.mask(port));
    assert_eq!(needs(64).unwrap(), Some(6), "a cable carries a path");
    assert_eq!(needs(128).unwrap(), Some(7));
    let text = needs(129).unwrap_err().to_string();
    assert!(
        text.contains(&format!(
            "the paths to port {port} need 129 LIDs, and a port has at most 128; have sm.lids left out"
        )),
        "{text}"
    );
}

/// 67 ways to each of 384 ports: 128 LIDs for each, as they come in powers of two.
#[test]
#[ignore = "74 000 pairs of ports: seconds"]
fn more_lids_than_a_subnet_has() {
    let choice = Multipath {
        lids: LidChoice::Greedy,
        ..Multipath::default()
    };
    let refused = Plan::new(&between(67, [0, 0, 192, 192]), choice, |_| None);
    let text = refused.map(|_| ()).unwrap_err().to_string();
    let told = "its paths need 49152 LIDs, and there are 49147 besides the switches'; have sm.lids left out";
    assert!(text.contains(told), "{text}");
}
