//! VMs move with their addresses.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{Fabric, LinkRate, NodeId, NodeSpec, PortRef, Topology};
use ibvswitch_subnet::{Config, Method, Migration, MigrationError, Moved, Target};
use wire::attribute::LinearBlock;
use wire::mad::{AttributeId, Method as MadMethod};
use wire::{Guid, Lid, PKey, PortState, Sl};

use crate::harness::{Lost, Managed};

const SWITCH: u64 = 0x0002_c903_0100_0000;
const NODE: u64 = 0x0002_c903_0000_0000;

fn switch_guid(number: usize) -> Guid {
    Guid::new(SWITCH + 1 + number as u64)
}

fn node_guid(number: usize) -> Guid {
    Guid::new(NODE + 1 + number as u64)
}

/// Nodes straight at the leaves of a fat tree of 36-port switches, as the tables of *Towards the
/// InfiniBand SR-IOV vSwitch Architecture* count them: `leaves` leaves with 18 nodes and 18 links
/// up in each of `pods` pods.
fn fat_tree(pods: usize, leaves: usize) -> Topology {
    const HALF: usize = 18;
    let mut topology = Topology::new();
    let rate = LinkRate::default();
    let mut switches = 0;
    let mut switch = |topology: &mut Topology| {
        let spec = NodeSpec::switch(switch_guid(switches), 36, &format!("switch {switches}"));
        switches += 1;
        topology.add(spec)
    };
    let mut nodes = 0;
    let mut middles: Vec<Vec<NodeId>> = Vec::new();
    for _ in 0..pods {
        let spines: Vec<NodeId> = (0..HALF).map(|_| switch(&mut topology)).collect();
        for leaf in 0..leaves {
            let here = switch(&mut topology);
            for (port, &spine) in spines.iter().enumerate() {
                let spec = NodeSpec::virtual_function(node_guid(nodes), &format!("node {nodes}"));
                nodes += 1;
                let node = topology.add(spec);
                topology.link((here, 1 + port as u8), (node, 1), rate);
                let up = (here, (1 + HALF + port) as u8);
                topology.link(up, (spine, 1 + leaf as u8), rate);
            }
        }
        middles.push(spines);
    }
    if pods > 1 {
        for group in 0..HALF {
            for number in 0..HALF {
                let top = switch(&mut topology);
                for (pod, spines) in middles.iter().enumerate() {
                    let down = (spines[group], (1 + HALF + number) as u8);
                    topology.link(down, (top, 1 + pod as u8), rate);
                }
            }
        }
    }
    topology
}

/// Hypervisors below two levels of switches: the vSwitch of each has an uplink and functions.
struct Cloud {
    leaves: usize,
    spines: usize,
    hypervisors: usize,
    functions: usize,
    vms: usize,
}

impl Cloud {
    const SMALL: Self = Self {
        leaves: 6,
        spines: 3,
        hypervisors: 4,
        functions: 4,
        vms: 2,
    };

    fn vswitch(&self, hypervisor: usize) -> Guid {
        switch_guid(self.spines + self.leaves + hypervisor)
    }

    fn function(&self, hypervisor: usize, function: usize) -> Guid {
        node_guid(hypervisor * self.functions + function)
    }

    fn all(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (hypervisors, functions) = (self.leaves * self.hypervisors, self.functions);
        (0..hypervisors).flat_map(move |h| (0..functions).map(move |f| (h, f)))
    }

    fn spares(&self) -> BTreeSet<Guid> {
        self.all()
            .filter(|&(_, function)| function >= self.vms)
            .map(|(h, f)| self.function(h, f))
            .collect()
    }

    fn manager(&self) -> Guid {
        Guid::new(NODE + 0xffff)
    }

    fn topology(&self) -> Topology {
        let mut topology = Topology::new();
        let rate = LinkRate::default();
        let switch = |topology: &mut Topology, number, ports: usize| {
            topology.add(NodeSpec::switch(switch_guid(number), ports as u8, "switch"))
        };
        let spines: Vec<NodeId> = (0..self.spines)
            .map(|number| switch(&mut topology, number, self.leaves + 1))
            .collect();
        let manager = self.manager();
        let manager = topology.add(NodeSpec::channel_adapter(manager, manager, "manager"));
        topology.link((spines[0], self.leaves as u8 + 1), (manager, 1), rate);
        for leaf in 0..self.leaves {
            let ports = self.hypervisors + self.spines;
            let here = switch(&mut topology, self.spines + leaf, ports);
            for (spine, &above) in spines.iter().enumerate() {
                let up = (here, (self.hypervisors + 1 + spine) as u8);
                topology.link(up, (above, 1 + leaf as u8), rate);
            }
            for below in 0..self.hypervisors {
                let hypervisor = leaf * self.hypervisors + below;
                let number = self.spines + self.leaves + hypervisor;
                let vswitch = switch(&mut topology, number, 1 + self.functions);
                topology.link((here, 1 + below as u8), (vswitch, 1), rate);
                for function in 0..self.functions {
                    let guid = self.function(hypervisor, function);
                    let spec = NodeSpec::virtual_function(guid, "function");
                    let node = topology.add(spec);
                    topology.link((vswitch, 2 + function as u8), (node, 1), rate);
                }
            }
        }
        topology
    }

    fn config(&self) -> Config {
        Config {
            spare_functions: self.spares(),
            ..Config::default()
        }
    }

    fn managed(&self, config: Config) -> Managed {
        let fabric = Fabric::new(&self.topology()).unwrap();
        let mut managed = Managed::new(fabric, self.manager(), config);
        managed.settle();
        assert_eq!(managed.manager.report().errors, Vec::<String>::new());
        managed
    }
}

fn lid_of(managed: &Managed, guid: Guid) -> Lid {
    let fabric = &managed.link.fabric;
    let port = fabric.port_by_guid(guid).unwrap();
    fabric.port_info(port).unwrap().lid
}

/// Where each GUID's port is, with its LID and first P_Keys.
fn addresses(managed: &Managed) -> BTreeMap<Guid, (Guid, Lid, Vec<PKey>)> {
    let fabric = &managed.link.fabric;
    let ports = managed.end_ports();
    let all: BTreeMap<_, _> = ports
        .iter()
        .map(|&port| {
            let node = fabric.node_info(port).unwrap();
            let lid = fabric.port_info(port).unwrap().lid;
            let pkeys = fabric.pkeys(port).unwrap()[..4].to_vec();
            (fabric.guids(port).unwrap()[0], (node.node_guid, lid, pkeys))
        })
        .collect();
    assert_eq!(all.len(), ports.len(), "a GUID is there twice");
    all
}

/// Forwarding table blocks set at each node so far.
fn blocks_set(managed: &Managed) -> BTreeMap<Guid, u64> {
    let fabric = &managed.link.fabric;
    fabric
        .nodes()
        .map(|node| {
            let port = PortRef { node, port: 1 };
            let guid = fabric.node_info(port).unwrap().node_guid;
            let counts = fabric.smp_counts(node).unwrap();
            let set = counts.answered_of(MadMethod::SET, AttributeId::LINEAR_FORWARDING);
            (guid, set)
        })
        .collect()
}

/// What the packets of a migration count to agrees with what the switches have answered.
fn checked(managed: &mut Managed, migration: Migration) -> Result<Moved, MigrationError> {
    checked_by(managed, |managed| managed.migrate(migration))
}

fn checked_by(
    managed: &mut Managed,
    act: impl FnOnce(&mut Managed) -> Result<Moved, MigrationError>,
) -> Result<Moved, MigrationError> {
    let before = blocks_set(managed);
    let result = act(managed);
    let after = blocks_set(managed);
    if let Ok(moved) = &result {
        let answered: BTreeMap<Guid, u64> = after
            .iter()
            .map(|(&guid, &count)| (guid, count - before[&guid]))
            .filter(|&(_, count)| count > 0)
            .collect();
        let told: BTreeMap<Guid, u64> = moved
            .per_switch
            .iter()
            .map(|switch| (switch.guid, switch.packets.updated))
            .collect();
        assert_eq!(told, answered);
    }
    result
}

fn to_hypervisor(cloud: &Cloud, vm: Guid, hypervisor: usize) -> Migration {
    Migration::new(vm, Target::Hypervisor(cloud.vswitch(hypervisor)))
}

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
                    match now == was {
                        true => stayed += 1,
                        false => went += 1,
                    }
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
        let known_lids = managed.manager.lids().clone();
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
    let mut random = Random(seed);
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

/// For each switch, the LIDs that it forwards.
fn entries(managed: &Managed) -> BTreeMap<NodeId, Vec<Lid>> {
    let fabric = &managed.link.fabric;
    let lids: Vec<Lid> = (1..0x400).map(Lid::new).collect();
    fabric
        .nodes()
        .map(|node| {
            let known = lids.iter().copied();
            (
                node,
                known
                    .filter(|&lid| fabric.forwarding(node, lid).is_some())
                    .collect(),
            )
        })
        .collect()
}

fn seed() -> u64 {
    match std::env::var("IBVSWITCH_SEED") {
        Ok(seed) => seed.parse().expect("IBVSWITCH_SEED is a number"),
        Err(_) => 0x5eed,
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}

impl Cloud {
    /// No function has a LID before a VM starts there.
    fn dynamic(&self) -> Config {
        Config {
            without_lid: self.all().map(|(h, f)| self.function(h, f)).collect(),
            ..self.config()
        }
    }
}

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
    match moved.from == vm {
        true => moved.to,
        false => moved.from,
    }
}

/// Starts, ends and migrations in random order.
#[test]
fn nothing_leaks_from_dynamic_lids() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.dynamic());
    let quiet = entries(&managed);
    let seed = seed();
    let mut random = Random(seed);
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

/// The paper's table: nodes, switches, LIDs, blocks, packets of a full reconfiguration, and most
/// packets of a swap.
fn table(pods: usize, leaves: usize, row: [u64; 5]) {
    let [nodes, switches, lids, blocks, full] = row;
    let nodes_of_leaf = 18;
    let spare = |number: &usize| number % 2 == 1;
    let config = Config {
        spare_functions: (0..nodes as usize).filter(spare).map(node_guid).collect(),
        ..Config::default()
    };
    let fabric = Fabric::new(&fat_tree(pods, leaves)).unwrap();
    let mut managed = Managed::new(fabric, node_guid(0), config);
    managed.settle();
    let report = managed.manager.report();
    assert_eq!(
        (report.adapters as u64, report.switches as u64),
        (nodes, switches)
    );
    assert_eq!(managed.manager.lids().len() as u64, lids);

    let mut go = |vm: usize, to: usize, method| {
        let migration = Migration {
            method,
            ..Migration::new(node_guid(vm), Target::Function(node_guid(to)))
        };
        managed.migrate(migration).unwrap()
    };
    // Neighbours at one leaf; their LIDs are next to each other.
    let near = go(2, 3, None);
    assert_eq!((near.switches.sent, near.vswitches.sent), (1, 0));
    // From the first leaf to the last one, and every few leaves between.
    let mut most = 0;
    for leaf in (1..pods * leaves).step_by((pods * leaves / 8).max(1)) {
        let moved = go(4 + 2 * (leaf % 3), leaf * nodes_of_leaf + 1, None);
        assert!(moved.switches.sent <= 2 * switches);
        let most_at_one = moved
            .per_switch
            .iter()
            .map(|switch| switch.packets.sent)
            .max();
        assert!(most_at_one <= Some(2));
        most = most.max(moved.switches.sent);
        let moved = go(
            4 + 2 * (leaf % 3),
            moved.from.value() as usize - NODE as usize - 1,
            None,
        );
        assert!(moved.switches.sent <= 2 * switches);
    }
    assert!(
        most > switches,
        "LIDs of far leaves are in different blocks"
    );
    let everything = go(2, 2, Some(Method::Full));
    assert_eq!(everything.switches.sent, full);
    assert_eq!(everything.switches.sent, blocks * switches);
}

#[test]
fn table_of_324_nodes() {
    table(1, 18, [324, 36, 360, 6, 216]);
}

#[test]
fn table_of_648_nodes() {
    table(1, 36, [648, 54, 702, 11, 594]);
}

#[test]
#[ignore = "minutes without optimization"]
fn table_of_5832_nodes() {
    table(18, 18, [5832, 972, 6804, 107, 104_004]);
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
