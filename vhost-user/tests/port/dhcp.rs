//! DHCP (RFC 2131) between guests, and what of it is on the fabric (RFC 4390).

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use ibvswitch_vhost_user as vhost_user;
use vhost_user::translate::{self, Dropped, Packet, To, Transactions};
use wire::ipoib;

use crate::harness::{Known, mac, own};

const ALL: [u8; 4] = [255; 4];
const NOBODY: [u8; 4] = [0; 4];
const SERVER: [u8; 4] = [10, 0, 0, 1];
const XID: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];

/// A message (RFC 2131, 2) of a guest, or for one.
fn message(asks: bool, of: usize, options: &[u8]) -> Vec<u8> {
    let mut message = vec![if asks { 1 } else { 2 }, 1, 6, 0];
    message.extend(XID);
    // Seconds, flags, and the addresses of client, server and relay.
    message.extend([0; 20]);
    message.extend(mac(of).0);
    message.extend([0; 10 + 64 + 128]);
    message.extend([99, 130, 83, 99]);
    message.extend(options);
    message.push(255);
    message
}

fn frame(asks: bool, of: usize, options: &[u8]) -> Vec<u8> {
    let from = usize::from(!asks);
    let builder = PacketBuilder::ethernet2(mac(from).0, [0xff; 6]);
    let builder = if asks {
        builder.ipv4(NOBODY, ALL, 64).udp(68, 67)
    } else {
        builder.ipv4(SERVER, ALL, 64).udp(67, 68)
    };
    let mut frame = Vec::new();
    builder
        .write(&mut frame, &message(asks, of, options))
        .unwrap();
    frame
}

/// Returns the contents of a packet with right lengths and checksums.
fn body(packet: &[u8]) -> Vec<u8> {
    let sliced = SlicedPacket::from_ip(packet).unwrap();
    let Some(etherparse::NetSlice::Ipv4(ip)) = &sliced.net else {
        panic!("{sliced:?}");
    };
    let header = ip.header().to_header();
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    assert_eq!(usize::from(header.total_len), packet.len());
    let Some(TransportSlice::Udp(udp)) = sliced.transport else {
        panic!("{sliced:?}");
    };
    assert_eq!(
        usize::from(udp.length()),
        packet.len() - header.header_len()
    );
    let right = udp
        .to_header()
        .calc_checksum_ipv4(&header, udp.payload())
        .unwrap();
    assert_eq!(udp.checksum(), right);
    udp.payload().to_vec()
}

/// Guests 0 and 1.
#[derive(Default)]
struct Two {
    asked: [Transactions; 2],
    known: [Known; 2],
}

impl Two {
    fn out(&mut self, from: usize, frame: &[u8]) -> Result<Packet, Dropped> {
        let mut packet = Packet::from_frame(frame).ok_or(Dropped::Short)?;
        let (known, asked) = (&mut self.known[from], &mut self.asked[from]);
        let to = translate::outbound(&mut packet, &own(from), known, asked)?;
        let all = ipoib::broadcast_group(own(from).pkey);
        assert_eq!(to, To::Group(all));
        Ok(packet)
    }

    fn arrives(&mut self, at: usize, datagram: &[u8]) -> Result<Packet, Dropped> {
        let mut packet = Packet::default();
        packet.put(datagram.to_vec());
        let own_one = own(at);
        let group = Some(ipoib::broadcast_group(own_one.pkey));
        let from = Some(own(1 - at).address);
        let (known, asked) = (&mut self.known[at], &self.asked[at]);
        translate::inbound(&mut packet, group, from, &own_one, known, asked)?;
        Ok(packet)
    }
}

const DISCOVER: [u8; 3] = [53, 1, 1];
const OFFER: [u8; 3] = [53, 1, 2];

#[test]
fn on_the_fabric_nobody_has_an_ethernet_address() {
    let mut two = Two::default();
    let packet = two.out(0, &frame(true, 0, &DISCOVER)).unwrap();
    let asked = body(packet.packet());
    // RFC 4390, 2.1: hardware type 32, length 0, no address, answers to all, and an identifier.
    assert_eq!(asked[1..3], [32, 0]);
    assert_eq!(asked[10] & 0x80, 0x80);
    assert_eq!(asked[28..44], [0; 16]);
    let name = [&[61, 7, 1][..], &mac(0).0, &[255]].concat();
    assert_eq!(asked[240..], [&DISCOVER[..], &name].concat());

    // A server that knows clients by their hardware address has one.
    let packet = two.arrives(1, packet.datagram()).unwrap();
    let asked = body(packet.packet());
    assert_eq!(asked[1..3], [1, 6]);
    assert_eq!(asked[28..34], mac(0).0);
    assert_eq!(two.known[1].0, [own(0).address]);

    // It answers with the identifier (RFC 6842), which the guest has not sent.
    let answer = [&OFFER[..], &name[..9]].concat();
    let packet = two.out(1, &frame(false, 0, &answer)).unwrap();
    let answered = body(packet.packet());
    assert_eq!((answered[1], answered[2]), (32, 0));
    assert_eq!(answered[28..44], [0; 16]);
    let packet = two.arrives(0, packet.datagram()).unwrap();
    let answered = body(packet.packet());
    assert_eq!(answered[1..3], [1, 6]);
    assert_eq!(answered[28..34], mac(0).0);
    assert_eq!(answered[240..], [&OFFER[..], &[0; 9], &[255]].concat());
}

#[test]
fn a_guest_that_names_itself_gets_its_name_back() {
    let mut two = Two::default();
    let name = [61, 5, 255, 1, 2, 3, 4];
    let options = [&DISCOVER[..], &name].concat();
    let packet = two.out(0, &frame(true, 0, &options)).unwrap();
    let asked = body(packet.packet());
    assert_eq!(asked[240..], [&options[..], &[255]].concat());
    let answer = [&OFFER[..], &name].concat();
    let packet = two.out(1, &frame(false, 0, &answer)).unwrap();
    let packet = two.arrives(0, packet.datagram()).unwrap();
    let answered = body(packet.packet());
    assert_eq!(answered[28..34], mac(0).0);
    assert_eq!(answered[240..], [&answer[..], &[255]].concat());
}

#[test]
fn answers_to_others_stay_as_they_are() {
    let mut two = Two::default();
    let packet = two.out(1, &frame(false, 0, &OFFER)).unwrap();
    let before = packet.packet().to_vec();
    let packet = two.arrives(0, packet.datagram()).unwrap();
    assert_eq!(packet.packet(), before);
    // One of many questions is forgotten, the last are not.
    for number in 0..100_u32 {
        let mut asks = frame(true, 0, &DISCOVER);
        asks[14 + 28 + 4..][..4].copy_from_slice(&number.to_be_bytes());
        // None.
        asks[14 + 26..][..2].fill(0);
        two.out(0, &asks).unwrap();
    }
    for (number, hardware) in [(0, 32), (84, 1), (99, 1)] {
        let mut answers = frame(false, 0, &OFFER);
        answers[14 + 28 + 4..][..4].copy_from_slice(&u32::to_be_bytes(number));
        answers[14 + 26..][..2].fill(0);
        let packet = two.out(1, &answers).unwrap();
        let packet = two.arrives(0, packet.datagram()).unwrap();
        assert_eq!(body(packet.packet())[1], hardware, "{number}");
    }
}

#[test]
fn nobody_asks_for_others() {
    let mut two = Two::default();
    let asks = frame(true, 1, &DISCOVER);
    assert_eq!(two.out(0, &asks).unwrap_err(), Dropped::Spoofed);
    // A relay does, in its own name, which no hardware address of the fabric is in.
    let mut relayed = asks.clone();
    relayed[14 + 28 + 24..][..4].copy_from_slice(&SERVER);
    relayed[14 + 26..][..2].fill(0);
    let packet = two.out(0, &relayed).unwrap();
    assert_eq!(packet.packet(), &relayed[14..]);
    let mut wrong = frame(true, 0, &DISCOVER);
    *wrong.last_mut().unwrap() ^= 1;
    assert_eq!(two.out(0, &wrong).unwrap_err(), Dropped::Checksum);
    let sent = two.out(0, &frame(true, 0, &DISCOVER)).unwrap();
    let mut wrong = sent.datagram().to_vec();
    *wrong.last_mut().unwrap() ^= 1;
    assert_eq!(two.arrives(1, &wrong).unwrap_err(), Dropped::Checksum);
}

/// Each byte says something else, and the message ends anywhere: no panic, and no other client.
#[test]
fn messages_with_each_byte_wrong_and_of_every_length() {
    let options = [&DISCOVER[..], &[61, 2, 1, 2, 12, 3, b'a', b'b', b'c']].concat();
    let mut right = frame(true, 0, &options);
    right[14 + 26..][..2].fill(0);
    let mut two = Two::default();
    let sent = two.out(0, &right).unwrap();
    for at in 14..right.len() {
        for value in 0..=u8::MAX {
            let mut frame = right.clone();
            frame[at] = value;
            let mut packet = Packet::from_frame(&frame).unwrap();
            let (known, asked) = (&mut two.known[0], &mut two.asked[0]);
            let _ = translate::outbound(&mut packet, &own(0), known, asked);
            let mut wrong = sent.datagram().to_vec();
            if let Some(byte) = wrong.get_mut(at - 10) {
                *byte = value;
            }
            let _ = two.arrives(1, &wrong);
        }
    }
    for len in 0..options.len() {
        // The end of the options is missing.
        let mut frame = frame(true, 0, &options[..len]);
        frame.pop();
        let (ip, udp) = ((frame.len() - 14) as u16, (frame.len() - 34) as u16);
        frame[16..18].copy_from_slice(&ip.to_be_bytes());
        frame[38..40].copy_from_slice(&udp.to_be_bytes());
        frame[40..42].fill(0);
        let header: [u8; 20] = frame[14..34].try_into().unwrap();
        let header = etherparse::Ipv4Header::from_slice(&header).unwrap().0;
        frame[24..26].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
        assert_eq!(two.out(0, &frame).unwrap_err(), Dropped::Short, "{len}");
    }
}
