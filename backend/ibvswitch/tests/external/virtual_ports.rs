//! Virtual ports beside Debian's opensm and infiniband-diags, which do not know them.

use crate::daemon::{Daemon, Peer};
use crate::programs::{Opensm, Programs};
use crate::shared_port::transfer_to;
use ibsim::Attachment;
use ibsim::protocol::{DATAGRAM_SIZE, Datagram};
use testing::{Configuration, wait_until};
use wire::attribute::GuidInfo;
use wire::mad::{Method, Status};
use wire::sa::{self, GuidInfoRecord};
use wire::{Guid, MadPacket};

/// `vm1` shares the LID of its port, the others have LIDs of their own.
fn nodes() -> Configuration {
    Configuration::new()
        .set("fabric.model", "virtualized")
        .hypervisor("hv1", [])
        .vf("vm1")
        .vf("vm2")
        .key("address", "dedicated")
        .hypervisor("hv2", [])
        .spare_vfs(1)
        .vf("vm3")
        .key("address", "dedicated")
}

fn state(daemon: &Daemon, vf: &str) -> String {
    daemon.vf(vf)["state"].as_str().expect("a state").to_owned()
}

fn lid(daemon: &Daemon, node: &str) -> u16 {
    daemon.node(node)["lid"].as_u64().expect("a LID") as u16
}

/// The embedded manager brings them up; who knows LIDs alone reaches those that have one.
#[test]
fn virtual_ports_with_lids_are_reached_by_them() {
    let daemon = Daemon::configured(nodes());
    let [vm1, mut vm2, mut vm3] = ["vm1", "vm2", "vm3"].map(|name| Peer::open(&daemon, name));
    let needs = [&vm1, &vm2, &vm3].map(|peer| peer.port.grh_required);
    assert_eq!(needs, [true, false, false]);
    let hv1 = lid(&daemon, "hv1");
    assert_eq!(vm1.port.lid, hv1);
    assert!(vm2.port.lid != hv1 && vm3.port.lid != lid(&daemon, "hv2"));
    vm2.write_to(&vm3);
    vm3.write_to(&vm2);
    let programs = Programs::new(&daemon);
    // A hypervisor is one adapter with one port.
    let text = programs.run(&["ibnetdiscover", "-l"]);
    let adapters = text.lines().filter(|line| line.starts_with("Ca")).count();
    assert_eq!(adapters, 3, "{text}");
    // Its switch has an entry for the LID of the virtual port.
    let routes = programs.run(&["ibroute", &lid(&daemon, "sw1").to_string()]);
    assert!(
        routes.contains(&format!("0x{:04x}", vm2.port.lid)),
        "{routes}"
    );
    let gid = |peer: &Peer| gid_of(peer.port.port_guid);
    for (to, hops) in [(&vm1, 1), (&vm2, 0)] {
        let path = programs.run(&["saquery", "PR", "--sgid", &gid(&vm3), "--dgid", &gid(to)]);
        let path = path.replace('.', "");
        assert!(path.contains(&format!("dlid{}\n", to.port.lid)), "{path}");
        assert!(
            path.contains(&format!("hop_flow_raw0x{hops:x}\n")),
            "{path}"
        );
    }
    // A VM that moves takes its LID along.
    let moved = daemon.ask(&["vf", "migrate", "vm2", "--to", "hv2"]);
    assert_eq!(moved["lid"], vm2.port.lid);
    let mut there = Peer::open(&daemon, "hv2-spare1");
    let same = (there.port.lid, there.port.port_guid);
    assert_eq!(same, (vm2.port.lid, vm2.port.port_guid));
    vm3.write_to(&there);
    there.write_to(&vm3);
    wait_until("nobody is at vm2", || state(&daemon, "vm2") == "Down");
    let topology = daemon.ask(&["topology"]).to_string();
    assert!(
        topology.contains("of hv2, with a LID of its own"),
        "{topology}"
    );
}

fn gid_of(guid: u64) -> String {
    let words = [48, 32, 16, 0].map(|shift| format!("{:x}", guid >> shift & 0xffff));
    format!("fe80::{}", words.join(":"))
}

/// A program at the manager's host asks the subnet administration for an alias GUID of the virtual port with this LID.
fn register(programs: &Programs, lid: u16, alias: u64) {
    let program = Attachment::new(&programs.socket_name(), None).expect("is attached");
    let guids = std::array::from_fn(|entry| Guid::new(if entry == 1 { alias } else { 0 }));
    let record = GuidInfoRecord {
        lid: lid.into(),
        block: 0,
        guid_info: GuidInfo::from_entries(guids).to_bytes(),
    };
    let manager = program.port_info().expect("is told").master_sm_lid;
    let request = Datagram {
        dlid: manager.value(),
        slid: 0,
        dqp: 1,
        sqp: 1,
        mad: sa::with_record(Method::SET, 1, 0b10_0011, &record),
    };
    program.socket().send(&request.emit()).expect("is sent");
    let mut answer = [0; DATAGRAM_SIZE];
    program.socket().recv(&mut answer).expect("an answer");
    let mad = Datagram::parse(&answer).mad;
    let packet = MadPacket::smp(manager, manager, mad);
    assert_eq!(packet.header().status(), Status::OK);
}

/// It is in the VM's table, in records and in paths, and data goes by it.
#[test]
fn a_vm_has_an_alias_guid() {
    const ALIAS: u64 = 0x0600_0000_0000_0071;
    let daemon = Daemon::configured(nodes());
    let [vm2, mut vm3] = ["vm2", "vm3"].map(|name| Peer::open(&daemon, name));
    let programs = Programs::new(&daemon);
    register(&programs, vm2.port.lid, ALIAS);
    let table = || vm2.device.gid(1).expect("is told");
    wait_until("the VM has it", || table()[8..] == ALIAS.to_be_bytes());
    let [own, alias] = [vm2.port.port_guid, ALIAS].map(|guid| format!("{guid:016x}"));
    let records = programs.run(&["saquery", "GIR", &vm2.port.lid.to_string()]);
    let records = records.replace(':', "");
    assert!(
        records.contains(&own) && records.contains(&alias),
        "{records}"
    );
    let node = programs.run(&["saquery", "NR", &vm2.port.lid.to_string()]);
    assert!(node.contains("vm2") && node.contains(&own), "{node}");
    let (from, to) = (gid_of(vm3.port.port_guid), gid_of(ALIAS));
    let path = programs.run(&["saquery", "PR", "--sgid", &from, "--dgid", &to]);
    let path = path.replace('.', "");
    let expected = [
        format!("dlid{}\n", vm2.port.lid),
        "hop_flow_raw0x1\n".to_owned(),
    ];
    assert!(expected.iter().all(|line| path.contains(line)), "{path}");
    transfer_to(&mut vm3, &vm2, table());
}

/// VMs of clusters are told apart by LIDs: their virtual ports have some, and the port needs no range.
#[test]
fn a_cluster_at_virtual_ports() {
    let daemon = Daemon::configured(
        Configuration::new()
            .set("fabric.model", "virtualized")
            .clusters(["c"])
            .hypervisor("hv1", ["other"])
            .member("a1", "c")
            .member("a2", "c"),
    );
    let [mut a1, a2, other] = ["a1", "a2", "other"].map(|name| Peer::open(&daemon, name));
    let seen = [&a1, &a2].map(|peer| (peer.port.lid, peer.port.grh_required));
    assert_eq!(seen, [(1, false), (2, false)]);
    assert_eq!(other.port.lid, lid(&daemon, "hv1"));
    a1.write_to(&a2);
}

/// OpenSM manages the ports; what is virtual stays Down, as on hardware.
#[test]
fn opensm_leaves_virtual_ports_down() {
    let daemon = Daemon::configured(nodes().set("sm.manager", "external"));
    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    let programs = Programs::new(&daemon);
    for name in ["hv1", "hv2"] {
        let info = programs.run(&["smpquery", "portinfo", &lid(&daemon, name).to_string(), "1"]);
        let info = info.replace('.', "");
        assert!(info.contains("LinkState:Active"), "{info}");
        // libibmad knows the bit by which a port announces them.
        assert!(info.contains("IsVirtualizationSupported"), "{info}");
    }
    opensm.sweep();
    opensm.subnet_up();
    for vf in ["vm1", "vm2", "vm3"] {
        assert_eq!(state(&daemon, vf), "Down", "{vf}");
    }
    let topology = daemon.ask(&["topology"]).to_string();
    assert!(
        topology.contains("no subnet manager has enabled virtual ports"),
        "{topology}"
    );
    let status = daemon.ask(&["status"]).to_string();
    assert!(status.contains("does not know virtual ports"), "{status}");
}
