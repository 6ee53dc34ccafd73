//! VMs move with their addresses.

use std::collections::{BTreeMap, BTreeSet};

use fabric::Fabric;
use ibvswitch_subnet_manager::routing::{DimensionOrder, Lash};
use ibvswitch_subnet_manager::{
    Config, Deadlock, LinkCircle, Method, Migration, MigrationError, RoutingEngine, Target,
};
use testing::Random;
use topologies::{Hosts, Torus};
use wire::attribute::LinearBlock;
use wire::{Guid, Lid, PKey, PortState, Sl};

use crate::cloud::*;
use crate::harness::{Lost, Managed};

#[test]
fn everything_moves_along() {
    let cloud = Cloud::SMALL;
    let (vm, spare) = (cloud.function(0, 0), cloud.function(9, 2));
    let mut config = cloud.config();
    let keys = vec![PKey::DEFAULT_FULL, PKey::new(0x8011), PKey::new(0x0012)];
    config.partitions.insert(vm, keys.clone());
    let mut managed = cloud.managed(config);
    let before = addresses(&managed);
    let moved = checked(&mut managed, Migration::new(vm, Target::Function(spare))).unwrap();
    assert_eq!((moved.from, moved.to), (vm, spare));
    assert_eq!(moved.method, Method::Swap);
    let mut expected = before.clone();
    expected.get_mut(&vm).unwrap().0 = spare;
    expected.get_mut(&spare).unwrap().0 = vm;
    assert_eq!(addresses(&managed), expected);
    assert_eq!(before[&vm].2[..3], keys);
    managed.all_active_and_reachable();
    // LID away, P_Keys there, GUID there, LID there, GUID and P_Keys back, LID back.
    assert_eq!((moved.functions.sent, moved.functions.updated), (7, 7));
    assert_eq!(managed.manager.function_of(vm), Some(spare));
    assert_eq!(managed.manager.function_of(spare), Some(vm));

    // And back, and a sweep finds everything as it is to be.
    managed
        .migrate(Migration::new(vm, Target::Function(vm)))
        .unwrap();
    assert_eq!(addresses(&managed), before);
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(addresses(&managed), before);
    managed.all_active_and_reachable();
}

/// P15, V-D: within a leaf switch one packet to one switch, whatever the subnet.
#[test]
fn within_a_leaf() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.config());
    let vm = cloud.function(0, 0);
    for (to, drop_first) in [(1, false), (2, true), (3, false), (0, true)] {
        let migration = Migration {
            drop_first,
            ..to_hypervisor(&cloud, vm, to)
        };
        let moved = checked(&mut managed, migration).unwrap();
        assert_eq!((moved.switches.sent, moved.switches.updated), (1, 1));
        assert_eq!(moved.vswitches.sent, 2, "the two hypervisors' own");
        assert_eq!(moved.drops.sent, if drop_first { 3 } else { 0 });
        managed.all_active_and_reachable();
    }
}

/// Another leaf: one packet per switch that changes, two where the LIDs are in different blocks.
#[test]
fn one_or_two_packets_per_switch() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.config());
    let vm = cloud.function(0, 0);
    let lid = lid_of(&managed, vm).value();
    let mut seen = BTreeSet::new();
    for hypervisor in cloud.hypervisors..cloud.leaves * cloud.hypervisors {
        let spare = cloud.function(hypervisor, 3);
        let per_switch = 1 + u64::from(lid / 64 != lid_of(&managed, spare).value() / 64);
        seen.insert(per_switch);
        let destination_routed = hypervisor % 2 == 0;
        let migration = Migration {
            destination_routed,
            ..Migration::new(vm, Target::Function(spare))
        };
        let moved = checked(&mut managed, migration).unwrap();
        for switch in &moved.per_switch {
            assert_eq!(switch.packets.sent, per_switch, "{switch:?}");
        }
        let switches = (cloud.leaves + cloud.spines) as u64;
        assert!(moved.switches.sent <= per_switch * switches);
        assert_eq!(moved.vswitches.sent % per_switch, 0);
    }
    assert_eq!(seen, BTreeSet::from([1, 2]));
    managed.all_active_and_reachable();
}

#[test]
fn the_traditional_way_sends_everything() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.config());
    let migration = Migration {
        method: Some(Method::Full),
        ..to_hypervisor(&cloud, cloud.function(0, 0), 1)
    };
    let moved = checked(&mut managed, migration).unwrap();
    let lids = addresses(&managed).len() as u64;
    let blocks = lids / u64::from(LinearBlock::LIDS) + 1;
    let hypervisors = (cloud.leaves * cloud.hypervisors) as u64;
    let switches = (cloud.leaves + cloud.spines) as u64;
    assert_eq!(
        moved.switches.sent + moved.vswitches.sent,
        blocks * (switches + hypervisors)
    );
    managed.all_active_and_reachable();
}

/// Mistakes are told before anything is sent.
#[test]
fn what_cannot_be_done() {
    let cloud = Cloud {
        vms: 4,
        ..Cloud::SMALL
    };
    let mut config = cloud.config();
    config.spare_functions = BTreeSet::from([cloud.function(1, 0)]);
    let mut managed = cloud.managed(config);
    let vm = cloud.function(0, 0);
    let nobody = Guid::new(0x1234);
    let sent = |managed: &Managed| managed.manager.report().sets;
    let before = (addresses(&managed), sent(&managed));
    let with = |method| Migration {
        method: Some(method),
        ..to_hypervisor(&cloud, vm, 1)
    };
    for (migration, error, text) in [
        (
            to_hypervisor(&cloud, nobody, 1),
            MigrationError::NoSuchVm { vm: nobody },
            "no function of the subnet has the GUID 0000:0000:0000:1234; name a VM that is on the \
             subnet",
        ),
        (
            to_hypervisor(&cloud, cloud.function(1, 0), 1),
            MigrationError::NoSuchVm {
                vm: cloud.function(1, 0),
            },
            "no function of the subnet has the GUID 0002:c903:0000:0005; name a VM that is on the \
             subnet",
        ),
        (
            to_hypervisor(&cloud, vm, 0),
            MigrationError::AlreadyThere,
            "the VM is there already",
        ),
        (
            to_hypervisor(&cloud, vm, 2),
            MigrationError::NoFreeFunction {
                hypervisor: cloud.vswitch(2),
                functions: 4,
            },
            "none of the 4 functions of the hypervisor with vSwitch 0002:c903:0100:000c is free; \
             move a VM away from it, or give it spare functions",
        ),
        (
            Migration::new(vm, Target::Function(cloud.function(2, 1))),
            MigrationError::Occupied {
                function: cloud.function(2, 1),
            },
            "the function 0002:c903:0000:000a has a VM; name a free one",
        ),
        (
            with(Method::Copy),
            MigrationError::HasLid {
                function: cloud.function(1, 0),
            },
            "the function 0002:c903:0000:0005 has a LID of its own; use the method swap",
        ),
        (
            Migration::new(vm, Target::Hypervisor(nobody)),
            MigrationError::NoSuchTarget {
                what: "hypervisor with vSwitch",
                guid: nobody,
            },
            "there is no hypervisor with vSwitch 0000:0000:0000:1234 in the subnet",
        ),
    ] {
        assert_eq!(managed.migrate(migration), Err(error.clone()));
        assert_eq!(error.to_string(), text);
        assert_eq!((addresses(&managed), sent(&managed)), before);
    }
}

fn functions(all: &BTreeMap<Guid, (Guid, Lid, Vec<PKey>)>) -> BTreeSet<Guid> {
    all.values().map(|(node, _, _)| *node).collect()
}

/// A packet that is never answered, at any point: the VM is where it was or where it was to go, with
/// all its addresses, and everybody reaches everybody.
#[test]
fn interrupted_anywhere() {
    let cloud = Cloud {
        leaves: 2,
        spines: 2,
        hypervisors: 2,
        functions: 2,
        vms: 1,
    };
    let vm = cloud.function(0, 0);
    let (mut stayed, mut went) = (0, 0);
    for (drop_first, lost) in [
        (false, Lost::Request),
        (true, Lost::Request),
        (true, Lost::Answer),
    ] {
        for number in 0.. {
            let mut config = cloud.config();
            let keys = vec![PKey::new(0x8011), PKey::DEFAULT_FULL];
            config.partitions.insert(vm, keys);
            let mut managed = cloud.managed(config);
            let before = addresses(&managed);
            managed.link.lose_request = Some((number, lost));
            let migration = Migration {
                drop_first,
                ..to_hypervisor(&cloud, vm, 3)
            };
            let result = managed.migrate(migration);
            let has_lost = managed.has_lost();
            let after = addresses(&managed);
            let what = format!("{lost:?} {number}, {drop_first}");
            for (guid, (_, lid, pkeys)) in &after {
                let (_, lid_before, pkeys_before) = &before[guid];
                assert_eq!((lid, pkeys), (lid_before, pkeys_before), "{what}: {guid}");
            }
            assert_eq!(functions(&after), functions(&before), "{what}");
            managed.all_active_and_reachable();
            let (now, was) = (after[&vm].0, before[&vm].0);
            match result {
                Err(MigrationError::Interrupted { now_at, .. }) => {
                    assert_eq!(now_at, Some(now), "{what}");
                    if now == was { stayed += 1 } else { went += 1 }
                }
                Ok(_) => {
                    assert!(!has_lost, "{what}");
                    break;
                }
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
    assert!(stayed > 0 && went > 0, "{stayed} stayed, {went} went");
}

/// A manager that knows nothing of a migration finds it half done.
#[test]
fn another_manager_ends_it() {
    let cloud = Cloud::SMALL;
    let vm = cloud.function(0, 0);
    for packet in 0..12 {
        let mut managed = cloud.managed(cloud.config());
        let before = addresses(&managed);
        let known_lids = managed.manager.lids().iter();
        let known_lids = known_lids.map(|(&guid, &lid)| (guid, (lid, 0))).collect();
        managed.link.cut_after = Some(packet);
        managed.manager.migrate(to_hypervisor(&cloud, vm, 9));
        managed.manager.poll(managed.now, &mut managed.link);
        let fabric = managed.link.fabric;
        let config = Config {
            known_lids,
            ..cloud.config()
        };
        let mut managed = Managed::new(fabric, cloud.manager(), config);
        managed.settle();
        let after = addresses(&managed);
        for (guid, (_, lid, pkeys)) in &after {
            assert_eq!(
                (lid, pkeys),
                (&before[guid].1, &before[guid].2),
                "{packet}: {guid}"
            );
        }
        managed.all_active_and_reachable();
    }
}

/// A thousand migrations in random order.
#[test]
fn a_thousand_migrations() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.config());
    let before = addresses(&managed);
    let tables = entries(&managed);
    let seed = seed();
    let mut random = Random::new(seed);
    let vms: Vec<Guid> = cloud
        .all()
        .filter(|&(_, function)| function < cloud.vms)
        .map(|(h, f)| cloud.function(h, f))
        .collect();
    let hypervisors = cloud.leaves * cloud.hypervisors;
    let (mut done, mut full) = (0, 0);
    while done < 1000 {
        let vm = vms[random.below(vms.len())];
        let migration = Migration {
            drop_first: random.below(2) == 0,
            destination_routed: random.below(2) == 0,
            ..to_hypervisor(&cloud, vm, random.below(hypervisors))
        };
        match managed.migrate(migration) {
            Ok(_) => done += 1,
            Err(MigrationError::AlreadyThere) => {}
            Err(MigrationError::NoFreeFunction { .. }) => full += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
        if done % 100 == 0 {
            managed.all_active_and_reachable();
        }
    }
    assert!(full > 0, "seed {seed}: no hypervisor was ever full");
    let after = addresses(&managed);
    let strip = |all: &BTreeMap<Guid, (Guid, Lid, Vec<PKey>)>| -> Vec<(Guid, Lid, Vec<PKey>)> {
        let each = all.iter();
        each.map(|(&guid, (_, lid, pkeys))| (guid, *lid, pkeys.clone()))
            .collect()
    };
    assert_eq!(strip(&after), strip(&before), "seed {seed}");
    assert_eq!(
        entries(&managed),
        tables,
        "seed {seed}: entries lost or left behind"
    );
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    assert_eq!(
        addresses(&managed),
        after,
        "seed {seed}: a sweep moved a VM"
    );
    managed.all_active_and_reachable();
}

#[test]
fn ports_stay_active_all_the_while() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.config());
    managed
        .migrate(to_hypervisor(&cloud, cloud.function(0, 0), 9))
        .unwrap();
    for port in managed.end_ports() {
        let info = managed.link.fabric.port_info(port).unwrap();
        assert_eq!(info.port_state, PortState::Active);
        let route = managed
            .link
            .fabric
            .resolve(port, info.lid, Sl::default(), None)
            .unwrap();
        assert_eq!(route.port, port);
    }
}

/// Switches that let only the P_Keys of a port through let those of the VM through where it is.
#[test]
fn enforcement_follows() {
    let cloud = Cloud::SMALL;
    let (vm, peer) = (cloud.function(0, 0), cloud.function(3, 0));
    let key = PKey::new(0x8011);
    let mut config = cloud.config();
    config.enforce_partitions = true;
    config.partitions.insert(vm, vec![key]);
    config.partitions.insert(peer, vec![key]);
    let mut managed = cloud.managed(config);
    let reaches = |managed: &Managed, from: Guid| {
        let fabric = &managed.link.fabric;
        let from = fabric.port_by_guid(from).unwrap();
        let lid = lid_of(managed, peer);
        fabric.resolve(from, lid, Sl::default(), Some(key)).is_ok()
    };
    assert!(reaches(&managed, vm) && !reaches(&managed, cloud.function(9, 2)));
    let to = Target::Function(cloud.function(9, 2));
    managed.migrate(Migration::new(vm, to)).unwrap();
    assert!(reaches(&managed, vm), "at its new place");
    assert!(
        !reaches(&managed, cloud.function(9, 2)),
        "which is now where the VM was"
    );
}

/// A migration reports possible deadlocks while tables change, where that is asked.
#[test]
fn transitions() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.config());
    let checked = |migration| Migration {
        check_deadlock: true,
        ..migration
    };
    let vm = cloud.function(0, 0);
    let moved = managed.migrate(to_hypervisor(&cloud, vm, 1)).unwrap();
    assert_eq!(moved.deadlock, None, "nobody asked");
    // Within a vSwitch nothing turns round.
    let beside = Migration::new(vm, Target::Function(cloud.function(1, 3)));
    let moved = managed.migrate(checked(beside)).unwrap();
    assert_eq!(moved.deadlock, Some(Deadlock::Free));
    // Within a leaf it may send down what the new vSwitch, not told yet, sends up again.
    let moved = managed
        .migrate(checked(to_hypervisor(&cloud, vm, 0)))
        .unwrap();
    let Some(Deadlock::Possible(LinkCircle { lane, channels })) = moved.deadlock else {
        panic!("{:?}", moved.deadlock);
    };
    assert_eq!((lane, channels.len()), (0, 2));
    let ends = BTreeSet::from([switch_guid(cloud.spines), cloud.vswitch(0)]);
    assert_eq!(
        channels
            .into_iter()
            .map(|(guid, _)| guid)
            .collect::<BTreeSet<_>>(),
        ends
    );
    // With the LID dropped in between it cannot.
    let migration = Migration {
        drop_first: true,
        ..checked(to_hypervisor(&cloud, vm, 9))
    };
    let moved = managed.migrate(migration).unwrap();
    assert_eq!(moved.deadlock, Some(Deadlock::Free));
    let migration = Migration {
        method: Some(Method::Full),
        ..checked(to_hypervisor(&cloud, vm, 5))
    };
    assert!(managed.migrate(migration).unwrap().deadlock.is_some());
}

/// On a ring shortest paths may wait for each other at any time; lanes keep them apart, and the VM's
/// paths are on the lanes of where it is.
#[test]
fn transitions_on_lanes() {
    let ring = Torus::new(&[6], 1).unwrap();
    let topology = ring.topology(Hosts::Hypervisors { functions: 2 });
    let host =
        |number: u64, function: u64| Guid::new(0x0002_c903_0000_0000 | number << 8 | function);
    let config = Config {
        spare_functions: (1..=6).map(|number| host(number, 2)).collect(),
        ..Config::default()
    };
    let migration = Migration {
        check_deadlock: true,
        ..Migration::new(host(2, 1), Target::Function(host(5, 2)))
    };
    let fabric = Fabric::new(&topology).unwrap();
    let mut managed = Managed::new(fabric, host(1, 1), config.clone());
    managed.settle();
    let moved = managed.migrate(migration).unwrap();
    assert!(matches!(
        moved.deadlock,
        Some(Deadlock::Standing(LinkCircle { lane: 0, .. }))
    ));

    let engines: [Box<dyn RoutingEngine>; 2] =
        [Box::new(Lash { lanes: 15 }), Box::new(DimensionOrder)];
    for engine in engines {
        let fabric = Fabric::new(&topology).unwrap();
        let managed = Managed::new(fabric, host(1, 1), config.clone());
        let mut managed = managed.routed_by(engine, config.clone());
        managed.settle();
        let lanes = managed.manager.lanes();
        assert!(lanes > 1);
        for (from, to, drop_first) in [(2, 5, false), (3, 6, true), (4, 2, true), (6, 3, false)] {
            let migration = Migration {
                drop_first,
                check_deadlock: true,
                ..Migration::new(host(from, 1), Target::Hypervisor(host(to, 0)))
            };
            let moved = managed.migrate(migration).unwrap();
            match moved.deadlock {
                Some(Deadlock::Free) => {}
                Some(Deadlock::Possible(_)) if !drop_first => {}
                other => panic!("{from} to {to}: {other:?}"),
            }
            managed.all_active_and_reachable();
            // The next sweep finds nothing to change, not even the level to the manager.
            managed.manager.request_sweep();
            managed.settle();
            assert_eq!(managed.manager.report().sets, 0, "{from} to {to}");
            assert_eq!(managed.manager.lanes(), lanes);
        }
    }
}
