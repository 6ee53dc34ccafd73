//! Forwarding tables of tenants, merged into the provider's routes.

use std::collections::BTreeSet;

use fabric::{Fabric, Injected, NodeId, Owner, PortRef, SmpAccess};
use ibvswitch_subnet_manager::routing::Break;
use ibvswitch_subnet_manager::{
    ClusterRefusal, ClusterState, ClusterTables, Config, IdleReason, Method as MoveMethod,
    Migration, MinHop, RoutingEngine, SubnetManager, Target, UpDown,
};
use testing::Random;
use topologies::{Hosts, Torus};
use wire::attribute::LinearBlock;
use wire::mad::SIZE;
use wire::{Guid, Lid, MadPacket, PKey, Sl};

use super::failures::{is_switch, ports_of, tables};
use super::routing::{bed_with, checked, irregular};
use crate::cloud::{Cloud, blocks_set, lid_of, seed, switch_guid};
use crate::guests::Bed;
use crate::harness::Managed;

const SMALL: Cloud = Cloud::SMALL;

/// The leaf switches' GUIDs follow those of the spines.
fn leaf(number: usize) -> Guid {
    switch_guid(SMALL.spines + number)
}

/// Port of a leaf to a spine.
fn up(spine: usize) -> u8 {
    (SMALL.hypervisors + 1 + spine) as u8
}

fn node(fabric: &Fabric, guid: Guid) -> NodeId {
    let mut nodes = fabric.nodes();
    let is_it = |&node: &NodeId| {
        let info = fabric.node_info(PortRef { node, port: 1 });
        info.is_some_and(|info| info.node_guid == guid)
    };
    nodes.find(is_it).unwrap()
}

fn cluster(lids: &[Lid], entries: &[(Guid, Lid, u8)]) -> ClusterTables {
    let mut tables = ClusterTables {
        lids: lids.iter().copied().collect(),
        ..ClusterTables::default()
    };
    for &(switch, lid, port) in entries {
        tables.entries.entry(switch).or_default().insert(lid, port);
    }
    tables
}

/// Sets a cluster's tables and lets the manager write what changes.
fn set(
    managed: &mut Managed,
    name: &str,
    tables: ClusterTables,
) -> Result<ClusterState, ClusterRefusal> {
    let result = managed.manager.set_cluster_tables(name, tables);
    managed.manager.poll(managed.now, &mut managed.link);
    result
}

fn state(managed: &Managed, name: &str) -> ClusterState {
    managed.manager.clusters().get(name).unwrap().1.clone()
}

/// The switches whose forwarding tables are written meanwhile, with the number of blocks.
fn written(managed: &mut Managed, act: impl FnOnce(&mut Managed)) -> Vec<(Guid, u64)> {
    let before = blocks_set(managed);
    act(managed);
    let after = blocks_set(managed).into_iter();
    let counts = after.map(|(guid, count)| (guid, count - before[&guid]));
    counts.filter(|&(_, count)| count > 0).collect()
}

/// The ports that count a packet from a VM to a LID: both ends of each cable on its way.
fn crossed(managed: &mut Managed, from: Guid, to: Lid) -> BTreeSet<PortRef> {
    let fabric = &mut managed.link.fabric;
    let port = fabric.port_by_guid(from).unwrap();
    fabric.set_owner(port, Owner::Consumer, SmpAccess::OwnPort);
    let nodes: Vec<NodeId> = fabric.nodes().collect();
    let ports: Vec<PortRef> = { nodes.iter() }
        .flat_map(|&node| ports_of(fabric, node))
        .collect();
    let count = |fabric: &Fabric, port| fabric.save_counters(port).unwrap();
    let before: Vec<_> = ports.iter().map(|&port| count(fabric, port)).collect();
    // Of a class that nobody answers.
    let mut mad = [0; SIZE];
    mad[..4].copy_from_slice(&[1, 0x30, 1, 1]);
    let lid = fabric.port_info(port).unwrap().lid;
    let packet = MadPacket::gmp(lid, to, Sl::default(), PKey::DEFAULT_FULL, mad);
    assert_eq!(fabric.inject(port, packet), Injected::Sent);
    fabric.run();
    let ports = ports.into_iter().zip(before);
    ports
        .filter(|(port, before)| count(fabric, *port) != *before)
        .map(|(port, _)| port)
        .collect()
}

/// The same, by the tables.
fn traced(managed: &Managed, from: Guid, to: Lid) -> BTreeSet<PortRef> {
    let fabric = &managed.link.fabric;
    let port = fabric.port_by_guid(from).unwrap();
    let links = fabric.trace(port, to, Sl::default(), None).unwrap();
    let ends = |(port, _)| [port, fabric.peer(port).unwrap()];
    links.into_iter().flat_map(ends).collect()
}

/// A VM of the second leaf gets its packets from the first leaf by the spine that its tenant says, and others' stay.
#[test]
fn packets_take_the_tenants_way() {
    let mut managed = SMALL.managed(SMALL.config());
    let (vm, other) = (SMALL.function(4, 0), SMALL.function(4, 1));
    let [own, others] = [vm, other].map(|vm| lid_of(&managed, vm));
    let before = tables(&managed.link.fabric);
    let from = SMALL.function(0, 0);
    let mut ways = BTreeSet::new();
    for spine in 0..SMALL.spines {
        let entries = [(leaf(0), own, up(spine)), (leaf(0), others, up(spine))];
        let mut state = ClusterState::default();
        let written = written(&mut managed, |managed| {
            state = set(managed, "a", cluster(&[own], &entries)).unwrap();
        });
        assert!(written.iter().all(|&at| at == (leaf(0), 1)), "{written:?}");
        assert_eq!((state.acting, state.idle), (1, 1));
        assert_eq!(state.idle_entries[0].reason, IdleReason::Foreign);
        let ports = crossed(&mut managed, from, own);
        assert_eq!(ports, traced(&managed, from, own));
        let fabric = &managed.link.fabric;
        let (node_of, port) = (node(fabric, leaf(0)), up(spine));
        assert!(
            ports.contains(&PortRef {
                node: node_of,
                port
            }),
            "{ports:?}"
        );
        // vSwitch, leaf, spine, leaf, vSwitch.
        assert_eq!(ports.len(), 2 * 6);
        managed.all_active_and_reachable();
        ways.insert(ports);
        // A sweep that finds nothing new writes nothing.
        let now = tables(&managed.link.fabric);
        let quiet = self::written(&mut managed, |managed| {
            managed.manager.request_sweep();
            managed.settle();
        });
        assert_eq!(quiet, []);
        assert!(tables(&managed.link.fabric) == now);
    }
    assert_eq!(ways.len(), SMALL.spines);
    set(&mut managed, "a", ClusterTables::default()).unwrap();
    assert!(tables(&managed.link.fabric) == before);
    assert!(managed.manager.clusters().get("a").is_none());
}

/// Entries that lead nowhere are not written, and the provider's ways stay.
#[test]
fn circles_and_black_holes_hurt_nobody() {
    let mut managed = SMALL.managed(SMALL.config());
    let vm = SMALL.function(4, 0);
    let lid = lid_of(&managed, vm);
    let spine = switch_guid(0);
    let before = tables(&managed.link.fabric);
    for (entries, expected) in [
        (vec![(leaf(0), lid, LinearBlock::DROP)], Break::Dropped),
        (vec![(leaf(0), lid, 200)], Break::WrongPort),
        (vec![(leaf(0), lid, 0)], Break::WrongPort),
        // Down to another hypervisor.
        (vec![(SMALL.vswitch(0), lid, 3)], Break::WrongPort),
        (
            vec![
                (leaf(0), lid, up(0)),
                (spine, lid, 1),
                (leaf(2), lid, up(0)),
            ],
            Break::Circle,
        ),
    ] {
        let count = entries.len();
        let mut state = ClusterState::default();
        let written = written(&mut managed, |managed| {
            state = set(managed, "a", cluster(&[lid], &entries)).unwrap();
        });
        assert_eq!((written, state.acting, state.idle), (vec![], 0, count));
        let reasons = state.idle_entries.iter().map(|idle| idle.reason);
        assert!({ reasons }.all(|reason| reason == IdleReason::Broken(expected)));
        assert!(tables(&managed.link.fabric) == before);
    }
    // LIDs of the manager, of a switch, of a function without a VM and of nobody are nobody's.
    let manager = managed.manager.lids()[&SMALL.manager()];
    let switch = managed.manager.lids()[&leaf(1)];
    let spare = lid_of(&managed, SMALL.function(4, 3));
    let lids = [manager, switch, spare, Lid::new(0xbff0)];
    let entries = lids.map(|lid| (leaf(0), lid, up(1)));
    let state = set(&mut managed, "a", cluster(&lids, &entries)).unwrap();
    assert_eq!((state.acting, state.idle), (0, lids.len()));
    let mut idle = state.idle_entries.iter();
    assert!(idle.all(|idle| idle.reason == IdleReason::Absent));
    assert!(tables(&managed.link.fabric) == before);
}

/// A ring of switches with an adapter each, the manager at the first. Switches by their place.
fn ring(engine: Box<dyn RoutingEngine>) -> (Bed, Vec<Guid>) {
    let topology = Torus::new(&[5], 1).unwrap().topology(Hosts::Adapters);
    let bed = bed_with(&topology, engine, Config::default());
    let guids = (0..5).map(|at| Guid::new(0x0002_c903_0200_0000 + at));
    (bed, guids.collect())
}

/// Entries for all these ports' LIDs round the ring one way.
fn round(bed: &Bed, switches: &[Guid], ports: &[usize]) -> ClusterTables {
    let lids: Vec<Lid> = ports.iter().map(|&port| bed.lid(port)).collect();
    let mut entries = Vec::new();
    for (&port, &lid) in ports.iter().zip(&lids) {
        // Guest 0 is at switch 1.
        let others = (0..5).filter(|&switch| switch != port + 1);
        entries.extend(others.map(|switch| (switches[switch], lid, 1)));
    }
    cluster(&lids, &entries)
}

#[test]
fn tables_that_deadlock_are_refused() {
    let (mut bed, switches) = ring(Box::new(UpDown::default()));
    let before = tables(&bed.managed.link.fabric);
    let all = round(&bed, &switches, &[0, 1, 2, 3]);
    let refused = set(&mut bed.managed, "a", all.clone()).unwrap_err();
    let ClusterRefusal::Deadlock(circle) = &refused else {
        panic!("{refused}");
    };
    assert_eq!(circle.channels.len(), 5);
    assert!(circle.channels.iter().all(|&(_, port)| port == 1));
    let text = refused.to_string();
    let first = format!("port 1 of switch {}", circle.channels[0].0);
    assert!(text.contains(&first), "{text}");
    assert!(tables(&bed.managed.link.fabric) == before);
    assert!(bed.managed.manager.clusters().get("a").is_none());
    // One LID alone goes round without harm; what replaces it is refused, and it stays.
    let one = round(&bed, &switches, &[2]);
    set(&mut bed.managed, "a", one.clone()).unwrap();
    checked(&mut bed, "one", true);
    let with_one = tables(&bed.managed.link.fabric);
    assert!(with_one != before);
    assert_eq!(set(&mut bed.managed, "a", all), Err(refused));
    assert!(tables(&bed.managed.link.fabric) == with_one);
    assert_eq!(bed.managed.manager.clusters().get("a").unwrap().0, &one);
    // Two tenants: the second one closes the circle. Nor may it name the LID of the first.
    let rest = round(&bed, &switches, &[0, 1, 3]);
    assert!(set(&mut bed.managed, "b", rest).is_err());
    let stolen = set(&mut bed.managed, "b", one).unwrap();
    assert_eq!((stolen.acting, stolen.idle), (0, 4));
    assert!(tables(&bed.managed.link.fabric) == with_one);
}

/// Where the provider's own paths can deadlock, tables act that add nothing to that.
#[test]
fn paths_that_deadlock_already() {
    let (mut bed, switches) = ring(Box::new(MinHop));
    let all = round(&bed, &switches, &[0, 1, 2, 3]);
    let state = set(&mut bed.managed, "a", all).unwrap();
    assert_eq!((state.acting, state.idle), (16, 0));
}

/// A VM's LID goes the provider's way while the VM moves and afterwards, until its tenant says otherwise; functions
/// without VMs inherit nothing.
#[test]
fn a_vm_that_moves() {
    let moves = |managed: &mut Managed, vm| {
        let target = Target::Function(SMALL.function(9, 2));
        let moved = managed.migrate(Migration::new(vm, target)).unwrap();
        managed.manager.poll(managed.now, &mut managed.link);
        moved
    };
    let vm = SMALL.function(4, 0);
    let mut control = SMALL.managed(SMALL.config());
    moves(&mut control, vm);
    let expected = tables(&control.link.fabric);
    for spine in 0..SMALL.spines {
        let mut managed = SMALL.managed(SMALL.config());
        let lid = lid_of(&managed, vm);
        // By this spine, down to the leaf where the VM is and the one where it will be.
        let mut entries = vec![(leaf(0), lid, up(spine))];
        entries.extend([(leaf(1), lid, 1), (switch_guid(spine), lid, 2)]);
        set(&mut managed, "a", cluster(&[lid], &entries)).unwrap();
        assert_eq!(state(&managed, "a").idle, 0);
        moves(&mut managed, vm);
        assert_eq!(state(&managed, "a").acting, 0, "all lead to where it was");
        assert!(tables(&managed.link.fabric) == expected);
        managed.all_active_and_reachable();
        entries[1].0 = leaf(2);
        entries[1].2 = 2;
        entries[2].2 = 3;
        let state = set(&mut managed, "a", cluster(&[lid], &entries)).unwrap();
        assert_eq!((state.acting, state.idle), (3, 0), "{state}");
        let from = SMALL.function(0, 0);
        let ports = crossed(&mut managed, from, lid);
        let port = up(spine);
        let node = node(&managed.link.fabric, leaf(0));
        assert!(ports.contains(&PortRef { node, port }));
        // Another VM's moves leave them alone, and so does one for which all paths are computed anew.
        let other = SMALL.function(20, 1);
        let there = [SMALL.function(5, 3), other];
        for (to, method) in there.into_iter().zip([None, Some(MoveMethod::Full)]) {
            let migration = Migration {
                method,
                ..Migration::new(other, Target::Function(to))
            };
            managed.migrate(migration).unwrap();
            managed.manager.poll(managed.now, &mut managed.link);
            assert_eq!(crossed(&mut managed, from, lid), ports);
            assert_eq!(self::state(&managed, "a").acting, 3);
        }
        managed.all_active_and_reachable();
    }
}

/// Entries give way where a cable is lost, and act again when it is back, with a manager that is started again, too.
#[test]
fn cables_and_managers_come_and_go() {
    let mut managed = SMALL.managed(SMALL.config());
    let lid = lid_of(&managed, SMALL.function(4, 0));
    let provider = tables(&managed.link.fabric);
    let provided = traced(&managed, SMALL.function(0, 0), lid);
    let own = node(&managed.link.fabric, leaf(0));
    let spine = (0..SMALL.spines).find(|&spine| {
        let port = up(spine);
        !provided.contains(&PortRef { node: own, port })
    });
    let port = up(spine.unwrap());
    set(&mut managed, "a", cluster(&[lid], &[(leaf(0), lid, port)])).unwrap();
    let with = tables(&managed.link.fabric);
    let uplink = PortRef { node: own, port };
    managed.link.fabric.set_cable(uplink, false);
    let broken = IdleReason::Broken(Break::WrongPort);
    let told = "routes of the cluster a: 0 entries act, 1 do not, the first: LID";
    // As long as that lasts.
    for _ in 0..2 {
        managed.manager.request_sweep();
        managed.settle();
        assert_eq!(state(&managed, "a").idle_entries[0].reason, broken);
        let errors = &managed.manager.report().errors;
        let found = errors.iter().filter(|error| error.starts_with(told));
        assert_eq!(found.count(), 1, "{errors:?}");
    }
    managed.link.fabric.set_cable(uplink, true);
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(state(&managed, "a").acting, 1);
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    assert!(tables(&managed.link.fabric) == with);

    let clusters = managed.manager.clusters().all();
    let known = clusters.map(|(name, tables, _)| (name.to_owned(), tables.clone()));
    let config = Config {
        known_cluster_tables: known.collect(),
        ..SMALL.config()
    };
    managed.manager = SubnetManager::new(config, Box::new(MinHop)).unwrap();
    managed.settle();
    assert!(tables(&managed.link.fabric) == with);
    assert_eq!(state(&managed, "a").acting, 1);
    set(&mut managed, "a", ClusterTables::default()).unwrap();
    assert!(tables(&managed.link.fabric) == provider);
}

/// Whatever tenants set, in whatever order, everybody is reached and nobody waits for ever.
#[test]
fn random_tables() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut seen = [0; 2];
    for round in 0..4 {
        let topology = irregular(seed ^ round);
        let mut bed = bed_with(&topology, Box::new(UpDown::default()), Config::default());
        let fabric = &bed.managed.link.fabric;
        let switches: Vec<(Guid, Vec<u8>)> = { fabric.nodes() }
            .filter(|&node| is_switch(fabric, node))
            .map(|node| {
                let ports = ports_of(fabric, node).filter(|&port| fabric.peer(port).is_some());
                let ports = ports.map(|port| port.port).collect();
                let at = PortRef { node, port: 1 };
                (fabric.node_info(at).unwrap().node_guid, ports)
            })
            .collect();
        for _ in 0..6 {
            // Ways that a tenant's manager could compute: towards the LID by random detours, or anything.
            let tenant = random.below(3);
            let lids: Vec<Lid> = (tenant * 4..tenant * 4 + 4)
                .map(|port| bed.lid(port))
                .collect();
            let mut entries = Vec::new();
            for (guid, ports) in &switches {
                for &lid in &lids {
                    if random.below(3) == 0 {
                        entries.push((*guid, lid, ports[random.below(ports.len())]));
                    }
                }
            }
            let name = format!("tenant {tenant}");
            match set(&mut bed.managed, &name, cluster(&lids, &entries)) {
                Ok(state) => seen[0] += state.acting,
                Err(_) => seen[1] += 1,
            }
            checked(&mut bed, &format!("seed {seed}, round {round}"), true);
        }
    }
    assert!(seen.iter().all(|&seen| seen > 0), "seed {seed}: {seen:?}");
}
