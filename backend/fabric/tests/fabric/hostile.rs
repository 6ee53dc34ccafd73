//! Random packets never panic, and what a guest may not change stays.

use crate::common::Host;
use ibvswitch_fabric::{Owner, PortRef, SmpAccess};
use proptest::prelude::*;
use testing::Random;
use wire::attribute::PortInfo;
use wire::mad::{AttributeId, Method, SIZE};
use wire::smp::{DATA, Destination, Request, Route};
use wire::{Lid, MadPacket, PKey, QKey, Qpn, Sl};

/// Bytes that look like a management datagram more often than chance would have it.
fn datagram() -> impl Strategy<Value = [u8; SIZE]> {
    let header = (
        prop::sample::select(vec![0u8, 1, 2, 255]),
        prop::sample::select(vec![0x01u8, 0x03, 0x04, 0x07, 0x81, 0x0a]),
        prop::sample::select(vec![0u8, 1, 2, 255]),
        prop::sample::select(vec![0x01u8, 0x02, 0x03, 0x05, 0x07, 0x81, 0x82, 0x12]),
        prop::sample::select(vec![0x00u8, 0x80, 0xff]),
        (
            0u8..6,
            prop::sample::select(vec![0u8, 1, 2, 3, 63, 64, 255]),
        ),
        prop::sample::select(vec![
            0u16, 1, 2, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1b, 0x1d, 0x20,
            0x50, 0x90, 0x91, 0xff90,
        ]),
        prop_oneof![Just(0u32), 0u32..4, any::<u32>()],
    );
    let path = prop::collection::vec(0u8..5, 128);
    let lids = prop_oneof![Just(u32::MAX), any::<u32>(), 0u32..0x0006_0006];
    (header, any::<[u8; 64]>(), path, lids).prop_map(|(header, data, path, lids)| {
        let (base, class, version, method, status, (pointer, count), attribute, modifier) = header;
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&[base, class, version, method, status, 0, pointer, count]);
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        bytes[20..24].copy_from_slice(&modifier.to_be_bytes());
        bytes[32..36].copy_from_slice(&lids.to_be_bytes());
        bytes[64..128].copy_from_slice(&data);
        bytes[128..].copy_from_slice(&path);
        bytes
    })
}

fn packet() -> impl Strategy<Value = MadPacket> {
    let lid = || prop_oneof![0u16..8, Just(0xc000), Just(0xffff), any::<u16>()].prop_map(Lid::new);
    let qp = || {
        prop_oneof![
            Just(Qpn::QP0),
            Just(Qpn::QP1),
            any::<u32>().prop_map(Qpn::new)
        ]
    };
    let key = prop_oneof![Just(QKey::QP1), any::<u32>().prop_map(QKey::new)];
    let lane = (0u8..16).prop_map(Sl::new);
    let pkey = any::<u16>().prop_map(PKey::new);
    let any_packet = (lid(), lid(), lane, pkey, qp(), qp(), key, datagram()).prop_map(
        |(slid, dlid, sl, pkey, src_qp, dst_qp, qkey, mad)| MadPacket {
            slid,
            dlid,
            sl,
            pkey,
            src_qp,
            dst_qp,
            qkey,
            grh: None,
            mad,
        },
    );
    prop_oneof![any_packet, well_formed()]
}

/// A request that is right in every respect but for who sends it.
fn well_formed() -> impl Strategy<Value = MadPacket> {
    let attribute = prop::sample::select(vec![
        AttributeId::NODE_INFO,
        AttributeId::SWITCH_INFO,
        AttributeId::GUID_INFO,
        AttributeId::P_KEY_TABLE,
        AttributeId::SL_TO_VL,
        AttributeId::LINEAR_FORWARDING,
        AttributeId::MULTICAST_FORWARDING,
    ]);
    let method = prop::sample::select(vec![Method::GET, Method::SET]);
    let destination = prop_oneof![
        (1u16..6).prop_map(|lid| Destination::Lid(Lid::new(lid))),
        prop::sample::select(vec![&[][..], &[1], &[1, 1], &[1, 3], &[1, 1, 2]])
            .prop_map(|ports| Destination::Directed(Route::new(ports).unwrap())),
    ];
    let change_over = || prop_oneof![Just(0xffff), 1u16..6];
    let data = prop::collection::vec(any::<u8>(), DATA);
    (
        destination,
        method,
        attribute,
        change_over(),
        change_over(),
        data,
    )
        .prop_map(|(destination, method, attribute, dr_slid, dr_dlid, data)| {
            let request = Request {
                destination,
                method,
                attribute,
                modifier: 0,
                transaction: 1,
                m_key: 0,
                data: data.try_into().unwrap(),
            };
            let mut bytes = request.to_bytes();
            bytes[32..34].copy_from_slice(&dr_slid.to_be_bytes());
            bytes[34..36].copy_from_slice(&dr_dlid.to_be_bytes());
            MadPacket::smp(Lid::NONE, request.dlid(), bytes)
        })
}

/// Everything that subnet management sets, of all ports; and the subnet management packets that
/// nodes other than the guest's have seen.
fn settings(host: &Host) -> impl PartialEq + std::fmt::Debug + use<> {
    let fabric = &host.fabric;
    let ports = fabric
        .nodes()
        .flat_map(|node| (0..4).map(move |port| PortRef { node, port }));
    let settings: Vec<_> = ports
        .map(|port| {
            // What comes in a wrong partition is counted, wherever it comes from.
            let info = fabric.port_info(port).map(|info| PortInfo {
                p_key_violations: 0,
                q_key_violations: 0,
                ..info
            });
            (
                info,
                fabric.pkeys(port).map(<[_]>::to_vec),
                fabric.guids(port).map(<[_]>::to_vec),
            )
        })
        .collect();
    let guest = host.vf(0).node;
    let others = fabric.nodes().filter(|&node| node != guest);
    let seen: Vec<_> = others
        .map(|node| fabric.smp_counts(node).cloned())
        .collect();
    let generation = fabric.generation();
    (settings, seen, generation)
}

/// Noise, or a request that is right but for a few bytes.
fn noisy_packet(random: &mut Random) -> MadPacket {
    let mut mad = [0; SIZE];
    let lid = Lid::new((random.number() % 8) as u16);
    let dlid = random.one_of(&[lid, lid, Lid::PERMISSIVE, Lid::MULTICAST_FIRST]);
    match random.number() % 4 {
        0 => random.fill(&mut mad),
        1 => {
            random.fill(&mut mad);
            mad[..4].copy_from_slice(&[1, random.one_of(&[0x01, 0x81, 0x04]), 1, 1]);
        }
        _ => {
            let routes: [&[u8]; 5] = [&[], &[1], &[1, 1], &[1, 1, 2], &[1, 1, 3]];
            let destination = match random.number() % 2 {
                0 => Destination::Lid(lid),
                _ => Destination::Directed(Route::new(random.one_of(&routes)).unwrap()),
            };
            let attribute = [
                0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1b, 0x20,
            ];
            let mut data = [0; DATA];
            random.fill(&mut data);
            mad = Request {
                destination,
                method: random.one_of(&[Method::GET, Method::SET, Method::TRAP_REPRESS]),
                attribute: AttributeId(random.one_of(&attribute)),
                modifier: random.one_of(&[0, 1, 2, 0x1_0000, u32::MAX]),
                transaction: random.number(),
                m_key: random.number(),
                data,
            }
            .to_bytes();
            for _ in 0..random.number() % 4 {
                mad[random.number() as usize % SIZE] = random.number() as u8;
            }
        }
    }
    let mut packet = MadPacket::smp(Lid::NONE, dlid, mad);
    if random.number().is_multiple_of(4) {
        packet.src_qp = Qpn::QP1;
        packet.dst_qp = random.one_of(&[Qpn::QP1, Qpn::new(2)]);
        packet.qkey = random.one_of(&[QKey::QP1, QKey::new(1)]);
        packet.pkey = PKey::new(random.one_of(&[0xffff, 0x7fff, 1]));
    }
    packet
}

/// A million packets from a host that may send what it likes, but does not know the key of any node:
/// nothing is set anywhere, whatever they look like; and no node keeps anything of them.
#[test]
fn a_million_packets() {
    let seed = testing::seed(0x5eed);
    let mut random = Random::new(seed);
    let mut host = Host::new();
    host.bring_up();
    let ports: [(&[u8], u8); 5] = [
        (&[], 1),
        (&[1], 0),
        (&[1, 1], 0),
        (&[1, 1, 2], 1),
        (&[1, 1, 3], 1),
    ];
    for (route, port) in ports {
        host.change_port(route, port, |info| {
            info.m_key = 0x0123_4567_89ab_cdef;
            info.m_key_protect_bits = 2;
        });
    }
    let vf = host.vf(0);
    let before = protected(&host);
    for number in 0..1_000_000 {
        let packet = noisy_packet(&mut random);
        host.fabric.inject(vf, packet);
        host.fabric.run();
        while host.fabric.poll_output().is_some() {}
        if number % 100_000 == 0 {
            assert_eq!(protected(&host), before, "seed {seed}, packet {number}");
        }
    }
    assert_eq!(protected(&host), before, "seed {seed}");
    assert_eq!(host.fabric.deadline(), None, "seed {seed}");
    let refused = host.fabric.port_info(host.vf(1)).unwrap().m_key_violations;
    assert!(refused > 1000, "seed {seed}: {refused} refused");
}

/// Settings of all ports, without counters.
fn protected(host: &Host) -> impl PartialEq + std::fmt::Debug + use<> {
    let ports = host.fabric.nodes();
    let ports = ports.flat_map(|node| (0..4).map(move |port| PortRef { node, port }));
    let generation = host.fabric.generation();
    let settings: Vec<_> = ports
        .map(|port| {
            let info = host.fabric.port_info(port).map(|info| PortInfo {
                m_key_violations: 0,
                p_key_violations: 0,
                q_key_violations: 0,
                ..info
            });
            (
                info,
                host.fabric.pkeys(port).map(<[_]>::to_vec),
                host.fabric.guids(port).map(<[_]>::to_vec),
            )
        })
        .collect();
    (settings, generation)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_guest_changes_nothing(
        packets in prop::collection::vec(packet(), 1..16),
        local in prop::collection::vec(datagram(), 1..16),
    ) {
        let mut host = Host::new();
        host.bring_up();
        let vf = host.vf(0);
        host.fabric.set_owner(vf, Owner::Consumer, SmpAccess::OwnPort);
        let before = settings(&host);
        for packet in packets {
            host.fabric.inject(vf, packet);
            host.fabric.run();
        }
        for mad in local {
            host.fabric.local_mad(vf, &mad);
        }
        prop_assert_eq!(settings(&host), before);
    }

    #[test]
    fn nothing_panics(packets in prop::collection::vec(packet(), 1..24)) {
        let mut host = Host::new();
        host.bring_up();
        for packet in packets {
            host.fabric.inject(host.port, packet);
            host.fabric.run();
            while host.fabric.poll_output().is_some() {}
            let (a, b) = (host.vf(0), Lid::new(5));
            let _ = host.fabric.resolve(a, b, Sl::default(), Some(PKey::DEFAULT_FULL));
            host.fabric.resolve_multicast(a, Lid::MULTICAST_FIRST, Sl::default(), None);
        }
    }
}
