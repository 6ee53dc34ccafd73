//! VMs with LIDs of 18 bits, which their guests see as LIDs of their cluster.

use crate::daemon::{Daemon, HALF, Peer, connected};
use test_driver::{AddressVector, Data, SendRequest, Transport};
use testing::{Configuration, wait_until};

const GRH: usize = 40;
const FIRST: u64 = 0x1_0000;

/// Two VMs of a cluster and one of none, on two hypervisors with a switch each.
fn configuration(leaf: &str) -> Configuration {
    Configuration::new()
        .set("fabric.model", "vswitch-dynamic")
        .set("fabric.extended_lids", true)
        .switches(["leaf1"])
        .lines(leaf)
        .switches(["leaf2"])
        .link("leaf1", "leaf2")
        .clusters(["a"])
        .hypervisor("hv1", [])
        .at("leaf1")
        .member("vm1", "a")
        .vf("outside")
        .key("lid", 77)
        .hypervisor("hv2", [])
        .at("leaf2")
        .spare_vfs(1)
        .member("vm2", "a")
        .hypervisor("hv3", [])
        .at("leaf1")
        .spare_vfs(1)
}

fn lid(daemon: &Daemon, vf: &str) -> u64 {
    let shown = daemon.ask(&["vf", "show", vf]);
    shown["lid"].as_u64().expect("a number")
}

fn transfer(vm1: &mut Peer, vm2: &mut Peer) {
    for (transport, seed) in [(Transport::Rc, 1), (Transport::Uc, 2)] {
        let (mut qa, _qb) = connected(transport, vm1, vm2);
        vm1.fill(0, 300_000, seed);
        let from = [vm1.sge(0, 300_000)];
        let write = SendRequest::write(vm2.remote(HALF), Data::Memory(&from));
        vm1.execute(&mut qa, &write);
        vm2.arrives(HALF, 300_000, seed);
    }
    let (mut qa, mut qb) = (vm1.qp(Transport::Ud), vm2.qp(Transport::Ud));
    qa.activate(0, 5).expect("becomes ready");
    qb.activate(0, 5).expect("becomes ready");
    qb.post_receive(&[vm2.sge(HALF, GRH + 64)]).unwrap();
    let to = AddressVector {
        lid: vm2.port.lid,
        qpn: qb.number(),
        qkey: 5,
        ..AddressVector::default()
    };
    vm1.execute(&mut qa, &SendRequest::send(Data::Inline(b"hello")).to(&to));
    let entry = vm2.cq.wait().expect("a completion");
    qb.complete_receive(&entry);
    assert_eq!(entry.source_lid(), vm1.port.lid);
}

#[test]
fn vms_talk_by_lids_that_have_no_room_in_their_registers() {
    let daemon = Daemon::configured(configuration(""));
    let (mut vm1, mut vm2) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    // Guests see the numbers of their cluster.
    assert_eq!((vm1.port.lid, vm2.port.lid), (1, 2));
    let lids = [lid(&daemon, "vm1"), lid(&daemon, "vm2")];
    assert!(
        lids.iter().all(|lid| (FIRST..FIRST + 2).contains(lid)),
        "{lids:?}"
    );
    assert_ne!(lids[0], lids[1]);
    transfer(&mut vm1, &mut vm2);
    let status = daemon.ask(&["sm", "status"]);
    assert_eq!(status["extended_lids"]["vms"], 2);
    assert_eq!(status["errors"], serde_json::json!([]));
    let text = daemon.command().arg("topology").output().expect("runs");
    let text = String::from_utf8(text.stdout).expect("is text");
    assert!(text.contains("65536 (0x10000)"), "{text}");
    assert!(
        text.contains("of 18 bits, chosen when the VM started"),
        "{text}"
    );
    // What has a LID in the configuration has that.
    let outside = Peer::open(&daemon, "outside");
    assert_eq!(outside.port.lid, 77);
    // No management packet has room for such a LID.
    let gsi = vm1.qp(Transport::Gsi);
    gsi.activate(0, 0x8001_0000).expect("becomes ready");
    let mut gsi = gsi;
    let to = AddressVector {
        lid: vm1.port.sm_lid,
        qpn: 1,
        qkey: 0x8001_0000,
        ..AddressVector::default()
    };
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, 3, 2, 1]);
    mad[17] = 0x35;
    vm1.execute(&mut gsi, &SendRequest::send(Data::Inline(&mad)).to(&to));
    let refused = || {
        let shown = daemon.ask(&["vf", "show", "vm1"]);
        shown["mads"]["refused"].to_string()
    };
    wait_until("a refusal", || refused().contains("cluster"));
}

#[test]
fn a_vm_moves_with_its_lid_and_leaves_it_in_the_end() {
    let daemon = Daemon::configured(configuration(""));
    let vm2 = Peer::open(&daemon, "vm2");
    let before = lid(&daemon, "vm2");
    let moved = daemon.ask(&["vf", "migrate", "vm2", "--to", "hv3"]);
    assert_eq!(moved["lid"], before);
    let topology = daemon.ask(&["topology"]);
    let nodes = topology["nodes"].as_array().expect("a list").iter();
    let mut at = nodes.filter(|node| node["holds"] == "vm2");
    let spare = at.next().expect("a VF");
    assert_eq!(spare["lid"], before);
    let name = spare["name"].as_str().expect("a name").to_owned();
    drop(vm2);
    let (mut vm1, mut moved) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, &name));
    assert_eq!(moved.port.lid, 2);
    transfer(&mut vm1, &mut moved);
    drop(moved);
    wait_until("one VM", || {
        daemon.ask(&["sm", "status"])["extended_lids"]["vms"] == 1
    });
}

#[test]
fn one_switch_without_is_enough_for_ordinary_lids() {
    let daemon = Daemon::configured(configuration("extended_lids = false"));
    let (mut vm1, mut vm2) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    assert_eq!((vm1.port.lid, vm2.port.lid), (1, 2));
    for vm in ["vm1", "vm2"] {
        assert!((1..FIRST).contains(&lid(&daemon, vm)));
    }
    transfer(&mut vm1, &mut vm2);
    let extended = &daemon.ask(&["sm", "status"])["extended_lids"];
    assert_eq!(extended["vms"], 0);
    assert_eq!(extended["lacking"].as_array().expect("a list").len(), 1);
    let text = daemon.command().args(["sm", "status"]).output();
    let text = String::from_utf8(text.expect("runs").stdout).expect("is text");
    assert!(text.contains("LIDs of 18 bits: none: "), "{text}");
}
