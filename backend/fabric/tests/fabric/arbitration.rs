//! Arbitration of a link: the arbiter packet by packet, against the bandwidths of the model.

use crate::common::{Host, OWN, SWITCH, VF, VSWITCH};
use ibvswitch_fabric::{Arbiter, Flow, LinkRate, PortRef};
use proptest::prelude::*;
use wire::attribute::{SlToVl, VlArbitration, VlWeight};
use wire::mad::{AttributeId, Status};
use wire::{Lid, PKey, Sl, Vl};

fn table(entries: &[(u8, u8)]) -> VlArbitration {
    let mut table = VlArbitration::default();
    for (entry, &(vl, weight)) in table.0.iter_mut().zip(entries) {
        *entry = VlWeight {
            vl: Vl::new(vl),
            weight,
        };
    }
    table
}

/// Shares of lanes when an arbiter serves packets as they come, in parts of the link.
fn served(mut arbiter: Arbiter, wanted: &[f64; 16], packet: u32, slots: u32) -> [f64; 16] {
    let mut waiting = [0.0; 16];
    let mut sent = [0.0; 16];
    for _ in 0..slots {
        for (waiting, wanted) in waiting.iter_mut().zip(wanted) {
            *waiting += wanted;
        }
        let heads = waiting.map(|packets: f64| (packets >= 1.0).then_some(packet));
        if let Some(vl) = arbiter.next(&heads) {
            let lane = usize::from(vl.value());
            assert!(heads[lane].is_some(), "an empty lane sends");
            waiting[lane] -= 1.0;
            sent[lane] += 1.0;
        }
    }
    sent.map(|packets| packets / f64::from(slots))
}

fn close(a: [f64; 16], b: [f64; 16]) -> bool {
    a.iter().zip(b).all(|(a, b)| (a - b).abs() < 0.02)
}

/// The tables of a port that nobody has configured show that each lane sends, as it does, and that they take turns.
#[test]
fn ports_that_nobody_has_told_anything() {
    let mut host = Host::new();
    host.bring_up();
    let turns: Vec<(u8, u8)> = (0..8).map(|lane| (lane, 1)).collect();
    for (route, port) in [(VF, 1), (SWITCH, 2)] {
        for (half, expected) in [(1, table(&turns)), (3, table(&[]))] {
            let (status, data) = host.get(route, AttributeId::VL_ARBITRATION, half << 16 | port);
            assert_eq!(status, Status::OK);
            assert_eq!(
                VlArbitration::parse(&data),
                expected,
                "half {half} of port {port}"
            );
        }
    }
    host.change_port(VF, 1, |info| info.operational_vls = 4);
    let arbiter = host.fabric.arbiter(host.vf(0)).unwrap();
    let empty = Arbiter::new(&[], &[], 0, 8);
    let wanted = std::array::from_fn(|lane| if lane < 8 { 1.0 } else { 0.0 });
    for packet in [1, 64, 65, 256, 4096] {
        let expected = std::array::from_fn(|lane| wanted[lane] / 8.0);
        let shares = [&arbiter, &empty].map(|arbiter| arbiter.share(1.0, &wanted, packet));
        assert!(
            shares.iter().all(|shares| close(*shares, expected)),
            "{shares:?}"
        );
        assert!(close(
            served(arbiter.clone(), &wanted, packet, 8000),
            expected
        ));
    }
    // A table that is set to nothing is nothing.
    let none = table(&[]).to_bytes();
    let set = host.set(VF, AttributeId::VL_ARBITRATION, 1 << 16 | 1, none);
    assert_eq!(set, (Status::OK, none));
    assert_eq!(host.get(VF, AttributeId::VL_ARBITRATION, 1 << 16 | 1), set);
}

/// Figure 3.5 of the thesis on virtual clusters: four service levels on three lanes; lanes 0 and 1
/// in the high-priority table, lane 1 with more weight; lane 2 in the low-priority table, which
/// sends when nothing waits in the others.
#[test]
fn four_levels_on_three_lanes() {
    let lanes = [0, 1, 1, 2];
    let arbiter = Arbiter::new(&[table(&[(0, 1), (1, 3)])], &[table(&[(2, 1)])], 255, 4);
    let wanted = |by_level: [f64; 4]| {
        let mut wanted = [0.0; 16];
        for (level, want) in by_level.into_iter().enumerate() {
            wanted[lanes[level]] += want;
        }
        wanted
    };
    // What the levels want of the link, and what the lanes get of it.
    for (by_level, expected) in [
        ([1.0, 1.0, 1.0, 1.0], [0.25, 0.75, 0.0]),
        ([1.0, 0.5, 0.0, 1.0], [0.5, 0.5, 0.0]),
        ([1.0, 0.125, 0.125, 1.0], [0.75, 0.25, 0.0]),
        ([0.25, 0.125, 0.125, 1.0], [0.25, 0.25, 0.5]),
        ([0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0]),
        ([0.1, 0.0, 0.2, 0.3], [0.1, 0.2, 0.3]),
    ] {
        let wanted = wanted(by_level);
        let shares = arbiter.share(1.0, &wanted, 64);
        assert_eq!(shares[..3], expected, "{by_level:?}");
        let really = served(arbiter.clone(), &wanted, 64, 4000);
        assert!(close(really, shares), "{really:?} {shares:?}");
    }
}

#[test]
fn management_goes_first() {
    let mut arbiter = Arbiter::new(&[table(&[(0, 255)])], &[], 255, 1);
    let mut waiting = [None; 16];
    waiting[0] = Some(4096);
    waiting[15] = Some(256);
    assert_eq!(arbiter.next(&waiting), Some(Vl::MANAGEMENT));
    waiting[15] = None;
    assert_eq!(arbiter.next(&waiting), Some(Vl::new(0)));
    let mut wanted = [0.0; 16];
    (wanted[0], wanted[15]) = (9.0, 0.25);
    let shares = arbiter.share(1.0, &wanted, 256);
    assert_eq!((shares[0], shares[15]), (0.75, 0.25));
}

/// The limit of high priority, in units of 4096 bytes: after so many the other table has its chance
/// to send one packet.
#[test]
fn the_limit_of_high_priority() {
    let tables = (table(&[(0, 10)]), table(&[(1, 10)]));
    let mut wanted = [0.0; 16];
    (wanted[0], wanted[1]) = (1.0, 1.0);
    for (limit, packet, low) in [
        (255, 4096, 0.0),
        (0, 4096, 0.5),
        (1, 4096, 0.5),
        (3, 4096, 0.25),
        (1, 1024, 0.2),
    ] {
        let arbiter = Arbiter::new(&[tables.0], &[tables.1], limit, 2);
        let shares = arbiter.share(1.0, &wanted, packet);
        assert!((shares[1] - low).abs() < 1e-9, "{limit} {shares:?}");
        let really = served(arbiter, &wanted, packet, 4000);
        assert!(close(really, shares), "{limit} {really:?} {shares:?}");
    }
}

#[test]
fn lanes_that_are_not_there() {
    // Not in use, without weight, or not in a table at all: nothing is ever sent.
    let mut arbiter = Arbiter::new(&[table(&[(5, 9), (1, 0)])], &[table(&[(0, 1)])], 255, 4);
    let mut waiting = [Some(64); 16];
    waiting[15] = None;
    for _ in 0..9 {
        assert_eq!(arbiter.next(&waiting), Some(Vl::new(0)));
    }
    waiting[0] = None;
    assert_eq!(arbiter.next(&waiting), None);
    // With no tables at all the lanes take turns.
    let mut arbiter = Arbiter::new(&[], &[], 0, 4);
    let waiting = [Some(64); 15].into_iter().chain([None]).collect::<Vec<_>>();
    let waiting: [Option<u32>; 16] = waiting.try_into().unwrap();
    let turns: Vec<_> = (0..8)
        .map(|_| arbiter.next(&waiting).unwrap().value())
        .collect();
    assert_eq!(turns, [0, 1, 2, 3, 0, 1, 2, 3]);
}

/// Weights count packets of 64 bytes; a longer packet is sent whole when any weight is left.
#[test]
fn long_packets_and_small_weights() {
    let mut wanted = [0.0; 16];
    (wanted[0], wanted[1]) = (1.0, 1.0);
    let arbiter = Arbiter::new(&[], &[table(&[(0, 1), (1, 96)])], 0, 2);
    // 64 and 6144 bytes: one packet of 4096 bytes, and two.
    let shares = arbiter.share(1.0, &wanted, 4096);
    assert!((shares[1] - 2.0 / 3.0).abs() < 1e-9);
    assert!(close(served(arbiter, &wanted, 4096, 3000), shares));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_model_is_what_the_arbiter_does(
        high in prop::collection::vec((0u8..8, 1u8..64), 0..6),
        low in prop::collection::vec((0u8..8, 1u8..64), 0..6),
        wanted in prop::collection::vec(prop_oneof![Just(0.0), Just(2.0), 0.0..0.5], 8),
        packet in prop::sample::select(vec![64u32, 256, 1024]),
    ) {
        // A lane in both tables takes its turns in either, which bandwidth alone does not tell.
        let low: Vec<_> = low
            .into_iter()
            .filter(|(vl, _)| high.iter().all(|(other, _)| other != vl))
            .collect();
        let arbiter = Arbiter::new(&[table(&high)], &[table(&low)], 255, 8);
        let mut all = [0.0; 16];
        all[..8].copy_from_slice(&wanted);
        let shares = arbiter.share(1.0, &all, packet);
        prop_assert!(shares.iter().sum::<f64>() <= 1.0 + 1e-9);
        let really = served(arbiter, &all, packet, 60_000);
        prop_assert!(close(really, shares), "{:?} {:?}", really, shares);
    }
}

/// Two functions send to the manager's host over the same uplink on lanes of their own, and a third
/// stream stays behind the vSwitch.
#[test]
fn flows_that_meet() {
    let mut host = Host::new();
    host.bring_up();
    let routes: [(&[u8], u8); 8] = crate::common::ALL_EXTERNAL;
    for (route, port) in routes {
        let status = host.change_port(route, port, |info| {
            info.operational_vls = 2;
            info.vl_high_limit = 255;
        });
        assert_eq!(status, Status::OK);
    }
    // Service level 1 takes lane 1 everywhere.
    let lanes = SlToVl::modulo(2).to_bytes();
    for (route, modifier) in [
        (OWN, 0),
        (VF, 0),
        (&[1, 1, 3][..], 0),
        (SWITCH, 0x3_0000),
        (VSWITCH, 0x3_0000),
    ] {
        host.set(route, AttributeId::SL_TO_VL, modifier, lanes);
    }
    // At the vSwitch's uplink lane 1 has three times the weight.
    let weights = table(&[(0, 1), (1, 3)]).to_bytes();
    host.set(VSWITCH, AttributeId::VL_ARBITRATION, 3 << 16 | 1, weights);

    let rate = LinkRate::default().bytes_per_second();
    assert_eq!(rate, 12.5e9, "4X EDR");
    let flow = |from, dlid, sl| Flow {
        from,
        dlid: Lid::new(dlid),
        sl: Sl::new(sl),
        pkey: PKey::DEFAULT_FULL,
        wanted: rate,
    };
    let (a, b) = (host.vf(0), host.vf(1));
    let flows = [flow(a, 1, 0), flow(b, 1, 1), flow(b, 4, 0)];
    let given: Vec<f64> = host
        .fabric
        .bandwidth(&flows, 64)
        .into_iter()
        .map(|given| given.unwrap() / rate)
        .collect();
    // b's own link is shared in halves by its two streams, so that lane 1 of the uplink cannot use
    // its three quarters, and lane 0 takes the rest.
    assert!((given[1] - 0.5).abs() < 1e-6, "{given:?}");
    assert!((given[2] - 0.5).abs() < 1e-6, "{given:?}");
    assert!((given[0] - 0.5).abs() < 1e-6, "{given:?}");

    let alone: Vec<_> = host.fabric.bandwidth(&flows[..2], 64);
    let alone: Vec<f64> = alone
        .into_iter()
        .map(|given| given.unwrap() / rate)
        .collect();
    assert!((alone[0] - 0.25).abs() < 1e-6, "{alone:?}");
    assert!((alone[1] - 0.75).abs() < 1e-6, "{alone:?}");

    let nowhere = host.fabric.bandwidth(&[flow(a, 9, 0)], 64);
    assert!(nowhere[0].is_err());
    let trace = host.fabric.trace(a, Lid::new(1), Sl::new(1), None).unwrap();
    let ports: Vec<PortRef> = trace.iter().map(|&(port, _)| port).collect();
    assert_eq!(ports.len(), 3);
    assert!(trace.iter().all(|&(_, vl)| vl == Vl::new(1)));
}
