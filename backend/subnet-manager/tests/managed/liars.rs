//! Answers that are wrong in every possible way, nodes that fall silent, cables that lead back, and managers that die: the
//! manager neither panics nor runs away, and the next sweep sets all right.

use std::time::Duration;

use fabric::{Fabric, LinkRate, NodeSpec, PortRef, Topology};
use ibvswitch_subnet_manager::{Config, MinHop, SubnetManager, Transport};
use proptest::prelude::*;
use testing::Random;
use wire::smp::Smp;
use wire::{Guid, MadPacket, PortState};

use crate::harness::{Link, Managed};

/// Changes bytes of the attributes in every `often`-th answer.
struct Liar<'a> {
    link: &'a mut Link,
    random: Random,
    often: u64,
    received: usize,
}

impl Transport for Liar<'_> {
    fn send(&mut self, packet: MadPacket) {
        self.link.send(packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        let mut packet = self.link.receive()?;
        self.received += 1;
        if self.random.number().is_multiple_of(self.often) {
            for _ in 0..=self.random.number() % 8 {
                let (at, value) = (self.random.number() as usize, self.random.number() as u8);
                if let Ok(mut smp) = Smp::new_checked(&mut packet.mad[..]) {
                    smp.data_mut()[at % 64] = value;
                }
            }
        }
        Some(packet)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn lies_do_no_harm(random in any::<u64>(), often in 1u64..20) {
        let config = Config {
            timeout: Duration::from_millis(1),
            ..Config::default()
        };
        let (mut managed, _) = Managed::hypervisors(2, 2, config.clone());
        let mut liar = Liar {
            link: &mut managed.link,
            random: Random::new(random),
            often,
            received: 0,
        };
        let mut now = Duration::ZERO;
        for _ in 0..6 {
            now = managed.manager.poll(now, &mut liar).unwrap_or(now);
            // Invented ports are asked for and looked behind, each once in a sweep.
            prop_assert!(liar.received < 100_000);
        }
        // The truth heals it: what the lies made of the fabric is set right.
        managed.manager = SubnetManager::new(config, Box::new(MinHop)).unwrap();
        managed.settle();
        managed.all_active_and_reachable();
    }
}

/// A ring of three switches with an adapter each; two of them have two cables between them. The first switch has a cable
/// from a port to another one of its own.
fn ring() -> Managed {
    let mut topology = Topology::new();
    let switches: Vec<_> = (0..3)
        .map(|i| topology.add(NodeSpec::switch(Guid::new(0x10 + i), 6, "")))
        .collect();
    for (i, &switch) in switches.iter().enumerate() {
        let next = switches[(i + 1) % switches.len()];
        topology.link((switch, 1), (next, 2), LinkRate::default());
        let guid = Guid::new(0x20 + i as u64);
        let adapter = topology.add(NodeSpec::channel_adapter(guid, guid, ""));
        topology.link((switch, 3), (adapter, 1), LinkRate::default());
    }
    topology.link((switches[1], 4), (switches[2], 4), LinkRate::default());
    topology.link((switches[0], 5), (switches[0], 6), LinkRate::default());
    let fabric = Fabric::new(&topology).unwrap();
    Managed::new(fabric, Guid::new(0x20), Config::default())
}

fn manager() -> SubnetManager {
    SubnetManager::new(Config::default(), Box::new(MinHop)).unwrap()
}

/// All is right, and the next sweep finds nothing to set.
fn is_right(managed: &mut Managed) {
    managed.settle();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    managed.all_active_and_reachable();
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(managed.manager.report().sets, 0);
}

/// The manager dies after each number of packets of its sweep, or each of some; `check` looks at the subnet then, and another one begins.
/// Returns the packets of a whole sweep.
fn killed(step: usize, prepare: impl Fn() -> Managed, check: impl Fn(&Managed)) -> u32 {
    for packets in (1..).step_by(step) {
        let mut managed = prepare();
        managed.manager = manager();
        managed.link.cut_after = Some(packets);
        while managed.link.cut_after != Some(0) && !managed.manager.is_up() {
            let next = managed.manager.poll(managed.now, &mut managed.link);
            managed.now = next.unwrap();
        }
        let is_whole = managed.link.cut_after != Some(0);
        managed.link.cut_after = None;
        check(&managed);
        managed.manager = manager();
        is_right(&mut managed);
        if is_whole {
            return packets;
        }
    }
    unreachable!("a sweep ends")
}

#[test]
fn a_manager_killed_at_any_packet() {
    // The first sweep of all.
    assert!(killed(3, ring, |_| {}) > 100);
    // A subnet that is up carries data all the while.
    let up = || {
        let mut managed = ring();
        managed.settle();
        managed
    };
    assert!(killed(1, up, Managed::all_active_and_reachable) > 50);
    // A cable is gone, and paths have to change.
    let without = || {
        let mut managed = up();
        let adapter = managed.link.fabric.port_by_guid(Guid::new(0x20)).unwrap();
        let switch = managed.link.fabric.peer(adapter).unwrap();
        let cable = PortRef { port: 1, ..switch };
        managed.link.fabric.set_cable(cable, false);
        managed
    };
    assert!(killed(3, without, |_| {}) > 50);
}

/// Pulls a cable before one of the packets.
struct Interrupted<'a> {
    link: &'a mut Link,
    left: u32,
    cable: PortRef,
}

impl Transport for Interrupted<'_> {
    fn send(&mut self, packet: MadPacket) {
        if self.left == 0 {
            self.link.fabric.set_cable(self.cable, false);
        }
        self.left = self.left.wrapping_sub(1);
        self.link.send(packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        self.link.receive()
    }
}

/// An adapter falls silent in the middle of a sweep: the others are served, and it is, once it is back.
#[test]
fn a_node_that_falls_silent() {
    for packets in (0..).step_by(3) {
        let mut managed = ring();
        let silent = managed.link.fabric.port_by_guid(Guid::new(0x21)).unwrap();
        let mut interrupted = Interrupted {
            link: &mut managed.link,
            left: packets,
            cable: silent,
        };
        while !managed.manager.is_up() {
            let next = managed.manager.poll(managed.now, &mut interrupted);
            managed.now = next.unwrap();
        }
        let is_whole = interrupted.left <= packets;
        let fabric = &managed.link.fabric;
        for other in [0x20, 0x22] {
            let info = fabric.port_info(fabric.port_by_guid(Guid::new(other)).unwrap());
            assert_eq!(
                info.unwrap().port_state,
                PortState::Active,
                "{other:x} after {packets}"
            );
        }
        managed.link.fabric.set_cable(silent, true);
        managed.manager.request_sweep();
        is_right(&mut managed);
        if is_whole {
            return;
        }
    }
}
