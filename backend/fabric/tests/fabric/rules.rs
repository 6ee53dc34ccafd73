//! Packets obey: what a node does not let pass is dropped there, counted there and told.

use std::time::Duration;

use crate::common::{Host, OWN, SWITCH, VF, VSWITCH};
use ibvswitch_fabric::{NoRoute, Output, Owner, PortRef, SmpAccess};
use wire::attribute::{
    KeyViolation, LinearBlock, MulticastBlock, PKeyBlock, SlToVl, SwitchPKeyViolation, Trap,
};
use wire::mad::{AttributeId, Class, Mad, Method, SIZE, Status};
use wire::performance::{self, PortCounters, PortRcvErrorDetails, PortXmitDiscardDetails};
use wire::smp::Smp;
use wire::{Lid, MadPacket, PKey, PortState, QKey, Qpn, Sl, Vl};

const VF2: &[u8] = &[1, 1, 3];

/// A subnet that is up; both functions have an owner; all ports know the manager.
fn managed() -> Host {
    let mut host = Host::new();
    host.bring_up();
    for (route, port) in [(OWN, 1), (SWITCH, 0), (VSWITCH, 0), (VF, 1), (VF2, 1)] {
        host.change_port(route, port, |info| info.master_sm_lid = Lid::new(1));
    }
    for function in 0..2 {
        let vf = host.vf(function);
        host.fabric
            .set_owner(vf, Owner::Consumer, SmpAccess::OwnPort);
    }
    host
}

/// A packet from the first function to a LID.
fn packet(dlid: u16) -> MadPacket {
    let (sl, key) = (Sl::default(), PKey::DEFAULT_FULL);
    MadPacket::gmp(Lid::NONE, Lid::new(dlid), sl, key, [0; SIZE])
}

/// Sends a packet from the first function: the ports it is delivered to, and the traps it causes.
fn send(host: &mut Host, packet: MadPacket) -> (Vec<PortRef>, Vec<Trap>) {
    let vf = host.vf(0);
    // So that no trap has to wait for the one before.
    let later = host.fabric.deadline().unwrap_or_default() + Duration::from_secs(10);
    host.fabric.advance(later);
    host.fabric.run();
    while host.fabric.poll_output().is_some() {}
    host.fabric.inject(vf, packet);
    host.fabric.run();
    let (mut arrived, mut traps) = (Vec::new(), Vec::new());
    while let Some(output) = host.fabric.poll_output() {
        let Output::Deliver { port, packet } = output else {
            continue;
        };
        if packet.header().method() != Method::TRAP {
            arrived.push(port);
            continue;
        }
        let mut reply = packet.reply();
        let mut smp = Smp::new_checked(&mut reply.mad[..]).unwrap();
        traps.push(Trap::parse(smp.data()).unwrap().unwrap());
        smp.mad_mut().set_method(Method::TRAP_REPRESS);
        host.fabric.inject(host.port, reply);
        host.fabric.run();
    }
    arrived.sort();
    (arrived, traps)
}

/// Counters of a port of the vSwitch.
fn counters(host: &mut Host, port: u8) -> PortCounters {
    let data = performance(host, performance::PORT_COUNTERS, port, false);
    PortCounters::parse(&data).unwrap()
}

/// An attribute of a port of the vSwitch, all counters of which may be set to zero.
fn performance(host: &mut Host, attribute: AttributeId, port: u8, clear: bool) -> Vec<u8> {
    let node = vswitch(host);
    let mut bytes = [0; SIZE];
    let mut mad = Mad::new_checked(&mut bytes[..]).unwrap();
    mad.set_class(Class::PERFORMANCE);
    mad.set_method(if clear { Method::SET } else { Method::GET });
    mad.set_attribute(attribute, 0);
    PortCounters {
        port_select: port,
        counter_select: 0xffff,
        ..PortCounters::default()
    }
    .emit(&mut bytes[performance::DATA]);
    let answer = host.fabric.local_mad(node, &bytes).unwrap();
    answer[performance::DATA].to_vec()
}

/// Details of packets that a port of the vSwitch could not pass: unknown LIDs, lanes, loops, and ports that are not
/// Active.
fn details(host: &mut Host, port: u8, clear: bool) -> [u16; 4] {
    let errors = performance(host, performance::PORT_RCV_ERROR_DETAILS, port, clear);
    let errors = PortRcvErrorDetails::parse(&errors).unwrap();
    let discards = performance(host, performance::PORT_XMIT_DISCARD_DETAILS, port, clear);
    [
        errors.dlid_mapping_errors,
        errors.vl_mapping_errors,
        errors.looping_errors,
        PortXmitDiscardDetails::parse(&discards)
            .unwrap()
            .inactive_discards,
    ]
}

fn vswitch(host: &Host) -> PortRef {
    let node = host.fabric.peer(host.vf(0)).unwrap().node;
    PortRef { node, port: 0 }
}

fn keys(host: &mut Host, route: &[u8], port: u8, keys: &[u16]) {
    let mut block = PKeyBlock::default();
    for (entry, &key) in block.0.iter_mut().zip(keys) {
        *entry = PKey::new(key);
    }
    let modifier = u32::from(port) << 16;
    let (status, _) = host.set(route, AttributeId::P_KEY_TABLE, modifier, block.to_bytes());
    assert_eq!(status, Status::OK);
}

#[test]
fn nothing_is_wrong() {
    let mut host = managed();
    assert_eq!(send(&mut host, packet(5)), (vec![host.vf(1)], vec![]));
    let counted = counters(&mut host, 3);
    assert_eq!(
        (counted.xmit_discards, counted.rcv_switch_relay_errors),
        (0, 0)
    );
}

/// Full and limited members of a partition, at the adapter that receives.
#[test]
fn membership_at_the_adapter() {
    for (sender, receiver, arrives) in [
        (0x8001, 0x8001, true),
        (0x8001, 0x0001, true),
        (0x0001, 0x8001, true),
        (0x0001, 0x0001, false),
        (0x8001, 0x8002, false),
        (0x8002, 0xffff, false),
    ] {
        let mut host = managed();
        keys(&mut host, VF, 0, &[sender]);
        keys(&mut host, VF2, 0, &[receiver]);
        let mut sent = packet(5);
        // Which membership a port has says its table, not the packet's sender.
        sent.pkey = PKey::new(sender ^ 0x8000);
        let (arrived, traps) = send(&mut host, sent);
        assert_eq!(
            arrived.len(),
            usize::from(arrives),
            "{sender:x} {receiver:x}"
        );
        let info = host.fabric.port_info(host.vf(1)).unwrap();
        assert_eq!(info.p_key_violations, u16::from(!arrives));
        let expected = Trap::BadPKey(KeyViolation {
            source: Lid::new(4),
            destination: Lid::new(5),
            key: u32::from(sender),
            source_qp: Qpn::QP1,
            destination_qp: Qpn::QP1,
            ..KeyViolation::default()
        });
        let expected = (!arrives).then_some(expected);
        assert_eq!(traps, expected.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn queue_keys() {
    let mut host = managed();
    let mut wrong = packet(5);
    wrong.qkey = QKey::new(0x1234);
    let (arrived, traps) = send(&mut host, wrong.clone());
    assert_eq!(arrived, []);
    let expected = KeyViolation {
        source: Lid::new(4),
        destination: Lid::new(5),
        key: 0x1234,
        source_qp: Qpn::QP1,
        destination_qp: Qpn::QP1,
        ..KeyViolation::default()
    };
    assert_eq!(traps, [Trap::BadQKey(expected)]);
    let info = host.fabric.port_info(host.vf(1)).unwrap();
    assert_eq!(info.q_key_violations, 1);
    // Another queue pair has another key, which its owner checks.
    wrong.dst_qp = Qpn::new(77);
    assert_eq!(send(&mut host, wrong), (vec![host.vf(1)], vec![]));
}

/// A switch's ports let pass what is in their tables; on the way in and on the way out they count
/// apart.
#[test]
fn enforcement_at_a_switch() {
    for (inbound, port) in [(true, 2), (false, 3)] {
        let mut host = managed();
        let status = host.change_port(VSWITCH, port, |info| {
            info.partition_enforcement_inbound = inbound;
            info.partition_enforcement_outbound = !inbound;
        });
        assert_eq!(status, Status::OK);
        keys(&mut host, VSWITCH, port, &[0x8001]);
        let (arrived, traps) = send(&mut host, packet(5));
        assert_eq!(arrived, []);
        let expected = SwitchPKeyViolation {
            valid: SwitchPKeyViolation::WITHOUT_GIDS,
            source: Lid::new(4),
            destination: Lid::new(5),
            pkey: PKey::DEFAULT_FULL,
            source_qp: Qpn::QP1,
            destination_qp: Qpn::QP1,
            switch: Lid::new(3),
            port,
            ..SwitchPKeyViolation::default()
        };
        assert_eq!(traps, [Trap::BadPKeyAtSwitch(expected)]);
        let counted = counters(&mut host, port);
        let constraint = (
            counted.rcv_constraint_errors,
            counted.xmit_constraint_errors,
        );
        assert_eq!(constraint, (u8::from(inbound), u8::from(!inbound)));
        keys(&mut host, VSWITCH, port, &[0x8001, 0x7fff]);
        assert_eq!(send(&mut host, packet(5)).0, [host.vf(1)]);
    }
}

#[test]
fn relay_errors_and_discards() {
    type Break = fn(&mut Host);
    fn table(host: &mut Host, port: u8) {
        let mut block = LinearBlock::default();
        block.0[1..6].copy_from_slice(&[1, 1, 0, 2, port]);
        host.set(VSWITCH, AttributeId::LINEAR_FORWARDING, 0, block.0);
    }
    let (lid, lane, circle, inactive) = ([1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]);
    // What is broken, at which port of the vSwitch it is counted, as which error.
    let cases: [(&str, Break, u8, [u16; 4]); 5] = [
        ("port 255", |host| table(host, 255), 2, lid),
        ("back where it came from", |host| table(host, 2), 2, circle),
        ("a port that is not there", |host| table(host, 9), 2, lid),
        (
            "lane 15",
            |host| {
                let mut lanes = SlToVl::default();
                lanes.0[0] = Vl::MANAGEMENT;
                host.set(VSWITCH, AttributeId::SL_TO_VL, 0x0203, lanes.to_bytes());
            },
            2,
            lane,
        ),
        (
            "not active",
            |host| {
                host.change_port(VSWITCH, 3, |info| info.port_state = PortState::Down);
            },
            3,
            inactive,
        ),
    ];
    for (what, spoil, port, expected) in cases {
        let mut host = managed();
        spoil(&mut host);
        assert_eq!(send(&mut host, packet(5)).0, [], "{what}");
        let counted = counters(&mut host, port);
        let errors = (counted.rcv_switch_relay_errors, counted.xmit_discards);
        let relay = u16::from(expected != inactive);
        assert_eq!(errors, (relay, 1 - relay), "{what}");
        assert_eq!(details(&mut host, port, false), expected, "{what}");
        assert_eq!(details(&mut host, port, true), [0; 4], "{what}");
        assert_eq!(counters(&mut host, port), counted, "{what}");
    }
}

/// A packet that would leave by the port it came in by is dropped at the first switch.
#[test]
fn no_way_back() {
    let mut host = managed();
    let mut block = LinearBlock::default();
    block.0[1..6].copy_from_slice(&[1, 1, 0, 2, 2]);
    host.set(VSWITCH, AttributeId::LINEAR_FORWARDING, 0, block.0);
    let node = vswitch(&host).node;
    let route = host
        .fabric
        .resolve(host.vf(0), Lid::new(5), Sl::default(), None);
    assert_eq!(route, Err(NoRoute::Circle(node)));
}

#[test]
fn groups() {
    let mut host = managed();
    let lid = Lid::new(0xc005);
    for (route, ports) in [(VSWITCH, 0b1110u16), (SWITCH, 0b0110)] {
        let mut block = MulticastBlock::default();
        block.0[5] = ports;
        let attribute = AttributeId::MULTICAST_FORWARDING;
        host.set(route, attribute, 0, block.to_bytes());
    }
    let everybody = [host.port, host.vf(1)];
    assert_eq!(send(&mut host, packet(0xc005)).0, everybody);
    let (sl, key) = (Sl::default(), Some(PKey::DEFAULT_FULL));
    let reached = host.fabric.resolve_multicast(host.vf(0), lid, sl, key);
    let reached: Vec<_> = reached.iter().map(|route| route.port).collect();
    assert_eq!(reached, everybody);
    assert_eq!(send(&mut host, packet(0xc006)).0, []);
    let counted = counters(&mut host, 2);
    assert_eq!(counted.rcv_switch_relay_errors, 1);
}
