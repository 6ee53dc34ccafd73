//! VMs of two subnets, and a router between them.

use crate::daemon::{Daemon, HALF, Peer};
use serde_json::Value;
use test_driver::{
    Access, AddressVector, Connection, Data, EventType, QueuePair, SendRequest, Syndrome, Transport,
};
use testing::Configuration;
use wire::Gid;
use wire::mad::{Mad, Status};
use wire::sa::{DATA, PathRecord, Record, get};

const GRH: usize = 40;
const MAD: usize = 256;
const GSI_QKEY: u32 = 0x8001_0000;
const QKEY: u32 = 0x1122_3344;

fn subnets(model: &str) -> Configuration {
    Configuration::new()
        .set("fabric.model", model)
        .entry("subnet", "red")
        .key("prefix", "fec0:0000:0000:0001")
        .entry("subnet", "blue")
        .key("prefix", "fec0:0000:0000:0002")
        .switches(["sw1"])
        .key("subnet", "red")
        .switches(["sw2"])
        .key("subnet", "blue")
        .entry("router", "r1")
        .key("switches", ["sw1", "sw2"])
        .hypervisor("hv1", [])
        .at("sw1")
        .spare_vfs(1)
        .vf("vm1")
        .key("lid", 0x20)
        .hypervisor("hv2", [])
        .at("sw2")
        .spare_vfs(1)
        .vf("vm2")
        .key("lid", 0x20)
}

fn gid(peer: &Peer) -> Gid {
    Gid::from_bytes(peer.device.gid(0).expect("a GID"))
}

/// Returns the subnet administration's answer about the path between two GIDs.
fn path(peer: &mut Peer, dgid: Gid) -> Result<PathRecord, Status> {
    let mut qp = peer.qp(Transport::Gsi);
    qp.activate(0, GSI_QKEY).expect("becomes ready");
    let template = PathRecord {
        sgid: gid(peer),
        dgid,
        numb_path: 1,
        ..PathRecord::default()
    };
    let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
    qp.post_receive(&[peer.sge(HALF, GRH + MAD)])
        .expect("is posted");
    let port = peer.device.port().expect("is answered");
    let to = AddressVector {
        lid: port.sm_lid,
        qpn: 1,
        qkey: GSI_QKEY,
        ..AddressVector::default()
    };
    let question = get(9, mask, &template);
    peer.execute(&mut qp, &SendRequest::send(Data::Inline(&question)).to(&to));
    let entry = peer.cq.wait().expect("an answer");
    qp.complete_receive(&entry);
    let mut answer = [0; MAD];
    peer.buffer.read(HALF + GRH, &mut answer);
    match Mad::new_checked(&answer[..]).expect("a MAD").status() {
        Status::OK => Ok(PathRecord::read(&answer[DATA]).expect("a record")),
        status => Err(status),
    }
}

/// The way from one queue pair to another: LID, and destination GID with hop limit.
type Way = (u16, Option<(Gid, u8)>);

/// The way that the subnet administration names.
fn way(from: &mut Peer, to: &Peer) -> Way {
    let path = path(from, gid(to)).expect("a path");
    (path.dlid.value(), Some((path.dgid, path.hop_limit)))
}

fn connect(
    transport: Transport,
    (a, to_b): (&Peer, Way),
    (b, to_a): (&Peer, Way),
) -> [QueuePair; 2] {
    let qa = QueuePair::new(&a.config(transport)).expect("a QP");
    let qb = QueuePair::new(&b.config(transport)).expect("a QP");
    for (qp, (lid, global), number) in [(&qa, to_b, qb.number()), (&qb, to_a, qa.number())] {
        let mut to = Connection::to(lid, number);
        // 17 ms: whoever gets no answer is to notice soon, and who gets one is to have it by then.
        to.ack_timeout = 12;
        if let Some((gid, hop_limit)) = global {
            to.gid = Some(gid.to_bytes());
            to.hop_limit = hop_limit;
        }
        qp.connect(Access::ALL, &to).expect("connects");
    }
    [qa, qb]
}

/// Writes, reads and sends both ways.
fn transfer(a: &mut Peer, b: &mut Peer) {
    let ways = (way(a, b), way(b, a));
    for transport in [Transport::Rc, Transport::Uc] {
        let [mut qa, mut qb] = connect(transport, (a, ways.0), (b, ways.1));
        for (len, seed) in [(1, 1), (4096, 2), (100_000, 3)] {
            a.fill(0, len, seed);
            let from = [a.sge(0, len)];
            let write = SendRequest::write(b.remote(HALF), Data::Memory(&from));
            a.execute(&mut qa, &write);
            b.arrives(HALF, len, seed);
            b.fill(0, len, seed + 10);
            qa.post_receive(&[a.sge(HALF, len)]).expect("is posted");
            let from = [b.sge(0, len)];
            b.execute(&mut qb, &SendRequest::send(Data::Memory(&from)));
            let entry = a.cq.wait().expect("a completion");
            qa.complete_receive(&entry);
            a.arrives(HALF, len, seed + 10);
        }
    }
}

/// Packets that the router's port in the first subnet has got nowhere with.
fn errors_of_the_router(daemon: &Daemon) -> u64 {
    let counters = daemon.ask(&["counters"]);
    let nodes = counters["nodes"].as_array().expect("nodes");
    let router = nodes.iter().find(|node| node["name"] == "r1");
    let ports = &router.expect("is there")["ports"];
    ports[0]["errors"]["rcv_errors"].as_u64().unwrap_or(0)
}

#[test]
fn vms_of_two_subnets_talk_through_the_router() {
    let daemon = Daemon::configured(subnets("vswitch-prepopulated"));
    let (mut vm1, mut vm2) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    // Each subnet has its own LIDs.
    assert_eq!((vm1.port.lid, vm2.port.lid), (0x20, 0x20));
    assert_eq!(gid(&vm1).prefix(), 0xfec0_0000_0000_0001);
    assert_eq!(gid(&vm2).prefix(), 0xfec0_0000_0000_0002);
    let to_vm2 = path(&mut vm1, gid(&vm2)).expect("a path");
    assert_ne!(to_vm2.dlid.value(), vm2.port.lid);
    assert_eq!((to_vm2.dgid, to_vm2.hop_limit), (gid(&vm2), 255));
    transfer(&mut vm1, &mut vm2);
    transfer(&mut vm2, &mut vm1);
    let unknown = Gid::new(0xfec0_0000_0000_0003, gid(&vm2).guid());
    assert_eq!(path(&mut vm1, unknown), Err(Status::SA_INVALID_GID));

    // A datagram has the last router's LID, and a lower hop limit.
    let (mut qa, mut qb) = (vm1.qp(Transport::Ud), vm2.qp(Transport::Ud));
    for qp in [&qa, &qb] {
        qp.activate(0, QKEY).expect("becomes ready");
    }
    vm1.fill(0, 64, 7);
    let from = [vm1.sge(0, 64)];
    let router = to_vm2.dlid.value();
    let (there, back) = (gid(&vm2), way(&mut vm2, &vm1).0);
    let to = |global| AddressVector {
        lid: router,
        qpn: qb.number(),
        qkey: QKEY,
        global,
        ..AddressVector::default()
    };
    let with = |hop_limit| to(Some((there.to_bytes(), hop_limit)));
    let ends = [to(None), with(0), with(1), with(9)];
    qb.post_receive(&[vm2.sge(HALF, GRH + 64)])
        .expect("is posted");
    for to in ends {
        let request = SendRequest::send(Data::Memory(&from)).to(&to);
        vm1.execute(&mut qa, &request);
    }
    let entry = vm2.cq.wait().expect("a completion");
    qb.complete_receive(&entry);
    assert_eq!(
        (entry.source_lid(), entry.source_qpn()),
        (back, qa.number())
    );
    vm2.verify(HALF + GRH, 64, 7);
    let mut header = [0; GRH];
    vm2.buffer.read(HALF, &mut header);
    assert_eq!(header[7], 8);
    assert_eq!(header[8..24], gid(&vm1).to_bytes());
    assert_eq!(header[24..], there.to_bytes());
    assert_eq!(vm2.cq.poll().map(|_| ()), None, "one of them arrives");
    assert_eq!(errors_of_the_router(&daemon), 2);
}

#[test]
fn a_connection_without_a_global_route_ends_at_the_router() {
    let daemon = Daemon::configured(subnets("vswitch-prepopulated"));
    let (mut vm1, mut vm2) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    let ways = (way(&mut vm1, &vm2), way(&mut vm2, &vm1));
    let (router, dgid) = (ways.0.0, gid(&vm2));
    for to_vm2 in [
        (router, None),
        (router, Some((dgid, 1))),
        (vm2.port.lid, None),
    ] {
        // Both VMs have the same LID. Were the numbers, which are random, the same as well, the
        // queue pair would be connected to itself.
        let [mut qa, _qb] = loop {
            let pair = connect(Transport::Rc, (&vm1, to_vm2), (&vm2, ways.1));
            if pair[0].number() != pair[1].number() {
                break pair;
            }
        };
        let from = [vm1.sge(0, 8)];
        let write = SendRequest::write(vm2.remote(HALF), Data::Memory(&from));
        qa.post_send(&write).expect("is posted");
        let entry = vm1.sent(&mut qa);
        assert_eq!(entry.syndrome(), Syndrome::RetryExceeded, "{to_vm2:?}");
    }
    // A responder listens to its own peer only.
    let stranger = Gid::new(gid(&vm1).prefix(), gid(&vm2).guid());
    let wrong = (ways.1.0, Some((stranger, 255)));
    let [mut qa, _qb] = connect(Transport::Rc, (&vm1, ways.0), (&vm2, wrong));
    let from = [vm1.sge(0, 8)];
    let write = SendRequest::write(vm2.remote(HALF), Data::Memory(&from));
    qa.post_send(&write).expect("is posted");
    assert_eq!(vm1.sent(&mut qa).syndrome(), Syndrome::RetryExceeded);
}

#[test]
fn a_vm_that_moves_to_another_subnet_gets_its_prefix() {
    for model in ["vswitch-prepopulated", "vswitch-dynamic"] {
        let daemon = Daemon::configured(subnets(model));
        let (mut vm1, mut vm2) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
        let waiting = daemon.open("hv2-spare1");
        let before = gid(&vm1);
        transfer(&mut vm1, &mut vm2);
        let moved = daemon.ask(&["vf", "migrate", "vm1", "--to", "hv2"]);
        assert_eq!(moved["to"]["vf"], "hv2-spare1");
        assert_eq!(moved["guid"], before.guid().to_string());
        assert_ne!(moved["lid"], 0x20, "that is another VM's here");

        // Its new place is told, and so is the one that it has left.
        let told = waiting.wait_event().expect("an event");
        assert_eq!(told.kind(), EventType::PortChange);
        let mut vm1 = Peer::new(waiting);
        assert_eq!(gid(&vm1), Gid::new(0xfec0_0000_0000_0002, before.guid()));
        assert_eq!(moved["lid"], vm1.port.lid);
        let path_to_it = path(&mut vm2, gid(&vm1)).expect("a path");
        assert_eq!(
            (path_to_it.dlid.value(), path_to_it.hop_limit),
            (vm1.port.lid, 0)
        );
        transfer(&mut vm1, &mut vm2);
        // The former address is nobody's.
        let former = path(&mut vm2, before).expect("the router's");
        let mut qa = vm2.qp(Transport::Ud);
        qa.activate(0, QKEY).expect("becomes ready");
        let to = AddressVector {
            lid: former.dlid.value(),
            qpn: 77,
            qkey: QKEY,
            global: Some((before.to_bytes(), 255)),
            ..AddressVector::default()
        };
        vm2.execute(&mut qa, &SendRequest::send(Data::Inline(b"lost")).to(&to));

        // And home again.
        let moved = daemon.ask(&["vf", "migrate", "vm1", "--to", "hv1"]);
        assert_eq!(moved["from"]["vf"], "hv2-spare1");
        let status = daemon.ask(&["vf", "show", "vm1"]);
        assert_eq!(status["port_guid"], before.guid().to_string());
        assert_eq!(
            (&status["subnet"], &status["state"]),
            (&"red".into(), &"Active".into())
        );
    }
}

#[test]
fn every_command_says_which_subnet() {
    let daemon = Daemon::configured(subnets("vswitch-prepopulated"));
    let status = daemon.ask(&["status"]);
    let names = |list: &Value| -> Vec<Value> {
        let list = list.as_array().expect("a list").iter();
        list.map(|entry| entry["name"].clone()).collect()
    };
    assert_eq!(names(&status["fabric"]["subnets"]), ["red", "blue"]);
    assert_eq!(status["vfs"][0]["subnet"], "red");
    let all = daemon.ask(&["sm", "sweep"]);
    let managers = all.as_array().expect("a list");
    let of: Vec<&Value> = managers.iter().map(|manager| &manager["subnet"]).collect();
    assert_eq!(of, ["red", "blue"]);
    for manager in managers {
        assert_eq!(manager["errors"], serde_json::json!([]));
        // A switch and a vSwitch; two VFs, the manager and the router.
        assert_eq!(
            (&manager["switches"], &manager["adapters"]),
            (&2.into(), &4.into())
        );
    }
    let one = daemon.ask(&["sm", "status", "--subnet", "blue"]);
    assert_eq!(one["subnet"], "blue");
    let unknown = daemon
        .command()
        .args(["sm", "status", "--subnet", "green"])
        .output();
    let unknown = unknown.expect("runs");
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(
        said.contains("there is no subnet `green`; there are red, blue"),
        "{said}"
    );
    let topology = daemon.ask(&["topology"]);
    let nodes = topology["nodes"].as_array().expect("nodes");
    let subnet_of = |name: &str| {
        let node = nodes.iter().find(|node| node["name"] == name);
        node.expect("is there")["subnet"].clone()
    };
    assert_eq!(subnet_of("vm2"), "blue");
    assert_eq!(subnet_of("subnet manager red"), "red");
    let router = nodes
        .iter()
        .find(|node| node["kind"] == "router")
        .expect("is there");
    let reason = router["reason"].as_str().expect("text");
    assert!(
        reason.contains("in red; LID") && reason.ends_with("in blue"),
        "{reason}"
    );
    let text = daemon.command().arg("topology").output().expect("runs");
    let text = String::from_utf8(text.stdout).expect("is text");
    assert!(
        text.contains("router r1") && text.contains("in blue: "),
        "{text}"
    );
    let refused = daemon
        .command()
        .args(["vf", "migrate", "vm1", "--to", "hv2", "--method", "copy"])
        .output();
    let said = String::from_utf8_lossy(&refused.expect("runs").stderr).into_owned();
    assert!(
        said.contains("hv2 is in another subnet than `vm1`"),
        "{said}"
    );
}
