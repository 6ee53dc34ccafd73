//! Engines whose lanes depend on the ports of switches, on whole topologies and on such with failures.

use std::collections::BTreeMap;

use subnet_manager::routing::{Dragonfly as DragonflyRouting, TorusTwoQos, Verdict};
use subnet_manager::{
    Endpoint, Graph, MinHop, Routing, RoutingEngine, ServiceLevels, Trunk, Vertex,
};
use topologies::{Dragonfly, Hosts, Irregular, Torus, break_cables};
use wire::Lid;

use crate::engines::{checked, of, tree};

/// The graph without a switch and what is at it; LIDs stay.
pub fn without(graph: &Graph, switch: usize) -> Graph {
    let place = |at: usize| at - usize::from(at > switch);
    let mut less = graph.clone();
    less.switches.remove(switch);
    for vertex in &mut less.switches {
        vertex.trunks.retain(|trunk| trunk.to != switch);
        for trunk in &mut vertex.trunks {
            trunk.to = place(trunk.to);
        }
    }
    less.endpoints.retain(|end| end.switch != switch);
    for end in &mut less.endpoints {
        end.switch = place(end.switch);
    }
    less
}

/// The graph without the cable at a port.
fn without_cable(graph: &Graph, switch: usize, port: u8) -> Graph {
    let mut less = graph.clone();
    let trunks = &mut less.switches[switch].trunks;
    let found = trunks.iter().position(|trunk| trunk.port == port).unwrap();
    let cable = trunks.remove(found);
    less.switches[cable.to]
        .trunks
        .retain(|trunk| trunk.port != cable.to_port);
    less
}

/// The path from a switch to a LID: GUIDs of switches, ports to leave by, and the level.
fn path(graph: &Graph, routing: &Routing, from: usize, end: &Endpoint) -> (Vec<(u64, u8)>, u8) {
    let mut at = from;
    let mut path = Vec::new();
    while at != end.switch {
        let port = routing.tables[at].port(end.lid);
        path.push((graph.switches[at].guid.value(), port));
        at = graph.switches[at]
            .trunks
            .iter()
            .find(|trunk| trunk.port == port)
            .unwrap()
            .to;
    }
    (path, routing.levels.level(from, end.lid).value())
}

/// By switch and LID: the cables of the path, by the GUID and port that they begin at, and its service level.
type Ways = BTreeMap<(u64, Lid), (Vec<(u64, u8)>, u8)>;

/// All paths, by the switch where they begin and the LID.
fn paths(graph: &Graph, routing: &Routing) -> Ways {
    let pairs = (0..graph.switches.len())
        .flat_map(|from| graph.endpoints.iter().map(move |end| (from, end)));
    let all = pairs.map(|(from, end)| {
        let guid = graph.switches[from].guid.value();
        ((guid, end.lid), path(graph, routing, from, end))
    });
    all.collect()
}

/// Paths that need nothing of what has failed are as they were, and no level has changed.
fn others_stay(before: (&Graph, &Routing), after: (&Graph, &Routing), what: &str) {
    let [old, new] = [before, after].map(|(graph, routing)| paths(graph, routing));
    let lacks: Vec<(u64, u8)> = { before.0.switches.iter() }
        .flat_map(|vertex| {
            let now = after.0.switches.iter().find(|now| now.guid == vertex.guid);
            let there =
                move |port| now.is_some_and(|now| now.trunks.iter().any(|it| it.port == port));
            let lost = vertex.trunks.iter().filter(move |trunk| !there(trunk.port));
            lost.map(|trunk| (vertex.guid.value(), trunk.port))
        })
        .collect();
    for (ends, (now, level)) in &new {
        let (was, level_was) = &old[ends];
        assert_eq!(level, level_was, "{what}: {ends:?}");
        if !was.iter().any(|step| lacks.contains(step)) {
            assert_eq!(now, was, "{what}: {ends:?}");
        }
    }
}

fn torus(shape: &[u32]) -> Graph {
    of(Torus::new(shape, 1).unwrap().topology(Hosts::Adapters))
}

fn on(lanes: u8) -> TorusTwoQos {
    TorusTwoQos::new(lanes)
}

#[test]
fn whole_tori() {
    for (shape, levels) in [
        (&[5, 4][..], 4),
        (&[8], 2),
        (&[3, 4, 5], 8),
        (&[4, 4, 4], 8),
        (&[2, 5], 4),
        (&[3, 3], 4),
    ] {
        let graph = torus(shape);
        let what = format!("{shape:?}");
        let minhop = checked(&MinHop, &graph, &what);
        for lanes in [2, 4, 8] {
            let verdict = checked(&on(lanes), &graph, &what);
            assert!(
                verdict.is_shortest() && verdict.is_free_of_deadlock(),
                "{what}: {:?}",
                verdict.circle
            );
            assert_eq!(
                (verdict.lanes, &verdict.hops),
                (lanes, &minhop.hops),
                "{what}"
            );
            let mut routing = on(lanes).route(&graph).unwrap();
            assert_eq!(routing.levels.count(), levels, "{what}");
            routing.levels = ServiceLevels::uniform();
            let waits = shape.iter().any(|&size| size > 3);
            assert_eq!(
                Verdict::new(&graph, &routing).circle.is_some(),
                waits,
                "{what}"
            );
        }
        if shape.iter().any(|&size| size > 3) {
            let error = on(1).route(&graph).unwrap_err().to_string();
            assert!(
                error.contains("rings need 2 data lanes, and links have 1"),
                "{error}"
            );
        }
    }
    let mesh = Torus::mesh(&[4, 5, 3], 1).unwrap();
    let graph = of(mesh.topology(Hosts::Adapters));
    let verdict = checked(&on(1), &graph, "mesh");
    assert!(verdict.is_shortest() && verdict.is_free_of_deadlock());
    assert_eq!(on(1).route(&graph).unwrap().levels.count(), 1);
}

/// Any cable, and one more of another ring: paths go the other way round, on the levels that they had.
#[test]
fn tori_without_cables() {
    for shape in [&[5, 4][..], &[6, 5], &[3, 3, 4]] {
        let graph = torus(shape);
        let engine = on(8);
        let whole = engine.route(&graph).unwrap();
        let some = (0..graph.switches.len()).step_by(1 + graph.switches.len() / 6);
        for (place, switch) in some.enumerate() {
            let port = graph.switches[switch].trunks[place % (2 * shape.len())].port;
            let one = without_cable(&graph, switch, port);
            let other = (switch + graph.switches.len() / 2 + 1) % graph.switches.len();
            let two = without_cable(&one, other, 1 + 2 * (place as u8 % 2));
            for (less, what) in [(&one, "a cable"), (&two, "two cables")] {
                let what =
                    format!("{shape:?} without {what}, the first at switch {switch} port {port}");
                let verdict = checked(&engine, less, &what);
                assert!(
                    verdict.is_free_of_deadlock(),
                    "{what}: {:?}",
                    verdict.circle
                );
                let routing = engine.route(less).unwrap();
                others_stay((&graph, &whole), (less, &routing), &what);
            }
        }
    }
}

/// Any switch, the one with the least GUID among them: paths turn earlier, and others stay.
#[test]
fn tori_without_a_switch() {
    for shape in [&[5, 4][..], &[6, 5], &[3, 3, 4]] {
        let graph = torus(shape);
        let engine = on(8);
        let whole = engine.route(&graph).unwrap();
        for switch in (0..graph.switches.len()).step_by(1 + graph.switches.len() / 8) {
            let less = without(&graph, switch);
            let what = format!("{shape:?} without switch {switch}");
            let verdict = checked(&engine, &less, &what);
            assert!(
                verdict.is_free_of_deadlock(),
                "{what}: {:?}",
                verdict.circle
            );
            let routing = engine.route(&less).unwrap();
            others_stay((&graph, &whole), (&less, &routing), &what);
            let again = engine.route(&graph).unwrap();
            assert!(again == whole, "{what}: all as before");
        }
    }
}

/// The example of the manual: with two lanes, the turn back closes a circle around the switch.
#[test]
fn what_the_lanes_are_for() {
    let graph = torus(&[6, 5]);
    let less = without(&graph, 9);
    let error = on(2).route(&less).unwrap_err().to_string();
    assert!(
        error.contains("on 2 data lanes could wait for each other"),
        "{error}"
    );
    assert!(on(4).route(&less).is_ok());
    // Two neighbours in the last dimension, and in the first.
    for other in [15, 10] {
        let less = without(&without(&torus(&[6, 6]), other), 9);
        let verdict = checked(&on(8), &less, "two switches");
        assert!(verdict.is_free_of_deadlock(), "{:?}", verdict.circle);
    }
    // A ring in two parts, and a row of a mesh.
    let parts = without_cable(&without_cable(&graph, 0, 1), 3, 1);
    let mesh = Torus::mesh(&[4, 4], 1).unwrap();
    let row = without_cable(&of(mesh.topology(Hosts::Adapters)), 0, 1);
    for less in [parts, row] {
        let error = on(8).route(&less).unwrap_err().to_string();
        assert!(
            error.contains("in order, since cables or switches are missing"),
            "{error}"
        );
    }
}

#[test]
fn no_tori() {
    let mut crossed = torus(&[5, 4]);
    // Two cables of a dimension change places at one end.
    let trunk = |port, to| Trunk {
        port,
        to,
        to_port: port + 1,
    };
    let [one, other] = [0, 7].map(|at: usize| {
        let found = crossed.switches[at]
            .trunks
            .iter()
            .find(|trunk| trunk.port == 1);
        found.copied().unwrap().to
    });
    let put = |vertex: &mut Vertex, found: Trunk| {
        let of = vertex
            .trunks
            .iter_mut()
            .find(|trunk| trunk.port == found.port);
        *of.unwrap() = found;
    };
    put(&mut crossed.switches[0], trunk(1, other));
    put(&mut crossed.switches[7], trunk(1, one));
    for (at, back) in [(other, 0), (one, 7)] {
        let found = Trunk {
            port: 2,
            to: back,
            to_port: 1,
        };
        put(&mut crossed.switches[at], found);
    }
    let four = torus(&[3, 3, 3, 3]);
    for (graph, reason) in [
        (crossed, "use nue"),
        (four, "one to 3 dimensions"),
        (tree("XGFT(2;4,4;4,1)", Hosts::Adapters), "use nue"),
    ] {
        let error = on(8).route(&graph).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

fn dragonfly(
    (groups, switches, cables, hosts): (u32, u32, u32, u8),
    kind: Hosts,
) -> fabric::Topology {
    Dragonfly::new(groups, switches, cables, hosts)
        .unwrap()
        .topology(kind)
}

/// Whole dragonflies: at most one cable between groups and one on either side, on two lanes.
#[test]
fn dragonflies() {
    for (parameters, hosts) in [
        ((9, 4, 2, 2), Hosts::Adapters),
        ((9, 4, 2, 1), Hosts::Hypervisors { functions: 1 }),
        ((5, 4, 2, 1), Hosts::Adapters),
        ((3, 4, 1, 1), Hosts::Adapters),
        ((2, 4, 2, 1), Hosts::Adapters),
        ((4, 8, 3, 1), Hosts::Adapters),
    ] {
        let graph = of(dragonfly(parameters, hosts));
        let what = format!("{parameters:?}");
        let verdict = checked(&DragonflyRouting::default(), &graph, &what);
        assert!(
            verdict.is_free_of_deadlock(),
            "{what}: {:?}",
            verdict.circle
        );
        assert_eq!(verdict.lanes, 2, "{what}");
        assert!(
            verdict.hops.len() <= 4 || hosts != Hosts::Adapters,
            "{what}"
        );
        let mut routing = DragonflyRouting { lanes: 2 }.route(&graph).unwrap();
        assert!(Verdict::new(&graph, &routing) == verdict);
        // A cable of a group after one between groups is on a lane of its own for a reason.
        routing.levels = ServiceLevels::uniform();
        let is_large = parameters.0 == 9;
        assert!(
            !is_large || Verdict::new(&graph, &routing).circle.is_some(),
            "{what}"
        );
        let error = DragonflyRouting { lanes: 1 }.route(&graph).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("need 2 data lanes, and links have 1"),
            "{error}"
        );
    }
    // Cables between two groups have as much to carry.
    let graph = of(dragonfly((5, 4, 2, 2), Hosts::Adapters));
    let routing = DragonflyRouting::default().route(&graph).unwrap();
    let mut loads: BTreeMap<(u64, u8), u64> = BTreeMap::new();
    for ((from, _), (steps, _)) in paths(&graph, &routing) {
        for step in steps.iter().filter(|step| step.1 >= 4 && from > 0) {
            *loads.entry(*step).or_default() += 1;
        }
    }
    let (least, most) = (loads.values().min().unwrap(), loads.values().max().unwrap());
    assert!(most - least <= 8, "{loads:?}");
}

/// Cables break, within groups and between them: longer paths have lanes of their own, all others stay on theirs.
#[test]
fn dragonflies_with_broken_cables() {
    for parameters in [(9, 4, 2, 1), (5, 4, 2, 1), (5, 8, 1, 1)] {
        for seed in 1..=3 {
            for broken in [1, 3] {
                let whole = dragonfly(parameters, Hosts::Adapters);
                let graph = of(break_cables(whole, broken, seed).unwrap());
                let what = format!("{parameters:?} less {broken}, seed {seed}");
                let verdict = checked(&DragonflyRouting::default(), &graph, &what);
                assert!(
                    verdict.is_free_of_deadlock(),
                    "{what}: {:?}",
                    verdict.circle
                );
                assert!(verdict.lanes <= 4, "{what}");
            }
        }
    }
    let graph = without_cable(&of(dragonfly((9, 4, 2, 1), Hosts::Adapters)), 0, 1);
    let error = DragonflyRouting { lanes: 2 }.route(&graph).unwrap_err();
    assert!(
        error.to_string().contains("2 data lanes do not suffice"),
        "{error}"
    );
}

#[test]
fn no_dragonflies() {
    for graph in [
        torus(&[4, 4]),
        tree("XGFT(2;8,4;4,1)", Hosts::Adapters),
        of(Irregular::new(24, 4, 60, 1)
            .unwrap()
            .topology(Hosts::Adapters)),
    ] {
        let error = DragonflyRouting::default().route(&graph).unwrap_err();
        assert!(
            error.to_string().contains("do not divide into groups"),
            "{error}"
        );
    }
}
