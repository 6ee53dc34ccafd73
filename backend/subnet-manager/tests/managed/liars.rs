//! Answers that are wrong in every possible way, nodes that fall silent, cables that lead back, and managers that die: the
//! manager neither panics nor runs away, and the next sweep sets all right.

use std::time::Duration;

use fabric::{Fabric, LinkFault, LinkRate, NodeSpec, PortRef, Topology};
use ibvswitch_subnet_manager::{Arbitration, Config, MinHop, SubnetManager, Transport};
use proptest::prelude::*;
use testing::Random;
use wire::attribute::SlToVl;
use wire::mad::{AttributeId, Status};
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
pub fn killed(step: usize, prepare: impl Fn() -> Managed, check: impl Fn(&Managed)) -> u32 {
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

/// A way in which the nodes behind cables fall silent, and come back.
type Silence = fn(&mut Fabric, PortRef, bool);

fn unplugged(fabric: &mut Fabric, port: PortRef, silent: bool) {
    fabric.set_cable(port, !silent);
}

/// The link stays up.
fn mute(fabric: &mut Fabric, port: PortRef, silent: bool) {
    let fault = LinkFault {
        loss_ppm: 1_000_000,
        ..LinkFault::default()
    };
    fabric.set_link_fault(port, silent.then_some(fault));
}

/// Has nodes fall silent before one of the packets.
struct Interrupted<'a> {
    link: &'a mut Link,
    left: u32,
    cables: &'a [PortRef],
    silence: Silence,
}

impl Transport for Interrupted<'_> {
    fn send(&mut self, packet: MadPacket) {
        if self.left == 0 {
            for &cable in self.cables {
                (self.silence)(&mut self.link.fabric, cable, true);
            }
        }
        self.left = self.left.wrapping_sub(1);
        self.link.send(packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        self.link.receive()
    }
}

/// Nodes fall silent in the middle of a sweep: the others are served, and they are, once they are back.
fn falls_silent(cables: impl Fn(&Fabric) -> Vec<PortRef>, silence: Silence, step: usize) {
    for packets in (0..).step_by(step) {
        let mut managed = ring();
        let cables = cables(&managed.link.fabric);
        let mut interrupted = Interrupted {
            link: &mut managed.link,
            left: packets,
            cables: &cables,
            silence,
        };
        while !managed.manager.is_up() {
            let next = managed.manager.poll(managed.now, &mut interrupted);
            managed.now = next.unwrap();
        }
        let is_whole = interrupted.left <= packets;
        let fabric = &mut managed.link.fabric;
        for other in [0x20, 0x22] {
            let info = fabric.port_info(fabric.port_by_guid(Guid::new(other)).unwrap());
            assert_eq!(
                info.unwrap().port_state,
                PortState::Active,
                "{other:x} after {packets}"
            );
        }
        for &cable in &cables {
            silence(fabric, cable, false);
        }
        managed.manager.request_sweep();
        is_right(&mut managed);
        if is_whole {
            return;
        }
    }
}

#[test]
fn a_node_that_falls_silent() {
    for (silence, step) in [(unplugged as Silence, 3), (mute, 5)] {
        let adapter = |fabric: &Fabric| vec![fabric.port_by_guid(Guid::new(0x21)).unwrap()];
        falls_silent(adapter, silence, step);
        let switch = |fabric: &Fabric| {
            let adapter = fabric.port_by_guid(Guid::new(0x21)).unwrap();
            let switch = fabric.peer(adapter).unwrap();
            [1, 2, 4].map(|port| PortRef { port, ..switch }).to_vec()
        };
        falls_silent(switch, silence, step + 4);
    }
}

/// Agents that refuse an attribute.
struct Refusing<'a> {
    link: &'a mut Link,
    attribute: AttributeId,
    received: usize,
}

impl Transport for Refusing<'_> {
    fn send(&mut self, packet: MadPacket) {
        self.link.send(packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        let mut packet = self.link.receive()?;
        self.received += 1;
        if let Ok(mut smp) = Smp::new_checked(&mut packet.mad[..])
            && smp.mad().attribute() == self.attribute
        {
            smp.data_mut().fill(0);
            smp.mad_mut().set_status(Status::UNSUPPORTED_ATTRIBUTE);
        }
        Some(packet)
    }
}

/// PortInfo and NodeInfo tell of tables that agents then refuse: what else they have is set, and the report names each.
#[test]
fn agents_without_what_they_announce() {
    use AttributeId as A;
    let config = Config {
        sl_to_vl: Some(SlToVl::modulo(4)),
        arbitration: Some(Arbitration::parse(7, "1:20", "0:4,1:8").unwrap()),
        timeout: Duration::from_millis(1),
        ..Config::default()
    };
    for attribute in [
        A::P_KEY_TABLE,
        A::SL_TO_VL,
        A::VL_ARBITRATION,
        A::LINEAR_FORWARDING,
        A::MULTICAST_FORWARDING,
        A::NODE_DESCRIPTION,
        A::SWITCH_INFO,
    ] {
        let mut managed = ring();
        managed.manager = SubnetManager::new(config.clone(), Box::new(MinHop)).unwrap();
        let mut refusing = Refusing {
            link: &mut managed.link,
            attribute,
            received: 0,
        };
        for _ in 0..3 {
            let next = managed.manager.poll(managed.now, &mut refusing);
            managed.now = next.unwrap();
        }
        // An incomplete sweep is repeated when the next light one is due, and costs no more.
        assert!(refusing.received < 400, "{}", refusing.received);
        let report = managed.manager.report();
        let named = |error: &String| error.contains(&attribute.to_string());
        assert!(report.errors.iter().all(named), "{:?}", report.errors);
        assert!(report.errors.len() >= 3 && report.active == 6, "{report:?}");
        managed.manager = manager();
        is_right(&mut managed);
    }
}
