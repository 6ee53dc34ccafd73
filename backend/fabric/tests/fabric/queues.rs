//! Links that share their bandwidth among lanes, packet by packet, in a time of the tests' own.

use crate::common::{Host, SWITCH, VF, VSWITCH};
use ibvswitch_fabric::{Hop, Load, PortRef, Queues};
use proptest::prelude::*;
use wire::attribute::{SlToVl, VlArbitration, VlWeight};
use wire::mad::{AttributeId, Status};
use wire::{Lid, MadPacket, PKey, Sl, Vl};

/// Bytes per second of every link: 4X EDR.
const RATE: u64 = 12_500_000_000;
/// The hypervisor's functions send over its uplink to the manager's host: three links.
const LINKS: u64 = 3;

/// A fabric in operation with two lanes, service level 1 on lane 1 everywhere. `high` and `low` are the
/// tables of the vSwitch's uplink: lanes with their weights.
fn host(high: &[(u8, u8)], low: &[(u8, u8)], limit: u8) -> Host {
    let mut host = Host::new();
    host.bring_up();
    for (route, port) in crate::common::ALL_EXTERNAL {
        let status = host.change_port(route, port, |info| {
            info.operational_vls = 2;
            info.vl_high_limit = limit;
        });
        assert_eq!(status, Status::OK);
    }
    let lanes = SlToVl::modulo(2).to_bytes();
    for (route, modifier) in [
        (crate::common::OWN, 0),
        (VF, 0),
        (&[1, 1, 3][..], 0),
        (SWITCH, 0x3_0000),
        (VSWITCH, 0x3_0000),
    ] {
        host.set(route, AttributeId::SL_TO_VL, modifier, lanes);
    }
    for (half, entries) in [(3, high), (1, low)] {
        let mut table = VlArbitration::default();
        for (entry, &(vl, weight)) in table.0.iter_mut().zip(entries) {
            let vl = Vl::new(vl);
            *entry = VlWeight { vl, weight };
        }
        let modifier = half << 16 | 1;
        let (status, _) = host.set(
            VSWITCH,
            AttributeId::VL_ARBITRATION,
            modifier,
            table.to_bytes(),
        );
        assert_eq!(status, Status::OK);
    }
    host
}

fn way(host: &Host, queues: &mut Queues, from: PortRef, sl: u8) -> u32 {
    let sl = Sl::new(sl);
    let (left_by, end) = host.fabric.follow(from, Lid::new(1).into(), sl, None);
    end.unwrap();
    let hops = host.fabric.hops(&left_by, sl).unwrap();
    assert!(hops.iter().all(|hop| hop.lane == Vl::new(sl.value())));
    let number = queues.way(&hops, |port| host.fabric.shared_link(port));
    number.unwrap()
}

fn load(owner: u16, token: u64, way: u32, packets: u32, bytes: u32) -> Load {
    Load {
        owner,
        token,
        way,
        packets,
        full: bytes,
        last: bytes,
        header: (Lid::new(4 + owner), Lid::new(1), Sl::new(0)),
    }
}

/// Nanoseconds for so many bytes.
fn time(bytes: u64) -> u64 {
    bytes * 1_000_000_000 / RATE
}

#[test]
fn packets_follow_one_another() {
    let host = host(&[], &[], 0);
    let mut queues = Queues::default();
    let way = way(&host, &mut queues, host.vf(0), 0);
    queues.enter(500, load(0, 7, way, 16, 4000));
    assert_eq!(queues.next(0, 500), None);
    // The first packet has to be on each link in turn, and the others follow it.
    let end = 500 + time((15 + LINKS) * 4000);
    assert_eq!(queues.next(0, end - 1), None);
    let arrived = queues.next(0, end).unwrap();
    assert_eq!((arrived.token, arrived.at, arrived.done), (7, end, true));
    assert_eq!(arrived.hop, 2);
    assert_eq!(queues.deadline(0), None);
    // Who has nothing on its way has nothing to wait for.
    queues.enter(end, load(1, 8, way, 1, 4000));
    assert_eq!(queues.deadline(0), None);
    assert_eq!(queues.deadline(1), Some(end + time(4000)));
}

/// Has the vSwitch mark packets that leave by its uplink: threshold, smallest packet, rate.
fn mark(host: &mut Host, [threshold, packet_size, rate]: [u8; 3]) {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, 0x21, 2, 2]);
    mad[17] = 0x15;
    mad[64 + 4..64 + 8].copy_from_slice(&[0x80 | threshold, packet_size, 0, rate]);
    let (pkey, to) = (PKey::DEFAULT_FULL, Lid::new(3));
    let packet = MadPacket::gmp(Lid::new(1), to, Sl::new(0), pkey, mad);
    host.fabric.inject(host.port, packet);
    assert_eq!(host.received().len(), 1);
}

/// Packets that wait behind the threshold are marked, every third packet of at least 256 bytes, at the port where
/// it waits.
#[test]
fn packets_that_wait_are_marked() {
    for (setting, [from, to]) in [
        // Never.
        ([0, 0, 0], [0, 0]),
        // 8 KiB wait: but for the last two packets all of the second load, and of the first those behind it.
        ([15, 0, 0], [2, 62]),
        // Every third.
        ([15, 0, 2], [8, 12]),
        // Those of this length, and no shorter ones.
        ([15, 64, 0], [2, 62]),
        ([15, 65, 0], [0, 0]),
        // 120 KiB never wait here.
        ([1, 0, 0], [0, 0]),
    ] {
        let mut host = host(&[], &[], 0);
        mark(&mut host, setting);
        let mut queues = Queues::default();
        let ways = [0, 1].map(|vf| way(&host, &mut queues, host.vf(vf), 0));
        for (owner, way) in (0..).zip(ways) {
            queues.enter(0, load(owner, 7, way, 16, 4096));
        }
        let arrived = [0, 1].map(|owner| queues.next(owner, 1_000_000).unwrap());
        host.fabric.tell_marks(queues.take_marks());
        let mut log = [0; 256];
        log[..4].copy_from_slice(&[1, 0x21, 2, 1]);
        log[17] = 0x13;
        let vswitch = PortRef {
            port: 0,
            ..host.fabric.peer(host.vf(0)).unwrap()
        };
        let log = host.fabric.local_mad(vswitch, &log).unwrap();
        assert_eq!(log[32], 1);
        let marked = u32::from(u16::from_be_bytes([log[34], log[35]]));
        assert!((from..=to).contains(&marked), "{setting:?}: {marked}");
        assert!(arrived.iter().all(|arrived| arrived.marked == (to > 0)));
        // The uplink is port 1. Events have the loads' headers.
        assert_eq!(log[71], if to > 0 { 2 } else { 0 });
        let event = &log[72..84];
        assert_eq!(event[..2] != [0, 0], to > 0);
        if to > 0 {
            assert!(matches!(event[1], 4 | 5) && event[3] == 1);
        }
        // The log is empty once it has been read.
        let mut again = [0; 256];
        again[..4].copy_from_slice(&[1, 0x21, 2, 1]);
        again[17] = 0x13;
        let again = host.fabric.local_mad(vswitch, &again).unwrap();
        assert_eq!(again[34..36], [0, 0]);
    }
}

/// So many bytes of each function come to the host in a millisecond while both have more to send than the
/// uplink takes, in frames of 16 packets.
fn shares(host: &Host, sls: [u8; 2]) -> [u64; 2] {
    const PACKETS: u64 = 16;
    let mut queues = Queues::default();
    let ways = [0, 1].map(|vf| way(host, &mut queues, host.vf(vf), sls[usize::from(vf)]));
    let mut sent = [0; 2];
    let mut enter = |queues: &mut Queues, now, from: usize| {
        sent[from] += 1;
        queues.enter(now, load(0, from as u64, ways[from], PACKETS as u32, 4096));
    };
    for from in [0, 1, 0, 1, 0, 1, 0, 1] {
        enter(&mut queues, 0, from);
    }
    let mut arrived = [0; 2];
    while let Some(frame) = queues.next(0, 1_000_000) {
        let from = frame.token as usize;
        arrived[from] += PACKETS * 4096;
        // For each that has arrived, its sender sends another.
        enter(&mut queues, frame.at, from);
    }
    arrived
}

/// In parts of the link.
fn parts(bytes: [u64; 2]) -> [f64; 2] {
    bytes.map(|bytes| bytes as f64 * 1000.0 / RATE as f64)
}

#[test]
fn lanes_get_their_shares() {
    for (high, low, limit, expected) in [
        // Lane 1 has three times the weight.
        (&[][..], &[(0, 64), (1, 192)][..], 0, [0.25, 0.75]),
        (&[(0, 64), (1, 192)], &[], 255, [0.25, 0.75]),
        // Without tables lanes take turns.
        (&[], &[], 0, [0.5, 0.5]),
        // One packet of the low-priority table's lane after four of the other's.
        (&[(1, 255)], &[(0, 1)], 4, [0.2, 0.8]),
    ] {
        let given = parts(shares(&host(high, low, limit), [0, 1]));
        for (given, expected) in given.into_iter().zip(expected) {
            assert!((given - expected).abs() < 0.02, "{given} of {expected}");
        }
    }
    // In the same lane two functions get the same.
    let same = parts(shares(&host(&[], &[(0, 64), (1, 192)], 0), [0, 0]));
    assert!(
        same.iter().all(|part| (part - 0.5).abs() < 0.02),
        "{same:?}"
    );
}

#[test]
fn a_manager_writes_other_tables() {
    let mut host = host(&[], &[(0, 64), (1, 192)], 0);
    let before = host.fabric.generation();
    let mut table = VlArbitration::default();
    table.0[0] = VlWeight {
        vl: Vl::new(1),
        weight: 1,
    };
    let uplink = PortRef {
        node: host.fabric.peer(host.vf(0)).unwrap().node,
        port: 1,
    };
    let old = host.fabric.shared_link(uplink).unwrap();
    assert!(old.arbiter.serves(Vl::new(0)));
    for _ in 0..2 {
        let half = 1 << 16 | 1;
        host.set(VSWITCH, AttributeId::VL_ARBITRATION, half, table.to_bytes());
    }
    let after = host.fabric.generation();
    assert_eq!(after, before + 1, "paths are looked up anew, once");
    let new = host.fabric.shared_link(uplink).unwrap();
    assert!(!new.arbiter.serves(Vl::new(0)) && new.arbiter.serves(Vl::new(1)));
    // What waits in a lane that has gone is not kept for ever.
    let mut queues = Queues::default();
    let hops = [Hop {
        port: uplink,
        lane: Vl::new(0),
        after: None,
    }];
    let way = queues.way(&hops, |_| Some(old.clone())).unwrap();
    queues.enter(0, load(0, 1, way, 2, 1250));
    assert_eq!(queues.way(&hops, |_| Some(new.clone())), Some(way));
    assert_eq!(queues.next(0, 200).map(|arrived| arrived.token), Some(1));
}

#[test]
fn copies_share_the_links_that_they_have_in_common() {
    let host = host(&[], &[], 0);
    let mut queues = Queues::default();
    let (vf, other) = (host.vf(0), host.vf(1));
    let vswitch = host.fabric.peer(vf).unwrap().node;
    let port = |port| PortRef {
        node: vswitch,
        port,
    };
    let to_other = host.fabric.peer(other).unwrap();
    let left_by = [vf, port(1), to_other];
    let hops = host.fabric.hops(&left_by, Sl::new(0)).unwrap();
    let after: Vec<_> = hops.iter().map(|hop| hop.after).collect();
    assert_eq!(after, [None, Some(0), Some(0)]);
    let way = queues
        .way(&hops, |port| host.fabric.shared_link(port))
        .unwrap();
    queues.enter(0, load(0, 1, way, 1, 1250));
    let arrived: Vec<_> = std::iter::from_fn(|| queues.next(0, 200)).collect();
    let places: Vec<_> = arrived.iter().map(|it| (it.hop, it.at, it.done)).collect();
    assert_eq!(places, [(1, 200, false), (2, 200, true)]);
    assert_eq!(queues.deadline(0), None);
}

#[test]
fn nothing_is_rounded_away() {
    let host = host(&[], &[], 0);
    let mut queues = Queues::default();
    let way = way(&host, &mut queues, host.vf(0), 0);
    // 30 bytes take 2.4 ns.
    for token in 0..1000 {
        queues.enter(0, load(0, token, way, 1, 30));
    }
    let last = std::iter::from_fn(|| queues.next(0, u64::MAX))
        .last()
        .unwrap();
    assert!((2400..2410).contains(&last.at), "{}", last.at);
}

proptest! {
    /// Everything arrives, at every end once; of one sender and lane in the order in which it was sent,
    /// and a link is never faster than it is.
    #[test]
    fn all_arrives_in_its_order(
        loads in prop::collection::vec((0..2_u16, 0..2_u8, 1..20_u32, 1..5000_u32, 0..3000_u64), 1..60),
        weights in prop::collection::vec((0..2_u8, 1..=255_u8), 0..6),
    ) {
        let host = host(&weights, &[(0, 1), (1, 1)], 3);
        let mut queues = Queues::default();
        let mut now = 0;
        let mut total = 0;
        for (token, &(vf, sl, packets, bytes, pause)) in loads.iter().enumerate() {
            let way = way(&host, &mut queues, host.vf(vf), sl);
            now += pause;
            total += u64::from(packets) * u64::from(bytes);
            queues.enter(now, load(vf, token as u64, way, packets, bytes));
        }
        let mut latest = 0;
        for vf in 0..2 {
            let mut orders = [Vec::new(), Vec::new()];
            let mut before = 0;
            while let Some(due) = queues.deadline(vf) {
                if let Some(arrived) = queues.next(vf, due) {
                    prop_assert!(arrived.done && arrived.at >= before);
                    before = arrived.at;
                    latest = latest.max(arrived.at);
                    let sl = loads[arrived.token as usize].1;
                    orders[usize::from(sl)].push(arrived.token);
                }
            }
            for (sl, order) in orders.iter().enumerate() {
                let sent: Vec<u64> = (0_u64..)
                    .zip(&loads)
                    .filter(|(_, load)| load.0 == vf && usize::from(load.1) == sl)
                    .map(|(token, _)| token)
                    .collect();
                prop_assert_eq!(order, &sent);
            }
        }
        prop_assert!(latest >= time(total), "{} bytes by {}", total, latest);
        prop_assert!(latest <= now + time(total * LINKS) + 3 * 1200, "links rest");
    }
}
