//! `ibvswitch vf migrate` on a subnet that Debian's opensm manages, and as its programs see the embedded manager's.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::daemon::{Daemon, Outcome, Peer};
use crate::programs::{Opensm, Programs};
use crate::tools::{lids, routes, trace};
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

const SWITCHES: [&str; 9] = [
    "leaf1", "leaf2", "leaf3", "spine1", "spine2", "hv1", "hv2", "hv3", "hv4",
];

/// Tables of all switches, as `ibroute` prints them.
fn tables(daemon: &Daemon, programs: &Programs<'_>) -> BTreeMap<&'static str, HashMap<u16, u8>> {
    let lids = lids(daemon);
    let table = |name: &'static str| (name, routes(programs, lids[name]));
    SWITCHES.into_iter().map(table).collect()
}

/// The embedded manager changes the fewest switches of a fat-tree when a VM moves and when a cable is lost, as `ibroute`
/// sees it; `ibtracert` finds every way all the while.
#[test]
fn the_fewest_switches_change() {
    let mut tree = Configuration::new()
        .set("sm.routing", "ftree")
        .set("sm.switch", "leaf3")
        .switches(["leaf1", "leaf2", "leaf3", "spine1", "spine2"]);
    for leaf in ["leaf1", "leaf2", "leaf3"] {
        tree = tree.link(leaf, "spine1").link(leaf, "spine2");
    }
    for (hypervisor, vm, leaf) in [
        ("hv1", "vm1", "leaf1"),
        ("hv2", "vm2", "leaf2"),
        ("hv3", "vm3", "leaf3"),
        ("hv4", "vm4", "leaf1"),
    ] {
        tree = tree.hypervisor(hypervisor, [vm]).at(leaf).spare_vfs(1);
    }
    let daemon = Daemon::configured(tree);
    let programs = Programs::new(&daemon);
    let status = daemon.ask(&["sm", "status"]);
    assert_eq!(status["routed_by"], "ftree", "{status}");
    let vms = |daemon: &Daemon| -> Vec<u16> {
        let status = daemon.ask(&["status"]);
        let vfs = status["vfs"].as_array().expect("VFs").iter();
        let held = vfs.filter(|vf| vf["holds"].is_string());
        held.map(|vf| vf["lid"].as_u64().expect("a LID") as u16)
            .collect()
    };
    let all = vms(&daemon);
    assert!(all.len() >= 4);
    let all_reach_each_other = || {
        for &from in &all {
            for &to in all.iter().filter(|&&to| to != from) {
                trace(&programs, from, to);
            }
        }
    };
    let changed =
        |before: &BTreeMap<_, _>, after: &BTreeMap<&'static str, _>| -> BTreeSet<String> {
            let names = SWITCHES
                .into_iter()
                .filter(|name| before[name] != after[name]);
            names.map(str::to_owned).collect()
        };

    let before = tables(&daemon, &programs);
    let moved = daemon.ask(&["vf", "migrate", "vm1", "--to", "hv4"]);
    assert_eq!(moved.get("not_fewest"), None, "{moved}");
    let after = tables(&daemon, &programs);
    let told = moved["per_switch"].as_array().expect("switches").iter();
    let told: BTreeSet<String> = told
        .map(|each| each["name"].as_str().expect("text").to_owned())
        .collect();
    assert_eq!(changed(&before, &after), told);
    assert_eq!(told, ["hv1", "hv4", "leaf1"].map(str::to_owned).into());
    all_reach_each_other();
    let full = daemon.ask(&["vf", "migrate", "vm2", "--to", "hv3", "--method", "full"]);
    assert_eq!(
        full["not_fewest"],
        "the method full computes all paths anew"
    );
    all_reach_each_other();

    let before = tables(&daemon, &programs);
    // A cable up from the leaf of two VMs.
    let lids = lids(&daemon);
    let way = trace(&programs, lids["hv1"], lids["hv3"]);
    let (leaf, port) = way[1];
    assert_eq!(leaf, lids["leaf1"]);
    let cable = format!("leaf1:{port}");
    daemon.ask(&["link", "down", &cable]);
    daemon.ask(&["sm", "sweep"]);
    let less = tables(&daemon, &programs);
    all_reach_each_other();
    let differs = |(&name, table): (&&'static str, &HashMap<u16, u8>)| {
        let entries = table
            .iter()
            .filter(|(lid, out)| less[name].get(lid) != Some(out));
        entries.count()
    };
    // By this cable, at the leaf; and to the LIDs below it that came by its spine, elsewhere.
    let at_leaf = before["leaf1"].values().filter(|&&out| out == port).count();
    assert_eq!(differs((&"leaf1", &before["leaf1"])), at_leaf);
    let every: usize = before.iter().map(differs).sum();
    let entries: usize = before.values().map(HashMap::len).sum();
    println!("{every} of {entries} entries have changed");
    assert!(at_leaf > 0 && every < entries / 4);
    daemon.ask(&["link", "up", &cable]);
    daemon.ask(&["sm", "sweep"]);
    assert_eq!(tables(&daemon, &programs), before);
    all_reach_each_other();
}
