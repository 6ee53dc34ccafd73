//! `ibvswitch vf migrate` on a subnet that Debian's opensm manages.

use crate::daemon::{Daemon, Outcome, Peer};
use crate::programs::{Opensm, Programs};
use testing::Configuration;

fn nodes() -> Configuration {
    Configuration::new()
        .set("sm.manager", "external")
        .switches(["leaf1", "leaf2"])
        .link("leaf1", "leaf2")
        .hypervisor("hv1", ["vm1"])
        .at("leaf1")
        .spare_vfs(1)
        .hypervisor("hv2", ["vm2"])
        .at("leaf2")
        .spare_vfs(1)
        .hypervisor("hv3", ["vm3"])
        .at("leaf2")
}

/// The adapters with GUIDs and names, as `ibnetdiscover` finds them.
fn discovered(programs: &Programs<'_>) -> Vec<String> {
    let text = programs.run(&["ibnetdiscover", "-l"]);
    let adapters = text.lines().filter(|line| line.starts_with("Ca"));
    let mut adapters: Vec<String> = adapters.map(str::to_owned).collect();
    adapters.sort_unstable();
    adapters
}

fn migrate(daemon: &Daemon, args: &[&str]) -> (Option<i32>, String, String) {
    let Outcome { status, out, err } = daemon.run(&[&["vf", "migrate"], args].concat(), "");
    (status, out, err)
}

#[test]
fn opensm_finds_a_vm_at_its_new_place() {
    let daemon = Daemon::configured(nodes());
    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    let programs = Programs::new(&daemon);
    let [vm1, mut vm3] = ["vm1", "vm3"].map(|name| Peer::open(&daemon, name));
    let before = (vm1.port.lid, vm1.port.port_guid, vm1.gid());
    let nodes = discovered(&programs);
    vm3.write_to(&vm1);

    let moved = daemon.ask(&["vf", "migrate", "vm1", "--to", "hv2"]);
    assert_eq!(moved["lid"], before.0, "opensm remembers it");
    assert_eq!(moved.get("former_lid"), None);
    assert_eq!(moved.get("method"), None);
    assert!(moved["active_after_ms"].is_u64(), "{moved}");
    assert_eq!(moved["to"]["vf"], "hv2-spare1");
    let there = Peer::open(&daemon, "hv2-spare1");
    let after = (there.port.lid, there.port.port_guid, there.gid());
    assert_eq!(after, before);
    vm3.write_to(&there);
    // Nobody got lost: the same nodes, at other places.
    assert_eq!(discovered(&programs), nodes);
    let trace = programs.run(&[
        "ibtracert",
        &vm3.port.lid.to_string(),
        &before.0.to_string(),
    ]);
    assert!(trace.contains("hv2") && !trace.contains("leaf1"), "{trace}");

    // Back, and another one to where it was, and on.
    let (status, out, err) = migrate(&daemon, &["vm1=hv1", "vm2=hv1", "vm3=hv1"]);
    assert_eq!(status, Some(1), "{out}{err}");
    assert!(
        out.contains("vm3 to hv1: hv1 has 2 VFs and none is free"),
        "{out}"
    );
    let (status, out, err) = migrate(&daemon, &["vm2", "--to", "hv2"]);
    assert_eq!(status, Some(0), "{err}");
    assert!(
        out.contains(", by the subnet's manager\n") && !out.contains("packets"),
        "{out}"
    );
    // A VF has one VMM.
    drop((vm1, vm3, there));
    for (from, to) in [("vm1", "vm2"), ("vm2", "vm3"), ("vm3", "vm1")] {
        let place = |vm: &str| {
            let status = daemon.ask(&["status"]);
            let vfs = status["vfs"].as_array().expect("VFs").iter();
            let mut held = vfs.filter(|vf| vf["holds"] == vm);
            let name = held.next().expect("is there")["name"].clone();
            Peer::open(&daemon, name.as_str().expect("text"))
        };
        place(from).write_to(&place(to));
    }
    assert_eq!(discovered(&programs), nodes);
}

#[test]
fn without_a_manager_it_says_where_the_vm_is() {
    let daemon = Daemon::configured(nodes());
    let (status, out, err) = migrate(&daemon, &["vm1", "--to", "hv2", "--wait", "1"]);
    assert_eq!((status, out.as_str()), (Some(1), ""));
    let message = "the VM's addresses are at `hv2-spare1`, whose port is Initialize: no subnet manager \
                   has made it Active within 1s. Start one, or have it sweep; to have the VM where it \
                   was, migrate it back";
    assert!(err.contains(message), "{err}");
    let (status, _, err) = migrate(&daemon, &["vm1", "--to", "hv1", "--drop-first"]);
    assert_eq!(status, Some(1));
    assert!(
        err.contains("another subnet manager changes the forwarding tables"),
        "{err}"
    );
    let (_, _, err) = migrate(&daemon, &["vm1", "--to", "hv2"]);
    assert!(err.contains("the VM is there already"), "{err}");
    let (_, _, err) = migrate(&daemon, &["vm1", "--to", "hv3"]);
    assert!(
        err.contains("hv3 has 1 VF and none is free; move a"),
        "{err}"
    );
    let (_, _, err) = migrate(&daemon, &["vm1", "--to", "hv2", "--vf", "vm2"]);
    assert!(
        err.contains("the VF `vm2` has the addresses of `vm2`"),
        "{err}"
    );
    // Whoever comes later finds it there.
    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    let status = daemon.ask(&["status"]);
    let vfs = status["vfs"].as_array().expect("VFs").iter();
    let mut held = vfs.filter(|vf| vf["holds"] == "vm1");
    let vf = held.next().expect("is there");
    assert_eq!(
        (&vf["name"], &vf["state"]),
        (&"hv2-spare1".into(), &"Active".into())
    );
}
