//! Attributes of a VF's port, and those that its driver may set.

use crate::daemon::{Daemon, Peer};
use test_driver::Status;
use testing::{Configuration, Toml};

const DEFAULT_PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
/// Speed register of a port.
const PTYS: u32 = 0x5004;
const COMMUNICATION_MANAGEMENT: u32 = 1 << 16;
const SNMP_TUNNELING: u32 = 1 << 17;
const REINIT: u32 = 1 << 18;
const DEVICE_MANAGEMENT: u32 = 1 << 19;
const VENDOR_CLASS: u32 = 1 << 20;
const IS_SM: u32 = 1 << 1;

#[test]
fn unused_gids_have_the_subnets_prefix() {
    let daemon = Daemon::start("trap");
    let peer = Peer::open(&daemon, "vm1");
    // Linux takes the prefix from the last entry.
    for index in 1..8 {
        let gid = peer.device.gid(index).expect("an entry");
        assert_eq!(gid[..8], DEFAULT_PREFIX);
        assert_eq!(gid[8..], [0; 8]);
    }
    // As GUIDs, on the wire, they are 0: SubnGet(GUIDInfo).
    let mut get = [0; 256];
    get[..4].copy_from_slice(&[1, 0x01, 1, 0x01]);
    get[17] = 0x14;
    let answer = peer.device.mad_ifc(&get).expect("an answer");
    assert_eq!(answer[64..72], peer.gid()[8..]);
    assert_eq!(answer[72..128], [0; 56]);
    assert!(peer.device.gid(8).is_err());
}

#[test]
fn a_link_that_is_down_has_no_speed() {
    let daemon = Daemon::start("trap");
    let peer = Peer::open(&daemon, "vm1");
    // Width and speed: what there may be at 0x10, what there is at 0x28.
    let speeds = || {
        let register = peer.device.register(PTYS, 64).expect("a register");
        let [_, able_width, _, able, ..] = register[0x10..] else {
            panic!("{register:?}");
        };
        let [_, width, _, speed, ..] = register[0x28..] else {
            panic!("{register:?}");
        };
        ((able_width, able), (width, speed))
    };
    let up = speeds();
    assert_eq!(up.1, (4, 32));
    daemon.ask(&["link", "down", "vm1:1"]);
    assert_eq!(speeds(), (up.0, (0, 0)));
    daemon.ask(&["link", "up", "vm1:1"]);
    peer.device.wait_active().expect("a subnet manager");
    assert_eq!(speeds(), up);
}

/// The port's capability mask, as the subnet management agent tells it.
fn on_the_wire(peer: &Peer) -> u32 {
    let mut get = [0; 256];
    get[..4].copy_from_slice(&[1, 0x01, 1, 0x01]);
    get[17] = 0x15;
    get[23] = 1;
    let answer = peer.device.mad_ifc(&get).expect("an answer");
    u32::from_be_bytes(answer[64 + 20..64 + 24].try_into().expect("four bytes"))
}

#[test]
fn a_driver_announces_the_agents_that_its_policy_lets_be_reached() {
    let daemon = Daemon::configured(
        Configuration::new()
            .hypervisor("hv1", ["vm1"])
            .vf("vm2")
            .key("gmp", Toml(r#"{ deny = ["dev-mgt"] }"#))
            .vf("vm3")
            .key("smp", "fabric"),
    );
    let refused = |peer: &Peer, bit| {
        let error = peer.device.set_capability_mask(bit, bit).unwrap_err();
        assert_eq!(error.status(), Some(Status::BadParam), "{bit:#x}");
    };
    let target = Peer::open(&daemon, "vm1");
    let before = on_the_wire(&target);
    // What Linux sets: with its communication manager, with an SRP target.
    for bit in [
        COMMUNICATION_MANAGEMENT,
        DEVICE_MANAGEMENT,
        SNMP_TUNNELING,
        VENDOR_CLASS,
    ] {
        target.device.set_capability_mask(bit, bit).expect("is set");
        assert_eq!(on_the_wire(&target), before | bit);
        assert_eq!(target.device.port().unwrap().capability_mask, before | bit);
        target
            .device
            .set_capability_mask(0, bit)
            .expect("is cleared");
        assert_eq!(on_the_wire(&target), before);
    }
    // What says something of the port itself is not its driver's to say.
    let own = COMMUNICATION_MANAGEMENT | DEVICE_MANAGEMENT | SNMP_TUNNELING | VENDOR_CLASS;
    for bit in (0..32).map(|bit| 1 << bit).filter(|bit| bit & own == 0) {
        refused(&target, bit);
    }
    refused(&target, DEVICE_MANAGEMENT | REINIT);
    assert_eq!(on_the_wire(&target), before);

    let denied = Peer::open(&daemon, "vm2");
    refused(&denied, DEVICE_MANAGEMENT);
    let manager = Peer::open(&daemon, "vm3");
    let both = IS_SM | DEVICE_MANAGEMENT;
    manager
        .device
        .set_capability_mask(both, both)
        .expect("is set");
}

#[test]
fn what_a_driver_announced_ends_with_it() {
    let daemon = Daemon::start("trap");
    let peer = Peer::open(&daemon, "vm1");
    let before = on_the_wire(&peer);
    let bit = DEVICE_MANAGEMENT;
    peer.device.set_capability_mask(bit, bit).expect("is set");
    assert_eq!(on_the_wire(&peer), before | bit);
    // Not torn down: its VM was killed.
    let client = peer.device.client();
    client.stream().shutdown(std::net::Shutdown::Both).unwrap();
    drop(client);
    drop(peer);
    assert_eq!(on_the_wire(&Peer::open(&daemon, "vm1")), before);
}
