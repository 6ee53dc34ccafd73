//! Clusters with service levels and lanes of their own, and shares of links.

use std::collections::BTreeSet;

use fabric::{Load, NoRoute, PortRef, Queues};
use ibvswitch_subnet_manager::routing::{Dfsssp, RoutingEngine, TorusTwoQos};
use ibvswitch_subnet_manager::{
    ClusterLevelError, ClusterShare, Config, Migration, SubnetManager, Target,
};
use wire::mad::Status;
use wire::sa::{self, McMemberRecord, PathRecord, Record};
use wire::{Gid, Guid, Lid, MadPacket, PKey, Sl};

use crate::cloud::{Cloud, lid_of};
use crate::guests::{Bed, record};
use crate::harness::Managed;

/// Two leaves below one spine: all between them share its cables.
const NARROW: Cloud = Cloud {
    leaves: 2,
    spines: 1,
    hypervisors: 2,
    functions: 4,
    vms: 3,
};

/// By hypervisor and function: a and b across, c within the first leaf and d within the second. A VM of each leaf is
/// in no cluster.
const PLACES: [(&str, [(usize, usize); 2]); 4] = [
    ("a", [(0, 0), (2, 0)]),
    ("b", [(1, 0), (3, 0)]),
    ("c", [(0, 1), (1, 1)]),
    ("d", [(2, 1), (3, 1)]),
];
const OUTSIDERS: [(usize, usize); 2] = [(0, 2), (2, 2)];

fn vm((hypervisor, function): (usize, usize)) -> Guid {
    NARROW.function(hypervisor, function)
}

fn shares(parts: [u8; 4]) -> Vec<ClusterShare> {
    let clusters = PLACES.into_iter().zip(parts);
    let clusters = clusters.map(|((name, places), share)| ClusterShare {
        name: name.to_owned(),
        ports: places.into_iter().map(vm).collect(),
        share,
        own_levels: Vec::new(),
    });
    clusters.collect()
}

fn config(cluster_shares: Vec<ClusterShare>) -> Config {
    let mut config = Config {
        cluster_lanes: true,
        cluster_shares,
        ..NARROW.config()
    };
    for (number, (_, places)) in (0x8101..).zip(PLACES) {
        for place in places {
            config.partitions.insert(vm(place), vec![PKey::new(number)]);
        }
    }
    let all = (0x8101..0x8105).map(PKey::new);
    let own = [PKey::DEFAULT_FULL].into_iter().chain(all).collect();
    config.partitions.insert(NARROW.manager(), own);
    config
}

fn levels(managed: &Managed) -> Vec<Vec<u8>> {
    let all = managed.manager.cluster_levels().all().iter();
    all.map(|of| of.levels.iter().map(|level| level.value()).collect())
        .collect()
}

fn trace(managed: &Managed, from: Guid, to: Guid, sl: u8) -> Result<Vec<PortRef>, NoRoute> {
    let fabric = &managed.link.fabric;
    let port = fabric.port_by_guid(from).unwrap();
    let links = fabric.trace(port, lid_of(managed, to), Sl::new(sl), None)?;
    assert!(
        links.iter().all(|(_, lane)| lane.value() == sl),
        "{links:?}"
    );
    Ok(links.into_iter().map(|(port, _)| port).collect())
}

/// The parts of a link's bandwidth that senders get who flood it with packets, each to another LID on its own level.
fn flood(managed: &Managed, flows: &[(Guid, Guid, u8)]) -> Vec<f64> {
    const BYTES: u32 = 4096;
    const PACKETS: u32 = 16;
    const NANOSECONDS: u64 = 1_000_000;
    let fabric = &managed.link.fabric;
    let mut queues = Queues::default();
    let ways: Vec<u32> = { flows.iter() }
        .map(|&(from, to, sl)| {
            let hops = fabric.hops(&trace(managed, from, to, sl).unwrap(), Sl::new(sl));
            let way = queues.way(&hops.unwrap(), |port| fabric.shared_link(port));
            way.unwrap()
        })
        .collect();
    let load = |flow: usize| Load {
        owner: 0,
        token: flow as u64,
        way: ways[flow],
        packets: PACKETS,
        full: BYTES,
        last: BYTES,
        header: (Lid::new(1), Lid::new(2), Sl::new(flows[flow].2)),
    };
    for flow in (0..flows.len()).cycle().take(8 * flows.len()) {
        queues.enter(0, load(flow));
    }
    let mut bytes = vec![0.0; flows.len()];
    while let Some(frame) = queues.next(0, NANOSECONDS) {
        let flow = frame.token as usize;
        bytes[flow] += f64::from(PACKETS * BYTES);
        queues.enter(frame.at, load(flow));
    }
    // 12.5 bytes in a nanosecond.
    bytes
        .iter()
        .map(|bytes| bytes / (12.5 * NANOSECONDS as f64))
        .collect()
}

fn are_close(given: &[f64], expected: &[f64]) {
    let mut pairs = given.iter().zip(expected);
    let close = pairs.all(|(given, expected)| (given - expected).abs() < 0.03);
    assert!(
        close && given.len() == expected.len(),
        "{given:?} of {expected:?}"
    );
}

#[test]
fn clusters_that_meet_are_apart() {
    let managed = NARROW.managed(config(shares([1, 1, 1, 1])));
    // c and d never meet.
    assert_eq!(levels(&managed), [[1], [2], [3], [3]]);
    for (number, (_, [one, other])) in PLACES.into_iter().enumerate() {
        let own = levels(&managed)[number][0];
        for sl in 0..16 {
            let (one, other) = (vm(one), vm(other));
            for (from, to) in [(one, other), (other, one), (one, NARROW.manager())] {
                let found = trace(&managed, from, to, sl);
                match found {
                    Ok(_) => assert_eq!(sl, own),
                    Err(error) => assert!(
                        sl != own && matches!(error, NoRoute::Lane(_)),
                        "{sl}, {error}"
                    ),
                }
            }
        }
    }
    // The switch drops what an adapter's own table lets through, and others keep level 0.
    let [one, other] = OUTSIDERS.map(vm);
    assert!(trace(&managed, one, other, 0).is_ok());
    assert!((1..16).all(|sl| trace(&managed, one, other, sl).is_err()));
    for sl in 0..4 {
        assert!(trace(&managed, NARROW.manager(), one, sl).is_ok(), "{sl}");
    }
}

/// Whoever floods gets the cluster's share, with that of the provider's level as the least of them.
#[test]
fn tenants_that_flood_get_their_shares() {
    let [a, b, ..] = PLACES.map(|(_, places)| places.map(vm));
    let outsiders = OUTSIDERS.map(vm);
    for (parts, expected) in [
        ([1, 1, 1, 1], [0.5, 0.5]),
        ([1, 3, 1, 1], [0.25, 0.75]),
        ([200, 100, 250, 1], [0.667, 0.333]),
    ] {
        let managed = NARROW.managed(config(shares(parts)));
        let flows = [(a[0], a[1], 1), (b[0], b[1], 2)];
        are_close(&flood(&managed, &flows), &expected);
        // Nobody takes more by more flows.
        let again = [flows[0], flows[1], flows[1], flows[1]];
        let given = flood(&managed, &again);
        are_close(&[given[0], given[1..].iter().sum()], &expected);
        // Alone it has all.
        are_close(&flood(&managed, &flows[..1]), &[1.0]);
    }
    let managed = NARROW.managed(config(shares([2, 1, 1, 1])));
    let flows = [
        (a[0], a[1], 1),
        (b[0], b[1], 2),
        (outsiders[0], outsiders[1], 0),
    ];
    are_close(&flood(&managed, &flows), &[0.5, 0.25, 0.25]);
}

/// A tenant divides its share among levels of its own, and takes nothing from others.
#[test]
fn levels_within_a_cluster() {
    let mut shares = shares([1, 1, 1, 1]);
    shares[0].own_levels = vec![1, 3];
    let managed = NARROW.managed(config(shares));
    assert_eq!(levels(&managed), [vec![1, 4], vec![2], vec![3], vec![3]]);
    let own = &managed.manager.cluster_levels().all()[0].own_levels;
    assert_eq!(own, &[Sl::new(1), Sl::new(4)]);
    let [a, b, ..] = PLACES.map(|(_, places)| places.map(vm));
    let flows = [(a[0], a[1], 1), (a[0], a[1], 4), (b[0], b[1], 2)];
    are_close(&flood(&managed, &flows), &[0.125, 0.375, 0.5]);
    assert!(trace(&managed, b[0], b[1], 4).is_err());
}

/// Path records, IPoIB's groups and the way to the manager have the cluster's level.
#[test]
fn guests_are_told_their_levels() {
    let managed = NARROW.managed(config(shares([1, 1, 1, 1])));
    let places = PLACES.iter().flat_map(|(_, places)| places);
    let guests = places.chain(&OUTSIDERS).map(|&place| vm(place));
    let port = |guid| managed.link.fabric.port_by_guid(guid).unwrap();
    let ports: Vec<PortRef> = guests.map(port).collect();
    let mut bed = Bed::of(managed, ports);
    for (cluster, sl) in [1, 2, 3, 3, 0].map(Sl::new).into_iter().enumerate() {
        let (from, to) = (2 * cluster, 2 * cluster + 1);
        assert_eq!(bed.info(from).master_sm_sl, sl);
        let fabric = &bed.managed.link.fabric;
        let ends = [from, to].map(|port| fabric.guids(bed.ports[port]).unwrap()[0]);
        assert_eq!(
            bed.managed.manager.cluster_levels().of(ends[0]).first(),
            Some(&sl).filter(|_| cluster < 4)
        );
        let template = PathRecord {
            sgid: bed.gid(from),
            dgid: bed.gid(to),
            sl: Sl::new(5),
            ..PathRecord::default()
        };
        let asks = PathRecord::SGID | PathRecord::DGID;
        if cluster == 4 {
            let path = bed.get(from, asks, &template).unwrap();
            assert_eq!(path.sl, sl);
            continue;
        }
        let path = ask(&mut bed, from, sl, asks, &template).unwrap();
        assert_eq!(path.sl, sl);
        // Another level is none of its.
        let refused = ask(&mut bed, from, sl, asks | PathRecord::SL, &template);
        assert_eq!(refused, Err(Status::SA_NO_RECORDS));
        let partition = 0x8101 + cluster as u128;
        let group = McMemberRecord {
            mgid: Gid::from_bits(0xff12_401b << 96 | partition << 80 | 0xffff_ffff),
            ..McMemberRecord::default()
        };
        let group = ask(&mut bed, from, sl, McMemberRecord::MGID, &group).unwrap();
        assert_eq!(group.sl, sl);
    }
}

/// Asks on a service level.
fn ask<R: Record>(
    bed: &mut Bed,
    from: usize,
    sl: Sl,
    mask: u64,
    template: &R,
) -> Result<R, Status> {
    let info = bed.info(from);
    let mad = sa::get(7, mask, template);
    let key = PKey::new(0x8101 + from as u16 / 2);
    let packet = MadPacket::gmp(info.lid, info.master_sm_lid, sl, key, mad);
    bed.managed.link.fabric.inject(bed.ports[from], packet);
    let answers = bed.pass(from);
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0].sl, sl);
    record(&answers[0].mad)
}

/// A VM that moves takes its levels along; clusters that meet then for the first time part.
#[test]
fn vms_that_move() {
    let mut managed = NARROW.managed(config(shares([1, 1, 1, 1])));
    let [a, _, c, d] = PLACES.map(|(_, places)| places.map(vm));
    let move_to = |managed: &mut Managed, vm, place| {
        let target = Target::Function(NARROW.function(place, 3));
        managed.migrate(Migration::new(vm, target)).unwrap();
        managed.manager.poll(managed.now, &mut managed.link);
    };
    move_to(&mut managed, a[1], 1);
    assert_eq!(levels(&managed), [[1], [2], [3], [3]]);
    assert!(trace(&managed, a[0], a[1], 1).is_ok() && trace(&managed, a[1], a[0], 1).is_ok());
    assert!(trace(&managed, a[1], a[0], 0).is_err());
    // c goes where d is: the one that was named later has another level now, and a sweep changes nothing.
    move_to(&mut managed, c[1], 3);
    move_to(&mut managed, c[0], 2);
    for _ in 0..2 {
        let now = levels(&managed);
        assert_eq!(now[..3], [[1], [2], [3]]);
        assert!(now[3] != [3] && now[3].len() == 1, "{now:?}");
        assert!(trace(&managed, d[0], d[1], now[3][0]).is_ok());
        assert!(trace(&managed, d[0], d[1], 3).is_err());
        assert!(trace(&managed, c[0], c[1], 3).is_ok());
        managed.manager.request_sweep();
        managed.settle();
    }
}

/// Without enough lanes the first clusters have them, and the others are told why not.
#[test]
fn too_few_lanes() {
    let few = Config {
        max_lanes: Some(2),
        ..config(shares([1, 1, 1, 1]))
    };
    let fabric = fabric::Fabric::new(&NARROW.topology()).unwrap();
    let mut managed = Managed::new(fabric, NARROW.manager(), few);
    managed.settle();
    assert_eq!(levels(&managed), [vec![1], vec![], vec![], vec![]]);
    let all = managed.manager.cluster_levels().all();
    let Some(ClusterLevelError::Lanes {
        lanes: 2,
        others: 3,
        ..
    }) = &all[1].refusal
    else {
        panic!("{:?}", all[1]);
    };
    let told = "the cluster b has no lane: links have 2 data lanes";
    for _ in 0..2 {
        let errors = &managed.manager.report().errors;
        let found = errors.iter().filter(|error| error.starts_with(told));
        assert_eq!(found.count(), 1, "{errors:?}");
        managed.manager.request_sweep();
        managed.settle();
    }
    let b = PLACES[1].1.map(vm);
    assert!(trace(&managed, b[0], b[1], 0).is_ok() && trace(&managed, b[0], b[1], 1).is_err());
    // Without a and c, b and d meet; then only b is there.
    for (names, expected) in [
        ("bd", vec![vec![1], vec![]]),
        ("b", vec![vec![1]]),
        ("", vec![]),
    ] {
        let shares = shares([1; 4]).into_iter();
        let shares = shares.filter(|share| names.contains(&share.name));
        managed.manager.change_cluster_shares(|all| {
            *all = shares.collect();
            true
        });
        managed.manager.poll(managed.now, &mut managed.link);
        assert_eq!(levels(&managed), expected);
    }
    assert!(trace(&managed, b[0], b[1], 0).is_ok() && trace(&managed, b[0], b[1], 1).is_err());
    // An engine that chooses levels leaves clusters none.
    let layered: [Box<dyn RoutingEngine>; 2] =
        [Box::new(Dfsssp { lanes: 8 }), Box::new(TorusTwoQos::new(8))];
    for engine in layered {
        let expected = Some(ClusterLevelError::Contradicted(engine.name()));
        managed.manager = SubnetManager::new(config(shares([1; 4])), engine).unwrap();
        managed.settle();
        let mut all = managed.manager.cluster_levels().all().iter();
        assert!(all.all(|of| of.levels.is_empty() && of.refusal == expected));
    }
    let all = managed.manager.cluster_levels().all();
    let names: BTreeSet<&str> = all.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names.len(), 4);
}
