//! Paths are spread anew when migrations have crowded them.

use std::collections::BTreeSet;

use fabric::Fabric;
use ibvswitch_subnet_manager::routing::{FatTree as FatTreeRouting, Lash, VSwitchFatTree};
use ibvswitch_subnet_manager::{Config, Migration, MinHop, RoutingEngine, Target};
use testing::Random;
use topologies::{FatTree, Hosts};
use wire::Guid;

use crate::cloud::seed;
use crate::harness::Managed;

const HYPERVISORS: usize = 16;
const FUNCTIONS: u8 = 4;

/// The vSwitch of a hypervisor, or one of its functions from 1.
fn guid(hypervisor: usize, function: usize) -> Guid {
    Guid::new(0x0002_c903_0000_0000 | (hypervisor as u64 + 1) << 8 | function as u64)
}

/// A fat-tree of hypervisors whose first two functions have VMs; the very first is the manager's.
fn managed(threshold: Option<u16>, engine: Box<dyn RoutingEngine>) -> Managed {
    let tree: FatTree = "XGFT(2;4,4;4,1)".parse().unwrap();
    let topology = tree.topology(Hosts::Hypervisors {
        functions: FUNCTIONS,
    });
    let spares = |hypervisor| [3, 4].map(|function| guid(hypervisor, function));
    let config = Config {
        rebalance_threshold: threshold,
        spare_functions: (0..HYPERVISORS).flat_map(spares).collect::<BTreeSet<_>>(),
        ..Config::default()
    };
    let fabric = Fabric::new(&topology).unwrap();
    let managed = Managed::new(fabric, guid(0, 1), config.clone());
    let mut managed = managed.routed_by(engine, config);
    managed.settle();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    managed
}

fn migration(vm: Guid, to: usize) -> Migration {
    Migration::new(vm, Target::Hypervisor(guid(to, 0)))
}

/// Random moves until the next time paths are spread anew; how many it took.
fn crowd(managed: &mut Managed, random: &mut Random) -> Option<usize> {
    let times = |managed: &Managed| managed.manager.balance().map(|balance| balance.rebalanced);
    let before = times(managed);
    for step in 1..=400 {
        let vm = guid(1 + random.below(HYPERVISORS - 1), 1 + random.below(2));
        // A full hypervisor takes nobody.
        let _ = managed.migrate(migration(vm, random.below(HYPERVISORS)));
        managed.manager.poll(managed.now, &mut managed.link);
        if times(managed) > before {
            return Some(step);
        }
    }
    None
}

#[test]
fn crowded_links_are_relieved() {
    let engines: [fn() -> Box<dyn RoutingEngine>; 4] = [
        || Box::new(VSwitchFatTree),
        || Box::new(FatTreeRouting),
        || Box::new(MinHop),
        || Box::new(Lash { lanes: 15 }),
    ];
    for engine in engines {
        let name = engine().name();
        let seed = seed();
        println!("{name}");
        let mut managed = managed(Some(125), engine());
        let begun = managed.manager.balance().unwrap();
        assert_eq!((begun.computed, begun.rebalanced), (begun.now, 0));
        assert!(begun.now > 0);
        let steps = crowd(&mut managed, &mut Random::new(seed));
        // Lash has one path for all of a vSwitch's VMs: nothing to spread.
        let Some(steps) = steps else {
            assert_eq!(name, "lash");
            continue;
        };
        let balance = managed.manager.balance().unwrap();
        println!("{name}: {steps} steps, {balance:?}");
        assert_eq!(balance.computed, balance.now);
        managed.all_active_and_reachable();
        assert_eq!(managed.manager.report().errors, Vec::<String>::new());
        // What is computed is what the switches hold.
        managed.manager.request_sweep();
        managed.settle();
        assert_eq!(managed.manager.report().sets, 0);
        // Migrations go on from there.
        crowd(&mut managed, &mut Random::new(seed + 1));
        managed.all_active_and_reachable();
    }
}

#[test]
fn nobody_looks_unless_told() {
    let mut managed = managed(None, Box::new(VSwitchFatTree));
    managed.migrate(migration(guid(3, 1), 9)).unwrap();
    assert_eq!(managed.manager.balance(), None);
}
