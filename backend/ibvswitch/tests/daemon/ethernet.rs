//! Guests at ports, by the number that their addresses end in: net1 and net2 are those of guests 1 and 2.

use std::time::Duration;

use etherparse::{ArpHardwareId, ArpOperation, ArpPacket, EtherType, PacketBuilder};
use vhost_user_driver::{Driver, FEATURES};

use super::Daemon;

pub fn mac(guest: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, guest]
}

pub fn ip(guest: u8) -> [u8; 4] {
    [10, 0, 0, guest]
}

pub fn arp(operation: ArpOperation, from: u8, to: u8) -> Vec<u8> {
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

pub fn ping(from: u8, to: u8, seq: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(from), mac(to)).ipv4(ip(from), ip(to), 64);
    let builder = builder.icmpv4_echo_request(1, seq);
    builder.write(&mut frame, payload).expect("has room");
    frame
}

/// The next frame of another guest's, if there is one. In clusters ports ask for addresses by ARP from nobody.
pub fn hear(guest: &mut Driver) -> Option<Vec<u8>> {
    let is_question = |frame: &[u8]| frame[12..14] == [0x08, 0x06] && frame[28..32] == [0; 4];
    std::iter::from_fn(|| guest.try_receive()).find(|frame| !is_question(frame))
}

/// After which time something is sent again that may have been lost.
const PAUSE: Duration = Duration::from_millis(5);

/// Two guests that have found each other.
pub fn acquainted(daemon: &Daemon) -> (Driver, Driver) {
    acquainted_with(daemon, FEATURES)
}

/// The same with these features.
pub fn acquainted_with(daemon: &Daemon, features: u64) -> (Driver, Driver) {
    let start = |name: &str| Driver::start_with(daemon.socket(name), features).expect("is served");
    let (mut a, mut b) = (start("net1"), start("net2"));
    // As on any network, frames are lost while the port is not yet in it.
    let asked = loop {
        a.send(&arp(ArpOperation::REQUEST, 1, 2)).expect("is taken");
        if let Some(frame) = hear(&mut b) {
            break frame;
        }
        // Those that wait would fill the ring if there were very many.
        b.await_frame(PAUSE).expect("listens");
    };
    assert_eq!(asked, arp(ArpOperation::REQUEST, 1, 2));
    let reply = arp(ArpOperation::REPLY, 2, 1);
    let found = loop {
        // In a cluster its address is asked for first.
        b.send(&reply).expect("is taken");
        if let Some(frame) = hear(&mut a) {
            break frame;
        }
        a.await_frame(PAUSE).expect("listens");
    };
    assert_eq!(found, reply);
    (a, b)
}

/// The next frame that is an IPv4 packet.
pub fn receive(guest: &mut Driver) -> Vec<u8> {
    loop {
        let frame = guest.receive().expect("a frame");
        if frame[12..14] == [0x08, 0x00] {
            return frame;
        }
    }
}
