//! VFs that share a LID: two on one hypervisor and others elsewhere, in Shared Port and in hybrid
//! subnets.

use crate::administration::{GRH, GSI_QKEY, MAD, gsi, mad, receive};
use crate::daemon::{Daemon, HALF, Peer, named};
use serde_json::Value;
use test_driver::{
    Access, AddressVector, Connection, CqeKind, Data, QueuePair, SendRequest, Syndrome, Transport,
};
use testing::Configuration;

const QKEY: u32 = 0x1122_3344;

/// vm1 and vm2 share a LID, vm3 has the other hypervisor's.
fn shared() -> Configuration {
    Configuration::new()
        .set("fabric.model", "shared-port")
        .set("partitions.red", 0x0011)
        .hypervisor("hv1", [])
        .vf("vm1")
        .key("pkeys", ["default", "red"])
        .vf("vm2")
        .key("pkeys", ["default:limited"])
        .hypervisor("hv2", ["vm3"])
        .spare_vfs(1)
}

/// vm1 and vm2 share a LID, vm3 on the same hypervisor and vm4 on the other one have their own.
fn hybrid() -> Configuration {
    Configuration::new()
        .set("fabric.model", "vswitch-hybrid")
        .hypervisor("hv1", ["vm1", "vm2"])
        .of_hypervisor("address", "shared")
        .vf("vm3")
        .key("address", "dedicated")
        .hypervisor("hv2", ["vm4"])
}

/// A connection by LIDs, and where `global` says so by GIDs.
fn connect(transport: Transport, a: &Peer, b: &Peer, global: bool) -> (QueuePair, QueuePair) {
    let gids = (a.gid(), b.gid());
    let qa = QueuePair::new(&a.config(transport)).expect("a QP");
    let qb = QueuePair::new(&b.config(transport)).expect("a QP");
    for (qp, to, number, gid) in [(&qa, b, qb.number(), gids.1), (&qb, a, qa.number(), gids.0)] {
        let to = Connection {
            gid: global.then_some(gid),
            ..Connection::to(to.port.lid, number)
        };
        qp.connect(Access::ALL, &to).expect("connects");
    }
    (qa, qb)
}

/// Writes and sends both ways.
fn transfer(a: &mut Peer, b: &mut Peer, global: bool) {
    let (mut qa, mut qb) = connect(Transport::Rc, a, b, global);
    for (len, seed) in [(1, 1), (4096, 2), (100_000, 3)] {
        a.fill(0, len, seed);
        let from = [a.sge(0, len)];
        let write = SendRequest::write(b.remote(HALF), Data::Memory(&from));
        a.execute(&mut qa, &write);
        b.verify(HALF, len, seed);
        b.fill(0, len, seed + 10);
        qa.post_receive(&[a.sge(HALF, len)]).expect("is posted");
        let from = [b.sge(0, len)];
        b.execute(&mut qb, &SendRequest::send(Data::Memory(&from)));
        let entry = a.cq.wait().expect("a completion");
        qa.complete_receive(&entry);
        a.verify(HALF, len, seed + 10);
    }
}

fn to(peer: &Peer, qpn: u32, gid: Option<[u8; 16]>) -> AddressVector {
    let qkey = if qpn == 1 { GSI_QKEY } else { QKEY };
    AddressVector {
        lid: peer.port.lid,
        qpn,
        qkey,
        global: gid.map(|gid| (gid, 1)),
        ..AddressVector::default()
    }
}

/// A datagram, and before it one for which nobody is there: the right LID and queue pair, but the GID
/// of `other`.
fn datagram(a: &mut Peer, b: &mut Peer, other: [u8; 16], seed: u64) {
    let (mut qa, mut qb) = (a.qp(Transport::Ud), b.qp(Transport::Ud));
    qa.activate(0, QKEY).expect("becomes ready");
    qb.activate(0, QKEY).expect("becomes ready");
    a.fill(0, 64, seed);
    let from = [a.sge(0, 64)];
    let wrong = to(b, qb.number(), Some(other));
    for (immediate, right) in [
        (1, to(b, qb.number(), Some(b.gid()))),
        // Without a global route the queue pair's number says who is meant.
        (2, to(b, qb.number(), None)),
    ] {
        qb.post_receive(&[b.sge(HALF, GRH + 64)])
            .expect("is posted");
        a.execute(
            &mut qa,
            &SendRequest::send_imm(Data::Memory(&from), 9).to(&wrong),
        );
        a.execute(
            &mut qa,
            &SendRequest::send_imm(Data::Memory(&from), immediate).to(&right),
        );
        let entry = b.cq.wait().expect("a completion");
        qb.complete_receive(&entry);
        assert_eq!(
            (entry.kind(), entry.source_lid()),
            (CqeKind::SendImm, a.port.lid)
        );
        assert_eq!(entry.source_qpn(), qa.number());
        b.verify(HALF + GRH, 64, seed);
        assert_eq!(b.cq.poll().map(|_| ()), None, "the other one is dropped");
        if immediate == 1 {
            let mut header = [0; GRH];
            b.buffer.read(HALF, &mut header);
            assert_eq!(
                (&header[8..24], &header[24..]),
                (&a.gid()[..], &b.gid()[..])
            );
        }
    }
}

#[test]
fn everybody_reaches_everybody() {
    let daemon = Daemon::configured(shared());
    let mut peers = ["vm1", "vm2", "vm3"].map(|name| Peer::open(&daemon, name));
    let lids = peers.each_ref().map(|peer| peer.port.lid);
    assert_eq!(lids[0], lids[1]);
    assert_ne!(lids[0], lids[2]);
    for peer in &peers {
        assert!(peer.port.grh_required && !peer.port.has_smi);
        assert_eq!(peer.port.node_guid, peer.port.port_guid);
        assert_eq!(peer.gid()[8..], peer.port.port_guid.to_be_bytes());
        let unused = peer.device.gid(7).expect("an entry");
        assert_eq!(
            (&unused[..8], &unused[8..]),
            (&peer.gid()[..8], &[0; 8][..])
        );
    }
    let gids = peers.each_ref().map(Peer::gid);
    for (a, b, other) in [(0, 1, 2), (0, 2, 1), (1, 2, 0)] {
        let [first, second] = peers.get_disjoint_mut([a, b]).expect("are two");
        for global in [true, false] {
            transfer(first, second, global);
            transfer(second, first, global);
        }
        datagram(first, second, gids[other], 5);
        datagram(second, first, gids[other], 6);
    }
}

#[test]
fn a_connection_is_with_the_one_whose_gid_it_names() {
    let daemon = Daemon::configured(shared());
    let [vm1, vm2, mut vm3] = ["vm1", "vm2", "vm3"].map(|name| Peer::open(&daemon, name));
    let target = vm1.qp(Transport::Rc);
    let mut qp = vm3.qp(Transport::Rc);
    target
        .connect(Access::ALL, &Connection::to(vm3.port.lid, qp.number()))
        .expect("connects");
    let mut to = Connection::to(vm1.port.lid, target.number());
    (to.ack_timeout, to.retry_count) = (1, 1);
    to.gid = Some(vm2.gid());
    qp.connect(Access::ALL, &to).expect("connects");
    qp.post_send(&SendRequest::send(Data::Inline(b"hello")))
        .expect("is posted");
    assert_eq!(vm3.sent(&mut qp).syndrome(), Syndrome::RetryExceeded);
}

/// No two functions at a port have queue pairs of one number.
#[test]
fn queue_pair_numbers_are_one_functions() {
    let daemon = Daemon::configured(shared());
    let [vm1, vm2] = ["vm1", "vm2"].map(|name| Peer::open(&daemon, name));
    let of = |peer: &Peer| (0..200).map(|_| peer.qp(Transport::Ud)).collect::<Vec<_>>();
    // All at the same time: a number may be used again.
    let all: Vec<QueuePair> = of(&vm1).into_iter().chain(of(&vm2)).collect();
    let different: std::collections::BTreeSet<u32> = all.iter().map(QueuePair::number).collect();
    assert_eq!(different.len(), 400);
}

/// As connection managers do: requests by GID, answers to who asked, whatever they carry.
#[test]
fn management_packets_find_the_right_one() {
    let daemon = Daemon::configured(shared());
    let [mut vm1, mut vm2, mut vm3] = ["vm1", "vm2", "vm3"].map(|name| Peer::open(&daemon, name));
    let (mut q1, mut q2, mut q3) = (gsi(&vm1), gsi(&vm2), gsi(&vm3));
    for (peer, qp) in [(&vm1, &mut q1), (&vm2, &mut q2), (&vm3, &mut q3)] {
        qp.post_receive(&[peer.sge(HALF, GRH + MAD)])
            .expect("is posted");
    }
    // A DREQ has no addresses inside; without a GID nobody can tell for whom it is.
    let request = mad(7, 2, 3, 0x0015, 0x77);
    let (lost, found) = (to(&vm2, 1, None), to(&vm2, 1, Some(vm2.gid())));
    for target in [&lost, &found] {
        vm3.execute(
            &mut q3,
            &SendRequest::send(Data::Inline(&request)).to(target),
        );
    }
    let (lid, packet) = receive(&mut vm2, &mut q2);
    assert_eq!(
        (lid, packet[..4].to_vec()),
        (vm3.port.lid, request[..4].to_vec())
    );
    // The one who shares its LID has heard nothing: what comes first is what comes now.
    let second = mad(7, 2, 3, 0x0015, 0x78);
    let target = to(&vm1, 1, Some(vm1.gid()));
    vm2.execute(
        &mut q2,
        &SendRequest::send(Data::Inline(&second)).to(&target),
    );
    let (lid, packet) = receive(&mut vm1, &mut q1);
    assert_eq!((lid, packet), (vm2.port.lid, second));
    // What answers it is a packet of its own, with the transaction of the first.
    q2.post_receive(&[vm2.sge(HALF, GRH + MAD)])
        .expect("is posted");
    let third = mad(7, 2, 3, 0x0016, 0x78);
    let target = to(&vm2, 1, Some(vm2.gid()));
    vm1.execute(
        &mut q1,
        &SendRequest::send(Data::Inline(&third)).to(&target),
    );
    let (lid, packet) = receive(&mut vm2, &mut q2);
    assert_eq!((lid, packet), (vm1.port.lid, third));
    // Questions to the subnet administration with the same transaction from both, without GIDs.
    for (peer, qp) in [(&vm1, &mut q1), (&vm2, &mut q2)] {
        qp.post_receive(&[peer.sge(HALF, GRH + MAD)])
            .expect("is posted");
    }
    let path = |from: &Peer| {
        let mut get = mad(3, 2, 1, 0x35, 99);
        get[48..56].copy_from_slice(&0b1_0000_0000_1100_u64.to_be_bytes());
        get[56 + 8..56 + 24].copy_from_slice(&vm3.gid());
        get[56 + 24..56 + 40].copy_from_slice(&from.gid());
        get[56 + 49] = 1;
        get
    };
    let questions = [path(&vm1), path(&vm2)];
    let manager = AddressVector {
        lid: vm1.port.sm_lid,
        ..to(&vm1, 1, None)
    };
    for (peer, qp, question) in [
        (&mut vm1, &mut q1, &questions[0]),
        (&mut vm2, &mut q2, &questions[1]),
    ] {
        qp.post_send(&SendRequest::send(Data::Inline(question)).to(&manager))
            .expect("is posted");
        let _ = peer;
    }
    for (peer, qp) in [(&mut vm1, &mut q1), (&mut vm2, &mut q2)] {
        let own = peer.gid();
        loop {
            let entry = peer.cq.wait().expect("a completion");
            if entry.kind() == CqeKind::Requester {
                qp.complete(&entry);
                continue;
            }
            qp.complete_receive(&entry);
            break;
        }
        let mut found = [0; MAD];
        peer.buffer.read(HALF + GRH, &mut found);
        assert_eq!((found[3], &found[4..6]), (0x81, &[0, 0][..]));
        assert_eq!(
            found[8..16],
            99_u64.to_be_bytes(),
            "the transaction as it was"
        );
        assert_eq!(found[56 + 24..56 + 40], own);
        let lids = [vm3.port.lid.to_be_bytes(), peer.port.lid.to_be_bytes()].concat();
        assert_eq!(found[56 + 40..56 + 44], lids);
        let hop_limit = found[56 + 47];
        assert_eq!(hop_limit, 1, "a global route header is needed");
    }
}

/// A guest at a shared port may not do what only the physical function may.
#[test]
fn what_a_guest_at_a_shared_port_may_not() {
    let daemon = Daemon::configured(shared());
    let mut vm1 = Peer::open(&daemon, "vm1");
    let mut qp = gsi(&vm1);
    // Its own port's agent.
    let mut get = mad(0x81, 1, 1, 0x15, 5);
    get[32..36].fill(0xff);
    let answer = vm1.device.mad_ifc(&get).expect("is answered");
    assert_eq!(answer[5], 0x0c, "unsupported");
    let manager = AddressVector {
        lid: vm1.port.sm_lid,
        ..to(&vm1, 1, None)
    };
    // Another GUID for the port, and a transaction that would make the answer another's.
    let mut set = mad(3, 2, 2, 0x30 | 1 << 1, 6);
    set[16..18].copy_from_slice(&0x30_u16.to_be_bytes());
    set[48..56].copy_from_slice(&0b10_0011_u64.to_be_bytes());
    set[56..58].copy_from_slice(&vm1.port.lid.to_be_bytes());
    set[56 + 16..56 + 24].copy_from_slice(&0xbad_u64.to_be_bytes());
    let other = mad(3, 2, 1, 0x35, 2 << 56 | 7);
    for packet in [&set, &other] {
        vm1.execute(
            &mut qp,
            &SendRequest::send(Data::Inline(packet)).to(&manager),
        );
    }
    // Both have been looked at when the next has been.
    qp.post_receive(&[vm1.sge(HALF, GRH + MAD)])
        .expect("is posted");
    let class_port_info = mad(3, 2, 1, 1, 8);
    vm1.execute(
        &mut qp,
        &SendRequest::send(Data::Inline(&class_port_info)).to(&manager),
    );
    receive(&mut vm1, &mut qp);
    let shown = daemon.ask(&["vf", "show", "vm1"]);
    let refused = &shown["mads"]["refused"];
    for reason in ["smp", "manager", "transaction"] {
        assert_eq!(refused[reason], 1, "{reason}: {refused}");
    }
}

#[test]
fn the_topology_says_who_shares_what() {
    let daemon = Daemon::configured(shared());
    let [vm1, vm2, vm3] = ["vm1", "vm2", "vm3"].map(|name| Peer::open(&daemon, name));
    let topology = daemon.ask(&["topology"]);
    let pf = named(&topology["nodes"], "hv1");
    assert_eq!(
        (pf["kind"].as_str(), pf["lid"].as_u64()),
        (Some("pf"), Some(vm1.port.lid.into()))
    );
    for (name, peer) in [("vm1", &vm1), ("vm2", &vm2), ("vm3", &vm3)] {
        let vf = named(&topology["nodes"], name);
        assert_eq!(vf["lid"], peer.port.lid);
        assert_eq!(vf["state"], "Active");
        let reason = vf["reason"].as_str().expect("a text");
        assert!(reason.starts_with("shares the LID of hv"), "{reason}");
    }
    assert_eq!(
        named(&topology["nodes"], "vm1")["pkeys"],
        serde_json::json!(["0xffff", "0x8011"])
    );
    assert_eq!(
        named(&topology["nodes"], "vm2")["pkeys"],
        serde_json::json!(["0x7fff"])
    );
    let spare = named(&topology["nodes"], "hv2-spare1");
    assert_eq!(
        (spare["lid"].as_u64(), spare["reason"].as_str()),
        (None, Some("no VM is here"))
    );
    // The same before anything runs.
    let planned = daemon.ask(&["topology", "--planned", "--config", &daemon.config()]);
    assert_eq!(named(&planned["nodes"], "vm2")["lid"], vm2.port.lid);
    // Partitions are each one's own: a limited member is one although its port is a full one.
    assert_eq!(vm2.device.pkey(0).expect("a key"), 0x7fff);
    assert_eq!(vm2.device.pkey(1).expect("a key"), 0);
}

#[test]
fn some_share_and_some_do_not() {
    let daemon = Daemon::configured(hybrid());
    let mut peers = ["vm1", "vm2", "vm3", "vm4"].map(|name| Peer::open(&daemon, name));
    let lids = peers.each_ref().map(|peer| peer.port.lid);
    assert_eq!(lids[0], lids[1]);
    let different: std::collections::BTreeSet<u16> = lids.into_iter().collect();
    assert_eq!(different.len(), 3, "{lids:?}");
    let required = peers.each_ref().map(|peer| peer.port.grh_required);
    assert_eq!(required, [true, true, false, false]);
    for (a, b) in [(0, 1), (0, 2), (1, 3), (2, 3)] {
        let [first, second] = peers.get_disjoint_mut([a, b]).expect("are two");
        for global in [true, false] {
            transfer(first, second, global);
            transfer(second, first, global);
        }
    }
    let gids = peers.each_ref().map(Peer::gid);
    let [vm2, vm4] = peers.get_disjoint_mut([1, 3]).expect("are two");
    datagram(vm4, vm2, gids[0], 7);
    let topology = daemon.ask(&["topology"]);
    assert_eq!(named(&topology["nodes"], "hv1-pf")["lid"], lids[0]);
    assert_eq!(
        named(&topology["nodes"], "vm3")["reason"],
        "chosen when the VM started"
    );
}

#[test]
fn a_vm_that_moves_has_another_lid_and_the_same_guid() {
    let daemon = Daemon::configured(shared());
    let [vm1, mut vm2, mut vm3] = ["vm1", "vm2", "vm3"].map(|name| Peer::open(&daemon, name));
    let moved = daemon.ask(&["vf", "migrate", "vm1", "--to", "hv2"]);
    assert_eq!(moved["to"]["vf"], "hv2-spare1");
    assert_eq!(moved["former_lid"], vm1.port.lid);
    assert_eq!(moved["lid"], vm3.port.lid);
    let mut there = Peer::open(&daemon, "hv2-spare1");
    assert_eq!(
        (there.port.lid, there.port.port_guid),
        (vm3.port.lid, vm1.port.port_guid)
    );
    assert_ne!(
        vm1.device.port().expect("a port").state,
        4,
        "nobody is there any more"
    );
    // The one it shared a LID with has noticed nothing.
    assert_eq!(vm2.device.port().expect("a port").lid, vm1.port.lid);
    transfer(&mut vm2, &mut vm3, true);
    transfer(&mut vm2, &mut there, true);
    transfer(&mut there, &mut vm3, false);
    // Its partitions have come along.
    assert_eq!(there.device.pkey(1).expect("a key"), 0x8011);
    // There is no second place, and there are no tables to change.
    let refused = |args: &[&str]| {
        let output = daemon.command().args(args).output().expect("runs");
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("is text")
    };
    let full = refused(&["vf", "migrate", "vm2", "--to", "hv2"]);
    assert!(full.contains("hv2 has 2 VFs and none is free"), "{full}");
    let tables = refused(&["vf", "migrate", "vm1", "--to", "hv1", "--method", "swap"]);
    assert!(
        tables.contains("no forwarding table changes when it moves"),
        "{tables}"
    );
    // And back.
    let back = daemon.ask(&["vf", "migrate", "vm1", "--to", "hv1"]);
    assert_eq!(
        (&back["to"]["vf"], &back["lid"]),
        (&Value::from("vm1"), &Value::from(vm1.port.lid))
    );
    vm1.device.wait_active().expect("is back");
}
