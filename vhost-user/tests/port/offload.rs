//! Checksums and TCP segments that a guest leaves to its card, held against `etherparse`.

use etherparse::{PacketBuilder, SlicedPacket, TcpHeader, TransportSlice};
use ibvswitch_vhost_user as vhost_user;
use vhost_user::translate::{Dropped, complete};
use vhost_user_driver::{Checksum, NetHeader, Segments};
use wire::ipoib::{NotATrain, Train};

use crate::exchange::{acquainted, ip, receive};
use crate::harness::{Lab, mac};

const SOURCE: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const TARGET: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn tcp() -> TcpHeader {
    let mut tcp = TcpHeader::new(40_000, 5001, 0xffff_ff00, 4096);
    tcp.acknowledgment_number = 77;
    (tcp.ack, tcp.psh, tcp.fin, tcp.cwr) = (true, true, true, true);
    let timestamps = etherparse::TcpOptionElement::Timestamp(1, 2);
    tcp.set_options(&[timestamps]).unwrap();
    tcp
}

/// A frame with a long TCP segment, of which the checksum is not right.
fn long(version: u8, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(mac(0).0, mac(1).0);
    let builder = match version {
        4 => {
            let mut header = etherparse::Ipv4Header::default();
            (header.source, header.destination) = (ip(0), ip(1));
            header.protocol = etherparse::IpNumber::TCP;
            header.dont_fragment = true;
            (header.identification, header.time_to_live) = (0xfffe, 64);
            builder.ip(etherparse::IpHeaders::Ipv4(header, Default::default()))
        }
        _ => builder.ipv6(SOURCE, TARGET, 64),
    };
    let mut frame = Vec::new();
    builder
        .tcp_header(tcp())
        .write(&mut frame, payload)
        .unwrap();
    let checksum = if version == 4 {
        14 + 20 + 16
    } else {
        14 + 40 + 16
    };
    frame[checksum] ^= 0x55;
    frame
}

/// The parts, one after the other: what they carry together, and each is right in itself.
fn check(version: u8, parts: &[Vec<u8>], segment: usize) -> Vec<u8> {
    let mut carried = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let sliced = SlicedPacket::from_ip(part).unwrap();
        let Some(TransportSlice::Tcp(found)) = &sliced.transport else {
            panic!("{sliced:?}");
        };
        let header = found.to_header();
        let sum = match sliced.net.as_ref().unwrap() {
            etherparse::NetSlice::Ipv4(ip) => {
                let header = ip.header().to_header();
                assert_eq!(header.header_checksum, header.calc_header_checksum());
                assert_eq!(
                    header.identification,
                    0xfffe_u16.wrapping_add(number as u16)
                );
                assert!(header.dont_fragment);
                found.calc_checksum_ipv4(ip.header().source(), ip.header().destination())
            }
            etherparse::NetSlice::Ipv6(ip) => {
                found.calc_checksum_ipv6(ip.header().source(), ip.header().destination())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(
            found.checksum(),
            sum.unwrap(),
            "IPv{version}, part {number}"
        );
        let last = number + 1 == parts.len();
        let sequence = 0xffff_ff00_u32.wrapping_add(carried.len() as u32);
        assert_eq!(header.sequence_number, sequence);
        assert_eq!((header.psh, header.fin, header.ack), (last, last, true));
        assert_eq!(header.cwr, number == 0);
        assert_eq!(header.options.as_slice(), tcp().options.as_slice());
        assert!(found.payload().len() == segment || last);
        carried.extend(found.payload());
    }
    carried
}

#[test]
fn segments_are_cut_rightly() {
    for version in [4, 6] {
        for (len, segment) in [
            (60_000, 1992),
            (1992, 1992),
            (1993, 1992),
            (1, 48),
            (481, 48),
        ] {
            let frame = long(version, &payload(len));
            // The header of IPoIB, which all have, in place of that of Ethernet.
            let datagram = [&[1, 2, 3, 4][..], &frame[14..]].concat();
            let train = Train::new(&datagram, segment as u16).unwrap();
            let count = train.datagrams();
            assert_eq!(count as usize, len.div_ceil(segment));
            let mut total = 0;
            let parts = (0..count).map(|part| {
                let mut bytes = Vec::new();
                train.write(&datagram, part, &mut bytes);
                assert!(bytes.len() <= train.longest() as usize);
                assert_eq!(bytes[..4], [1, 2, 3, 4]);
                total += bytes.len();
                bytes.split_off(4)
            });
            let parts: Vec<_> = parts.collect();
            assert_eq!(check(version, &parts, segment), payload(len));
            assert_eq!(train.total() as usize, total);
            assert_eq!(train.length() as usize, datagram.len());
        }
    }
}

#[test]
fn what_cannot_be_cut_is_dropped() {
    let frame = long(4, &payload(60_000));
    let datagram = [&[0; 4][..], &frame[14..]].concat();
    // Very many parts of very little each.
    for segment in [0, 1, 47] {
        assert_eq!(Train::new(&datagram, segment), Err(NotATrain::Segments));
    }
    assert_eq!(Train::new(&datagram, 48).unwrap().datagrams(), 1250);
    for len in 0..56 {
        assert!(Train::new(&datagram[..len], 1000).is_err(), "{len}");
    }
    let wrong = |at: usize, value: u8| {
        let mut wrong = datagram.clone();
        wrong[4 + at] = value;
        Train::new(&wrong, 1000)
    };
    // UDP; another version; headers that are too short or longer than the packet; a fragment.
    assert_eq!(wrong(9, 17), Err(NotATrain::Segments));
    assert_eq!(wrong(0, 0x55), Err(NotATrain::Segments));
    assert_eq!(wrong(0, 0x44), Err(NotATrain::Segments));
    assert_eq!(wrong(32, 0x40), Err(NotATrain::Segments));
    assert_eq!(wrong(6, 0x20), Err(NotATrain::Segments));
    assert_eq!(wrong(7, 1), Err(NotATrain::Segments));
    let mut short = datagram[..64].to_vec();
    short[4 + 32] = 0xf0;
    assert_eq!(Train::new(&short, 1000), Err(NotATrain::Short));
}

#[test]
fn checksums_past_the_end_are_not_filled_in() {
    let mut packet = [0x45; 30];
    for (start, offset) in [
        (29, 0),
        (30, 0),
        (31, 0),
        (0, 29),
        (20, 9),
        (65_535, 65_535),
    ] {
        assert_eq!(complete(&mut packet, start, offset), Err(Dropped::Short));
    }
    assert_eq!(packet, [0x45; 30]);
    complete(&mut packet, 20, 8).unwrap();
    // A checksum of 0 is written as the other 0 (RFC 768).
    let mut nothing = [0xff; 4];
    complete(&mut nothing, 0, 2).unwrap();
    assert_eq!(nothing, [0xff; 4]);
}

/// A UDP datagram as Linux gives it to its card, and a TCP segment of 60 000 bytes, from one guest to another.
#[test]
fn a_guest_leaves_work_to_its_card() {
    let lab = Lab::new(2);
    let [mut a, mut b] = acquainted(&lab);
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(0).0, mac(1).0).ipv4(ip(0), ip(1), 64);
    builder.udp(7, 9).write(&mut frame, &payload(1001)).unwrap();
    let right = frame.clone();
    // The sum of the pseudo header: source, destination, protocol and length.
    let words = [0x0a00, 0x0001, 0x0a00, 0x0002, 17, 1009_u32];
    let sum = words.iter().sum::<u32>() as u16;
    frame[40..42].copy_from_slice(&sum.to_be_bytes());
    let header = NetHeader {
        checksum: Some(Checksum {
            start: 34,
            offset: 6,
        }),
        segments: None,
    };
    a.send_with(header, &frame).unwrap();
    assert_eq!(receive(&mut b), right);

    let frame = long(4, &payload(60_000));
    let header = NetHeader {
        checksum: Some(Checksum {
            start: 34,
            offset: 16,
        }),
        segments: Some(Segments::TcpIpv4(1992)),
    };
    a.send_with(header, &frame).unwrap();
    let parts: Vec<_> = (0..31).map(|_| receive(&mut b)[14..].to_vec()).collect();
    assert_eq!(check(4, &parts, 1992), payload(60_000));

    // Parts that are longer than the MTU go nowhere, and the next frame does.
    let header = NetHeader {
        segments: Some(Segments::TcpIpv4(2000)),
        ..header
    };
    a.send_with(header, &frame).unwrap();
    a.send(&right).unwrap();
    assert_eq!(receive(&mut b), right);
}

/// Where the subnet has no room, the guest's frames wait in its ring; not for ever.
#[test]
fn frames_wait_where_there_is_no_room() {
    let lab = Lab::new(2);
    let [mut a, mut b] = acquainted(&lab);
    let frame = |text: &[u8]| {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2(mac(0).0, mac(1).0);
        let builder = builder.ipv4(ip(0), ip(1), 64).udp(7, 9);
        builder.write(&mut frame, text).unwrap();
        frame
    };
    // The way is known.
    a.send(&frame(b"first")).unwrap();
    assert_eq!(receive(&mut b), frame(b"first"));
    lab.net.lock().full.insert(2);
    // The second one is taken when the first is lost.
    a.send(&frame(b"lost")).unwrap();
    a.send(&frame(b"taken")).unwrap();
    a.await_sent().unwrap();
    lab.net.lock().full.clear();
    loop {
        a.send(&frame(b"at last")).unwrap();
        match b.try_receive() {
            Some(found) if found == frame(b"at last") => break,
            Some(found) if found[12..14] == [0x08, 0x06] => {}
            Some(found) => assert_eq!(found, frame(b"taken")),
            None => std::thread::yield_now(),
        }
    }
}
