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

    // A file with mistakes changes nothing.
    write("Default : ALL=full ;\nred = 0x20 : vm9 ;\n");
    let (status, message) = fails(&daemon, &["sm", "reload"]);
    assert_eq!(status, Some(1));
    let expected = format!(
        "ibvswitch: the daemon refused: {}:2: vm9 is no port; write a port GUID such as \
         0x0002c90300000101, a VF's name, ALL, ALL_CAS, ALL_SWITCHES or SELF; there are vm1, vm2, vm3; the partitions stay \
         as they are\n",
        file.display()
    );
    assert_eq!(message, expected);
    assert_eq!(pkeys(&daemon, "vm1"), json!(["0xffff", "0x8020"]));

    let before = daemon.ask(&["sm", "status"]);
    let after = daemon.ask(&["sm", "sweep"]);
    assert_eq!(before["sweeps"], 2);
    assert_eq!(after["sweeps"], 3);
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
