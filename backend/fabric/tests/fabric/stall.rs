//! Links without credits, and buffers that overrun.

use std::time::Duration;

use crate::common::{Host, OWN, SWITCH, VF, VSWITCH, request};
use ibvswitch_fabric::{Injected, LinkFault, NoRoute, PortRef, PortTotals, Stalled};
use wire::attribute::{LinkViolation, PortInfo, Trap};
use wire::mad::{AttributeId, Class, Mad, Method, SIZE};
use wire::performance::{
    self, ClassPortInfo, PORT_COUNTERS, PortCounters, PortRcvErrorDetails, PortXmitDiscardDetails,
};
use wire::smp::{DATA, Smp};
use wire::{Lid, MadPacket, PKey, Sl};

/// 400 000 symbols on a lane of 25 Gb/s: 128 us.
const WATCHDOG: Duration = Duration::from_micros(128);
/// HOQLife 8: 4.096 us * 2^8.
const LIFE: Duration = Duration::from_nanos(4096 << 8);

/// A subnet that is up, whose ports know that the manager has LID 1.
fn managed() -> Host {
    let mut host = Host::new();
    host.bring_up();
    for (route, port) in [(OWN, 1), (SWITCH, 0), (VSWITCH, 0), (VF, 1)] {
        host.change_port(route, port, |info| {
            info.master_sm_lid = Lid::new(1);
        });
    }
    host.change_port(VSWITCH, 2, |info| info.hoq_life = 8);
    host
}

/// The vSwitch's port to the first function.
fn downlink(host: &Host) -> PortRef {
    host.fabric.peer(host.vf(0)).unwrap()
}

fn stall(host: &mut Host, at: PortRef, stalled: Stalled) {
    let fault = LinkFault {
        stalled,
        ..LinkFault::default()
    };
    let fault = (!fault.is_harmless()).then_some(fault);
    assert!(host.fabric.set_link_fault(at, fault));
}

/// Has the manager's host ask a port for its counters.
fn ask_counters(host: &mut Host, lid: u16) {
    let mut bytes = [0; SIZE];
    let mut mad = Mad::new_checked(&mut bytes[..]).unwrap();
    mad.set_class(Class::PERFORMANCE);
    mad.set_method(Method::GET);
    mad.set_attribute(PORT_COUNTERS, 0);
    let asked = PortCounters {
        port_select: 1,
        ..PortCounters::default()
    };
    asked.emit(&mut bytes[performance::DATA]);
    let (dlid, key) = (Lid::new(lid), PKey::DEFAULT_FULL);
    let packet = MadPacket::gmp(Lid::NONE, dlid, Sl::default(), key, bytes);
    assert_eq!(host.fabric.inject(host.port, packet), Injected::Sent);
}

/// Answers about counters, and traps, that have come to the manager's host.
fn heard(host: &mut Host) -> (Vec<PortCounters>, Vec<Trap>) {
    let (mut counters, mut traps) = (Vec::new(), Vec::new());
    for packet in host.received() {
        match packet.header().method() {
            Method::TRAP => {
                let smp = Smp::new_checked(&packet.mad[..]).unwrap();
                traps.push(Trap::parse(smp.data()).unwrap().unwrap());
            }
            _ => counters.push(PortCounters::parse(&packet.mad[performance::DATA]).unwrap()),
        }
    }
    (counters, traps)
}

fn totals(host: &Host, port: PortRef) -> PortTotals {
    host.fabric.port_totals(port).unwrap()
}

/// Answer of a port's agent.
fn details(host: &mut Host, at: PortRef, attribute: AttributeId) -> Vec<u8> {
    let mut bytes = [0; SIZE];
    let mut mad = Mad::new_checked(&mut bytes[..]).unwrap();
    mad.set_class(Class::PERFORMANCE);
    mad.set_method(Method::GET);
    mad.set_attribute(attribute, 0);
    bytes[performance::DATA][1] = at.port;
    let answer = host.fabric.local_mad(at, &bytes).unwrap();
    answer[performance::DATA].to_vec()
}

fn asks_by_smp(host: &mut Host) -> bool {
    let asked = request(VF, Method::GET, AttributeId::NODE_INFO, 0, [0; DATA]);
    host.ask(&asked).is_some()
}

#[test]
fn what_waits_too_long_is_discarded() {
    let mut host = managed();
    let port = downlink(&host);
    stall(&mut host, port, Stalled::Outbound);
    ask_counters(&mut host, 4);
    assert_eq!(heard(&mut host).0, []);
    assert!(asks_by_smp(&mut host), "lane 15 is not under flow control");
    let half = LIFE / 2;
    host.fabric.advance(half);
    assert_eq!(totals(&host, port).xmit_discards, 0);
    assert_eq!(totals(&host, port).xmit_wait, half.as_micros() as u64);
    // A second one, behind it, makes the port wait no more, but longer.
    ask_counters(&mut host, 4);
    heard(&mut host);
    host.fabric.advance(LIFE);
    assert_eq!(totals(&host, port).xmit_discards, 1);
    host.fabric.advance(LIFE * 5);
    assert_eq!(totals(&host, port).xmit_discards, 2);
    let told = details(&mut host, port, performance::PORT_XMIT_DISCARD_DETAILS);
    let told = PortXmitDiscardDetails::parse(&told).unwrap();
    let why = (told.inactive_discards, told.sw_hoq_lifetime_limit_discards);
    assert_eq!(why, (0, 2));
    let waited = (LIFE + half).as_micros() as u64;
    assert_eq!(totals(&host, port).xmit_wait, waited);
    // They are gone: nothing comes when credits do.
    stall(&mut host, port, Stalled::No);
    assert_eq!(heard(&mut host).0, []);
    ask_counters(&mut host, 4);
    assert_eq!(heard(&mut host).0.len(), 1);
    assert_eq!(totals(&host, port).xmit_wait, waited);
}

#[test]
fn what_waits_goes_on_when_credits_come() {
    let mut host = managed();
    let port = downlink(&host);
    stall(&mut host, port, Stalled::Both);
    ask_counters(&mut host, 4);
    assert_eq!(heard(&mut host).0, []);
    host.fabric.advance(LIFE / 2);
    // Now the answer waits at the function's port.
    stall(&mut host, port, Stalled::Inbound);
    assert_eq!(heard(&mut host).0, []);
    let vf = host.vf(0);
    let fault = host.fabric.link_fault(vf).unwrap();
    assert_eq!(fault.stalled, Stalled::Outbound, "seen from the other end");
    stall(&mut host, vf, Stalled::No);
    assert_eq!(heard(&mut host).0.len(), 1);
    assert_eq!(totals(&host, port).xmit_discards, 0);
}

#[test]
fn for_ever_is_until_the_link_goes_down() {
    let mut host = managed();
    let port = downlink(&host);
    host.change_port(VSWITCH, 2, |info| info.hoq_life = 20);
    stall(&mut host, port, Stalled::Outbound);
    for _ in 0..100 {
        ask_counters(&mut host, 4);
        host.received();
    }
    host.fabric.advance(Duration::from_secs(1000));
    assert_eq!(totals(&host, port).xmit_discards, 100 - 64, "buffers end");
    assert_eq!(totals(&host, port).xmit_wait, 1_000_000_000);
    host.fabric.set_cable(port, false);
    assert_eq!(totals(&host, port).xmit_discards, 100);
    host.fabric.set_cable(port, true);
    host.fabric.advance(Duration::from_secs(2000));
    assert_eq!(totals(&host, port).xmit_wait, 1_000_000_000);
}

#[test]
fn the_watchdog() {
    let mut host = managed();
    let port = downlink(&host);
    let expected = Trap::FlowControlWatchdog(LinkViolation {
        lid: Lid::new(3),
        port: port.port,
    });
    stall(&mut host, port, Stalled::Outbound);
    let before = WATCHDOG - Duration::from_nanos(1);
    assert_eq!(host.fabric.advance(before), Some(WATCHDOG));
    assert_eq!(heard(&mut host).1, []);
    host.fabric.advance(WATCHDOG);
    assert_eq!(heard(&mut host).1, [expected]);
    // Credits that come in time keep it quiet.
    stall(&mut host, port, Stalled::No);
    let vf = host.vf(0);
    let begun = Duration::from_secs(10);
    host.fabric.advance(begun);
    heard(&mut host);
    stall(&mut host, vf, Stalled::Outbound);
    host.fabric.advance(begun + before);
    stall(&mut host, vf, Stalled::No);
    host.fabric.advance(begun * 2);
    let told_of_vf =
        |trap: &Trap| matches!(trap, Trap::FlowControlWatchdog(at) if at.lid == Lid::new(4));
    assert!(!heard(&mut host).1.iter().any(told_of_vf));
    // The adapter tells by lane 15 of its own link.
    stall(&mut host, vf, Stalled::Outbound);
    host.fabric.advance(begun * 2 + WATCHDOG);
    assert!(heard(&mut host).1.iter().any(told_of_vf));
}

#[test]
fn data_has_no_path() {
    let mut host = managed();
    let (port, vf) = (downlink(&host), host.vf(0));
    let resolve = |host: &Host, from, to| {
        let route = host.fabric.resolve(from, Lid::new(to), Sl::default(), None);
        route.map(|route| route.port)
    };
    stall(&mut host, port, Stalled::Outbound);
    assert_eq!(resolve(&host, host.port, 4), Err(NoRoute::Stalled(port)));
    assert_eq!(resolve(&host, vf, 1), Ok(host.port), "the way back is free");
    stall(&mut host, port, Stalled::Inbound);
    assert_eq!(resolve(&host, vf, 1), Err(NoRoute::Stalled(vf)));
    stall(&mut host, port, Stalled::No);
    assert_eq!(resolve(&host, host.port, 4), Ok(vf));
}

#[test]
fn overruns() {
    let mut host = managed();
    let vf = host.vf(0);
    let fault = LinkFault {
        overrun_every: 2,
        ..LinkFault::default()
    };
    host.fabric.set_link_fault(vf, Some(fault));
    let mut told = Vec::new();
    for _ in 0..36 {
        ask_counters(&mut host, 4);
        told.extend(heard(&mut host).1);
        assert!(asks_by_smp(&mut host), "lane 15 has buffers of its own");
    }
    // Every second request got lost on its way, and every second answer of the others.
    let counted = totals(&host, vf);
    assert_eq!(counted.rcv_errors, 18);
    // The ninth is past the threshold of 8, and so is the eighteenth.
    assert_eq!(counted.excessive_buffer_overrun_errors, 2);
    assert_eq!(counted.symbol_errors, 0);
    let lid = Lid::new(4);
    let violation = |lid, port| Trap::BufferOverrun(LinkViolation { lid, port });
    assert_eq!(told[0], violation(lid, 1));
    let switch = totals(&host, downlink(&host));
    assert_eq!(switch.rcv_errors, 9);
    assert_eq!(switch.excessive_buffer_overrun_errors, 1);
    assert!(told.contains(&violation(Lid::new(3), 2)));
    // What the manager sets is what holds.
    host.change_port(VF, 1, |info| info.overrun_errors = 1);
    let info: PortInfo = host.port_info(VF, 1);
    assert_eq!(info.overrun_errors, 1);
    for _ in 0..4 {
        ask_counters(&mut host, 4);
        host.received();
    }
    assert_eq!(totals(&host, vf).excessive_buffer_overrun_errors, 3);
    for _ in 0..200 {
        ask_counters(&mut host, 4);
        host.received();
    }
    // Four bits, by the performance agent.
    host.fabric.set_link_fault(vf, None);
    ask_counters(&mut host, 4);
    let (counters, _) = heard(&mut host);
    assert_eq!(counters[0].excessive_buffer_overrun_errors, 15);
    assert!(totals(&host, vf).excessive_buffer_overrun_errors > 15);
}

#[test]
fn data_overruns_too() {
    let mut host = managed();
    let vf = host.vf(0);
    let fault = LinkFault {
        overrun_every: 5,
        ..LinkFault::default()
    };
    host.fabric.set_link_fault(vf, Some(fault));
    let path = [downlink(&host)];
    assert!(host.fabric.is_lossy(&path));
    for _ in 0..20 {
        assert_eq!(host.fabric.lose(&path, Sl::default(), 100, 10), Some(4));
    }
    assert_eq!(host.fabric.lose(&path, Sl::default(), 4, 10), None);
    assert_eq!(totals(&host, vf).rcv_errors, 20);
    assert_eq!(totals(&host, vf).excessive_buffer_overrun_errors, 2);
    let told = details(&mut host, vf, performance::PORT_RCV_ERROR_DETAILS);
    let told = PortRcvErrorDetails::parse(&told).unwrap();
    assert_eq!(told.buffer_overrun_errors, 20);
    assert_eq!(told.local_physical_errors, 0);
}

#[test]
fn waiting_is_counted_as_the_agent_says() {
    let mut host = managed();
    let vf = host.vf(0);
    let read = |host: &mut Host, method, data: &[u8]| {
        let attribute = match data.len() {
            0 => AttributeId::CLASS_PORT_INFO,
            _ => PORT_COUNTERS,
        };
        let mut bytes = [0; SIZE];
        let mut mad = Mad::new_checked(&mut bytes[..]).unwrap();
        mad.set_class(Class::PERFORMANCE);
        mad.set_method(method);
        mad.set_attribute(attribute, 0);
        bytes[performance::DATA][..data.len()].copy_from_slice(data);
        host.fabric.local_mad(vf, &bytes).unwrap()
    };
    let can = ClassPortInfo::parse(&read(&mut host, Method::GET, &[])[performance::DATA]).unwrap();
    assert!(can.capability_mask & performance::XMIT_WAIT != 0);
    stall(&mut host, vf, Stalled::Outbound);
    // An answer that does not get out.
    ask_counters(&mut host, 4);
    host.received();
    host.fabric.advance(Duration::from_millis(3));
    let mut asked = PortCounters {
        port_select: 1,
        ..PortCounters::default()
    };
    let counters = |mad: [u8; SIZE]| PortCounters::parse(&mad[performance::DATA]).unwrap();
    let waited = counters(read(&mut host, Method::GET, &asked.to_bytes())).xmit_wait;
    assert_eq!(waited, 3000);
    // A Set of the others leaves it.
    asked.counter_select = 0xffff;
    let waited = counters(read(&mut host, Method::SET, &asked.to_bytes())).xmit_wait;
    assert_eq!(waited, 3000);
    asked.counter_select2 = 1;
    let waited = counters(read(&mut host, Method::SET, &asked.to_bytes())).xmit_wait;
    assert_eq!(waited, 0);
    host.fabric.advance(Duration::from_millis(4));
    let waited = counters(read(&mut host, Method::GET, &asked.to_bytes())).xmit_wait;
    assert_eq!(waited, 1000);
}
