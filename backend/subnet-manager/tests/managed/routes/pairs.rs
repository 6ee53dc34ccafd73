//! LIDs by the paths of pairs of ports.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{Fabric, PortRef};
use ibvswitch_subnet_manager::routing::Roles;
use ibvswitch_subnet_manager::routing::multipath::{LidChoice, Multipath, PathChoice};
use ibvswitch_subnet_manager::{Config, ConfigError, Migration, MinHop, Target};
use wire::sa::PathRecord;
use wire::{Guid, Lid, Sl};

use crate::cloud::Cloud;
use crate::guests::Bed;
use crate::harness::Managed;
use crate::routes::failures::{spare_trunk, tables};
use crate::routes::routing::{bed_with, irregular, tree};

fn by(lids: LidChoice, paths: PathChoice) -> Config {
    Config {
        multipath: Multipath { lids, paths },
        ..Config::default()
    }
}

fn color() -> Config {
    by(LidChoice::Color, PathChoice::ShortestWidest)
}

/// Every LID of every port leads to it from every other one.
fn lids_lead_home(managed: &Managed) {
    let fabric = &managed.link.fabric;
    let is_adapter = |port: &PortRef| fabric.node_info(*port).unwrap().num_ports == 1;
    let ports: Vec<PortRef> = managed.end_ports().into_iter().filter(is_adapter).collect();
    for &to in &ports {
        let info = fabric.port_info(to).unwrap();
        for bits in 0..1 << info.lmc {
            let lid = Lid::new(info.lid.value() + bits);
            for &from in ports.iter().filter(|&&from| from != to) {
                let route = fabric.resolve(from, lid, Sl::default(), None);
                assert_eq!(route.map(|route| route.port), Ok(to), "{lid} from {from}");
            }
        }
    }
}

/// The path record of each pair, whose LIDs lead there and back.
fn records(bed: &mut Bed) -> BTreeMap<(usize, usize), (Lid, Lid)> {
    let mut found = BTreeMap::new();
    for from in 0..bed.ports.len() {
        for to in (0..bed.ports.len()).filter(|&to| to != from) {
            let ends = PathRecord {
                sgid: bed.gid(from),
                dgid: bed.gid(to),
                ..PathRecord::default()
            };
            let path = bed.get(from, PathRecord::SGID | PathRecord::DGID, &ends);
            let PathRecord { slid, dlid, .. } = path.unwrap();
            for (port, lid) in [(from, slid), (to, dlid)] {
                let info = bed.info(port);
                assert_eq!(lid.value() >> info.lmc, info.lid.value() >> info.lmc);
            }
            found.insert((from, to), (slid, dlid));
        }
    }
    for ((from, to), &(slid, dlid)) in &found {
        assert_eq!(
            found[&(*to, *from)],
            (dlid, slid),
            "answers take the pair's own path"
        );
    }
    found
}

fn ranges(bed: &Bed) -> BTreeMap<Guid, (Lid, u8)> {
    let manager = &bed.managed.manager;
    let lids = manager.lids().iter();
    lids.map(|(&guid, &lid)| (guid, (lid, manager.lmc(guid))))
        .collect()
}

fn sweep(bed: &mut Bed) {
    bed.managed.manager.request_sweep();
    bed.managed.settle();
    bed.managed.link.station.others.clear();
}

fn links(fabric: &Fabric, from: PortRef, dlid: Lid) -> Vec<PortRef> {
    let path = fabric.trace(from, dlid, Sl::default(), None).unwrap();
    path.into_iter().map(|(port, _)| port).collect()
}

#[test]
fn each_pair_has_its_path() {
    // In a tree whose links carry the same, one LID does for the shortest paths to a port.
    for topology in [("irregular", irregular(5)), ("tree", tree())] {
        let few = [LidChoice::Color, LidChoice::Renaming];
        let all = LidChoice::NAMES.into_iter().skip(1);
        for (name, lids) in all.filter(|(_, it)| topology.0 != "tree" || few.contains(it)) {
            for (scheme, paths) in PathChoice::NAMES {
                let what = format!("{}, {name}, {scheme}", topology.0);
                let mut bed = bed_with(&topology.1, Box::new(MinHop), by(lids, paths));
                lids_lead_home(&bed.managed);
                let manager = &bed.managed.manager;
                let expected = if name == "renaming" { name } else { scheme };
                assert_eq!(manager.routed_by(), Some(expected), "{what}");
                let usage = manager.report().lids.unwrap();
                let ports = bed.ports.len() + 1;
                assert_eq!(
                    (usage.ports, usage.paths),
                    (ports, ports * (ports - 1)),
                    "{what}"
                );
                assert_eq!((usage.following, usage.undecided), (0, 0), "{what}");
                let given = bed
                    .managed
                    .end_ports()
                    .into_iter()
                    .filter(|&port| port.port == 1);
                let fabric = &bed.managed.link.fabric;
                let given = given.filter(|&port| fabric.node_info(port).unwrap().num_ports == 1);
                let given: usize = given
                    .map(|port| 1 << fabric.port_info(port).unwrap().lmc)
                    .sum();
                assert_eq!(usage.lids, given, "{what}");
                let saves = usage.lids < usage.one_each / 2;
                let several = topology.0 == "irregular"
                    || (paths == PathChoice::PathSelection && lids != LidChoice::Renaming);
                assert!(
                    saves && (usage.lids > ports) == several,
                    "{what}: {usage:?}"
                );
                if lids == LidChoice::Color && several {
                    let found = records(&mut bed);
                    let base = |(&(_, to), &(_, dlid)): (&(usize, usize), &(Lid, Lid))| {
                        dlid == bed.lid(to)
                    };
                    assert!(
                        !found.iter().all(base),
                        "{what}: some paths have a LID of their own"
                    );
                }
                sweep(&mut bed);
                assert_eq!(bed.managed.manager.report().sets, 0, "{what}");
            }
        }
    }
}

#[test]
fn all_paths_are_told() {
    let mut bed = bed_with(&irregular(5), Box::new(MinHop), color());
    let ports = 0..bed.ports.len();
    let (from, to) = (0, ports.max_by_key(|&port| bed.info(port).lmc).unwrap());
    let ends = PathRecord {
        sgid: bed.gid(from),
        dgid: bed.gid(to),
        ..PathRecord::default()
    };
    let mask = PathRecord::SGID | PathRecord::DGID;
    let own: PathRecord = bed.get(from, mask, &ends).unwrap();
    let told = bed.table(from, mask, &ends, 1000);
    assert_eq!(told.len(), 1 << bed.info(to).lmc);
    assert_eq!(told[0], own, "the pair's own path comes first");
    let fabric = &bed.managed.link.fabric;
    let mut sources = bed.ports.iter().filter(|&&port| port != bed.ports[to]);
    let several = sources.any(|&from| {
        let ways = told.iter().map(|path| links(fabric, from, path.dlid));
        ways.collect::<BTreeSet<_>>().len() > 1
    });
    assert!(several, "some source has more than one way");
    // A LID that the request names is the one that is told.
    for path in told {
        let named = PathRecord {
            dlid: path.dlid,
            ..ends
        };
        let answer: PathRecord = bed.get(from, mask | PathRecord::DLID, &named).unwrap();
        assert_eq!(answer.dlid, path.dlid);
    }
}

#[test]
fn lids_stay() {
    for paths in PathChoice::NAMES.map(|(_, paths)| paths) {
        let mut bed = bed_with(
            &irregular(5),
            Box::new(MinHop),
            by(LidChoice::Optimal, paths),
        );
        let (given, told) = (ranges(&bed), records(&mut bed));
        let before = tables(&bed.managed.link.fabric);
        let trunk = spare_trunk(&bed.managed.link.fabric);
        bed.managed.link.fabric.set_cable(trunk, false);
        sweep(&mut bed);
        assert_eq!(bed.managed.manager.report().errors, Vec::<String>::new());
        assert_eq!(ranges(&bed), given);
        lids_lead_home(&bed.managed);
        let lost = records(&mut bed);
        let stay = told
            .iter()
            .filter(|(pair, path)| lost[pair] == **path)
            .count();
        assert!(
            stay * 2 > told.len(),
            "most pairs keep their LIDs: {stay} of {}",
            told.len()
        );
        // A manager that begins while the cable is away gives the ports the LIDs that they had.
        let config = Config {
            known_lids: given.clone(),
            ..by(LidChoice::Optimal, paths)
        };
        bed.managed.manager =
            Managed::new(Fabric::new(&irregular(5)).unwrap(), manager(&bed), config).manager;
        bed.managed.settle();
        assert_eq!(ranges(&bed), given);
        lids_lead_home(&bed.managed);
        bed.managed.link.fabric.set_cable(trunk, true);
        sweep(&mut bed);
        assert_eq!((ranges(&bed), records(&mut bed)), (given, told));
        assert_eq!(tables(&bed.managed.link.fabric), before);
    }
}

fn manager(bed: &Bed) -> Guid {
    let own = bed.managed.link.station.port;
    bed.managed.link.fabric.node_info(own).unwrap().port_guid
}

#[test]
fn vms_move_with_their_lids() {
    let cloud = Cloud::SMALL;
    for dynamic in [false, true] {
        let config = Config {
            multipath: color().multipath,
            ..if dynamic {
                cloud.dynamic()
            } else {
                cloud.config()
            }
        };
        let mut managed = cloud.managed(config);
        let vm = cloud.function(0, 0);
        if dynamic {
            managed.start(vm).unwrap();
        }
        for hypervisor in [9, 8, 17] {
            let target = Target::Hypervisor(cloud.vswitch(hypervisor));
            managed.migrate(Migration::new(vm, target)).unwrap();
            let fabric = &managed.link.fabric;
            let at = fabric.port_by_guid(vm).unwrap();
            let info = fabric.port_info(at).unwrap();
            for bits in 0..1 << info.lmc {
                let lid = Lid::new(info.lid.value() + bits);
                let route = fabric.resolve(managed.link.station.port, lid, Sl::default(), None);
                assert_eq!(route.unwrap().port, at);
            }
        }
        let before = managed.manager.lids().clone();
        managed.manager.request_sweep();
        managed.settle();
        assert_eq!(*managed.manager.lids(), before);
        assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    }
}

#[test]
fn what_contradicts_it() {
    let check = |config: Config| config.check().unwrap_err();
    let contradicts = |config: Config| match check(config) {
        ConfigError::ByPaths {
            lids: "color",
            what,
        } => what,
        other => panic!("{other}"),
    };
    assert_eq!(
        contradicts(Config { lmc: 1, ..color() }),
        "an LMC for all ports"
    );
    let extended_lids = true;
    assert_eq!(
        contradicts(Config {
            extended_lids,
            ..color()
        }),
        "LIDs of 18 bits"
    );
    let rebalance_threshold = Some(150);
    let text = check(Config {
        rebalance_threshold,
        ..color()
    })
    .to_string();
    assert_eq!(
        text,
        "LIDs are given by paths (color), which a threshold for spreading paths anew contradicts; leave one of the two out"
    );
}

/// Where there are no such paths, each port has one LID, and min-hop does it; a port that is pinned has as many as fit.
#[test]
fn without_paths() {
    let roles = Roles {
        roots: [Guid::new(77)].into(),
        ..Roles::default()
    };
    let config = Config {
        roles: std::sync::Arc::new(roles),
        ..color()
    };
    let topology = tree();
    let fabric = Fabric::new(&topology).unwrap();
    let own = Guid::new(0x0002_c903_0000_0101);
    let mut managed = Managed::new(fabric, own, config);
    managed.settle();
    let report = managed.manager.report();
    assert_eq!(
        report.errors,
        [
            "shortest-widest cannot route this subnet: none of the switches named as roots is in it; minhop does it instead"
        ]
    );
    assert_eq!(
        (managed.manager.routed_by(), report.lids),
        (Some("minhop"), None)
    );
    managed.all_active_and_reachable();

    let fabric = Fabric::new(&irregular(5)).unwrap();
    let pinned_lids = [
        (own, Lid::new(1)),
        (Guid::new(0x0002_c903_0000_0201), Lid::new(6)),
    ];
    let config = Config {
        pinned_lids: pinned_lids.into(),
        ..color()
    };
    let mut managed = Managed::new(fabric, own, config);
    managed.settle();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    for (guid, lid) in pinned_lids {
        assert_eq!(managed.manager.lids()[&guid], lid);
        assert!(managed.manager.lmc(guid) <= lid.value().trailing_zeros() as u8);
    }
    let usage = managed.manager.report().lids.unwrap();
    assert!(usage.following > 0, "{usage:?}");
    lids_lead_home(&managed);
}
