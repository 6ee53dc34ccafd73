//! Debian's opensm and infiniband-diags, as they are, on a subnet of shared ports.

use crate::administration::{Vm, group, report, subscribe};
use crate::daemon::{Daemon, HALF, Peer, clusters_at_shared_ports};
use crate::programs::{Opensm, Programs};
use test_driver::{Access, Connection, Data, QueuePair, SendRequest, Transport};
use testing::Configuration;

fn nodes() -> Configuration {
    Configuration::new()
        .set("fabric.model", "shared-port")
        .hypervisor("hv1", ["vm1", "vm2"])
        .hypervisor("hv2", ["vm3"])
        .spare_vfs(1)
}

/// A GID as the programs print and take it.
fn gid(peer: &Peer) -> String {
    format!("fe80::{}", words(peer.port.port_guid))
}

fn words(guid: u64) -> String {
    let words = [48, 32, 16, 0].map(|shift| format!("{:x}", guid >> shift & 0xffff));
    words.join(":")
}

/// Writes from one to the other, by GIDs.
fn transfer(a: &mut Peer, b: &Peer) {
    transfer_to(a, b, b.gid());
}

/// Writes from one to the other, to this GID of the other.
pub fn transfer_to(a: &mut Peer, b: &Peer, gid: [u8; 16]) {
    let (mut qa, qb) = (a.qp(Transport::Rc), b.qp(Transport::Rc));
    let connect = |qp: &QueuePair, peer: &Peer, gid: [u8; 16], number: u32| {
        let to = Connection {
            gid: Some(gid),
            ..Connection::to(peer.port.lid, number)
        };
        qp.connect(Access::ALL, &to).expect("connects");
    };
    connect(&qa, b, gid, qb.number());
    connect(&qb, a, a.gid(), qa.number());
    a.fill(0, 5000, 3);
    let from = [a.sge(0, 5000)];
    let write = SendRequest::write(b.remote(HALF), Data::Memory(&from));
    a.execute(&mut qa, &write);
    b.verify(HALF, 5000, 3);
}

/// Checks the output of the programs, under any manager.
fn looked_at(daemon: &Daemon) {
    let [mut vm1, vm2, mut vm3] = ["vm1", "vm2", "vm3"].map(|name| Peer::open(daemon, name));
    assert_eq!(vm1.port.lid, vm2.port.lid);
    transfer(&mut vm1, &vm2);
    transfer(&mut vm3, &vm2);
    let programs = Programs::new(daemon);
    // One port with one LID where three VFs are, as such hardware looks.
    let text = programs.run(&["ibnetdiscover", "-l"]);
    let adapters: Vec<&str> = text.lines().filter(|line| line.starts_with("Ca")).collect();
    assert_eq!(adapters.len(), 3, "{text}");
    assert!(!text.contains("vm1") && text.contains("\"hv1\""), "{text}");
    let lid = vm1.port.lid.to_string();
    let info = programs.run(&["smpquery", "portinfo", &lid]);
    assert!(
        info.contains("GuidCap:.........................8"),
        "{info}"
    );
    let guids = programs.run(&["smpquery", "guidinfo", &lid]);
    for peer in [&vm1, &vm2] {
        let guid = format!("{:016x}", peer.port.port_guid);
        assert!(guids.contains(&guid), "{guid} in {guids}");
    }
    // A path to a VF is one to the LID of its port.
    let (from, to) = (gid(&vm3), gid(&vm2));
    let path = programs.run(&["saquery", "PR", "--sgid", &from, "--dgid", &to]);
    let says = |name: &str, value: &str| {
        let mut lines = path.lines().map(|line| line.trim().replace('.', ""));
        lines.any(|line| line == format!("{name}{value}"))
    };
    assert!(
        says("dlid", &lid) && says("slid", &vm3.port.lid.to_string()),
        "{path}"
    );
    let table = programs.run(&["saquery", "GIR", &lid]);
    let guid = format!("{:016x}", vm2.port.port_guid);
    assert!(table.replace(':', "").contains(&guid), "{guid} in {table}");
    // A VM that moves is found at the other port, with any manager.
    let moved = daemon.ask(&["vf", "migrate", "vm1", "--to", "hv2"]);
    assert_eq!(moved["lid"], vm3.port.lid);
    let there = Peer::open(daemon, "hv2-spare1");
    assert_eq!(there.port.port_guid, vm1.port.port_guid);
    transfer(&mut vm3, &there);
    let path = programs.run(&["saquery", "PR", "--sgid", &to, "--dgid", &gid(&vm1)]);
    let dlid = format!("dlid{}", vm3.port.lid);
    assert!(path.replace('.', "").contains(&dlid), "{path}");
}

#[test]
fn opensm_manages_shared_ports() {
    let daemon = Daemon::configured(nodes().set("sm.manager", "external"));
    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    looked_at(&daemon);
}

/// VFs with a LID of their own beside such that share one: OpenSM knows the ones as adapters behind a
/// vSwitch, and the others by the GUIDs of the physical function's port.
#[test]
fn opensm_manages_a_hybrid_subnet() {
    fn hybrid() -> Configuration {
        Configuration::new()
            .set("fabric.model", "vswitch-hybrid")
            .set("sm.manager", "external")
            .hypervisor("hv1", [])
            .vf("vm1")
            .key("address", "shared")
            .vf("vm2")
            .key("address", "shared")
            .vf("vm3")
            .hypervisor("hv2", [])
            .spare_vfs(1)
    }
    let daemon = Daemon::configured(hybrid());
    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    let [mut vm1, vm2, mut vm3] = ["vm1", "vm2", "vm3"].map(|name| Peer::open(&daemon, name));
    assert_eq!(vm1.port.lid, vm2.port.lid);
    assert_ne!(vm1.port.lid, vm3.port.lid);
    transfer(&mut vm1, &vm3);
    transfer(&mut vm3, &vm2);
    let programs = Programs::new(&daemon);
    let text = programs.run(&["ibnetdiscover", "-l"]);
    for name in ["vm3", "hv1-pf", "hv1"] {
        assert!(text.contains(&format!("\"{name}\"")), "{name} in {text}");
    }
    assert!(!text.contains("vm1") && !text.contains("vm2"), "{text}");
    // OpenSM knows nothing of what the configuration says of LIDs.
    let topology = daemon.ask(&["topology"]).to_string();
    assert!(!topology.contains("set in the configuration"), "{topology}");
    // The one with a LID of its own takes it along.
    let moved = daemon.ask(&["vf", "migrate", "vm3", "--to", "hv2", "--wait", "60"]);
    assert_eq!(moved["lid"], vm3.port.lid);
    let mut there = Peer::open(&daemon, "hv2-spare1");
    assert_eq!(there.port.lid, vm3.port.lid);
    transfer(&mut there, &vm2);
}

#[test]
fn the_embedded_manager_does_likewise() {
    let daemon = Daemon::configured(nodes());
    looked_at(&daemon);
}

/// VMs that share a LID and ask without global routes are one subscriber to the subnet administration:
/// each hears of what it has subscribed to, and nobody ends it for another.
///
/// libumad2sim leaves the P_Key index of a sender unset, by which OpenSM may take the two for different subscribers:
/// then it reports twice, and goes on after the end of one.
fn events(daemon: &Daemon, is_opensm: bool) {
    const REFUSED: [u8; 2] = [2, 0];
    let [mut vm1, mut vm2, mut vm3] = ["vm1", "vm2", "vm3"].map(|name| Vm::open(daemon, name));
    (vm1.may_hear_more, vm2.may_hear_more) = (is_opensm, is_opensm);
    let gid = group::gid(1);
    let (created, deleted) = (([0, 66], gid), ([0, 67], gid));
    assert_eq!(subscribe(&mut vm1, true), [0, 0]);
    assert_eq!(subscribe(&mut vm2, true), [0, 0]);
    for vm in [&mut vm1, &mut vm2] {
        vm.post_receive();
    }
    group::join(&mut vm3, gid);
    for vm in [&mut vm1, &mut vm2] {
        assert_eq!(report(vm), created);
    }
    assert_eq!(subscribe(&mut vm1, false), [0, 0]);
    vm2.post_receive();
    group::leave(&mut vm3, gid);
    assert_eq!(report(&mut vm2), deleted);
    // It was not told, or that would come before the answer.
    assert_eq!(subscribe(&mut vm1, false), REFUSED);
    vm2.post_receive();
    group::join(&mut vm3, gid);
    assert_eq!(report(&mut vm2), created);
    // The last one's end is the subnet administration's.
    let last = subscribe(&mut vm2, false);
    assert!(last == [0, 0] || is_opensm, "{last:?}");
    group::leave(&mut vm3, gid);
    let once_more = subscribe(&mut vm2, false);
    assert!(once_more == REFUSED || is_opensm, "{once_more:?}");
}

#[test]
fn events_are_for_all_who_subscribed_at_a_port() {
    events(&Daemon::configured(nodes()), false);
}

#[test]
fn events_are_for_all_who_subscribed_at_a_port_with_opensm() {
    let daemon = Daemon::configured(nodes().set("sm.manager", "external"));
    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    events(&daemon, true);
}

/// A question to the base LID without a global route is for the physical function, as on hardware: for
/// the program of the host that is there, not for the VMs.
#[test]
fn questions_to_a_shared_lid_are_the_physical_functions() {
    let daemon = Daemon::configured(nodes());
    let vm1 = Peer::open(&daemon, "vm1");
    let programs = Programs::new(&daemon);
    let lid = vm1.port.lid.to_string();
    let ping = |expected: &str| {
        let ping = [
            "--host", "hv2", "ibping", "-f", "-c", "1", "-t", "100", &lid,
        ];
        let text = programs.run(&ping);
        assert!(text.contains(expected), "{text}");
    };
    ping("1 packets transmitted, 0 received");
    let _server = programs.ping_server(&node_guid(&daemon, "hv1"));
    ping("1 packets transmitted, 1 received");
}

/// A node's port GUID, as programs take it.
fn node_guid(daemon: &Daemon, name: &str) -> String {
    let guid = &daemon.node(name)["port_guid"];
    format!("0x{}", guid.as_str().expect("a GUID").replace(':', ""))
}

/// LIDs of a port's range, whoever has given the port so many: by LIDs alone in each cluster, and with
/// the programs of the host, which see the subnet's LIDs.
fn ranges(daemon: &Daemon) {
    let [mut a1, a2, mut b1, b2] = ["a1", "a2", "b1", "b2"].map(|name| Peer::open(daemon, name));
    let out1 = Peer::open(daemon, "out1");
    let seen = [&a1, &a2, &b1, &b2].map(|peer| (peer.port.lid, peer.port.grh_required));
    assert_eq!(seen, [(1, false), (2, false), (1, false), (2, false)]);
    a1.write_to(&a2);
    b1.write_to(&b2);
    let lid = |name| daemon.lid(name);
    let base = out1.port.lid;
    assert_eq!(base % 4, 0);
    assert_eq!([lid("a1"), lid("b1")], [base + 1, base + 2]);
    // The port answers for each of its LIDs.
    let programs = Programs::new(daemon);
    for own in base..base + 4 {
        let info = programs.run(&["smpquery", "portinfo", &own.to_string()]);
        assert!(
            info.contains("LMC:.............................2"),
            "{info}"
        );
        assert!(
            info.contains(&format!("Lid:.............................{base}\n")),
            "{info}"
        );
    }
    let route = programs.run(&["ibtracert", &lid("a2").to_string(), &lid("a1").to_string()]);
    assert!(
        route.contains("\"hv1\"") && route.contains("\"hv2\""),
        "{route}"
    );
    // A VM that moves is found by the same LID of its cluster, with any manager.
    let moved = daemon.ask(&["vf", "migrate", "a1", "--to", "hv2"]);
    assert_eq!(moved["lid"], lid("a2") + 2);
    let mut there = Peer::open(daemon, "hv2-spare1");
    assert_eq!(there.port.lid, 1);
    there.write_to(&a2);
}

#[test]
fn opensm_gives_ports_their_ranges() {
    let daemon = Daemon::configured(clusters_at_shared_ports().set("sm.manager", "external"));
    let opensm = Opensm::start(&daemon, None, &["-l", "2"]);
    opensm.subnet_up();
    ranges(&daemon);
}

#[test]
fn the_embedded_manager_gives_ports_their_ranges() {
    ranges(&Daemon::configured(
        clusters_at_shared_ports().set("sm.lmc", 2),
    ));
}

/// A manager that gives each port one LID leaves VMs of clusters without, and `topology` says why.
#[test]
fn without_a_range_there_is_no_lid_for_a_cluster() {
    let daemon = Daemon::configured(clusters_at_shared_ports().set("sm.manager", "external"));
    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    let _out1 = Peer::open(&daemon, "out1");
    let a1 = daemon.open("a1");
    assert_ne!(a1.port().expect("a port").state, 4, "not Active");
    // Its GUID may still be on its way.
    loop {
        let node = daemon.node("a1");
        let reason = node["reason"].as_str().expect("a text");
        if reason.starts_with("its GUID is not registered") {
            continue;
        }
        assert!(node["lid"].is_null());
        assert_eq!(
            reason,
            "of a cluster, at place 1 of hv1, which with an LMC of 0 has 0 LIDs beside its own"
        );
        break;
    }
}

/// A program at the physical function has what comes to the base LID, and nothing of what comes to a VM.
#[test]
fn programs_at_the_port_are_not_at_the_lids_of_vms() {
    const GSI_QKEY: u32 = 0x8001_0000;
    let daemon = Daemon::configured(clusters_at_shared_ports().set("sm.lmc", 2));
    let [mut a1, mut a2, out1] = ["a1", "a2", "out1"].map(|name| Peer::open(&daemon, name));
    let programs = Programs::new(&daemon);
    let _server = programs.ping_server(&node_guid(&daemon, "hv1"));
    let base = out1.port.lid.to_string();
    let text = programs.run(&["--host", "hv2", "ibping", "-c", "3", &base]);
    assert!(text.contains("3 packets transmitted, 3 received"), "{text}");
    // A ping as of ibping, to the VM.
    let mut ping = [0; 256];
    ping[..4].copy_from_slice(&[1, 0x32, 1, 1]);
    ping[8..16].copy_from_slice(&9_u64.to_be_bytes());
    let [mut q1, mut q2] = [&a1, &a2].map(|peer| {
        let qp = peer.qp(Transport::Gsi);
        qp.activate(0, GSI_QKEY).expect("becomes ready");
        qp
    });
    q1.post_receive(&[a1.sge(HALF, 296)]).expect("is posted");
    let to = test_driver::AddressVector {
        lid: 1,
        qpn: 1,
        qkey: GSI_QKEY,
        ..test_driver::AddressVector::default()
    };
    a2.execute(&mut q2, &SendRequest::send(Data::Inline(&ping)).to(&to));
    let entry = a1.cq.wait().expect("a completion");
    q1.complete_receive(&entry);
    let mut found = [0; 256];
    a1.buffer.read(HALF + 40, &mut found);
    assert_eq!((entry.source_lid(), found), (2, ping));
}
