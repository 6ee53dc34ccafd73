//! Two ports with one GUID, while Debian's opensm manages the subnet, or the embedded manager.

use crate::daemon::{Bystanders, Daemon, HALF, Peer, connected};
use crate::programs::Opensm;
use test_driver::{AddressVector, Data, SendRequest, Transport};
use testing::Configuration;

/// Sets entry 0 of the table of GUIDs of the port with this LID: what a subnet manager does to move
/// a VM, and what somebody from outside does by mistake.
fn set_guid(from: &mut Peer, lid: u16, guid: u64) {
    let mut mad = [0; 256];
    // SubnSet(GUIDInfo), LID-routed.
    mad[..4].copy_from_slice(&[1, 1, 1, 2]);
    mad[15] = 7;
    mad[17] = 0x14;
    mad[64..72].copy_from_slice(&guid.to_be_bytes());
    let mut qp = from.qp(Transport::Smi);
    qp.activate(0, 0).expect("becomes ready");
    qp.post_receive(&[from.sge(HALF, 40 + 256)])
        .expect("is posted");
    let to = AddressVector {
        lid,
        ..AddressVector::default()
    };
    qp.post_send(&SendRequest::send(Data::Inline(&mad)).to(&to))
        .expect("is posted");
    for _ in 0..2 {
        let entry = from.cq.wait().expect("a completion");
        assert!(entry.is_ok(), "{entry:?}");
    }
    let mut answer = [0; 256];
    from.buffer.read(HALF + 40, &mut answer);
    assert_eq!(answer[3..6], [0x81, 0, 0], "method, status");
    assert_eq!(answer[64..72], guid.to_be_bytes());
}

#[test]
fn a_guid_at_two_ports() {
    let daemon = Daemon::configured(
        Configuration::new()
            .set("sm.manager", "external")
            .hypervisor("hv1", [])
            .vf("vm1")
            .key("smp", "fabric")
            .vf("vm3")
            .vf("twin")
            .hypervisor("hv2", ["vm2", "vm4"]),
    );
    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    let shown = |name: &str| daemon.ask(&["vf", "show", name]);
    let others = Bystanders::start(&daemon);
    let (mut vm1, vm2) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    let text = |value: &serde_json::Value| value.as_str().expect("is text").to_owned();
    let taken = text(&shown("vm2")["port_guid"]);
    let number = |guid: &str| u64::from_str_radix(&guid.replace(':', ""), 16).expect("a GUID");
    let former = text(&shown("twin")["port_guid"]);
    let lid = shown("twin")["lid"].as_u64().expect("a LID") as u16;
    set_guid(&mut vm1, lid, number(&taken));
    // OpenSM finds it when the port is new to it, and says so. Traps of its first sweep may make it sweep once
    // more until now, so neither a trap nor the end of a sweep tells that it has seen the port go.
    daemon.ask(&["link", "down", "twin:1"]);
    opensm.says(&format!(
        "Removed port with GUID:0x{:016x}",
        number(&former)
    ));
    opensm.subnet_up();
    daemon.ask(&["link", "up", "twin:1"]);
    opensm.says(&format!("Duplicate Port GUID 0x{:x}", number(&taken)));
    opensm.subnet_up();
    // The one that came last is left out, and says why; nobody else notices.
    let (left_out, kept) = (shown("twin"), shown("vm2"));
    assert_eq!(
        (&left_out["state"], &kept["state"]),
        (&"Initialize".into(), &"Active".into())
    );
    assert_eq!(kept["lid"], u64::from(vm2.port.lid));
    let topology = daemon.ask(&["topology"]);
    let nodes = topology["nodes"].as_array().expect("a list");
    let reason = |name: &str| {
        let node = nodes.iter().find(|node| node["name"] == name);
        text(&node.expect("a node")["reason"])
    };
    assert!(
        reason("twin").ends_with("; vm2 has this GUID, too, and one of them needs another"),
        "{topology}"
    );
    assert!(
        reason("vm2").contains("; twin has this GUID, too"),
        "{topology}"
    );
    assert!(!reason("vm1").contains("GUID"), "{topology}");
    let (mut qa, _qb) = connected(Transport::Rc, &vm1, &vm2);
    vm1.fill(0, 100_000, 7);
    let sges = [vm1.sge(0, 100_000)];
    vm1.execute(
        &mut qa,
        &SendRequest::write(vm2.remote(HALF), Data::Memory(&sges)),
    );
    vm2.verify(HALF, 100_000, 7);
    others.stop();
}

/// The embedded manager puts things in order by itself.
#[test]
fn a_guid_at_two_ports_of_the_embedded_manager() {
    let daemon = Daemon::configured(
        Configuration::new()
            .hypervisor("hv1", [])
            .vf("vm1")
            .key("smp", "fabric")
            .vf("twin")
            .hypervisor("hv2", ["vm2"]),
    );
    let shown = |name: &str| daemon.ask(&["vf", "show", name]);
    let (before, taken) = (shown("twin"), shown("vm2"));
    let mut vm1 = Peer::open(&daemon, "vm1");
    let guid = taken["port_guid"]
        .as_str()
        .expect("is text")
        .replace(':', "");
    let guid = u64::from_str_radix(&guid, 16).expect("a GUID");
    let lid = before["lid"].as_u64().expect("a LID") as u16;
    set_guid(&mut vm1, lid, guid);
    assert_eq!(shown("twin")["port_guid"], taken["port_guid"]);
    let errors = daemon.ask(&["sm", "sweep"])["errors"].to_string();
    assert!(
        errors.contains("which another one has: it gets"),
        "{errors}"
    );
    let of = |shown: &serde_json::Value| (shown["port_guid"].clone(), shown["lid"].clone());
    assert_eq!(of(&shown("twin")), of(&before));
    assert_eq!(of(&shown("vm2")), of(&taken));
    let errors = &daemon.ask(&["sm", "sweep"])["errors"];
    assert_eq!(errors, &serde_json::json!([]));
}
