//! Ports for guests without an InfiniBand driver: Ethernet frames go in at one, cross the subnet as IPoIB,
//! and come out at another.

mod daemon;

use daemon::Daemon;
use etherparse::{ArpHardwareId, ArpOperation, ArpPacket, EtherType, PacketBuilder};
use vhost_user_driver::Driver;

const TWO: &str = "
[[hypervisor]]
name = \"hv1\"
[[hypervisor.vf]]
name = \"vm1\"
[[hypervisor.port]]
name = \"net1\"
kind = \"vhost-user-net\"
mac = \"52:54:00:00:00:01\"
[[hypervisor]]
name = \"hv2\"
[[hypervisor.port]]
name = \"net2\"
kind = \"vhost-user-net\"
mac = \"52:54:00:00:00:02\"
";

fn mac(guest: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, guest]
}

fn ip(guest: u8) -> [u8; 4] {
    [10, 0, 0, guest]
}

fn arp(operation: ArpOperation, from: u8, to: u8) -> Vec<u8> {
    let asks = operation == ArpOperation::REQUEST;
    let packet = ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        operation,
        &mac(from),
        &ip(from),
        &if asks { [0; 6] } else { mac(to) },
        &ip(to),
    );
    let destination = if asks { [0xff; 6] } else { mac(to) };
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(from), destination);
    let builder = builder.arp(packet.expect("is right"));
    builder.write(&mut frame).expect("has room");
    frame
}

fn ping(from: u8, to: u8, seq: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(from), mac(to)).ipv4(ip(from), ip(to), 64);
    let builder = builder.icmpv4_echo_request(1, seq);
    builder.write(&mut frame, payload).expect("has room");
    frame
}

/// Two guests that have found each other.
fn acquainted(daemon: &Daemon) -> (Driver, Driver) {
    let start = |name: &str| Driver::start(daemon.socket(name)).expect("is served");
    let (mut a, mut b) = (start("net1"), start("net2"));
    // As on any network, frames are lost while the port is not yet in it.
    let asked = loop {
        a.send(&arp(ArpOperation::REQUEST, 1, 2)).expect("is taken");
        if let Some(frame) = b.try_receive() {
            break frame;
        }
        std::thread::yield_now();
    };
    assert_eq!(asked, arp(ArpOperation::REQUEST, 1, 2));
    b.send(&arp(ArpOperation::REPLY, 2, 1)).expect("is taken");
    assert_eq!(
        a.receive().expect("a frame"),
        arp(ArpOperation::REPLY, 2, 1)
    );
    (a, b)
}

/// The next frame that is an IPv4 packet.
fn receive(guest: &mut Driver) -> Vec<u8> {
    loop {
        let frame = guest.receive().expect("a frame");
        if frame[12..14] == [0x08, 0x00] {
            return frame;
        }
    }
}

#[test]
fn frames_cross_the_subnet() {
    let daemon = Daemon::configured(TWO);
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

#[test]
fn a_link_that_is_down_ends_the_connection() {
    let daemon = Daemon::configured(TWO);
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
    let apart = TWO.replace(
        "mac = \"52:54:00:00:00:02\"",
        "mac = \"52:54:00:00:00:02\"\npkey = \"other\"",
    );
    let apart = apart.replace(
        "[[hypervisor.port]]\nname = \"net1\"",
        "[[hypervisor.port]]\nname = \"net3\"\nkind = \"vhost-user-net\"\nmac = \"52:54:00:00:00:03\"\n\
         pkey = \"other\"\n[[hypervisor.port]]\nname = \"net1\"",
    );
    let daemon = Daemon::configured(&format!("[partitions]\nother = 0x0003\n{apart}"));
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
