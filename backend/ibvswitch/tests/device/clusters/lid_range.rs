//! Virtual clusters on shared ports: each of their VMs has one of its port's LIDs for itself, the
//! others have the base LID.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::administration::{GRH, GSI_QKEY, MAD, gsi, mad, receive};
use crate::daemon::{Daemon, HALF, Peer, clusters_at_shared_ports, connected, named};
use serde_json::Value;
use test_driver::{
    Access, AddressVector, Connection, Data, QueuePair, SendRequest, Syndrome, Transport,
};
use testing::Configuration;

const QKEY: u32 = 0x1122_3344;
const MULTICAST_QPN: u32 = 0xff_ffff;

fn start() -> Daemon {
    Daemon::configured(clusters_at_shared_ports().set("sm.lmc", 2))
}

/// Writes both ways by LIDs alone.
fn transfer(a: &mut Peer, b: &mut Peer, transport: Transport) {
    let (mut qa, mut qb) = connected(transport, a, b);
    for (len, seed) in [(1, 1), (70_000, 2)] {
        a.fill(0, len, seed);
        b.fill(0, len, seed + 10);
        let (from_a, from_b) = ([a.sge(0, len)], [b.sge(0, len)]);
        let write = SendRequest::write(b.remote(HALF), Data::Memory(&from_a));
        a.execute(&mut qa, &write);
        let write = SendRequest::write(a.remote(HALF), Data::Memory(&from_b));
        b.execute(&mut qb, &write);
        b.arrives(HALF, len, seed);
        a.arrives(HALF, len, seed + 10);
    }
}

#[test]
fn each_vm_of_a_cluster_has_a_lid_of_its_own() {
    let daemon = start();
    let names = ["a1", "a2", "a3", "b1", "b2", "out1", "out2"];
    let mut peers = names.map(|name| Peer::open(&daemon, name));
    let seen = peers.each_ref().map(|peer| (peer.port.lid, peer.port.lmc));
    assert_eq!(seen[..5], [(1, 0), (2, 0), (3, 0), (1, 0), (2, 0)]);
    let global = peers.each_ref().map(|peer| peer.port.grh_required);
    assert_eq!(global, [false, false, false, false, false, true, true]);
    // In the subnet: the bases, which are multiples of four, and the next ones in the order of the
    // configuration.
    let lids = names.map(|name| daemon.lid(name));
    let (hv1, hv2) = (lids[5], lids[6]);
    assert_eq!((hv1 % 4, hv2 % 4), (0, 0));
    assert_eq!(lids[..5], [hv1 + 1, hv2 + 1, hv1 + 3, hv1 + 2, hv2 + 2]);
    assert_eq!([peers[5].port.lid, peers[6].port.lid], [hv1, hv2]);
    assert_eq!([peers[5].port.lmc, peers[6].port.lmc], [0, 0]);
    let topology = daemon.ask(&["topology"]);
    assert_eq!(named(&topology["nodes"], "b1")["lid"], hv1 + 2);
    assert_eq!(
        named(&topology["nodes"], "b1")["reason"],
        format!(
            "of a cluster: hv1 has the LIDs {hv1} to {}, and this is {hv1} + 2",
            hv1 + 3
        )
    );
    assert_eq!(
        daemon.ask(&["topology", "--planned", "--config", &daemon.config()])["nodes"],
        {
            let mut nodes = topology["nodes"].clone();
            for node in nodes.as_array_mut().expect("a list") {
                node["connected"] = Value::Null;
                node["holds"] = Value::Null;
            }
            nodes
        }
    );
    // At one port and at two, with the same LIDs in both clusters at the same time.
    for transport in [Transport::Rc, Transport::Uc] {
        for (a, b) in [(0, 1), (3, 4), (0, 2), (2, 1)] {
            let [first, second] = peers.get_disjoint_mut([a, b]).expect("are two");
            transfer(first, second, transport);
        }
    }
}

#[test]
fn datagrams_need_no_global_route() {
    let daemon = start();
    let mut peers = ["a1", "a2", "a3"].map(|name| Peer::open(&daemon, name));
    for (from, to, lids) in [(0, 1, (1, 2)), (0, 2, (1, 3)), (1, 2, (2, 3))] {
        let [from, to] = peers.get_disjoint_mut([from, to]).expect("are two");
        let (mut qa, mut qb) = (from.qp(Transport::Ud), to.qp(Transport::Ud));
        qa.activate(0, QKEY).expect("becomes ready");
        qb.activate(0, QKEY).expect("becomes ready");
        // With a global route as well.
        for global in [None, Some((to.gid(), 1))] {
            qb.post_receive(&[to.sge(HALF, GRH + 64)])
                .expect("is posted");
            from.fill(0, 64, 5);
            let data = [from.sge(0, 64)];
            let vector = AddressVector {
                lid: lids.1,
                qpn: qb.number(),
                qkey: QKEY,
                global,
                ..AddressVector::default()
            };
            let send = SendRequest::send(Data::Memory(&data)).to(&vector);
            from.execute(&mut qa, &send);
            let entry = to.cq.wait().expect("a completion");
            qb.complete_receive(&entry);
            assert_eq!(
                (entry.source_lid(), entry.source_qpn()),
                (lids.0, qa.number())
            );
            to.verify(HALF + GRH, 64, 5);
        }
    }
}

/// Whether a connection from one to this LID, queue pair and GID gets anything through.
fn reaches(from: &mut Peer, lid: u16, target: &QueuePair, gid: Option<[u8; 16]>) -> bool {
    let mut qp = from.qp(Transport::Rc);
    let mut to = Connection::to(lid, target.number());
    // 67 ms: whoever is there has answered by then, in whatever engine.
    (to.ack_timeout, to.retry_count, to.gid) = (14, 1, gid);
    qp.connect(Access::ALL, &to).expect("connects");
    // Whoever is there takes it for his peer's.
    target
        .connect(Access::ALL, &Connection::to(from.port.lid, qp.number()))
        .expect("connects");
    qp.post_send(&SendRequest::send(Data::Inline(b"hello")))
        .expect("is posted");
    let entry = from.sent(&mut qp);
    if entry.is_ok() {
        return true;
    }
    assert_eq!(entry.syndrome(), Syndrome::RetryExceeded);
    false
}

#[test]
fn a_lid_leads_to_nobody_else_at_its_port() {
    let daemon = start();
    let open = |name| Peer::open(&daemon, name);
    let (mut a2, a1, b1, a3) = (open("a2"), open("a1"), open("b1"), open("a3"));
    let (mut out2, out1) = (open("out2"), open("out1"));
    let lid = |name| daemon.lid(name);
    let base = lid("out1");
    let target = |peer: &Peer| {
        let mut qp = peer.qp(Transport::Rc);
        qp.post_receive(&[peer.sge(HALF, 64)]).expect("is posted");
        qp
    };
    // A queue pair of another one at the port that the LID leads to.
    for other in [&b1, &a3, &out1] {
        assert!(!reaches(&mut a2, 1, &target(other), None));
    }
    assert!(reaches(&mut a2, 1, &target(&a1), None));
    // From outside: by the base LID with the VM's GID, and by the VM's own LID.
    for (to, name) in [(&a1, "a1"), (&b1, "b1")] {
        assert!(!reaches(&mut out2, base, &target(to), Some(to.gid())));
        assert!(!reaches(&mut out2, base, &target(to), None));
        assert!(!reaches(&mut out2, lid(name), &target(to), None));
    }
    assert!(reaches(&mut out2, base, &target(&out1), Some(out1.gid())));
}

fn ask(peer: &mut Peer, question: &[u8; MAD]) -> [u8; MAD] {
    let mut qp = gsi(peer);
    qp.post_receive(&[peer.sge(HALF, GRH + MAD)])
        .expect("is posted");
    let manager = AddressVector {
        lid: peer.port.sm_lid,
        qpn: 1,
        qkey: GSI_QKEY,
        ..AddressVector::default()
    };
    let send = SendRequest::send(Data::Inline(question));
    peer.execute(&mut qp, &send.to(&manager));
    let (source, answer) = receive(peer, &mut qp);
    assert_eq!(source, peer.port.sm_lid);
    assert_eq!(answer[8..16], question[8..16], "the transaction");
    answer
}

const DGID: u64 = 1 << 2;
const SGID: u64 = 1 << 3;
const DLID: u64 = 1 << 4;
const SLID: u64 = 1 << 5;
const NUMB_PATH: u64 = 1 << 12;

fn path(mask: u64, gids: ([u8; 16], [u8; 16]), lids: (u16, u16)) -> [u8; MAD] {
    let mut get = mad(3, 2, 1, 0x35, 0x63);
    get[48..56].copy_from_slice(&(mask | NUMB_PATH).to_be_bytes());
    get[64..80].copy_from_slice(&gids.0);
    get[80..96].copy_from_slice(&gids.1);
    get[96..98].copy_from_slice(&lids.0.to_be_bytes());
    get[98..100].copy_from_slice(&lids.1.to_be_bytes());
    get[56 + 49] = 1;
    get
}

#[test]
fn paths_are_to_the_lid_of_the_vm() {
    let daemon = start();
    let open = |name| Peer::open(&daemon, name);
    let (mut a1, a2, a3, b2) = (open("a1"), open("a2"), open("a3"), open("b2"));
    let own = a1.gid();
    for (to, lid) in [(&a2, 2), (&a3, 3)] {
        let gids = (to.gid(), own);
        for (mask, lids) in [
            (DGID | SGID, (0, 0)),
            (DLID | SLID, (lid, 1)),
            (DGID | SLID, (0, 1)),
            (DLID | SGID, (lid, 0)),
            (DGID | SGID | DLID | SLID, (lid, 1)),
        ] {
            let given = |bit, gid| if mask & bit != 0 { gid } else { [0; 16] };
            let asked = (given(DGID, gids.0), given(SGID, gids.1));
            let mut question = path(mask, asked, lids);
            // Who has a LID of its own is not told from others by this byte.
            question[8] = 0xff;
            let answer = ask(&mut a1, &question);
            assert_eq!((answer[3], &answer[4..6]), (0x81, &[0, 0][..]), "{mask:#x}");
            assert_eq!(answer[64..80], gids.0, "{mask:#x}");
            assert_eq!(answer[80..96], gids.1, "{mask:#x}");
            assert_eq!(answer[96..100], [0, lid as u8, 0, 1], "{mask:#x}");
        }
    }
    // The GID of one and the LID of another, and somebody outside.
    for (gids, lids, mask) in [
        ((a2.gid(), own), (3, 1), DGID | SGID | DLID),
        ((a2.gid(), own), (1, 1), DGID | SGID | DLID),
        ((b2.gid(), own), (0, 0), DGID | SGID),
    ] {
        let answer = ask(&mut a1, &path(mask, gids, lids));
        assert_eq!(answer[4..6], [3, 0], "no records");
        assert_eq!(answer[56..], [0; 200]);
    }
}

/// The LIDs of all paths from a VM that the subnet administration tells it of.
#[test]
fn all_paths_are_to_vms_of_the_cluster() {
    let daemon = start();
    let [mut a1, a2, a3] = ["a1", "a2", "a3"].map(|name| Peer::open(&daemon, name));
    let mut qp = gsi(&a1);
    let mut question = path(SGID, ([0; 16], a1.gid()), (0, 0));
    // A table, with any number of paths between two.
    question[3] = 0x12;
    question[24] = 1;
    question[48..56].copy_from_slice(&SGID.to_be_bytes());
    let manager = AddressVector {
        lid: a1.port.sm_lid,
        qpn: 1,
        qkey: GSI_QKEY,
        ..AddressVector::default()
    };
    let mut data = Vec::new();
    loop {
        qp.post_receive(&[a1.sge(HALF, GRH + MAD)])
            .expect("is posted");
        let send = SendRequest::send(Data::Inline(&question)).to(&manager);
        a1.execute(&mut qp, &send);
        let (_, found) = receive(&mut a1, &mut qp);
        assert_eq!((found[3], &found[4..6]), (0x92, &[0, 0][..]));
        let segment = u32::from_be_bytes(*found[28..].first_chunk().expect("four bytes"));
        let length = u32::from_be_bytes(*found[32..].first_chunk().expect("four bytes"));
        let last = found[26] & 4 != 0;
        data.extend(&found[56..if last { 36 + length as usize } else { MAD }]);
        question[24..28].copy_from_slice(&[1, 2, 1, 0]);
        question[28..32].copy_from_slice(&segment.to_be_bytes());
        question[32..36].copy_from_slice(&(segment + 1).to_be_bytes());
        if last {
            let send = SendRequest::send(Data::Inline(&question)).to(&manager);
            a1.execute(&mut qp, &send);
            break;
        }
    }
    let mut ends: Vec<(Vec<u8>, u16, u16)> = data
        .as_chunks::<64>()
        .0
        .iter()
        .map(|path| {
            let lid = |at| u16::from_be_bytes([path[at], path[at + 1]]);
            assert_eq!(path[24..40], a1.gid());
            (path[8..24].to_vec(), lid(40), lid(42))
        })
        .collect();
    ends.sort();
    let mut expected: Vec<_> = [(&a1, 1), (&a2, 2), (&a3, 3)]
        .map(|(peer, lid)| (peer.gid().to_vec(), lid, 1))
        .into();
    let manager = ends.iter().find(|(_, lid, _)| *lid == a1.port.sm_lid);
    expected.extend(manager.cloned());
    expected.sort();
    assert_eq!(ends, expected);
}

/// Requests and answers without a global route find the VM with the LID.
#[test]
fn management_packets_need_no_global_route() {
    let daemon = start();
    let [mut a1, mut a2, mut b1] = ["a1", "a2", "b1"].map(|name| Peer::open(&daemon, name));
    let (mut q1, mut q2, mut qb) = (gsi(&a1), gsi(&a2), gsi(&b1));
    for (peer, qp) in [(&a1, &mut q1), (&a2, &mut q2), (&b1, &mut qb)] {
        qp.post_receive(&[peer.sge(HALF, GRH + MAD)])
            .expect("is posted");
    }
    // A REQ, which names LIDs inside.
    let mut request = mad(7, 2, 3, 0x10, 0x77);
    request[24 + 48..24 + 50].fill(0xff);
    request[24 + 53] = 2;
    request[24 + 55] = 1;
    request[24 + 56..24 + 72].copy_from_slice(&a2.gid());
    request[24 + 72..24 + 88].copy_from_slice(&a1.gid());
    let to = |lid| AddressVector {
        lid,
        qpn: 1,
        qkey: GSI_QKEY,
        ..AddressVector::default()
    };
    let send = SendRequest::send(Data::Inline(&request));
    a2.execute(&mut q2, &send.to(&to(1)));
    assert_eq!(receive(&mut a1, &mut q1), (2, request));
    // Its REP, and between VMs of the other cluster nothing of it: what comes first is what it asked
    // the subnet administration for itself.
    let reply = mad(7, 2, 3, 0x13, 0x77);
    let send = SendRequest::send(Data::Inline(&reply));
    a1.execute(&mut q1, &send.to(&to(2)));
    assert_eq!(receive(&mut a2, &mut q2), (1, reply));
    let question = mad(3, 2, 1, 1, 8);
    let send = SendRequest::send(Data::Inline(&question));
    let manager = to(b1.port.sm_lid);
    b1.execute(&mut qb, &send.to(&manager));
    assert_eq!(receive(&mut b1, &mut qb).1[..4], [1, 3, 2, 0x81]);
}

/// On the wire are LIDs of the ports' ranges, at one port as between two.
#[test]
fn captures_have_physical_lids_only() {
    let daemon = start();
    let [mut a1, mut a2, mut b1] = ["a1", "a2", "b1"].map(|name| Peer::open(&daemon, name));
    let mut b2 = Peer::open(&daemon, "b2");
    let [p1, p2, p3, p4] = ["a1", "a2", "b1", "b2"].map(|name| daemon.lid(name));
    let config = daemon.config();
    let mut capture = Command::new(env!("CARGO_BIN_EXE_ibvswitch"))
        .args(["--runtime-dir", daemon.dir(), "--config", &config])
        .args(["capture", "--vf", "a1", "--vf", "b1", "--data"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut out = capture.stdout.take().expect("piped");
    // The file's header says that it has begun.
    let mut bytes = vec![0; 24];
    out.read_exact(&mut bytes).expect("a header");
    transfer(&mut a1, &mut a2, Transport::Rc);
    transfer(&mut b1, &mut b2, Transport::Rc);
    let question = path(DLID | SLID, ([0; 16], [0; 16]), (2, 1));
    ask(&mut a1, &question);
    let process = nix::unistd::Pid::from_raw(capture.id() as i32);
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGINT).expect("is running");
    out.read_to_end(&mut bytes).expect("is read");
    assert!(capture.wait().expect("ends").success());
    let file = std::path::Path::new(daemon.dir()).join("capture.pcap");
    std::fs::write(&file, bytes).expect("is written");
    let decoded = |filter: &str, fields: [&str; 2]| {
        let output = Command::new("tshark")
            .args([
                "-Y", filter, "-T", "fields", "-e", fields[0], "-e", fields[1],
            ])
            .arg("-r")
            .arg(&file)
            .output()
            .expect("tshark is installed (scripts/setup)");
        let text = String::from_utf8(output.stdout).expect("is text");
        let number = |field: &str| match field.strip_prefix("0x") {
            Some(hex) => u16::from_str_radix(hex, 16).expect("a number"),
            None => field.parse().expect("a number"),
        };
        let pair = |line: &str| {
            let (from, to) = line.split_once('\t').expect("two fields");
            (number(from), number(to))
        };
        let pairs: std::collections::BTreeSet<_> = text.lines().map(pair).collect();
        pairs
    };
    let manager = 1;
    assert_eq!(
        decoded("infiniband", ["infiniband.lrh.slid", "infiniband.lrh.dlid"]),
        [
            (p1, p2),
            (p2, p1),
            (p3, p4),
            (p4, p3),
            (p1, manager),
            (manager, p1)
        ]
        .into()
    );
    let fields = ["infiniband.pathrecord.slid", "infiniband.pathrecord.dlid"];
    assert_eq!(decoded(fields[0], fields), [(p1, p2)].into());
}

/// The subnet manager is told of packets with a wrong key by the LIDs that they had.
#[test]
fn traps_have_physical_lids() {
    let daemon = start();
    let [mut a2, a3] = ["a2", "a3"].map(|name| Peer::open(&daemon, name));
    let [from, to] = ["a2", "a3"].map(|name| daemon.lid(name));
    let file = std::path::Path::new(daemon.dir()).join("capture.pcap");
    let mut capture = Command::new(env!("CARGO_BIN_EXE_ibvswitch"))
        .args(["--runtime-dir", daemon.dir(), "--config", &daemon.config()])
        .args(["capture", "--manager"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut out = capture.stdout.take().expect("piped");
    let mut bytes = vec![0; 24];
    out.read_exact(&mut bytes).expect("a header");
    let (mut qa, qb) = (a2.qp(Transport::Ud), a3.qp(Transport::Ud));
    qa.activate(0, QKEY).expect("becomes ready");
    qb.activate(0, QKEY).expect("becomes ready");
    let vector = AddressVector {
        lid: 3,
        qpn: qb.number(),
        qkey: QKEY + 1,
        ..AddressVector::default()
    };
    a2.execute(
        &mut qa,
        &SendRequest::send(Data::Inline(b"hello")).to(&vector),
    );
    // What a packet of the capture begins with says how long it is; the trap is one of them.
    let trap = loop {
        let mut header = [0; 16];
        out.read_exact(&mut header).expect("a packet");
        bytes.extend(header);
        let length = u32::from_le_bytes(*header[8..].first_chunk().expect("four bytes"));
        let mut packet = vec![0; length as usize];
        out.read_exact(&mut packet).expect("is whole");
        bytes.extend(&packet);
        std::fs::write(&file, &bytes).expect("is written");
        let output = Command::new("tshark")
            .args(["-Y", "infiniband.notice.trapnumberdeviceid == 258"])
            .args(["-T", "fields", "-e", "infiniband.notice.datadetails", "-r"])
            .arg(&file)
            .output()
            .expect("tshark is installed (scripts/setup)");
        let text = String::from_utf8(output.stdout).expect("is text");
        if let Some(line) = text.lines().next() {
            break line.to_owned();
        }
    };
    capture.kill().expect("is running");
    capture.wait().expect("ends");
    // The two LIDs after a reserved one.
    assert_eq!(trap[..12], format!("0000{from:04x}{to:04x}"));
}

/// SubnAdmSet of an MCMemberRecord, for one group; its LID.
fn join(peer: &mut Peer, group: [u8; 16]) -> u16 {
    let mut set = mad(3, 2, 2, 0x38, 0x99);
    // MGID, PortGID, Q_Key, traffic class, P_Key, service level, flow label, join state.
    let mask: u64 = 0b1_0011_0000_1100_0111;
    set[48..56].copy_from_slice(&mask.to_be_bytes());
    set[56..72].copy_from_slice(&group);
    set[72..88].copy_from_slice(&peer.gid());
    set[88..92].copy_from_slice(&QKEY.to_be_bytes());
    set[96..98].fill(0xff);
    set[104] = 1;
    let answer = ask(peer, &set);
    assert_eq!(answer[3..6], [0x81, 0, 0]);
    u16::from_be_bytes([answer[92], answer[93]])
}

/// At the sender's port and at another one.
#[test]
fn groups_are_heard_in_the_cluster_alone() {
    const GROUP: [u8; 16] = [0xff, 0x12, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    let daemon = start();
    let names = ["a1", "a3", "a2", "b1", "b2", "out1", "out2"];
    let mut peers = names.map(|name| Peer::open(&daemon, name));
    let mut mlids = Vec::new();
    let mut qps = Vec::new();
    for peer in &mut peers {
        mlids.push(join(peer, GROUP));
        let mut qp = peer.qp(Transport::Ud);
        qp.activate(0, QKEY).expect("becomes ready");
        qp.attach_multicast(GROUP).expect("is attached");
        for _ in 0..3 {
            qp.post_receive(&[peer.sge(HALF, GRH + 64)])
                .expect("is posted");
        }
        qps.push(qp);
    }
    let send = |peers: &mut [Peer], qps: &mut [QueuePair], from: usize, word: u32| {
        let to = AddressVector {
            lid: mlids[from],
            qpn: MULTICAST_QPN,
            qkey: QKEY,
            global: Some((GROUP, 0)),
            ..AddressVector::default()
        };
        let request = SendRequest::send_imm(Data::Inline(b"hello"), word);
        qps[from].post_send(&request.to(&to)).expect("is posted");
        // The sender hears it, too, before it has been sent.
        let mut own = None;
        for _ in 0..2 {
            let entry = peers[from].cq.wait().expect("a completion");
            match entry.kind() {
                test_driver::CqeKind::Requester => qps[from].complete(&entry),
                _ => {
                    qps[from].complete_receive(&entry);
                    own = Some(entry.immediate());
                }
            }
        }
        assert_eq!(own, Some(word));
    };
    // One after the other: the first that somebody hears is the first that was for it.
    let heard = |peer: &mut Peer, qp: &mut QueuePair| {
        let entry = peer.cq.wait().expect("a completion");
        qp.complete_receive(&entry);
        (entry.immediate(), entry.source_lid())
    };
    send(&mut peers, &mut qps, 0, 1);
    send(&mut peers, &mut qps, 3, 2);
    send(&mut peers, &mut qps, 5, 3);
    for (at, expected) in [(1, 1), (2, 1), (4, 2), (6, 3)] {
        let (word, source) = heard(&mut peers[at], &mut qps[at]);
        assert_eq!(word, expected, "{}", names[at]);
        let sender = [0, 0, 3, 5][usize::try_from(word).expect("is small")];
        assert_eq!(source, peers[sender].port.lid);
        assert_eq!(peers[at].cq.poll().map(|_| ()), None);
    }
    for at in [0, 3, 5] {
        assert_eq!(peers[at].cq.poll().map(|_| ()), None);
    }
}

#[test]
fn a_vm_keeps_its_lid_in_the_cluster_where_it_moves() {
    let daemon = start();
    let [mut a1, mut a2, mut a3] = ["a1", "a2", "a3"].map(|name| Peer::open(&daemon, name));
    let (before, base) = (daemon.lid("a1"), daemon.lid("out2"));
    let moved = daemon.ask(&["vf", "migrate", "a1", "--to", "hv2"]);
    assert_eq!(moved["to"]["vf"], "hv2-spare1");
    assert_eq!(moved["former_lid"], before);
    assert_eq!(moved["lid"], base + 3);
    let mut there = Peer::open(&daemon, "hv2-spare1");
    assert_eq!((there.port.lid, there.port.grh_required), (1, false));
    assert_eq!(there.port.port_guid, a1.port.port_guid);
    assert_ne!(a1.device.port().expect("a port").state, 4);
    transfer(&mut a2, &mut there, Transport::Rc);
    transfer(&mut a3, &mut there, Transport::Rc);
    transfer(&mut a2, &mut a3, Transport::Rc);
    let question = path(DGID | SGID, (there.gid(), a3.gid()), (0, 0));
    let answer = ask(&mut a3, &question);
    assert_eq!(answer[96..100], [0, 1, 0, 3]);
    let topology = daemon.ask(&["topology"]);
    assert_eq!(named(&topology["nodes"], "hv2-spare1")["lid"], base + 3);
    assert_eq!(named(&topology["nodes"], "a1")["lid"], Value::Null);
    // What it left is free for its return, with the LID that it had.
    let back = daemon.ask(&["vf", "migrate", "a1", "--to", "hv1"]);
    assert_eq!(
        (&back["to"]["vf"], &back["lid"]),
        (&"a1".into(), &before.into())
    );
    a1.port = a1.device.wait_active().expect("is back");
    assert_eq!(a1.port.lid, 1);
    transfer(&mut a2, &mut a1, Transport::Rc);
}

/// A port with two LIDs has one for one VM of a cluster.
#[test]
fn a_vm_does_not_go_where_no_lid_is_left() {
    let daemon = Daemon::configured(
        Configuration::new()
            .set("fabric.model", "shared-port")
            .set("sm.lmc", 1)
            .clusters(["a"])
            .hypervisor("hv1", [])
            .member("a1", "a")
            .hypervisor("hv2", [])
            .spare_vfs(2)
            .member("a2", "a")
            .vf("out"),
    );
    let mut peers = ["a1", "a2"].map(|name| Peer::open(&daemon, name));
    let output = daemon
        .command()
        .args(["vf", "migrate", "a1", "--to", "hv2"])
        .output()
        .expect("runs");
    let said = String::from_utf8(output.stderr).expect("is text");
    assert!(!output.status.success());
    assert!(
        said.contains(
            "the free VF has place 2 there, and with an LMC of 1 the first 1 places have one"
        ),
        "{said}"
    );
    let [a1, a2] = &mut peers;
    transfer(a1, a2, Transport::Rc);
}

/// Without clusters all LIDs of a port are those of all its VFs.
#[test]
fn several_lids_without_clusters() {
    let daemon = Daemon::configured(
        Configuration::new()
            .set("fabric.model", "shared-port")
            .set("sm.lmc", 2)
            .hypervisor("hv1", ["vm1", "vm2"])
            .hypervisor("hv2", ["vm3"]),
    );
    let [mut vm1, vm2, mut vm3] = ["vm1", "vm2", "vm3"].map(|name| Peer::open(&daemon, name));
    let of = |peer: &Peer| (peer.port.lid, peer.port.lmc, peer.port.grh_required);
    assert_eq!(of(&vm1), of(&vm2));
    assert_eq!((vm1.port.lid % 4, vm1.port.lmc), (0, 2));
    for from in [&mut vm1, &mut vm3] {
        for bits in 0..4 {
            let (mut qa, qb) = (from.qp(Transport::Rc), vm2.qp(Transport::Rc));
            let connect = |qp: &QueuePair, peer: &Peer, number, bits| {
                let to = Connection {
                    gid: Some(peer.gid()),
                    ..Connection::to(peer.port.lid + bits, number)
                };
                qp.connect(Access::ALL, &to).expect("connects");
            };
            connect(&qa, &vm2, qb.number(), bits);
            connect(&qb, from, qa.number(), bits);
            from.fill(0, 5000, u64::from(bits));
            let data = [from.sge(0, 5000)];
            let write = SendRequest::write(vm2.remote(HALF), Data::Memory(&data));
            from.execute(&mut qa, &write);
            vm2.verify(HALF, 5000, u64::from(bits));
        }
    }
    let (base, own) = (vm1.port.lid, vm3.gid());
    let answer = ask(&mut vm3, &path(DGID | SGID, (vm2.gid(), own), (0, 0)));
    assert_eq!(answer[4..6], [0, 0]);
    let dlid = u16::from_be_bytes([answer[96], answer[97]]);
    assert_eq!(dlid & !3, base);
}
