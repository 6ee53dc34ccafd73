//! Traps of nodes, and their packets at a tap.

use std::time::Duration;

use crate::common::{Host, OWN, SWITCH, VF, VSWITCH, request};
use ibvswitch_fabric::{Direction, LinkFault, Output, Tap};
use wire::attribute::{
    CapabilityMask, LinkStateChange, LinkViolation, LocalChange, NodeDescription, Notice, PortInfo,
    SystemImageChange, Trap,
};
use wire::mad::{AttributeId, Method};
use wire::performance::{self, PortCounters};
use wire::smp::{DATA, Destination, Request, Smp};
use wire::{Guid, Lid, MadPacket};

/// A subnet that is up, whose ports know that the manager has LID 1. SubnetTimeOut is the 18 that
/// ports have from the start: 4.096 us * 2^18.
fn managed() -> Host {
    let mut host = Host::new();
    host.bring_up();
    for (route, port) in [
        (OWN, 1),
        (SWITCH, 0),
        (VSWITCH, 0),
        (VF, 1),
        (&[1, 1, 3], 1),
    ] {
        host.change_port(route, port, |info| {
            info.master_sm_lid = Lid::new(1);
        });
    }
    host
}

const INTERVAL: Duration = Duration::from_nanos(4096 << 18);

/// The traps that came to the manager, and the packets they came in.
fn traps(host: &mut Host) -> Vec<(Trap, MadPacket)> {
    let packets = host.received().into_iter();
    packets
        .map(|packet| {
            let smp = Smp::new_checked(&packet.mad[..]).unwrap();
            assert_eq!(smp.mad().method(), Method::TRAP);
            assert_eq!(smp.mad().attribute(), AttributeId::NOTICE);
            assert!(!smp.is_directed());
            let notice = Notice::parse(smp.data()).unwrap();
            assert_eq!(notice.issuer_lid, packet.slid);
            (Trap::parse(smp.data()).unwrap().unwrap(), packet)
        })
        .collect()
}

/// Answer of a manager to a trap: the same with another method.
fn repress(host: &mut Host, trap: &MadPacket) {
    let mut reply = trap.reply();
    let mut smp = Smp::new_checked(&mut reply.mad[..]).unwrap();
    smp.mad_mut().set_method(Method::TRAP_REPRESS);
    host.fabric.inject(host.port, reply);
    host.fabric.run();
}

#[test]
fn a_link_goes_down() {
    let mut host = managed();
    assert_eq!(traps(&mut host), []);
    assert_eq!(host.fabric.deadline(), None);
    let vf = host.vf(1);
    host.fabric.set_cable(vf, false);
    let told = traps(&mut host);
    let switch = Lid::new(3);
    let change = Trap::LinkStateChange(LinkStateChange { switch });
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].0, change);
    assert_eq!((told[0].1.slid, told[0].1.dlid), (switch, Lid::new(1)));

    // Again after the interval, not before, until it is acknowledged.
    for at in [INTERVAL - Duration::from_nanos(1), INTERVAL] {
        assert_eq!(host.fabric.deadline(), Some(INTERVAL));
        host.fabric.advance(at);
    }
    let again = traps(&mut host);
    assert_eq!(again, told, "the same transaction");
    repress(&mut host, &told[0].1);
    host.fabric.advance(INTERVAL * 2);
    assert_eq!(traps(&mut host), []);
    assert_eq!(host.fabric.deadline(), None);

    // Soon after the last one: no sooner than the interval allows.
    host.fabric.set_cable(vf, true);
    assert_eq!(traps(&mut host).len(), 1);
    host.fabric.set_cable(vf, false);
    host.fabric.set_cable(vf, true);
    assert_eq!(traps(&mut host).len(), 0);
    host.fabric.advance(INTERVAL * 3);
    let late = traps(&mut host);
    assert_eq!(late.len(), 1);
    repress(&mut host, &late[0].1);
    host.fabric.advance(INTERVAL * 4);
    assert_eq!(traps(&mut host), []);
}

#[test]
fn only_its_own_acknowledgement_ends_a_trap() {
    let mut host = managed();
    host.fabric.set_cable(host.vf(1), false);
    let told = traps(&mut host);
    let mut other = told[0].1.clone();
    other.mad[8..16].fill(0xee);
    repress(&mut host, &other);
    host.fabric.advance(INTERVAL);
    assert_eq!(traps(&mut host).len(), 1);
}

#[test]
fn changes_at_a_port() {
    let mut host = managed();
    let vf = host.vf(0);
    let mask = host.fabric.port_info(vf).unwrap().capability_mask;
    assert!(mask.contains(CapabilityMask::TRAP));
    let node = vf.node;
    host.fabric
        .set_node_description(node, NodeDescription::new("guest"));
    let lid = Lid::new(4);
    let described = LocalChange {
        lid,
        capability_mask: mask,
        other_changes: true,
        node_description_changed: true,
        ..LocalChange::default()
    };
    let told = traps(&mut host);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].0, Trap::LocalChange(described));
    repress(&mut host, &told[0].1);
    // The same text once more is no change.
    host.fabric
        .set_node_description(node, NodeDescription::new("guest"));
    host.fabric.advance(INTERVAL);
    assert_eq!(traps(&mut host), []);

    let none = CapabilityMask::default();
    host.fabric
        .set_capabilities(vf, CapabilityMask::IS_SM, none);
    let told = traps(&mut host);
    let change = LocalChange {
        lid,
        capability_mask: mask.with(CapabilityMask::IS_SM),
        ..LocalChange::default()
    };
    assert_eq!(told[0].0, Trap::LocalChange(change));

    let system_image_guid = Guid::new(0x1234);
    host.fabric.set_system_image_guid(node, system_image_guid);
    let told = traps(&mut host);
    let change = SystemImageChange {
        lid,
        system_image_guid,
    };
    assert_eq!(told[0].0, Trap::SystemImageChange(change));
}

#[test]
fn a_cable_that_is_in() {
    let mut host = managed();
    assert!(host.fabric.set_cable(host.vf(1), true));
    assert_eq!(traps(&mut host), []);
    let info = host.fabric.port_info(host.vf(1)).unwrap();
    assert_eq!(info.port_state, wire::PortState::Active);
}

#[test]
fn nobody_to_tell() {
    let mut host = Host::new();
    host.bring_up();
    host.fabric.set_cable(host.vf(1), false);
    host.fabric
        .set_node_description(host.vf(0).node, NodeDescription::new("guest"));
    assert_eq!(traps(&mut host), []);
    assert_eq!(host.fabric.deadline(), None);
}

#[test]
fn a_manager_comes_and_goes() {
    let mut host = managed();
    host.fabric.set_cable(host.vf(1), false);
    assert_eq!(traps(&mut host).len(), 1);
    // The port forgets what it had to say to a manager that is no more.
    host.change_port(VSWITCH, 0, |info| info.master_sm_lid = Lid::NONE);
    host.fabric.advance(INTERVAL);
    assert_eq!(traps(&mut host), []);
    assert_eq!(host.fabric.deadline(), None);
}

#[test]
fn what_a_tap_sees() {
    let mut host = managed();
    let seen = |host: &mut Host| {
        host.fabric.run();
        let mut seen = Vec::new();
        while let Some(output) = host.fabric.poll_output() {
            if let Output::Tapped {
                port,
                direction,
                packet,
            } = output
            {
                seen.push((port, direction, packet.header().method()));
            }
        }
        seen
    };
    let ask = |host: &mut Host| {
        let asked = Request {
            destination: Destination::Lid(Lid::new(4)),
            ..request(OWN, Method::GET, AttributeId::NODE_INFO, 0, [0; DATA])
        };
        let packet = MadPacket::smp(Lid::NONE, asked.dlid(), asked.to_bytes());
        host.fabric.inject(host.port, packet);
    };
    let vf = host.vf(0);
    host.fabric.set_tap(Some(Tap::Ports([vf].into())));
    ask(&mut host);
    assert_eq!(
        seen(&mut host),
        [
            (vf, Direction::Received, Method::GET),
            (vf, Direction::Sent, Method::GET_RESPONSE),
        ]
    );
    host.fabric.set_tap(Some(Tap::All));
    ask(&mut host);
    let all = seen(&mut host);
    assert_eq!(all.len(), 12, "three links, both ends, there and back");
    assert_eq!(all[0], (host.port, Direction::Sent, Method::GET));
    // What a node asks itself crosses no link.
    let asked = request(OWN, Method::GET, AttributeId::NODE_INFO, 0, [0; DATA]);
    let packet = MadPacket::smp(Lid::NONE, asked.dlid(), asked.to_bytes());
    host.fabric.inject(host.port, packet);
    assert_eq!(seen(&mut host), []);
    host.fabric.set_tap(None);
    ask(&mut host);
    assert_eq!(seen(&mut host), []);
}

#[test]
fn a_slow_link() {
    let mut host = managed();
    let delay = Duration::from_millis(3);
    let fault = LinkFault {
        delay,
        ..LinkFault::default()
    };
    assert!(host.fabric.set_link_fault(host.vf(0), Some(fault)));
    let asked = request(VF, Method::GET, AttributeId::NODE_INFO, 0, [0; DATA]);
    assert_eq!(host.ask(&asked), None);
    assert_eq!(
        host.fabric.advance(delay - Duration::from_nanos(1)),
        Some(delay)
    );
    assert_eq!(host.received(), []);
    host.fabric.advance(delay);
    assert_eq!(host.received(), [], "the answer is as slow");
    host.fabric.advance(delay * 2);
    assert_eq!(host.received().len(), 1);
    assert!(host.fabric.set_link_fault(host.vf(0), None));
    assert!(host.ask(&asked).is_some());
}

#[test]
fn a_lossy_link() {
    let seed = 20;
    let mut host = managed();
    let fault = LinkFault {
        loss_ppm: 500_000,
        seed,
        ..LinkFault::default()
    };
    let counters = |host: &mut Host, vf| {
        let port = host.fabric.counters(vf).map(|_| vf).unwrap();
        let mut bytes = [0; wire::mad::SIZE];
        let mut mad = wire::mad::Mad::new_checked(&mut bytes[..]).unwrap();
        mad.set_class(wire::mad::Class::PERFORMANCE);
        mad.set_method(Method::GET);
        mad.set_attribute(performance::PORT_COUNTERS, 0);
        let select = PortCounters {
            port_select: 1,
            ..PortCounters::default()
        };
        select.emit(&mut bytes[performance::DATA]);
        let answer = host.fabric.local_mad(port, &bytes).unwrap();
        PortCounters::parse(&answer[performance::DATA]).unwrap()
    };
    let vf = host.vf(0);
    host.fabric.set_link_fault(vf, Some(fault));
    let asked = request(VF, Method::GET, AttributeId::NODE_INFO, 0, [0; DATA]);
    let packet = MadPacket::smp(Lid::NONE, asked.dlid(), asked.to_bytes());
    let (mut answered, mut told) = (0, Vec::new());
    for _ in 0..1000 {
        host.fabric.inject(host.port, packet.clone());
        for packet in host.received() {
            match packet.header().method() {
                Method::TRAP => told.push(packet),
                _ => answered += 1,
            }
        }
    }
    // A quarter gets through both ways, at random.
    assert!(
        (150..350).contains(&answered),
        "{answered} with seed {seed}"
    );
    let counted = counters(&mut host, vf);
    assert!((400..600).contains(&counted.symbol_error), "seed {seed}");
    assert_eq!(counted.symbol_error, counted.rcv_errors);
    assert!(counted.local_link_integrity_errors > 0);
    // Half of all packets damaged is too much for a threshold of 8.
    let told = told.iter().map(|packet| {
        let smp = Smp::new_checked(&packet.mad[..]).unwrap();
        Trap::parse(smp.data()).unwrap().unwrap()
    });
    let (switch, adapter) = (Lid::new(3), Lid::new(4));
    for (lid, port) in [(switch, 2), (adapter, 1)] {
        let expected = Trap::LinkIntegrity(LinkViolation { lid, port });
        assert!(told.clone().any(|trap| trap == expected), "{lid}");
    }
    let info: PortInfo = host.fabric.port_info(vf).unwrap();
    assert_eq!(info.local_phy_errors, 8);
}
