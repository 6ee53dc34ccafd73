//! Two virtual clusters on one subnet, each with LIDs from 1, and a VM outside of both.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::daemon::{Daemon, HALF, Peer, connected};
use test_driver::{
    Access, AddressVector, Connection, CqeKind, Data, SendRequest, Syndrome, Transport,
};
use testing::{Configuration, Toml};

const GRH: usize = 40;
const MAD: usize = 256;
const GSI_QKEY: u32 = 0x8001_0000;
const SM_LID: u16 = 0x1234;

fn configuration() -> Configuration {
    Configuration::new()
        .set("partitions.one", 0x0011)
        .set("partitions.two", 0x0012)
        .clusters(["a"])
        .key("sm_lid", 0x1234)
        .clusters(["b"])
        .hypervisor("hv1", [])
        .member("a1", "a")
        .member("b1", "b")
        .key("vlid", 2)
        .key("pkeys", ["default", "one"])
        .key("virtual_pkeys", Toml(r#"["default", 0x8022]"#))
        .vf("outside")
        .key("lid", 2)
        .hypervisor("hv2", [])
        .member("a2", "a")
        .member("b2", "b")
        .key("vlid", 1)
        .key("pkeys", ["default", "two", "one"])
        .key("virtual_pkeys", Toml(r#"["default", 0x8011, 0x8033]"#))
}

#[test]
fn two_clusters_with_the_same_lids() {
    let daemon = Daemon::configured(configuration());
    let open = |name| Peer::open(&daemon, name);
    let (mut a1, a2, mut b1, b2) = (open("a1"), open("a2"), open("b1"), open("b2"));
    let ports = [&a1, &a2, &b1, &b2].map(|peer| (peer.port.lid, peer.port.lmc));
    assert_eq!(ports, [(1, 0), (2, 0), (2, 0), (1, 0)]);
    assert_eq!((a1.port.sm_lid, b1.port.sm_lid), (SM_LID, 0xbfff));
    // What the port says of itself by its agent is the same.
    let mut get = [0; MAD];
    get[..4].copy_from_slice(&[1, 0x81, 1, 1]);
    get[17] = 0x15;
    get[32..36].fill(0xff);
    let answer = a2.device.mad_ifc(&get).expect("is answered");
    assert_eq!(answer[64 + 16..64 + 20], [0, 2, 0x12, 0x34]);
    // Connections by the same LIDs at the same time, of all kinds.
    for transport in [Transport::Rc, Transport::Uc] {
        let (mut qa, mut qa2) = connected(transport, &a1, &a2);
        let (mut qb, mut qb2) = connected(transport, &b1, &b2);
        for (round, len) in [1, 4096, 300_000].into_iter().enumerate() {
            let seed = round as u64;
            a1.fill(0, len, seed);
            b1.fill(0, len, seed + 100);
            let (from_a, from_b) = ([a1.sge(0, len)], [b1.sge(0, len)]);
            a1.execute(
                &mut qa,
                &SendRequest::write(a2.remote(HALF), Data::Memory(&from_a)),
            );
            b1.execute(
                &mut qb,
                &SendRequest::write(b2.remote(HALF), Data::Memory(&from_b)),
            );
            a2.arrives(HALF, len, seed);
            b2.arrives(HALF, len, seed + 100);
        }
        let _ = (&mut qa2, &mut qb2);
    }
    // The subnet has others: five VMs, each its own.
    let status = daemon.ask(&["status"]);
    let mut lids: Vec<u64> = status["vfs"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|vf| vf["lid"].as_u64().expect("a number"))
        .collect();
    lids.sort_unstable();
    lids.dedup();
    assert_eq!(lids.len(), 5, "{status}");
}

#[test]
fn datagrams_name_their_sender_as_the_receiver_knows_it() {
    const QKEY: u32 = 0x1122_3344;
    let daemon = Daemon::configured(configuration());
    let (mut a1, mut a2) = (Peer::open(&daemon, "a1"), Peer::open(&daemon, "a2"));
    let (mut qa, mut qb) = (a1.qp(Transport::Ud), a2.qp(Transport::Ud));
    qa.activate(0, QKEY).unwrap();
    qb.activate(0, QKEY).unwrap();
    let target = qb.number();
    let to = |lid| AddressVector {
        lid,
        qpn: target,
        qkey: QKEY,
        ..AddressVector::default()
    };
    qb.post_receive(&[a2.sge(HALF, GRH + 64)]).unwrap();
    a1.fill(0, 64, 5);
    let from = [a1.sge(0, 64)];
    // Nobody in the cluster has these: the LID of a VM outside, the manager's, one that is free.
    let (outside, right) = ([3, 7, 0x1235].map(to), to(2));
    for stranger in &outside {
        a1.execute(
            &mut qa,
            &SendRequest::send(Data::Memory(&from)).to(stranger),
        );
    }
    a1.execute(
        &mut qa,
        &SendRequest::send_imm(Data::Memory(&from), 1).to(&right),
    );
    let entry = a2.cq.wait().unwrap();
    qb.complete_receive(&entry);
    assert_eq!(entry.kind(), CqeKind::SendImm, "the right one is the first");
    assert_eq!((entry.source_lid(), entry.source_qpn()), (1, qa.number()));
    a2.verify(HALF + GRH, 64, 5);
}

#[test]
fn those_outside_are_not_reached() {
    let daemon = Daemon::configured(configuration());
    let (mut a1, b2) = (Peer::open(&daemon, "a1"), Peer::open(&daemon, "b2"));
    let mut outside = Peer::open(&daemon, "outside");
    assert_eq!(outside.port.lid, 2);
    let status = daemon.ask(&["status"]);
    let physical = |name: &str| {
        let vfs = status["vfs"].as_array().expect("a list");
        let vf = vfs.iter().find(|vf| vf["name"] == name).expect("is there");
        vf["lid"].as_u64().expect("a number") as u16
    };
    // By the physical LID, from inside and from outside.
    let target = b2.qp(Transport::Rc);
    for (peer, lid) in [
        (true, physical("b2")),
        (false, physical("b2")),
        (false, physical("a1")),
    ] {
        let peer = if peer { &mut a1 } else { &mut outside };
        let mut qp = peer.qp(Transport::Rc);
        let mut to = Connection::to(lid, target.number());
        (to.ack_timeout, to.retry_count) = (1, 1);
        qp.connect(Access::ALL, &to).expect("connects");
        qp.post_send(&SendRequest::send(Data::Inline(b"hello")))
            .unwrap();
        let entry = peer.sent(&mut qp);
        assert_eq!(entry.syndrome(), Syndrome::RetryExceeded, "LID {lid}");
    }
}

/// Sends a datagram from queue pair 1 to queue pair 1 and waits for one at `to`.
fn call(from: &mut Peer, lid: u16, mad: &[u8; MAD], to: Option<&mut Peer>) -> (u16, [u8; MAD]) {
    let mut sender = from.qp(Transport::Gsi);
    sender.activate(0, GSI_QKEY).expect("becomes ready");
    let vector = AddressVector {
        lid,
        qpn: 1,
        qkey: GSI_QKEY,
        ..AddressVector::default()
    };
    let mut receiver = to.as_ref().map(|to| {
        let qp = to.qp(Transport::Gsi);
        qp.activate(0, GSI_QKEY).expect("becomes ready");
        qp
    });
    let request = SendRequest::send(Data::Inline(mad)).to(&vector);
    match (to, &mut receiver) {
        (Some(to), Some(receiver)) => {
            receiver.post_receive(&[to.sge(HALF, GRH + MAD)]).unwrap();
            crate::daemon::show_posted(receiver);
            from.execute(&mut sender, &request);
            arrived(to)
        }
        _ => {
            sender.post_receive(&[from.sge(HALF, GRH + MAD)]).unwrap();
            from.execute(&mut sender, &request);
            arrived(from)
        }
    }
}

fn arrived(peer: &mut Peer) -> (u16, [u8; MAD]) {
    let entry = peer.cq.wait().expect("a completion");
    assert!(entry.is_ok());
    let mut found = [0; MAD];
    peer.buffer.read(HALF + GRH, &mut found);
    (entry.source_lid(), found)
}

#[test]
fn connection_managers_speak_of_virtual_lids() {
    let daemon = Daemon::configured(configuration());
    let (mut a1, mut a2) = (Peer::open(&daemon, "a1"), Peer::open(&daemon, "a2"));
    let mut request = [0; MAD];
    request[..4].copy_from_slice(&[1, 7, 2, 3]);
    request[17] = 0x10;
    request[24 + 48..24 + 50].fill(0xff);
    request[24 + 53] = 1;
    request[24 + 55] = 2;
    request[24 + 56..24 + 72].copy_from_slice(&a1.device.gid(0).unwrap());
    let (source, found) = call(&mut a1, 2, &request, Some(&mut a2));
    assert_eq!(source, 1);
    assert_eq!(found, request);
}

#[test]
fn the_subnet_administration_speaks_of_virtual_lids() {
    let daemon = Daemon::configured(configuration());
    let (mut a1, a2) = (Peer::open(&daemon, "a1"), Peer::open(&daemon, "a2"));
    let b1 = Peer::open(&daemon, "b1");
    // SubnAdmGet(PathRecord) with SGID and DGID (component mask bits 3 and 2), one path.
    let question = |to: &Peer, from: &Peer| {
        let mut get = [0; MAD];
        get[..4].copy_from_slice(&[1, 3, 2, 1]);
        get[8..16].copy_from_slice(&99_u64.to_be_bytes());
        get[17] = 0x35;
        get[48..56].copy_from_slice(&0b1_0000_0000_1100_u64.to_be_bytes());
        get[56 + 8..56 + 24].copy_from_slice(&to.device.gid(0).unwrap());
        get[56 + 24..56 + 40].copy_from_slice(&from.device.gid(0).unwrap());
        get[56 + 49] = 1;
        get
    };
    let (source, found) = {
        let question = question(&a2, &a1);
        call(&mut a1, SM_LID, &question, None)
    };
    assert_eq!(source, SM_LID);
    assert_eq!((found[3], &found[4..6]), (0x81, &[0, 0][..]));
    assert_eq!(found[56 + 40..56 + 44], [0, 2, 0, 1], "DLID and SLID");
    let (_, found) = {
        let question = question(&b1, &a1);
        call(&mut a1, SM_LID, &question, None)
    };
    assert_eq!(found[4..6], [3, 0], "no records");
    assert_eq!(found[56..], [0; 200]);
}

/// A table of records of 112 bytes, taken in segment by segment.
fn nodes(peer: &mut Peer, sm_lid: u16, transaction: u64) -> Vec<[u8; 112]> {
    let mut sender = peer.qp(Transport::Gsi);
    sender.activate(0, GSI_QKEY).expect("becomes ready");
    let to = AddressVector {
        lid: sm_lid,
        qpn: 1,
        qkey: GSI_QKEY,
        ..AddressVector::default()
    };
    let mut mad = [0; MAD];
    mad[..4].copy_from_slice(&[1, 3, 2, 0x12]);
    mad[8..16].copy_from_slice(&transaction.to_be_bytes());
    mad[17] = 0x11;
    mad[24] = 1;
    let mut data = Vec::new();
    loop {
        // The last acknowledgement is not answered, so a buffer is posted for each segment alone.
        sender.post_receive(&[peer.sge(HALF, GRH + MAD)]).unwrap();
        peer.execute(&mut sender, &SendRequest::send(Data::Inline(&mad)).to(&to));
        let (source, found) = arrived(peer);
        assert_eq!(source, sm_lid);
        assert_eq!((found[3], &found[4..6]), (0x92, &[0, 0][..]));
        assert_eq!(found[8..16], transaction.to_be_bytes());
        assert_eq!(found[44..46], [0, 14], "records of 112 bytes");
        // An acknowledgement of this segment, for the next one alone.
        let segment = u32::from_be_bytes(*found[28..].first_chunk().unwrap());
        let length = u32::from_be_bytes(*found[32..].first_chunk().unwrap()) as usize;
        mad[24..28].copy_from_slice(&[1, 2, 1, 0]);
        mad[28..32].copy_from_slice(&segment.to_be_bytes());
        mad[32..36].copy_from_slice(&(segment + 1).to_be_bytes());
        let last = found[26] & 4 != 0;
        data.extend(&found[56..if last { 36 + length } else { MAD }]);
        if last {
            peer.execute(&mut sender, &SendRequest::send(Data::Inline(&mad)).to(&to));
            return data.as_chunks::<112>().0.to_vec();
        }
    }
}

/// All of the subnet share a partition, but a cluster's guest sees its own cluster and the manager,
/// however many packets the subnet administration needs to tell it of everybody.
#[test]
fn tables_of_several_packets_leave_strangers_out() {
    let daemon = Daemon::configured(configuration());
    let (mut a1, a2) = (Peer::open(&daemon, "a1"), Peer::open(&daemon, "a2"));
    let mut outside = Peer::open(&daemon, "outside");
    let guid = |peer: &Peer| peer.device.gid(0).unwrap()[8..].to_vec();
    for round in 0..3 {
        let nodes = nodes(&mut a1, SM_LID, 0x1_0000_0000 + round);
        let mut lids: Vec<u16> = nodes
            .iter()
            .map(|node| u16::from_be_bytes([node[0], node[1]]))
            .collect();
        lids.sort_unstable();
        assert_eq!(lids, [1, 2, SM_LID]);
        // PortGUID of NodeInfo.
        let of = |lid: u16| nodes.iter().find(|node| node[..2] == lid.to_be_bytes());
        assert_eq!(of(1).unwrap()[24..32], guid(&a1));
        assert_eq!(of(2).unwrap()[24..32], guid(&a2));
    }
    // Others see everybody: five VMs, the manager, a switch and two vSwitches.
    let sm_lid = outside.port.sm_lid;
    assert_eq!(nodes(&mut outside, sm_lid, 7).len(), 9);
}

#[test]
fn partitions_are_seen_under_other_numbers() {
    const QKEY: u32 = 0x77;
    let daemon = Daemon::configured(configuration());
    let (mut b1, mut b2) = (Peer::open(&daemon, "b1"), Peer::open(&daemon, "b2"));
    let keys = |peer: &Peer| [0, 1, 2].map(|index| peer.device.pkey(index).unwrap());
    assert_eq!(keys(&b1), [0xffff, 0x8022, 0]);
    assert_eq!(keys(&b2), [0xffff, 0x8011, 0x8033]);
    let status = daemon.ask(&["vf", "show", "b1"]);
    assert_eq!(status["pkeys"], serde_json::json!(["0xffff", "0x8011"]));
    // By index, and the other's index is another.
    let (mut qa, mut qb) = (b1.qp(Transport::Ud), b2.qp(Transport::Ud));
    qa.activate(1, QKEY).unwrap();
    qb.activate(2, QKEY).unwrap();
    qb.post_receive(&[b2.sge(HALF, GRH + 64)]).unwrap();
    let to = AddressVector {
        lid: 1,
        qpn: qb.number(),
        qkey: QKEY,
        ..AddressVector::default()
    };
    b1.fill(0, 64, 5);
    let from = [b1.sge(0, 64)];
    b1.execute(&mut qa, &SendRequest::send(Data::Memory(&from)).to(&to));
    let entry = b2.cq.wait().unwrap();
    qb.complete_receive(&entry);
    assert_eq!(entry.immediate() & 0xffff, 0x8033, "the P_Key");
    b2.verify(HALF + GRH, 64, 5);
    drop((qa, qb));
    // So it is with management packets.
    let mut sender = b1.qp(Transport::Gsi);
    sender.activate(1, GSI_QKEY).unwrap();
    let mut receiver = b2.qp(Transport::Gsi);
    receiver.activate(0, GSI_QKEY).unwrap();
    receiver.post_receive(&[b2.sge(HALF, GRH + MAD)]).unwrap();
    crate::daemon::show_posted(&receiver);
    let mut request = [0; MAD];
    request[..4].copy_from_slice(&[1, 7, 2, 3]);
    request[17] = 0x10;
    request[24 + 48..24 + 50].copy_from_slice(&[0x80, 0x22]);
    let to = AddressVector {
        qpn: 1,
        qkey: GSI_QKEY,
        ..to
    };
    b1.execute(
        &mut sender,
        &SendRequest::send(Data::Inline(&request)).to(&to),
    );
    let entry = b2.cq.wait().unwrap();
    assert_eq!(entry.immediate() & 0xffff, 0x8033, "the P_Key");
    let mut found = [0; MAD];
    b2.buffer.read(HALF + GRH, &mut found);
    assert_eq!(found[24 + 48..24 + 50], [0x80, 0x33], "in the request");
}

/// Service levels at queue pair set-up and in datagrams: refused for one VM, rewritten for another.
#[test]
fn service_levels_are_those_of_the_configuration() {
    const QKEY: u32 = 0x77;
    let daemon = Daemon::configured(
        Configuration::new()
            .hypervisor("hv1", [])
            .vf("denied")
            .key("sl", [2, 3])
            .vf("rewritten")
            .key("sl", [2, 3])
            .key("sl_policy", "rewrite")
            .vf("free"),
    );
    let mut denied = Peer::open(&daemon, "denied");
    let mut rewritten = Peer::open(&daemon, "rewritten");
    let mut free = Peer::open(&daemon, "free");
    for (peer, sl, works) in [
        (&denied, 3, true),
        (&denied, 0, false),
        (&rewritten, 3, true),
        (&rewritten, 0, true),
    ] {
        let qp = peer.qp(Transport::Rc);
        let to = Connection {
            sl,
            ..Connection::to(free.port.lid, 1000)
        };
        assert_eq!(qp.connect(Access::ALL, &to).is_ok(), works, "{sl}");
    }
    let mut receiver = free.qp(Transport::Ud);
    receiver.activate(0, QKEY).unwrap();
    let mut qps = [&denied, &rewritten].map(|peer| peer.qp(Transport::Ud));
    for qp in &qps {
        qp.activate(0, QKEY).unwrap();
    }
    let target = receiver.number();
    let to = |sl| AddressVector {
        lid: free.port.lid,
        sl,
        qpn: target,
        qkey: QKEY,
        ..AddressVector::default()
    };
    // The first of the denied one's is lost: what arrives are the others.
    let to = [0, 3].map(to);
    for _ in 0..4 {
        receiver.post_receive(&[free.sge(HALF, GRH + 64)]).unwrap();
    }
    for (peer, qp) in [&mut denied, &mut rewritten].into_iter().zip(&mut qps) {
        for to in &to {
            peer.execute(qp, &SendRequest::send(Data::Inline(b"hello")).to(to));
        }
    }
    let levels = [(); 3].map(|()| {
        let entry = free.cq.wait().unwrap();
        receiver.complete_receive(&entry);
        (entry.source_lid(), entry.service_level())
    });
    assert_eq!(
        levels,
        [
            (denied.port.lid, 3),
            (rewritten.port.lid, 2),
            (rewritten.port.lid, 3)
        ]
    );
}

/// Returns these fields of each packet that passes `filter`, as tshark decodes them.
fn decoded(capture: &std::path::Path, filter: &str, fields: &[&str]) -> Vec<Vec<u16>> {
    let mut command = Command::new("tshark");
    command
        .args(["-Y", filter, "-T", "fields", "-r"])
        .arg(capture);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command
        .output()
        .expect("tshark is installed (scripts/setup)");
    assert!(output.status.success(), "{output:?}");
    let number = |text: &str| match text.trim().strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16).expect("a number"),
        None => text.trim().parse().expect("a number"),
    };
    String::from_utf8(output.stdout)
        .expect("is text")
        .lines()
        .map(|line| line.split('\t').map(number).collect())
        .collect()
}

/// On the wire are the subnet's LIDs, in the packets' headers and in what management packets say.
#[test]
fn captures_have_physical_lids_only() {
    let daemon = Daemon::configured(configuration());
    let (mut a1, mut a2) = (Peer::open(&daemon, "a1"), Peer::open(&daemon, "a2"));
    let status = daemon.ask(&["status"]);
    let physical = |name: &str| {
        let vfs = status["vfs"].as_array().expect("a list");
        let vf = vfs.iter().find(|vf| vf["name"] == name).expect("is there");
        vf["lid"].as_u64().expect("a number") as u16
    };
    let (p1, p2) = (physical("a1"), physical("a2"));
    let manager = status["fabric"]["sm_lid"].as_u64().expect("a number") as u16;
    assert_ne!((p1, p2), (1, 2));
    let file = std::path::Path::new(daemon.dir()).join("capture.pcap");
    let config = daemon.config();
    let mut capture = Command::new(env!("CARGO_BIN_EXE_ibvswitch"))
        .args(["--runtime-dir", daemon.dir(), "--config", &config])
        .args(["capture", "--vf", "a1", "--data"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut out = capture.stdout.take().expect("piped");
    // The file's header says that it has begun.
    let mut bytes = vec![0; 24];
    out.read_exact(&mut bytes).expect("a header");

    let (mut qa, _qb) = connected(Transport::Rc, &a1, &a2);
    let from = [a1.sge(0, 100)];
    a1.execute(
        &mut qa,
        &SendRequest::write(a2.remote(HALF), Data::Memory(&from)),
    );
    let gids = [&a1, &a2].map(|peer| peer.device.gid(0).unwrap());
    let mut request = [0; MAD];
    request[..4].copy_from_slice(&[1, 7, 2, 3]);
    request[17] = 0x10;
    request[24 + 48..24 + 50].fill(0xff);
    request[24 + 53] = 1;
    request[24 + 55] = 2;
    request[24 + 56..24 + 72].copy_from_slice(&gids[0]);
    request[24 + 72..24 + 88].copy_from_slice(&gids[1]);
    let (_, seen) = call(&mut a1, 2, &request, Some(&mut a2));
    assert_eq!(seen, request);
    let mut question = [0; MAD];
    question[..4].copy_from_slice(&[1, 3, 2, 1]);
    question[17] = 0x35;
    question[48..56].copy_from_slice(&0b1_0000_0000_1100_u64.to_be_bytes());
    question[56 + 8..56 + 24].copy_from_slice(&gids[1]);
    question[56 + 24..56 + 40].copy_from_slice(&gids[0]);
    question[56 + 49] = 1;
    call(&mut a1, SM_LID, &question, None);
    let process = nix::unistd::Pid::from_raw(capture.id() as i32);
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGINT).expect("is running");
    out.read_to_end(&mut bytes).expect("is read");
    assert!(capture.wait().expect("ends").success());
    std::fs::write(&file, bytes).expect("is written");

    let route = ["infiniband.lrh.slid", "infiniband.lrh.dlid"];
    let mut lids: Vec<u16> = decoded(&file, "infiniband", &route).concat();
    lids.sort_unstable();
    lids.dedup();
    let mut expected = [p1, p2, manager];
    expected.sort_unstable();
    assert_eq!(lids, expected);
    let inside = [
        "infiniband.cm.req.prim_locallid",
        "infiniband.cm.req.prim_remotelid",
    ];
    assert_eq!(decoded(&file, inside[0], &inside), [[p1, p2]]);
    let inside = ["infiniband.pathrecord.dlid", "infiniband.pathrecord.slid"];
    let answer = format!("{} && infiniband.mad.method == 0x81", inside[0]);
    assert_eq!(decoded(&file, &answer, &inside), [[p2, p1]]);
}

/// A VM that moves to another VF keeps its LID in the cluster, and its peers reach it there.
#[test]
fn a_cluster_follows_a_vm_that_moves() {
    let daemon = Daemon::configured(
        Configuration::new()
            .clusters(["a"])
            .hypervisor("hv1", [])
            .member("a1", "a")
            .member("a2", "a")
            .hypervisor("hv2", [])
            .spare_vfs(1),
    );
    let mut a2 = Peer::open(&daemon, "a2");
    drop(Peer::open(&daemon, "a1"));
    daemon.ask(&["vf", "migrate", "a1", "--to", "hv2"]);
    let moved = Peer::open(&daemon, "hv2-spare1");
    assert_eq!((moved.port.lid, a2.port.lid), (1, 2));
    let (mut qp, _other) = connected(Transport::Rc, &a2, &moved);
    a2.fill(0, 5000, 8);
    let from = [a2.sge(0, 5000)];
    a2.execute(
        &mut qp,
        &SendRequest::write(moved.remote(HALF), Data::Memory(&from)),
    );
    moved.verify(HALF, 5000, 8);
    // The VF that it left is nobody's.
    let left = daemon.open("a1").port().expect("is answered");
    assert_ne!(left.lid, 1);
}
