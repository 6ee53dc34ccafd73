//! Snapshots of the nodes: when there is another one.

use crate::common::{Host, SWITCH, VF, VSWITCH};
use ibvswitch_fabric::{Owner, PortRef, SmpAccess};
use wire::attribute::{LinearBlock, NodeDescription};
use wire::mad::{AttributeId, Method, SIZE, Status};
use wire::smp::DATA;
use wire::{Lid, MadPacket, PKey, Sl};

/// Attributes that managers and tools read, and that may be written back as they were read.
const READ: [AttributeId; 9] = [
    AttributeId::NODE_INFO,
    AttributeId::NODE_DESCRIPTION,
    AttributeId::PORT_INFO,
    AttributeId::GUID_INFO,
    AttributeId::P_KEY_TABLE,
    AttributeId::SL_TO_VL,
    AttributeId::SWITCH_INFO,
    AttributeId::LINEAR_FORWARDING,
    AttributeId::MULTICAST_FORWARDING,
];

/// Questions and their answers pass, counters count, what is known already is set once more: who has a
/// snapshot has the last one.
#[test]
fn what_passes_changes_nothing() {
    let mut host = Host::new();
    host.bring_up();
    // Ports have changed since; switches say so until they hear that it is known.
    for route in [SWITCH, VSWITCH] {
        let (_, info) = host.get(route, AttributeId::SWITCH_INFO, 0);
        host.set(route, AttributeId::SWITCH_INFO, 0, info);
    }
    let [one, other] = [0, 1].map(|function| host.vf(function));
    host.fabric
        .set_owner(other, Owner::Consumer, SmpAccess::OwnPort);
    let before = host.fabric.revision();
    for route in [SWITCH, VSWITCH, VF] {
        for attribute in READ {
            let modifier = u32::from(attribute == AttributeId::PORT_INFO);
            let (status, data) = host.get(route, attribute, modifier);
            if status == Status::OK {
                host.set(route, attribute, modifier, data);
            }
        }
    }
    let arbitration = host.get(VF, AttributeId::VL_ARBITRATION, 1 << 16).1;
    host.set(VF, AttributeId::VL_ARBITRATION, 1 << 16, arbitration);
    let (key, sl) = (PKey::DEFAULT_FULL, Sl::default());
    let to_other = MadPacket::gmp(Lid::NONE, Lid::new(5), sl, key, [0; SIZE]);
    host.fabric.inject(one, to_other);
    host.fabric.run();
    assert_ne!(
        host.fabric
            .port_totals(other)
            .map(|totals| totals.rcv_packets),
        Some(0)
    );
    // Counters are read, and begin anew.
    for method in [Method::GET, Method::SET] {
        let mut mad = [0; SIZE];
        mad[..4].copy_from_slice(&[1, 4, 1, method.0]);
        mad[16..18].copy_from_slice(&0x12u16.to_be_bytes());
        (mad[65], mad[66], mad[67]) = (1, 0xff, 0xff);
        assert!(host.fabric.local_mad(one, &mad).is_some());
    }
    let text = host.fabric.node_description(one.node).expect("is there");
    host.fabric.set_node_description(one.node, text);
    assert_eq!(host.fabric.revision(), before);

    host.fabric
        .set_node_description(one.node, NodeDescription::new("another"));
    assert_ne!(host.fabric.revision(), before);
}

/// A snapshot goes on telling what was, whatever changes then.
#[test]
fn a_snapshot_stays_as_it_is() {
    let mut host = Host::new();
    host.bring_up();
    let one = host.vf(0);
    let from = PortRef { ..host.port };
    let to = Lid::new(4);
    let snapshot = (*host.fabric).clone();
    let (generation, route) = (
        snapshot.generation(),
        snapshot.resolve(from, to, Sl::default(), None),
    );
    assert_eq!(route.map(|route| route.port), Ok(one));
    let dropping = LinearBlock::default().0;
    let (status, _): (Status, [u8; DATA]) =
        host.set(SWITCH, AttributeId::LINEAR_FORWARDING, 0, dropping);
    assert_eq!(status, Status::OK);
    let now = host.fabric.resolve(from, to, Sl::default(), None);
    assert!(now.is_err());
    assert!(host.fabric.generation() > generation);
    assert_eq!(snapshot.generation(), generation);
    assert_eq!(snapshot.resolve(from, to, Sl::default(), None), route);
}
