//! `ibvswitch vf migrate` of several VMs.

use crate::daemon::{Daemon, Outcome, Peer, connected, leaves};
use serde_json::{Value, json};
use test_driver::{Data, SendRequest, Transport};
use testing::Configuration;

/// At two leaves two hypervisors each, all of which have room for one more.
fn start() -> Daemon {
    let subnet = leaves()
        .hypervisor("hv1", ["vm1", "vm2"])
        .at("leaf1")
        .spare_vfs(1)
        .hypervisor("hv2", [])
        .at("leaf1")
        .spare_vfs(1)
        .hypervisor("hv3", ["vm3"])
        .at("leaf2")
        .spare_vfs(1)
        .hypervisor("hv4", [])
        .at("leaf2")
        .spare_vfs(1);
    Daemon::configured(subnet)
}

fn migrate(daemon: &Daemon, args: &[&str], input: &str) -> Outcome {
    daemon.run(&[&["vf", "migrate"], args].concat(), input)
}

/// Returns each VM with the VF that has its addresses.
fn holders(daemon: &Daemon) -> Vec<(String, String)> {
    let status = daemon.ask(&["status"]);
    let vfs = status["vfs"].as_array().expect("VFs").iter();
    let mut all: Vec<_> = vfs
        .filter_map(|vf| {
            let name = |key: &str| vf[key].as_str().map(str::to_owned);
            Some((name("holds")?, name("name").expect("a name")))
        })
        .collect();
    all.sort_unstable();
    all
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = |&(vm, vf): &(&str, &str)| (vm.to_owned(), vf.to_owned());
    all.iter().map(own).collect()
}

#[test]
fn those_that_can_move_at_the_same_time() {
    let daemon = start();
    let before: Vec<_> = ["vm1", "vm3"]
        .map(|name| Peer::open(&daemon, name))
        .iter()
        .map(|peer| (peer.port.lid, peer.port.port_guid))
        .collect();
    let output = migrate(
        &daemon,
        &["vm1=hv2", "vm2", "vm3=hv4", "--to", "hv2", "--json"],
        "",
    );
    assert_eq!(output.status, Some(1), "{}", output.err);
    let error = output.err;
    assert!(error.contains("1 of 3 VMs did not move"), "{error}");
    let report: Value = serde_json::from_str(&output.out).expect("is JSON");
    let moves = report["moves"].as_array().expect("moves");
    for (number, vm) in [(0, "vm1"), (2, "vm3")] {
        let moved = &moves[number];
        assert_eq!((&moved["vm"], &moved["round"]), (&vm.into(), &1.into()));
        assert_eq!(moved["waited"], Value::Null);
        assert_eq!(moved["switches"], json!({"sent": 1, "updated": 1}));
        assert_ne!(moved["transition"], Value::Null);
    }
    assert_eq!(moves[1]["outcome"], "failed");
    let error = moves[1]["error"].as_str().expect("text");
    assert!(
        error.starts_with("hv2 has 1 VF and none is free; "),
        "{error}"
    );
    assert_eq!(
        report["packets"]["switches"],
        json!({"sent": 2, "updated": 2})
    );
    assert_eq!(
        report["packets"]["vswitches"],
        json!({"sent": 4, "updated": 4})
    );
    let places = [("vm1", "hv2-spare1"), ("vm2", "vm2"), ("vm3", "hv4-spare1")];
    assert_eq!(holders(&daemon), pairs(&places));

    let mut peers = ["hv2-spare1", "hv4-spare1"].map(|name| Peer::open(&daemon, name));
    for (peer, before) in peers.iter().zip(before) {
        assert_eq!((peer.port.lid, peer.port.port_guid), before);
    }
    let [a, b] = &mut peers;
    let (mut qa, _qb) = connected(Transport::Rc, a, b);
    a.fill(0, 100, 8);
    let sges = [a.sge(0, 100)];
    let write = SendRequest::write(b.remote(crate::daemon::HALF), Data::Memory(&sges));
    a.execute(&mut qa, &write);
    b.verify(crate::daemon::HALF, 100, 8);
}

/// As people read it, and by a plan.
#[test]
fn a_plan() {
    let daemon = start();
    let plan = "vm1=hv2  # makes room\n\n# and takes it\nvm3=hv1 vm2=hv4\n";
    let output = migrate(&daemon, &["--plan", "-", "--every-switch"], plan);
    let out = output.out;
    assert_eq!(output.status, Some(0), "{}", output.err);
    let lines: Vec<Vec<&str>> = out
        .lines()
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|word| !word.is_empty())
                .collect()
        })
        .collect();
    assert_eq!(
        lines[0],
        [
            "ROUND",
            "VM",
            "FROM",
            "TO",
            "LID",
            "VFS",
            "DROPS",
            "VSWITCHES",
            "SWITCHES"
        ]
    );
    assert_eq!(
        lines[1][..4],
        ["1", "vm1", "hv1 (vm1)", "hv2 (hv2-spare1)"],
        "{out}"
    );
    assert_eq!(
        lines[2][..4],
        ["2", "vm3", "hv3 (vm3)", "hv1 (vm1)"],
        "{out}"
    );
    assert_eq!(
        lines[3][..4],
        ["3", "vm2", "hv1 (vm2)", "hv4 (hv4-spare1)"],
        "{out}"
    );
    assert_eq!(lines[4][0], "all");
    assert!(
        out.contains("\nvm3 waited for switch hv1, which the move of vm1 changes\n"),
        "{out}"
    );
    assert!(
        out.contains("\ndeadlock in round 1: possible while tables changed"),
        "{out}"
    );
    let places = [("vm1", "hv2-spare1"), ("vm2", "hv4-spare1"), ("vm3", "vm1")];
    assert_eq!(holders(&daemon), pairs(&places));
}

#[test]
fn places_for_each_other() {
    let daemon = Daemon::configured(
        Configuration::new()
            .hypervisor("hv1", ["vm1"])
            .hypervisor("hv2", ["vm2"])
            .hypervisor("hv3", ["vm3"])
            .spare_vfs(1),
    );
    let before = holders(&daemon);
    let output = migrate(&daemon, &["vm1=hv2", "vm2=hv1"], "");
    assert_eq!(output.status, Some(1));
    let out = output.out;
    for (vm, other) in [("vm1", "vm2"), ("vm2", "vm1")] {
        let start = format!(
            "{vm} to {}: there is room for it only where `{other}` is, and `{other}` needs a place that one of \
             these VMs has; move one of these VMs to a hypervisor with a free VF first and then the others, or \
             give one of the hypervisors a spare VF (`spare_vfs`), which takes a restart of the daemon\n",
            other.replace("vm", "hv")
        );
        assert!(out.contains(&start), "{out}");
    }
    assert_eq!(holders(&daemon), before);
    // With room elsewhere for one of them, both go.
    let output = migrate(&daemon, &["vm1=hv2", "vm2=hv3", "vm3=hv1", "--json"], "");
    assert_eq!(output.status, Some(0), "{}", output.err);
    let report: Value = serde_json::from_str(&output.out).expect("is JSON");
    let moves = report["moves"].as_array().expect("moves").iter();
    let waited: Vec<_> = moves
        .map(|moved| (moved["round"].clone(), moved["waited"]["for"].clone()))
        .collect();
    assert_eq!(
        waited,
        [
            (2.into(), "place".into()),
            (1.into(), Value::Null),
            (3.into(), "switch".into())
        ]
    );
    let places = [("vm1", "vm2"), ("vm2", "hv3-spare1"), ("vm3", "vm1")];
    assert_eq!(holders(&daemon), pairs(&places));
}

/// The error names a place of the VM's own kind.
#[test]
fn without_room_it_says_what_to_do() {
    let daemon = Daemon::configured(
        Configuration::new()
            .hypervisor("hv1", ["vm1"])
            .port("net1", 1)
            .hypervisor("hv2", ["vm2"])
            .hypervisor("hv3", [])
            .port("net3", 3),
    );
    let restart = "which takes a restart of the daemon";
    for (vm, to, expected) in [
        (
            "vm1",
            "hv2",
            "hv2 has 1 VF and none is free; move a VM away from it, name another hypervisor, or give this one a \
             spare VF (`spare_vfs`)",
        ),
        (
            "vm1",
            "hv3",
            "hv3 has no VF with a LID of its own; name another hypervisor, or give this one a spare VF \
             (`spare_vfs`)",
        ),
        (
            "net1",
            "hv3",
            "hv3 has 1 port and none is free; move a VM away from it, name another hypervisor, or give this one a \
             spare port (`spare_ports`)",
        ),
        (
            "net1",
            "hv2",
            "hv2 has no port; name another hypervisor, or give this one a spare port (`spare_ports`)",
        ),
    ] {
        let refused = migrate(&daemon, &[vm, "--to", to], "");
        assert_eq!(refused.status, Some(1), "{}", refused.out);
        let expected = format!("{expected}, {restart}\n");
        assert!(refused.err.ends_with(&expected), "{}", refused.err);
    }
    let exchange = migrate(&daemon, &["net1=hv3", "net3=hv1"], "");
    assert_eq!(exchange.status, Some(1));
    let full = "net3 to hv1: hv1 has 1 port and none is free; ";
    assert!(exchange.out.contains(full), "{}", exchange.out);
}

/// A link that loses everything stops whom it concerns.
#[test]
fn one_of_a_round_is_interrupted() {
    let daemon = start();
    daemon.ask(&["link", "drop", "hv3:1", "100"]);
    let output = migrate(&daemon, &["vm3=hv4", "vm1=hv2", "--json"], "");
    assert_eq!(output.status, Some(1));
    let report: Value = serde_json::from_str(&output.out).expect("is JSON");
    let (failed, moved) = (&report["moves"][0], &report["moves"][1]);
    assert_eq!(
        (&failed["outcome"], &failed["round"]),
        (&"failed".into(), &1.into())
    );
    let error = failed["error"].as_str().expect("text");
    assert!(error.starts_with("interrupted: "), "{error}");
    assert_eq!(
        (&moved["outcome"], &moved["round"]),
        (&"moved".into(), &1.into())
    );
    // The link is sound again, and nothing is left of it.
    daemon.ask(&["link", "drop", "hv3:1", "0"]);
    daemon.ask(&["sm", "sweep"]);
    let places = [("vm1", "hv2-spare1"), ("vm2", "vm2"), ("vm3", "vm3")];
    assert_eq!(holders(&daemon), pairs(&places));
    let output = migrate(&daemon, &["vm3=hv4", "vm1=hv1"], "");
    assert_eq!(output.status, Some(0), "{}", output.err);
}

/// Mistakes are told before anything is sent.
#[test]
fn mistakes() {
    let daemon = start();
    let before = holders(&daemon);
    for (args, plan, status, message) in [
        (
            &["vm1=hv2", "vm9=hv4"][..],
            "",
            5,
            "there is no VM `vm9`; there are vm1, vm2, vm3",
        ),
        (
            &["vm1=hv2", "vm3=hv9"],
            "",
            5,
            "there is no hypervisor with VFs `hv9`",
        ),
        (
            &["vm1=hv2", "vm1=hv4"],
            "",
            1,
            "`vm1` is to move twice; name each VM once",
        ),
        (
            &["vm1", "vm3=hv4"],
            "",
            2,
            "`vm1` has no destination; write `vm1=HYPERVISOR`, or add --to",
        ),
        (
            &["vm1=hv2", "vm3=hv4", "--vf", "hv2-spare1"],
            "",
            2,
            "--vf names the place of one VM, and 2 are to move",
        ),
        (
            &["vm1=", "vm3=hv4"],
            "",
            2,
            "error: `vm1=` is no move; write VM=HYPERVISOR\n\nUsage: ibvswitch vf migrate ",
        ),
        (
            &["--plan", "-"],
            "# nothing\n",
            1,
            "ibvswitch: standard input: the plan has no moves; write moves such as vm1=hv2\n",
        ),
        (
            &["--plan", "-"],
            "vm1=hv2\n\n  vm3=hv1 =hv4\n",
            1,
            "ibvswitch: standard input:3: `=hv4` is no move; write VM=HYPERVISOR\n",
        ),
        (
            &["vm1=hv2", "--plan", "-"],
            "# vm1\nvm3\n",
            1,
            "ibvswitch: standard input:2: `vm3` has no destination; write `vm3=HYPERVISOR`, or add --to \
             HYPERVISOR\n",
        ),
        (
            &["--plan", "/nonexistent"],
            "",
            1,
            "ibvswitch: /nonexistent: the plan cannot be read: No such file or directory (os error 2); \
             name a readable file with --plan\n",
        ),
        (&[], "", 2, "required"),
    ] {
        let output = migrate(&daemon, args, plan);
        let error = output.err;
        assert_eq!(output.status, Some(status), "{args:?}: {error}");
        assert!(error.contains(message), "{args:?}: {error}");
        assert_eq!(output.out, "");
    }
    assert_eq!(holders(&daemon), before);
}
