//! Management datagrams as a guest's own queue pairs 0 and 1 carry them.

use crate::daemon::{Daemon, HALF, Peer, peers};
use test_driver::{
    Access, AddressVector, Connection, Data, QueuePair, SendRequest, Syndrome, Transport,
};
use testing::{Configuration, Toml};

/// Q_Key of all queue pairs 1 (IBA 3.5.3).
const GSI_QKEY: u32 = 0x8001_0000;
const GRH: usize = 40;
const MAD: usize = 256;
const CLASS_PORT_INFO: u16 = 0x0001;

/// A MAD's first 24 bytes, the rest zero.
fn mad(class: u8, version: u8, method: u8, attribute: u16, transaction: u64) -> [u8; MAD] {
    let mut mad = [0; MAD];
    mad[..4].copy_from_slice(&[1, class, version, method]);
    mad[8..16].copy_from_slice(&transaction.to_be_bytes());
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad
}

fn gsi(peer: &Peer) -> QueuePair {
    let qp = peer.qp(Transport::Gsi);
    qp.activate(0, GSI_QKEY).expect("becomes ready");
    qp
}

fn send(qp: &mut QueuePair, lid: u16, mad: &[u8; MAD]) {
    let to = AddressVector {
        lid,
        qpn: 1,
        qkey: GSI_QKEY,
        ..AddressVector::default()
    };
    qp.post_send(&SendRequest::send(Data::Inline(mad)).to(&to))
        .expect("is posted");
}

#[test]
fn performance_agents_of_switches_answer_queue_pair_1() {
    let daemon = Daemon::configured(
        Configuration::new()
            .hypervisor("hv1", [])
            .vf("vm1")
            .key("gmp", Toml(r#"{ allow = ["perf"] }"#))
            .hypervisor("hv2", ["vm2"]),
    );
    let mut peer = Peer::open(&daemon, "vm1");
    let mut qp = gsi(&peer);
    // Which LIDs are of switches, the manager has decided: ask all that may
    // be. The port's own would bring the question back.
    let own = peer.port.lid;
    let lids: Vec<u16> = (1..=32).filter(|&lid| lid != own).collect();
    for (index, &lid) in lids.iter().enumerate() {
        let place = HALF + index * 512;
        let number = qp.post_receive(&[peer.sge(place, GRH + MAD)]).unwrap();
        assert_eq!(usize::from(number), index);
        let get = mad(4, 1, 1, CLASS_PORT_INFO, lid.into());
        send(&mut qp, lid, &get);
    }
    // The switch between the hypervisors, and one in each of them.
    let (mut answers, mut sent) = (0, 0);
    while answers < 3 || sent < lids.len() {
        let entry = peer.cq.wait().unwrap();
        assert!(entry.is_ok(), "{:?}", entry.syndrome());
        if entry.kind() == test_driver::CqeKind::Requester {
            sent += 1;
            continue;
        }
        answers += 1;
        assert_eq!(entry.byte_count() as usize, GRH + MAD);
        assert_eq!(entry.source_qpn(), 1);
        // The P_Key stands where immediate data does.
        assert_eq!(entry.immediate() & 0x7fff, 0x7fff);
        let place = HALF + usize::from(entry.wqe_counter()) * 512;
        let mut found = [0; MAD];
        peer.buffer.read(place + GRH, &mut found);
        assert_eq!(found[..4], [1, 4, 1, 0x81]);
        let lid = u64::from(entry.source_lid());
        assert_eq!(found[8..16], lid.to_be_bytes(), "the transaction's number");
    }
}

#[test]
fn datagrams_between_two_queue_pairs_1_arrive() {
    let daemon = Daemon::start("trap");
    let (mut a, mut b) = peers(&daemon);
    let (mut qa, mut qb) = (gsi(&a), gsi(&b));
    // Of the class that connection managers speak: a reply, which has no
    // addresses inside.
    let mut message = mad(7, 2, 3, 0x0013, 0x1234_5678);
    for (index, byte) in message.iter_mut().enumerate().skip(24) {
        *byte = index as u8;
    }
    qb.post_receive(&[b.sge(HALF, GRH + MAD)]).unwrap();
    crate::daemon::show_posted(&qb);
    let lid = b.port.lid;
    send(&mut qa, lid, &message);
    assert!(a.sent(&mut qa).is_ok());
    let entry = b.cq.wait().unwrap();
    qb.complete_receive(&entry);
    assert!(entry.is_ok());
    assert_eq!((entry.source_lid(), entry.source_qpn()), (a.port.lid, 1));
    let mut found = [0; MAD];
    b.buffer.read(HALF + GRH, &mut found);
    assert_eq!(found, message);
}

#[test]
fn counters_move_with_traffic() {
    let daemon = Daemon::start("trap");
    let (mut a, b) = peers(&daemon);
    let (mut qa, _qb) = crate::daemon::connected(Transport::Rc, &a, &b);
    // PortCountersExtended of port 1: the port is byte 1 of the data at 64,
    // PortXmitData, in dwords, at 8, PortRcvData at 16.
    let counters = |peer: &Peer| {
        let mut get = mad(4, 1, 1, 0x001d, 1);
        get[65] = 1;
        let answer = peer.device.mad_ifc(&get).unwrap();
        assert_eq!(answer[3..6], [0x81, 0, 0], "method, status");
        let quad = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&answer[at..at + 8]);
            u64::from_be_bytes(bytes)
        };
        (quad(64 + 8), quad(64 + 16))
    };
    let before = (counters(&a).0, counters(&b).1);
    let from = [a.sge(0, 1 << 20)];
    a.execute(
        &mut qa,
        &SendRequest::write(b.remote(HALF), Data::Memory(&from)),
    );
    let after = (counters(&a).0, counters(&b).1);
    let dwords = (1 << 20) / 4;
    for moved in [after.0 - before.0, after.1 - before.1] {
        // Payload, and headers of 256 packets of 4096 bytes or a few more.
        assert!((dwords..dwords + 256 * 32).contains(&moved), "{moved}");
    }
}

/// Returns the values of a counter at the ports where it is not 0, over all of the subnet.
fn counted(daemon: &Daemon, counter: &str) -> Vec<(String, u64, u64)> {
    let counters = daemon.ask(&["counters"]);
    let nodes = counters["nodes"].as_array().expect("a list");
    let ports = nodes.iter().flat_map(|node| {
        let name = node["name"].as_str().expect("a name").to_owned();
        let ports = node["ports"].as_array().expect("a list").iter();
        ports.map(move |port| (name.clone(), port))
    });
    ports
        .filter_map(|(name, port)| {
            Some((
                name,
                port["port"].as_u64()?,
                port["errors"][counter].as_u64()?,
            ))
        })
        .filter(|(_, _, value)| *value > 0)
        .collect()
}

/// Packets of the data plane that a switch does not let through are counted at its port and told to
/// the subnet manager, as hardware would; the sender's port has sent them.
#[test]
fn packets_that_a_switch_keeps_apart() {
    let daemon = Daemon::configured(
        Configuration::new()
            .set("sm.enforce_partitions", true)
            .set("partitions.one", 0x11)
            .set("partitions.two", 0x12)
            .hypervisor("hv1", [])
            .vf("vm1")
            .key("pkeys", ["one", "default"])
            .hypervisor("hv2", [])
            .vf("vm2")
            .key("pkeys", ["two", "default"]),
    );
    let (mut vm1, vm2) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    let mut qp = vm1.qp(Transport::Ud);
    qp.activate(0, 0x77).expect("becomes ready");
    let to = AddressVector {
        lid: vm2.port.lid,
        qpn: 77,
        qkey: 0x77,
        ..AddressVector::default()
    };
    for _ in 0..5 {
        vm1.execute(&mut qp, &SendRequest::send(Data::Inline(b"hello")).to(&to));
    }
    // At the port of the second hypervisor's vSwitch that the VF is at.
    let places = counted(&daemon, "xmit_constraint_errors");
    let [(name, _, 5)] = &places[..] else {
        panic!("{places:?}");
    };
    assert_eq!(name, "hv2");
    assert_eq!(counted(&daemon, "xmit_discards"), []);
    // One that is connected tries again, and gives up; its packets are lost as well.
    let mut qp = vm1.qp(Transport::Rc);
    let mut peer = Connection::to(vm2.port.lid, 77);
    (peer.ack_timeout, peer.retry_count) = (1, 2);
    qp.connect(Access::ALL, &peer).expect("connects");
    qp.post_send(&SendRequest::send(Data::Inline(b"hello")))
        .expect("is posted");
    assert_eq!(vm1.sent(&mut qp).syndrome(), Syndrome::RetryExceeded);
    let places = counted(&daemon, "xmit_constraint_errors");
    assert_eq!(places.iter().map(|place| place.2).sum::<u64>(), 5 + 3);
    loop {
        let status = daemon.ask(&["sm", "status"]);
        let traps = status["traps"].to_string();
        if traps.contains("259") {
            break;
        }
    }
}

/// A management datagram is one packet at the ports of those who say and hear it.
#[test]
fn management_datagrams_are_counted_once() {
    let daemon = Daemon::start("trap");
    let (mut vm1, vm2) = peers(&daemon);
    let mut qp = gsi(&vm1);
    let totals = |name: &str| {
        let counters = daemon.ask(&["counters", name]);
        let port = &counters["nodes"][0]["ports"][0];
        let value = |name: &str| port[name].as_u64().expect("a number");
        (value("xmit_packets"), value("rcv_packets"))
    };
    let before = (totals("vm1"), totals("vm2"));
    for _ in 0..4 {
        let get = mad(7, 2, 3, 0x13, 9);
        send(&mut qp, vm2.port.lid, &get);
        vm1.sent(&mut qp);
    }
    let wanted = (before.0.0 + 4, before.1.1 + 4);
    // The management thread carries them.
    while totals("vm2").1 < wanted.1 {}
    assert_eq!((totals("vm1").0, totals("vm2").1), wanted);
}
