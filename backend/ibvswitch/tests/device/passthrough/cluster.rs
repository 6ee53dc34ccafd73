//! VFs that are passed through, in virtual clusters: connections by LIDs of the cluster to ports that another
//! daemon's subnet gives other LIDs.

use crate::daemon::passthrough::{
    clusters, datagrams, next, passed, path, send, shared, told_by_agent, wait_for_one,
};
use crate::daemon::{Daemon, HALF, Peer, connected, connected_by};
use test_driver::{
    Access, AddressVector, Config, Connection, Data, QueuePair, Receive, SendRequest,
    SharedReceiveQueue, Status, Transport, XrcDomain,
};
use testing::Configuration;

/// Configuration of the daemon behind.
fn inner() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", [])
        .vf("a1")
        .key("lid", 21)
        .vf("b1")
        .key("lid", 22)
        .key("smp", "fabric")
        .hypervisor("hv2", [])
        .vf("a2")
        .key("lid", 23)
        .vf("b2")
        .key("lid", 24)
        .key("smp", "fabric")
}

/// Where a queue pair is connected to: whether with a header, and the LID.
fn to(qp: &QueuePair) -> (bool, u16) {
    let path = path(qp);
    (path.has_header, path.lid)
}

/// A change that nobody makes.
#[track_caller]
fn refused(qp: &QueuePair, to: &Connection) {
    match qp.connect(Access::ALL, to) {
        Err(test_driver::Error::Refused { status, .. }) => assert_eq!(status, Status::BadParam),
        other => panic!("{other:?}"),
    }
}

#[test]
fn clusters_have_lids_of_their_own() {
    let vfs = [
        ("a1", "cluster = 'a'"),
        ("a2", "cluster = 'a'"),
        ("b1", "cluster = 'b'"),
        ("b2", "cluster = 'b'\nvlid = 7"),
    ];
    let (inner, outer, [mut a1, mut a2, mut b1, b2]) = passed(inner(), clusters(), vfs);
    let ports = [&a1, &a2, &b1, &b2].map(|peer| (peer.port.lid, peer.port.lmc));
    assert_eq!(ports, [(1, 0), (2, 0), (1, 0), (7, 0)]);
    // The manager's is the subnet's: what is sent to it are datagrams.
    let manager = inner.vf("a1")["sm_lid"].clone();
    assert_eq!(manager, a1.port.sm_lid);
    // What the port's agent says.
    assert_eq!(told_by_agent(&a2, 0x15)[16..18], [0, 2]);
    // Connections by the same LIDs at the same time, of both kinds.
    for (seed, transport) in [(1, Transport::Rc), (2, Transport::Uc)] {
        let (mut to_a2, to_a1) = connected(transport, &a1, &a2);
        let (mut to_b2, _to_b1) = connected(transport, &b1, &b2);
        assert_eq!((to(&to_a2), to(&to_a1)), ((false, 2), (false, 1)));
        assert_eq!(to(&to_b2), (false, 7));
        a1.write_by(&mut to_a2, &a2, 300_000, seed);
        b1.write_by(&mut to_b2, &b2, 300_000, seed + 100);
        a2.arrives(HALF, 300_000, seed);
        b2.arrives(HALF, 300_000, seed + 100);
    }
    // By the subnet's LID, which the subnet administration tells; and shown as the cluster's.
    let by_subnet = a1.qp(Transport::Rc);
    let target = a2.qp(Transport::Rc);
    by_subnet
        .connect(Access::ALL, &Connection::to(23, target.number()))
        .expect("connects");
    assert_eq!(to(&by_subnet), (false, 2));
    // Those of the other cluster, and nobody.
    for lid in [7, 22, 24, 0] {
        refused(&a1.qp(Transport::Rc), &Connection::to(lid, target.number()));
    }
    // Datagrams have the cluster's LIDs as well, or the subnet's; their completions have the subnet's.
    let (mut qa, mut qb) = (datagrams(&a1, 0), datagrams(&a2, 0));
    for lid in [2, 23] {
        wait_for_one(&a2, &mut qb);
        send(&mut a1, &mut qa, lid, &qb, b"a datagram");
        let (entry, text) = next(&mut a2, &mut qb);
        assert_eq!((entry.source_lid(), &text[..]), (21, &b"a datagram"[..]));
    }
    // What `status` says of it, beside the LID in the subnet.
    let told = crate::daemon::named(&outer.ask(&["status"])["passthrough"], "b2");
    assert_eq!(
        (&told["cluster"], &told["virtual_lid"], &told["lid"]),
        (&"b".into(), &7.into(), &24.into())
    );
    let shown = outer.run(&["vf", "show", "b2"], "").out;
    assert!(
        shown.contains("    Virtual lid: 7 (0x0007) in cluster b\n"),
        "{shown}"
    );
}

/// VMs of one cluster with VFs at two daemons, each of which is told where the other's are: with LIDs of their own,
/// and with one that both share.
#[test]
fn a_cluster_of_two_daemons() {
    for inner in [inner(), shared(["a1", "a2"])] {
        let inner = Daemon::configured(inner);
        let [one, two] = [("a1", 1, "a2", 2), ("a2", 2, "a1", 1)].map(|(name, lid, far, there)| {
            let behind = inner.vf(far);
            let cluster = Configuration::new()
                .clusters(["a"])
                .table("cluster.elsewhere")
                .key("vlid", there)
                .key("lid", behind["lid"].as_u64().expect("a LID"))
                .key("guid", behind["port_guid"].as_str().expect("a GUID"));
            let keys = format!("cluster = 'a'\nvlid = {lid}");
            inner.before_with(cluster, &[(name, &keys)])
        });
        let (mut a1, mut a2) = (Peer::open(&one, "a1"), Peer::open(&two, "a2"));
        assert_eq!((a1.port.lid, a2.port.lid), (1, 2));
        let (to_a2, to_a1) = connected(Transport::Rc, &a1, &a2);
        assert_eq!((to(&to_a2), to(&to_a1)), ((false, 2), (false, 1)));
        a1.write_to(&a2);
        a2.write_to(&a1);
        refused(&a1.qp(Transport::Rc), &Connection::to(3, 1000));
    }
}

/// Extended reliable connections, of which one end has no receive queue and the other no send queue.
#[test]
fn extended_connections_are_by_lids_of_the_cluster() {
    let vfs = ["a1", "a2"].map(|name| (name, "cluster = 'a'"));
    let (_inner, _outer, [mut a1, mut a2]) = passed(inner(), clusters(), vfs);
    let domain = XrcDomain::new(&a2.device).expect("a domain");
    let mut queue = SharedReceiveQueue::new(&a2.pd, 4, 1, Some((&domain, &a2.cq))).expect("an SRQ");
    let initiator = a1.config(Transport::XrcInitiator);
    let target = Config {
        receive: Receive::Shared(&queue),
        xrcd: Some(&domain),
        ..a2.config(Transport::XrcTarget)
    };
    let (mut there, back) = connected_by(&initiator, &target, &a1, &a2, |_| {});
    assert_eq!((to(&there), to(&back)), ((false, 2), (false, 1)));
    // By nobody's LID, and by the other cluster's.
    for lid in [7, 22] {
        let qp = a1.qp(Transport::XrcInitiator);
        refused(&qp, &Connection::to(lid, back.number()));
    }
    queue.post(&[a2.sge(HALF, 5000)]).expect("is posted");
    a1.fill(0, 5000, 1);
    let from = [a1.sge(0, 5000)];
    let send = SendRequest::send(Data::Memory(&from)).to_srq(queue.number());
    a1.execute(&mut there, &send);
    let entry = a2.cq.wait().expect("a completion");
    assert_eq!(entry.srqn(), queue.number());
    a2.verify(HALF, 5000, 1);
}

/// VFs made after an adapter's that share the LID of its port, as those of adapters do: packets need a global route
/// header, which programs that know of LIDs alone leave out.
#[test]
fn connections_to_ports_that_share_a_lid() {
    let inner = shared(["a1", "a2"])
        .hypervisor("hv2", [])
        .vf("a3")
        .key("like", "connectx-5");
    let vfs = ["a1", "a2", "a3"].map(|name| (name, "cluster = 'a'"));
    let (inner, _outer, [mut a1, mut a2, a3]) = passed(inner, clusters(), vfs);
    assert_eq!(inner.lid("a1"), inner.lid("a2"));
    // As at adapters: a header is wanted, and there is no queue pair 0.
    assert_eq!((a1.port.grh_required, a1.port.has_smi), (true, false));
    for (seed, transport) in [(1, Transport::Rc), (2, Transport::Uc)] {
        for other in [&a2, &a3] {
            let (mut there, back) = connected(transport, &a1, other);
            assert_eq!(to(&there), (false, other.port.lid));
            assert_eq!(to(&back), (false, 1));
            a1.write_by(&mut there, other, 5000, seed);
            other.arrives(HALF, 5000, seed);
        }
    }
    // With a header of the program's own, the LID that both share will do.
    let (qa, mut qb) = (a1.qp(Transport::Rc), a2.qp(Transport::Rc));
    for (qp, peer, other) in [(&qa, &a2, &qb), (&qb, &a1, &qa)] {
        let with_gid = Connection {
            gid: Some(peer.gid()),
            ..Connection::to(inner.lid("a1"), other.number())
        };
        qp.connect(Access::ALL, &with_gid).expect("connects");
    }
    assert_eq!((to(&qa), to(&qb)), ((true, 2), (true, 1)));
    a2.write_by(&mut qb, &a1, 64, 9);
    a1.verify(HALF, 64, 9);
    // Without one it is nobody's.
    refused(
        &a1.qp(Transport::Rc),
        &Connection::to(inner.lid("a1"), 1000),
    );
}

#[test]
fn service_levels_of_connections_are_those_of_the_configuration() {
    let vfs = [
        ("a1", "sl = [2, 3]"),
        ("a2", "sl = [2, 3]\nsl_policy = 'rewrite'"),
    ];
    let (_inner, _outer, peers) = passed(inner(), Configuration::new(), vfs);
    let with = |sl| Connection {
        sl,
        ..Connection::to(22, 1000)
    };
    for peer in &peers {
        let qp = peer.qp(Transport::Rc);
        qp.connect(Access::ALL, &with(3)).expect("connects");
        assert_eq!(path(&qp).level, 3);
    }
    let [denied, rewritten] = peers;
    refused(&denied.qp(Transport::Rc), &with(0));
    let qp = rewritten.qp(Transport::Rc);
    qp.connect(Access::ALL, &with(0)).expect("connects");
    assert_eq!(path(&qp).level, 2);
}

/// A guest that may manage the subnet where the VF behind is, and not here.
#[test]
fn subnet_management_ends_here() {
    let vfs = [("b1", "smp = 'own-port'"), ("b2", "smp = 'fabric'")];
    let (_inner, _outer, [mut own, mut all]) = passed(inner(), Configuration::new(), vfs);
    let mut ask = [0; 256];
    ask[..4].copy_from_slice(&[1, 0x81, 1, 1]);
    ask[17] = 0x15;
    // By a command: what the port is, and not to set it up.
    for (peer, may_set) in [(&own, false), (&all, true)] {
        let mut info = peer.device.mad_ifc(&ask).expect("is answered");
        // On its way back, without an error.
        assert_eq!(info[4..6], [0x80, 0]);
        (info[3], info[4]) = (2, 0);
        let answer = peer.device.mad_ifc(&info).expect("is answered");
        assert_eq!((answer[3], answer[4]), (0x81, 0x80));
        assert_eq!(answer[5] == 0, may_set, "{:02x?}", &answer[..64]);
    }
    // By queue pair 0, to queue pair 0 of the other, which waits for it. What is sent after it arrives.
    let mut ask = [0; 256];
    ask[..4].copy_from_slice(&[1, 1, 1, 1]);
    ask[17] = 0x11;
    let mut waiting = all.qp(Transport::Smi);
    waiting.activate(0, 0).expect("is active");
    let (mut there, mut ud) = (datagrams(&all, 0), datagrams(&own, 0));
    wait_for_one(&all, &mut waiting);
    wait_for_one(&all, &mut there);
    let mut smi = own.qp(Transport::Smi);
    smi.activate(0, 0).expect("is active");
    let to_0 = AddressVector {
        lid: 24,
        ..AddressVector::default()
    };
    let smp = SendRequest::send(Data::Inline(&ask));
    own.execute(&mut smi, &smp.to(&to_0));
    send(&mut own, &mut ud, 24, &there, b"a datagram");
    assert_eq!(next(&mut all, &mut there).1, b"a datagram");
}
