//! Partitions of clusters, in a file that Debian's opensm reads.

use std::path::Path;

use crate::daemon::Daemon;
use crate::programs::Opensm;
use testing::{Configuration, wait_until};

#[test]
fn opensm_gives_clusters_their_partitions() {
    let nodes = Configuration::new()
        .set("sm.manager", "external")
        .clusters(["red", "blue"])
        .hypervisor("hv1", [])
        .member("red1", "red")
        .member("blue1", "blue")
        .hypervisor("hv2", [])
        .member("red2", "red");
    let daemon = Daemon::configured(nodes);
    let mut command = daemon.command();
    let shown = command.args(["cluster", "show", "--partitions"]).output();
    let shown = shown.expect("the program runs").stdout;
    let file = Path::new(daemon.dir()).join("clusters.conf");
    std::fs::write(&file, shown).expect("is writable");
    let file = file.to_str().expect("is text");
    let opensm = Opensm::start(&daemon, None, &["-P", file]);
    opensm.subnet_up();
    let keys = |vf: &str| -> Vec<String> {
        let table = daemon.vf(vf)["pkeys"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let keys = table
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
    drop((opensm, daemon));
}
