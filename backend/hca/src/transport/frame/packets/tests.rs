//! Frames as packets, and back.

use proptest::prelude::*;
use wire::{Gid, Lid, PKey, Psn, QKey, Sl};

use crate::transport::frame::packets::*;

fn content() -> impl Strategy<Value = (Content, bool)> {
    let target = (any::<u64>(), any::<u32>(), any::<u32>());
    let target = target.prop_map(|(addr, rkey, length)| Target { addr, rkey, length });
    let tail = prop_oneof![
        Just(Tail::None),
        any::<u32>().prop_map(Tail::Immediate),
        any::<u32>().prop_map(Tail::Invalidate),
    ];
    let syndrome = prop_oneof![
        Just(Syndrome::Acknowledged),
        (0..32_u8).prop_map(Syndrome::NotReady),
        Just(Syndrome::Sequence),
        Just(Syndrome::RemoteAccess),
    ];
    let msn = 0..1_u32 << 24;
    let operation = prop_oneof![Just(Operation::CompareSwap), Just(Operation::FetchAdd)];
    let operands = (any::<u64>(), any::<u64>());
    prop_oneof![
        tail.prop_map(|tail| (Content::Send(tail), true)),
        (target.clone(), any::<Option<u32>>())
            .prop_map(|(target, data)| (Content::Write(Some(target), data), true)),
        target.prop_map(|target| (Content::Read(target), false)),
        (operation, any::<u64>(), any::<u32>(), operands).prop_map(
            |(operation, addr, rkey, (swap_add, compare))| {
                let operands = AtomicOperands {
                    swap_add,
                    compare,
                    ..AtomicOperands::default()
                };
                let content = Content::Atomic {
                    operation,
                    addr,
                    rkey,
                    operands,
                };
                (content, false)
            }
        ),
        (syndrome, msn.clone()).prop_map(|(it, msn)| (Content::Acknowledge(it, msn), false)),
        msn.clone()
            .prop_map(|msn| (Content::ReadResponse(msn), true)),
        (any::<u64>(), msn).prop_map(|(it, msn)| (Content::AtomicResponse(it, msn), false)),
        Just((Content::Notification, false)),
    ]
}

fn address(service: Service, global: bool) -> Address {
    let route = GlobalRoute {
        dgid: Gid::from_bits(5),
        sgid_index: 0,
        flow_label: 0xabcde,
        traffic_class: 7,
        hop_limit: 64,
    };
    Address {
        slid: Lid::new(3),
        dlid: Lid::new(0x1234),
        sl: Sl::new(5),
        global: global.then_some((route, Gid::from_bits(6))),
        service,
        pkey: PKey::new(0x8001),
        dest_qp: Qpn::new(0x12_3456),
    }
}

proptest! {
    /// A frame is its packets, one after the other, and each of them is a frame.
    #[test]
    fn there_and_back(
        (content, carries) in content(),
        service in prop::sample::select(vec![Service::Rc, Service::Xrc, Service::Dc]),
        global in any::<bool>(),
        flags in any::<[bool; 4]>(),
        psn in any::<u32>(),
        payload in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let mut frame =
            Frame::new(address(service, global), Mtu::B256, Psn::new(psn), content);
        [frame.solicited, frame.acknowledge, frame.marked, frame.migrated] = flags;
        if frame.content == Content::Notification {
            // Its packet does not say of which service it is.
            frame.address.service = Service::Rc;
        }
        let service = frame.address.service;
        if service == Service::Dc && !frame.is_response() {
            frame.session = Some(Box::new(Session {
                key: 0x0123_4567_89ab_cdef,
                number: psn ^ 0x8000_0001,
                source: Qpn::new(0x65_4321),
                start: Psn::new(psn.wrapping_sub(3)),
            }));
        }
        if service == Service::Xrc && !frame.is_response() {
            frame.srq = Qpn::new(99);
        }
        if carries {
            frame.payload = payload;
        }
        prop_assert!(frame.is_well_formed());
        let mut packets = Vec::new();
        let left_out = frame.extract().packets(|packet| {
            assert_eq!(packet.bytes.len(), packet.length);
            packets.push(Frame::parse(packet.bytes, Mtu::B256).expect("is a packet"));
            for at in 0..packet.length {
                let mut wrong = packet.bytes.to_vec();
                wrong[at] ^= 0x10;
                // Nobody checks the lane, nor the congestion bits, but by the variant CRC.
                assert!(Frame::parse(&wrong, Mtu::B256).is_err());
                assert!(Frame::parse(&packet.bytes[..at], Mtu::B256).is_err());
            }
        });
        prop_assert_eq!(left_out, 0);
        prop_assert_eq!(packets.len() as u32, frame.packets());
        for (at, packet) in packets.iter().enumerate() {
            let at = at as u32;
            let mut part = frame.part(at..at + 1);
            // Packets amid a response do not say how many messages there were.
            if let (Content::ReadResponse(msn), false, false) =
                (&mut part.content, part.first, part.last)
            {
                *msn = 0;
            }
            prop_assert_eq!(packet, &part);
            prop_assert!(packet.is_well_formed());
        }
    }

    /// Datagrams likewise.
    #[test]
    fn datagrams_there_and_back(
        immediate in any::<Option<u32>>(),
        global in any::<bool>(),
        payload in prop::collection::vec(any::<u8>(), 0..256),
    ) {
        let content = Content::Datagram {
            qkey: QKey::new(7),
            source: Qpn::new(8),
            immediate,
        };
        let address = address(Service::Ud, global);
        let frame = Frame {
            payload,
            ..Frame::new(address, Mtu::B256, Psn::new(9), content)
        };
        let left_out = frame.extract().packets(|packet| {
            assert_eq!(Frame::parse(packet.bytes, Mtu::B256).as_ref(), Ok(&frame));
        });
        prop_assert_eq!(left_out, 0);
    }

    #[test]
    fn any_bytes_are_read(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Frame::parse(&bytes, Mtu::B256);
        // With lengths and check sums in order, too.
        let length = bytes.len() & !3;
        bytes.truncate(length);
        if length >= 60 {
            let words = (length / 4 + 1) as u16;
            bytes[4..6].copy_from_slice(&words.to_be_bytes());
            let invariant = crc::invariant(&bytes);
            bytes.extend_from_slice(&invariant.to_le_bytes());
            let variant = crc::variant(&bytes);
            bytes.extend_from_slice(&variant.to_le_bytes());
            let _ = Frame::parse(&bytes, Mtu::B256);
        }
    }
}
