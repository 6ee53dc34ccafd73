//! Another program takes the daemon's place, and clients notice nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::daemon::{Daemon, HALF, Peer, connected_by, peers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use test_driver::exhaustion::{Exhaustion, ObjectKind};
use test_driver::{Connection, Data, Device, Options, SendRequest, Transport};
use testing::Configuration;

with_both_doorbells!(connections_go_on_under_traffic,);

/// Time that VMs may wait in a test, in seconds, on a machine however busy.
const PATIENT: &str = "60";

/// It takes a program without optimization seconds.
const MANY_PAGES: ObjectKind = ObjectKind::Pages(1_000_000);

/// The daemon's own program takes over, or every other time the one that `IBVSWITCH_OTHER_BIN` names: an earlier release,
/// in the same directory.
fn upgrade(daemon: &Daemon) -> Value {
    const OWN: &str = env!("CARGO_BIN_EXE_ibvswitch");
    static UPGRADES: AtomicU32 = AtomicU32::new(0);
    let mut arguments = vec!["upgrade", "--within", PATIENT];
    let other = std::env::var("IBVSWITCH_OTHER_BIN").ok();
    if let Some(other) = &other {
        let goes_on = UPGRADES.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        arguments.extend(["--program", if goes_on { OWN } else { other }]);
    }
    daemon.ask(&arguments)
}

/// Gives a connection the patience to wait for a device that rests.
fn patient(connection: &mut Connection) {
    connection.ack_timeout = 18;
    connection.retry_count = 7;
}

/// LID, GUID and holder of each VF.
fn addresses(daemon: &Daemon) -> Vec<Value> {
    let status = daemon.ask(&["status"]);
    let vfs = status["vfs"].as_array().expect("VFs").clone();
    let of = |vf: Value| {
        Value::from(
            ["name", "lid", "port_guid", "holds", "state"]
                .map(|key| vf[key].clone())
                .to_vec(),
        )
    };
    vfs.into_iter().map(of).collect()
}

/// Writes and messages of all sizes, each way, while one program after the other takes over.
fn connections_go_on_under_traffic(daemon: &Daemon) {
    const UPGRADES: u32 = 5;
    let (mut a, mut b) = peers(daemon);
    let before = addresses(daemon);
    let (to, from) = (a.config(Transport::Rc), b.config(Transport::Rc));
    let (mut qa, mut qb) = connected_by(&to, &from, &a, &b, patient);
    let (done, messages) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for count in 1..=UPGRADES {
                let seen = messages.load(Ordering::Relaxed);
                while messages.load(Ordering::Relaxed) < seen + 3 {
                    std::thread::yield_now();
                }
                let report = upgrade(daemon);
                assert_eq!(report["count"], count, "{report}");
                assert_eq!((&report["vms"], &report["failed"]), (&2.into(), &0.into()));
            }
            done.store(true, Ordering::Release);
        });
        let mut number = 0_u32;
        while !done.load(Ordering::Acquire) || number < 20 {
            let len = [8, 5000, 300_000, 2_000_000][number as usize % 4];
            let seed = u64::from(number);
            a.fill(0, len, seed);
            let data = [a.sge(0, len)];
            b.cq.arm(false).unwrap();
            qb.post_receive(&[b.sge(HALF, len)]).unwrap();
            a.execute(&mut qa, &SendRequest::send(Data::Memory(&data)));
            assert_eq!(b.device.wait_completion(0).unwrap(), b.cq.number());
            b.cq.acknowledge();
            let entry = b.cq.wait().unwrap();
            assert!(entry.is_ok() && entry.qpn() == qb.number(), "{entry:?}");
            qb.complete(&entry);
            b.verify(HALF, len, seed);
            let data = [b.sge(HALF, len)];
            let write = SendRequest::write(a.remote(HALF), Data::Memory(&data));
            b.execute(&mut qb, &write);
            a.verify(HALF, len, seed);
            number += 1;
            messages.store(number, Ordering::Relaxed);
        }
    });
    assert_eq!(addresses(daemon), before);
    for name in ["vm1", "vm2"] {
        let retries = daemon.vf(name)["counters"]["retries"].clone();
        let retries = retries.as_object().expect("counters").values();
        assert_eq!(retries.filter_map(Value::as_u64).sum::<u64>(), 0);
    }
    // New connections and commands, and a new VM.
    a.write_to(&b);
    b.write_to(&a);
    let mut c = Peer::open(daemon, "vm3");
    c.write_to(&a);
    assert_eq!(
        daemon.pid(),
        daemon.ask(&["status"])["pid"].as_u64().unwrap() as u32
    );
}

/// VMs are where they have moved to.
#[test]
fn vms_that_have_moved_stay_where_they_are() {
    let daemon = Daemon::configured(
        Configuration::new()
            .hypervisor("hv1", ["vm1"])
            .hypervisor("hv2", ["vm2"])
            .spare_vfs(1)
            .hypervisor("hv3", ["vm3"]),
    );
    daemon.ask(&["vf", "migrate", "vm1", "--to", "hv2"]);
    daemon.ask(&["vf", "migrate", "vm3", "--to", "hv1"]);
    let mut vm = Peer::open(&daemon, "hv2-spare1");
    let before = addresses(&daemon);
    assert!(
        before
            .iter()
            .any(|vf| vf[0] == "hv2-spare1" && vf[3] == "vm1"),
        "{before:?}"
    );
    assert!(
        before.iter().any(|vf| vf[0] == "vm1" && vf[3] == "vm3"),
        "{before:?}"
    );
    upgrade(&daemon);
    assert_eq!(addresses(&daemon), before);
    let mut peer = Peer::open(&daemon, "vm1");
    vm.write_to(&peer);
    peer.write_to(&vm);
}

/// Whichever way VMs have their LIDs, they keep them.
#[test]
fn vms_keep_their_lids() {
    for model in [
        "vswitch-prepopulated",
        "vswitch-dynamic",
        "shared-port",
        "vswitch-hybrid",
    ] {
        let daemon = Daemon::configured(
            Configuration::new()
                .set("fabric.model", model)
                .hypervisor("hv1", ["vm1", "vm3"])
                .hypervisor("hv2", ["vm2"]),
        );
        // Not in the order of the configuration.
        let (mut b, mut a) = (Peer::open(&daemon, "vm2"), Peer::open(&daemon, "vm1"));
        let before = addresses(&daemon);
        let (to, from) = (a.config(Transport::Rc), b.config(Transport::Rc));
        let (mut qa, _qb) = connected_by(&to, &from, &a, &b, patient);
        for seed in 0..2 {
            let report = upgrade(&daemon);
            assert_eq!((&report["vms"], &report["failed"]), (&2.into(), &0.into()));
            a.fill(0, 5000, seed);
            let data = [a.sge(0, 5000)];
            let write = SendRequest::write(b.remote(HALF), Data::Memory(&data));
            assert!(a.execute(&mut qa, &write).is_ok(), "{model}");
            b.verify(HALF, 5000, seed);
            assert_eq!(addresses(&daemon), before, "{model}");
        }
        a.write_to(&b);
        b.write_to(&a);
    }
}

/// The keeper does not notice either, and keeps VMs when the program after the next is killed.
#[test]
fn a_keeper_stays_with_the_daemon() {
    let daemon = Daemon::kept(
        Configuration::new()
            .set("log", "info")
            .hypervisor("hv1", ["vm1"])
            .vf("vm2")
            .key("doorbells", "poll"),
    );
    let (mut a, mut b) = peers(&daemon);
    for round in 0..3 {
        if round == 2 {
            daemon.kill_served();
            daemon.await_log("it is started again");
            [a, b] = [a, b].map(|peer| Peer::new(peer.device.recover().unwrap()));
            a.write_to(&b);
        }
        let (to, from) = (a.config(Transport::Rc), b.config(Transport::Rc));
        let (mut qa, _qb) = connected_by(&to, &from, &a, &b, patient);
        let report = upgrade(&daemon);
        assert_eq!((&report["vms"], &report["failed"]), (&2.into(), &0.into()));
        a.fill(0, 5000, round);
        let data = [a.sge(0, 5000)];
        let write = SendRequest::write(b.remote(HALF), Data::Memory(&data));
        a.execute(&mut qa, &write);
        b.verify(HALF, 5000, round);
        b.write_to(&a);
    }
    assert_eq!(daemon.log().matches("its VM is kept").count(), 2);
}

/// As `systemctl reload` and scripts do it.
#[test]
fn a_signal_does_the_same() {
    let daemon = Daemon::logging(
        Configuration::new()
            .set("log", "info")
            .hypervisor("hv1", ["vm1", "vm2"]),
    );
    let (mut a, b) = peers(&daemon);
    a.write_to(&b);
    let pid = Pid::from_raw(daemon.pid().cast_signed());
    kill(pid, Signal::SIGUSR2).expect("it is there");
    // Who asked meanwhile would have to ask again.
    daemon.await_log("goes on in place of another program");
    assert_eq!(daemon.ask(&["status"])["upgraded"]["vms"], 2);
    a.write_to(&b);
}

/// Ports for guests without an InfiniBand driver: the VMM connects again.
#[test]
fn ports_are_served_again() {
    let daemon = Daemon::configured(
        Configuration::new()
            .hypervisor("hv1", ["vm1", "vm2"])
            .port("net1", 1)
            .port("net2", 2),
    );
    let (mut a, b) = peers(&daemon);
    for _ in 0..2 {
        let [mut from, mut to] = ["net1", "net2"]
            .map(|name| vhost_user_driver::Driver::start(daemon.socket(name)).expect("is served"));
        // As on any network, frames are lost while the port is not yet in it.
        let frame = [&[0xff; 6], &[0x52, 0x54, 0, 0, 0, 1], &ARP[..]].concat();
        loop {
            from.send(&frame).expect("is taken");
            from.await_sent().expect("is sent");
            if to
                .try_receive()
                .is_some_and(|got| got[6..14] == frame[6..14])
            {
                break;
            }
        }
        upgrade(&daemon);
        from.await_end().expect("its connection ends");
        to.await_end().expect("its connection ends");
        a.write_to(&b);
    }
}

/// An ARP request for 10.0.0.2.
const ARP: [u8; 30] = [
    8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 0x52, 0x54, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0,
    2,
];

/// A program of which the daemon should not become the next.
fn script(daemon: &Daemon, name: &str, text: &str) -> String {
    let path = format!("{}/{name}", daemon.dir());
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A guest that takes objects.
fn hoarder(daemon: &Daemon, kinds: impl IntoIterator<Item = ObjectKind>) -> (Device, Exhaustion) {
    let options = Options {
        memory: 512 << 20,
        ..Options::default()
    };
    let device = Device::open_with(daemon.socket("vm1"), options).unwrap();
    let mut hoard = Exhaustion::new(&device).unwrap();
    for kind in kinds {
        assert!(hoard.take(kind).unwrap());
    }
    (device, hoard)
}

#[test]
fn objects_of_each_kind_go_along() {
    let daemon = Daemon::start("trap");
    let all = ObjectKind::ALL.into_iter();
    let kinds = all.filter(|kind| *kind != MANY_PAGES);
    let _guest = hoarder(&daemon, kinds);
    let report = upgrade(&daemon);
    assert_eq!((&report["vms"], &report["failed"]), (&1.into(), &0.into()));
}

/// A guest that has too much keeps no other program from taking over for long.
#[test]
fn a_vm_that_cannot_go_along_may_fail() {
    let daemon = Daemon::start("trap");
    let (device, _hoard) = hoarder(&daemon, [ObjectKind::Pages(1 << 15); 48]);
    let (mut a, b) = (Peer::open(&daemon, "vm2"), Peer::open(&daemon, "vm3"));
    let (to, from) = (a.config(Transport::Rc), b.config(Transport::Rc));
    let (mut qa, _qb) = connected_by(&to, &from, &a, &b, patient);
    let refused = daemon.run(&["upgrade", "--within", PATIENT], "");
    for part in ["VF `vm1`", "16 MiB", "--let-fail"] {
        assert!(refused.err.contains(part), "{refused:?}");
    }
    let unknown = daemon.run(&["upgrade", "--let-fail", "vm9"], "");
    assert!(unknown.err.contains("no VF `vm9`"), "{unknown:?}");
    let report = daemon.ask(&["upgrade", "--within", PATIENT, "--let-fail", "vm1"]);
    assert_eq!((&report["vms"], &report["failed"]), (&3.into(), &1.into()));
    a.fill(0, 5000, 1);
    let data = [a.sge(0, 5000)];
    let write = SendRequest::write(b.remote(HALF), Data::Memory(&data));
    a.execute(&mut qa, &write);
    b.verify(HALF, 5000, 1);
    Peer::new(device.recover().unwrap()).write_to(&b);
}

/// In its sandbox a daemon executes what is installed, and nothing else. The programs that take over stay in it.
#[test]
fn the_sandbox_is_the_process_s() {
    let daemon = Daemon::logging(
        Configuration::new()
            .set("log", "warn")
            .hypervisor("hv1", ["vm1", "vm2"]),
    );
    let (a, b) = peers(&daemon);
    let sandbox = || daemon.ask(&["status"])["sandbox"].clone();
    let before = sandbox();
    assert_eq!(before["seccomp"], true, "{before}");
    let own = env!("CARGO_BIN_EXE_ibvswitch");
    let program = script(&daemon, "elsewhere", &format!("exec {own} \"$@\""));
    let outcome = daemon.run(&["upgrade", "--program", &program], "");
    if before["landlock"] != "none" {
        assert_eq!(outcome.status, Some(1), "{outcome:?}");
        for part in ["Permission denied", "the daemon's sandbox"] {
            assert!(outcome.err.contains(part), "{outcome:?}");
        }
    }
    // More often than the kernel lets a process enter one.
    for _ in 0..20 {
        upgrade(&daemon);
        assert_eq!(sandbox(), before);
    }
    let (mut a, mut b) = (a, b);
    a.write_to(&b);
    b.write_to(&a);
}

/// Whatever is wrong with the other program, the daemon serves on, and nobody has lost anything.
#[test]
fn a_program_that_cannot_take_over_does_not() {
    let daemon = Daemon::logging(
        Configuration::new()
            .set("log", "warn")
            .set("sandbox", "off")
            .hypervisor("hv1", ["vm1", "vm2"]),
    );
    let (mut a, mut b) = peers(&daemon);
    let (to, from) = (a.config(Transport::Rc), b.config(Transport::Rc));
    let (mut qa, _qb) = connected_by(&to, &from, &a, &b, patient);
    let own = env!("CARGO_BIN_EXE_ibvswitch");
    // With VMs in it: not the first time that it is tried.
    let second = |then: &str| {
        let once = format!("{}/once", daemon.dir());
        format!("if [ ! -e {once} ]; then touch {once}; exec {own} \"$@\"; fi\nrm {once}\n{then}")
    };
    let config = fs::read_to_string(daemon.config()).unwrap();
    let without = config.replace("[[hypervisor.vf]]\nname = \"vm2\"\n", "");
    assert_ne!(config, without);
    let mut seed = 0;
    let mut refused = |name: &str, text: Option<&str>, config: &str, within: &str, why: &str| {
        let path = format!("{}/nowhere", daemon.dir());
        let program = text.map_or(path, |text| script(&daemon, name, text));
        let running = fs::read_to_string(daemon.config()).unwrap();
        fs::write(daemon.config(), config).unwrap();
        let arguments = ["upgrade", "--program", &program, "--within", within];
        let outcome = daemon.run(&arguments, "");
        fs::write(daemon.config(), running).unwrap();
        assert_eq!(outcome.status, Some(1), "{name}: {outcome:?}");
        assert!(outcome.err.contains(why), "{name}: {outcome:?}");
        assert!(daemon.ask(&["status"])["upgraded"].is_null());
        seed += 1;
        a.fill(0, 5000, seed);
        let data = [a.sge(0, 5000)];
        let write = SendRequest::write(b.remote(HALF), Data::Memory(&data));
        a.execute(&mut qa, &write);
        b.verify(HALF, 5000, seed);
    };
    let as_own = format!("exec {own} \"$@\"");
    refused("none", None, &config, PATIENT, "No such file");
    refused(
        "true",
        Some("exit 0"),
        &config,
        PATIENT,
        "name an ibvswitch that can take over",
    );
    refused("dies", Some("kill -9 $$"), &config, PATIENT, "signal: 9");
    refused(
        "slow",
        Some("exec sleep 60"),
        &config,
        "0.2",
        "it was not ready within 0.2 s",
    );
    refused(
        "later",
        Some(&second("kill -9 $$")),
        &config,
        PATIENT,
        "signal: 9",
    );
    refused(
        "stuck",
        Some(&second("exec sleep 60")),
        &config,
        "5",
        "it was not ready within 5 s",
    );
    // Another version, which writes things down in another way.
    let strange = "echo 'ibvswitch: the state of the running daemon is unknown' >&2; exit 1";
    refused(
        "strange",
        Some(&second(strange)),
        &config,
        PATIENT,
        "is unknown",
    );
    refused("wrong", Some(&as_own), "wrong", PATIENT, "config.toml");
    refused(
        "abandons",
        Some(&as_own),
        &without,
        PATIENT,
        "VF `vm2`: a VMM is connected",
    );
    refused(
        "old",
        Some(&format!("exec {own} --runtime-dir {} run", daemon.dir())),
        &config,
        PATIENT,
        "in use by another ibvswitch",
    );
    // How far a VMM is that migrates its VM, another program would not know.
    let resting = a.device.pause().unwrap();
    let outcome = daemon.run(&["upgrade", "--within", PATIENT], "");
    let why = "VF `vm1`: its VMM migrates it";
    assert!(outcome.err.contains(why), "{outcome:?}");
    resting.resume().unwrap();
    a.write_to(&b);
    b.write_to(&a);
    daemon.await_log("goes on as it was");
    // After all of that one does take over.
    upgrade(&daemon);
    a.write_to(&b);
    b.write_to(&a);
}
