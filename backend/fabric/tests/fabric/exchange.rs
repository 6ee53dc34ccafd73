//! Virtual functions that change places.

use crate::common::{Host, VF, VSWITCH};
use ibvswitch_fabric::{Owner, PortEvent, PortRef, SmpAccess};
use wire::attribute::{NodeDescription, NodeInfo, SwitchInfo, Trap};
use wire::mad::AttributeId;
use wire::smp::Smp;
use wire::{Lid, PKey, PortState};

/// The function at the vSwitch's other port.
const OTHER: &[u8] = &[1, 1, 3];

fn node(host: &mut Host, route: &[u8]) -> (NodeInfo, NodeDescription) {
    let info = host.get(route, AttributeId::NODE_INFO, 0).1;
    let text = host.get(route, AttributeId::NODE_DESCRIPTION, 0).1;
    (
        NodeInfo::parse(&info).unwrap(),
        NodeDescription::from_bytes(text),
    )
}

#[test]
fn all_that_a_manager_knows_goes_along() {
    let mut host = Host::new();
    host.bring_up();
    host.change_port(VSWITCH, 0, |info| info.master_sm_lid = Lid::new(1));
    let mut data = [0; 64];
    let (_, info) = host.get(VSWITCH, AttributeId::SWITCH_INFO, 0);
    data.copy_from_slice(&info);
    host.set(VSWITCH, AttributeId::SWITCH_INFO, 0, data);
    let key = PKey::new(0x8011);
    let mut pkeys = [0; 64];
    pkeys[..2].copy_from_slice(&key.value().to_be_bytes());
    host.set(VF, AttributeId::P_KEY_TABLE, 0, pkeys);
    let [one, other] = [0, 1].map(|function| host.vf(function));
    for at in [one, other] {
        host.fabric
            .set_owner(at, Owner::Consumer, SmpAccess::OwnPort);
    }
    let before = [VF, OTHER].map(|route| node(&mut host, route));
    let guids = [one, other].map(|at| host.fabric.guids(at).unwrap().to_vec());
    host.events.clear();

    assert!(host.fabric.exchange(one, other));
    let mut trapped = host.received();
    let trap = trapped.pop().expect("a trap");
    let smp = Smp::new_checked(&trap.mad[..]).unwrap();
    assert!(matches!(
        Trap::parse(smp.data()),
        Ok(Some(Trap::LinkStateChange(_)))
    ));
    let (_, info) = host.get(VSWITCH, AttributeId::SWITCH_INFO, 0);
    assert!(SwitchInfo::parse(&info).unwrap().port_state_change);
    for at in [one, other] {
        for event in [
            PortEvent::StateChange(PortState::Down),
            PortEvent::GidChange,
            PortEvent::LidChange,
            PortEvent::PkeyChange,
            PortEvent::StateChange(PortState::Initialize),
        ] {
            assert!(host.events.contains(&(at, event)), "{at} {event:?}");
        }
    }

    let after = [OTHER, VF].map(|route| node(&mut host, route));
    assert_eq!(after, before);
    for (at, guids) in [other, one].into_iter().zip(&guids) {
        assert_eq!(host.fabric.guids(at).unwrap(), guids);
        assert_eq!(host.fabric.port_by_guid(guids[0]), Some(at));
    }
    assert_eq!(host.fabric.pkeys(other).unwrap()[0], key);
    for (route, lid) in [(OTHER, 4), (VF, 5)] {
        let info = host.port_info(route, 1);
        assert_eq!(info.lid, Lid::new(lid));
        assert_eq!(info.port_state, PortState::Initialize);
    }
    // And back.
    assert!(host.fabric.exchange(other, one));
    assert_eq!([VF, OTHER].map(|route| node(&mut host, route)), before);
}

/// Cables stay with the place, broken ones too.
#[test]
fn a_broken_cable_stays() {
    let mut host = Host::new();
    host.bring_up();
    let [one, other] = [0, 1].map(|function| host.vf(function));
    host.fabric.set_cable(one, false);
    assert!(host.fabric.exchange(one, other));
    assert!(!host.fabric.has_cable(one) && host.fabric.has_cable(other));
    let state = |at: PortRef| host.fabric.port_info(at).unwrap().port_state;
    assert_eq!(
        [one, other].map(state),
        [PortState::Down, PortState::Initialize]
    );
}

#[test]
fn others_have_their_places() {
    let mut host = Host::new();
    host.bring_up();
    let vf = host.vf(0);
    let vswitch = host.fabric.peer(vf).unwrap();
    let nowhere = PortRef { port: 2, ..vf };
    for (one, other) in [(vf, vf), (vf, host.port), (vswitch, vf), (vf, nowhere)] {
        assert!(!host.fabric.exchange(one, other));
    }
    assert_eq!(host.port_info(VF, 1).port_state, PortState::Active);
}
