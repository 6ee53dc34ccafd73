//! `ibvswitch vf migrate`: a VM's addresses move from one VF to another.

use crate::daemon::{Daemon, Outcome, Peer, connected, leaves};
use serde_json::Value;
use test_driver::{SendRequest, Transport};
use testing::Configuration;

fn subnet() -> Configuration {
    Configuration::new()
        .set("partitions.shop", 0x0010)
        .hypervisor("hv1", [])
        .spare_vfs(1)
        .vf("vm1")
        .key("pkeys", ["shop", "default"])
        .key("smp", "deny")
        .key("node_guid", "00:02:c9:03:00:00:01:00")
        .hypervisor("hv2", [])
        .spare_vfs(2)
        .vf("vm2")
        .key("pkeys", ["shop"])
        .hypervisor("hv3", [])
}

fn run(daemon: &Daemon, args: &[&str]) -> Outcome {
    daemon.run(args, "")
}

fn json(daemon: &Daemon, args: &[&str]) -> Value {
    let outcome = run(daemon, args);
    assert_eq!(outcome.status, Some(0), "{}", outcome.err);
    serde_json::from_str(&outcome.out).expect("is JSON")
}

/// Returns the addresses that a guest sees.
fn addresses(peer: &Peer) -> (u16, u64, u64, [u8; 16], [u16; 3]) {
    let port = peer.device.port().expect("is answered");
    let gid = peer.device.gid(0).expect("is answered");
    let pkeys = [0, 1, 2].map(|index| peer.device.pkey(index).expect("is answered"));
    (port.lid, port.port_guid, port.node_guid, gid, pkeys)
}

#[test]
fn a_vm_finds_its_addresses_at_the_destination() {
    let daemon = Daemon::configured(subnet());
    let (mut vm1, vm2) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    let before = addresses(&vm1);
    assert_eq!(before.4, [0x8010, 0xffff, 0]);
    assert_eq!(before.2, 0x0002_c903_0000_0100, "not the port's");
    let show = run(&daemon, &["vf", "show", "vm1"]);
    let shown = "Node GUID: 0002:c903:0000:0100\n";
    assert!(show.out.contains(shown), "{}", show.out);
    // The VM that is to be received is started first, on the second of the spare VFs.
    let waiting = Peer::open(&daemon, "hv2-spare2");
    assert_ne!(addresses(&waiting), before);

    let transfer = |from: &mut Peer, to: &Peer| {
        let (mut qa, _qb) = connected(Transport::Rc, from, to);
        from.fill(0, 4000, 5);
        let sges = [from.sge(0, 4000)];
        let write = SendRequest::write(
            to.remote(crate::daemon::HALF),
            test_driver::Data::Memory(&sges),
        );
        from.execute(&mut qa, &write);
        to.verify(crate::daemon::HALF, 4000, 5);
    };
    transfer(&mut vm1, &vm2);

    let moved = json(&daemon, &["vf", "migrate", "vm1", "--to", "hv2", "--json"]);
    assert_eq!(moved["lid"], before.0);
    assert_eq!(
        (&moved["from"]["vf"], &moved["from"]["hypervisor"]),
        (&"vm1".into(), &"hv1".into())
    );
    assert_eq!(moved["to"]["vf"], "hv2-spare2", "where somebody waits");
    assert_eq!(moved["method"], "swap");
    // One switch between the hypervisors, one block.
    assert_eq!(
        moved["switches"],
        serde_json::json!({"sent": 1, "updated": 1})
    );
    assert_eq!(
        moved["vswitches"],
        serde_json::json!({"sent": 2, "updated": 2})
    );
    assert_eq!(moved["per_switch"].as_array().map(Vec::len), Some(3));

    assert_eq!(addresses(&waiting), before);
    assert_ne!(addresses(&vm1), before);
    let mut vm1 = Peer::new(waiting.device);
    assert_eq!(vm1.port.lid, before.0);
    transfer(&mut vm1, &vm2);

    let status = json(&daemon, &["status", "--json"]);
    let holds: Vec<_> = status["vfs"]
        .as_array()
        .expect("VFs")
        .iter()
        .map(|vf| &vf["holds"])
        .collect();
    let expected = serde_json::json!([null, null, "vm2", null, "vm1"]);
    assert_eq!(Value::from_iter(holds.into_iter().cloned()), expected);
    let show = run(&daemon, &["vf", "show", "hv2-spare2"]);
    assert!(show.out.contains("Addresses of: vm1"), "{}", show.out);

    // What its guest may do has come along.
    let mut get = [0; 256];
    get[..4].copy_from_slice(&[1, 0x81, 1, 1]);
    get[16..18].copy_from_slice(&0x0011_u16.to_be_bytes());
    let answer = vm1.device.mad_ifc(&get).expect("is answered");
    assert_eq!(
        u16::from_be_bytes([answer[4], answer[5]]) & 0x7fff,
        3 << 2,
        "denied"
    );

    // And back, as people read it.
    let back = run(
        &daemon,
        &["vf", "migrate", "vm1", "--to", "hv1", "--drop-first"],
    );
    assert_eq!(back.status, Some(0), "{}", back.err);
    let lines: Vec<&str> = back.out.lines().collect();
    assert!(
        lines[0].starts_with("vm1 moved from hv2 (hv2-spare2) to hv1 ("),
        "{}",
        back.out
    );
    assert!(
        lines[1].starts_with(&format!("    LID {} (0x", before.0)),
        "{}",
        back.out
    );
    assert!(
        back.out
            .contains("to switches, to drop first     3         3"),
        "{}",
        back.out
    );
}

#[test]
fn what_cannot_be_moved() {
    let daemon = Daemon::configured(subnet());
    for (args, status, message) in [
        (
            &["vm9", "--to", "hv2"][..],
            5,
            "there is no VM `vm9`; there are vm1, vm2",
        ),
        (
            &["hv1-spare1", "--to", "hv2"],
            1,
            "`hv1-spare1` is a spare VF and no VM; name a VM",
        ),
        (
            &["vm1", "--to", "hv9"],
            5,
            "there is no hypervisor with VFs `hv9`; there are hv1, hv2",
        ),
        (&["vm1", "--to", "hv1"], 1, "the VM is there already"),
        (
            &["vm1", "--to", "hv2", "--vf", "vm2"],
            1,
            "the VF `vm2` has the addresses of `vm2`; name a free one, or leave it out",
        ),
        (
            &["vm1", "--to", "hv2", "--vf", "hv1-spare1"],
            1,
            "the VF `hv1-spare1` is on hv1; name one of the destination, or leave it out",
        ),
        (
            &[
                "vm1",
                "--to",
                "hv2",
                "--method",
                "copy",
                "--vf",
                "hv2-spare1",
            ],
            1,
            "has a LID of its own; use the method swap",
        ),
    ] {
        let outcome = run(&daemon, &[&["vf", "migrate"], args].concat());
        assert_eq!(outcome.status, Some(status), "{args:?}: {}", outcome.err);
        assert!(outcome.err.contains(message), "{args:?}: {}", outcome.err);
        assert_eq!(outcome.out, "");
    }
    // A hypervisor that is full.
    run(&daemon, &["vf", "migrate", "vm2", "--to", "hv1"]);
    let full = run(&daemon, &["vf", "migrate", "vm1", "--to", "hv2"]);
    assert_eq!(full.status, Some(0), "{}", full.err);
    let back = run(&daemon, &["vf", "migrate", "vm1", "--to", "hv1"]);
    assert_eq!(back.status, Some(0), "{}", back.err);
}

/// LIDs come and go with VMMs, and move with VMs.
#[test]
fn dynamic_lids() {
    let daemon = Daemon::configured(subnet().set("fabric.model", "vswitch-dynamic"));
    let lids = || -> Vec<u64> {
        let status = json(&daemon, &["status", "--json"]);
        let vfs = status["vfs"].as_array().expect("VFs").iter();
        vfs.map(|vf| vf["lid"].as_u64().expect("a number"))
            .collect()
    };
    assert_eq!(lids(), [0; 5]);
    let open = |name: &str| {
        let peer = Peer::open(&daemon, name);
        // The port is Active from the start; a LID makes the VM one that can be talked to.
        while peer.device.port().expect("is answered").lid == 0 {
            peer.device.wait_event().expect("an event of the port");
        }
        Peer::new(peer.device)
    };
    let (vm1, vm2) = (open("vm1"), open("vm2"));
    let first = u64::from(vm1.port.lid);
    assert_eq!(lids(), [first, 0, first + 1, 0, 0]);
    let topology = json(&daemon, &["topology", "--json"]);
    let reason = |name: &str| {
        let mut nodes = topology["nodes"].as_array().expect("nodes").iter();
        nodes.find(|node| node["name"] == name).expect("is there")["reason"].clone()
    };
    assert_eq!(reason("vm1"), "chosen when the VM started");
    assert_eq!(reason("hv1-spare1"), "no VM runs here");

    let moved = json(&daemon, &["vf", "migrate", "vm1", "--to", "hv2", "--json"]);
    assert_eq!(
        (&moved["method"], &moved["lid"]),
        (&"copy".into(), &first.into())
    );
    assert_eq!(lids(), [0, 0, first + 1, first, 0]);
    let waiting = open("hv2-spare1");
    assert_eq!(u64::from(waiting.port.lid), first, "not another one");
    // The VMM at the source goes, and nothing changes.
    drop(vm1);
    let (mut a, b) = (waiting, vm2);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    a.fill(0, 100, 6);
    let sges = [a.sge(0, 100)];
    let write = SendRequest::write(
        b.remote(crate::daemon::HALF),
        test_driver::Data::Memory(&sges),
    );
    a.execute(&mut qa, &write);
    b.verify(crate::daemon::HALF, 100, 6);
    assert_eq!(lids(), [0, 0, first + 1, first, 0]);
    let again = run(&daemon, &["vf", "migrate", "vm9", "--to", "hv2"]);
    assert_eq!(again.status, Some(5));
}

/// From one leaf switch to another, and within one.
#[test]
fn between_leaves() {
    let daemon = Daemon::configured(
        leaves()
            .hypervisor("hv1", ["vm1"])
            .at("leaf1")
            .hypervisor("hv2", [])
            .at("leaf1")
            .spare_vfs(1)
            .hypervisor("hv3", ["vm2"])
            .at("leaf2")
            .spare_vfs(1),
    );
    let switches = |to: &str| -> Vec<String> {
        let moved = json(&daemon, &["vf", "migrate", "vm1", "--to", to, "--json"]);
        assert_eq!(moved["to"]["hypervisor"], to);
        let each = moved["per_switch"].as_array().expect("switches").iter();
        let mut names: Vec<String> = each
            .map(|switch| switch["name"].as_str().expect("a name").to_owned())
            .collect();
        names.sort_unstable();
        names
    };
    assert_eq!(switches("hv2"), ["hv1", "hv2", "leaf1"]);
    assert_eq!(switches("hv3"), ["hv2", "hv3", "leaf1", "leaf2", "spine"]);
    let (mut a, b) = (
        Peer::open(&daemon, "vm2"),
        Peer::open(&daemon, "hv3-spare1"),
    );
    a.write_to(&b);
}
