//! Several VMs move at the same time.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{Fabric, Topology};
use ibvswitch_subnet_manager::{
    Config, Deadlock, Migration, MigrationError, Moved, NotFewest, Target, Ticket, Wait,
};
use testing::Random;
use topologies::{FatTree, Hosts, Irregular, Torus};
use wire::attribute::LinearBlock;
use wire::{Guid, Lid};

use crate::cloud::*;
use crate::harness::{Lost, Managed};
use crate::routes::routing::engines;

type Outcome = Result<Moved, MigrationError>;

/// Migrations asked for together, packets delivered as the test likes.
struct Batch {
    tickets: Vec<Ticket>,
    outcomes: Vec<Option<Outcome>>,
    /// Packets sent before the first answer came.
    at_once: usize,
}

impl Batch {
    fn ask(managed: &mut Managed, moves: &[Migration]) -> Self {
        let ask = |&migration: &Migration| managed.manager.migrate(migration);
        let tickets: Vec<Ticket> = moves.iter().map(ask).collect();
        managed.link.held = Some(Vec::new());
        managed.manager.poll(managed.now, &mut managed.link);
        let outcomes = vec![None; tickets.len()];
        let at_once = managed.link.held.as_ref().map_or(0, Vec::len);
        Self {
            tickets,
            outcomes,
            at_once,
        }
    }

    /// Returns the moves that have ended since the last call.
    fn news(&mut self, managed: &mut Managed) -> Vec<usize> {
        let mut news = Vec::new();
        for (number, &ticket) in self.tickets.iter().enumerate() {
            if let Some(outcome) = managed.manager.take_migration(ticket) {
                self.outcomes[number] = Some(outcome);
                news.push(number);
            }
        }
        news
    }

    fn run(
        mut self,
        managed: &mut Managed,
        random: &mut Random,
        mut at_end_of_round: impl FnMut(&Managed, &[usize], &[Option<Outcome>]),
    ) -> Vec<Outcome> {
        loop {
            let news = self.news(managed);
            if !news.is_empty() {
                at_end_of_round(managed, &news, &self.outcomes);
            }
            if self.outcomes.iter().all(Option::is_some) {
                break;
            }
            let held = managed.link.held.as_ref().map_or(0, Vec::len);
            assert!(held > 0, "nothing is on its way: {:?}", self.outcomes);
            for left in (held / 2..held).rev() {
                managed.link.deliver(random.below(left + 1));
            }
            managed.manager.poll(managed.now, &mut managed.link);
        }
        assert_eq!(managed.link.held.take().map(|held| held.len()), Some(0));
        self.outcomes.into_iter().flatten().collect()
    }
}

fn switches(moved: &Moved) -> BTreeSet<Guid> {
    moved.per_switch.iter().map(|each| each.guid).collect()
}

fn blocks(moved: &Moved) -> u64 {
    moved.drops.sent + moved.switches.sent + moved.vswitches.sent
}

fn count(managed: &Managed) -> u64 {
    blocks_set(managed).values().sum()
}

/// Hypervisors of two VMs and two free functions each below a fat-tree; and those hypervisors.
fn tree(shape: &str) -> (Topology, Config, u64) {
    let tree: FatTree = shape.parse().unwrap();
    let topology = tree.topology(Hosts::Hypervisors { functions: 4 });
    let hypervisors = topology.nodes().iter();
    let hypervisors =
        hypervisors.filter(|node| node.guid.value() & 0xff == 0 && is_host(node.guid));
    let hypervisors = hypervisors.count() as u64;
    let spares = (1..=hypervisors).flat_map(|number| [host(number, 3), host(number, 4)]);
    let config = Config {
        spare_functions: spares.collect(),
        ..Config::default()
    };
    (topology, config, hypervisors)
}

fn host(number: u64, function: u64) -> Guid {
    Guid::new(NODE | number << 8 | function)
}

fn is_host(guid: Guid) -> bool {
    guid.value() >> 24 == NODE >> 24
}

/// Random moves: after each round all reach each other, those of a round change no block of a switch in common,
/// and every move takes the packets that it takes alone.
#[test]
fn rounds_in_fat_trees() {
    let seed = seed();
    let mut random = Random::new(seed);
    for shape in [
        "XGFT(2;5,4;3,1)",
        "XGFT(3;3,2,3;2,2,1)",
        "XGFT(3;2,4,2;2,3,1)",
    ] {
        let (topology, config, hypervisors) = tree(shape);
        let start = || {
            let fabric = Fabric::new(&topology).unwrap();
            let mut managed = Managed::new(fabric, host(1, 1), config.clone());
            managed.settle();
            managed
        };
        let (mut managed, mut single) = (start(), start());
        let fewest = random.below(2) == 0;
        let mut vms: Vec<Guid> = (1..=hypervisors)
            .flat_map(|number| [host(number, 1), host(number, 2)])
            .skip(1)
            .collect();
        let mut moves = Vec::new();
        while vms.len() > hypervisors as usize / 2 {
            let vm = vms.swap_remove(random.below(vms.len()));
            // Every other one to a neighbour, as likely as not at the same leaf.
            let to = match moves.len() % 2 {
                0 => random.below(hypervisors as usize) as u64,
                _ => ((vm.value() >> 8 & 0xff) - 1) ^ 1,
            };
            let to = host(1 + to % hypervisors, 0);
            moves.push(Migration {
                drop_first: random.below(3) == 0,
                every_switch: !fewest,
                destination_routed: random.below(2) == 0,
                check_deadlock: random.below(2) == 0,
                ..Migration::new(vm, Target::Hypervisor(to))
            });
        }
        let batch = Batch::ask(&mut managed, &moves);
        let mut sent = count(&managed);
        let mut last = 0;
        let outcomes = batch.run(&mut managed, &mut random, |managed, news, outcomes| {
            managed.all_active_and_reachable();
            let news = news.iter().filter_map(|&number| outcomes[number].as_ref());
            let moved: Vec<&Moved> = news.filter_map(|outcome| outcome.as_ref().ok()).collect();
            let rounds: BTreeSet<u64> = moved.iter().map(|moved| moved.round).collect();
            assert!(rounds.len() <= 1 && rounds.iter().all(|&round| round == last + 1));
            last = rounds.last().copied().unwrap_or(last);
            let mut changed = BTreeSet::new();
            for moved in &moved {
                let block = moved.lid.value() / LinearBlock::LIDS;
                for switch in switches(moved) {
                    let is_new = changed.insert((switch, block));
                    assert!(is_new, "{shape}: {switch} twice in a round");
                }
            }
            // As the switches have counted them.
            let now = count(managed);
            let told: u64 = moved.iter().map(|moved| blocks(moved)).sum();
            assert_eq!(now - sent, told, "{shape}: round {last}");
            sent = now;
        });
        let mut done: Vec<(&Migration, &Moved)> = Vec::new();
        for (asked, outcome) in moves.iter().zip(&outcomes) {
            match outcome {
                Ok(moved) => done.push((asked, moved)),
                Err(
                    MigrationError::AlreadyThere
                    | MigrationError::NoFreeFunction { .. }
                    | MigrationError::Circular { .. },
                ) => {}
                Err(error) => panic!("{shape}: {error}"),
            }
        }
        done.sort_by_key(|(_, moved)| moved.round);
        let rounds = done.last().unwrap().1.round as usize;
        println!(
            "{shape}, fewest {fewest}: {} of {} moves in {rounds} rounds",
            done.len(),
            moves.len()
        );
        assert!(
            rounds < done.len() && done.len() > hypervisors as usize / 2,
            "{shape}"
        );

        let by_vm: BTreeMap<Guid, &Moved> = done.iter().map(|(_, m)| (m.vm, *m)).collect();
        for (asked, moved) in done {
            let alone = Migration {
                to: Target::Function(moved.to),
                ..*asked
            };
            let alone = single.migrate(alone).unwrap();
            assert_eq!(alone.per_switch, moved.per_switch, "{shape}: {}", moved.vm);
            assert_eq!(alone.functions, moved.functions, "{shape}: {}", moved.vm);
            match moved.waited {
                None => assert_eq!(moved.round, 1),
                Some(Wait::Switch { switch, vm }) => {
                    assert!(switches(moved).contains(&switch), "{shape}: {switch}");
                    // Who is waited for may wait too, and be overtaken when it lacks a place.
                    if let Some(other) = by_vm.get(&vm) {
                        assert!(switches(other).contains(&switch), "{shape}: {switch}");
                        assert!(other.round < moved.round || other.waited.is_some());
                    }
                }
                Some(Wait::Place { vm }) => assert_eq!(by_vm[&vm].round + 1, moved.round),
                Some(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(addresses(&managed), addresses(&single), "{shape}");
        assert_eq!(entries(&managed), entries(&single), "{shape}");
        managed.manager.request_sweep();
        managed.settle();
        assert_eq!(managed.manager.report().sets, 0, "{shape}");
    }
}

/// As few switches as the fat-tree allows: more move at the same time, by fewer packets, and what the
/// spines of other subtrees hold stays.
#[test]
fn fewest_switches() {
    let (topology, config, _) = tree("XGFT(3;4,2,3;2,2,1)");
    let changed = |moved: &Moved| {
        let switches = moved.per_switch.iter();
        switches.filter(|switch| !switch.is_vswitch).count()
    };
    let moved = |fewest: bool| {
        let fabric = Fabric::new(&topology).unwrap();
        let mut managed = Managed::new(fabric, host(1, 1), config.clone());
        managed.settle();
        // From one leaf to the other of each of the four subtrees of two leaves.
        let moves: Vec<Migration> = (0..4)
            .map(|subtree| {
                let to = Target::Hypervisor(host(6 * subtree + 4, 0));
                Migration {
                    every_switch: !fewest,
                    ..Migration::new(host(6 * subtree + 1, 2), to)
                }
            })
            .collect();
        let batch = Batch::ask(&mut managed, &moves);
        let outcomes = batch.run(&mut managed, &mut Random::new(seed()), |managed, _, _| {
            managed.all_active_and_reachable();
        });
        let moved: Vec<Moved> = outcomes.into_iter().map(Result::unwrap).collect();
        assert!(moved.iter().all(|moved| moved.not_fewest.is_none()));
        let rounds = moved.iter().map(|moved| moved.round).max().unwrap();
        (rounds, moved.iter().map(changed).collect::<Vec<_>>())
    };
    let (all, fewest) = (moved(false), moved(true));
    println!("all that differ: {all:?}; fewest: {fewest:?}");
    // Two leaves and the two switches above them, none of which another subtree has.
    assert_eq!(fewest.0, 1);
    for (fewest, all) in fewest.1.iter().zip(&all.1) {
        assert!(fewest <= &4 && fewest <= all);
    }
    assert!(all.0 > 1 && fewest.1 < all.1);
}

/// Where there is no tree a skyline does, with every engine: all reach each other after each move, nothing is left to the
/// next sweep, and packets that could not wait for each other for ever cannot afterwards.
#[test]
fn skylines() {
    let seed = seed();
    let mut random = Random::new(seed);
    let hosts = || Hosts::Hypervisors { functions: 2 };
    let irregular = Irregular::new(12, 4, 24, 5).unwrap().topology(hosts());
    let torus = Torus::new(&[4, 3], 1).unwrap().topology(hosts());
    let config = Config {
        spare_functions: (1..=12).map(|number| host(number, 2)).collect(),
        ..Config::default()
    };
    let start = |topology: &Topology, engine: &str| {
        let mut all = engines().into_iter();
        let engine = all.find(|each| each.name() == engine).unwrap();
        let managed = Managed::new(Fabric::new(topology).unwrap(), host(1, 1), config.clone());
        let mut managed = managed.routed_by(engine, config.clone());
        managed.settle();
        managed
    };
    let changed = |moved: &Moved| {
        let switches = moved.per_switch.iter();
        switches.filter(|switch| !switch.is_vswitch).count()
    };
    for (what, topology, engine) in [
        ("irregular", &irregular, "minhop"),
        ("irregular", &irregular, "updn"),
        ("irregular", &irregular, "dfsssp"),
        ("irregular", &irregular, "lash"),
        ("irregular", &irregular, "nue"),
        ("torus", &torus, "minhop"),
        ("torus", &torus, "updn"),
        ("torus", &torus, "dfsssp"),
        ("torus", &torus, "lash"),
        ("torus", &torus, "nue"),
        ("torus", &torus, "dor"),
        ("torus", &torus, "torus-2QoS"),
    ] {
        let (mut fewest, mut every) = (start(topology, engine), start(topology, engine));
        assert_eq!(fewest.manager.routed_by(), Some(engine), "{what}");
        let (mut counts, mut gave_way) = ([0, 0], 0);
        for _ in 0..10 {
            let vm = host(2 + random.below(11) as u64, 1);
            let migration = Migration {
                check_deadlock: true,
                ..Migration::new(vm, Target::Hypervisor(host(1 + random.below(12) as u64, 0)))
            };
            let all = Migration {
                every_switch: true,
                ..migration
            };
            let (Ok(few), Ok(all)) = (fewest.migrate(migration), every.migrate(all)) else {
                continue;
            };
            match few.not_fewest {
                None => {
                    assert!(
                        !matches!(few.deadlock, Some(Deadlock::Lasting(_))),
                        "{what}, {engine}"
                    );
                    assert_eq!(
                        (few.functions, few.vswitches),
                        (all.functions, all.vswitches)
                    );
                }
                Some(NotFewest::Deadlock) => gave_way += 1,
                other => panic!("{what}, {engine}: {other:?}"),
            }
            counts[0] += changed(&few);
            counts[1] += changed(&all);
            fewest.all_active_and_reachable();
            fewest.manager.request_sweep();
            fewest.settle();
            assert_eq!(fewest.manager.report().sets, 0, "{what}, {engine}");
        }
        println!("{what}, {engine}: switches changed {counts:?}, {gave_way} moves gave way");
        assert!(counts[0] <= counts[1], "{what}, {engine}");
        assert!(
            engine != "minhop" || (counts[0] < counts[1] && gave_way == 0),
            "{what}"
        );
    }
}

/// Within their leaves, one in each: as many at the same time as there are leaves, and one packet to
/// each leaf.
#[test]
fn as_many_as_leaves() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.config());
    let first = |leaf: usize| leaf * cloud.hypervisors;
    let moves: Vec<Migration> = (0..cloud.leaves)
        .map(|leaf| to_hypervisor(&cloud, cloud.function(first(leaf), 0), first(leaf) + 1))
        .collect();
    let batch = Batch::ask(&mut managed, &moves);
    assert_eq!(batch.at_once, cloud.leaves, "each LID is taken away");
    let outcomes = batch.run(&mut managed, &mut Random::new(seed()), |_, news, _| {
        assert_eq!(news.len(), moves.len());
    });
    for moved in outcomes {
        let moved = moved.unwrap();
        assert_eq!((moved.round, moved.waited), (1, None));
        assert_eq!((moved.switches.sent, moved.vswitches.sent), (1, 2));
    }
    managed.all_active_and_reachable();
}

/// Moves from one hypervisor, and to one, share a round where their LIDs are in different blocks.
#[test]
fn blocks_of_one_vswitch() {
    let cloud = Cloud::SMALL;
    let vms = [0, 1].map(|function| cloud.function(0, function));
    let spares = [2, 3].map(|function| cloud.function(9, function));
    let mut config = cloud.config();
    for (block, guids) in (4..).zip([[vms[0], spares[0]], [vms[1], spares[1]]]) {
        for (lid, guid) in (block * LinearBlock::LIDS..).map(Lid::new).zip(guids) {
            config.pinned_lids.insert(guid, lid);
        }
    }
    let mut managed = cloud.managed(config);
    let home = cloud.vswitch(0);
    for to in [cloud.vswitch(9), home] {
        let before = count(&managed);
        let moves = vms.map(|vm| Migration::new(vm, Target::Hypervisor(to)));
        let batch = Batch::ask(&mut managed, &moves);
        let outcomes = batch.run(&mut managed, &mut Random::new(seed()), |managed, _, _| {
            managed.all_active_and_reachable();
        });
        let moved: Vec<Moved> = outcomes.into_iter().map(Result::unwrap).collect();
        assert_eq!(moved[0].round, moved[1].round);
        assert!(moved[0].to != moved[1].to);
        assert!(moved.iter().all(|moved| moved.waited.is_none()));
        assert_eq!(
            count(&managed) - before,
            moved.iter().map(blocks).sum::<u64>()
        );
    }
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(managed.manager.report().sets, 0);
}

/// To one hypervisor, or from one, they go one after the other where their LIDs are in one block.
#[test]
fn the_vswitch_is_waited_for() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.config());
    let vms = [0, 4, 8].map(|hypervisor| cloud.function(hypervisor, 0));
    let moves = vms.map(|vm| to_hypervisor(&cloud, vm, 12));
    let batch = Batch::ask(&mut managed, &moves);
    let outcomes = batch.run(&mut managed, &mut Random::new(seed()), |_, _, _| {});
    let rounds: Vec<_> = outcomes
        .iter()
        .map(|outcome| outcome.as_ref().map(|moved| (moved.round, moved.waited)))
        .collect();
    let wait = |vm| {
        let switch = cloud.vswitch(12);
        Some(Wait::Switch { switch, vm })
    };
    assert_eq!(rounds[..2], [Ok((1, None)), Ok((2, wait(vms[0])))]);
    // Only two functions are free there.
    let full = MigrationError::NoFreeFunction {
        hypervisor: cloud.vswitch(12),
        functions: 4,
    };
    assert_eq!(rounds[2], Err(&full));
}

/// A migration to a place that another one leaves waits for that, in whichever order they were asked for.
#[test]
fn places_are_made() {
    let cloud = Cloud {
        vms: 4,
        ..Cloud::SMALL
    };
    let mut config = cloud.config();
    config.spare_functions = BTreeSet::from([cloud.function(8, 0)]);
    let mut managed = cloud.managed(config);
    let vms = [0, 4].map(|hypervisor| cloud.function(hypervisor, 0));
    // Hypervisor 4 is full until its VM has left, and so is 0.
    let third = cloud.function(12, 1);
    let moves = [
        Migration::new(third, Target::Function(vms[0])),
        to_hypervisor(&cloud, vms[0], 4),
        to_hypervisor(&cloud, vms[1], 8),
    ];
    let batch = Batch::ask(&mut managed, &moves);
    let outcomes = batch.run(&mut managed, &mut Random::new(seed()), |managed, _, _| {
        managed.all_active_and_reachable();
    });
    let rounds: Vec<(u64, Option<Wait>)> = outcomes
        .into_iter()
        .map(|outcome| outcome.map(|moved| (moved.round, moved.waited)).unwrap())
        .collect();
    let place = |vm| Some(Wait::Place { vm });
    assert_eq!(rounds, [(3, place(vms[0])), (2, place(vms[1])), (1, None)]);
}

/// VMs that need each other's places stay where they are, and others move.
#[test]
fn circles_are_refused() {
    let cloud = Cloud {
        vms: 4,
        ..Cloud::SMALL
    };
    let mut config = cloud.config();
    config.spare_functions = BTreeSet::from([cloud.function(8, 0)]);
    let mut managed = cloud.managed(config);
    let before = addresses(&managed);
    let vms = [0, 4, 12, 16].map(|hypervisor| cloud.function(hypervisor, 0));
    let moves = [
        to_hypervisor(&cloud, vms[0], 4),
        to_hypervisor(&cloud, vms[1], 0),
        // Behind the circle.
        Migration::new(vms[2], Target::Function(vms[0])),
        to_hypervisor(&cloud, vms[3], 8),
    ];
    let batch = Batch::ask(&mut managed, &moves);
    let outcomes = batch.run(&mut managed, &mut Random::new(seed()), |_, _, _| {});
    let circular = |blocker| Err(MigrationError::Circular { blocker });
    assert_eq!(outcomes[0], circular(vms[1]));
    assert_eq!(outcomes[1], circular(vms[0]));
    assert_eq!(outcomes[2], circular(vms[0]));
    assert_eq!(
        outcomes[0].as_ref().unwrap_err().to_string(),
        "there is room for it only where the VM 0002:c903:0000:0011 is, whose own move needs a place \
         that one of these VMs has; give one of the hypervisors a spare function, or move one of the \
         VMs elsewhere first"
    );
    assert!(outcomes[3].is_ok());
    let after = addresses(&managed);
    for vm in &vms[..3] {
        assert_eq!(after[vm], before[vm]);
    }
    managed.all_active_and_reachable();
}

/// A VM goes by one place to another; one whose first move is refused makes the second.
#[test]
fn the_same_vm_again() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.config());
    let vm = cloud.function(0, 0);
    let moves = [1, 1, 6].map(|to| to_hypervisor(&cloud, vm, to));
    let batch = Batch::ask(&mut managed, &moves);
    let outcomes = batch.run(&mut managed, &mut Random::new(seed()), |_, _, _| {});
    assert_eq!(outcomes[0].as_ref().map(|moved| moved.round), Ok(1));
    assert_eq!(outcomes[1], Err(MigrationError::AlreadyThere));
    let last = outcomes[2].as_ref().unwrap();
    assert_eq!((last.round, last.waited), (2, Some(Wait::Itself)));
    managed.all_active_and_reachable();
}

/// Whichever packet gets lost for good, each VM is on the one side or on the other afterwards, and
/// those that it did not hurt have moved.
#[test]
fn one_is_interrupted() {
    let cloud = Cloud {
        leaves: 3,
        spines: 2,
        hypervisors: 2,
        functions: 3,
        vms: 1,
    };
    let vms = [0, 2, 4, 3].map(|hypervisor| cloud.function(hypervisor, 0));
    let (mut stayed, mut went) = (0, 0);
    for lost in [Lost::Request, Lost::Answer] {
        for number in 0.. {
            let mut managed = cloud.managed(cloud.config());
            let before = addresses(&managed);
            managed.link.lose_request = Some((number, lost));
            // The last one waits for the first one's switches.
            let moves = [
                to_hypervisor(&cloud, vms[0], 1),
                to_hypervisor(&cloud, vms[1], 3),
                to_hypervisor(&cloud, vms[2], 5),
                to_hypervisor(&cloud, vms[3], 1),
            ];
            let tickets = moves.map(|migration| managed.manager.migrate(migration));
            let outcomes = tickets.map(|ticket| managed.await_ticket(ticket));
            let has_lost = managed.has_lost();
            let what = format!("{lost:?} {number}");
            let after = addresses(&managed);
            let mut interrupted = 0;
            for (vm, outcome) in vms.into_iter().zip(outcomes) {
                assert_eq!(after[&vm].1, before[&vm].1, "{what}: its LID");
                let has_moved = after[&vm].0 != before[&vm].0;
                match outcome {
                    Ok(moved) => assert!(has_moved && after[&vm].0 == moved.to, "{what}"),
                    Err(MigrationError::Interrupted { now_at, .. }) => {
                        assert_eq!(now_at, Some(after[&vm].0), "{what}");
                        interrupted += 1;
                        if has_moved { went += 1 } else { stayed += 1 }
                    }
                    Err(error) => panic!("{what}: {error}"),
                }
            }
            managed.all_active_and_reachable();
            assert_eq!(
                interrupted,
                i32::from(has_lost),
                "{what}: one, and no other"
            );
            if !has_lost {
                break;
            }
        }
    }
    assert!(stayed > 0 && went > 0, "{stayed} stayed, {went} went");
}
