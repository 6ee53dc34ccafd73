//! A GUID that somebody else has given to a second port.

use ibvswitch_subnet_manager::{Migration, Target};
use wire::attribute::GuidInfo;
use wire::mad::{AttributeId, Method};
use wire::smp::{DATA, Destination, Request};
use wire::{Guid, MadPacket};

use crate::cloud::*;
use crate::harness::Managed;

/// Sets the GUID of the port which has `of`, as a packet from anywhere can.
fn set_guid(managed: &mut Managed, node: Guid, guid: Guid) {
    let fabric = &mut managed.link.fabric;
    let port = fabric.port_by_guid(node).unwrap();
    let mut entries = [Guid::NONE; 8];
    entries[0] = guid;
    let mut data = [0; DATA];
    GuidInfo::from_entries(entries).emit(&mut data);
    let lid = fabric.port_info(port).unwrap().lid;
    let request = Request {
        destination: Destination::Lid(lid),
        method: Method::SET,
        attribute: AttributeId::GUID_INFO,
        modifier: 0,
        transaction: 1,
        m_key: 0,
        data,
    };
    let packet = MadPacket::smp(wire::Lid::NONE, lid, request.to_bytes());
    let from = managed.link.station.port;
    fabric.inject(from, packet);
    fabric.run();
}

#[test]
fn the_one_that_came_later_gets_its_own_back() {
    let cloud = Cloud::SMALL;
    let mut managed = cloud.managed(cloud.config());
    let (vm, twin) = (cloud.function(0, 0), cloud.function(3, 1));
    let (moved, to) = (cloud.function(2, 0), cloud.function(5, 3));
    managed
        .migrate(Migration::new(moved, Target::Function(to)))
        .unwrap();
    let before = addresses(&managed);
    // A VM at its own place, and one that has moved: the GUID of its place is elsewhere.
    for (victim, taken) in [(twin, vm), (moved, vm), (vm, twin)] {
        set_guid(&mut managed, victim, taken);
        managed.manager.request_sweep();
        managed.settle();
        let errors = &managed.manager.report().errors;
        assert!(
            errors.len() == 1 && errors[0].ends_with(&format!("it gets {victim} back")),
            "{errors:?}"
        );
        assert_eq!(addresses(&managed), before);
        managed.all_active_and_reachable();
    }
    managed.manager.request_sweep();
    managed.settle();
    assert_eq!(managed.manager.report().errors, Vec::<String>::new());
    assert_eq!(managed.manager.report().sets, 0);
}
