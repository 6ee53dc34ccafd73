//! Ports for guests without an InfiniBand driver: Ethernet frames go in at one, cross the subnet as IPoIB,
//! and come out at another.

use crate::daemon::Daemon;
use crate::daemon::ethernet::{acquainted, acquainted_with, arp, hear, ip, mac, ping, receive};
use etherparse::{ArpOperation, PacketBuilder};
use testing::Configuration;
use vhost_user_driver::{Checksum, Driver, FEATURES, NetHeader, Segments, TRAINS};

fn two() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", ["vm1"])
        .port("net1", 1)
        .hypervisor("hv2", [])
        .port("net2", 2)
}

#[test]
fn frames_cross_the_subnet() {
    let daemon = Daemon::configured(two());
    let (mut a, mut b) = acquainted(&daemon);
    for seq in 0..200_u16 {
        let frame = ping(1, 2, seq, &vec![seq as u8; usize::from(seq) * 10]);
        a.send(&frame).expect("is taken");
        assert_eq!(receive(&mut b), frame, "{seq}");
        let back = ping(2, 1, seq, &[0xa5; 64]);
        b.send(&back).expect("is taken");
        assert_eq!(receive(&mut a), back, "{seq}");
    }
    // To the subnet they are ports like all others.
    for name in ["net1", "net2"] {
        let vf = daemon.vf(name);
        assert_eq!(
            (&vf["state"], &vf["client_connected"]),
            (&"Active".into(), &true.into())
        );
        assert!(vf["lid"].as_u64() > Some(0), "{vf}");
        let sent = vf["counters"]["xmit_packets"].as_u64();
        assert!(sent >= Some(200), "{vf}");
    }
    assert_eq!(daemon.vf("net1")["port_guid"], "5054:00ff:fe00:0001");
    assert_eq!(daemon.vf("net1")["ethernet"], "52:54:00:00:00:01");
}

/// A TCP segment of a guest that leaves checksum and segmentation to its card.
fn long(len: usize) -> (NetHeader, Vec<u8>) {
    let payload: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
    let builder = PacketBuilder::ethernet2(mac(1), mac(2)).ipv4(ip(1), ip(2), 64);
    let builder = builder.tcp(40_000, 5001, 1000, 4096).ack(7);
    let mut frame = Vec::new();
    builder.write(&mut frame, &payload).expect("has room");
    let header = NetHeader {
        checksum: Some(Checksum {
            start: 14 + 20,
            offset: 16,
        }),
        segments: Some(Segments::TcpIpv4(1992)),
    };
    (header, frame)
}

/// Long segments come as they are from one port to another, and in parts where a link does something to packets;
/// to the subnet both are the same packets.
#[test]
fn long_segments_stay_whole_between_ports() {
    const HEADERS: usize = 14 + 20 + 20;
    let daemon = Daemon::configured(two());
    let (mut a, mut b) = acquainted_with(&daemon, FEATURES | TRAINS);
    let sent = ping(1, 2, 0, b"so there is a way");
    a.send(&sent).expect("is taken");
    assert_eq!(receive(&mut b), sent);
    let (header, frame) = long(60_000);
    let packets = || daemon.vf("net2")["counters"]["rcv_packets"].as_u64();
    let before = packets().expect("a number");
    a.send_with(header, &frame).expect("is taken");
    let whole = receive(&mut b);
    assert_eq!((whole.len(), b.header), (frame.len(), header));
    assert_eq!(whole[HEADERS..], frame[HEADERS..]);
    assert_eq!(packets(), Some(before + 31));

    daemon.ask(&["link", "delay", "net1:1", "1"]);
    a.send_with(header, &frame).expect("is taken");
    let mut carried: Vec<u8> = Vec::new();
    while carried.len() < 60_000 {
        let part = receive(&mut b);
        assert_eq!(b.header, NetHeader::default());
        carried.extend(&part[HEADERS..]);
    }
    assert_eq!(carried, frame[HEADERS..]);
    assert_eq!(packets(), Some(before + 62));
}

/// Ports' links have the bandwidth that the configuration gives them, and all arrives.
#[test]
fn ports_have_links_with_a_bandwidth() {
    let links = two()
        .set("fabric.bandwidth", "model")
        .set("fabric.link_width", "4X")
        .set("fabric.link_speed", "SDR");
    let daemon = Daemon::configured(links);
    let (mut a, mut b) = acquainted_with(&daemon, FEATURES | TRAINS);
    let sent = ping(1, 2, 0, b"so there is a way");
    a.send(&sent).expect("is taken");
    assert_eq!(receive(&mut b), sent);
    let (header, frame) = long(60_000);
    for _ in 0..20 {
        a.send_with(header, &frame).expect("is taken");
        let parts: Vec<u8> = (0..31)
            .flat_map(|_| receive(&mut b).split_off(54))
            .collect();
        // Each packet has had its turn at the links.
        assert_eq!(parts, frame[54..]);
    }
}

/// A report that a guest listens to a group (RFC 2236), or does no more.
fn listens(guest: u8, group: [u8; 4], joins: bool) -> Vec<u8> {
    let to = if joins { group } else { [224, 0, 0, 2] };
    let [_, b, c, d] = to;
    let kind = if joins { 0x16 } else { 0x17 };
    let mut message = [&[kind, 0, 0, 0][..], &group].concat();
    let sum = etherparse::checksum::Sum16BitWords::new().add_slice(&message);
    message[2..4].copy_from_slice(&sum.ones_complement().to_be_bytes());
    let builder = PacketBuilder::ethernet2(mac(guest), [0x01, 0, 0x5e, b & 0x7f, c, d]);
    let builder = builder.ipv4(ip(guest), to, 1);
    let mut frame = Vec::new();
    builder
        .write(&mut frame, etherparse::IpNumber::IGMP, &message)
        .expect("has room");
    frame
}

/// A group ends with its last member, and another one begins with the next: who has sent to the first one
/// reaches the second one as well.
#[test]
fn a_group_that_begins_again_is_reached() {
    let daemon = Daemon::configured(two());
    let (mut a, mut b) = acquainted(&daemon);
    let group = [239, 1, 2, 3];
    let [_, x, y, z] = group;
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(1), [0x01, 0, 0x5e, x & 0x7f, y, z]);
    let builder = builder.ipv4(ip(1), group, 1).udp(5353, 5353);
    builder.write(&mut frame, b"for all").expect("has room");
    for _ in 0..3 {
        b.send(&listens(2, group, true)).expect("is taken");
        loop {
            a.send(&frame).expect("is taken");
            match b.try_receive() {
                Some(heard) if heard == frame => break,
                _ => std::thread::yield_now(),
            }
        }
        b.send(&listens(2, group, false)).expect("is taken");
        // What was on its way comes first, then this.
        b.send(&ping(2, 1, 0, b"left")).expect("is taken");
        while receive(&mut a) != ping(2, 1, 0, b"left") {}
        while b.try_receive().is_some() {}
    }
}

/// Ports of two virtual clusters with the same LIDs: frames stay in theirs.
#[test]
fn clusters_have_lids_of_their_own() {
    let clusters = Configuration::new()
        .clusters(["one", "two"])
        .hypervisor("hv1", [])
        .port("net1", 1)
        .key("cluster", "one")
        .port("net3", 3)
        .key("cluster", "two")
        .hypervisor("hv2", [])
        .port("net2", 2)
        .key("cluster", "one")
        .port("net4", 4)
        .key("cluster", "two");
    let daemon = Daemon::configured(clusters);
    let lid = |name: &str| daemon.vf(name)["virtual_lid"].as_u64();
    assert_eq!(["net1", "net2"].map(lid), [Some(1), Some(2)]);
    assert_eq!(["net3", "net4"].map(lid), [Some(1), Some(2)]);
    let start = |name: &str| Driver::start(daemon.socket(name)).expect("is served");
    let (mut three, mut four) = (start("net3"), start("net4"));
    let (mut a, mut b) = acquainted(&daemon);
    for seq in 0..100 {
        let frame = ping(1, 2, seq, &[0x5a; 200]);
        a.send(&frame).expect("is taken");
        assert_eq!(receive(&mut b), frame, "{seq}");
    }
    for other in [&mut three, &mut four] {
        assert_eq!(hear(other), None);
    }
    // They reach each other, too.
    let asked = loop {
        three
            .send(&arp(ArpOperation::REQUEST, 3, 4))
            .expect("is taken");
        if let Some(frame) = hear(&mut four) {
            break frame;
        }
        std::thread::yield_now();
    };
    assert_eq!(asked, arp(ArpOperation::REQUEST, 3, 4));
}

/// A guest that goes on at another port has its addresses there: neighbours find it where it was.
#[test]
fn a_guest_moves_to_another_port() {
    let daemon = Daemon::configured(
        Configuration::new()
            .hypervisor("hv1", ["vm1"])
            .spare_vfs(1)
            .of_hypervisor("spare_ports", 1)
            .port("net1", 1)
            .hypervisor("hv2", [])
            .port("net2", 2),
    );
    let (mut a, b) = acquainted(&daemon);
    let before = daemon.vf("net2");
    // Where it goes on, as a VMM would that receives it. Places for HCAs are none for it.
    let mut b_there = Driver::start(daemon.socket("hv1-spare-port1")).expect("is served");
    let to_an_hca = ["vf", "migrate", "net2", "--to", "hv1", "--vf", "hv1-spare1"];
    let refused = daemon.run(&to_an_hca, "");
    assert!(
        refused.err.contains("differ in whether they are an HCA"),
        "{}",
        refused.err
    );
    let migrated = daemon.run(&["vf", "migrate", "net2", "--to", "hv1"], "");
    assert_eq!(migrated.status, Some(0), "{}", migrated.err);
    drop(b);
    let after = daemon.vf("hv1-spare-port1");
    assert_eq!(after["holds"], "net2");
    for key in ["lid", "port_guid"] {
        assert_eq!(after[key], before[key], "{key}");
    }
    // Its neighbour knows it under the same address as before.
    let asks = ping(1, 2, 7, b"still there?");
    loop {
        a.send(&asks).expect("is taken");
        match b_there.try_receive() {
            // Who has sent it has not told of itself there yet.
            Some(frame) if frame[12..] == asks[12..] && frame[..6] == mac(2) => break,
            _ => std::thread::yield_now(),
        }
    }
    let answers = ping(2, 1, 7, b"somewhere else");
    let tells = arp(ArpOperation::REQUEST, 2, 1);
    // Until the port there is in the group of broadcasts, they get lost, as anywhere.
    loop {
        b_there.send(&tells).expect("is taken");
        match a.try_receive() {
            Some(frame) if frame == tells => break,
            _ => std::thread::yield_now(),
        }
    }
    a.send(&arp(ArpOperation::REPLY, 1, 2)).expect("is taken");
    while b_there.receive().expect("a frame") != arp(ArpOperation::REPLY, 1, 2) {}
    b_there.send(&answers).expect("is taken");
    while a.receive().expect("a frame") != answers {}
}

#[test]
fn a_link_that_is_down_ends_the_connection() {
    let daemon = Daemon::configured(two());
    let (a, mut b) = acquainted(&daemon);
    daemon.ask(&["link", "down", "net1:1"]);
    a.await_end().expect("ends");
    daemon.ask(&["link", "up", "net1:1"]);
    let mut a = loop {
        match Driver::start(daemon.socket("net1")) {
            Ok(driver) => break driver,
            Err(_) => std::thread::yield_now(),
        }
    };
    let frame = loop {
        a.send(&arp(ArpOperation::REQUEST, 1, 2)).expect("is taken");
        if let Some(frame) = b.try_receive() {
            break frame;
        }
        std::thread::yield_now();
    };
    assert_eq!(frame, arp(ArpOperation::REQUEST, 1, 2));
}

#[test]
fn partitions_keep_guests_apart() {
    let apart = Configuration::new()
        .set("partitions.other", 0x0003)
        .hypervisor("hv1", ["vm1"])
        .port("net3", 3)
        .key("pkey", "other")
        .port("net1", 1)
        .hypervisor("hv2", [])
        .port("net2", 2)
        .key("pkey", "other");
    let daemon = Daemon::configured(apart);
    let start = |name: &str| Driver::start(daemon.socket(name)).expect("is served");
    let (mut one, mut two, mut three) = (start("net1"), start("net2"), start("net3"));
    // The two in one partition hear each other, and nothing of the third.
    let heard = loop {
        one.send(&arp(ArpOperation::REQUEST, 1, 2))
            .expect("is taken");
        three
            .send(&arp(ArpOperation::REQUEST, 3, 2))
            .expect("is taken");
        if let Some(frame) = two.try_receive() {
            break frame;
        }
        std::thread::yield_now();
    };
    assert_eq!(heard, arp(ArpOperation::REQUEST, 3, 2));
    for _ in 0..100 {
        one.send(&arp(ArpOperation::REQUEST, 1, 2))
            .expect("is taken");
    }
    three.send(&ping(3, 2, 0, b"not yet")).expect("is taken");
    two.send(&arp(ArpOperation::REPLY, 2, 3)).expect("is taken");
    loop {
        let frame = three.receive().expect("a frame");
        assert_eq!(frame[6..12], mac(2));
        if frame == arp(ArpOperation::REPLY, 2, 3) {
            break;
        }
    }
    while let Some(frame) = two.try_receive() {
        assert_eq!(frame[6..12], mac(3));
    }
}
