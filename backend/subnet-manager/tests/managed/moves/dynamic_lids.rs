//! VMs get a LID when they start and give it back when they end.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{NodeId, PortRef};
use ibvswitch_subnet_manager::{Method, Migration, MigrationError, Moved};
use testing::Random;
use wire::{Guid, Lid, Sl};

use crate::cloud::*;
use crate::harness::Managed;

/// P17, III: a VM that starts gets the next free LID, which every switch forwards as it does that
/// of the hypervisor; one packet per switch.
#[test]
fn a_vm_starts_and_ends() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.dynamic());
    let nodes = (cloud.spines + cloud.leaves) as u64;
    let hypervisors = (cloud.leaves * cloud.hypervisors) as u64;
    // The manager, the switches and the vSwitches have the first ones.
    let first = (1 + nodes + hypervisors + 1) as u16;
    let quiet = entries(&managed);
    let (a, b) = (cloud.function(3, 0), cloud.function(20, 1));
    for (vm, hypervisor, lid) in [(a, 3, first), (b, 20, first + 1)] {
        let started = checked_by(&mut managed, |managed| managed.start(vm)).unwrap();
        assert_eq!(started.lid, Lid::new(lid));
        assert_eq!(lid_of(&managed, vm), Lid::new(lid));
        assert_eq!((started.functions.sent, started.functions.updated), (1, 1));
        assert_eq!(
            (started.switches.sent, started.switches.updated),
            (nodes, nodes)
        );
        assert_eq!(started.vswitches.sent, hypervisors);
        let fabric = &managed.link.fabric;
        let above = lid_of(&managed, cloud.vswitch(hypervisor));
        for node in fabric.nodes() {
            let port = fabric.forwarding(node, Lid::new(lid));
            let guid = fabric
                .node_info(PortRef { node, port: 1 })
                .unwrap()
                .node_guid;
            if guid == cloud.vswitch(hypervisor) {
                assert!(port.is_some_and(|port| port > 1));
            } else {
                assert_eq!(port, fabric.forwarding(node, above), "as the hypervisor's");
            }
        }
        assert_eq!(managed.start(vm), Err(MigrationError::AlreadyThere));
    }
    reachable(&managed, &[a, b, cloud.manager()]);
    let ended = checked_by(&mut managed, |managed| managed.end(a)).unwrap();
    assert_eq!(ended.switches.sent, nodes);
    assert_eq!(lid_of(&managed, a), Lid::NONE);
    let not_running = MigrationError::NotRunning { vm: a };
    assert_eq!(managed.end(a), Err(not_running.clone()));
    assert_eq!(
        managed.migrate(to_hypervisor(&cloud, a, 7)),
        Err(not_running)
    );
    // Its LID is the next one's.
    let c = cloud.function(5, 0);
    assert_eq!(managed.start(c).unwrap().lid, Lid::new(first));
    reachable(&managed, &[c, b]);
    managed.end(b).unwrap();
    managed.end(c).unwrap();
    assert_eq!(entries(&managed), quiet, "nothing is left behind");
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    assert_eq!(lid_of(&managed, a), Lid::NONE);
}

/// A VM that moves takes its LID along; the entry of the destination's hypervisor is copied.
#[test]
fn dynamic_lids_move() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.dynamic());
    let (vm, other) = (cloud.function(0, 0), cloud.function(7, 1));
    let lid = managed.start(vm).unwrap().lid;
    managed.start(other).unwrap();
    for (hypervisor, within) in [(1, true), (2, true), (9, false), (8, true), (0, false)] {
        let moved = checked(&mut managed, to_hypervisor(&cloud, vm, hypervisor)).unwrap();
        assert_eq!((moved.method, moved.lid), (Method::Copy, lid));
        if within {
            assert_eq!(moved.switches.sent, 1);
        }
        assert!(
            moved
                .per_switch
                .iter()
                .all(|switch| switch.packets.sent == 1)
        );
        assert_eq!(lid_of(&managed, vm), lid);
        assert_eq!(lid_of(&managed, moved_from(&moved, vm)), Lid::NONE);
        reachable(&managed, &[vm, other, cloud.manager()]);
    }
    let swap = Migration {
        method: Some(Method::Swap),
        ..to_hypervisor(&cloud, vm, 5)
    };
    assert!(matches!(
        managed.migrate(swap),
        Err(MigrationError::NothingToSwap { .. })
    ));
}

/// The GUID that is now at the function which the VM left.
fn moved_from(moved: &Moved, vm: Guid) -> Guid {
    if moved.from == vm {
        moved.to
    } else {
        moved.from
    }
}

/// Starts, ends and migrations in random order.
#[test]
fn nothing_leaks_from_dynamic_lids() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.dynamic());
    let quiet = entries(&managed);
    let seed = seed();
    let mut random = Random::new(seed);
    let vms: Vec<Guid> = cloud
        .all()
        .filter(|&(_, function)| function < cloud.vms)
        .map(|(h, f)| cloud.function(h, f))
        .collect();
    let mut running = BTreeSet::new();
    let hypervisors = cloud.leaves * cloud.hypervisors;
    let mut lids = BTreeMap::new();
    for step in 0..600 {
        let vm = vms[random.below(vms.len())];
        let what = format!("seed {seed}, step {step}: {vm}");
        match (running.contains(&vm), random.below(3)) {
            (false, _) => {
                lids.insert(vm, managed.start(vm).expect(&what).lid);
                running.insert(vm);
            }
            (true, 0) => {
                managed.end(vm).expect(&what);
                running.remove(&vm);
            }
            (true, _) => {
                match managed.migrate(to_hypervisor(&cloud, vm, random.below(hypervisors))) {
                    Ok(moved) => assert_eq!(moved.lid, lids[&vm], "{what}"),
                    Err(MigrationError::AlreadyThere | MigrationError::NoFreeFunction { .. }) => {}
                    Err(error) => panic!("{what}: {error}"),
                }
            }
        }
        if step % 60 == 0 {
            reachable(&managed, &running.iter().copied().collect::<Vec<_>>());
        }
        if step == 300 {
            managed.manager.request_sweep();
            managed.settle();
            assert_eq!(
                managed.manager.report().errors,
                Vec::<String>::new(),
                "{what}"
            );
        }
    }
    for vm in running {
        assert_eq!(lid_of(&managed, vm), lids[&vm]);
        managed.end(vm).unwrap();
    }
    let forwarded = |entries: &BTreeMap<NodeId, Vec<Lid>>| -> Vec<Vec<Lid>> {
        entries.values().cloned().collect()
    };
    assert_eq!(
        forwarded(&entries(&managed)),
        forwarded(&quiet),
        "seed {seed}"
    );
}

/// The limit of a subnet: 49151 LIDs.
#[test]
fn all_lids_taken() {
    let cloud = Cloud {
        leaves: 1,
        spines: 1,
        hypervisors: 2,
        functions: 2,
        vms: 2,
    };
    let mut config = cloud.dynamic();
    // Manager, spine, leaf, vSwitches: 5; two are left for VMs.
    let absent = |lid: u16| (Guid::new(0xdead_0000 + u64::from(lid)), Lid::new(lid));
    config.pinned_lids = (8..=0xbfff).map(absent).collect();
    let mut managed = cloud.managed(config);
    assert_eq!(
        managed.start(cloud.function(0, 0)).unwrap().lid,
        Lid::new(6)
    );
    assert_eq!(
        managed.start(cloud.function(0, 1)).unwrap().lid,
        Lid::new(7)
    );
    let error = managed.start(cloud.function(1, 0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no LID for the VM 0002:c903:0000:0003: all 49151 unicast LIDs are taken, 49144 of them \
         reserved by the configuration; end a VM, or use shared LIDs"
    );
    managed.end(cloud.function(0, 0)).unwrap();
    assert_eq!(
        managed.start(cloud.function(1, 0)).unwrap().lid,
        Lid::new(6)
    );
}

/// Ports of these GUIDs reach each other.
fn reachable(managed: &Managed, guids: &[Guid]) {
    let fabric = &managed.link.fabric;
    for &to in guids {
        let (lid, to) = (lid_of(managed, to), fabric.port_by_guid(to).unwrap());
        for &from in guids {
            let from = fabric.port_by_guid(from).unwrap();
            let route = fabric.resolve(from, lid, Sl::default(), None);
            assert_eq!(route.map(|route| route.port), Ok(to), "{from} to {lid}");
        }
    }
}
