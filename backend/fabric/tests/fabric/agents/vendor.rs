//! Answers of a device in the class of its vendor.

use std::time::Duration;

use ibvswitch_fabric::{Fabric, Injected, Owner, PortRef, SmpAccess, Topology};
use wire::mad::{AttributeId, Mad, Method, SIZE, Status};
use wire::performance::ClassPortInfo;
use wire::vendor::{CLASS, DATA, GENERAL_INFO, GeneralInfo, Psid};
use wire::{Lid, MadPacket, PKey, Sl};

use crate::common::Host;

/// Registers of the device, and groups of counters of a switch.
const CONFIG_SPACE: AttributeId = AttributeId(0x50);
const COUNTER_GROUPS: [AttributeId; 2] = [AttributeId(0x90), AttributeId(0x91)];

fn request(method: Method, attribute: AttributeId) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    let mut mad = Mad::new_checked(&mut bytes[..]).unwrap();
    mad.set_class(CLASS);
    mad.set_method(method);
    mad.set_attribute(attribute, 0);
    mad.set_transaction(0x1122_3344);
    // What a request has there is nothing that an answer tells.
    bytes[DATA].fill(0xa5);
    bytes
}

fn ask(host: &mut Host, lid: u16, mad: [u8; SIZE]) -> Option<(Status, [u8; SIZE])> {
    let to = Lid::new(lid);
    let packet = MadPacket::gmp(Lid::NONE, to, Sl::default(), PKey::DEFAULT_FULL, mad);
    assert_eq!(host.fabric.inject(host.port, packet), Injected::Sent);
    let answer = host.received().pop()?;
    let header = answer.header();
    assert_eq!(header.method(), Method::GET_RESPONSE);
    assert_eq!((header.class(), header.transaction()), (CLASS, 0x1122_3344));
    assert_eq!((answer.slid, answer.dlid), (to, Lid::new(1)));
    Some((header.status(), answer.mad))
}

/// LIDs of the switch, the vSwitch and the VF.
const LIDS: [u16; 3] = [2, 3, 4];

#[test]
fn general_info() {
    let mut host = Host::new();
    host.bring_up();
    host.fabric.advance(Duration::from_millis(3_600_999));
    let of = |host: &mut Host, lid| {
        let (status, mad) = ask(host, lid, request(Method::GET, GENERAL_INFO)).unwrap();
        assert_eq!(status, Status::OK);
        assert!(mad[DATA][GeneralInfo::SIZE..].iter().all(|byte| *byte == 0));
        GeneralInfo::parse(&mad[DATA]).unwrap()
    };
    let vf = of(&mut host, LIDS[2]);
    assert_eq!((vf.device_id, vf.uptime), (0x1017, 3600));
    let node = host.fabric.node_info(host.vf(0)).unwrap();
    assert_eq!(node.device_id, vf.device_id);
    let (major, minor, subminor) = (16, 35, 4030_u16);
    assert_eq!(
        (
            vf.firmware_extended_major,
            vf.firmware_extended_minor,
            vf.firmware_extended_subminor,
        ),
        (major, minor, subminor.into())
    );
    // Readers of old look at 8 bits of each.
    assert_eq!(
        (vf.firmware_major, vf.firmware_minor, vf.firmware_subminor),
        (major as u8, minor as u8, subminor as u8)
    );
    assert_eq!(vf.psid, Psid::OURS);
    // A switch has no firmware.
    for lid in &LIDS[..2] {
        let switch = of(&mut host, *lid);
        let expected = GeneralInfo {
            uptime: 3600,
            ..GeneralInfo::default()
        };
        assert_eq!(switch, expected);
    }
}

#[test]
fn the_class() {
    let mut host = Host::new();
    host.bring_up();
    for lid in LIDS {
        let asked = request(Method::GET, AttributeId::CLASS_PORT_INFO);
        let (status, mad) = ask(&mut host, lid, asked).unwrap();
        assert_eq!(status, Status::OK);
        let info = ClassPortInfo::parse(&mad[DATA]).unwrap();
        assert_eq!((info.base_version, info.class_version), (1, 1));
        assert_eq!(info.capability_mask, 0);
    }
}

/// A question that has no answer is told so, and not left to its time-out.
#[test]
fn what_is_not_there() {
    let mut host = Host::new();
    host.bring_up();
    let unsupported =
        |attribute, method| (request(method, attribute), Status::UNSUPPORTED_ATTRIBUTE);
    let mut version = request(Method::GET, GENERAL_INFO);
    version[2] = 2;
    let mut cases = vec![(version, Status::BAD_VERSION)];
    for method in [Method::GET, Method::SET] {
        let attributes = COUNTER_GROUPS.into_iter().chain([CONFIG_SPACE]);
        cases.extend(attributes.map(|attribute| unsupported(attribute, method)));
    }
    for attribute in [GENERAL_INFO, AttributeId::CLASS_PORT_INFO] {
        cases.push(unsupported(attribute, Method::SET));
    }
    for lid in LIDS {
        for (asked, expected) in &cases {
            let (status, mad) = ask(&mut host, lid, *asked).unwrap();
            assert_eq!(status, *expected, "LID {lid}: {asked:02x?}");
            assert_eq!(mad[DATA], asked[DATA]);
        }
    }
    // What asks nothing is not answered.
    for method in [
        Method::SEND,
        Method::TRAP,
        Method::GET_RESPONSE,
        Method(0x55),
    ] {
        assert!(ask(&mut host, LIDS[0], request(method, GENERAL_INFO)).is_none());
    }
}

/// A guest asks its own port by a command, and what comes to its queue pairs is for them.
#[test]
fn a_port_that_somebody_has() {
    let mut host = Host::new();
    host.bring_up();
    let vf = host.vf(0);
    host.fabric
        .set_owner(vf, Owner::Consumer, SmpAccess::OwnPort);
    let asked = request(Method::GET, GENERAL_INFO);
    let answer = host.fabric.local_mad(vf, &asked).unwrap();
    let mad = Mad::new_checked(&answer[..]).unwrap();
    assert_eq!(
        (mad.method(), mad.status()),
        (Method::GET_RESPONSE, Status::OK)
    );
    let info = GeneralInfo::parse(&answer[DATA]).unwrap();
    assert_eq!(info.psid, Psid::OURS);
    let refused = host
        .fabric
        .local_mad(vf, &request(Method::SET, CONFIG_SPACE))
        .unwrap();
    let mad = Mad::new_checked(&refused[..]).unwrap();
    assert_eq!(mad.status(), Status::UNSUPPORTED_ATTRIBUTE);
    assert!(
        host.fabric
            .local_mad(vf, &request(Method::SEND, GENERAL_INFO))
            .is_none()
    );
    assert!(ask(&mut host, LIDS[2], asked).is_none());
}

/// Devices of others have no such class, and of devices that are no VFs nobody knows the firmware.
#[test]
fn other_devices() {
    let text = "vendid=0x1077\ndevid=0x7322\nCa 1 \"A\"\n[1] \"S\"[1]\n\
                vendid=0x2c9\ndevid=0xcb20\nSwitch 2 \"S\"\n[1] \"A\"[1]\n";
    let topology = Topology::from_netlist(text).unwrap_or_else(|error| panic!("{error}"));
    let vendors: Vec<u32> = { topology.nodes().iter().map(|node| node.vendor_id) }.collect();
    assert_eq!(vendors, [0x1077, 0x2c9]);
    let mut fabric = Fabric::new(&topology).unwrap();
    let mut ask = |node: usize, port| {
        let guid = topology.nodes()[node].port_guids[0];
        let at = fabric.port_by_guid(guid).unwrap();
        let asked = request(Method::GET, GENERAL_INFO);
        fabric.local_mad(PortRef { port, ..at }, &asked)
    };
    assert_eq!(ask(0, 1), None);
    let answer = ask(1, 0).expect("is answered");
    let expected = GeneralInfo {
        device_id: 0xcb20,
        ..GeneralInfo::default()
    };
    assert_eq!(GeneralInfo::parse(&answer[DATA]), Ok(expected));
}
