//! Several LIDs for each adapter's port, each with its own path.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{Fabric, PortRef};
use ibvswitch_subnet_manager::routing::{
    Dfsssp, FatTree as FatTreeRouting, Lash, Nue, VSwitchFatTree,
};
use ibvswitch_subnet_manager::{Config, Method, Migration, MinHop, RoutingEngine, Target, UpDown};
use topologies::{FatTree, Hosts};
use wire::sa::PathRecord;
use wire::{Guid, Lid, Sl};

use crate::cloud::Cloud;
use crate::guests::Bed;
use crate::harness::Managed;

const HOSTS: u64 = 16;

/// The function of a host, the hosts from 1.
fn vf(host: u64) -> Guid {
    Guid::new(0x0002_c903_0000_0001 | host << 8)
}

fn config(lmc: u8) -> Config {
    Config {
        lmc,
        // The manager, whose LID is no multiple of anything.
        pinned_lids: BTreeMap::from([(vf(1), Lid::new(1))]),
        ..Config::default()
    }
}

/// Four leaves with four hypervisors each, below four spines.
fn bed(engine: Box<dyn RoutingEngine>, config: Config) -> Bed {
    let tree: FatTree = "XGFT(2;4,4;4,1)".parse().unwrap();
    let topology = tree.topology(Hosts::Hypervisors { functions: 1 });
    let fabric = Fabric::new(&topology).unwrap();
    let managed = Managed::new(fabric, vf(1), config.clone()).routed_by(engine, config);
    let fabric = &managed.link.fabric;
    let ports = (2..=HOSTS).map(|host| fabric.port_by_guid(vf(host)).unwrap());
    let ports = ports.collect();
    Bed::of(managed, ports)
}

fn trace(bed: &Bed, from: usize, lid: Lid) -> Vec<PortRef> {
    let fabric = &bed.managed.link.fabric;
    let path = fabric.trace(bed.ports[from], lid, Sl::default(), None);
    path.unwrap().into_iter().map(|(port, _)| port).collect()
}

#[test]
fn paths_differ_where_there_are_several() {
    let engines: [fn() -> Box<dyn RoutingEngine>; 7] = [
        || Box::new(MinHop),
        || Box::new(UpDown::default()),
        || Box::new(FatTreeRouting),
        || Box::new(VSwitchFatTree),
        || Box::new(Dfsssp { lanes: 15 }),
        || Box::new(Lash { lanes: 15 }),
        || Box::new(Nue { lanes: 15 }),
    ];
    for engine in engines {
        let name = engine().name();
        for lmc in [2u8, 3] {
            let count = 1usize << lmc;
            let mut bed = bed(engine(), config(lmc));
            let own = bed
                .managed
                .link
                .fabric
                .port_info(bed.managed.link.station.port);
            assert_eq!(own.map(|info| (info.lid, info.lmc)), Some((Lid::new(1), 0)));
            let mut all = BTreeSet::new();
            for port in 0..bed.ports.len() {
                let info = bed.info(port);
                assert_eq!(info.lmc, lmc, "{name}");
                assert_eq!(info.lid.value() % (1 << lmc), 0, "{name}");
                all.extend((0..1 << lmc).map(|bits| info.lid.value() + bits));
            }
            assert_eq!(all.len(), bed.ports.len() * count, "nobody's twice");
            let mut fewest = usize::MAX;
            for from in 0..bed.ports.len() {
                for to in (0..bed.ports.len()).filter(|&to| to != from) {
                    let path = PathRecord {
                        sgid: bed.gid(from),
                        dgid: bed.gid(to),
                        ..PathRecord::default()
                    };
                    let ends = PathRecord::SGID | PathRecord::DGID;
                    // Asking is slow; where the tables lead is looked at for all.
                    let dlids: Vec<Lid> = match from {
                        0 => {
                            let told = bed.table(from, ends, &path, 1000);
                            for record in &told {
                                let bits = |lid: Lid| lid.value() % (1 << lmc);
                                assert_eq!(bits(record.slid), bits(record.dlid));
                            }
                            told.into_iter().map(|record| record.dlid).collect()
                        }
                        _ => {
                            let first = bed.lid(to).value();
                            (0..1 << lmc).map(|bits| Lid::new(first + bits)).collect()
                        }
                    };
                    let fabric = &bed.managed.link.fabric;
                    for &dlid in &dlids {
                        let route = fabric.resolve(bed.ports[from], dlid, Sl::default(), None);
                        assert_eq!(route.unwrap().port, bed.ports[to], "{name}");
                    }
                    assert_eq!(dlids.len(), count, "{name}: all are told");
                    // Hosts of a leaf have one path, others one by each spine.
                    let paths: BTreeSet<Vec<PortRef>> =
                        dlids.iter().map(|&dlid| trace(&bed, from, dlid)).collect();
                    let same_leaf = (from + 1) / 4 == (to + 1) / 4;
                    if same_leaf {
                        assert_eq!(paths.len(), 1);
                    } else {
                        fewest = fewest.min(paths.len());
                    }
                }
            }
            let expected = if name == "lash" { 1 } else { count.min(4) };
            assert_eq!(fewest, expected, "{name}, LMC {lmc}");
            bed.managed.manager.request_sweep();
            bed.managed.settle();
            assert_eq!(bed.managed.manager.report().sets, 0, "{name}");
        }
    }
}

/// Every LID of a VM leads to where it is.
fn lids_lead_home(managed: &Managed, lmc: u8) {
    let fabric = &managed.link.fabric;
    for to in managed.end_ports() {
        let info = fabric.port_info(to).unwrap();
        if !info.lid.is_unicast() {
            continue;
        }
        let is_switch = fabric.node_info(to).unwrap().num_ports > 1;
        assert_eq!(info.lmc, if is_switch { 0 } else { lmc });
        for bits in 0..1 << info.lmc {
            let lid = Lid::new(info.lid.value() + bits);
            let route = fabric.resolve(managed.link.station.port, lid, Sl::default(), None);
            assert_eq!(route.unwrap().port, to, "{lid}");
        }
    }
}

#[test]
fn all_move_along() {
    let cloud = Cloud::SMALL;
    let lmc = 2;
    for dynamic in [false, true] {
        let config = Config {
            lmc,
            ..if dynamic {
                cloud.dynamic()
            } else {
                cloud.config()
            }
        };
        let mut managed = cloud.managed(config);
        let (vm, method) = (cloud.function(0, 0), [Method::Swap, Method::Copy]);
        if dynamic {
            managed.start(vm).unwrap();
        }
        lids_lead_home(&managed, lmc);
        for (hypervisor, drop_first) in [(9, false), (8, true), (17, false)] {
            let target = Target::Hypervisor(cloud.vswitch(hypervisor));
            let migration = Migration {
                drop_first,
                check_deadlock: true,
                ..Migration::new(vm, target)
            };
            let moved = managed.migrate(migration).unwrap();
            assert_eq!(moved.method, method[usize::from(dynamic)]);
            assert_eq!(moved.lid.value() % 4, 0);
            lids_lead_home(&managed, lmc);
        }
        if dynamic {
            let moved = managed.end(vm).unwrap();
            let fabric = &managed.link.fabric;
            for bits in 0..4 {
                let lid = Lid::new(moved.lid.value() + bits);
                let route = fabric.resolve(managed.link.station.port, lid, Sl::default(), None);
                assert!(route.is_err(), "{lid}");
            }
            assert_eq!(managed.start(vm).unwrap().lid, moved.lid, "free again");
        }
        lids_lead_home(&managed, lmc);
        managed.manager.request_sweep();
        managed.settle();
        assert_eq!(managed.manager.report().sets, 0);
        assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    }
}
