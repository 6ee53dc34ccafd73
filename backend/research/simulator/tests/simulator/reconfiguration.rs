//! Changes by moves of virtual machines, compared with the published tables and examples.

use ibvswitch_simulator::{generator, graph, with_hypervisors};
use rand::RngExt;
use subnet_manager::routing::reconfiguration::{
    Exchange, FatTreeMinimum, Update, apply, drops, iterative, rounds, skyline,
};
use subnet_manager::routing::{
    FatTree as FatTreeRouting, MinHop, Transitions, VSwitchFatTree, Verdict, transition,
};
use subnet_manager::{Endpoint, ForwardingTable, Graph, Routing, RoutingEngine};
use topologies::{FatTree, Hosts};
use wire::Lid;
use wire::attribute::LinearBlock;

fn tree(text: &str) -> Graph {
    let tree: FatTree = text.parse().unwrap();
    graph(&tree.topology(Hosts::Adapters)).unwrap()
}

fn swap(graph: &Graph, a: usize, b: usize) -> (Exchange, usize, usize) {
    let (a, b): (Endpoint, Endpoint) = (graph.endpoints[a], graph.endpoints[b]);
    let (lid, other) = (a.lid, b.lid);
    (Exchange::Swap { lid, other }, a.switch, b.switch)
}

/// The places of two LIDs exchanged.
fn moved(graph: &Graph, exchange: Exchange) -> Graph {
    let Exchange::Swap { lid, other } = exchange else {
        panic!("only swaps here");
    };
    let mut graph = graph.clone();
    for endpoint in &mut graph.endpoints {
        endpoint.lid = match endpoint.lid {
            found if found == lid => other,
            found if found == other => lid,
            found => found,
        };
    }
    graph.endpoints.sort_by_key(|endpoint| endpoint.lid);
    graph
}

fn packets(updates: &[Update]) -> usize {
    updates.iter().map(Update::packets).sum()
}

/// Section 3's table: nodes, switches, LIDs, blocks of a table, packets of a full reconfiguration,
/// most packets of a swap.
#[test]
fn the_published_table() {
    for (text, nodes, switches, lids, blocks, full, most) in [
        ("XGFT(2;18,18;18,1)", 324, 36, 360, 6, 216, 72),
        ("XGFT(2;36,18;18,1)", 648, 54, 702, 11, 594, 108),
        (
            "XGFT(3;18,18,18;18,18,1)",
            5832,
            972,
            6804,
            107,
            104_004,
            1944,
        ),
        (
            "XGFT(3;36,18,18;18,18,1)",
            11664,
            1620,
            13284,
            208,
            336_960,
            3240,
        ),
    ] {
        let graph = tree(text);
        assert_eq!(graph.switches.len(), switches);
        assert_eq!(graph.endpoints.len(), lids);
        assert_eq!(graph.endpoints.len() - switches, nodes);
        let table = ForwardingTable::new(graph.top());
        assert_eq!(table.blocks().count(), blocks);
        assert_eq!(switches * table.blocks().count(), full);
        assert_eq!(2 * switches, most);
        // Nothing in a move depends on the size of the tree: the two small ones stand for all.
        if nodes > 1000 {
            continue;
        }
        let routing = FatTreeRouting.route(&graph).unwrap();
        // Within a leaf, LIDs in one block: one switch, one packet.
        let minimum = FatTreeMinimum::new(&graph).unwrap();
        let (exchange, from, to) = swap(&graph, 0, 1);
        assert_eq!(
            packets(&minimum.plan(&routing.tables, exchange, from, to)),
            1
        );
        // As far as can be, LIDs in different blocks: no move may cost more than all switches.
        let (exchange, from, to) = swap(&graph, 0, nodes - 1);
        let plan = minimum.plan(&routing.tables, exchange, from, to);
        let all = iterative(&routing.tables, exchange);
        assert!(packets(&plan) <= packets(&all) && packets(&all) <= most);
        assert!(all.iter().all(|update| update.packets() == 2));
    }
}

/// Fig. 3: 12 switches in three levels, a move from one hypervisor of a leaf to another.
#[test]
fn six_of_twelve_against_one() {
    let graph = tree("XGFT(3;2,2,2;2,2,1)");
    assert_eq!(graph.switches.len(), 12);
    let routing = FatTreeRouting.route(&graph).unwrap();
    let (exchange, from, to) = swap(&graph, 2, 3);
    assert_eq!(from, to);
    assert_eq!(iterative(&routing.tables, exchange).len(), 6);
    let minimum = FatTreeMinimum::new(&graph).unwrap();
    assert_eq!(minimum.marked(from, to), [from]);
    assert_eq!(minimum.plan(&routing.tables, exchange, from, to).len(), 1);
    assert_eq!(
        skyline(&graph, &routing.tables, exchange, from, to).len(),
        1
    );
}

/// Section 6's example: common ancestors on level 1, five switches on the active route.
#[test]
fn four_levels() {
    let graph = tree("XGFT(4;2,2,2,2;2,2,2,1)");
    let routing = FatTreeRouting.route(&graph).unwrap();
    let minimum = FatTreeMinimum::new(&graph).unwrap();
    let leaf = |tuple: [u16; 4]| {
        let switches = 0..graph.switches.len();
        let mut found = switches.filter(|&switch| minimum.tuple(switch) == tuple);
        found.next().unwrap()
    };
    let (from, to) = (leaf([3, 0, 0, 0]), leaf([3, 0, 1, 1]));
    let marked = minimum.marked(from, to);
    let at = |level| {
        let tuples = marked.iter().map(|&switch| minimum.tuple(switch));
        tuples.filter(|tuple| tuple[0] == level).count()
    };
    assert_eq!([at(0), at(1), at(2), at(3)], [0, 4, 4, 2]);
    let host = |switch: usize| {
        let endpoints = &graph.endpoints;
        endpoints
            .iter()
            .position(|endpoint| endpoint.switch == switch && endpoint.port != 0)
            .unwrap()
    };
    let (exchange, _, _) = swap(&graph, host(from), host(to));
    let plan = minimum.plan(&routing.tables, exchange, from, to);
    // Both hosts are the first of their leaves and meet on the way: up, top, down.
    let levels: Vec<u16> = plan
        .iter()
        .take(5)
        .map(|update| minimum.tuple(update.switch)[0])
        .collect();
    assert_eq!(
        levels,
        [3, 3, 2, 1, 2],
        "the leaves, then the way between them"
    );
}

/// The part of a plan that is about the machine's LID.
fn machine_only(plan: &[Update], exchange: Exchange) -> Vec<Update> {
    let of_machine = |update: &Update| Update {
        switch: update.switch,
        entries: {
            let entries = update.entries.iter().copied();
            entries.filter(|&(lid, _)| lid == exchange.lid()).collect()
        },
    };
    plan.iter().map(of_machine).collect()
}

#[test]
fn random_moves_leave_everybody_connected() {
    for (text, hypervisors) in [
        ("XGFT(2;8,4;4,1)", true),
        ("XGFT(3;4,4,4;4,4,1)", true),
        ("XGFT(3;4,4,4;4,4,1)", false),
        ("XGFT(4;2,2,2,2;2,2,2,1)", false),
    ] {
        let seed = 11;
        let mut random = generator(seed, 0);
        let mut graph = tree(text);
        if hypervisors {
            graph = with_hypervisors(&graph, usize::MAX, 3).unwrap();
        }
        let minimum = FatTreeMinimum::new(&graph).unwrap();
        let mut routing = VSwitchFatTree.route(&graph).unwrap();
        let mut transitions = Transitions::new(&graph, &routing.tables);
        let (mut fewer, mut more, mut risky) = (0, 0, 0);
        for step in 0..12 {
            let machines: Vec<usize> = (0..graph.endpoints.len())
                .filter(|&at| graph.endpoints[at].port != 0)
                .collect();
            let mut draw = || machines[random.random_range(0..machines.len())];
            let (exchange, from, to) = swap(&graph, draw(), draw());
            let plan = minimum.plan(&routing.tables, exchange, from, to);
            let all = iterative(&routing.tables, exchange);
            let least = skyline(&graph, &routing.tables, exchange, from, to);
            assert!(plan.len() <= all.len() && least.len() <= all.len());
            fewer += plan.len();
            more += all.len();
            graph = moved(&graph, exchange);
            let mut after = Vec::new();
            for updates in [&all, &plan, &least] {
                let mut changed = routing.clone();
                apply(&mut changed.tables, updates);
                let verdict = Verdict::new(&graph, &changed);
                let faults = verdict.faults;
                assert!(
                    faults.is_empty(),
                    "{text} seed {seed} step {step}: {faults:?}"
                );
                after.push(changed);
            }
            let after: Routing = after.swap_remove(1);
            // A switch that already sends the machine's LID up may get it from one above that still
            // sends it down: the two could wait for each other. Dropped in between, nothing can.
            let found = transitions.follow(&routing.tables, exchange, &plan);
            assert_eq!(found.after, None);
            risky += usize::from(found.mixed.is_some());
            if step < 3 {
                let mut then = routing.clone();
                apply(&mut then.tables, &machine_only(&plan, exchange));
                let whole = transition(&graph, &routing, &then);
                assert_eq!(whole.is_some(), found.mixed.is_some(), "{text} {step}");
                let mut between = routing.clone();
                apply(&mut between.tables, &drops(&plan, exchange));
                assert_eq!(transition(&graph, &routing, &between), None);
                assert_eq!(transition(&graph, &between, &then), None);
            }
            routing = after;
        }
        assert!(fewer < more && risky > 0, "{text}");
        println!("{text}: {fewer} switches instead of {more}, {risky} of 12 risky undropped");
    }
}

#[test]
fn moves_within_leaves_do_not_touch_each_other() {
    let graph = tree("XGFT(2;8,4;4,1)");
    let routing = FatTreeRouting.route(&graph).unwrap();
    let minimum = FatTreeMinimum::new(&graph).unwrap();
    let mut moves: Vec<_> = (0..8)
        .map(|leaf| swap(&graph, 4 * leaf, 4 * leaf + 3))
        .collect();
    let touched = |&(exchange, from, to): &(Exchange, usize, usize)| {
        let plan = minimum.plan(&routing.tables, exchange, from, to);
        assert!(plan.iter().all(|update| {
            let touched = minimum.touched(from, to);
            touched.contains(&update.switch)
        }));
        (exchange, minimum.touched(from, to))
    };
    assert_eq!(
        rounds(moves.iter().map(touched)),
        [(0..8).collect::<Vec<_>>()],
        "one per leaf at a time"
    );
    // Across: neither with the one before nor with the one after.
    moves.insert(3, swap(&graph, 1, 30));
    assert_eq!(
        rounds(moves.iter().map(touched)),
        [vec![0, 1, 2, 4, 5, 6, 7], vec![3], vec![8]]
    );
    let (exchange, from, to) = moves[3];
    let across = minimum.plan(&routing.tables, exchange, from, to);
    let drops = drops(&across, exchange);
    assert_eq!(drops.len(), across.len());
    assert!(
        drops.iter().all(
            |drop| drop.packets() == 1 && drop.entries == [(exchange.lid(), LinearBlock::DROP)]
        )
    );
}

/// Moves of a round, planned on the same tables and made in any order, leave what they leave one
/// after the other.
#[test]
fn rounds_of_moves() {
    let graph = tree("XGFT(3;4,4,4;4,4,1)");
    let minimum = FatTreeMinimum::new(&graph).unwrap();
    let routing = FatTreeRouting.route(&graph).unwrap();
    let (mut most, seed) = (0, 3);
    let mut random = generator(seed, 0);
    for _ in 0..10 {
        // Mostly to the next few hosts, so that some are within a leaf or a part of the tree.
        let moves: Vec<_> = (0..20)
            .map(|_| {
                let from = random.random_range(0..56);
                let to = (from + random.random_range(1..6)).min(63);
                swap(&graph, from, to)
            })
            .collect();
        let touched = |&(exchange, from, to): &(Exchange, usize, usize)| {
            (exchange, minimum.touched(from, to))
        };
        let rounds = rounds(moves.iter().map(touched));
        let mut one_by_one = routing.clone();
        for &(exchange, from, to) in &moves {
            let plan = minimum.plan(&one_by_one.tables, exchange, from, to);
            apply(&mut one_by_one.tables, &plan);
        }
        let mut together = routing.clone();
        for round in &rounds {
            let plans: Vec<_> = round
                .iter()
                .map(|&number| {
                    let (exchange, from, to) = moves[number];
                    minimum.plan(&together.tables, exchange, from, to)
                })
                .collect();
            for plan in plans.iter().rev() {
                apply(&mut together.tables, plan);
            }
            most = most.max(round.len());
        }
        let all: usize = rounds.iter().map(Vec::len).sum();
        assert_eq!(all, moves.len());
        assert!(together == one_by_one, "seed {seed}");
    }
    assert!(most > 1);
}

/// On small irregular networks, against every set of switches that there is.
#[test]
fn skylines_are_least() {
    let (mut smaller, mut detours) = (0, 0);
    for seed in 0..30 {
        let network = topologies::Irregular::new(7, 2, 10, seed).unwrap();
        let graph = graph(&network.topology(Hosts::Adapters)).unwrap();
        let routing = MinHop.route(&graph).unwrap();
        let switches = graph.switches.len();
        let mut random = generator(seed, 1);
        let hosts = graph.endpoints.iter().filter(|end| end.port != 0);
        let hosts: Vec<Endpoint> = hosts.copied().collect();
        for _ in 0..4 {
            let mut draw = || hosts[random.random_range(0..hosts.len())];
            let (machine, other) = (draw(), draw());
            if machine.lid == other.lid {
                continue;
            }
            // Whether all switches reach a LID when these send it as they send the other one.
            let reach = |changed: usize, (lid, like): (Lid, Lid), end: Endpoint| {
                (0..switches).all(|start| {
                    let mut at = start;
                    for _ in 0..=switches {
                        let lid = if changed >> at & 1 == 1 { like } else { lid };
                        let port = routing.tables[at].port(lid);
                        if at == end.switch {
                            return port == end.port;
                        }
                        let mut trunks = graph.switches[at].trunks.iter();
                        match trunks.find(|trunk| trunk.port == port) {
                            Some(trunk) => at = trunk.to,
                            None => return false,
                        }
                    }
                    false
                })
            };
            let sets = 0..1usize << switches;
            let there: Vec<usize> = sets
                .clone()
                .filter(|&set| reach(set, (machine.lid, other.lid), other))
                .collect();
            let back: Vec<usize> = sets
                .filter(|&set| reach(set, (other.lid, machine.lid), machine))
                .collect();
            let least = |sets: &[usize]| sets.iter().map(|set| set.count_ones()).min().unwrap();
            let copy = Exchange::Copy {
                lid: machine.lid,
                hypervisor: other.lid,
            };
            let (from, to) = (machine.switch, other.switch);
            let updates = skyline(&graph, &routing.tables, copy, from, to);
            assert_eq!(updates.len() as u32, least(&there), "seed {seed}");
            let set = updates
                .iter()
                .fold(0, |set, update| set | 1 << update.switch);
            assert!(there.contains(&set), "seed {seed}");
            assert!(updates.len() <= iterative(&routing.tables, copy).len());

            let both = Exchange::Swap {
                lid: machine.lid,
                other: other.lid,
            };
            let updates = skyline(&graph, &routing.tables, both, from, to);
            let of = |lid: Lid| {
                let touches = |update: &&Update| update.entries.iter().any(|entry| entry.0 == lid);
                let switches = updates.iter().filter(touches).map(|update| update.switch);
                switches.fold(0usize, |set, switch| set | 1 << switch)
            };
            assert!(there.contains(&of(machine.lid)) && back.contains(&of(other.lid)));
            assert_eq!(of(machine.lid).count_ones(), least(&there));
            assert_eq!(of(other.lid).count_ones(), least(&back));
            let together = there.iter().flat_map(|a| back.iter().map(move |b| a | b));
            let together = together.map(usize::count_ones).min().unwrap();
            detours += usize::from(updates.len() as u32 > together);
            smaller += usize::from(updates.len() < iterative(&routing.tables, both).len());
        }
    }
    println!("{smaller} of 120 smaller than all that differ, {detours} not the least together");
    assert!(smaller > 0);
}

/// The tuples of the switches that are marked, wild-carded as the paper has it: below where both
/// sides meet, digits of levels further down are those of either leaf, those further up are free.
#[test]
fn marked_by_wild_cards() {
    for text in [
        "XGFT(2;8,4;4,1)",
        "XGFT(3;4,4,4;4,4,1)",
        "XGFT(3;3,4,2;2,3,1)",
        "XGFT(4;2,2,2,2;2,2,2,1)",
    ] {
        let graph = tree(text);
        let minimum = FatTreeMinimum::new(&graph).unwrap();
        let switches = 0..graph.switches.len();
        let tuples: Vec<&[u16]> = switches.clone().map(|at| minimum.tuple(at)).collect();
        let leaf_level = tuples.iter().map(|tuple| tuple[0]).max().unwrap();
        let is_leaf = |&at: &usize| tuples[at][0] == leaf_level;
        let leaves: Vec<usize> = switches.clone().filter(is_leaf).collect();
        for &from in &leaves {
            for &to in &leaves {
                let (a, b) = (tuples[from], tuples[to]);
                // The first digit in which they differ: they meet on the level above it.
                let meeting = (1..a.len()).find(|&digit| a[digit] != b[digit]);
                let meeting = meeting.map_or(leaf_level, |digit| digit as u16 - 1);
                let expected = switches.clone().filter(|&at| {
                    let tuple = tuples[at];
                    let own = usize::from(tuple[0]);
                    tuple[0] >= meeting && [a, b].iter().any(|leaf| tuple[1..=own] == leaf[1..=own])
                });
                let expected: Vec<usize> = expected.collect();
                assert_eq!(minimum.marked(from, to), expected, "{text} {a:?} {b:?}");
            }
        }
    }
}

/// Two routings of a ring that are free of deadlock each, but not while one becomes the other.
#[test]
fn a_transition_that_deadlocks() {
    let torus = topologies::Torus::new(&[6], 1).unwrap();
    let graph = graph(&torus.topology(Hosts::Adapters)).unwrap();
    // All the way up to the last switch and never round, or the same from the fourth on.
    let route = |first: usize| -> Routing {
        let mut tables = vec![ForwardingTable::new(Lid::new(12)); graph.switches.len()];
        let place = |switch: usize| (switch + 6 - first) % 6;
        for endpoint in &graph.endpoints {
            for (switch, table) in tables.iter_mut().enumerate() {
                let port = match place(switch).cmp(&place(endpoint.switch)) {
                    std::cmp::Ordering::Less => 1,
                    std::cmp::Ordering::Equal => endpoint.port,
                    std::cmp::Ordering::Greater => 2,
                };
                table.set(endpoint.lid, port);
            }
        }
        tables.into()
    };
    let (old, new) = (route(0), route(3));
    for routing in [&old, &new] {
        let verdict = Verdict::new(&graph, routing);
        assert!(verdict.is_connected() && verdict.is_free_of_deadlock());
        assert_eq!(transition(&graph, routing, routing), None);
    }
    assert!(transition(&graph, &old, &new).is_some());
}
