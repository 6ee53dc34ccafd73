//! `ibvswitch sm`: the embedded subnet manager, its partitions and what it remembers.

use std::fs;
use std::path::Path;

use crate::daemon::Daemon;
use serde_json::{Value, json};
use testing::Configuration;

fn configuration(state: &Path) -> Configuration {
    let state = state.display();
    Configuration::new()
        .set("sm.priority", 3)
        .set("sm.routing", "updn")
        .set("sm.enforce_partitions", true)
        .set("sm.partitions_file", format!("{state}/partitions.conf"))
        .set("sm.state_dir", format!("{state}/memory"))
        .hypervisor("hv1", ["vm1"])
        .vf("vm2")
        .key("pkeys", [0x8007])
        .hypervisor("hv2", ["vm3"])
}

fn pkeys(daemon: &Daemon, vf: &str) -> Value {
    daemon.ask(&["vf", "show", vf])["pkeys"].clone()
}

/// Runs the program; its exit status and what it says on standard error.
fn fails(daemon: &Daemon, arguments: &[&str]) -> (Option<i32>, String) {
    let output = daemon.command().args(arguments).output().expect("it runs");
    let text = String::from_utf8(output.stderr).expect("is text");
    (output.status.code(), text)
}

#[test]
fn partitions_are_read_again() {
    let state = tempfile::tempdir().expect("a directory");
    let file = state.path().join("partitions.conf");
    let write = |text: &str| fs::write(&file, text).expect("is written");
    write("Default : ALL=full ;\nblue = 0x10, ipoib : vm1=full, vm3 ;\n");
    let daemon = Daemon::configured(configuration(state.path()));
    assert_eq!(pkeys(&daemon, "vm1"), json!(["0xffff", "0x8010"]));
    assert_eq!(pkeys(&daemon, "vm2"), json!(["0x8007"]), "its own");
    assert_eq!(pkeys(&daemon, "vm3"), json!(["0xffff", "0x0010"]));
    let status = daemon.ask(&["sm", "status"]);
    assert_eq!(status["state"], "Master");
    assert_eq!(status["priority"], 3);
    assert_eq!(status["routing"], "updn");
    assert_eq!(status["errors"], json!([]));
    assert_eq!(
        status["partitions"],
        json!([{"name": "Default", "pkey": "0xffff"}, {"name": "blue", "pkey": "0x8010"}])
    );
    assert_eq!(status["adapters"], 4);

    write("Default : ALL=full ;\nred = 0x20 : ALL_CAS=full ;\n");
    let status = daemon.ask(&["sm", "reload"]);
    assert_eq!(status["sweeps"], 2);
    assert_eq!(pkeys(&daemon, "vm1"), json!(["0xffff", "0x8020"]));
    assert_eq!(pkeys(&daemon, "vm3"), json!(["0xffff", "0x8020"]));

    // A GUID that no port has.
    write("Default : ALL=full ;\nred = 0x20 : ALL_CAS=full, 0x999 ;\n");
    let (status, message) = fails(&daemon, &["sm", "reload"]);
    let warning = format!(
        "{}:2: no port has the GUID 0x0000000000000999; ",
        file.display()
    );
    assert_eq!(status, Some(0));
    assert!(
        message.starts_with(&format!("ibvswitch: warning: {warning}")),
        "{message}"
    );
    let warns = || {
        let warnings = daemon.ask(&["status"])["warnings"].clone();
        let warnings = warnings.as_array().cloned().unwrap_or_default();
        let texts = warnings.iter().filter_map(|it| it.as_str());
        texts.filter(|it| it.starts_with(&warning)).count()
    };
    assert_eq!(warns(), 1);
    write("Default : ALL=full ;\nred = 0x20 : ALL_CAS=full ;\n");
    daemon.ask(&["sm", "reload"]);
    assert_eq!(warns(), 0);

    // A file with mistakes changes nothing.
    write("Default : ALL=full ;\nred = 0x20 : vm9 ;\n");
    let (status, message) = fails(&daemon, &["sm", "reload"]);
    assert_eq!(status, Some(1));
    let expected = format!(
        "ibvswitch: the daemon refused: {}:2: vm9 is no port; write a port GUID such as \
         0x0002c90300000101, a VF's name, ALL, ALL_CAS, ALL_SWITCHES or SELF; there are vm1, vm2, vm3; nothing \
         changes\n",
        file.display()
    );
    assert_eq!(message, expected);
    assert_eq!(pkeys(&daemon, "vm1"), json!(["0xffff", "0x8020"]));

    let before = daemon.ask(&["sm", "status"]);
    let after = daemon.ask(&["sm", "sweep"]);
    assert_eq!(before["sweeps"], 4);
    assert_eq!(after["sweeps"], 5);
    assert_eq!(after["sets"], 0, "nothing has changed");
    let text = daemon.command().args(["sm", "status"]).output();
    let text = String::from_utf8(text.expect("it runs").stdout).expect("is text");
    assert!(
        text.starts_with("subnet manager: Master, priority 3, LID 1 (0x0001), GUID "),
        "{text}"
    );
}

/// Every node has a key of its own, and the manager still finds and sets all of them.
#[test]
fn management_keys() {
    let daemon = Daemon::configured(
        Configuration::new()
            .set("sm.m_key", "per-node")
            .hypervisor("hv1", [])
            .vf("vm1")
            .key("smp", "fabric")
            .vf("vm2"),
    );
    let status = daemon.ask(&["sm", "status"]);
    assert_eq!(status["errors"], json!([]));
    for vf in ["vm1", "vm2"] {
        assert_eq!(daemon.ask(&["vf", "show", vf])["state"], "Active");
    }
    let again = daemon.ask(&["sm", "sweep"]);
    assert_eq!(again["errors"], json!([]));
    assert_eq!(again["sets"], 0);
    let link = daemon.command().args(["link", "down", "vm2:1"]).output();
    assert!(link.expect("it runs").status.success());
    let link = daemon.command().args(["link", "up", "vm2:1"]).output();
    assert!(link.expect("it runs").status.success());
    daemon.ask(&["sm", "sweep"]);
    assert_eq!(daemon.ask(&["vf", "show", "vm2"])["state"], "Active");
}

#[test]
fn lids_are_remembered() {
    let state = tempfile::tempdir().expect("a directory");
    fs::write(state.path().join("partitions.conf"), "").expect("is written");
    let memory = state.path().join("memory");
    // As OpenSM writes it.
    fs::create_dir(&memory).expect("a directory");
    let lids = |daemon: &Daemon| {
        ["vm1", "vm2", "vm3"].map(|vf| {
            let shown = daemon.ask(&["vf", "show", vf]);
            (shown["port_guid"].clone(), shown["lid"].clone())
        })
    };
    let daemon = Daemon::configured(configuration(state.path()));
    let fresh = lids(&daemon);
    let file = memory.join("guid2lid");
    let text = fs::read_to_string(&file).expect("was written");
    let (guid, lid) = &fresh[2];
    let guid = guid.as_str().expect("is text").replace(':', "");
    let lid = lid.as_u64().expect("is a number");
    let line = format!("0x{guid} 0x{lid:04x} 0x{lid:04x}\n\n");
    assert!(text.contains(&line), "{text}");
    drop(daemon);
    fs::write(
        &file,
        text.replace(&line, &format!("0x{guid} 0x0333 0x0333\n\n")),
    )
    .expect("is written");
    let daemon = Daemon::configured(configuration(state.path()));
    let now = lids(&daemon);
    assert_eq!(now[..2], fresh[..2]);
    assert_eq!(now[2].1, 0x333);
}

/// Two spines and two leaves, an aggregation node at each spine.
const SPINES: &str = r#"vendid=0x2c9
devid=0x1
switchguid=0x110(110)
Switch	8 "S-110"		# "spine1" base port 0 lid 0 lmc 0
[1]	"S-210"[5]
[2]	"S-220"[5]
[8]	"H-1040"[1](1041)

switchguid=0x120(120)
Switch	8 "S-120"		# "spine2" base port 0 lid 0 lmc 0
[1]	"S-210"[6]
[2]	"S-220"[6]
[8]	"H-1050"[1](1051)

switchguid=0x210(210)
Switch	8 "S-210"		# "leaf1" base port 0 lid 0 lmc 0
[1]	"H-1000"[1](1001)
[5]	"S-110"[1]
[6]	"S-120"[1]

switchguid=0x220(220)
Switch	8 "S-220"		# "leaf2" base port 0 lid 0 lmc 0
[1]	"H-1020"[1](1021)
[5]	"S-110"[2]
[6]	"S-120"[2]

caguid=0x1000
Ca	1 "H-1000"		# "node1"
[1](1001)	"S-210"[1]

caguid=0x1020
Ca	1 "H-1020"		# "node2"
[1](1021)	"S-220"[1]

caguid=0x1040
Ca	1 "H-1040"		# "Mellanox Technologies Aggregation Node"
[1](1041)	"S-110"[8]

caguid=0x1050
Ca	1 "H-1050"		# "Mellanox Technologies Aggregation Node"
[1](1051)	"S-120"[8]
"#;

/// A subnet is a fat-tree once the files say which adapters are compute nodes.
#[test]
fn adapters_at_spines() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let write = |name: &str, text: &str| fs::write(path(name), text).expect("is written");
    write("net", SPINES);
    write("roots", "");
    write("hosts", "0x1001\n0x1021\n0x1041\n0x1051\n");
    let settings = [
        ("fabric.topology", "net"),
        ("sm.root_guid_file", "roots"),
        ("sm.cn_guid_file", "hosts"),
    ];
    let configuration = settings.into_iter().fold(
        Configuration::new().set("sm.routing", "ftree"),
        |configuration, (key, file)| configuration.set(key, path(file).display().to_string()),
    );
    let daemon = Daemon::configured(configuration);
    let status = daemon.ask(&["sm", "status"]);
    assert_eq!(status["routed_by"], "minhop");
    let why = status["errors"][0].as_str().expect("is text");
    assert!(why.contains("a fat-tree has no such cables"), "{why}");
    let warnings = || daemon.ask(&["status"])["warnings"].to_string();
    let warning = "subnet manager: ftree cannot route this subnet: ";
    assert!(warnings().contains(warning), "{}", warnings());
    for roots in ["", "0x110 spine1\n0x120 spine2\n"] {
        write("roots", roots);
        write("hosts", "# compute nodes\n0x1001 node1\n0x1021\n");
        let status = daemon.ask(&["sm", "reload"]);
        assert_eq!(status["routed_by"], "ftree", "{status}");
        assert_eq!(status["errors"], json!([]));
        assert!(!warnings().contains(warning), "{}", warnings());
    }
    write("hosts", "node1 0x1001\n");
    let (status, message) = fails(&daemon, &["sm", "reload"]);
    assert_eq!(status, Some(1));
    let expected = format!(
        "ibvswitch: the daemon refused: {}:1: node1 is no GUID; write 0x and 16 hexadecimal digits; nothing changes\n",
        path("hosts").display()
    );
    assert_eq!(message, expected);
}

/// Shortest ways, as docs/users/routing-programs.md has them; `FAULT` is where others do something wrong.
const PROGRAM: &str = r#"
import json, os, sys, time
net = json.load(sys.stdin)
assert net["version"] == 1
links = {switch["guid"]: switch["links"] for switch in net["switches"]}
tables = {switch: {} for switch in links}
for end in net["lids"]:
    lid, queue = end["lid"], [end["switch"]]
    tables[end["switch"]][lid] = end["port"]
    for at in queue:
        for link in links[at]:
            if lid not in tables[link["to"]]:
                tables[link["to"]][lid] = link["to_port"]
                queue.append(link["to"])
FAULT
for switch, table in tables.items():
    print("Unicast lids guid", switch)
    for lid, port in table.items():
        print(f"0x{lid:04x} {port}")
"#;

/// A program of others routes the subnet; whatever goes wrong with it, its last good tables stay.
#[test]
fn a_program_computes_the_paths() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let write = |fault: &str| {
        fs::write(path("route.py"), PROGRAM.replace("FAULT", fault)).expect("is written");
    };
    fs::write(path("net"), SPINES).expect("is written");
    write("");
    let command = ["/usr/bin/python3".to_owned(), path("route.py")];
    let daemon = Daemon::configured(
        Configuration::new()
            .set("fabric.topology", path("net"))
            .set("sm.routing", "external")
            .set("sm.routing_program", command)
            .set("sm.routing_timeout", 1),
    );
    let status = daemon.ask(&["sm", "status"]);
    assert_eq!(status["errors"], json!([]));
    assert_eq!(status["routed_by"], "external");
    let last = "end = net['lids'][-1]; at = end['switch']";
    for (fault, reason) in [
        (
            "sys.exit('no licence')",
            "ended with exit status: 1; its last error: no licence",
        ),
        ("time.sleep(60)", "has not ended after 1 s and was killed"),
        (
            "os.close(1); time.sleep(60)",
            "has not ended after 1 s and was killed",
        ),
        (
            "print('Unicast lids guid', at); sys.exit()",
            "has no port for LID",
        ),
        ("del tables[at]", "no table of switch"),
        (
            &format!("{last}; tables[at][end['lid']] = links[at][0]['port']"),
            "is sent round in a loop",
        ),
        ("sys.stdout.buffer.write(b'\\xff'); sys.exit()", "no UTF-8"),
        ("os.kill(os.getpid(), 9)", "signal: 9"),
    ] {
        write(fault);
        let status = daemon.ask(&["sm", "reload"]);
        let why = status["errors"][0].as_str().expect("is text");
        assert!(why.contains(reason), "{fault}: {why}");
        assert!(why.ends_with("; the last good tables stay"), "{why}");
        assert_eq!(status["routed_by"], "external");
        assert_eq!(status["sets"], 0, "{fault}");
    }
    write("");
    assert_eq!(daemon.ask(&["sm", "reload"])["errors"], json!([]));
}
