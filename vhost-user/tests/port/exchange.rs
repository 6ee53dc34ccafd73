//! Guests that talk with each other.

use etherparse::{ArpHardwareId, ArpOperation, EtherType, PacketBuilder, SlicedPacket};
use hca::transport::Frame;
use vhost_user_driver::Driver;
use wire::Qpn;

use crate::harness::{Lab, mac};

pub fn ip(port: usize) -> [u8; 4] {
    [10, 0, 0, port as u8 + 1]
}

pub fn arp(operation: ArpOperation, from: usize, to: usize, target: [u8; 6]) -> Vec<u8> {
    let packet = etherparse::ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        operation,
        &mac(from).0,
        &ip(from),
        &target,
        &ip(to),
    );
    let to = if operation == ArpOperation::REQUEST {
        [0xff; 6]
    } else {
        target
    };
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(from).0, to).arp(packet.unwrap());
    builder.write(&mut frame).unwrap();
    frame
}

pub fn parse_arp(frame: &[u8]) -> Option<etherparse::ArpPacket> {
    match SlicedPacket::from_ethernet(frame).unwrap().net? {
        etherparse::NetSlice::Arp(arp) => Some(arp.to_packet()),
        _ => None,
    }
}

/// The guest's next ARP packet.
fn receive_arp(guest: &mut Driver) -> (Vec<u8>, etherparse::ArpPacket) {
    loop {
        let frame = guest.receive().unwrap();
        if let Some(packet) = parse_arp(&frame) {
            return (frame, packet);
        }
    }
}

fn ping(guest: &mut Driver, from: usize, to: usize, seq: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(from).0, mac(to).0).ipv4(ip(from), ip(to), 64);
    let builder = builder.icmpv4_echo_request(7, seq);
    builder.write(&mut frame, payload).unwrap();
    guest.send(&frame).unwrap();
    frame
}

/// Neighbours that know each other.
pub fn acquainted(lab: &Lab) -> [Driver; 2] {
    let [mut a, mut b] = [lab.guest(0), lab.guest(1)];
    meet(lab, &mut a, &mut b, [0, 1]);
    [a, b]
}

/// Has guests at these ports find each other.
pub fn meet(lab: &Lab, a: &mut Driver, b: &mut Driver, [at, to]: [usize; 2]) {
    // Each frame before the ports are in the broadcast group is lost, as on any network. None is sent behind one
    // that is not: those that nobody takes would fill the ring.
    let request = arp(ArpOperation::REQUEST, at, to, [0; 6]);
    let heard = lab.heard([at, to]);
    while lab.heard([at, to]) == heard {
        a.send(&request).unwrap();
        a.await_sent().unwrap();
        std::thread::yield_now();
    }
    let (frame, packet) = loop {
        let (frame, packet) = receive_arp(b);
        // Others may be heard, too.
        if packet.target_protocol_addr() == ip(to) {
            break (frame, packet);
        }
    };
    // The neighbours are known by their own addresses.
    assert_eq!(frame[..12], [&[0xff; 6][..], &mac(at).0].concat());
    assert_eq!(packet.sender_hw_addr(), mac(at).0);
    assert_eq!(packet.sender_protocol_addr(), ip(at));
    assert_eq!(packet.target_protocol_addr(), ip(to));
    b.send(&arp(ArpOperation::REPLY, to, at, mac(at).0))
        .unwrap();
    let (frame, packet) = receive_arp(a);
    assert_eq!(frame[..12], [mac(at).0, mac(to).0].concat());
    assert_eq!(packet.operation, ArpOperation::REPLY);
    assert_eq!(packet.sender_hw_addr(), mac(to).0);
    assert_eq!(packet.target_hw_addr(), mac(at).0);
}

/// The next frame that is no ARP.
pub fn receive(guest: &mut Driver) -> Vec<u8> {
    loop {
        let frame = guest.receive().unwrap();
        if frame[12..14] != [0x08, 0x06] {
            return frame;
        }
    }
}

#[test]
fn guests_that_know_each_other_go_on_at_ports_that_do_not() {
    let lab = Lab::new(2);
    drop(acquainted(&lab));
    // Ports forget with their guests, but guests that have come from other ports do not.
    let [mut a, mut b] = [lab.guest(0), lab.guest(1)];
    let sent = loop {
        let sent = ping(&mut a, 0, 1, 0, b"we have met");
        if let Some(frame) = b.try_receive() {
            if frame == sent {
                break sent;
            }
            let asked = parse_arp(&frame).filter(|packet| packet.target_protocol_addr() == ip(1));
            if let Some(packet) = asked {
                assert_eq!(packet.sender_protocol_addr(), [0; 4]);
                let asker = packet.sender_hw_addr().try_into().unwrap();
                assert_eq!(asker, mac(0).0);
                let mut reply = arp(ArpOperation::REPLY, 1, 0, asker);
                reply[38..42].fill(0);
                b.send(&reply).unwrap();
            }
        }
        std::thread::yield_now();
    };
    assert_eq!(sent[..6], mac(1).0);
}

#[test]
fn guests_find_and_reach_each_other() {
    let lab = Lab::new(2);
    let [mut a, mut b] = acquainted(&lab);
    // A port that is new to its guest asks for the groups that it listens to.
    while [a.queries.len(), b.queries.len()] != [2, 2] {
        let _ = (a.try_receive(), b.try_receive());
        std::thread::yield_now();
    }
    for seq in 0..1000 {
        let payload = vec![seq as u8; 20 + usize::from(seq) * 2 % 1996];
        let sent = ping(&mut a, 0, 1, seq, &payload);
        assert_eq!(receive(&mut b), sent, "{seq}");
    }
    // On the fabric it is IPoIB: the EtherType and two zeros, then the packet.
    let net = lab.net.lock();
    let last = net.seen.last().unwrap();
    assert_eq!(last.payload[..4], [0x08, 0, 0, 0]);
    assert_eq!(last.payload[4] >> 4, 4);
}

#[test]
fn a_frame_that_is_too_long_goes_nowhere() {
    let lab = Lab::new(2);
    let [mut a, mut b] = acquainted(&lab);
    // 2044 bytes of IP are the most.
    ping(&mut a, 0, 1, 0, &[1; 2017]);
    let longest = ping(&mut a, 0, 1, 1, &[2; 2016]);
    assert_eq!(longest.len(), 2044 + 14);
    assert_eq!(receive(&mut b), longest);
}

#[test]
fn nobody_is_reached_under_an_invented_address() {
    let lab = Lab::new(2);
    let [mut a, mut b] = acquainted(&lab);
    // All are asked for who is not known.
    let for_one = |frame: &&Frame| frame.address.dest_qp != Qpn::MULTICAST;
    let sent_to_one = || lab.net.lock().seen.iter().filter(for_one).count();
    let before = sent_to_one();
    ping(&mut a, 0, 77, 0, b"anybody?");
    // Nor is anything sent from one.
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(5).0, mac(1).0).ipv4(ip(5), ip(1), 64);
    builder.udp(1, 2).write(&mut frame, b"spoofed").unwrap();
    a.send(&frame).unwrap();
    a.send(&arp(ArpOperation::REPLY, 5, 1, mac(1).0)).unwrap();
    let sent = ping(&mut a, 0, 1, 1, b"but this");
    assert_eq!(receive(&mut b), sent);
    assert_eq!(sent_to_one(), before + 1);
}

#[test]
fn a_link_that_is_down_is_a_socket_that_is_closed() {
    let lab = Lab::new(2);
    let [a, mut b] = acquainted(&lab);
    lab.set_link(0, false);
    a.await_end().unwrap();
    // Who comes meanwhile is sent away.
    let turned_away = Driver::start(lab.socket(0));
    assert!(turned_away.is_err());
    lab.set_link(0, true);
    let mut a = loop {
        // The port hears of the link a moment later.
        match Driver::start(lab.socket(0)) {
            Ok(driver) => break driver,
            Err(_) => std::thread::yield_now(),
        }
    };
    let request = arp(ArpOperation::REQUEST, 0, 1, [0; 6]);
    let frame = loop {
        a.send(&request).unwrap();
        if let Some(frame) = b.try_receive() {
            break frame;
        }
        std::thread::yield_now();
    };
    assert_eq!(frame[6..12], mac(0).0);
}

#[test]
fn who_comes_after_another_has_a_port_as_new() {
    let lab = Lab::new(2);
    let [a, b] = acquainted(&lab);
    drop((a, b));
    let [mut a, mut b] = acquainted(&lab);
    let sent = ping(&mut a, 0, 1, 0, b"again");
    assert_eq!(receive(&mut b), sent);
}
