//! VFs, ports, hypervisors and clusters that come and go while the daemon runs.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::daemon::{Daemon, HALF, Peer, connected, connected_by, peers};
use serde_json::Value;
use test_driver::{Connection, Data, SendRequest, Syndrome, Transport};
use testing::{Configuration, wait_until};

/// Time that VMs may wait in a test, in seconds, on a machine however busy.
const PATIENT: &str = "60";

const CONFIGURATION: &str = "# The laboratory's.\n\
     [[hypervisor]]\nname = \"hv1\"\n[[hypervisor.vf]]\nname = \"vm1\" # Anna's\n\
     [[hypervisor]]\nname = \"hv2\"\n[[hypervisor.vf]]\nname = \"vm2\"\n";

/// The daemon's file, and patience.
fn arguments<'a>(file: &'a str, change: &[&'a str]) -> Vec<&'a str> {
    [&["--config", file], change, &["--within", PATIENT]].concat()
}

fn change(daemon: &Daemon, arguments: &[&str]) -> Value {
    daemon.ask(&self::arguments(&daemon.config(), arguments))
}

/// A change that is refused, with what is said: nothing is another.
fn refused(daemon: &Daemon, arguments: &[&str], why: &str) {
    let before = (text(daemon), addresses(daemon));
    let outcome = daemon.run(&self::arguments(&daemon.config(), arguments), "");
    assert_ne!(outcome.status, Some(0), "{arguments:?}: {}", outcome.out);
    assert!(outcome.err.contains(why), "{arguments:?}: {}", outcome.err);
    assert_eq!((text(daemon), addresses(daemon)), before);
}

fn text(daemon: &Daemon) -> String {
    fs::read_to_string(daemon.config()).expect("is there")
}

/// Name, LID, GUID and holder of each VF.
fn addresses(daemon: &Daemon) -> Vec<Value> {
    let status = daemon.ask(&["status"]);
    let vfs = status["vfs"].as_array().expect("VFs").clone();
    let of = |vf: Value| {
        let keys = ["name", "lid", "port_guid", "holds"];
        Value::from(keys.map(|key| vf[key].clone()).to_vec())
    };
    vfs.into_iter().map(of).collect()
}

/// Gives a connection the patience to wait for a device that rests.
fn patient(connection: &mut Connection) {
    connection.ack_timeout = 18;
    connection.retry_count = 7;
}

fn has_no_vm(daemon: &Daemon, vf: &str) {
    wait_until("its VM is gone", || {
        daemon.vf(vf)["client_connected"] == false
    });
}

/// Others' connections go on, and their addresses stay.
#[test]
fn vfs_come_and_go_beside_traffic() {
    let daemon = Daemon::configured(CONFIGURATION);
    let original = text(&daemon);
    let (mut a, mut b) = peers(&daemon);
    let before = addresses(&daemon);
    let (to, from) = (a.config(Transport::Rc), b.config(Transport::Rc));
    let (mut qa, _qb) = connected_by(&to, &from, &a, &b, patient);
    let (done, messages) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for hypervisor in ["hv1", "hv3", "hv2"] {
                let seen = messages.load(Ordering::Relaxed);
                while messages.load(Ordering::Relaxed) < seen + 3 {
                    std::thread::yield_now();
                }
                if hypervisor == "hv3" {
                    change(&daemon, &["hypervisor", "add", "hv3"]);
                }
                let add = ["vf", "add", "vm3", "--hypervisor", hypervisor];
                let added = change(&daemon, &[&add[..], &["--set", "lid=77"]].concat());
                assert_eq!(added["applied"]["vms"], 2);
                assert_eq!(daemon.lid("vm3"), 77);
                // It is as good as any.
                drop(Peer::open(&daemon, "vm3"));
                has_no_vm(&daemon, "vm3");
                let removed = change(&daemon, &["vf", "remove", "vm3"]);
                assert_eq!(removed["differences"][0]["change"], "removed");
                assert!(!daemon.socket("vm3").exists());
            }
            done.store(true, Ordering::Release);
        });
        let mut number = 0_u64;
        while !done.load(Ordering::Acquire) {
            let len = [8, 5000, 300_000][number as usize % 3];
            a.fill(0, len, number);
            let data = [a.sge(0, len)];
            let write = SendRequest::write(b.remote(HALF), Data::Memory(&data));
            a.execute(&mut qa, &write);
            b.verify(HALF, len, number);
            number += 1;
            messages.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!(addresses(&daemon), before);
    b.write_to(&a);
    change(&daemon, &["hypervisor", "remove", "hv3"]);
    assert_eq!(text(&daemon), original, "with all comments");
}

/// A VM that sends to a VF that goes gets an error of its connection to that VF; all other connections go on.
#[test]
fn a_vf_goes_while_a_neighbour_sends_to_it() {
    let daemon = Daemon::configured(CONFIGURATION);
    let add = ["vf", "add", "vm3", "--hypervisor", "hv2", "--set", "lid=77"];
    change(&daemon, &add);
    let (mut a, mut b) = peers(&daemon);
    let c = Peer::open(&daemon, "vm3");
    let (mut to_c, far) = connected(Transport::Rc, &a, &c);
    let (to, from) = (b.config(Transport::Rc), a.config(Transport::Rc));
    let (mut to_a, _qa) = connected_by(&to, &from, &b, &a, patient);
    let remote = c.remote(HALF);
    drop((far, c));
    has_no_vm(&daemon, "vm3");
    let data = [a.sge(0, 5000)];
    let write = SendRequest::write(remote, Data::Memory(&data));
    to_c.post_send(&write).expect("is posted");
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| change(&daemon, &["vf", "remove", "vm3"]));
        let mut number = 0;
        while !removal.is_finished() {
            b.write_by(&mut to_a, &a, 5000, number);
            a.verify(HALF, 5000, number);
            number += 1;
        }
    });
    let entry = a.cq.wait().expect("in time");
    assert_eq!(entry.syndrome(), Syndrome::RetryExceeded);
    // Another one with its LID is reached by a new connection.
    change(&daemon, &add);
    let c = Peer::open(&daemon, "vm3");
    a.write_to(&c);
}

#[test]
fn what_a_vm_could_not_go_on_with_is_refused() {
    let daemon = Daemon::configured(CONFIGURATION);
    let (mut a, b) = peers(&daemon);
    refused(&daemon, &["vf", "remove", "vm2"], "stop the VM first");
    refused(
        &daemon,
        &["hypervisor", "remove", "hv2"],
        "stop the VM first",
    );
    refused(&daemon, &["vf", "remove", "vm9"], "there are vm1, vm2");
    refused(
        &daemon,
        &["vf", "add", "vm1", "--hypervisor", "hv2"],
        "already",
    );
    let wrong = ["vf", "add", "vm3", "--hypervisor", "hv2", "--set"];
    for (setting, why) in [
        ("lid=70000", "lid"),
        ("colour=red", "colour"),
        ("lid", "KEY=VALUE"),
    ] {
        refused(&daemon, &[&wrong[..], &[setting]].concat(), why);
    }
    // Another way for doorbells is another device.
    let file = daemon.config() + ".new";
    fs::write(&file, text(&daemon) + "doorbells = \"poll\"\n").expect("is written");
    refused(&daemon, &["config", "apply", &file], "configure both alike");
    fs::write(&file, "runtime_dir = \"/run/other\"\n").expect("is written");
    let elsewhere = daemon.run(&["config", "apply", &file], "");
    assert!(elsewhere.err.contains("--config"), "{}", elsewhere.err);
    a.write_to(&b);
}

#[test]
fn a_file_is_shown_and_applied() {
    let daemon = Daemon::configured(CONFIGURATION);
    let original = text(&daemon);
    let file = daemon.config() + ".new";
    let more = "[[hypervisor.vf]]\nname = \"vm3\"\n[[hypervisor.port]]\nname = \"net1\"\n\
         kind = \"vhost-user-net\"\nmac = \"52:54:00:00:00:01\"\n";
    fs::write(&file, original.clone() + more).expect("is written");
    let apply = ["config", "apply", &file];
    let shown = daemon.run(
        &arguments(&daemon.config(), &[&apply[..], &["--dry-run"]].concat()),
        "",
    );
    assert_eq!(shown.out, "+ VF vm3 on hv2\n+ port net1 on hv2\n");
    assert_eq!(text(&daemon), original);
    let readable = fs::Permissions::from_mode(0o640);
    fs::set_permissions(daemon.config(), readable).expect("it is ours");
    change(&daemon, &apply);
    assert_eq!(text(&daemon), original.clone() + more);
    let mode = fs::metadata(daemon.config()).expect("is there").mode() & 0o777;
    assert_eq!(mode, 0o640);
    assert_eq!(daemon.vf("vm3")["state"], "Active");
    assert!(daemon.socket("net1").exists());
    let again = [&apply[..], &["--dry-run"]].concat();
    let again = daemon.run(&arguments(&daemon.config(), &again), "");
    assert_eq!(again.out, "Nothing changes.\n", "{}", again.err);
    change(&daemon, &["port", "remove", "net1"]);
    change(&daemon, &["vf", "remove", "vm3"]);
    assert_eq!(text(&daemon), original);
}

/// Returns the state of a link, without its other end.
fn shown_of(daemon: &Daemon, at: &str) -> Value {
    let mut link = daemon.ask(&["link", "show", at]);
    link.as_object_mut().expect("a link").remove("peer");
    link
}

/// Changes that a user has made to links remain at the same links, also if these are at other ports of a switch now.
#[test]
fn links_stay_as_they_are() {
    let daemon = Daemon::configured(CONFIGURATION);
    let add = |hypervisor, vf| {
        change(&daemon, &["hypervisor", "add", hypervisor]);
        change(&daemon, &["vf", "add", vf, "--hypervisor", hypervisor]);
    };
    add("hv3", "vm3");
    daemon.ask(&["link", "down", "vm2:1"]);
    daemon.ask(&["link", "delay", "hv3:1", "3"]);
    daemon.ask(&["link", "drop", "hv3:1", "2", "--seed", "7"]);
    daemon.ask(&["link", "stall", "vm3:1", "in"]);
    let shown = || ["vm1:1", "vm2:1", "vm3:1", "hv3:1"].map(|at| shown_of(&daemon, at));
    wait_until("it is down", || shown()[1]["state"] == "Down");
    let before = shown();
    let same = || wait_until("links are as they were", || shown() == before);
    daemon.ask(&["upgrade", "--within", PATIENT]);
    same();
    add("hv4", "vm4");
    same();
    change(&daemon, &["hypervisor", "remove", "hv1"]);
    let left =
        || shown_of(&daemon, "hv3:1") == before[3] && shown_of(&daemon, "vm2:1") == before[1];
    wait_until("links are as they were", left);
    daemon.ask(&["link", "restore", "hv3:1"]);
    daemon.ask(&["upgrade", "--within", PATIENT]);
    assert_eq!(daemon.ask(&["link", "show", "hv3:1"])["delay_us"], 0);
}

/// One after the other, whoever comes first.
#[test]
fn two_changes_at_once_are_both_made() {
    let daemon = Daemon::configured(CONFIGURATION);
    std::thread::scope(|scope| {
        for name in ["vm3", "vm4"] {
            let daemon = &daemon;
            scope.spawn(move || change(daemon, &["vf", "add", name, "--hypervisor", "hv1"]));
        }
    });
    for name in ["vm1", "vm2", "vm3", "vm4"] {
        assert_eq!(daemon.vf(name)["state"], "Active");
    }
}

/// A daemon that has another file is told of, and that file is not changed.
#[test]
fn another_file_than_the_daemons_is_noticed() {
    let daemon = Daemon::configured(CONFIGURATION);
    let (original, copy) = (text(&daemon), daemon.config() + ".copy");
    fs::write(&copy, &original).expect("is written");
    for other in [["vf", "remove", "vm2"], ["hypervisor", "add", "hv3"]] {
        let outcome = daemon.run(&arguments(&copy, &other), "");
        assert!(
            outcome.err.contains("name the daemon's file"),
            "{}",
            outcome.err
        );
        assert_eq!(fs::read_to_string(&copy).expect("is there"), original);
    }
    assert_eq!(text(&daemon), original);
    // A link to its file is its file.
    let link = daemon.config() + ".link";
    std::os::unix::fs::symlink(daemon.config(), &link).expect("is made");
    daemon.ask(&arguments(&link, &["hypervisor", "add", "hv3"]));
    assert!(text(&daemon).contains("hv3"));
}

/// A right file mends a configuration file that was spoilt by hand.
#[test]
fn a_file_that_is_not_right_is_mended_by_one_that_is() {
    let daemon = Daemon::configured(CONFIGURATION);
    let original = text(&daemon);
    let file = daemon.config() + ".new";
    fs::write(
        &file,
        original.clone() + "[[hypervisor.vf]]\nname = \"vm3\"\n",
    )
    .expect("is written");
    for wrong in ["[[hypervisor", "[[hypervisor]]\ncolour = 3\n"] {
        fs::write(daemon.config(), wrong).expect("is written");
        let config = daemon.config();
        let remove = daemon.run(&arguments(&config, &["vf", "remove", "vm2"]), "");
        assert_ne!(remove.status, Some(0));
        let apply = daemon.run(&arguments(&config, &["config", "apply", &file]), "");
        assert_eq!(apply.status, Some(0), "{}", apply.err);
        assert!(
            apply.err.contains("present file is invalid"),
            "{}",
            apply.err
        );
        assert_eq!(daemon.vf("vm3")["state"], "Active");
    }
}

/// The VMs of two VFs are in a cluster, and out of it again: their ports have its LIDs, and packets go by these.
#[test]
fn clusters_are_created_and_deleted() {
    let daemon = Daemon::configured(CONFIGURATION);
    let original = text(&daemon);
    let before = addresses(&daemon);
    change(&daemon, &["cluster", "create", "c", "--set", "sm_lid=40"]);
    for (vf, hypervisor, vlid) in [("vm1", "hv1", "41"), ("vm2", "hv2", "42")] {
        let add = ["cluster", "add", vf, "--cluster", "c", "--vlid", vlid];
        let added = change(&daemon, &add);
        let what = format!("VF {vf} on {hypervisor}");
        assert_eq!(added["differences"][0]["what"], what);
    }
    refused(&daemon, &["cluster", "delete", "c"], "c");
    // A write goes from one to the other by the LIDs of their ports.
    let reach = |lids: Option<[u16; 2]>| {
        let [mut vm1, vm2] = ["vm1", "vm2"].map(|name| Peer::open(&daemon, name));
        let ports = [&vm1, &vm2].map(|peer| peer.port.lid);
        if let Some(lids) = lids {
            assert_eq!((ports, vm1.port.sm_lid), (lids, 40));
        } else {
            let lids = ["vm1", "vm2"].map(|name| daemon.vf(name)["lid"].clone());
            assert_eq!(serde_json::json!(ports), Value::from(lids.to_vec()));
        }
        let (mut near, _far) = connected(Transport::Rc, &vm1, &vm2);
        vm1.fill(0, 5000, 41);
        let from = [vm1.sge(0, 5000)];
        let write = SendRequest::write(vm2.remote(HALF), Data::Memory(&from));
        vm1.execute(&mut near, &write);
        vm2.arrives(HALF, 5000, 41);
    };
    reach(Some([41, 42]));
    for vf in ["vm1", "vm2"] {
        change(&daemon, &["cluster", "remove", vf]);
    }
    change(&daemon, &["cluster", "delete", "c"]);
    reach(None);
    assert_eq!(text(&daemon), original);
    let guids = |addresses: Vec<Value>| -> Vec<Value> {
        addresses.iter().map(|address| address[2].clone()).collect()
    };
    assert_eq!(guids(addresses(&daemon)), guids(before));
}

/// A VM has mapped the pages of its doorbells, or has none: what the daemon has chosen stays.
#[test]
fn doorbells_that_the_daemon_has_chosen_stay_while_vfs_come() {
    let daemon = Daemon::configured(
        Configuration::new()
            .set("engine.doorbells", "auto")
            .set("engine.threads", 1)
            .hypervisor("hv1", ["vm1"]),
    );
    // One VM and one engine.
    let several = std::thread::available_parallelism()
        .expect("a number")
        .get()
        >= 2;
    let chosen = if several { "adaptive" } else { "trap" };
    let _vm = Peer::open(&daemon, "vm1");
    let mode = |vf: &str| daemon.vf(vf)["doorbells"].clone();
    assert_eq!(mode("vm1"), chosen);
    for name in ["vm2", "vm3"] {
        change(&daemon, &["vf", "add", name, "--hypervisor", "hv1"]);
        assert_eq!([mode("vm1"), mode(name)], [chosen, chosen]);
    }
}
