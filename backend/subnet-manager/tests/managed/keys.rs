//! Management keys: who has none changes nothing and learns nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::Station;
use ibvswitch_subnet_manager::{Config, KeyPolicy, Migration, MinHop, SubnetManager, Target};
use testing::Random;
use topologies::Hypervisors;
use wire::Guid;

use crate::harness::Managed;

/// Anything but guessable, and good enough here.
fn source(seed: u64) -> Box<dyn FnMut() -> u64 + Send> {
    let mut random = Random::new(seed);
    Box::new(move || random.number())
}

fn config(protect: u8) -> Config {
    Config {
        m_key: KeyPolicy::PerNode,
        m_key_protect: protect,
        m_key_lease: 60,
        ..Config::default()
    }
}

fn protected(protect: u8) -> (Managed, Hypervisors) {
    let (mut managed, layout) = Managed::hypervisors(2, 2, config(protect));
    let manager = SubnetManager::new(config(protect), Box::new(MinHop)).unwrap();
    managed.manager = manager.with_key_source(source(1));
    managed.settle();
    (managed, layout)
}

/// Lets a second manager, at this port, do what it can for a minute.
fn intrude(managed: &mut Managed, guid: Guid) -> SubnetManager {
    let fabric = &mut managed.link.fabric;
    let port = fabric.port_by_guid(guid).unwrap();
    let mut station = Station::new(fabric, port);
    let config = Config {
        priority: 15,
        ..Config::default()
    };
    let mut manager = SubnetManager::new(config, Box::new(MinHop)).unwrap();
    let mut now = Duration::ZERO;
    while now < Duration::from_secs(50) {
        match manager.poll(now, &mut station.at(fabric)) {
            Some(next) => now = next,
            None => break,
        }
    }
    manager
}

fn keys(managed: &Managed) -> BTreeMap<Guid, u64> {
    let fabric = &managed.link.fabric;
    let ports = managed.end_ports().into_iter();
    ports
        .map(|port| {
            let info = fabric.port_info(port).unwrap();
            (fabric.node_info(port).unwrap().node_guid, info.m_key)
        })
        .collect()
}

#[test]
fn every_node_has_its_own() {
    let (mut managed, _) = protected(2);
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    managed.all_active_and_reachable();
    let held = keys(&managed);
    let distinct: BTreeSet<u64> = held.values().copied().collect();
    assert_eq!(distinct.len(), held.len());
    assert!(!distinct.contains(&0));
    let known: BTreeMap<Guid, u64> = managed
        .manager
        .management_keys()
        .ports()
        .map(|((node, _), key)| (node, key))
        .collect();
    assert_eq!(known, held);
    // No key in what is written to a log.
    let shown = format!("{:?}", managed.manager.management_keys());
    assert_eq!(shown, "ManagementKeys { ports: 8, .. }");
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(managed.manager.report().sets, 0);
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
}

#[test]
fn a_manager_without_keys_changes_nothing() {
    for (protect, adapters) in [(2, 0), (1, 5)] {
        let (mut managed, layout) = protected(protect);
        let (before, held) = (managed.link.fabric.generation(), keys(&managed));
        let intruder = intrude(&mut managed, layout.vf_guid(1, 0));
        let generation = managed.link.fabric.generation();
        assert_eq!(generation, before, "level {protect}");
        assert_eq!(keys(&managed), held);
        // At level 1 it sees what there is, at level 2 not even itself.
        let seen = intruder.nodes().count();
        assert_eq!(seen > 0, adapters > 0, "level {protect}: {seen} nodes");
        managed.all_active_and_reachable();
        managed.manager.request_sweep();
        managed.settle();
        assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    }
}

#[test]
fn without_keys_a_second_manager_takes_over() {
    let (mut managed, layout) = Managed::hypervisors(2, 2, Config::default());
    managed.settle();
    // It does not announce itself, and is not asked; the first one is not looked for either.
    let port = managed.link.station.port;
    let none = wire::attribute::CapabilityMask::default();
    let is_sm = wire::attribute::CapabilityMask::IS_SM;
    managed.link.fabric.set_capabilities(port, none, is_sm);
    let intruder = intrude(&mut managed, layout.vf_guid(1, 0));
    assert_eq!(intruder.nodes().count(), 8);
    let fabric = &managed.link.fabric;
    let info = |guid| {
        let port = fabric.port_by_guid(guid).unwrap();
        fabric.port_info(port).unwrap()
    };
    let master = info(layout.vf_guid(0, 0)).master_sm_lid;
    assert_eq!(master, info(layout.vf_guid(1, 0)).lid);
}

#[test]
fn links_come_and_go_with_keys() {
    let (mut managed, layout) = protected(3);
    let guid = layout.vf_guid(1, 0);
    let vf = managed.link.fabric.port_by_guid(guid).unwrap();
    for cable in [false, true] {
        managed.link.fabric.set_cable(vf, cable);
        managed.manager.request_sweep();
        managed.settle();
    }
    managed.all_active_and_reachable();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
}

#[test]
fn a_restarted_manager_knows_its_keys() {
    let (mut managed, _) = protected(2);
    let held = keys(&managed);
    let config = Config {
        known_m_keys: managed.manager.management_keys().clone(),
        ..config(2)
    };
    let manager = SubnetManager::new(config, Box::new(MinHop)).unwrap();
    managed.manager = manager.with_key_source(source(2));
    managed.settle();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    assert_eq!(managed.manager.report().active, 8);
    assert_eq!(keys(&managed), held);
}

#[test]
fn one_that_has_forgotten_them_waits_for_the_lease() {
    let (mut managed, _) = protected(2);
    let held = keys(&managed);
    let manager = SubnetManager::new(config(2), Box::new(MinHop)).unwrap();
    managed.manager = manager.with_key_source(source(3));
    let mut time = Duration::ZERO;
    while time < Duration::from_secs(600) && managed.manager.report().active < 8 {
        managed.link.fabric.advance(time);
        managed.link.fabric.run();
        let next = managed.manager.poll(time, &mut managed.link);
        let fabric = managed.link.fabric.deadline();
        time = next
            .into_iter()
            .chain(fabric)
            .min()
            .unwrap_or(time)
            .max(time);
        time += Duration::from_millis(1);
    }
    assert!(time > Duration::from_secs(60), "{time:?}");
    assert_eq!(managed.manager.report().active, 8);
    let now = keys(&managed);
    assert!(held.iter().all(|(guid, key)| now[guid] != *key));
    managed.all_active_and_reachable();
}

/// A VM takes its addresses along and no keys: these are the nodes'.
#[test]
fn vms_move_between_protected_nodes() {
    let layout = Hypervisors::new(2, 2).unwrap();
    let (vm, spare) = (layout.vf_guid(0, 0), layout.vf_guid(1, 1));
    let config = Config {
        spare_functions: [spare].into(),
        ..config(3)
    };
    let (mut managed, _) = Managed::hypervisors(2, 2, config.clone());
    let manager = SubnetManager::new(config, Box::new(MinHop)).unwrap();
    managed.manager = manager.with_key_source(source(1));
    managed.settle();
    let (before, lid) = (keys(&managed), lid(&managed, vm));
    let there = managed.link.fabric.port_by_guid(spare).unwrap();
    for (to, back) in [(spare, false), (vm, true)] {
        // The functions are called by their nodes' GUIDs, which stay.
        let moved = managed.migrate(Migration::new(vm, Target::Function(to)));
        assert_eq!(moved.unwrap().lid, lid);
        let now = managed.link.fabric.port_by_guid(vm).unwrap();
        assert_eq!(now == there, !back);
        assert_eq!(keys(&managed), before);
        managed.all_active_and_reachable();
        managed.manager.request_sweep();
        managed.settle();
        assert_eq!(managed.manager.report().sets, 0);
        assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    }
}

fn lid(managed: &Managed, guid: Guid) -> wire::Lid {
    let fabric = &managed.link.fabric;
    let port = fabric.port_by_guid(guid).unwrap();
    fabric.port_info(port).unwrap().lid
}
