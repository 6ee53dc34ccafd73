//! Partitions of clusters, in a file that Debian's opensm reads.

use std::fs;
use std::path::Path;

use crate::daemon::Daemon;
use crate::programs::Opensm;
use testing::{Configuration, wait_until};

/// A daemon gives clusters out, and its file follows; OpenSM manages the subnet with these VMs by that file.
#[test]
fn opensm_gives_clusters_their_partitions() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("clusters.conf");
    let path = file.to_str().expect("is text");
    let nodes = Configuration::new()
        .clusters(["red", "blue"])
        .hypervisor("hv1", [])
        .member("red1", "red")
        .member("blue1", "blue")
        .hypervisor("hv2", [])
        .member("red2", "red");
    let cloud = Daemon::configured(nodes.set("external.partitions_file", path));
    let command = |words: &str| {
        let mut command = cloud.command();
        let output = command.args(words.split(' ')).output().expect("runs");
        assert!(output.status.success(), "{words}: {output:?}");
        String::from_utf8(output.stdout).expect("is text")
    };
    let read = || fs::read_to_string(&file).expect("is written");
    assert_eq!(read(), command("cluster show --partitions"));
    let subnet = Daemon::configured(
        Configuration::new()
            .set("sm.manager", "external")
            .hypervisor("hv1", ["red1", "blue1"])
            .hypervisor("hv2", ["red2", "green-1"]),
    );
    let opensm = Opensm::start(&subnet, None, &["-P", path]);
    opensm.subnet_up();
    let keys = |vf: &str| -> Vec<String> {
        let table = subnet.vf(vf)["pkeys"].as_array().cloned();
        let keys = table.unwrap_or_default();
        let keys = keys
            .iter()
            .filter_map(|key| key.as_str().map(str::to_owned));
        keys.filter(|key| key != "0x7fff" && key != "0x0000")
            .collect()
    };
    wait_until("each VM is in one partition", || {
        ["red1", "red2", "blue1"]
            .iter()
            .all(|vf| keys(vf).len() == 1)
    });
    assert_eq!(keys("red1"), keys("red2"));
    assert_ne!(keys("red1"), keys("blue1"));
    assert_eq!(keys("green-1").len(), 0);

    command("cluster create green --vms 1");
    command("vf remove blue1");
    assert_eq!(read(), command("cluster show --partitions"));
    opensm.sweep();
    wait_until("the new VM is in a partition", || {
        keys("green-1").len() == 1 && keys("blue1").is_empty()
    });
    assert_eq!(keys("red1").len(), 1);
}

/// Where there can be no such file, the log says so, and VMs are served all the same.
#[test]
fn a_file_that_cannot_be_written() {
    let nodes = Configuration::new().hypervisor("hv1", ["vm1"]);
    let file = "/dev/null/clusters.conf";
    let daemon = Daemon::logging(nodes.set("external.partitions_file", file));
    let log = fs::read_to_string(Path::new(daemon.dir()).join("log")).expect("is there");
    let line = log.lines().find(|line| line.contains(file));
    let line = line.expect("is said");
    assert!(
        line.contains("ERROR") && line.contains("name in external.partitions_file a file"),
        "{line}"
    );
}
