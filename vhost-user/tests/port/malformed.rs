//! Frames and datagrams of every length, and with lengths in them that lie: translated rightly or dropped,
//! and of those that a guest sends nothing leaves that tells of another address than its own.

use etherparse::{ArpHardwareId, ArpOperation, EtherType, PacketBuilder};
use ibvswitch_vhost_user as vhost_user;
use vhost_user::translate::{self, Dropped, Packet, To, Transactions};
use wire::Qpn;
use wire::ipoib;

use crate::harness::{Known, mac, own};

fn arp() -> Vec<u8> {
    let packet = etherparse::ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        ArpOperation::REPLY,
        &mac(0).0,
        &[10, 0, 0, 1],
        &mac(1).0,
        &[10, 0, 0, 2],
    );
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(0).0, mac(1).0).arp(packet.unwrap());
    builder.write(&mut frame).unwrap();
    frame
}

const SOURCE: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const TARGET: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// A neighbour solicitation (RFC 4861, 4.3) with the address of its sender.
fn solicitation() -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(mac(0).0, mac(1).0).ipv6(SOURCE, TARGET, 255);
    let builder = builder.icmpv6_raw(135, 0, [0; 4]);
    let mut frame = Vec::new();
    let options = [&TARGET[..], &[1, 1], &mac(0).0, &[14, 1, 1, 2, 3, 4, 5, 6]];
    builder.write(&mut frame, &options.concat()).unwrap();
    frame
}

fn udp() -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(mac(0).0, mac(1).0);
    let builder = builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(7, 9);
    let mut frame = Vec::new();
    builder.write(&mut frame, b"somebody").unwrap();
    frame
}

fn out(frame: &[u8]) -> Result<(Packet, To), Dropped> {
    let mut neighbours = Known(vec![own(1).address]);
    let mut packet = Packet::from_frame(frame).ok_or(Dropped::Short)?;
    let to = translate::outbound(
        &mut packet,
        &own(0),
        &mut neighbours,
        &mut Transactions::default(),
    )?;
    Ok((packet, to))
}

/// Returns the packet that the guest of port 1 gets from it.
fn arrives(datagram: &[u8]) -> Result<(Packet, Known), Dropped> {
    let mut packet = Packet::default();
    packet.put(datagram.to_vec());
    let mut neighbours = Known::default();
    let from = Some(own(0).address);
    translate::inbound(
        &mut packet,
        None,
        from,
        &own(1),
        &mut neighbours,
        &Transactions::default(),
    )?;
    Ok((packet, neighbours))
}

#[test]
fn what_is_right_comes_out_as_it_went_in() {
    for frame in [arp(), solicitation(), udp()] {
        let (packet, to) = out(&frame).unwrap();
        assert_eq!(to, To::One(own(1).address));
        assert_eq!(packet.datagram()[..4], [frame[12], frame[13], 0, 0]);
        let (packet, _) = arrives(packet.datagram()).unwrap();
        assert_eq!(packet.to_frame(), frame);
    }
}

/// RFC 4391, 9.3: type, length 3, two of padding, 20 of address; and a checksum that is right to others.
#[test]
fn neighbour_discovery_on_the_fabric() {
    let (packet, _) = out(&solicitation()).unwrap();
    let sliced = etherparse::SlicedPacket::from_ip(packet.packet()).unwrap();
    let Some(etherparse::TransportSlice::Icmpv6(message)) = sliced.transport else {
        panic!("{sliced:?}");
    };
    assert!(message.is_checksum_valid(SOURCE, TARGET));
    let address = own(0).address.to_bytes();
    let options = &message.payload()[16..];
    assert_eq!(options[..24], [&[1, 3, 0, 0][..], &address].concat());
    assert_eq!(options[24..], [14, 1, 1, 2, 3, 4, 5, 6]);
    // With a wrong one it goes nowhere: nobody makes it right on its way.
    let mut wrong = solicitation();
    *wrong.last_mut().unwrap() ^= 1;
    assert_eq!(out(&wrong).unwrap_err(), Dropped::Checksum);
    let mut wrong = packet.datagram().to_vec();
    *wrong.last_mut().unwrap() ^= 1;
    assert_eq!(arrives(&wrong).unwrap_err(), Dropped::Checksum);
}

/// Neighbour discovery behind extension headers tells nobody anything, whatever the headers are; others' packets
/// have such.
#[test]
fn neighbour_discovery_behind_other_headers() {
    let solicitation = solicitation();
    let behind = |headers: &[(u8, usize)], kind: u8| {
        let (ethernet, packet) = solicitation.split_at(14);
        let (header, message) = packet.split_at(40);
        let mut frame = [ethernet, header].concat();
        let mut next = 14 + 6;
        for &(header, len) in headers {
            frame[next] = header;
            next = frame.len();
            frame.resize(next + len, 0);
            frame[next + 1] = match header {
                44 => 0,
                51 => (len / 4 - 2) as u8,
                _ => (len / 8 - 1) as u8,
            };
        }
        frame[next] = 58;
        frame.push(kind);
        frame.extend(&message[1..]);
        let length = (frame.len() - 54) as u16;
        frame[18..20].copy_from_slice(&length.to_be_bytes());
        frame
    };
    for header in [(0, 8), (0, 24), (43, 8), (44, 8), (51, 24), (60, 16)] {
        for headers in [&[header][..], &[(60, 8), header]] {
            for kind in 133..=137 {
                let frame = behind(headers, kind);
                assert_eq!(out(&frame).unwrap_err(), Dropped::Hidden, "{headers:?}");
                let datagram = [&[0x86, 0xdd, 0, 0][..], &frame[14..]].concat();
                assert_eq!(arrives(&datagram).unwrap_err(), Dropped::Hidden);
            }
            let frame = behind(headers, 143);
            assert_eq!(out(&frame).unwrap().0.packet(), &frame[14..]);
        }
    }
}

#[test]
fn frames_and_datagrams_of_every_length() {
    for frame in [arp(), solicitation(), udp()] {
        let (whole, _) = out(&frame).unwrap();
        for len in 0..frame.len() {
            assert_eq!(out(&frame[..len]).unwrap_err(), Dropped::Short, "{len}");
        }
        // What pads a frame does not get on the fabric.
        let padded = [&frame[..], &[0xee; 18]].concat();
        assert_eq!(out(&padded).unwrap().0.datagram(), whole.datagram());
        for len in 0..whole.datagram().len() {
            let cut = arrives(&whole.datagram()[..len]);
            assert_eq!(cut.unwrap_err(), Dropped::Short, "{len}");
        }
    }
}

/// Each byte of each frame says something else: no panic, and no other sender.
#[test]
fn frames_with_each_byte_wrong() {
    for right in [arp(), solicitation(), udp()] {
        let (datagram, _) = out(&right).unwrap();
        for value in 0..=u8::MAX {
            for at in 0..right.len() {
                let mut frame = right.clone();
                frame[at] = value;
                if let Ok((packet, _)) = out(&frame) {
                    assert_eq!(frame[6..12], mac(0).0);
                    tells_of_nobody_else(&packet);
                }
            }
            for at in 0..datagram.datagram().len() {
                let mut wrong = datagram.datagram().to_vec();
                wrong[at] = value;
                if let Ok((packet, known)) = arrives(&wrong) {
                    assert_eq!(packet.ethernet[..6], mac(1).0);
                    assert!(known.0.len() <= 1);
                }
            }
        }
    }
}

/// The port would give packets that it rewrites a right checksum; the receiver checks all others.
#[test]
fn wrong_checksums_are_not_made_right() {
    const ICMPV6: usize = 40;
    let right = solicitation();
    let (datagram, _) = out(&right).unwrap();
    // The type is left as it is: others are no neighbour discovery.
    for at in 14 + ICMPV6 + 1..right.len() {
        let mut frame = right.clone();
        frame[at] ^= 1;
        assert_eq!(out(&frame).unwrap_err(), Dropped::Checksum, "{at}");
    }
    for at in 4 + ICMPV6 + 1..datagram.datagram().len() {
        let mut wrong = datagram.datagram().to_vec();
        wrong[at] ^= 1;
        assert_eq!(arrives(&wrong).unwrap_err(), Dropped::Checksum, "{at}");
    }
    let right = udp();
    for at in 14 + 28..right.len() {
        let mut frame = right.clone();
        frame[at] ^= 1;
        let (packet, _) = out(&frame).unwrap();
        assert_eq!(packet.packet(), &frame[14..], "{at}");
    }
}

fn tells_of_nobody_else(packet: &Packet) {
    if packet.datagram()[..2] == [0x08, 0x06] {
        assert_eq!(packet.packet()[..2], ipoib::HARDWARE_TYPE.to_be_bytes());
        assert_eq!(packet.packet()[8..28], own(0).address.to_bytes());
    }
}

/// Options of neighbour discovery of every length and kind (RFC 4861, 4.6): those of no length, those that
/// go past the end, and link-layer addresses that are shorter or longer than there are.
#[test]
fn options_of_every_length() {
    for kind in [0, 1, 2, 3, 5, 255] {
        for units in 0..=255_u8 {
            for len in [2, 8, 16, 24, 32, 2040] {
                let mut option = vec![0; len];
                (option[0], option[1]) = (kind, units);
                option[2..].fill(0x52);
                let builder = PacketBuilder::ethernet2(mac(0).0, mac(1).0);
                let builder = builder.ipv6(SOURCE, TARGET, 255).icmpv6_raw(136, 0, [0; 4]);
                let mut frame = Vec::new();
                builder
                    .write(&mut frame, &[&TARGET[..], &option].concat())
                    .unwrap();
                let sent = out(&frame);
                let ends = units > 0 && len % (8 * usize::from(units)) == 0;
                match kind {
                    // Not the guest's address.
                    1 | 2 => assert!(sent.is_err(), "{kind} {units} {len}"),
                    _ if !ends => {}
                    _ if len == 8 * usize::from(units) => {
                        assert_eq!(sent.unwrap().0.packet(), &frame[14..]);
                    }
                    _ => {}
                }
                let datagram = [&[0x86, 0xdd, 0, 0][..], &frame[14..]].concat();
                if let Ok((_, known)) = arrives(&datagram)
                    && matches!(kind, 1 | 2)
                {
                    assert_eq!(known.0.len(), 1);
                    assert_eq!(known.0[0].qpn, Qpn::new(0x52_5252));
                }
            }
        }
    }
}
