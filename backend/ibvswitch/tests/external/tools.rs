//! Debian's opensm and infiniband-diags on the host, as they are, against the daemon's subnet.

use std::collections::HashMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;

use crate::daemon::{Bystanders, Daemon, HALF, Peer, connected};
use crate::programs::{Opensm, Programs};
use test_driver::{AddressVector, Data, SendRequest, Transport};
use testing::{Configuration, Random, wait_until};

fn nodes() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", ["vm1", "vm3"])
        .hypervisor("hv2", ["vm2", "vm4"])
}

fn external() -> Daemon {
    Daemon::configured(nodes().set("sm.manager", "external"))
}

/// LIDs of the nodes by name, as the daemon knows them.
pub fn lids(daemon: &Daemon) -> HashMap<String, u16> {
    let topology = daemon.ask(&["topology"]);
    let nodes = topology["nodes"].as_array().expect("a list");
    nodes
        .iter()
        .filter_map(|node| {
            let name = node["name"].as_str().expect("a name");
            Some((name.to_owned(), node["lid"].as_u64()? as u16))
        })
        .collect()
}

/// `ibroute`: which port a switch sends which LID by.
pub fn routes(programs: &Programs<'_>, switch: u16) -> HashMap<u16, u8> {
    let text = programs.run(&["ibroute", &switch.to_string()]);
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let lid = u16::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
            Some((lid, words.next()?.parse().ok()?))
        })
        .collect()
}

/// `ibtracert`: the nodes of a path by LID, each with the port it is left by.
pub fn trace(programs: &Programs<'_>, from: u16, to: u16) -> Vec<(u16, u8)> {
    let text = programs.run(&["ibtracert", &from.to_string(), &to.to_string()]);
    let mut at = from;
    let mut path = Vec::new();
    for line in text.lines() {
        // "[1] -> switch port {0x…}[3] lid 5-5 "sw1"", between a line for either end.
        if !line.starts_with('[') {
            continue;
        }
        let out = line[1..].split(']').next().expect("a port");
        path.push((at, out.parse().expect("a number")));
        let lid = line.split(" lid ").nth(1).expect("a LID");
        at = lid
            .split('-')
            .next()
            .and_then(|lid| lid.parse().ok())
            .expect("a LID");
    }
    assert_eq!(at, to, "{text}");
    path
}

#[test]
fn opensm_manages_the_subnet() {
    let daemon = external();
    let states = |daemon: &Daemon| {
        let status = daemon.ask(&["status"]);
        let vfs = status["vfs"].as_array().expect("a list").clone();
        let state = |vf: &serde_json::Value| vf["state"].as_str().expect("a state").to_owned();
        vfs.iter().map(state).collect::<Vec<_>>()
    };
    assert_eq!(states(&daemon), ["Initialize"; 4]);
    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    assert_eq!(states(&daemon), ["Active"; 4]);
    let status = daemon.ask(&["status"]);
    assert_eq!(status["fabric"]["manager"], "external");
    let lids = lids(&daemon);
    assert_eq!(lids.len(), 8, "{lids:?}");
    assert_eq!(
        status["fabric"]["sm_lid"].as_u64(),
        Some(u64::from(lids["subnet manager"]))
    );

    let programs = Programs::new(&daemon);
    let text = programs.run(&["sminfo"]);
    assert!(text.contains("SMINFO_MASTER"), "{text}");
    let text = programs.run(&["ibnetdiscover", "-l"]);
    for (name, kind) in [
        ("sw1", "Switch"),
        ("hv1", "Switch"),
        ("hv2", "Switch"),
        ("vm1", "Ca"),
        ("vm4", "Ca"),
        ("subnet manager", "Ca"),
    ] {
        let named = format!("\"{name}\"");
        let found = text
            .lines()
            .any(|line| line.starts_with(kind) && line.contains(&named));
        assert!(found, "{kind} {name}: {text}");
    }
    let text = programs.run(&["iblinkinfo"]);
    assert_eq!(text.matches("Active/  LinkUp").count(), 14, "{text}");

    // What the tables say is where packets are traced to.
    let tables: HashMap<u16, HashMap<u16, u8>> = ["sw1", "hv1", "hv2"]
        .map(|switch| (lids[switch], routes(&programs, lids[switch])))
        .into();
    for (from, to) in [("vm1", "vm2"), ("vm2", "vm3"), ("vm3", "subnet manager")] {
        let (from, to) = (lids[from], lids[to]);
        let path = trace(&programs, from, to);
        for (at, out) in &path[1..] {
            assert_eq!(tables[at].get(&to), Some(out), "{path:?} {tables:?}");
        }
    }

    let (vm1, vm2) = (lids["vm1"].to_string(), lids["vm2"].to_string());
    let text = programs.run(&["saquery", "--src-to-dst", &format!("{vm1}:{vm2}")]);
    for field in [
        format!("dlid....................{vm2}"),
        format!("slid....................{vm1}"),
        "pkey....................0xFFFF".to_owned(),
        "mtu.....................0x85".to_owned(),
    ] {
        assert!(text.contains(&field), "{field}: {text}");
    }
    let text = programs.run(&["ibportstate", &vm1, "1"]);
    assert!(
        text.contains("LinkState:.......................Active"),
        "{text}"
    );
    let text = programs.run(&["smpquery", "nodedesc", &vm1]);
    assert!(text.trim_end().ends_with("vm1"), "{text}");
    let text = programs.run(&["perfquery", "-x", &lids["sw1"].to_string(), "1"]);
    assert!(text.contains("PortXmitPkts:"), "{text}");
    // An HCA whose guest has no driver answers by itself.
    let text = programs.run(&["perfquery", &vm2, "1"]);
    assert!(text.contains("PortXmitPkts:"), "{text}");
    let text = programs.run(&["ibqueryerrors"]);
    assert!(
        text.contains("0 nodes have errors") || !text.contains("Errors for"),
        "{text}"
    );

    // The data plane takes the paths that OpenSM made.
    let (mut a, b) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    assert_eq!(a.port.lid, lids["vm1"]);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    a.fill(0, 100_000, 7);
    let sges = [a.sge(0, 100_000)];
    let write = SendRequest::write(b.remote(HALF), test_driver::Data::Memory(&sges));
    // The switches on the way count it, as if they had seen it: dwords at each port that it leaves
    // by, and nowhere else on the way back.
    let (there, back) = (
        trace(&programs, a.port.lid, b.port.lid),
        trace(&programs, b.port.lid, a.port.lid),
    );
    let sent = |path: &[(u16, u8)]| -> Vec<u64> {
        let dwords = |&(lid, port): &(u16, u8)| {
            let text = programs.run(&["perfquery", "-x", &lid.to_string(), &port.to_string()]);
            let line = text.lines().find(|line| line.starts_with("PortXmitData:"));
            let value = line.and_then(|line| line.rsplit('.').next());
            value
                .and_then(|value| value.parse().ok())
                .expect("a number")
        };
        path[1..].iter().map(dwords).collect()
    };
    let moved = |before: &[u64], after: &[u64]| -> Vec<u64> {
        let pairs = before.iter().zip(after);
        pairs.map(|(before, after)| after - before).collect()
    };
    // 100 packets of at most 4096 bytes with their headers, and what perfquery itself sends; but not
    // OpenSM's sweeps. One comes a second after the first: OpenSM takes the links of hosts down to give
    // them LIDs, and the switches' traps of that, which nobody hears yet, are repeated after
    // SubnetTimeOut.
    let (out, home) = opensm.paused(|| {
        let before = (sent(&there), sent(&back));
        a.execute(&mut qa, &write);
        b.verify(HALF, 100_000, 7);
        let after = (sent(&there), sent(&back));
        (moved(&before.0, &after.0), moved(&before.1, &after.1))
    });
    assert_eq!((out.len(), home.len()), (3, 3));
    assert!(
        out.iter().all(|dwords| (25_000..26_000).contains(dwords)),
        "{out:?}"
    );
    assert!(home.iter().all(|&dwords| dwords < 2000), "{home:?}");

    // A datagram whose queue key is wrong is dropped and counted, and OpenSM hears of it: it reads
    // the details of the trap as we wrote them.
    const WRONG: u32 = 0x1234_5678;
    let (mut qa, qb) = (a.qp(Transport::Ud), b.qp(Transport::Ud));
    qa.activate(0, 1).expect("becomes ready");
    qb.activate(0, 1).expect("becomes ready");
    let to = AddressVector {
        lid: b.port.lid,
        qpn: qb.number(),
        qkey: WRONG,
        ..AddressVector::default()
    };
    let from = [a.sge(0, 8)];
    a.execute(
        &mut qa,
        &SendRequest::send(test_driver::Data::Memory(&from)).to(&to),
    );
    opensm.says(&format!(
        " : LID1 {a}, LID2 {b}, Q_Key 0x{WRONG:x}, \
         SL 0, QP1 0x{:x}, QP2 0x{:x}, GID1 ::",
        qa.number(),
        qb.number(),
        a = a.port.lid,
        b = b.port.lid,
    ));
    let text = programs.run(&["smpquery", "portinfo", &vm2, "1"]);
    assert!(
        text.contains("QkeyViolations:..................1"),
        "{text}"
    );
    // And a link that goes down.
    daemon.ask(&["link", "down", "vm3:1"]);
    opensm.says("\"Link state change\" from switch LID");
    daemon.ask(&["link", "up", "vm3:1"]);
    opensm.subnet_up();

    // A manager that is killed is none any more: its port says so, and another one takes over.
    drop(opensm);
    let manager = lids["subnet manager"].to_string();
    let is_sm = |programs: &Programs<'_>| {
        let text = programs.run(&["smpquery", "-D", "portinfo", "0", "1"]);
        text.contains("IsSM")
    };
    wait_until("another manager", || !is_sm(&programs));
    let next = Opensm::start(&daemon, None, &[]);
    next.subnet_up();
    assert!(is_sm(&programs));
    let text = programs.run(&["sminfo", &manager]);
    assert!(text.contains("SMINFO_MASTER"), "{text}");
}

#[test]
fn programs_beside_the_embedded_manager() {
    let daemon = Daemon::configured(nodes());
    let programs = Programs::new(&daemon);
    let text = programs.run(&["sminfo"]);
    assert!(text.contains("SMINFO_MASTER"), "{text}");
    let text = programs.run(&["ibnetdiscover"]);
    assert!(text.contains("# \"vm3\""), "{text}");
    // To the letter what the daemon says itself, but for the order of nodes.
    let output = daemon
        .command()
        .args(["topology", "--format", "ibnetdiscover"])
        .output()
        .expect("runs");
    let own = String::from_utf8(output.stdout).expect("is text");
    let nodes = |text: &str| {
        let mut nodes: Vec<String> = text.trim().split("\n\n").map(str::to_owned).collect();
        nodes.retain(|node| !node.starts_with('#'));
        nodes.sort();
        nodes
    };
    assert_eq!(nodes(&own), nodes(&text));
    // Another subnet manager finds no place where the embedded one is.
    let text = programs.fail(&["--host", "nobody", "ibstat"]);
    assert!(text.contains("there is no node `nobody`"), "{text}");

    // A VF without a driver and a switch tell of themselves.
    let lid_of = |name: &str| lids(&daemon)[name].to_string();
    let text = programs.run(&["vendstat", "-N", &lid_of("vm1")]);
    for line in [
        "hw_dev_id:   0x1017",
        "fw_version:  16.35.4030",
        "fw_psid:     'IBV0000000001'",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let text = programs.run(&["vendstat", "-N", &lid_of("sw1")]);
    assert!(text.contains("fw_version:  00.00.00"), "{text}");
    programs.fail(&["vendstat", "-w", &lid_of("sw1")]);

    // At two ports, by name and by GUID.
    let status = daemon.ask(&["status"]);
    let guid = status["vfs"][2]["port_guid"]
        .as_str()
        .expect("a GUID")
        .to_owned();
    let hexadecimal = format!("0x{}", guid.replace(':', ""));
    let text = programs.run(&["--host", &hexadecimal, "smpquery", "-D", "nodedesc", "0"]);
    assert!(text.trim_end().ends_with("vm2"), "{text}");
    let _server = programs.ping_server(&hexadecimal);
    let text = programs.run(&[
        "--host",
        "vm1",
        "ibping",
        "-f",
        "-c",
        "5",
        "-G",
        &hexadecimal,
    ]);
    assert!(
        text.contains("5 packets transmitted, 5 received, 0% packet loss"),
        "{text}"
    );

    // Many more than ibsim takes.
    let _many: Vec<_> = (0..70)
        .map(|_| programs.ping_server(&hexadecimal))
        .collect();
    let text = programs.run(&["smpquery", "-D", "nodedesc", "0"]);
    assert!(text.trim_end().ends_with("subnet manager"), "{text}");
}

#[test]
fn the_environment_for_a_shell() {
    let daemon = Daemon::configured(nodes());
    let output = daemon
        .command()
        .args(["external", "env", "--host", "vm1"])
        .output()
        .expect("runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("is text");
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!("{text}exec smpquery -D nodedesc 0");
    let output = Command::new("sh")
        .current_dir(dir.path())
        .args(["-c", &script])
        .output()
        .expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.trim_end().ends_with("vm1"), "{text} {output:?}");

    let daemon = Daemon::configured(nodes().set("external.socket", ""));
    let output = daemon
        .command()
        .args(["external", "env"])
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("remove the key, or write a name"), "{text}");
}

/// From the embedded manager to OpenSM, which has the higher priority, and back when OpenSM is
/// killed; data goes on all the time, and every byte of it is right.
#[test]
fn managers_take_turns() {
    let daemon = Daemon::configured(nodes());
    let before = lids(&daemon);
    let traffic = Bystanders::start(&daemon);
    assert_eq!(master(&daemon), before["subnet manager"]);
    let opensm = Opensm::start(&daemon, Some("vm1"), &["-p", "15"]);
    opensm.subnet_up();
    assert_eq!(master(&daemon), before["vm1"]);
    let programs = Programs::new(&daemon);
    let text = programs.run(&["saquery", "--src-to-dst", "1:2"]);
    assert!(text.contains("dlid....................2"), "{text}");
    // Who has a LID keeps it.
    assert_eq!(lids(&daemon), before);
    drop(opensm);
    await_master(&daemon, before["subnet manager"]);
    assert_eq!(lids(&daemon), before);
    let text = programs.run(&["sminfo"]);
    assert!(text.contains("SMINFO_MASTER"), "{text}");
    assert!(traffic.stop() > 0);
}

/// LID of the master, as the ports know it.
fn master(daemon: &Daemon) -> u16 {
    let status = daemon.ask(&["status"]);
    status["fabric"]["sm_lid"].as_u64().unwrap_or(0) as u16
}

fn await_master(daemon: &Daemon, lid: u16) {
    wait_until("the master", || master(daemon) == lid);
}

/// GUIDs below and above that of the embedded manager.
fn equals() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", [])
        .vf("low")
        .key("guid", "0000000000000011")
        .hypervisor("hv2", [])
        .vf("high")
        .key("guid", "fffe000000000011")
}

/// Between two OpenSMs of one priority the one with the lower GUID becomes master, whichever comes first; the other
/// takes over when that one dies.
#[test]
fn of_equals_the_lower_guid_is_master() {
    for (first, second) in [("low", "high"), ("high", "low")] {
        let daemon = Daemon::configured(equals().set("sm.manager", "external"));
        let mut managers = HashMap::new();
        let start = |name| Opensm::start(&daemon, Some(name), &["-s", "1"]);
        let manager = start(first);
        manager.subnet_up();
        managers.insert(first, manager);
        let lids = lids(&daemon);
        assert_eq!(master(&daemon), lids[first]);
        managers.insert(second, start(second));
        managers["high"].says("Entering STANDBY state");
        await_master(&daemon, lids["low"]);
        managers.remove("low");
        await_master(&daemon, lids["high"]);
    }
}

/// The same against the embedded manager.
#[test]
fn equals_of_the_embedded_manager() {
    let daemon = Daemon::configured(equals());
    let lids = lids(&daemon);
    let high = Opensm::start(&daemon, Some("high"), &[]);
    high.says("Entering STANDBY state");
    assert_eq!(master(&daemon), lids["subnet manager"]);
    drop(high);
    let low = Opensm::start(&daemon, Some("low"), &[]);
    await_master(&daemon, lids["low"]);
    low.subnet_up();
    drop(low);
    await_master(&daemon, lids["subnet manager"]);
}

/// The next OpenSM completes the first sweep of one that dies in its middle.
#[test]
fn opensm_dies_in_the_middle_of_a_sweep() {
    let daemon = external();
    let opensm = Opensm::start(&daemon, None, &[]);
    // Nodes are found; LIDs, tables and links are not yet done with.
    opensm.says("Entering MASTER state");
    drop(opensm);
    let opensm = Opensm::start(&daemon, Some("vm2"), &[]);
    opensm.subnet_up();
    let (mut vm1, vm4) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm4"));
    let (mut near, _far) = connected(Transport::Rc, &vm1, &vm4);
    vm1.fill(0, 5000, 3);
    let from = [vm1.sge(0, 5000)];
    let write = SendRequest::write(vm4.remote(HALF), Data::Memory(&from));
    vm1.execute(&mut near, &write);
    vm4.verify(HALF, 5000, 3);
}

/// The kernel says who asks: another user's program gets no answer but no.
#[test]
fn other_users_are_refused() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can be somebody else");
        return;
    }
    let daemon = Daemon::configured(nodes());
    let programs = Programs::new(&daemon);
    let text = programs.fail(&[
        "setpriv",
        "--reuid=65534",
        "--clear-groups",
        "smpquery",
        "-D",
        "nodedesc",
        "0",
    ]);
    assert!(text.contains("ctl error"), "{text}");
}

/// Whatever comes in, the daemon and the others at it go on.
#[test]
fn datagrams_that_are_none() {
    let mut daemon = Daemon::configured(nodes());
    let programs = Programs::new(&daemon);
    let base = programs.socket_name();
    let address = |name: String| SocketAddr::from_abstract_name(name).expect("an address");
    let pid = std::process::id();
    let control = UnixDatagram::bind_addr(&address(format!("{base}:ctl{pid}\0"))).expect("a name");
    control
        .connect_addr(&address(format!("{base}:ctl\0")))
        .expect("a daemon");
    let data = UnixDatagram::bind_addr(&address(format!("{base}:in{pid}\0"))).expect("a name");
    let ask = |kind: u32, client: u32, data: &[u8]| {
        let mut question = [0; 80];
        question[..4].copy_from_slice(&0xdead_beef_u32.to_ne_bytes());
        question[4..8].copy_from_slice(&client.to_ne_bytes());
        question[8..12].copy_from_slice(&kind.to_ne_bytes());
        question[16..16 + data.len()].copy_from_slice(data);
        control.send(&question).expect("is sent");
        let mut answer = [0; 80];
        assert_eq!(control.recv(&mut answer).expect("an answer"), 80);
        let word = |at| u32::from_ne_bytes(answer[at..at + 4].try_into().expect("4 bytes"));
        (word(8), word(16))
    };
    // Nobody is attached: what needs a client is refused, and what is no question is not answered.
    for kind in [2, 3, 4, 5, 6, 7, 8, 9, 10] {
        assert_eq!(ask(kind, 0, &[]).0, 0);
        assert_eq!(ask(kind, u32::MAX, &[]).0, 0);
    }
    control.send(&[1; 80]).expect("is sent");
    control.send(&[0xef; 3]).expect("is sent");
    // A client whose socket does not exist.
    assert_eq!(ask(1, 0, &1u32.to_ne_bytes()).0, 0);
    let mut connect = [0; 44];
    connect[..4].copy_from_slice(&pid.to_ne_bytes());
    connect[12..].fill(b'x');
    assert_eq!(ask(1, 0, &connect).0, 0);
    connect[12..].fill(0);
    let (kind, id) = ask(1, 0, &connect);
    assert_eq!(kind, 1);
    data.connect_addr(&address(format!("{base}:out{id}\0")))
        .expect("a client");
    // The embedded manager's place is taken.
    assert_eq!(ask(9, id, &1u32.to_ne_bytes()).0, 0);

    let mut random = Random::new(testing::seed(0x5eed));
    let mut random = || random.number();
    data.set_nonblocking(true).expect("can be");
    let mut answer = [0; 512];
    for round in 0..20_000 {
        let mut bytes = [0u8; 288];
        let length = if round % 50 == 0 { random() % 289 } else { 288 } as usize;
        for byte in &mut bytes {
            *byte = random() as u8;
        }
        // Half of them look like requests.
        if round % 2 == 0 {
            bytes[32] = 1;
            bytes[33] = [0x01, 0x03, 0x04, 0x07, 0x81][(random() % 5) as usize];
            bytes[34] = 1;
            bytes[35] = [0x01, 0x02, 0x12, 0x81][(random() % 4) as usize];
            bytes[36..40].fill(0);
        }
        while data.send(&bytes[..length]).is_err() {
            while data.recv(&mut answer).is_ok() {}
        }
        while data.recv(&mut answer).is_ok() {}
    }
    assert_eq!(ask(2, id, &[]).0, 2);
    let text = programs.run(&["sminfo"]);
    assert!(text.contains("SMINFO_MASTER"), "{text}");
    assert!(daemon.is_alive());
}

/// Node records of `ibnetdiscover`, without its comments, LIDs and order, which differ from run to
/// run; vendor and device are ibsim's own.
fn records(text: &str) -> Vec<String> {
    let mut records: Vec<String> = text
        .split("\n\n")
        .map(|record| {
            let lines = record.lines().filter(|line| {
                !line.starts_with('#') && !line.starts_with("vendid") && !line.starts_with("devid")
            });
            // Of the comments at the ends of lines, the rates.
            let line = |line: &str| match line.split_once('#') {
                Some((line, comment)) => {
                    let rate = comment.split_whitespace().next_back().unwrap_or_default();
                    let rate = if rate.contains('x') { rate } else { "" };
                    format!("{} {rate}", line.trim_end())
                }
                None => line.to_owned(),
            };
            lines.map(line).collect::<Vec<_>>().join("\n")
        })
        .filter(|record| record.contains('['))
        .collect();
    records.sort();
    records
}

/// Ports by the GUIDs of a switch and of a port that it sends to, of forwarding tables that a program has printed.
fn forwarding(text: &str) -> HashMap<(String, String), u8> {
    let guid = |line: &str, key: &str| {
        let (_, rest) = line.split_once(key)?;
        let guid = rest.get(..18)?;
        Some(guid.to_owned())
    };
    let mut switch = String::new();
    let mut found = HashMap::new();
    for line in text.lines() {
        if line.starts_with("Unicast lids") {
            switch = guid(line, " guid ").expect("a GUID");
        } else if let Some(port) = guid(line, "portguid ") {
            let out = line.split_whitespace().nth(1).expect("a port");
            found.insert((switch.clone(), port), out.parse().expect("a number"));
        }
    }
    found
}

/// Tables that OpenSM has dumped are those of the switches, whatever LIDs there are then; so are those that infiniband-diags
/// have printed.
#[test]
fn tables_of_opensm_are_taken() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let tree = topologies::FatTree::rlft(4, 16).expect("is one");
    let topology = tree.topology(topologies::Hosts::Adapters);
    std::fs::write(path("net"), topology.to_netlist().expect("is a fabric")).expect("is written");
    let subnet = || Configuration::new().set("fabric.topology", path("net"));
    let daemon = Daemon::configured(subnet().set("sm.manager", "external"));
    let opensm = Opensm::start(&daemon, None, &["-R", "updn", "-D", "0x43"]);
    opensm.subnet_up();
    let dumped = opensm.written("opensm-lfts.dump", "lids dumped");
    let printed = Programs::new(&daemon).run(&["dump_fts"]);
    let theirs = forwarding(&dumped);
    assert!(
        theirs.len() > 20 * 16,
        "all hosts, and switches where up*/down* leads"
    );
    assert_eq!(forwarding(&printed), theirs);
    drop((opensm, daemon));
    for text in [dumped, printed] {
        std::fs::write(path("lfts"), &text).expect("is written");
        let file = subnet()
            .set("sm.routing", "file")
            .set("sm.lfts_file", path("lfts"));
        let daemon = Daemon::configured(file);
        let status = daemon.ask(&["sm", "status"]);
        assert_eq!(status["errors"], serde_json::json!([]));
        assert_eq!(status["routed_by"], "file");
        let programs = Programs::new(&daemon);
        assert_eq!(forwarding(&programs.run(&["dump_fts"])), theirs);
        // One that leads nowhere is refused: the others stay.
        let last = text.rfind("Unicast lids").expect("a table");
        std::fs::write(path("lfts"), &text[..last]).expect("is written");
        let status = daemon.ask(&["sm", "reload"]);
        let why = status["errors"][0].as_str().expect("is text");
        let start = format!(
            "file cannot route this subnet: {}: no table of switch 0x",
            path("lfts")
        );
        assert!(why.starts_with(&start), "{why}");
        assert_eq!(forwarding(&programs.run(&["dump_fts"])), theirs);
    }
}

/// A fat-tree written here is to ibsim what it is here; and what `ibnetdiscover` prints here can be
/// read here again.
#[test]
fn a_file_here_and_in_ibsim() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tree.net");
    let tree = topologies::FatTree::rlft(4, 16).expect("is one");
    let text = tree
        .topology(topologies::Hosts::Adapters)
        .to_netlist()
        .expect("is a fabric");
    // ibsim has the port's GUID follow the node's.
    let text = without_port_guids(&String::from_utf8_lossy(&text));
    std::fs::write(&file, &text).expect("is written");
    let daemon = Daemon::configured(
        Configuration::new()
            .set("fabric.topology", file.display().to_string())
            .set("sm.manager", "external"),
    );
    let here = Programs::new(&daemon);
    let ours = here.run(&["ibnetdiscover"]);

    let name = format!("{}-ibsim", here.socket_name());
    let mut ibsim = Command::new("ibsim")
        .env("IBSIM_SOCKNAME", &name)
        .args(["-s", "-n"])
        .arg(&file)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("ibsim; scripts/setup installs it");
    let theirs = here.run_on(&name, &["ibnetdiscover"]);
    ibsim.kill().expect("is running");
    ibsim.wait().expect("ends");
    let (ours, theirs) = (records(&ours), records(&theirs));
    assert_eq!(ours.len(), 36);
    assert_eq!(ours, theirs);

    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    let text = here.run(&["ibnetdiscover"]);
    let read = fabric::Topology::from_netlist(&text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read.nodes().len(), 36);
    assert_eq!(
        read.links().len(),
        tree.topology(topologies::Hosts::Adapters).links().len()
    );
    // From a host to every other, by the tables.
    let lids = lids(&daemon);
    for to in ["host 2", "host 9", "host 16"] {
        trace(&here, lids["host 1"], lids[to]);
    }
}

/// A listing without the GUIDs of ports at cables.
fn without_port_guids(text: &str) -> String {
    let mut parts = text.split("](");
    let mut left = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        left.push(']');
        left.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    left
}

/// A cable of FDR10, as `ibnetdiscover` and `topology` tell it.
#[test]
fn fdr10_is_told_from_qdr() {
    let listing = "\
vendid=0x2c9
devid=0xcb20
switchguid=0x11(11)
Switch\t4 \"S-0000000000000011\"\t\t# \"sw1\" enhanced port 0 lid 0 lmc 0
[1]\t\"H-0000000000000021\"[1](22) \t\t# \"a\" lid 0 4xFDR10
[2]\t\"H-0000000000000031\"[1](32) \t\t# \"b\" lid 0 4xQDR

devid=0x1003
caguid=0x21
Ca\t1 \"H-0000000000000021\"\t\t# \"a\"
[1](22) \t\"S-0000000000000011\"[1]\t\t# lid 0 lmc 0 \"sw1\" lid 0 4xFDR10

caguid=0x31
Ca\t1 \"H-0000000000000031\"\t\t# \"b\"
[1](32) \t\"S-0000000000000011\"[2]\t\t# lid 0 lmc 0 \"sw1\" lid 0 4xQDR
";
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("net");
    std::fs::write(&file, listing).expect("is written");
    let daemon =
        Daemon::configured(Configuration::new().set("fabric.topology", file.display().to_string()));
    let here = Programs::new(&daemon);
    let own = daemon
        .run(&["topology", "--format", "ibnetdiscover"], "")
        .out;
    for text in [here.run(&["ibnetdiscover"]), own] {
        for rate in ["4xFDR10", "4xQDR"] {
            assert_eq!(text.matches(rate).count(), 2, "{text}");
        }
    }
    let json = daemon.ask(&["topology"]);
    let speeds: Vec<&str> = { json["links"].as_array().expect("a list").iter() }
        .filter_map(|link| link["speed"].as_str())
        .collect();
    assert_eq!(speeds, ["FDR10", "QDR"], "{json}");
}
