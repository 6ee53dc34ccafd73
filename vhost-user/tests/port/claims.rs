//! Guests that say that others' IP addresses are their own.

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::icmpv6::NeighborAdvertisementHeader;
use etherparse::{
    ArpOperation, Icmpv6Header, Icmpv6Type, PacketBuilder, SlicedPacket, TransportSlice,
};
use ibvswitch_vhost_user as vhost_user;
use vhost_user::port::Claims;
use vhost_user_driver::Driver;

use crate::exchange::{arp, ip, parse_arp};
use crate::harness::{Lab, mac};

const ATTACKER: usize = 0;
const VICTIM: usize = 1;
const OBSERVER: usize = 2;
const ALL: [u8; 6] = [0xff; 6];

/// A datagram from this address to all.
fn datagram(from: usize, source: [u8; 4], text: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(from).0, ALL).ipv4(source, [255; 4], 64);
    builder.udp(7, 9).write(&mut frame, text).unwrap();
    frame
}

/// ARP of the attacker: the victim's address is its own.
fn spoof() -> Vec<u8> {
    let mut frame = arp(ArpOperation::REQUEST, ATTACKER, OBSERVER, [0; 6]);
    frame[28..32].copy_from_slice(&ip(VICTIM));
    frame
}

/// A lab whose attacker may claim so much.
fn lab(claims: Claims) -> (Lab, [Driver; 3]) {
    let lab = Lab::new(3);
    lab.net.lock().claims.insert(ATTACKER as u16 + 2, claims);
    let guests = [ATTACKER, VICTIM, OBSERVER].map(|port| lab.guest(port));
    (lab, guests)
}

/// Sends until the observer hears it; what else it has heard.
fn reach(
    from: &mut Driver,
    observer: &mut Driver,
    frame: &[u8],
    mut meanwhile: impl FnMut(),
) -> Vec<Vec<u8>> {
    let mut heard = Vec::new();
    loop {
        from.send(frame).unwrap();
        while let Some(found) = observer.try_receive() {
            if found == frame {
                return heard;
            }
            heard.push(found);
        }
        meanwhile();
        std::thread::yield_now();
    }
}

/// The victim says that it has its address where somebody asks all for it; how often.
fn answer(victim: &mut Driver) -> usize {
    let mut asked = 0;
    while let Some(frame) = victim.try_receive() {
        let Some(question) = parse_arp(&frame) else {
            continue;
        };
        let probes = question.sender_protocol_addr() == [0; 4];
        if probes && question.target_protocol_addr() == ip(VICTIM) {
            let asker = question.sender_hw_addr().try_into().unwrap();
            let mut reply = arp(ArpOperation::REPLY, VICTIM, ATTACKER, asker);
            reply[38..42].fill(0);
            victim.send(&reply).unwrap();
            asked += 1;
        }
    }
    asked
}

fn is_from(frame: &[u8], guest: usize) -> bool {
    frame[6..12] == mac(guest).0
}

/// The observer receives no frame of the attacker that claims the victim's address.
fn is_honest(heard: &[Vec<u8>]) -> bool {
    let attacks = heard.iter().filter(|frame| is_from(frame, ATTACKER));
    attacks.into_iter().all(|frame| match parse_arp(frame) {
        Some(packet) => packet.sender_protocol_addr() != ip(VICTIM),
        None => frame[26..30] != ip(VICTIM),
    })
}

#[test]
fn without_a_rule_an_attack_comes_through() {
    let (_lab, [mut attacker, _victim, mut observer]) = lab(Claims::Any);
    reach(&mut attacker, &mut observer, &spoof(), || {});
    reach(
        &mut attacker,
        &mut observer,
        &datagram(ATTACKER, ip(VICTIM), b"spoofed"),
        || {},
    );
}

#[test]
fn an_address_of_another_is_not_claimed() {
    let (_lab, [mut attacker, mut victim, mut observer]) = lab(Claims::Unclaimed);
    // The victim is there: the observer hears it.
    reach(
        &mut victim,
        &mut observer,
        &datagram(VICTIM, ip(VICTIM), b"here"),
        || {},
    );
    let (mut asked, mut heard) = (0, Vec::new());
    while asked == 0 {
        attacker.send(&spoof()).unwrap();
        attacker
            .send(&datagram(ATTACKER, ip(VICTIM), b"spoofed"))
            .unwrap();
        asked += answer(&mut victim);
        heard.extend(std::iter::from_fn(|| observer.try_receive()));
        std::thread::yield_now();
    }
    // Its own address nobody else has, so that it gets it.
    let own = datagram(ATTACKER, ip(ATTACKER), b"honest");
    let mut again = 0;
    heard.extend(reach(&mut attacker, &mut observer, &own, || {
        again += answer(&mut victim)
    }));
    // Now the answer is known for long.
    for _ in 0..10 {
        attacker.send(&spoof()).unwrap();
        attacker
            .send(&datagram(ATTACKER, ip(VICTIM), b"spoofed"))
            .unwrap();
    }
    let last = datagram(ATTACKER, ip(ATTACKER), b"and again");
    heard.extend(reach(&mut attacker, &mut observer, &last, || {}));
    assert!(is_honest(&heard), "{heard:x?}");
}

/// A message of neighbour discovery.
fn discovery(
    from: usize,
    [source, to]: [Ipv6Addr; 2],
    kind: Icmpv6Type,
    target: Ipv6Addr,
) -> Vec<u8> {
    let [.., a, b, c, d] = to.octets();
    let body = target.octets();
    let header = Icmpv6Header::with_checksum(kind, source.octets(), to.octets(), &body).unwrap();
    let mut frame = [&[0x33, 0x33, a, b, c, d][..], &mac(from).0, &[0x86, 0xdd]].concat();
    frame.extend([0x60, 0, 0, 0, 0, 24, 58, 255]);
    frame.extend(source.octets());
    frame.extend(to.octets());
    header.write(&mut frame).unwrap();
    frame.extend(body);
    frame
}

/// The address that somebody asks for who has none yet, by a message that is right in itself.
fn asked_for(frame: &[u8]) -> Option<Ipv6Addr> {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Icmpv6(message)) = &sliced.transport else {
        return None;
    };
    let Some(etherparse::NetSlice::Ipv6(packet)) = &sliced.net else {
        return None;
    };
    let header = packet.header();
    let is_question = message.icmp_type() == Icmpv6Type::NeighborSolicitation;
    if !is_question || header.source() != [0; 16] {
        return None;
    }
    assert!(message.is_checksum_valid(header.source(), header.destination()));
    assert_eq!(header.hop_limit(), 255);
    let target: [u8; 16] = message.payload()[..16].try_into().unwrap();
    Some(target.into())
}

#[test]
fn an_ipv6_address_of_another_is_not_claimed() {
    let (_lab, [mut attacker, mut victim, mut observer]) = lab(Claims::Unclaimed);
    let [own, theirs] = ["fe80::a", "fe80::b"].map(|text| text.parse::<Ipv6Addr>().unwrap());
    let all_nodes = "ff02::1".parse::<Ipv6Addr>().unwrap();
    let overrides = NeighborAdvertisementHeader {
        router: false,
        solicited: false,
        r#override: true,
    };
    let advertise = |from, source, target| {
        let kind = Icmpv6Type::NeighborAdvertisement(overrides);
        discovery(from, [source, all_nodes], kind, target)
    };
    let here = advertise(VICTIM, theirs, theirs);
    reach(&mut victim, &mut observer, &here, || {});
    let answer = |victim: &mut Driver| {
        let mut asked = 0;
        while let Some(frame) = victim.try_receive() {
            if asked_for(&frame) == Some(theirs) {
                victim.send(&here).unwrap();
                asked += 1;
            }
        }
        asked
    };
    let attacks = [
        advertise(ATTACKER, theirs, theirs),
        advertise(ATTACKER, own, theirs),
    ];
    let (mut asked, mut heard) = (0, Vec::new());
    while asked == 0 {
        attacks
            .iter()
            .for_each(|attack| attacker.send(attack).unwrap());
        asked += answer(&mut victim);
        heard.extend(std::iter::from_fn(|| observer.try_receive()));
        std::thread::yield_now();
    }
    let honest = advertise(ATTACKER, own, own);
    let meanwhile = || {
        answer(&mut victim);
    };
    heard.extend(reach(&mut attacker, &mut observer, &honest, meanwhile));
    for attack in &attacks {
        attacker.send(attack).unwrap();
    }
    let last = datagram(ATTACKER, [0; 4], b"from nobody");
    heard.extend(reach(&mut attacker, &mut observer, &last, || {}));
    assert!(
        !heard.iter().any(|frame| attacks.contains(frame)),
        "{heard:x?}"
    );
}

/// Nobody is asked where the addresses are configured.
#[test]
fn a_list_says_it_all() {
    let list = ["10.0.0.1", "fd00::/64"].map(|text| text.parse().unwrap());
    let (lab, [mut attacker, _victim, mut observer]) = lab(Claims::Only(list.to_vec()));
    assert_eq!(Ipv4Addr::from(ip(ATTACKER)).to_string(), "10.0.0.1");
    let own = datagram(ATTACKER, ip(ATTACKER), b"honest");
    let mut heard = reach(&mut attacker, &mut observer, &own, || {});
    attacker.send(&spoof()).unwrap();
    attacker
        .send(&datagram(ATTACKER, ip(VICTIM), b"spoofed"))
        .unwrap();
    attacker
        .send(&arp(ArpOperation::REQUEST, ATTACKER, VICTIM, [0; 6]))
        .unwrap();
    heard.extend(reach(&mut attacker, &mut observer, &own, || {}));
    assert!(is_honest(&heard), "{heard:x?}");
    let probes = |frame: &hca::transport::Frame| {
        // The address of who sends it, in ARP.
        frame.payload[..2] == [8, 6] && frame.payload[4 + 28..4 + 32] == [0; 4]
    };
    assert!(!lab.net.lock().seen.iter().any(probes));
}
