//! Management keys: who may read and who may set (IBA 14.2.4).

use std::time::Duration;

use crate::common::{Host, OWN, SWITCH, VF, VSWITCH, request};
use ibvswitch_fabric::{Owner, SmpAccess};
use wire::attribute::{MKeyViolation, PortInfo, Trap};
use wire::mad::{AttributeId, Method, Status};
use wire::smp::{DATA, Destination, Request, Smp};
use wire::{Lid, MadPacket, PortState};

const KEY: u64 = 0x1122_3344_5566_7788;
const WRONG: u64 = KEY ^ 1;

/// A request without key, with another, with the right one.
const KEYS: [u64; 3] = [0, WRONG, KEY];

fn managed() -> Host {
    let mut host = Host::new();
    host.bring_up();
    host
}

/// Gives a port the key.
fn protect(host: &mut Host, route: &[u8], port: u8, level: u8, lease: u16) {
    let status = host.change_port(route, port, |info| {
        info.m_key = KEY;
        info.m_key_protect_bits = level;
        info.m_key_lease_period = lease;
    });
    assert_eq!(status, Status::OK);
}

struct Target {
    route: &'static [u8],
    lid: u16,
    port: u8,
}

const TARGETS: [Target; 2] = [
    Target {
        route: VF,
        lid: 4,
        port: 1,
    },
    Target {
        route: VSWITCH,
        lid: 3,
        port: 0,
    },
];

impl Target {
    fn ask(
        &self,
        host: &mut Host,
        directed: bool,
        method: Method,
        m_key: u64,
        data: [u8; DATA],
    ) -> Option<PortInfo> {
        let modifier = u32::from(self.port);
        let mut asked = Request {
            m_key,
            ..request(self.route, method, AttributeId::PORT_INFO, modifier, data)
        };
        if !directed {
            asked.destination = Destination::Lid(Lid::new(self.lid));
        }
        let (status, data) = host.ask(&asked)?;
        assert_eq!(status, Status::OK);
        Some(PortInfo::parse(&data).unwrap())
    }

    fn port_info(&self, host: &Host) -> PortInfo {
        let guid = match self.port {
            0 => 0x0002_c903_0000_0100,
            _ => host.layout.vf_guid(0, 0).value(),
        };
        let port = host.fabric.port_by_guid(guid.into()).unwrap();
        host.fabric.port_info(port).unwrap()
    }
}

/// Table of protection levels: level, key, whether a Get is answered, whether it shows the key,
/// whether a Set is answered.
#[test]
fn levels() {
    let table = [
        (0, 0, true, true, false),
        (0, WRONG, true, true, false),
        (0, KEY, true, true, true),
        (1, 0, true, false, false),
        (1, WRONG, true, false, false),
        (1, KEY, true, true, true),
        (2, 0, false, false, false),
        (2, WRONG, false, false, false),
        (2, KEY, true, true, true),
        (3, 0, false, false, false),
        (3, WRONG, false, false, false),
        (3, KEY, true, true, true),
    ];
    for target in TARGETS {
        for directed in [false, true] {
            for (level, key, gets, shows, sets) in table {
                let what = format!("LID {} {directed} {level} {key:x}", target.lid);
                let mut host = managed();
                protect(&mut host, target.route, target.port, level, 0);
                let got = target.ask(&mut host, directed, Method::GET, key, [0; DATA]);
                assert_eq!(got.is_some(), gets, "{what}");
                if let Some(info) = got {
                    assert_eq!(info.m_key, if shows { KEY } else { 0 }, "{what}");
                }
                let mut wanted = target.port_info(&host);
                let violations = wanted.m_key_violations;
                assert_eq!(violations, u16::from(!gets), "{what}");
                wanted.port_state = PortState::NoChange;
                wanted.subnet_timeout = 7;
                let mut data = [0; DATA];
                wanted.emit(&mut data);
                let set = target.ask(&mut host, directed, Method::SET, key, data);
                assert_eq!(set.is_some(), sets, "{what}");
                let after = target.port_info(&host);
                assert_eq!(after.subnet_timeout == 7, sets, "{what}");
                let refused = u16::from(!gets) + u16::from(!sets);
                assert_eq!(after.m_key_violations, refused, "{what}");
            }
        }
    }
}

#[test]
fn without_a_key_everybody_may() {
    for key in KEYS {
        let mut host = managed();
        host.change_port(VF, 1, |info| info.m_key_protect_bits = 3);
        let target = &TARGETS[0];
        let info = target.ask(&mut host, true, Method::GET, key, [0; DATA]);
        assert_eq!(info.unwrap().m_key, 0);
    }
}

/// Every attribute of a protected node is behind its key, a switch's external ports included, and
/// a neighbour's key opens nothing.
#[test]
fn a_key_per_node() {
    let mut host = managed();
    protect(&mut host, SWITCH, 0, 2, 0);
    let asked = |attribute, modifier, m_key| Request {
        m_key,
        ..request(SWITCH, Method::GET, attribute, modifier, [0; DATA])
    };
    for (attribute, modifier) in [
        (AttributeId::NODE_INFO, 0),
        (AttributeId::NODE_DESCRIPTION, 0),
        (AttributeId::SWITCH_INFO, 0),
        (AttributeId::PORT_INFO, 1),
        (AttributeId::P_KEY_TABLE, 0),
        (AttributeId::LINEAR_FORWARDING, 0),
        (AttributeId::MULTICAST_FORWARDING, 0),
        (AttributeId::SL_TO_VL, 0x0102),
    ] {
        assert_eq!(host.ask(&asked(attribute, modifier, WRONG)), None);
        let answer = host.ask(&asked(attribute, modifier, KEY));
        assert_eq!(answer.unwrap().0, Status::OK, "{attribute}");
    }
    // Packets only pass it.
    assert_eq!(host.port_info(VSWITCH, 0).lid, Lid::new(3));
}

#[test]
fn the_lease() {
    let target = &TARGETS[0];
    let get = |host: &mut Host, key| target.ask(host, true, Method::GET, key, [0; DATA]);
    let level = |host: &Host| target.port_info(host).m_key_protect_bits;
    let second = Duration::from_secs(1);

    let mut host = managed();
    protect(&mut host, VF, 1, 2, 10);
    assert_eq!(host.fabric.deadline(), None, "nobody has been refused");
    host.fabric.advance(5 * second);
    assert_eq!(get(&mut host, WRONG), None);
    host.fabric.advance(14 * second);
    assert_eq!(get(&mut host, WRONG), None, "does not begin anew");
    assert_eq!(level(&host), 2);
    host.fabric.advance(15 * second);
    assert_eq!(level(&host), 0);
    assert_eq!(get(&mut host, 0).unwrap().m_key, KEY);

    // Who has the key ends the lease.
    let mut host = managed();
    protect(&mut host, VF, 1, 2, 10);
    assert_eq!(get(&mut host, WRONG), None);
    host.fabric.advance(9 * second);
    assert!(get(&mut host, KEY).is_some());
    host.fabric.advance(11 * second);
    assert_eq!(level(&host), 2);
    assert_eq!(get(&mut host, WRONG), None);
    host.fabric.advance(20 * second);
    assert_eq!(level(&host), 2);
    host.fabric.advance(21 * second);
    assert_eq!(level(&host), 0);

    // A period of 0 never ends.
    let mut host = managed();
    protect(&mut host, VF, 1, 2, 0);
    assert_eq!(get(&mut host, WRONG), None);
    assert_eq!(host.fabric.deadline(), None);
}

#[test]
fn the_manager_is_told() {
    let mut host = managed();
    host.change_port(VF, 1, |info| info.master_sm_lid = Lid::new(1));
    protect(&mut host, VF, 1, 2, 0);
    let trap = |host: &mut Host, asked: Request| {
        let packet = MadPacket::smp(Lid::NONE, asked.dlid(), asked.to_bytes());
        host.fabric.inject(host.port, packet);
        let mut received = host.received();
        if received.is_empty() {
            // It is too soon after the last one.
            let due = host.fabric.deadline().unwrap();
            host.fabric.advance(due);
            received = host.received();
        }
        assert_eq!(received.len(), 1);
        let smp = Smp::new_checked(&received[0].mad[..]).unwrap();
        assert_eq!(smp.mad().method(), Method::TRAP);
        Trap::parse(smp.data()).unwrap().unwrap()
    };
    let directed = Request {
        m_key: WRONG,
        ..request(VF, Method::SET, AttributeId::PORT_INFO, 1, [0; DATA])
    };
    let mut path = [0; MKeyViolation::RETURN_PATH];
    path[..3].copy_from_slice(&[2, 1, 1]);
    assert_eq!(
        trap(&mut host, directed),
        Trap::BadMKey(
            MKeyViolation {
                lid: Lid::PERMISSIVE,
                dr_slid: Lid::PERMISSIVE,
                method: Method::SET,
                attribute: AttributeId::PORT_INFO,
                modifier: 1,
                m_key: WRONG,
                directed: true,
                truncated: false,
                hops: 3,
            },
            path,
        )
    );
    let by_lid = Request {
        destination: Destination::Lid(Lid::new(4)),
        ..request(OWN, Method::GET, AttributeId::NODE_INFO, 0, [0; DATA])
    };
    let told = trap(&mut host, by_lid);
    let expected = MKeyViolation {
        lid: Lid::new(1),
        method: Method::GET,
        attribute: AttributeId::NODE_INFO,
        ..MKeyViolation::default()
    };
    let none = [0; MKeyViolation::RETURN_PATH];
    assert_eq!(told, Trap::BadMKey(expected, none));

    // An acknowledgement without the key is none.
    for (m_key, ends) in [(0, false), (KEY, true)] {
        let due = host.fabric.deadline().unwrap();
        host.fabric.advance(due);
        let told = host.received().pop().unwrap();
        let mut reply = told.reply();
        reply.mad[3] = Method::TRAP_REPRESS.0;
        reply.mad[24..32].copy_from_slice(&u64::to_be_bytes(m_key));
        host.fabric.inject(host.port, reply);
        host.fabric.run();
        let due = host.fabric.deadline().unwrap();
        host.fabric.advance(due);
        assert_eq!(host.received().is_empty(), ends);
    }
}

/// A guest's driver reads its own port, whatever the key, but never comes to know it.
#[test]
fn a_guest_and_its_own_port() {
    for level in 0..=3 {
        let mut host = managed();
        let vf = host.vf(0);
        host.fabric
            .set_owner(vf, Owner::Consumer, SmpAccess::OwnPort);
        protect(&mut host, VF, 1, level, 0);
        let asked = request(OWN, Method::GET, AttributeId::PORT_INFO, 1, [0; DATA]);
        let answer = host.fabric.local_mad(vf, &asked.to_bytes()).unwrap();
        let smp = Smp::new_checked(&answer[..]).unwrap();
        let info = PortInfo::parse(smp.data()).unwrap();
        assert_eq!((info.lid, info.m_key), (Lid::new(4), 0));

        let packet = MadPacket::smp(Lid::NONE, asked.dlid(), asked.to_bytes());
        host.fabric.inject(vf, packet);
        host.fabric.run();
        let mut answers = std::iter::from_fn(|| host.fabric.poll_output());
        let info = answers.find_map(|output| match output {
            ibvswitch_fabric::Output::Deliver { port, packet } if port == vf => {
                let smp = Smp::new_checked(&packet.mad[..]).ok()?;
                PortInfo::parse(smp.data()).ok()
            }
            _ => None,
        });
        assert_eq!(info.map(|info| info.m_key), Some(0), "level {level}");
        let counted = host.fabric.port_info(vf).unwrap().m_key_violations;
        assert_eq!(counted, 0);
    }
}

#[test]
fn violations_begin_anew_when_set_to_zero() {
    let mut host = managed();
    protect(&mut host, VF, 1, 0, 0);
    let target = &TARGETS[0];
    for _ in 0..3 {
        assert_eq!(target.ask(&mut host, true, Method::SET, 0, [0; DATA]), None);
    }
    let set = |host: &mut Host, violations| {
        let mut wanted = target.port_info(host);
        wanted.m_key_violations = violations;
        wanted.port_state = PortState::NoChange;
        let mut data = [0; DATA];
        wanted.emit(&mut data);
        let after = target.ask(host, true, Method::SET, KEY, data);
        after.unwrap().m_key_violations
    };
    assert_eq!(set(&mut host, 1), 3);
    assert_eq!(set(&mut host, 0), 0);
}
