//! Fat-trees after an event: no entry changes without need, and the busiest blocks are sent first.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{Fabric, NodeId, PortRef};
use ibvswitch_subnet_manager::routing::{FatTree as FatTreeRouting, VSwitchFatTree};
use ibvswitch_subnet_manager::{Config, Migration, RoutingEngine, Target};
use testing::Random;
use topologies::{FatTree, Hosts};
use wire::attribute::{LinearBlock, NodeType};
use wire::mad::{AttributeId, Method};
use wire::smp::Smp;
use wire::{Guid, Lid, MadPacket, Sl};

use super::failures::{is_switch, ports_of, tables};
use crate::cloud::seed;
use crate::harness::Managed;

type Tables = BTreeMap<NodeId, Vec<Option<u8>>>;

/// A tree of hypervisors with a VM and a spare function each, some of its cables down.
struct Tree {
    managed: Managed,
    down: BTreeSet<PortRef>,
    hypervisors: usize,
}

fn guid(hypervisor: usize, function: usize) -> Guid {
    Guid::new(0x0002_c903_0000_0000 | (hypervisor as u64 + 1) << 8 | function as u64)
}

impl Tree {
    fn new(
        shape: &str,
        engine: Box<dyn RoutingEngine>,
        down: impl Fn(&Self) -> Vec<PortRef>,
    ) -> Self {
        let tree: FatTree = shape.parse().unwrap();
        let hypervisors = tree.hosts();
        let config = Config {
            spare_functions: (0..hypervisors).map(|at| guid(at, 2)).collect(),
            ..Config::default()
        };
        let topology = tree.topology(Hosts::Hypervisors { functions: 2 });
        let fabric = Fabric::new(&topology).unwrap();
        let managed = Managed::new(fabric, guid(0, 1), config.clone()).routed_by(engine, config);
        let mut tree = Self {
            managed,
            down: BTreeSet::new(),
            hypervisors,
        };
        for port in down(&tree) {
            tree.set(port, false);
        }
        tree.managed.settle();
        assert_eq!(tree.managed.manager.report().errors, Vec::<String>::new());
        tree
    }

    fn fabric(&self) -> &Fabric {
        &self.managed.link.fabric
    }

    fn set(&mut self, port: PortRef, is_up: bool) {
        let peer = self.fabric().peer(port).unwrap();
        for end in [port, peer] {
            if is_up {
                self.down.remove(&end);
            } else {
                self.down.insert(end);
            }
        }
        self.managed.link.fabric.set_cable(port, is_up);
    }

    /// Switches that are no vSwitches: these have three ports.
    fn switches(&self) -> Vec<NodeId> {
        let fabric = self.fabric();
        let is_one = |&node: &NodeId| is_switch(fabric, node) && ports_of(fabric, node).count() > 3;
        fabric.nodes().filter(is_one).collect()
    }

    /// Cables between these, from the lower number.
    fn trunks(&self) -> Vec<PortRef> {
        let switches: BTreeSet<NodeId> = self.switches().into_iter().collect();
        let fabric = self.fabric();
        let ports = switches.iter().flat_map(|&node| ports_of(fabric, node));
        let ends = ports.filter_map(|port| Some((port, fabric.peer(port)?)));
        ends.filter(|(port, peer)| switches.contains(&peer.node) && port < peer)
            .map(|(port, _)| port)
            .collect()
    }

    fn sweep(&mut self) {
        self.managed.manager.request_sweep();
        self.managed.settle();
    }

    /// Adapters' ports that the manager can reach, with their LIDs.
    fn there(&self) -> Vec<(PortRef, Lid)> {
        let fabric = self.fabric();
        let mut nodes = BTreeSet::new();
        let mut next = vec![self.managed.link.station.port.node];
        while let Some(node) = next.pop() {
            if nodes.insert(node) {
                let ports = ports_of(fabric, node).filter(|port| !self.down.contains(port));
                next.extend(ports.filter_map(|port| Some(fabric.peer(port)?.node)));
            }
        }
        let adapters = nodes.into_iter().filter(|&node| !is_switch(fabric, node));
        let ports = adapters.map(|node| PortRef { node, port: 1 });
        ports
            .map(|port| (port, fabric.port_info(port).unwrap().lid))
            .collect()
    }

    /// Those of VMs.
    fn live(&self) -> Vec<(PortRef, Lid)> {
        let there = self.there().into_iter();
        let guid = |port| self.fabric().guids(port).unwrap()[0].value();
        there.filter(|&(port, _)| guid(port) & 0xff == 1).collect()
    }

    fn all_reach_each_other(&self) {
        let there = self.there();
        for &(from, _) in &there {
            for &(to, lid) in &there {
                let route = self.fabric().resolve(from, lid, Sl::default(), None);
                let route = route.unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
                assert_eq!(route.port, to);
            }
        }
    }

    /// Cables, by the port that a packet leaves by, on the way from a switch to a LID.
    fn way(&self, tables: &Tables, from: NodeId, lid: Lid) -> Vec<PortRef> {
        let mut way = Vec::new();
        let mut node = from;
        while let Some(table) = tables.get(&node)
            && let Some(port) = table[usize::from(lid.value()) - 1]
            && port != 0
            && way.len() < 64
        {
            let port = PortRef { node, port };
            way.push(port);
            match self.fabric().peer(port) {
                Some(peer) => node = peer.node,
                None => break,
            }
        }
        way
    }

    /// Blocks of forwarding tables that were sent, by switch.
    fn sent(&self) -> BTreeMap<NodeId, u64> {
        let fabric = self.fabric();
        let counts = fabric
            .nodes()
            .filter_map(|node| Some((node, fabric.smp_counts(node)?)));
        let set = |counts: &fabric::SmpCounts| {
            counts.answered_of(Method::SET, AttributeId::LINEAR_FORWARDING)
        };
        counts.map(|(node, counts)| (node, set(counts))).collect()
    }
}

/// Entries that differ, by switch and LID.
fn differences(before: &Tables, after: &Tables) -> Vec<(NodeId, Lid)> {
    let mut all = Vec::new();
    for (&node, table) in after {
        let pairs = (1..).map(Lid::new).zip(before[&node].iter().zip(table));
        all.extend(
            pairs
                .filter(|(_, (old, new))| old != new)
                .map(|(lid, _)| (node, lid)),
        );
    }
    all
}

fn blocks(entries: &[(NodeId, Lid)]) -> BTreeSet<(NodeId, u16)> {
    let block = |&(node, lid): &(NodeId, Lid)| (node, lid.value() / LinearBlock::LIDS);
    entries.iter().map(block).collect()
}

/// Something that happens, and the cables that it takes or brings.
#[derive(Debug)]
enum Event {
    Lost(Vec<PortRef>),
    Added(Vec<PortRef>),
    Moved,
}

#[derive(Debug, Default)]
struct Seen {
    events: BTreeMap<&'static str, usize>,
    packets: u64,
    fallbacks: usize,
}

/// Cables, switches and hypervisors go and come, some cables for the first time, and VMs move: everybody is reached after
/// each event, only entries change that the event has broken, or whose new way it has brought, each block of them by one
/// packet; and another sweep changes nothing.
#[test]
fn many_events() {
    let engines: [fn() -> Box<dyn RoutingEngine>; 2] =
        [|| Box::new(FatTreeRouting), || Box::new(VSwitchFatTree)];
    for engine in engines {
        let seed = seed();
        let mut random = Random::new(seed);
        for shape in ["XGFT(2;4,3;4,1)", "XGFT(3;3,3,2;2,3,1)"] {
            let mut tree = Tree::new(shape, engine(), |tree| {
                let trunks = tree.trunks();
                vec![trunks[1], trunks[trunks.len() - 1]]
            });
            let mut seen = Seen::default();
            let mut outages: Vec<Vec<PortRef>> = tree
                .trunks()
                .into_iter()
                .filter(|port| tree.down.contains(port))
                .map(|port| vec![port])
                .collect();
            let mut falls_back = false;
            for _ in 0..40 {
                let before = tables(tree.fabric());
                let sent = tree.sent();
                let event = happen(&mut tree, &mut random, &mut outages);
                let name = match event {
                    Event::Lost(_) => "lost",
                    Event::Added(_) => "added",
                    Event::Moved => "moved",
                };
                *seen.events.entry(name).or_default() += 1;
                let after_event = tables(tree.fabric());
                tree.sweep();
                let after = tables(tree.fabric());
                tree.all_reach_each_other();
                let fell_back = std::mem::take(&mut falls_back);
                let errors = &tree.managed.manager.report().errors;
                if !errors.is_empty() {
                    assert!(
                        errors[0].ends_with("; minhop does it instead"),
                        "{errors:?}"
                    );
                    seen.fallbacks += 1;
                    falls_back = true;
                } else if !fell_back {
                    check(&tree, &event, (&before, &after), &sent);
                    assert!(!matches!(event, Event::Moved) || after == after_event);
                }
                let now = tree.sent();
                seen.packets += now.values().sum::<u64>() - sent.values().sum::<u64>();
                tree.sweep();
                assert_eq!(tree.managed.manager.report().sets, 0);
            }
            println!("{shape}, {}: {seen:?}", engine().name());
            assert!(seen.fallbacks < 20, "{seen:?}");
        }
    }
}

/// Has something happen.
fn happen(tree: &mut Tree, random: &mut Random, outages: &mut Vec<Vec<PortRef>>) -> Event {
    if random.below(3) == 0 {
        let vm = guid(1 + random.below(tree.hypervisors - 1), 1);
        let to = Target::Hypervisor(guid(random.below(tree.hypervisors), 0));
        // A hypervisor may be away, or full.
        let _ = tree.managed.migrate(Migration::new(vm, to));
        return Event::Moved;
    }
    if outages.len() > random.below(4) {
        let back = outages.swap_remove(random.below(outages.len()));
        for &port in &back {
            tree.set(port, true);
        }
        return Event::Added(back);
    }
    let trunks = tree.trunks();
    let mut lost = match random.below(3) {
        0 => {
            let switches = tree.switches();
            let switch = switches[random.below(switches.len())];
            let fabric = tree.fabric();
            let all: Vec<PortRef> = ports_of(fabric, switch)
                .filter(|&port| fabric.peer(port).is_some())
                .collect();
            let is_upper = |port: &PortRef| {
                let peer = fabric.peer(*port).unwrap();
                ports_of(fabric, peer.node).count() > 3
            };
            // The manager's leaf stays.
            if all.iter().all(is_upper) {
                all
            } else {
                Vec::new()
            }
        }
        1 => {
            let number = 1 + random.below(tree.hypervisors - 1);
            let vswitch = tree.fabric().nodes().find(|&node| {
                let info = tree.fabric().node_info(PortRef { node, port: 0 });
                info.is_some_and(|info| {
                    info.node_type == NodeType::Switch && info.node_guid == guid(number, 0)
                })
            });
            let uplink = ports_of(tree.fabric(), vswitch.unwrap()).find(|&port| {
                let peer = tree.fabric().peer(port);
                peer.is_some_and(|peer| is_switch(tree.fabric(), peer.node))
            });
            vec![uplink.unwrap()]
        }
        _ => vec![trunks[random.below(trunks.len())]],
    };
    lost.retain(|port| !tree.down.contains(port));
    for &port in &lost {
        tree.set(port, false);
    }
    if !lost.is_empty() {
        outages.push(lost.clone());
    }
    Event::Lost(lost)
}

/// No entry has changed that need not have, and no packet was sent beside.
fn check(
    tree: &Tree,
    event: &Event,
    (before, after): (&Tables, &Tables),
    sent: &BTreeMap<NodeId, u64>,
) {
    let cables = |ports: &[PortRef]| -> BTreeSet<PortRef> {
        let peers = ports.iter().map(|&port| tree.fabric().peer(port).unwrap());
        ports.iter().copied().chain(peers).collect()
    };
    let (tables, cables) = match event {
        Event::Lost(ports) => (before, cables(ports)),
        Event::Added(ports) => (after, cables(ports)),
        Event::Moved => return,
    };
    // A switch that was away is told everything.
    let ends: BTreeSet<NodeId> = cables.iter().map(|port| port.node).collect();
    let changed = differences(before, after);
    for &(node, lid) in &changed {
        let way = tree.way(tables, node, lid);
        // A root has no way to another root, nor to a leaf that it has lost its cable to.
        let is_dropped = way.is_empty();
        assert!(
            is_dropped || way.iter().any(|port| cables.contains(port)),
            "{node:?} to {lid} by {way:?}: {event:?}"
        );
    }
    let blocks = blocks(&changed);
    for (node, now) in tree.sent() {
        let expected = blocks.iter().filter(|block| block.0 == node).count() as u64;
        let packets = now - sent[&node];
        assert!(
            packets == expected || ends.contains(&node),
            "{node:?}: {packets} packets for {expected}: {event:?}"
        );
    }
}

/// Blocks that packets tell switches of, in their order.
fn told(tree: &Tree, log: &[MadPacket]) -> Vec<(NodeId, u16)> {
    let sets = log.iter().filter_map(|packet| {
        let smp = Smp::new_checked(&packet.mad[..]).ok()?;
        let mad = smp.mad();
        let what = (mad.method(), mad.attribute());
        let mut at = tree.managed.link.station.port;
        for hop in 1..=smp.hop_count() {
            let port = smp.initial_path(hop);
            at = tree.fabric().peer(PortRef { port, ..at })?;
        }
        let is_block = what == (Method::SET, AttributeId::LINEAR_FORWARDING);
        is_block.then_some((at.node, mad.modifier() as u16))
    });
    sets.collect()
}

/// Checks that blocks come by falling number of active routes that their changed entries carry: those from one of the
/// live ports to another.
fn busiest_first(
    tree: &Tree,
    (tables, changed): (&Tables, &[(NodeId, Lid)]),
    live: &[(PortRef, Lid)],
    order: &[(NodeId, u16)],
) {
    let crosses = |from: PortRef, lid: Lid, node: NodeId| {
        let above = tree.fabric().peer(from).unwrap().node;
        let way = tree.way(tables, above, lid);
        way.iter().any(|port| port.node == node)
    };
    let routes = |&(node, number): &(NodeId, u16)| -> usize {
        let entries = changed
            .iter()
            .filter(|(at, lid)| *at == node && lid.value() / LinearBlock::LIDS == number);
        let lids = entries.map(|&(_, lid)| lid);
        let lids = lids.filter(|lid| live.iter().any(|(_, live)| live == lid));
        lids.map(|lid| {
            let sources = live.iter().filter(|&&(_, own)| own != lid);
            sources
                .filter(|source| crosses(source.0, lid, node))
                .count()
        })
        .sum()
    };
    let routes: Vec<usize> = order.iter().map(routes).collect();
    println!("routes by packet: {routes:?}");
    assert!(routes.is_sorted_by(|one, next| one >= next));
    assert!(routes.first() > routes.last());
}

/// A VM goes to another part of the tree: the fewest switches change, and those first that most active routes to it
/// cross.
#[test]
fn a_move_begins_with_the_busiest() {
    let mut tree = Tree::new("XGFT(3;3,3,2;2,3,1)", Box::new(FatTreeRouting), |_| {
        Vec::new()
    });
    let before = tables(tree.fabric());
    tree.managed.link.log = Some(Vec::new());
    let to = Target::Hypervisor(guid(14, 0));
    let moved = tree
        .managed
        .migrate(Migration::new(guid(3, 1), to))
        .unwrap();
    assert_eq!(moved.not_fewest, None);
    let log = tree.managed.link.log.take().unwrap();
    let (order, after) = (told(&tree, &log), tables(tree.fabric()));
    let mut changed = differences(&before, &after);
    assert_eq!(
        order.iter().copied().collect::<BTreeSet<_>>(),
        blocks(&changed)
    );
    // The other LID is of a place that nobody has.
    changed.retain(|&(_, lid)| lid == moved.lid);
    let live = tree.live();
    assert!(live.iter().any(|&(_, lid)| lid == moved.lid));
    busiest_first(&tree, (&after, &changed), &live, &order);
    // Two leaves, and at most the three switches above each and the six roots.
    assert!(moved.switches.sent <= 2 + 6 + 6, "{moved:?}");
    tree.all_reach_each_other();
    tree.sweep();
    assert_eq!(tree.managed.manager.report().sets, 0);
}

/// A leaf loses one of its cables: this many blocks, and those first that most active routes cross.
#[test]
fn the_busiest_come_first() {
    const SHAPE: &str = "XGFT(3;4,4,4;4,4,1)";
    let mut tree = Tree::new(SHAPE, Box::new(FatTreeRouting), |_| Vec::new());
    let before = tables(tree.fabric());
    let live = tree.live();
    // From a leaf up, on the way from one VM to another.
    let vswitch = tree.fabric().peer(live[4].0).unwrap().node;
    let cable = tree.way(&before, vswitch, live[live.len() - 3].1)[1];
    tree.set(cable, false);
    tree.managed.link.log = Some(Vec::new());
    tree.sweep();
    let after = tables(tree.fabric());
    let log = tree.managed.link.log.take().unwrap();
    let order = told(&tree, &log);
    let changed = differences(&before, &after);
    assert_eq!(
        order.iter().copied().collect::<BTreeSet<_>>(),
        blocks(&changed)
    );
    busiest_first(&tree, (&after, &changed), &live, &order);
    let nodes: Vec<NodeId> = order.iter().map(|block| block.0).collect();
    assert!(!nodes.is_sorted(), "not by number");
    // A manager that knows of no former paths spreads all anew.
    let mut fresh = Tree::new(SHAPE, Box::new(FatTreeRouting), |_| vec![cable]);
    fresh.sweep();
    let anew = blocks(&differences(&before, &tables(fresh.fabric())));
    println!(
        "{} packets, {} if all were spread anew",
        order.len(),
        anew.len()
    );
    assert!(order.len() < anew.len());
    // Back, it takes as many, and all is as before.
    let sent = tree.sent();
    tree.set(cable, true);
    tree.sweep();
    assert_eq!(tables(tree.fabric()), before);
    let sent = tree.sent().values().sum::<u64>() - sent.values().sum::<u64>();
    assert_eq!(sent, order.len() as u64);
}
