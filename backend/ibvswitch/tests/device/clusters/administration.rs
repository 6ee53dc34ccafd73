//! Answers of the subnet administration to a VM of a virtual cluster about other VMs of its partition: groups,
//! services and events.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::administration::{DELETE, GET, SET, Vm, group, mad, report, subscribe};
use crate::daemon::Daemon;
use crate::programs::Opensm;
use testing::Configuration;

const NO_RECORDS: [u8; 2] = [3, 0];

/// Two clusters and one who is in none, all in one partition.
fn configuration() -> Configuration {
    Configuration::new()
        .clusters(["a", "b"])
        .hypervisor("hv1", [])
        .member("a1", "a")
        .member("b1", "b")
        .vf("outside")
        .hypervisor("hv2", [])
        .member("a2", "a")
}

/// The same on ports that VMs share.
fn shared() -> Configuration {
    configuration()
        .set("fabric.model", "shared-port")
        .set("sm.lmc", 2)
}

/// IP over InfiniBand's in the default partition.
const BROADCAST: [u8; 16] = [
    0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
];

fn groups(config: Configuration) {
    groups_at(&Daemon::configured(config), true);
}

/// `tables`: the subnet administration sends tables in segments.
fn groups_at(daemon: &Daemon, tables: bool) {
    let [mut a1, mut a2, mut b1] = ["a1", "a2", "b1"].map(|name| Vm::open(daemon, name));
    let (of_b, of_a) = (group::gid(1), group::gid(2));
    group::join(&mut b1, of_b);
    group::join(&mut a2, of_a);
    for (vm, own, other) in [(&mut a1, of_a, of_b), (&mut b1, of_b, of_a)] {
        assert_eq!(group::status(vm, own), [0, 0]);
        assert_eq!(group::status(vm, other), NO_RECORDS);
        assert_eq!(group::path(vm, other), NO_RECORDS);
        // IP over InfiniBand's are everybody's.
        if tables {
            let all = group::all(vm);
            assert!(all.contains(&own) && !all.contains(&other), "{all:x?}");
            assert!(all.contains(&BROADCAST), "{all:x?}");
        }
        assert_eq!(group::status(vm, BROADCAST), [0, 0]);
    }
    // OpenSM knows paths to a group for its members alone.
    assert_eq!(group::path(&mut a2, of_a), [0, 0]);
    assert_eq!(group::path(&mut b1, of_b), [0, 0]);
    // Who knows a group's name may join it, and then its cluster knows of it.
    group::join(&mut a1, of_b);
    assert_eq!(group::status(&mut a2, of_b), [0, 0]);
    group::leave(&mut a1, of_b);
    assert_eq!(group::status(&mut a2, of_b), NO_RECORDS);
    assert_eq!(group::status(&mut b1, of_b), [0, 0]);
}

#[test]
fn groups_are_those_of_the_cluster() {
    groups(configuration());
}

#[test]
fn groups_are_those_of_the_cluster_on_shared_ports() {
    groups(shared());
}

/// Where it runs on the host, libumad2sim leaves it to send tables without a header for their segments.
#[test]
fn groups_are_those_of_the_cluster_with_opensm() {
    let external = configuration().set("sm.manager", "external");
    let shared = external.clone().set("fabric.model", "shared-port");
    for (configuration, options) in [(external, &[][..]), (shared, &["-l", "2"])] {
        let daemon = Daemon::configured(configuration);
        let opensm = Opensm::start(&daemon, None, options);
        opensm.subnet_up();
        groups_at(&daemon, false);
    }
}

/// ServiceRecords: registered under one number by a VM of each cluster and one of none.
#[test]
fn services_are_those_of_the_cluster() {
    const SERVICE: u16 = 0x31;
    const NUMBER: u64 = 0x1234;
    let daemon = Daemon::configured(configuration());
    let [mut a1, mut a2, mut b1, mut outside] =
        ["a1", "a2", "b1", "outside"].map(|name| Vm::open(&daemon, name));
    let record = |vm: &Vm| {
        let mut record = [0; 176];
        record[..8].copy_from_slice(&NUMBER.to_be_bytes());
        record[8..24].copy_from_slice(&vm.gid());
        record[24..26].fill(0xff);
        record[28..32].fill(0xff);
        record
    };
    // ServiceID, ServiceGID, ServiceP_Key, ServiceLease.
    const ALL: u64 = 0b1111;
    for vm in [&mut b1, &mut outside] {
        let (status, _) = vm.ask(SET, SERVICE, ALL, &record(vm));
        assert_eq!(status, [0, 0]);
    }
    let ask = |vm: &mut Vm| vm.ask(GET, SERVICE, 1, &NUMBER.to_be_bytes()).0;
    assert_eq!(ask(&mut a1), NO_RECORDS);
    assert_eq!(a1.table(SERVICE, 176), Vec::<Vec<u8>>::new());
    let own = record(&a2);
    assert_eq!(a2.ask(SET, SERVICE, ALL, &own).0, [0, 0]);
    let gids = |vm: &mut Vm| {
        let table = vm.table(SERVICE, 176);
        let mut gids: Vec<Vec<u8>> = table.iter().map(|record| record[8..24].to_vec()).collect();
        gids.sort();
        gids
    };
    assert_eq!(gids(&mut a1), [a2.gid()]);
    assert_eq!(gids(&mut b1), [b1.gid()]);
    assert_eq!(ask(&mut a1), [0, 0], "one of three is the cluster's");
    let mut all = [a2.gid(), b1.gid(), outside.gid()];
    all.sort_unstable();
    assert_eq!(gids(&mut outside), all);
    const TOO_MANY: [u8; 2] = [4, 0];
    let second = record(&a1);
    assert_eq!(a1.ask(SET, SERVICE, ALL, &second).0, [0, 0]);
    assert_eq!(ask(&mut a2), TOO_MANY);
    assert_eq!(a1.ask(DELETE, SERVICE, 0b111, &second).0, [0, 0]);
    // One's own can be taken back.
    assert_eq!(a2.ask(DELETE, SERVICE, 0b111, &own).0, [0, 0]);
    assert_eq!(gids(&mut a1), Vec::<Vec<u8>>::new());
}

const CREATED: [u8; 2] = [0, 66];
const DELETED: [u8; 2] = [0, 67];

fn events(config: Configuration) {
    events_at(&Daemon::configured(config));
}

fn events_at(daemon: &Daemon) {
    let [mut a1, mut a2, mut b1] = ["a1", "a2", "b1"].map(|name| Vm::open(daemon, name));
    let config = daemon.config();
    let mut capture = Command::new(env!("CARGO_BIN_EXE_ibvswitch"))
        .args(["--runtime-dir", daemon.dir(), "--config", &config])
        .args(["capture", "--vf", "a1"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut out = capture.stdout.take().expect("piped");
    // The file's header says that it has begun.
    let mut bytes = vec![0; 24];
    out.read_exact(&mut bytes).expect("a header");
    for vm in [&mut a1, &mut b1] {
        assert_eq!(subscribe(vm, true), [0, 0]);
    }
    for vm in [&mut a1, &mut b1] {
        vm.post_receive();
    }
    // Of a stranger's group nothing is heard: what comes first is about the cluster's own.
    let (of_b, of_a) = (group::gid(1), group::gid(2));
    let mut outside = Vm::open(daemon, "outside");
    group::join(&mut outside, group::gid(3));
    group::leave(&mut outside, group::gid(3));
    group::join(&mut a2, of_a);
    assert_eq!(report(&mut a1), (CREATED, of_a));
    a1.post_receive();
    group::leave(&mut a2, of_a);
    assert_eq!(report(&mut a1), (DELETED, of_a));
    // The other cluster hears of its own, before the answer to whoever has made it.
    let created = b1.request(SET, 0x38, 0b1_0011_0000_1100_0111, &{
        let mut record = [0; 52];
        record[..16].copy_from_slice(&of_b);
        record[16..32].copy_from_slice(&b1.gid());
        record[40..42].fill(0xff);
        record[48] = 1;
        record
    });
    b1.post_receive();
    b1.send(&created);
    let first = b1.receive();
    let second = b1.receive();
    let reports: Vec<_> = [first, second]
        .into_iter()
        .filter(|mad| mad[3] == 6)
        .collect();
    assert_eq!(reports.len(), 1);
    // Events that are none of the cluster's are acknowledged for it, three of a1's five.
    group::status(&mut a1, of_a);
    let process = nix::unistd::Pid::from_raw(capture.id() as i32);
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGINT).expect("is running");
    out.read_to_end(&mut bytes).expect("is read");
    assert!(capture.wait().expect("ends").success());
    let file = std::path::Path::new(daemon.dir()).join("capture.pcap");
    std::fs::write(&file, bytes).expect("is written");
    let lid = daemon.lid("a1");
    let filter = format!(
        "infiniband.mad.method in {{0x06, 0x86}} && \
         (infiniband.lrh.dlid == {lid} || infiniband.lrh.slid == {lid})"
    );
    let output = Command::new("tshark")
        .args(["-Y", &filter])
        .args(["-T", "fields", "-e", "infiniband.mad.transactionid"])
        .args(["-e", "infiniband.mad.method", "-r"])
        .arg(&file)
        .output()
        .expect("tshark is installed (scripts/setup)");
    let text = String::from_utf8(output.stdout).expect("is text");
    let of = |method: &str| -> Vec<&str> {
        let lines = text.lines().filter(|line| line.ends_with(method));
        let mut transactions: Vec<_> = lines
            .map(|line| line.split('\t').next().unwrap_or_default())
            .collect();
        transactions.sort_unstable();
        transactions
    };
    assert_eq!(of("0x06").len(), 5, "{text}");
    assert_eq!(of("0x06"), of("0x86"), "{text}");
}

#[test]
fn events_are_those_of_the_cluster() {
    events(configuration());
}

#[test]
fn events_are_those_of_the_cluster_on_shared_ports() {
    events(shared());
}

#[test]
fn events_are_those_of_the_cluster_with_opensm() {
    let external = configuration().set("sm.manager", "external");
    let shared = external.clone().set("fabric.model", "shared-port");
    for (configuration, options) in [(external, &[][..]), (shared, &["-l", "2"])] {
        let daemon = Daemon::configured(configuration);
        let opensm = Opensm::start(&daemon, None, options);
        opensm.subnet_up();
        events_at(&daemon);
    }
}

/// A packet with addresses that nobody knows goes neither to the subnet administration nor to another VM nor to the
/// guest's own port; a packet of a vendor's class goes from VM to VM, and nowhere else.
#[test]
fn unknown_attributes_do_not_pass() {
    const NODE: u16 = 0x11;
    const UNKNOWN: u16 = 0x7777;
    const PING: u8 = 0x32;
    const UNSUPPORTED: [u8; 2] = [0, 0x0c];
    let daemon = Daemon::configured(configuration());
    let mut a1 = Vm::open(&daemon, "a1");
    let to_manager = a1.request(GET, UNKNOWN, 0, &[]);
    a1.send(&to_manager);
    let of_vendor = mad(PING, 1, GET, UNKNOWN, 7);
    a1.send(&of_vendor);
    // Packets stay in order: the others have come where they were to come when this is answered.
    a1.ask(GET, NODE, 0, &[]);
    let refused = |name: &str| {
        let vf = daemon.ask(&["vf", "show", name]);
        vf["mads"]["refused"]["attribute"].as_u64().unwrap_or(0)
    };
    assert_eq!(refused("a1"), 2);
    let local = mad(1, 1, GET, 0xff41, 8);
    let answer = a1.peer.device.mad_ifc(&local).expect("is answered");
    assert_eq!((answer[3], &answer[4..6]), (0x81, &UNSUPPORTED[..]));
    assert_eq!(refused("a1"), 3);
    // Who is in no cluster asks what there is to ask.
    let mut outside = Vm::open(&daemon, "outside");
    assert_eq!(outside.ask(GET, UNKNOWN, 0, &[]).0, UNSUPPORTED);
    assert_eq!(refused("outside"), 0);
}
