//! LIDs of 18 bits for VMs.

use std::collections::BTreeSet;

use fabric::{Fabric, NoRoute, PortRef};
use ibvswitch_subnet_manager::{Config, Method, Migration, Target};
use topologies::Hypervisors;
use wire::attribute::LinearBlock;
use wire::mad::{AttributeId, Method as MadMethod};
use wire::{ExtendedLid, Guid, Lid, Sl};

use crate::harness::Managed;

/// Four hypervisors of three functions, none of which has a LID before a VM starts there; nodes with
/// these GUIDs do not speak the extended LID space.
fn cloud(without: &[Guid]) -> (Managed, Hypervisors) {
    let layout = Hypervisors::new(4, 3).unwrap();
    let mut topology = layout.topology().clone();
    topology.extend_lids(without);
    let functions: BTreeSet<Guid> = (0..4)
        .flat_map(|h| (0..3).map(move |f| (h, f)))
        .map(|(h, f)| layout.vf_guid(h, f))
        .collect();
    let config = Config {
        extended_lids: true,
        spare_functions: (0..4).map(|h| layout.vf_guid(h, 2)).collect(),
        without_lid: functions,
        ..Config::default()
    };
    let fabric = Fabric::new(&topology).unwrap();
    let mut managed = Managed::new(fabric, layout.manager_guid(), config);
    managed.settle();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    (managed, layout)
}

fn at(managed: &Managed, vm: Guid) -> PortRef {
    managed.link.fabric.port_by_guid(vm).unwrap()
}

fn lid(value: u32) -> ExtendedLid {
    ExtendedLid::new(value).unwrap()
}

/// Every adapter reaches these VMs by their vLIDs, by forwarding tables alone.
fn reachable(managed: &Managed, vms: &[(Guid, ExtendedLid)]) {
    let fabric = &managed.link.fabric;
    for &(vm, lid) in vms {
        let there = at(managed, vm);
        assert_eq!(fabric.virtual_lid(there), Some(lid));
        assert_eq!(fabric.port_info(there).unwrap().lid, Lid::NONE);
        let adapters = managed
            .end_ports()
            .into_iter()
            .filter(|port| port.port != 0);
        for from in adapters {
            let route = fabric.resolve_extended(from, lid, Sl::default(), None);
            assert_eq!(route.map(|route| route.port), Ok(there), "from {from}");
        }
    }
}

/// Where every switch sends every ordinary LID.
fn ordinary(managed: &Managed) -> Vec<Option<u8>> {
    let fabric = &managed.link.fabric;
    let lids = 1..64;
    let each = |node| {
        lids.clone()
            .map(move |lid| fabric.forwarding(node, Lid::new(lid)))
    };
    fabric.nodes().flat_map(each).collect()
}

#[test]
fn vms_start_move_and_end() {
    let (mut managed, layout) = cloud(&[]);
    assert_eq!(managed.manager.without_extended_lids().count(), 0);
    let before = ordinary(&managed);
    let [a, b] = [(0, 0), (3, 1)].map(|(h, f)| layout.vf_guid(h, f));
    let first = managed.start(a).unwrap();
    assert_eq!(
        (first.lid, first.virtual_lid),
        (Lid::NONE, Some(lid(0x1_0000)))
    );
    // One packet to each switch, one to the function.
    assert_eq!((first.switches.sent, first.vswitches.sent), (1, 4));
    assert_eq!(first.functions.sent, 1);
    let second = managed.start(b).unwrap().virtual_lid.unwrap();
    assert_eq!(second, lid(0x1_0001));
    reachable(&managed, &[(a, lid(0x1_0000)), (b, second)]);

    let vswitch = |managed: &Managed, hypervisor| {
        let port = at(managed, layout.vf_guid(hypervisor, 2));
        let above = managed.link.fabric.peer(port).unwrap();
        managed.link.fabric.node_info(above).unwrap().node_guid
    };
    for (hypervisor, method) in [(1, None), (2, Some(Method::Full)), (0, None)] {
        let target = Target::Hypervisor(vswitch(&managed, hypervisor));
        let migration = Migration {
            method,
            drop_first: hypervisor == 0,
            ..Migration::new(a, target)
        };
        let moved = managed.migrate(migration).unwrap();
        assert_eq!(moved.virtual_lid, Some(lid(0x1_0000)));
        assert_eq!(moved.method, method.unwrap_or(Method::Copy));
        reachable(&managed, &[(a, lid(0x1_0000)), (b, second)]);
    }
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(managed.manager.report().sets, 0, "nothing to mend");

    managed.end(a).unwrap();
    let gone =
        managed
            .link
            .fabric
            .resolve_extended(at(&managed, b), lid(0x1_0000), Sl::default(), None);
    assert!(matches!(gone, Err(NoRoute::Dropped(_))), "{gone:?}");
    reachable(&managed, &[(b, second)]);
    assert_eq!(ordinary(&managed), before, "vLIDs are in no first table");
    // Its vLID is the next one's.
    let c = layout.vf_guid(2, 0);
    assert_eq!(managed.start(c).unwrap().virtual_lid, Some(lid(0x1_0000)));
}

#[test]
fn one_node_without_is_enough_for_ordinary_lids() {
    let layout = Hypervisors::new(4, 3).unwrap();
    let switch = layout.topology().nodes()[0].guid;
    for legacy in [switch, layout.vf_guid(2, 1)] {
        let (mut managed, _) = cloud(&[legacy]);
        let lacking: Vec<Guid> = managed.manager.without_extended_lids().collect();
        assert_eq!(lacking, [legacy]);
        let vm = layout.vf_guid(0, 0);
        let started = managed.start(vm).unwrap();
        assert_eq!(started.virtual_lid, None);
        assert!(started.lid.is_unicast());
        let fabric = &managed.link.fabric;
        let from = at(&managed, layout.manager_guid());
        let route = fabric.resolve(from, started.lid, Sl::default(), None);
        assert_eq!(route.unwrap().port, at(&managed, vm));
    }
}

/// A manager that takes over finds the vLIDs; one that does not use them takes them away.
#[test]
fn another_manager() {
    let (mut managed, layout) = cloud(&[]);
    let vm = layout.vf_guid(1, 1);
    let virtual_lid = managed.start(vm).unwrap().virtual_lid.unwrap();
    let config = Config {
        extended_lids: true,
        without_lid: (0..4)
            .flat_map(|h| (0..3).map(move |f| (h, f)))
            .map(|(h, f)| layout.vf_guid(h, f))
            .collect(),
        ..Config::default()
    };
    let fabric = managed.link.fabric;
    let mut next = Managed::new(fabric, layout.manager_guid(), config);
    next.settle();
    assert_eq!(next.manager.virtual_lids().get(&vm), Some(&virtual_lid));
    reachable(&next, &[(vm, virtual_lid)]);
}

#[test]
fn a_node_without_that_comes_later() {
    let layout = Hypervisors::new(4, 3).unwrap();
    let legacy = layout.vf_guid(3, 0);
    let mut topology = layout.topology().clone();
    topology.extend_lids(&[legacy]);
    let mut fabric = Fabric::new(&topology).unwrap();
    let late = fabric.port_by_guid(legacy).unwrap();
    fabric.set_cable(late, false);
    let config = Config {
        extended_lids: true,
        without_lid: BTreeSet::from([layout.vf_guid(0, 0)]),
        ..Config::default()
    };
    let mut managed = Managed::new(fabric, layout.manager_guid(), config);
    managed.settle();
    let vm = layout.vf_guid(0, 0);
    let virtual_lid = managed.start(vm).unwrap().virtual_lid.unwrap();
    managed.link.fabric.set_cable(late, true);
    managed.manager.request_sweep();
    managed.settle();
    // The VM has an ordinary LID now, and nothing of the other is left.
    let fabric = &managed.link.fabric;
    let there = at(&managed, vm);
    assert_eq!(fabric.virtual_lid(there), None);
    let ordinary = fabric.port_info(there).unwrap().lid;
    let route = |from, lid: ExtendedLid| fabric.resolve_extended(from, lid, Sl::default(), None);
    assert_eq!(route(late, ordinary.into()).unwrap().port, there);
    let manager = at(&managed, layout.manager_guid());
    assert!(matches!(
        route(manager, virtual_lid),
        Err(NoRoute::Dropped(_))
    ));
    // The adapter that came cannot even send to a vLID.
    assert_eq!(
        route(late, virtual_lid),
        Err(NoRoute::WrongKind(virtual_lid))
    );
}

/// All of it is packets: what was sent is what switches were asked.
#[test]
fn everything_is_packets() {
    let (mut managed, layout) = cloud(&[]);
    managed.start(layout.vf_guid(0, 0)).unwrap();
    let asked = |attribute| {
        let count = managed.manager.requests();
        count
            .filter(|&(method, asked, _)| method == MadMethod::SET && asked == attribute)
            .map(|(_, _, count)| count)
            .sum::<u64>()
    };
    assert_eq!(asked(AttributeId::EXTENDED_LID), 1);
    let fabric = &managed.link.fabric;
    let answered: u64 = fabric
        .nodes()
        .filter_map(|node| fabric.smp_counts(node))
        .map(|counts| counts.answered_of(MadMethod::SET, AttributeId::EXTENDED_LID))
        .sum();
    assert_eq!(answered, 1);
    assert_eq!(LinearBlock::SECONDARY_FIRST, lid(0x1_0000).place().0);
}
